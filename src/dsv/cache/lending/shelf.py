"""What one cache has of a dataset, for a workspace to copy: which commit has a file, by their trees."""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from dsv.cache.fill.donors import newest, of_dataset
from dsv.cache.layout import folder_name
from dsv.cache.root import CacheRoot
from dsv.errors import DsvError
from dsv.format.columns import cut
from dsv.format.segment import Segment
from dsv.format.tree import Entry, Kind
from dsv.fs import system
from dsv.repo.tree.read import TreeReader
from dsv.values.ids import CommitId, SegmentId, StoreId
from dsv.values.names import DatasetName
from dsv.values.paths import PathSet, sort_key

OpenTree = Callable[[CommitId], TreeReader]
"""The tree of a commit, by local copies of its metadata. Raises `DsvError` if one is missing."""

_OTHERS = 5
"""Commits that are compared, besides the one that is wanted."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Lender(msgspec.Struct):
    """A cached commit, or a part of one. top: descriptor of its folder, so that what is read stays this commit's, or
    is gone. tree: None until it is compared with another commit's.
    """

    commit: CommitId
    selection: PathSet
    top: int
    tree: TreeReader | None = None
    _last: list[bytes] = msgspec.field(default_factory=list)
    _read: dict[SegmentId, dict[bytes, bytes]] = msgspec.field(default_factory=dict)

    def has(self, wanted: CommitId, entries: Sequence[Entry], open_tree: OpenTree) -> list[bool]:
        """Which of these files of the wanted commit, in tree order, it has at the same path. Raises `DsvError`."""
        if self.commit == wanted:
            return [entry.path in self.selection for entry in entries]
        known = self._known(entries, open_tree)
        return [known.get(entry.path) == entry.file_id and entry.path in self.selection for entry in entries]

    def _known(self, entries: Sequence[Entry], open_tree: OpenTree) -> dict[bytes, bytes]:
        """Path -> id of every file in the segments that may have one of these paths."""
        if self.tree is None:
            self.tree = open_tree(self.commit)
            self._last = [sort_key(leaf.child.last) for leaf in self.tree.leaves()]
        leaves, last = self.tree.leaves(), self._last
        places = dict.fromkeys(bisect.bisect_left(last, sort_key(entry.path)) for entry in entries)
        chosen = [leaves[at] for at in places if at < len(leaves)]
        before, self._read = self._read, {}
        missing = [leaf for leaf in chosen if leaf.id not in before]
        for leaf, located in zip(missing, self.tree.segments(missing), strict=True):
            before[leaf.id] = _files(located.segment)
        self._read = {leaf.id: before[leaf.id] for leaf in chosen[-1:]}  # the next entries may begin in it
        return {path: file_id for leaf in chosen for path, file_id in before[leaf.id].items()}


def _files(segment: Segment) -> dict[bytes, bytes]:
    kinds = zip(segment.paths, segment.kinds, strict=True)
    paths = (path for path, kind in kinds if kind <= Kind.EXECUTABLE)
    return dict(zip(paths, cut(segment.file_ids, 32), strict=True))


class Shelf(msgspec.Struct):
    """One cache: its commits of one dataset, those that the next file is looked for in first. remote: on a file server.

    Whoever calls this may hang in the kernel.
    """

    root: CacheRoot
    remote: bool
    lenders: list[Lender]

    @classmethod
    def open(cls, root: CacheRoot, store: StoreId, dataset: DatasetName) -> Shelf | None:
        """None if this cache has nothing of the dataset, or may not be read."""
        lenders: list[Lender] = []
        try:
            for one in newest(list(of_dataset(root, folder_name(dataset), store))):
                with suppress(OSError):  # evicted, or not for this user
                    top = os.open(root.visible(one.place), _FOLDER)
                    lenders.append(Lender(one.place.commit, one.selection, top))
            return cls(root, system.kind_of(root.path).remote, lenders) if lenders else None
        except (OSError, DsvError):
            return None

    def find(self, wanted: CommitId, entries: Sequence[Entry], open_tree: OpenTree) -> list[Lender | None]:
        """Who has each of these files of the wanted commit, as far as local copies of metadata tell."""
        found: list[Lender | None] = [None] * len(entries)
        open_ = list(range(len(entries)))
        for lender in self._order(wanted):
            if not open_:
                break
            try:
                has = lender.has(wanted, [entries[at] for at in open_], open_tree)
            except (DsvError, OSError):  # its tree is not known here
                self.lenders.remove(lender)
                continue
            for at, there in zip(open_, has, strict=True):
                found[at] = lender if there else None
            open_ = [at for at in open_ if found[at] is None]
        return found

    def _order(self, wanted: CommitId) -> list[Lender]:
        itself = [lender for lender in self.lenders if lender.commit == wanted]
        itself.sort(key=lambda lender: not lender.selection.whole)
        return itself + [lender for lender in self.lenders if lender.commit != wanted][:_OTHERS]

    def close(self) -> None:
        for lender in self.lenders:
            os.close(lender.top)
