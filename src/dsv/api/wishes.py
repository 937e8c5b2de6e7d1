"""What two trees come to, as wishes about the paths of a workspace."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from dsv.api.footing import Footing
from dsv.model.diff import diff_entries
from dsv.model.entry import Entry, sort_key
from dsv.model.ids import SegmentId
from dsv.model.location import Location
from dsv.model.path_set import PathSet
from dsv.repo.trees import Leaf, TreeReader
from dsv.worktree.plan import Wish


def differences(footing: Footing, after: TreeReader) -> Iterator[Wish]:
    """Every path that counts as unchanged and is otherwise in `after`; segments that both have are not read."""
    if footing.written:
        pairs = _pairs(footing.below(b""), after.below(b""))
        yield from (wish for wish in pairs if wish.before != wish.after)
        return
    before = footing.tree
    mine: list[Leaf] = [] if before is None else before.leaves()
    theirs = after.leaves()
    shared = {leaf.id for leaf in mine} & {leaf.id for leaf in theirs}
    places = _Places()
    old = (
        entry
        for located in ([] if before is None else before.segments(_without(mine, shared)))
        for entry in located.segment.entries()
    )
    new = (found for located in after.segments(_without(theirs, shared)) for found in located.entries())
    for change in diff_entries(old, places.noting(new)):
        yield Wish(change.path, change.before, change.after, places.of(change.path))


def restoring(
    before: Footing, after: TreeReader, chosen: PathSet, suspects: frozenset[bytes]
) -> Iterator[Wish]:
    """What the chosen paths shall become, where they are not that already."""
    starts = [b""] if chosen.whole else list(chosen.paths)
    runs: list[tuple[bytes, Iterable[Wish]]] = [
        (sort_key(path), _pairs(before.below(path), after.below(path))) for path in starts
    ]
    for path in chosen.ways:
        above, goal = before.entry(path), after.entry(path)
        if above is not None and goal is None:  # a file where the source has a folder
            runs.append((sort_key(path), [Wish(path, above, None)]))
    for _, run in sorted(runs, key=lambda each: each[0]):
        for wish in run:
            if wish.before != wish.after or wish.path in suspects:
                yield wish


def _pairs(before: Iterator[Entry], after: Iterator[tuple[Entry, Location | None]]) -> Iterator[Wish]:
    """Every path of two runs of entries."""
    tagged = heapq.merge(
        ((sort_key(entry.path), 0, entry, None) for entry in before),
        ((sort_key(entry.path), 1, entry, place) for entry, place in after),
        key=lambda each: each[:2],
    )
    old: Entry | None = None
    for _, side, entry, place in tagged:
        if side == 0:
            if old is not None:
                yield Wish(old.path, old, None)
            old = entry
        elif old is not None and old.path == entry.path:
            yield Wish(entry.path, old, entry, place)
            old = None
        else:
            if old is not None:
                yield Wish(old.path, old, None)
                old = None
            yield Wish(entry.path, None, entry, place)
    if old is not None:
        yield Wish(old.path, old, None)


def _without(leaves: list[Leaf], shared: set[SegmentId]) -> list[Leaf]:
    return [leaf for leaf in leaves if leaf.id not in shared]


class _Places:
    """Where contents lie, for the entries that were read last."""

    def __init__(self) -> None:
        self._recent: dict[bytes, Location | None] = {}

    def noting(self, found: Iterable[tuple[Entry, Location | None]]) -> Iterator[Entry]:
        for entry, place in found:
            self._recent[entry.path] = place
            if len(self._recent) > 4:
                del self._recent[next(iter(self._recent))]
            yield entry

    def of(self, path: bytes) -> Location | None:
        return self._recent.get(path)
