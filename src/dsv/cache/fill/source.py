"""Sources of a fill's files: trees and verified contents of a store, with the plan's decision for each."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, islice

import msgspec

from dsv.cache.fill.directory import FillDirectory
from dsv.cache.fill.parts import CHUNKS, LINK, MAX_REFERENCES, MOVED, NOTHING, FillPart, slice_bounds
from dsv.cache.root import CachePlace
from dsv.errors import IntegrityError
from dsv.files.shared_path import SharedPath
from dsv.files.small_files import read_file
from dsv.format.locator import Location
from dsv.format.tree import Entry
from dsv.repo.objects.erasures import Erasures
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import LocatedSegment, TreeReader
from dsv.transfer.download import READ_AHEAD, Fetcher, ReferenceCopy, WantedFile, reference_chunks
from dsv.values.ids import ChunkId, CommitId, RecipeId
from dsv.values.names import DatasetName
from dsv.values.paths import MAX_PATH, PathSet

_SEGMENTS = 16  # that are read together
LEAST_AHEAD = 1 << 20  # bytes; with less, every few files would need a request
Stream = Generator[tuple[WantedFile, Iterator[bytes]], None, None]


class StoreSource:
    """Trees and contents of one store, for one thread. Errors are dsv's own.

    `open_repository` is called at the first use: a hit needs no store.
    """

    def __init__(self, open_repository: Callable[[], Repository], *, connections: int = 8) -> None:
        self._open = open_repository
        self._connections = connections
        self._repository: Repository | None = None
        self._dataset: DatasetName | None = None
        self._fetchers: list[Fetcher] = []

    @property
    def repository(self) -> Repository:
        if self._repository is None:
            self._repository = self._open()
        return self._repository

    @property
    def fetched_bytes(self) -> int:
        """Bytes of file contents that this object has read from the store."""
        return sum(fetcher.fetched_bytes for fetcher in self._fetchers)

    @property
    def erasures(self) -> Erasures:
        return self.repository.objects.erasures

    def tree(self, commit: CommitId) -> TreeReader:
        tree = TreeReader(self.repository.objects, commit)
        self._dataset = tree.commit.dataset
        return tree

    def files(self, wanted: Iterable[WantedFile], *, ahead: int = READ_AHEAD) -> Stream:
        """Yield each wanted file with its verified content in pieces, in the given order.

        Reads `wanted` ahead, in the same thread. Calls may overlap. ahead: bytes of memory to use.
        """
        budget = max(LEAST_AHEAD, min(READ_AHEAD, ahead))
        fetcher = Fetcher(
            self.repository.objects, self._dataset, connections=self._connections, budget=budget, views=True
        )
        self._fetchers.append(fetcher)
        yield from fetcher.files(wanted)

    def chunks(self, recipe: RecipeId, where: Location | None) -> Mapping[ChunkId, tuple[int, int]]:
        """Return where each chunk is in a file with this recipe: id -> (offset, length)."""
        return reference_chunks(self.repository.objects, recipe, where)


class FillEntry(msgspec.Struct):
    """An entry and how it gets into the tree."""

    entry: Entry
    where: Location | None
    """A hint where its content is in the store."""
    reference: int | None = None
    """A cached commit that has this very file, at `reference_path`."""
    reference_path: bytes = b""
    older: int | None = None
    """A reference that has an older version at the same path."""


class LinkRun(msgspec.Struct):
    """Neighbours in one folder that one reference has at the same paths: names, sizes and kinds side by side."""

    reference: int
    folder: bytes
    names: list[bytes]
    sizes: Sequence[int]
    kinds: bytes
    item: Callable[[int], FillEntry]
    """Returns the n-th, for those that could not be linked after all."""


class FillContents:
    """Reads parts of one fill's tree."""

    def __init__(self, directory: FillDirectory, source: StoreSource) -> None:
        """Open the trees and read the source map of the plan. Raises `OSError` if the map can't be read."""
        self._directory = directory
        self._source = source
        tree = source.tree(CommitId.parse(directory.plan.commit))
        self._tree = tree
        self._held: dict[int, LocatedSegment] = {}  # by number: the next ones, because they are read in order
        self._erasures = source.erasures
        self._starts = list(accumulate((leaf.child.entries for leaf in tree.leaves()), initial=0))
        self._selection = PathSet.of(path.encode() for path in directory.plan.selection)
        self._reference_trees: dict[int, TreeReader] = {}
        has_map = directory.plan.has_source_map
        self._source_map = read_file(directory.folder / "sheet", self._starts[-1]) if has_map else None
        if self._source_map is not None and len(self._source_map) < self._starts[-1]:
            raise IntegrityError(f"the plan of {directory.place} is cut short", subject=str(directory.place))

    def of(self, part: FillPart) -> Iterator[FillEntry]:
        """Yield the part's entries in order, without files that were erased. Raises `OSError`."""
        for one in self.in_runs(part):
            if isinstance(one, LinkRun):
                yield from map(one.item, range(len(one.names)))
            else:
                yield one

    def in_runs(self, part: FillPart) -> Iterator[FillEntry | LinkRun]:
        """Do what `of` does, but yield files linked at their own path in runs, without an object for each."""
        whole = self._selection.whole and not self._erasures
        for number in range(part.first, part.last + 1):
            located = self._segment(number)
            sizes = located.segment.sizes
            start, end = slice_bounds(sizes, part.slices)[part.slice]
            if self._source_map is None or not whole:
                items = islice(self._items(number, located), start, end)
                yield from items if whole else filter(self._is_wanted, items)
                continue
            codes = self._codes(number)
            if sizes.count(0):  # a segment that is linked whole may have symlinks and folders, which are not
                codes = bytes(code if size else NOTHING for code, size in zip(codes, sizes, strict=True))
            moves = self._moves(number, codes, start)
            for run in _LINKED_OR_NOT.finditer(codes, start, end):
                code = codes[run.start()]
                if LINK <= code < MOVED:
                    yield from self._linked(located, code - LINK, *run.span())
                else:
                    for at in range(*run.span()):
                        yield _coded(codes[at], *located.entry(at), moves)

    def _is_wanted(self, item: FillEntry) -> bool:
        return item.entry.path in self._selection and self._erasures.of(item.entry) is None

    def _linked(self, located: LocatedSegment, reference: int, start: int, end: int) -> Iterator[LinkRun]:
        segment = located.segment
        while start < end:
            folder, _, _ = segment.paths[start].rpartition(b"/")
            prefix = folder + b"/" if folder else b""
            cut = len(prefix)
            stop = start
            while (
                stop < end
                and segment.paths[stop].startswith(prefix)
                and b"/" not in segment.paths[stop][cut:]
            ):
                stop += 1

            def item(at: int, first: int = start) -> FillEntry:
                entry, where = located.entry(first + at)
                return FillEntry(entry, where, reference, entry.path)

            names = [path[cut:] for path in segment.paths[start:stop]]
            yield LinkRun(
                reference, folder, names, segment.sizes[start:stop], segment.kinds[start:stop], item
            )
            start = stop

    def older_version(self, item: FillEntry) -> ReferenceCopy | None:
        """Return the chunks of the file that a reference has at this path, or None."""
        if item.older is None:
            return None
        if item.older not in self._reference_trees:
            name = self._directory.plan.references[item.older].name
            self._reference_trees[item.older] = self._source.tree(CommitId.parse(name[:64]))
        found = self._reference_trees[item.older].entry(item.entry.path)
        if found is None or found[0].recipe_id is None or self._erasures.of(found[0]) is not None:
            return None
        return self._reference(self.reference_file(item.older, item.entry.path), found[0].recipe_id, found[1])

    def same_version(self, item: FillEntry, path: SharedPath) -> ReferenceCopy | None:
        """Return the chunks of the file itself, some of which `path` may hold."""
        if item.entry.recipe_id is None:
            return None
        return self._reference(path, item.entry.recipe_id, item.where)

    def _reference(self, path: SharedPath, recipe: RecipeId, where: Location | None) -> ReferenceCopy | None:
        with suppress(IntegrityError):  # a damaged recipe: without it the chunks are unknown
            return ReferenceCopy(path, self._source.chunks(recipe, where))
        return None

    def reference_file(self, reference: int, path: bytes) -> SharedPath:
        plan = self._directory.plan.references[reference]
        return self._directory.root.visible(CachePlace(plan.dataset, plan.name)) / os.fsdecode(path)

    def _items(self, number: int, located: LocatedSegment) -> Iterator[FillEntry]:
        if self._source_map is None:
            return (FillEntry(entry, where) for entry, where in located.entries())
        codes = self._codes(number)
        moves = self._moves(number, codes, 0)
        return (
            _coded(code, entry, where, moves)
            for code, (entry, where) in zip(codes, located.entries(), strict=True)
        )

    def _segment(self, number: int) -> LocatedSegment:
        if number not in self._held:
            first = max(number - 1, 0)  # one before, so that the order is checked across the boundary
            leaves = self._tree.leaves()[first : number + _SEGMENTS]
            self._held = dict(enumerate(self._tree.segments(leaves), first))
        return self._held[number]

    def _codes(self, number: int) -> bytes:
        assert self._source_map is not None
        return self._source_map[self._starts[number] : self._starts[number + 1]]

    def _moves(self, number: int, codes: bytes, start: int) -> Iterator[bytes]:
        """Yield the references' paths of the moved files of a segment, from its entry `start` on."""
        if codes.translate(None, _UNMOVED):
            moves = self._directory.folder / "moves" / str(number)
            paths = read_file(moves, len(codes) * (MAX_PATH + 1)).split(b"\0")
            yield from paths[len(codes[:start].translate(None, _UNMOVED)) :]


def _coded(code: int, entry: Entry, where: Location | None, moves: Iterator[bytes]) -> FillEntry:
    if LINK <= code < MOVED:
        return FillEntry(entry, where, code - LINK, entry.path)
    if MOVED <= code < CHUNKS:
        return FillEntry(entry, where, code - MOVED, next(moves, b""))
    if CHUNKS <= code < CHUNKS + MAX_REFERENCES:
        return FillEntry(entry, where, older=code - CHUNKS)
    return FillEntry(entry, where)


_LINKED_OR_NOT = re.compile(
    b"|".join(b"%b+" % re.escape(bytes((code,))) for code in range(LINK, LINK + MAX_REFERENCES))
    + b"|[^%b-%b]+" % (bytes((LINK,)), bytes((LINK + MAX_REFERENCES - 1,))),
    re.DOTALL,
)
"""Runs of one linking code, and runs of all other codes."""
_UNMOVED = bytes(code for code in range(256) if not MOVED <= code < CHUNKS)
