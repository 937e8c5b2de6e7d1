"""Reading the files at a URL for an import: those of a folder, with read-ahead, or those of a tar."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import posixpath
import stat
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final, Self
from urllib.parse import urlsplit

from dsv.errors import IntegrityError, Unsupported
from dsv.exchange.remote import (
    HTTP,
    OBJECT_STORES,
    Place,
    changed,
    is_same,
    open_place,
    version_of,
)
from dsv.fs.files import what_it_is
from dsv.store.options import StoreOptions
from dsv.transfer.file_reader import Problem
from dsv.values.paths import folders_above, show, sort_key
from dsv.values.secrets import hide_in_urls
from dsv.values.units import format_bytes

SMALL = 8 << 20
"""Maximum bytes of a file that is read or written in one piece, and ahead."""
AHEAD_BYTES = 128 << 20
"""Maximum bytes of files in flight, which bounds memory."""
JOBS = 32
"""Small files that are read or written at the same time."""
_PIECE = 8 << 20
_ONE_REQUEST = (*OBJECT_STORES, *HTTP, "hf")
"""Protocols that read a small file by one request, so that all of it is of one version."""

ReadInto = Callable[[memoryview], int]
"""Fills a buffer and returns the number of bytes, 0 at the end."""


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
        """Raise `IntegrityError` if the file, which was read to its end, has another hash."""
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
    """The files at and below a URL. Several threads read small ones ahead, until the context ends."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.fs, self.root = place.fs, place.root
        self._jobs = 1 if place.by_ssh else JOBS
        self._upcoming: deque[RemoteFile] = deque()
        self._begun: deque[tuple[RemoteFile, Future[bytes]]] = deque()
        self._bytes = 0
        self._pool = ThreadPoolExecutor(self._jobs, "dsv-import")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def files(self) -> tuple[list[RemoteFile], list[Problem]]:
        """Return every file, in tree order, and what can't be read as one."""
        if is_http := any(name in HTTP for name in self.place.protocols):
            found = {self.root: self._page()}
        else:
            with self.place.at_work("read"):
                found = self.fs.find(self.root, detail=True)
        files: list[RemoteFile] = []
        skipped: list[Problem] = []
        for key, info in found.items():
            if not is_http and (key.endswith("/") or info.get("type") == "directory"):
                continue  # consoles put such objects there to show a folder
            name = self.place.name(key) or key.rstrip("/").rpartition("/")[2].partition("?")[0]
            path = name.encode("utf-8", "surrogateescape")
            reason = self._unreadable(key, info)
            if reason is not None:
                skipped.append(Problem(path, reason))
                continue
            if info.get("islink") or info.get("type") == "link":
                info = self.place.info(key)
            size = info.get("size")
            files.append(
                RemoteFile(path, key, None if size is None else int(size), version_of(info), info=info)
            )
        return sorted(files, key=lambda file: sort_key(file.path)), skipped

    def read_ahead(self, files: Sequence[RemoteFile]) -> None:
        """Announce the files that will be read, in this order."""
        self._upcoming = deque(file for file in files if file.size is not None and file.size <= SMALL)

    def check(self) -> None:
        """Do nothing: each file is checked when it is read."""

    def reader(self, file: RemoteFile) -> ReadInto:
        """Return a function that opens the file at its first call and reads it. It raises `Conflict` if the
        file has changed since it was listed, and `IntegrityError` if its hash is not the listed one."""
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
        """Return the file of a web server. Raises `Unsupported` for a folder, whose page is a listing."""
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
        """Return why a path can't be read as a file: opening a named pipe would wait for its writer."""
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


TARS: Final = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
UNPACKED_MIN: Final = 1 << 30
UNPACKED_TIMES: Final = 2000
"""A tar is refused if it unpacks to more than `UNPACKED_MIN` bytes and `UNPACKED_TIMES` times its size."""
_READ_MAX: Final = 64 << 20
"""Maximum bytes of a header."""
_LINKS_MAX: Final = 40
_NO_FILE: Final = "it is neither a file nor a link to a file of the tar, or it is below one of these"
_COMPRESSED: Final[dict[bytes, Callable[[Any], Any]]] = {
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw, mode="rb"),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
}


