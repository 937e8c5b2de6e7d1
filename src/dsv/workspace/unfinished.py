"""Commands that began to write files here and did not end, so that what they wrote is not taken for the user's work.

A file below `.dsv` names them. It is durable before the first file of the workspace is written, and is removed once a
commit is the base. Until then a path that is as one of the commands was to make it counts as unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from dsv.errors import DsvError, IntegrityError
from dsv.fs.errors import about
from dsv.fs.files import read_file, replace_file
from dsv.fs.folders import sync_folder
from dsv.values.ids import CommitId
from dsv.values.paths import PathSet

if TYPE_CHECKING:
    from dsv.repo.tree.diff import Change

SWITCH = "dsv switch "
"""The beginning of a switch's command; the branch follows."""


class Begun(msgspec.Struct, frozen=True):
    """A command that was interrupted while it changed the workspace from `base` (None: from nothing) to `commit`."""

    command: str
    base: CommitId | None
    commit: CommitId
    paths: tuple[bytes, ...] = ()
    """The paths concerned; empty for the whole workspace."""
    less: tuple[bytes, ...] = ()
    """Paths that the user has restored since."""

    def concerning(self, changes: Iterable[Change]) -> Iterator[Change]:
        """Return the changes from `base` to `commit` that the command was to make."""
        chosen, less = PathSet.of(self.paths), PathSet.of(self.less)
        for change in changes:
            if chosen.touches(change.path) and not (self.less and change.path in less):
                yield change

    @property
    def finish(self) -> str:
        """The command line that finishes it."""
        if self.command.startswith(SWITCH):
            return self.command
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
    """Return all that have begun, oldest first. Raises `IntegrityError` for a file that can't be decoded."""
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
    """Return the commands that have not ended in a workspace with this base.

    A command whose commit is the base has ended, and has written over whatever earlier ones had left.
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
    """Return the commands that are unfinished once the user has restored these paths."""
    found: list[Begun] = []
    for each in begun:
        less = PathSet.of({*each.less, *paths})
        if not less.whole and not (each.paths and all(path in less for path in each.paths)):
            found.append(replace(each, less=less.paths))
    return tuple(found)


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
