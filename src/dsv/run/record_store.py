"""Run records in a store, and the spool of records that wait to be sent."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Final

import msgspec

from dsv.errors import (
    Conflict,
    Denied,
    DsvError,
    IntegrityError,
    NoRoom,
    NotFound,
    Unreachable,
    Unsupported,
    UsageError,
)
from dsv.files.folders import sync_folder
from dsv.files.small_files import replace_file
from dsv.format.keys import (
    BEATS_PREFIX,
    LINEAGE_PREFIX,
    METRICS_PREFIX,
    RUNS_PREFIX,
    parse_beat_key,
    parse_lineage_key,
    parse_run_key,
    run_key,
    runs_prefix,
)
from dsv.repo.refs.tags import named_parts
from dsv.run.edges import edge_keys, with_roots
from dsv.run.once_claims import remove_beats
from dsv.run.part import RunPart
from dsv.run.record import (
    LOG,
    MAX_PART,
    MAX_RECORD,
    RECORD,
    SERIES,
    START,
    JobUsage,
    LogInfo,
    RunId,
    RunRecord,
    decode_part,
    newest_start,
    parse_part_name,
    start_number,
)
from dsv.run.remembered import RememberedRecord, RememberedRuns, Stale
from dsv.run.series import LiveSeries, join_pieces, pieces_of, remove
from dsv.stores.base import Bytes, PutResult, StoreBackend, batches, parsed, together
from dsv.values.ids import CommitId, StoreId
from dsv.values.names import DatasetName
from dsv.values.secrets import Masker

_TOGETHER = 256
"""Records that `RunStore.read_all` asks for at a time."""
_ASKED_EACH = 64
"""The most runs that are listed one by one."""
_ENDED = frozenset((RECORD,))


class StoredRun(msgspec.Struct, frozen=True):
    """A run as a listing shows it, with the names of its parts."""

    dataset: DatasetName
    run: RunId
    parts: frozenset[str]


class RunStore:
    """The runs of all datasets of a store. The caller closes the store."""

    def __init__(
        self,
        store: StoreBackend | Callable[[], StoreBackend],
        started: Callable[[], None] = lambda: None,
        remembered: RememberedRuns | None = None,
        added: Callable[[RunStore, str, Bytes], None] = lambda *_: None,
    ) -> None:
        """store: or a function that opens it, called once; started: called after a run's start was written;
        remembered: records that are read from this machine instead; added: called with each part that was new"""
        self._given = store
        self._remembered = remembered
        self._started, self._added = started, added
        self._opening = Lock()

    @property
    def _store(self) -> StoreBackend:
        with self._opening:
            if callable(self._given):
                self._given = self._given()
            return self._given

    def write(self, dataset: DatasetName, run: RunId, part: str, data: Bytes) -> None:
        """Add one part. Raises `Conflict` if it is there with other bytes."""
        if self.add(dataset, run, part, data) != data and part != SERIES:  # the first one stays
            key = run_key(dataset, run, part)
            raise Conflict(f"{key} already exists, and differs", subject=key)
        if start_number(part) is not None:
            self._started()

    def add(self, dataset: DatasetName, run: RunId, part: str, data: Bytes) -> Bytes:
        """Add one part unless it is there, and return what is there now: of several writers, one wins."""
        key, beats, pieces = run_key(dataset, run, part), False, list[str]()
        if part == RECORD:  # edges come before it, so that no record is without them where they may be put
            with suppress(IntegrityError, Unsupported, Denied):
                record = RunRecord.decode(bytes(data), run)
                beats = record.once is not None
                self.link(record)
            pieces = join_pieces(self._store, dataset, run)
        won = self._store.put_if_absent(key, data) is PutResult.WON
        if won:
            self._added(self, part, data)
        # They go after it, so that others see the one or the other; who may not delete leaves them.
        with suppress(DsvError):
            remove(self._store, pieces)
            if beats:
                remove_beats(self._store, dataset, run)
        return data if won else self._store.get(key, MAX_RECORD)

    def live_series(self, record: RunRecord, file: Path, mask: Masker) -> LiveSeries:
        """Begin to show the curves of a run while it is under way."""
        return LiveSeries(lambda: self._store, (record.dataset, record.run), file, mask)

    def link(self, record: RunRecord) -> None:
        """Put the edges of a run, by which lineage finds it."""
        together([partial(self._store.put_if_absent, key, b"") for key in edge_keys(record)])

    def repair_edges(
        self, root: Callable[[CommitId], str | None], skipped: Callable[[DsvError], None]
    ) -> tuple[int, int]:
        """Put the edges that records of ended runs lack, and delete those of runs that have no key any more. Return how
        many. Delete beats and pieces of metrics that ended runs have left, too. root: of the tree of a commit, for
        records from before edges; None if the store does not have it"""
        there = {item.key for item in self._store.list(LINEAGE_PREFIX)}
        beating, measured = (
            {beat[:2] for beat in parsed(partial(parse_beat_key, prefix=prefix), self._store.list(prefix))}
            for prefix in (BEATS_PREFIX, METRICS_PREFIX)
        )
        runs = self.listing()  # after the edges: the start of a run is written before them
        ended = [stored for stored in runs if RECORD in stored.parts]
        needed = [
            key for record in self.read_all(ended, skipped) for key in edge_keys(with_roots(record, root))
        ]
        missing = [key for key in needed if key not in there]
        known = {(stored.dataset, stored.run) for stored in runs}
        edges = ((key, parse_lineage_key(key)) for key in there)
        left = [key for key, edge in edges if edge is not None and (edge[2], edge[3]) not in known]
        together([partial(self._store.put_if_absent, key, b"") for key in missing])
        together([partial(self._store.delete, key) for key in left])
        for stored in ended:
            if (stored.dataset, stored.run) in beating:
                remove_beats(self._store, stored.dataset, stored.run)
        for run in measured - (known - {(stored.dataset, stored.run) for stored in ended}):
            remove(self._store, (join_pieces if run in known else pieces_of)(self._store, *run))
        return len(missing), len(left)

    def add_end(self, record: RunRecord, log: bytes | None) -> RunRecord:
        """Add a whole record, and its log before that. Return the stored record: of several writers, one wins."""
        if log is not None:
            kept = self.add(record.dataset, record.run, LOG, log)
            if len(kept) != len(log) and record.log is not None:
                record = replace(record, log=LogInfo(record.log.bytes, len(kept)))
        if record.curves:
            self.add(record.dataset, record.run, SERIES, record.curves)
        data = self.add(record.dataset, record.run, RECORD, encode_within_bounds(record))
        return RunRecord.decode(bytes(data), record.run)

    def listing(self, dataset: DatasetName | None = None, run_prefix: str = "") -> list[StoredRun]:
        """Return the runs of a dataset (None: of all), oldest first. Other keys are ignored."""
        prefix = RUNS_PREFIX if dataset is None else runs_prefix(dataset) + run_prefix
        parts: dict[tuple[DatasetName, RunId], set[str]] = {}
        for item in self._store.list(prefix):
            parsed = parse_run_key(item.key)
            run = None if parsed is None else _run_id(parsed[1])
            if parsed is not None and run is not None and run.startswith(run_prefix):
                parts.setdefault((parsed[0], run), set()).add(parsed[2])
        known = [StoredRun(name, run, frozenset(names)) for (name, run), names in parts.items()]
        return sorted(known, key=lambda stored: (stored.run, stored.dataset))

    def quick_listing(self, dataset: DatasetName | None = None) -> list[StoredRun]:
        """Return the same runs in any order, but by their folders, a third of the keys, and those that this machine
        remembers with their record alone. `whole` tells which of them have none any more."""
        if self._remembered is None:
            return self.listing(dataset)
        datasets = (
            named_parts(DatasetName, self._store.folders(RUNS_PREFIX)) if dataset is None else [dataset]
        )
        folders = together([partial(self._store.folders, runs_prefix(name)) for name in datasets])
        known, others = list[StoredRun](), list[tuple[DatasetName, RunId]]()
        for name, texts in zip(datasets, folders, strict=True):
            for run in filter(None, map(_run_id, texts)):
                if (name, run) in self._remembered:
                    known.append(StoredRun(name, run, _ENDED))
                else:
                    others.append((name, run))
        if len(others) > _ASKED_EACH:
            return self.listing(dataset)
        listed = together([partial(self.listing, *key) for key in others])
        return known + [stored for some in listed for stored in some]

    def whole(self, record: RunRecord) -> RunRecord:
        """Return a record that was decoded in part as a whole, if the store still has it. Raises `Stale`."""
        if not isinstance(record, RememberedRecord) or self._remembered is None:
            return record
        known = self._remembered.get(record.dataset, record.run)
        if known is None or not any(
            RECORD in each.parts for each in self.listing(record.dataset, record.run)
        ):
            self._remembered.forget([(record.dataset, record.run)])
            raise Stale
        return known

    def find(self, run: RunId, datasets: Iterable[DatasetName]) -> StoredRun:
        """Return the run of this id in the first of these datasets that has it. Raises `NotFound`."""
        for dataset in datasets:
            found = self.listing(dataset, run)
            if found:
                return found[0]
        raise NotFound(f"there is no run {run} here", subject=run, hint="dsv runs lists them")

    def read(self, stored: StoredRun) -> RunRecord:
        """Read the newest record of a run. Raises `NotFound` if neither its start nor its end is there."""
        part = RECORD if RECORD in stored.parts else newest_start(stored.parts)
        key = run_key(stored.dataset, stored.run, part)
        record = RunRecord.decode(self._store.get(key, MAX_RECORD), key)
        if record.run != stored.run or record.dataset != stored.dataset:
            raise IntegrityError(f"{key} holds the record of another run: {record.run}", subject=key)
        return record

    def ended(self, dataset: DatasetName, run: str) -> RunRecord | None:
        """Read the record of a run that has ended; None if there is none."""
        with suppress(NotFound, UsageError):
            stored = StoredRun(dataset, RunId.parse(run), _ENDED)
            return self._recall(stored, True) or self.read(stored)
        return None

    def newest(self, dataset: DatasetName, run: RunId) -> RunRecord | None:
        """Read the newest record of a run; None if none is there."""
        return next((self.read(stored) for stored in self.listing(dataset, run)), None)

    def read_all(
        self,
        stored: Iterable[StoredRun],
        skipped: Callable[[DsvError], None],
        count: int | None = None,
        *,
        whole: bool = True,
    ) -> Iterator[RunRecord]:
        """Yield records in this order, read several at a time, at most `count`. Raises errors of the store as `read`
        does. skipped: called in this thread with the error of each record that is damaged or of a newer dsv. whole: see
        `whole`"""
        for some in batches(stored, min(count or _TOGETHER, _TOGETHER)):
            here = [self._recall(each, whole) for each in some]
            asked = [each for each, known in zip(some, here, strict=True) if known is None]
            answers = together([partial(self._read_or_not, each) for each in asked])
            if self._remembered is not None:
                self._remembered.add(record for record in answers if isinstance(record, RunRecord))
            answer = iter(answers)
            for known in here:
                record = known or next(answer)
                if isinstance(record, RunRecord):
                    yield record
                else:
                    skipped(record)

    def _recall(self, stored: StoredRun, whole: bool) -> RunRecord | None:
        if self._remembered is None or RECORD not in stored.parts:
            return None
        return self._remembered.get(stored.dataset, stored.run, whole=whole)

    def forget_others(self, dataset: DatasetName | None, stored: Iterable[StoredRun]) -> None:
        """Forget here which runs of a dataset (None: of all) were deleted from the store, which has these."""
        if self._remembered is not None:
            self._remembered.forget_others(dataset, ((each.dataset, each.run) for each in stored))

    def forget(self, stored: Iterable[StoredRun]) -> None:
        """Forget here runs that were deleted from the store."""
        if self._remembered is not None:
            self._remembered.forget((each.dataset, each.run) for each in stored)

    def _read_or_not(self, stored: StoredRun) -> RunRecord | IntegrityError | Unsupported:
        try:
            return self.read(stored)
        except (IntegrityError, Unsupported) as error:
            return error

    def log(self, stored: StoredRun) -> bytes | None:
        """Read the log of a run, masked, its head and its tail; None if it was not kept."""
        if LOG not in stored.parts:
            return None
        return self._store.get(run_key(stored.dataset, stored.run, LOG), MAX_RECORD)

    def delete(self, stored: StoredRun) -> None:
        """Delete what there is of a run, `record` or else `start` last: until then the run remains listed."""
        with suppress(IntegrityError, Unsupported, NotFound):
            record = self.read(stored)
            together([partial(self._store.delete, key) for key in edge_keys(record)])
            if record.once is not None:
                remove_beats(self._store, stored.dataset, stored.run)
        remove(self._store, pieces_of(self._store, stored.dataset, stored.run))
        order = sorted(
            stored.parts, key=lambda part: (part == RECORD, part == START, start_number(part) is not None)
        )
        for part in order:
            self._store.delete(run_key(stored.dataset, stored.run, part))

    def node_parts_and_usage(self, stored: StoredRun) -> list[tuple[RunPart, JobUsage | None]]:
        """Read parts and known usage, by attempt and node. Raises `IntegrityError`, `Unsupported`."""
        keys = [run_key(stored.dataset, stored.run, name) for name in _of_nodes(stored, "part")]
        parts = [decode_part(self._store.get(key, MAX_PART), key) for key in keys]
        return sorted(parts, key=lambda part: (part[0].attempt, part[0].node))

    def node_logs(self, stored: StoredRun) -> list[tuple[int, int, bytes]]:
        """Read the existing logs of nodes: node, attempt and content."""
        found = []
        for name in _of_nodes(stored, "log"):
            parsed = parse_part_name(name)
            assert parsed is not None  # so they were chosen
            key = run_key(stored.dataset, stored.run, name)
            found.append((parsed[1], parsed[2], bytes(self._store.get(key, MAX_RECORD))))
        return found


def _of_nodes(stored: StoredRun, kind: str) -> list[str]:
    named = {name: parse_part_name(name) for name in stored.parts}
    return sorted(name for name, parsed in named.items() if parsed is not None and parsed[0] == kind)


@lru_cache(maxsize=16)  # the rows of a listing repeat a run's
def _run_id(text: str) -> RunId | None:
    with suppress(UsageError):
        return RunId.parse(text)
    return None


_ORDER = {LOG: 1, SERIES: 1, RECORD: 2}


SPOOLS: Final = "unsent-runs"
"""The folder of records to be sent, in the user's folder for dsv's state."""


class SpooledPart(msgspec.Struct, frozen=True):
    """A part that the store doesn't have yet, as far as is known here."""

    path: Path
    dataset: DatasetName
    run: RunId
    part: str


