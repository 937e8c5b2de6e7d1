"""Pools in the configuration, `dsv pools`, and runs that go to one of several."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dsv.api import pools
from dsv.api.cache import Stager
from dsv.api.environment import with_value
from dsv.errors import Unreachable
from dsv.files.git import GitError
from dsv.run import origin, supervisor
from dsv.run.engine_list import ENGINES
from dsv.run.engines import machine
from dsv.run.engines.base import NO_OPTIONS, Facts, Job, JobPlan
from dsv.run.engines.process import ProcessEngine
from dsv.run.listing import RunView
from dsv.run.resources import Capacity, GpuCount, NodeRoom, Resources
from dsv.run.spec import JobSpec
from dsv.values.json import Json
from tests.kit.dsv import Dsv, assert_documented, write_files


class Busy(ProcessEngine):
    """Plain processes, on a machine that is busy as long as a file says so."""

    name: ClassVar[str] = "busy"

    def __init__(self, environ: Mapping[str, str], options: Mapping[str, Json] = NO_OPTIONS) -> None:
        super().__init__(environ)
        self._file = Path(str(options.get("file", "/nonexistent")))

    @classmethod
    def check_options(cls, options: Mapping[str, Json], where: str) -> None: ...

    def capacity(self, wanted: Resources) -> Capacity:
        if not self._file.exists():
            return Capacity((NodeRoom("n"),), waiting=0)
        said = self._file.read_text()
        if said.startswith("down"):
            raise Unreachable("it is down")
        if said.startswith("nodes:"):
            return Capacity(unseen=(said,))
        return Capacity((NodeRoom("n"),), waiting=2, not_now=said)


@pytest.fixture
def pets(dsv: Dsv, monkeypatch: pytest.MonkeyPatch) -> Dsv:
    monkeypatch.setitem(ENGINES, "busy", Busy)
    write_files(dsv.cwd, {"train/1.png": b"1", "train/2.png": b"2"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    dsv.ok("tag", "v1")
    for pool in ("a", "b"):
        dsv.ok("config", f"pools.{pool}.engine", "busy")
        dsv.ok("config", f"pools.{pool}.cache", str(dsv.home / f"cache-{pool}"))
        dsv.ok("config", f"pools.{pool}.busy.file", str(dsv.home / f"busy-{pool}"))
    return dsv


def say(dsv: Dsv, pool: str, text: str) -> None:
    (dsv.home / f"busy-{pool}").write_text(text)


def last_run(dsv: Dsv) -> dict[str, Json]:
    """By its folder: two runs of one second have ids in no order."""
    folders = (dsv.home / ".local/state/dsv/runs/pets").iterdir()
    run = max(folders, key=lambda folder: folder.stat().st_mtime_ns).name
    found: dict[str, Json] = dsv.ok("runs", run, "--json").json["items"][0]
    return found


def test_the_settings_of_a_pool_have_their_origins(pets: Dsv) -> None:
    items = {item["key"]: item for item in pets.ok("config", "--json").json["items"]}
    user = str(pets.home / ".config/dsv/config.toml")
    assert items["pools.a.engine"] == {"key": "pools.a.engine", "value": "busy", "origin": user}
    assert items["pools.a.busy.file"]["value"] == str(pets.home / "busy-a")


def by_hand(dsv: Dsv, key: str, value: str) -> None:
    """Write a setting as an editor does: `dsv config` refuses what no command can use."""
    config = dsv.home / ".config/dsv/config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    before = config.read_bytes() if config.exists() else b""
    config.write_text(with_value(before, key, value, str(config)))


def test_an_engines_settings_may_be_anything(dsv: Dsv) -> None:
    config = dsv.home / ".config/dsv/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(
        '[pools.a]\nengine = "x"\n[pools.a.x]\ncount = 3\nlabels = { gpu = "a100", n = [1, 2] }\n'
    )
    items = {item["key"]: item["value"] for item in dsv.ok("config", "--json").json["items"]}
    assert (items["pools.a.x.count"], json.loads(items["pools.a.x.labels"])) == (
        "3",
        {"gpu": "a100", "n": [1, 2]},
    )
    assert dsv("config", "pools.a.x.count", "4").code == 2  # there is no such engine
    dsv.ok("config", "pools.a.slurm.partition", "gpu")
    assert "count = 3" in config.read_text() and 'gpu = "a100"' in config.read_text()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "no pool named a is configured"),
        ({"cache": "/c"}, "the pool a has no engine"),
        ({"engine": "slumr"}, "there is none of that name"),
        ({"engine": "process", "out": "runs:x"}, "is the relative folder"),
        (
            {"engine": "process", "process.partition": "gpu"},
            "pools.a.process.partition means nothing to the engine",
        ),
        ({"engine": "process", "slurm.partition": "gpu"}, "has the engine process, and settings of slurm"),
    ],
)
def test_a_pool_that_is_wrong_is_refused_before_anything_is_asked(
    dsv: Dsv, settings: dict[str, str], words: str
) -> None:
    for key, value in settings.items():
        by_hand(dsv, f"pools.a.{key}", value)
    refused = dsv("run", "pets", "--on", "a", "--", "true")
    assert refused.code in (2, 125) and words in refused.err and "hint: dsv config" in refused.err
    shown = dsv("pools", "--json")
    if settings:
        (item,) = (each for each in shown.json["items"] if each["pool"] == "a")
        assert words in item["problem"] and item["hint"].startswith("dsv config")
        assert shown.code == 2 and item["problem"] in shown.err


def test_a_setting_of_a_pool_that_there_is_none_of_is_refused(dsv: Dsv) -> None:
    dsv.ok("config", "pools.a.engine", "process")
    config = dsv.home / ".config/dsv/config.toml"
    config.write_text(config.read_text() + 'cahce = "/nfs/dsv"\n')
    refused = dsv("run", "pets", "--on", "a", "--", "true")
    assert refused.code == 2 and "there is no setting pools.a.cahce" in refused.err
    assert "hint: dsv config pools.NAME.cache" in refused.err
    shown = dsv("pools", "--json")
    assert shown.code == 2 and "pools.a.cahce" in shown.json["items"][0]["problem"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--on", "a,a"), "not a list of different pools"),
        (("--on", "a,"), "not a list of different pools"),
        (("--on", "a", "--engine", "process"), "the pool sets the engine"),
    ],
)
def test_options_that_make_no_sense(pets: Dsv, arguments: tuple[str, ...], words: str) -> None:
    refused = pets("run", "pets@v1", *arguments, "--", "true")
    assert refused.code == 2 and words in refused.err


def test_a_run_goes_to_the_first_pool_that_can_begin_it(pets: Dsv) -> None:
    say(pets, "a", "0 of 8 GPUs are free")
    done = pets.ok("run", "pets@v1", "--on", "a,b", "--", "true")
    assert "not on a: 0 of 8 GPUs are free" in done.err
    run = last_run(pets)
    assert (run["pool"], run["engine"]) == ("b", "busy")
    assert run["passed_over"] == [{"pool": "a", "reason": "0 of 8 GPUs are free"}]
    assert (pets.home / "cache-b").is_dir() and not (pets.home / "cache-a").exists()
    assert_documented(
        "runs",
        pets.ok("runs", "--json").json,
        without=("compare.", "copy.", "deleted.", "export.", "into.", "once.", "series.", "items.series"),
    )
    assert "pool=a reason=0 of 8 GPUs are free" in pets.ok("runs", str(run["run"])).out


def test_a_pool_with_the_data_comes_first(pets: Dsv) -> None:
    pets.ok("run", "pets@v1", "--on", "b", "--", "true")
    pets.ok("run", "pets@v1", "--on", "a,b", "--", "true")
    assert last_run(pets)["pool"] == "b" and last_run(pets)["cache_hit"] is True
    pets.ok("config", "prefer", "order")
    pets.ok("run", "pets@v1", "--on", "a,b", "--", "true")
    assert last_run(pets)["pool"] == "a"


def test_a_pool_that_is_down_is_passed_over(pets: Dsv) -> None:
    say(pets, "a", "down")
    pets.ok("run", "pets@v1", "--on", "a,b", "--", "true")
    assert last_run(pets)["passed_over"] == [{"pool": "a", "reason": "unreachable: it is down"}]
    say(pets, "b", "down")
    refused = pets("run", "pets@v1", "--on", "a,b", "--", "true")
    assert refused.code == 125 and "a: unreachable: it is down; b: unreachable: it is down" in refused.err


def test_a_run_that_waited_long_enough_moves_on(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pool has room once the first one was left."""
    say(pets, "a", "quota")
    say(pets, "b", "full")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        time.sleep(seconds)
        if len(slept) == 2:
            (pets.home / "busy-b").unlink()

    monkeypatch.setattr(pools, "sleep", sleep)
    pets.ok("config", "pools.a.wait", "1s")
    done = pets.ok("run", "pets@v1", "--on", "a,b", "--", "true")
    assert "waiting for a, 1.0 s at most: quota" in done.err and "waiting for b: full" in done.err
    run = last_run(pets)
    assert (run["pool"], len(slept)) == ("b", 2)
    assert run["passed_over"] == [{"pool": "a", "reason": "quota, for 1.0 s"}]


