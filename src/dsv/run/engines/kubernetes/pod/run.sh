# Container `main`: runs the command of the job, and exits with its code, unless the attempt is over because of another
# node. $own/ended and the termination message say how the command ended and what it used.
# Kubernetes signals only this shell, which waits for the command. What ends the command signals the command itself.
exec 3>&2 2>/dev/null
trap : HUP INT TERM
tools=/usr/bin:/bin:$PATH
begun=$(PATH=$tools; date +%s)
DSV_ATTEMPT=$((${DSV_FAILED:-0} + ${DSV_IGNORED:-0} + 1))
export DSV_ATTEMPT
unset DSV_FAILED DSV_IGNORED
(wait_for_nodes) </dev/null >/dev/null
rm -f $own/command $own/why
watch </dev/null >/dev/null &
copied=
if [ -n "$DSV_COPIED" ]; then
  copied=$(PATH=$tools; can_copy >/dev/null && echo yes)
  printf '%s\0' "$@" >$own/argv
fi
[ -z "$copied" ] || (copy_log) &
(
  unset DSV_SECONDS DSV_NODES DSV_GANG_PORT DSV_COPIED
  [ -z "$copied" ] || exec 3>$own/pipe >&3
  exec /bin/sh -c 'echo "$$" >'$own'/command && exec "$@"' sh "$@" </dev/null 2>&3 3>&-
)
code=$?
[ -z "$copied" ] || (wait_for_copy)
verdict= reason= why=
if [ -n "${DSV_GANG_PORT:-}" ]; then # wait until the attempt is over on all nodes
  (
    PATH=$tools
    echo "$code" >$own/code
    until [ -e $own/verdict ] || [ -e $own/not-held ]; do
      read -r why <$own/why && [ "$why" = time-limit ] && break
      sleep 0.25 || sleep 1
    done
  ) </dev/null >/dev/null
  read -r verdict reason <$own/verdict
fi
read -r why <$own/why
if [ "$code" = 126 ] || [ "$code" = 127 ]; then
  case $1 in */*) [ -x "$1" ] ;; *) command -v "$1" >/dev/null ;; esac || why=missing
fi
# A command that succeeded, and lost its data before the others were done, has not succeeded for them.
[ -z "${DSV_GANG_PORT:-}" ] || [ -n "$verdict$why" ] || [ ! -e $own/not-held ] || why=lease-lost
[ "$why" != together ] || [ "$verdict" = again ] || why=
case $why in
  lease-lost) code=125 ;;
  time-limit) code=124 ;;
esac
end=$code
if [ "$verdict" = again ] && { [ -z "$why" ] || [ "$why" = together ]; }; then
  end=190 why=together
elif [ "$code" = 190 ] && [ -n "$verdict" ]; then
  end=1
fi
for peak in /sys/fs/cgroup/memory.peak /sys/fs/cgroup/memory/memory.max_usage_in_bytes; do
  read -r memory <"$peak" && break
done
read -r _ cpu </sys/fs/cgroup/cpu.stat && cpu=${cpu}000 || read -r cpu </sys/fs/cgroup/cpuacct/cpuacct.usage
over=$(PATH=$tools; date +%s)
# The end of an attempt of several nodes is what they agreed on. Without a verdict only the cluster can tell it.
if [ -z "${DSV_GANG_PORT:-}" ] || [ -n "$verdict$why" ]; then
  echo "code=$code why=$why begun=$begun over=$over memory=${memory:-} cpu=${cpu:-} whole=yes" >$own/ended
fi
stopped=no
[ ! -e $own/stopped ] || stopped=yes
printf '%s\n' "end=$why memory=${memory:-} cpu=${cpu:-} code=$code stopped=$stopped" "$reason" >/dev/termination-log
exit "$end"
