"""run and runs, with the process engine: what goes where, and which exit code comes out."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.engines.fake_docker import FakeDocker
from tests.kit.dsv import Dsv, assert_documented, made_once, write_files
from tests.processes import running
from tests.waiting import PATIENCE, until


@pytest.fixture
@made_once
def pets(dsv: Dsv) -> Dsv:
    write_files(dsv.cwd, {"train/1.png": b"1", "train/2.png": b"2"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    dsv.ok("tag", "v1")
    return dsv


def test_the_jobs_output_and_exit_code_are_the_commands(pets: Dsv) -> None:
    job = 'echo out; echo err >&2; cat "$DSV_DATA/train/1.png"; echo "$DSV_PARAMS"; exit 3'
    result = pets.process("run", "pets@v1", "-q", "-p", "lr=0.1", "--", "sh", "-c", job)
    assert (result.code, result.err) == (3, "err\n")
    assert result.out == 'out\n1{"lr": 0.1}\n'


def test_why_a_job_was_ended_is_said_beside_its_exit_code(pets: Dsv) -> None:
    result = pets.process("run", "pets@v1", "--time", "1s", "--", "sleep", "600")
    assert result.code == 143
    assert re.search(r"ended with exit code 143 after \S+ s: time limit; output in", result.err), result.err


def test_a_record_that_somebody_else_completed_costs_neither_it_nor_the_exit_code(pets: Dsv) -> None:
    """As a node of a cluster does that takes the dsv which looks on for gone."""
    store = json.loads(pets.ok("config", "store", "--json").out)["items"][0]["value"]
    job = f"""d={store}/runs/pets/$DSV_RUN; until [ -e "$d/start" ]; do sleep 0.1; done
    sed 's/"running"/"ended"/' "$d/start" >"$d/record" && exit 3"""
    result = pets.process("run", "pets@v1", "--", "sh", "-c", job)
    assert result.code == 3 and "unexpected" not in result.err, result.err


def test_the_result_for_programs_goes_to_a_file(pets: Dsv) -> None:
    job = 'echo \'{"accuracy": 0.9}\' > "$DSV_OUT/metrics.json"'
    pets.process("run", "pets@v1", "--json-file", "run.json", "-p", "lr=0.1", "--", "sh", "-c", job)
    document = json.loads((pets.cwd / "run.json").read_text())
    assert_documented("run", document, without="sweep.")
    assert document["commit"] == pets.ok("resolve", "@v1").out.strip()
    assert (document["exit_code"], document["engine"], document["cache_hit"]) == (0, "process", False)
    assert (document["params"], document["metrics"]) == ({"lr": 0.1}, {"accuracy": 0.9})
    assert Path(document["out"]).is_relative_to(pets.home)
    refused = pets("run", "pets@v1", "--json", "--", "true")
    assert (refused.code, refused.json["error"]["hint"]) == (2, "--json-file FILE")


def test_the_result_names_the_folder_of_the_output_although_its_record_hides_a_secret(pets: Dsv) -> None:
    out = pets.home / "outputs" / "baseline-model"
    given = ("--out", str(out), "-e", "API_TOKEN=baseline-model", "--json-file", "run.json")
    result = pets.process("run", "pets@v1", *given, "--", "true")
    assert result.code == 0, result.err
    folder = Path(json.loads((pets.cwd / "run.json").read_text())["out"])
    assert folder == out and f"output in {out}\n" in result.err
    (record,) = json.loads(pets.ok("runs", "--json").out)["items"]
    assert "baseline-model" not in record["out"]


def test_a_result_that_cannot_be_written_changes_no_exit_code(pets: Dsv) -> None:
    result = pets.process("run", "pets@v1", "-q", "--json-file", "/dev/full", "--", "sh", "-c", "exit 3")
    assert (result.code, result.err) == (3, "warning: /dev/full can't be written: No space left on device\n")
    missing = pets.process("run", "pets@v9", "--json-file", "/dev/full", "--", "true")
    assert missing.code == 125 and missing.err.count("error: ") == 1 and "tag v9" in missing.err


def test_what_keeps_it_from_being_launched_is_125(pets: Dsv) -> None:
    for arguments in (
        ["run", "nothing", "--", "true"],
        ["run", "pets@v9", "--json-file", "f.json", "--", "true"],
    ):
        result = pets(*arguments)
        assert (result.code, result.out) == (125, "")
        assert result.err.startswith("error: ")
    assert json.loads((pets.cwd / "f.json").read_text())["error"]["exit"] == 125
    assert pets("run", "pets@v1", "--json-file", "/nowhere/f.json", "--", "true").code == 125
    assert pets.process("run", "pets@v1", "--", "no-such-program").code == 127


@pytest.mark.parametrize(
    "arguments",
    [
        ["--", "true"],
        ["", "--", "true"],
        ["pets@v1"],
        ["pets@v1", "true"],
        ["pets@v1", "--gpus", "many", "--", "true"],
        ["pets@v1", "-e", "=x", "--", "true"],
        ["pets@v1", "--data", "x", "--", "true"],
        ["pets@v1", "--data", "x=pets@v1", "-e", "DSV_DATA_X=a", "--", "true"],
        ["pets@v1", "--data", "a.b=pets@v1", "--data", "a-b=pets@v1", "--", "true"],
        ["pets@v1", "--engine", "nomad", "--", "true"],
        ["pets@v1", "--out", ".", "--", "true"],
        ["pets@v1", "--out", "", "--", "true"],
        ["pets@v1", "--code", "", "--", "true"],
        ["--again", "x", "--out", ""],
        ["pets@v1", "-p", r'x="\ud800"', "--", "true"],
        ["--again", "x", "--image", "y"],
    ],
)
def test_mistakes_of_usage_are_2(pets: Dsv, arguments: list[str]) -> None:
    assert pets("run", *arguments).code == 2


def test_options_behind_the_dashes_are_the_jobs(pets: Dsv) -> None:
    result = pets.process("run", "pets@v1", "-q", "--", "echo", "--json", "--debug", "--", "-q")
    assert result.out == "--json --debug -- -q\n"


def test_a_dry_run_prints_and_does_nothing(pets: Dsv) -> None:
    result = pets("run", "pets@v1", "--dry-run", "-e", "TOKEN=secret", "--", "sh", "-c", "echo 'a b'")
    assert result.code == 0, result
    assert "echo" in result.out
    assert "secret" not in result.out
    plan = pets("run", "pets@v1", "--dry-run", "--json", "--", "true").json
    assert set(plan) == {"schema", "engine", "argv", "env", "resources"}
    asked = ("--cpus", "1", "--memory", "1G", "--time", "2h", "--retries", "3")
    plan = pets("run", "pets@v1", "--dry-run", "--json", *asked, "--", "true").json
    assert plan["resources"] == {"cpus": 1.0, "memory_bytes": 10**9, "time_seconds": 7200, "retries": 3}
    refused = pets("run", "pets@v1", "--dry-run", "--nodes", "2", "--", "true")
    assert (refused.code, refused.out) == (2, "") and "--nodes" in refused.err
    write_files(pets.cwd, {"run.json": b"of another run"})
    assert pets("run", "pets@v1", "--dry-run", "--json-file", "run.json", "--", "true").code == 0
    assert pets("run", "pets@v9", "--dry-run", "--json-file", "run.json", "--", "true").code == 125
    assert (pets.cwd / "run.json").read_bytes() == b"of another run"
    assert pets.ok("runs", "--json").json["items"] == []
    assert not (pets.home / ".cache/dsv/pets").exists()


def test_records_are_listed_and_shown(pets: Dsv) -> None:
    job = 'echo hello; echo \'{"accuracy": 0.9}\' > "$DSV_OUT/metrics.json"'
    pets.process("run", "pets@v1", "-p", "lr=0.1", "-e", "TOKEN=hunter2secret", "--", "sh", "-c", job)
    pets("run", "pets@v1", "--", "false")
    items = pets.ok("runs", "--json").json["items"]
    by_code = {item["exit_code"]: item for item in items}  # two of one second are in no order
    assert set(by_code) == {0, 1}
    assert_documented(
        "runs",
        {"schema": 1, "items": items},
        ("compare", "copy", "deleted", "export", "into", "once", "series", "items.series"),
    )
    assert "hunter2secret" not in json.dumps(items)
    table = pets.ok("runs").lines
    assert table[0].split() == ["RUN", "DATA", "TOOK", "RESULT", "lr", "accuracy"]
    run = by_code[0]["run"]
    line = next(line for line in table if line.startswith(run))
    assert line.split()[1] == "pets@v1" and line.split()[-3:] == ["ok", "0.1", "0.9"]
    assert any(line.split()[-4:-2] == ["failed", "(1)"] for line in table)
    shown = pets.ok("runs", run[-8:]).out
    values = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert (values["run"], values["metrics.accuracy"], values["exit_code"]) == (run, "0.9", "0")
    assert pets.ok("runs", run, "--log").out == "hello\n"
    assert pets.ok("runs", run, "--json").json["items"] == [{**by_code[0], "series": {}}]
    assert pets("runs", "00000000").code == 3
    assert pets("runs", "--log").code == 2


def test_a_run_is_repeated(pets: Dsv) -> None:
    pets.process("run", "pets", "-p", "x=1", "--", "sh", "-c", 'echo "$DSV_COMMIT $DSV_PARAMS"')
    first = pets.ok("runs", "--json").json["items"][0]
    write_files(pets.cwd, {"new": b"new"})
    pets.ok("sync")
    again = pets.process("run", "--again", first["run"], "-q")
    assert again.out == f'{first["commit"]} {{"x": 1}}\n'
    assert {item["again_of"] for item in pets.ok("runs", "--json").json["items"]} == {None, first["run"]}


def test_an_unset_variable_names_no_folder(pets: Dsv) -> None:
    """`--out "$OUT"`: the working directory would get the job's files."""
    elsewhere = pets.at(pets.home)
    write_files(pets.home, {"params.json": b"mine"})
    refused = elsewhere("run", "pets@v1", "--out", "", "-p", "lr=1", "--", "true")
    assert refused.code == 2 and "--out is empty" in refused.err and "unset" in refused.err
    assert (pets.home / "params.json").read_bytes() == b"mine"


