"""How a job on Slurm ended: from what it left in its folder, and from what squeue still knows of it."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dsv.engines.base import CANNOT_LAUNCH, Ended, JobStatus
from dsv.engines.slurm.program import Queued, job_folder
from dsv.engines.slurm.script import comment
from dsv.fs.files import open_plain
from dsv.model.run import JobRef, RunState
from dsv.model.run_end import TIMED_OUT, EndCause, RunPart, deciding_part, exit_signal

SCRIPT: Final = "job.sh"
STOPPED: Final = "stopped"
"""The file that says that dsv was asked to end the job, and who asked."""
ATTENDED: Final = "attended"
"""The file that says that a dsv has seen the end of the job, and completes the record of the run."""
_KILLED: Final = 137
_NO_COMMAND: Final = (CANNOT_LAUNCH, 126, 127)
_LAST: Final = 1 << 16
_SCRIPT: Final = 1 << 20
_ATTEMPT: Final = re.compile(r"^attempt ([0-9]{1,6}) on ", re.MULTILINE)
_REQUEUED: Final = re.compile("CANCELLED AT .* DUE TO (?:JOB REQUEUE|PREEMPTION|NODE)|Node failure on")
_FAILED: Final = re.compile(r"^srun: error: \S+: tasks? ([0-9]+)[^:\n]*: Exited with exit code", re.MULTILINE)
_CAUSES: Final = (
    (EndCause.PREEMPTED, {"PREEMPTED"}, re.compile("CANCELLED AT .* DUE TO PREEMPTION")),
    (EndCause.TIME_LIMIT, {"TIMEOUT", "DEADLINE"}, re.compile("CANCELLED AT .* DUE TO TIME LIMIT")),
    (
        EndCause.NODE_LOST,
        {"NODE_FAIL", "BOOT_FAIL"},
        re.compile("CANCELLED AT .* DUE TO NODE|Node failure on"),
    ),
    (EndCause.OUT_OF_MEMORY, {"OUT_OF_MEMORY"}, re.compile("Out Of Memory|oom-kill event")),
    (EndCause.CANCELLED, {"CANCELLED", "REVOKED"}, re.compile(r"CANCELLED AT \S+ \*\*\*")),
)
"""What Slurm calls each cause: the state of the job, and what it writes to the job's log."""
_CUT_SHORT: Final[dict[EndCause | None, int]] = {
    EndCause.TIME_LIMIT: TIMED_OUT,
    EndCause.PREEMPTED: 143,
    EndCause.NODE_LOST: _KILLED,
}
"""What the exit code is then, if the command called it a success, or could not say a code any more."""
_SAID: Final = {
    EndCause.PREEMPTED: "Slurm gave its place to a job that is more important",
    EndCause.TIME_LIMIT: "its time was over",
    EndCause.NODE_LOST: "Slurm lost a node of the job",
    EndCause.OUT_OF_MEMORY: "it used more memory than it was given",
    EndCause.CANCELLED: "it was cancelled",
}


