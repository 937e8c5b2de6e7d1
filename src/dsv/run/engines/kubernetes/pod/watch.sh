# Part of run.sh: ends the command if its time is over, its data is not held any more or another node has failed, and
# passes signals on. dsv sends a signal as an annotation of the pod, which Kubernetes shows in a file.
own=/dsv/own
end_command() { # WHY
  [ ! -s $own/why ] || return 0
  echo "$1" >$own/why
  kill -TERM "$pid"
  dying=$(($(date +%s) + 30))
}
watch() {
  trap - HUP INT TERM
  PATH=$tools
  seen= pid= dying=
  until [ -n "$pid" ]; do
    read -r pid <$own/command || sleep 0.1 || sleep 1
  done
  begun=$(date +%s)
  while :; do
    while read -r number name; do
      case " $seen " in *" $number "*) continue ;; esac
      seen="$seen $number"
      case $name in HUP | INT | QUIT | TERM | KILL) : >$own/signalled ;; esac
      kill -s "$name" "$pid"
    done </dsv/signals/signal
    [ ! -e $own/stopped ] || [ -n "$dying" ] || dying=$(($(date +%s) + 30))
    [ ! -e $own/not-held ] || end_command lease-lost
    [ ! -e $own/end ] || end_command together
    [ -z "$DSV_SECONDS" ] || [ $(($(date +%s) - begun)) -lt "$DSV_SECONDS" ] || end_command time-limit
    [ -z "$dying" ] || [ "$(date +%s)" -lt "$dying" ] || kill -KILL "$pid"
    sleep 0.25 || sleep 1
  done
}
