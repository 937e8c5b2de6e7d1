"""Reading the files at a URL for an import: those of a folder, with read-ahead, or those of a tar."""

from __future__ import annotations

import hashlib
import re
import stat
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from io import BytesIO
from itertools import pairwise
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from dsv.errors import IntegrityError, NotFound, Unsupported
from dsv.exchange.bodies import PIECE, open_unpacked
from dsv.exchange.remote import (
    HTTP,
    OBJECT_STORES,
    S3,
    RemoteRoot,
    changed,
    converting,
    is_same,
    path_in,
    version_of,
)
from dsv.files.small_files import what_it_is
from dsv.transfer.save import JOURNALS, ReadInto
from dsv.transfer.stable_read import Problem
from dsv.values.paths import DATA_ENDING, show, sort_key
from dsv.values.progress import NoProgress
from dsv.values.secrets import hide_in_urls
from dsv.values.units import format_count

SMALL = 8 << 20
"""Maximum bytes of a file that is read or written in one piece, and ahead."""
AHEAD_BYTES = 128 << 20
"""Maximum bytes of files in flight, which bounds memory."""
JOBS = 32
"""Small files that are read or written at the same time."""
_WHOLE = (*(one for one in OBJECT_STORES if one not in S3), "hf")
"""Protocols whose file systems read a small file by one request, so that all of it is of one version."""
_OWN_FOLDER = re.compile(rb"((?:.*?/)??\.(?:git|dsv))/", re.IGNORECASE | re.DOTALL)


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
    """The hash of the content in the listing: `md5:`, `md5-dos2unix:`, `sha256:` or `git:` and hex digits."""
    executable: bool = False

    @property
    def content_key(self) -> str:
        """A value that only files with the same content share, and only at this place."""
        return self.digest or self.key


def remote_file(path: bytes, key: str, info: dict[str, Any], **more: Any) -> RemoteFile:
    """Return a file by what fsspec says of it. more: fields."""
    size = info.get("size")
    return RemoteFile(path, key, None if size is None else int(size), version_of(info), info=info, **more)


def in_order(files: list[RemoteFile]) -> list[RemoteFile]:
    """Return the files in tree order. Raises `Unsupported` if two with different contents have one path."""
    files.sort(key=lambda file: sort_key(file.path))
    for one, other in pairwise(files):
        if one.path == other.path and one.content_key != other.content_key:
            raise same_name(one.key, other.key, one.path)
    return files


def same_name(one: str, other: str, path: bytes) -> Unsupported:
    one, other = hide_in_urls(one), hide_in_urls(other)
    text = f"{one!r} and {other!r} would both be {show(path)}, and one would be lost"
    return Unsupported(text, subject=other, hint="rename one of them there, or import them to two paths")


