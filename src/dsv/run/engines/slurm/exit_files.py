"""What a job on Slurm left in its folder; script.py says which files there are."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dsv.fs.files import open_plain
from dsv.run.engines.base import CANNOT_LAUNCH
from dsv.run.engines.slurm.program import job_folder
from dsv.run.engines.slurm.script import comment
from dsv.run.engines.stage_facts import stage_facts
from dsv.run.record import EndCause, JobRef, RunPart, exit_signal

SCRIPT: Final = "job.sh"
STOPPED: Final = "stopped"
"""The file that says that dsv was asked to end the job, and who asked."""
ATTENDED: Final = "attended"
"""The file that says that a dsv has seen the end of the job, and completes the record of the run."""
_WRITTEN: Final = ("out.*", "err.*", "node.*", "slurm.log", "end")
"""The files that the command, Slurm and the script write."""
_NO_COMMAND: Final = (CANNOT_LAUNCH, 126, 127)
_LAST: Final = 1 << 16
_SCRIPT: Final = 1 << 20
_ATTEMPT: Final = re.compile(r"^attempt ([0-9]{1,6}) on ", re.MULTILINE)
_REQUEUED: Final = re.compile("CANCELLED AT .* DUE TO (?:JOB REQUEUE|PREEMPTION|NODE)|Node failure on")
_FAILED: Final = re.compile(r"^srun: error: \S+: tasks? ([0-9]+)[^:\n]*: Exited with exit code", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Left:
    """What a job left of its last attempt.

    nodes: how many it had, which all have a part if all began; earlier: of the attempts before. end: its exit code,
    once it is over for good; stopped: who asked dsv to end it; late: the time of a command was over; log: what Slurm
    said; said: why no command began, in the words of the node that failed first; retries: how many more attempts there
    could be after the first. written_ms: when the job last wrote to its folder.
    All times are those of the file server, as the nodes' own clocks may differ.
    """

    parts: tuple[RunPart, ...] = ()
    earlier: tuple[RunPart, ...] = ()
    end: int | None = None
    stopped: str | None = None
    log: str = ""
    late: bool = False
    said: str = ""
    nodes: int = 1
    retries: int = 0
    written_ms: int | None = None

    @property
    def was_to_go_on(self) -> bool:
        """Whether Slurm had ended the last attempt so as to begin another."""
        told = self.end is None and _REQUEUED.search(last_attempt(self.log)) is not None
        return told and self.attempt <= self.retries

    @property
    def attempt(self) -> int:
        """The last that began, as far as is seen."""
        logged = [int(each) for each in _ATTEMPT.findall(self.log)]
        return max([*logged, *(part.attempt for part in self.parts)], default=1)

    @property
    def begun(self) -> bool:
        return bool(self.parts)

    @property
    def succeeded(self) -> bool:
        """The script says so, and every node."""
        return (
            self.end == 0
            and len(self.parts) == self.nodes
            and all(part.exit_code is not None for part in self.parts)
        )

    @property
    def launcher(self) -> int | None:
        """The exit code of dsv or bash on a node, in place of that of a command. None if a command's own decided."""
        code = self.end if self.end in _NO_COMMAND else None
        return None if any(part.exit_code == code for part in self.parts) else code


def read_left(folder: Path) -> Left:
    """Nothing of it has to be there, and any of it may be half written."""
    parts = []
    with suppress(OSError):
        for path in folder.glob("node.*.*"):
            part = _part(path)
            staged = _text(path.with_name(path.name.replace("node", "stage", 1)))
            parts += [] if part is None else [replace(part, **_late(part, folder), **stage_facts(staged))]
    parts.sort(key=lambda part: (part.attempt, part.node))
    last = max((part.attempt for part in parts), default=1)
    end = re.fullmatch(r"([0-9]{1,3})(?: ([0-9]{1,6}))?\n", _text(folder / "end"))
    return Left(
        parts=tuple(part for part in parts if part.attempt == last),
        earlier=tuple(part for part in parts if part.attempt != last),
        end=None if end is None else int(end[1]),
        stopped=_text(folder / STOPPED).strip() or None,
        log=_text(folder / "slurm.log"),
        late=any(part.attempt == last and _is_late(folder, part) for part in parts),
        said="" if parts else _first_to_fail(folder),
        nodes=nodes_of(folder) if end is None or end[2] is None else int(end[2]),
        retries=_retries_of(folder),
        written_ms=_last_written(folder) if parts else None,
    )


