"""The space that commits take alone or share, and that nothing needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dsv.errors import UsageError
from dsv.format import index, keys, pack
from dsv.format.locator import ObjectKind
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.segment import Segment
from dsv.format.tree import Kind
from dsv.repo.damage import read_damage
from dsv.repo.objects.objects import Located, Objects
from dsv.repo.repository import Repository
from dsv.stores.base import StoreBackend
from dsv.upkeep.gc_packs import MAX_REPACK, ErasedRows, GcPlan, Joined, Needed, are_repeated, list_packs
from dsv.upkeep.ids import IdSet, Seen, heads_of, is_in
from dsv.upkeep.index_rows import IndexRows, Rows
from dsv.upkeep.reach import AddIds, Large, contents, not_erased, reach, reach_recipes, walk_segments
from dsv.values.ids import CommitId
from dsv.values.progress import Progress

_LABEL = np.uint64(0xFFFF)
MOST_LABELS = int(_LABEL)
_SHIFT = np.uint64(16)
_RECIPES = 1024
"""Recipes that are read together."""
TREES = b""
"""The folder for which nodes and segments are counted."""


class Sum(msgspec.Struct):
    """A number of objects, and their bytes."""

    objects: int = 0
    stored: int = 0
    """As in packs, with locators and rows in the packs' tables."""
    original: int = 0
    """Before compression, without locators."""

    def add(self, other: Sum) -> None:
        self.objects += other.objects
        self.stored += other.stored
        self.original += other.original

    def __sub__(self, other: Sum) -> Sum:
        return Sum(self.objects - other.objects, self.stored - other.stored, self.original - other.original)


class GroupUsage(msgspec.Struct):
    """The objects of a group of commits, or of a folder."""

    total: Sum
    alone: Sum
    """Objects that nothing else in the store has: they would be freed with the group."""

    @property
    def shared(self) -> Sum:
        return self.total - self.alone


class PackUsage(msgspec.Struct):
    """The packs of a store, by how much of them is needed."""

    count: int = 0
    bytes: int = 0
    free: int = 0
    """Packs of which nothing is needed: gc can delete them at once."""
    free_bytes: int = 0
    rewritten: int = 0
    """Packs of which less than half is needed, or that gc joins: it copies that, and then deletes them."""
    rewritten_bytes: int = 0
    """The space that this frees."""
    joined: Joined = Joined()
    """Small packs among these."""
    partly: int = 0
    """Packs of which more is needed, but not all."""
    partly_unused_bytes: int = 0
    """Their unneeded part, which gc leaves there."""
    unindexed: int = 0
    """Packs in no index, included in the free ones: left by a killed sync, or being written now."""
    unindexed_bytes: int = 0
    missing: int = 0
    """Packs that an index names and that do not exist."""


class MeasuredSpace(msgspec.Struct):
    """The space of a store's objects, by the groups that need them."""

    groups: list[GroupUsage]
    reached: Sum
    """Objects of some commit."""
    unused: Sum
    """Objects of no commit."""
    duplicates: Sum
    """Further copies of reached objects."""
    unlisted: int
    """Objects that commits have and no index lists: they are lost."""
    packs: PackUsage | None = None
    plan: GcPlan | None = None
    gone: int = 0
    """Needed objects that an index lists in packs that do not exist."""
    index_files: int = 0
    """Index files that gc would delete."""
    new_index_files: int = 0
    """Index files that gc would write in their place."""


def _taker(labelled: IdSet, label: int) -> AddIds:
    """Return a function that adds the first 6 bytes of ids with this label, from 0 to `MOST_LABELS`."""
    mark = np.uint64(label)
    return lambda _, ids: labelled.add_heads((heads_of(ids) & ~_LABEL) | mark)


def measure(
    repository: Repository,
    roots: Collection[CommitId],
    groups: Sequence[Collection[CommitId]],
    folder: Path,
    progress: Progress,
    *,
    packs: bool = False,
    max_repack: int = MAX_REPACK,
) -> MeasuredSpace:
    """Return the space that each group of commits takes. Groups may overlap.

    roots: every commit that stays (`read_roots`); those of groups count anyway. folder: created for ids, and
    removed. packs: also list the packs, and plan what gc would do if only the roots stayed and it copied at
    most `max_repack` bytes.
    """
    atoms: dict[tuple[frozenset[int], bool], list[CommitId]] = {}
    member: dict[CommitId, list[int]] = {one: [] for one in roots}
    staying = set(member)
    for number, group in enumerate(groups):
        for commit_id in group:
            member.setdefault(commit_id, []).append(number)
    for commit_id, numbers in member.items():
        atoms.setdefault((frozenset(numbers), commit_id in staying), []).append(commit_id)
    if len(atoms) > MOST_LABELS:
        raise UsageError(
            f"more than {MOST_LABELS:,} groups of commits share content", hint="name fewer commits"
        )
    with IdSet(folder / "ids") as labelled:
        for label, commits in enumerate(atoms.values()):
            reach(repository.objects, commits, _taker(labelled, label), Seen(), progress)
        labels = [
            [at for at, (atom, _) in enumerate(atoms) if number in atom] for number in range(len(groups))
        ]
        with IndexRows(repository, folder / "indexes") as rows, IdSet(folder / "staying") as needed:
            of_staying = [at for at, (_, stays) in enumerate(atoms) if stays]
            counted = _add_up(labelled, rows, labels, len(atoms), of_staying, needed)
            if packs:
                _add_packs(counted, repository, rows, needed, max_repack)
            return counted


