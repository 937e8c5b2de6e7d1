"""dsv lineage --dossier: a folder for an audit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from dsv.format.keys import run_key
from dsv.run.record import CodeState
from dsv.stores.directory import DirectoryStore
from tests.kit.dsv import Dsv, write_files
from tests.kit.lineage import MODELS, RAW, Lab

CARD = b"---\r\ntags:\n- x\nlicense: 'cc-by-4.0'\n---\nlicense: mit\n"
EVIL = "\u202e`</code># **x** [a](http://evil)\n\n# Evil\n<script>"
NAMES = ["README.md", "lineage.json"]


@pytest.fixture
def audited(dsv: Dsv, tmp_path: Path) -> tuple[Dsv, Lab, Path]:
    (tmp_path / "store").mkdir()
    lab = Lab(DirectoryStore(tmp_path / "store"))
    raw = lab.commit(
        RAW, {"README.md": CARD, "1.png": b"11"}, message=f"{EVIL}\n\nImported-from: s3://lab/scans"
    )
    labels = lab.commit(RAW, {"LICENSE": b"\n Mine  \nx", "2": b"2"}, branch=False)
    code = CodeState("/code", "8d1e04aa" * 5, True, remote="https://git.example/code")
    lab.step(
        MODELS, {"model.pt": b"weights"}, lab.data(RAW, raw), lab.data(RAW, labels, "labels"), code=code,
        command=("train.py", EVIL, "s3cr3t-value-1"), params={"lr": 0.1, "zero": 0}, metrics={"acc": 0.97},
        image="team/resnet", image_digest="sha256:9b1c" + "0" * 60,
    )  # fmt: skip
    here = dsv.at(dsv.cwd, DSV_STORE=str(tmp_path / "store"), MY_TOKEN="s3cr3t-value-1")
    return here, lab, tmp_path / "store"


def read(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in sorted(os.listdir(folder))}


def test_it_has_all_that_is_known(audited: tuple[Dsv, Lab, Path]) -> None:
    dsv, _, _ = audited
    dsv.ok("lineage", "models@main", "--dossier", "audit")
    first = read(dsv.cwd / "audit")
    assert [*first] == NAMES and b"s3cr3t" not in b"".join(first.values())
    nodes = json.loads(first["lineage.json"])["nodes"]
    data, (run,) = (
        [node for node in nodes if "licence" in node],
        [node for node in nodes if node["kind"] == "run"],
    )
    licences = {json.dumps(node["licence"], sort_keys=True) for node in data}
    assert licences == {"{}", '{"id": "cc-by-4.0"}', '{"file": "LICENSE", "title": "Mine"}'}
    assert [node["origin"] for node in data if node["origin"]] == ["s3://lab/scans"]
    assert (run["metrics"], run["params"], run["hosts"]) == ({"acc": 0.97}, {"lr": 0.1, "zero": 0}, ["gpu3"])
    assert run["started"].endswith("Z") and run["code"]["remote"] == "https://git.example/code"
    page = first["README.md"].decode()
    html = MarkdownIt("commonmark").render(page)
    assert html.count("<h1>") == 1 and "<script>" not in html and "<a " not in html and "\u202e" not in page
    assert "cc-by-4.0" in page and 'image_digest: "sha256:9b1c' in page and "exit_code: 0" in page
    (dsv.cwd / "audit/.lineage.json.part").write_bytes(b"killed")
    (dsv.cwd / "audit/README.md").unlink()
    dsv.ok("lineage", "models@main", "--dossier", "audit")
    assert read(dsv.cwd / "audit") == first


def test_it_tells_of_erasures_and_of_what_is_lost(audited: tuple[Dsv, Lab, Path]) -> None:
    dsv, _, store = audited
    dsv.ok("erase", "raw@main:1.png", "--reason", "a face", "--author", "Ann", "--yes")
    dsv.ok("lineage", "models@main", "--dossier", "audit")
    nodes = json.loads(read(dsv.cwd / "audit")["lineage.json"])["nodes"]
    (erased,) = [node["erased"] for node in nodes if node.get("erased")]
    assert [(one["files"], one["by"], one["reason"]) for one in erased] == [(1, "Ann", "a face")]
    run = next(node for node in nodes if node["kind"] == "run")
    (store / run_key(RAW, run["run"], "record")).write_bytes(b"{}")
    lost = dsv("lineage", "models@main", "--dossier", "audit")
    assert lost.code == 5 and "is not a record of a run" in lost.err
    assert "is not a record of a run" in (dsv.cwd / "audit/README.md").read_text()


def test_it_writes_into_no_folder_of_others(audited: tuple[Dsv, Lab, Path]) -> None:
    dsv, _, _ = audited
    write_files(dsv.cwd, {"mine/a": b"", "model.pt": b"weights"})
    refused = dsv("lineage", "models", "--dossier", "mine")
    assert refused.code == 4 and "'mine' has 'a'" in refused.err.replace(f"{dsv.cwd}/", "")
    dsv.ok("lineage", "./model.pt", "--dossier", "audit")
    assert "model.pt" in (dsv.cwd / "audit/README.md").read_text()
    before = read(dsv.cwd / "audit")
    assert dsv("lineage", "raw", "--dossier", "audit").code == 4 and read(dsv.cwd / "audit") == before
    assert dsv("lineage", "raw", "--dossier", "other", "--down").code == 2
