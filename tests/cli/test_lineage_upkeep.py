"""Edges of lineage and runs in what keeps a store: verify, erase, gc."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit.dsv import Dsv, assert_documented

JOB = ("sh", "-c", "echo 1 >$DSV_OUT/model")


def edges(store: Path) -> list[str]:
    return sorted(
        path.relative_to(store).as_posix() for path in (store / "lineage").rglob("*") if path.is_file()
    )


def store_of(dsv: Dsv) -> Path:
    return Path(dsv.ok("config", "store").out.split()[0])


def test_a_repair_puts_missing_edges_and_removes_those_of_deleted_runs(pets: Dsv) -> None:
    pets.ok("run", "pets:train", "--keep-output", "--", *JOB)
    store = store_of(pets)
    before = edges(store)
    assert len(before) == 3  # the part that it saw, the whole commit, the output
    (run,) = pets.ok("runs", "--json").json["items"]
    for key in before:
        (store / key).unlink()
    strange = f"lineage/{'ab' * 32}/made/pets/20200101-000000-00000000"
    (store / strange).parent.mkdir(parents=True)
    (store / strange).write_bytes(b"")
    pets.ok("verify")
    assert edges(store) == [strange]
    assert "edges of lineage: 3 put, 1 of deleted runs removed" in pets.ok("verify", "--repair").err
    assert edges(store) == before
    assert "edges" not in pets.ok("verify", "--repair").err
    pets.ok("gc", "--yes", "--grace", "0s")
    assert edges(store) == before
    pets.ok("runs", "--delete", run["run"], "--yes")
    assert edges(store) == []


def test_records_from_before_edges_get_those_of_whole_commits(pets: Dsv) -> None:
    pets.ok("run", "pets", "--keep-output", "--", *JOB)
    store = store_of(pets)
    before = edges(store)
    (path,) = (store / "runs").rglob("record")
    record = json.loads(path.read_text())
    for each in (*record["data"], record["output"]):
        each.pop("root")
        each.pop("commit_root", None)
    path.write_text(json.dumps(record))
    for key in before:
        (store / key).unlink()
    pets.ok("verify", "--repair")
    assert edges(store) == before
    (run,) = pets.ok("runs", "--json").json["items"]
    found = pets.ok("lineage", f"pets@{run['output']['tree']}", "--json").json
    assert [edge["name"] for edge in found["edges"]] == ["output", "data"]
    assert run["run"] in [node["run"] for node in found["nodes"]]
    assert run["run"] in pets.ok("lineage", "pets", "--down").out


def test_an_erasure_names_the_runs_that_read_the_file(pets: Dsv) -> None:
    pets.ok("run", "pets@v1", "--keep-output", "--", *JOB)
    pets.ok("run", "pets:train", "--", *JOB)
    second, first = (each["run"] for each in pets.ok("runs", "--json").json["items"])
    planned = pets.ok("erase", "pets:train/1.png", "--dry-run", "--json").json
    assert_documented("erase", planned)
    outputs = {each["run"]: each["output"] for each in planned["runs"]}
    assert outputs.keys() == {first, second}
    assert outputs[first] is not None
    assert outputs[second] is None
    shown = pets.ok("erase", "pets:a.txt", "--reason", "consent withdrawn", "--yes").err
    assert "runs that read it" not in shown  # v1 has another a.txt, and the other run saw train alone
    shown = pets.ok("erase", "pets@v1:a.txt", "--reason", "consent withdrawn", "--yes").err
    assert "runs that read it, whose outputs may have a part of it:" in shown
    assert f"  {first} on pets: output in pets@" in shown
    assert second not in shown
