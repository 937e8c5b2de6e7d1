"""Writing files of a commit as a tar, a folder or a file of this machine: each byte checked, whole or not at all."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dsv.errors import Conflict, IntegrityError, NotFound, Unsupported
from dsv.exchange.sources import TARS
from dsv.format.locator import Location
from dsv.format.tree import Child, Entry, Kind
from dsv.fs.errors import about
from dsv.repo.objects.erasures import erased_error, lacks_erased
from dsv.repo.objects.objects import Objects
from dsv.repo.tree.read import TreeReader
from dsv.transfer.download import Fetcher, Wanted
from dsv.values.ids import CommitId
from dsv.values.names import Target, clean_path
from dsv.values.paths import show

_COMPRESSED = {".gz": "gz", ".tgz": "gz", ".bz2": "bz2", ".xz": "xz"}
_SHARDS = re.compile(r"%(?:0[0-9]+)?d")
_IN_MEMORY = 8 << 20
"""Bytes of the largest file that is read whole into memory before it goes into a tar; larger ones go to a disk."""
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export."""

    commit: CommitId
    paths: int
    """Includes symlinks and empty folders, except in an export to a URL."""
    files: int
    bytes: int
    known: int | None = None
    """Files that were already at the URL. This and the following are only for exports to a URL."""
    written: int | None = None
    written_bytes: int | None = None
    left_out: int | None = None
    """Symlinks and empty folders, which URLs do not have."""
    stays: int | None = None
    """Files at the URL that the target does not have."""
    damaged: tuple[Damaged, ...] = ()
    """With `skip_damaged`, what was left out as it can't be read."""
    erased: int = 0
    """Files of the target that were not written, as they were erased from the store."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A file that can't be read, or paths that can't be listed."""

    path: bytes | None
    """None for paths that can't be listed: then there are `entries` of them, the last one being `upto`."""
    upto: bytes | None
    entries: int | None
    text: str
    """Why."""


Found = list[tuple[bytes, Entry, Location | None]]


class Selection:
    """The entries at and below a target's path, each with its name from there.

    Raises `NotFound` if there is none, and `Erased` if it is one file that was erased. skip_damaged: what can't be read
    is noted as `damaged` and left out. strict: raise `Conflict` if files of it were erased.
    """

    def __init__(
        self,
        objects: Objects,
        commit: CommitId,
        target: Target,
        *,
        skip_damaged: bool = False,
        strict: bool = False,
    ) -> None:
        self.commit = commit
        self.tree = TreeReader(objects, commit)
        self.skips = skip_damaged
        self.damaged: dict[bytes, Damaged] = {}
        """By path, or by the last path of those that can't be listed."""
        self.tree.left_out = self._leave_out
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
            raise NotFound(
                f"{show(path)} is not in {Target(target.dataset, target.rev)}",
                subject=str(target),
                hint="dsv ls lists the paths",
            )
        only = self.found[0][1] if len(self.found) == 1 else None
        self.is_one_file = only is not None and only.path == path and only.kind is not Kind.EMPTY_DIRECTORY

    def _leave_out(self, part: Child, error: IntegrityError) -> None:
        self._note(Damaged(None, part.last, part.entries, error.message), error)

    def skip(self, entry: Entry, error: IntegrityError) -> None:
        """Note a file that can't be read, or raise the error."""
        self._note(Damaged(entry.path, None, None, error.message), error)

    def _note(self, damaged: Damaged, error: IntegrityError) -> None:
        if not self.skips:
            error.hint = "; or ".join(filter(None, ["--skip-damaged exports the rest", error.hint]))
            raise error
        self.damaged[damaged.path or damaged.upto or b""] = damaged

    def exported(self) -> Exported:
        """Return the result, if all of it was written but what is damaged."""
        paths = [entry for _, entry, _ in self.found if entry.path not in self.damaged]
        files = [entry for entry in paths if entry.is_file]
        size = sum(entry.size for entry in files)
        damaged = tuple(self.damaged[one] for one in sorted(self.damaged))
        return Exported(self.commit, len(paths), len(files), size, damaged=damaged, erased=self.erased)

    def contents(self, found: Found | None = None) -> Iterator[tuple[bytes, Entry, Iterator[bytes]]]:
        """Yield each entry with its content in checked pieces, which raise `IntegrityError` where it is damaged."""
        chosen = self.found if found is None else found
        wanted = [Wanted(entry, where) for _, entry, where in chosen if entry.is_file]
        files = Fetcher(self.tree.objects, self.tree.commit.dataset).files(wanted)
        for name, entry, _ in chosen:
            if entry.is_file:
                _, pieces = next(files)
                yield name, entry, iter(map(bytes, pieces))
            else:
                yield name, entry, iter(())

    def becomes_tar(self, to: str) -> bool:
        """Return whether the destination is to be a tar: by its name, unless the target is one that only is copied."""
        copied = self.is_one_file and self.found[0][0].endswith(tuple(one.encode() for one in TARS))
        return to.endswith(TARS) and not copied


