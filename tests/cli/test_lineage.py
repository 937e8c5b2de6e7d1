"""lineage: what it prints, its JSON, its exit codes, and files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import dsv as package
from dsv.format.keys import run_key
from dsv.run.record import CodeState, RunOutput
from dsv.stores.directory import DirectoryStore
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName
from tests.kit.dsv import Dsv, assert_documented, write_files
from tests.kit.lineage import MODELS, RAW, RESIZED, Lab

LABELS = DatasetName.parse("labels")


class Digits(Lab):
    """raw → resized → trained, with labels by hand; raw data and resized data have moved on since."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        super().__init__(DirectoryStore(folder))
        self.v1 = self.commit(
            RAW, {"1.png": b"11", "2.png": b"2"}, message="scans\n\nImported-from: s3://lab/scans"
        )
        self.labels = self.commit(LABELS, {"labels.csv": b"7"}, message="fixed sevens")
        self.resize, self.resized = self.step(
            RESIZED, {"1.png": b"1"}, self.data(RAW, self.v1), target="raw@v1", params={"size": 64}
        )
        code = CodeState("/code", "8d1e04aa" * 5, True, "3f2a91d0c4e1" + "0" * 52)
        self.train, self.model = self.step(
            MODELS, {"model.pt": b"weights", "log": b"l"},
            self.data(RESIZED, self.resized), self.data(LABELS, self.labels, "labels"),
            params={"lr": 0.1}, image="team/resnet", image_digest="sha256:9b1c" + "0" * 60, code=code,
        )  # fmt: skip
        self.v2 = self.commit(RAW, {"1.png": b"11", "2.png": b"3", "3.png": b"3", "4.png": b"4"}, self.v1)
        self.commit(RESIZED, {"1.png": b"1", "x": b""}, self.resized)


@pytest.fixture
def digits(tmp_path: Path) -> Digits:
    return Digits(tmp_path / "store")


@pytest.fixture
def there(dsv: Dsv, digits: Digits, tmp_path: Path) -> Dsv:
    return dsv.at(dsv.cwd, DSV_STORE=str(tmp_path / "store"))


def short(commit: CommitId) -> str:
    return str(commit)[:12]


def test_it_looks_like_this(there: Dsv, digits: Digits) -> None:
    shown = there("lineage", "models@main", terminal=True, width=80)
    assert shown.code == 0 and shown.lines == [
        f"models@main {short(digits.model)}  2 files, 8 B",
        f"└ run {digits.train.run}  ok, 41m, ann@gpu3  lr=0.1",
        "  │ team/resnet@sha256:9b1c…  code 3f2a91d0c4e1 (git 8d1e04aa, changed)",
        f"  ├ resized@{short(digits.resized)}  1 file  main has moved",
        f"  │ └ run {digits.resize.run}  ok, 41m, ann@gpu3  size=64",
        f"  │   └ raw@v1 {short(digits.v1)}  2 files  main has moved  imported from s3://lab/sc…",
        f"  └ labels@{short(digits.labels)}  1 file  head of main  ann: fixed sevens  labels",
        f"raw data: labels@{short(digits.labels)}, raw@v1 {short(digits.v1)}",
    ]
    narrow = there("lineage", "models@main", terminal=True, width=40)
    assert max(map(len, narrow.lines[:-1])) == 40


def test_down_shows_who_used_it(there: Dsv, digits: Digits) -> None:
    lines = there.ok("lineage", f"raw@{digits.v1}", "--down").lines
    assert [line.split("  ")[0 if not line.startswith("  ") else -1][:8] for line in lines[:1]] == [
        f"raw@{digits.v1}"[:8]
    ]
    assert f"run {digits.resize.run}" in lines[1] and "ann@gpu3" in lines[1]
    assert f"resized@main {short(digits.resized)}" in lines[2]
    assert f"run {digits.train.run}" in lines[3]
    assert f"models@main {short(digits.model)}" in lines[5] and len(lines) == 6


def test_changes_of_each_raw_dataset(there: Dsv, digits: Digits) -> None:
    assert there.ok("lineage", "models", "--changes").lines == [
        "DATASET  SINCE                 COMMITS  ADDED  REMOVED  CHANGED",
        f"labels   {short(digits.labels)}..main  no change",
        f"raw      {short(digits.v1)}..main          1     +2       -0       ~1",
    ]
    document = there.ok("lineage", "models", "--changes", "--json").json
    assert [(row["dataset"], row["commits"], row["added"]) for row in document["changes"]] == [
        ("labels", 0, 0),
        ("raw", 1, 2),
    ]


