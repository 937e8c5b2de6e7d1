"""Figures of a job while it runs: control groups of every make, sessions, GPUs."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from dsv.engines.cgroup import CgroupSampler
from dsv.engines.gpu import GpuWatch
from dsv.engines.machine import Machine
from dsv.engines.session_memory import INTERVAL, SessionMemory
from dsv.model.run import GpuUse
from tests.engines.harness import eventually


def _tree(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


@pytest.mark.parametrize(
    ("lines", "files"),
    [
        ("0::/system.slice/docker-1.scope\n", {
            "system.slice/docker-1.scope/memory.stat": "anon 1000\nfile 999999\nshmem 24\n",
            "system.slice/docker-1.scope/cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
        }),
        ("9:name=systemd:/docker/1\n4:memory:/docker/1\n2:cpu,cpuacct:/docker/1\n0::/\n", {
            "memory/docker/1/memory.stat": "rss 1\ntotal_rss 1000\ntotal_shmem 24\ntotal_cache 99999\n",
            "cpu,cpuacct/docker/1/cpuacct.usage": "1500000000\n",
        }),
        ("4:memory:/docker/1\n2:cpuacct:/docker/1\n0::/docker/1\n", {
            "memory/docker/1/memory.stat": "total_rss 1000\ntotal_shmem 24\n",
            "cpuacct/docker/1/cpuacct.usage": "1500000000\n",
        }),
    ],
    ids=["v2", "v1", "both"],
)  # fmt: skip
def test_control_groups(tmp_path: Path, lines: str, files: dict[str, str]) -> None:
    _tree(tmp_path / "fs", files)
    _tree(tmp_path / "proc", {"77/cgroup": lines})
    pids = iter([None, None, 77])
    sampler = CgroupSampler(lambda: next(pids), tmp_path / "fs", tmp_path / "proc")
    sampler.start()
    eventually(lambda: sampler.cpu_seconds is not None, "a sample")
    sampler.stop()
    assert (sampler.peak_memory_bytes, sampler.cpu_seconds) == (1024, 1.5)


def test_a_group_that_is_the_whole_machine_tells_nothing(tmp_path: Path) -> None:
    _tree(tmp_path / "fs", {"memory.stat": "anon 1000\n", "cpu.stat": "usage_usec 5\n"})
    _tree(tmp_path / "proc", {"77/cgroup": "0::/\n"})
    sampler = CgroupSampler(lambda: 77, tmp_path / "fs", tmp_path / "proc")
    sampler.start()
    sampler.stop()
    assert (sampler.peak_memory_bytes, sampler.cpu_seconds) == (None, None)


def test_a_group_that_is_the_callers_own_tells_nothing(tmp_path: Path) -> None:
    _tree(tmp_path / "fs", {"user.slice/memory.stat": "anon 1000\n", "user.slice/cpu.stat": "usage_usec 5\n"})
    _tree(tmp_path / "proc", {"77/cgroup": "0::/user.slice\n", "self/cgroup": "0::/user.slice\n"})
    sampler = CgroupSampler(lambda: 77, tmp_path / "fs", tmp_path / "proc")
    sampler.start()
    sampler.stop()
    assert (sampler.peak_memory_bytes, sampler.cpu_seconds) == (None, None)


def test_the_memory_of_a_session_is_of_all_its_processes() -> None:
    script = "import os, sys; os.fork(); x = os.urandom(1) * 40_000_000; os.write(1, b'.'); sys.stdin.read()"
    child = subprocess.Popen(
        ["python3", "-c", script], start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    memory = SessionMemory(child.pid)
    memory.start()
    assert child.stdout.read(1) + child.stdout.read(1) == b".."
    time.sleep(2 * INTERVAL)
    peak = memory.stop()
    child.communicate()
    assert peak is not None and 80_000_000 < peak < 200_000_000


def _nvidia_smi(folder: Path, script: str) -> dict[str, str]:
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_gpus_are_watched(tmp_path: Path) -> None:
    script = (
        f"n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n + 50)) > {tmp_path}/n\n"
        'echo "GPU-aaaa, 0, NVIDIA A100, $n, 1000"; echo "GPU-bbbb, 1, NVIDIA T4, [N/A], 10"'
    )
    environ = _nvidia_smi(tmp_path / "bin", script)
    watch = GpuWatch(environ, ("0",), interval=1.0)
    watch.start()
    eventually(
        lambda: (tmp_path / "n").exists() and (tmp_path / "n").read_text() == "100\n", "the second sample"
    )
    assert watch.stop() == (GpuUse("NVIDIA A100", 25.0, 1000 << 20),)
    everything = GpuWatch(environ, None)
    everything.start()
    assert [use.name for use in everything.stop()] == ["NVIDIA A100", "NVIDIA T4"]
    by_uuid = GpuWatch(environ, ("GPU-bbbb",))
    by_uuid.start()
    assert [use.name for use in by_uuid.stop()] == ["NVIDIA T4"]


def test_no_gpus_and_a_program_that_fails(tmp_path: Path) -> None:
    nothing = GpuWatch({"PATH": str(tmp_path)}, None)
    nothing.start()
    assert nothing.stop() == ()
    environ = _nvidia_smi(tmp_path / "bin", "echo 'No devices were found'; exit 6")
    failing = GpuWatch(environ, None)
    failing.start()
    assert failing.stop() == ()
    if not Path("/proc/driver/nvidia/gpus").exists():
        assert Machine.read(environ).gpus is None
        (tmp_path / "bin" / "nvidia-smi").write_text(
            "#!/bin/sh\necho 'GPU 0: A100 (UUID: x)'; echo 'GPU 1: A100 (UUID: y)'\n"
        )
        assert Machine.read(environ).gpus == 2
