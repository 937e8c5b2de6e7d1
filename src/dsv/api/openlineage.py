"""Events of OpenLineage about runs: added to a file, or sent while runs begin and end."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from dsv import __version__
from dsv.errors import Conflict, DsvError
from dsv.files.errors import about
from dsv.files.small_files import open_plain, rewrite_file
from dsv.run.lineage import Linked, inputs_of, results_of
from dsv.run.record import RECORD, START, RunId, RunRecord
from dsv.run.record_store import RunStore
from dsv.stores.base import Bytes
from dsv.values.ids import StoreId
from dsv.values.secrets import Masker, hide_in_urls
from dsv.values.trailers import parse_run
from dsv.values.units import utc

ASKING, WAIT = 5.0, 2.0
"""Seconds that a server has to take an event, and seconds that a command waits for that at its end."""
_ENDS: Final = {"succeeded": "COMPLETE", "failed": "FAIL", "cancelled": "ABORT"}


class Events:
    """Makes the events of a store's runs. Raises `ImportError` without the library."""

    def __init__(self, store: StoreId, runs: RunStore, environ: Mapping[str, str]) -> None:
        from openlineage.client import event_v2, facet_v2, serde

        event_v2.set_producer(f"urn:dsv-data:{__version__}")
        self._kinds, self._facets, self._serde = event_v2, facet_v2, serde.Serde
        self._store, self._runs, self._mask = str(store), runs, Masker.of({}, environ)

    def of(self, record: RunRecord) -> Iterator[dict[str, Any]]:
        """Yield the start of a run, and its end if it has ended, without secrets."""
        kinds, moments = self._kinds, {"START": record.started_ms}
        if record.outcome is not None:
            moments[_ENDS[record.outcome]] = record.ended_ms or record.started_ms
        run = kinds.Run(self._id(record.dataset, record.run), self._of_run(record))
        job = kinds.Job(self._store, self._job(record), self._of_job(record))
        read = {(linked.dataset, linked.commit): linked for linked in inputs_of(record)}
        inputs = [self._dataset(kinds.InputDataset, linked, record) for linked in read.values()]
        made = [self._dataset(kinds.OutputDataset, one, record) for one in results_of(record, folder=False)]
        for what, time_ms in moments.items():
            when = utc(time_ms).replace(microsecond=time_ms % 1000 * 1000).isoformat(timespec="milliseconds")
            outputs, what = [] if what == "START" else made, kinds.RunState[what]
            said = {"eventTime": when, "eventType": what, "run": run, "job": job}
            event = self._serde.to_dict(kinds.RunEvent(**said, inputs=inputs, outputs=outputs))
            masked = json.dumps(self._mask.value(event), ensure_ascii=False)
            yield json.loads(masked.encode("utf-8", "replace"))

    def _id(self, *names: object) -> str:
        return str(uuid5(NAMESPACE_URL, f"dsv://{self._store}/{'/'.join(map(str, names))}"))

    def _job(self, record: RunRecord) -> str:
        """Return what runs of one kind have in common."""
        return self._mask.text(shlex.join(record.command) or record.image or str(record.dataset))[:200]

    def _dataset(self, kind: Any, linked: Linked, record: RunRecord) -> Any:
        """Return a dataset at a version. An output that no branch got is a dataset of the run."""
        is_own = linked.name == "output" and linked.rev is None
        name = f"{linked.dataset}/{record.run}" if is_own else str(linked.dataset)
        version = self._facets.dataset_version_dataset.DatasetVersionDatasetFacet(str(linked.commit))
        return kind(self._store, name, facets={"version": version})

    def _of_run(self, record: RunRecord) -> dict[str, Any]:
        tags, outer, of = self._facets.tags_run, parse_run(record.within or ""), self._facets.parent_run
        facets = {"tags": tags.TagsRunFacet([tags.TagsRunFacetFields("dsv.run", record.run, "dsv")])}
        if record.error is not None:
            kind = self._facets.error_message_run.ErrorMessageRunFacet
            facets["errorMessage"] = kind(record.error, "unknown")
        parent = outer if record.sweep is None else outer or (record.dataset, str(record.sweep.id))
        if parent is not None:
            name = parent[1]
            with suppress(DsvError):  # it is a sweep, or a record that can't be read
                if (read := self._runs.newest(parent[0], RunId.parse(name))) is not None:
                    name = self._job(read)
            facets["parent"] = of.ParentRunFacet(of.Run(self._id(*parent)), of.Job(self._store, name))
        return facets

    def _of_job(self, record: RunRecord) -> dict[str, Any]:
        kinds, code, text = self._facets, record.code, shlex.join(record.command)
        facets = {"sourceCode": kinds.source_code_job.SourceCodeJobFacet("shell", text)} if text else {}
        if code is not None and (code.remote or code.tree):
            kind, url = kinds.source_code_location_job, f"dsv://{record.dataset}@{code.tree}"
            at = ("git", code.remote) if code.remote else ("dsv", url)
            version = code.commit if code.remote else code.tree
            facets["sourceCodeLocation"] = kind.SourceCodeLocationJobFacet(*at, version=version)
        return facets


