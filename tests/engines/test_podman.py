"""Real podman."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dsv.run.engines.containers.engine import Podman
from dsv.run.resources import ALL_GPUS
from tests.engines.container_conformance import ContainerConformance
from tests.engines.harness import Bench
from tests.labs.docker_engine import ContainerEngine


@pytest.fixture
def bench(tmp_path: Path, podman: ContainerEngine) -> Bench:
    return Bench.of(Podman({**os.environ, **podman.env}), tmp_path, podman.busybox)


class TestPodman(ContainerConformance):
    name = "podman"

    @pytest.mark.parametrize(("wanted", "seen"), [(1, b"0\n"), (2, b"0 1\n"), (ALL_GPUS, b"all\n")])
    def test_gpus_come_by_the_container_device_interface(
        self, bench: Bench, podman: ContainerEngine, wanted: int, seen: bytes
    ) -> None:
        """A specification as the NVIDIA toolkit would write it, with variables in place of devices."""
        assert isinstance(bench.engine, Podman)
        if any(folder.is_dir() and any(folder.iterdir()) for folder in (Path("/etc/cdi"), Path("/run/cdi"))):
            pytest.skip("this machine has real device specifications")
        devices = [
            {"name": name, "containerEdits": {"env": [f"GPU_{name}={name}"]}} for name in ("0", "1", "all")
        ]
        folder = bench.folder / "cdi"
        folder.mkdir()
        (folder / "nvidia.json").write_text(
            json.dumps({"cdiVersion": "0.3.0", "kind": "nvidia.com/gpu", "devices": devices})
        )
        shim = bench.folder / "bin" / "podman"
        shim.parent.mkdir()
        shim.write_text(
            "#!/bin/sh\nmkdir -p /run/cdi\n"
            f'exec unshare --mount sh -c \'mount --bind {folder} /run/cdi && exec {podman.program} "$@"\' sh "$@"\n'
        )
        shim.chmod(0o755)
        bench.engine.environ = {
            **bench.engine.environ,
            "PATH": f"{shim.parent}:{bench.engine.environ['PATH']}",
        }
        done = bench.run(bench.shell("echo $GPU_0 $GPU_1 $GPU_all", gpus=wanted))
        assert (done.code, done.stdout) == (0, seen)

    def test_gpus_without_a_specification_are_125(self, bench: Bench) -> None:
        if Path("/etc/cdi").is_dir():
            pytest.skip("this machine has real device specifications")
        done = bench.run(bench.job("sh", "-c", "exit 0", gpus=1))
        assert (done.code, done.outcome.launched) == (125, False)
