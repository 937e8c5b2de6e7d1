"""Writing the files of a commit as a tar or as a folder, each byte checked, whole or not at all."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dsv.api.context import Context
from dsv.errors import Conflict, NotFound
from dsv.fs.errors import about
from dsv.model.entry import Entry, Kind
from dsv.model.ids import CommitId
from dsv.model.location import Location
from dsv.model.names import Target, clean_path
from dsv.model.paths import show
from dsv.repo.trees import TreeReader
from dsv.transfer.download import Fetcher, Wanted

COMPRESSED = {".gz": "gz", ".tgz": "gz", ".bz2": "bz2", ".xz": "xz"}


@dataclass(frozen=True, slots=True)
class Exported:
    """files, bytes: that were written. paths: with symlinks and empty folders."""

    commit: CommitId
    paths: int
    files: int
    bytes: int


def export_stream(context: Context, target: Target, out: IO[bytes], compression: str = "") -> Exported:
    """Writes a tar of what is at and below the target's path, with names from there."""
    with context.repository(target) as repository:
        commit_id = context.resolve(repository, target).commit
        tree = TreeReader(repository.objects, commit_id)
        found = found_entries(tree, target)
        write_tar(tree, found, out, compression)
        return exported(commit_id, found)


def write_tar(tree: TreeReader, found: Found, out: IO[bytes], compression: str) -> None:
    """A tar of what was found in the tree."""
    mode: Any = f"w|{compression}"
    with tarfile.open(fileobj=out, mode=mode, format=tarfile.PAX_FORMAT) as tar:
        for name, entry, pieces in contents_of(tree, found):
            info = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
            info.mtime = tree.commit.time_ms // 1000
            info.mode = 0o644 if entry.kind is Kind.FILE else 0o755
            if entry.kind is Kind.SYMLINK:
                info.type, info.linkname = tarfile.SYMTYPE, (entry.target or b"").decode()
            elif entry.kind is Kind.EMPTY_DIRECTORY:
                info.type = tarfile.DIRTYPE
            else:
                info.size = entry.size
            tar.addfile(info, _Pieces(pieces))


def export_tar(context: Context, target: Target, path: Path) -> Exported:
    """As `export_stream` into a file, which appears when it is whole, and replaces one that is there."""
    with (
        about(path),
        tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file,
    ):
        temporary = Path(file.name)
        try:
            done = export_stream(context, target, file, COMPRESSED.get(path.suffix, ""))
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return done


def export_folder(context: Context, target: Target, path: Path) -> Exported:
    """Writes a folder, which appears when it is whole. Raises `Conflict` if something is there."""
    with about(path):
        if os.path.lexists(path):
            raise Conflict(
                f"{show(os.fsencode(path))} is there already",
                subject=str(path),
                hint="name a folder that is not there",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            with context.repository(target) as repository:
                commit_id = context.resolve(repository, target).commit
                tree = TreeReader(repository.objects, commit_id)
                found = found_entries(tree, target)
                if any(entry.kind is Kind.SYMLINK for _, entry, _ in found):
                    tree.check_links(tree.links())
                links = _write(tree, found, temporary)
            for name, link in links:  # last, so that no file is written through one
                link_path = temporary / os.fsdecode(name)
                link_path.parent.mkdir(parents=True, exist_ok=True)
                link_path.symlink_to(os.fsdecode(link))
            temporary.chmod(0o755)
            temporary.rename(path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return exported(commit_id, found)


Found = list[tuple[bytes, Entry, Location | None]]


def found_entries(tree: TreeReader, target: Target) -> Found:
    """What is at and below the target's path: each with its name from there, and where it lies."""
    path = clean_path(target.path)
    found = [
        (entry.path[len(path) :].lstrip(b"/") or path.rpartition(b"/")[2], entry, location)
        for entry, location in tree.below(path)
    ]
    if path and not found:
        raise NotFound(
            f"{show(path)} is not in {Target(target.dataset, target.rev)}",
            subject=str(target),
            hint="dsv ls lists the paths",
        )
    return found


def contents_of(tree: TreeReader, found: Found) -> Iterator[tuple[bytes, Entry, Iterator[bytes]]]:
    """Each with its content in checked pieces."""
    wanted = [Wanted(entry, where) for _, entry, where in found if entry.is_file]
    files = Fetcher(tree.objects, tree.commit.dataset).files(wanted)
    for name, entry, _ in found:
        if entry.is_file:
            _, pieces = next(files)
            yield name, entry, iter(map(bytes, pieces))
        else:
            yield name, entry, iter(())


def _write(tree: TreeReader, found: Found, root: Path) -> list[tuple[bytes, bytes]]:
    """Writes files and folders, and gives the symlinks."""
    links: list[tuple[bytes, bytes]] = []
    for name, entry, pieces in contents_of(tree, found):
        whole = root / os.fsdecode(name)
        if entry.kind is Kind.SYMLINK:
            links.append((name, entry.target or b""))
        elif entry.kind is Kind.EMPTY_DIRECTORY:
            whole.mkdir(parents=True, exist_ok=True)
        else:
            whole.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o755 if entry.kind is Kind.EXECUTABLE else 0o644
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(whole, flags, mode), "wb") as file:
                for piece in pieces:
                    file.write(piece)
    return links


def exported(commit: CommitId, found: Found) -> Exported:
    """What was written, if all that was found was."""
    files = [entry for _, entry, _ in found if entry.is_file]
    return Exported(commit, len(found), len(files), sum(entry.size for entry in files))


class _Pieces:
    """A file to read from, of pieces that come one after the other."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = 1 << 20, /) -> bytes:
        found: list[bytes] = []
        while size:
            if not self._rest:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._rest = piece
            found.append(self._rest[:size])
            self._rest = self._rest[size:]
            size -= len(found[-1])
        return b"".join(found)
