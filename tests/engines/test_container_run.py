"""What becomes of a container whose program ends before it, or whose engine doesn't answer."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from dsv.run.engines import attach
from dsv.run.engines.containers import container as container_run
from dsv.run.engines.containers.engine import Docker
from dsv.run.part import EndCause
from tests.engines.fake_docker import FakeDocker
from tests.engines.harness import Bench, Running
from tests.waiting import until


@pytest.fixture
def docker(tmp_path: Path) -> FakeDocker:
    return FakeDocker.make(tmp_path / "docker")


@pytest.fixture
def bench(tmp_path: Path, docker: FakeDocker) -> Bench:
    (tmp_path / "jobs").mkdir()
    return Bench.of(Docker(docker.environ), tmp_path / "jobs", "busybox")


def started(bench: Bench, docker: FakeDocker, grace: float = 300.0) -> Running:
    running = bench.start(bench.job("train"), grace=grace)
    docker.await_up()
    return running


@pytest.mark.parametrize(
    ("log", "lost"), [("up\nmore\n", False), ("another beginning\n", True), (None, True)]
)
def test_a_container_that_outlives_its_program_is_waited_for(
    bench: Bench, docker: FakeDocker, log: str | None, lost: bool
) -> None:
    """Its output is taken up again, or it is said that it is lost."""
    reader, writer = os.pipe()
    running = bench.start(bench.job("train"), stdout=writer, grace=300)
    docker.await_up()
    docker.set("unlogged") if log is None else docker.set("log", log)
    docker.set("left", 125)
    docker.await_calls("logs", 1)
    assert running.handle.ended is None and not docker.calls("rm")
    docker.set("over", 7)
    ended = running.wait()
    assert (ended.exit_code, ended.launched, ended.seen) == (7, True, True)
    assert (ended.reason is not None and "what it wrote then is lost" in ended.reason) is lost
    assert docker.calls("rm") == 1 and not docker.removed_alive
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert file.read() == (b"up\n" if lost else b"up\nmore\n")


@pytest.mark.parametrize(
    ("said", "over", "code", "reason"),
    [
        ("[FATAL tini (6)] exec train failed: No such file or directory", 127, 127, "command not found: train"),
        ("[FATAL tini (6)] exec train failed: Permission denied", 126, 126, "train can't be run: Permission denied"),
        ("[FATAL tini (6)] exec train failed: Exec format error", 1, 126, "train can't be run: Exec format error"),
        ("ERROR (catatonit:2): failed to exec pid1: No such file or directory", 1, 127, "command not found: train"),
        ("ERROR (catatonit:2): failed to exec pid1: Is a directory", 1, 126, "train can't be run: Is a directory"),
    ],
)  # fmt: skip
def test_a_command_that_the_init_process_cannot_execute_was_never_launched(
    bench: Bench, docker: FakeDocker, said: str, over: int, code: int, reason: str
) -> None:
    docker.set("said", f"{said}\n")
    docker.set("over", over)
    ended = bench.run(bench.job("train")).outcome
    assert (ended.exit_code, ended.launched, ended.reason) == (code, False, reason)
    assert ended.cause is EndCause.NOT_STARTED


def test_a_command_that_only_says_what_an_init_process_says_was_launched(
    bench: Bench, docker: FakeDocker
) -> None:
    docker.set("said", "began\n[FATAL tini (6)] exec train failed: No such file or directory\n")
    docker.set("over", 127)
    ended = bench.run(bench.job("train")).outcome
    assert (ended.exit_code, ended.launched, ended.cause) == (127, True, EndCause.EXITED)


def test_what_docker_says_of_its_daemon_is_not_in_the_jobs_log(bench: Bench, docker: FakeDocker) -> None:
    docker.set("left", 125)
    docker.set("over", 7)
    done = bench.run(bench.job("train"))
    assert (done.code, done.log) == (7, b"up\n")


def test_a_program_that_is_killed_before_the_engine_notes_the_begin_leaves_the_end_unknown(
    bench: Bench, docker: FakeDocker
) -> None:
    """The command may have run, so the answer is not that it was never launched, and it is not begun again."""
    running = started(bench, docker)
    docker.set("unnoted")
    os.kill(int((docker.folder / "pid").read_text()), signal.SIGKILL)
    ended = running.wait()
    assert (ended.exit_code, ended.launched, ended.seen) == (125, True, False)
    assert ended.reason == "docker was killed by signal 9 while it started container deadbeefcafe"


def test_the_engine_is_started_where_it_can_leave_no_file(
    bench: Bench, docker: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions of conmon make a file where they are started, which the next sync of a workspace would publish."""
    monkeypatch.chdir(tmp_path)
    running = started(bench, docker)
    docker.set("over", 0)
    docker.set("left", 0)
    assert running.wait().exit_code == 0
    folders = set((docker.folder / "started-in").read_text().splitlines())
    assert folders == {"/proc" if sys.platform == "linux" else "/"}


