"""The interface by which work reports its progress."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called from the thread that does the work; implementations must be cheap and must not raise."""

    def start(self, total_files: int | None, total_bytes: int | None) -> None:
        """Begin a count, again for each phase. None: not known (yet)."""
        ...

    def advance(self, files: int = 0, bytes: int = 0, transferred: int = 0) -> None:  # noqa: A002
        """Add finished files, their bytes, and the bytes transferred over the network for them."""
        ...

    def note(self, text: str) -> None:
        """Show a person one line: a warning or a phase."""
        ...

    def finish(self) -> None:
        """End the count; may be called without `start`."""
        ...


class NoProgress:
    def start(self, total_files: int | None, total_bytes: int | None) -> None: ...

    def advance(self, files: int = 0, bytes: int = 0, transferred: int = 0) -> None: ...  # noqa: A002

    def note(self, text: str) -> None: ...

    def finish(self) -> None: ...
