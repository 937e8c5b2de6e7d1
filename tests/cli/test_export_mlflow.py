"""`dsv runs --export mlflow`, read back with MLflow's own client from a folder of its."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from dsv.run.part import EndCause
from dsv.run.record import SERIES, CodeState, OnceKey, RunRecord, RunState
from dsv.run.series import Curves
from dsv.stores.directory import DirectoryStore
from dsv.values.secrets import Masker
from tests.exhaustive import is_full, some
from tests.killing import run_killed
from tests.kit.dsv import Dsv, assert_documented
from tests.kit.lineage import RAW, Lab

ROOT = Path(__file__).parents[2]


class Place:
    """A folder of MLflow, and the store of a lab."""

    def __init__(self, top: Path, dsv: Dsv) -> None:
        (top / "store").mkdir()
        self.lab = Lab(DirectoryStore(top / "store"))
        self.folder = top / "mlruns"
        self.dsv = dsv.at(dsv.cwd, DSV_STORE=str(top / "store"))
        self.commit = self.lab.commit(RAW, {"a.txt": b"alpha", "train/1.png": b"1"})

    def run(self, **fields: Any) -> RunRecord:
        return self.lab.end(self.lab.record(self.lab.data(RAW, self.commit), **fields))

    def curves(self, record: RunRecord, *lines: object) -> None:
        curves = Curves()
        curves.take(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        self.lab.runs.add(record.dataset, record.run, SERIES, curves.encode(Masker()))

    def export(self, *words: str) -> str:
        done = self.dsv.ok("runs", *words, "--export", "mlflow", "--experiment", "digits")
        return done.err

    @property
    def client(self) -> Any:
        from mlflow import MlflowClient

        return MlflowClient(f"file:{self.folder}")

    def runs(self, text: str = "") -> dict[str, Any]:
        """MLflow's runs by the tag, each of which is there once."""
        experiment = self.client.get_experiment_by_name("digits")
        found = self.client.search_runs([experiment.experiment_id], text)
        tagged = {run.data.tags["dsv.run"]: run for run in found}
        assert len(tagged) == len(found)
        return tagged

    def points(self, run: Any, name: str) -> list[tuple[int, float]]:
        history = self.client.get_metric_history(run.info.run_id, name)
        return [(point.step, point.value) for point in history]

    def all(self, text: str = "") -> dict[str, Any]:
        """All that MLflow has, without the ids that it makes."""
        return {
            name: (
                run.info.status, run.info.start_time, run.info.end_time, run.info.run_name, run.data.params,
                dict(run.data.tags),
                {key: self.points(run, key) for key in run.data.metrics},
                sorted((each.dataset.name, each.dataset.digest) for each in run.inputs.dataset_inputs),
            )
            for name, run in self.runs(text).items()
        }  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, dsv: Dsv, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(tmp_path, dsv)
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{made.folder}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    yield made


