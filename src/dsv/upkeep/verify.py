"""Verification that a store has everything that commits refer to, and what was lost."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from dsv.errors import Denied, DsvError, IntegrityError, NoRoom, NotFound
from dsv.format import keys
from dsv.format.external import ExternalPack
from dsv.format.index import ERASED
from dsv.format.locator import Location, ObjectKind
from dsv.format.pack import PackTable
from dsv.format.records import MAX_MARKS, CommitRecord, Damage, WriterIdentity
from dsv.repo.damage import mark_damage, read_damage
from dsv.repo.expiry import freed_at_least, read_expiry
from dsv.repo.format_log import check_log
from dsv.repo.objects.indexes import FILTERED_BYTES
from dsv.repo.repository import Repository
from dsv.stores.base import StoreMissing, ask_each, listed_size, parsed
from dsv.upkeep.hints import wrong_hints
from dsv.upkeep.ids import Heads, IdSet, Seen, is_in
from dsv.upkeep.index_rows import IndexRows, are_external, row_sums
from dsv.upkeep.packs import CheckedPack, Schedule, check_packs
from dsv.upkeep.reach import Losses, LostPart, reach
from dsv.upkeep.roots import Name, Parents, names_of_sessions, read_names, readable_names
from dsv.values.ids import CommitId, Id, IndexId, Nonce, PackId
from dsv.values.names import MAIN, BranchName, DatasetName
from dsv.values.progress import NoProgress, Progress

_NOTE_SECONDS = 60.0
"""Seconds between two records of verified slices in the store."""
_KEYS = 1000
"""Keys of a listing that are looked at together."""


class StoreFault(msgspec.Struct, frozen=True):
    """Damage to something other than the content of a path."""

    what: str
    """`format`, `erasure`, `branch`, `tag`, `run`, `expiry`, `commit`, `index`, `filter` or `locator`."""
    name: str
    text: str
    hint: str | None = None


class UnreadablePart(msgspec.Struct, frozen=True):
    """A part of trees that can't be read, and the commits that have it."""

    part: LostPart
    commits: tuple[CommitId, ...]


class Unnamed(msgspec.Struct, frozen=True):
    """A commit whose content is there, to which no name leads, and which follows a commit that names lead to:
    a sync was interrupted or refused before it moved the branch, or that move is lost."""

    commit: CommitId
    dataset: DatasetName
    branch: BranchName
    parent: CommitId | None
    author: str
    time_ms: int
    newer: int
    """Milliseconds after its parent, by the clocks of those who made them."""


class Verification(msgspec.Struct):
    """The result. Nothing is lost if `lost` and `faults` are empty, for sure if `unasked` is empty too."""

    names: dict[CommitId, tuple[str, ...]] = {}
    """The names of each commit that was looked at."""
    faults: list[StoreFault] = []
    packs: list[CheckedPack] = []
    """The damaged ones."""
    lost: list[UnreadablePart] = []
    unnamed: list[Unnamed] = []
    lost_objects: int = 0
    at_risk: int = 0
    """Readable objects that are only in packs whose own tables are damaged."""
    unasked: list[CheckedPack] = []
    packs_seen: int = 0
    packs_read: int = 0
    bytes_read: int = 0
    repaired: int = 0
    """Objects that were stored again."""
    oldest: int | None = None
    """Every pack was verified since then, in seconds since 1970 by the store's clock; 0: some never were."""

    @property
    def is_whole(self) -> bool:
        return not self.lost_objects and not self.faults and not self.at_risk


