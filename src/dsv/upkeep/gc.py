"""Garbage collection: deletes packs that nothing needs while others write, by the protocol of
docs/internals/format-writing.md, section 6.

Any error ends the collection: nothing here catches one. The next collection continues its epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from dsv.errors import Conflict, Denied, IntegrityError, NotFound, Unsupported
from dsv.format import keys
from dsv.format.index import Index
from dsv.format.records import (
    CONDEMNED_MAX,
    MAX_CONDEMNED,
    Damage,
    ExpiryAction,
    GcCondemned,
    GcDecision,
    GcDone,
    SessionOpen,
    SessionVerdict,
    WriterIdentity,
)
from dsv.repo.damage import read_damage
from dsv.repo.errors import broken, explain_denied_write, read_record
from dsv.repo.expiry import ExpiryLog, append, read_expiry
from dsv.repo.format_log import EXPIRED_COMMITS, check_log
from dsv.repo.refs.tags import named_parts
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.stores.base import (
    PutResult,
    StoreMissing,
    ask_each,
    batches,
    if_there,
    listed_size,
    parsed,
    together,
)
from dsv.upkeep.expire import GRACE_SECONDS, grace_ends
from dsv.upkeep.gc_packs import (
    AT_ONCE,
    MAX_REPACK,
    ErasedRows,
    GcPlan,
    ListedPacks,
    Missing,
    Needed,
    RewrittenPacks,
    in_batches,
    list_packs,
    order_of_copying,
    renew_locators,
    replace_indexes,
)
from dsv.upkeep.ids import IdSet, Seen
from dsv.upkeep.index_rows import IndexRows
from dsv.upkeep.reach import reach
from dsv.upkeep.roots import Known, cut_short, known_moves, list_all, read_notes, read_roots, write_notes
from dsv.values.ids import CommitId, IndexId, Nonce, PackId, SessionId
from dsv.values.names import DatasetName
from dsv.values.progress import NoProgress, Progress
from dsv.values.units import format_count, format_duration

SILENT_SECONDS = 3600.0
"""A session without a new beat for so many seconds is fenced."""
_POLL_SECONDS = 10.0
_NOTE_SECONDS = 600.0
"""Seconds between two messages about the sessions that it waits for."""
_ASKED = 1000
"""Most packs that are looked up one by one, because an index names them and a listing lacks them."""


class Options(msgspec.Struct, frozen=True):
    """Limits of one garbage collection; times are seconds."""

    max_wait: float = 6 * 3600.0
    """Seconds to wait for sessions; after that the epoch ends without deletion."""
    max_repack: int = MAX_REPACK
    """Most bytes to copy out of packs of which little is needed."""
    budget: float | None = None
    """Seconds after which copying stops. Packs copied before that are still deleted."""
    grace: float | None = None
    """Seconds from a commit's expiry until its content is freed (`expire.grace_ends`). Any value is safe."""
    silent: float = SILENT_SECONDS
    poll: float = _POLL_SECONDS


class Collected(msgspec.Struct):
    plan: GcPlan | None = None
    """None if it gave up the epoch of an earlier collection."""
    freed: dict[DatasetName, int] = msgspec.field(default_factory=dict)
    """Expired commits whose grace is over, by dataset."""
    deleted: int = 0
    """Deleted packs."""
    deleted_bytes: int = 0
    """Their bytes, except packs that an earlier collection had decided to delete."""
    spared: int = 0
    """Condemned packs that are needed after all."""
    copied: int = 0
    """Objects copied out of deleted packs."""
    copied_bytes: int = 0
    """Bytes of the new packs with these objects."""
    continued: bool = False
    """It finished the epoch of an earlier collection."""
    waited_for: tuple[str, ...] = ()
    """Sessions that may have referred to condemned packs: tool, user, host and age of each."""
    gave_up: bool = False
    """It waited too long for these sessions, and deleted nothing."""


