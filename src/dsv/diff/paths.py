"""Paths that differ between two trees: the renames among them, and their sums by folder."""

from __future__ import annotations

import builtins
import os
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import fields, replace

from dsv.format.locator import Location
from dsv.format.tree import Entry
from dsv.repo.tree.diff import PathChange, What, difference
from dsv.values.ids import EMPTY_FILE, Id
from dsv.values.paths import sort_key

SIMILAR = 50
"""Percent of the larger file's bytes that two files must share to be one renamed and changed file."""
MOST_RECIPES = 400
"""The most files whose chunks are compared; with more candidates, none is compared."""

Chunks = Mapping[Id, int]
"""The parts of a file, and the bytes that each makes up."""
ReadChunks = Callable[[Sequence[Entry]], Sequence[Chunks]]


class Difference(msgspec.Struct, frozen=True):
    """A path that differs, or the two paths of a renamed file: only then the sides have different paths."""

    what: What
    before: Entry | None
    after: Entry | None
    similarity: int | None = None
    """Percent that a renamed file shares with the old one; else None."""
    location: Location | None = None
    """The location of the content of `after`, if known."""

    @property
    def entry(self) -> Entry:
        """The entry now, or the one before if it was removed."""
        found = self.before if self.after is None else self.after
        assert found is not None
        return found

    @property
    def path(self) -> bytes:
        return self.entry.path

    @property
    def name(self) -> bytes:
        """The last part of the path."""
        return self.path.rpartition(b"/")[2]

    @property
    def old_path(self) -> bytes | None:
        """The path before; None if it was added."""
        return None if self.before is None else self.before.path

    @property
    def mode_changed(self) -> bool:
        """True if a file's executable bit changed."""
        before, after = self.before, self.after
        files = before is not None and after is not None and before.is_file and after.is_file
        return files and before is not None and after is not None and before.kind != after.kind

    @property
    def content_changed(self) -> bool:
        """True if both sides exist, with different contents or symlink targets."""
        before, after = self.before, self.after
        if before is None or after is None:
            return False
        return (before.file_id, before.target, before.size) != (after.file_id, after.target, after.size)


class PathDifferences(msgspec.Struct, frozen=True):
    """Differences in tree order."""

    differences: tuple[Difference, ...]
    unsearched: int = 0
    """Files that were too many for a comparison of their chunks: some may be renamed and changed."""


def differences(changes: Iterable[PathChange]) -> Iterator[Difference]:
    """Return the changes without renames. A file that is only stored in other chunks does not differ."""
    for change in changes:
        what = difference(change.before, change.after)
        if what is not None:
            yield Difference(what, change.before, change.after, None, change.location)


def find_renames(compared: Iterable[Difference], read_chunks: ReadChunks | None = None) -> PathDifferences:
    """Join a removed and an added file that have the same content, or share most of their chunks.

    read_chunks: called once, and only for large files whose sizes allow that they share enough. An empty file
    counts as renamed only if it keeps its last name, because all empty files are equal.
    """
    given = list(compared)
    files = [file for file in given if file.entry.is_file and file.entry.file_id is not None]
    removed = [file for file in files if file.what is What.REMOVED]
    added = [file for file in files if file.what is What.ADDED]
    pairs: list[_Pair] = []
    pairs += _pair_equal(removed, added, lambda file: (file.entry.file_id, file.name))
    left, right = (
        [file for file in _unpaired(side, pairs) if file.entry.file_id != EMPTY_FILE]
        for side in (removed, added)
    )
    pairs += _pair_equal(left, right, lambda file: file.entry.file_id)
    unsearched = 0
    if read_chunks is not None:
        left, right = (
            [file for file in _unpaired(side, pairs) if file.entry.recipe_id is not None]
            for side in (removed, added)
        )
        left, right = _of_possible_size(left, right), _of_possible_size(right, left)
        if left and len(left) + len(right) > MOST_RECIPES:
            unsearched = len(left) + len(right)
        elif left:
            pairs += _pair_similar(left, right, read_chunks([file.entry for file in (*left, *right)]))
    gone = {id(source) for source, _, _ in pairs}
    renamed = {
        id(now): replace(now, what=What.RENAMED, before=source.before, similarity=similarity)
        for source, now, similarity in pairs
    }
    joined = tuple(renamed.get(id(item), item) for item in given if id(item) not in gone)
    return PathDifferences(joined, unsearched)


_Pair = tuple[Difference, Difference, int]


def _unpaired(files: Sequence[Difference], pairs: Sequence[_Pair]) -> list[Difference]:
    taken = {id(one) for pair in pairs for one in pair[:2]}
    return [one for one in files if id(one) not in taken]


def _pair_equal(
    removed: Sequence[Difference], added: Sequence[Difference], key: Callable[[Difference], Hashable]
) -> Iterator[_Pair]:
    """Pair files with the same key, in tree order."""
    sources: dict[Hashable, deque[Difference]] = defaultdict(deque)
    for one in removed if added else ():
        sources[key(one)].append(one)
    for now in added if sources else ():
        if alike := sources.get(key(now)):
            yield alike.popleft(), now, 100


