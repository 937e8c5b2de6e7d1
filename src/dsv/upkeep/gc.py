"""Garbage collection: packs that nothing needs are deleted while others write, by the protocol of
docs/internals/format-writing.md, section 6.

Any error ends it where it is: nothing here catches one. A later one continues an epoch that is not done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from dsv.errors import Conflict, IntegrityError, NotFound, Unsupported
from dsv.format import index, keys
from dsv.format.codec import Codec
from dsv.format.columns import cut
from dsv.format.damage import Damage
from dsv.format.expiry import ExpiryAction
from dsv.format.index import Index, IndexBuilder
from dsv.format.index_merge import IndexMerge, MergedFile
from dsv.format.locator import Location, Locator, ObjectKind
from dsv.format.records import (
    CONDEMNED_MAX,
    MAX_CONDEMNED,
    GcCondemned,
    GcDecision,
    GcDone,
    SessionOpen,
    SessionVerdict,
    Writer,
)
from dsv.repo.damage import read_damage
from dsv.repo.errors import may_write, put_back, read_record
from dsv.repo.expiry import ExpiryLog, append, read_expiry
from dsv.repo.format_log import EXPIRED_COMMITS
from dsv.repo.objects.objects import checked
from dsv.repo.refs.tags import named_parts
from dsv.repo.repository import Repository
from dsv.repo.session import Session, put_index
from dsv.store.base import Put, StoreMissing, together
from dsv.transfer.packing import PackStream, SealedPack
from dsv.upkeep.gc_plan import ListedPacks, Missing, Needed, Plan, look_again
from dsv.upkeep.ids import IdSet, Seen
from dsv.upkeep.index_rows import IndexRows, Rows, id_of
from dsv.upkeep.reach import reach
from dsv.upkeep.roots import cut_short, list_all, read_roots
from dsv.values.ids import CommitId, Id, IndexId, Nonce, PackId, SessionId
from dsv.values.names import DatasetName
from dsv.values.progress import NoProgress, Progress

SILENT_SECONDS = 3600.0
"""A session without a new beat for so long is fenced."""
GRACE_SECONDS = 14 * 24 * 3600.0
_POLL_SECONDS = 10.0
_AT_ONCE = 256
_ASKED = 1000
"""Packs that an index names and a listing lacks are asked for one by one, so many at most."""
_INDEX_ROWS = 1 << 18
T = TypeVar("T")


class Options(msgspec.Struct, frozen=True):
    """Limits of one garbage collection."""

    max_wait: float = 6 * 3600.0
    """Seconds that it waits for sessions; after that its epoch ends without deletion."""
    max_repack: int = 100 * 10**9
    """Bytes that it copies out of packs of which little is needed."""
    grace: float = GRACE_SECONDS
    """Seconds that a commit has been expired before its content goes, by the store's clock."""
    silent: float = SILENT_SECONDS
    poll: float = _POLL_SECONDS


class OpenSession(msgspec.Struct, frozen=True):
    """A session that may refer to condemned packs."""

    id: SessionId
    author: str
    host: str
    tool: str
    age: float
    """Seconds, by the store's clock."""


class Collected(msgspec.Struct):
    """The result of a garbage collection."""

    plan: Plan | None = None
    """None if it only continued an earlier one."""
    freed_commits: int = 0
    deleted: int = 0
    """Packs that are gone."""
    spared: int = 0
    """Condemned packs that are needed after all."""
    copied: int = 0
    """Objects that were copied out of packs that are gone."""
    continued: bool = False
    """It has ended the epoch of an earlier one."""
    waited_for: tuple[OpenSession, ...] = ()
    gave_up: bool = False
    """It has waited too long for these sessions, and has deleted nothing."""
    stale: int = 0
    """Packs that index files name for objects that nothing needs, and that are gone."""