class Collector:
    """One garbage collection. `folder` is for sets of ids, on a local disk."""

    def __init__(
        self,
        repository: Repository,
        writer: WriterIdentity,
        folder: Path,
        options: Options | None = None,
        progress: Progress | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        notes: Path | None = None,
    ) -> None:
        """notes: a file of this user for the next collection (`roots.read_notes`)."""
        self._repository = repository
        self._store = repository.store
        self._writer = writer
        self._folder = folder
        self._options = Options() if options is None else options
        self._progress = NoProgress() if progress is None else progress
        self._clock = clock
        self._sleep = sleep
        self._begun = clock()
        self._made = 0
        self._now: float
        self._wanted: IdSet
        """Ids that are kept where they are there."""
        self._unnamed: set[CommitId] = set()
        self._seen = Seen()
        self._reached: set[CommitId] = set()
        self._heads: list[CommitId] = []
        self._notes = notes
        self._named = Known()
        self._index_files: dict[IndexId, Index] = {}
        """Index files read so far: an index file never changes."""
        self._index_ends: dict[IndexId, bytes] = {}
        self._epochs: set[tuple[int, str]] = set()
        """Records of epochs that existed at the start, or that this collection has written."""
        self.result = Collected()

    def run(self) -> Collected:
        """Finish an unfinished epoch, then plan and carry out the next one.

        Raises `Denied` before anything is changed, `Conflict` if another garbage collection was faster,
        `IntegrityError` if a needed object is missing or a listing was cut short, and what the store raises.
        In these cases no more is deleted than was decided before.
        """
        self._check_store()
        self._now = now = self._check_rights()
        number, is_open = self._epoch()
        if self._notes is not None:
            moves, self._index_ends = read_notes(self._notes)
            self._named = known_moves(self._repository, moves)
        noted = set(self._index_ends)
        with IdSet(self._new_folder()) as needed, IdSet(self._new_folder()) as self._wanted:
            if is_open:
                self._progress.note("continuing a garbage collection that was not finished")
                self.result.continued = True
                with self._unless_overtaken():
                    self._carry_out(number, needed)
                number += 1
            if not self.result.gave_up:
                with self._unless_overtaken():
                    self._free(now)
                    packs = self._plan(needed)
                    if packs:
                        self._condemn(number, packs)
                        self._carry_out(number, needed)
        self._tidy_sessions()
        if self._notes is not None:
            for gone in noted - self._index_files.keys():
                del self._index_ends[gone]
            write_notes(self._notes, self._named, self._index_ends)
        return self.result

    @contextmanager
    def _unless_overtaken(self) -> Iterator[None]:
        """Replace errors of missing objects by `Conflict` if another collection has worked since."""
        try:
            yield
        except StoreMissing:
            raise
        except (IntegrityError, NotFound) as error:
            if self._listed_epochs() <= self._epochs:
                raise
            raise self._overtaken(keys.GC_PREFIX) from error

    def _overtaken(self, subject: str) -> Conflict:
        return Conflict(
            f"another garbage collection of {self._store.url} was faster",
            subject=subject,
            hint="when that has ended, run the same command again",
        )

    def _check_rights(self) -> float:
        """Return the time by the store's clock. Raises `Denied` if the user may not write or not delete."""
        with Session.open(self._repository, self._writer, resumed=False) as session:
            self._check_may_delete()
            return self._store.modified(keys.session_key(session.id, "open"))

    def _check_may_delete(self) -> None:
        """Delete a key that does not exist: a bucket refuses that without the right to delete."""
        try:
            self._store.delete(keys.pack_key(PackId.random()))
        except Denied as error:
            raise Denied(
                f"you can write to {self._store.url} but not delete there: {error.message}",
                subject=self._store.url,
                hint="ask the store's administrator for the right to delete below packs/, index/ and sessions/",
            ) from error

    def _check_store(self) -> None:
        layout, url = self._repository.format, self._store.url
        layout.check(url, writing=True)
        layout.check_at_rest(self._repository.names_url)
        check_log(self._store)
        if layout.single_writer:
            raise Unsupported(
                f"{url} can't tell which of two writers was first, so nothing can be collected there while others may "
                "write",
                subject=url,
                hint="dsv copy gives another store what is needed",
            )

    def _epoch(self) -> tuple[int, bool]:
        """Return the number of the epoch to work on, and whether it has begun."""
        self._epochs = found = self._listed_epochs()
        condemned = sorted(epoch for epoch, what in found if what == "condemned")
        unfinished = [epoch for epoch in condemned if (epoch, "done") not in found]
        if unfinished:
            return unfinished[0], True
        return (condemned[-1] + 1 if condemned else 0), False

    def _listed_epochs(self) -> set[tuple[int, str]]:
        return set(parsed(keys.parse_gc_key, list_all(self._store, keys.GC_PREFIX, 1)))

    def _reach(self, needed: IdSet) -> None:
        """Add all that names refer to now. Commits reached before are not walked again."""
        self._repository.refs.forget()
        self._repository.objects.indexes.renew()
        self._repository.objects.forget_erasures()
        following: list[CommitId] = []
        roots = read_roots(self._repository, None, self._named, following, self._heads)
        new = [commit_id for commit_id in roots if commit_id not in self._reached]
        self._progress.note(f"{format_count(len(roots), 'commit')} needed, {len(new):,} of them to look at")
        reach(self._repository.objects, new, lambda _, ids: needed.add(ids), self._seen, self._progress)
        self._reached.update(new)
        self._heads[:] = [commit_id for commit_id in dict.fromkeys(self._heads) if commit_id in self._reached]
        for commit_id in following:
            self._keep(commit_id)

    def _keep(self, commit: CommitId) -> None:
        """Want what is there of a commit that follows its branch's head, though no name leads to it, for the grace:
        the move to it may be lost."""
        grace = GRACE_SECONDS if self._options.grace is None else self._options.grace
        if self._now - self._store.modified(keys.commit_key(commit)) >= grace:
            return
        with suppress(IntegrityError, NotFound):  # a sync that was killed, or what is left of an older one
            reach(self._repository.objects, [commit], lambda _, ids: self._wanted.add(ids), Seen())
        if commit not in self._unnamed:
            self._progress.note(
                f"commit {str(commit)[:12]} is kept, though no name leads to it: see dsv verify"
            )
        self._unnamed.add(commit)

    def _damage(self) -> Damage | None:
        self._check_names()  # reads the format log again if another command has just written the first mark
        return read_damage(self._repository)

    def _rows(self) -> IndexRows:
        return IndexRows(self._repository, self._new_folder(), self._index_files, ends=self._index_ends)

    def _new_folder(self) -> Path:
        self._made += 1
        return self._folder / str(self._made)

    def _check_missing(self, missing: Missing | None, rows: IndexRows, listed: ListedPacks) -> None:
        """Raises `IntegrityError` if a needed object is missing, or the listing lacked an existing pack."""
        absent = [rows.packs[int(at)] for at in np.flatnonzero(listed.ids.places(rows.packs) < 0)]
        if len(absent) > _ASKED:
            raise cut_short(
                self._store, keys.PACK_PREFIX, f"index files name {len(absent):,} packs that it lacks"
            )
        for pack_id, size in ask_each(lambda one: listed_size(self._store, keys.pack_key(one)), absent):
            if size is not None:
                raise cut_short(self._store, keys.PACK_PREFIX, f"it lacked {keys.pack_key(pack_id)}")
        if missing is not None:
            first = keys.pack_key(missing.packs[0]) if missing.packs else keys.INDEX_PREFIX
            raise IntegrityError(
                f"{self._store.url} has lost {format_count(missing.objects, 'object')} that commits need; "
                "nothing was deleted",
                subject=first,
                hint="dsv verify lists what is lost, and dsv verify --repair looks for it elsewhere",
            )

    def _free(self, now: float) -> None:
        """Write `free` for commits whose grace is over, by the store's clock."""
        refs = self._repository.refs
        for dataset in expiring(self._repository):
            before = read_expiry(refs, dataset).freed
            choose = partial(due, self._repository, now=now, grace=self._options.grace)
            log = append(self._repository, self._writer, dataset, ExpiryAction.FREE, choose)
            if new := len(set(log.freed) - set(before)):
                self.result.freed[dataset] = new
                self._progress.note(f"{format_count(new, 'expired commit')} of {dataset} can be freed now")

    def _plan(self, needed: IdSet) -> list[PackId]:
        """Return the packs to condemn, after copying what is needed of them."""
        self._reach(needed)
        with self._rows() as rows:
            listed = list_packs(self._store)
            erased = ErasedRows(self._repository.objects.erasures.objects)
            found = Needed(rows, needed, listed, self._damage(), erased, wanted=self._wanted)
            self._check_missing(found.missing, rows, listed)
            plan = self.result.plan = found.choose(self._options.max_repack)
            self._progress.note(plan.text)
            copied = self._copy(found, rows, listed, plan) if plan.rewrite else []
        packs = sorted({*plan.whole, *copied})
        if len(packs) > MAX_CONDEMNED:
            self._progress.note(f"{len(packs) - MAX_CONDEMNED:,} of these packs will be deleted next time")
        renew_locators(self._repository, self._heads, set(packs[:MAX_CONDEMNED]))
        return packs[:MAX_CONDEMNED]

    def _copy(self, found: Needed, rows: IndexRows, listed: ListedPacks, plan: GcPlan) -> list[PackId]:
        """Copy objects to new packs, check each, and write indexes of the copies. Return the packs that were
        copied completely within the time."""
        chosen = found.rows_of(plan.rewrite)
        if not len(chosen):
            return []
        order = order_of_copying(self._repository.objects, self._heads, chosen)
        sizes = listed.sizes[listed.ids.places(rows.packs)[chosen["pack"]]]
        self._progress.start(len(plan.rewrite), plan.copied)
        copies, done = RewrittenPacks(self._repository, chosen, rows.packs), list[PackId]()
        damaged: dict[PackId, str] = {}
        for some in in_batches(chosen, order, sizes):
            budget = self._options.budget
            if budget is not None and self._clock() - self._begun >= budget:
                break
            packs = {int(number): rows.packs[int(number)] for number in np.unique(some["pack"])}
            read = together([partial(self._store.get, keys.pack_key(pack_id)) for pack_id in packs.values()])
            data = {number: memoryview(one) for number, one in zip(packs, read, strict=True)}
            for at, number in enumerate(some["pack"].tolist()):
                try:
                    copies.add(some[at : at + 1], data[number], packs[number])
                except IntegrityError as error:  # the pack stays; what was copied out of it does no harm
                    damaged.setdefault(packs[number], error.message)
            stored = int(some["stored"].sum())
            self._progress.advance(files=len(packs), bytes=stored, transferred=stored)
            self.result.copied += len(some)
            done += [pack_id for pack_id in packs.values() if pack_id not in damaged]
        copies.finish()
        for message in damaged.values():
            self._progress.note(f"{message}, so its pack is kept: dsv verify lists what is lost")
        self.result.copied_bytes = copies.stored
        if left := len(plan.rewrite) - len(done):
            if late := left - len(damaged):
                self._progress.note(f"time is up: {format_count(late, 'pack')} are left to repack next time")
            self.result.plan = msgspec.structs.replace(plan, rewrite=tuple(done), left=plan.left + left)
        return done

    def _condemn(self, number: int, packs: list[PackId]) -> None:
        record = GcCondemned(
            number, tuple(packs), Nonce.random(), self._repository.clock(), self._writer.tool
        )
        if self._put(keys.gc_key(number, "condemned"), record.encode()) is PutResult.LOST:
            raise self._overtaken(keys.gc_key(number, "condemned"))
        self._epochs.add((number, "condemned"))

    def _carry_out(self, number: int, needed: IdSet) -> None:
        key = keys.gc_key(number, "condemned")
        condemned = read_record(GcCondemned.decode, self._store, key, CONDEMNED_MAX)
        decision, listed = self._decision(number), None
        if decision is None:
            delete: tuple[PackId, ...] = ()
            if self._wait(number):
                delete, listed = self._choose(condemned, needed)
            record = GcDecision(number, delete, Nonce.random(), self._repository.clock(), self._writer.tool)
            self._put(keys.gc_key(number, "decision"), record.encode())
            decision = self._decision(number)
        if decision is None or not set(decision.packs) <= set(condemned.packs):
            key = keys.gc_key(number, "decision")
            raise broken(key, f"{key} in {self._store.url} is gone, or names packs that were not condemned")
        replace_indexes(
            self._repository, set(decision.packs), self._index_files, self._writer.tool, self._check_names,
            self._index_ends,
        )  # fmt: skip
        self._delete_packs(decision.packs)
        done = GcDone(number, Nonce.random(), self._repository.clock())
        self._put(keys.gc_key(number, "done"), done.encode())
        self._epochs |= {(number, "decision"), (number, "done")}
        self.result.deleted += len(decision.packs)
        if listed is not None:
            self.result.deleted_bytes += int(listed.sizes[listed.marked(decision.packs)].sum())
        if decision.packs:
            self.result.gave_up = False  # another collection decided while this one waited
        if not self.result.gave_up:
            self.result.spared += len(condemned.packs) - len(decision.packs)

    def _decision(self, number: int) -> GcDecision | None:
        key = keys.gc_key(number, "decision")
        return if_there(partial(read_record, GcDecision.decode, self._store, key, CONDEMNED_MAX))

    def _wait(self, number: int) -> bool:
        """Wait for sessions that may have begun before the packs were condemned; False if that took too long."""
        begun = noted = self._clock()
        waits = {one: (parts, begun) for one, parts in self._sessions().items() if _is_open(parts)}
        if waits:
            self._report_waits(number, waits, 0.0)
        while True:
            now = self._clock()
            for session_id, (parts, since) in list(waits.items()):
                if not _is_open(parts):
                    del waits[session_id]
                elif now - since >= self._options.silent:
                    self._fence(session_id)
                    del waits[session_id]
            if not waits:
                return True
            if now - noted >= _NOTE_SECONDS or now - begun >= self._options.max_wait:
                self._report_waits(number, waits, now - begun)
                noted = now
            if now - begun >= self._options.max_wait:
                self.result.gave_up = True
                return False
            self._sleep(min(self._options.poll, max(0.0, begun + self._options.max_wait - now)))
            looked = self._clock()
            again = together([partial(self._parts, one) for one in waits])
            for (session_id, (before, since)), parts in zip(list(waits.items()), again, strict=True):
                waits[session_id] = (before | parts, looked if parts - before else since)

    def _report_waits(self, number: int, waits: Iterable[SessionId], waited: float) -> None:
        self.result.waited_for = tuple(self._describe(number, one, waited) for one in sorted(waits))
        for one in self.result.waited_for:
            limit = format_duration(self._options.silent)
            self._progress.note(f"waiting for {one}; it is shut out after {limit} without a sign of life")

    def _sessions(self) -> dict[SessionId, frozenset[str]]:
        parts_of: dict[SessionId, set[str]] = {}
        listed = list_all(self._store, keys.SESSIONS_PREFIX, 1)
        for session_id, part in parsed(keys.parse_session_key, listed):
            parts_of.setdefault(session_id, set()).add(part)
        return {session_id: frozenset(parts) for session_id, parts in parts_of.items()}

    def _parts(self, session_id: SessionId) -> frozenset[str]:
        listed = self._store.list(keys.session_prefix(session_id))
        return frozenset(part for _, part in parsed(keys.parse_session_key, listed))

    def _describe(self, number: int, session_id: SessionId, waited: float) -> str:
        """waited: seconds since the packs were condemned; the age before that is by the store's clock."""
        key = keys.session_key(session_id, "open")

        def read() -> str:
            opened = read_record(SessionOpen.decode, self._store, key)
            age = self._store.modified(keys.gc_key(number, "condemned")) - self._store.modified(key)
            lasted = format_duration(max(0.0, age) + waited)
            return f"{opened.tool} of {opened.author} on {opened.host}, {lasted} old"

        return if_there(read) or f"session {session_id}"

    def _fence(self, session_id: SessionId) -> None:
        """Forbid the session to publish. If it was faster, its own verdict names its commit."""
        self._progress.note(
            f"session {session_id} has been silent for too long, and may not publish any more"
        )
        self._put(keys.session_key(session_id, "verdict"), SessionVerdict(None, Nonce.random()).encode())

    def _choose(self, condemned: GcCondemned, needed: IdSet) -> tuple[tuple[PackId, ...], ListedPacks]:
        self._progress.note("rechecking what is still in use")
        self._reach(needed)
        with self._rows() as rows:
            listed = list_packs(self._store)
            found = Needed(
                rows, needed, listed, self._damage(), condemned=condemned.packs, wanted=self._wanted
            )
            self._check_missing(found.missing, rows, listed)
            return found.deletable(), listed

    def _delete_packs(self, packs: tuple[PackId, ...]) -> None:
        if packs:
            self._progress.note(f"deleting {format_count(len(packs), 'pack')}")
            self._progress.start(len(packs), None)
        for some in batches(packs, AT_ONCE):
            self._check_names()
            together([partial(self._store.delete, keys.pack_key(one)) for one in some])
            self._progress.advance(files=len(some))

    def _tidy_sessions(self) -> None:
        """Delete the keys of closed sessions, `closed` last, and the beats of fenced ones."""
        for session_id, parts in self._sessions().items():
            prefix = keys.session_prefix(session_id)
            if "closed" in parts:
                together([partial(self._store.delete, prefix + one) for one in sorted(parts - {"closed"})])
                self._store.delete(f"{prefix}closed")
            elif "verdict" in parts and (beats := sorted(parts - {"open", "verdict"})):
                verdict = read_record(SessionVerdict.decode, self._store, f"{prefix}verdict")
                if verdict.commit is None:
                    together([partial(self._store.delete, prefix + one) for one in beats])

    def _check_names(self) -> None:
        """Raises if a move of the names has begun: no deletion or decision made here would then count."""
        self._repository.refs.check_not_moved("this garbage collection")

    def _put(self, key: str, data: bytes) -> PutResult:
        self._check_names()
        with explain_denied_write(self._store.url):
            return self._store.put_if_absent(key, data)


def expiring(repository: Repository) -> list[DatasetName]:
    """Return the datasets that may have expired commits. Makes no request if the store never had any."""
    if not repository.format.has(EXPIRED_COMMITS):
        return []
    datasets = named_parts(DatasetName, repository.store.folders(keys.REFS_PREFIX))
    return [dataset for dataset in datasets if repository.refs.home(dataset) == dataset]


def due(repository: Repository, log: ExpiryLog, now: float, grace: float | None) -> list[CommitId]:
    """Return the expired commits to free. Names are read after the log (`dsv.repo.expiry`)."""
    old = {number for (_, number), end in grace_ends(repository, [log], grace).items() if now >= end}
    old_states = {commit: state for commit, state in log.expired.items() if state.entry.number in old}
    if not old_states:
        return []
    repository.refs.forget()
    heads, tags = repository.refs.names(log.dataset)
    named = {head.commit for head in heads} | {value.commit for _, value in tags}
    return [
        commit
        for commit, state in old_states.items()
        if state.entry.action is ExpiryAction.DELETE or commit not in named
    ]


def _is_open(parts: frozenset[str]) -> bool:
    return "verdict" not in parts and "closed" not in parts
