"""What a workspace has at single paths."""

from __future__ import annotations

import os
import stat

from dsv.errors import Conflict
from dsv.format.tree import Entry, Kind
from dsv.fs.descent import Descent, split
from dsv.transfer.file_reader import Problem
from dsv.values.ids import FileId
from dsv.values.paths import folders_above
from dsv.workspace.scan.folder import DIRECTORY, IGNORED, KEPT, OWN_SAME, Folder, Relation
from dsv.workspace.scan.result import WorkspaceScan, pending_at
from dsv.workspace.scan.state import NameIndex
from dsv.workspace.status import hash_file


class Disk:
    """What the workspace has at single paths. Answers from the state; reads a file if only its content can tell."""

    def __init__(self, scan: WorkspaceScan, descent: Descent) -> None:
        self._scan = scan
        self._state = scan.state
        self._descent = descent
        self.names = NameIndex(scan.state)
        self._clear_above = b""  # a folder that is reached through folders alone

    def entry(self, path: bytes) -> Entry | None:
        """What a tree would hold for the path; None if it is absent, or nothing that a tree can hold.

        Raises `Conflict` for a file that can't be read.
        """
        folder, at = self._find(path)
        if folder is None or at is None:
            return None
        if folder.kinds[at] == DIRECTORY:
            below = self._state.folder(path)
            return Entry(path, Kind.EMPTY_DIRECTORY) if below is not None and below.is_empty else None
        if folder.kinds[at] not in KEPT:
            return None
        known = folder.known_entry(at, path)
        return known if known is not None else self._read(folder, at, split(path)[1])

    def content(self, entry: Entry) -> bytes | None:
        """What a file holds, if that still is the content of the entry."""
        above, name = split(entry.path)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=self._descent.at(above))
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(entry.size + 1)
        return data if FileId.hash(data) == entry.file_id else None

    def row(self, path: bytes) -> bytes | None:
        """The stat of a file or symlink; None if there is none, or none that is remembered."""
        folder, at = self._find(path)
        if folder is None or at is None or folder.kinds[at] not in KEPT:
            return None
        return folder.row(at)

    def is_folder(self, path: bytes) -> bool:
        folder, at = self._find(path)
        return folder is not None and at is not None and _is_folder(folder, at)

    def hidden_by(self, path: bytes) -> tuple[bytes, str] | None:
        """A path, at or above this one, below which no scan sees what is written, and the reason."""
        for way in (path, *folders_above(path)):
            folder, at = self._find(way)
            if folder is not None and at is not None and folder.kinds[at] == IGNORED:
                return way, "is left out by .dsvignore"
            if self._scan.withheld is not None and way in self._scan.withheld:
                return way, "can't be read"
        return None

    def foreign_above(self, path: bytes) -> bytes | None:
        """A path, this one or one above it, that is neither a folder nor something that the base has."""
        way = path
        while True:
            folder, at = self._find(way)
            if folder is not None and at is not None and not _is_folder(folder, at):
                of_base = folder.kinds[at] in KEPT and folder.relation(at) is not Relation.ABSENT
                if not of_base and (way != path or folder.kinds[at] not in KEPT):
                    return way
            way = split(way)[0]
            if not way or way == self._clear_above:
                self._clear_above = split(path)[0]
                return None

    def foreign_below(self, path: bytes) -> bytes | None:
        """The first thing in a folder that the base does not have."""
        inside = path + b"/"
        for each in sorted(self._state.paths()):
            if each != path and not each.startswith(inside):
                continue
            folder = self._state.folder(each)
            assert folder is not None
            if each != path and folder.is_empty and folder.own != OWN_SAME and each not in self._state.gone:
                return each
            names = folder.name_list()
            unseen = self._names_on_disk(each).difference(names)
            if unseen:  # such as dsv's and git's own files, which no scan looks at
                return folder.path_of(min(unseen))
            for at, name in enumerate(names):
                kind = folder.kinds[at]
                if kind != DIRECTORY and (kind not in KEPT or folder.relation(at) is Relation.ABSENT):
                    return folder.path_of(name)
        return None

    def _names_on_disk(self, path: bytes) -> set[bytes]:
        try:
            with os.scandir(self._descent.at(path)) as found:
                return {os.fsencode(each.name) for each in found}
        except OSError:  # it is gone; the writer looks again
            return set()

    def relate(self, path: bytes, base: Entry | None) -> None:
        """Sets how a file or symlink stands to the base, which has `base` there."""
        folder, at = self._find(path)
        if folder is not None and at is not None:
            self._scan.relate(pending_at(folder, at, split(path)[1]), base)

    def _find(self, path: bytes) -> tuple[Folder | None, int | None]:
        parent, name = split(path)
        at = self.names.find(parent, name)
        return (None, None) if at is None else (self._state.edit(parent), at)

    def _read(self, folder: Folder, at: int, name: bytes) -> Entry | None:
        item = pending_at(folder, at, name)
        problem = hash_file(self._scan, item, self._descent)
        if isinstance(problem, Problem):
            raise Conflict(
                f"{problem}", subject=item.path.decode("utf-8", "backslashreplace"), hint="dsv status"
            )
        return item.known


def _is_folder(folder: Folder, at: int) -> bool:
    if folder.kinds[at] == IGNORED:
        mode = int.from_bytes(folder.row(at)[-4:], "little")
        return stat.S_ISDIR(mode)
    return folder.kinds[at] == DIRECTORY
