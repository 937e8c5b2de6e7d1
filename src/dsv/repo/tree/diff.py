"""The difference between the trees of two commits, and between two sequences of entries."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from dsv.format.tree import Entry, Kind
from dsv.values.paths import WHOLE, Scope, sort_key

if TYPE_CHECKING:
    from dsv.format.locator import Location
    from dsv.repo.tree.reader import LocatedSegment, TreePart, TreeReader
    from dsv.values.ids import Id

T = TypeVar("T")
Located: TypeAlias = "tuple[Entry, Location | None]"
"""An entry, and the location of its content if known."""


class What(enum.Enum):
    """The kinds of change of a path."""

    ADDED = "added"
    CHANGED = "changed"
    """Other content, another target, or the executable bit."""
    REMOVED = "removed"
    RETYPED = "retyped"
    """A file, a symlink or an empty folder replaced another of these."""
    RENAMED = "renamed"
    """The content was at another path before, which was removed; see `renames`."""


class PathChange(msgspec.Struct, frozen=True):
    """A path in two trees. An entry is None where the path does not exist."""

    path: bytes
    before: Entry | None
    after: Entry | None
    location: Location | None = None
    """The location of the content of `after`, if known."""


def difference(before: Entry | None, after: Entry | None) -> What | None:
    """Return how one path's entry changed; None if it did not. Another recipe of a content is no change."""
    if before is None or after is None:
        return None if before is after else What.ADDED if before is None else What.REMOVED
    if retyped(before.kind, after.kind):
        return What.RETYPED
    same = before.kind == after.kind and before.size == after.size and before.file_id == after.file_id
    return None if same and before.target == after.target else What.CHANGED


def retyped(before: Kind, after: Kind) -> bool:
    """Return whether a file, symlink or empty folder became another of these."""
    return _type(before) is not _type(after)


def _type(kind: Kind) -> Kind:
    return Kind.FILE if kind is Kind.EXECUTABLE else kind


def diff_entries(before: Iterable[Entry], after: Iterable[Located]) -> Iterator[PathChange]:
    """Yield the paths that differ, in tree order. Both sides must be in tree order."""
    return (change for change in pair_entries(before, after) if change.before != change.after)


def pair_entries(before: Iterable[Entry], after: Iterable[Located]) -> Iterator[PathChange]:
    """Yield every path of either side, also equal ones, in tree order. Both sides must be in tree order."""
    left, right = iter(before), iter(after)
    old, new = next(left, None), next(right, None)
    while old is not None and new is not None:
        entry, location = new
        if old.path == entry.path:
            yield PathChange(entry.path, old, entry, location)
            old, new = next(left, None), next(right, None)
        elif sort_key(old.path) < sort_key(entry.path):
            yield PathChange(old.path, old, None)
            old = next(left, None)
        else:
            yield PathChange(entry.path, None, entry, location)
            new = next(right, None)
    while old is not None:
        yield PathChange(old.path, old, None)
        old = next(left, None)
    while new is not None:
        yield PathChange(new[0].path, None, *new)
        new = next(right, None)


# Up to this many entries of a segment are looked up one by one.
_PICKED_SINGLY = 32


def diff_trees(
    before: TreeReader | None, after: TreeReader | None, scope: Scope = WHOLE
) -> Iterator[PathChange]:
    """Yield the paths that differ, in tree order. Reads only what one side alone has. None: an empty tree.

    scope: where to look; segments without any path of it are not read.
    """
    old, new = (_Rows(side.segments()) for side in _unlike(before, after, scope))
    changes = _diff_rows(old, new)
    return changes if scope.whole else (change for change in changes if change.path in scope)


