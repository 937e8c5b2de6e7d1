"""Killing work at a counted step of its own: before it makes, renames, links, removes or opens a file to write."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

_CHANGES = {"os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def run_killed(work: Callable[[], object], step: int | None, *, inside: Path) -> int:
    """Does the work in a forked process, which SIGKILL ends before its step number `step`; None: never.

    Steps outside of `inside` do not count, relative names count as inside. Gives the number of steps that were begun;
    fails where the work does.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _work(work, step, os.fsencode(inside), writing)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        steps = len(pipe.read())
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, f"the work failed: wait status {status}"
    assert killed or step is None or steps < step
    return steps


def _work(work: Callable[[], object], step: int | None, inside: bytes, writing: int) -> None:
    begun, one_at_a_time = 0, threading.Lock()

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal begun
        if event == "open":
            if not isinstance(arguments[2], int) or not arguments[2] & _WRITING:
                return
        elif event not in _CHANGES:
            return
        name = arguments[0]
        if isinstance(name, (str, bytes)):
            path = os.fsencode(name)
            if path.startswith(b"/") and not path.startswith(inside + b"/"):
                return
        with one_at_a_time:
            begun += 1
            os.write(writing, b".")
            if begun == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    try:
        work()
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)
