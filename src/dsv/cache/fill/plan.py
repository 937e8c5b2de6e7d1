"""Plan a fill: what is wanted, what other commits have of it, its parts, and the room that it takes."""

from __future__ import annotations

import contextlib
import errno
import operator
import os
from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, takewhile

import msgspec

from dsv.cache.fill import parts as shape
from dsv.cache.fill.files import NO_LINK
from dsv.cache.fill.parts import (
    CHUNKS,
    FETCH,
    LINK,
    MAX_REFERENCES,
    MOVED,
    NOTHING,
    FillPlan,
    ReferencePlan,
    SegmentLoad,
    blocks,
    cut_parts,
    estimated_room,
)
from dsv.cache.fill.source import StoreSource
from dsv.cache.record import Filled, read_record
from dsv.cache.root import CachePlace, CacheRoot, is_dataset, places_in
from dsv.errors import IntegrityError, NotFound
from dsv.files import system
from dsv.files.descriptors import Opened
from dsv.files.folders import check_folding
from dsv.files.shared_path import SharedPath
from dsv.files.small_files import list_names
from dsv.format.columns import cut
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.segment import Segment
from dsv.format.tree import Kind
from dsv.repo.tree.reader import TreePart, TreeReader
from dsv.values.ids import CommitId, SegmentId, StoreId
from dsv.values.paths import PathSet, show, sort_key

# Other datasets of the store are searched for copies and imports, after the dataset's own commits.
_OWN = 5
_OTHERS = 3
assert _OWN + _OTHERS <= MAX_REFERENCES
_SAMPLES = 8

Candidate = tuple[CachePlace, Filled]
"""A cached commit that files could be taken from."""
Content = bytes
"""Two files are the same if this is equal: the kind (executable or not, large or not), then the file id."""
_LARGE = 16  # the file has a recipe
_KIND = tuple(bytes((kind,)) for kind in range(256))
OPEN = bytes(
    (FETCH, *range(CHUNKS, CHUNKS + MAX_REFERENCES))
)  # codes of entries that a further reference may have


class FillRequest(msgspec.Struct, frozen=True):
    """A request to make one commit, or a selection of it, visible in a cache."""

    dataset: str
    """The path component (`/` written `%2F`)."""
    commit: CommitId
    store: StoreId
    selection: PathSet = msgspec.field(default_factory=PathSet)

    @property
    def place(self) -> CachePlace:
        return CachePlace.of(self.dataset, self.commit, self.selection.id)


class Planned(msgspec.Struct, frozen=True):
    """A plan with its larger pieces; for these see `Matching`."""

    plan: FillPlan
    source_map: bytes
    moves: Mapping[int, bytes]
    folders: int = 0
    """Made by the fill; 0 if there are so many inodes that they were not counted."""


_NO_ROOM = 254
_PLENTY = 4  # inodes for each entry
_LINKS = bytes(range(LINK, CHUNKS))
_LINKED_AS_ONE = bytes.maketrans(_LINKS, bytes((_NO_ROOM,)) * len(_LINKS))


class _Sums(msgspec.Struct):
    files: int = 0
    bytes: int = 0
    entries: int = 0
    need_bytes: int = 0
    need_files: int = 0


def make_plan(
    root: CacheRoot,
    request: FillRequest,
    source: StoreSource,
    *,
    remote: bool,
    without: Container[CachePlace] = frozenset(),
) -> Planned:
    """Read the tree's nodes, and its segments if there is something to compare or to select.

    without: commits to take nothing from, because they may be evicted. Raises `NotFound` if a selected path
    is not in the tree, `Unsupported` if the file system would confuse two of its paths, `OSError`.
    """
    tree = source.tree(request.commit)
    possible = candidates(root, request.place, request.store)
    matched = match(source, tree, [candidate for candidate in possible if candidate[0] not in without])
    references: list[ReferencePlan] = []
    matching: Matching | None = None
    if matched is not None:
        matching, used = matched
        references = [
            _reference(root, place, matching.samples[number]) for number, (place, _) in enumerate(used)
        ]
    sums = _Sums()
    if not request.selection.whole:
        loads = _selected(tree, request.selection, matching, references, sums)
    else:
        loads = [
            _whole(number, leaf, matching, references, sums) for number, leaf in enumerate(tree.leaves())
        ]
    paths = (path for located in tree.segments() for path in located.segment.paths)
    check_folding(root.path, root.temporary, (path for path in paths if path in request.selection))
    plan = FillPlan(
        version=shape.VERSION,
        fill=os.urandom(16).hex(),
        store=str(request.store),
        commit=str(request.commit),
        selection=[path.decode() for path in request.selection.paths],
        files=sums.files,
        bytes=sums.bytes,
        entries=sums.entries,
        need_bytes=sums.need_bytes,
        need_files=sums.need_files,
        parts=cut_parts(loads, *shape.part_size(loads, remote=remote)),
        references=references,
        has_source_map=matching is not None,
    )
    disk = os.statvfs(root.path)
    few_inodes = disk.f_files > 0 and disk.f_favail < _PLENTY * (sums.entries + 1)
    folders = _folders(tree, request.selection) if few_inodes else 0
    if matching is None:
        return Planned(plan, b"", {}, folders)
    return Planned(plan, bytes(matching.codes), matching.encoded_moves(), folders)


