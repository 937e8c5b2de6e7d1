"""dsv copy --runs: records come with what they name, or not at all."""

from __future__ import annotations

from pathlib import Path

from tests.kit.dsv import Dsv, assert_documented


def test_records_come_with_their_code_and_output(pets: Dsv, tmp_path: Path) -> None:
    there = str(tmp_path / "mirror")
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("pass")
    job = ["sh", "-c", "echo 1 >$DSV_OUT/model"]
    pets.ok("run", "pets", "--code", str(code), "--keep-output", "--", *job)
    pets.ok("run", "pets@v1", "--keep-output", "--", *job)
    pets.ok("copy", "pets", "--to", there, "--create")
    assert pets.ok("runs", "--dataset", "pets", "--store", there, "--json").json["items"] == []
    planned = pets.ok("copy", "pets", "--to", there, "--runs", "--dry-run", "--json").json
    assert planned["runs"]["copied"] == 2
    done = pets.ok("copy", "pets", "--to", there, "--runs", "--json").json
    assert_documented("copy", done)
    assert (done["runs"]["copied"], done["runs"]["lacking"]) == (2, 0)
    assert done["runs"]["bytes"] > 0
    here = pets.ok("runs", "--dataset", "pets", "--json").json["items"]
    copied = pets.ok("runs", "--dataset", "pets", "--store", there, "--json").json["items"]
    assert copied == here
    tree = here[0]["output"]["tree"]
    assert pets.ok("cat", f"pets@{tree}:model", "--store", there).out == "1\n"
    for command in (("gc", "--yes", "--grace", "0s"), ("verify", "--full")):
        pets.ok(*command, "--store", there)
    assert pets.ok("cat", f"pets@{tree}:model", "--store", there).out == "1\n"
    again = pets.ok("copy", "pets", "--to", there, "--runs")
    assert "0 records of runs copied" in again.err


def test_a_record_that_names_what_the_mirror_lacks_stays_behind(pets: Dsv, tmp_path: Path) -> None:
    there = str(tmp_path / "mirror")
    (tmp_path / "l").write_text("label")
    pets.at(tmp_path).ok("put", "--create", "l", "labels:", "-m", "labels")
    pets.ok("run", "pets", "--data", "labels=labels", "--", "true")
    pets.ok("run", "pets", "--", "true")
    done = pets.ok("copy", "pets", "--to", there, "--create", "--runs")
    assert "1 record of runs copied; 1 not, as their commits are not there" in done.err
    assert len(pets.ok("runs", "--dataset", "pets", "--store", there, "--json").json["items"]) == 1
    pets.ok("gc", "--yes", "--grace", "0s", "--store", there)
    pets.ok("copy", "labels", "--to", there)
    assert "1 record of runs copied" in pets.ok("copy", "pets", "--to", there, "--runs").err
    pets.ok("gc", "--yes", "--grace", "0s", "--store", there)
