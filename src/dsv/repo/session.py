"""Sessions, which protect a writer's objects from gc, and the order in which a commit becomes visible.

A session is opened before the index is read, renewed under new keys while it lives, and closed after the ref
was written. Before the ref it declares its commit under a key that gc may create instead: the first one wins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial

from msgspec.structs import replace

from dsv.errors import Conflict, DsvError, IntegrityError, Unreachable
from dsv.format import keys
from dsv.format.codec import carrying
from dsv.format.index import Index, encode_filter
from dsv.format.locator import Location, Locator, ObjectKind
from dsv.format.records import (
    CONDEMNED_MAX,
    CommitRecord,
    GcCondemned,
    GcDecision,
    RefEntry,
    SessionBeat,
    SessionClosed,
    SessionOpen,
    SessionVerdict,
    WriterIdentity,
)
from dsv.periodic import Periodic
from dsv.repo.damage import learn_damage
from dsv.repo.errors import ONE_WINS_AGAIN, explain_denied_write, read_record
from dsv.repo.expiry import check_not_expired, keep_named
from dsv.repo.format_log import ERASED_CONTENTS
from dsv.repo.objects.indexes import FILTERED_BYTES
from dsv.repo.refs.branches import Head, LostRace
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader, reach_tree
from dsv.stores.base import Bytes, PutResult, listed_size, together
from dsv.values.ids import CommitId, Id, IndexId, Nonce, PackId, SessionId
from dsv.values.names import BranchName, DatasetName

# gc may fence a session that was not renewed for many times this long.
RENEW_SECONDS = 60.0


class Session(AbstractContextManager["Session"]):
    """One writer's claim on the store, from before it reads the index until its commit is published.

    A context manager: it renews itself in a thread while it is open, and leaves its keys to gc. At the end of
    its block it is closed, unless it has declared a commit, or was interrupted and can be continued.
    """

    def __init__(
        self,
        repository: Repository,
        session_id: SessionId,
        opened: SessionOpen,
        condemned: frozenset[PackId],
        writer: WriterIdentity,
        *,
        collected: bool = False,
        resumed: bool = True,
    ) -> None:
        """collected: gc has run, so a commit may exist without the objects that it refers to."""
        self.repository = repository
        self.writer = writer
        self.collected = collected
        self.id = session_id
        self._opened = opened
        self.condemned = condemned
        self._packs = repository.objects.packs
        self._heartbeats = 0
        self._declared = False
        self._resumed = resumed
        self._renewal = Periodic("dsv-session", self._renew, first=RENEW_SECONDS)

    @classmethod
    def open(cls, repository: Repository, writer: WriterIdentity, *, resumed: bool = True) -> Session:
        """Write the session, then read what gc has condemned, so that one of the two sees the other. Index
        files are read again, because an epoch of gc may have ended since.

        resumed: if it is interrupted, gc keeps what was uploaded, for a command that continues. This is the first
        write of a sync, so it proves that this user may write.
        """
        repository.format.check(repository.store.url, writing=True)
        repository.format.check_at_rest(repository.names_url)
        session_id = SessionId.random()
        opened = SessionOpen(Nonce.random(), repository.clock(), writer.author, writer.host, writer.tool)
        with explain_denied_write(repository.store.url):
            repository.store.put_if_absent(keys.session_key(session_id, "open"), opened.encode())
        condemned, collected = _read_gc(repository)
        session = cls(repository, session_id, opened, condemned, writer, collected=collected, resumed=resumed)
        repository.objects.forget_erasures()
        repository.objects.erasures  # noqa: B018 (read now, and again before the commit is named)
        repository.objects.indexes.renew()
        if collected:
            repository.objects.packs.renew()
        session._renewal.start()
        return session

    def __exit__(self, _: object = None, error: BaseException | None = None, *__: object) -> None:
        self.repository.refs.proved = False
        self._renewal.stop()
        is_over = error is None or (isinstance(error, DsvError) and not isinstance(error, Unreachable))
        if (is_over or not self._resumed) and not self._declared:
            self.close()  # otherwise gc would wait for this session, although nothing will name its objects

    def find(self, kind: ObjectKind, object_id: Id) -> Location | None:
        """Return where the store has the object, in a pack that this session may rely on."""
        return self.repository.objects.indexes.find(kind, object_id, usable=self.may_rely)

    def may_rely(self, kind: ObjectKind, object_id: Id, pack_id: PackId) -> bool:
        """Return whether the store has the object in this pack, as far as known here, and gc will keep it."""
        return pack_id not in self.condemned and self._packs.may_rely(kind, object_id, pack_id)

    def avoids(self, pack_id: PackId) -> bool:
        """Return whether a pack is condemned, or may have lost or damaged contents. Sends no request."""
        return pack_id in self.condemned or self._packs.is_suspect(pack_id)

    @property
    def avoids_any(self) -> bool:
        return bool(self.condemned) or self._packs.any_suspect

    def has_pack(self, pack_id: PackId, size: int) -> bool:
        """Return whether a pack of an earlier, killed session still exists, whole and not condemned."""
        store = self.repository.store
        return pack_id not in self.condemned and listed_size(store, keys.pack_key(pack_id)) == size

    def put_pack(self, pack_id: PackId, data: Bytes) -> None:
        """Store a pack; it is durable when this returns."""
        self.repository.store.put_if_absent(keys.pack_key(pack_id), data)
        self._packs.stored(pack_id)

    def put_index(self, encoded: bytes) -> IndexId:
        return put_index(self.repository, encoded)

    def put_commit(self, commit: CommitRecord, locator: Locator | None) -> CommitId:
        """Store the commit together with its locator, if known, which has a second copy of the commit.

        Packs and indexes must have what it refers to. Raises `IntegrityError` if the store lacks a parent.
        """
        self.repository.objects.check_stored(commit.parents)
        store, encoded = self.repository.store, commit.encode()
        commit_id = CommitId.hash(encoded)
        puts = [partial(store.put_if_absent, keys.commit_key(commit_id), encoded)]
        frame = None if locator is None else carrying(locator.encode(), encoded)
        if frame is not None:
            puts.append(partial(store.put_if_absent, keys.locator_key(commit_id), frame))
        together(puts)
        if frame is not None:
            self.repository.objects.remember_commit(commit_id, encoded, frame)
        return commit_id

    def publish(
        self,
        dataset: DatasetName,
        branch: BranchName,
        after: Head | None,
        entry: RefEntry,
        before_ref: Callable[[], None] = lambda: None,
        put_commit: Callable[[], object] = lambda: None,
    ) -> Head | LostRace:
        """Declare the commit, then move the branch. A lost race is returned; being fenced raises `Conflict`.

        `before_ref` is called between the two, so its writes exist whenever the ref does. `put_commit` stores
        a commit that is not stored yet.
        """
        assert entry.commit is not None
        self.declare(entry.commit, after, put_commit)
        before_ref()
        with self.ending():
            return self.repository.refs.move(dataset, branch, after, entry)

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Close the session after its last write, which is made in this context, also if `Conflict` refused
        it. If the outcome of the write is unknown, the session stays open and gc has to wait."""
        try:
            yield
        except Conflict:
            self.close()
            raise
        self.close()

    def close(self) -> None:
        """Write that the session has ended. If this fails, gc waits until it may fence the session."""
        closed = SessionClosed(Nonce.random(), self.repository.clock())
        with suppress(DsvError):
            self.repository.store.put_if_absent(keys.session_key(self.id, "closed"), closed.encode())

    def declare(
        self, commit_id: CommitId, after: Head | None = None, put_commit: Callable[[], object] = lambda: None
    ) -> None:
        """Declare a commit just before a ref names it and follows the move `after`.

        `put_commit` stores a commit that is not stored yet, while the store is checked. Raises `Conflict` if
        gc has fenced this session or anything was erased since it was opened, and `IntegrityError` if the
        store overwrites existing keys.
        """

        self._declared = True

        def put_verdict() -> None:
            put_commit()
            key, verdict = keys.session_key(self.id, "verdict"), SessionVerdict(commit_id, Nonce.random())
            if self.repository.store.put_if_absent(key, verdict.encode()) is PutResult.LOST:
                raise Conflict(
                    "this command was suspended so long that the store's gc ended its session; nothing was published",
                    subject=str(self.id),
                    hint="run the same command again: what was uploaded is used again where it still exists",
                )

        checks: list[Callable[[], None]] = [
            put_verdict,
            self._check_one_wins,
            self.repository.check_last_seen,
        ]
        if after is not None and not self.repository.format.single_writer:
            checks.append(partial(self.repository.refs.check_same, after))
        together(checks)
        self._check_erased()
        self.repository.refs.proved = True

    def _check_erased(self) -> None:
        """Raises `Conflict` if anything was erased since this session was opened: the commit may rely on
        erased parts. Called after the verdict, which an erasing process looks for."""
        objects = self.repository.objects
        if not self.repository.format.has(ERASED_CONTENTS):
            return
        known = objects.erasures.known
        objects.forget_erasures()
        if objects.erasures.known.keys() - known.keys():
            self.close()
            raise Conflict(
                f"something was erased from {self.repository.store.url} meanwhile, so nothing was published",
                subject=str(self.id),
                hint="run the same command again",
            )

    def _check_one_wins(self) -> None:
        """Write the session's own first key again, which must lose.

        A server may stop honouring conditional writes long after `dsv init` has tested them, for example
        after an upgrade. The ref would then overwrite the move of another writer, who has already read it
        back and would not notice.
        """
        if self.repository.format.single_writer:
            return
        key = keys.session_key(self.id, "open")
        again = replace(self._opened, nonce=Nonce.random())
        if self.repository.store.put_if_absent(key, again.encode()) is PutResult.WON:
            url = self.repository.store.url
            raise IntegrityError(
                f"{url} no longer lets one writer win: it took {key} twice; no branch and no tag was written",
                subject=key,
                hint=ONE_WINS_AGAIN,
            )

    def _renew(self) -> float:
        heartbeat = SessionBeat(Nonce.random(), self.repository.clock())
        # The store may be out of reach for a while. The declaration decides whether that was too long.
        with contextlib.suppress(DsvError):
            key = keys.session_beat_key(self.id, self._heartbeats)
            self.repository.store.put_if_absent(key, heartbeat.encode())
            self._heartbeats += 1
        return RENEW_SECONDS


