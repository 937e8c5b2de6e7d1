"""Whether a commit changed some paths, found by comparing ids level by level.

Only nodes on the way to the paths are read, and what was read stays at hand: the next commit shares most of it.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterator
from typing import NamedTuple, TypeVar

from dsv.errors import IntegrityError
from dsv.format.commit import Commit
from dsv.format.locator import Location, Locator, ObjectKind
from dsv.format.segment import Segment
from dsv.format.tree import Entry, Outline
from dsv.repo.errors import NOT_OURS, decoded
from dsv.repo.objects.objects import Located, Objects
from dsv.repo.tree.read import TreeReader
from dsv.values.ids import CommitId, Id
from dsv.values.paths import PathSet, sort_key

_HELD = 4096
"""Parts of trees that are kept, each no more than what it has of the paths."""
Part = tuple[bytes, int, int, bytes | None, bytes | None]


class _Place(NamedTuple):
    """A node or segment, how deep it lies (the root: 0), which child of its node it is, and where it lies by the
    locator of that node."""

    id: Id
    depth: int
    number: int
    where: Location | None = None


class PathHistory:
    """`asked_store`: whether something had to be read from the store since this was last set to False."""

    def __init__(self, objects: Objects, scope: PathSet) -> None:
        self.asked_store = False
        self._objects = objects
        self._keys = [(key, key + b"\1") for key in scope.keys]
        self._scope = scope
        self._below: dict[tuple[Id, int], tuple[_Place, ...]] = {}
        self._parts: dict[Id, tuple[Part, ...]] = {}
        self._places: dict[CommitId, dict[Id, Location | None]] = {}

    def differs(self, before: tuple[CommitId, Commit] | None, after: tuple[CommitId, Commit] | None) -> bool:
        """Whether the two commits have something different at the paths. None: an empty tree."""
        left, right = _Side(self, before), _Side(self, after)
        while left.places or right.places:
            if left.level == right.level:
                common = {place.id for place in left.places} & {place.id for place in right.places}
                left.leave_out(common)
                right.leave_out(common)
            if not left.level and not right.level:
                return list(left.parts()) != list(right.parts())
            level = max(left.level, right.level)
            for side in (left, right):
                if side.level == level:
                    side.descend()
        return False

    def below(self, commit_id: CommitId, commit: Commit, place: _Place, level: int) -> tuple[_Place, ...]:
        """The children of a node that may have something of the paths."""
        found = self._below.get((place.id, place.depth))
        if found is None:
            read = self._read(ObjectKind.NODE, commit_id, commit, place)
            outline = decoded(Outline.decode, read.value, "node", place.id)
            if outline.level != level:
                raise IntegrityError(
                    f"commit {str(commit_id)[:12]} has a node of level {outline.level} where {level} belongs",
                    subject=str(commit_id),
                    hint=NOT_OURS,
                )
            found = tuple(self._chosen(outline, place.depth + 1, read.locator))
            _keep(self._below, (place.id, place.depth), found)
        return found

    def parts(self, commit_id: CommitId, commit: Commit, place: _Place) -> tuple[Part, ...]:
        """What a segment has at the paths, as far as it can differ."""
        found = self._parts.get(place.id)
        if found is None:
            read = self._read(ObjectKind.SEGMENT, commit_id, commit, place)
            segment = decoded(Segment.decode, read.value, "segment", place.id)
            found = tuple(_part(entry) for entry in segment.entries() if entry.path in self._scope)
            _keep(self._parts, place.id, found)
        return found

    def _read(self, kind: ObjectKind, commit_id: CommitId, commit: Commit, place: _Place) -> Located[bytes]:
        found = self._objects.local(kind, place.id)
        if found is None:
            where = self._where(commit_id, commit, place)
            found = self._objects.metadata_object(kind, place.id, where)
        return found

    def _where(self, commit_id: CommitId, commit: Commit, place: _Place) -> Location | None:
        """By the locator of the node above, or by the commit's own, which in an older store lists the tree breadth
        first. None leaves it to the index."""
        self.asked_store = True
        if place.where is not None:
            return place.where
        if place.depth < 2:
            locator = self._objects.commit_locator(commit_id)
            row = place.depth + place.number
            return locator.get(row) if locator is not None and row < len(locator) else None
        if commit.level > 2:
            return None
        if commit_id not in self._places:  # the few nodes of such a tree tell in which row each segment is
            leaves = TreeReader(self._objects, commit_id).leaves()
            places: dict[Id, Location | None] = {leaf.id: leaf.where for leaf in leaves}
            self._places = {commit_id: places}
        return self._places[commit_id].get(place.id)

    def _chosen(self, outline: Outline, depth: int, locator: Locator | None) -> Iterator[_Place]:
        """A folder's paths have the keys from its own up to, but without, its own with byte 1."""
        count = len(outline.lasts)
        numbers = set(range(count)) if self._scope.whole else set[int]()
        for low, high in self._keys:
            first = bisect.bisect_left(outline.lasts, low, key=sort_key)
            numbers.update(
                range(first, min(count, bisect.bisect_left(outline.lasts, high, key=sort_key) + 1))
            )
        for number in sorted(numbers):
            where = locator.get(number) if locator is not None and number < len(locator) else None
            yield _Place(outline.child(number), depth, number, where)


class _Side:
    """One of two trees that are compared, as far as it was opened. level: 0 once only segments are left."""

    def __init__(self, history: PathHistory, commit: tuple[CommitId, Commit] | None) -> None:
        self._history = history
        self._commit = commit
        self.level = 0 if commit is None else commit[1].level
        self.places = [] if commit is None else [_Place(commit[1].root, 0, 0)]

    def leave_out(self, ids: set[Id]) -> None:
        self.places = [place for place in self.places if place.id not in ids]

    def descend(self) -> None:
        assert self._commit is not None
        self.places = [
            below for place in self.places for below in self._history.below(*self._commit, place, self.level)
        ]
        self.level -= 1

    def parts(self) -> Iterator[Part]:
        for place in self.places:
            assert self._commit is not None
            yield from self._history.parts(*self._commit, place)


def _part(entry: Entry) -> Part:
    """A recipe is how a content is stored, and no difference."""
    return entry.path, entry.kind, entry.size, entry.file_id, entry.target


_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


def _keep(held: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """What was kept longest goes."""
    if len(held) >= _HELD:
        held.pop(next(iter(held)), None)
    held[key] = value
