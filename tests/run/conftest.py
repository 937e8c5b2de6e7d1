"""What tests of runs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.labs.slurm import SlurmNodes
from tests.run.slurm_site import Site, make_site


@pytest.fixture
def site(tmp_path: Path, slurm_nodes: SlurmNodes) -> Site:
    return make_site(tmp_path, slurm_nodes)
