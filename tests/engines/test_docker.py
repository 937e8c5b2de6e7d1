"""A real Docker Engine."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dsv.errors import Unreachable
from dsv.run.engines.containers.engine import Docker
from dsv.run.part import EndCause
from tests.engines.container_conformance import ContainerConformance
from tests.engines.harness import Bench
from tests.labs.docker_engine import ContainerEngine
from tests.waiting import until


@pytest.fixture
def bench(tmp_path: Path, docker_engine: ContainerEngine) -> Bench:
    return Bench.of(Docker({**os.environ, **docker_engine.env}), tmp_path, docker_engine.busybox)


class TestDocker(ContainerConformance):
    name = "docker"

    def test_gpus_without_the_toolkit_are_125(self, bench: Bench) -> None:
        bench.facts = replace(bench.facts, machine=replace(bench.facts.machine, gpus=1))
        done = bench.run(bench.job("sh", "-c", "exit 0", gpus=1))
        assert (done.code, done.outcome.launched) == (125, False)
        assert "could not select device driver" in (done.outcome.reason or "")

    def test_a_failure_after_a_child_beyond_its_memory_names_that(
        self, bench: Bench, docker_engine: ContainerEngine
    ) -> None:
        """The job ends once the engine has reported the child: it forgets a report that comes after the end."""
        told = bench.mount("/told", writable=True)
        script = "tail -c 200000000 /dev/zero; until [ -e /told/it ]; do sleep 0.1; done; exit 3"
        running = bench.start(bench.shell(script, memory_bytes=32 << 20, mounts=(told,)))
        asked = ("events", "--since", "0", "--filter", "event=oom", "--filter", f"container={running.ref.id}")

        def reported() -> bool:
            return bool(docker_engine.call(*asked, "--until", f"{time.time():.3f}"))

        until(reported, "the engine's report of the child")
        (told.source / "it").touch()
        ended = running.wait()
        assert (ended.exit_code, ended.cause) == (3, EndCause.EXITED)
        assert ended.reason == "one of its processes was killed: out of memory"


def test_a_daemon_that_is_not_there(tmp_path: Path, docker_engine: ContainerEngine) -> None:
    with pytest.raises(Unreachable, match="does not answer"):
        Docker({**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none"}).probe()
    assert Docker({**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none"}).inspect("0123456789ab") is None