class Collector:
    """One garbage collection. `folder` is for sets of ids, on a local disk."""

    def __init__(
        self,
        repository: Repository,
        writer: Writer,
        folder: Path,
        options: Options | None = None,
        progress: Progress | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._repository = repository
        self._store = repository.store
        self._writer = writer
        self._folder = folder
        self._options = Options() if options is None else options
        self._progress = NoProgress() if progress is None else progress
        self._clock = clock
        self._sleep = sleep
        self._made = 0
        self._seen = Seen()
        self._reached: set[CommitId] = set()
        self.result = Collected()

    def run(self) -> Collected:
        """Continue an epoch that is not done, else plan and carry out the next one.

        Raises `Conflict` if another garbage collection was faster, `IntegrityError` if something that is needed is
        missing or a listing was cut short, and what the store raises. Nothing is deleted then, or no more than what
        was decided before.
        """
        self._check_store()
        number, is_open = self._epoch()
        with IdSet(self._new_folder()) as needed:
            if is_open:
                self._progress.note(f"continuing epoch {number} of an earlier garbage collection")
                self.result.continued = True
                self._carry_out(number, needed)
            elif packs := self._begin(needed):
                self._condemn(number, packs)
                self._carry_out(number, needed)
        self._tidy_sessions()
        return self.result

    def _begin(self, needed: IdSet) -> list[PackId]:
        """Return the packs to condemn. What is needed of them is copied by then."""
        self._free()
        plan = self._plan(needed)
        return sorted({*plan.whole, *plan.rewrite})[:MAX_CONDEMNED]

    def look(self) -> Plan:
        """Return the plan, and write nothing."""
        self._check_store()
        with IdSet(self._new_folder()) as needed:
            return self._plan(needed, dry=True)

    def _check_store(self) -> None:
        layout, url = self._repository.format, self._store.url
        layout.check(url, writing=True)
        layout.check_at_rest(self._repository.names_url)
        if layout.single_writer:
            raise Unsupported(
                f"{url} can't tell which of two writers was first, so nothing can be collected there while others may "
                "write",
                subject=url,
                hint="dsv copy gives another store what is needed",
            )

    def _epoch(self) -> tuple[int, bool]:
        """Return the number of the epoch to work on, and whether it was begun."""
        listed = list_all(self._store, keys.GC_PREFIX, 1)
        found = {keys.parse_gc_key(item.key) for item in listed}
        condemned = sorted(epoch for epoch, what in filter(None, found) if what == "condemned")
        unfinished = [epoch for epoch in condemned if (epoch, "done") not in found]
        if unfinished:
            return unfinished[0], True
        return (condemned[-1] + 1 if condemned else 0), False

    def _freed(self, dataset: DatasetName) -> set[CommitId]:
        return read_expiry(self._repository.refs, dataset).freed

    def _reach(self, needed: IdSet) -> None:
        """Add what names refer to now. What was reached before is not walked again."""
        self._repository.refs.forget()
        self._repository.objects.indexes.renew()
        roots = read_roots(self._repository, freed=self._freed)
        new = [one for one in roots.commits if one not in self._reached]
        self._progress.note(f"{len(roots.commits):,} commits are needed, {len(new):,} are looked at")

        def found(kind: ObjectKind, ids: bytes) -> None:
            needed.add(ids)

        reach(self._repository.objects, new, found, self._seen, self._progress)
        self._reached.update(new)

    def _list_packs(self) -> ListedPacks:
        """Return all packs: those of a listing, and what others show if that ended early."""
        last, folders = "", set[str]()

        def listed(prefix: str, after: str | None = None) -> Iterator[tuple[PackId, int]]:
            nonlocal last
            for item in self._store.list(prefix, after):
                last = max(last, item.key)
                folders.add(item.key.removeprefix(keys.PACK_PREFIX).partition("/")[0])
                pack_id = keys.parse_pack_key(item.key)
                if pack_id is not None:
                    yield pack_id, item.size

        def found() -> Iterator[tuple[PackId, int]]:
            yield from listed(keys.PACK_PREFIX)
            yield from listed(keys.PACK_PREFIX, last or None)
            for folder in sorted(set(self._store.folders(keys.PACK_PREFIX)) - folders):
                yield from listed(f"{keys.PACK_PREFIX}{folder}/")

        return ListedPacks(found())

    def _damage(self) -> Damage | None:
        self._check_names()  # this reads the format log again if somebody has just put the first mark
        found = read_damage(self._repository)
        return None if found is None else found[1]

    def _rows(self) -> IndexRows:
        return IndexRows(self._repository, self._new_folder())

    def _new_folder(self) -> Path:
        self._made += 1
        return self._folder / str(self._made)

    def _check_missing(self, missing: Missing | None, rows: IndexRows, listed: ListedPacks) -> None:
        """Raise `IntegrityError` if something that is needed is nowhere, or the listing lacked a pack that is there."""
        places = listed.places(rows.packs)
        absent = [rows.packs[int(at)] for at in np.flatnonzero(places < 0)]
        if len(absent) > _ASKED:
            raise cut_short(
                self._store, keys.PACK_PREFIX, f"index files name {len(absent):,} packs that it lacks"
            )
        there = together([partial(self._has_pack, one) for one in absent])
        for pack_id, found in zip(absent, there, strict=True):
            if found:
                raise cut_short(self._store, keys.PACK_PREFIX, f"it lacked {keys.pack_key(pack_id)}")
        if missing is not None:
            first = keys.pack_key(missing.packs[0]) if missing.packs else keys.INDEX_PREFIX
            raise IntegrityError(
                f"{missing.objects:,} objects that datasets need are in no pack of {self._store.url} that is there; "
                "nothing was deleted",
                subject=first,
                hint="dsv verify lists what is lost, and dsv verify --repair looks for it elsewhere",
            )
        self.result.stale = len(absent)

    def _has_pack(self, pack_id: PackId) -> bool:
        key = keys.pack_key(pack_id)
        return any(item.key == key for item in self._store.list(key))

    def _free(self) -> None:
        """Put `free` for commits whose grace is over, by the store's clock."""
        if not self._repository.format.has(EXPIRED_COMMITS):
            return
        with Session.open(self._repository, self._writer) as session:
            try:
                now = self._store.modified(keys.session_open_key(session.id))
                for dataset in named_parts(DatasetName, self._store.folders(keys.REFS_PREFIX)):
                    before = len(read_expiry(self._repository.refs, dataset).freed)
                    choose = partial(self._due, now=now)
                    log = append(self._repository, self._writer, dataset, ExpiryAction.FREE, choose)
                    self.result.freed_commits += len(log.freed) - before
            finally:
                session.close()

    def _due(self, log: ExpiryLog, now: float) -> list[CommitId]:
        """Return the commits to free. Names are read after the log (`dsv.repo.expiry`)."""
        expired = log.expired
        numbers = {state.entry.number for state in expired.values()}
        old = {
            number for number in numbers if now - self._store.modified(log.key(number)) >= self._options.grace
        }
        due = {commit: state for commit, state in expired.items() if state.entry.number in old}
        if not due:
            return []
        self._repository.refs.forget()
        heads, tags = self._repository.refs.names(log.dataset)
        named = {head.commit for head in heads} | {value.commit for _, value in tags}
        return [
            commit
            for commit, state in due.items()
            if state.entry.action is ExpiryAction.DELETE or commit not in named
        ]

    def _plan(self, needed: IdSet, *, dry: bool = False) -> Plan:
        self._reach(needed)
        with self._rows() as rows:
            listed = self._list_packs()
            found = Needed(rows, needed, listed, self._damage())
            self._check_missing(found.missing, rows, listed)
            plan = self.result.plan = found.choose(self._options.max_repack)
            if not dry and plan.rewrite:
                self._copy(found.rows_of(plan.rewrite), rows)
        return plan

    def _copy(self, chosen: Rows, rows: IndexRows) -> None:
        """Copy objects to new packs, each checked, and then put an index of the copies."""
        self._progress.note(f"copying {len(chosen):,} objects out of packs of which little is needed")
        copies = _Copies(self._repository)
        pack, data = -1, memoryview(b"")
        for at in range(len(chosen)):
            if int(chosen["pack"][at]) != pack:
                pack = int(chosen["pack"][at])
                data = memoryview(self._store.get(keys.pack_key(rows.packs[pack])))
            copies.add(chosen[at : at + 1], data, rows.packs[pack])
        copies.finish()
        self.result.copied = len(chosen)

    def _condemn(self, number: int, packs: list[PackId]) -> None:
        self._progress.note(f"{len(packs):,} packs are condemned")
        record = GcCondemned(number, tuple(packs), Nonce.random(), self._now(), self._writer.tool)
        if self._put(keys.gc_condemned_key(number), record.encode()) is Put.LOST:
            raise Conflict(
                f"another garbage collection of {self._store.url} was faster",
                subject=keys.gc_condemned_key(number),
                hint="when that has ended, run the same command again",
            )

    def _carry_out(self, number: int, needed: IdSet) -> None:
        key = keys.gc_condemned_key(number)
        condemned = read_record(GcCondemned.decode, self._store, key, CONDEMNED_MAX)
        decision = self._decision(number)
        if decision is None:
            delete = self._choose(number, condemned, needed) if self._wait(number) else ()
            record = GcDecision(number, delete, Nonce.random(), self._now(), self._writer.tool)
            self._put(keys.gc_decision_key(number), record.encode())
            decision = self._decision(number)
        if decision is None or not set(decision.packs) <= set(condemned.packs):
            key = keys.gc_decision_key(number)
            raise IntegrityError(
                f"{key} in {self._store.url} is gone, or names packs that were not condemned",
                subject=key, hint=put_back(key),
            )  # fmt: skip
        self._replace_indexes(set(decision.packs))
        self._delete_packs(decision.packs)
        done = GcDone(number, Nonce.random(), self._now())
        self._put(keys.gc_done_key(number), done.encode())
        self.result.deleted = len(decision.packs)
        self.result.spared = 0 if self.result.gave_up else len(condemned.packs) - len(decision.packs)

    def _decision(self, number: int) -> GcDecision | None:
        try:
            return read_record(GcDecision.decode, self._store, keys.gc_decision_key(number), CONDEMNED_MAX)
        except StoreMissing:
            raise
        except NotFound:
            return None

    def _wait(self, number: int) -> bool:
        """Wait for sessions that may have begun before the packs were condemned; False if that took too long."""
        begun = self._clock()
        waits = {one: (parts, begun) for one, parts in self._sessions().items() if _is_open(parts)}
        if waits:
            self.result.waited_for = tuple(self._describe(number, one) for one in sorted(waits))
            for one in self.result.waited_for:
                self._progress.note(
                    f"waiting for {one.tool} of {one.author} on {one.host}, {one.age / 60:.0f} min old"
                )
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
            if now - begun >= self._options.max_wait:
                self.result.gave_up = True
                return False
            self._sleep(min(self._options.poll, max(0.0, begun + self._options.max_wait - now)))
            looked = self._clock()
            again = together([partial(self._parts, one) for one in waits])
            for (session_id, (before, since)), parts in zip(list(waits.items()), again, strict=True):
                waits[session_id] = (before | parts, looked if parts - before else since)

    def _sessions(self) -> dict[SessionId, frozenset[str]]:
        """Return the parts of every session that is there."""
        found: dict[SessionId, set[str]] = {}
        for item in list_all(self._store, keys.SESSIONS_PREFIX, 1):
            parsed = keys.parse_session_key(item.key)
            if parsed is not None:
                found.setdefault(parsed[0], set()).add(parsed[1])
        return {one: frozenset(parts) for one, parts in found.items()}

    def _parts(self, session_id: SessionId) -> frozenset[str]:
        listed = [
            keys.parse_session_key(item.key) for item in self._store.list(keys.session_prefix(session_id))
        ]
        return frozenset(parsed[1] for parsed in listed if parsed is not None)

    def _describe(self, number: int, session_id: SessionId) -> OpenSession:
        key = keys.session_open_key(session_id)
        try:
            opened = read_record(SessionOpen.decode, self._store, key)
            age = self._store.modified(keys.gc_condemned_key(number)) - self._store.modified(key)
            return OpenSession(session_id, opened.author, opened.host, opened.tool, max(0.0, age))
        except StoreMissing:
            raise
        except NotFound:
            return OpenSession(session_id, "somebody", "an unknown machine", "a session", 0.0)

    def _fence(self, session_id: SessionId) -> None:
        """Say that the session may not publish any more. If it was faster, its verdict names its commit."""
        self._progress.note(
            f"session {session_id} has been silent for too long, and may not publish any more"
        )
        verdict = SessionVerdict(None, Nonce.random())
        self._put(keys.session_verdict_key(session_id), verdict.encode())

    def _choose(self, number: int, condemned: GcCondemned, needed: IdSet) -> tuple[PackId, ...]:
        self._progress.note("looking again at what is needed")
        self._reach(needed)
        with self._rows() as rows:
            listed = self._list_packs()
            found = look_again(rows, needed, listed, condemned.packs, self._damage())
            self._check_missing(found.missing, rows, listed)
            return found.delete

    def _replace_indexes(self, gone: set[PackId]) -> None:
        """Write index files without the rows of these packs, and a record of what stands now; then delete the old ones.

        Those of which nothing is left are only deleted.
        """
        if not gone:
            return
        indexes = self._repository.objects.indexes
        indexes.list_again()
        listed = indexes.listed
        new: dict[IndexId, MergedFile | None] = {}
        for ids in _batches(sorted(listed.sizes), _AT_ONCE):
            for index_id, packs in zip(
                ids, together([partial(self._packs_of, one) for one in ids]), strict=True
            ):
                left = self._without(index_id, gone) if gone & packs else None
                if left is not None:
                    new[index_id] = left.file
        if not new:
            return
        runs = [
            tuple(one for file in run if (one := new.get(file.id, file)) is not None)
            for run in listed.standing.runs
        ]
        runs = [run for run in runs if run]
        replaced = sorted({*new, *listed.standing.replaced} - {one.id for run in runs for one in run})
        if runs:
            record = IndexMerge.of(runs, replaced, self._now(), self._writer.tool)
            key = keys.index_merge_key(max(listed.records, default=-1) + 1, IndexId.random())
            self._put(key, record.encode())
        self._check_names()
        together([partial(self._delete_index, one) for one in sorted(new)])
        indexes.renew()

    def _packs_of(self, index_id: IndexId) -> set[PackId]:
        """Return the packs that an index file names; none if it has gone."""
        key = keys.index_key(index_id)
        size = self._repository.objects.indexes.listed.sizes[index_id]
        try:
            head = self._store.get_range(key, 0, min(size, index.FIXED_SIZE))
            count = int.from_bytes(head[8:12], "little")
            length = min(16 * count, max(0, size - index.FIXED_SIZE))
            table = bytes(self._store.get_range(key, index.FIXED_SIZE, length))
        except StoreMissing:
            raise
        except NotFound:
            return set()
        return {PackId(table[at : at + 16]) for at in range(0, len(table) - 15, 16)}

    def _without(self, index_id: IndexId, gone: set[PackId]) -> _Left | None:
        """Write what is left of an index file without the rows of these packs. None if the file can't be read any
        more, as another garbage collection or a merge has replaced it: then nothing is done about it."""
        try:
            data = self._store.get(keys.index_key(index_id), index.FILE_MAX)
        except StoreMissing:
            raise
        except NotFound:
            return None
        parsed = Index.parse(data, str(index_id))
        numbers = [at for at, pack in enumerate(parsed.packs) if pack in gone]
        buckets: list[list[bytes]] = []
        for first in range(256):
            rows = np.frombuffer(parsed.bucket(first), np.uint8).reshape(-1, index.ROW_SIZE)
            places = rows[:, 36:40].copy().view("<u4")[:, 0]
            left = (rows[:, 33] != index.IN_PACK) | ~np.isin(places, numbers)
            buckets.append(cut(rows[left].tobytes(), index.ROW_SIZE))
        encoded = index.join(parsed.packs, buckets)
        bounds = Index.parse(encoded, verify=False)
        if not len(bounds):
            return _Left(None)
        self._check_names()
        return _Left(MergedFile(put_index(self._repository, encoded), *bounds.bounds))

    def _delete_index(self, index_id: IndexId) -> None:
        self._store.delete(keys.index_key(index_id))
        self._store.delete(keys.index_filter_key(index_id))

    def _delete_packs(self, packs: Iterable[PackId]) -> None:
        for some in _batches(packs, _AT_ONCE):
            self._check_names()
            together([partial(self._store.delete, keys.pack_key(one)) for one in some])

    def _tidy_sessions(self) -> None:
        """Delete the keys of sessions that are closed, `closed` last, and the beats of those that were fenced."""
        for session_id, parts in self._sessions().items():
            key = partial(_session_key, session_id)
            if "closed" in parts:
                together([partial(self._store.delete, key(one)) for one in sorted(parts - {"closed"})])
                self._store.delete(key("closed"))
            elif "verdict" in parts and (beats := sorted(parts - {"open", "verdict"})):
                verdict = read_record(SessionVerdict.decode, self._store, key("verdict"))
                if verdict.commit is None:
                    together([partial(self._store.delete, key(one)) for one in beats])

    def _now(self) -> int:
        return self._repository.clock()

    def _check_names(self) -> None:
        """Raise if somebody began to move the names: then nothing that is deleted or decided here would count."""
        self._repository.refs.check_not_moved("this garbage collection")

    def _put(self, key: str, data: bytes) -> Put:
        self._check_names()
        with may_write(self._store.url):
            return self._store.put_if_absent(key, data)


class _Left(NamedTuple):
    """What is left of an index file: None if no row is."""

    file: MergedFile | None


def _batches(many: Iterable[T], count: int) -> Iterator[list[T]]:
    source = iter(many)
    while batch := list(islice(source, count)):
        yield batch


def _session_key(session_id: SessionId, part: str) -> str:
    return keys.session_prefix(session_id) + part


def _is_open(parts: frozenset[str]) -> bool:
    return "verdict" not in parts and "closed" not in parts


class _Copies:
    """New packs with copies of objects, and an index of them."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._data, self._metadata = PackStream(self._seal), PackStream(self._seal)
        self._builder, self._rows = IndexBuilder(), 0

    def add(self, row: Rows, pack: memoryview, pack_id: PackId) -> None:
        """Copy the object of a row out of a pack, with the locator behind it.

        Raises `IntegrityError` for one that is not what its id says.
        """
        kind, object_id = ObjectKind(int(row["kind"][0])), Id(id_of(row, 0))
        start, size, tail = int(row["offset"][0]), int(row["stored"][0]), int(row["tail"][0])
        codec, length = Codec(int(row["codec"][0])), int(row["length"][0])
        where = Location(pack_id, start, size, length, codec, tail)
        stored = pack[start : start + size]
        checked(kind, object_id, where, stored)
        if kind is ObjectKind.CHUNK:
            self._data.add(kind, object_id, codec, stored, length)
            return
        behind = bytes(pack[start + size : start + size + tail])
        if tail:
            unpacked = Locator.decode(behind).encoded_length
            self._metadata.add_with_locator(kind, object_id, codec, stored, length, behind, unpacked)
        else:
            self._metadata.add(kind, object_id, codec, stored, length)

    def finish(self) -> None:
        self._data.flush()
        self._metadata.flush()
        self._put_index()

    def _seal(self, pack: SealedPack) -> None:
        self._repository.store.put_if_absent(keys.pack_key(pack.id), pack.data)
        for kind, object_id, where in pack.rows:
            self._builder.add(kind, Id(object_id), where)
        self._rows += len(pack.rows)
        if self._rows >= _INDEX_ROWS:
            self._put_index()

    def _put_index(self) -> None:
        if self._rows:
            put_index(self._repository, self._builder.finish())
        self._builder, self._rows = IndexBuilder(), 0