def test_exit_code_says_whether_an_input_has_moved(there: Dsv, digits: Digits) -> None:
    assert there("lineage", "models", "--exit-code").code == 1
    assert there("lineage", "labels", "--exit-code").code == 0
    assert there("lineage", "raw@main", "--exit-code").code == 0


def test_json_has_every_node_and_edge(there: Dsv, digits: Digits) -> None:
    document = there.ok("lineage", "models", "--changes", "--json").json
    assert_documented("lineage", document)
    by_id = {node["id"]: node for node in document["nodes"]}
    assert document["start"] == f"models@{digits.model}"
    assert {edge["from"] for edge in document["edges"]} | {
        edge["to"] for edge in document["edges"]
    } == by_id.keys()
    raw = by_id[f"raw@{digits.v1}"]
    assert (raw["kind"], raw["dataset"], raw["commit"], raw["rev"]) == ("commit", "raw", str(digits.v1), "v1")
    assert (raw["branch"], raw["branch_state"], raw["raw"]) == ("main", "moved", True)
    assert (raw["files"], raw["imported_from"], raw["run"]) == (2, "s3://lab/scans", None)
    run = by_id[f"resized/{digits.train.run}"]
    assert (run["kind"], run["run"], run["state"], run["params"]) == (
        "run",
        digits.train.run,
        "ended",
        {"lr": 0.1},
    )
    assert (run["host"], run["commit"], run["files"]) == ("gpu3", None, None)


def test_a_file_is_found_in_what_a_run_made(there: Dsv, digits: Digits) -> None:
    write_files(there.cwd, {"model.pt": b"weights", "other": b"?", "empty": b"", "2.png": b"2"})
    shown = there.ok("lineage", "./model.pt")
    assert shown.lines[0] == f"./model.pt is model.pt of run {digits.train.run} (models@main)"
    assert shown.lines[1].startswith(f"models@main {short(digits.model)}")
    assert shown.err == "looked at the largest files of 1 of 2 runs, newest first\n"
    changes = there.ok("lineage", str(there.cwd / "model.pt"), "--changes").lines
    assert len(changes) == 4 and changes[3].startswith("raw ")
    node = there.ok("lineage", "./model.pt", "--json").json["nodes"][0]
    assert node["kind"] == "file" and node["path"] == str(there.cwd / "model.pt")

    lost = there("lineage", "./other")
    assert (
        lost.code == 3
        and "in the largest files of 2 of 2 runs, newest first, and in 4 of 4 trees" in lost.err
    )
    assert "hint: dsv lineage DATASET@REV:PATH" in lost.err
    assert there("lineage", "./empty").code == 2
    assert there("lineage", "./missing").code == 3 and there("lineage", "../").code == 3


def test_a_file_is_found_in_the_trees_of_branches_and_of_outputs(there: Dsv, digits: Digits) -> None:
    write_files(there.cwd, {"new": b"4", "small": b"small"})
    shown = there.ok("lineage", "./new")
    assert shown.lines[:2] == [
        "./new is 4.png of raw@main",
        f"raw@main:4.png {short(digits.v2)}  ann: by hand",
    ]
    big = digits.record(digits.data(RAW, digits.v1))
    output = replace(digits.output(big, {"a": b"small", "b": b"larger"}), largest=())
    big = digits.end(replace(big, output=output))
    shown = there.ok("lineage", "./small")
    assert (
        shown.lines[0] == f"./small is a of raw@{(output.tree or '')[:12]}" and f"run {big.run}" in shown.out
    )


def test_a_record_that_lies_of_a_file_is_passed_over(there: Dsv, digits: Digits) -> None:
    write_files(there.cwd, {"model.pt": b"weights"})
    liar = digits.record(digits.data(RAW, digits.v1))
    output = digits.output(liar, {"model.pt": b"other"})
    truth = digits.output(liar, {"model.pt": b"weights"})
    digits.end(replace(liar, output=replace(output, largest=truth.largest)))
    assert there.ok("lineage", "./model.pt").lines[0].endswith(f"run {digits.train.run} (models@main)")


def test_damage_is_told_after_everything_else(there: Dsv, digits: Digits, tmp_path: Path) -> None:
    record = tmp_path / "store" / run_key(RAW, digits.resize.run, "record")
    record.unlink()
    shown = there.ok("lineage", "models")
    assert f"run raw/{digits.resize.run}  is named as its run, but has no record here" in shown.out
    record.write_bytes(b"{}")
    shown = there("lineage", "models")
    assert (
        shown.code == 5
        and shown.lines[-1].startswith("raw data: ")
        and "is not a record of a run" in shown.err
    )
    assert there("lineage", "models", "--json").json["nodes"]


