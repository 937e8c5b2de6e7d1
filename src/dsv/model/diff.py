"""What differs between two runs of entries."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import msgspec

from dsv.model.entry import Entry, Kind, sort_key
from dsv.model.location import Location

Located = tuple[Entry, Location | None]
"""An entry, and where its content lies if that is known."""


class What(enum.Enum):
    """How one path differs from what it was."""

    ADDED = "added"
    CHANGED = "changed"
    """Other content, another target, or the executable bit."""
    REMOVED = "removed"
    RETYPED = "retyped"
    """A file, a symlink or an empty folder in the place of another of these."""
    RENAMED = "renamed"
    """The content was at another path before, which is gone; see `renames`."""


class Change(msgspec.Struct, frozen=True):
    """A path on two sides. A side that does not have it is None.

    location: where the content of `after` lies, if that is known.
    """

    path: bytes
    before: Entry | None
    after: Entry | None
    location: Location | None = None


def difference(before: Entry | None, after: Entry | None) -> What | None:
    """How one path's entry changed; None if it did not. A recipe is how a content is stored, and no difference."""
    if before is None or after is None:
        return None if before is after else What.ADDED if before is None else What.REMOVED
    if retyped(before.kind, after.kind):
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


def diff_entries(before: Iterable[Entry], after: Iterable[Located]) -> Iterator[Change]:
    """The paths that differ, in tree order; both sides come in tree order."""
    return (change for change in pair_entries(before, after) if change.before != change.after)


def pair_entries(before: Iterable[Entry], after: Iterable[Located]) -> Iterator[Change]:
    """Every path of either side, also if both have the same, in tree order; both sides come in tree order."""
    left, right = iter(before), iter(after)
    old, new = next(left, None), next(right, None)
    while old is not None and new is not None:
        entry, location = new
        if old.path == entry.path:
            yield Change(entry.path, old, entry, location)
            old, new = next(left, None), next(right, None)
        elif sort_key(old.path) < sort_key(entry.path):
            yield Change(old.path, old, None)
            old = next(left, None)
        else:
            yield Change(entry.path, None, entry, location)
            new = next(right, None)
    while old is not None:
        yield Change(old.path, old, None)
        old = next(left, None)
    while new is not None:
        yield Change(new[0].path, None, *new)
        new = next(right, None)