def _whole(
    number: int, leaf: TreePart, matching: Matching | None, references: Sequence[ReferencePlan], sums: _Sums
) -> SegmentLoad:
    """Count a segment that is wanted whole. Its sums are in its node, so it is not read."""
    child = leaf.child
    sums.files += child.files
    sums.bytes += child.bytes
    sums.entries += child.entries
    if matching is None:
        sums.need_files += child.entries
        sums.need_bytes += estimated_room(child.files, child.bytes)
        return SegmentLoad(number, child.entries, child.bytes, child.bytes)
    codes = matching.codes[matching.starts[number] : matching.starts[number + 1]]
    sizes = matching.sizes.get(number)
    if sizes is None:  # a reference has the whole segment, so all its entries have one code
        if not _copied(codes[0], references):
            return SegmentLoad(number, child.entries, child.bytes, 0)
        sums.need_files += child.entries
        sums.need_bytes += estimated_room(child.files, child.bytes)
        return SegmentLoad(number, child.entries, child.bytes, child.bytes)
    if all(reference.way == "link" for reference in references):
        codes = codes.translate(_LINKED_AS_ONE)  # linked files take no room
    heavy = sum(
        _count(code, size, references, sums)
        for code, size in zip(codes, sizes, strict=True)
        if code != _NO_ROOM
    )
    return SegmentLoad(number, child.entries, child.bytes, heavy)


def _selected(
    tree: TreeReader,
    selection: PathSet,
    matching: Matching | None,
    references: Sequence[ReferencePlan],
    sums: _Sums,
) -> list[SegmentLoad]:
    """Read the segments that hold selected paths, and count those paths."""
    loads: list[SegmentLoad] = []
    leaves = tree.leaves()
    starts = accumulate((leaf.child.entries for leaf in leaves), initial=0)
    befores = [None, *(leaf.child.last for leaf in leaves)]
    wanted = [
        (number, start, leaf)
        for number, (start, before, leaf) in enumerate(zip(starts, befores, leaves, strict=False))
        if selection.overlaps(before, leaf.child.last)
    ]
    unseen = set(selection.paths)
    for (number, start, _), located in zip(wanted, tree.segments([leaf for *_, leaf in wanted]), strict=True):
        segment = located.segment
        heavy = size = count = 0
        entries = zip(segment.paths, segment.kinds, segment.sizes, strict=True)
        for at, (path, kind, length) in enumerate(entries, start):
            if path not in selection:
                continue
            if unseen:
                unseen -= {one for one in unseen if path == one or path.startswith(one + b"/")}
            code = OPEN[0] if matching is None else matching.codes[at]
            heavy += _count(code, length, references, sums)
            size += length
            count += 1
            sums.files += kind <= Kind.EXECUTABLE
        if count:
            loads.append(SegmentLoad(number, count, size, heavy))
    if unseen:
        missing = min(unseen)
        raise NotFound(
            f"{show(missing)} is not in this commit",
            subject=missing.decode(errors="replace"),
            hint="dsv ls shows what is there",
        )
    sums.bytes = sum(load.bytes for load in loads)
    sums.entries = sum(load.entries for load in loads)
    return loads


def _count(code: int, size: int, references: Sequence[ReferencePlan], sums: _Sums) -> int:
    """Add the room of one entry; return the bytes that have to be written for it."""
    if code == NOTHING:
        sums.need_files += 1
    elif code in OPEN or _copied(code, references):
        sums.need_files += 1
        sums.need_bytes += blocks(size)
        return size
    return 0


def _copied(code: int, references: Sequence[ReferencePlan]) -> bool:
    """Return whether a file is made for it. One of shared blocks counts in full, as the file system counts it."""
    if MOVED <= code < CHUNKS:
        return references[code - MOVED].way != "link"
    return LINK <= code < MOVED and references[code - LINK].way != "link"


