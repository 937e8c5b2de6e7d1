"""What the job's own container leaves in a pod, as the container that held its data finds it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dsv.engines.kubernetes.names import NOT_AGAIN
from dsv.engines.kubernetes.scripts import NOT_HELD, TIME_IS_OVER, TOGETHER
from dsv.engines.log import LogKeeper
from dsv.engines.stage_facts import stage_facts
from dsv.fs.files import open_plain
from dsv.model.run import Usage
from dsv.model.run_end import EndCause, RunPart, deciding_part, exit_signal, may_try_again

_KILLED: Final = 137
_MOST: Final = 64 << 20
"""Bytes of one file: the script keeps them much smaller."""
CAUSES: Final = {
    TIME_IS_OVER: (EndCause.TIME_LIMIT, "its time was over"),
    NOT_HELD: (EndCause.LEASE_LOST, "the data was not held any more"),
}
"""Why the script ended the command, and in which words that is told."""


@dataclass(frozen=True, slots=True)
class LeftInPod:
    """part: of this node, in this attempt. is_clear: whether the end can be told here; only the cluster knows why it
    stopped or killed a command. was_stopped: whether the cluster ended the pod, and not dsv the command."""

    part: RunPart
    usage: Usage | None
    is_clear: bool
    was_stopped: bool = False

    def put_back(self) -> RunPart:
        """The part of a job in a queue, which may begin again after the cluster has stopped it."""
        return replace(self.part, end=EndCause.EVICTED, error="the cluster took its place away")


def read_left(folder: Path, *, node: int, attempt: int, host: str | None) -> LeftInPod | None:
    """None if the command did not end by itself, or never began."""
    said = dict(re.findall(r"([a-z]+)=(\S*)", _text(folder / "ended")))
    if said.get("whole") != "yes" or not said.get("code", "").isdecimal():
        return None
    code, why = int(said["code"]), said.get("why", "")
    cause, error = CAUSES.get(why, (EndCause.EXITED, None))
    if why == TOGETHER:
        cause, error = EndCause.CANCELLED, with_the_others(_text(folder / "verdict").partition(" ")[2])
    part = RunPart(
        node=node,
        attempt=attempt,
        host=host,
        started_ms=_milliseconds(said.get("begun")),
        ended_ms=_milliseconds(said.get("over")),
        end=cause,
        exit_code=code,
        exit_signal=exit_signal(code),
        error=error,
        **stage_facts(_text(folder / "staged.json")),
    )
    is_clear = why in CAUSES or not _was_ended(folder, code, why)
    was_stopped = not is_clear and (folder / "stopped").exists() and not (folder / "told").exists()
    return LeftInPod(part, _usage(said), is_clear, was_stopped)


def _was_ended(folder: Path, code: int, why: str) -> bool:
    """Whether the cluster or a person may have ended the command. A pod whose attempt was over by then was ended with
    the others in any case: the cluster stops the pods that are left of a job that has failed."""
    if (folder / "told").exists():
        return True
    stopped = _changed_at(folder / "stopped")
    if why != TOGETHER:
        return stopped is not None or code == _KILLED
    over = _changed_at(folder / "end")
    return stopped is not None and (over is None or stopped < over)


def is_over(parts: Iterable[RunPart], nodes: int, retries: int) -> bool | None:
    """Whether no other attempt follows those that left these parts, as the cluster counts them. None if only the
    cluster can tell that: not every node has left its part in every attempt, or no node failed by itself."""
    found = list(parts)
    last = max((each.attempt for each in found), default=0)
    decided = deciding_part(found)
    if decided is None or len({(each.attempt, each.node) for each in found}) < nodes * last:
        return None
    if decided.succeeded:
        return True
    if decided.end is EndCause.CANCELLED or any(each.end is EndCause.EVICTED for each in found):
        return None
    failed = [each for each in found if not each.succeeded and each.end is not EndCause.CANCELLED]
    if any(each.attempt == last and each.exit_code in NOT_AGAIN for each in failed):
        return True
    return len({each.attempt for each in failed}) > retries or not may_try_again(decided)


def read_log(folder: Path) -> LogKeeper | None:
    """What the command wrote: its beginning and its end, if that was much. None if no copy was made."""
    numbers = sorted(int(each.suffix[1:]) for each in folder.glob("log.*") if each.suffix[1:].isdecimal())
    if not numbers or not (folder / "log.0").is_file():
        return None
    keeper, before = LogKeeper(), -1
    for number in numbers:
        if number != before + 1:
            lost = _text(folder / "log.lost").strip()
            keeper.leave_out(int(lost) if lost.isdecimal() else 1)
        keeper.add(_begin(folder / f"log.{number}"))
        before = number
    return keeper


def with_the_others(reason: str) -> str:
    """What is said of the end of a node whose attempt was over on another one."""
    return f"it was ended with the other nodes: {reason.strip()}"


def _usage(said: Mapping[str, str]) -> Usage | None:
    memory, cpu = said.get("memory", ""), said.get("cpu", "")
    if not (memory.isdecimal() or cpu.isdecimal()):
        return None
    return Usage(
        peak_memory_bytes=int(memory) if memory.isdecimal() else None,
        cpu_seconds=int(cpu) / 1e9 if cpu.isdecimal() else None,
    )


def _changed_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _milliseconds(seconds: str | None) -> int | None:
    return int(seconds) * 1000 if seconds and seconds.isdecimal() else None


def _begin(path: Path) -> bytes:
    """Its bytes, at most `_MOST`, up to where it can't be read."""
    pieces: list[bytes] = []
    left = _MOST
    with suppress(OSError), open_plain(path) as file:
        while left > 0 and (data := file.read(min(1 << 20, left))):
            pieces.append(data)
            left -= len(data)
    return b"".join(pieces)


def _text(path: Path) -> str:
    return _begin(path).decode("utf-8", "replace")
