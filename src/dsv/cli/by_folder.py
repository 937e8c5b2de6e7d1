"""Many changed paths, told by the folder: what fits on a screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

ROWS = 20
"""Folders that are told one by one; the rest is one row."""


@dataclass(slots=True)
class Row:
    """A folder and all below it. `bytes` is the size of what is there now, so removed paths have none."""

    folder: bytes
    changes: Counter[str] = field(default_factory=Counter)
    bytes: int = 0

    def add(self, other: Row) -> None:
        self.changes.update(other.changes)
        self.bytes += other.bytes


def by_folder(changes: Sequence[tuple[bytes, str]], size: Callable[[bytes], int]) -> list[Row]:
    """A row for each folder at the level where the paths part, in the order of their names.

    Paths that lie beside these folders are in the row of the folder above, which ends in a slash too; the row of the
    workspace itself has the name `./`. With more than `ROWS` folders, the ones with fewest changes share the last row,
    whose name is empty.
    """
    above = _common_folder(path for path, _ in changes)
    rows: dict[bytes, Row] = {}
    for path, change in changes:
        name, slash, _ = path[len(above) :].partition(b"/")
        folder = above + name + b"/" if slash else above or b"./"
        row = rows.setdefault(folder, Row(folder))
        row.changes[change] += 1
        if change != "removed":
            row.bytes += size(path)
    if len(rows) <= ROWS:
        return sorted(rows.values(), key=lambda row: row.folder)
    largest = sorted(rows.values(), key=lambda row: row.changes.total(), reverse=True)
    rest = Row(b"")
    for row in largest[ROWS - 1 :]:
        rest.add(row)
    return [*sorted(largest[: ROWS - 1], key=lambda row: row.folder), rest]


def _common_folder(paths: Iterable[bytes]) -> bytes:
    """The deepest folder that all paths are in, with its slash; empty for the workspace itself."""
    found: bytes | None = None
    for path in paths:
        if found is None:
            found = path[: path.rfind(b"/") + 1]
        while not path.startswith(found):
            found = found[: found.rfind(b"/", 0, -1) + 1]
    return found or b""
