"""The nodes of a commit's tree: each is read when what is below it is asked for, and then kept.

So one path of a commit of any size costs a node of each level. Only in a store without `node-locators` all of them are
read at once: there the commit's own locator lists the whole tree, in an order that nobody can enter in the middle.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from dsv.errors import IntegrityError
from dsv.format.locator import Location, ObjectKind
from dsv.format.tree import Child, Totals, check_follows
from dsv.repo.errors import NOT_OURS
from dsv.values.ids import NodeId, SegmentId
from dsv.values.paths import sort_key

if TYPE_CHECKING:
    from dsv.format.tree import Node
    from dsv.repo.objects.objects import Located, Objects
    from dsv.values.ids import CommitId, Id


class Part(msgspec.Struct, frozen=True):
    """A segment or node as its parent node names it, and where it lies by a locator.

    before: the last path in front of it; None at the beginning of the tree, or if it is not known.
    """

    child: Child
    where: Location | None
    before: bytes | None = None


class Leaf(Part, frozen=True):
    """A segment."""

    @property
    def id(self) -> SegmentId:
        return SegmentId(self.child.id)


class TreeNodes:
    """The nodes of one commit."""

    def __init__(self, objects: Objects, commit_id: CommitId) -> None:
        self.commit_id = commit_id
        self.commit, self._locator = objects.commit_and_locator(commit_id)
        self._objects = objects
        self._top: list[Leaf] | None = None
        self._below: dict[tuple[Id, bytes], list[Leaf]] = {}
        """By a node's id and last path: no other place of the tree has both."""

    def top(self) -> list[Leaf]:
        """What the root lists: segments, if the commit's level is 1."""
        if self._top is None:
            locator = self._locator
            listed = iter(()) if locator is None else locator.locations()
            if locator is not None and len(locator) > 1:
                self._read_all(listed)
            else:
                found = next(self._objects.nodes([(self.commit.root, next(listed, None))]))
                self._top = self._opened(None, found, self.commit.level, iter(()))
        assert self._top is not None
        return self._top

    def below(self, parts: Sequence[Part], level: int) -> list[Leaf]:
        """What these nodes of a level list, in order."""
        self.top()
        missing = [part for part in parts if _place(part) not in self._below]
        found = self._objects.nodes((NodeId(part.child.id), part.where) for part in missing)
        for part, node in zip(missing, found, strict=True):
            self._below[_place(part)] = self._opened(part, node, level, iter(()))
        return [leaf for part in parts for leaf in self._below[_place(part)]]

    def leaves(self, wanted: Callable[[bytes | None, bytes], bool] = lambda before, last: True) -> list[Leaf]:
        """The segments that are wanted, in order. wanted: asked of each segment and of each node above it, with the
        last path in front of it and its own.
        """
        chosen = self.top()
        for level in range(self.commit.level - 1, -1, -1):
            chosen = [part for part in chosen if wanted(part.before, part.child.last)]
            if level:
                chosen = self.below(chosen, level)
        return chosen

    def holding(self, keys: Sequence[bytes]) -> list[Leaf | None]:
        """Of each of these sort keys, which are in order, the segment that has its path, or would have it; None behind
        the end of the tree.
        """
        parts = self.top()
        for level in range(self.commit.level - 1, -1, -1):
            lasts = [sort_key(part.child.last) for part in parts]
            found = [bisect.bisect_left(lasts, key) for key in keys]
            if level:
                parts = self.below([parts[at] for at in sorted(set(found)) if at < len(parts)], level)
        return [parts[at] if at < len(parts) else None for at in found]

    def last(self) -> bytes | None:
        """The last path of the tree; None if it is empty."""
        top = self.top()
        return top[-1].child.last if top else None

    def nodes(self) -> list[tuple[ObjectKind, NodeId, Location | None]]:
        """Every node, breadth first, and where a locator says that it lies."""
        parts = self.top()
        root = self._locator.get(0) if self._locator else None
        found = [(ObjectKind.NODE, self.commit.root, root)]
        for level in range(self.commit.level - 1, 0, -1):
            found += [(ObjectKind.NODE, NodeId(part.child.id), part.where) for part in parts]
            parts = self.below(parts, level)
        return found

    def check_order(self, previous: bytes | None, path: bytes) -> None:
        try:
            check_follows(previous, path)
        except IntegrityError as error:
            raise IntegrityError(
                f"{error.message} (commit {self.commit_id})", subject=str(self.commit_id), hint=NOT_OURS
            ) from None

    def broken(self, what: str) -> IntegrityError:
        return IntegrityError(
            f"commit {str(self.commit_id)[:12]} has {what}", subject=str(self.commit_id), hint=NOT_OURS
        )

    def _read_all(self, listed: Iterator[Location]) -> None:
        """Breadth first, which is the order of the commit's locator in an older store."""
        above: list[tuple[Part | None, NodeId, Location | None]] = [
            (None, self.commit.root, next(listed, None))
        ]
        for level in range(self.commit.level, 0, -1):
            found = self._objects.nodes((node_id, where) for _, node_id, where in above)
            parts: list[Leaf] = []
            for (said, _, _), node in zip(above, found, strict=True):
                opened = self._opened(said, node, level, listed)
                if said is None:
                    self._top = opened
                else:
                    self._below[_place(said)] = opened
                parts += opened
            above = [(part, NodeId(part.child.id), part.where) for part in parts]

    def _opened(
        self, said: Part | None, found: Located[Node], level: int, listed: Iterable[Location]
    ) -> list[Leaf]:
        """What a node lists, with the places that its locator gives, or else the next ones of the commit's."""
        before = None if said is None else said.before
        self._check(None if said is None else said.child, found.value, level, before)
        places = iter(()) if found.locator is None else found.locator.locations()
        further = iter(listed)
        parts: list[Leaf] = []
        for child in found.value.children:
            by_commit = next(further, None)
            parts.append(Leaf(child, next(places, None) or by_commit, before))
            before = child.last
        return parts

    def _check(self, said: Child | None, node: Node, level: int, before: bytes | None) -> None:
        """Holds a node against what is said of it above, before anything below it is read.

        So no part of a tree is read twice, and all of it is no more than the commit's totals.
        """
        if node.level != level:
            raise self.broken(f"a node of level {node.level} where {level} belongs")
        totals = Totals.of(node.children)
        if said is None:
            if totals != (self.commit.entries, self.commit.files, self.commit.bytes):
                raise self.broken("totals that are not its root's")
        elif (node.children[-1].last, *totals) != (said.last, said.entries, said.files, said.bytes):
            raise self.broken(f"a node {said.id} that is not what the node above says")
        for child in node.children[:1]:
            self.check_order(before, child.last)


def _place(part: Part) -> tuple[Id, bytes]:
    return part.child.id, part.child.last