class TarSource:
    """The files below the folder `inside` of a tar at a URL. The end of the context closes the tar.

    The tar is read twice from its start: to list it, and for the contents.
    """

    def __init__(self, place: Place, info: dict[str, Any], inside: str = "") -> None:
        self.place = place
        self._inside = _clean(inside)
        self._info = info
        self._raw = _Raw(place)
        self._last: tuple[str, bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def files(self) -> tuple[list[RemoteFile], list[Problem]]:
        """Return every file, in tree order, and what can't be read as one.

        A later member of the same name replaces an earlier one. Raises `IntegrityError` for a damaged tar,
        and `Unsupported` for one that unpacks to far more than its size.
        """
        with self._archive_errors():
            start = self._raw.read(6)
            self._raw.seek(0)
            packed = next((opened for magic, opened in _COMPRESSED.items() if start.startswith(magic)), None)
            self._unpacked = _Unpacking(self._raw, self._raw if packed is None else packed(self._raw))
            self._tar = tarfile.TarFile(fileobj=self._unpacked)  # type: ignore[arg-type]
            self._members = {_clean(one.name): one for one in self._tar.getmembers() if one.type != b"V"}
            # Python takes a damaged header, and a missing end, for the end of the tar.
            if self._unpacked.last != tarfile.NUL * tarfile.BLOCKSIZE:
                raise tarfile.ReadError(f"no valid header at byte {self._tar.offset:,}")
            while packed is not None and self._unpacked.read(_PIECE):
                pass  # to the checksum, which is at the end
        files, skipped = self._sorted_out()
        return sorted(files, key=lambda file: sort_key(file.path)), skipped

    def read_ahead(self, files: Sequence[RemoteFile]) -> None:
        """Do nothing: a tar is read in the order of its members."""

    def check(self) -> None:
        """Raise `Conflict` if the tar was changed since it was opened."""
        if not is_same(self._info, self.place.info(self.place.root)):
            raise changed(self.place.shown)

    def reader(self, file: RemoteFile) -> ReadInto:
        source: ReadInto | None = None

        def read(buffer: memoryview) -> int:
            nonlocal source
            with self._archive_errors():
                if source is None:
                    source = self._open(self._members[file.key])
                return source(buffer)

        return read

    def _open(self, member: tarfile.TarInfo) -> ReadInto:
        if self._last is not None and self._last[0] == member.name:  # a link, or the file that it leads to
            return BytesIO(self._last[1]).readinto
        opened = self._tar.extractfile(member)
        assert opened is not None
        if member.size > SMALL:
            return opened.readinto  # type: ignore[attr-defined,no-any-return]
        data = opened.read()
        if len(data) != member.size:
            raise tarfile.ReadError("unexpected end of data")
        self._last = member.name, data
        return BytesIO(data).readinto

    def _sorted_out(self) -> tuple[list[RemoteFile], list[Problem]]:
        files: list[RemoteFile] = []
        skipped: list[Problem] = []
        version, holes = version_of(self._info), 0
        above = self._inside + "/" if self._inside else ""
        for name, member in self._members.items():
            if member.isdir() or not (name + "/").startswith(above):
                continue
            path = (name[len(above) :] or name.rpartition("/")[2]).encode("utf-8", "surrogateescape")
            found, reason = self._content_of(name), _NO_FILE
            if found is not None and found.issparse():
                size, data = found.size, sum(size for _, size in found.sparse or ())  # type: ignore[misc,has-type]
                holes += size - data
                if _is_absurd(holes, self._tar.offset):
                    holes -= size - data
                    found = None
                    reason = f"it is a sparse file of {format_bytes(size)} with {format_bytes(data)} of data"
            if found is None:
                skipped.append(Problem(path, reason))
                continue
            of_tar = None if version is None else f"{version} {found.offset}"
            files.append(RemoteFile(path, _clean(found.name), found.size, of_tar, found.offset))
        return files, skipped

    def _content_of(self, name: str) -> tarfile.TarInfo | None:
        """Return the member with the content of a member, following links; None if there is none."""
        for folder in folders_above(name.encode("utf-8", "surrogateescape")):
            above = self._members.get(folder.decode("utf-8", "surrogateescape"))
            if above is not None and not above.isdir():
                return None
        for _ in range(_LINKS_MAX):
            member = self._members.get(name)
            if member is None or not (member.issym() or member.islnk()):
                return member if member is not None and member.isreg() else None
            folder_of = posixpath.dirname(name) if member.issym() else ""
            name = _clean(posixpath.normpath(posixpath.join(folder_of, member.linkname)))
            target = self._members.get(name)
            if member.islnk() and target is not None and target.offset > member.offset:
                return None  # when tar makes the link, it has the name's earlier content
        return None

    @contextmanager
    def _archive_errors(self) -> Iterator[None]:
        """Turn errors of damaged archives into `IntegrityError`. The server's errors are converted before."""
        try:
            yield
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError) as error:
            raise IntegrityError(
                f"{self.place.shown} is not a whole tar: {error}",
                subject=self.place.shown,
                hint="compare its size and its checksum with the original, and copy it again",
            ) from error


