"""What is done about one change of a workspace."""

from __future__ import annotations

import enum

import msgspec

from dsv.merge.paths import PathConflict, Settled
from dsv.model.diff import Change, Located
from dsv.model.entry import Entry


class Act(enum.Enum):
    KEEP = "keep"
    """It is as it should be, or is not for dsv to change."""
    STAY = "stay"
    """It stays as the user has it, though the commit has something else: a local change on top of the commit."""
    CREATE = "create"
    REPLACE = "replace"
    CHMOD = "chmod"
    """The file stays, and may be executed from now on, or no longer."""
    REMOVE = "remove"
    CONFLICT = "conflict"


class Step(msgspec.Struct, frozen=True):
    """What to do about one change.

    row: the stat that a file must still have to be replaced or removed; None if any will do. conflict, reason: what is
    in conflict, and why in words. forced: whatever is in the way is removed. settled: the path of a conflict for which
    the user chose a side. made: what is written if that is not what the commit has there, so that it is a local change;
    content: its bytes if the commit does not have them either. beside: what the commit has there, which is written
    under another name, as a local change too. merged: what was put together from both sides, for the report.
    """

    act: Act
    change: Change
    row: bytes | None = None
    conflict: PathConflict | None = None
    reason: str = ""
    forced: bool = False
    settled: bytes | None = None
    made: Entry | None = None
    content: bytes | None = None
    beside: Located | None = None
    merged: Settled | None = None

    @property
    def entry(self) -> Entry | None:
        """What is at the path when the step is done, if it writes something."""
        return self.change.after if self.made is None else self.made
