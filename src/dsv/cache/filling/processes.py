"""Further processes on this host that work on the same fill, by the same claims as any other host."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys

from dsv.cache.fill_state.fill_directory import FillDirectory
from dsv.cache.fill_state.plan import Plan
from dsv.cache.filling.context import HelperSpec
from dsv.fs.system import FileSystem
from dsv.transfer.processors import processors

# One more process pays for its start with this much work, in entries and in bytes to write.
_ENTRIES_EACH = 16_000
_BYTES_EACH = 512 << 20
_MOST = 8
_END_WITHIN = 10.0  # seconds
BEGAN = "began\n"  # what a helper says before its first claim


def default_jobs(plan: Plan, kind: FileSystem) -> int:
    """How many processes suit this machine and this fill."""
    cores = processors()
    worth = max(plan.entries // _ENTRIES_EACH, plan.need_bytes // _BYTES_EACH)
    # On a file server a process waits more than it computes, and has threads for that.
    most = max(1, cores // 2) if kind.remote else cores
    return max(1, min(most, worth, len(plan.parts) // 2, _MOST))


class Helpers:
    """Started at once; `stop` ends them, done or not. fetched, linked: what they did, known after that."""

    def __init__(self, directory: FillDirectory, spec: HelperSpec | None, jobs: int) -> None:
        self.fetched = 0
        self.linked = 0
        self._running: list[subprocess.Popen[bytes]] = []
        if spec is None:
            return
        for number in range(1, jobs):
            order = {
                "path": sys.path,
                "root": str(directory.root.path),
                "dataset": directory.place.dataset,
                "name": directory.place.name,
                "fill": directory.fill,
                "begin": number * len(directory.plan.parts) // jobs,
                "factory": spec.factory,
                "arguments": dict(spec.arguments),
            }
            self._running.append(_start(order))

    def stop(self, *, now: bool) -> None:
        """Ends them when they have done what they began, or `now`, half way; others take that over.

        One that has not begun anything is not waited for.
        """
        running, self._running = self._running, []
        for process in running:
            if now or not _has_begun(process):
                process.kill()
            with contextlib.suppress(
                OSError
            ):  # the end of its input tells it to end, as this process's death does
                assert process.stdin is not None
                process.stdin.close()
        for process in running:
            self._collect(process)

    def _collect(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        try:
            process.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        data = process.stdout.read()
        process.stdout.close()
        with contextlib.suppress(ValueError):
            report = json.loads(data.removeprefix(BEGAN.encode()))
            self.fetched += int(report["fetched"])
            self.linked += int(report["linked"])


def _has_begun(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has said `BEGAN`, or has ended."""
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0)[0])


def _start(order: dict[str, object]) -> subprocess.Popen[bytes]:
    """The order goes in by a pipe, as it may hold what nobody should see in a list of processes."""
    process = subprocess.Popen(
        # -P: what lies in the folder where the command was given is data, whatever its name. utf8: names are, whatever
        # the locale.
        [sys.executable, "-P", "-X", "utf8", "-m", "dsv.cache.filling.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    return process