def _reference(root: CacheRoot, place: CachePlace, samples: Sequence[bytes]) -> ReferencePlan:
    """Try on some files how they can be shared, because that decides how much room the fill needs."""
    top = root.visible(place)
    ways = [way for way in (_try(root, top / os.fsdecode(path)) for path in samples) if way is not None]
    way = max(ways, key=("link", "reflink", "copy").index, default="link")
    return ReferencePlan(place.dataset, place.name, way)


def _try(root: CacheRoot, path: SharedPath) -> str | None:
    """Return how a file can be shared; None if an error concerns only this file."""
    draft = root.temporary / f".try-{os.urandom(8).hex()}"
    try:
        draft.hardlink_to(path)
    except OSError as error:
        if error.errno not in NO_LINK:
            return None
        return "reflink" if _clones(path, draft) else "copy"
    finally:
        draft.unlink(missing_ok=True)
    return "link"


def _clones(path: SharedPath, draft: SharedPath) -> bool:
    try:
        with (
            Opened(path.descriptor(os.O_RDONLY | os.O_NONBLOCK)) as source,
            Opened(draft.descriptor(os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)) as copy,
        ):
            return system.clone(source, copy)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False


def _folders(tree: TreeReader, selection: PathSet) -> int:
    """Count folders. Paths are sorted by components, so each that does not hold the path before is new."""
    count = 0
    before: list[bytes] = []
    for located in tree.segments():
        for path, kind in zip(located.segment.paths, located.segment.kinds, strict=True):
            if path in selection:
                above = path.split(b"/")
                if kind != Kind.EMPTY_DIRECTORY:  # which counts as an entry
                    del above[-1]
                same = sum(
                    1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(above, before, strict=False))
                )
                count += len(above) - same - (kind == Kind.EMPTY_DIRECTORY)
                before = above
    return count


def candidates(root: CacheRoot, place: CachePlace, store: StoreId) -> list[Candidate]:
    """Return readable commits of the store: the newest of the dataset, then of others. Raises `OSError`."""
    own = of_dataset(root, place.dataset, store)
    others = [
        candidate
        for dataset in list_names(root.top)
        if dataset != place.dataset and is_dataset(dataset)
        for candidate in of_dataset(root, dataset, store)
    ]
    return [candidate for candidate in newest(own)[:_OWN] + newest(others)[:_OTHERS] if candidate[0] != place]


def of_dataset(root: CacheRoot, dataset: str, store: StoreId) -> Iterator[Candidate]:
    """Yield the visible commits of one dataset, given as its folder's name. Raises `OSError`."""
    with contextlib.suppress(NotADirectoryError, PermissionError):
        for place in places_in(root.top / dataset):
            record = read_record(root, place)
            if record is not None and record.store == str(store):
                yield place, record


def newest(cached: Iterable[Candidate]) -> list[Candidate]:
    return sorted(cached, key=lambda candidate: candidate[1].time, reverse=True)


