"""Real Slurm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsv.run.engines.slurm.engine import Slurm
from tests.engines.cluster_conformance import ClusterConformance
from tests.engines.harness import Bench
from tests.labs.slurm import SlurmNodes


@pytest.fixture
def bench(tmp_path: Path, slurm_nodes: SlurmNodes) -> Bench:
    return Bench.of(Slurm({**os.environ, **slurm_nodes.env}), tmp_path, None)


class TestSlurm(ClusterConformance):
    name = "slurm"

    def test_memory_and_processor_time_are_seen(self, bench: Bench) -> None:
        """They aren't, without Slurm's accounting."""
        assert bench.run(bench.shell("true")).outcome.usage is None