def measure_folders(
    repository: Repository,
    roots: Collection[CommitId],
    commits: Collection[CommitId],
    depth: int,
    folder: Path,
    progress: Progress,
) -> tuple[dict[bytes, GroupUsage], MeasuredSpace]:
    """Return the space of each folder of these commits, down to a depth. Raises `UsageError` for too many.

    A file counts for its folder, or the one above at that depth; nodes and segments count for `TREES`.
    """
    objects, wanted = repository.objects, set(commits)
    labels: dict[bytes, int] = {TREES: 1}
    seen: dict[int, Seen] = {}
    waiting: dict[int, Large] = {}
    with IdSet(folder / "ids") as labelled:

        def take_recipes() -> None:
            for label, large in waiting.items():
                reach_recipes(objects, large, _taker(labelled, label), seen.setdefault(label, Seen()))
            waiting.clear()

        reach(objects, [one for one in roots if one not in wanted], _taker(labelled, 0), Seen(), progress)
        for located in walk_segments(objects, commits, _taker(labelled, 1), Seen(), progress):
            for name, chunks, large in _by_folder(objects, located, depth):
                label = labels.setdefault(name, len(labels) + 1)
                if label > MOST_LABELS:
                    raise UsageError(
                        f"there are more than {MOST_LABELS:,} folders",
                        hint="give --by-folder a smaller depth",
                    )
                if chunks:
                    _taker(labelled, label)(ObjectKind.CHUNK, chunks)
                if large:
                    waiting.setdefault(label, []).extend(large)
            if sum(map(len, waiting.values())) > _RECIPES:
                take_recipes()
        take_recipes()
        with IndexRows(repository, folder / "indexes") as rows:
            groups = [[label] for label in labels.values()]
            measured = _add_up(labelled, rows, groups, len(groups) + 1)
    return dict(zip(labels, measured.groups, strict=True)), measured


def _by_folder(
    objects: Objects, located: Located[Segment], depth: int
) -> Iterator[tuple[bytes, bytes, Large]]:
    """Yield each folder of a segment with the chunks of its small files and the recipes of its large ones."""
    segment = located.value
    chunks, large = contents(located)
    sizes = np.frombuffer(segment.sizes, np.uint64)
    is_file = np.frombuffer(segment.kinds, np.uint8) <= Kind.EXECUTABLE
    small = np.cumsum(is_file & (sizes > 0) & (sizes <= SINGLE_CHUNK_MAX)).tolist()
    recipes = np.cumsum(sizes > SINGLE_CHUNK_MAX).tolist()
    chunk = recipe = 0
    for folder, end in folder_runs(segment.paths, depth):
        of_small, of_large = chunks[32 * chunk : 32 * small[end - 1]], large[recipe : recipes[end - 1]]
        yield folder, *not_erased(objects.erasures, of_small, of_large)
        chunk, recipe = small[end - 1], recipes[end - 1]


def folder_runs(paths: Sequence[bytes], depth: int) -> Iterator[tuple[bytes, int]]:
    """Yield the folders of runs of paths, cut to a depth, with a slash at the end (`./` for the top), and the
    position after each run. If all paths are in one folder, only two are looked at."""
    first, last = _folder(paths[0], depth), _folder(paths[-1], depth)
    if first == last and first.count(b"/") == depth and first != b"./":
        yield first, len(paths)
        return
    before = first
    for at, path in enumerate(paths):
        folder = _folder(path, depth)
        if folder != before:
            yield before, at
            before = folder
    yield before, len(paths)


def _folder(path: bytes, depth: int) -> bytes:
    parts = path.split(b"/", depth)
    return b"/".join(parts[:-1]) + b"/" if len(parts) > 1 else b"./"


