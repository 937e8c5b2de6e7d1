"""The batch script of a job on Slurm: a pure function of what is to be run.

The script is complete: anybody who submits it with sbatch has the same job, without dsv on the machine that submits it.
What it leaves in the folder of the job says how the job went, as Slurm without accounting forgets that:

    out.N, err.N   what the command on node N wrote, all attempts one after another
    slurm.log      what Slurm, srun and the script itself said
    node.A.N       attempt A on node N: the node's name and the time, once it ended its exit code and the time of that;
                   empty if the command can't be started there
    stage.A.N      what staging for attempt A said on node N
    end            the last attempt is over: its exit code, and how many nodes it had
    attended       a dsv that looks on has seen that, and completes the record of the run
    argv           if none does, the command as it was typed, for the dsv of the node that completes the record
    complete.log   what that dsv says
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dsv.errors import UsageError
from dsv.model.node_env import PASSED

STARTED_LATE: Final = 125
"""Exit code of the script if the data could not be made sure of on every node, so that no command began."""
COMMENT: Final = "dsv:"
"""With this a job's comment begins; the run and the folder of the job follow."""
MEETING: Final = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "NODE_RANK",
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
)
"""What the script tells each of several nodes."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One job.

    folder: of the job, which the nodes see under the same name; command: of each node, to be run in `workdir`; stage: a
    command that makes sure of the data on a node before any of them begins, none if there is nothing to wait for; hold:
    words in front of a command, `--` the last, that make sure of the data and hold it until the command has ended;
    close: a command that completes the record of the run from what the job left, told by `order` on its stdin which run
    that is; typed: the command of the job as it was typed, without what runs its image.
    known: variables that may stand in the script; passed: the names of those whose values come with the environment of
    sbatch. options: of sbatch, as `--partition=gpu`.
    """

    run: str
    name: str
    folder: Path
    command: tuple[str, ...]
    workdir: Path | None = None
    stage: tuple[str, ...] = ()
    hold: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    order: str = ""
    typed: tuple[str, ...] = ()
    known: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    nodes: int = 1
    gpus: str | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    minutes: int | None = None
    retries: int = 0
    port: int = 29_500
    options: tuple[str, ...] = ()


def comment(run: str, folder: Path) -> str:
    """By what a job is found again, and its folder with it."""
    return f"{COMMENT}{run}:{folder}"


