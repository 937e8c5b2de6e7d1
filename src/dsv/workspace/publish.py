"""Publishing a workspace's changes on a branch, and storing lost objects of its base again.

Nothing here writes a file of the workspace outside `.dsv`. After a kill, the next sync continues from the
state and the journal, which knows whether a branch had just been moved.

The journal is an append-only file of records, each with a checksum. Reading ends at a torn record, which is
cut off. If the journal is lost, content is uploaded again; no data is lost. It is synced to disk before
`pack_uploaded` returns (one fdatasync for each 32 MiB sent), and before `publishing` returns, but not for a
recipe alone.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import msgspec
import xxhash

from dsv.errors import Conflict, IntegrityError, NoRoom, NotFound, Unsupported
from dsv.format.locator import Location, LocatorBuilder, ObjectKind, places_of
from dsv.format.records import CommitRecord, WriterIdentity
from dsv.format.tree import Entry
from dsv.fs.descent import Descent
from dsv.fs.errors import about
from dsv.fs.files import sync_data, write_all
from dsv.repo.merge_indexes import tidy
from dsv.repo.objects.objects import checked
from dsv.repo.objects.ranges import RangeReader, spans
from dsv.repo.refs.branches import Head, LostRace, already_there
from dsv.repo.repository import Repository
from dsv.repo.session import Session, check_whole, point_branch
from dsv.repo.tree.diff import difference
from dsv.repo.tree.read import LocatedSegment, Reached, TreePart, TreeReader, reach_tree
from dsv.repo.tree.write import TreeChange, TreeWriter, WrittenTree
from dsv.transfer.commit import Committed, Draft, new_commit, publish_commit
from dsv.transfer.download import SPAN
from dsv.transfer.file_reader import Problem, refusal
from dsv.transfer.save import FileSaver, save_file
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId, Id, NodeId, PackId, RecipeId, StoreId
from dsv.values.names import BranchName, DatasetName
from dsv.values.paths import link_escapes, show
from dsv.values.progress import Progress
from dsv.values.units import format_bytes
from dsv.workspace.baseline import Baseline, links_with
from dsv.workspace.open import OpenWorkspace, follows
from dsv.workspace.scan.folder import Relation
from dsv.workspace.scan.result import Gone, Pending, WorkspaceScan, hash_file
from dsv.workspace.workspace import Workspace

_MAGIC = b"dsv journal 2\n"
_START = len(_MAGIC) + StoreId.size
_HEAD = struct.Struct("<IQ")  # length of the record in bytes, check

Row = tuple[ObjectKind, Id, Location]


class _Pack(msgspec.Struct, array_like=True, tag=1):
    id: PackId
    size: int
    rows: list[Row]


class _Recipe(msgspec.Struct, array_like=True, tag=2):
    id: RecipeId
    encoded: bytes


class Publishing(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """An intended move of a branch: to `commit`, as the entry number `seq`."""

    dataset: str
    branch: str
    seq: int
    commit: CommitId


_ENCODER = msgspec.msgpack.Encoder(enc_hook=bytes)
_DECODER = msgspec.msgpack.Decoder(_Pack | _Recipe | Publishing, dec_hook=lambda kind, raw: kind.of(raw))


class InterruptedSync(msgspec.Struct):
    """The notes of an earlier sync."""

    packs: dict[PackId, tuple[int, list[Row]]] = msgspec.field(default_factory=dict)
    """Size in bytes and rows of packs that were stored completely."""
    recipes: dict[RecipeId, bytes] = msgspec.field(default_factory=dict)
    publishing: Publishing | None = None


class SyncJournal(AbstractContextManager["SyncJournal"]):
    """The journal of one workspace. `pack_uploaded` and `recipe` may be called from any thread."""

    def __init__(self, path: Path, descriptor: int, left: InterruptedSync) -> None:
        self._path = path
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._end = _START
        self.left = left
        """The content when it was opened."""

    @classmethod
    def open(cls, path: Path, store_id: StoreId) -> SyncJournal:
        """Read the remaining records, and append to them. Records for another store are dropped. The caller
        holds the workspace's lock. Raises `Denied`, `NoRoom`, `Unreachable`."""
        with about(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            data = path.read_bytes()
            left, end = InterruptedSync(), 0
            if data[:_START] == _MAGIC + store_id:
                left, end = _replay(data)
            journal = cls(path, descriptor, left)
            os.ftruncate(descriptor, end)
            os.lseek(descriptor, end, os.SEEK_SET)
            if not end:
                write_all(descriptor, _MAGIC + store_id)
            journal._end = end or _START
            return journal

    def __exit__(self, *_: object) -> None:
        self.close()

    def pack_uploaded(self, pack_id: PackId, size: int, rows: list[Row]) -> None:
        """Note that the store has this pack. Survives a power cut."""
        self._append(_Pack(pack_id, size, rows), durable=True)

    def recipe(self, recipe_id: RecipeId, encoded: bytes) -> None:
        """Note a recipe that was computed."""
        self._append(_Recipe(recipe_id, encoded), durable=False)

    def publishing(self, dataset: str, branch: str, seq: int, commit: CommitId) -> None:
        """Note a move of the branch, just before it is made. Survives a power cut."""
        self._append(Publishing(dataset, branch, seq, commit), durable=True)

    def clear(self) -> None:
        """Forget everything: it is now in an index of the store, or in a commit."""
        with self._lock, about(self._path):
            os.ftruncate(self._descriptor, _START)
            os.lseek(self._descriptor, _START, os.SEEK_SET)
            self._end = _START
        self.left = InterruptedSync()

    def close(self) -> None:
        """Close the file, and keep the records."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _append(self, record: _Pack | _Recipe | Publishing, *, durable: bool) -> None:
        payload = _ENCODER.encode(record)
        data = _HEAD.pack(len(payload), xxhash.xxh3_64_intdigest(payload)) + payload
        with self._lock, about(self._path):
            try:
                write_all(self._descriptor, data)
            except OSError:  # no later record may follow half a record
                os.ftruncate(self._descriptor, self._end)
                os.lseek(self._descriptor, self._end, os.SEEK_SET)
                raise
            self._end += len(data)
            if durable:
                sync_data(self._descriptor)


def _replay(data: bytes) -> tuple[InterruptedSync, int]:
    """Return the content of the records, and the end of the last whole one."""
    left, end = InterruptedSync(), _START
    while end + _HEAD.size <= len(data):
        length, check = _HEAD.unpack_from(data, end)
        payload = data[end + _HEAD.size : end + _HEAD.size + length]
        if len(payload) < length or xxhash.xxh3_64_intdigest(payload) != check:
            break
        try:
            record = _DECODER.decode(payload)
        except msgspec.DecodeError:  # not what this version writes
            break
        if isinstance(record, _Pack):
            left.packs[record.id] = record.size, record.rows
        elif isinstance(record, _Recipe):
            left.recipes[record.id] = record.encoded
        else:
            left.publishing = record
        end += _HEAD.size + length
    return left, end


ACTION = "sync"
SAVE_EVERY = 60.0
"""Seconds between two saves of the state: a killed sync reads at most this much again."""


class Synced(msgspec.Struct):
    commit: CommitId | None
    """The workspace's base now."""
    parent: CommitId | None
    dataset: DatasetName
    branch: BranchName
    files: int = 0
    """Files of the whole commit; `bytes` is their size."""
    bytes: int = 0
    added: int = 0
    changed: int = 0
    removed: int = 0
    any_change: bool = False
    """False if there was nothing to publish."""
    uploaded_bytes: int = 0
    """Bytes that this sync wrote to the store, including metadata."""
    uploaded_objects: int = 0
    reuploaded: int = 0
    """Objects that the store had lost and has again."""
    lost: tuple[str, ...] = ()
    """Files that the store has lost and that differ from the base, or are missing, in the workspace."""
    skipped: list[Problem] = msgspec.field(default_factory=list)
    """Paths left out by `skip_unsupported`."""
    single_writer: bool = False
    """The store can't detect concurrent writers."""

    @classmethod
    def of(cls, dataset: DatasetName, branch: BranchName, tree: TreeReader | None) -> Synced:
        """Return the result before a sync that begins with this base."""
        done = cls(None, None, dataset, branch)
        if tree is not None:
            done.set_base(tree.commit_id, tree.commit)
        return done

    def set_base(self, commit_id: CommitId, commit: CommitRecord) -> None:
        self.commit, self.files, self.bytes = commit_id, commit.files, commit.bytes
        self.parent = next(iter(commit.parents), None)


def adopt_killed_sync(opened: OpenWorkspace, journal: SyncJournal) -> OpenWorkspace | None:
    """Make the commit of a killed sync the base, if it had just moved a branch. Return the workspace, which
    then follows that branch; None without such a sync."""
    intent, workspace = journal.left.publishing, opened.workspace
    if intent is None or intent.dataset != workspace.dataset:
        return None
    branch = BranchName.parse(intent.branch)
    published = opened.repository.refs.entry(workspace.dataset, branch, intent.seq)
    if published is None or published.commit != intent.commit:
        return None
    workspace.set_base(intent.commit)
    following = opened.following(branch)
    journal.clear()
    return following


class Publisher:
    """The steps by which a sync publishes, in the order of the methods. The caller holds the workspace's
    lock. base: a commit that the store has. new_branch: the sync creates the branch, which must not exist;
    otherwise it must."""

    def __init__(
        self,
        opened: OpenWorkspace,
        journal: SyncJournal,
        branch: BranchName,
        base: CommitId | None,
        *,
        new_branch: bool,
    ) -> None:
        self._opened = opened
        self._repository = opened.repository
        self._journal = journal
        self._branch = branch
        self._new_branch = new_branch
        self._head: Head | None = None
        self._base = base

    def find_head(self) -> bool:
        """Read the branch. Return whether the next commit there may have the base as its parent. Raises
        `Conflict` if the branch must not exist but does, and `NotFound` for the reverse."""
        refs, dataset, branch = self._repository.refs, self._workspace.dataset, self._branch
        self._head = refs.newest(dataset, branch)
        self._repository.check_last_seen()
        if self._head is not None and not self._begins_branch and self._new_branch:
            raise already_there(self._head, f"dsv sync --branch {branch} publishes on it")
        if self._begins_branch and self._new_branch:
            self._repository.refs.check_new_branch(dataset, branch)
        elif self._begins_branch:
            if branch == self._workspace.branch:
                refs.head(dataset, branch)  # raises, with what is missing
            # A misspelt name never makes a new one.
            raise NotFound(
                f"dataset {dataset} has no branch {branch}",
                subject=branch,
                hint=f"dsv sync --new-branch {branch} makes it",
            )
        refs.check_mover(self._head, self._opened.writer.author)
        if self._head is None or self._begins_branch:
            return True
        return follows(self._repository.objects, self._head, self._base)

    def moved(self, *, changed: bool) -> Conflict:
        """Return the error if `find_head` returned False. changed: there is something to publish."""
        return self._opened.not_at_base(self._head, self._base, changed=changed)

    def publish(
        self, baseline: Baseline, done: Synced, message: str, *, jobs: int | None, skip_unsupported: bool
    ) -> None:
        """Upload changed files, and publish a commit if it differs from the base after all. Complete `done`.

        Without a message, the commit's message counts the changes. Raises `Conflict` if another writer moves
        the branch first, and `Unsupported` for files that can't be stored.
        """
        scan, tree, journal = baseline.scan, baseline.tree, self._journal
        with (
            Session.open(self._repository, self._opened.writer) as session,
            Uploader(session, journal) as uploader,
        ):
            if (
                self._base is not None and self._begins_branch
            ):  # no branch of this name keeps the base from gc
                check_whole(session, self._workspace.dataset, self._base)
            files = self._expect(scan)
            uploader.resume(journal.left.packs, journal.left.recipes)
            writer = TreeWriter(uploader, tree)
            listed = _still_listed(scan, uploader) if uploader.erasures else frozenset()
            with FileSaver[Pending | Gone](uploader, scan.root, files, self._opened.progress, jobs) as saver:
                _save_files(scan, saver, writer, done, listed)
            written = writer.finish()
            self._opened.progress.finish()
            if done.skipped and not skip_unsupported:
                raise refusal(done.skipped, str(scan.root))
            if tree is not None and written.root == tree.commit.root:
                done.added, done.changed, done.removed = 0, 0, 0
                return
            if tree is not None and written.links_moved and not baseline.held.whole:
                self._check_links(link_escapes(links_with(tree, scan, baseline.held)))
            uploader.finish()
            committed = self._commit(session, scan, written, message or _default_message(done))
        done.set_base(committed.id, committed.commit)
        done.any_change = True
        tidy(self._repository, self._opened.writer)

    def _check_links(self, escaping: list[bytes]) -> None:
        """Refuse a symlink that leads out of the dataset by way of another one that is not here."""
        if escaping:
            raise Unsupported(
                f"the symlink {show(escaping[0])} would lead out of dataset {self._workspace.dataset}, by way of what "
                "is not in this workspace; nothing was published",
                subject=show(escaping[0]),
                hint="leave the symlink out, or change it",
            )

    def name_base(self) -> None:
        """Make a named branch at the base if need be, in a sync with nothing to commit."""
        base, head = self._base, self._head
        if base is None:
            return
        if head is None or head.commit != base:  # new, or at a commit that the store has lost
            where = self._workspace.dataset, self._branch
            moved = point_branch(self._repository, self._opened.writer, where, head, base, ACTION)
            if isinstance(moved, LostRace):
                raise self._opened.not_at_base(moved.winner, base)
        self._follow(base)

    @property
    def _workspace(self) -> Workspace:
        return self._opened.workspace

    @property
    def _begins_branch(self) -> bool:
        """Return whether the branch does not exist: it never did, or it was deleted."""
        return self._head is None or self._head.entry.deleted

    def _expect(self, scan: WorkspaceScan) -> int:
        """Report the amount of work, and return the number of paths. Raises `NoRoom` if a directory store has
        no room for new content."""
        files, needed = scan.totals()
        self._opened.progress.start(files, needed)
        store = self._repository.store
        free = store.free_bytes()
        if free is not None and needed > free:
            raise NoRoom(
                f"{store.url} has {format_bytes(free)} free, and {format_bytes(needed)} may have to be written",
                subject=store.url,
                hint="free some room there, or sync some paths only: dsv sync PATH",
            )
        return files

    def _commit(self, session: Session, scan: WorkspaceScan, written: WrittenTree, message: str) -> Committed:
        dataset, base = self._workspace.dataset, self._base
        parents = () if base is None else (base,)
        draft = Draft(dataset, self._branch, self._head, parents, message, ACTION)
        commit = new_commit(self._repository, self._opened.writer, draft, written)
        number = 0 if self._head is None else self._head.number + 1

        def before_ref() -> None:
            self._opened.lock.check()
            self._journal.publishing(str(dataset), str(self._branch), number, commit.id)

        done = publish_commit(session, self._opened.writer, draft, commit, written.locator, before_ref)
        if isinstance(done, LostRace):
            raise self._opened.not_at_base(done.winner, base)
        scan.published(done.id)
        scan.state.save()
        self._workspace.set_base(done.id)
        self._follow(done.id)
        self._journal.clear()
        return done

    def _follow(self, commit: CommitId) -> None:
        self._opened = self._opened.following(self._branch)
        self._workspace.set_seen(self._branch, commit)


def _still_listed(scan: WorkspaceScan, uploader: Uploader) -> frozenset[bytes]:
    """Return files whose content was erased, and which are here as the base lists them. They stay listed."""
    found = set()
    with about(scan.root), Descent(scan.root) as descent:
        for item in scan.pending():
            if item.base is None or uploader.erasures.of(item.base) is None or item.size != item.base.size:
                continue
            if hash_file(scan, item, descent) is None and difference(item.base, item.known) is None:
                found.add(item.path)
    return frozenset(found)


def _save_files(
    scan: WorkspaceScan,
    saver: FileSaver[Pending | Gone],
    writer: TreeWriter,
    done: Synced,
    listed: frozenset[bytes],
) -> None:
    """Store what may differ from the base, and add it to the tree. listed: paths that stay as the base lists them."""
    state_saved = time.monotonic()
    for item, saved in saver.save(one for one in scan.work() if one.path not in listed):
        if isinstance(item, Gone):
            done.removed += 1
            writer.add(TreeChange(item.path, None))
            continue
        if time.monotonic() - state_saved > SAVE_EVERY:
            scan.state.save()
            state_saved = time.monotonic()
        if isinstance(saved, Problem):
            done.skipped.append(saved)
            scan.not_stored(item)
            continue
        entry, location = item.known, None
        if saved is not None:
            location = saved.stored.location
            if saved.row:
                _, file_id, recipe_id, _ = saved.stored
                entry = scan.record(
                    item, saved.row, saved.device, file_id, recipe_id, no_writer=saved.no_writer
                )
                if entry == item.base:
                    continue
        assert entry is not None
        if item.relation is Relation.ABSENT:
            done.added += 1
        else:
            done.changed += 1
        writer.add(TreeChange(item.path, entry, location))
    if torn := saver.check_together(scan.rows_in, complete=True):
        raise refusal(torn, str(scan.root))


def _default_message(done: Synced) -> str:
    """Return counts such as `2 added, 1 removed`, for a commit without a message."""
    counts = {"added": done.added, "changed": done.changed, "removed": done.removed}
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or "sync"


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
