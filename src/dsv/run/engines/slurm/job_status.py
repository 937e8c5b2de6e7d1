"""How a job on Slurm ended, from the files in its folder and the output of squeue."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatch
from math import inf
from pathlib import Path
from typing import Final

from dsv.files.small_files import open_plain
from dsv.run.engines.base import CANNOT_LAUNCH, Ended, JobStatus, error_in
from dsv.run.engines.slurm.program import Queued, job_folder
from dsv.run.engines.slurm.script import LOST, comment
from dsv.run.part import TIMED_OUT, EndCause, NodeReport, RunPart, deciding_part, exit_signal
from dsv.run.record import JobRef, RunState

SCRIPT: Final = "job.sh"
STOPPED: Final = "stopped"
"""The file with the user who asked dsv to end the job."""
ATTENDED: Final = "attended"
"""The file that shows that a dsv has seen the job's end, and completes the record."""
UNWATCHED: Final = "unwatched"
"""The file that shows that no dsv follows the job: its node, or the next dsv that looks, completes the record."""
_WRITTEN: Final = ("out.*", "err.*", "node.*", "alive.*", "slurm.log", "end")
"""The files that the command, Slurm and the script write."""
_NO_COMMAND: Final = (CANNOT_LAUNCH, 126, 127)
_LAST: Final = 1 << 16
_SCRIPT: Final = 1 << 20
_ATTEMPT: Final = re.compile(r"^attempt ([0-9]{1,4}) on ", re.MULTILINE)
_REQUEUED: Final = re.compile("CANCELLED AT .* DUE TO (?:JOB REQUEUE|PREEMPTION|NODE)|Node failure on")
_LOST_NODE: Final = re.compile(r"(?:Node failure on|(?:failed|slurmstepd|missing step) on node) ([^\s:]+)")
_FAILED: Final = re.compile(r"^srun: error: \S+: tasks? ([0-9]+)[^:\n]*: Exited with exit code", re.MULTILINE)


class JobFiles:
    """The files of a job's last attempt. Times are the file server's, because clocks of nodes may differ."""

    def __init__(self, folder: Path, *, again: bool = False) -> None:
        """Files may be missing or incomplete. again: the job was requeued, so an end is an earlier one"""
        self.folder = folder
        unread: list[OSError] = []
        parts = sorted(_parts(folder, unread), key=lambda part: (part.attempt, part.node))
        last = max((part.attempt for part in parts), default=1)
        self.parts = tuple(part for part in parts if part.attempt == last)
        """Of each node on which the command began."""
        self.earlier = tuple(part for part in parts if part.attempt != last)
        self.begun = bool(parts)
        self.unread = bool(unread)
        """The folder can't be listed, so the job may have begun and left its end."""
        end = re.fullmatch(r"([0-9]{1,3})(?: ([0-9]{1,6}))?\n", _text(folder / "end"))
        self.end = None if end is None or again else int(end[1])
        """Its exit code, once it is over permanently."""
        self.nodes = nodes_of(folder) if end is None or end[2] is None else int(end[2])
        self.stopped = _text(folder / STOPPED).strip() or None
        """The user who asked dsv to end it."""
        self.log = _text(folder / "slurm.log")
        self.late = any(_is_late(folder, part) for part in self.parts)
        """The time of a command was over."""
        self.written_ms = _last_written(folder) if parts else None
        """The time at which the job last wrote to its folder."""
        self.attempt = max([last, *(int(each) for each in _ATTEMPT.findall(self.log))])
        """The number of the last attempt that is seen to have begun."""
        log, goes_on = self.log_of(self.attempt)
        self.last_log = log or self.log
        self.said = "" if parts else _first_to_fail(folder, self.last_log)
        """The reason why no command began, from the node that failed first."""
        requeued = goes_on or _REQUEUED.search(self.last_log) is not None
        may_go_on = self.end is None and self.attempt <= _number_in(folder, r"^retries=([0-9]+)$", 0)
        self.was_to_go_on = requeued and may_go_on
        """Slurm ended the last attempt in order to start another."""
        codes = [part.exit_code for part in self.parts]
        self.succeeded = self.end == 0 and len(codes) == self.nodes and None not in codes
        """The script and every node report it."""
        self.launcher = self.end if self.end in _NO_COMMAND and self.end not in codes else None
        """The exit code of dsv or bash on a node, in place of that of a command; None if a command's own decided."""

    def log_of(self, attempt: int) -> tuple[str, bool]:
        """Return the log of an attempt until its end, and whether its command failed and the script tries it again."""
        _, heading, text = f"\n{self.log}".partition(f"\nattempt {attempt} on ")
        text, _, rest = text.partition("\nattempt ")
        return heading + text, rest.startswith(f"{attempt} ended with ")

    def hosts(self, attempt: int) -> list[str]:
        """Return the names of an attempt's nodes in their order."""
        alone = re.search(rf"^attempt {attempt} on ([^\s,\[]+)$", self.log, re.MULTILINE)
        return _text(self.folder / f"hosts.{attempt}").split() if alone is None else [alone[1]]


