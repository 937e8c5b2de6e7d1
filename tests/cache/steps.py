"""Something that happens before a given step of the code under test; a step is a file operation that Python audits."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_STEPS = {
    "os.stat",
    "open", "os.mkdir", "os.rename", "os.link", "os.symlink", "os.rmdir", "os.remove", "os.listdir", "os.scandir",
    "os.chmod", "os.utime",
}  # fmt: skip
_CREATING = {"os.mkdir", "os.link", "os.symlink"}


@dataclass
class Steps:
    """Counts the steps below `root`, also relative to open folders; calls `act` before each, with its number from 0.

    What `act` raises, the step raises.
    """

    root: Path
    act: Callable[[int, bool], None]
    """Takes the number and whether the step makes a new name."""
    count: int = 0
    _turn: threading.RLock = field(default_factory=threading.RLock)
    _inside: bool = False

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _STEPS or not self._concerns(arguments[0]):
            return
        with self._turn:
            if self._inside:
                return
            self._inside = True
            number, self.count = self.count, self.count + 1
            try:
                self.act(number, event in _CREATING or (event == "open" and bool(arguments[2] & os.O_CREAT)))
            finally:
                self._inside = False

    def _concerns(self, path: object) -> bool:
        if isinstance(path, int):
            return False
        name = os.fsdecode(path)  # type: ignore[arg-type]
        return not name.startswith("/") or name.startswith(str(self.root))


_listening: list[Steps] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for steps in _listening:
        steps.hear(event, arguments)


_hooked = False


@contextmanager
def watched(root: Path, act: Callable[[int, bool], None]) -> Iterator[Steps]:
    global _hooked
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    steps = Steps(root, act)
    look = os.stat  # of which there is no audit event

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        steps.hear("os.stat", (path,))
        return look(path, *arguments, **options)

    _listening.append(steps)
    os.stat = stat
    try:
        yield steps
    finally:
        os.stat = look
        _listening.remove(steps)
