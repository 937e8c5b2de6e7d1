"""Show holds, and name cached commits, for `dsv hold`, `dsv release` and `dsv evict`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsv.cli.output import local_time

if TYPE_CHECKING:
    from dsv.api.holds import HoldItem
    from dsv.cli.call import Call
    from dsv.values.ids import CommitId
    from dsv.values.names import DatasetName

HOLD_RESULT = {
    "items.path": "the cached commit's folder",
    "items.dataset": "the dataset",
    "items.commit": "the commit",
    "items.count": "how many holds were taken or released",
    "items.ids": "their ids",
    "items.until": "when the hold ends; null for one without an end, and for one that was released",
    "items.why": "why it is held",
}


def write_holds(call: Call, holds: Sequence[HoldItem], verb: str) -> None:
    """Print a line for each commit, or the JSON document."""
    if call.json:
        call.items(call.item(each, count=len(each.ids)) for each in holds)
        return
    for item in holds:
        end = "" if item.until is None else f" until {local_time(item.until * 1000)}"
        many = f" ({len(item.ids)} holds)" if len(item.ids) != 1 else ""
        call.line(f"{verb} {place_name(item.dataset, item.commit, part=is_part(item.path))}{end}{many}")


def place_name(dataset: DatasetName, commit: CommitId, *, part: bool) -> str:
    """Return a cached commit's name in a line of text: `pets@f54d8ee9f991`, with a + for a part of it."""
    return f"{dataset}@{str(commit)[:12]}{'+' if part else ''}"


def is_part(folder: Path) -> bool:
    """Check that a cached commit's folder has only a part of the commit."""
    return "+" in folder.name
