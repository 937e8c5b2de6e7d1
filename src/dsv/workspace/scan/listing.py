"""Listing a folder with the stats of all that is in it, and the files of a folder that is not a workspace.

Such a folder is taken as `dsv sync` would take it: symlinks as symlinks, of a mode only whether its owner may execute,
without what its `.dsvignore` files leave out, and without anything called `.dsv` or `.git`. A file or folder that is
named itself is never ignored, and followed if it is a symlink.
"""

from __future__ import annotations

import operator
import os
import stat
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dsv.errors import NotFound, Unsupported
from dsv.format.tree import Kind
from dsv.fs.descent import Descent
from dsv.fs.errors import about
from dsv.fs.files import what_it_is
from dsv.transfer.file_reader import ROW, Problem, Trouble, row_of
from dsv.transfer.save import Source
from dsv.values.paths import check_target, show, sort_key
from dsv.workspace.scan.folder import DIRECTORY, UNSUPPORTED
from dsv.workspace.scan.ignore import NAME, Rules
from dsv.workspace.scan.ignore import read as read_rules

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
    """Names in bytewise order, as the os module gives them and as bytes joined by NUL, with a row and a kind for each.

    leftovers: names of temporary files that a killed command left.
    """

    names: list[str]
    blob: bytes
    rows: bytearray
    kinds: bytearray
    leftovers: list[str]

    def blank(self, at: int) -> None:
        """Leaves only the type in a row."""
        mode = stat.S_IFMT(self.mode(at)) | 0o444
        self.rows[at * ROW.size : (at + 1) * ROW.size] = ROW.pack(0, 0, 0, 0, mode)

    def mode(self, at: int) -> int:
        return int.from_bytes(self.rows[at * ROW.size + _MODE : (at + 1) * ROW.size], "little")

    def all_readable(self) -> bool:
        """Whether owner, group and others may all read everything here."""
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
        names = [name for name in names if not _is_reserved(name) and not _is_leftover(name)]
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


def _is_reserved(name: str) -> bool:
    return os.fsencode(name).lower().replace(_LONG_S, b"s") in _RESERVED


def _is_leftover(name: str) -> bool:
    raw = os.fsencode(name)
    if len(raw) != _TEMPORARY_LENGTH or not raw.startswith(TEMPORARY):
        return False
    return not raw[len(TEMPORARY) :].translate(None, b"0123456789abcdef")


@dataclass(slots=True)
class Walk:
    """The files of a folder that is not a workspace, or of one below it."""

    root: Path
    start: bytes = b""
    """A folder below the root, to which the walk is limited. All paths are from the root."""
    ignoring: tuple[str, ...] = (NAME,)
    """Names of the files that say what is left out, in the folders from the root on; later ones have the last word."""
    problems: list[Problem] = field(default_factory=list)
    """Paths that can't be stored or can't be read."""

    def sources(self) -> list[tuple[bytes, Source]]:
        """Return every path below the folder that goes into a tree, in tree order."""
        with about(self.root), Descent(self.root) as descent:
            return list(self._below(descent))

    def _below(self, descent: Descent) -> Iterator[tuple[bytes, Source]]:
        stack: list[tuple[bytes, Source | Rules]] = [(self.start, self._rules_above(descent))]
        while stack:
            path, what = stack.pop()
            if isinstance(what, Source):
                yield path, what
                continue
            found = self._folder(descent, path, what)
            if found is None:
                continue
            if not found and path != self.start:
                yield path, Source(Kind.EMPTY_DIRECTORY)
            stack += sorted(found, key=lambda item: sort_key(item[0]), reverse=True)

    def _rules_above(self, descent: Descent) -> Rules:
        """Return the rules of the folders above the start."""
        rules, parts = Rules(), self.start.split(b"/") if self.start else []
        for depth in range(len(parts)):
            above = b"/".join(parts[:depth])
            descriptor = descent.at(above)
            rules = self._enter(rules, above, descriptor, list_folder(descriptor).names)
        return rules

    def _enter(self, rules: Rules, path: bytes, descriptor: int, names: Sequence[str]) -> Rules:
        for name in self.ignoring:
            if name in names:
                text = read_rules(descriptor, join(path, os.fsencode(name)), name)
                rules = rules.enter(path, text, name)
        return rules

    def _folder(
        self, descent: Descent, path: bytes, rules: Rules
    ) -> list[tuple[bytes, Source | Rules]] | None:
        """List a folder: files and symlinks, and folders with the rules that hold in them. None if it can't be read."""
        try:
            descriptor = descent.at(path)
            listing = list_folder(descriptor)
            rules = self._enter(rules, path, descriptor, listing.names)
        except OSError as error:
            if path == self.start:
                raise
            self._refuse(path, f"it can't be read: {error.strerror}", Trouble.UNREADABLE)
            return None
        found: list[tuple[bytes, Source | Rules]] = []
        for at, (text, kind) in enumerate(zip(listing.names, listing.kinds, strict=True)):
            name = os.fsencode(text)
            whole = join(path, name)
            if rules.ignores(whole, directory=kind == DIRECTORY):
                continue
            if not is_utf8(name):
                self._refuse(whole, "its name is not UTF-8")
            elif kind == UNSUPPORTED:
                self._refuse(whole, what_it_is(listing.mode(at)))
            elif kind == DIRECTORY:
                found.append((whole, rules))
            elif kind == Kind.SYMLINK:
                target = os.readlink(name, dir_fd=descriptor)
                found += self._link(whole, target)
            else:
                size = ROW.unpack_from(listing.rows, at * ROW.size)[1]
                found.append((whole, Source(Kind(kind), size, self.root, whole)))
        return found

    def _link(self, path: bytes, target: bytes) -> list[tuple[bytes, Source | Rules]]:
        try:
            check_target(target)
        except ValueError as error:
            self._refuse(path, f"it is a symlink whose target no tree can hold: {error}")
            return []
        return [(path, Source(Kind.SYMLINK, target=target))]

    def _refuse(self, path: bytes, reason: str, trouble: Trouble = Trouble.UNSUPPORTED) -> None:
        self.problems.append(Problem(path, reason, trouble))


def named_file(path: Path) -> Source | None:
    """Return a file that somebody named; None for a folder. Raises `NotFound`, `Unsupported`, `Denied`."""
    with about(path):
        try:
            whole = Path(os.path.realpath(path))
            info = whole.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(
                f"there is no file or folder {show(os.fsencode(path))}", subject=str(path)
            ) from None
    if stat.S_ISDIR(info.st_mode):
        return None
    if not stat.S_ISREG(info.st_mode):
        raise Unsupported(
            f"{show(os.fsencode(path))} can't be stored: {what_it_is(info.st_mode)}",
            subject=str(path),
            hint="to store what a command prints: COMMAND | dsv put - DATASET:PATH",
        )
    kind = Kind.EXECUTABLE if info.st_mode & stat.S_IXUSR else Kind.FILE
    return Source(kind, info.st_size, whole.parent, os.fsencode(whole.name))


def join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name
