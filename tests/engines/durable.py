"""What becomes of a job whose submitter is another process, or is killed: for every engine, on the real thing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from dsv.run.engine_list import ENGINES
from dsv.run.engines.base import Engine, Job, JobPlan, JobStatus, Mount
from dsv.run.record import JobRef, RunState
from tests.engines.harness import Bench
from tests.waiting import PATIENCE, until

READY_THEN_WAIT = 'echo ready > "$OUT/ready"; while :; do sleep 0.1; done'

SUBMITTER = """
import os, sys, threading
from pathlib import Path
import msgspec
from dsv.run.engines.base import JobPlan
from dsv.run.engines.attach import Foreground
from dsv.run.engines.output import JobOutput
from dsv.run.engine_list import ENGINES
plan = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=JobPlan, dec_hook=lambda kind, value: kind(value))
step, note = sys.argv[2], Path(sys.argv[3])
def stop_here():
    print("here", flush=True)
    threading.Event().wait()
def known(ref):
    if step == "created":
        stop_here()
    note.write_bytes(ref.encode())
    if step == "recorded":
        stop_here()
engine = ENGINES[plan.engine](os.environ)
over = threading.Event()
output = JobOutput(1 if step == "attached" else None, None)
job = Foreground(engine, plan, output, over.set, known)
over.wait()
output.drained(60)
sys.exit(job.ended.exit_code)
"""


def in_another_process(
    bench: Bench, plan: JobPlan, step: str, *, before: str = "", environ: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A process that submits this, waits for good at the step, and can be killed. before: what it runs first."""
    (bench.folder / "plan").write_bytes(msgspec.msgpack.encode(plan, enc_hook=str))
    argv = [
        sys.executable,
        "-c",
        before + SUBMITTER,
        str(bench.folder / "plan"),
        step,
        str(bench.folder / "ref"),
    ]
    return subprocess.Popen(
        argv,
        env=dict(environ or bench.engine.environ),  # type: ignore[attr-defined]
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


class DurableJobs:
    """Part of the conformance suite."""

    name: str

    def out(self, bench: Bench) -> tuple[Mount, dict[str, str]]:
        mount = bench.mount("/out", writable=True)
        return mount, {"OUT": bench.engine.place(mount)}

    def ready(self, mount: Mount) -> None:
        until((mount.source / "ready").exists, "the job's start")

    def another(self, bench: Bench) -> Engine:
        """As another process has it."""
        return ENGINES[self.name](bench.engine.environ)  # type: ignore[attr-defined]

    def marked(self, job: Job, **env: str) -> Job:
        """With the variable by which dsv finds a process."""
        return replace(job, env={**job.env, **env, "DSV_RUN": job.run})

    def written_down(self, bench: Bench) -> JobRef:
        """The reference, as a process has written it down."""
        until((bench.folder / "ref").exists, "the reference")
        until(lambda: (bench.folder / "ref").stat().st_size > 0, "the reference")
        return JobRef.decode((bench.folder / "ref").read_bytes())

    def ends(self, engine: Engine, ref: JobRef) -> None:
        def over() -> bool:
            status = engine.status(ref)
            return status is not None and not status.lives and not engine.list(ref.run)

        until(over, "the end of the job")

    @pytest.mark.parametrize(
        ("script", "grace", "code"),
        [(READY_THEN_WAIT, PATIENCE, 143), ("trap '' TERM; " + READY_THEN_WAIT, 1.0, 137)],
    )
    def test_a_job_can_be_cancelled_by_its_reference(
        self, bench: Bench, script: str, grace: float, code: int
    ) -> None:
        mount, env = self.out(bench)
        running = bench.start(self.marked(bench.shell(script, mounts=(mount,)), **env))
        self.ready(mount)
        another, ref = self.another(bench), JobRef.decode(running.ref.encode())
        assert (another.status(ref), another.list(ref.run)) == (JobStatus(RunState.RUNNING), (ref,))
        ended = another.cancel(ref, grace)
        # Who started it may have removed it already: then it is cut off for others.
        assert ended is not None and not ended.lives and ended.exit_code in (None, code)
        assert running.wait().exit_code == code
        until(lambda: another.list(ref.run) == (), "the engine to list the job no more")
        again = another.cancel(ref, 1.0)  # of a job that is over there is nothing to end
        assert again is not None and not again.lives

    def test_a_reference_of_another_engine_says_nothing(self, bench: Bench) -> None:
        """Neither that its job runs, nor that it doesn't."""
        running = bench.start(bench.shell("exit 0"))
        ref = running.ref
        running.wait()
        there = replace(ref, where="another", id="0" * 64 if ":" not in ref.id else "1:1")
        assert bench.engine.status(there) is None
        for wrong in ("", "--help", "1", "a:b"):
            assert bench.engine.status(replace(ref, id=wrong)) is None
            assert bench.engine.cancel(replace(ref, id=wrong, run="no-such-run"), 0) is None

    def test_a_job_is_known_to_another_process(self, bench: Bench) -> None:
        """Its reference, its state and its output, while the process that submitted it still runs."""
        out, env = self.out(bench)
        script = (
            'echo first; touch "$OUT/ready"; until [ -e "$OUT/go" ]; do sleep 0.05; done; echo last; exit 4'
        )
        job = self.marked(bench.shell(script, mounts=(out,)), **env)
        with in_another_process(bench, bench.plan(job), "attached") as submitter:
            self.ready(out)
            ref = self.written_down(bench)
            assert bench.engine.status(ref) == JobStatus(RunState.RUNNING)
            assert ref in bench.engine.list() and bench.engine.list(ref.run) == (ref,)
            with bench.engine.logs(ref, follow=True) or nullcontext() as log:
                (out.source / "go").touch()
                assert log is None or b"".join(log) == b"first\nlast\n"
            assert submitter.communicate(timeout=PATIENCE)[0] == b"first\nlast\n"
            assert submitter.returncode == 4
        self.ends(bench.engine, ref)

    @pytest.mark.parametrize("step", ["created", "recorded"])
    def test_a_submitter_that_is_killed_before_the_job_begins(self, bench: Bench, step: str) -> None:
        """Its job never begins, nothing of it stays, and what is written down names it."""
        out, env = self.out(bench)
        job = self.marked(bench.shell(READY_THEN_WAIT, mounts=(out,)), **env)
        with in_another_process(bench, bench.plan(job), step) as submitter:
            assert submitter.stdout is not None and submitter.stdout.readline() == b"here\n"
            if step == "recorded":
                assert bench.engine.status(self.written_down(bench)) == JobStatus(RunState.SUBMITTED)
            submitter.kill()
            submitter.wait()
        if step == "recorded":
            self.ends(bench.engine, self.written_down(bench))
        else:
            assert not (bench.folder / "ref").exists()
        until(lambda: bench.engine.list(job.run) == (), "the removal of the job")
        assert not (out.source / "ready").exists()

    def test_a_job_ends_if_the_process_that_supervises_it_is_killed(self, bench: Bench) -> None:
        """An engine that keeps its output keeps it for the dsv that completes the record."""
        out, env = self.out(bench)
        job = self.marked(bench.shell(f"echo first; {READY_THEN_WAIT}", mounts=(out,)), **env)
        with in_another_process(bench, bench.plan(job), "attached") as submitter:
            self.ready(out)
            ref = self.written_down(bench)
            assert bench.engine.status(ref) == JobStatus(RunState.RUNNING)
            submitter.kill()
            submitter.wait()

        def over() -> bool:
            status = bench.engine.status(ref)
            return status is not None and not status.lives

        until(over, "the end of the job")
        with bench.engine.logs(ref, follow=False) or nullcontext() as log:
            assert log is None or b"".join(log) == b"first\n"
        bench.engine.forget(ref)
        self.ends(bench.engine, ref)

    def test_a_job_that_lost_its_reaper_too_is_ended_by_its_reference(self, bench: Bench) -> None:
        out, env = self.out(bench)
        job = self.marked(bench.shell(f"echo first; {READY_THEN_WAIT}", mounts=(out,)), **env)
        with in_another_process(bench, bench.plan(job), "attached") as submitter:
            self.ready(out)
            ref = self.written_down(bench)
            for pid in _reapers_of(submitter.pid):
                os.kill(pid, signal.SIGKILL)
            submitter.kill()
            submitter.wait()
        assert bench.engine.status(ref) == JobStatus(RunState.RUNNING)
        with bench.engine.logs(ref, follow=False) or nullcontext() as log:
            assert log is None or b"".join(log) == b"first\n"
        ended = bench.engine.cancel(ref, PATIENCE)
        assert ended is not None and ended.state is RunState.ENDED and ended.exit_code in (None, 143)
        bench.engine.forget(ref)
        until(lambda: bench.engine.list(job.run) == (), "the engine to list the job no more")


def _reapers_of(pid: int) -> list[int]:
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread, or a process, that has ended just now
            found += [
                int(child)
                for child in children.read_text().split()
                if b"reaper.py\0reap" in Path(f"/proc/{child}/cmdline").read_bytes()
            ]
    return found
