# Container `stage`: ends after the data is held, so the container of the job starts after that. Its termination message
# says how the data was fetched, or if it can't be held, its log says why.
own=/dsv/own
trap 'exit 143' TERM
until [ -e $own/not-held ]; do
  if [ -e $own/held ]; then
    cat $own/staged.json >/dev/termination-log
    exit 0
  fi
  [ ! -e $own/verdict ] || exit 190 # the attempt is over because of another node
  sleep 0.1 || sleep 1
done
cat $own/problem >&2
exit 1
