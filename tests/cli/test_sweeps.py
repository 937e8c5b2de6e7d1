"""Sweeps: a run for each combination, so many at once, seen and steered together."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from dsv.run.active_runs import under_way
from tests.cli.detached import await_file, here
from tests.kit.dsv import Dsv, assert_documented, load, write_files
from tests.waiting import PATIENCE, until

__all__ = ["here"]

SCORES = (
    'n=$(echo "$DSV_PARAMS" | tr -dc 0-9); echo "{\\"acc\\": 0.$n, \\"loss\\": $n}" > "$DSV_OUT/metrics.json"; '
    "[ $n != 2 ]"
)
WAITS = (
    'n=$(echo "$DSV_PARAMS" | tr -dc 0-9); trap "exit 7" TERM; touch "ready$n"; '
    'until [ -e go ]; do sleep 0.05; done'
)  # fmt: skip


def sweep(dsv: Dsv, script: str, *options: str, values: str = "n=1,2,3") -> tuple[str, ...]:
    return ("run", "pets@v1", "-p", values, "--sweep", *options, "--", "sh", "-c", script)


def shown(dsv: Dsv, name: str, *options: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = dsv.ok("runs", name, "--json", *options).json["items"]
    return items


def states(dsv: Dsv, name: str) -> dict[int, str]:
    return {item["sweep"]["number"]: item["state"] for item in shown(dsv, name)}


@pytest.fixture
def started(here: Dsv) -> Iterator[subprocess.Popen[bytes]]:
    """The sweep `grid` of three runs, two at once, which wait until there is a file called go."""
    process = here.start(*sweep(here, WAITS, "--parallel", "2", "--name", "grid"))
    await_file(here, "ready1")
    await_file(here, "ready2")
    yield process
    (here.cwd / "go").touch()
    process.kill()
    process.wait()
    process.stdout.close()  # type: ignore[union-attr]
    process.stderr.close()  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def ended(dsv_of_the_file: Dsv) -> tuple[Dsv, Any]:
    """A sweep of three whose second run has failed, and what it printed. Tests only read it."""
    dsv = dsv_of_the_file.at(dsv_of_the_file.cwd, DSV_CACHE=str(dsv_of_the_file.home / "cache"))
    write_files(dsv.cwd, {"a": b"a"})
    for words in (("init", "pets"), ("sync",), ("tag", "v1")):
        dsv.ok(*words)
    folder, code = dsv.home / "elsewhere", dsv.home / "code"
    folder.mkdir()
    write_files(code, {"train.sh": SCORES.encode()})
    here = dsv.at(folder)
    words = sweep(here, "sh train.sh", "--parallel", "3", "--name", "grid", "--code", str(code), "--json")
    result = here.process(*words)
    assert result.code == 1, result
    return here, result


def test_a_sweep_ends_with_the_exit_code_of_the_first_run_that_failed(ended: tuple[Dsv, Any]) -> None:
    here, result = ended
    found = result.json["sweep"]
    assert set(found) == set(load("run").result["sweep"])
    assert (found["exit_code"], [run["params"]["n"] for run in found["runs"]]) == (1, [1, 2, 3])
    assert [run["name"] for run in found["runs"]] == ["grid-1", "grid-2", "grid-3"]
    assert re.search(r"^2/3 n=2: run \S+ failed \(1\) after .*, acc=0.2, loss=2$", result.err, re.MULTILINE)
    waited = here("wait", "grid", "--json")
    assert waited.code == 1 and [item["exit_code"] for item in waited.json["items"]] == [0, 1, 0]
    assert_documented("wait", waited.json)
    assert_documented(
        "runs",
        here.ok("runs", found["id"], "--json").json,
        ("compare", "copy", "deleted", "export", "into", "once", "series", "items.series"),
    )


def test_the_runs_of_a_sweep_have_one_commit_and_one_code_and_the_data_is_fetched_once(
    ended: tuple[Dsv, Any],
) -> None:
    runs = ended[1].json["sweep"]["runs"]
    assert len({run["code"]["tree"] for run in runs}) == 1 and runs[0]["code"]["tree"] is not None
    assert {(run["commit"], run["target"], run["cache_hit"], run["stage_bytes"]) for run in runs} == {
        (runs[0]["commit"], "pets@v1", True, 0)
    }


def test_runs_shows_a_sweep_as_a_group_and_a_metrics_best_first(ended: tuple[Dsv, Any]) -> None:
    here, result = ended
    name = result.json["sweep"]["id"]

    def order(*words: str) -> list[int]:
        return [item["params"]["n"] for item in here.ok("runs", *words, "--json").json["items"]]

    assert order("grid", "--sort", "metrics.acc") == order("--sort", "-metrics.acc") == [3, 2, 1]
    assert order("grid", "--sort", "metrics.loss") == order("--sort", "+metrics.acc") == [1, 2, 3]
    assert order(f"sweep-{name[-8:]}", "--filter", "exit_code=0", "--filter", "metrics.acc>0.2") == [3]
    assert order("--filter", f"sweep.id={name}", "--filter", "state=ended", "-n", "1") != []
    lines = here.ok("runs", "--sort", "metrics.acc").lines
    assert lines[1].split() == [name, "2", "ok,", "1", "failed", "(1)"]
    assert [line.split()[1] for line in lines[2:]] == ["grid-3", "grid-2", "grid-1"]
    assert all(line.startswith("  2") for line in lines[2:])
    assert (
        here.ok("runs", "grid", "--filter", "metrics.acc>0.2")
        .lines[1]
        .split(None, 1)[1]
        .startswith("2 ok, 1 failed (1)")
    )
    narrow = here("runs", terminal=True, width=60).out
    assert f"sweep-{name[-8:]}" in narrow and all(len(line) < 80 for line in narrow.splitlines())


def test_one_run_of_a_sweep_is_shown_logged_and_repeated_by_itself(ended: tuple[Dsv, Any]) -> None:
    here, result = ended
    run = result.json["sweep"]["runs"][1]
    shown = dict(line.split(maxsplit=1) for line in here.ok("runs", run["run"]).lines)
    assert (shown["sweep.id"], shown["sweep.number"], shown["sweep.of"]) == (run["sweep"]["id"], "2", "3")
    assert here("logs", run["run"]).code == 0
    for words in (("logs", "grid"), ("runs", "grid", "--log"), ("runs", "grid", "--out", "x")):
        refused = here(*words)
        assert refused.code == 2 and "3 runs" in refused.err


def test_a_sweep_with_nothing_left_is_not_continued(ended: tuple[Dsv, Any]) -> None:
    here, result = ended
    refused = here("run", "--again", result.json["sweep"]["id"])
    assert refused.code == 2 and "all 3 runs" in refused.err
    assert "had ended already" in here.ok("stop", "grid").err
    assert here("run", "--again", "sweep-00000000").code == 125 and here("wait", "sweep-0000").code == 3
    assert here("stop", "sweep-0000").code == here("stop", "nothing").code == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-p", "n=1", "--sweep"), "several values"),
        (("-p", "n=1,,2", "--sweep"), "empty value"),
        (("-p", "token=hunter2hunter2,x", "--sweep"), "secret"),
        (("-p", "n=1,2", "--parallel", "2"), "--parallel is for a sweep"),
        (("-p", "n=1,2", "--sweep", "--json-file", "x"), "--json-file is for one run"),
        (("--again", "sweep-0000", "--sweep"), "continues a sweep, without --sweep"),
        (("-p", "n=1,2", "--sweep", "--offline"), "a sweep needs the store"),
        (("-p", "n=1,2", "--sweep", "--detach", "--dry-run"), "--dry-run starts nothing"),
        (("-p", "n=1,2", "--sweep", "--on", "here", "--engine", "process"), "the pool sets the engine"),
        (("pets@v1", "--again", "sweep-0000"), "--again takes no target"),
    ],
)
def test_what_is_no_sweep_is_refused(ended: tuple[Dsv, Any], words: tuple[str, ...], said: str) -> None:
    target = () if "--again" in words else ("pets@v1",)
    refused = ended[0]("run", *target, *words, "--", "true")
    assert refused.code == 2 and said in refused.err


@pytest.mark.parametrize(
    "words", [("-e", "API_KEY=hunter2hunter2", "--", "true"), ("--", "curl", "--token", "hunter2hunter2")]
)
def test_a_value_that_the_job_gets_as_a_secret_is_no_parameter_of_a_sweep(
    ended: tuple[Dsv, Any], words: tuple[str, ...]
) -> None:
    refused = ended[0]("run", "pets@v1", "-p", "word=hunter2hunter2,x", "--sweep", "--dry-run", *words)
    assert refused.code == 2 and "a parameter of the sweep is a secret" in refused.err


def test_what_keeps_a_sweep_from_being_launched_has_the_exit_code_of_that(ended: tuple[Dsv, Any]) -> None:
    """The exit codes below 125 are those of its runs."""
    here = ended[0]
    away = here("run", "--store", str(here.home / "nowhere"), *sweep(here, "true")[1:])
    assert away.code == 125 and "nowhere" in away.err
    state = here.home.parent / "state"
    (state / "dsv").mkdir(parents=True)
    (state / "dsv" / "sweeps").write_text("")
    refused = here.at(here.cwd, XDG_STATE_HOME=str(state))(*sweep(here, "true"))
    assert refused.code == 125 and f"{state / 'dsv/sweeps'}" in refused.err


def test_a_sweep_has_a_name_of_any_length(here: Dsv) -> None:
    assert here.process(*sweep(here, "true", "--name", "lr", values="n=1,2")).code == 0
    assert [item["params"]["n"] for item in shown(here, "lr")] == [1, 2]
    assert here("wait", "lr").code == 0
    again = here("run", "--again", "lr")
    assert again.code == 2 and "all 2 runs of sweep-" in again.err and "dsv run --again 2" in again.err


def test_a_run_may_have_a_name_that_begins_like_the_id_of_a_sweep(here: Dsv) -> None:
    here.ok("run", "pets@v1", "--name", "sweep-base", "--", "echo", "hello")
    assert [item["name"] for item in shown(here, "sweep-base")] == ["sweep-base"]
    assert here.ok("logs", "sweep-base").out == "hello\n"
    assert here.ok("wait", "sweep-base").out.endswith(" 0\n")
    assert "had ended already" in here.ok("stop", "sweep-base").err
    here.ok("run", "--again", "sweep-base")


def test_a_dry_run_shows_all_combinations_and_starts_nothing(ended: tuple[Dsv, Any]) -> None:
    here, _ = ended
    before = len(here.ok("runs", "--json").json["items"])
    words = ("run", "pets@v1", "-p", "n=1,2", "-p", "s=x", "-p", 't="a,b",c', "--sweep", "--dry-run")
    shown = here.ok(*words, "--", "echo").lines
    assert shown[::2] == [
        "# run 1 of 4: n=1 s=x t=a,b", "# run 2 of 4: n=1 s=x t=c", "# run 3 of 4: n=2 s=x t=a,b",
        "# run 4 of 4: n=2 s=x t=c",
    ]  # fmt: skip
    items = here.ok(*words, "--json", "--", "echo").json["items"]
    assert [item["number"] for item in items] == [1, 2, 3, 4] and items[0]["argv"] == ["echo"]
    assert len(here.ok("runs", "--json").json["items"]) == before


def test_a_run_that_can_not_be_started_keeps_the_others_from_it(here: Dsv) -> None:
    words = ("run", "pets@v1", "-p", "n=1,2", "--sweep", "--", "/nonexistent/program")
    done = here.process(*words)
    assert done.code == 127
    refused = here.process("run", "pets@nothing", "-p", "n=1,2", "--sweep", "--", "true")
    assert refused.code == 125 and "Traceback" not in refused.err
    assert {item["exit_code"] for item in here.ok("runs", "--json").json["items"]} == {127}


def test_no_more_than_the_given_number_of_runs_starts_at_once_and_they_survive_a_kill_of_the_terminal(
    here: Dsv, started: subprocess.Popen[bytes]
) -> None:
    assert not (here.cwd / "ready3").exists() and states(here, "grid") == {1: "running", 2: "running"}
    busy = here("run", "--again", shown(here, "grid")[0]["sweep"]["id"])
    assert busy.code == 4 and "are being started by dsv on" in busy.err
    started.send_signal(signal.SIGKILL)
    started.wait()
    told = here.ok("runs", "grid")
    assert "2 running, 1 not begun" in told.out and "1 run not begun: dsv run --again sweep-" in told.err
    (here.cwd / "go").touch()
    waited = here("wait", "grid")
    assert waited.code == 125 and "1 run of sweep-" in waited.err and len(waited.lines) == 2
    name = shown(here, "grid")[0]["sweep"]["id"]
    continued = here.process("run", "--again", f"sweep-{name[-8:]}")
    assert continued.code == 0 and "3/3 n=3" in continued.err
    items = shown(here, "grid")
    assert [(each["params"]["n"], each["name"], each["again_of"]) for each in items] == [
        (1, "grid-1", None), (2, "grid-2", None), (3, "grid-3", None),
    ]  # fmt: skip
    assert here("wait", "grid").code == 0


def test_ctrl_c_ends_the_current_runs_and_starts_no_more(here: Dsv, started: subprocess.Popen[bytes]) -> None:
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=PATIENCE)
    assert started.returncode == 7 and b"no more runs are started" in err
    assert b"2 failed" in out or b"2 cancelled" in out or b"not begun" in out
    assert (
        states(here, "grid") == {1: "ended", 2: "ended"} and under_way(here.home / ".local/state/dsv") == []
    )


def test_stop_ends_a_whole_sweep(here: Dsv, started: subprocess.Popen[bytes]) -> None:
    stopped = here.ok("stop", "grid", "--json")
    assert_documented("stop", stopped.json)
    assert (stopped.json["stopped"], stopped.json["exit_code"]) == (True, 7)
    assert "is being stopped already" not in stopped.err  # that was this command
    assert started.wait(PATIENCE) == 7
    assert {item["cancelled_by"] is not None for item in shown(here, "grid")} == {True}
    assert not (here.cwd / "ready3").exists()
    (here.cwd / "go").touch()
    name = shown(here, "grid")[0]["sweep"]["id"]
    assert (
        here.process("run", "--again", name).code == 7
    )  # the third has succeeded, the others are as they were
    repeated = here.process("run", "--again", "grid-1")
    assert repeated.code == 0 and len(shown(here, "grid")) == 4


def test_stop_counts_the_runs_of_a_sweep(here: Dsv, started: subprocess.Popen[bytes]) -> None:
    assert ": 2 runs stopped, 1 not begun" in here.ok("stop", "grid").err
    assert (
        "had ended already" not in here.ok("stop", "grid").err
    )  # a dsv elsewhere could have begun the third


def test_a_run_whose_command_never_began_is_begun_by_again_which_takes_the_name_of_the_sweep(
    here: Dsv,
) -> None:
    """It has a record, which says so. The first run removes the program of the others."""
    program = here.cwd / "program"

    def restore() -> None:
        program.write_text("#!/bin/sh\n[ -e stays ] || rm program\n")
        program.chmod(0o755)

    restore()
    begun = here.process("run", "pets@v1", "-p", "n=1,2,3", "--sweep", "--name", "grid", "--", "./program")
    assert begun.code == 127
    assert states(here, "grid") == {1: "ended", 2: "not-launched", 3: "not-launched"}
    told = here.ok("runs", "grid")
    assert "1 ok, 2 not begun" in told.out and "2 runs not begun: dsv run --again sweep-" in told.err
    waited = here("wait", "grid")
    assert waited.code == 127 and "2 runs of sweep-" in waited.err
    assert "had ended already, with exit code 127" in here.ok("stop", "grid").err
    (here.cwd / "stays").touch()
    restore()
    continued = here.process("run", "--again", "grid")
    assert continued.code == 0 and "3/3 n=3" in continued.err and "1/3" not in continued.err
    assert len(shown(here, "grid")) == 5 and here("wait", "grid").code == 0
    over = here.process("run", "--again", "grid")
    assert over.code == 2 and "all 3 runs of sweep-" in over.err


def test_another_machine_sees_a_sweep_and_keeps_it_from_going_on(
    here: Dsv, started: subprocess.Popen[bytes]
) -> None:
    other = here.home.parent / "other"
    other.mkdir()
    store = str(here.home / ".local/share/dsv/store")
    there = Dsv(other, other, {**here.environ, "HOME": str(other), "DSV_STORE": store})
    until(lambda: len(shown(there, "grid")) == 2, "both starts in the store")
    assert "2 running, 1 not begun" in there.ok("runs", "grid").out
    refused = there("stop", "grid")
    assert refused.code == 9 and "no supervisor of run" in refused.err
    (here.cwd / "go").touch()
    _, err = started.communicate(timeout=PATIENCE)
    assert b"is being stopped" in err and started.returncode == 125
    waited = there("wait", "grid")
    assert waited.code == 125 and "1 run of sweep-" in waited.err
    assert not (here.cwd / "ready3").exists()


def test_a_detached_sweep_continues_by_itself(here: Dsv) -> None:
    begun = here.process(*sweep(here, SCORES, "--detach", "--name", "grid", values="n=1,3"))
    assert begun.code == 0 and re.fullmatch(r"sweep-[0-9a-f-]+\n", begun.out)
    waited = here.process("wait", begun.out.strip())
    assert waited.code == 0, waited
    assert states(here, "grid") == {1: "ended", 2: "ended"}