def passing(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment that sbatch gets for these variables of the job. Raises `UsageError` for an odd name."""
    for name in variables:
        if _NAME.fullmatch(name) is None:
            raise UsageError(f"Slurm can't pass a variable named {name} to a job", subject=name)
    return {f"{PASSED}{name}": value for name, value in variables.items()}


def render(batch: Batch) -> str:
    """The script. Raises `UsageError` for what a line of #SBATCH can't say."""
    parts = [
        "#!/bin/bash",
        *(f"#SBATCH {_line(option)}" for option in sbatch_options(batch)),
        "",
        f"# Run {batch.run}. To submit it: mkdir -p {shlex.quote(str(batch.folder))} && sbatch THIS-FILE",
        f"folder={shlex.quote(str(batch.folder))}",
        f"retries={batch.retries}",
        _complete(batch),
        _PREPARE,
        _PASSING.format(names=" ".join(sorted(batch.passed))) if batch.passed else "",
        _nodes(batch),
        _STAGE.format(stage=shlex.join(batch.stage)) if batch.stage else "",
        _TASK.format(
            end=_delimiter(batch),
            variables=_exports(batch),
            workdir="" if batch.workdir is None else f"cd {shlex.quote(str(batch.workdir))} || exit 125",
            program=shlex.quote(batch.command[0]),
            command=shlex.join(batch.command),
        ),
        _RUN.replace("HOLD ", _hold(batch)),
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip("\n") + "\n"


def sbatch_options(batch: Batch) -> list[str]:
    """In words that sbatch takes in a script and on its command line. The caller's own come last, and so win."""
    folder = str(batch.folder).replace("%", "%%")
    found = [
        f"--job-name={batch.name}",
        f"--comment={comment(batch.run, batch.folder)}",
        f"--nodes={batch.nodes}",
        "--ntasks-per-node=1",
        f"--output={folder}/slurm.log",
        "--open-mode=append",
        "--requeue" if batch.retries else "--no-requeue",
    ]
    limits = {
        "gpus-per-node": batch.gpus,
        "cpus-per-task": batch.cpus,
        "mem": None if batch.memory_mib is None else f"{batch.memory_mib}M",
        "time": batch.minutes,
    }
    found += [f"--{name}={value}" for name, value in limits.items() if value is not None]
    return [*found, *batch.options]


def _line(option: str) -> str:
    if "\n" in option or "\0" in option:
        raise UsageError("an option of sbatch is one line", subject=option)
    return shlex.quote(option) if re.search(r"[^\w%+,./:=@\[\]-]", option) else option


def _delimiter(batch: Batch) -> str:
    return f"END_OF_TASK_{re.sub(r'[^A-Za-z0-9]', '_', batch.run)}"


def _exports(batch: Batch) -> str:
    known = [(name, value) for name, value in sorted(batch.known.items()) if name != "DSV_ATTEMPT"]
    lines = ['export DSV_ATTEMPT="$2"', *(f"export {name}={shlex.quote(value)}" for name, value in known)]
    lines += [f'export {name}="${PASSED}{name}"' for name in sorted(batch.passed)]
    lines += [f"unset {PASSED}{name}" for name in sorted(batch.passed)]
    return "\n".join(lines)


def _hold(batch: Batch) -> str:
    """What holds the data makes sure of it as well, and says what that took if nothing has before."""
    if not batch.hold:
        return ""
    said = "" if batch.stage else '--json-file "$folder/stage.$attempt.0" '
    return f"{shlex.join(batch.hold[:-1])} {said}-- "


def _complete(batch: Batch) -> str:
    if not batch.close:
        return "complete() { :; }\n"
    return _COMPLETE.format(
        argv=shlex.join(batch.typed), order=shlex.quote(batch.order), close=shlex.join(batch.close)
    )


def _nodes(batch: Batch) -> str:
    return "" if batch.nodes == 1 else _MEETING.format(port=batch.port)


_COMPLETE = """\
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
  {close} --left "$folder" <<<{order} >"$folder/complete.log" 2>&1
}} 2>/dev/null
"""
_PREPARE = """\
attempt=$((${SLURM_RESTART_COUNT:-0} + 1))
mkdir -p "$folder" && rm -f "$folder/end" "$folder/attended"
echo "attempt $attempt on $SLURM_JOB_NODELIST"

# Slurm asks a job to end by SIGTERM. The command gets it too, and the script waits for what it makes of that. From here
# on it writes with what bash has built in, as some Slurms signal every process of a job.
told=
trap 'told=yes' TERM

finish() { # EXIT-CODE
  echo "$1 $SLURM_JOB_NUM_NODES" >"$folder/end"
  complete
  exit "$1"
}

# The last attempt is not begun again by Slurm either, whatever happens to its node.
if [ "$retries" -gt 0 ] && [ "$attempt" -gt "$retries" ]; then
  scontrol update "JobId=$SLURM_JOB_ID" Requeue=0
fi
"""
_PASSING = """\
# sbatch got the variables of the job in its environment; an option of it may have kept them back.
for name in {names}; do
  each=DSV_JOB_$name
  [ "${{!each+set}}" ] || {{ echo "error: sbatch did not pass $each on to the job"; finish 125; }}
done
"""
_MEETING = """\
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) || finish 125
export MASTER_ADDR MASTER_PORT={port} WORLD_SIZE=$SLURM_JOB_NUM_NODES
export PET_NNODES=$WORLD_SIZE PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT
"""
_STAGE = """\
# First every node makes sure of the data. If one can't, no command begins.
srun --ntasks-per-node=1 --kill-on-bad-exit=1 --input=none --open-mode=append \\
  --output="${{folder//%/%%}}/stage.$attempt.%n" --error="${{folder//%/%%}}/slurm.log" {stage} || finish 125
[ -e "$folder/stopped" ] && finish 143
"""
_TASK = """\
# What each node runs.
read -r -d '' task <<'{end}'
own=$1/node.$2.$SLURM_NODEID
exec 3>&2 2>>"$1/slurm.log"
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
  exec {command}
) 2>&3 3>&- &
command=$!
[ -z "$early" ] || pass "$early"
while wait "$command" || :; kill -0 "$command"; do :; done 2>&-
wait "$command"
code=$?
printf -v ended '%(%s)T' -1
if [ ! -e "$own" ] || [ -s "$own" ]; then echo "$SLURMD_NODENAME $begun $code $ended" >"$own"; fi
exit "$code"
{end}
"""
_RUN = """\
# One task for each node. The first that fails ends the others.
srun --ntasks-per-node=1 --kill-on-bad-exit=1 --input=none --open-mode=append \\
  --output="${folder//%/%%}/out.%n" --error="${folder//%/%%}/err.%n" \\
  HOLD bash -c "$task" task "$folder" "$attempt"
code=$?

# It succeeded only if every command did: srun doesn't know of those that it stopped waiting for.
for ((node = 0; code == 0 && node < SLURM_JOB_NUM_NODES; node++)); do
  own=
  read -r _ _ own _ <"$folder/node.$attempt.$node"
  code=${own:-137}
done

# What dsv or bash says instead of a command: the data is not held any more, or a command can't be started. It would go
# the same way again, unless a command itself ended so.
again=yes
if [ "$code" -ge 125 ] && [ "$code" -le 127 ]; then
  again=
  for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do
    own=
    read -r _ _ own _ <"$folder/node.$attempt.$node"
    [ "$own" != "$code" ] || again=yes
  done
fi

# An attempt that failed is followed by another, unless somebody ended the job. Slurm itself begins one again that it
# preempted, or that lost a node.
if [ "$attempt" -le "$retries" ] && [ ! -e "$folder/stopped" ] && [ "$again" ]; then
  [ -z "$told" ] || exit "$code"
  [ "$code" -eq 0 ] || { scontrol requeue "$SLURM_JOB_ID" && sleep infinity; }
fi
finish "$code"
"""