def _pair_similar(
    removed: Sequence[Difference], added: Sequence[Difference], chunks: Sequence[Chunks]
) -> Iterator[_Pair]:
    """Pair large files that share enough chunks, the most similar first. chunks: `removed`, then `added`."""
    holders: dict[Id, list[int]] = defaultdict(list)
    for number in range(len(removed)):
        for chunk in chunks[number]:
            holders[chunk].append(number)
    likely: list[tuple[int, bool, int, int]] = []
    for at, now in enumerate(added):
        shared: dict[int, int] = defaultdict(int)
        for chunk, size in chunks[len(removed) + at].items():
            for number in holders.get(chunk, ()):
                shared[number] += min(size, chunks[number][chunk])
        for number, size in shared.items():
            source = removed[number]
            percent = min(99, 100 * size // max(source.entry.size, now.entry.size))
            if percent >= SIMILAR:
                likely.append((-percent, source.name != now.name, number, at))
    sources, targets = set[int](), set[int]()
    for percent, _, number, at in sorted(likely):
        if number not in sources and at not in targets:
            sources.add(number)
            targets.add(at)
            yield removed[number], added[at], -percent


def _of_possible_size(files: Sequence[Difference], others: Sequence[Difference]) -> list[Difference]:
    sizes = sorted(one.entry.size for one in others)
    kept = []
    for one in files:
        size = one.entry.size
        at = bisect_left(sizes, -(-size * SIMILAR // 100))
        if at < len(sizes) and sizes[at] * SIMILAR <= size * 100:
            kept.append(one)
    return kept


ROOT = b"./"
"""The folder of paths that are in none."""
OTHERS = b""
"""Stands for the folders that are not listed one by one."""


class Sums(msgspec.Struct):
    """The number of paths that differ in each way, and the bytes of the files among them."""

    added: int = 0
    removed: int = 0
    changed: int = 0
    """Paths with another content, mode or kind."""
    renamed: int = 0
    added_bytes: int = 0
    removed_bytes: int = 0
    changed_bytes: int = 0
    """Sizes after the change."""
    renamed_bytes: int = 0
    net_bytes: int = 0
    """Growth of all files together."""

    @property
    def paths(self) -> int:
        return self.added + self.removed + self.changed + self.renamed

    def add(self, other: Sums) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class FolderSums(msgspec.Struct, frozen=True):
    """A folder, with a slash at its end, and all that differs in and below it."""

    folder: builtins.bytes
    sums: Sums


class Summary:
    """Sums differences up, one by one. A renamed file counts in its new folder."""

    def __init__(self, compared: Iterable[Difference] = ()) -> None:
        self._folders: dict[bytes, Sums] = defaultdict(Sums)
        for item in compared:
            self.add(item)

    def add(self, one: Difference) -> None:
        before = 0 if one.before is None else one.before.size
        after = 0 if one.after is None else one.after.size
        sums = self._of(one.path)
        sums.net_bytes += after - before
        if one.what is What.ADDED:
            sums.added += 1
            sums.added_bytes += after
        elif one.what is What.REMOVED:
            sums.removed += 1
            sums.removed_bytes += before
        elif one.what is What.RENAMED:
            sums.renamed += 1
            sums.renamed_bytes += after
            sums.net_bytes += before
            self._of(one.old_path or b"").net_bytes -= before
        else:
            sums.changed += 1
            sums.changed_bytes += after

    def add_files(self, paths: Iterable[bytes], sizes: Iterable[int]) -> None:
        """Add paths that were added, a million of them in a second: without a difference for each."""
        folder, sums = None, Sums()
        for path, size in zip(paths, sizes, strict=True):
            now = path[: path.rfind(b"/") + 1]
            if now != folder:
                folder, sums = now, self._of(path)
            sums.added += 1
            sums.added_bytes += size
            sums.net_bytes += size

    @property
    def total(self) -> Sums:
        total = Sums()
        for sums in self._folders.values():
            total.add(sums)
        return total

    def by_folder(self, depth: int | None = None, most: int | None = None) -> list[FolderSums]:
        """Return a row for each folder `depth` levels below the root, by name; None: where folders diverge.

        most: with more folders than this, those with the fewest differences share the last row, `OTHERS`.
        """
        if depth is None:
            depth = _common_depth(self._folders) + 1
        rows: dict[bytes, Sums] = {}
        for folder, sums in self._folders.items():
            rows.setdefault(_cut(folder, depth), Sums()).add(sums)
        if most is None or len(rows) <= most:
            return [FolderSums(folder, rows[folder]) for folder in sorted(rows)]
        largest = sorted(rows, key=lambda folder: (-rows[folder].paths, folder))
        rest = Sums()
        for folder in largest[most - 1 :]:
            rest.add(rows[folder])
        shown = sorted(largest[: most - 1])
        return [*(FolderSums(folder, rows[folder]) for folder in shown), FolderSums(OTHERS, rest)]

    def _of(self, path: bytes) -> Sums:
        return self._folders[path[: path.rfind(b"/") + 1]]


def _common_depth(folders: Collection[bytes]) -> int:
    first, last = min(folders, key=sort_key, default=b""), max(folders, key=sort_key, default=b"")
    common = os.path.commonpath([first, last])
    return len(common.split(b"/")) if common else 0


def _cut(folder: bytes, depth: int) -> bytes:
    return b"".join(part + b"/" for part in folder.split(b"/")[:-1][:depth]) or ROOT
