"""What the job's own container leaves in a pod, as the container that held its data finds it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsv.engines.kubernetes.scripts import NOT_HELD, TIME_IS_OVER
from dsv.engines.log import LogKeeper
from dsv.fs.files import open_plain
from dsv.model.run import Usage
from dsv.model.run_end import EndCause, RunPart, exit_signal

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
    stopped or killed a command. was_stopped: whether it did, so that another node may have been the first to fail."""

    part: RunPart
    usage: Usage | None
    is_clear: bool
    was_stopped: bool


def read_left(folder: Path, *, node: int, attempt: int, host: str | None) -> LeftInPod | None:
    """None if the command did not end by itself, or never began."""
    said = dict(re.findall(r"([a-z]+)=(\S*)", _text(folder / "ended")))
    if said.get("whole") != "yes" or not said.get("code", "").isdecimal():
        return None
    code, why = int(said["code"]), said.get("why", "")
    cause, error = CAUSES.get(why, (EndCause.EXITED, None))
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
        **staged(_text(folder / "staged.json")),
    )
    stopped = (folder / "stopped").exists()
    signalled = (folder / "told").exists()
    clear = bool(why) or not (stopped or signalled or code == _KILLED)
    return LeftInPod(part, _usage(said), clear, stopped and not signalled and not why)


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
        for data in _pieces(folder / f"log.{number}"):
            keeper.add(data)
        before = number
    return keeper


def staged(text: str) -> dict[str, Any]:
    """From what `dsv cache --json` said."""
    try:
        items = json.loads(text)["items"]
        return {
            "cache_hit": all(bool(each["hit"]) for each in items),
            "stage_bytes": sum(int(each["fetched_bytes"]) for each in items),
        }
    except (ValueError, KeyError, TypeError):
        return {}


def _usage(said: Mapping[str, str]) -> Usage | None:
    memory, cpu = said.get("memory", ""), said.get("cpu", "")
    if not (memory.isdecimal() or cpu.isdecimal()):
        return None
    return Usage(
        peak_memory_bytes=int(memory) if memory.isdecimal() else None,
        cpu_seconds=int(cpu) / 1e9 if cpu.isdecimal() else None,
    )


def _milliseconds(seconds: str | None) -> int | None:
    return int(seconds) * 1000 if seconds and seconds.isdecimal() else None


def _pieces(path: Path) -> Iterator[bytes]:
    left = _MOST
    with suppress(OSError), open_plain(path) as file:
        while left > 0 and (data := file.read(min(1 << 20, left))):
            left -= len(data)
            yield data


def _text(path: Path) -> str:
    return b"".join(_pieces(path)).decode("utf-8", "replace")
