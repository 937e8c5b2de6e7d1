"""Reading the files of a tar at a URL for an import."""

from __future__ import annotations

import bz2
import gzip
import lzma
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from dsv.errors import IntegrityError, NotFound, Unsupported
from dsv.exchange.bodies import PIECE, open_file
from dsv.exchange.remote import RemoteRoot, changed, is_same, open_place, path_in, version_of
from dsv.exchange.sources import FolderSource, RemoteFile, in_order, refuse_page, same_name
from dsv.stores.options import StoreOptions
from dsv.transfer.save import ReadInto
from dsv.transfer.stable_read import Problem
from dsv.values.paths import MAX_PATH, TAR_ENDINGS
from dsv.values.units import format_bytes

UNPACKED_MIN: Final = 1 << 30
UNPACKED_TIMES: Final = 2000
"""A tar is refused if it unpacks to more than `UNPACKED_MIN` bytes and `UNPACKED_TIMES` times its size."""
_HEADER_MAX: Final = 1 << 20
"""Maximum bytes of the headers of one member, the map of a sparse file among them."""
_MEMBER: Final = 4096
"""What a member counts for, besides its bytes: Python keeps it in memory."""
_LINKS_MAX: Final = 40
_NO_FILE: Final = "it is neither a file nor a link to a file of the tar, or it is below one of these"
_COMPRESSED: Final[dict[bytes, Callable[[Any], Any]]] = {
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw, mode="rb"),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
}


class TarSource(FolderSource):
    """The files below the folder `inside` of a tar at a URL. It is read twice from its start: to list it, and for
    the contents."""

    def __init__(self, place: RemoteRoot, info: dict[str, Any], inside: str = "") -> None:
        super().__init__(place)
        self._inside = _clean(inside)
        self._info = info
        self._targets: dict[str, str] = {}  # of links; "/", which no member has, for no content
        self._raw = open_file(place, place.root, info)
        self.callback(self._raw.close)

    def files(self) -> tuple[list[RemoteFile], list[Problem]]:
        """Return every file, in tree order, and what can't be read as one. A later member of the same name
        replaces an earlier one. Raises `IntegrityError` for a damaged tar, and `Unsupported` for one that unpacks
        to far more than its size."""
        with self._archive_errors():
            start = self._raw.read(6)
            self._raw.seek(0)
            packed = next((opened for magic, opened in _COMPRESSED.items() if start.startswith(magic)), None)
            self._unpacked = _Unpacking(self.place.shown, self._raw, packed)
            self._tar = tarfile.TarFile(fileobj=self._unpacked)  # type: ignore[arg-type]
            self._members, skipped = self._listed()
            # Python takes a damaged header, and a missing end, for the end of the tar.
            if self._unpacked.last != tarfile.NUL * tarfile.BLOCKSIZE:
                raise tarfile.ReadError(f"no valid header at byte {self._tar.offset:,}")
            while packed is not None and self._unpacked.read(PIECE):
                pass  # to the checksum, which is at the end
        if all(member.isdir() for member in self._members.values()) and not skipped:
            text, hint = f"{self.place.shown} is a tar without a file", "tar -tvf lists what is in a tar"
            raise NotFound(text, subject=self.place.shown, hint=hint)
        files, unfit = self._sorted_out()
        return in_order(files), skipped + unfit

    def check(self) -> None:
        """Raises `Conflict` if the tar was changed since it was opened."""
        if not is_same(self._info, self.place.info(self.place.root)):
            raise changed(self.place.shown)

    def _open(self, file: RemoteFile) -> ReadInto:
        opened: Any = self._tar.extractfile(self._members[file.key])

        def read(buffer: memoryview) -> int:
            with self._archive_errors():
                return opened.readinto(buffer)  # type: ignore[no-any-return]

        return read

    def _listed(self) -> tuple[dict[str, tarfile.TarInfo], list[Problem]]:
        """Return the members by name, and those with names that are too long."""
        members: dict[str, tarfile.TarInfo] = {}
        skipped: list[Problem] = []
        last = -1
        for one in self._tar:
            if one.offset_data <= last:  # older Pythons go back by a negative size, and never end
                raise tarfile.ReadError(f"a member at byte {one.offset:,} has no valid size")
            last = one.offset_data
            self._unpacked.members += 1
            self._unpacked.header_left = _HEADER_MAX
            one.pax_headers = {}  # each member has a copy of those of the whole tar
            if max(len(one.name), len(one.linkname)) > MAX_PATH:
                path = one.name[:MAX_PATH].encode("utf-8", "surrogateescape")
                skipped.append(Problem(path, f"its path or its target is longer than {MAX_PATH} bytes"))
            elif one.type != b"V":
                name = _clean(one.name)
                before = members.get(name)
                if before is not None and before.name != one.name and not (before.isdir() and one.isdir()):
                    raise same_name(before.name, one.name, name.encode("utf-8", "surrogateescape"))
                members[name] = one
        self._unpacked.header_left = None
        return members, skipped

    def _sorted_out(self) -> tuple[list[RemoteFile], list[Problem]]:
        files: list[RemoteFile] = []
        skipped: list[Problem] = []
        version, holes, last = version_of(self._info), 0, "/"
        above = self._inside + "/" if self._inside else ""
        for name in sorted(self._members, key=lambda name: name.replace("/", "\0")):
            member, is_below = self._members[name], name.startswith(last + "/")
            if not (is_below or member.isdir() or "\0" in name):
                last = name
            if member.isdir() or not (name + "/").startswith(above):
                continue
            path = (name[len(above) :] or name.rpartition("/")[2]).encode("utf-8", "surrogateescape")
            content, reason = None if is_below else self._content_of(name), _NO_FILE
            if content is not None and content.issparse():
                size, data = content.size, sum(size for _, size in content.sparse or ())  # type: ignore[misc,has-type]
                if data > size or _is_absurd(holes + size - data, self._raw.tell()):
                    content = None
                    reason = f"it is a sparse file of {format_bytes(size)} with {format_bytes(data)} of data"
                else:
                    holes += size - data
            if content is None:
                skipped.append(Problem(path, reason))
                continue
            of_tar = None if version is None else f"{version} {content.offset}"
            files.append(RemoteFile(path, _clean(content.name), content.size, of_tar, content.offset))
        return files, skipped

    def _content_of(self, name: str) -> tarfile.TarInfo | None:
        """Return the member with the content of a member, following links; None if there is none."""
        for _ in range(_LINKS_MAX):
            member = self._members.get(name)
            if member is None or not (member.issym() or member.islnk()):
                return member if member is not None and member.isreg() else None
            if name not in self._targets:
                folder = posixpath.dirname(name) if member.issym() else ""
                there = _clean(posixpath.normpath(posixpath.join(folder, member.linkname)))
                later = member.islnk() and self._members.get(there, member).offset > member.offset
                self._targets[name] = "/" if later else there  # tar has linked what had the name earlier
            name = self._targets[name]
        return None

    @contextmanager
    def _archive_errors(self) -> Iterator[None]:
        """Turn errors of damaged archives into `IntegrityError`. The server's errors are converted before."""
        try:
            yield
        except (
            tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError, RecursionError
        ) as error:  # fmt: skip
            text = f"{self.place.shown} is not a whole tar: {error}"
            hint = "compare its size and its checksum with the original, and copy it again"
            raise IntegrityError(text, subject=self.place.shown, hint=hint) from error


