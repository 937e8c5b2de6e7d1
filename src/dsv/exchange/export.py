"""The files of a commit that an export writes, each byte checked, and writing them as a tar."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec

from dsv.errors import Conflict, IntegrityError, NotFound, UsageError
from dsv.format.locator import Location
from dsv.format.records import CommitRecord
from dsv.format.tree import Entry, Kind
from dsv.repo.objects.erasures import erased_error, lacks_erased
from dsv.repo.objects.objects import Objects
from dsv.repo.tree.reader import TreeReader
from dsv.transfer.download import Fetcher, WantedFile
from dsv.values.ids import CommitId
from dsv.values.names import Target, clean_path
from dsv.values.paths import DATA_ENDING, TAR_ENDINGS, show

_COMPRESSED = {".gz": "gz", ".tgz": "gz", ".bz2": "bz2", ".xz": "xz"}
_IN_MEMORY = 8 << 20
"""Maximum bytes of a part of a tar that waits in memory."""
Found = list[tuple[bytes, Entry, Location | None]]


class Exported(msgspec.Struct, frozen=True):
    commit: CommitId
    paths: int
    """Includes symlinks and empty folders, except in an export to a URL."""
    files: int
    bytes: int
    known: int | None = None
    """Files that were already at the URL. `known` to `stays` are only for exports to a URL."""
    written: int | None = None
    written_bytes: int | None = None
    left_out: int | None = None
    """Symlinks and empty folders, which URLs do not have."""
    stays: int | None = None
    """Files at the URL that the target does not have."""
    damaged: tuple[Damaged, ...] = ()
    """Files left out with `skip_damaged`."""
    erased: int = 0
    """Files of the target that were not written, as they were erased from the store."""
    shards: int | None = None
    samples: int | None = None


class Damaged(msgspec.Struct, frozen=True):
    """A file that can't be read, or paths that can't be listed."""

    path: bytes | None
    """None for paths that can't be listed: these are `entries` paths, the last of which is `upto`."""
    upto: bytes | None
    entries: int | None
    text: str


class Selection:
    """The entries at and below a target's path, each with its name relative to it. Raises `NotFound` if there
    is none, and `Erased` if it is one file that was erased. skip_damaged: leave out what can't be read, and
    add it to `damaged`. strict: raise `Conflict` if files of it were erased."""

    def __init__(
        self, objects: Objects, commit: CommitId, target: Target, *, skip_damaged: bool, strict: bool
    ) -> None:
        self.commit, self.target = commit, target
        self.tree = TreeReader(objects, commit)
        self.skips = skip_damaged
        self.damaged: dict[bytes, Damaged] = {}
        """By path, or by the last path of those that can't be listed."""
        self.skip = skip = partial(_skip, self.damaged, skip_damaged)  # a method would make a cycle
        self.tree.left_out = lambda part, error: skip(error, None, part.last, part.entries)
        path = clean_path(target.path)
        every: Found = [
            (entry.path[len(path) :].lstrip(b"/") or path.rpartition(b"/")[2], entry, location)
            for entry, location in self.tree.below(path)
        ]
        erasures = objects.erasures
        self.found: Found = [one for one in every if erasures.of(one[1]) is None] if erasures else every
        self.erased = len(every) - len(self.found)
        if self.erased and strict:
            raise lacks_erased(str(target), self.erased)
        if self.erased == 1 and every[0][1].path == path and (erasure := erasures.of(every[0][1])):
            raise erased_error(str(target), erasure)
        if path and not every and not self.damaged:
            text = f"{show(path)} is not in {Target(target.dataset, target.rev)}"
            raise NotFound(text, subject=str(target), hint="dsv ls lists the paths")
        only = self.found[0][1] if len(self.found) == 1 else None
        self.is_one_file = only is not None and only.path == path and only.kind is not Kind.EMPTY_DIRECTORY

    def exported(self) -> Exported:
        """Return the result once everything except what is damaged was written."""
        paths = [entry for _, entry, _ in self.found if entry.path not in self.damaged]
        files = [entry for entry in paths if entry.is_file]
        size = sum(entry.size for entry in files)
        damaged = tuple(self.damaged[one] for one in sorted(self.damaged))
        return Exported(self.commit, len(paths), len(files), size, damaged=damaged, erased=self.erased)

    def contents(
        self, found: Found | None = None, *, views: bool = False, by_file: bool = False
    ) -> Iterator[tuple[bytes, Entry, Iterator[bytes]]]:
        """Yield each entry with its content in checked pieces; damaged ones raise `IntegrityError`. views, by_file: as
        for `Fetcher`."""
        chosen = self.found if found is None else found
        wanted = [WantedFile(entry, where) for _, entry, where in chosen if entry.is_file]
        files = Fetcher(self.tree.objects, self.tree.commit.dataset, views=views, by_file=by_file).files(
            wanted
        )
        for name, entry, _ in chosen:
            if entry.is_file:
                _, pieces = next(files)
                yield name, entry, pieces
            else:
                yield name, entry, iter(())

    def becomes_tar(self, to: str) -> bool:
        """Return whether to write a tar: the name of `to` says so, and the target is not a tar to copy. Raises
        `UsageError` for the name of another kind of file, which would become a folder."""
        name = to.rpartition("/")[2]
        is_tar = to.lower().endswith(TAR_ENDINGS)
        copied = self.is_one_file and self.found[0][0].lower().endswith(
            tuple(one.encode() for one in TAR_ENDINGS)
        )
        if not self.is_one_file and not is_tar and (ending := DATA_ENDING.search(name)):
            from dsv.values.secrets import hide_in_urls  # takes a while to import

            shown = hide_in_urls(to)
            hint = "NAME.tar, .tar.gz, .tar.bz2 or .tar.xz makes a tar; NAME/ a folder, whatever its name"
            text = f"{shown} would be a folder: dsv export makes no {ending[0]} files"
            raise UsageError(text, subject=shown, hint=hint)
        return is_tar and not copied


