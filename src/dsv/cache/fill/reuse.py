"""Find the files of a commit that other cached commits have, by comparing trees. No file is touched."""

from __future__ import annotations

import contextlib
import operator
from array import array
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from dsv.cache.fill.parts import CHUNKS, FETCH, LINK, MAX_DONORS, MOVED, NOTHING
from dsv.cache.fill.source import StoreSource
from dsv.cache.record import Filled, read_record
from dsv.cache.root import CacheRoot, Place, is_dataset
from dsv.errors import IntegrityError, NotFound
from dsv.format.columns import cut
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.segment import Segment
from dsv.format.tree import Kind
from dsv.fs.files import list_names
from dsv.repo.tree.read import Leaf, TreeReader
from dsv.values.ids import SegmentId, StoreId
from dsv.values.paths import PathSet, sort_key

# Other datasets of the store are looked at for copies and imports; the dataset's own commits come first.
_OWN = 5
_OTHERS = 3
assert _OWN + _OTHERS <= MAX_DONORS
_SAMPLES = 8

# Two files are the same if these are: the kind (executable or not, large or not), then the file id.
Content = bytes
_LARGE = 16  # the file has a recipe
_KIND = tuple(bytes((kind,)) for kind in range(256))
OPEN = bytes((FETCH, *range(CHUNKS, CHUNKS + MAX_DONORS)))  # codes of entries that a further donor may have


class Candidate(msgspec.Struct, frozen=True):
    """A cached commit that files could be taken from."""

    place: Place
    record: Filled

    @property
    def selection(self) -> PathSet:
        return PathSet.of(path.encode() for path in self.record.selection)


def candidates(root: CacheRoot, place: Place, store: StoreId) -> list[Candidate]:
    """Return visible commits of the same store: the newest of the dataset, then the newest of others.

    Nothing is taken from folders that this user may not read. Raises `OSError`.
    """
    own = of_dataset(root, place.dataset, store)
    others = [
        one
        for dataset in list_names(root.path)
        if dataset != place.dataset and is_dataset(dataset)
        for one in of_dataset(root, dataset, store)
    ]
    chosen = newest(own)[:_OWN] + newest(others)[:_OTHERS]
    return [one for one in chosen if one.place != place]


def of_dataset(root: CacheRoot, dataset: str, store: StoreId) -> Iterator[Candidate]:
    """Yield the visible commits of one dataset, given as its folder's name. Raises `OSError`."""
    folder = root.path / dataset
    with contextlib.suppress(NotADirectoryError, PermissionError):
        for name in list_names(folder):
            place = Place.parse(dataset, name)
            record = None if place is None else read_record(root, place)
            if place is not None and record is not None and record.store == str(store):
                yield Candidate(place, record)


def newest(found: Iterable[Candidate]) -> list[Candidate]:
    return sorted(found, key=lambda one: one.record.time, reverse=True)


