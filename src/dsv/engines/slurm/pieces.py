"""The pieces of the batch script of a job on Slurm, which script.py puts together."""

from __future__ import annotations

from typing import Final

COMPLETE: Final = """\
# What this script does last. The dsv that submitted the job completes the record of the run, if it still looks on; else
# this node does. If it can't, any dsv does that looks later.
complete() {{
  local found turn
  for ((turn = 0; turn < 100; turn++)); do
    for found in "$folder"/attende[d]; do [ ! -e "$found" ] || return 0; done
    [ -e "$folder/end" ] || return 0
    sleep 0.1
  done
  # Whatever happens to the node from here on, the job is over.
  [ "$retries" -eq 0 ] || scontrol update "JobId=$SLURM_JOB_ID" Requeue=0
  printf '%s\\0' {argv} >"$folder/argv"
  timeout --kill-after=10 {seconds} {close} --left "$folder" <<<{order} >"$folder/complete.log" 2>&1
}} 2>/dev/null
"""
PREPARE: Final = """\
attempt=$((${SLURM_RESTART_COUNT:-0} + 1))
mkdir -p "$folder" && rm -f "$folder/end" "$folder/attended"
echo "attempt $attempt on $SLURM_JOB_NODELIST"

# Slurm asks a job to end by SIGTERM. The command gets it too, and the script waits for what it makes of that. From here
# on it writes with what bash has built in, as some Slurms signal every process of a job.
told=
trap 'told=yes' TERM

# A file server or a store that hangs holds the job for this long at most, and changes nothing in how it ended.
finish() { # EXIT-CODE
  local last
  exec {last}< <(
    trap : TERM
    exec 3>&1 >&2
    echo "$1 $SLURM_JOB_NUM_NODES" >"$folder/end"
    complete
  )
  read -r -t "$patience" -u "$last" _
  exit "$1"
}

# The last attempt is not begun again by Slurm either, whatever happens to its node.
if [ "$retries" -gt 0 ] && [ "$attempt" -gt "$retries" ]; then
  scontrol update "JobId=$SLURM_JOB_ID" Requeue=0
fi
"""
PASSING: Final = """\
# sbatch got the variables of the job in its environment; an option of it may have kept them back.
for name in {names}; do
  each=DSV_JOB_$name
  [ "${{!each+set}}" ] || {{ echo "error: sbatch did not pass $each on to the job"; finish 125; }}
done
"""
MEETING: Final = """\
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) || finish 125
export MASTER_ADDR MASTER_PORT={port} WORLD_SIZE=$SLURM_JOB_NUM_NODES
export PET_NNODES=$WORLD_SIZE PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT
"""
TASK: Final = """\
# What each node runs.
read -r -d '' task <<'{end}'
own=$1/node.$2.$SLURM_NODEID late=$1/late.$2.$SLURM_NODEID
exec 3>&2 2>>"$1/slurm.log"
[ ! -e "$late" ] || rm -f "$late"
{wait}
# Slurm's signals come to this shell alone, and go on to the command and what it started.
command= early=
pass() {{
  early=$1
  [ -z "$command" ] || kill -s "$1" -- "-$command"
}}
for each in HUP INT TERM USR1 USR2; do trap "pass $each" "$each"; done
export NODE_RANK=$SLURM_NODEID PET_NODE_RANK=$SLURM_NODEID
{variables}
{workdir}
printf -v begun '%(%s)T' -1
set -m # a process group of its own; without it SIGINT would be ignored in what is started by &
(
  echo "$SLURMD_NODENAME $begun" >"$own"
  type -P -- {program} >/dev/null || : >"$own"
  exec -- {command}
) </dev/null 2>&3 3>&- &
command=$!
[ -z "$early" ] || pass "$early"

{clock}while wait "$command" || :; kill -0 "$command"; do :; done 2>&-
wait "$command"
code=$?
{stop_clock}
printf -v ended '%(%s)T' -1
if [ ! -e "$own" ] || [ -s "$own" ]; then echo "$SLURMD_NODENAME $begun $code $ended" >"$own"; fi
[ ! -e "$late" ] || exit 0 # so that srun lets the other nodes use the time that they have to end
exit "$code"
{end}
"""
WAIT: Final = """\
# This node holds its data now. The script answers once all do; it closes the pipe if they never will. If the
# job is ended before that, this ends at once, so that what holds the data releases it.
trap 'exit 143' HUP INT TERM
trap : USR1 USR2
echo held
IFS= read -r _ || exit 125
exec >>"$1/out.$SLURM_NODEID"
"""
CLOCK: Final = """\
# The time of the command counts from here. Slurm's own limit comes later, as it counts from before the data was there.
({warning}
  sleep {seconds}
  : >"$late"
  kill -s TERM -- "-$command" || rm -f "$late"
  sleep {grace}
  kill -s KILL -- "-$command"
) </dev/null >/dev/null 2>&1 3>&- &
clock=$!
disown "$clock"
"""
STOP_CLOCK: Final = """\
kill -s KILL -- "-$clock"
"""
ALONE: Final = """\
# One task for each node. The first that fails ends the others.
srun --ntasks-per-node=1 --kill-on-bad-exit=1 --input=none --open-mode=append \\
  --output="${{folder//%/%%}}/out.%n" --error="${{folder//%/%%}}/err.%n" \\
  {hold}bash -c "$task" task "$folder" "$attempt"
code=$? again=yes
"""
TOGETHER: Final = """\
# One task for each node, which makes sure of the data and holds it from then on until its command has ended. No command
# begins before all nodes hold their data. The first node that fails ends the others.
coproc step {{
  trap : TERM
  srun --ntasks-per-node=1 --kill-on-bad-exit=1 --open-mode=append --error="${{folder//%/%%}}/err.%n" \\
    bash -c {begin} begin "$folder" "$attempt" "$task"
  code=$?
  exec >&-
  read -r _
  exit "$code"
}}
step_pid=$! held=0
while [ "$held" -lt "$SLURM_JOB_NUM_NODES" ] && IFS= read -r line <&"${{step[0]}}"; do
  [ "$line" != held ] || held=$((held + 1))
done
trap : PIPE
again=
if [ "$held" -eq "$SLURM_JOB_NUM_NODES" ] && [ ! -e "$folder/stopped" ]; then
  again=yes
  echo go >&"${{step[1]}}"
fi
eval "exec ${{step[1]}}>&-"
while wait "$step_pid" || :; kill -0 "$step_pid"; do :; done 2>&-
wait "$step_pid"
code=$?
[ "$again" ] || code=125
"""
FINISH: Final = """\
# It succeeded only if every command did: srun doesn't know of those that it stopped waiting for.
for ((node = 0; code == 0 && node < SLURM_JOB_NUM_NODES; node++)); do
  own=
  read -r _ _ own _ <"$folder/node.$attempt.$node"
  code=${own:-137}
done

# What dsv or bash says instead of a command: the data is not held any more, or a command can't be started. It would go
# the same way again, unless a command itself ended so.
if [ "$code" -ge 125 ] && [ "$code" -le 127 ]; then
  again=
  for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do
    own=
    read -r _ _ own _ <"$folder/node.$attempt.$node"
    [ "$own" != "$code" ] || again=yes
  done
fi

# Nor does a command get more time in a further attempt.
for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do
  [ -e "$folder/late.$attempt.$node" ] || continue
  again=
  [ "$code" -ne 0 ] || code=124
done

# An attempt that failed is followed by another, unless somebody ended the job. Slurm itself begins one again that it
# preempted, or that lost a node.
if [ "$attempt" -le "$retries" ] && [ ! -e "$folder/stopped" ]; then
  [ -z "$told" ] || exit "$code"
  [ "$code" -eq 0 ] || [ -z "$again" ] || { scontrol requeue "$SLURM_JOB_ID" && sleep infinity; }
fi
finish "$code"
"""