def test_a_run_is_repeated_with_the_engines_options_given_anew(pets: Dsv, tmp_path: Path) -> None:
    docker = FakeDocker.make(tmp_path / "docker")
    docker.set("left", 0)
    docker.set("over", 0)
    containers = pets.at(pets.cwd, PATH=docker.environ["PATH"])
    pets.ok("config", "pools.a.engine", "docker")
    pets.ok("config", "pools.a.engine_args", "--", "--env=HF_TOKEN=hunter2 --label 'a b'")
    words = ("run", "pets@v1", "--on", "a", "--image", "busybox", "--", "train")
    assert containers.process(*words).code == 0
    first = pets.ok("runs", "--json").json["items"][0]
    refused = containers("run", "--again", first["run"], "--dry-run")
    assert refused.code == 2 and "--on POOL, whose engine_args" in refused.err
    pets.ok("config", "pools.a.engine_args", "--", "--cpus=2")
    pets.ok("config", "pools.a.shm_size", "64M")
    again = containers("run", "--again", first["run"], "--on", "a", "--dry-run", "--json")
    argv = again.json["argv"]
    assert argv[argv.index("--cpus=2") :] == ["--cpus=2", "busybox", "train"]
    assert argv[argv.index("--shm-size") + 1] == "64000000b"
    assert not any("HF_TOKEN" in word for word in argv)


