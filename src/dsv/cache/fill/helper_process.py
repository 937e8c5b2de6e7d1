"""Further processes on this host that work on the same fill, by the same claims as any other host.

`python -m dsv.cache.fill.helper_process` is one of them. It reads an order from stdin, and the end of stdin,
also by the death of its parent, ends it. It does free parts while there are any, reports on stdout, and
leaves the rest (waiting, takeover, publishing) to others.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

from dsv.cache.fill.directory import FillDirectory, join
from dsv.cache.fill.part_worker import PartWorker
from dsv.cache.fill.parts import ClaimTable, FillPlan
from dsv.cache.fill.source import StoreSource
from dsv.cache.fill.workers import Heartbeat
from dsv.cache.root import CacheRoot
from dsv.errors import DsvError
from dsv.files import system
from dsv.files.process import processors, read_order, start_program
from dsv.files.system import FileSystem, reuse_freed_memory

# Work that pays for the start of one more process, in entries and in bytes to write.
_ENTRIES_EACH = 12_000
_BYTES_EACH = 512 << 20
_MOST = 8
_END_WITHIN = 10.0  # seconds
PROGRAM = "dsv.cache.fill.helper_process"
BEGAN = "began\n"  # written by a helper before its first claim


def default_jobs(plan: FillPlan, kind: FileSystem) -> int:
    """Return how many processes suit this machine and this fill."""
    cores = processors()
    worth = max(plan.entries // _ENTRIES_EACH, plan.need_bytes // _BYTES_EACH)
    # On a file server a process waits more than it computes, and has threads for that.
    most = max(1, cores // 2) if kind.remote else cores
    return max(1, min(most, worth, len(plan.parts) // 2, _MOST))


OpenSource = Callable[[], StoreSource]
"""Opens the source of a helper process. It can be pickled."""


class Helpers:
    """The helpers of one fill. What they `fetched` (bytes) and `linked` (files) is known after `stop`."""

    def __init__(self) -> None:
        self.fetched = 0
        self.linked = 0
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, directory: FillDirectory, open_source: OpenSource, jobs: int) -> None:
        """Start `jobs - 1` processes."""
        for number in range(1, jobs):
            begin = number * len(directory.plan.parts) // jobs
            order = directory.root.path, directory.place, directory.fill, begin, open_source
            try:
                self._running.append(start_program(PROGRAM, order, stdout=subprocess.PIPE))
            except OSError:  # no process or memory is left: this process fills alone
                return

    def stop(self, *, now: bool) -> bool:
        """End them when they have done what they began, or `now`; others take over the rest.

        Return whether there were any. One that has not begun anything is not waited for.
        """
        running, self._running = self._running, []
        for process in running:
            assert process.stdin is not None and process.stdout is not None
            has_begun = select.select([process.stdout], [], [], 0)[0]  # it has sent `BEGAN`, or has ended
            if now or not has_begun:
                process.kill()
            with contextlib.suppress(OSError):  # the end of its input ends it, as this process's death does
                process.stdin.close()
        for process in running:
            self._collect(process)
        return bool(running)

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


def main() -> int:
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the parent gets it too, and ends this process if need be
    reuse_freed_memory()
    path, place, fill, begin, open_source = read_order()
    stop = threading.Event()
    threading.Thread(target=_watch_input, args=(stop,), daemon=True).start()
    directory = join(CacheRoot(path), place)
    if directory is None or directory.fill != fill:
        return 0
    try:
        heartbeat = _work(directory, open_source(), begin, stop)
    except OSError:
        return 1  # the parent has the same error, and takes over what was begun
    except DsvError as error:
        return error.exit_code
    sys.stdout.write(json.dumps({"fetched": heartbeat.tally.fetched, "linked": heartbeat.tally.linked}))
    return 0


def _work(directory: FillDirectory, source: StoreSource, begin: int, stop: threading.Event) -> Heartbeat:
    kind = system.kind_of(directory.root.path)
    heartbeat = Heartbeat(directory.root, kind)
    try:
        heartbeat.enlist(directory.workers)
        heartbeat.start(directory.workers)
        sys.stdout.write(BEGAN)
        sys.stdout.flush()
        table = ClaimTable(
            directory.parts, len(directory.plan.parts), heartbeat.owner.id, kind, directory.root.time_in
        )
        table.refresh()
        table.begin_at(begin)
        worker = PartWorker(directory, source, table, heartbeat.tally, kind, lambda: None)
        try:
            worker.run_free(stop.is_set)
        finally:
            worker.close()
    finally:
        heartbeat.stop()
    return heartbeat


def _watch_input(stop: threading.Event) -> None:
    """End this process after its parent: when the current part is done, or by force after 5 seconds."""
    while os.read(0, 1 << 16):  # not by Python's buffer, which would be in the way when the process exits
        pass
    stop.set()
    threading.Event().wait(5.0)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