@dataclass(frozen=True, slots=True)
class Left:
    """What a job left of its last attempt.

    nodes: how many it had, which all have a part if all began; earlier: of the attempts before. end: its exit code,
    once it is over for good; stopped: who asked dsv to end it; late: the time of a command was over; log: what Slurm
    said; said: why no command began, in the words of the node that failed first; retries: how many more attempts there
    could be after the first.
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

    @property
    def was_to_go_on(self) -> bool:
        """Whether Slurm had ended the last attempt so as to begin another."""
        attempts = [int(each) for each in _ATTEMPT.findall(self.log)]
        told = self.end is None and _REQUEUED.search(_last_attempt(self.log)) is not None
        return told and max(attempts, default=1) <= self.retries

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
            part = _part(path.name, _text(path))
            staged = _text(path.with_name(path.name.replace("node", "stage", 1)))
            parts += [] if part is None else [replace(part, **_late(part, folder), **_staged(staged))]
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
    )


def _first_to_fail(folder: Path) -> str:
    """What the node wrote that srun names first; the others were ended because of that, and may say so."""
    named = _FAILED.search(_last_attempt(_text(folder / "slurm.log")))
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


def is_late(job: Queued | None, left: Left) -> bool:
    """Whether the script has ended, as Slurm says, and this machine does not see all yet that it left: what a file
    server told of a folder may be believed for a minute."""
    if job is None or job.state not in ("COMPLETED", "FAILED"):
        return False
    return left.end is None or (left.end == 0 and not left.succeeded)


def ended(job: Queued | None, left: Left, *, settled: bool = False) -> Ended | None:
    """None while the job lives, and while its end can't be told yet. job: None if Slurm doesn't know it any more.
    settled: the folder was looked at for so long that nothing more will be seen in it."""
    done = None if is_late(job, left) and not settled else _ended(job, left)
    if done is None or not done.launched:
        return done
    cause = (done.cause or EndCause.EXITED) if done.seen else EndCause.LOST_SIGHT
    earlier = (
        part if part.end is not None else replace(part, end=EndCause.LOST_SIGHT) for part in left.earlier
    )
    last = (part if part.end is not None else replace(part, end=cause) for part in left.parts)
    return replace(done, parts=(*earlier, *last))


def left_here(folder: Path) -> Ended | None:
    """How the job ended, told on its own node while Slurm still has it: None if that can't be told there."""
    left = read_left(folder)
    done = None if left.end is None else ended(None, left, settled=True)
    return done if done is not None and done.seen else None


def _ended(job: Queued | None, left: Left) -> Ended | None:
    if (
        job is not None
        and job.lives
        and (left.end in (None, 0) or job.state in ("PENDING", "RUNNING"))
        and not left.succeeded
    ):
        return None  # with an end that it left, Slurm is about to say why
    cause, said = _cause(job, left)
    part = deciding_part(left.parts)
    if left.succeeded and cause not in _CUT_SHORT:
        return Ended(exit_code=0, launched=True, cause=_or_stopped(None, left))
    if cause is None and (left.end == 0 or (job is not None and job.state == "COMPLETED")):
        reason = f"Slurm says that it succeeded, but not all of its {left.nodes} nodes left word of that"
        return Ended(exit_code=CANNOT_LAUNCH, launched=left.begun, seen=False, reason=reason)
    if job is None and left.end is None and cause is None and part is None:
        reason = "Slurm has no such job any more, and the job left no word of its end"
        return Ended(exit_code=CANNOT_LAUNCH, launched=left.begun, seen=False, reason=reason)
    if not left.begun:
        told = left.launcher or CANNOT_LAUNCH
        if cause is EndCause.CANCELLED or left.stopped is not None:
            told = _KILLED
        elif cause is EndCause.TIME_LIMIT:
            told, said = TIMED_OUT, "its time was over before the data was there"
        why = (
            left.stopped
            or said
            or _last_words(left.log + left.said)
            or (job.reason if job is not None else None)
        )
        return Ended(
            exit_code=told, launched=False, reason=why, cause=_or_stopped(cause, left, EndCause.NOT_STARTED)
        )
    if left.launcher is not None and cause is None and left.stopped is None:
        return _never_began(left) if len(left.parts) < left.nodes else _lease_lost(left)
    code = (
        part.exit_code if part is not None and part.exit_code else left.end or _CUT_SHORT.get(cause, _KILLED)
    )
    return Ended(
        exit_code=code, launched=True, reason=_reason(cause, said, part, left), cause=_or_stopped(cause, left)
    )


def _never_began(left: Left) -> Ended:
    """On one node of several, so that the others were ended."""
    reason = "the command could not be started on every node"
    return Ended(
        exit_code=left.launcher or CANNOT_LAUNCH, launched=False, reason=reason, cause=EndCause.NOT_STARTED
    )


def _lease_lost(left: Left) -> Ended:
    reason = "the data was not held any more on a node"
    return Ended(exit_code=CANNOT_LAUNCH, launched=True, reason=reason, cause=EndCause.LEASE_LOST)


