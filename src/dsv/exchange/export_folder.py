"""An export at a path of this machine. Many files are written by several processes.

`python -m dsv.exchange.export_folder` is one of them: it writes the files of a slice. If it fails, this process writes
that slice again, and has the error.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import accumulate, pairwise
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

from blake3 import blake3

from dsv.errors import DsvError, IntegrityError
from dsv.exchange.export import Selection, taken, write_tar
from dsv.files.descent import Descent, remove_tree, split
from dsv.files.descriptors import Opened
from dsv.files.errors import about
from dsv.files.folders import check_folding
from dsv.files.process import processors, read_order, start_program
from dsv.files.small_files import write_sparse
from dsv.files.system import reuse_freed_memory
from dsv.format.tree import Entry, Kind
from dsv.repo.repository import Repository
from dsv.transfer.download import NotItsFile
from dsv.values.ids import FileId
from dsv.values.paths import show

OpenRepository = Callable[[], Repository]
"""Opens the repository in a further process. It can be pickled."""
_PATH = 64 << 10
"""Bytes that take as long to write as a path without any."""
_EACH = 16_000 * _PATH
"""What is worth one more process, in such bytes."""
_START = 4_000 * _PATH
"""What this process writes while another one starts."""
_MOST = 8
_PROGRAM = "dsv.exchange.export_folder"
_DONE = b"done"
"""Its output when all is written: its exit code is 0 too if this process was started to ignore the end of children."""
_ALONE: Any = {"stdout": PIPE, "stderr": DEVNULL, "process_group": 0}
"""In its own process group it does not get a Ctrl-C that is meant for its parent."""
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)


def export_path(
    selection: Selection, to: str, open_repository: OpenRepository | None, tags: TagFolders | None = None
) -> None:
    """Write a tar, a folder, or the one file of the target. It appears when it is whole.

    tags: a folder gets read-only files, some of them as links to files of earlier tags.

    A tar is recognized by its name, and may replace a file. One file keeps its name in a folder that exists
    or whose name ends with a slash. open_repository: None if only this process can read the store. Raises `Conflict`
    if anything else is in the way.
    """
    path, is_tar = Path(to), selection.becomes_tar(to)
    with about(path):
        if selection.is_one_file and not is_tar and (to.endswith("/") or path.is_dir()):
            path /= os.fsdecode(selection.found[0][0])
        if os.path.lexists(path) and (not is_tar or path.is_dir()):
            raise taken(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            if is_tar:
                with (temporary / "tar").open("xb") as file:
                    write_tar(selection, file, path.name, str(temporary))
                    os.fchmod(file.fileno(), 0o644)
                    os.fsync(file.fileno())
                put(temporary / "tar", path, replace=True)
            else:
                check_folding(path.parent, temporary, (name for name, _, _ in selection.found))
                whole = temporary / "folder"
                whole.mkdir()
                _write_folder(selection, whole, open_repository if tags is None else None, tags)
                if selection.damaged and (selection.is_one_file or not selection.found):
                    return
                put(whole / os.fsdecode(selection.found[0][0]) if selection.is_one_file else whole, path)
        finally:
            with suppress(OSError):
                remove_tree(temporary)


def put(whole: Path, path: Path, *, replace: bool = False) -> None:
    """Give a file or a folder its name. Raises `Conflict` if another export was first."""
    try:
        if replace or (whole.is_dir() and not whole.is_symlink()):
            whole.replace(path)
        else:
            os.link(whole, path, follow_symlinks=False)
    except OSError as error:
        if error.errno in _TAKEN:
            raise taken(path) from None
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS) or os.path.lexists(path):
            raise
        whole.replace(path)  # a file system without hard links


def has_content(path: Path, entry: Entry) -> bool:
    """Return whether this is a file with the content of the entry."""
    is_file = path.is_file() and not path.is_symlink()
    return is_file and blake3().update_mmap(path).digest() == entry.file_id


def _write_folder(
    selection: Selection, root: Path, open_repository: OpenRepository | None, tags: TagFolders | None
) -> None:
    """Write all paths below an empty folder."""
    links = [(path, entry.target or b"") for path, entry, _ in selection.found if entry.kind is Kind.SYMLINK]
    if links:
        selection.tree.check_links(selection.tree.links())
    ends = [*accumulate(entry.size + _PATH for _, entry, _ in selection.found)] or [0]
    count = 1 if open_repository is None or selection.skips else min(processors(), ends[-1] // _EACH, _MOST)
    slices = [*pairwise(_bounds(ends, max(1, count)))] or [(0, 0)]
    order = open_repository, selection.commit, selection.target, len(selection.found), root
    with ExitStack() as stack:
        others: list[tuple[int, int, Popen[bytes]]] = []
        with suppress(OSError):  # no process or memory is left: this process writes what is left alone
            for start, stop in slices[1:]:
                process = start_program(_PROGRAM, (*order, start, stop), **_ALONE)
                stack.callback(_end, process)
                others.append((start, stop, process))
        _write_files(selection, root, *slices[0], tags=tags)
        for start, stop in slices[1 + len(others) :]:
            _write_files(selection, root, start, stop)
        for start, stop, process in others:
            assert process.stdout is not None
            said = process.stdout.read()
            if process.wait() or said != _DONE:
                _write_files(selection, root, start, stop, again=True)
    with Descent(root) as descent:
        for path, link in links:  # last, so that no file is written through one
            above, name = split(path)
            os.symlink(link, name, dir_fd=descent.at(above, make=True))
    root.chmod(0o755)


def _bounds(ends: list[int], count: int) -> list[int]:
    """Return where the slices begin, and the end of the last one. The first is larger. Pure."""
    each = (ends[-1] + (count - 1) * _START) // count
    targets = [each + at * (each - _START) for at in range(count - 1)]
    return sorted({0, *(bisect_right(ends, target) for target in targets), len(ends)})


def _write_files(
    selection: Selection,
    root: Path,
    start: int,
    stop: int,
    *,
    again: bool = False,
    tags: TagFolders | None = None,
) -> None:
    """Write files and empty folders. again: another process may have written some."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with Descent(root) as descent:
        found = selection.found[start:stop]
        found = [each for each in found if tags is None or tags.lack(each[1], each[0], descent)]
        for path, entry, pieces in selection.contents(found, views=True, by_file=True):
            above, name = split(path)
            if entry.kind is Kind.SYMLINK:
                continue
            if entry.kind is Kind.EMPTY_DIRECTORY:
                descent.at(path, make=True)
                continue
            folder = descent.at(above, make=True)
            if again:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
            mode = (0o755 if entry.kind is Kind.EXECUTABLE else 0o644) & (0o777 if tags is None else 0o555)
            with Opened(os.open(name, flags, mode, dir_fd=folder)) as descriptor:
                try:
                    try:
                        write_sparse(descriptor, pieces)
                    except NotItsFile:
                        os.truncate(descriptor, os.lseek(descriptor, 0, os.SEEK_SET))
                        only = [each for each in found if each[1] is entry]
                        write_sparse(descriptor, next(selection.contents(only))[2])
                except IntegrityError as error:
                    selection.skip(error, entry.path)
                    os.unlink(name, dir_fd=descent.at(above))


