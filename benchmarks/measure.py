"""Running a command and what it cost."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, where, and with which variables on top of a bare environment."""

    argv: Sequence[str | Path]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall seconds, and processor seconds (user and system).

    memory: the most that all of its processes had together, in bytes; largest: the most that one of them had.
    """

    seconds: float = 0.0
    cpu: float = 0.0
    memory: int = 0
    largest: int = 0
    output: str = ""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.seconds + other.seconds,
            self.cpu + other.cpu,
            max(self.memory, other.memory),
            max(self.largest, other.largest),
            self.output + other.output,
        )


class CommandError(RuntimeError):
    """A command of the benchmark ended with an error; ends with what it said."""


def run(command: Command) -> Cost:
    """Run it to its end; raises `CommandError`. Memory is looked at four times a second, more often at first."""
    argv = [str(word) for word in command.argv]
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **command.env}
    with tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        child = subprocess.Popen(
            argv, cwd=command.cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said
        )
        try:
            with _Watch(child.pid) as watch:
                assert child.stdout is not None
                output = child.stdout.read().decode(errors="replace")
                _, status, usage = os.wait4(child.pid, 0)
                seconds = time.perf_counter() - began
                child.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if child.returncode is None:
                child.kill()
                child.wait()
        if child.returncode != 0:
            said.seek(0)
            end = said.read().decode(errors="replace")[-2000:]
            raise CommandError(f"{' '.join(argv)} ended with {child.returncode}: {end}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, watch.together, watch.largest, output)


def run_all(commands: Sequence[Command]) -> Cost:
    total = Cost()
    for command in commands:
        total += run(command)
    return total


class _Watch:
    """Looks at the memory of a process and all its descendants while they run.

    together: the largest sum in bytes, where n processes that share a page count 1/n of it each; largest: the most
    that was resident for a single one.
    """

    def __init__(self, pid: int) -> None:
        self.together, self.largest = 0, 0
        self._pid, self._over = pid, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        pause = 0.02
        while not self._over.wait(pause):
            pause = min(pause * 1.5, 0.25)
            sizes = [_sizes(pid) for pid in _family(self._pid)]
            self.together = max(self.together, sum(share for _, share in sizes))
            self.largest = max([self.largest, *(resident for resident, _ in sizes)])


def _family(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
        children = [
            int(child)
            for task in tasks
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        ]
    except OSError:
        return []
    return [pid, *(member for child in children for member in _family(child))]


def _sizes(pid: int) -> tuple[int, int]:
    """Bytes that are resident for a process, and its share of them where others have them too."""
    try:
        rows = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    except OSError:
        return 0, 0
    kilobytes = {row[0]: int(row[1]) for row in rows if row[0] in ("Rss:", "Pss:")}
    return kilobytes.get("Rss:", 0) * 1024, kilobytes.get("Pss:", 0) * 1024