def _last_written(folder: Path) -> int | None:
    """When the job itself last wrote to its folder, in milliseconds."""
    found = [path for pattern in _WRITTEN for path in folder.glob(pattern)]
    with suppress(OSError):
        return max((path.lstat().st_mtime_ns // 1_000_000 for path in found), default=None)
    return None


def _first_to_fail(folder: Path) -> str:
    """What the node wrote that srun names first; the others were ended because of that, and may say so."""
    named = _FAILED.search(last_attempt(_text(folder / "slurm.log")))
    return "".join(map(_text, sorted(folder.glob(f"err.{'*' if named is None else named[1]}"))))


def nodes_of(folder: Path) -> int:
    """How many nodes the job was to have, as its script says."""
    return _number_in(folder, r"^#SBATCH --nodes=([0-9]+)$", 1)


def _retries_of(folder: Path) -> int:
    return _number_in(folder, r"^retries=([0-9]+)$", 0)


def _number_in(folder: Path, pattern: str, otherwise: int) -> int:
    try:
        with open_plain(folder / SCRIPT) as file:
            found = re.search(pattern, file.read(_SCRIPT).decode("utf-8", "replace"), re.MULTILINE)
    except OSError:
        return otherwise
    return otherwise if found is None else int(found[1])


def quiet_for(ref: JobRef) -> float | None:
    """For how many seconds nothing has been written to the folder of a job. None if it can't be seen from here, or is
    not that of a job of this run that this user has submitted: anybody who writes to a store could have named it."""
    folder = job_folder(ref)
    try:
        script = folder / SCRIPT
        own = script.stat().st_uid == os.geteuid() and f"{comment(ref.run, folder)}" in _text(script)
        newest = max(path.lstat().st_mtime for path in folder.iterdir())
    except (OSError, ValueError):
        return None
    return max(0.0, time.time() - newest) if own else None


def _part(path: Path) -> RunPart | None:
    """From `node.ATTEMPT.NODE`: the host, when it began, its exit code and when it ended.

    The node writes the file when the command begins and again when it has ended. So the file server's clock tells when
    that was, and the node's clock only how long the command took.
    """
    text, written_ms = _read(path)
    numbers = re.fullmatch(r"node\.([0-9]{1,6})\.([0-9]{1,6})", path.name)
    fields = re.fullmatch(r"(\S+) ([0-9]{1,12})(?: ([0-9]{1,3}) ([0-9]{1,12}))?\n", text)
    if numbers is None or fields is None:
        return None
    host, begun, code, over = fields.groups()
    took_ms = 0 if over is None else (int(over) - int(begun)) * 1000
    return RunPart(
        node=int(numbers[2]),
        attempt=int(numbers[1]),
        host=host,
        started_ms=written_ms - took_ms,
        ended_ms=None if over is None else written_ms,
        end=None if code is None else EndCause.EXITED,
        exit_code=None if code is None else int(code),
        exit_signal=None if code is None else exit_signal(int(code)),
    )


def _is_late(folder: Path, part: RunPart) -> bool:
    """Whether the time of its command was over, so that the script told it to end."""
    return os.path.lexists(folder / f"late.{part.attempt}.{part.node}")


def _late(part: RunPart, folder: Path) -> dict[str, Any]:
    over = part.exit_code is not None and _is_late(folder, part)
    return {"end": EndCause.TIME_LIMIT} if over else {}


def last_attempt(log: str) -> str:
    return log[max(log.rfind("\nattempt "), 0) :]


def _text(path: Path) -> str:
    return _read(path)[0]


def _read(path: Path) -> tuple[str, int]:
    """The last part of a file, and when it was written, in milliseconds; nothing of one that isn't there."""
    try:
        with open_plain(path) as file:
            file.seek(max(file.seek(0, 2) - _LAST, 0))
            text = file.read(_LAST).decode("utf-8", "replace")
            return text, os.fstat(file.fileno()).st_mtime_ns // 1_000_000
    except OSError:
        return "", 0