def put_index(repository: Repository, encoded: bytes) -> IndexId:
    """Store an index file, and a filter if it is large. All packs that it names must be stored already."""
    index_id = IndexId.random()
    repository.store.put_if_absent(keys.index_key(index_id), encoded)
    if len(encoded) >= FILTERED_BYTES:
        described = encode_filter(index_id, Index.parse(encoded, verify=False))
        repository.store.put_if_absent(keys.index_filter_key(index_id), described)
    repository.objects.indexes.add(index_id, encoded)
    return index_id


@contextlib.contextmanager
def naming(
    repository: Repository,
    writer: WriterIdentity,
    dataset: DatasetName,
    commit_id: CommitId,
    name: str,
    after: Head | None = None,
) -> Iterator[None]:
    """Let the writes in this context name the commit: the store has it whole, and gc will know of it.

    name: the ref, such as `tag v1`, for messages. after: the branch move that the new name follows.

    Raises `IntegrityError` if the store has no such commit, whatever local copies say, `NotFound` if it is
    expired, and `Conflict` if gc is removing it or has fenced this session.
    """
    repository.objects.check_stored([commit_id])
    with Session.open(repository, writer) as session:
        check_whole(session, dataset, commit_id)
        session.declare(commit_id, after)
        with session.ending():
            yield
            keep_named(repository, writer, dataset, commit_id, name)