class TagFolders(dict[tuple[FileId | None, Kind], Path]):
    """The files of exported tags, to which those of later tags become links."""

    def write(self, selection: Selection, to: Path) -> None:
        """Write a folder, or compare the files of the one that is there. Raises `IntegrityError` if one differs."""
        if not (is_there := os.path.lexists(to)):
            export_path(selection, f"{to}/", None, self)
        for name, entry, _ in selection.found:
            if entry.is_file and entry.path not in selection.damaged:
                path = to / os.fsdecode(name)
                if is_there and not has_content(path, entry):
                    text = f"{show(bytes(path))} is not as in the tag"
                    selection.skip(IntegrityError(text, hint=f"move {to} away"), entry.path)
                elif path.stat().st_mode & 0o300 == (0o100 if entry.kind is Kind.EXECUTABLE else 0):
                    self[entry.file_id, entry.kind] = path

    def lack(self, entry: Entry, path: bytes, descent: Descent) -> bool:
        """Make a link to an equal file. Return True if there is none, or it can't have one more link."""
        above, name = split(path)
        with suppress(KeyError, OSError):
            source = self[entry.file_id, entry.kind]
            os.link(source, name, dst_dir_fd=descent.at(above, make=True), follow_symlinks=False)
            return False
        return True


def _end(process: Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def main() -> int:
    reuse_freed_memory()
    open_repository, commit, target, count, root, start, stop = read_order()
    threading.Thread(target=_watch_input, daemon=True).start()
    try:
        selection = Selection(open_repository().objects, commit, target, skip_damaged=False, strict=False)
        if len(selection.found) != count:  # a file was erased meanwhile
            return 1
        _write_files(selection, root, start, stop)
    except (DsvError, OSError):
        return 1
    os.write(1, _DONE)
    return 0


def _watch_input() -> None:
    """End this process after its parent."""
    while os.read(0, 1 << 16):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
