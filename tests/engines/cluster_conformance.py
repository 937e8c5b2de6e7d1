"""The suite of engines whose jobs a cluster holds: they don't end with the process that submitted them."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from dsv.run.record import RunState
from tests.engines.conformance import EngineConformance
from tests.engines.durable import READY_THEN_WAIT, in_another_process
from tests.engines.harness import Bench
from tests.waiting import until


class ClusterConformance(EngineConformance):
    @pytest.mark.parametrize("step", ["created", "recorded"])
    def test_a_submitter_that_is_killed_before_the_job_begins(self, bench: Bench, step: str) -> None:
        """Its job never begins by itself, and is found by its run."""
        out, env = self.out(bench)
        job = self.marked(bench.shell(READY_THEN_WAIT, mounts=(out,)), **env)
        with in_another_process(bench, bench.plan(job), step) as submitter:
            assert submitter.stdout is not None and submitter.stdout.readline() == b"here\n"
            submitter.kill()
            submitter.wait()
        (ref,) = bench.engine.list(job.run)
        assert (bench.folder / "ref").exists() == (step == "recorded")
        assert step == "created" or self.written_down(bench) == ref
        status = bench.engine.status(ref)
        assert status is not None and status.state is RunState.SUBMITTED
        status = bench.engine.cancel(ref, 0)
        assert status is not None and status.state is RunState.NOT_LAUNCHED
        until(lambda: bench.engine.list(job.run) == (), "the engine to list the job no more")
        assert not (out.source / "ready").exists()

    def test_a_job_ends_if_the_process_that_supervises_it_is_killed(self, bench: Bench) -> None:
        """It doesn't: another process looks on, and has its output from the beginning."""
        out, env = self.out(bench)
        script = (
            'echo first; touch "$OUT/ready"; until [ -e "$OUT/go" ]; do sleep 0.05; done; echo last; exit 4'
        )
        job = self.marked(bench.shell(script, mounts=(out,)), **env)
        with in_another_process(bench, bench.plan(job), "attached") as submitter:
            self.ready(out)
            submitter.kill()
            submitter.wait()
        ref = self.written_down(bench)
        (out.source / "go").touch()
        with self.another(bench).logs(ref, follow=True) or nullcontext() as log:
            assert log is not None and b"".join(log) == b"first\nlast\n"

        def over() -> bool:
            status = bench.engine.status(ref)
            return status is not None and (status.state, status.exit_code) == (RunState.ENDED, 4)

        until(over, "the end of the job")
