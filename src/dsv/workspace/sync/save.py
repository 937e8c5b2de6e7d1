"""Saving the changed files of a workspace to the store, and reuploading what the store has lost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from dsv.errors import IntegrityError, NotFound
from dsv.format.locator import Location, LocatorBuilder, ObjectKind
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.tree import Entry
from dsv.fs.descent import Descent
from dsv.fs.process import processors
from dsv.repo.objects.objects import checked
from dsv.repo.objects.ranges import RangeReader, spans
from dsv.repo.repository import Repository
from dsv.repo.session import Session, Writer
from dsv.repo.tree.nodes import Part
from dsv.repo.tree.read import LocatedSegment, Reached, TreeReader, reach_tree
from dsv.repo.tree.write import TreeChange, WrittenTree, write_tree
from dsv.transfer.download import SPAN
from dsv.transfer.upload import Stored, Uploader
from dsv.values.ids import FileId, Id, NodeId
from dsv.values.progress import Progress
from dsv.workspace.scan.file_reader import Problem, read_stable
from dsv.workspace.scan.folder import Relation, row_of
from dsv.workspace.scan.result import Gone, Pending, WorkspaceScan
from dsv.workspace.sync.prefetch import Contents, Readers, suitable

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


class Reuploaded(msgspec.Struct):
    """objects: how many contents, segments and nodes were stored again. lost: files whose content can't be, as they are
    not here as the base has them.
    """

    objects: int = 0
    lost: list[bytes] = msgspec.field(default_factory=list)


def reupload(
    repository: Repository,
    writer: Writer,
    tree: TreeReader,
    root: Path,
    progress: Progress,
    *,
    thorough: bool,
) -> Reuploaded:
    """Looks for everything that a base's tree refers to, and stores again what the store lacks, from files in `root`.

    thorough: looks for every pack, and reads everything that the tree refers to. Else only what is known to be lost or
    damaged counts as such. The commit and its ids stay
    the same; the index names the new places of its objects. Raises `IntegrityError` for metadata that neither the store
    nor this machine has.
    """
    if thorough:
        _read_all(tree, progress)
    with Session.open(repository, writer) as session:
        with Uploader(session) as uploader, Descent(root) as descent:
            done = _Reupload(tree, session, uploader, descent, thorough).run()
            uploader.finish()
        session.close()
    if done.objects and not done.lost:  # the next sync need not look again
        repository.objects.packs.forget(repository.objects.packs.known_lost)
    return done


def _read_all(tree: TreeReader, progress: Progress) -> None:
    """Reads everything that a tree refers to from the store, which makes known what is damaged there."""
    objects = tree.objects
    progress.start(None, tree.commit.bytes)
    read = set[tuple[ObjectKind, Id]]()

    def wanted() -> Iterator[tuple[Location, Reached]]:
        for one in reach_tree(tree):
            where = one.location or objects.indexes.find(one.kind, one.id)
            if where is not None and (one.kind, one.id) not in read:
                read.add((one.kind, one.id))
                yield where, one

    for where, one, stored in RangeReader(objects.store, objects.threads).read(spans(wanted(), SPAN)):
        try:
            if stored is None:
                raise NotFound(f"pack {where.pack} is gone")
            checked(one.kind, one.id, where, stored[: where.stored])
        except (NotFound, IntegrityError):
            with suppress(IntegrityError):  # it is noted, and stored again if it is here
                objects.read_by_index(one.kind, one.id, where)
        progress.advance(bytes=where.length, transferred=where.stored)
    progress.finish()


class _Reupload:
    def __init__(
        self, tree: TreeReader, session: Session, uploader: Uploader, descent: Descent, thorough: bool
    ) -> None:
        self._tree = tree
        self._session = session
        self._uploader = uploader
        self._descent = descent
        self._packs = tree.objects.packs
        self._thorough = thorough
        self._done = Reuploaded()

    def run(self) -> Reuploaded:
        if self._thorough:
            self._packs.look_at_all()
        for leaf, located in zip(self._tree.leaves(), self._tree.segments(), strict=True):
            for entry, where in located.entries():
                if entry.is_file and entry.size and not self._is_there(entry, where):
                    self._store(entry)
            if self._is_gone(ObjectKind.SEGMENT, leaf.id, leaf.where):
                self._put_segment(located)
        for kind, node_id, where in reversed(list(self._tree.nodes())):  # each after what it lists
            if self._is_gone(kind, node_id, where):
                self._put_node(node_id)
        return self._done

    def _is_there(self, entry: Entry, where: Location | None) -> bool:
        """For a recipe the chunks that it lists are looked for too: its own location says nothing about them."""
        assert entry.file_id is not None
        if entry.recipe_id is None and not self._is_doubtful(ObjectKind.CHUNK, entry.file_id, where):
            return True
        return self._uploader.find(entry.size, entry.file_id, entry.recipe_id) is not None

    def _is_gone(self, kind: ObjectKind, object_id: Id, where: Location | None) -> bool:
        return self._is_doubtful(kind, object_id, where) and self._session.find(kind, object_id) is None

    def _is_doubtful(self, kind: ObjectKind, object_id: Id, where: Location | None) -> bool:
        """Whether the index has to say if the store has the object."""
        if where is None or self._session.avoids(where.pack) or (kind, object_id) in self._packs.missing:
            return True
        return self._thorough and self._packs.is_lost(where.pack)

    def _store(self, entry: Entry) -> None:
        def upload(descriptor: int, size: int) -> tuple[Stored, int]:
            return store_content(self._uploader, descriptor, size)

        found = read_stable(self._descent, entry.path, upload)
        if isinstance(found, Problem) or found.value.file_id != entry.file_id:
            self._done.lost.append(entry.path)
        else:
            self._done.objects += 1

    def _put_node(self, node_id: NodeId) -> None:
        found = next(self._tree.objects.nodes([(node_id, None)]))
        node, known = found.value, found.locator
        kind = ObjectKind.SEGMENT if node.level == 1 else ObjectKind.NODE
        places = iter(()) if known is None else known.locations()
        below = [Part(child, next(places, None)) for child in node.children]
        self._uploader.put_node(node, [self._uploader.kept_location(kind, part) for part in below])
        self._done.objects += 1

    def _put_segment(self, located: LocatedSegment) -> None:
        places = LocatorBuilder()
        for entry, where in located.entries():
            if entry.is_file and entry.size:
                places.add(self._uploader.content_location(entry, where))
        self._uploader.put_segment(located.segment, places.finish())
        self._done.objects += 1
