"""The memory and processor time of a container, read from its control group while it runs (v2, v1, or both).

The kernel's own peak counts the page cache, which fills all of the machine's memory if a job reads a large dataset.
So the anonymous and shared memory is sampled. A peak between two samples is missed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from dsv.periodic import Periodic

INTERVAL: Final = 0.5
_ROOT: Final = Path("/sys/fs/cgroup")


class CgroupSampler:
    """Samples twice a second. find_pid: finds the container's first process; None until it has started."""

    def __init__(
        self, find_pid: Callable[[], int | None], root: Path = _ROOT, proc: Path = Path("/proc")
    ) -> None:
        self.peak_memory_bytes: int | None = None
        self.cpu_seconds: float | None = None
        self._find_pid = find_pid
        self._root = root
        self._proc = proc
        self._folders: tuple[list[Path], list[Path]] | None = None
        self._wait = 0.025
        self._sampling = Periodic("dsv-cgroup", self._run)

    def start(self) -> None:
        self._sampling.start()

    def stop(self) -> None:
        """The figures stay readable."""
        self._sampling.stop()

    def _run(self) -> float:
        if self._folders is None:
            pid = self._find_pid()
            if pid is None:
                self._wait = min(2 * self._wait, 2.0)
                return self._wait
            self._folders = self._find_folders(pid)
        self._sample(*self._folders)
        return INTERVAL

    def _find_folders(self, pid: int) -> tuple[list[Path], list[Path]]:
        """The folders that may hold the memory and the processor figures, the best first."""
        memory: list[Path] = []
        cpu: list[Path] = []
        own = self._lines("self")
        for line in self._lines(str(pid)):
            if line in own:  # a rootless engine that can't create groups leaves the container in the caller's
                continue
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            below = path.strip("/")
            if not below:  # the root group has the figures of the whole machine
                continue
            if number == "0":
                memory.append(self._root / below)
                cpu.append(self._root / below)
            if "memory" in controllers.split(","):
                memory.insert(0, self._root / "memory" / below)
            if "cpuacct" in controllers.split(","):
                cpu.insert(0, self._root / controllers / below)
                cpu.insert(0, self._root / "cpuacct" / below)
        return memory, cpu

    def _lines(self, process: str) -> list[str]:
        try:
            return (self._proc / process / "cgroup").read_text().splitlines()
        except OSError:
            return []

    def _sample(self, memory: list[Path], cpu: list[Path]) -> None:
        for folder in memory:
            figures = _figures(folder / "memory.stat")
            names = ("total_rss", "total_shmem") if "total_rss" in figures else ("anon", "shmem")
            if names[0] in figures:
                used = sum(figures.get(name, 0) for name in names)
                self.peak_memory_bytes = max(used, self.peak_memory_bytes or 0)
                break
        for folder in cpu:
            micros = _figures(folder / "cpu.stat").get("usage_usec")
            seconds = _nanoseconds(folder / "cpuacct.usage") if micros is None else micros / 1e6
            if seconds is not None:
                self.cpu_seconds = max(seconds, self.cpu_seconds or 0.0)
                break


def _figures(path: Path) -> dict[str, int]:
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    except (OSError, ValueError):
        return {}


def _nanoseconds(path: Path) -> float | None:
    try:
        return int(path.read_text()) / 1e9
    except (OSError, ValueError):
        return None
