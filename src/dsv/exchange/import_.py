"""Reading the files at a URL for an import, many of them ahead."""

from __future__ import annotations

import stat
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Self
from urllib.parse import urlsplit

from dsv.errors import Unsupported
from dsv.exchange.remote import (
    HTTP,
    OBJECT_STORES,
    Place,
    absent,
    changed,
    is_same,
    version_of,
)
from dsv.fs.files import what_it_is
from dsv.values.paths import sort_key

SMALL = 8 << 20
"""Bytes of the largest file that is read at once, and ahead."""
AHEAD_BYTES = 128 << 20
"""Bytes of files that may be read ahead, so that memory is bounded."""
JOBS = 32
_PIECE = 8 << 20
_ONE_REQUEST = (*OBJECT_STORES, *HTTP, "hf")
"""Protocols that read a small file by one request, so that all of it is of one version."""

ReadInto = Callable[[memoryview], int]
"""Fills a buffer and returns the number of bytes, 0 at the end."""
Skipped = tuple[bytes, str]
"""A path that can't be read as a file, and the reason."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file below a URL."""

    path: bytes
    """Relative to the URL."""
    key: str
    size: int | None
    """None if the server does not report it."""
    version: str | None
    """A text that changes with the content; None if the server has none."""
    order: int = 0
    """The position in a tar."""
    info: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


class FolderSource:
    """The files at and below a URL, of which small ones are read ahead by several threads.

    A context manager, which ends the threads.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.fs, self.root = place.fs, place.root
        self._jobs = 1 if place.takes_turns else JOBS
        self._upcoming: deque[RemoteFile] = deque()
        self._begun: deque[tuple[RemoteFile, Future[bytes]]] = deque()
        self._bytes = 0
        self._pool = ThreadPoolExecutor(self._jobs, "dsv-import")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def files(self) -> tuple[list[RemoteFile], list[Skipped]]:
        """Return every file, in tree order, and what can't be read as one. Raises `NotFound` if there is neither."""
        if is_http := any(name in HTTP for name in self.place.protocols):
            found = {self.root: self._page()}
        else:
            with self.place.at_work("read"):
                found = self.fs.find(self.root, detail=True)
        files: list[RemoteFile] = []
        skipped: list[Skipped] = []
        for key, info in found.items():
            if not is_http and (key.endswith("/") or info.get("type") == "directory"):
                continue  # consoles put such objects there to show a folder
            inside = key.strip("/").removeprefix(self.root.strip("/")).strip("/")
            name = inside or key.rstrip("/").rpartition("/")[2].partition("?")[0]
            path = name.encode("utf-8", "surrogateescape")
            reason = self._unreadable(key, info)
            if reason is not None:
                skipped.append((path, reason))
                continue
            if info.get("islink") or info.get("type") == "link":
                info = self.place.info(key)
            size = info.get("size")
            files.append(
                RemoteFile(path, key, None if size is None else int(size), version_of(info), info=info)
            )
        if not files and not skipped:
            raise absent(self.place.shown, "no file")
        return sorted(files, key=lambda file: sort_key(file.path)), skipped

    def read_ahead(self, files: Sequence[RemoteFile]) -> None:
        """Announce the files that will be asked for, in this order."""
        self._upcoming = deque(file for file in files if file.size is not None and file.size <= SMALL)

    def check(self) -> None:
        """Each file is checked when it was read."""

    def reader(self, file: RemoteFile) -> ReadInto:
        """Return a function that reads the file, from its first call on. Raises `Conflict` if it was changed since
        listed.
        """
        source: ReadInto | None = None
        size = 0

        def read(buffer: memoryview) -> int:
            nonlocal source, size
            if source is None:
                source = self._open(file)
            count = source(buffer)
            size += count
            if (not count and file.size is not None and size != file.size) or size > (file.size or size):
                raise changed(file.key)
            return count

        return read

    def open(self, file: RemoteFile) -> ReadInto:
        """Read a file from its start, piece by piece."""
        with self.place.at_work("read"):
            opened = self.fs.open(file.key, "rb", block_size=_PIECE)

        def read(buffer: memoryview) -> int:
            with self.place.at_work("read"):
                data: bytes = opened.read(min(len(buffer), _PIECE))
                if not data:
                    opened.close()
            if not data and file.size is not None:
                self._check(file)
            buffer[: len(data)] = data
            return len(data)

        return read

    def read(self, file: RemoteFile) -> bytes:
        """Return all of a small file."""
        with self.place.at_work("read"):
            data: bytes = self.fs.cat_file(file.key)
        if self.place.protocol not in _ONE_REQUEST:
            self._check(file)
        return data

    def _check(self, file: RemoteFile) -> None:
        if not is_same(file.info, self.place.info(file.key)):
            raise changed(file.key)

    def _page(self) -> dict[str, Any]:
        """Return the one file of a web server. Raises `Unsupported` for a folder, whose page is only a listing."""
        with self.place.at_work("read"):
            info: dict[str, Any] = self.fs.info(self.root)
        url = self.place.shown.rpartition("::")[2]
        if urlsplit(url).path.endswith("/") or urlsplit(str(info.get("url", ""))).path.endswith("/"):
            raise Unsupported(
                f"{self.place.shown} is a folder of a web server, and HTTP does not list files",
                subject=self.place.shown,
                hint=f"import one file or a tar of it, or wget -r -np {url} and dsv put",
            )
        return info

    def _unreadable(self, key: str, info: dict[str, Any]) -> str | None:
        """Return why a listed path can't be read as a file: opening a named pipe would wait for its writer."""
        if self.place.by_ssh and info.get("type") == "file" and not info.get("size"):
            with self.place.at_work("read"):  # fsspec calls anything a file that is not a folder or a link
                mode = self.fs.ftp.lstat(key).st_mode
            return None if mode is None or stat.S_ISREG(mode) else what_it_is(mode)
        if info.get("type") not in ("other", "link"):
            return None
        with self.place.at_work("read"):
            if self.fs.isfile(key):
                return None  # a link to a file is read as the file
            if info.get("islink") or info["type"] == "link":
                return "it is a symlink to " + (
                    "a folder" if self.fs.isdir(key) else "something that is not a file"
                )
        return what_it_is(int(info.get("mode", 0)))

    def _open(self, file: RemoteFile) -> ReadInto:
        while self._upcoming and len(self._begun) < 4 * self._jobs and self._bytes < AHEAD_BYTES:
            upcoming = self._upcoming.popleft()
            self._begun.append((upcoming, self._pool.submit(self.read, upcoming)))
            self._bytes += upcoming.size or 0
        while self._begun and sort_key(self._begun[0][0].path) <= sort_key(file.path):
            begun, future = self._begun.popleft()
            self._bytes -= begun.size or 0
            if begun is file:
                return BytesIO(future.result()).readinto
        return self.open(file)
