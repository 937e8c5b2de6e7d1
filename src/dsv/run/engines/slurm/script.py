"""The options of a pool on Slurm, and the batch script of a job: a pure function of what is to be run."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import msgspec

from dsv.errors import UsageError
from dsv.run.engines.base import Job, Mount, OptionKind, check_command, of_type, read_options
from dsv.run.node_order import OUTPUT_SECONDS, PASSED, NodeOrder, meeting_port
from dsv.run.resources import ALL_GPUS
from dsv.values.json import Json
from dsv.values.units import parse_duration

STAGE_SECONDS: Final = 1800
"""Seconds of Slurm's time limit besides the command's own time and its grace, if the pool says nothing."""
_SBATCH: Final = ("partition", "account", "qos", "constraint", "reservation", "gres")
"""Options of sbatch that have a key of their own."""


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """The settings of a Slurm pool."""

    sbatch: tuple[str, ...] = ()
    """Options of sbatch."""
    container: str | None = None
    """The program that runs images on the nodes, if there is one."""
    dsv: str = "dsv"
    """The program on the nodes."""
    partition: str | None = None
    constraint: str | None = None
    stage_seconds: int = STAGE_SECONDS
    """Added to the command's time to get the job's time limit."""

    @classmethod
    def read(cls, options: Mapping[str, Json], where: str = "slurm") -> Self:
        """Raise `UsageError` for an unknown key or a wrong value."""
        found = read_options(options, where, "slurm", _KINDS)
        own = [f"--{key}={found[key]}" for key in _SBATCH if key in found]
        container = found.get("container", "none")
        return cls(
            sbatch=(*own, *found.get("sbatch", ())),
            container=None if container == "none" else container,
            dsv=found.get("dsv") or _dsv_here(),
            partition=found.get("partition"),
            constraint=found.get("constraint"),
            stage_seconds=found.get("stage_time", STAGE_SECONDS),
        )


def _podman(job: Job, passed: tuple[str, ...]) -> tuple[str, ...]:
    """Run it in the job's own control group, so that Slurm limits it, counts what it takes, and ends it."""
    words = [
        "podman",
        "run",
        "--rm",
        "--cgroups=disabled",
        "--network=host",
        "--ipc=host",
        "--log-driver=none",
    ]
    for mount in job.mounts:
        words += [
            "--mount",
            f"type=bind,source={_plain(mount)},target={mount.target}{'' if mount.writable else ',ro'}",
        ]
    words += [word for name in passed for word in ("--env", name)]
    words += ["--workdir", job.workdir] if job.workdir else []
    words += ["--device", "nvidia.com/gpu=all", "--env", "CUDA_VISIBLE_DEVICES"] if job.gpus else []
    return (*words, str(job.image), *job.command)


def _apptainer(job: Job, passed: tuple[str, ...]) -> tuple[str, ...]:
    """It passes the environment on by itself."""
    words = ["apptainer", "exec", "--no-home"]
    for mount in job.mounts:
        words += ["--bind", f"{_plain(mount)}:{mount.target}:{'rw' if mount.writable else 'ro'}"]
    words += ["--pwd", job.workdir] if job.workdir else []
    words += ["--nv"] if job.gpus else []
    image = str(job.image)
    is_named = "://" in image or image.startswith(("/", "./", "../")) or image.endswith(".sif")
    return (*words, image if is_named else f"docker://{image}", *job.command)


def _enroot(job: Job, passed: tuple[str, ...]) -> tuple[str, ...]:
    """The image is a squashfs file, or a container that `enroot create` made on each node. It has no option for the
    working directory."""
    words = ["enroot", "start"]
    for mount in job.mounts:
        how = "rw" if mount.writable else "ro"
        words += ["--mount", f"{_plain(mount)}:{mount.target}:none:x-create=auto,bind,{how}"]
    words += [word for name in passed for word in ("--env", name)]
    inside = ("sh", "-c", 'cd "$0" && exec "$@"', job.workdir) if job.workdir else ()
    return (*words, str(job.image), *inside, *job.command)


CONTAINERS: Final[dict[str, Callable[[Job, tuple[str, ...]], tuple[str, ...]]]] = {
    "podman": _podman,
    "apptainer": _apptainer,
    "enroot": _enroot,
}


def _plain(mount: Mount) -> str:
    """Raise `UsageError` for a folder that can't be written in an option of a mount."""
    source = str(mount.source)
    if any(each in source for each in ",:\n"):
        raise UsageError(f"{source} can't be mounted: its name has a comma or a colon", subject=source)
    return source


def _dsv_here() -> str:
    """Return the program beside the Python that runs this, as nodes share the folders of users in most places."""
    beside = Path(sys.executable).with_name("dsv")
    return str(beside) if beside.exists() else "dsv"