def _parts(folder: Path, unread: list[OSError]) -> Iterator[RunPart]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 (from Python 3.12 on, glob hides errors)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        unread.append(error)
        return
    for path in (folder / name for name in names if fnmatch(name, "node.*.*")):
        if (part := _part(path)) is not None:
            late = part.exit_code is not None and _is_late(folder, part)
            report = NodeReport.decode(_text(path.with_name(path.name.replace("node", "stage", 1))))
            yield replace(part, end=EndCause.TIME_LIMIT if late else part.end, **report.fields)


def _last_written(folder: Path) -> int | None:
    """Return the time, in milliseconds, at which the job itself last wrote to its folder."""
    with suppress(OSError):
        found = [path for pattern in _WRITTEN for path in folder.glob(pattern)]
        return max((path.lstat().st_mtime_ns // 1_000_000 for path in found), default=None)
    return None


def _first_to_fail(folder: Path, log: str) -> str:
    """Read the errors of the node that srun names first: the other nodes were ended because of it."""
    named = _FAILED.search(log)
    with suppress(OSError):
        return "".join(map(_text, sorted(folder.glob(f"err.{'*' if named is None else named[1]}"))))
    return ""


def nodes_of(folder: Path) -> int:
    """Read the number of the job's nodes from its script."""
    return _number_in(folder, r"^#SBATCH --nodes=([0-9]+)$", 1)


def _number_in(folder: Path, pattern: str, otherwise: int) -> int:
    try:
        with open_plain(folder / SCRIPT) as file:
            found = re.search(pattern, file.read(_SCRIPT).decode("utf-8", "replace"), re.MULTILINE)
    except OSError:
        return otherwise
    return otherwise if found is None else int(found[1])


def idle_seconds(ref: JobRef) -> float | None:
    """Return the seconds since the last write to a job's folder. None if it can't be seen here, or is not of
    this user's job for this run: anyone who can write to a store could have named it."""
    folder = job_folder(ref)
    try:
        script = folder / SCRIPT
        own = script.stat().st_uid == os.geteuid() and comment(ref.run, folder) in _text(script)
        newest = -inf if _never_ran(folder) else max(path.lstat().st_mtime for path in folder.iterdir())
    except (OSError, ValueError):
        return None
    return max(0.0, time.time() - newest) if own else None


def _never_ran(folder: Path) -> bool:
    """Check that no dsv follows the job, and Slurm never began its script, so that no node completes the record."""
    return os.path.lexists(folder / UNWATCHED) and not os.path.lexists(folder / "slurm.log")


def _part(path: Path) -> RunPart | None:
    """Read `node.ATTEMPT.NODE`: the host, when it began, its exit code and when it ended.

    The node writes the file when the command begins and when it ends. So the file server's clock shows these
    times, and the node's clock only the duration. Meanwhile it touches `alive.ATTEMPT.NODE`, so that the time of
    a node that is lost is known.
    """
    text, written_ms = _read(path)
    numbers = re.fullmatch(r"node\.([0-9]{1,4})\.([0-9]{1,6})", path.name)
    fields = re.fullmatch(r"(\S+) ([0-9]{1,12})(?: ([0-9]{1,3}) ([0-9]{1,12}))?\n", text)
    if numbers is None or fields is None:
        return None
    host, begun, code, over = fields.groups()
    took_ms = 0 if over is None else (int(over) - int(begun)) * 1000
    alive_ms = 0 if over is not None else _read(path.with_name(path.name.replace("node", "alive", 1)))[1]
    return RunPart(
        node=int(numbers[2]),
        attempt=int(numbers[1]),
        host=host,
        started_ms=written_ms - took_ms,
        ended_ms=max(written_ms, alive_ms),
        end=None if code is None else EndCause.EXITED,
        exit_code=None if code is None else int(code),
        exit_signal=None if code is None else exit_signal(int(code)),
    )


def _is_late(folder: Path, part: RunPart) -> bool:
    """Check that the script ended the command at its time limit."""
    return os.path.lexists(folder / f"late.{part.attempt}.{part.node}")


def _text(path: Path) -> str:
    return _read(path)[0]


def _read(path: Path) -> tuple[str, int]:
    """Read the end of a file, and its mtime in milliseconds; empty and 0 if it is missing."""
    try:
        with open_plain(path) as file:
            file.seek(max(file.seek(0, 2) - _LAST, 0))
            text = file.read(_LAST).decode("utf-8", "replace")
            return text, os.fstat(file.fileno()).st_mtime_ns // 1_000_000
    except OSError:
        return "", 0


_KILLED: Final = 137
_CAUSES: Final[tuple[tuple[EndCause, set[str], re.Pattern[str]], ...]] = (
    (EndCause.PREEMPTED, {"PREEMPTED"}, re.compile("CANCELLED AT .* DUE TO PREEMPTION")),
    (EndCause.TIME_LIMIT, {"TIMEOUT", "DEADLINE"}, re.compile("CANCELLED AT .* DUE TO TIME LIMIT")),
    (EndCause.NODE_LOST, {"NODE_FAIL", "BOOT_FAIL"}, re.compile(LOST)),
    (EndCause.NODE_LOST, {"NODE_FAIL", "BOOT_FAIL"}, re.compile("CANCELLED AT .* DUE TO NODE")),
    (EndCause.OUT_OF_MEMORY, {"OUT_OF_MEMORY"}, re.compile("Out Of Memory|oom-kill event")),
    (EndCause.EVICTED, set(), re.compile("CANCELLED AT .* DUE TO JOB REQUEUE")),
    (EndCause.CANCELLED, {"CANCELLED", "REVOKED"}, re.compile(r"CANCELLED AT \S+ \*\*\*")),
)
"""Slurm's words for each cause: the state of the job, and what it writes to the job's log."""
_CUT_SHORT: Final[dict[EndCause | None, int]] = {
    EndCause.TIME_LIMIT: TIMED_OUT,
    EndCause.PREEMPTED: 143,
    EndCause.NODE_LOST: _KILLED,
}
"""The exit code for these causes, if the command reported success or no code."""
_ENDS_ALL: Final = {EndCause.PREEMPTED, EndCause.EVICTED, EndCause.TIME_LIMIT, EndCause.CANCELLED}
"""The causes that end the commands of all nodes."""
_SAID: Final = {
    EndCause.PREEMPTED: "Slurm gave its place to a job that is more important",
    EndCause.TIME_LIMIT: "it reached its time limit",
    EndCause.NODE_LOST: "Slurm lost {node} of the job",
    EndCause.OUT_OF_MEMORY: "it used more memory than it was given",
    EndCause.CANCELLED: "it was cancelled",
}


def is_late(job: Queued | None, left: JobFiles) -> bool:
    """Check that Slurm reports the script's end, but not all its files are seen: folders may be cached."""
    if job is not None and not job.lives and left.unread:
        return True
    if job is None or job.state not in ("COMPLETED", "FAILED") or job.was_killed:
        return False
    return left.end is None or (left.end == 0 and not left.succeeded)


def ended(job: Queued | None, left: JobFiles, *, drained: bool = False) -> Ended | None:
    """Return the end of a job; None while it lives, or while its end is not known yet. job: None if Slurm
    doesn't know it any more. drained: no more files will be seen in the folder"""
    done = None if is_late(job, left) and not drained else _ended(job, left)
    if done is None:
        return None
    done = replace(done, stopped=left.stopped)
    parts: list[RunPart] = []
    begun = (*left.earlier, *left.parts) if done.launched or left.attempt > 1 else ()
    for number in range(1, left.attempt + 1):
        is_last = number == left.attempt
        of_it = [part for part in begun if part.attempt == number]
        log, again = left.log_of(number)
        cause = done.cause if is_last else _first_cause(log)[0]
        if cause is None and log and not is_last and not again:
            cause = EndCause.NODE_LOST  # Slurm began it again without a word
        if cause is EndCause.NODE_LOST:
            of_it += _lost_nodes(left, number, of_it, log)
        parts += _with_ends(of_it, cause, left.stopped, left.written_ms if is_last else None)
    return replace(done, parts=tuple(parts))


def _lost_nodes(left: JobFiles, attempt: int, begun: list[RunPart], log: str) -> list[RunPart]:
    """Return parts for lost nodes that left none: if the command never began, of the one that is named, or had srun."""
    named = _LOST_NODE.search(log)
    name = named[1] if named is not None else "" if "CANCELLED AT" in log else "0"
    return [
        RunPart(node=node, attempt=attempt, host=host)
        for node, host in enumerate(left.hosts(attempt))
        if all(part.node != node for part in begun) and (begun or name in (host, str(node)))
    ]


def _with_ends(
    parts: list[RunPart], cause: EndCause | None, stopped: str | None, written_ms: int | None
) -> Iterator[RunPart]:
    """Give parts the cause that ended their attempt. written_ms: when the job last wrote to its folder"""
    first = deciding_part(parts)
    for part in parts:
        if part.end is None:
            end = EndCause.LOST_SIGHT if cause in (None, EndCause.EXITED) else cause
            over = None if written_ms is None or part.started_ms is None else max(written_ms, part.started_ms)
            part = replace(part, end=end, ended_ms=part.ended_ms if end is EndCause.NODE_LOST else over)
        elif part.end is EndCause.EXITED and (part == first or not part.succeeded):
            ends_it = cause in _ENDS_ALL or (part == first and cause is EndCause.OUT_OF_MEMORY)
            part = replace(part, end=cause if ends_it else part.end)
        yield replace(part, cancelled_by=stopped if part.end is EndCause.CANCELLED else None)


def left_here(left: JobFiles) -> Ended | None:
    """Return how the job ended, on its own node while Slurm still has it; None if it is not known there."""
    done = None if left.end is None else ended(None, left, drained=True)
    return done if done is not None and done.seen else None


def _ended(job: Queued | None, left: JobFiles) -> Ended | None:
    if job is not None and job.waits:
        return None  # its files are of earlier attempts
    goes_on = job is not None and (left.end in (None, 0) or job.state in ("PENDING", "RUNNING"))
    if job is not None and job.lives and goes_on and not left.succeeded:
        return None  # once it left an end, Slurm will soon report the cause
    cause, said = _cause(job, left)
    part = deciding_part(left.parts)
    if left.succeeded and (cause not in _CUT_SHORT or cause is EndCause.NODE_LOST):
        return Ended(exit_code=0, launched=True, cause=_or_stopped(None, left))
    if cause is None and (left.end == 0 or (job is not None and job.state == "COMPLETED")):
        reason = f"Slurm says that it succeeded, but not all of its {left.nodes} nodes reported success"
        return _not_known(reason, left, seen=False)
    if job is not None and job.was_killed and left.end is None and left.begun:  # Slurm then ends the commands
        return _not_known(f"the batch script of the job was killed ({job.reason})", left)
    if not left.begun and left.unread:
        return _not_known("the job's folder can't be read", left, seen=False)
    if job is None and left.end is None and cause is None and part is None:
        reason = "Slurm has no such job any more, and "
        if not _never_ran(left.folder):
            seen = os.path.lexists(left.folder / UNWATCHED)  # else its dsv may have seen more
            return _not_known(f"{reason}the job left no record of its end", left, seen=seen)
        forgotten = Ended(reason=f"{reason}it never began", cause=EndCause.NOT_STARTED)
        return forgotten if left.stopped is None else _never_began(None, left, None, None)
    if not left.begun:
        return _never_began(job, left, cause, said)
    if left.launcher is not None and cause is None and left.stopped is None:
        if len(left.parts) < left.nodes:  # the others were ended
            reason = "the command could not be started on every node"
            return Ended(exit_code=left.launcher, reason=reason, cause=EndCause.NOT_STARTED)
        return _not_known("the data was not held any more on a node", left, EndCause.LEASE_LOST)
    if cause is None and left.stopped is None and (part is None or part.exit_code is None):
        return _not_known(_who_killed(left), left)
    code = (part and part.exit_code) or left.end or _CUT_SHORT.get(cause, _KILLED)
    why = _reason(cause, said, part, left)
    return Ended(exit_code=code, launched=True, reason=why, cause=_or_stopped(cause, left))


def _never_began(job: Queued | None, left: JobFiles, cause: EndCause | None, said: str | None) -> Ended:
    code, hint = left.launcher or CANNOT_LAUNCH, None
    reason = _reason(_or_stopped(cause, left), said, None, left)
    # Slurm gave nodes to the job and could not run its batch script, which writes to the log first
    ran = left.end is not None or left.stopped is not None or bool(left.log)
    if job is not None and job.nodes and not ran and (job.was_killed or job.state == "CANCELLED"):
        reason = f"Slurm did not run the batch script on {job.nodes}; the log of slurmd there says why"
        cause = None
    elif cause is EndCause.TIME_LIMIT:
        code, reason = TIMED_OUT, "it reached its time limit before the data was there"
    elif cause is EndCause.CANCELLED and left.stopped is None:
        reason = "it was cancelled before it began"
    if reason is None:
        reason, hint = error_in(left.last_log + left.said)
    if reason is None and job is not None:
        reason = job.reason
    cause = _or_stopped(cause, left, EndCause.NOT_STARTED)
    return Ended(exit_code=code, reason=reason, hint=hint, cause=cause)


def _not_known(
    reason: str, left: JobFiles, cause: EndCause = EndCause.LOST_SIGHT, *, seen: bool = True
) -> Ended:
    """Return the end of a job whose command left no exit code."""
    return Ended(launched=left.begun, seen=seen, reason=reason, cause=cause if seen else None)


def _who_killed(left: JobFiles) -> str:
    """Describe a command without a reported end: srun, or dsv on the node, was killed."""
    unreported = [part for part in left.parts if part.exit_code is None]
    nodes = ", ".join(f"node {part.node} ({part.host})" for part in unreported) or "a node"
    return f"the command on {nodes} was killed from outside of it"


def _or_stopped(cause: EndCause | None, left: JobFiles, otherwise: EndCause = EndCause.EXITED) -> EndCause:
    return cause or (otherwise if left.stopped is None else EndCause.CANCELLED)


def status(job: Queued | None, left: JobFiles) -> JobStatus:
    done = ended(job, left)
    if done is None:
        assert job is not None  # a job unknown to Slurm has ended
        waits = job.waits and job.reason != "None"
        reason = f"it waits: {job.reason}" if waits else None
        return JobStatus(job.run_state if job.lives else RunState.RUNNING, reason=reason)
    return status_of(done)


def status_of(done: Ended) -> JobStatus:
    if not done.seen:
        return JobStatus(RunState.CUT_OFF)
    return JobStatus(RunState.ENDED if done.launched else RunState.NOT_LAUNCHED, done.exit_code, done)


def _cause(job: Queued | None, left: JobFiles) -> tuple[EndCause | None, str | None]:
    """Return why Slurm ended it, and its words. squeue takes precedence over the log, which may be of an
    earlier attempt if the last one never began."""
    if left.was_to_go_on and (job is None or job.state == "CANCELLED"):
        return EndCause.CANCELLED, "it waited for another attempt"
    known = next((cause for cause, states, _ in _CAUSES if job is not None and job.state in states), None)
    if left.late and left.stopped is None and known is None:
        return EndCause.TIME_LIMIT, None
    return _first_cause(left.last_log, known)


def _first_cause(log: str, known: EndCause | None = None) -> tuple[EndCause | None, str | None]:
    """Return the cause in what Slurm wrote to the log, and the line. known: the cause, if the job's state tells it"""
    for cause, _, pattern in _CAUSES:
        if known in (None, cause) and (said := pattern.search(log)) is not None:
            return cause, _line_of(log, said.start())
    return known, None


def _reason(cause: EndCause | None, said: str | None, part: RunPart | None, left: JobFiles) -> str | None:
    if cause is EndCause.CANCELLED and left.stopped is not None:
        return f"{_SAID[cause]} by {left.stopped}"
    if cause in _SAID:
        return _SAID[cause].format(node=_lost_node(left, said or "")) + (f": {said}" if said else "")
    if part is None or part.succeeded or len(left.parts) < 2:
        return None
    return f"node {part.node} ({part.host}) failed first, with exit code {part.exit_code}"


def _lost_node(left: JobFiles, said: str) -> str:
    """Return the name of a lost node: Slurm's line has its name, or its number among those of the step."""
    named, hosts = _LOST_NODE.search(said), dict(enumerate(left.hosts(left.attempt)))
    if named is None:
        return "a node"
    return f"node {hosts.get(int(named[1]), named[1]) if named[1].isdecimal() else named[1]}"


def _line_of(text: str, position: int) -> str:
    line = text[text.rfind("\n", 0, position) + 1 :].partition("\n")[0]
    return re.sub(r"^\S+: error: |\*\*\* ?", "", line).strip()