class _Digest:
    """Checks the content of a file against the hash in the listing."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        kind, _, self._expected = file.digest.partition(":")
        start = b"blob %d\0" % (file.size or 0) if kind == "git" else b""
        name = {"git": "sha1", "md5-dos2unix": "md5"}.get(kind, kind)
        self._hash = hashlib.new(name, start, usedforsecurity=False)
        # DVC before 3.0 hashed lines of text without their CR, in pieces of 1 MiB
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
        """Raises `IntegrityError` if the file, which was read to its end, has another hash."""
        found = [self._hash.hexdigest()]
        if self._lines is not None:
            self._lines.update(self._piece.replace(b"\r\n", b"\n"))
            found.append(self._lines.hexdigest())
        if self._expected not in found:
            path, url = show(self._file.path), hide_in_urls(self._file.key)
            text = f"{path} is damaged: {url} does not have the hash {self._file.digest}"
            hint = f"put the right file back at {url}, and run the same command again"
            raise IntegrityError(text, subject=path, hint=hint)


class FolderSource(ExitStack):
    """The files at and below a URL. Several threads read small ones ahead, until the context ends."""

    def __init__(self, place: RemoteRoot) -> None:
        super().__init__()
        self.place = place
        self.say: Callable[[str], None] = NoProgress().note
        """Takes a line for people."""
        self._jobs = 1 if place.by_ssh else JOBS
        self._upcoming: deque[RemoteFile] = deque()
        self._begun: deque[tuple[RemoteFile, Future[bytes]]] = deque()
        self._together: list[RemoteFile] = []
        self._pool = ThreadPoolExecutor(self._jobs, "dsv-import")
        self.callback(self._pool.shutdown, wait=True, cancel_futures=True)

    def files(self) -> tuple[list[RemoteFile], list[Problem]]:
        """Return every file, in tree order, and what can't be read as one."""
        is_http = any(name in HTTP for name in self.place.protocols)
        files: list[RemoteFile] = []
        skipped: list[Problem] = []
        kept_out: Counter[bytes] = Counter()
        for key, info in ({self.place.root: self._page()} if is_http else self.place.find()).items():
            if info.get("type") == "directory" or (key.endswith("/") and not info.get("size")):
                continue  # consoles put empty objects there to show a folder
            name = self.place.name(key) or key.rstrip("/").rpartition("/")[2]
            path = name.encode("utf-8", "surrogateescape")
            if is_http:
                path = unquote_to_bytes(path_in(key).rpartition("/")[2].encode("utf-8", "surrogateescape"))
            if own := _OWN_FOLDER.match(path):
                kept_out[own[1]] += 1
                continue
            reason = self._unreadable(key, info)
            if not is_http and key.endswith("/"):
                reason = "its name ends with a slash, and it is not empty"
            elif is_http and b"/" in path:
                reason = "its name has a slash"
            if reason is not None:
                skipped.append(Problem(path, reason))
                continue
            if info.get("islink") or info.get("type") == "link":
                info = self.place.info(key)
            files.append(remote_file(path, key, info))
        if len(files) == 1 and files[0].key == self.place.root and self.place.root.endswith(".zip"):
            shown = self.place.shown
            self.say(f"{shown} is stored as it is; its files: dsv import zip://::{shown}")
        for folder, count in kept_out.items():
            reason = f"it is a folder of git or dsv, with {format_count(count, 'file')} in it"
            skipped.append(Problem(folder, reason))
        by_path = {file.path: file for file in files}
        pairs = ((path, path + end) for path in by_path for end in JOURNALS if path + end in by_path)
        self._together = [by_path[path] for pair in pairs for path in pair]
        return in_order(files), skipped

    def read_ahead(self, files: Sequence[RemoteFile]) -> None:
        """Announce the files that will be read, in this order."""
        self._upcoming = deque(file for file in files if file.size is not None and file.size <= SMALL)

    def check(self) -> None:
        """Raises `Conflict` if a SQLite database or its journal has changed, which each file's own check can't see."""
        for file in self._together:
            self._check(file)

    def reader(self, file: RemoteFile) -> ReadInto:
        """Open a file. Reading it raises `Conflict` if the file has changed since it was listed, and
        `IntegrityError` if its hash is not the listed one."""
        source = self._open(file)
        digest = _Digest(file) if file.digest else None
        size = 0

        def read(buffer: memoryview) -> int:
            nonlocal size
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
        opened = open_unpacked(self.place, file.key, file.info, self.say)

        def read(buffer: memoryview) -> int:
            with converting(self.place.shown, "read"):
                count: int = opened.readinto(buffer[:PIECE])
            if not count:
                opened.close()
                if file.size is not None:
                    self._check(file)
            return count

        return read

    def read(self, file: RemoteFile) -> bytes:
        """Return all of a small file; one byte more if it is longer than it was listed."""
        with converting(self.place.shown, "read"):
            if self.place.protocol in _WHOLE:
                return self.place.fs.cat_file(file.key)  # type: ignore[no-any-return]
            with open_unpacked(self.place, file.key, file.info, self.say) as opened:
                data: bytes = opened.read((file.size or 0) + 1)
        if self.place.protocol not in (*S3, *HTTP):
            self._check(file)
        return data

    def _check(self, file: RemoteFile) -> None:
        if not is_same(file.info, self.place.info(file.key)):
            raise changed(file.key)

    def _page(self) -> dict[str, Any]:
        """Return the file of a web server. Raises `Unsupported` for a folder, whose page is a listing."""
        info = self.place.info(self.place.root)
        url = self.place.shown.rpartition("::")[2]
        if not urlsplit(url).path.rpartition("/")[2] or urlsplit(str(info.get("url", ""))).path.endswith("/"):
            text = f"{self.place.shown} is a folder of a web server, and HTTP does not list files"
            hint = f"import one file or a tar of it, or wget -r -np {url} and dsv put"
            raise Unsupported(text, subject=self.place.shown, hint=hint)
        refuse_page(self.place, info)
        return info

    def _unreadable(self, key: str, info: dict[str, Any]) -> str | None:
        """Return why a path can't be read as a file: opening a named pipe would wait for its writer."""
        if self.place.by_ssh and info.get("type") == "file" and not info.get("size"):
            with self.place.at_work("read"):  # fsspec calls anything a file that is not a folder or a link
                mode = self.place.fs.ftp.lstat(key).st_mode
            return None if mode is None or stat.S_ISREG(mode) else what_it_is(mode)
        if info.get("type") not in ("other", "link"):
            return None
        if not info.get("islink") and info["type"] != "link":
            return what_it_is(int(info.get("mode", 0)))
        try:
            to = self.place.info(key)["type"]
        except NotFound:
            to = ""
        if to == "file":
            return None  # it is read as the file
        return f"it is a symlink to {'a folder' if to == 'directory' else 'something that is not a file'}"

    def _open(self, file: RemoteFile) -> ReadInto:
        size = sum(one.size or 0 for one, _ in self._begun)
        while self._upcoming and len(self._begun) < 4 * self._jobs and size < AHEAD_BYTES:
            upcoming = self._upcoming.popleft()
            self._begun.append((upcoming, self._pool.submit(self.read, upcoming)))
            size += upcoming.size or 0
        while self._begun and sort_key(self._begun[0][0].path) <= sort_key(file.path):
            begun, future = self._begun.popleft()
            if begun is file:
                return BytesIO(future.result()).readinto
        return self.open(file)


def refuse_page(place: RemoteRoot, info: dict[str, Any]) -> None:
    """Raises `Unsupported` if a web server has a page for a file of another kind, as if to log in."""
    if info.get("mimetype") == "text/html" and DATA_ENDING.search(path_in(place.shown)):
        text = f"what is at {place.shown} is a web page, perhaps one to log in"
        hint = f"open it in a browser; if it is the file: curl -L {place.shown} | dsv put - DATASET:PATH"
        raise Unsupported(text, subject=place.shown, hint=hint)
