"""The samples of a commit, read from a cache, from one window of memory on this host, or from the store."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from dsv.training.order import Shape
from dsv.training.window import Window, can_share
from dsv.values.cached import cached

if TYPE_CHECKING:
    from dsv.format.locator import Location
    from dsv.format.tree import Entry
    from dsv.training.index import Index

WINDOW = 4 << 30
_LOOK_EVERY = 10.0
"""Seconds after which the cache is looked at again, which somebody may be filling."""


class Sample(NamedTuple):
    """A file of a commit."""

    path: str
    data: bytes


class Source(Protocol):
    """A commit, as far as samples need it. Can be pickled."""

    @property
    def id(self) -> str: ...
    def read(self, rows: Sequence[tuple[Entry, Location | None]]) -> list[bytes]:
        """Return the contents of these files, checked, with few requests."""

    def cached(self) -> Path | None:
        """Return the folder in the cache that has the whole commit, if it is there."""

    def fill(self) -> None:
        """Make the commit appear in the cache."""


class Samples:
    """Files of a commit by numbers, in the order of their paths. `dsv.Commit.samples` makes it.

    It opens nothing before something is read. It can be pickled, and processes that were forked read for themselves.
    It is a data source as PyTorch and Grain take one.
    """

    def __init__(self, source: Source, index: Index, window: int, use_cache: bool | Literal["fill"]) -> None:
        self._source, self._index = source, index
        self.window = window
        """Bytes of memory that all processes on a host use together for what is read ahead."""
        self._use_cache = use_cache
        """`fill`: it is filled while samples are read from the store."""

    def __repr__(self) -> str:
        return f"<dsv.Samples: {len(self)} files of {self.commit[:12]}>"

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, number: int) -> Sample:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Sample]:
        """Read several at once: what lies beside each other comes with one request."""
        chosen = [self._checked(number) for number in numbers]
        return [Sample(self.path(at), data) for at, data in zip(chosen, self.read(chosen), strict=True)]

    @property
    def commit(self) -> str:
        """The id of the commit."""
        return self._source.id

    @property
    def name(self) -> str:
        """A hash of the commit, the patterns, and of what was erased."""
        return self._index.name

    @property
    def erased(self) -> int:
        """How many files are left out because they were erased."""
        return self._index.erased

    @property
    def sizes(self) -> Any:
        """A numpy array of the bytes of each sample."""
        return self._index.sizes

    @cached
    def size(self) -> int:
        """Bytes of all samples."""
        return int(self.sizes.sum())

    @cached
    def shape(self) -> Shape:
        """How they are cut into blocks."""
        return Shape.of(self.sizes)

    def path(self, number: int) -> str:
        return self._index.path(self._checked(number)).decode("utf-8", "surrogateescape")

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        """Return the bytes of these samples: from the cache if the commit is there, else from the store."""
        found = self._plain(numbers)
        return self.read_stored(numbers) if found is None else found

    def read_ahead(self, numbers: Sequence[int], ahead: Sequence[int] = ()) -> list[bytes]:
        """The same through the window of this host. ahead: numbers of blocks that are needed soon."""
        found = self._plain(numbers)
        if found is None:
            window = self._window
            found = self.read_stored(numbers) if window is None else window.read(numbers, ahead)
        return found

    def ready(self) -> Window | None:
        """Return the window of this host, started beforehand and open until it is closed, if samples are going to be
        read from the store."""
        window = self._window if self._folder() is None else None
        if window is not None:
            with suppress(OSError):  # as long as it lasts, who reads fails with a message
                window.open()
        return window

    def read_stored(self, numbers: Sequence[int]) -> list[bytes]:
        """Read from the store."""
        return self._source.read([self._index.entry(int(number)) for number in numbers])

    @property
    def fills(self) -> bool:
        """Whether the cache is to be filled."""
        return self._use_cache == "fill"

    def fill(self) -> None:
        """Make the whole commit appear in the cache, with a hold of a day."""
        self._source.fill()

    def with_window(self, window: int) -> Samples:
        """Return the same samples with a window of so many bytes."""
        return Samples(self._source, self._index, window, self._use_cache)

    def _plain(self, numbers: Sequence[int]) -> list[bytes] | None:
        """Return what the cache has; None if anything is missing there."""
        folder = self._folder()
        if folder is None:
            return None
        found: list[bytes] = []
        for number in numbers:
            path = folder + b"/" + self._index.path(int(number))
            try:
                with open(path, "rb") as file:  # noqa: PTH123 (bytes)
                    data = file.read()
            except OSError:
                data = None
            if data is None or len(data) != self.sizes[number]:  # it was evicted
                self.__dict__["_cached"] = (time.monotonic(), None)
                return None
            found.append(data)
        return found

    def _folder(self) -> bytes | None:
        """Return the folder in the cache. It is looked for now and then, as it may be filled meanwhile."""
        if not self._use_cache:
            return None
        at: float | None
        folder: bytes | None
        at, folder = self.__dict__.get("_cached", (None, None))
        if folder is None and (at is None or time.monotonic() - at > _LOOK_EVERY):
            path = self._source.cached()
            folder = None if path is None else os.fsencode(path)
            self.__dict__["_cached"] = time.monotonic(), folder
        return folder

    @property
    def _window(self) -> Window | None:
        """Return this process's end of the window; None on systems that have none."""
        known: Window | None = self.__dict__.get("_own_window")
        if known is None and can_share():
            known = self.__dict__["_own_window"] = Window(self)
        return known

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_cached", "_own_window")
        }

    def _checked(self, number: int) -> int:
        number = number.__index__()
        if not -len(self) <= number < len(self):
            raise IndexError(f"there are {len(self)} samples, and {number} is not one of them")
        return number % len(self)
