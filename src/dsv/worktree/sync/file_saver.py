"""Saving the files of a workspace that may differ from its base: each is read if needed, and uploaded."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from dsv.fs.descent import Descent
from dsv.model.chunking import SINGLE_CHUNK_MAX
from dsv.model.ids import FileId
from dsv.model.location import Location
from dsv.model.progress import Progress
from dsv.repo.tree_edit import TreeChange, WrittenTree, write_tree
from dsv.repo.trees import TreeReader
from dsv.transfer.processors import processors
from dsv.transfer.upload import Stored, Uploader
from dsv.worktree.prefetch.batch import Contents
from dsv.worktree.prefetch.readers import Readers, suitable
from dsv.worktree.scan.file_reader import read_stable
from dsv.worktree.scan.folder import Relation, row_of
from dsv.worktree.scan.problem import Problem
from dsv.worktree.scan.workspace_scan import Gone, Pending, WorkspaceScan

# How often what was hashed is saved, in seconds: a killed sync reads at most this much again.
SAVE_EVERY = 60.0
# Progress is told of several small files at a time: telling costs much beside the work for one of them.
_TELL_FILES, _TELL_BYTES = 16, 1 << 20

_Content = tuple[bytes, int, bool, FileId, Location]  # its row, device, quiet or not, id and place


class FileSaver:
    """Saves what one scan found. added, changed, removed: paths so far. problems: files that could not be read."""

    def __init__(self, scan: WorkspaceScan, uploader: Uploader, progress: Progress) -> None:
        self.added = self.changed = self.removed = 0
        self.problems: list[Problem] = []
        self._scan = scan
        self._uploader = uploader
        self._progress = progress
        self._saved = time.monotonic()

    def save(self, base: TreeReader | None, files: int, jobs: int | None) -> WrittenTree:
        """Uploads the files, and the tree that has them in place of what `base` has. To be called once.

        files: how many there may be. jobs: processes that read small files; None for what suits.
        """
        root = self._scan.root
        processes = suitable(files, processors()) if jobs is None else jobs - 1
        with Readers(root, processes) as readers, Descent(root) as descent:
            return write_tree(self._uploader, base, self._changes(readers, descent))

    def _changes(self, readers: Readers, descent: Descent) -> Iterator[TreeChange]:
        """What differs from the base, in tree order, with its content uploaded."""
        for run in readers.over(self._scan.work()):
            stored = self._store_all(run.contents)
            files = size = 0
            for item, at in zip(run.items, run.at, strict=True):
                if isinstance(item, Gone):
                    self.removed += 1
                    yield TreeChange(item.path, None)
                    continue
                content = stored[at] if stored and at >= 0 else None
                change = self._save(item, descent) if content is None else self._record(item, *content)
                if change is not None:
                    if item.relation is Relation.ABSENT:
                        self.added += 1
                    else:
                        self.changed += 1
                    yield change
                files, size = files + 1, size + item.size
                if files == _TELL_FILES or size >= _TELL_BYTES:
                    self._tell(files, size)
                    files = size = 0
            self._tell(files, size)
        self._progress.finish()

    def _store_all(self, contents: Contents | None) -> list[_Content | None]:
        """Stores what was read ahead, all at once."""
        if contents is None or not any(contents.read):
            return []
        places = iter(self._uploader.add_all(contents.packed))
        columns = zip(
            contents.read, contents.rows, contents.devices, contents.quiet, contents.ids, strict=True
        )
        return [
            (row, device, bool(quiet), FileId(one), next(places)) if read else None
            for read, row, device, quiet, one in columns
        ]

    def _save(self, item: Pending, descent: Descent) -> TreeChange | None:
        """Saves one file, reading it if the store may lack its content; or a symlink, or an empty folder."""
        known = item.known
        if known is not None:
            if not known.is_file:
                return TreeChange(item.path, known)
            assert known.file_id is not None
            stored = self._uploader.find(known.size, known.file_id, known.recipe_id)
            if stored is not None:
                return TreeChange(item.path, known, stored.location)
        found = read_stable(descent, item.path, self._upload)
        if isinstance(found, Problem):
            self.problems.append(found)
            self._scan.not_stored(item)
            return None
        stored = found.value
        row, device = row_of(found.stat), found.stat.st_dev
        entry = self._scan.record(item, row, device, stored.file_id, stored.recipe_id, quiet=found.quiet)
        assert entry is not None
        return None if entry == item.base else TreeChange(item.path, entry, stored.location)

    def _record(
        self, item: Pending, row: bytes, device: int, quiet: bool, file_id: FileId, place: Location
    ) -> TreeChange | None:
        entry = self._scan.record(item, row, device, file_id, quiet=quiet)
        return None if entry == item.base else TreeChange(item.path, entry, place)

    def _upload(self, descriptor: int, size: int) -> tuple[Stored, int]:
        return store_content(self._uploader, descriptor, size)

    def _tell(self, files: int, size: int) -> None:
        self._progress.advance(files=files, bytes=size)
        if time.monotonic() - self._saved > SAVE_EVERY:
            self._scan.state.save()
            self._saved = time.monotonic()


def store_content(uploader: Uploader, descriptor: int, size: int) -> tuple[Stored, int]:
    """Stores the content of an open file that has `size` bytes by its stat, and gives how many bytes were read."""
    if size > SINGLE_CHUNK_MAX:
        stored = uploader.add_stream(lambda buffer: os.readv(descriptor, [buffer]))
        return stored, stored.size
    # One byte more is asked for, so that exactly `size` bytes are the whole file without another call.
    data = os.read(descriptor, size + 1)
    while len(data) < size and (more := os.read(descriptor, size + 1 - len(data))):
        data += more
    if len(data) > SINGLE_CHUNK_MAX:  # it grew just now; it is read again
        return Stored(size, FileId.hash(data), None, None), len(data)
    return uploader.add_bytes(data), len(data)
