"""The batch script of a job on Slurm: a pure function of what is to be run.

The script is complete: anybody who submits it with sbatch has the same job, without dsv on the machine that submits it.
What it leaves in the folder of the job says how the job went, as Slurm without accounting forgets that:

    out.N, err.N   what the command on node N wrote, all attempts one after another
    slurm.log      what Slurm, srun and the script itself said
    node.A.N       attempt A on node N: the node's name and the time, once it ended its exit code and the time of that;
                   empty if the command can't be started there
    late.A.N       the command's time was over there, so that the script told it to end
    stage.A.N      what staging for attempt A said on node N
    end            the last attempt is over: its exit code, and how many nodes it had
    attended       a dsv that looks on has seen that, and completes the record of the run
    argv           if none does, the command as it was typed, for the dsv of the node that completes the record
    complete.log   what that dsv says
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dsv.engines.slurm import pieces
from dsv.errors import UsageError
from dsv.model.node_env import PASSED

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
GRACE: Final = 30
"""Seconds that a command has to end once its time is over; as long as Slurm itself gives it in most places."""
STAGE_SECONDS: Final = 1800
"""What Slurm's time limit has room for besides the command's own time and its grace, if the pool says nothing."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One job.

    folder: of the job, which the nodes see under the same name; command: of each node, to be run in `workdir`; hold:
    words in front of a command, `--` the last, that make sure of the data and hold it until the command has ended;
    close: a command that completes the record of the run from what the job left, told by `order` on its stdin which run
    that is; typed: the command of the job as it was typed, without what runs its image.
    known: variables that may stand in the script; passed: the names of those whose values come with the environment of
    sbatch. seconds: the time of the command itself; stage_seconds: how long making sure of the data may take besides.
    close_seconds: how long completing the record may take. options: of sbatch, as `--partition=gpu`.
    """

    run: str
    name: str
    folder: Path
    command: tuple[str, ...]
    workdir: Path | None = None
    hold: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    close_seconds: int = CLOSE_SECONDS
    order: str = ""
    typed: tuple[str, ...] = ()
    known: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    nodes: int = 1
    gpus: str | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    seconds: int | None = None
    stage_seconds: int = STAGE_SECONDS
    retries: int = 0
    port: int = 29_500
    options: tuple[str, ...] = ()


def comment(run: str, folder: Path) -> str:
    """By what a job is found again, and its folder with it."""
    return f"{COMMENT}{run}:{folder}"


def passing(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment that sbatch gets for these variables of the job. Raises `UsageError` for an odd name, and for a
    value that is too long."""
    for name, value in variables.items():
        if _NAME.fullmatch(name) is None:
            raise UsageError(f"Slurm can't pass a variable named {name} to a job", subject=name)
        left = _LONGEST - len(f"{PASSED}{name}=")
        if (size := _bytes(value)) > left:
            raise _too_long(f"the value of {name}", size, left, name, "pass the name of a file that holds it")
    return {f"{PASSED}{name}": value for name, value in variables.items()}


def render(batch: Batch) -> str:
    """The script. Raises `UsageError` for what a line of #SBATCH can't say, and for a command that is too long."""
    head = ["#!/bin/bash", *(f"#SBATCH {_line(option)}" for option in sbatch_options(batch))]
    parts = [
        "\n".join(head) + "\n",
        f"# Run {batch.run}. To submit it: mkdir -p {shlex.quote(str(batch.folder))} && sbatch THIS-FILE",
        f"folder={shlex.quote(str(batch.folder))}",
        f"retries={batch.retries}",
        f"export DSV_RUN={shlex.quote(batch.run)}" if batch.hold else "",
        f"patience={batch.close_seconds + _HUNG}",
        _complete(batch),
        pieces.PREPARE,
        pieces.PASSING.format(names=" ".join(sorted(batch.passed))) if batch.passed else "",
        pieces.MEETING.format(port=batch.port) if batch.nodes > 1 else "",
        _task(batch),
        _steps(batch),
        pieces.FINISH,
    ]
    return "\n".join(filter(None, parts))


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
        "time": _minutes(batch),
    }
    found += [f"--{name}={value}" for name, value in limits.items() if value is not None]
    return [*found, *batch.options]


