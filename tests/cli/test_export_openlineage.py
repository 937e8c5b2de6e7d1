"""`dsv runs --export openlineage FILE`, and events of runs as they begin and end."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID

import pytest

from dsv.run.parameters import SweepId, SweepSeat
from dsv.run.part import EndCause
from dsv.run.record import CodeState, OnceKey, RunRecord, RunState
from dsv.stores.directory import DirectoryStore
from tests.killing import run_killed
from tests.kit.dsv import Dsv
from tests.kit.lineage import MODELS, RAW, Lab


class Place:
    """The store of a lab, and a file of events."""

    def __init__(self, top: Path, dsv: Dsv) -> None:
        (top / "store").mkdir()
        self.lab = Lab(DirectoryStore(top / "store"))
        self.dsv = dsv.at(dsv.cwd, DSV_STORE=str(top / "store"))
        self.file = dsv.cwd / "events.jsonl"
        self.commit = self.lab.commit(RAW, {"a.txt": b"alpha"})
        self.namespace = str(self.lab.repository.id)

    def run(self, **fields: Any) -> RunRecord:
        return self.lab.end(self.lab.record(self.lab.data(RAW, self.commit), **fields))

    def export(self, *words: str) -> str:
        return self.dsv.ok("runs", *words, "--export", "openlineage", str(self.file)).err

    def events(self, record: RunRecord | None = None) -> list[Any]:
        events = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [event for event in events if record is None or self.said(event) == record.run]

    def said(self, event: Any) -> str:
        return str(event["run"]["facets"]["tags"]["tags"][0]["value"])


@pytest.fixture
def place(tmp_path: Path, dsv: Dsv) -> Place:
    return Place(tmp_path, dsv)


def checked(event: Any) -> None:
    """Each part of it is what the library itself makes of its members."""
    from openlineage.client import event_v2, facet_v2
    from openlineage.client.serde import Serde

    facets = {
        "version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet,
        "tags": facet_v2.tags_run.TagsRunFacet,
        "errorMessage": facet_v2.error_message_run.ErrorMessageRunFacet,
        "parent": facet_v2.parent_run.ParentRunFacet,
        "sourceCode": facet_v2.source_code_job.SourceCodeJobFacet,
        "sourceCodeLocation": facet_v2.source_code_location_job.SourceCodeLocationJobFacet,
    }

    def made(of: Any) -> dict[str, Any]:
        return {
            name: facets[name](**{key: value for key, value in members.items() if key[0] != "_"})
            for name, members in of["facets"].items()
        }

    run, job = event["run"], event["job"]
    again = event_v2.RunEvent(
        eventType=event_v2.RunState[event["eventType"]],
        eventTime=event["eventTime"],
        producer=event["producer"],
        run=event_v2.Run(run["runId"], made(run)),
        job=event_v2.Job(job["namespace"], job["name"], made(job)),
        inputs=[
            event_v2.InputDataset(one["namespace"], one["name"], facets=made(one)) for one in event["inputs"]
        ],
        outputs=[
            event_v2.OutputDataset(one["namespace"], one["name"], facets=made(one))
            for one in event["outputs"]
        ],
    )
    assert Serde.to_dict(again) == event


def test_the_events_of_a_run(place: Place) -> None:
    lab = place.lab
    code = CodeState("/code", "8d1e04aa" * 5, True, remote="https://host/code")
    record, made = lab.step(
        MODELS, {"model.pt": b"w"}, lab.data(RAW, place.commit), lab.data(RAW, place.commit, "val"),
        params={"lr": 0.1}, command=("python", "train.py"), code=code,
    )  # fmt: skip
    assert "1 run in" in place.export()
    start, end = place.events()
    for event in (start, end):
        checked(event)
        assert event["run"]["runId"] == start["run"]["runId"] and UUID(event["run"]["runId"]).version == 5
        assert event["job"]["namespace"] == place.namespace and event["job"]["name"] == "python train.py"
        (read,) = event["inputs"]
        assert (read["namespace"], read["name"]) == (place.namespace, "raw")
        assert read["facets"]["version"]["datasetVersion"] == str(place.commit)
        location = event["job"]["facets"]["sourceCodeLocation"]
        assert (location["type"], location["url"], location["version"]) == ("git", code.remote, code.commit)
    assert (start["eventType"], start["outputs"], end["eventType"]) == ("START", [], "COMPLETE")
    assert start["eventTime"] < end["eventTime"] and end["eventTime"].startswith("2027-01-15T08:4")
    (output,) = end["outputs"]
    assert (output["name"], output["facets"]["version"]["datasetVersion"]) == ("models", str(made))
    assert (
        str(lab.store) not in place.file.read_text() and str(place.file.parent) not in place.file.read_text()
    )
    assert record.run == place.said(end)


def test_other_stores_and_datasets_have_other_ids(place: Place, tmp_path: Path, dsv: Dsv) -> None:
    (tmp_path / "second").mkdir()
    second = Place(tmp_path / "second", dsv)
    second.file = dsv.cwd / "second.jsonl"
    for each in (place, second):
        each.run()
        each.export()
    one, other = place.events()[0], second.events()[0]
    assert place.said(one) == second.said(other) and one["run"]["runId"] != other["run"]["runId"]


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({}, ["START", "COMPLETE"]),
        ({"exit_code": 3}, ["START", "FAIL"]),
        ({"exit_code": 143, "end": EndCause.CANCELLED}, ["START", "ABORT"]),
        ({"state": RunState.CUT_OFF, "error": "lost"}, ["START", "FAIL"]),
    ],
)
def test_the_end_of_a_run(place: Place, fields: dict[str, Any], ends: list[str]) -> None:
    place.run(**fields)
    place.export()
    events = place.events()
    assert [event["eventType"] for event in events] == ends
    assert "errorMessage" in events[1]["run"]["facets"] or "error" not in fields


def test_parents_are_the_run_of_the_job_and_the_sweep(place: Place) -> None:
    outer = place.run(command=("make", "all"))
    inner = place.run(within=f"raw/{outer.run}")
    sweep = SweepId.parse("sweep-20261128-100000-4f2a9c01")
    seat = place.run(sweep=SweepSeat(id=sweep, number=1, of=2, axes={"x": [1, 2]}))
    lost = place.run(within="raw/20261101-000000-00000000")
    place.export()
    ids = {place.said(event): event["run"]["runId"] for event in place.events()}
    parents = {place.said(event): event["run"]["facets"].get("parent") for event in place.events()}
    assert parents[outer.run] is None
    assert parents[inner.run]["run"]["runId"] == ids[outer.run]
    assert parents[inner.run]["job"] == {"namespace": place.namespace, "name": "make all", "facets": {}}
    assert parents[seat.run]["job"]["name"] == str(sweep)
    assert parents[lost.run]["job"]["name"] == "20261101-000000-00000000"


def test_repeated_and_added_to(place: Place) -> None:
    first = place.run()
    assert "1 new or completed" in place.export()
    before = place.file.read_bytes()
    place.file.chmod(0o600)
    place.file = place.file.rename(place.dsv.cwd / "real.jsonl")
    (place.dsv.cwd / "events.jsonl").symlink_to(place.file)
    place.dsv.ok("runs", "--export", "openlineage", str(place.dsv.cwd / "events.jsonl"))
    assert place.file.stat().st_mode & 0o777 == 0o600 and (place.dsv.cwd / "events.jsonl").is_symlink()
    assert "0 new or completed" in place.export() and place.file.read_bytes() == before
    place.file.write_bytes(b"\n" + before.rstrip(b"\n"))  # as another program may have left it
    early = place.lab.record(place.lab.data(RAW, place.commit))
    running = replace(early, state=RunState.RUNNING, ended_ms=None, exit_code=None)
    place.lab.runs.write(RAW, early.run, "start", running.encode())
    place.export()
    assert [event["eventType"] for event in place.events(early)] == ["START"]
    place.lab.end(early)
    hit = place.run(once=OnceKey(key="0" * 64, hit_of=f"raw/{first.run}"))
    assert "1 for which nothing was run are left out" in place.export("--hits")
    assert [event["eventType"] for event in place.events(early)] == ["START", "COMPLETE"]
    assert place.file.read_bytes().startswith(before) and place.events(hit) == []


def test_killed_anywhere_and_repeated(place: Place) -> None:
    place.run()
    place.export()
    before = place.file.read_bytes()
    place.run()
    place.dsv.ok("runs", "--json")
    steps = run_killed(lambda: None, None, inside=place.dsv.cwd)
    whole = b""
    for step in (None, *range(1, 9)):
        place.file.write_bytes(before)
        run_killed(lambda: print(place.export()), step, inside=place.dsv.cwd)
        assert place.file.read_bytes() in (before, whole or place.file.read_bytes())
        place.export()
        whole = whole or place.file.read_bytes()
        assert place.file.read_bytes() == whole != before and steps == 0


@pytest.mark.parametrize("data", [b"junk\n", b"{}\n", b"[" * 100_000, b'{"run": 3}\n', b"\xff\n", b"null\n"])
def test_a_file_of_something_else_stays(place: Place, data: bytes) -> None:
    place.run()
    place.file.write_bytes(data)
    refused = place.dsv("runs", "--export", "openlineage", str(place.file))
    assert refused.code == 4 and "no event of a run" in refused.err
    assert place.file.read_bytes() == data


def test_places_that_are_no_files(place: Place) -> None:
    os.mkfifo(place.dsv.cwd / "pipe")
    for name in (".", "pipe", "missing/events"):
        assert place.dsv("runs", "--export", "openlineage", name).code not in (0, 70), name


def test_secrets_and_hostile_text(place: Place) -> None:
    token = "hunter2secret-of-the-environment"
    here = place.dsv.at(place.dsv.cwd, API_TOKEN=token)
    hostile = "a\udcff\u202e\n" + "x" * 300
    place.run(command=("run", token, hostile), error=f"it said {token}", host="gpu\n3", image="i")
    here.ok("runs", "--export", "openlineage", str(place.file))
    text = place.file.read_bytes()
    assert token.encode() not in text and b"***" in text and text.isascii() and len(text.splitlines()) == 2
    for event in place.events():
        checked(event)
        assert len(event["job"]["name"]) <= 200
        json.dumps(event, ensure_ascii=False).encode()  # no half of a surrogate pair


def test_times_that_no_calendar_has(place: Place) -> None:
    place.run(started_ms=-(10**17), ended_ms=10**17 + 123)
    place.export()
    assert [event["eventTime"][-9:] for event in place.events()] == ["000+00:00", "123+00:00"]


def test_without_runs_and_without_the_library(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.export()
    assert place.events() == []
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    refused = place.dsv("runs", "--export", "openlineage", str(place.file))
    assert refused.code == 9 and "pip install 'dsv-data[openlineage]'" in refused.err


class Server:
    """Takes events on a port of this machine, or answers with `status`."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.status, self.headers = 201, list[Any]()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.headers.append((self.path, self.headers["Authorization"]))
                server.events.append(json.loads(body))
                self.send_response(server.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than a command waits."""
    monkeypatch.setattr("dsv.api.openlineage.WAIT", 300.0)
    monkeypatch.setattr("dsv.api.openlineage.ASKING", 300.0)


def test_live_events(pets: Dsv, server: Server, longer: None) -> None:
    here = pets.at(pets.cwd, OPENLINEAGE_API_KEY="k3y", SECRET_TOKEN="hunter2secret")
    here.ok("config", "lineage.openlineage", server.url)
    here.ok("run", "pets@v1", "--", "sh", "-c", "echo hunter2secret")
    assert [event["eventType"] for event in server.events] == ["START", "COMPLETE"]
    assert here("run", "pets@v1", "--", "sh", "-c", "exit 3").code == 3
    assert [event["eventType"] for event in server.events[2:]] == ["START", "FAIL"]
    assert set(server.headers) == {("/api/v1/lineage", "Bearer k3y")}
    assert "hunter2secret" not in json.dumps(server.events)
    here.ok("runs", "--export", "openlineage", "events.jsonl")
    lines = (here.cwd / "events.jsonl").read_text().splitlines()
    ids = {(event["run"]["runId"], event["eventType"]) for event in server.events}
    assert {(event["run"]["runId"], event["eventType"]) for event in map(json.loads, lines)} == ids
    here.at(here.cwd, OPENLINEAGE_DISABLED="true").ok("run", "pets@v1", "--", "true")
    assert len(server.events) == 4


def test_a_run_that_is_sent_later_has_its_events_then(pets: Dsv, server: Server, longer: None) -> None:
    pets.ok("config", "lineage.openlineage", server.url)
    pets.ok("cache", "pets@v1")
    pets.ok("run", "pets@v1", "--offline", "--", "true")
    assert server.events == []
    pets.ok("run", "pets@v1", "--", "true")
    assert sorted(event["eventType"] for event in server.events) == ["COMPLETE", "COMPLETE", "START", "START"]


def test_a_server_that_refuses_or_is_not_there_costs_a_note(pets: Dsv, server: Server, longer: None) -> None:
    server.status = 500
    pets.ok("config", "lineage.openlineage", server.url.replace("//", "//ann:hunter2@"))
    done = pets.ok("run", "pets@v1", "--", "true")
    assert "lacks events of runs: 500 Server Error" in done.err and "hunter2" not in done.err
    assert len(server.events) == 1, "it is not asked again"
    for url in ("http://127.0.0.1:9", "nonsense", "ftp://127.0.0.1/"):
        pets.ok("config", "lineage.openlineage", url)
        done = pets.ok("run", "pets@v1", "--", "true")
        assert f"{url} lacks events of runs" in done.err and "--export openlineage FILE" in done.err
    items = pets.ok("runs", "--json").json["items"]
    assert [item["exit_code"] for item in items] == [0] * 4 and all(item["sent"] for item in items)


def test_a_server_that_hangs_delays_no_job(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv.api.openlineage.WAIT", 0.01)
    monkeypatch.setattr("dsv.api.openlineage.ASKING", 300.0)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        pets.ok("config", "lineage.openlineage", url)
        done = pets.ok("run", "pets@v1", "--", "true")  # while nobody answers it
        assert f"{url} lacks events of runs: it has not answered in time" in done.err
        assert [item["sent"] for item in pets.ok("runs", "--json").json["items"]] == [True]


def test_no_room_for_a_thread_costs_a_note(pets: Dsv, server: Server, monkeypatch: Any) -> None:
    plain = Thread.start

    def start(thread: Thread) -> None:
        if thread.name == "dsv-openlineage":
            raise RuntimeError("can't start new thread")
        plain(thread)

    monkeypatch.setattr(Thread, "start", start)
    pets.ok("config", "lineage.openlineage", server.url)
    assert "lacks events of runs" in pets.ok("run", "pets@v1", "--", "true").err and server.events == []


def test_a_missing_library_costs_a_note(pets: Dsv, server: Server, longer: None, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    pets.ok("config", "lineage.openlineage", server.url)
    done = pets.ok("run", "pets@v1", "--", "true")
    assert "lacks events of runs: " in done.err and "openlineage.client" in done.err
    assert server.events == []
