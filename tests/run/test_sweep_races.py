"""A sweep has one driver: of two that continue it at the same time one starts the runs, and the other is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from dsv.errors import Conflict
from dsv.files.process import Process
from dsv.run.parameters import SweepId
from dsv.run.sweep import RunOwner, SweepNotes
from dsv.stores.memory import MemoryStore
from dsv.stores.open import open_store
from dsv.values.names import DatasetName
from tests.kit.dsv import Dsv, write_files
from tests.labs.s3_server import S3Server
from tests.waiting import PATIENCE

SWEEP = SweepId.parse("sweep-20261120-132145-1f2e3d4c")
PETS = DatasetName.parse("pets")
ROUNDS = int(os.environ.get("RACE_ROUNDS", "2"))
TURNS = 50
RACER = """
import os, sys
from contextlib import closing
from dsv.values.names import DatasetName
from dsv.errors import Conflict
from dsv.run.parameters import SweepId
from dsv.run.sweep import SweepNotes
from dsv.stores.open import open_store
from dsv.stores.options import StoreOptions
url, sweep = sys.argv[1], SweepId.parse(sys.argv[2])
with closing(open_store(url, StoreOptions.from_environment(os.environ))) as store:
    notes = SweepNotes(store, DatasetName.parse("pets"), sweep)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            notes.take(int(line))
            print("won", flush=True)
        except Conflict:
            print("lost", flush=True)
"""
REFUSALS = ("are being started by", "were started")


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
    argv = [sys.executable, "-c", RACER, place.url, SWEEP]
    pipe = subprocess.PIPE
    both = [
        subprocess.Popen(argv, env={**os.environ, **place.env}, stdin=pipe, stdout=pipe, text=True)
        for _ in range(2)
    ]
    yield both
    for each in both:
        each.communicate()


def test_of_two_processes_one_becomes_the_driver(racers: list[subprocess.Popen[str]]) -> None:
    def answers() -> list[str]:
        return [each.stdout.readline() for each in racers if each.stdout is not None]

    assert answers() == ["ready\n"] * 2
    for turn in range(1, TURNS + 1):
        for each in racers:
            assert each.stdin is not None
            each.stdin.write(f"{turn}\n")
            each.stdin.flush()
        assert sorted(answers()) == ["lost\n", "won\n"]


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
        assert any(sentence in each for each in said for sentence in REFUSALS), said
        assert "Traceback" not in "".join(said)
        runs = {each["sweep"]["number"]: each["run"] for each in items}


@pytest.mark.parametrize("place", ["folder"], indirect=True)
def test_a_second_driver_is_refused_by_name_until_the_sweep_is_stopped(place: Place, tmp_path: Path) -> None:
    home = tmp_path / "home"
    dsv = Dsv.of(home, DSV_STORE=place.url, DSV_CACHE=str(home / "cache"), **place.env)
    write_files(dsv.cwd, {"a": b"a"})
    for words in (("init", "pets"), ("sync",)):
        dsv.ok(*words)
    begun = dsv.process("run", "pets", "-p", "n=1,2,3", "--sweep", "--json", "--", "true").json["sweep"]
    place.forget([each["run"] for each in begun["runs"][1:]])
    note(place, begun["id"], "begin-2-1", b"what an earlier version wrote")
    note(
        place,
        begun["id"],
        "turn-2",
        msgspec.json.encode(RunOwner(Process("another kernel", 1, 1), "gpu7/1f2e")),
    )
    refused = dsv.process("run", "--again", begun["id"])
    assert refused.code == 4 and "are being started by dsv on gpu7\n" in refused.err
    assert f"dsv stop sweep-{begun['id'][-8:]}" in refused.err
    dsv.ok("stop", begun["id"])
    assert dsv.process("run", "--again", begun["id"]).code == 0
    items = dsv.ok("runs", begun["id"], "--json").json["items"]
    assert sorted(each["params"]["n"] for each in items) == [1, 2, 3]


def note(place: Place, sweep: str, name: str, data: bytes) -> None:
    with closing(open_store(place.url)) as store:
        store.put_if_absent(f"runs/pets/{sweep}/{name}", data)


def test_a_driver_is_in_effect_until_a_later_stop() -> None:
    store = MemoryStore()
    notes = SweepNotes(store, PETS, SWEEP)
    for name in ("begin-1-7", "stop-x", "turn--1", "turn-9999999999", "other"):
        store.put_if_absent(f"runs/pets/{SWEEP}/{name}", b"")
    assert notes.driver() is None and notes.next_turn() == 1
    notes.take(1)
    assert not notes.is_over(1) and notes.next_turn() == 1
    notes.stop()
    assert notes.is_over(1) and notes.driver() is None and notes.next_turn() == 2
    notes.stop()
    assert notes.next_turn() == 3
    store.put_if_absent(f"runs/pets/{SWEEP}/turn-3", b"no json")
    with pytest.raises(Conflict, match="being started by dsv on another machine"):
        notes.take(notes.next_turn())


def test_a_driver_that_was_killed_is_replaced() -> None:
    store, here = MemoryStore(), RunOwner.here()
    dead = RunOwner(msgspec.structs.replace(here.process, start=here.process.start + 1), here.host)
    store.put_if_absent(f"runs/pets/{SWEEP}/turn-1", msgspec.json.encode(dead))
    notes = SweepNotes(store, PETS, SWEEP)
    assert notes.next_turn() == 2
    notes.take(2)
    assert notes.driver() == here