_one_line: Final = of_type(Annotated[str, msgspec.Meta(pattern=r"\A[^\n]+\Z")])
_KINDS: Final[dict[str, OptionKind]] = {
    **dict.fromkeys((*_SBATCH, "dsv"), ("a word", "VALUE", _one_line)),
    "sbatch": ("a list of options", '["--exclusive"]', of_type(tuple[str, ...])),
    "container": (f"one of none, {', '.join(CONTAINERS)}", "podman", of_type(Literal["none", *CONTAINERS])),
    "stage_time": ("a duration", "30m", lambda value: parse_duration(_one_line(value))),
}


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
MEETING_SCRIPT: Final = """\
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
"""The variables that the script passes to each of several nodes."""
GRACE: Final = 30
"""Seconds that a command has to end once its time is over; as long as Slurm itself gives it in most places."""
CLOSE_SECONDS: Final = 120
"""Seconds for the last step of the job, which completes the record of the run, if it sends no output to the store."""
_HUNG: Final = 30
"""Seconds after which that step is left behind, once its time is over and it was told to end."""
_LONGEST: Final = (1 << 17) - 1
"""Bytes of one argument, or of one variable with its name, that Linux takes."""
_SIGNAL: Final = re.compile(r"--signal[= ](?:R:)?(?:SIG)?([A-Z]+[0-9]*|[0-9]+)(?:@([0-9]{1,5}))?")
_WARNED: Final = 60
"""Seconds before the end at which Slurm sends the signal of --signal if that names none."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Batch:
    """The job of a run, on the Slurm that these options describe."""

    job: Job
    options: SlurmOptions

    @property
    def command(self) -> tuple[str, ...]:
        """The command of each node. Raise `UsageError` for an image that this Slurm can't run."""
        job, container = self.job, self.options.container
        check_command(job.command)
        if job.image is not None and container is None:
            raise UsageError(
                "this Slurm runs no images, as its pool names nothing that does",
                subject=job.image,
                hint="dsv config pools.NAME.slurm.container podman (or apptainer, enroot), or leave out --image",
            )
        if container is None:
            return job.command
        if job.image is None:
            raise UsageError(
                f"this pool runs its jobs by {container}, which needs an image", hint="--image IMAGE"
            )
        return CONTAINERS[container](job, (*job.env, *(MEETING if job.nodes > 1 else ())))

    @property
    def waits(self) -> bool:
        """Check that a node with its data waits for others that may not have theirs."""
        return self.job.nodes > 1 and bool(self.job.hold)

    @property
    def sbatch(self) -> tuple[str, ...]:
        """The options of the pool."""
        return (*self.options.sbatch, *self.job.engine_args)


def comment(run: str, folder: Path) -> str:
    """Return the comment by which a job is found again, and its folder with it."""
    return f"{COMMENT}{run}:{folder}"