def test_a_run_that_waits_here_is_repeated_offline(pets: Dsv) -> None:
    pets.ok("cache", "pets@v1")
    assert pets.process("run", "pets@v1", "--offline", "-p", "x=1", "--", "sh", "-c", "exit 4").code == 4
    (pets.home / ".local/share/dsv/store").rename(pets.home / "away")
    (record,) = (pets.home / ".local/state/dsv/unsent-runs").rglob("*.record")
    elsewhere = pets.at(pets.home)
    again = elsewhere.process("run", "--again", record.stem, "--offline")
    assert again.code == 4 and "the store is not asked" in again.err
    unknown = elsewhere.process("run", "--again", "20200101-000000-00000000", "--offline")
    assert unknown.code == 125 and "with --offline the store is not asked" in unknown.err
    assert elsewhere("run", "--again", "", "--offline").code == 2


def test_a_cached_commit_runs_without_its_store_and_the_record_follows(pets: Dsv) -> None:
    pets.ok("cache", "pets@v1")
    store = pets.home / ".local/share/dsv/store"
    store.rename(pets.home / "away")
    elsewhere = pets.at(pets.home)
    alone = elsewhere.process("run", "pets@v1", "--", "true")
    assert alone.code == 0
    assert "warning: the record is kept here" in alone.err
    (pets.home / "away").rename(store)
    assert [item["sent"] for item in pets.ok("runs", "--json").json["items"]] == [False]
    pets.process("run", "pets@v1", "--", "true")
    assert [item["sent"] for item in pets.ok("runs", "--json").json["items"]] == [True, True]