def _or_stopped(cause: EndCause | None, left: Left, otherwise: EndCause = EndCause.EXITED) -> EndCause:
    return cause or (otherwise if left.stopped is None else EndCause.CANCELLED)


def status(job: Queued | None, left: Left) -> JobStatus:
    done = ended(job, left)
    if done is None:
        assert job is not None  # one that Slurm doesn't know has ended
        return JobStatus(RunState.RUNNING if not job.lives else job.run_state)
    if not done.seen:
        return JobStatus(RunState.CUT_OFF)
    return JobStatus(RunState.ENDED if done.launched else RunState.NOT_LAUNCHED, done.exit_code, done)


def _cause(job: Queued | None, left: Left) -> tuple[EndCause | None, str | None]:
    """Why Slurm ended it, and in which words. What it says itself comes before the log, which may be of an attempt
    before the last if that one never began."""
    if left.was_to_go_on and (job is None or job.state == "CANCELLED"):
        return EndCause.CANCELLED, "it waited for another attempt"
    log = _last_attempt(left.log)
    found = [(cause, states, pattern.search(log)) for cause, states, pattern in _CAUSES]
    known = [each for each in found if job is not None and job.state in each[1]]
    if left.late and left.stopped is None and not known:
        return EndCause.TIME_LIMIT, None
    for cause, _, said in known or [each for each in found if each[2] is not None]:
        return cause, None if said is None else _line_of(log, said.start())
    return None, None


def _reason(cause: EndCause | None, said: str | None, part: RunPart | None, left: Left) -> str | None:
    if cause is EndCause.CANCELLED and left.stopped is not None:
        return f"{_SAID[cause]} by {left.stopped}"
    if cause in _SAID:
        return _SAID[cause] + (f": {said}" if said else "")
    if part is None or part.succeeded or len(left.parts) < 2:
        return None
    return f"node {part.node} ({part.host}) failed first, with exit code {part.exit_code}"


def _part(name: str, text: str) -> RunPart | None:
    """From `node.ATTEMPT.NODE`: the host, when it began, its exit code and when it ended."""
    numbers = re.fullmatch(r"node\.([0-9]{1,6})\.([0-9]{1,6})", name)
    fields = re.fullmatch(r"(\S+) ([0-9]{1,12})(?: ([0-9]{1,3}) ([0-9]{1,12}))?\n", text)
    if numbers is None or fields is None:
        return None
    host, begun, code, over = fields.groups()
    return RunPart(
        node=int(numbers[2]),
        attempt=int(numbers[1]),
        host=host,
        started_ms=int(begun) * 1000,
        ended_ms=None if over is None else int(over) * 1000,
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


def _staged(text: str) -> dict[str, Any]:
    """From what `dsv cache --json` said."""
    try:
        items = json.loads(text)["items"]
        return {
            "cache_hit": all(bool(each["hit"]) for each in items),
            "stage_bytes": sum(int(each["fetched_bytes"]) for each in items),
        }
    except (ValueError, KeyError, TypeError):
        return {}


def _last_attempt(log: str) -> str:
    return log[max(log.rfind("\nattempt "), 0) :]


def _line_of(text: str, position: int) -> str:
    line = text[text.rfind("\n", 0, position) + 1 :].partition("\n")[0]
    return re.sub(r"^\S+: error: |\*\*\* ?", "", line).strip()


def _last_words(log: str) -> str | None:
    """Why the data could not be made sure of, mostly."""
    lines = [line.strip() for line in _last_attempt(log).splitlines()]
    said = [
        line for line in lines if line and not line.startswith(("srun:", "slurmstepd", "attempt ", "hint:"))
    ]
    return said[-1] if said else None


def _text(path: Path) -> str:
    """The last part of a file; nothing of one that isn't there."""
    try:
        with open_plain(path) as file:
            file.seek(max(file.seek(0, 2) - _LAST, 0))
            return file.read(_LAST).decode("utf-8", "replace")
    except OSError:
        return ""
