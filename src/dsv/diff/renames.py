"""Which added file is a removed one under another name."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from dsv.format.locator import Location
from dsv.format.tree import Entry
from dsv.repo.tree.diff import Change, What, difference
from dsv.values.ids import EMPTY_FILE, FileId, Id

SIMILAR = 50
"""Percent of the larger file's bytes that two files must share for one to be the other, renamed and changed."""
MOST_RECIPES = 400
"""Files whose chunks are compared; if there are more that may be alike, none is."""

Chunks = Mapping[Id, int]
"""What a file consists of: the id of each part, and the bytes that it makes up."""
ReadChunks = Callable[[Sequence[Entry]], Sequence[Chunks]]


class Difference(msgspec.Struct, frozen=True):
    """A path that differs, or the two paths of a file that was renamed.

    The sides have different paths only if it was renamed; `similarity`, in percent, is then given. location: where the
    content of `after` lies, if that is known.
    """

    what: What
    before: Entry | None
    after: Entry | None
    similarity: int | None = None
    location: Location | None = None

    @property
    def path(self) -> bytes:
        """The path now; of what was removed, the path that it had."""
        return self._there.path

    @property
    def old_path(self) -> bytes | None:
        """The path before; None for what was added."""
        return None if self.before is None else self.before.path

    @property
    def mode_changed(self) -> bool:
        """Whether a file's executable bit is another."""
        before, after = self.before, self.after
        files = before is not None and after is not None and before.is_file and after.is_file
        return files and before is not None and after is not None and before.kind != after.kind

    @property
    def content_changed(self) -> bool:
        """Whether both sides are there with different contents or targets."""
        before, after = self.before, self.after
        if before is None or after is None:
            return False
        return (before.file_id, before.target, before.size) != (after.file_id, after.target, after.size)

    @property
    def _there(self) -> Entry:
        there = self.before if self.after is None else self.after
        assert there is not None
        return there


class Found(msgspec.Struct, frozen=True):
    """Differences in tree order. unsearched: files that were too many to compare their chunks, so that some of what
    was added and removed may in truth be renamed and changed.
    """

    differences: tuple[Difference, ...]
    unsearched: int = 0


def differences(changes: Iterable[Change]) -> Iterator[Difference]:
    """The changes without renames. A file that is only stored in other chunks does not differ."""
    for change in changes:
        what = difference(change.before, change.after)
        if what is not None:
            yield Difference(what, change.before, change.after, None, change.location)


def find_renames(found: Iterable[Difference], read_chunks: ReadChunks | None = None) -> Found:
    """Joins what was removed with what was added if it has the same content, or shares most of its chunks.

    read_chunks: is asked once, and only for large files whose sizes allow that they share enough. An empty file is
    renamed only if it keeps its last name, as all empty files are alike.
    """
    given = list(found)
    removed = [one for one in given if one.what is What.REMOVED and _is_file(one.before)]
    added = [one for one in given if one.what is What.ADDED and _is_file(one.after)]
    pairs = _pair_equal(removed, added)
    unsearched = 0
    if read_chunks is not None and len(pairs) < min(len(removed), len(added)):
        taken = {id(one) for pair in pairs for one in pair[:2]}
        left = [one for one in removed if id(one) not in taken]
        right = [one for one in added if id(one) not in taken]
        more, unsearched = _pair_similar(left, right, read_chunks)
        pairs += more
    if not pairs:
        return Found(tuple(given), unsearched)
    gone = {id(source) for source, _, _ in pairs}
    renamed = {
        id(now): replace(now, what=What.RENAMED, before=source.before, similarity=similarity)
        for source, now, similarity in pairs
    }
    kept = (renamed.get(id(one), one) for one in given if id(one) not in gone)
    return Found(tuple(kept), unsearched)


_Pair = tuple[Difference, Difference, int]


def _is_file(entry: Entry | None) -> bool:
    return entry is not None and entry.is_file and entry.file_id is not None