def test_what_mlflow_has_of_a_run(place: Place) -> None:
    output = place.lab.commit(RAW, {"model.pt": b"w"}, branch=False)
    lab = place.lab
    again = [
        lab.data(RAW, place.commit), lab.data(RAW, place.commit, "val"), lab.data(RAW, place.commit, "é", "train")
    ]  # fmt: skip
    record = lab.record(
        *again, params={"lr": 0.1, "layers[0]": {"width": 3}, "text": "a\nb\udcff", "long": "x" * 6001},
        name="base line", command=("python", "train.py"), code=CodeState("/code", "8d1e04aa" * 5, remote="https://h/c"),
        metrics={"acc": 0.5, "last": {"loss": math.inf.__repr__()}, "word": "high", "loss": 0.25, "big": 10**400},
    )  # fmt: skip
    record = lab.end(replace(record, output=lab.output(record, {"model.pt": b"w"})))
    assert output and record.output is not None
    place.curves(
        record,
        *({"step": step, "loss": 1 / (1 + step), "e": step} for step in range(3)),
        {"step": 0.5, "e": 9},
    )
    said = place.export()
    assert "1 run in MLflow, 1 new or completed" in said
    assert f"parameters of run {record.run} were cut at 6,000 characters" in said
    assert f"metrics of run {record.run} that are no numbers were left out" in said
    run = place.runs()[record.run]
    assert run.info.status == "FINISHED" and run.info.run_name == f"base line {record.run}"
    assert (run.info.start_time, run.info.end_time) == (record.started_ms, record.ended_ms)
    assert run.data.params == {
        "lr": "0.1", "layers_0_.width-8fa34c92": "3", "text": "a\nb\\udcff", "long": "x" * 6000
    }  # fmt: skip
    assert place.points(run, "loss") == [(0, 1.0), (1, 0.5), (2, 1 / 3), (2, 0.25)]
    assert run.data.metrics["loss"] == 0.25, "metrics.json has the last word"
    assert place.points(run, "e") == [(0, 0), (1, 1), (2, 2), (3, 9)], (
        "no whole numbers: the points are counted"
    )
    assert run.data.metrics["acc"] == 0.5 and "word" not in run.data.metrics and "big" not in run.data.metrics
    tags = run.data.tags
    assert tags["mlflow.user"] == "ann" and tags["mlflow.source.name"] == "python train.py"
    assert tags["mlflow.source.git.commit"] == "8d1e04aa" * 5 and tags["dsv.store"] == str(lab.repository.id)
    assert tags["dsv.output"] == f"raw@{record.output.tree}" and tags["dsv.exit_code"] == "0"
    inputs = {each.dataset.name: each.dataset for each in run.inputs.dataset_inputs}
    assert sorted(inputs) == ["raw", "raw (val)", "raw (é)"], "one dataset twice stays twice"
    assert inputs["raw"].digest == str(place.commit)[:36] != inputs["raw (é)"].digest
    assert json.loads(inputs["raw (é)"].source) == {
        "target": f"raw@{place.commit}", "path": "train", "store": str(lab.repository.id)
    }  # fmt: skip
    assert str(place.folder.parent) not in inputs["raw"].source, "no URL of the store"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, "FINISHED"),
        ({"exit_code": 3}, "FAILED"),
        ({"exit_code": 143, "end": EndCause.CANCELLED}, "KILLED"),
        ({"state": RunState.NOT_LAUNCHED, "exit_code": 125}, "FAILED"),
        ({"state": RunState.CUT_OFF, "exit_code": 0}, "FAILED"),
    ],
)
def test_the_end_of_a_run(place: Place, fields: dict[str, Any], status: str) -> None:
    record = place.run(**fields)
    place.export()
    assert place.runs()[record.run].info.status == status


def test_a_run_under_way_is_completed_later(place: Place) -> None:
    record = place.lab.record(place.lab.data(RAW, place.commit), params={"lr": 1})
    early = replace(record, state=RunState.RUNNING, ended_ms=None, exit_code=None)
    place.lab.runs.write(RAW, record.run, "start", early.encode())
    place.curves(record, {"loss": 1})
    place.export()
    run = place.runs()[record.run]
    assert run.info.status == "RUNNING" and run.data.metrics == {} and run.data.params == {"lr": "1"}
    place.lab.end(replace(record, metrics={"acc": 1}))
    assert "1 new or completed" in place.export()
    done = place.runs()[record.run]
    assert done.info.run_id == run.info.run_id and done.info.status == "FINISHED"
    assert done.data.metrics == {"acc": 1, "loss": 1} and done.data.tags["dsv.state"] == "ended"
    assert "0 new or completed" in place.export()


def test_hits_are_no_runs(place: Place) -> None:
    record = place.run(once=OnceKey(key="0" * 64))
    hit = place.run(once=OnceKey(key="0" * 64, hit_of=f"raw/{record.run}"))
    assert "1 for which nothing was run are left out" in place.export("--hits")
    assert "0 runs in MLflow" in place.export(hit.run)
    assert list(place.runs()) == [record.run]


def test_all_that_the_selection_lists_is_exported(place: Place) -> None:
    """Not only the 50 that a table shows."""
    records = [place.run(params={"x": number}) for number in range(60)]
    place.export("--filter", "params.x<55")
    assert set(place.runs()) == {record.run for record in records[:55]}
    place.export("-n", "3")
    assert set(place.runs()) == {record.run for record in (*records[:55], *records[57:])}
    document = place.dsv.ok("runs", "--export", "mlflow", "--experiment", "digits", "--json").json
    assert document["export"] == {"runs": 60, "new": 2, "hits": 0, "notes": []}
    assert_documented("runs", document, ("items", "copy", "into", "deleted", "compare", "series", "once"))