def test_signals_reach_the_job(pets: Dsv) -> None:
    code = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nprint('up', flush=True)\n"
    code += "time.sleep(600)"
    with pets.start("run", "pets@v1", "-q", "--", sys.executable, "-c", code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE) == 7


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["pets", "python", "train.py", "--lr", "2"], "dsv run pets -- python train.py --lr 2"),
        (["pets", "-p", "x=1", "python", "-u"], "dsv run pets -p x=1 -- python -u"),
        (["python", "python"], "dsv run python -- python"),
    ],
)
def test_a_command_without_dashes_before_it(pets: Dsv, arguments: list[str], hint: str) -> None:
    refused = pets("run", *arguments)
    assert (refused.code, refused.err) == (2, f"error: put -- before the command\nhint: {hint}\n")


def test_an_unknown_option_is_reported_as_unknown(pets: Dsv) -> None:
    for arguments in (["pets", "--gpsu", "2"], ["--gpsu", "2", "pets", "python"]):
        assert "dsv run has no option --gpsu" in pets("run", *arguments).err


def test_a_command_that_is_not_there_is_named(pets: Dsv) -> None:
    missing = pets.process("run", "pets@v1", "--", "pyton")
    assert missing.code == 127 and "error: command not found: pyton\n" in missing.err


def test_a_run_whose_dsv_was_killed_is_recorded_as_cut_off(pets: Dsv) -> None:
    with pets.start("run", "pets@v1", "--", "sh", "-c", "echo $$; exec sleep 600") as process:
        assert process.stdout is not None
        job = int(process.stdout.readline())
        (going,) = pets.ok("runs", "--json").json["items"]
        assert going["state"] == "running"
        process.kill()
        process.wait()
    until(lambda: not running(job), "the end of the job")
    listed = pets.ok("runs", "--json")
    assert f"run {going['run']} was cut off" in listed.err
    (item,) = listed.json["items"]
    assert (item["state"], item["exit_code"], item["sent"]) == ("cut-off", 125, True)
    again = pets.ok("runs")
    assert again.err == "" and "cut off" in again.lines[1]
    assert not list((pets.home / ".local/state/dsv/running").iterdir())
    assert not list((pets.home / ".local/state/dsv/runs").rglob("scratch"))


