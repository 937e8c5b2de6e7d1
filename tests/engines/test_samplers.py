"""Figures of a job while it runs: control groups of every make, sessions, GPUs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from dsv.run.engines.machine import GpuWatch, Machine, UsageSampler, control_group, session_memory
from dsv.run.record import GpuUse
from tests.waiting import until


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
    sampler = UsageSampler(control_group(lambda: next(pids), tmp_path / "fs", tmp_path / "proc"))
    sampler.start()
    until(lambda: sampler.cpu_seconds is not None, "a sample")
    sampler.stop()
    assert (sampler.peak_memory_bytes, sampler.cpu_seconds) == (1024, 1.5)


def test_a_group_that_is_the_whole_machine_is_not_measured(tmp_path: Path) -> None:
    _tree(tmp_path / "fs", {"memory.stat": "anon 1000\n", "cpu.stat": "usage_usec 5\n"})
    _tree(tmp_path / "proc", {"77/cgroup": "0::/\n"})
    sampler = UsageSampler(control_group(lambda: 77, tmp_path / "fs", tmp_path / "proc"))
    sampler.start()
    sampler.stop()
    assert (sampler.peak_memory_bytes, sampler.cpu_seconds) == (None, None)


def test_a_group_that_is_the_callers_own_is_not_measured(tmp_path: Path) -> None:
    _tree(tmp_path / "fs", {"user.slice/memory.stat": "anon 1000\n", "user.slice/cpu.stat": "usage_usec 5\n"})
    _tree(tmp_path / "proc", {"77/cgroup": "0::/user.slice\n", "self/cgroup": "0::/user.slice\n"})
    sampler = UsageSampler(control_group(lambda: 77, tmp_path / "fs", tmp_path / "proc"))
    sampler.start()
    sampler.stop()
    assert (sampler.peak_memory_bytes, sampler.cpu_seconds) == (None, None)


def test_the_memory_of_a_session_is_of_all_its_processes() -> None:
    script = "import os, sys; os.fork(); x = os.urandom(1) * 40_000_000; os.write(1, b'.'); sys.stdin.read()"
    child = subprocess.Popen(
        ["python3", "-c", script], start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    memory = UsageSampler(lambda: (session_memory(child.pid), None))
    memory.start()
    assert child.stdout.read(1) + child.stdout.read(1) == b".."
    until(lambda: (memory.peak_memory_bytes or 0) > 80_000_000, "a sample of both")
    memory.stop()
    peak = memory.peak_memory_bytes
    child.communicate()
    assert peak is not None and 80_000_000 < peak < 200_000_000


class FakeDriver:
    """NVIDIA's library for a machine with an A100 and a T4 that doesn't report how busy it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.open = 0
        for name, answer in {
            "nvmlInit": self._init,
            "nvmlShutdown": self._shutdown,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda device: ("GPU-aaaa", "GPU-bbbb")[device],
            "nvmlDeviceGetName": lambda device: ("NVIDIA A100", "NVIDIA T4")[device],
            "nvmlDeviceGetUtilizationRates": self._utilization,
            "nvmlDeviceGetMemoryInfo": lambda device: SimpleNamespace(used=(1000 << 20, 10 << 20)[device]),
        }.items():
            monkeypatch.setattr(pynvml, name, answer)

    def _init(self) -> None:
        self.open += 1

    def _shutdown(self) -> None:
        self.open -= 1

    def _utilization(self, device: int) -> SimpleNamespace:
        if device == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self.asked += 1
        return SimpleNamespace(gpu=50 * (self.asked - 1))


def test_the_gpus_of_a_job_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(monkeypatch)
    watch = GpuWatch(("0",), interval=0.01)
    watch.start()
    until(lambda: driver.asked >= 2, "the second sample")
    (use,) = watch.stop()
    assert (use.name, use.peak_memory_bytes) == ("NVIDIA A100", 1000 << 20)
    assert use.utilization == 50 * (driver.asked - 1) / 2
    assert driver.open == 0


@pytest.mark.parametrize(
    ("names", "seen"),
    [
        (None, ["NVIDIA A100", "NVIDIA T4"]),
        (("GPU-bbbb",), ["NVIDIA T4"]),
        (("GPU-b",), ["NVIDIA T4"]),
        ((), []),
    ],
)
def test_only_the_gpus_of_the_job_are_counted(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...] | None, seen: list[str]
) -> None:
    driver = FakeDriver(monkeypatch)
    watch = GpuWatch(names)
    watch.start()
    until(lambda: driver.asked >= 1 and driver.open == 0, "a sample")
    assert [use.name for use in watch.stop()] == seen
    assert GpuUse("NVIDIA T4", 0.0, 10 << 20) in watch.stop() or "NVIDIA T4" not in seen


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
def test_nothing_is_measured_without_a_driver_or_with_a_lost_gpu(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    FakeDriver(monkeypatch)

    def fail(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, call, fail)
    watch = GpuWatch()
    watch.start()
    assert watch.stop() == ()


@pytest.mark.skipif(
    Path("/proc/driver/nvidia/gpus").exists(), reason="this machine's driver has files of its own"
)
def test_gpus_are_counted_without_the_drivers_files(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Machine.read({}).gpus == 0
    FakeDriver(monkeypatch)
    monkeypatch.setattr("dsv.run.engines.machine._DEVICES", ("/dev/null",))
    assert Machine.read({}).gpus == 2