def add_events(file: Path, events: Events, records: Iterable[RunRecord]) -> int:
    """Add the events that a file lacks, one a line, and return of how many runs. It is replaced as a whole. Raises
    `Conflict` if it has other lines."""
    lines, runs = list[bytes](), 0
    with about(file), suppress(FileNotFoundError), open_plain(file) as old:
        lines = [line.rstrip(b"\n") + b"\n" for line in old if line.strip()]
    try:
        known = {_key(json.loads(line)) for line in lines}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = f"{file} has a line that is no event of a run"
        raise Conflict(what, subject=str(file), hint="name another file") from error
    for record in records:
        new = [event for event in events.of(record) if _key(event) not in known]
        lines += [json.dumps(event, sort_keys=True).encode() + b"\n" for event in new]
        runs += bool(new)
    with about(file):
        rewrite_file(file, *lines)
    return runs


def _key(event: dict[str, Any]) -> tuple[str, str]:
    return event["run"]["runId"], event["eventType"]


class LiveEvents:
    """Sends the events of runs whose records a store gets, in a thread of its own, so that no job waits for that. After
    a failure it sends no more."""

    def __init__(self, url: str, environ: Mapping[str, str], note: Callable[[str], None]) -> None:
        self._url, self._environ, self._note = url, environ, note
        self._waiting: SimpleQueue[RunRecord | None] = SimpleQueue()
        self._unsent: dict[RunId, None] = {}
        self._thread: Thread | None = None
        self._why = "it has not answered in time"

    def add(self, store: StoreId, runs: RunStore, part: str, data: Bytes) -> None:
        """Send the events of a part that a store has just got."""
        with suppress(DsvError, RuntimeError):  # it is of a newer dsv, or there is no room for a thread
            record = RunRecord.decode(bytes(data), part) if part in (START, RECORD) else None
            if record is not None and record.hit_of is None:
                self._unsent[record.run] = None
                self._waiting.put(record)
                if self._thread is None:
                    given = store, runs
                    thread = Thread(target=self._send, args=given, name="dsv-openlineage", daemon=True)
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        """Wait a moment for what is under way, and note the runs of which events are lost."""
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(WAIT)
        if unsent := " ".join(list(self._unsent)[:9]):
            what = f"{hide_in_urls(self._url)} lacks events of runs: {self._why}"
            self._note(f"{what}; for a file of them: dsv runs {unsent} --export openlineage FILE")

    def _send(self, store: StoreId, runs: RunStore) -> None:
        try:
            from openlineage.client.transport.http import HttpConfig, HttpTransport

            events, key = Events(store, runs, self._environ), self._environ.get("OPENLINEAGE_API_KEY")
            auth = {"type": "api_key", "apiKey": key} if key else {}
            retry = {"total": 0, "connect": 0, "read": 0, "status_forcelist": ()}
            config = {"url": self._url, "timeout": ASKING, "retry": retry, "auth": auth}
            transport = HttpTransport(HttpConfig.from_dict(config))
            while (record := self._waiting.get()) is not None:
                for event in events.of(record):
                    # The start of a job was sent when it began.
                    if record.outcome is None or record.job is None or event["eventType"] != "START":
                        transport.emit(event)
                self._unsent.pop(record.run, None)
        except Exception as error:  # noqa: BLE001 (the run has its record; only this is lost)
            self._why = hide_in_urls(str(error) or type(error).__name__)[:300]
