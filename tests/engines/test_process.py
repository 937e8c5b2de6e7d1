"""Plain child processes."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dsv.errors import LaunchError, UsageError
from dsv.files.process import Fate
from dsv.files.process import Process as Known
from dsv.run.engines.attach import Foreground, Signals, supervise
from dsv.run.engines.base import JobStatus
from dsv.run.engines.output import JobOutput
from dsv.run.engines.process import ProcessEngine, _ProcessRun
from dsv.run.record import RunState
from dsv.run.resources import ALL_GPUS
from tests.engines.conformance import EngineConformance
from tests.engines.durable import READY_THEN_WAIT
from tests.engines.harness import Bench, Running
from tests.waiting import PATIENCE


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench.of(ProcessEngine(os.environ), tmp_path, None)


class TestProcess(EngineConformance):
    name = "process"

    def sampled(self, running: Running) -> int:
        attached = running.handle._begun
        return attached._memory.peak_memory_bytes or 0 if isinstance(attached, _ProcessRun) else 0

    def test_what_is_planned_is_what_is_run(self, bench: Bench) -> None:
        job = bench.job("cat", "/proc/self/cmdline")
        assert tuple(bench.run(job).stdout.decode().split("\0")[:-1]) == bench.plan(job).argv

    def test_the_callers_environment_is_there_too(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench.engine = ProcessEngine({**os.environ, "MINE": "yes"})
        assert bench.run(bench.shell("echo $MINE $MORE", env={"MORE": "too"})).stdout == b"yes too\n"

    def test_the_command_is_looked_for_in_the_jobs_path(self, bench: Bench) -> None:
        program = bench.folder / "bin" / "mine"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\necho found\n")
        program.chmod(0o755)
        done = bench.run(bench.job("mine", env={"PATH": f"{program.parent}:{os.environ['PATH']}"}))
        assert done.stdout == b"found\n"

    def test_an_exit_code_that_went_elsewhere_is_said_to(self, bench: Bench) -> None:
        """A program that uses this as a library may ignore SIGCHLD."""
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            ended = bench.start(bench.shell("exit 3")).wait()
        finally:
            signal.signal(signal.SIGCHLD, before)
        assert (ended.exit_code, ended.launched, ended.seen) == (125, True, False)

    def test_a_killed_job_is_waited_for_until_it_counts_as_ended(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The kernel takes its environment, by which its processes are found, a moment before."""
        out, env = self.out(bench)
        running = bench.start(self.marked(bench.shell(READY_THEN_WAIT, mounts=(out,)), **env))
        self.ready(out)
        fate, still_alive = Known.fate, [Fate.ALIVE] * 3
        monkeypatch.setattr(Known, "fate", lambda self: still_alive.pop() if still_alive else fate(self))
        monkeypatch.setattr("dsv.run.engines.process.processes_of", lambda run: [])
        assert self.another(bench).cancel(running.ref, 0) == JobStatus(RunState.ENDED)
        assert running.wait().exit_code == 128 + signal.SIGKILL

    def test_a_file_here_is_no_command_unless_its_folder_is_named(self, bench: Bench) -> None:
        """As a shell has it: a bare name is looked for in PATH alone."""
        (bench.folder / "bin").mkdir()
        for folder in (bench.folder, bench.folder / "bin"):
            (folder / "data.csv").write_text("no program")
        here = str(bench.folder)
        for command, path, code in (
            ("data.csv", os.environ["PATH"], 127),
            ("./data.csv", os.environ["PATH"], 126),
            ("bin/data.csv", os.environ["PATH"], 126),
            ("data.csv", f"{bench.folder}/bin:{os.environ['PATH']}", 126),
        ):
            done = bench.run(bench.job(command, workdir=here, env={"PATH": path}))
            assert (done.code, done.outcome.launched) == (code, False), command

    def test_a_folder_that_is_not_there_is_125(self, bench: Bench) -> None:
        done = bench.run(bench.job("sh", "-c", "exit 0", workdir=str(bench.folder / "gone")))
        assert (done.code, done.outcome.launched) == (125, False)

    def test_an_argument_list_too_long_is_125(self, bench: Bench) -> None:
        done = bench.run(bench.job("sh", "-c", "exit 0", "x" * 3_000_000))
        assert (done.code, done.outcome.launched) == (125, False)

    def test_a_refusal_in_a_folder_of_path_hides_no_later_failure(self, bench: Bench) -> None:
        """The system refuses a file that can't be executed as it refuses a folder that can't be entered."""
        (bench.folder / "bin").mkdir()
        (bench.folder / "bin" / "sh").write_text("no program")
        env = {"PATH": f"{bench.folder}/bin:{os.environ['PATH']}"}
        done = bench.run(bench.job("sh", "-c", "exit 0", "x" * 3_000_000, env=env))
        assert (done.code, done.outcome.launched) == (125, False)
        assert bench.run(bench.job("sh", "-c", "exit 3", env=env)).code == 3

    def test_a_daemon_that_keeps_the_output_open_keeps_no_job_alive(self, bench: Bench) -> None:
        done = bench.run(bench.shell("setsid sleep 30 & exit 2"))
        assert done.code == 2

    def test_a_daemon_that_still_writes_keeps_no_job_alive(self, bench: Bench) -> None:
        out, env = self.out(bench)
        daemon = "setsid sh -c 'touch \"$OUT/up\"; while echo x; do sleep 0.1; done' &"
        job = bench.shell(
            daemon + ' until [ -e "$OUT/up" ]; do sleep 0.05; done; exit 2', mounts=(out,), env=env
        )
        assert bench.run(job).code == 2

    def test_a_job_is_over_before_a_slow_reader_has_read_it(self, bench: Bench) -> None:
        reader, writer = os.pipe()
        over = threading.Event()
        got: list[bytes] = []

        def read() -> None:
            assert over.wait(PATIENCE)
            while data := os.read(reader, 1 << 16):
                got.append(data)

        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        signals, output = Signals(), JobOutput(writer, None)
        job = bench.shell("head -c 1000000 /dev/zero; exit 3")
        handle = Foreground(bench.engine, bench.plan(job), output, signals.wake, lambda ref: None)
        outcome = supervise(handle, output, signals, lost=lambda: None, note=lambda text: None, over=over.set)
        os.close(writer)
        reading.join(PATIENCE)
        os.close(reader)
        assert (outcome.exit_code, len(b"".join(got))) == (3, 1_000_000)

    def test_what_it_does_not_do(self, bench: Bench) -> None:
        for wrong in ({"image": "busybox"}, {"engine_args": ("--cpus=2",)}, {"shm_bytes": 1}, {"command": ()},
                      {"command": ("a\0b",)}):  # fmt: skip
            with pytest.raises(UsageError):
                bench.plan(replace(bench.job("sh"), **wrong))

    @pytest.mark.parametrize(
        ("wanted", "here", "visible", "given"),
        [
            (2, 4, None, "0,1"),
            (1, 4, ("3", "2"), "3"),
            (ALL_GPUS, 2, None, "0,1"),
            (ALL_GPUS, 4, ("3",), "3"),
        ],
    )
    def test_gpus_are_the_first_that_the_caller_may_use(
        self, bench: Bench, wanted: int, here: int, visible: tuple[str, ...] | None, given: str
    ) -> None:
        bench.facts = replace(
            bench.facts, machine=replace(bench.facts.machine, gpus=here, visible_gpus=visible)
        )
        assert bench.plan(bench.job("sh", gpus=wanted)).env["CUDA_VISIBLE_DEVICES"] == given

    @pytest.mark.parametrize(
        ("wanted", "here", "visible"),
        [(1, 0, None), (5, 4, None), (2, 4, ("1",)), (ALL_GPUS, 0, None), (ALL_GPUS, 2, ())],
    )
    def test_too_few_gpus_are_125(
        self, bench: Bench, wanted: int, here: int, visible: tuple[str, ...] | None
    ) -> None:
        bench.facts = replace(
            bench.facts, machine=replace(bench.facts.machine, gpus=here, visible_gpus=visible)
        )
        with pytest.raises(LaunchError, match="were asked for"):
            bench.plan(bench.job("sh", gpus=wanted))

    def test_without_gpus_the_callers_choice_stays(self, bench: Bench) -> None:
        assert "CUDA_VISIBLE_DEVICES" not in bench.plan(bench.job("sh")).env