def _add_up(
    labelled: IdSet,
    rows: IndexRows,
    groups: Sequence[Sequence[int]],
    labels: int,
    staying: Sequence[int] = (),
    needed: IdSet | None = None,
) -> MeasuredSpace:
    """needed: gets the heads of objects with a label in `staying`."""
    measured = MeasuredSpace([GroupUsage(Sum(), Sum()) for _ in groups], Sum(), Sum(), Sum(), 0)
    for first in range(256):
        found = rows.bucket(first)
        found = found[found["where"] != index.ERASED]
        found["stored"][found["where"] == index.EXTERNAL] = 0
        both = labelled.bucket(first)  # an id with several labels is repeated
        beginnings, marks = both >> _SHIFT, (both & _LABEL).astype(np.intp)
        _count(measured, groups, labels, found, beginnings, marks)
        if needed is not None:
            wanted = np.unique(beginnings[np.isin(marks, staying)])
            needed.add_heads(found["head"][is_in(found["head"] >> _SHIFT, wanted)])
    return measured


def _add_packs(
    measured: MeasuredSpace, repository: Repository, rows: IndexRows, needed: IdSet, max_repack: int
) -> None:
    listed = list_packs(repository.store)
    erased = ErasedRows(repository.objects.erasures.objects)
    found = Needed(rows, needed, listed, read_damage(repository), erased)
    plan = measured.plan = found.choose(max_repack)
    free = int(listed.sizes[listed.marked(plan.whole)].sum())
    measured.packs = PackUsage(
        count=plan.packs, bytes=plan.bytes, free=len(plan.whole), free_bytes=free,
        rewritten=len(plan.rewrite), rewritten_bytes=plan.freed - free - plan.copied,
        joined=plan.joined, partly=plan.partly, partly_unused_bytes=plan.partly_unused,
        unindexed=len(found.unindexed), unindexed_bytes=int(found.unindexed.sum()), missing=found.absent,
    )  # fmt: skip
    measured.gone = 0 if found.missing is None else found.missing.objects
    measured.index_files, measured.new_index_files = rows.naming({*plan.whole, *plan.rewrite})


def _count(
    measured: MeasuredSpace,
    groups: Sequence[Sequence[int]],
    most: int,
    rows: Rows,
    beginnings: Any,
    labels: Any,
) -> None:
    """Add the ids of one bucket to `measured`."""
    known = rows["head"] >> _SHIFT
    at = np.searchsorted(known, beginnings)
    listed = at < len(known)
    listed[listed] = known[at[listed]] == beginnings[listed]
    measured.unlisted += len(np.unique(beginnings[~listed]))
    at, labels = at[listed], labels[listed]
    tails = rows["tail"].astype(np.uint64)
    stored = rows["stored"] + tails + np.uint64(pack.ROW_SIZE) * (1 + (tails > 0).astype(np.uint64))
    lengths = rows["length"].astype(np.uint64)
    counts = np.bincount(at, minlength=len(rows))
    again = are_repeated(rows)
    reached = counts > 0

    def total(chosen: Any) -> Sum:
        return Sum(int(chosen.sum()), int(stored[chosen].sum()), int(lengths[chosen].sum()))

    def by_label(chosen: Any) -> list[Any]:
        each = labels[chosen]
        weights = (np.ones(len(each)), stored[at[chosen]], lengths[at[chosen]])
        return [np.bincount(each, weight, most + 1) for weight in weights]

    measured.reached.add(total(reached))
    further = again & reached[np.maximum.accumulate(np.where(again, 0, np.arange(len(rows))))]
    measured.duplicates.add(total(further))
    measured.unused.add(total(~reached & ~further))
    everything, alone = by_label(slice(None)), by_label(counts[at] == 1)
    for group, part in zip(groups, measured.groups, strict=True):
        if len(group) == 1:
            part.total.add(Sum(*(int(column[group[0]]) for column in everything)))
            part.alone.add(Sum(*(int(column[group[0]]) for column in alone)))
        elif group:
            mine = np.bincount(at[np.isin(labels, group)], minlength=len(counts))
            part.total.add(total(mine > 0))
            part.alone.add(total((mine > 0) & (mine == counts)))


def list_sizes(store: StoreBackend) -> dict[str, int]:
    """Return the bytes of all keys by prefix, except packs."""
    prefixes = (
        *(keys.INDEX_PREFIX, keys.COMMIT_PREFIX, keys.LOCATOR_PREFIX, keys.REFS_PREFIX, keys.RUNS_PREFIX),
        *(keys.LINEAGE_PREFIX, keys.ONCE_PREFIX, keys.BEATS_PREFIX, keys.METRICS_PREFIX),
        *(keys.SESSIONS_PREFIX, keys.GC_PREFIX, keys.FORMAT_PREFIX, keys.ERASURE_PREFIX),
        *(keys.PROBE_PREFIX, keys.README_KEY),
    )
    return {prefix: sum(item.size for item in store.list(prefix)) for prefix in prefixes}
