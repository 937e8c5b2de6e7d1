"""Reading the files at a URL for an import, many of them ahead; and the revisions of places that have some."""

from __future__ import annotations

import hashlib
import stat
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import urlsplit

from dsv.errors import IntegrityError, Unsupported, UsageError
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
from dsv.values.paths import show, sort_key
from dsv.values.secrets import hide_in_urls

SMALL = 8 << 20
"""Bytes of the largest file that is read at once, and ahead."""
AHEAD_BYTES = 128 << 20
"""Bytes of files that may be read ahead, so that memory is bounded."""
JOBS = 32
_PIECE = 8 << 20
DVC = "dvc+"
HUB = "hf://datasets/"
"""What URLs of places with revisions begin with: git repositories with data in DVC, and datasets of the Hub."""
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
    digest: str = ""
    """The hash of the content that the listing gives: `md5:`, `md5-dos2unix:`, `sha256:` or `git:` and hex digits."""
    executable: bool = False

    @property
    def content_key(self) -> str:
        """What is the same only for files with the same content, and of this place."""
        return self.digest or self.key


class _Digest:
    """Checks what is read of a file against the hash that the listing gives."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        kind, _, self._expected = file.digest.partition(":")
        start = b"blob %d\0" % (file.size or 0) if kind == "git" else b""
        name = {"git": "sha1", "md5-dos2unix": "md5"}.get(kind, kind)
        self._hash = hashlib.new(name, start, usedforsecurity=False)
        # DVC before 3.0 did not count the CR of lines of text, in pieces of 1 MiB
        self._lines = hashlib.md5(usedforsecurity=False) if kind == "md5-dos2unix" else None
        self._piece = bytearray()

    def update(self, data: memoryview) -> None:
        self._hash.update(data)
        if self._lines is not None:
            self._piece += data
            while len(self._piece) >= 1 << 20:
                self._lines.update(self._piece[: 1 << 20].replace(b"\r\n", b"\n"))
                del self._piece[: 1 << 20]

    def check(self) -> None:
        """Raise `IntegrityError` if the file that was read to its end has another hash."""
        found = [self._hash.hexdigest()]
        if self._lines is not None:
            self._lines.update(self._piece.replace(b"\r\n", b"\n"))
            found.append(self._lines.hexdigest())
        if self._expected not in found:
            url = hide_in_urls(self._file.key)
            raise IntegrityError(
                f"{show(self._file.path)} is damaged: {url} does not have the hash {self._file.digest}",
                subject=show(self._file.path),
                hint=f"put the right file back at {url}, and run the same command again",
            )


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
            name = self.place.name(key) or key.rstrip("/").rpartition("/")[2].partition("?")[0]
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
        listed, and `IntegrityError` if it does not have the hash that it was listed with.
        """
        source: ReadInto | None = None
        digest = _Digest(file) if file.digest else None
        size = 0

        def read(buffer: memoryview) -> int:
            nonlocal source, size
            if source is None:
                source = self._open(file)
            count = source(buffer)
            size += count
            if (not count and file.size is not None and size != file.size) or size > (file.size or size):
                raise changed(file.key)
            if digest is not None:
                digest.update(buffer[:count])
                if not count:
                    digest.check()
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


class Revision(NamedTuple):
    """A commit of somebody else's."""

    id: str
    author: str
    time_ms: int
    message: str


class History(Protocol):
    """The revisions of one place. A context manager."""

    url: str
    """Without a revision, and without secrets."""

    def __enter__(self) -> History: ...

    def __exit__(self, *_: object) -> None: ...

    def revisions(self, names: Sequence[str], *, every: bool) -> list[Revision]:
        """Return those that are named, also by ranges `A..B`, or `every` one up to the one in the URL, oldest first.
        Without either, the one in the URL. Raises `NotFound`."""
        ...

    def source(self, revision: Revision, *, reference: bool) -> FolderSource:
        """Open what has the contents of a revision and of those before it."""
        ...

    def files(self, revision: Revision, source: FolderSource) -> tuple[list[RemoteFile], list[Skipped]]:
        """Return the files of a revision, in tree order, and what can't be read."""
        ...


def no_revisions(url: str) -> UsageError:
    """Return the error for a place that has only what lies there now, or for a dataset of the Hub with a DVC remote."""
    hub = url.startswith(HUB)
    also = "" if hub else f", and so has {HUB}OWNER/NAME"
    return UsageError(
        f"{hide_in_urls(url)} has no {'DVC remote' if hub else 'revisions'}",
        subject=hide_in_urls(url),
        hint=f"dvc+GIT-URL, a git repository with data in DVC, has some{also}",
    )
