# Container `hold`: hold FOLDER... - DSV with ...
# Makes the folders that the job writes to, makes sure of the data, and holds it until the command has ended or
# Kubernetes ends this container. Then it completes the record of the run, if all nodes have ended. It does so at once:
# Kubernetes sees the end of the command only up to a second later.
own=/dsv/own
umask 002
if [ -n "${DSV_SETTINGS:-}" ]; then
  export DSV_CONFIG=$own/config.toml
  printf '%s\n' "$DSV_SETTINGS" >"$DSV_CONFIG"
fi
if [ -n "${DSV_CERTIFICATES:-}" ]; then
  export AWS_CA_BUNDLE=$own/certificates.pem
  printf '%s\n' "$DSV_CERTIFICATES" >"$AWS_CA_BUNDLE"
fi
give_up() { # but keep running: Kubernetes starts the next container, which reports the problem, only after this one
  trap 'exit 1' TERM
  : >$own/not-held
  while :; do sleep 3600 & wait $!; done
}
while [ "$1" != - ]; do
  mkdir -p "$1" 2>$own/problem || give_up
  [ ! -O "$1" ] || chmod g+rwxs "$1"
  shift
done
shift
if ! command -v "$1" >/dev/null; then
  echo "error: the pool's image of dsv has no program $1" >$own/problem
  give_up
fi
[ -z "${DSV_PARAMS_FILE:-}" ] || printf '%s\n' "$DSV_PARAMS" >"$DSV_PARAMS_FILE"
exec 3>&2 2>/dev/null
over=
trap 'over=yes; kill -TERM "$holder"' TERM
if [ -n "${DSV_GANG_PORT:-}" ]; then
  # rendezvous.py says when the data is held on all nodes. The Python that dsv runs with is beside the program dsv.
  python=$(command -v "$1")
  python=${python%/*}/python3
  [ -x "$python" ] || python=python3
  "$@" "$python" -m dsv.run.engines.kubernetes.rendezvous 2>>$own/problem 3>&- &
else
  "$@" sh -c ": >$own/held; until [ -e $own/ended ]; do sleep 0.25 || sleep 1; done" 2>>$own/problem 3>&- &
fi
holder=$!
wait "$holder"
if [ -z "$over" ] && [ ! -e $own/ended ]; then
  : >$own/not-held
  cat $own/problem >&3
fi
wait "$holder"
trap over=yes TERM # which interrupts a wait
lines=${DSV_METRICS_FILE:+${DSV_METRICS_FILE}l} # links are not followed: this container sees files that the job must not
[ ! -f "$lines" ] || [ -L "$lines" ] || printf '%s\n%s\n' '--- metrics.jsonl' "$(tail -c 1048576 "$lines")"
notes=${DSV_NOTES_FOLDER:-}
if [ -d "$notes" ] && [ ! -L "$notes" ] && [ ! -L "${notes%/*}" ]; then
  echo '--- notes'
  for each in "$notes"/*; do [ -L "$each" ] || [ ! -f "$each" ] || cat "$each"; done | head -c 1048576
  echo
fi
if [ -f "${DSV_METRICS_FILE:-}" ] && [ ! -L "$DSV_METRICS_FILE" ]; then
  printf '%s\n%s\n' '--- metrics.json' "$(head -c 1048577 "$DSV_METRICS_FILE")"
fi
echo '--- end'
if [ -n "${DSV_CLOSE:-}" ] && [ -e $own/ended ]; then
  umask 077
  attempt=$((${DSV_FAILED:-0} + ${DSV_IGNORED:-0} + 1))
  printf '%s' "$DSV_ORDER" >$own/order
  eval "$DSV_CLOSE --left $own --rank ${DSV_INDEX:-0} --attempt $attempt" <$own/order >$own/complete.log 2>&1 &
  closing=$!
  (sleep "$DSV_CLOSE_SECONDS" && kill -TERM "$closing") >/dev/null 3>&- &
  wait "$closing"
  wait "$closing"
fi
trap 'exit 0' TERM
while [ -z "$over" ] && [ -e $own/ended ]; do sleep 3600 & wait $!; done # or Kubernetes would start it again
[ -n "$over" ]