def _task(batch: Batch) -> str:
    """What each node runs; srun gets it as one argument."""
    command = shlex.join(batch.command)
    text = pieces.TASK.format(
        end=_delimiter(batch),
        wait=pieces.WAIT if _waits(batch) else "",
        variables=_exports(batch),
        workdir="" if batch.workdir is None else f"cd {shlex.quote(str(batch.workdir))} || exit 125",
        program=shlex.quote(batch.command[0]),
        command=command,
        clock=_clock(batch),
        stop_clock="" if batch.seconds is None else pieces.STOP_CLOCK,
    )
    size = _bytes(command)
    if (over := _bytes(text) - _LONGEST) > 0:
        hint = "put it into a script, for instance in the folder of --code, or its arguments into a file"
        raise _too_long("the command", size, max(size - over, 0), batch.run, hint)
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


def _delimiter(batch: Batch) -> str:
    return f"END_OF_TASK_{re.sub(r'[^A-Za-z0-9]', '_', batch.run)}"


def _exports(batch: Batch) -> str:
    known = [(name, value) for name, value in sorted(batch.known.items()) if name != "DSV_ATTEMPT"]
    lines = ['export DSV_ATTEMPT="$2"', *(f"export {name}={shlex.quote(value)}" for name, value in known)]
    lines += [f'export {name}="${PASSED}{name}"' for name in sorted(batch.passed)]
    lines += [f"unset {PASSED}{name}" for name in sorted(batch.passed)]
    return "\n".join(lines)


def _waits(batch: Batch) -> bool:
    """Whether a node with its data waits for others that may not have theirs."""
    return batch.nodes > 1 and bool(batch.hold)


def _steps(batch: Batch) -> str:
    """What holds the data makes sure of it as well, and says what that took."""
    held = shlex.join(batch.hold[:-1])
    if not _waits(batch):
        hold = f'{held} --json-file "$folder/stage.$attempt.0" -- ' if batch.hold else ""
        return pieces.ALONE.format(hold=hold)
    said = '"$1/stage.$2.$SLURM_NODEID"'
    begin = f'exec {held} --json-file {said} -- bash -c "$3" task "$1" "$2"'
    return pieces.TOGETHER.format(begin=shlex.quote(begin))


def _minutes(batch: Batch) -> int | None:
    """Slurm's limit, which counts from when the job has its nodes."""
    return None if batch.seconds is None else math.ceil((batch.seconds + batch.stage_seconds + GRACE) / 60)


def _clock(batch: Batch) -> str:
    if batch.seconds is None:
        return ""
    left, warning = batch.seconds, warning_of(batch.options)
    said = ""
    if warning is not None:
        name, before = warning
        left = min(before, batch.seconds)
        said = f'\n  sleep {batch.seconds - left}\n  kill -s {name} -- "-$command"'
    return pieces.CLOCK.format(warning=said, seconds=left, grace=GRACE)


def _complete(batch: Batch) -> str:
    if not batch.close:
        return "complete() { :; }\n"
    return pieces.COMPLETE.format(
        argv=shlex.join(batch.typed),
        order=shlex.quote(batch.order),
        close=shlex.join(batch.close),
        seconds=batch.close_seconds,
    )


def warning_of(options: Sequence[str]) -> tuple[str, int] | None:
    """The signal that a command gets so many seconds before its time is over, as `--signal` of sbatch says it: what
    Slurm does itself is of use for its own limit alone, which comes later. None if there is none, or if it is for the
    batch script (`B:`)."""
    found = [each for each in options if each.startswith("--signal")]
    told = None if not found else _SIGNAL.fullmatch(found[-1])
    return None if told is None else (told[1], _WARNED if told[2] is None else int(told[2]))
