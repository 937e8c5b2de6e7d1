"""The files that the scripts of a pod write into the folder that the containers of the pod share."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from dsv.fs.files import open_plain
from dsv.run.engines.base import NodeLeft, stage_facts
from dsv.run.engines.kubernetes.manifest import NOT_AGAIN
from dsv.run.engines.output import LogKeeper
from dsv.run.record import EndCause, RunPart, Usage, deciding_part, exit_signal, may_try_again

TOGETHER: Final = "together"
"""The reason of a script that ended the command because the attempt was over on another node."""
CAUSES: Final = {
    "time-limit": (EndCause.TIME_LIMIT, "its time was over"),
    "lease-lost": (EndCause.LEASE_LOST, "the data was not held any more"),
}
"""Its other reasons, with their descriptions."""
METRICS: Final = "--- metrics.json"
"""The line after which the container `hold` prints metrics.json."""
_KILLED: Final = 137
_MOST: Final = 64 << 20
"""Bytes of a file that are read at most; the script keeps files much smaller."""
_NO_PROGRAM: Final = "the pool's image of dsv has no program"
"""In the message of hold.sh."""
_NO_MODULE: Final = re.compile(r"No module named '?dsv")
_TOO_OLD: Final = re.compile(r"No module named '?dsv|[Nn]o such (?:option|command)", re.ASCII)
_OTHER_IMAGE: Final = (
    "dsv config pools.NAME.kubernetes.image REGISTRY/dsv:VERSION names an image of this version of dsv, and "
    "pools.NAME.kubernetes.dsv the program in it"
)


def is_over(parts: Iterable[RunPart], nodes: int, retries: int) -> bool | None:
    """Return whether no attempt follows those of these parts, by the rules of the Job. None if only the cluster knows:
    a node has not reported every attempt, or no node failed by itself."""
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


def read_left(folder: Path, *, node: int, attempt: int, host: str | None) -> NodeLeft | None:
    """Return None if the command never began, or did not end by itself."""
    said = dict(re.findall(r"([a-z]+)=(\S*)", _text(folder / "ended")))
    if said.get("whole") != "yes" or not said.get("code", "").isdecimal():
        return None
    code, why = int(said["code"]), said.get("why", "")
    cause, error = CAUSES.get(why, (EndCause.EXITED, None))
    if why == TOGETHER:
        cause, error = EndCause.CANCELLED, ended_with_others(_text(folder / "verdict").partition(" ")[2])
    begun, over = (int(said[each]) * 1000 if said.get(each) else None for each in ("begun", "over"))
    part = RunPart(
        node=node,
        attempt=attempt,
        host=host,
        started_ms=begun,
        ended_ms=over,
        end=cause,
        exit_code=code,
        exit_signal=exit_signal(code),
        error=error,
        **stage_facts(_text(folder / "staged.json")),
    )
    signalled, stopped = (_changed_at(folder / each) for each in ("signalled", "stopped"))
    may_be_killed = stopped is not None or code == _KILLED
    if why == TOGETHER:  # the cluster ends what is left of the Job after the end of the attempt
        end = _changed_at(folder / "end")
        may_be_killed = stopped is not None and (end is None or stopped < end)
    is_clear = why in CAUSES or not (signalled is not None or may_be_killed)
    was_stopped = not is_clear and stopped is not None and signalled is None
    return NodeLeft(part, usage_of(said), is_clear, was_stopped, partial(read_log, folder))


def read_log(folder: Path) -> LogKeeper | None:
    """Return the beginning and the end of the command's output; None if no copy was made."""
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


def ended_with_others(reason: str) -> str:
    """Return the description of a node that was ended because of another one."""
    return f"it was ended with the other nodes: {reason.strip()}"


def usage_of(said: Mapping[str, str]) -> Usage | None:
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


def _begin(path: Path) -> bytes:
    """Return the file's first `_MOST` bytes, up to where it can be read."""
    pieces: list[bytes] = []
    left = _MOST
    with suppress(OSError), open_plain(path) as file:
        while left > 0 and (data := file.read(min(1 << 20, left))):
            pieces.append(data)
            left -= len(data)
    return b"".join(pieces)


def _text(path: Path) -> str:
    return _begin(path).decode("utf-8", "replace")


def stage_error(log: str) -> tuple[str | None, str | None]:
    """Return the error message of dsv and its hint, from its JSON or from its text.

    If the image has no dsv or an old one, the hint names another image.
    """
    try:
        error = json.loads(log)["error"]
        message: str | None = str(error["message"])
        hint: str | None = error["hint"] or None
    except (ValueError, KeyError, TypeError):
        lines = [line.strip() for line in log.splitlines()]
        said = [line for line in lines if line and not line.startswith(("hint:", "{"))]
        errors = [line for line in said if line.startswith("error:")] or said
        hints = [line for line in lines if line.startswith("hint: ")]
        message = errors[-1].removeprefix("error: ") if errors else None
        hint = hints[-1].removeprefix("hint: ") if hints else None
        if any(_NO_MODULE.search(line) for line in said):
            message = "the pool's image has a dsv that is too old for this one"
    return message, _OTHER_IMAGE if _NO_PROGRAM in log or _TOO_OLD.search(log) else hint