def test_an_answer_that_makes_no_sense_ends_the_wait(bench: Bench, docker: FakeDocker) -> None:
    running = started(bench, docker)
    docker.set("over", '"many"')
    docker.set("left", 0)
    ended = running.wait()
    assert (ended.exit_code, ended.launched, ended.seen, ended.may_live) == (125, True, False, False)
    assert ended.reason is not None and "dsv can't follow the job any more: ValueError" in ended.reason
    until(lambda: docker.calls("ps"), "the reaper, which ends what nobody follows")


def test_a_daemon_that_is_away_for_a_moment_ends_nothing(bench: Bench, docker: FakeDocker) -> None:
    running = started(bench, docker)
    docker.set("down")
    docker.set("left", 125)
    docker.await_calls("container inspect", 4)
    assert running.handle.ended is None
    docker.clear("down")
    docker.await_calls("logs", 1)
    assert running.handle.ended is None
    docker.set("over", 3)
    assert (running.wait().exit_code, docker.removed_alive) == (3, False)


@pytest.mark.parametrize("away", [False, True])
def test_a_signal_reaches_a_container_that_outlived_its_program(
    bench: Bench, docker: FakeDocker, away: bool
) -> None:
    """Also one that nobody could take when it was sent."""
    running = started(bench, docker)
    if away:
        docker.set("down")
    docker.set("left", 125)
    docker.await_calls("container inspect", 3) if away else docker.await_calls("logs", 1)
    running.signals.send(signal.SIGTERM)
    if away:
        until(lambda: docker.calls("kill") > 0, "passing the signal on")
        docker.clear("down")
    outcome = running.wait()
    assert (outcome.exit_code, outcome.signal) == (143, signal.SIGTERM)
    assert not docker.removed_alive


def test_an_engine_that_does_not_answer_any_more(
    bench: Bench, docker: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_run, "SILENCE", 0.5)
    running = started(bench, docker)
    docker.set("down")
    docker.set("left", 125)
    ended = running.wait()
    assert (ended.exit_code, ended.launched, ended.seen) == (125, True, False)
    assert ended.reason is not None and "did not answer" in ended.reason and "deadbeefcafe" in ended.reason
    assert not docker.calls("rm")


def test_who_ends_a_job_of_an_engine_that_does_not_answer_waits_no_longer_than_its_grace(
    bench: Bench, docker: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach, "_AGAIN", 0.1)
    running = started(bench, docker, grace=0.5)
    docker.set("down")
    docker.set("left", 125)
    docker.await_calls("container inspect", 2)
    running.signals.send(signal.SIGINT)
    outcome = running.wait()
    assert (outcome.exit_code, outcome.seen, outcome.signal) == (125, False, signal.SIGINT)
    assert docker.calls("kill") >= 3 and not docker.calls("rm")


@pytest.mark.parametrize(("left", "seen"), [(3, True), (125, False)])
def test_of_a_container_that_is_gone_the_program_knows(
    bench: Bench, docker: FakeDocker, left: int, seen: bool
) -> None:
    """`--engine-arg --rm`, or somebody's `docker rm`: that is an answer, and waiting would bring no other."""
    running = started(bench, docker)
    docker.set("gone")
    docker.set("left", left)
    ended = running.wait()
    assert (ended.exit_code, ended.launched, ended.seen) == (left, True, seen)