def point_branch(
    repository: Repository,
    writer: WriterIdentity,
    where: tuple[DatasetName, BranchName],
    after: Head | None,
    commit_id: CommitId,
    action: str,
) -> Head | LostRace:
    """Move a branch to a commit, or create it there. after: its present head. Raises the same as `naming`."""
    entry = RefEntry.of(writer, repository.clock(), commit_id, action)
    dataset, branch = where
    with naming(repository, writer, dataset, commit_id, f"branch {branch}", after):
        return repository.refs.move(*where, after, entry)


def check_whole(session: Session, dataset: DatasetName, commit_id: CommitId) -> None:
    """Raises `NotFound` if the commit is expired, and `Conflict` if an object of it is missing or condemned.

    Call this after the session was opened: a gc that frees the commit from then on waits for the session's
    verdict. Sends no request if gc never ran, and few if a branch or a tag has kept the commit.
    """
    check_not_expired(session.repository.refs, dataset, commit_id)
    if not session.collected:
        return
    kept = _is_kept(session.repository, dataset, commit_id)
    if kept and not session.condemned:
        return
    tree = TreeReader(session.repository.objects, commit_id)
    try:
        for kind, object_id, location in reach_tree(tree):
            known = kept and location is not None and location.pack not in session.condemned
            if not known and session.find(kind, object_id) is None:
                raise _removed(session, commit_id)
    except IntegrityError as error:
        if kept:
            raise
        raise _removed(session, commit_id) from error


def _removed(session: Session, commit_id: CommitId) -> Conflict:
    doing = "is being removed" if session.condemned else "was removed"
    return Conflict(
        f"commit {str(commit_id)[:12]} {doing} from {session.repository.store.url} by gc",
        subject=str(commit_id),
        hint="sync its files again, if somebody still has them",
    )


def _is_kept(repository: Repository, dataset: DatasetName, commit_id: CommitId) -> bool:
    """Return whether a branch has the commit in its history or a tag names it, so every gc has kept it."""
    from dsv.repo.history import is_ancestor

    heads, tags = repository.refs.names(dataset)
    if any(value.commit == commit_id for _, value in tags):
        return True
    commits = [head.commit for head in heads if head.commit is not None]
    return commit_id in commits or any(is_ancestor(repository.objects, commit_id, one) for one in commits)


def _read_gc(repository: Repository) -> tuple[frozenset[PackId], bool]:
    """Return the packs that unfinished epochs may delete, and whether any epoch exists. Damage marks are learned
    too."""
    listed = [item.key for item in repository.store.list(keys.GC_PREFIX)]
    found = {keys.parse_gc_key(key) for key in listed} - {None}
    packs: set[PackId] = set()
    for epoch in sorted(epoch for epoch, what in filter(None, found) if what == "condemned"):
        if (epoch, "done") not in found:
            is_decided = (epoch, "decision") in found  # then the other condemned packs stay
            key = keys.gc_key(epoch, "decision" if is_decided else "condemned")
            decode = GcDecision.decode if is_decided else GcCondemned.decode
            packs.update(read_record(decode, repository.store, key, CONDEMNED_MAX).packs)
    learn_damage(repository, listed)
    return frozenset(packs), bool(found)