class _Unpacking:
    """The tar itself, unpacked. It is refused if it unpacks to far more than its size."""

    def __init__(self, shown: str, raw: Any, unpack: Callable[[Any], Any] | None) -> None:
        self._shown, self._raw = shown, raw
        self._file = raw if unpack is None else unpack(raw)
        self._position = self.members = 0
        self.header_left: int | None = _HEADER_MAX
        """The bytes that the headers of the member may still have; None after the members were listed."""
        self.last = b""

    def read(self, size: int = -1, /) -> bytes:
        """Raises `ReadError` for a member with too large headers."""
        if self.header_left is not None:
            if not 0 <= size <= self.header_left:
                raise tarfile.ReadError(f"the headers of a member have more than {format_bytes(_HEADER_MAX)}")
            self.header_left -= size
        return self._read(size)

    def _read(self, size: int) -> bytes:
        self.last = data = self._file.read(size)
        self._position += len(data)
        grown = self._position + _MEMBER * self.members
        if self._file is not self._raw and _is_absurd(grown, self._raw.tell()):
            text = f"{self._shown} unpacks to more than {UNPACKED_TIMES:,} times its size"
            hint = "if this is intended, unpack it with tar, and dsv put the folder"
            raise Unsupported(text, subject=self._shown, hint=hint)
        return data  # type: ignore[no-any-return]

    def seek(self, position: int, whence: int = 0, /) -> int:
        if position < 0:
            raise tarfile.ReadError("a member of a negative size")
        if self._file is self._raw:
            self._position = self._raw.seek(position)
            return position
        if position < self._position:
            self._file.seek(0)
            self._position = 0
        while self._position < position and self._read(min(PIECE, position - self._position)):
            pass  # by pieces, so that the limit holds on the way too
        return self._position

    def tell(self) -> int:
        return self._position


def open_source(url: str, options: StoreOptions) -> FolderSource:
    """Raises `Unsupported` if a package is missing, and `UsageError` for a URL that dsv can't read."""
    inside = ""
    if is_tar := url.startswith("tar://"):
        inside, _, url = url.removeprefix("tar://").partition("::")
    place = open_place(url, options)
    if is_tar or path_in(url).endswith(TAR_ENDINGS):
        info = place.info(place.root)
        refuse_page(place, info)
        if info.get("type") != "directory":
            return TarSource(place, info, inside)
    return FolderSource(place)


def _is_absurd(unpacked: int, packed: int) -> bool:
    return unpacked > UNPACKED_MIN and unpacked > UNPACKED_TIMES * packed


def _clean(name: str) -> str:
    """Return a member's name without `.` and empty parts, as tar unpacks it; `..` stays, and is refused."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))