def refuse_shards(to: str) -> None:
    """Raise `Unsupported` for a name such as `shards-%05d.tar`, which other tools replace by numbered names."""
    if _SHARDS.search(to.rpartition("/")[2]):
        raise Unsupported(
            f"shards are not supported: {to} would be one file of that name",
            subject=to,
            hint="export each folder as a tar of its own: dsv export DATASET:FOLDER NAME.tar",
        )


def write_tar(selection: Selection, out: IO[bytes], name: str = "", folder: Path | None = None) -> None:
    """Write a tar, compressed as the ending of its name says.

    folder: with `skip_damaged`, where a large file is before it goes into the tar; None: where temporary files are.
    """
    mode: Any = f"w|{_COMPRESSED.get(Path(name).suffix, '')}"
    with tarfile.open(fileobj=out, mode=mode, format=tarfile.PAX_FORMAT) as tar:
        for path, entry, pieces in selection.contents():
            info = tarfile.TarInfo(path.decode("utf-8", "surrogateescape"))
            info.mtime = selection.tree.commit.time_ms // 1000
            info.mode = 0o644 if entry.kind is Kind.FILE else 0o755
            if entry.kind is Kind.SYMLINK:
                info.type, info.linkname = tarfile.SYMTYPE, (entry.target or b"").decode()
            elif entry.kind is Kind.EMPTY_DIRECTORY:
                info.type = tarfile.DIRTYPE
            else:
                info.size = entry.size
            try:
                if selection.skips:  # a member that was begun can't be left out any more
                    with tempfile.SpooledTemporaryFile(
                        _IN_MEMORY, dir=None if folder is None else str(folder)
                    ) as whole:
                        whole.writelines(pieces)
                        whole.seek(0)
                        tar.addfile(info, whole)
                else:
                    tar.addfile(info, io.BufferedReader(Pieces(pieces), 1 << 20))
            except IntegrityError as error:
                selection.skip(entry, error)


def export_path(selection: Selection, to: str) -> None:
    """Write a tar, a folder, or the one file that the target is, which appears when it is whole.

    A tar is one by its name, and replaces a file. A file goes into a folder that is there or whose name ends with a
    slash, by its own name. Raises `Conflict` if anything else is in the way.
    """
    path, is_tar = Path(to), selection.becomes_tar(to)
    with about(path):
        if selection.is_one_file and not is_tar and (to.endswith("/") or path.is_dir()):
            path /= os.fsdecode(selection.found[0][0])
        if os.path.lexists(path) and (not is_tar or path.is_dir()):
            raise _taken(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            if is_tar:
                with (temporary / "tar").open("xb") as file:
                    write_tar(selection, file, path.name, temporary)
                    os.fchmod(file.fileno(), 0o644)
                    os.fsync(file.fileno())
                _put(temporary / "tar", path, replace=True)
            else:
                whole = temporary / "folder"
                whole.mkdir()
                _write_folder(selection, whole)
                if selection.damaged and (selection.is_one_file or not selection.found):
                    return
                _put(whole / os.fsdecode(selection.found[0][0]) if selection.is_one_file else whole, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _put(whole: Path, path: Path, *, replace: bool = False) -> None:
    """Give a file or a folder its name. Raises `Conflict` if another export was first."""
    try:
        if replace or (whole.is_dir() and not whole.is_symlink()):
            whole.replace(path)
        else:
            os.link(whole, path, follow_symlinks=False)
    except OSError as error:
        if error.errno in _TAKEN:
            raise _taken(path) from None
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS) or os.path.lexists(path):
            raise
        whole.replace(path)  # a file system without hard links


def _taken(path: Path) -> Conflict:
    return Conflict(
        f"{show(os.fsencode(path))} already exists",
        subject=str(path),
        hint="choose a path that does not exist",
    )


def _write_folder(selection: Selection, root: Path) -> None:
    links: list[tuple[bytes, bytes]] = []
    if any(entry.kind is Kind.SYMLINK for _, entry, _ in selection.found):
        selection.tree.check_links(selection.tree.links())
    for name, entry, pieces in selection.contents():
        whole = root / os.fsdecode(name)
        if entry.kind is Kind.SYMLINK:
            links.append((name, entry.target or b""))
        elif entry.kind is Kind.EMPTY_DIRECTORY:
            whole.mkdir(parents=True, exist_ok=True)
        else:
            whole.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o755 if entry.kind is Kind.EXECUTABLE else 0o644
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                with os.fdopen(os.open(whole, flags, mode), "wb") as file:
                    file.writelines(pieces)
            except IntegrityError as error:
                selection.skip(entry, error)
                whole.unlink()
    for name, link in links:  # last, so that no file is written through one
        link_path = root / os.fsdecode(name)
        link_path.parent.mkdir(parents=True, exist_ok=True)
        link_path.symlink_to(os.fsdecode(link))
    root.chmod(0o755)


class Pieces(io.RawIOBase):
    """A file made of pieces."""

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