def _skip(
    damaged: dict[bytes, Damaged], skips: bool, error: IntegrityError,
    path: bytes | None, upto: bytes | None = None, entries: int | None = None,
) -> None:  # fmt: skip
    """Add what can't be read to `damaged`, or raise the error."""
    if not skips:
        error.hint = "; or ".join(filter(None, ["--skip-damaged exports the rest", error.hint]))
        raise error
    damaged[path or upto or b""] = Damaged(path, upto, entries, error.message)


def write_tar(selection: Selection, out: IO[bytes], name: str = "", folder: str | None = None) -> None:
    """Write a tar, compressed as the ending of its name says. folder: for large files before they are written,
    with `skip_damaged`; None: the folder of temporary files."""
    mode: Any = f"w|{_COMPRESSED.get(Path(name).suffix.lower(), '')}"
    with tarfile.open(fileobj=out, mode=mode, format=tarfile.PAX_FORMAT) as tar:
        for path, entry, pieces in selection.contents():
            info = tar_info(path.decode("utf-8", "surrogateescape"), entry, selection.tree.commit)
            try:
                if selection.skips:  # a member that was begun can't be left out any more
                    with tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=folder) as whole:
                        whole.writelines(pieces)
                        whole.seek(0)
                        tar.addfile(info, whole)
                else:
                    tar.addfile(info, io.BufferedReader(Pieces(pieces), 1 << 20))
            except IntegrityError as error:
                selection.skip(error, entry.path)


def tar_info(name: str, entry: Entry, commit: CommitRecord) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mtime = commit.time_ms // 1000
    info.mode = 0o644 if entry.kind is Kind.FILE else 0o755
    if entry.kind is Kind.SYMLINK:
        info.type, info.linkname = tarfile.SYMTYPE, (entry.target or b"").decode()
    elif entry.kind is Kind.EMPTY_DIRECTORY:
        info.type = tarfile.DIRTYPE
    else:
        info.size = entry.size
    return info


def write_out(selection: Selection, out: IO[bytes]) -> None:
    """Write a tar, or the content of the one file of the target. Raises `UsageError` for a tar on a terminal."""
    if selection.is_one_file and selection.found[0][1].is_file:
        for _, _, pieces in selection.contents():
            for piece in pieces:
                out.write(piece)
    elif out.isatty():
        hint = "dsv export TARGET - > FILE.tar, or | tar tv"
        raise UsageError("a tar can't be shown on a terminal", hint=hint)
    else:
        write_tar(selection, out)


def taken(place: Path | str, hint: str = "choose a path that does not exist") -> Conflict:
    return Conflict(f"{show(os.fsencode(place))} already exists", subject=str(place), hint=hint)


class Pieces(io.RawIOBase):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = filter(None, pieces)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        self._rest = self._rest or memoryview(next(self._pieces, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
