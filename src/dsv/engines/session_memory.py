"""The memory of a plain process and of all processes that it started, sampled from /proc.

`wait4` gives a peak without sampling, but only that of the largest single process, and at least dsv's own: the kernel
counts the memory that the child had between fork and exec.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from dsv.periodic import Periodic

INTERVAL: Final = 0.5


class SessionMemory:
    """Samples twice a second, more often at first. session: the id of the session to watch.

    exceeded: called by each sample that is above the limit.
    """

    def __init__(
        self,
        session: int,
        proc: Path = Path("/proc"),
        *,
        limit: int | None = None,
        exceeded: Callable[[], None] = lambda: None,
    ) -> None:
        self.was_exceeded = False
        self._limit = limit
        self._exceeded = exceeded
        self._session = str(session)
        self._proc = proc
        self._peak: int | None = None
        self._wait = 0.02
        self._sampling = Periodic("dsv-memory", self._run, first=self._wait)

    def start(self) -> None:
        self._sampling.start()

    def stop(self) -> int | None:
        """The peak in bytes: the private memory of all processes and the largest shared memory of one."""
        self._sampling.stop()
        return self._peak

    def _run(self) -> float:
        used = self._sample()
        if used:
            self._peak = max(used, self._peak or 0)
        if self._limit is not None and used > self._limit:
            self.was_exceeded = True
            self._exceeded()
        self._wait = min(2 * self._wait, INTERVAL)
        return self._wait

    def _sample(self) -> int:
        private, shared = 0, 0
        for folder in self._processes():
            figures = _status(folder)
            private += figures.get("RssAnon", 0)
            shared = max(shared, figures.get("RssShmem", 0))
        return private + shared

    def _processes(self) -> list[Path]:
        try:
            return [
                folder for folder in self._proc.iterdir() if folder.name.isdecimal() and self._ours(folder)
            ]
        except OSError:
            return []

    def _ours(self, folder: Path) -> bool:
        try:
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            return False
        return len(fields) > 3 and fields[3] == self._session


def _status(folder: Path) -> dict[str, int]:
    """The lines of a process's status that are given in kB, in bytes."""
    try:
        lines = (folder / "status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines if line.endswith(" kB"))
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in pairs}
