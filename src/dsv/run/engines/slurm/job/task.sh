# What each node runs.
read -r -d '' task <<'@end@'
own=$1/node.$2.$SLURM_NODEID late=$1/late.$2.$SLURM_NODEID alive=$1/alive.$2.$SLURM_NODEID
exec 3>&2 2>>"$1/slurm.log"
[ ! -e "$late" ] || rm -f "$late"
@wait@
# Slurm's signals come to this shell alone, and go on to the command and what it started.
command= early=
pass() {
  early=$1
  [ -z "$command" ] || kill -s "$1" -- "-$command"
}
for each in HUP INT TERM USR1 USR2; do trap "pass $each" "$each"; done
export NODE_RANK=$SLURM_NODEID PET_NODE_RANK=$SLURM_NODEID
@variables@
@workdir@
@image@
printf -v begun '%(%s)T' -1
set -m # a process group of its own; without it SIGINT would be ignored in what is started by &
(
  echo "$SLURMD_NODENAME $begun" >"$own"
  type -P -- @program@ >/dev/null || : >"$own"
  exec -- @command@
) </dev/null 2>&3 3>&- &
command=$!
[ -z "$early" ] || pass "$early"

# The last sign of a node that is lost.
(
  trap '' HUP INT TERM USR1 USR2
  for ((pause = 1; ; pause < 16 && (pause *= 2))); do sleep "$pause" && kill -0 "$$" && : >"$alive" || exit; done
) </dev/null >/dev/null 2>&1 3>&- &
signs=$! && disown "$signs"
@clock@while wait "$command" || :; kill -0 "$command"; do :; done 2>&-
wait "$command"
code=$?
kill -s KILL -- "-$signs" 2>&-
@stop_clock@
printf -v ended '%(%s)T' -1
if [ ! -e "$own" ] || [ -s "$own" ]; then echo "$SLURMD_NODENAME $begun $code $ended" >"$own"; fi
[ ! -e "$late" ] || exit 0 # so that srun lets the other nodes use the time that they have to end
exit "$code"
@end@