class Verifier:
    """One verification of a store. The steps are the methods, in their order."""

    def __init__(
        self,
        repository: Repository,
        writer: WriterIdentity,
        scratch: Path,
        progress: Progress | None = None,
        *,
        full: bool,
        anew: bool = False,
    ) -> None:
        """scratch: an empty folder for what does not fit into memory. full: read large index files from the
        store even if there are local copies. anew: every pack will be read, so damaged marks are replaced."""
        self.repository = repository
        self.objects = repository.objects
        self._writer = writer
        self.progress = NoProgress() if progress is None else progress
        self.result = Verification()
        self._scratch = scratch
        self._full = full
        self._listings = 0
        self._lock = threading.Lock()
        self.needed = IdSet(scratch / "needed")
        self._rows: IndexRows | None = None
        self._sums: NDArray[np.uint32] | None = None
        """The sum of each pack's rows."""
        self.damaged_indexes: dict[IndexId, IntegrityError] = {}
        self.marks, self._anew = None, False
        try:
            self.marks = read_damage(repository)
        except IntegrityError:
            if not anew:
                raise
            self._anew = True
            self.progress.note("the damage marks of the store can't be read, and are rewritten")
        self._marked: set[PackId] = set()
        if self.marks is not None:
            self._marked = {*self.marks.packs, *(pack for pack, _, _ in self.marks.objects)}
        self._unreadable: set[PackId] = set()
        """Packs with parts of trees that could not be read."""
        self.knows_erasures = True
        """Every damaged erasure has a local copy, so erased objects do not count as lost."""
        self._seen: set[CommitId] = set()
        """The commits to which names lead, including freed ones."""
        self._kept, self._expired, self._parents = set[CommitId](), set[CommitId](), Parents(self.objects)
        """The commits of heads and tags, those that expiry logs name, and the parents of all that names lead to."""
        self._checked: dict[PackId, CheckedPack] = {}
        """Packs that were read completely: only those that are damaged, marked, or could not be asked for."""
        self.lost: Heads = np.zeros(0, np.uint64)
        """Heads of the ids of needed objects that can't be read."""
        self.at_risk: Heads = np.zeros(0, np.uint64)
        """The same for objects that only a pack with a damaged table has."""
        self.named: set[tuple[ObjectKind, Id]] = set()
        """The needed objects that can't be read, or are at risk."""

    @property
    def rows(self) -> IndexRows:
        """The rows of all index files, read at the first use."""
        with self._lock:
            return self._read_rows() if self._rows is None else self._rows

    def _read_rows(self) -> IndexRows:
        self._listings += 1
        self._sums = None
        self.damaged_indexes.clear()
        self._rows = IndexRows(
            self.repository,
            self._scratch / f"indexes-{self._listings}",
            damaged=self.damaged_indexes,
            copies_from=math.inf if self._full else FILTERED_BYTES,
        )
        return self._rows

    # --- names and commits

    def look_at_format(self) -> None:
        """Check that the format log is whole."""
        try:
            check_log(self.repository.store)
        except IntegrityError as error:
            self.result.faults.append(StoreFault("format", error.subject or "", error.message, error.hint))

    def look_at_erasures(self) -> None:
        """Find damaged erasures. Unless this machine has copies of them, what they erased counts as lost."""
        damaged = self.objects.check_erasures() if self.repository.may_have_erasures else {}
        for erasure_id, error in damaged.items():
            self.knows_erasures &= erasure_id in self.objects.erasures.known
            hint = "dsv verify --repair, on a machine that has a copy of it"
            self.result.faults.append(StoreFault("erasure", str(erasure_id), error.message, hint))

    def look_at_names(self, datasets: Iterable[DatasetName], commits: dict[CommitId, str]) -> None:
        """Find the commits that these datasets name. commits: further ones, with a name for each."""
        named: dict[CommitId, dict[str, None]] = {one: {why: None} for one, why in commits.items()}
        for dataset in datasets:
            self._look_at_rules(dataset)
            for commit_id, why in self._commits_of(dataset):
                named.setdefault(commit_id, {})[why] = None
        self.result.names = {one: tuple(why) for one, why in named.items()}
        self.result.faults = list(dict.fromkeys(self.result.faults))  # several datasets may name a commit

    def _commits_of(self, dataset: DatasetName) -> Iterator[tuple[CommitId, str]]:
        """Yield the commits that this dataset names. Runs may name those of others, freed by other logs."""
        by_dataset: dict[DatasetName, list[Name]] = {}
        for name in self._names_of(dataset):
            by_dataset.setdefault(name.dataset or dataset, []).append(name)
            self._kept.update([name.commit] if name.holds else [])
        for of, names in by_dataset.items():
            yield from self._with_histories(names, self._freed(of))

    def _with_histories(self, names: list[Name], gone: set[CommitId]) -> Iterator[tuple[CommitId, str]]:
        """Yield these commits and their ancestors, except those in `gone`, and why each is looked at."""
        waiting = [
            (name.commit, name.why if name.holds or name.branch is None else f"history of {name.why}")
            for name in names
        ]
        seen: set[CommitId] = set()
        while waiting:
            new = {commit_id: why for commit_id, why in reversed(waiting) if commit_id not in seen}
            yield from ((commit_id, why) for commit_id, why in waiting if commit_id not in gone)
            seen.update(new)
            waiting = []
            for commit_id, commit in ask_each(self._commit, new):
                self._parents.known[commit_id] = () if commit is None else commit.parents
                if commit is not None:
                    why = f"history of {new[commit_id].removeprefix('history of ')}"
                    waiting += [(parent, why) for parent in commit.parents if parent not in seen]
        self._seen |= seen

    def _names_of(self, dataset: DatasetName) -> list[Name]:
        try:
            return read_names(self.repository, dataset)
        except StoreMissing:
            raise
        except (IntegrityError, NotFound):
            return list(readable_names(self.repository, dataset, self._failed))

    def _failed(self, what: str, name: str, error: DsvError) -> None:
        hint = "dsv verify --repair" if what == "tag" else error.hint
        self.result.faults.append(StoreFault(what, name, error.message, hint))

    def _look_at_rules(self, dataset: DatasetName) -> None:
        """Find branches whose rule can't be read: they can't be moved."""
        listed = self.repository.store.list(keys.branches_prefix(dataset))
        for branch in sorted({branch for _, branch, _ in parsed(keys.parse_branch_rule_key, listed)}):
            try:
                self.repository.refs.rule(dataset, branch)
            except IntegrityError as error:
                self._failed("branch", f"{dataset}@{branch}", error)

    def _freed(self, dataset: DatasetName) -> set[CommitId]:
        """Return commits whose content may be gone; of a damaged log, those that readable entries free."""
        refs = self.repository.refs
        home = refs.home(dataset)
        try:
            self._expired.update((log := read_expiry(refs, home, singly=True)).states)
            return log.freed
        except IntegrityError as error:
            self._failed("expiry", str(home), error)
            return freed_at_least(refs, home)

    def look_at_unnamed_commits(self) -> None:
        """Look at commits that no name leads to: a garbage collection fails at damaged ones, and one that
        follows a commit of a branch or tag may be a lost version."""
        listed = parsed(keys.parse_commit_key, self.repository.store.list(keys.COMMIT_PREFIX))
        commits = dict(ask_each(partial(self._commit, named=False), sorted(set(listed) - self._seen)))
        kept = set(self._parents.walk(self._kept, set())) - self._expired | self._kept
        followers = (self._following(*read, kept) for read in commits.items())
        following = sorted(filter(None, followers), key=lambda commit: -commit.time_ms)
        at_work = {name.commit for name in names_of_sessions(self.repository)} if following else set()
        self.result.unnamed += [commit for commit in following if commit.commit not in at_work]

    def _following(
        self, commit_id: CommitId, commit: CommitRecord | None, kept: set[CommitId]
    ) -> Unnamed | None:
        """Return the commit if its tree is there, and it follows one of these, or is a dataset's first one."""
        if commit is None or commit.dataset is None or commit.branch is None or commit_id in self._expired:
            return None
        refs, parent = self.repository.refs, next((one for one in commit.parents if one in kept), None)
        with suppress(IntegrityError):  # of the branch, which is reported
            home = refs.home(commit.dataset)
            if parent is None and (commit.parents or refs.head_or_none(home, MAIN) is None):
                return None
            if self.objects.indexes.find(ObjectKind.NODE, commit.root) is not None:
                newer = 0 if parent is None else commit.time_ms - self.objects.commit(parent).time_ms
                return Unnamed(commit_id, home, commit.branch, parent, commit.author, commit.time_ms, newer)
        return None

    def _commit(self, commit_id: CommitId, *, named: bool = True) -> CommitRecord | None:
        """Return the store's commit if it is whole, else note the fault and return a local copy. Freed ones
        must exist too: histories lead through them. named: a name leads to the commit."""
        try:
            found = self.objects.stored_commit(commit_id)
            if found is not None:
                return found
            error: IntegrityError | None = None
        except StoreMissing:
            raise
        except IntegrityError as raised:
            error = raised
        text = f"commit {commit_id} is gone" if error is None else error.message
        copy = self.objects.copied_commit(commit_id)
        if copy is not None:
            text += "; its locator has a copy"
        elif not named:
            text += f", and nothing names it: delete {keys.commit_key(commit_id)} if there is no copy of it"
        hint = "dsv verify --repair, on a machine that has a copy of it"
        self.result.faults.append(StoreFault("commit", str(commit_id), text, hint))
        return copy or self.objects.local_commit(commit_id)

    # --- what commits refer to

    def look_at_trees(self) -> None:
        """Find every object that the commits refer to."""
        commits = self.whole_commits()
        self.progress.start(None, None)
        try:
            reach(self.objects, commits, lambda _, ids: self.needed.add(ids), Seen(), self.progress)
        except (IntegrityError, NotFound):
            losses = Losses(self.objects, np.zeros(0, np.uint64), self.needed)
            for commit_id in commits:
                losses.of_commit(commit_id)
            for kind, object_id in losses.named:
                with suppress(IntegrityError):  # of an index file: a fault of its own
                    places = self.objects.indexes.places(kind, object_id)
                    self._unreadable.update(where.pack for where in places if not where.pack.is_external)
        self.progress.finish()

    # --- packs

    def look_at_packs(self, *, only_needed: bool) -> None:
        """Compare index rows with a listing of all packs, and read doubtful packs. only_needed: skip packs
        without anything that the commits refer to."""
        rows = self.rows
        for index_id, error in self.damaged_indexes.items():
            self.result.faults.append(StoreFault("index", str(index_id), error.message, error.hint))
        there = np.zeros(len(rows.packs), np.int64)
        listing = self.repository.store.list(keys.PACK_PREFIX)
        while batch := list(islice(listing, _KEYS)):
            items = [
                (pack, item.size) for item in batch if (pack := keys.parse_pack_key(item.key)) is not None
            ]
            self.result.packs_seen += len(items)
            at = rows.packs.places(pack for pack, _ in items)
            there[at[at >= 0]] = np.array([size for _, size in items], np.int64)[at >= 0]
        self._sums = np.zeros(len(rows.packs), np.uint32)
        expected = rows.expected_sizes(self._sums)
        doubtful = self._doubtful(np.flatnonzero(there < expected), expected)
        doubtful |= self._marked | self._unreadable
        if only_needed:
            needed = self._needed_packs()
            doubtful = {one for one in doubtful if needed[rows.packs.places([one])[0]]}
        self.read_packs(sorted(doubtful - self._checked.keys()))

    def _doubtful(self, places: NDArray[np.int64], expected: NDArray[np.uint32]) -> set[PackId]:
        """Return packs with fewer bytes than expected. Each is looked up: a listing may have ended early."""
        packs, store = self.rows.packs, self.repository.store
        sizes = ask_each(lambda at: listed_size(store, keys.pack_key(packs[at])), places.tolist())
        return {packs[at] for at, size in sizes if size is None or size < expected[at]}

    def _needed_packs(self) -> NDArray[np.bool_]:
        """Return for each pack of the rows whether the commits need it. The last element is for any other."""
        found = np.zeros(len(self.rows.packs) + 1, np.bool_)
        for first in range(256):
            rows = self.rows.bucket(first)
            needed = is_in(rows["head"], self.needed.bucket(first)) & (rows["where"] != ERASED)
            found[rows["pack"][needed]] = True
        return found

    def look_at_sources(self) -> None:
        """Ask for the version of each file outside the store that commits refer to."""
        packs, chosen = self.rows.packs, are_external(self.rows.packs)
        if chosen.any():
            chosen &= self._needed_packs()[:-1]
        external = [packs[int(at)] for at in np.flatnonzero(chosen)]
        self.read_packs([pack for pack in external if pack not in self._checked], quick=True)

    def read_packs(self, packs: Iterable[PackId], *, quick: bool = False) -> None:
        """Read whole packs, and note what is damaged. quick: as in `check_packs`."""
        for checked in check_packs(self.objects, packs, self._rows_of, self._lacks, quick=quick):
            self._add(checked)

    def read_needed(self) -> None:
        """Read every pack with an object that the commits refer to."""
        packs = (self.rows.packs[int(at)] for at in np.flatnonzero(self._needed_packs()))
        self.read_packs(pack for pack in packs if pack not in self._checked)

    def read_slices(self, schedule: Schedule, seconds: float | None) -> None:
        """Read the packs of the store slice by slice until the time is over: at least one slice, and each at
        most once. With a time limit, slices that other machines verify in this time are skipped."""
        count = sum(1 for _ in self.repository.store.list(keys.pack_search_prefix("00"))) * 256
        left = set(schedule.fit(count))
        ends = None if seconds is None else time.monotonic() + seconds
        newest = max(schedule.times)
        while left:
            noted = time.monotonic()
            done: list[str] = []
            order, is_over = schedule.order(left), partial(_is_over, ends, noted)
            self.read_packs(self._packs_of(order, is_over, done))
            if not self._anew:  # else only when everything is known
                self.mark()
            try:
                schedule.note(done)
            except (Denied, NoRoom):  # without the right to write, everything can still be read
                if ends is not None:
                    raise
            left.difference_update(done)
            if ends is not None:
                left = {one for one in left if schedule.time(one) <= newest}
                if time.monotonic() >= ends:
                    break
        self.result.oldest = schedule.oldest()

    def _packs_of(self, order: list[str], is_over: Callable[[], bool], done: list[str]) -> Iterator[PackId]:
        """Yield the packs of slices. done: gets each slice after its packs."""
        for at, slice_ in enumerate(order):
            if at and is_over():
                return
            for item in self.repository.store.list(keys.pack_search_prefix(slice_)):
                pack = keys.parse_pack_key(item.key)
                if pack is not None and pack not in self._checked:
                    yield pack
            done.append(slice_)

    def _rows_of(self, pack: PackId) -> list[tuple[ObjectKind, Id, Location]]:
        return self.rows.of_packs({pack})[pack]

    def _lacks(self, pack: PackId, table: PackTable | ExternalPack) -> list[tuple[ObjectKind, Id]]:
        """Return what index files list in a pack and its table lacks; nothing if they were not read."""
        at = -1 if self._sums is None else int(self.rows.packs.places([pack])[0])
        if self._sums is None or at < 0:
            return []
        kinds = np.frombuffer(table.kinds, np.uint8)
        heads = np.frombuffer(table.ids, ">u8").reshape(-1, 4)[:, 0]
        sums = row_sums(heads, kinds, np.asarray(table.offsets), np.asarray(table.stored))
        if sums[kinds != ObjectKind.LOCATOR].sum(dtype=np.uint32) == self._sums[at]:
            return []
        there = set(table.indexed(pack))
        return [(kind, one) for kind, one, where in self._rows_of(pack) if (kind, one, where) not in there]

    def _add(self, checked: CheckedPack) -> None:
        self.result.packs_read += not checked.gone
        self.result.bytes_read += checked.size
        self.progress.advance(bytes=checked.size, transferred=checked.size)
        if not checked.is_whole or checked.pack in self._marked:
            self._checked[checked.pack] = msgspec.structs.replace(checked, rows=())
        if checked.failure is not None:
            self.result.unasked.append(checked)
        elif checked.fault is not None:
            self.result.packs.append(checked)

    def look_at_hints(self) -> None:
        """Find damaged filters and locators. A missing one is no damage."""
        for hint in wrong_hints(self.repository, self.rows, self.whole_commits()):
            if hint.is_damaged:
                text = f"the {hint.what} of {hint.of} is damaged ({hint.key}): lookups need more requests"
                self.result.faults.append(StoreFault(hint.what, hint.of, text, "dsv verify --repair"))

    def whole_commits(self) -> list[CommitId]:
        """Return the commits that are not damaged themselves."""
        damaged = {fault.name for fault in self.result.faults if fault.what == "commit"}
        return [one for one in self.result.names if str(one) not in damaged]

    # --- losses

    def compare(self) -> None:
        """Find needed objects that can't be read, as far as is known, and the paths that they make up."""
        if any(pack.gone for pack in self.result.packs):
            self._read_rows()  # gc may have deleted packs since, and the index files that named them
        damaged = {checked.pack: checked for checked in self.result.packs}
        bad_packs = self._numbers(pack for pack, what in damaged.items() if what.unread)
        doubtful = self._numbers(pack for pack, what in damaged.items() if _is_table(what))
        bad = {(what.pack, kind, object_id) for what in damaged.values() for kind, object_id in what.bad}
        partly = self._numbers(pack for pack, what in damaged.items() if what.bad)
        lost, at_risk = [], []
        self.named = set()
        for first in range(256):
            rows, needed = self.rows.bucket(first), self.needed.bucket(first)
            heads, elsewhere = rows["head"], rows["where"] == ERASED
            good = ~elsewhere
            if len(bad_packs):
                good &= ~np.isin(rows["pack"], bad_packs)
            for at in np.flatnonzero(np.isin(rows["pack"], partly) & good) if len(partly) else ():
                ((kind, object_id, where),) = self.rows.decoded(rows[at : at + 1])
                good[at] = (where.pack, kind, object_id) not in bad
            there = is_in(needed, heads[good | elsewhere])
            lost.append(needed[~there])
            if len(doubtful):
                safe = (good & ~np.isin(rows["pack"], doubtful)) | elsewhere
                at_risk.append(needed[there & ~is_in(needed, heads[safe])])
            wrong = np.union1d(lost[-1], at_risk[-1] if len(doubtful) else lost[-1])
            if len(wrong):
                unsafe = rows[is_in(heads, wrong) & ~elsewhere]
                self.named.update((kind, object_id) for kind, object_id, _ in self.rows.decoded(unsafe))
        self.lost = np.concatenate(lost)
        self.at_risk = np.concatenate([self.at_risk[:0], *at_risk])
        self.result.lost_objects, self.result.at_risk = len(self.lost), len(self.at_risk)
        self.result.lost = self._parts() if len(self.lost) else []

    def _numbers(self, packs: Iterable[PackId]) -> NDArray[np.int64]:
        found = self.rows.packs.places(packs)
        return found[found >= 0]

    def _parts(self) -> list[UnreadablePart]:
        losses = Losses(self.objects, self.lost)
        by_part: dict[Id, list[CommitId]] = {}
        for one in self.result.names:
            with suppress(IntegrityError, NotFound):  # the commit itself, which is among the faults
                for key in losses.of_commit(one):
                    by_part.setdefault(key, []).append(one)
        self.named |= losses.named
        return [UnreadablePart(losses.parts[key], tuple(commits)) for key, commits in by_part.items()]

    def mark(self) -> None:
        """Mark in the store what must not be relied on, and remove marks of what was found whole."""
        checked, named = self._checked, set(self.named) if self.knows_erasures else set()

        def change(last: Damage | None) -> Damage | None:
            packs = set() if last is None else {pack for pack in last.packs if pack not in checked}
            places = set() if last is None else {place for place in last.objects if place[0] not in checked}
            missing = set() if last is None else {lost for lost in last.missing if self._may_be_missing(lost)}
            for result in checked.values():
                if result.unread or (result.fault is not None and _is_table(result)):
                    packs.add(result.pack)
                elif result.fault is not None:
                    places.update((result.pack, kind, object_id) for kind, object_id in result.bad)
                elif result.failure is not None and last is not None:
                    packs.update({result.pack} & set(last.packs))
                    places.update(place for place in last.objects if place[0] == result.pack)
            missing |= named
            while len(places) > MAX_MARKS:  # the packs with most of them are marked as a whole
                ((most, _),) = Counter(pack for pack, _, _ in places).most_common(1)
                packs.add(most)
                places = {place for place in places if place[0] != most}
            whole = max(len(missing), len(packs)) <= MAX_MARKS and (last is None or last.all_missing)
            marks = (
                tuple(sorted(packs)[:MAX_MARKS]), tuple(sorted(places)), tuple(sorted(missing)[:MAX_MARKS]), whole,
            )  # fmt: skip
            if last is None and marks == ((), (), (), True):
                return None
            if last is not None and marks == (last.packs, last.objects, last.missing, last.all_missing):
                return last
            return Damage(*marks, Nonce(bytes(16)), 0, "", "")

        try:
            changed = mark_damage(self.repository, self._writer, change)
        except (Denied, NoRoom) as error:  # a user who can't write still learns what is lost
            self.progress.note(f"nothing could be marked in the store: {error.message}")
            return
        if changed is not None:
            self.marks = changed

    def _may_be_missing(self, one: tuple[ObjectKind, Id]) -> bool:
        with suppress(IntegrityError):  # of an index file, whose content is not known
            return self.objects.indexes.find(*one, usable=self.objects.packs.may_rely) is None
        return True


def _is_table(checked: CheckedPack) -> bool:
    """Return whether a pack is damaged in its table or hash, and not in its objects."""
    return checked.fault is not None and not checked.bad and not checked.gone


def _is_over(ends: float | None, noted: float) -> bool:
    now = time.monotonic()
    return now - noted > _NOTE_SECONDS or (ends is not None and now >= ends)