def passing(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that sbatch gets for these variables of the job. Raise `UsageError` for an odd name, and a
    value that is too long."""
    for name, value in variables.items():
        if _NAME.fullmatch(name) is None:
            raise UsageError(f"Slurm can't pass a variable named {name} to a job", subject=name)
        left = _LONGEST - len(f"{PASSED}{name}=")
        if (size := _bytes(value)) > left:
            raise _too_long(f"the value of {name}", size, left, name, "pass the name of a file that holds it")
    return {f"{PASSED}{name}": value for name, value in variables.items()}


def render(batch: Batch) -> str:
    """Return the script. Raise `UsageError` for a job that Slurm can't run, or whose command is too long."""
    job, folder = batch.job, shlex.quote(str(batch.job.scratch))
    head = ["#!/bin/bash", *(f"#SBATCH {_line(option)}" for option in sbatch_options(batch))]
    sends_output = NodeOrder.sends_output(job.order, job.run)
    close_seconds = OUTPUT_SECONDS if sends_output else CLOSE_SECONDS
    parts = [
        "\n".join(head) + "\n",
        f"# Run {job.run}. To submit it: mkdir -p {folder} && sbatch THIS-FILE",
        f"folder={folder}",
        f"retries={job.retries}",
        f"export DSV_RUN={shlex.quote(job.run)}" if job.hold else "",
        f"patience={close_seconds + _HUNG}",
        _complete(batch, close_seconds),
        PREPARE,
        PASSING.format(names=" ".join(job.hidden)) if job.hidden else "",
        MEETING_SCRIPT.format(port=meeting_port(job.run)) if job.nodes > 1 else "",
        _task(batch),
        _steps(batch),
        FINISH,
    ]
    return "\n".join(filter(None, parts))


def sbatch_options(batch: Batch) -> list[str]:
    """Return words that sbatch takes in a script and on its command line. The pool's come last, and so win."""
    job = batch.job
    if job.gpus == ALL_GPUS:
        raise UsageError("Slurm has to know how many GPUs", subject="--gpus", hint="--gpus 8")
    folder = str(job.scratch).replace("%", "%%")
    found = [
        f"--job-name={job.name}",
        f"--comment={comment(job.run, job.scratch)}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--output={folder}/slurm.log",
        "--open-mode=append",
        "--requeue" if job.retries else "--no-requeue",
    ]
    if job.gpus is not None:
        found.append(f"--gpus-per-node={f'{job.gpu_type}:' if job.gpu_type else ''}{job.gpus}")
    if job.cpus is not None:
        found.append(f"--cpus-per-task={math.ceil(job.cpus)}")
    if job.memory_bytes is not None:
        found.append(f"--mem={math.ceil(job.memory_bytes / (1 << 20))}M")
    if job.time_seconds is not None:  # Slurm's limit counts from when the job has its nodes
        found.append(f"--time={math.ceil((job.time_seconds + batch.options.stage_seconds + GRACE) / 60)}")
    return [*found, *batch.sbatch]


def _task(batch: Batch) -> str:
    """Return the script of each node; srun gets it as one argument."""
    job, words = batch.job, batch.command
    command = shlex.join(words)
    inside = job.workdir is None or batch.options.container is not None
    text = TASK.format(
        end=f"END_OF_TASK_{re.sub(r'[^A-Za-z0-9]', '_', job.run)}",
        wait=WAIT if batch.waits else "",
        variables=_exports(job),
        workdir="" if inside else f"cd {shlex.quote(str(job.workdir))} || exit 125",
        program=shlex.quote(words[0]),
        command=command,
        clock=_clock(batch),
        stop_clock="" if job.time_seconds is None else STOP_CLOCK,
    )
    size = _bytes(command)
    if (over := _bytes(text) - _LONGEST) > 0:
        hint = "put it into a script, for instance in the folder of --code, or its arguments into a file"
        raise _too_long("the command", size, max(size - over, 0), job.run, hint)
    return text


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _too_long(what: str, size: int, most: int, subject: str, hint: str) -> UsageError:
    return UsageError(
        f"{what} is too long for a job on Slurm: it has {size:,} bytes, and {most:,} fit",
        subject=subject,
        hint=hint,
    )


def _line(option: str) -> str:
    if "\n" in option or "\0" in option:
        raise UsageError("an option of sbatch is one line", subject=option)
    return shlex.quote(option) if re.search(r"[^\w%+,./:=@\[\]-]", option) else option


def _exports(job: Job) -> str:
    lines = ['export DSV_ATTEMPT="$2"']
    lines += [f"export {name}={shlex.quote(value)}" for name, value in job.shown.items()]
    lines += [f'export {name}="${PASSED}{name}"' for name in job.hidden]
    lines += [f"unset {PASSED}{name}" for name in job.hidden]
    return "\n".join(lines)


def _steps(batch: Batch) -> str:
    """Return what holds the data, makes sure of it as well, and says what that took."""
    job = batch.job
    held = shlex.join((batch.options.dsv, *job.hold[:-1]))
    if not batch.waits:
        hold = f'{held} --json-file "$folder/stage.$attempt.0" -- ' if job.hold else ""
        return ALONE.format(hold=hold)
    said = '"$1/stage.$2.$SLURM_NODEID"'
    begin = f'exec {held} --json-file {said} -- bash -c "$3" task "$1" "$2"'
    return TOGETHER.format(begin=shlex.quote(begin))


def _clock(batch: Batch) -> str:
    seconds, warning = batch.job.time_seconds, warning_of(batch.sbatch)
    if seconds is None:
        return ""
    left, said = seconds, ""
    if warning is not None:
        name, before = warning
        left = min(before, seconds)
        said = f'\n  sleep {seconds - left}\n  kill -s {name} -- "-$command"'
    return CLOCK.format(warning=said, seconds=left, grace=GRACE)


def _complete(batch: Batch, seconds: int) -> str:
    job = batch.job
    if not job.close or not job.order:
        return "complete() { :; }\n"
    return COMPLETE.format(
        argv=shlex.join(job.command),
        order=shlex.quote(job.order),
        close=shlex.join((batch.options.dsv, *job.close)),
        seconds=seconds,
    )


def warning_of(options: Sequence[str]) -> tuple[str, int] | None:
    """Return the signal that `--signal` of sbatch asks for, and how many seconds before the end of the command's time.

    Slurm sends it before its own limit alone, which comes later. None if there is none, or if it is for the batch
    script (`B:`).
    """
    found = [each for each in options if each.startswith("--signal")]
    told = None if not found else _SIGNAL.fullmatch(found[-1])
    return None if told is None else (told[1], _WARNED if told[2] is None else int(told[2]))