def test_a_metric_of_thousands_of_digits_loses_no_record(pets: Dsv) -> None:
    job = 'printf "{\\"x\\": %05000d1}" 7 | tr 0 9 > "$DSV_OUT/metrics.json"; exit 3'
    assert pets.process("run", "pets@v1", "--", "sh", "-c", job).code == 3
    (item,) = pets.ok("runs", "--json").json["items"]
    assert (item["exit_code"], item["metrics"]) == (3, None) and item["metrics_error"]
    job = 'printf "{\\"x\\": %0300d1}" 7 | tr 0 9 > "$DSV_OUT/metrics.json"'
    assert pets.process("run", "pets@v1", "--", "sh", "-c", job).code == 0
    assert len(pets.ok("runs", "--filter", "metrics.x>1e300", "--sort", "metrics.x").lines) == 2


def test_code_and_outputs_of_runs_are_named_in_the_cache(pets: Dsv) -> None:
    write_files(pets.cwd.parent / "code", {"job.sh": b"echo 1 >$DSV_OUT/model"})
    job = ("--code", "../code", "--keep-output", "--json-file", "result.json", "--", "sh", "job.sh")
    assert pets.process("run", "pets@v1", *job).code == 0
    run = json.loads((pets.cwd / "result.json").read_text())["run"]
    record = pets.ok("runs", run, "--json").json["items"][0]
    output = record["output"]["tree"]
    pets.ok("cache", f"pets@{output}")
    made_for = {item["commit"]: item["made_for"] for item in pets.ok("cached", "--json").json["items"]}
    assert made_for[record["commit"]] is None
    assert made_for[record["code"]["tree"]] == "code of a run" and made_for[output] == f"output of run {run}"
    assert f"output of run {run}" in pets.ok("cached").out


@pytest.mark.parametrize("engine", [[], ["--engine", "docker"]])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_while_an_engine_is_asked_is_no_missing_answer(
    pets: Dsv, tmp_path: Path, engine: list[str], number: signal.Signals, code: int
) -> None:
    """It ends the run: no other engine gets the job."""
    asked, another = tmp_path / "asked", tmp_path / "another"
    (tmp_path / "bin").mkdir()
    for name, line in (("docker", f"touch {asked}; exec sleep 600"), ("podman", f"touch {another}; exit 1")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    here = pets.at(pets.cwd, PATH=f"{tmp_path / 'bin'}:{pets.environ['PATH']}")
    with here.start("run", "pets@v1", *engine, "--image", "x", "--", "true") as process:
        until(asked.exists)
        process.send_signal(number)
        said = process.communicate(timeout=PATIENCE)[1].decode()
    assert (process.returncode, another.exists()) == (code, False), said
    assert pets.ok("runs", "--json").json["items"] == []


@pytest.mark.parametrize(("ended", "code"), [(0, 7), (3, 3)])
def test_output_that_cannot_be_written_is_no_success(pets: Dsv, ended: int, code: int) -> None:
    """The job goes on, and its log has it."""
    with Path("/dev/full").open("wb") as full:
        done = pets.process(
            "run", "pets@v1", "--", "sh", "-c", f"echo said; exit {ended}", stdout=full.fileno()
        )
    assert done.code == code, done
    assert "error: the output could not be written: No space left on device" in done.err
    [shown] = pets.ok("runs", "--json").json["items"]
    assert shown["exit_code"] == ended
    assert pets.ok("logs", shown["run"]).out == "said\n"


def test_an_output_folder_in_the_cache_or_the_store_is_refused(pets: Dsv) -> None:
    here = pets.at(pets.cwd, DSV_CACHE=str(pets.home / "cache"))
    here.ok("cache", "pets@v1")
    for folder in (here.environ["DSV_CACHE"], here.ok("config", "store").out.strip()):
        out = Path(folder) / "pets" / "out"
        refused = here("run", "pets@v1", "--out", str(out), "--", "true")
        assert (refused.code, out.exists()) == (2, False)
        assert f"{out} lies in a dsv cache or store" in refused.err
