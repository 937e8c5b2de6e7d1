"""A bounded list of runs that this machine remembers says what the store has now."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dsv.stores.directory import DirectoryStore
from tests.kit.dsv import Dsv, made_once, write_files


@pytest.fixture
@made_once
def pets(dsv: Dsv) -> Dsv:
    """With three runs, which this machine remembers."""
    write_files(dsv.cwd, {"a": b"a"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    for number in range(3):
        run(dsv, number)
    assert len(listed(dsv)) == 3
    return dsv


def run(dsv: Dsv, number: int) -> None:
    dsv.ok("run", "pets", "-p", f"x={number}", "--", "true")


def listed(dsv: Dsv, *options: str) -> list[int]:
    return [item["params"]["x"] for item in dsv.ok("runs", "-n", "9", "--json", *options).json["items"]]


def folder_of_newest(dsv: Dsv) -> Path:
    runs = dsv.home / ".local/share/dsv/store/runs/pets"
    return max(runs.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def folder(dsv: Dsv, number: int) -> Path:
    runs = {item["params"]["x"]: item["run"] for item in dsv.ok("runs", "--json").json["items"]}
    return dsv.home / f".local/share/dsv/store/runs/pets/{runs[number]}"


@pytest.mark.parametrize("options", [(), ("--sort", "params.x"), ("--filter", "params.x>=0")])
def test_a_deleted_run_vanishes_and_a_new_one_appears(pets: Dsv, options: tuple[str, ...]) -> None:
    assert sorted(listed(pets, *options)) == [0, 1, 2]
    shutil.rmtree(folder(pets, 1))
    assert sorted(listed(pets, *options)) == [0, 2]
    run(pets, 3)
    assert sorted(listed(pets, *options)) == [0, 2, 3]


@pytest.mark.parametrize("options", [(), ("--sort", "-params.x")])
def test_a_folder_without_a_record_is_no_run(pets: Dsv, options: tuple[str, ...]) -> None:
    """A deletion was killed before it removed the folder, or removed all but a log that came late."""
    for path in folder(pets, 2).iterdir():
        path.unlink()
    assert listed(pets, *options) == [1, 0]
    (kept,) = (path for path in pets.home.rglob("remembered-runs/*") if path.suffix != ".lock")
    assert len(kept.read_bytes().splitlines()) == 2
    assert listed(pets, *options) == [1, 0]


def test_a_damaged_record_is_named_once(pets: Dsv) -> None:
    run(pets, 3)  # not remembered yet
    damaged = folder_of_newest(pets) / "record"
    damaged.unlink()
    damaged.write_bytes(b"{}")
    for path in folder(pets, 2).iterdir():
        path.unlink()
    shown = pets.ok("runs", "--sort", "params.x", "-n", "9")
    assert shown.err.count("is not a record of a run") == 1


def test_ended_runs_are_not_listed_key_by_key(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes: list[str] = []
    plain = DirectoryStore.list

    def counted(self: DirectoryStore, prefix: str, start_after: str | None = None) -> object:
        prefixes.append(prefix)
        return plain(self, prefix, start_after)

    monkeypatch.setattr(DirectoryStore, "list", counted)
    assert listed(pets, "--sort", "-params.x", "-n", "1") == [2]
    assert [prefix.count("/") for prefix in prefixes if prefix.startswith("runs/")] == [2], prefixes


def test_what_this_dsv_can_not_decode_is_read_from_the_store(pets: Dsv) -> None:
    from xxhash import xxh3_64_hexdigest

    (path,) = (
        path for path in (pets.home / ".local/state/dsv/remembered-runs").iterdir() if path.suffix != ".lock"
    )
    bodies = [
        line.partition(b" ")[2].replace(b'"params":{', b'"params":7,"was":{')
        for line in path.read_bytes().splitlines()
    ]
    path.write_bytes(b"".join(xxh3_64_hexdigest(body).encode() + b" " + body + b"\n" for body in bodies))
    assert listed(pets, "--sort", "-params.x") == [2, 1, 0]
    assert listed(pets) == [2, 1, 0]


@pytest.mark.parametrize("most", [256, 0])
def test_hidden_hits_take_no_place_in_a_bounded_list(
    pets: Dsv, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Quick, where this machine remembers them, and whole."""
    monkeypatch.setattr("dsv.api.runs._MOST_QUICK", most)
    folders = pets.home / ".local/share/dsv/store/runs/pets"
    (old, *others) = folders.iterdir()
    record = json.loads((old / "record").read_text())
    for path in (old, *others):
        shutil.rmtree(path)
    for number in range(10):
        run = f"20261120-1321{number:02}-00000000"
        hit = {"key": "ab" * 32, "hit_of": "pets/20261120-132100-00000000"} if number % 2 else None
        changed = record | {"run": run, "params": {"x": number}, "once": hit}
        write_files(folders / run, {"record": json.dumps(changed).encode()})
    for _ in ("read", "remembered"):
        assert listed(pets, "-n", "3") == [8, 6, 4]
        assert listed(pets, "-n", "3", "--hits") == [9, 8, 7]
        assert listed(pets, "-n", "3", "--sort", "-params.x") == [8, 6, 4]
        assert listed(pets, "-n", "9", "--reverse") == [0, 2, 4, 6, 8]
