"""`python -m dsv.cache.filling.worker`: a helper process of a fill, started by `helpers`.

One line of JSON on stdin says what to do; the end of stdin, which is also the death of its parent, ends it. It
does free parts while there are any, reports on stdout, and leaves the rest (waiting, takeover, publishing) to others.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsv.cache.fill_state.claim_table import ClaimTable, do_free_parts
from dsv.cache.fill_state.fill_directory import FillDirectory, join
from dsv.cache.fill_state.workers import Heartbeat
from dsv.cache.filling.part_worker import FillEnded, PartWorker
from dsv.cache.filling.processes import BEGAN
from dsv.cache.filling.source import Source
from dsv.cache.layout import Place
from dsv.cache.root import CacheRoot
from dsv.errors import DsvError
from dsv.fs import system


def main() -> int:
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the parent hears it too, and ends this process if need be
    order = json.loads(_read_line())
    sys.path[:] = order["path"]
    stop = threading.Event()
    threading.Thread(target=_watch_input, args=(stop,), daemon=True).start()
    root = CacheRoot(Path(order["root"]))
    directory = join(root, Place(order["dataset"], order["name"]))
    if directory is None or directory.fill != order["fill"]:
        return 0
    source = _factory(order["factory"])(**order["arguments"])
    try:
        heartbeat = _work(directory, source, order["begin"], stop)
    except (FillEnded, OSError):
        return 1  # the parent finds the same, and takes over what was begun
    except DsvError as error:
        return error.exit_code
    sys.stdout.write(json.dumps({"fetched": heartbeat.tally.fetched, "linked": heartbeat.tally.linked}))
    return 0


def _work(directory: FillDirectory, source: Source, begin: int, stop: threading.Event) -> Heartbeat:
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
            do_free_parts(table, worker.run, remote=kind.remote, stop=stop.is_set)
        finally:
            worker.close()
    finally:
        heartbeat.stop()
    return heartbeat


def _watch_input(stop: threading.Event) -> None:
    """Ends this process when its starter has ended, at most a part's work later, or at once if it hangs."""
    while os.read(0, 1 << 16):
        pass
    stop.set()
    threading.Event().wait(5.0)
    os._exit(1)


def _read_line() -> bytes:
    """Past Python's buffer: a thread that waits in it would be in the way at the end."""
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(0, 1 << 16)
        if not data:
            break
        line += data
    return bytes(line)


def _factory(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


if __name__ == "__main__":
    sys.exit(main())