def test_git_is_asked_once_however_many_pools_are_tried(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def hangs(folder: Path, **_: object) -> None:
        asked.append(folder)
        raise GitError("timed out")

    def announced(spec: JobSpec, **how: Any) -> RunView:
        return run_it(spec, **{**how, "announce": lambda *_: None})

    run_it = supervisor.run
    monkeypatch.setattr(supervisor, "run", announced)  # as with --detach
    monkeypatch.setattr(origin, "GitView", hangs)
    monkeypatch.setattr(pools, "sleep", lambda seconds: (pets.home / "busy-b").unlink(missing_ok=True))
    say(pets, "a", "quota")
    say(pets, "b", "full")
    write_files(pets.home / "code", {"train.py": b"1"})
    pets.ok("config", "pools.a.wait", "0s")
    pets.ok("run", "pets@v1", "--on", "a,b", "--code", str(pets.home / "code"), "--", "true")
    run = last_run(pets)
    assert run["pool"] == "b" and asked == [pets.home / "code"]
    code = run["code"]
    assert isinstance(code, dict) and code["path"] == str(pets.home / "code") and code["tree"]


def test_the_default_pool(pets: Dsv) -> None:
    warned = pets.ok("config", "pool", "b,c")
    assert "no pool named c is configured yet" in warned.err
    pets.ok("config", "pool", "b,here")
    pets.ok("run", "pets@v1", "--", "true")
    assert last_run(pets)["pool"] == "b"
    pets.ok("run", "pets@v1", "--on", "here", "--", "true")
    assert (last_run(pets)["pool"], last_run(pets)["engine"]) == ("here", "process")


def test_a_repeated_run_does_not_go_to_the_default_pool(pets: Dsv) -> None:
    pets.ok("run", "--name", "first", "pets@v1", "--", "true")
    pets.ok("config", "pool", "b")
    pets.ok("run", "--name", "again", "--again", "first")
    repeated = pets.ok("runs", "again", "--json").json["items"][0]
    assert (repeated["pool"], repeated["engine"]) == (None, "process")


def test_a_cache_is_refused_beside_the_default_pool_too(pets: Dsv) -> None:
    pets.ok("config", "pool", "b")
    mine = str(pets.home / "mine")
    refused = pets("run", "--cache", mine, "pets@v1", "--", "true")
    assert refused.code == 2 and "a pool has a cache of its own" in refused.err and "--on here" in refused.err
    pets.ok("run", "--on", "here", "--cache", mine, "pets@v1", "--", "true")
    assert not (pets.home / "cache-b").exists()


def test_output_goes_to_the_folder_of_the_pool(pets: Dsv) -> None:
    pets.ok("config", "pools.a.out", str(pets.home / "results"))
    pets.ok("run", "pets@v1", "--on", "a", "--", "sh", "-c", 'echo 1 > "$DSV_OUT/model"')
    run = last_run(pets)
    assert run["out"] == str(pets.home / "results" / "pets" / str(run["run"]))
    assert (Path(str(run["out"])) / "model").read_text() == "1\n"


def test_pools_are_shown(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [machine.Gpu(0, "GPU-a", "NVIDIA A100", True), machine.Gpu(1, "GPU-b", "NVIDIA A100", False)]
    monkeypatch.setattr(machine, "gpus_now", lambda: devices)
    monkeypatch.setattr(machine, "_DEVICES", ("/dev/null",))  # there is a driver
    say(pets, "a", "down")
    pets.ok("run", "pets@v1", "--on", "b", "--", "true")
    shown = pets("pools", "pets@v1", "--json")
    document = shown.json
    assert_documented("pools", document)
    items = {item["pool"]: item for item in document["items"]}
    assert list(items) == ["a", "b", "here"]
    assert (items["a"]["reachable"], items["a"]["problem"], items["a"]["gpus"]) == (False, "it is down", None)
    assert (items["b"]["reachable"], items["b"]["cached"], items["b"]["waiting"]) == (True, True, 0)
    assert items["b"]["cache"] == str(pets.home / "cache-b") and items["b"]["free_bytes"] > 0
    assert items["here"]["gpus"] == [{"kind": "NVIDIA A100", "free": 1, "total": 2}]
    assert items["here"]["cached"] is False
    assert shown.code == 6
    table = pets("pools", "pets@v1")
    assert table.code == 6 and "error: the pool a: it is down\nhint: dsv config" in table.err
    assert any("unreachable" in line for line in table.lines) and "it is down" not in table.out
    assert any("1 of 2 NVIDIA A100" in line for line in table.lines)


def test_errors_of_pools_are_printed_in_full_below_the_table(pets: Dsv) -> None:
    """A pool that is away may answer later; wrong settings stay wrong, so the exit code is theirs."""
    say(pets, "a", f"down {'and out ' * 40}")
    pets.ok("config", "pools.b.cache", "gpu-nfs")
    shown = pets("pools")
    assert shown.code == 3 and [line.split()[0] for line in shown.lines[1:]] == ["a", "b", "here"]
    assert "error: the pool a: it is down" in shown.err
    assert "gpu-nfs" in shown.err and "pools.b.cache" in shown.err
    assert max(map(len, shown.lines)) < 200
    pets.ok("config", "pools.b.cache", str(pets.home / "cache-b"))
    assert pets("pools").code == 6
    (pets.home / "busy-a").unlink()
    assert pets("pools").code == 0


def test_what_may_not_be_seen_of_a_pool_is_said(pets: Dsv) -> None:
    say(pets, "a", "nodes: ann may not list them")
    shown = pets.ok("pools")
    assert "a does not let you see its nodes: ann may not list them" in shown.err
    assert "not known" in shown.out
    document = pets.ok("pools", "--json").json
    assert_documented("pools", document)
    assert [each["unseen"] for each in document["items"]] == [["nodes: ann may not list them"], [], []]


def test_credentials_are_not_forwarded_by_an_engine_that_has_no_way_to(pets: Dsv) -> None:
    """It would run without them, and without a word."""
    pets.ok("config", "pools.a.forward_credentials", "yes")
    done = pets("run", "pets@v1", "--on", "a", "--", "true")
    assert done.code != 0 and "forward_credentials" in done.err


def test_a_run_has_what_the_settings_of_its_pool_say(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = frozenset({"gpus", "gpu_type", "tpu", "tpu_topology", "shm_bytes", "engine_args", "forward"})
    planned, staged = [], []
    plan, stager = ProcessEngine.plan, Stager.__init__

    def plan_of(self: ProcessEngine, job: Job, facts: Facts) -> JobPlan:
        planned.append(job)
        plain = replace(job, gpus=None, gpu_type=None, tpu=None, tpu_topology=None, forward=False)
        return plan(self, replace(plain, shm_bytes=None, engine_args=()), facts)

    monkeypatch.setattr(Busy, "gives", everything)
    monkeypatch.setattr(Busy, "plan", plan_of)
    monkeypatch.setattr(
        Stager,
        "__init__",
        lambda *a, jobs=None, **more: (staged.append(jobs), stager(*a, jobs=jobs, **more))[1],
    )
    for key, value in (
        ("tpu", "v5e-8"), ("tpu_topology", "2x4"), ("shm_size", "64M"), ("engine_args", "--x '--y z'"),
        ("forward_credentials", "yes"), ("log", "no"), ("wait", "2m"), ("jobs", "3"),
    ):  # fmt: skip
        pets.ok("config", f"pools.a.{key}", "--", value)
    pets.ok("config", "pools.b.gpu_type", "A100")
    pets.ok("run", "pets@v1", "--on", "a", "--", "true")
    job = planned[-1]
    assert (job.tpu, job.tpu_topology, job.shm_bytes) == ("v5e-8", "2x4", 64_000_000)
    assert (job.engine_args, job.forward, job.gpu_type) == (("--x", "--y z"), True, None)
    record = last_run(pets)
    assert (record["tpu"], record["tpu_topology"], record["log"]) == ("v5e-8", "2x4", None)
    assert record["engine_args"] == ["--x", "--y z"] and staged[-1] == 3
    pets.ok("run", "--again", str(record["run"]), "--on", "b", "--", "true")
    assert (planned[-1].tpu, planned[-1].shm_bytes, planned[-1].engine_args) == (None, None, ())
    assert last_run(pets)["log"] is not None
    monkeypatch.setattr(
        Busy, "capacity", lambda self, wanted: Capacity((NodeRoom("n", (GpuCount("A100", 1, 1),)),))
    )
    shown = pets.ok("run", "pets@v1", "--on", "b", "--gpus", "1", "--dry-run", "--json", "--", "true")
    assert (planned[-1].gpu_type, shown.json["resources"]["gpu_type"]) == ("A100", "A100")
    pets.ok("config", "pools.b.gpu_type", "H100")
    assert (
        "no machine of it has 1 H100 GPU"
        in pets("run", "pets@v1", "--on", "b", "--gpus", "1", "--", "true").err
    )


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("wait", "soon", "not a duration"), ("jobs", "0", "not a number of processes"),
        ("log", "maybe", "neither yes nor no"), ("tpu", "8", "not a TPU slice"),
        ("engine_args", "'", "can't be split"), ("engine_args", "--x", "doesn't support engine_args"),
        ("shm_size", "1G", "doesn't support shm_size"), ("gpu_type", "-", "not a type of GPU"),
    ],
)  # fmt: skip
def test_a_setting_of_a_pool_that_is_wrong_is_named(pets: Dsv, key: str, value: str, words: str) -> None:
    by_hand(pets, f"pools.a.{key}", value)
    refused = pets("run", "pets@v1", "--on", "a", "--", "true")
    assert refused.code == 2 and words in refused.err and f"pools.a.{key}" in refused.err


def test_a_preference_that_there_is_none_of_is_refused(pets: Dsv) -> None:
    by_hand(pets, "prefer", "speed")
    refused = pets("run", "pets@v1", "--on", "a", "--", "true")
    assert refused.code == 2 and "hint: dsv config prefer cached, or: dsv config prefer order" in refused.err


def test_a_pool_of_this_machine_gives_free_gpus(
    pets: Dsv, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    devices = [machine.Gpu(0, "GPU-a", "NVIDIA A100", True), machine.Gpu(1, "GPU-b", "NVIDIA A100", False)]
    monkeypatch.setattr(machine, "gpus_now", lambda: devices)
    monkeypatch.setattr(machine, "_DEVICES", ("/dev/null",))  # there is a driver
    pets.ok("run", "pets@v1", "--on", "here", "--gpus", "1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert "GPU-b\n" in capfd.readouterr().out
    refused = pets("run", "pets@v1", "--on", "here", "--gpus", "3", "--", "true")
    assert refused.code == 125 and "no machine of it has" in refused.err
