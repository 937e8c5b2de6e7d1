"""Storing lost objects of a base again, from the files of a workspace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from dsv.errors import IntegrityError, NotFound
from dsv.files.descent import Descent
from dsv.format.locator import Location, LocatorBuilder, ObjectKind, places_of
from dsv.format.records import WriterIdentity
from dsv.format.tree import Entry
from dsv.repo.objects.checks import checked
from dsv.repo.objects.ranges import RangeReader, spans
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.repo.tree.reader import LocatedSegment, Reached, TreePart, TreeReader, reach_tree
from dsv.transfer.download import SPAN
from dsv.transfer.save import save_file
from dsv.transfer.stable_read import Problem
from dsv.transfer.upload import Uploader
from dsv.values.ids import Id, NodeId
from dsv.values.progress import Progress


class Reuploaded(msgspec.Struct):
    objects: int = 0
    """The number of contents, segments and nodes that were stored again."""
    lost: list[bytes] = msgspec.field(default_factory=list)
    """Files that could not be stored again, as the workspace no longer has them as in the base."""


def reupload(
    repository: Repository,
    writer: WriterIdentity,
    tree: TreeReader,
    root: Path,
    progress: Progress,
    *,
    thorough: bool,
) -> Reuploaded:
    """Look up everything that a base's tree refers to, and store again what the store lacks, from files in
    `root`.

    thorough: look up every pack, and read everything that the tree refers to. Else only objects that are
    known to be lost or damaged count as such. The commit and its ids stay; the index gets the new locations
    of its objects. Raises `IntegrityError` for metadata that neither the store nor this machine has.
    """
    if thorough:
        _read_all(tree, progress)
    with Session.open(repository, writer) as session, Uploader(session) as uploader, Descent(root) as descent:
        done = _Reupload(tree, session, uploader, descent, thorough).run()
        uploader.finish()
    if not done.lost:
        repository.objects.packs.looked_for(tree.commit_id)
    if done.objects and not done.lost:  # the next sync need not look again
        repository.objects.packs.forget(repository.objects.packs.known_lost)
    return done


def _read_all(tree: TreeReader, progress: Progress) -> None:
    """Read everything that a tree refers to from the store, so that damage there becomes known."""
    objects = tree.objects
    progress.start(None, tree.commit.bytes)
    read = set[tuple[ObjectKind, Id]]()

    def wanted() -> Iterator[tuple[Location, Reached]]:
        for one in reach_tree(tree):
            where = one.location or objects.indexes.find(one.kind, one.id)
            if where is not None and (one.kind, one.id) not in read:
                read.add((one.kind, one.id))
                yield where, one

    reader = RangeReader(objects.store, objects.threads, objects.externals)
    for where, one, stored in reader.read(spans(wanted(), SPAN)):
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
                if not entry.is_file or not entry.size or self._tree.objects.erasures.of(entry) is not None:
                    continue
                if not self._is_there(entry, where):
                    self._store(entry)
            if self._is_gone(ObjectKind.SEGMENT, leaf.id, leaf.where):
                self._put_segment(located)
        for kind, node_id, where in reversed(list(self._tree.nodes())):  # each after what it lists
            if self._is_gone(kind, node_id, where):
                self._put_node(node_id)
        return self._done

    def _is_there(self, entry: Entry, where: Location | None) -> bool:
        """Return whether the store has a content. A recipe's location says nothing about its chunks."""
        assert entry.file_id is not None
        if entry.recipe_id is None and not self._is_doubtful(ObjectKind.CHUNK, entry.file_id, where):
            return True
        return self._uploader.find(entry.size, entry.file_id, entry.recipe_id) is not None

    def _is_gone(self, kind: ObjectKind, object_id: Id, where: Location | None) -> bool:
        return self._is_doubtful(kind, object_id, where) and self._session.find(kind, object_id) is None

    def _is_doubtful(self, kind: ObjectKind, object_id: Id, where: Location | None) -> bool:
        """Return whether the index must be asked if the store has the object."""
        if where is None or self._session.avoids(where.pack) or (kind, object_id) in self._packs.missing:
            return True
        return self._thorough and self._packs.is_lost(where.pack)

    def _store(self, entry: Entry) -> None:
        saved = save_file(self._uploader, self._descent, entry.path)
        if isinstance(saved, Problem) or saved.stored.file_id != entry.file_id:
            self._done.lost.append(entry.path)
        else:
            self._done.objects += 1

    def _put_node(self, node_id: NodeId) -> None:
        found = next(self._tree.objects.nodes([(node_id, None)]))
        node = found.value
        kind = ObjectKind.SEGMENT if node.level == 1 else ObjectKind.NODE
        below = map(TreePart, node.children, places_of(found.locator))
        self._uploader.put_node(node, [self._uploader.kept_location(kind, part) for part in below])
        self._done.objects += 1

    def _put_segment(self, located: LocatedSegment) -> None:
        places = LocatorBuilder()
        for entry, where in located.entries():
            if entry.is_file and entry.size:
                places.add(self._uploader.content_location(entry, where))
        self._uploader.put_segment(located.segment, places.finish())
        self._done.objects += 1
