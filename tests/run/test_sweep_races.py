"""Two machines that continue one sweep at the same time: each of its runs is begun once, and the slower one is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from dsv.fs.process import Process
from dsv.run.parameters import SweepId
from dsv.run.record_store import Beginner, SweepNotes
from dsv.store.memory import MemoryStore
from dsv.store.open import open_store
from dsv.values.names import DatasetName
from tests.kit.dsv import Dsv, write_files
from tests.labs.s3_server import S3Server
from tests.waiting import PATIENCE

SWEEP = SweepId.parse("sweep-20261120-132145-1f2e3d4c")
PETS = DatasetName.parse("pets")
ROUNDS = int(os.environ.get("RACE_ROUNDS", "2"))
NOTED_ROUNDS, RUNS = 50, 3
RACER = """
import json, os, sys
from contextlib import closing
from dsv.values.names import DatasetName
from dsv.run.parameters import SweepId
from dsv.run.record_store import SweepNotes
from dsv.store.open import open_store
from dsv.store.options import StoreOptions
url, sweep, runs = sys.argv[1], SweepId.parse(sys.argv[2]), int(sys.argv[3])
with closing(open_store(url, StoreOptions.from_environment(os.environ))) as store:
    notes = SweepNotes(store, DatasetName.parse("pets"), sweep)
    print("ready", flush=True)
    for line in sys.stdin:
        turn = int(line)
        won = [notes.take_turn(turn) is None]
        won += [notes.begin(number, turn) is None for number in range(1, runs + 1)]
        print(json.dumps(won), flush=True)
"""
TOLD = ("which came first", "was continued on", "has taken it", "has no record yet", "runs of sweep-")


@dataclass(frozen=True)
class Place:
    """A store. forget: removes all that it has of these runs."""

    url: str
    env: Mapping[str, str]
    forget: Callable[[list[str]], None]


@pytest.fixture(params=["folder", pytest.param("ceph", marks=pytest.mark.real)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        store = tmp_path / "store"
        store.mkdir()

        def remove(runs: list[str]) -> None:
            for run in runs:
                for path in (store / "runs" / "pets" / run).iterdir():
                    path.unlink()

        return Place(str(store), {}, remove)
    server: S3Server = request.getfixturevalue("ceph_s3")
    bucket = server.bucket()

    def delete(runs: list[str]) -> None:
        for key in server.objects(bucket, "runs/pets/"):
            if key.split("/")[2] in runs:
                server.client().delete_object(Bucket=bucket, Key=key)

    return Place(f"s3://{bucket}", server.env, delete)


@pytest.fixture
def racers(place: Place) -> Iterator[list[subprocess.Popen[str]]]:
    argv = [sys.executable, "-c", RACER, place.url, SWEEP, str(RUNS)]
    pipe = subprocess.PIPE
    both = [
        subprocess.Popen(argv, env={**os.environ, **place.env}, stdin=pipe, stdout=pipe, text=True)
        for _ in range(2)
    ]
    yield both
    for each in both:
        each.communicate()


def test_of_two_processes_one_has_the_turn_and_one_each_run(racers: list[subprocess.Popen[str]]) -> None:
    def answers() -> list[str]:
        return [each.stdout.readline() for each in racers if each.stdout is not None]

    assert answers() == ["ready\n"] * 2
    for turn in range(1, NOTED_ROUNDS + 1):
        for each in racers:
            assert each.stdin is not None
            each.stdin.write(f"{turn}\n")
            each.stdin.flush()
        won = [json.loads(line) for line in answers()]
        assert [sorted(pair) for pair in zip(*won, strict=True)] == [[False, True]] * (RUNS + 1)


def test_a_sweep_that_two_machines_continue_begins_each_run_once(place: Place, tmp_path: Path) -> None:
    homes = [tmp_path / name for name in ("one", "two")]
    machines = [
        Dsv.of(home, DSV_STORE=place.url, DSV_CACHE=str(home / "cache"), **place.env) for home in homes
    ]
    first = machines[0]
    write_files(first.cwd, {"a": b"a"})
    for words in (("init", "pets"), ("sync",)):
        first.ok(*words)
    begun = first.process("run", "pets", "-p", "n=1,2,3", "--sweep", "--name", "grid", "--json", "--", "true")
    assert begun.code == 0, begun
    id_ = begun.json["sweep"]["id"]
    runs = {each["sweep"]["number"]: each["run"] for each in begun.json["sweep"]["runs"]}
    for _ in range(ROUNDS):
        place.forget([runs[2], runs[3]])
        words = ("run", "--again", id_, "--parallel", "2")
        both = [each.start(*words) for each in machines]
        said = [each.communicate(timeout=PATIENCE)[1].decode() for each in both]
        items = first.ok("runs", "grid", "--json").json["items"]
        assert sorted(each["sweep"]["number"] for each in items) == [1, 2, 3], said
        assert {each["exit_code"] for each in items} == {0}
        assert any(sentence in each for each in said for sentence in TOLD), said
        assert "Traceback" not in "".join(said)
        runs = {each["sweep"]["number"]: each["run"] for each in items}


@pytest.mark.parametrize("place", ["folder"], indirect=True)
def test_a_run_that_another_machine_has_taken_is_left_to_it(place: Place, tmp_path: Path) -> None:
    home = tmp_path / "home"
    dsv = Dsv.of(home, DSV_STORE=place.url, DSV_CACHE=str(home / "cache"), **place.env)
    write_files(dsv.cwd, {"a": b"a"})
    for words in (("init", "pets"), ("sync",)):
        dsv.ok(*words)
    begun = dsv.process("run", "pets", "-p", "n=1,2,3", "--sweep", "--json", "--", "true").json["sweep"]
    place.forget([each["run"] for each in begun["runs"][1:]])
    elsewhere = msgspec.json.encode(Beginner("gpu7", Process("another kernel", 1, 1)))
    note(place, begun["id"], "begin-2-2", elsewhere)
    done = dsv.process("run", "--again", begun["id"])
    assert "run 2 is not begun here, as dsv on gpu7 has taken it" in done.err
    assert "not begun: dsv run --again" in dsv.ok("runs", begun["id"]).err
    refused = dsv.process("run", "--again", begun["id"])
    assert refused.code == 4 and "run 2 of sweep-" in refused.err and "--force" in refused.err
    assert dsv.process("run", "--again", begun["id"], "--force").code == 0
    items = dsv.ok("runs", begun["id"], "--json").json["items"]
    assert sorted(each["params"]["n"] for each in items) == [1, 2, 3]


def note(place: Place, sweep: str, name: str, data: bytes) -> None:
    with closing(open_store(place.url)) as store:
        store.put_if_absent(f"runs/pets/{sweep}/{name}", data)


def test_notes_that_mean_nothing_are_passed_over() -> None:
    store = MemoryStore()
    notes = SweepNotes(store, PETS, SWEEP)
    for name in ("begin-0-1", "begin-2", "stop-x", "turn--1", "begin-1-9999999999", "other"):
        store.put_if_absent(f"runs/pets/{SWEEP}/{name}", b"")
    assert notes.begin(1, 1) is None and notes.begin(2, 1) is None
    notes.drop(2, 1)
    notes.stop()
    notes.stop()
    store.put_if_absent(f"runs/pets/{SWEEP}/turn-1", b"no json")
    found = notes.news()
    assert (found.stops, found.turns, dict(found.begins)) == (2, 1, {1: 1, 2: 1})
    assert found.dropped == {2}
    other = notes.take_turn(1)
    assert other is not None and other.host == "another machine" and not other.is_dead
