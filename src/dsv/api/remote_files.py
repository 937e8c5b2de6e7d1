"""Files at a URL that fsspec can read: listed, told apart by what the server says of them, and read ahead."""

from __future__ import annotations

import re
import stat
import tarfile
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dsv.api.remote_errors import absent
from dsv.api.remote_fs import open_place, version_of
from dsv.errors import Conflict
from dsv.model.entry import sort_key
from dsv.store.options import StoreOptions
from dsv.worktree.scan.problem import Problem, what_it_is

SMALL = 8 << 20
"""Bytes of the largest file that is read at once, and ahead."""
AHEAD_BYTES = 128 << 20
"""Bytes of files that may be under way or waiting, so that memory is bounded."""
JOBS = 32
_PIECE = 8 << 20
_TARS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file below a URL. path: from there. version: what changes with its content, if the server says such a thing."""

    path: bytes
    key: str
    size: int | None
    version: str | None


class Remote:
    """What lies at a URL. jobs: how many files are read at the same time."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        """Raises `Unsupported` if a package is missing, and `UsageError` for a URL that nobody can read."""
        tar = url.partition("?")[0].endswith(_TARS) and not url.startswith("tar://")
        self.place = open_place(url, options, inside="tar://" if tar else "")
        self.url = self.place.shown
        self.fs, self.root = self.place.fs, self.place.root
        self.jobs = 1 if self.place.takes_turns else JOBS

    def files(self) -> tuple[list[RemoteFile], list[Problem]]:
        """Every file, in tree order, and what can't be read as one. Raises `NotFound` if there is neither."""
        with self.place.at_work("read"):
            if self.fs.protocol in ("http", "https") or "http" in self.fs.protocol:
                found = {self.root: self.fs.info(self.root)}
            else:
                found = self.fs.find(self.root, detail=True)
        files: list[RemoteFile] = []
        problems: list[Problem] = []
        members = _members(getattr(self.fs, "tar", None))
        for key, info in found.items():
            if key.endswith("/") or info.get("type") == "directory":
                continue  # what consoles put there to show a folder
            inside = key.strip("/").removeprefix(self.root.strip("/")).strip("/")
            name = inside or key.rstrip("/").rpartition("/")[2].partition("?")[0]
            path = name.encode("utf-8", "surrogateescape")
            reason = self._no_file(key, info) or _no_member(self.fs, members.get(key.strip("/")))
            if reason is not None:
                problems.append(Problem(path, reason))
                continue
            if info.get("type") == "link":
                with self.place.at_work("read"):
                    info = self.fs.info(key)
            size = info.get("size")
            files.append(RemoteFile(path, key, None if size is None else int(size), version_of(info)))
        if not files and not problems:
            raise absent(self.url, "no file")
        return sorted(files, key=lambda file: sort_key(file.path)), problems

    def _no_file(self, key: str, info: dict[str, Any]) -> str | None:
        """Why something that is listed among the files is none: to open a named pipe would wait for its writer."""
        if self.place.by_ssh and info.get("type") == "file" and not info.get("size"):
            with self.place.at_work("read"):  # fsspec calls everything a file that is no folder and no link
                mode = self.fs.ftp.lstat(key).st_mode
            return None if mode is None or stat.S_ISREG(mode) else what_it_is(mode)
        if info.get("type") not in ("other", "link"):
            return None
        with self.place.at_work("read"):
            if self.fs.isfile(key):
                return None  # a link to a file is read as the file
            if info.get("islink") or info["type"] == "link":
                return "it is a symlink to " + (
                    "a folder" if self.fs.isdir(key) else "something that is no file"
                )
        return what_it_is(int(info.get("mode", 0)))

    def open(self, file: RemoteFile) -> Callable[[memoryview], int]:
        """Reads a file from its start, piece by piece."""
        with self.place.at_work("read"):
            opened = self.fs.open(file.key, "rb", block_size=_PIECE)

        def read(buffer: memoryview) -> int:
            with self.place.at_work("read"):
                data: bytes = opened.read(min(len(buffer), _PIECE))
                if not data:
                    opened.close()
            buffer[: len(data)] = data
            return len(data)

        return read

    def read(self, file: RemoteFile) -> bytes:
        """All of a small file."""
        with self.place.at_work("read"):
            data: bytes = self.fs.cat_file(file.key)
        return data


def _members(tar: tarfile.TarFile | None) -> dict[str, tarfile.TarInfo]:
    """What is in a tar, by the names that fsspec gives."""
    if tar is None:
        return {}
    return {re.sub("/+", "/", member.name).strip("/"): member for member in tar.getmembers()}


def _no_member(fs: Any, member: tarfile.TarInfo | None) -> str | None:
    """Why a member of a tar can't be read as a file: fsspec lists whatever is no folder as one."""
    if member is None or member.isreg():
        return None
    if member.isfifo():
        return what_it_is(stat.S_IFIFO)
    if member.isdev():
        return what_it_is(stat.S_IFCHR)
    try:
        target = fs.tar.extractfile(member)
    except (KeyError, RecursionError):
        target = None
    return None if target is not None else "it is a link to something that is no file of the tar"


class ReadAhead:
    """Reads small files by several threads, in the order in which they will be asked for."""

    def __init__(self, remote: Remote, files: Sequence[RemoteFile]) -> None:
        self._remote = remote
        self._upcoming = deque(file for file in files if file.size is not None and file.size <= SMALL)
        self._begun: deque[tuple[RemoteFile, Future[bytes]]] = deque()
        self._bytes = 0
        self._pool = ThreadPoolExecutor(remote.jobs, "dsv-import")

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def reader(self, file: RemoteFile) -> Callable[[memoryview], int]:
        """A function that reads the file, from its first call on. Raises `Conflict` if its size is another by then."""
        source: Callable[[memoryview], int] | None = None
        size = 0

        def read(buffer: memoryview) -> int:
            nonlocal source, size
            if source is None:
                source = self._open(file)
            count = source(buffer)
            size += count
            if (not count and file.size is not None and size != file.size) or size > (file.size or size):
                raise Conflict(
                    f"{file.key} was changed while it was read; nothing was published",
                    subject=file.key,
                    hint="run the same command again: what was read is not read again",
                )
            return count

        return read

    def _open(self, file: RemoteFile) -> Callable[[memoryview], int]:
        self._begin()
        while self._begun:
            begun, future = self._begun.popleft()
            self._bytes -= begun.size or 0
            if begun is file:
                return _reading(future.result())
            if sort_key(begun.path) > sort_key(file.path):
                self._begun.appendleft((begun, future))
                self._bytes += begun.size or 0
                break
        return self._remote.open(file)

    def _begin(self) -> None:
        while self._upcoming and len(self._begun) < 4 * self._remote.jobs and self._bytes < AHEAD_BYTES:
            file = self._upcoming.popleft()
            self._begun.append((file, self._pool.submit(self._remote.read, file)))
            self._bytes += file.size or 0


def _reading(data: bytes) -> Callable[[memoryview], int]:
    position = 0

    def read(buffer: memoryview) -> int:
        nonlocal position
        count = min(len(buffer), len(data) - position)
        buffer[:count] = data[position : position + count]
        position += count
        return count

    return read
