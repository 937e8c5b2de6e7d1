"""Waiting for what the work shows. No test waits for a time, or says how fast a machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 300.0
"""Seconds until a test gives up on what never comes: a machine may be very slow, or stand still for a while."""


def until(condition: Callable[[], object], what: str = "it", patience: float = PATIENCE) -> None:
    """Wait until the condition is true. It looks again if a file or a process goes meanwhile."""
    deadline = time.monotonic() + patience
    while not _holds(condition):
        assert time.monotonic() < deadline, f"{what} never came true"
        time.sleep(0.01)


def _holds(condition: Callable[[], object]) -> bool:
    try:
        return bool(condition())
    except (FileNotFoundError, ProcessLookupError):
        return False
