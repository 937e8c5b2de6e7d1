"""A training job, twice: on one commit and on the next one, in a real container, with records to compare."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.dsv import Dsv
from tests.labs.docker_engine import ContainerEngine
from tests.labs.s3_server import S3Server
from tests.real.documents import document

EXAMPLE = Path(__file__).parents[2] / "examples/digits"


@pytest.fixture(params=["docker_engine", pytest.param("podman", marks=pytest.mark.exhaustive)])
def engine(request: pytest.FixtureRequest) -> ContainerEngine:
    chosen = request.getfixturevalue(request.param)
    assert isinstance(chosen, ContainerEngine)
    return chosen


@pytest.fixture
def dsv(ceph_s3: S3Server, engine: ContainerEngine, tmp_path: Path) -> Iterator[Dsv]:
    bucket = ceph_s3.bucket()
    places = {"DSV_STORE": f"s3://{bucket}/lake", "DSV_CACHE": str(tmp_path / "cache")}
    yield Dsv.of(tmp_path / "home", tmp_path / "digits", **ceph_s3.env, **engine.env, **places)
    ceph_s3.remove_bucket(bucket)


def _write_digits(engine: ContainerEngine, image: str, folder: Path) -> None:
    mounts = ["--volume", f"{folder}:/digits", "--volume", f"{EXAMPLE}:/code:ro"]
    engine.call("run", "--rm", *mounts, image, "python3", "/code/write_digits.py", "/digits")


def _train(dsv: Dsv, engine: str, image: str, target: str, report: Path) -> dict[str, Any]:
    """Run the training on `target`; returns what `--json-file` says of it."""
    code = report.parent / "code"
    code.mkdir(exist_ok=True)
    shutil.copy(EXAMPLE / "train.py", code)
    how = [
        "--engine",
        engine,
        "--image",
        image,
        "--code",
        str(code),
        "-p",
        "C=10",
        "--json-file",
        str(report),
    ]
    result = dsv.process("run", target, *how, "--", "python3", "train.py", timeout=300)
    assert result.code == 0, result.err
    assert "accuracy" in result.out
    told: dict[str, Any] = json.loads(report.read_text())
    return told


@pytest.mark.timeout(900)
def test_a_relabelled_class_shows_in_the_records(dsv: Dsv, engine: ContainerEngine, tmp_path: Path) -> None:
    image, program = engine.python_image(), Path(engine.program).name
    _write_digits(engine, image, dsv.cwd)
    assert len(list(dsv.cwd.glob("[0-9]/*.png"))) == 1797
    document(dsv, "init", "digits")
    first = document(dsv, "sync", "-m", "scikit-learn's digits, ten classes")
    assert (first["files"], first["added"]) == (1797, 1797)
    document(dsv, "tag", "v1")
    cached = document(dsv, "cache", "digits@v1")
    assert len(list(Path(cached["items"][0]["path"]).glob("*/*.png"))) == 1797

    before = _train(dsv, program, image, "digits@v1", tmp_path / "first.json")
    assert (before["engine"], before["cache_hit"]) == (program, True)
    assert before["commit"] == first["commit"]
    assert before["metrics"]["accuracy"] > 0.95
    assert before["metrics"]["classes"] == 10

    for path in sorted((dsv.cwd / "9").iterdir()):  # somebody took all nines for threes
        path.rename(dsv.cwd / "3" / path.name)
    second = document(dsv, "sync", "-m", "nines are threes now", "--allow-removals")
    assert second["parent"] == first["commit"]
    assert second["uploaded_bytes"] < 200_000
    after = _train(dsv, program, image, "digits", tmp_path / "second.json")
    assert after["cache_hit"] is False
    assert after["commit"] == second["commit"]
    assert after["metrics"]["classes"] == 9
    assert after["metrics"]["images"] == 1797

    records = {item["run"]: item for item in document(dsv, "runs")["items"]}
    for told in (before, after):
        kept = records[told["run"]]
        for key in ("dataset", "commit", "exit_code", "engine", "params", "metrics", "cache_hit"):
            assert kept[key] == told[key]
    assert records[before["run"]]["metrics"] != records[after["run"]]["metrics"]
    assert records[before["run"]]["params"] == records[after["run"]]["params"]
    assert set(records) == {before["run"], after["run"]}
