"""A log that one thread collects for whoever reads it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from typing import Final

_PIECE: Final = 1 << 16


@contextmanager
def through_a_pipe(collect: Callable[[int, Event], None]) -> Iterator[Iterator[bytes]]:
    """What `collect` writes to the descriptor that it is given, which it closes at its end.

    It runs in a thread of its own. The event is set when nobody reads any more.
    """
    reader, writer = os.pipe()
    stop = Event()
    try:
        Thread(target=collect, args=(writer, stop), name="dsv-log", daemon=True).start()
        yield iter(partial(os.read, reader, _PIECE), b"")
    finally:
        stop.set()
        os.close(reader)