def _pair_equal(removed: Sequence[Difference], added: Sequence[Difference]) -> list[_Pair]:
    """Files with the same content; of several the ones with the same last name first, the rest in tree order."""
    if not removed or not added:
        return []
    sources: dict[FileId, list[Difference]] = defaultdict(list)
    for one in removed:
        sources[_content(one)].append(one)
    targets: dict[FileId, list[Difference]] = defaultdict(list)
    for one in added:
        if _content(one) in sources:
            targets[_content(one)].append(one)
    pairs: list[_Pair] = []
    for content, now in targets.items():
        pairs += _pair_alike(sources[content], now, by_name_alone=content == EMPTY_FILE)
    return pairs


def _pair_alike(
    removed: Sequence[Difference], added: Sequence[Difference], *, by_name_alone: bool
) -> Iterator[_Pair]:
    by_name: dict[bytes, list[Difference]] = defaultdict(list)
    for one in reversed(removed):
        by_name[_last_name(one)].append(one)
    left, taken = [], set[int]()
    for now in added:
        named = by_name[_last_name(now)]
        if named:
            source = named.pop()
            taken.add(id(source))
            yield source, now, 100
        else:
            left.append(now)
    if not by_name_alone:
        for source, now in zip((one for one in removed if id(one) not in taken), left, strict=False):
            yield source, now, 100


def _pair_similar(
    removed: Sequence[Difference], added: Sequence[Difference], read_chunks: ReadChunks
) -> tuple[list[_Pair], int]:
    """Large files that share enough chunks, the most similar ones first; and how many were too many to be compared."""
    removed = [one for one in removed if _entry(one).recipe_id is not None]
    added = [one for one in added if _entry(one).recipe_id is not None]
    removed, added = _of_possible_size(removed, added), _of_possible_size(added, removed)
    count = len(removed) + len(added)
    if not removed or not added or count > MOST_RECIPES:
        return [], count if removed and added else 0
    read = read_chunks([_entry(one) for one in (*removed, *added)])
    holders: dict[Id, list[int]] = defaultdict(list)
    for number, chunks in enumerate(read[: len(removed)]):
        for chunk in chunks:
            holders[chunk].append(number)
    likely: list[tuple[int, bool, int, int]] = []
    for at, chunks in enumerate(read[len(removed) :]):
        shared: dict[int, int] = defaultdict(int)
        for chunk, size in chunks.items():
            for number in holders.get(chunk, ()):
                shared[number] += min(size, read[number][chunk])
        for number, size in shared.items():
            source, now = removed[number], added[at]
            percent = min(99, 100 * size // max(_entry(source).size, _entry(now).size))
            if percent >= SIMILAR:
                likely.append((-percent, _last_name(source) != _last_name(now), number, at))
    pairs, sources, targets = list[_Pair](), set[int](), set[int]()
    for percent, _, number, at in sorted(likely):
        if number not in sources and at not in targets:
            sources.add(number)
            targets.add(at)
            pairs.append((removed[number], added[at], -percent))
    return pairs, 0


def _of_possible_size(files: Sequence[Difference], others: Sequence[Difference]) -> list[Difference]:
    """The files for which one of the others is neither too small nor too large to share enough."""
    sizes = sorted(_entry(one).size for one in others)
    kept = []
    for one in files:
        size = _entry(one).size
        at = bisect_left(sizes, -(-size * SIMILAR // 100))
        if at < len(sizes) and sizes[at] * SIMILAR <= size * 100:
            kept.append(one)
    return kept


def _entry(one: Difference) -> Entry:
    entry = one.before if one.after is None else one.after
    assert entry is not None
    return entry


def _content(one: Difference) -> FileId:
    content = _entry(one).file_id
    assert content is not None
    return content


def _last_name(one: Difference) -> bytes:
    return one.path.rpartition(b"/")[2]