class Spool:
    """The parts that wait for one store, in the user's folder for dsv's state."""

    def __init__(self, state: Path, store: StoreId) -> None:
        self._folder = state / SPOOLS / str(store)

    def keep(self, dataset: DatasetName, run: RunId, part: str, data: bytes) -> Path:
        """Store a part durably, readable by its owner only. Raises `NoRoom` if that fails."""
        folder = self._folder / dataset.component
        target = folder / f"{run}.{part}"
        try:
            made = [changed for changed in (folder, *folder.parents) if not changed.exists()]
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(target, data, mode=0o600)
            # Folders' names too: another process may have just made the spool's folders, not yet synced.
            for changed in dict.fromkeys((self._folder, self._folder.parent, *(new.parent for new in made))):
                sync_folder(changed)
        except OSError as error:
            raise NoRoom(f"the record of run {run} can't be kept: {error}", subject=run) from error
        return target

    def keep_end(self, record: RunRecord, log: bytes | None, runs: RunStore | None) -> None:
        """Store the whole record of a run, and its log before that; in these runs if there is no room here. Raises
        `NoRoom` if neither takes it. runs: None if the store must not be asked"""
        try:
            if log is not None:
                self.keep(record.dataset, record.run, LOG, log)
            if record.curves:
                self.keep(record.dataset, record.run, SERIES, record.curves)
            self.keep(record.dataset, record.run, RECORD, encode_within_bounds(record))
        except NoRoom as error:
            if runs is None:
                raise
            try:
                self.send(runs, only=record.run)  # its start, which comes before all others
                runs.add_end(record, log)
            except (DsvError, OSError) as refusal:
                raise NoRoom(f"{error.message}; nor in the store: {refusal}", subject=record.run) from error

    def waiting(self, skipped: Callable[[DsvError], None] = lambda _: None) -> list[SpooledPart]:
        """Return the waiting parts, oldest run first, those of a run in the order in which they are sent.
        skipped: called with the error of each folder that can't be read"""
        paths = [
            path for folder in self._listing(self._folder, skipped) for path in self._listing(folder, skipped)
        ]
        waiting_parts = [part for path in paths if (part := _parse(path)) is not None]
        return sorted(waiting_parts, key=lambda spooled: (spooled.run, spooled.dataset, _order(spooled.part)))

    def send(self, runs: RunStore, only: RunId | None = None) -> int:
        """Send the waiting parts of one run, or of all. Return how many were sent.

        Errors of the store are raised at once. A part that differs from the store's, or can't be read
        (another user made it), doesn't stop the others: the first such error is raised at the end.
        """
        sent = 0
        problems: list[DsvError] = []
        for part in self.waiting(problems.append if only is None else lambda _: None):
            if only is not None and part.run != only:
                continue
            try:
                data = _read(part.path)
                runs.write(part.dataset, part.run, part.part, data)
                part.path.unlink(missing_ok=True)
            except FileNotFoundError:  # another process has sent it
                continue
            except Conflict as error:
                if not _is_complete(runs, part):
                    problems.append(error)
                    continue
                part.path.unlink(missing_ok=True)  # another dsv has recorded the end of this run
            except IntegrityError as error:
                problems.append(error)
                continue
            except OSError as error:
                problems.append(self._explained(part.path, error))
                continue
            sent += 1
        if problems:
            raise problems[0]
        return sent

    def records(
        self, wanted: Callable[[SpooledPart], bool], skipped: Callable[[DsvError], None]
    ) -> Iterator[RunRecord]:
        """Yield the newest record of each wanted run that waits here. skipped: called with the error of each
        that can't be read, is damaged, or is of a newer dsv"""
        parts = [
            part
            for part in self.waiting(skipped)
            if (part.part == RECORD or start_number(part.part) is not None) and wanted(part)
        ]
        for part in {(each.dataset, each.run): each for each in parts}.values():
            try:
                yield RunRecord.decode(_read(part.path), str(part.path))
            except FileNotFoundError:
                continue
            except OSError as error:
                skipped(self._explained(part.path, error))
            except (IntegrityError, Unsupported) as error:
                skipped(error)

    def log(self, dataset: DatasetName, run: RunId) -> bytes | None:
        """Return the log of a run, if it waits here."""
        with suppress(OSError, IntegrityError):
            return _read(self._folder / dataset.component / f"{run}.{LOG}")
        return None

    def _listing(self, folder: Path, skipped: Callable[[DsvError], None]) -> list[Path]:
        try:
            return list(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            skipped(self._explained(folder, error))
            return []

    def _explained(self, path: Path, error: OSError) -> DsvError:
        denied = isinstance(error, PermissionError)
        return (Denied if denied else Unreachable)(
            f"a run's record that waits here can't be read or removed: {path}: {error.strerror or error}",
            subject=str(path),
            hint=f'sudo chown -R "$(id -u)" {shlex.quote(str(self._folder))}' if denied else None,
        )


def _is_complete(runs: RunStore, part: SpooledPart) -> bool:
    """Check that this part belongs to the end of a run, and that the store has an end already."""
    if part.part not in _ORDER:
        return False
    try:
        record = runs.newest(part.dataset, part.run)
        return record is not None and record.state.is_terminal
    except (IntegrityError, Unsupported):
        return False


def _order(part: str) -> tuple[int, int, str]:
    """Return a sort key: starts first, and the record last, because it shows that nothing is missing."""
    number = start_number(part)
    return (_ORDER.get(part, _ORDER[LOG]), 0, part) if number is None else (0, number, part)


def _read(path: Path) -> bytes:
    """Read a part. Raises `OSError`, or `IntegrityError` if it is longer than a part may be."""
    with path.open("rb") as file:
        data = file.read(MAX_RECORD + 1)
    if len(data) > MAX_RECORD:
        raise IntegrityError(
            f"{path}, which waits to be sent, has more than the {MAX_RECORD} bytes of a run's record",
            subject=str(path),
            hint=f"dsv never writes this: rm {shlex.quote(str(path))}",
        )
    return data


def _parse(path: Path) -> SpooledPart | None:
    stem, _, part = path.name.rpartition(".")
    if part not in _ORDER and start_number(part) is None and parse_part_name(part) is None:
        return None
    with suppress(UsageError):
        return SpooledPart(path, DatasetName.from_component(path.parent.name), RunId.parse(stem), part)
    return None


def encode_within_bounds(record: RunRecord) -> bytes:
    """Encode the record, without its metrics if they would make it too long."""
    data = record.encode()
    if len(data) <= MAX_RECORD:
        return data
    return replace(record, metrics=None, metrics_error="too large for the record").encode()