NAMES = [
    "a[0]",
    "",
    ".",
    "..",
    "/a",
    "a//b",
    "a/../b",
    "\n",
    "x" * 300,
    "ü",
    "a\u202eb",
    "\udcff",
    "_x005B_",
    "a%b",
    "a/b",
    " ",
]


def test_hostile_names_stay_apart(place: Place) -> None:
    from mlflow.utils.validation import _validate_metric_name

    from dsv.api.mlflow import mlflow_name

    mapped = [mlflow_name(name) for name in NAMES]
    assert len(set(mapped)) == len(NAMES) and mlflow_name("train/loss 1:a-b.c") == "train/loss 1:a-b.c"
    for name in mapped:
        _validate_metric_name(name)
        assert len(name) <= 250
    record = place.run(
        params=dict.fromkeys(NAMES, 1), metrics=dict.fromkeys(NAMES, 2), name="\udcff" * 200 + "\u202e"
    )
    place.export()
    run = place.runs()[record.run]
    assert sorted(run.data.params) == sorted(run.data.metrics) == sorted(mapped)


@pytest.mark.timeout(600)  # a process of MLflow for each step
def test_killed_anywhere_and_repeated(place: Place) -> None:
    """The same as without a kill; and what is not whole never looks so."""
    for number in range(2):
        record = place.run(params={"n": number, "m": 1}, metrics={"acc": number, "b": 1})
        place.curves(record, *({"step": step, "loss": step} for step in range(3)))
    from mlflow.exceptions import MissingConfigException

    client = place.client
    client.create_experiment("digits")
    place.dsv.ok("runs", "--json")  # remembers the records, and imports all
    first = place.folder
    import dsv.api.mlflow

    def work() -> None:
        place.export()

    place.folder = first
    steps = run_killed(work, None, inside=first)
    whole = place.all()
    assert len(whole) == 2 and steps > 50 and dsv.api.mlflow
    for step in some(range(1, steps + 1), 11):
        again(place)
        run_killed(work, step, inside=first)
        with suppress(MissingConfigException):  # a folder of MLflow can't be read for now
            for name, run in place.all("attributes.status != 'RUNNING'").items():
                assert run == whole[name], step
        place.export()
        assert place.all() == whole, step


def again(place: Place) -> None:
    import shutil

    for run in place.folder.glob("*/*"):
        if run.is_dir():
            shutil.rmtree(run)


@pytest.mark.timeout(600)  # and more with --exhaustive
def test_many_runs_killed_and_repeated(place: Place) -> None:
    """SIGKILL in the middle, from outside."""
    count = 1_000 if is_full() else 60
    for number in range(count):
        place.run(params={"n": number}, metrics={"acc": number})
    code = "import sys; from dsv.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "runs", "--export", "mlflow", "--experiment", "digits"]
    environ = {**os.environ, **place.dsv.environ, "MLFLOW_TRACKING_URI": f"file:{place.folder}"}
    with subprocess.Popen(command, env=environ, cwd=place.dsv.cwd, stderr=subprocess.DEVNULL) as process:
        while len(list(place.folder.glob("*/*/meta.yaml"))) < count // 3:
            assert process.poll() is None
        process.kill()
    place.export()
    runs = place.runs()
    assert len(runs) == count and {run.info.status for run in runs.values()} == {"FINISHED"}
    assert sorted(run.data.metrics["acc"] for run in runs.values()) == list(range(count))


def test_get_source_opens_the_commit(place: Place, tmp_path: Path) -> None:
    """By the entry point, in a process that has installed dsv as pyproject.toml says."""
    record = place.run()
    place.export()
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    installed = tmp_path / "site/dsv_data-0.1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: dsv-data\nVersion: 0.1.0\n")
    lines = [f"[{group}]\n{name} = {what}\n" for group, of in points.items() for name, what in of.items()]
    (installed / "entry_points.txt").write_text("".join(lines))
    code = f"""
import sys; sys.path.insert(0, {str(installed.parent)!r})
import mlflow
(run,) = mlflow.MlflowClient().search_runs(["{place.runs()[record.run].info.experiment_id}"])
source = mlflow.data.get_source(run.inputs.dataset_inputs[0])
commit = source.load()
print(type(source).__name__, commit.id, commit.read_bytes("a.txt").decode(), source.path)
"""
    environ = {**os.environ, **place.dsv.environ}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["DsvSource", str(place.commit), "alpha", "None"], done.stderr


