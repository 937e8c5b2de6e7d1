"""Listing a folder with the stats of all that is in it."""

from __future__ import annotations

import operator
import os
import stat
import struct
import sys

import msgspec

from dsv.transfer.file_reader import ROW, row_of
from dsv.workspace.scan.folder import DIRECTORY, UNSUPPORTED

# The names that `model.paths` refuses as dsv's and git's own are not seen at all.
_RESERVED = (b".dsv", b".git")
_LONG_S = "ſ".encode()
# The name of a file that is being written: this and 16 hex digits. A killed pull may leave some.
TEMPORARY = b".dsv-tmp-"
_TEMPORARY_LENGTH = len(TEMPORARY) + 16

_IS_UTF8 = sys.getfilesystemencoding() == "utf-8"
_fields = operator.attrgetter("st_ino", "st_size", "st_mtime_ns", "st_ctime_ns", "st_mode")
_MODE = ROW.size - 4  # where the mode lies in a row

# The upper byte of a mode gives the type, the lower one whether the owner may execute; both together a kind.
_TYPES = bytearray([UNSUPPORTED]) * 256
for _bits in range(16):
    _TYPES[stat.S_IFREG >> 8 | _bits] = 0
    _TYPES[stat.S_IFLNK >> 8 | _bits] = 2
    _TYPES[stat.S_IFDIR >> 8 | _bits] = DIRECTORY
_EXECUTABLE = bytes(1 if bits & stat.S_IXUSR else 0 for bits in range(256))
_KINDS = bytes((0, 1, 2, 2, DIRECTORY, DIRECTORY, UNSUPPORTED, UNSUPPORTED)) + bytes(248)


class Listing(msgspec.Struct):
    """Names in bytewise order, with a row and a kind for each."""

    names: list[str]
    """As the os module returns them."""
    blob: bytes
    """The names as bytes, joined by NUL."""
    rows: bytearray
    kinds: bytearray
    leftovers: list[str]
    """Temporary files of killed commands."""

    def blank(self, at: int) -> None:
        """Leave only the type in a row."""
        mode = stat.S_IFMT(self.mode(at)) | 0o444
        self.rows[at * ROW.size : (at + 1) * ROW.size] = ROW.pack(0, 0, 0, 0, mode)

    def mode(self, at: int) -> int:
        return int.from_bytes(self.rows[at * ROW.size + _MODE : (at + 1) * ROW.size], "little")

    def all_readable(self) -> bool:
        """Return whether owner, group and others may all read everything here."""
        low, high = self.rows[_MODE :: ROW.size], self.rows[_MODE + 1 :: ROW.size]
        return not low.translate(None, _OTHERS_READ) and not high.translate(None, _OWNER_READS)


_OTHERS_READ = bytes(bits for bits in range(256) if bits & 0o044 == 0o044)
_OWNER_READS = bytes(bits for bits in range(256) if bits & 0o400 >> 8)


def list_folder(descriptor: int) -> Listing:
    """Everything in the folder, its stats taken without following symlinks. Raises `OSError`.

    What vanishes meanwhile is left out. The rows of folders have only the type: their times change with what is in
    them, which their own listing tells.
    """
    names = os.listdir(descriptor)
    names.sort()
    blob = os.fsencode("\0".join(names))
    if not blob.isascii() and not (_IS_UTF8 and is_utf8(blob)):
        names.sort(key=os.fsencode)  # the order of code points is not that of these bytes
        blob = os.fsencode("\0".join(names))
    folded = blob.lower()
    leftovers: list[str] = []
    if b".dsv" in folded or b".git" in folded or _LONG_S in folded:
        leftovers = [name for name in names if _is_leftover(name)]
        names = [
            name
            for name in names
            if os.fsencode(name).lower().replace(_LONG_S, b"s") not in _RESERVED and not _is_leftover(name)
        ]
        blob = os.fsencode("\0".join(names))
    try:
        rows = bytearray().join(
            [ROW.pack(*_fields(os.stat(name, dir_fd=descriptor, follow_symlinks=False))) for name in names]
        )
    except (FileNotFoundError, struct.error):
        names, rows = _one_by_one(descriptor, names)
        blob = os.fsencode("\0".join(names))
    listing = Listing(names, blob, rows, _kinds(rows), leftovers)
    at = listing.kinds.find(DIRECTORY)
    while at >= 0:
        listing.blank(at)
        at = listing.kinds.find(DIRECTORY, at + 1)
    return listing


def is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _one_by_one(descriptor: int, names: list[str]) -> tuple[list[str], bytearray]:
    found: list[str] = []
    rows = bytearray()
    for name in names:
        try:
            rows += row_of(os.stat(name, dir_fd=descriptor, follow_symlinks=False))
        except FileNotFoundError:
            continue
        found.append(name)
    return found, rows


def _kinds(rows: bytearray) -> bytearray:
    count = len(rows) // ROW.size
    types = int.from_bytes(rows[_MODE + 1 :: ROW.size].translate(_TYPES), "little")
    executable = int.from_bytes(rows[_MODE :: ROW.size].translate(_EXECUTABLE), "little")
    return bytearray((types | executable).to_bytes(count, "little").translate(_KINDS))


def _is_leftover(name: str) -> bool:
    raw = os.fsencode(name)
    if len(raw) != _TEMPORARY_LENGTH or not raw.startswith(TEMPORARY):
        return False
    return not raw[len(TEMPORARY) :].translate(None, b"0123456789abcdef")


def join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name
