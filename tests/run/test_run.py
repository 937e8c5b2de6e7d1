"""A run from its request to its record, with plain processes on plain folders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dsv.errors import Conflict, DsvError, LaunchError, NotFound, Unreachable, UsageError
from dsv.run.engines.attach import Signals
from dsv.run.listing import each_run, ended_here, run_log, show_run
from dsv.run.record import LOG, RECORD, START, RunOutput, RunRecord, RunState
from dsv.stores.base import PutResult
from dsv.values.json import json_or_text
from dsv.values.names import DatasetName, Target
from tests.run.shop import SCANS, Folders, Shop
from tests.waiting import until


def test_what_a_job_is_given(shop: Shop) -> None:
    names = ("DSV_DATASET", "DSV_COMMIT", "DSV_DATA", "DSV_OUT", "DSV_PARAMS", "DSV_RUN")
    script = "; ".join(f'printf "%s\\n" "${name}"' for name in names) + '; cat "$DSV_DATA/link"; pwd'
    result = shop.run("sh", "-c", script, params={"lr": 0.1, "name": "x y"})
    assert result.exit_code == 0 and result.error is None
    dataset, commit, data, out, params, run, rest, cwd = shop.stdout.split("\n")[:8]
    assert (dataset, commit, run) == ("team/scans", result.record.commit.hex(), result.record.run)
    assert Path(data) == shop.data.folder / "team%2Fscans"
    assert Path(out) == result.out
    assert (
        json.loads(params)
        == {"lr": 0.1, "name": "x y"}
        == json.loads((result.out / "params.json").read_text())
    )
    assert rest.startswith("cat")
    assert cwd == "" or Path(rest.removeprefix("cat") or cwd) == shop.place.cwd


def test_the_record_has_what_there_is_to_know(shop: Shop) -> None:
    script = (
        'echo hello; echo oops >&2; echo \'{"accuracy": 0.9, "loss": NaN}\' > $DSV_OUT/metrics.json; exit 3'
    )
    before = time.time() * 1000
    shop.data.hit = False
    result = shop.run("sh", "-c", script, params={"lr": 0.1}, env={"MODE": "fast"}, name="first")
    record = result.record
    assert (record.exit_code, record.state, record.signal, record.error) == (3, RunState.ENDED, None, None)
    assert (record.dataset, record.target, record.engine, record.host, record.user) == (
        "team/scans", "team/scans@v1", "process", "gpu-7", "ada",
    )  # fmt: skip
    assert (record.data[0].files, record.data[0].bytes) == (4, 11)
    assert (record.cache_hit, record.stage_seconds, record.stage_bytes) == (False, 0.5, 77)
    assert record.command == record.argv == ("sh", "-c", script)
    assert (record.params, record.env, record.name) == ({"lr": 0.1}, ("MODE",), "first")
    assert record.metrics == {"accuracy": 0.9, "loss": "NaN"}
    assert before - 1000 < record.started_ms <= (record.ended_ms or 0) < time.time() * 1000 + 1000
    assert record.log is not None and record.log.bytes == record.log.kept_bytes == 11
    assert record.usage is not None and record.usage.cpu_seconds is not None
    stored = shop.runs.listing(SCANS)
    assert [(each.run, each.parts) for each in stored] == [(record.run, {START, LOG, RECORD})]
    assert shop.runs.read(stored[0]) == record
    assert sorted(run_log(shop.runs, shop.spool, record) or b"") == sorted(b"hello\noops\n")
    assert result.problem is None and shop.spool.waiting() == []


def test_a_plain_process_is_said_aloud_once(shop: Shop) -> None:
    for _ in range(2):
        shop.run("true")
    assert sum("plain process" in text for text in shop.notes.said) == 1
    assert shop.notes.finished


def test_leases_are_held_while_the_job_lives_and_no_longer(shop: Shop) -> None:
    shop.data.add("masks", {"m": "1"})
    look = "cat $DSV_DATA_MASKS/m; ls -A $DSV_DATA/.. | grep -c lease"
    result = shop.run("sh", "-c", look, data={"masks": Target.parse("masks@v1")})
    assert (result.exit_code, shop.stdout) == (0, "12\n")
    assert [lease.released for lease in shop.data.leases] == [True, True]


def test_a_lost_lease_ends_the_job_with_125(shop: Shop) -> None:
    def lose() -> None:
        while not shop.data.leases or not (shop.home / "ready").exists():
            time.sleep(0.05)
        shop.data.leases[0].reason = "team/scans@v1 was evicted while this host was cut off"
        shop.data.leases[0].lost.set()

    threading.Thread(target=lose).start()
    result = shop.run("sh", "-c", f"touch {shop.home}/ready; sleep 600")
    assert (result.exit_code, result.record.exit_code, result.record.state) == (125, 125, RunState.CUT_OFF)
    assert result.error is not None and "evicted while" in result.error.message
    assert "evicted while" in (shop.runs.read(shop.runs.listing(SCANS)[0]).error or "")


@pytest.mark.parametrize(("command", "code"), [(("no-such-command",), 127), (("/etc/passwd",), 126)])
def test_a_command_that_cannot_be_started_leaves_a_record(
    shop: Shop, command: tuple[str, ...], code: int
) -> None:
    result = shop.run(*command)
    assert (result.exit_code, result.record.state) == (code, RunState.NOT_LAUNCHED)
    assert result.error is not None and command[0] in result.error.message
    assert shop.runs.read(shop.runs.listing(SCANS)[0]).exit_code == code


def test_what_keeps_a_run_from_starting_is_125_and_misuse_is_2(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LaunchError, match="no dataset") as caught:
        shop.run("true", target="nothing@v1")
    assert caught.value.exit_code == 125
    for wrong in (
        {"env": {"DSV_DATA": "/x"}}, {"engine": "lsf"}, {"engine": "process", "image": "x"}, {"engine_args": ("-x",)},
        {"code": Path("no-folder")}, {"data": {"../x": shop.request().target}}, {"params": {"x": object()}},
    ):  # fmt: skip
        with pytest.raises(UsageError):
            shop.run("true", **wrong)
    with pytest.raises(UsageError):
        shop.run()
    two = {name: shop.request().target for name in ("a.b", "a-b")}
    with pytest.raises(UsageError, match="--data a-b gives the variable DSV_DATA_A_B, which"):
        shop.run("true", data=two)
    assert shop.data.leases == [] and shop.runs.listing() == []


def test_data_that_cannot_be_had_is_125_and_no_lease_stays(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = shop.data.stage

    def fails(target: object, run: object) -> object:
        if shop.data.leases:
            raise Unreachable("the store is away")
        return stage(target, run)  # type: ignore[arg-type]

    monkeypatch.setattr(shop.data, "stage", fails)
    with pytest.raises(LaunchError, match="the store is away"):
        shop.run("true", data={"x": shop.request().target})
    assert [lease.released for lease in shop.data.leases] == [True]


def test_the_output_folder_is_the_runs_own_or_as_asked(shop: Shop) -> None:
    result = shop.run("sh", "-c", "echo x > $DSV_OUT/model")
    assert result.out == shop.place.state / "runs" / "team%2Fscans" / result.record.run / "out"
    assert sorted(each.name for each in result.out.parent.iterdir()) == ["out"]
    asked = shop.run("sh", "-c", "echo x > $DSV_OUT/model", out=Path("results/one"))
    assert asked.out == shop.place.cwd / "results" / "one"
    assert sorted(each.name for each in asked.out.iterdir()) == ["model", "params.json"]


def test_an_output_folder_in_a_workspace_is_refused(shop: Shop) -> None:
    dot = shop.place.cwd / ".dsv"
    dot.mkdir()
    (dot / "config.toml").write_text(
        f'store = "x"\nstore_id = "{bytes(16).hex()}"\ndataset = "scans"\nbranch = "main"\n'
    )
    with pytest.raises(UsageError, match="workspace"):
        shop.run("true", out=Path("deep/out"))
    assert not (shop.place.cwd / "deep").exists()


def test_an_output_folder_that_cannot_be_made_says_what_helps(shop: Shop) -> None:
    shop.place.cwd.mkdir(exist_ok=True)
    (shop.place.cwd / "file").touch()
    with pytest.raises(LaunchError, match="file/out can't be created: Not a directory") as caught:
        shop.run("true", out=Path("file/out"))
    assert caught.value.hint is not None and "--out FOLDER" in caught.value.hint


def test_metrics_that_do_not_count(shop: Shop) -> None:
    out = shop.home / "out"
    secret = shop.home / "secret"
    secret.write_text('{"a": 1}')
    for script, problem in (
        ("echo '[1]' > metrics.json", "not a JSON object"),
        ("echo '{' > metrics.json", "not valid JSON"),
        (f"ln -s {secret} metrics.json", "symlink"),
        ("mkfifo metrics.json", "not a regular file"),
        ("head -c 2000000 /dev/zero > metrics.json", "larger"),
        ("python3 -c 'print(\"[\" * 100000)' > metrics.json", "not valid JSON"),
        ('printf \'{"a": "\\377"}\' > metrics.json', "not valid JSON"),
        (r"""echo '{"a": ["\ud800"]}' > metrics.json""", "half a character"),
        (r"""echo '{"\udfff": 1}' > metrics.json""", "half a character"),
    ):
        result = shop.run("sh", "-c", f'cd "$DSV_OUT"; rm -f metrics.json; {script}', out=out)
        assert result.exit_code == 0
        assert result.record.metrics is None
        assert problem in (result.record.metrics_error or ""), script


def test_infinite_numbers_are_called_alike(shop: Shop) -> None:
    text = '{"a": 1e999, "b": Infinity, "c": -1e999, "d": -Infinity, "e": NaN}'
    metrics = shop.run("sh", "-c", f"echo '{text}' > $DSV_OUT/metrics.json").record.metrics
    assert metrics == {"a": "Infinity", "b": "Infinity", "c": "-Infinity", "d": "-Infinity", "e": "NaN"}
    assert [json_or_text(text) for text in ("1e999", "Infinity", "[-1e999]", "1e9")] == [
        "1e999", "Infinity", "[-1e999]", 1e9,
    ]  # fmt: skip


def test_metrics_of_an_earlier_run_are_not_this_ones(shop: Shop) -> None:
    out = shop.home / "out"
    assert shop.run("sh", "-c", "echo '{\"a\": 1}' > $DSV_OUT/metrics.json", out=out).record.metrics == {
        "a": 1
    }
    again = shop.run("true", out=out).record
    assert (again.metrics, again.metrics_error) == (None, None)


def test_params_are_not_written_through_a_link(shop: Shop) -> None:
    out = shop.home / "out"
    out.mkdir()
    (out / "params.json").symlink_to(shop.home / "victim")
    shop.run("true", out=out, params={"a": 1})
    assert not (shop.home / "victim").exists()
    assert json.loads((out / "params.json").read_text()) == {"a": 1}


@pytest.mark.parametrize("own", [False, True])
def test_secret_parameters_reach_the_job_but_not_its_committed_output(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """own: the job has replaced the file, which is then its own"""
    committed: list[str] = []

    def output(self: Folders, folder: Path | None, record: RunRecord) -> RunOutput:
        assert folder is not None
        committed.append((folder / "params.json").read_text())
        return RunOutput(tree="0" * 64)

    monkeypatch.setattr(Folders, "output", output)
    job = "cat $DSV_OUT/params.json" + (
        "; rm $DSV_OUT/params.json; echo mine > $DSV_OUT/params.json" if own else ""
    )
    params = {"lr": 0.1, "api_token": "hunter2hunter2"}
    record = shop.run("sh", "-c", job, params=params, keep_output=True).record
    hidden = {"lr": 0.1, "api_token": "***"}
    assert (json.loads(shop.stdout), record.params) == (params, hidden)
    assert committed == ["mine\n"] if own else [json.loads(committed[0])] == [hidden]


def test_a_secret_parameter_that_can_not_be_hidden_is_not_committed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dsv.run.supervisor.hide_params", full)
    record = shop.run("true", params={"api_token": "hunter2hunter2"}, keep_output=True).record
    assert record.output is not None and "No space left" in (record.output.error or "")


def test_the_code_and_its_git_commit(shop: Shop) -> None:
    code = shop.home / "code"
    code.mkdir()
    (code / "train.sh").write_text("echo training in $(basename $PWD)")
    assert shop.run("sh", "train.sh", code=code).record.code is not None
    assert shop.stdout == "training in code\n"
    plain = shop.run("true", code=code).record.code
    assert plain is not None and (plain.commit, plain.dirty) == (None, None)
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", "-C", str(code), *words], check=True)
    head = subprocess.run(
        ["git", "-C", str(code), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    )
    clean = shop.run("true", code=code).record.code
    assert clean is not None and (clean.commit, clean.dirty) == (head.stdout.strip(), False)
    (code / "new").touch()
    dirty = shop.run("true", code=code).record.code
    assert dirty is not None and (dirty.commit, dirty.dirty) == (head.stdout.strip(), True)


def test_no_log(shop: Shop) -> None:
    result = shop.run("echo", "hello", log=False)
    assert shop.stdout == "hello\n"
    assert result.record.log is None
    assert run_log(shop.runs, shop.spool, result.record) is None


def test_signals_reach_the_job_and_its_exit_code_is_the_runs(shop: Shop) -> None:
    signals = Signals()
    ready = shop.home / "ready"

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.02)
        signals.send(2)

    threading.Thread(target=interrupt).start()
    script = f"trap 'exit 42' INT; touch {ready}; while :; do sleep 0.05; done"
    result = shop.launch(shop.request("sh", "-c", script), signals=signals)
    assert (result.exit_code, result.record.signal, result.error) == (42, "SIGINT", None)


def test_dry_run_shows_what_is_run_and_does_nothing(shop: Shop) -> None:
    plan = shop.dry_run("python", "train.py", "a b", params={"a": 1})
    assert plan.text() == "python train.py 'a b'"
    assert plan.env["DSV_PARAMS"] == '{"a": 1}'
    assert not shop.place.state.exists()
    assert shop.data.leases == [] and list(shop.store.list("")) == []


def test_runs_are_listed_newest_first_and_found_by_part_of_their_id(shop: Shop) -> None:
    first = shop.run("true").record
    time.sleep(1.1)
    second = shop.run("false").record
    assert [view.record.run for view in each_run(shop.runs, shop.spool, None)] == [second.run, first.run]
    assert next(each_run(shop.runs, None, SCANS, 1)).record == second
    for text in (first.run, first.run[-8:], first.run[:15]):
        assert show_run(shop.runs, shop.spool, text, [SCANS]).record == first
    with pytest.raises(UsageError, match="means 2 runs"):
        show_run(shop.runs, shop.spool, first.run[:4], [SCANS])  # the century
    with pytest.raises(NotFound):
        show_run(shop.runs, shop.spool, "20010101-000000-00000000", [SCANS])
    item = show_run(shop.runs, None, first.run, [SCANS]).item()
    assert json.loads(json.dumps(item))["commit"] == first.commit.hex()
    assert item["started"].endswith("Z") and item["sent"] is True and "started_ms" not in item


@pytest.mark.parametrize("sent", [True, False])
def test_runs_of_one_id_on_two_datasets_hide_nothing_from_each_other(shop: Shop, sent: bool) -> None:
    first = replace(shop.run("true").record, name="baseline")
    copies = [replace(first, dataset=DatasetName.parse(name)) for name in ("copies/one", "copies/two")]
    for each in copies:
        if sent:
            shop.runs.write(each.dataset, each.run, RECORD, each.encode())
        else:
            shop.spool.keep(each.dataset, each.run, RECORD, each.encode())
    places = [SCANS, *(each.dataset for each in copies)]
    listed = [view.record.dataset for view in each_run(shop.runs, shop.spool, None)]
    assert sorted(listed) == sorted(places)
    assert [view.record for view in each_run(shop.runs, shop.spool, places[1])] == copies[:1]
    for text in (first.run, first.run[-8:], first.run[:8]):
        with pytest.raises(
            UsageError, match=r"means 3 runs: .* on team/scans, .* on copies/two, .* on copies/one"
        ):
            show_run(shop.runs, shop.spool, text, places)
        for each in copies:
            found = show_run(shop.runs, shop.spool, text, [each.dataset], only=each.dataset)
            assert found.record == each
    with pytest.raises(UsageError, match="means 2 runs") as caught:
        show_run(shop.runs, shop.spool, "baseline", places)
    assert caught.value.hint == f"dsv runs {first.run} --dataset copies/two"
    if not sent:
        with pytest.raises(UsageError, match="means 2 runs"):
            ended_here(shop.place.state, first.run)
        one = ended_here(shop.place.state, first.run, "copies/one")
        assert one is not None and one[0] == copies[0]


class Away:
    """A store whose writes fail while a test says so."""

    def __init__(self, shop: Shop, error: DsvError) -> None:
        self.inner, self.error, self.away = shop.store, error, True

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def put_if_absent(self, key: str, data: bytes) -> PutResult:
        if self.away:
            raise self.error
        return self.inner.put_if_absent(key, data)


def test_a_record_that_cannot_be_written_is_sent_by_the_next_run(shop: Shop) -> None:
    store = Away(shop, Unreachable("the store is away"))
    shop.store = store  # type: ignore[assignment]
    result = shop.run("sh", "-c", "echo first; exit 5")
    assert result.exit_code == 5
    assert isinstance(result.problem, Unreachable)
    assert shop.runs.listing() == []
    views = list(each_run(shop.runs, shop.spool, None))
    assert [(view.record, view.sent) for view in views] == [(result.record, False)]
    assert show_run(None, shop.spool, result.record.run, []).record == result.record
    store.away = False
    later = shop.run("true")
    assert later.problem is None
    assert {each.run for each in shop.runs.listing()} == {result.record.run, later.record.run}
    assert run_log(shop.runs, shop.spool, result.record) == b"first\n"
    assert shop.spool.waiting() == []


def test_offline_keeps_the_record_here(shop: Shop) -> None:
    result = shop.run("true", offline=True)
    assert result.problem is None
    assert list(shop.store.list("")) == []
    assert {part.run for part in shop.spool.waiting()} == {result.record.run}
    shop.run("true")
    assert len(shop.runs.listing()) == 2


def test_a_part_that_clashes_keeps_no_other_back(shop: Shop) -> None:
    first = shop.run("true", offline=True).record
    second = shop.run("true", offline=True).record
    shop.runs.write(SCANS, min(first.run, second.run), RECORD, b"something else")
    with pytest.raises(Conflict):
        shop.spool.send(shop.runs)
    assert len(shop.spool.waiting()) == 1
    assert {each.run for each in shop.runs.listing()} == {first.run, second.run}


def test_a_run_that_was_killed_is_known_by_its_start(shop: Shop, tmp_path: Path) -> None:
    """dsv itself is killed by SIGKILL while its job runs."""
    ready = tmp_path / "ready"
    child = os.fork()
    if child == 0:
        try:
            script = f"echo $$ > {ready}.new; mv {ready}.new {ready}; exec sleep 600"
            shop.run("sh", "-c", script, offline=True)
        finally:
            os._exit(0)
    until(ready.exists)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.kill(int(ready.read_text()), signal.SIGKILL)
    later = shop.run("true").record
    states = {view.record.run: view.record.state for view in each_run(shop.runs, shop.spool, SCANS)}
    assert states.pop(later.run) is RunState.ENDED
    assert list(states.values()) == [RunState.RUNNING]