class Matching(msgspec.Struct):
    """The donors from which the entries of the wanted tree can be taken."""

    codes: bytearray  # the source map, one byte per entry
    starts: list[int]  # the first entry of each segment, and the number of all
    sizes: dict[int, array[int]] = msgspec.field(default_factory=dict)
    """Sizes of the entries of each segment that had to be read; the other segments are linked whole."""
    moves: dict[int, bytes] = msgspec.field(default_factory=dict)
    """For each entry with a MOVED code, its path in the donor."""
    samples: dict[int, list[bytes]] = msgspec.field(default_factory=dict)
    """Some linked paths of each donor."""

    @property
    def complete(self) -> bool:
        return not _is_open(self.codes)

    @classmethod
    def of(cls, tree: TreeReader) -> Matching:
        starts = [0]
        for leaf in tree.leaves():
            starts.append(starts[-1] + leaf.child.entries)
        return cls(bytearray(starts[-1]), starts)

    def add(self, donor: int, tree: TreeReader, theirs: TreeReader, selection: PathSet) -> bool:
        """Use donor number `donor` for what is still to be fetched; False if it had nothing of it.

        selection: the part of `theirs` that is cached.
        """
        self.samples[donor] = []
        missing = self._same_paths(donor, tree, theirs, selection)
        if missing:
            self._other_paths(donor, theirs, selection, missing)
        return bool(self.samples[donor]) or CHUNKS + donor in self.codes

    def _same_paths(
        self, donor: int, tree: TreeReader, theirs: TreeReader, selection: PathSet
    ) -> dict[Content, list[int]]:
        """Link the files that have the same path; return the entries that are left, by content."""
        shared: set[SegmentId] = set()
        if selection.whole:
            shared = {leaf.id for leaf in theirs.leaves()} & {leaf.id for leaf in tree.leaves()}
        to_read: list[int] = []
        for number, leaf in enumerate(tree.leaves()):
            start, end = self.starts[number], self.starts[number + 1]
            if not _is_open(self.codes[start:end]):
                continue
            if leaf.id in shared:
                linked = bytes.maketrans(OPEN, bytes((LINK + donor,)) * len(OPEN))
                self.codes[start:end] = self.codes[start:end].translate(linked)
                self._sample(donor, leaf.child.last)
            else:
                to_read.append(number)
        missing: dict[Content, list[int]] = {}
        chosen = [tree.leaves()[number] for number in to_read]
        window = PathWindow(theirs, selection, [leaf for leaf in theirs.leaves() if leaf.id not in shared])
        for number, located in zip(to_read, tree.segments(chosen), strict=True):
            self.sizes[number] = located.segment.sizes
            self._segment(donor, self.starts[number], located.segment, window, missing)
        return missing

    def _segment(
        self,
        donor: int,
        start: int,
        segment: Segment,
        window: PathWindow,
        missing: dict[Content, list[int]],
    ) -> None:
        known = window.between(segment.first, segment.last)
        ours = contents(segment)
        theirs = list(map(known.get, segment.paths))
        same = bytes(map(operator.eq, ours, theirs))
        codes = self.codes[start : start + len(segment)]
        if not codes.strip(b"\0") and all(segment.sizes):  # usually: all are files, none decided
            codes = bytearray(same.translate(bytes.maketrans(b"\1", bytes((LINK + donor,)))))
            first = same.find(1)
            if first >= 0:
                self._sample(donor, segment.paths[first])
        else:
            for at, (code, size) in enumerate(zip(codes, segment.sizes, strict=True)):
                if not size:
                    codes[at] = NOTHING
                elif same[at] and code in OPEN:
                    codes[at] = LINK + donor
                    self._sample(donor, segment.paths[at])
        for at, code in enumerate(codes):
            if code in OPEN:
                missing.setdefault(ours[at], []).append(start + at)
                older = theirs[at]
                if older and older[0] & _LARGE and segment.sizes[at] > SINGLE_CHUNK_MAX and code == FETCH:
                    codes[at] = CHUNKS + donor
        self.codes[start : start + len(segment)] = codes

    def _other_paths(
        self, donor: int, theirs: TreeReader, selection: PathSet, missing: dict[Content, list[int]]
    ) -> None:
        """Link the files that the donor has under another path."""
        for located in theirs.segments():
            segment = located.segment
            column = contents(segment)
            if missing.keys().isdisjoint(column):
                continue
            for path, content in zip(segment.paths, column, strict=True):
                if content in missing and path in selection:
                    for at in missing.pop(content):
                        self.codes[at] = MOVED + donor
                        self.moves[at] = path
                    self._sample(donor, path)

    def _sample(self, donor: int, path: bytes) -> None:
        if len(self.samples[donor]) < _SAMPLES:
            self.samples[donor].append(path)

    def encoded_moves(self) -> dict[int, bytes]:
        """For each segment with moved files: the donors' paths in the order of its entries, joined by NUL."""
        found: dict[int, list[bytes]] = {}
        number = 0
        for at in sorted(self.moves):
            while self.starts[number + 1] <= at:
                number += 1
            found.setdefault(number, []).append(self.moves[at])
        return {number: b"\0".join(paths) for number, paths in found.items()}


class PathWindow:
    """Path -> content of another tree, asked for in tree order. Only the segments that are needed next are held."""

    def __init__(self, tree: TreeReader, selection: PathSet, leaves: list[Leaf]) -> None:
        """selection: the part of the tree that is cached. leaves: those of the segments that may be needed."""
        self._segments = tree.segments(leaves)
        self._selection = selection
        self._held: list[tuple[bytes, dict[bytes, Content]]] = []

    def between(self, first: bytes, last: bytes) -> dict[bytes, Content]:
        """Return all files with these paths and those between them, and maybe more."""
        first, last = sort_key(first), sort_key(last)
        self._held = [one for one in self._held if one[0] >= first]
        while not self._held or self._held[-1][0] < last:
            located = next(self._segments, None)
            if located is None:
                break
            key = sort_key(located.segment.last)
            if key >= first:
                self._held.append((key, self._files(located.segment)))
        if len(self._held) == 1:
            return self._held[0][1]
        return {path: content for _, files in self._held for path, content in files.items()}

    def _files(self, segment: Segment) -> dict[bytes, Content]:
        found = dict(zip(segment.paths, contents(segment), strict=True))
        if not self._selection.whole:
            return {path: content for path, content in found.items() if path in self._selection}
        return found


def contents(segment: Segment) -> list[Content]:
    """Return the content of each entry; empty if it is not a file."""
    ids = cut(segment.file_ids, 32)
    kinds = segment.kinds
    if segment.recipe_ids:
        sizes = zip(kinds, segment.sizes, strict=True)
        kinds = bytes(kind | _LARGE if size > SINGLE_CHUNK_MAX else kind for kind, size in sizes)
    if len(ids) == len(segment):
        return [_KIND[kind] + one for kind, one in zip(kinds, ids, strict=True)]
    rest = iter(ids)
    return [_KIND[kind] + next(rest) if kind & ~_LARGE <= Kind.EXECUTABLE else b"" for kind in kinds]


def match(
    source: StoreSource, tree: TreeReader, found: Sequence[Candidate]
) -> tuple[Matching, list[Candidate]] | None:
    """Compare the tree with the candidates in their order; None if none of them has any of its files."""
    matching = Matching.of(tree)
    used: list[Candidate] = []
    for candidate in found:
        if matching.complete:
            break
        try:
            theirs = source.tree(candidate.place.commit)
            if matching.add(len(used), tree, theirs, candidate.selection):
                used.append(candidate)
        except (NotFound, IntegrityError):
            continue  # the store has lost that commit; files that are linked from it are verified anyway
    return (matching, used) if used else None


def _is_open(codes: bytearray) -> bool:
    return len(codes.translate(None, OPEN)) < len(codes)
