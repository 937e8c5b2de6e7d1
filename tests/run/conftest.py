"""What tests of runs share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.labs.slurm import SlurmNodes
from tests.run.shop import Shop
from tests.run.slurm_site import Site, make_site

# A real Kueue takes minutes to build: see tests/labs/kueue.py.
collect_ignore = [] if "DSV_KUEUE" in os.environ else ["test_kubernetes_kueue.py"]
# Debian has neither, and they take minutes to build: see docs/internals/contributing.md.
if not (shutil.which("enroot") or shutil.which("apptainer")):
    collect_ignore.append("test_slurm_images.py")


@pytest.fixture
def site(tmp_path: Path, slurm_nodes: SlurmNodes) -> Site:
    return make_site(tmp_path, slurm_nodes)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)
