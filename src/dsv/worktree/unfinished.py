"""Pulls, clones and restores that have begun and not ended, so that what they wrote is not taken for anybody's work.

A file below `.dsv` names them. It is durable before the first file of the workspace is written, and goes once a
commit is the base. Until then a path that is as one of them wanted it counts as unchanged: dsv wrote it, or somebody
did the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from dsv.errors import DsvError, IntegrityError
from dsv.fs.descent import Descent, split
from dsv.fs.errors import about
from dsv.fs.files import read_file, replace_file
from dsv.fs.folders import sync_folder
from dsv.model.diff import Change, difference
from dsv.model.entry import Entry, Kind
from dsv.model.ids import CommitId
from dsv.model.path_set import PathSet, folders_above
from dsv.worktree.folder import DIRECTORY, KEPT, OWN_SAME, Folder
from dsv.worktree.state_updates import NameIndex
from dsv.worktree.status import hash_file
from dsv.worktree.workspace_scan import WorkspaceScan, pending_at


@dataclass(frozen=True, slots=True)
class Begun:
    """A command on its way from `base` (None: from nothing) to `commit`.

    paths: those it is about; none for the whole workspace. less: paths that were restored since, and are what whoever
    restored them wanted.
    """

    command: str
    base: CommitId | None
    commit: CommitId
    paths: tuple[bytes, ...] = ()
    less: tuple[bytes, ...] = ()

    def concerning(self, changes: Iterable[Change]) -> Iterator[Change]:
        """Those of the changes from `base` to `commit` that the command was to make."""
        chosen, less = PathSet.of(self.paths), PathSet.of(self.less)
        for change in changes:
            if chosen.touches(change.path) and not (self.less and change.path in less):
                yield change

    @property
    def finish(self) -> str:
        """The command line that leads to its end."""
        if self.command != "dsv restore":
            return "dsv pull"
        paths = "".join(" " + (path or b".").decode("utf-8", "backslashreplace") for path in self.paths)
        return f"dsv restore{paths} --from @{str(self.commit)[:12]}"


class _Record(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    command: str
    commit: str
    base: str | None = None
    paths: list[str] = []
    less: list[str] = []


_RECORDS = msgspec.json.Decoder(list[_Record])


def read_begun(path: Path) -> tuple[Begun, ...]:
    """All that have begun, oldest first. Raises `IntegrityError` for a file that says nothing of the sort."""
    try:
        with about(path):
            try:
                data = read_file(path)
            except FileNotFoundError:
                return ()
        return tuple(_decoded(record) for record in _RECORDS.decode(data))
    except (msgspec.DecodeError, UnicodeError):
        pass
    except DsvError as error:
        if error.exit_code != 2:
            raise
    raise IntegrityError(
        f"{path} does not say which commands were interrupted here",
        subject=str(path),
        hint=f"remove it: what an interrupted pull wrote then shows as your change; rm {path}",
    )


def write_begun(path: Path, begun: Sequence[Begun]) -> None:
    """Durable when it returns."""
    with about(path):
        if begun:
            records = [_encoded(each) for each in dict.fromkeys(begun)]
            replace_file(path, msgspec.json.format(msgspec.json.encode(records)) + b"\n")
        elif path.exists():
            path.unlink(missing_ok=True)
            sync_folder(path.parent)


def unfinished(begun: Sequence[Begun], base: CommitId | None) -> tuple[Begun, ...]:
    """Those that still matter in a workspace with this base.

    Whichever has become the base has ended, and wrote over all that earlier ones had left.
    """
    left: list[Begun] = []
    for each in begun:
        if each.base == each.commit:
            continue
        if each.commit == base and not each.paths:
            left.clear()
        else:
            left.append(each)
    return tuple(left)


def restored(begun: Iterable[Begun], paths: tuple[bytes, ...]) -> tuple[Begun, ...]:
    """What is left of them once the paths are as somebody asked for."""
    found: list[Begun] = []
    for each in begun:
        less = PathSet.of({*each.less, *paths})
        if not less.whole and not (each.paths and all(path in less for path in each.paths)):
            found.append(replace(each, less=less.paths))
    return tuple(found)


def take_written(scan: WorkspaceScan, changes: Iterable[Change]) -> dict[bytes, Entry | None]:
    """Finds paths that are as what has begun wanted them, gives what they are, and lets the scan say that these are
    unchanged.

    changes: what the commands were to change, of paths at which the base still has the `before`. The scan is exact;
    files are read whose stats can't tell. Folders that the changes lead through may have been left empty.
    """
    found: dict[bytes, Entry | None] = {}
    folders: set[bytes] = set()
    with about(scan.root), Descent(scan.root) as descent:
        taker = _Taker(scan, descent)
        for change in changes:
            if change.path not in found and difference(change.before, change.after) is not None:
                if taker.take(change):
                    found[change.path] = change.after
                folders.update(folders_above(change.path))
        for path in folders:
            if found.get(path) is None and taker.take_empty(path):
                found[path] = Entry(path, Kind.EMPTY_DIRECTORY)
    scan.stands_to_more_than_the_base()
    return found


class _Taker:
    def __init__(self, scan: WorkspaceScan, descent: Descent) -> None:
        self._scan = scan
        self._state = scan.state
        self._descent = descent
        self._names = NameIndex(scan.state)

    def take(self, change: Change) -> bool:
        path, wanted = change.path, change.after
        folder_path, name = split(path)
        at = self._names.find(folder_path, name)
        folder = None if at is None else self._state.edit(folder_path)
        if wanted is None:
            taken = folder is None or at is None or not self._is_entry(folder, at, path)
        elif folder is None or at is None:
            return False
        elif wanted.kind is Kind.EMPTY_DIRECTORY:
            return self.take_empty(path)
        else:
            taken = folder.kinds[at] == wanted.kind and self._is_file(folder, at, name, change)
        if taken:
            self._state.gone.discard(path)
        return taken

    def take_empty(self, path: bytes) -> bool:
        """Whether it is an empty folder that the base has not."""
        folder = self._state.folder(path)
        if folder is None or not folder.is_empty or folder.own == OWN_SAME:
            return False
        self._state.edit(path).own = OWN_SAME
        self._state.gone.discard(path)
        return True

    def _is_entry(self, folder: Folder, at: int, path: bytes) -> bool:
        if folder.kinds[at] == DIRECTORY:
            below = self._state.folder(path)
            return below is not None and below.is_empty
        return folder.kinds[at] in KEPT

    def _is_file(self, folder: Folder, at: int, name: bytes, change: Change) -> bool:
        wanted = change.after
        assert wanted is not None
        if wanted.is_file and folder.size_on_disk(at) != wanted.size:
            return False
        item = pending_at(folder, at, name)
        self._scan.relate(item, wanted)  # before it is read: then a large file's recipe is known
        if item.known is None and hash_file(self._scan, item, self._descent) is not None:
            item.known = None
        if item.known is not None and difference(item.known, wanted) is None:
            return True
        self._scan.relate(item, change.before)
        return False


def _encoded(begun: Begun) -> _Record:
    return _Record(
        begun.command,
        str(begun.commit),
        None if begun.base is None else str(begun.base),
        [path.decode() for path in begun.paths],
        [path.decode() for path in begun.less],
    )


def _decoded(record: _Record) -> Begun:
    return Begun(
        record.command,
        None if record.base is None else CommitId.parse(record.base),
        CommitId.parse(record.commit),
        tuple(path.encode() for path in record.paths),
        tuple(path.encode() for path in record.less),
    )