def test_places_that_can_not_be_opened(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////tmp/x.db")
    refused = place.dsv("runs", "--export", "mlflow")
    assert refused.code == 9 and "MLflow can't open sqlite:////tmp/x.db" in refused.err
    assert "MLFLOW_TRACKING_URI names a server" in refused.err and "databases all of mlflow" in refused.err
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{place.folder}/other")
    refused = place.dsv("runs", "--export", "mlflow")
    assert refused.code == 9 and "folders need MLFLOW_ALLOW_FILE_STORE=true" in refused.err
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    refused = place.dsv("runs", "--export", "mlflow")
    assert refused.code == 6 and "secret" not in refused.err and "did not take it" in refused.err


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (b'{"run": {"info": {"run_id": "1"}}}', 0, "1 run in MLflow"),
        (b"{}", 6, "it gives a run no id"),
        (b'{"runs": "x"}', 6, "Failed to parse"),
        (b"<html>", 6, "not in a valid JSON format"),
    ],
)
def test_servers(
    place: Place, monkeypatch: pytest.MonkeyPatch, capfd: Any, answer: bytes, code: int, said: str
) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    place.run()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://ann:hunter2@127.0.0.1:{server.server_port}")
        done = place.dsv("runs", "--export", "mlflow")
        server.shutdown()
    assert (done.code, done.out) == (code, "") and said in done.err and "hunter2" not in done.err
    assert capfd.readouterr().out == "", "MLflow prints nothing"


def test_a_folder_that_is_damaged(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run()
    place.export()
    for content in (b"a: [", b"\xff\xfe\xfd"):
        for file in place.folder.glob("*/meta.yaml"):
            file.write_bytes(content)
        refused = place.dsv("runs", "--export", "mlflow")
        assert refused.code == 6 and "did not take it" in refused.err
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://[::1")
    assert place.dsv("runs", "--export", "mlflow").code == 9


def test_what_a_kill_left_empty_is_made_again(place: Place) -> None:
    """MLflow makes these files before it fills them, and can't read an experiment with an empty one."""
    place.run()
    place.run(params={"n": 2})
    place.export()
    metas = sorted(place.folder.glob("*/*/meta.yaml"))
    assert len(metas) == 2
    metas[0].write_bytes(b"")
    for file in (*place.folder.glob("*/datasets/*/meta.yaml"), *place.folder.glob("*/*/inputs/*/meta.yaml")):
        file.write_bytes(b"")
    place.export()
    assert len(place.runs()) == 2 and all(meta.stat().st_size for meta in place.folder.glob("*/*/meta.yaml"))
    next(place.folder.glob("[1-9]*/meta.yaml")).write_bytes(b"")
    place.export()
    assert len(place.runs()) == 2


def test_a_missing_library(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.delitem(sys.modules, "dsv.api.mlflow", raising=False)
    refused = place.dsv("runs", "--export", "mlflow")
    assert refused.code == 9 and "pip install 'dsv-data[mlflow]'" in refused.err


@pytest.mark.parametrize(
    "words",
    [
        "--export wandb", "--experiment x", "--export openlineage", "--export openlineage 4f2a9c01",
        "--export openlineage f --experiment x", "--export mlflow --csv", "--export mlflow --html f",
        "--export mlflow --watch", "--export mlflow --compare", "--export mlflow x --log", "--export mlflow --delete x",
    ],
)  # fmt: skip
def test_what_does_not_go_together(dsv: Dsv, words: str) -> None:
    assert dsv("runs", *words.split()).code == 2


def test_times_before_1970_do_not_stop_it(place: Place) -> None:
    record = place.run(started_ms=-5, ended_ms=-3)
    place.export()
    assert place.runs()[record.run].info.start_time == 1
