"""Run records in a store.

    runs/<dataset>/<run id>/start    when it was launched: all that was known then
    runs/<dataset>/<run id>/start-2  the same, if it went on to another pool; and so on
    runs/<dataset>/<run id>/log      what it wrote, if that is kept
    runs/<dataset>/<run id>/record   when it has ended: all there is to know
    runs/<dataset>/<run id>/part-<node>-<attempt>, log-<node>-<attempt>    what one node of several left
    runs/<dataset>/<sweep id>/…      see sweep_notes.py

Each is written once, in this order, so a `record` is complete. A run keeps its commits alive from `start` on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from dsv.errors import Conflict, DsvError, IntegrityError, NotFound, Unsupported, UsageError
from dsv.model.keys import RUNS_PREFIX, parse_run_key, run_key, runs_prefix
from dsv.model.names import DatasetName
from dsv.model.run import LOG, MAX_RECORD, RECORD, RunId, RunRecord, Usage, newest_start
from dsv.model.run_end import RunPart
from dsv.model.run_parts import MAX_PART, decode_part, parse_part_name
from dsv.model.sweep import SweepId
from dsv.repo.sweep_notes import SweepNotes
from dsv.store.base import Buffer, Put, Store, TooLargeError

READERS = 8
"""Records fetched at a time by `RunStore.read_all`."""


class StoredRun(msgspec.Struct, frozen=True):
    """A run as a listing shows it: which of its parts are there."""

    dataset: DatasetName
    run: RunId
    parts: frozenset[str]


class RunStore:
    """The runs of all datasets of one store, which stays the caller's."""

    def __init__(self, store: Store) -> None:
        self._given = store

    @property
    def _store(self) -> Store:
        """What every method goes through."""
        return self._given

    def write(self, dataset: DatasetName, run: RunId, part: str, data: Buffer) -> None:
        """Adds one part; the same bytes again are fine. Raises `Conflict` where others are there already."""
        key = run_key(dataset, run, part)
        if self._store.put_if_absent(key, data) is Put.LOST and self._stored(key, len(data)) != data:
            raise Conflict(f"{key} is there already, and differs", subject=key)

    def add(self, dataset: DatasetName, run: RunId, part: str, data: Buffer) -> Buffer:
        """Adds one part unless it is there already, and returns what is there now: of several writers one wins."""
        key = run_key(dataset, run, part)
        return data if self._store.put_if_absent(key, data) is Put.WON else self._store.get(key, MAX_RECORD)

    def listing(self, dataset: DatasetName | None = None, run_prefix: str = "") -> list[StoredRun]:
        """The runs of a dataset (None: of all) by time, oldest first. What else lies there is ignored."""
        prefix = RUNS_PREFIX if dataset is None else runs_prefix(dataset) + run_prefix
        parts: dict[tuple[DatasetName, RunId], set[str]] = {}
        for item in self._store.list(prefix):
            parsed = parse_run_key(item.key)
            run = None if parsed is None else _run_id(parsed[1])
            if parsed is not None and run is not None and run.startswith(run_prefix):
                parts.setdefault((parsed[0], run), set()).add(parsed[2])
        known = [StoredRun(name, run, frozenset(found)) for (name, run), found in parts.items()]
        return sorted(known, key=lambda each: (each.run, each.dataset))

    def find(self, run: RunId, datasets: Iterable[DatasetName]) -> StoredRun:
        """The run of this id in the first of these datasets that has one. Raises `NotFound`."""
        for dataset in datasets:
            found = self.listing(dataset, run)
            if found:
                return found[0]
        raise NotFound(f"there is no run {run} here", subject=run, hint="dsv runs lists them")

    def read(self, stored: StoredRun) -> RunRecord:
        """What is known of a run. Raises `NotFound` where neither its start nor its end is there."""
        part = RECORD if RECORD in stored.parts else newest_start(stored.parts)
        key = run_key(stored.dataset, stored.run, part)
        record = RunRecord.decode(self._store.get(key, MAX_RECORD), key)
        if record.run != stored.run or record.dataset != stored.dataset:
            raise IntegrityError(f"{key} holds the record of another run: {record.run}", subject=key)
        return record

    def read_all(self, stored: Sequence[StoredRun], skipped: Callable[[DsvError], None]) -> list[RunRecord]:
        """Their records in this order, several fetched at a time; errors are raised where `read` would.

        skipped: told instead, in this thread, of each that is damaged or of a newer dsv.
        """
        found = []
        with ThreadPoolExecutor(READERS, "dsv-runs") as pool:
            for record in pool.map(self._read_or_not, stored):
                if isinstance(record, RunRecord):
                    found.append(record)
                else:
                    skipped(record)
        return found

    def _read_or_not(self, stored: StoredRun) -> RunRecord | IntegrityError | Unsupported:
        try:
            return self.read(stored)
        except (IntegrityError, Unsupported) as error:
            return error

    def log(self, stored: StoredRun) -> bytes | None:
        """What the run wrote, masked, head and tail of it; None where it was not kept."""
        if LOG not in stored.parts:
            return None
        return self._store.get(run_key(stored.dataset, stored.run, LOG), MAX_RECORD)

    def notes(self, dataset: DatasetName, sweep: SweepId) -> SweepNotes:
        """What dsv on several machines tell each other of a sweep."""
        return SweepNotes(self._store, dataset, sweep)

    def node_parts(self, stored: StoredRun) -> list[RunPart]:
        """What each node left in each attempt, by attempt and node. Raises `IntegrityError`, `Unsupported`."""
        return [part for part, _ in self.node_parts_and_usage(stored)]

    def node_parts_and_usage(self, stored: StoredRun) -> list[tuple[RunPart, Usage | None]]:
        """The same, with what the command took there if that is known."""
        found = []
        for name in _of_nodes(stored, "part"):
            key = run_key(stored.dataset, stored.run, name)
            found.append(decode_part(self._store.get(key, MAX_PART), key))
        return sorted(found, key=lambda each: (each[0].attempt, each[0].node))

    def node_logs(self, stored: StoredRun) -> list[tuple[int, int, bytes]]:
        """The log of each node and attempt, as far as there is one."""
        found = []
        for name in _of_nodes(stored, "log"):
            parsed = parse_part_name(name)
            assert parsed is not None  # so they were chosen
            key = run_key(stored.dataset, stored.run, name)
            found.append((parsed[1], parsed[2], bytes(self._store.get(key, MAX_RECORD))))
        return found

    def _stored(self, key: str, limit: int) -> bytes | None:
        """None for an object that has more than `limit` bytes."""
        try:
            return self._store.get(key, limit)
        except TooLargeError:
            return None


def _of_nodes(stored: StoredRun, kind: str) -> list[str]:
    named = {name: parse_part_name(name) for name in stored.parts}
    return sorted(name for name, parsed in named.items() if parsed is not None and parsed[0] == kind)


def _run_id(text: str) -> RunId | None:
    try:
        return RunId.parse(text)
    except UsageError:
        return None