class Matching(msgspec.Struct):
    """The references from which the entries of the wanted tree can be taken."""

    codes: bytearray
    """The source map, one byte per entry."""
    starts: list[int]
    """The first entry of each segment, and the number of all entries."""
    sizes: dict[int, array[int]] = msgspec.field(default_factory=dict)
    """Sizes of the entries of each segment that was read; the other segments are linked whole."""
    moves: dict[int, bytes] = msgspec.field(default_factory=dict)
    """For each entry with a MOVED code, its path in the reference."""
    samples: dict[int, list[bytes]] = msgspec.field(default_factory=dict)
    """Some linked paths of each reference."""

    def add(self, reference: int, tree: TreeReader, theirs: TreeReader, selection: PathSet) -> bool:
        """Use a reference for what is still to be fetched; False if it has none. selection: its cached part.

        After an error, nothing is taken from this reference.
        """
        before, self.samples[reference] = bytes(self.codes), []
        try:
            missing = self._same_paths(reference, tree, theirs, selection)
            if missing:
                self._other_paths(reference, theirs, selection, missing)
        except BaseException:
            self.codes[:] = before
            self.moves = {at: path for at, path in self.moves.items() if before[at] not in OPEN}
            del self.samples[reference]
            raise
        return bool(self.samples[reference]) or CHUNKS + reference in self.codes

    def _same_paths(
        self, reference: int, tree: TreeReader, theirs: TreeReader, selection: PathSet
    ) -> dict[Content, list[int]]:
        """Link the files that have the same path; return the other entries, by content."""
        shared: set[SegmentId] = set()
        if selection.whole:
            shared = {leaf.id for leaf in theirs.leaves()} & {leaf.id for leaf in tree.leaves()}
        to_read: list[int] = []
        for number, leaf in enumerate(tree.leaves()):
            start, end = self.starts[number], self.starts[number + 1]
            if not _is_open(self.codes[start:end]):
                continue
            if leaf.id in shared:
                linked = bytes.maketrans(OPEN, bytes((LINK + reference,)) * len(OPEN))
                self.codes[start:end] = self.codes[start:end].translate(linked)
                self._sample(reference, leaf.child.last)
            else:
                to_read.append(number)
        missing: dict[Content, list[int]] = {}
        chosen = [tree.leaves()[number] for number in to_read]
        window = PathWindow(theirs, selection, [leaf for leaf in theirs.leaves() if leaf.id not in shared])
        for number, located in zip(to_read, tree.segments(chosen), strict=True):
            self.sizes[number] = located.segment.sizes
            self._segment(reference, self.starts[number], located.segment, window, missing)
        return missing

    def _segment(
        self,
        reference: int,
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
            codes = bytearray(same.translate(bytes.maketrans(b"\1", bytes((LINK + reference,)))))
            first = same.find(1)
            if first >= 0:
                self._sample(reference, segment.paths[first])
        else:
            for at, (code, size) in enumerate(zip(codes, segment.sizes, strict=True)):
                if not size:
                    codes[at] = NOTHING
                elif same[at] and code in OPEN:
                    codes[at] = LINK + reference
                    self._sample(reference, segment.paths[at])
        for at, code in enumerate(codes):
            if code in OPEN:
                missing.setdefault(ours[at], []).append(start + at)
                older = theirs[at]
                if older and older[0] & _LARGE and segment.sizes[at] > SINGLE_CHUNK_MAX and code == FETCH:
                    codes[at] = CHUNKS + reference
        self.codes[start : start + len(segment)] = codes

    def _other_paths(
        self, reference: int, theirs: TreeReader, selection: PathSet, missing: dict[Content, list[int]]
    ) -> None:
        """Link the files that the reference has under another path."""
        for located in theirs.segments():
            segment = located.segment
            column = contents(segment)
            if missing.keys().isdisjoint(column):
                continue
            for path, content in zip(segment.paths, column, strict=True):
                if content in missing and path in selection:
                    for at in missing.pop(content):
                        self.codes[at] = MOVED + reference
                        self.moves[at] = path
                    self._sample(reference, path)

    def _sample(self, reference: int, path: bytes) -> None:
        if len(self.samples[reference]) < _SAMPLES:
            self.samples[reference].append(path)

    def encoded_moves(self) -> dict[int, bytes]:
        """Return the references' paths of each segment with moved files, in entry order, joined by NUL."""
        found: dict[int, list[bytes]] = {}
        number = 0
        for at in sorted(self.moves):
            while self.starts[number + 1] <= at:
                number += 1
            found.setdefault(number, []).append(self.moves[at])
        return {number: b"\0".join(paths) for number, paths in found.items()}


class PathWindow:
    """Path -> content of another tree, asked for in tree order. Only the segments needed next are held."""

    def __init__(self, tree: TreeReader, selection: PathSet, leaves: list[TreePart]) -> None:
        """selection: the part of the tree that is cached. leaves: the segments that may be needed."""
        self._segments = tree.segments(leaves)
        self._selection = selection
        self._held: list[tuple[bytes, dict[bytes, Content]]] = []

    def between(self, first: bytes, last: bytes) -> dict[bytes, Content]:
        """Return all files from `first` to `last`, and maybe more."""
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
    """Return the content of each entry; empty for what is not a file."""
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
    """Compare the tree with the candidates in their order; None if they have none of its files."""
    starts = list(accumulate((leaf.child.entries for leaf in tree.leaves()), initial=0))
    matching = Matching(bytearray(starts[-1]), starts)
    used: list[Candidate] = []
    for place, record in found:
        if not _is_open(matching.codes):
            break
        try:
            if matching.add(len(used), tree, source.tree(place.commit), record.paths):
                used.append((place, record))
        except (NotFound, IntegrityError):
            continue  # the store has lost that commit, or a part of it
    return (matching, used) if used else None


def _is_open(codes: bytearray) -> bool:
    return len(codes.translate(None, OPEN)) < len(codes)
