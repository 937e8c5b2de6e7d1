"""Make the plan of a fill: what is wanted, what other commits have of it, how it is shared, and the room it takes."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

import msgspec

from dsv.cache.fill import parts as shape
from dsv.cache.fill.files import NO_LINK
from dsv.cache.fill.parts import (
    CHUNKS,
    LINK,
    MOVED,
    NOTHING,
    DonorPlan,
    Load,
    Plan,
    blocks,
    cut_parts,
    estimated_room,
)
from dsv.cache.fill.reuse import OPEN, Candidate, Matching, candidates, match
from dsv.cache.fill.source import StoreSource
from dsv.cache.root import CacheRoot, Place
from dsv.errors import Conflict, NotFound
from dsv.format.tree import Kind
from dsv.fs import system
from dsv.repo.tree.read import Leaf, TreeReader
from dsv.values.ids import CommitId, StoreId
from dsv.values.paths import PathSet, fold_clashes, show


class FillRequest(msgspec.Struct, frozen=True):
    """One commit, or a selection of it, to be visible in a cache."""

    dataset: str  # the path component (`/` written `%2F`)
    commit: CommitId
    store: StoreId
    selection: PathSet = msgspec.field(default_factory=PathSet)

    @property
    def place(self) -> Place:
        return Place.of(self.dataset, self.commit, self.selection.id)


class Planned(msgspec.Struct, frozen=True):
    """A plan with its larger pieces."""

    plan: Plan
    source_map: bytes  # a byte per entry
    moves: Mapping[int, bytes]  # see `Matching.encoded_moves`
    folders: int = 0  # that the fill makes; 0 if there are so many inodes that nobody counted


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
    without: Container[Place] = frozenset(),
) -> Planned:
    """Read the tree's nodes, and its segments if there is something to compare or to select.

    without: cached commits to take nothing from, as they may be evicted to make room.
    Raises `NotFound` if a selected path is not in the tree, `Conflict` if the file system would mix up two of
    its paths, `OSError`.
    """
    tree = source.tree(request.commit)
    found = candidates(root, request.place, request.store)
    matched = match(source, tree, [one for one in found if one.place not in without])
    donors: list[DonorPlan] = []
    matching: Matching | None = None
    if matched is not None:
        matching, used = matched
        donors = [_donor(root, one, matching.samples[number]) for number, one in enumerate(used)]
    sums = _Sums()
    if not request.selection.whole:
        loads = _selected(tree, request.selection, matching, donors, sums)
    else:
        loads = [_whole(number, leaf, matching, donors, sums) for number, leaf in enumerate(tree.leaves())]
    if _folds(root.temporary):
        _check_folding(tree, request.selection)
    plan = Plan(
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
        donors=donors,
        has_source_map=matching is not None,
    )
    disk = os.statvfs(root.path)
    few_inodes = disk.f_files > 0 and disk.f_favail < _PLENTY * (sums.entries + 1)
    folders = _folders(tree, request.selection) if few_inodes else 0
    if matching is None:
        return Planned(plan, b"", {}, folders)
    return Planned(plan, bytes(matching.codes), matching.encoded_moves(), folders)


def room_needed(tree: TreeReader, selection: PathSet) -> tuple[int, int]:
    """Return the bytes and files of a fill that takes nothing from other commits. Raises `NotFound`."""
    sums = _Sums()
    if not selection.whole:
        _selected(tree, selection, None, (), sums)
    else:
        for number, leaf in enumerate(tree.leaves()):
            _whole(number, leaf, None, (), sums)
    return sums.need_bytes, sums.need_files


def _whole(
    number: int, leaf: Leaf, matching: Matching | None, donors: Sequence[DonorPlan], sums: _Sums
) -> Load:
    """Count a segment that is wanted whole. Its node holds its sums, so it is not read."""
    child = leaf.child
    sums.files += child.files
    sums.bytes += child.bytes
    sums.entries += child.entries
    if matching is None:
        sums.need_files += child.entries
        sums.need_bytes += estimated_room(child.files, child.bytes)
        return Load(number, child.entries, child.bytes, child.bytes)
    codes = matching.codes[matching.starts[number] : matching.starts[number + 1]]
    sizes = matching.sizes.get(number)
    if sizes is None:  # a donor has the whole segment, so all its entries have one code
        if not _copied(codes[0], donors):
            return Load(number, child.entries, child.bytes, 0)
        sums.need_files += child.entries
        sums.need_bytes += estimated_room(child.files, child.bytes)
        return Load(number, child.entries, child.bytes, child.bytes)
    if all(donor.way != "copy" for donor in donors):
        codes = codes.translate(_LINKED_AS_ONE)  # linked files take no room
    heavy = sum(
        _count(code, size, donors, sums) for code, size in zip(codes, sizes, strict=True) if code != _NO_ROOM
    )
    return Load(number, child.entries, child.bytes, heavy)


def _selected(
    tree: TreeReader,
    selection: PathSet,
    matching: Matching | None,
    donors: Sequence[DonorPlan],
    sums: _Sums,
) -> list[Load]:
    """Read the segments that hold selected paths, and count those paths."""
    loads: list[Load] = []
    start = 0
    starts = [start := start + leaf.child.entries for leaf in tree.leaves()]
    unseen = set(selection.paths)
    for number, leaf, entries in _overlapping(tree, selection):
        first = starts[number] - leaf.child.entries
        heavy = size = count = 0
        for at, (path, kind, length) in enumerate(entries, first):
            if path not in selection:
                continue
            if unseen:
                unseen -= {one for one in unseen if path == one or path.startswith(one + b"/")}
            code = OPEN[0] if matching is None else matching.codes[at]
            heavy += _count(code, length, donors, sums)
            size += length
            count += 1
            sums.files += kind <= Kind.EXECUTABLE
        if count:
            loads.append(Load(number, count, size, heavy))
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


def _overlapping(
    tree: TreeReader, selection: PathSet
) -> Iterator[tuple[int, Leaf, Iterator[tuple[bytes, int, int]]]]:
    numbers: list[int] = []
    after: bytes | None = None
    for number, leaf in enumerate(tree.leaves()):
        if selection.overlaps(after, leaf.child.last):
            numbers.append(number)
        after = leaf.child.last
    chosen = [tree.leaves()[number] for number in numbers]
    for number, leaf, located in zip(numbers, chosen, tree.segments(chosen), strict=True):
        segment = located.segment
        yield number, leaf, zip(segment.paths, segment.kinds, segment.sizes, strict=True)


def _count(code: int, size: int, donors: Sequence[DonorPlan], sums: _Sums) -> int:
    """Add the room of one entry; return the bytes that have to be written for it."""
    if code == NOTHING:
        sums.need_files += 1
    elif code in OPEN or _copied(code, donors):
        sums.need_files += 1
        sums.need_bytes += blocks(size)
        return size
    return 0


def _copied(code: int, donors: Sequence[DonorPlan]) -> bool:
    if MOVED <= code < CHUNKS:
        return donors[code - MOVED].way == "copy"
    return LINK <= code < MOVED and donors[code - LINK].way == "copy"


def _donor(root: CacheRoot, candidate: Candidate, samples: Sequence[bytes]) -> DonorPlan:
    """Try on some files how they can be shared, which decides how much room the fill needs."""
    top = os.fsencode(root.visible(candidate.place))
    ways = [way for way in (_try(root, top + b"/" + path) for path in samples) if way is not None]
    way = max(ways, key=("link", "reflink", "copy").index, default="link")
    return DonorPlan(candidate.place.dataset, candidate.place.name, way)


def _try(root: CacheRoot, path: bytes) -> str | None:
    """Return how a file can be shared; None if it can't for a reason of its own."""
    draft = os.fsencode(root.temporary / f".try-{os.urandom(8).hex()}")
    try:
        os.link(path, draft, follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_LINK:
            return None
        return "reflink" if _clones(path, draft) else "copy"
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)  # noqa: PTH108 (bytes)
    return "link"


def _clones(path: bytes, draft: bytes) -> bool:
    try:
        source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        copy = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            return system.clone(source, copy)
        finally:
            os.close(copy)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    finally:
        os.close(source)


def _folders(tree: TreeReader, selection: PathSet) -> int:
    """Count folders. Paths are sorted by components, so each that does not hold the path before is a new one."""
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


def _folds(folder: Path) -> bool:
    """Find out if two names that differ only in case, or in the form of Unicode, are one name in this folder."""
    probe = folder / f".fold-{os.urandom(8).hex()}-\u00e9"
    probe.mkdir(0o700)
    try:
        others = (probe.name.upper(), probe.name.replace("\u00e9", "e\u0301"))
        return any((folder / other).is_dir() for other in others)
    finally:
        probe.rmdir()


def _check_folding(tree: TreeReader, selection: PathSet) -> None:
    paths = (path for located in tree.segments() for path in located.segment.paths)
    clashes = fold_clashes(path for path in paths if path in selection)
    if clashes:
        one, other = clashes[0]
        raise Conflict(
            f"{show(one)} and {show(other)} would be one file here, as this file system does not tell them apart",
            subject=one.decode(errors="replace"),
            hint="use --cache DIR on a file system that does",
        )
