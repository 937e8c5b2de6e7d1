"""A log that one thread collects, as a generator for whoever reads it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from threading import Event, Thread
from typing import Final

_PIECE: Final = 1 << 16


def through_a_pipe(collect: Callable[[int, Event], None]) -> Generator[bytes, None, None]:
    """What `collect` writes to the descriptor that it is given, which it closes at its end.

    It runs in a thread of its own, and is told by the event that nobody reads any more.
    """
    reader, writer = os.pipe()
    stop = Event()
    Thread(target=collect, args=(writer, stop), name="dsv-log", daemon=True).start()
    try:
        while data := os.read(reader, _PIECE):
            yield data
    finally:
        stop.set()
        os.close(reader)
