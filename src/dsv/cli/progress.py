"""Progress on stderr: a bar on a terminal, a line every ten seconds without one, JSON lines when asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from dsv.cli.output import printable, to_json
from dsv.cli.terminal import wrapped
from dsv.values.units import format_bytes, format_duration

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


LINE_SECONDS = 10.0
JSON_SECONDS = 1.0
BAR_SECONDS = 0.2
BAR_WIDTH = 20
"""Columns, or an eighth of a narrow terminal."""
BAR_AFTER = 0.5
"""Seconds. A command that ends earlier shows no bar, and does not import the library that draws it."""


class Meter:
    """Implements `dsv.values.progress.Progress`: counts, and calls `show` at most every `every` seconds. This
    class shows nothing. Any thread may advance it, for each file too: it takes a lock and three additions."""

    every = float("inf")

    def __init__(
        self, what: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.what = what
        self._stream = stream
        self.total_files: int | None = None
        self.total_bytes: int | None = None
        self.files = 0
        self.bytes = 0
        self.transferred = 0
        self._clock = clock
        self._began = self._phase = self._shown = clock()
        self._lock = threading.Lock()

    def start(self, total_files: int | None = None, total_bytes: int | None = None) -> None:
        """Begin a count, again for each phase; totals are None if they aren't known."""
        with self._lock:
            self.total_files, self.total_bytes = total_files, total_bytes
            self.files = self.bytes = self.transferred = 0
            self._phase = self._clock()
            self._tick()

    def advance(self, files: int = 0, bytes: int = 0, transferred: int = 0) -> None:  # noqa: A002 (the protocol's)
        with self._lock:
            self.files += files
            self.bytes += bytes
            self.transferred += transferred
            self._tick()

    def note(self, text: str) -> None:
        """Show a line for people."""
        with self._lock:
            self.say(text)

    def finish(self) -> None:
        with self._lock:
            self.close()

    def put(self, text: str) -> None:
        if self._stream is not None:
            with suppress(BrokenPipeError):  # a closed stderr is no reason to stop
                self._stream.write(text)
                self._stream.flush()

    def _tick(self) -> None:
        now = self._clock()
        if now - self._shown >= self.every:
            self._shown = now
            self.show()

    # These are called with the lock held; `close` maybe more than once.

    def show(self) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def rate(self) -> float:
        """Return bytes a second since this phase began."""
        return self.bytes / max(self._clock() - self._phase, 1e-3)

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the bytes if their total is known, else from the files; None if neither is known."""
        elapsed = self._clock() - self._phase
        if self.total_bytes and self.bytes:
            return max(0.0, elapsed * (self.total_bytes / self.bytes - 1))
        if self.total_files and self.files and self.total_bytes is None:
            return max(0.0, elapsed * (self.total_files / self.files - 1))
        return None

    def summary(self, room: int | None = None) -> str:
        """Return `1,200 of 50,000 files, 9.80 MB of 400 MB, 9.30 MB/s, 42 s left`, or less of it in little room."""
        total_files = None if self.total_files is None else f"{self.total_files:,}"
        total_bytes = None if self.total_bytes is None else format_bytes(self.total_bytes)
        files = _of(f"{self.files:,}", total_files) + " files"
        parts = [files]
        if self.bytes or self.total_bytes:
            parts += [_of(format_bytes(self.bytes), total_bytes), f"{format_bytes(int(self.rate))}/s"]
        left = self.seconds_left
        if left is not None:
            seconds = round(left)
            parts.append(f"{seconds} s left" if seconds < 60 else f"{format_duration(seconds)} left")
        while room is not None and len(parts) > 1 and len(", ".join(parts)) > room:
            # Drop the files first, then the rate, and last the time left.
            parts.pop(0 if parts[0] == files else 1)
        return ", ".join(parts)


class Lines(Meter):
    """Prints a line every ten seconds, for logs and CI."""

    every = LINE_SECONDS

    def show(self) -> None:
        self.put(f"{self.what}: {self.summary()}\n")

    def say(self, text: str) -> None:
        self.put(f"{printable(text)}\n")


class JsonLines(Meter):
    """Prints an object a second, one at the end, and one per note, for programs."""

    every = JSON_SECONDS
    _closed = False

    def show(self) -> None:
        self._event("progress")

    def say(self, text: str) -> None:
        self.put(to_json({"schema": 1, "event": "note", "command": self.what, "text": text}) + "\n")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._event("end")

    def _event(self, event: str) -> None:
        left = self.seconds_left
        fields = {
            "schema": 1,
            "event": event,
            "command": self.what,
            "files": self.files,
            "total_files": self.total_files,
            "bytes": self.bytes,
            "total_bytes": self.total_bytes,
            "transferred_bytes": self.transferred,
            "bytes_per_second": int(self.rate),
            "seconds_left": None if left is None else round(left, 1),
        }
        self.put(to_json(fields) + "\n")


class Bar(Meter):
    """Redraws one line on a terminal, and removes it at the end."""

    every = BAR_SECONDS

    def __init__(
        self,
        what: str,
        stream: TextIO,
        columns: int,
        colour: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(what, stream, clock)
        self._columns = columns
        self._colour = colour
        self._room = columns
        self._bar: RichProgress | None = None
        self._task: Any = None

    def show(self) -> None:
        if self._bar is None:
            if self._clock() - self._began < BAR_AFTER:
                return
            self._open()
        assert self._bar is not None
        total, done = self.total_bytes, self.bytes
        if total is None:
            total, done = self.total_files, self.files
        self._bar.update(
            self._task, total=total, completed=done, summary=self.summary(self._room), refresh=True
        )

    def say(self, text: str) -> None:
        if self._bar is None:
            self.put(wrapped(printable(text), self._columns) + "\n")
        else:
            self._bar.console.print(printable(text), markup=False, highlight=False)

    def close(self) -> None:
        if self._bar is not None:
            bar, self._bar = self._bar, None
            bar.stop()

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        console = Console(
            file=self._stream, force_terminal=True, no_color=not self._colour, width=self._columns
        )
        columns = [TextColumn("{task.description}", markup=False)]
        bar_width = min(BAR_WIDTH, self._columns // 8)
        self._room = self._columns - len(self.what) - bar_width - 3
        columns.append(BarColumn(bar_width=bar_width))  # type: ignore[arg-type]
        text = TextColumn("{task.fields[summary]}", markup=False, table_column=Column(no_wrap=True, ratio=1))
        # The working thread draws it, five times a second: a refresh thread would compete with it.
        self._bar = Progress(*columns, text, console=console, transient=True, auto_refresh=False, expand=True)
        self._task = self._bar.add_task(self.what, summary="")
        self._bar.start()


def _of(done: str, total: str | None) -> str:
    return done if total is None else f"{done} of {total}"