def test_hostile_names_reach_no_terminal(there: Dsv, digits: Digits) -> None:
    evil = digits.record(digits.data(RAW, digits.v2), params={"x": "\x1b[2J"}, user="a\nb", target="raw@main")
    model = digits.commit(MODELS, {"evil": b"e"}, message="x")
    tree = digits.output(evil, {"evil": b"e"})
    digits.end(replace(evil, output=RunOutput(tree.tree, 1, 1, root=tree.root)))
    shown = there.ok("lineage", f"models@{model}")
    assert "\x1b" not in shown.out and "a\\nb@gpu3  x=\\x1b[2J" in shown.out


def test_depth_bounds_it(there: Dsv) -> None:
    shown = there.ok("lineage", "models", "--depth", "1")
    assert "raw@v1" not in shown.out and "there is more: use a larger --depth" in shown.err
    assert there.ok("lineage", "models", "--depth", "1", "--json").json["cut"] is True
    assert there("lineage", "models", "--depth", "-1").code == 2
    assert there("lineage", "models:nothing").code == 3


def test_runs_of_a_dataset_and_of_a_commit(there: Dsv, digits: Digits) -> None:
    def of(*words: str) -> set[str]:
        return {item["run"] for item in there.ok("runs", "--of", *words, "--json").json["items"]}

    resize, train = digits.resize.run, digits.train.run
    assert of("raw") == {resize} and of("resized") == {resize, train} and of("models") == {train}
    assert of("resized@main") == set() and of(f"resized@{digits.resized}") == {resize, train}
    part = digits.end(digits.record(digits.data(RAW, digits.v2, path="2.png")))
    assert of("raw:1.png") == {resize} and of("raw:2.png") == {resize, part.run}
    assert of("raw", "--filter", "params.size=64") == {resize}
    assert len(there.ok("runs", "--of", "resized").lines) == 3
    assert there("runs", "--of", "nothing").code == 3
    assert there("runs", "--of", "raw", resize).code == 2


def test_a_run_is_shown_within_another_only_if_that_had_not_ended(there: Dsv, digits: Digits) -> None:
    """The terminal of an ended run keeps its variables."""
    data = digits.data(RAW, digits.v1)
    outer = digits.end(digits.record(data))
    ended = digits.end(
        replace(digits.record(data), ended_ms=1_700_000_000_000)
    )  # 2023, and the ids are of 2026
    inner, later, alone = (
        digits.end(digits.record(data, within=f"raw/{run}")).run
        for run in (outer.run, ended.run, "20261128-000000-00000000")
    )
    expected = {inner: f"raw/{outer.run}", later: None, alone: "raw/20261128-000000-00000000"}
    items = there.ok("runs", "--json").json["items"]
    assert {item["run"]: item["within"] for item in items if item["run"] in expected} == expected
    assert "within" in there.ok("runs", inner).out and "within" not in there.ok("runs", later).out


def test_programs_get_the_same(there: Dsv, digits: Digits, tmp_path: Path) -> None:
    store = package.store(str(tmp_path / "store"), environ=dict(there.environ), cwd=there.cwd)
    found = store.lineage("models@main", changes=True)
    assert [node.dataset for node in found.raw] == ["labels", "raw"] and found.moved
    assert found.changes is not None and [change.commits for change in found.changes] == [0, 1]
    assert repr(found.nodes[0]) == f"<commit models@{digits.model}>"
    assert json.loads(there.ok("lineage", "models", "--json").out)["start"] == found.start


def test_from_a_run_that_ran(dsv: Dsv) -> None:
    """A process that keeps its output, which is then put into a dataset."""
    write_files(dsv.cwd, {"a": b"a"})
    dsv.ok("init", "pets")
    dsv.ok("sync", "-m", "cats and dogs")
    ran = dsv.process("run", "pets", "--keep-output", "--", "sh", "-c", 'echo m > "$DSV_OUT/m"')
    assert ran.code == 0, ran
    run = dsv.ok("runs", "--json").json["items"][0]
    write_files(dsv.cwd.parent / "elsewhere", {"m": b"m\n"})
    lines = dsv.at(dsv.cwd.parent / "elsewhere").ok("lineage", "./m").lines
    assert lines[0] == f"./m is m of run {run['run']} (pets@{run['output']['tree'][:12]})"
    assert lines[2].startswith(f"└ run {run['run']}  ok") and lines[-1].startswith("raw data: pets@")
    down = dsv.ok("lineage", "pets", "--down").out
    assert f"run {run['run']}" in down and f"pets@{run['output']['tree'][:12]}" in down
