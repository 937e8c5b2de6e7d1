"""How a workspace differs from its base. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from dsv.model.entry import Entry, Kind


class What(enum.Enum):
    """How one path differs from the base."""

    ADDED = "added"
    CHANGED = "changed"
    """Other content, another target, or the executable bit."""
    REMOVED = "removed"
    RETYPED = "retyped"
    """A file, a symlink or an empty folder in the place of another of these."""


@dataclass(slots=True)
class Differences:
    """Paths in tree order, one list for each way to differ."""

    added: list[bytes] = field(default_factory=list)
    changed: list[bytes] = field(default_factory=list)
    removed: list[bytes] = field(default_factory=list)
    retyped: list[bytes] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed or self.retyped)

    def __len__(self) -> int:
        return len(self.added) + len(self.changed) + len(self.removed) + len(self.retyped)

    def note(self, path: bytes, what: What | None) -> None:
        """Adds a path; None is no difference."""
        if what is What.ADDED:
            self.added.append(path)
        elif what is What.CHANGED:
            self.changed.append(path)
        elif what is What.REMOVED:
            self.removed.append(path)
        elif what is What.RETYPED:
            self.retyped.append(path)


def difference(before: Entry | None, after: Entry | None) -> What | None:
    """How one path's entry changed; None if it did not. A recipe is how a content is stored, and no difference."""
    if before is None or after is None:
        return None if before is after else What.ADDED if before is None else What.REMOVED
    if _type(before.kind) is not _type(after.kind):
        return What.RETYPED
    same = (before.kind, before.size, before.file_id, before.target) == (
        after.kind,
        after.size,
        after.file_id,
        after.target,
    )
    return None if same else What.CHANGED


def retyped(before: Kind, after: Kind) -> bool:
    """Whether a file, symlink or empty folder became another of these."""
    return _type(before) is not _type(after)


def _type(kind: Kind) -> Kind:
    return Kind.FILE if kind is Kind.EXECUTABLE else kind