class _Raw:
    """The bytes at the URL, before unpacking. Reading them raises dsv's errors."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._file: Any = None
        self._position = 0

    def read(self, size: int = -1, /) -> bytes:
        with self.place.at_work("read"):
            data: bytes = self._opened().read(size)
        self._position += len(data)
        return data

    def _opened(self) -> Any:
        if self._file is None:
            self._file = self.place.fs.open(self.place.root, "rb", block_size=_PIECE)
        return self._file

    def seek(self, position: int, whence: int = 0, /) -> int:
        assert whence == 0
        if position == 0:  # a web server may not be able to seek, but it can be asked again
            self.close()
        elif position != self._position:
            with self.place.at_work("read"):
                self._opened().seek(position)
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


class _Unpacking:
    """The tar itself, unpacked. It is refused if it unpacks to far more than its size."""

    def __init__(self, raw: _Raw, file: Any) -> None:
        self._raw, self._file = raw, file
        self._position = 0
        self.last = b""

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= _READ_MAX:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        self.last = data = self._file.read(size)
        self._position += len(data)
        if self._file is not self._raw and _is_absurd(self._position, self._raw.tell()):
            raise Unsupported(
                f"{self._raw.place.shown} unpacks to more than {UNPACKED_TIMES:,} times its size",
                subject=self._raw.place.shown,
                hint="if this is intended, unpack it with tar, and dsv put the folder",
            )
        return data  # type: ignore[no-any-return]

    def seek(self, position: int, whence: int = 0, /) -> int:
        if self._file is self._raw:
            self._position = self._raw.seek(position)
            return position
        if position < self._position:
            self._file.seek(0)
            self._position = 0
        while self._position < position and self.read(min(_PIECE, position - self._position)):
            pass  # by pieces, so that the limit holds on the way too
        return self._position

    def tell(self) -> int:
        return self._position


def open_source(url: str, options: StoreOptions) -> FolderSource | TarSource:
    """Raise `Unsupported` if a package is missing, and `UsageError` for a URL that dsv can't read."""
    inside = ""
    if is_tar := url.startswith("tar://"):
        inside, _, url = url.removeprefix("tar://").partition("::")
    place = open_place(url, options)
    if is_tar or url.partition("?")[0].endswith(TARS):
        info = place.info(place.root)
        if info.get("type") != "directory":
            return TarSource(place, info, inside)
    return FolderSource(place)


def _is_absurd(unpacked: int, packed: int) -> bool:
    return unpacked > UNPACKED_MIN and unpacked > UNPACKED_TIMES * packed


def _clean(name: str) -> str:
    """Return a member's name without `.` and empty parts, as tar unpacks it; `..` stays, and is refused."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))
