"""What is done about one change of a workspace."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dsv.model.diff import Change
from dsv.model.entry import Entry


class Act(enum.Enum):
    KEEP = "keep"
    """It is as it should be, or is not for dsv to change."""
    STAY = "stay"
    """It stays as the user has it, though the commit has something else: a local change on top of the commit."""
    CREATE = "create"
    REPLACE = "replace"
    REMOVE = "remove"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Step:
    """What to do about one change.

    row: the stat that a file must still have to be replaced or removed; None if any will do. at, reason: the path of a
    conflict, and what it is. forced: whatever is in the way is removed. merged: what is written instead of what the
    commit has; a local change then.
    """

    act: Act
    change: Change
    row: bytes | None = None
    at: bytes = b""
    reason: str = ""
    forced: bool = False
    merged: tuple[Entry, bytes] | None = None