class _Side:
    """One of two trees, without the parts that both have."""

    def __init__(self, tree: TreeReader | None, scope: Scope) -> None:
        self._tree = tree
        self._scope = scope
        self.level = 0 if tree is None else tree.commit.level - 1
        """The level of the nodes in `parts`; 0 once they are segments."""
        self.parts: list[TreePart] = []

    def begin(self) -> None:
        if self._tree is not None:
            self.parts = self._tree.top()

    def choose(self, common: set[Id]) -> None:
        """Leave out parts that both trees have, and parts outside the scope."""
        scope = self._scope
        self.parts = [
            part
            for part in self.parts
            if part.child.id not in common and (scope.whole or scope.overlaps(part.before, part.child.last))
        ]

    def descend(self) -> None:
        assert self._tree is not None
        self.parts = self._tree.below_nodes(self.parts, self.level)
        self.level -= 1

    def segments(self) -> Iterator[LocatedSegment]:
        return iter(()) if self._tree is None else self._tree.segments(self.parts)


def _unlike(before: TreeReader | None, after: TreeReader | None, scope: Scope) -> tuple[_Side, _Side]:
    """Return both trees without their common segments. Common nodes are not read."""
    old, new = _Side(before, scope), _Side(after, scope)
    if before is not None and after is not None and before.commit.root == after.commit.root:
        old.level = new.level = 0
        return old, new
    old.begin()
    new.begin()
    while True:
        common: set[Id] = set()
        if old.level == new.level:
            common = {part.child.id for part in old.parts} & {part.child.id for part in new.parts}
        old.choose(common)
        new.choose(common)
        level = max(old.level, new.level)
        if not level:
            return old, new
        for side in (old, new):
            if side.level == level:
                side.descend()


def _diff_rows(before: _Rows, after: _Rows) -> Iterator[PathChange]:
    """Compare segments that begin and end at the same path as a whole, and all others entry by entry."""
    while True:
        old, new = before.current(), after.current()
        if old is None and new is None:
            return
        if old is not None and new is not None and _end_alike(before, after):
            gone, come = old.segment.rows_unlike(new.segment)
            left = _pick(old.segment.entry, old.segment.entries, gone)  # without places: no locator is read
            yield from diff_entries(left, _pick(new.entry, new.entries, come))
            before.advance()
            after.advance()
            continue
        limit = min(sort_key(one.segment.last) for one in (old, new) if one is not None)
        yield from diff_entries((entry for entry, _ in before.until(limit)), after.until(limit))


def _end_alike(before: _Rows, after: _Rows) -> bool:
    """Return whether both are at the start of a segment, and the segments end with the same path."""
    old, new = before.current(), after.current()
    if old is None or new is None or not (before.untouched and after.untouched):
        return False
    return old.segment.last == new.segment.last


def _pick(entry: Callable[[int], T], entries: Callable[[], Iterable[T]], rows: list[int]) -> Iterator[T]:
    """Yield these rows of a segment: a few one by one, many by reading all."""
    if len(rows) <= _PICKED_SINGLY:
        return map(entry, rows)
    chosen = set(rows)
    return (each for at, each in enumerate(entries()) if at in chosen)


class _Rows:
    """The entries of segments, in order. A whole segment can be taken at once."""

    def __init__(self, segments: Iterator[LocatedSegment]) -> None:
        self._segments = segments
        self._current = next(segments, None)
        self._rows: Iterator[Located] | None = None
        self._next: Located | None = None

    @property
    def untouched(self) -> bool:
        """True if nothing of the current segment was taken."""
        return self._rows is None

    def current(self) -> LocatedSegment | None:
        return self._current

    def advance(self) -> None:
        self._current, self._rows, self._next = next(self._segments, None), None, None

    def until(self, limit: bytes) -> Iterator[Located]:
        """Yield the entries up to the key `limit`, which is not after the current segment."""
        if self._current is None:
            return
        if self._rows is None:
            self._rows = self._current.entries()
            self._next = next(self._rows, None)
        while self._next is not None and sort_key(self._next[0].path) <= limit:
            yield self._next
            self._next = next(self._rows, None)
        if self._next is None:
            self.advance()
