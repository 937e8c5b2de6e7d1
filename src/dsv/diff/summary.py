"""Differences, summed by folder."""

from __future__ import annotations

import builtins
from collections.abc import Iterable

import msgspec
from msgspec.structs import fields

from dsv.diff.renames import Difference
from dsv.repo.tree.diff import What

ROOT = b"./"
"""The folder of paths that lie in none."""
OTHERS = b""
"""Stands for the folders that are not listed one by one."""


class Sums(msgspec.Struct):
    """The number of paths that differ in each way, and the bytes of the files among them."""

    added: int = 0
    removed: int = 0
    changed: int = 0
    """Paths with another content, mode or kind."""
    renamed: int = 0
    added_bytes: int = 0
    removed_bytes: int = 0
    changed_bytes: int = 0
    """Sizes after the change."""
    renamed_bytes: int = 0
    net_bytes: int = 0
    """Growth of all files together."""

    @property
    def paths(self) -> int:
        return self.added + self.removed + self.changed + self.renamed

    def add(self, other: Sums) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class FolderSums(msgspec.Struct, frozen=True):
    """A folder, with a slash at its end, and all that differs in and below it."""

    folder: builtins.bytes
    sums: Sums


class Summary:
    """Takes differences one by one. A renamed file counts in the folder that it is in now."""

    def __init__(self, found: Iterable[Difference] = ()) -> None:
        self._folders: dict[bytes, Sums] = {}
        for one in found:
            self.add(one)

    def add(self, one: Difference) -> None:
        before = 0 if one.before is None else one.before.size
        after = 0 if one.after is None else one.after.size
        sums = self._of(one.path)
        sums.net_bytes += after - before
        if one.what is What.ADDED:
            sums.added += 1
            sums.added_bytes += after
        elif one.what is What.REMOVED:
            sums.removed += 1
            sums.removed_bytes += before
        elif one.what is What.RENAMED:
            sums.renamed += 1
            sums.renamed_bytes += after
            sums.net_bytes += before
            self._of(one.old_path or b"").net_bytes -= before
        else:
            sums.changed += 1
            sums.changed_bytes += after

    def add_files(self, paths: Iterable[bytes], sizes: Iterable[int]) -> None:
        """Paths that were added, a million of them in a second: without a difference for each."""
        folder, sums = None, Sums()
        for path, size in zip(paths, sizes, strict=True):
            now = path[: path.rfind(b"/") + 1]
            if now != folder:
                folder, sums = now, self._of(path)
            sums.added += 1
            sums.added_bytes += size
            sums.net_bytes += size

    @property
    def total(self) -> Sums:
        total = Sums()
        for sums in self._folders.values():
            total.add(sums)
        return total

    def by_folder(self, depth: int | None = None, most: int | None = None) -> list[FolderSums]:
        """Return a row for each folder `depth` levels below the root, by name; None: the level at which the folders
        part.

        most: with more folders than this the ones with the fewest differences share the last row, `OTHERS`.
        """
        if depth is None:
            depth = _common_depth(self._folders) + 1
        rows: dict[bytes, Sums] = {}
        for folder, sums in self._folders.items():
            rows.setdefault(_cut(folder, depth), Sums()).add(sums)
        if most is None or len(rows) <= most:
            return [FolderSums(folder, rows[folder]) for folder in sorted(rows)]
        largest = sorted(rows, key=lambda folder: (-rows[folder].paths, folder))
        rest = Sums()
        for folder in largest[most - 1 :]:
            rest.add(rows[folder])
        shown = sorted(largest[: most - 1])
        return [*(FolderSums(folder, rows[folder]) for folder in shown), FolderSums(OTHERS, rest)]

    def _of(self, path: bytes) -> Sums:
        folder = path[: path.rfind(b"/") + 1]
        sums = self._folders.get(folder)
        if sums is None:
            sums = self._folders[folder] = Sums()
        return sums


def _common_depth(folders: Iterable[bytes]) -> int:
    common: list[bytes] | None = None
    for folder in folders:
        parts = folder.split(b"/")[:-1]
        if common is None:
            common = parts
        while parts[: len(common)] != common:
            common = common[:-1]
    return len(common or ())


def _cut(folder: bytes, depth: int) -> bytes:
    parts = folder.split(b"/")[:-1][:depth]
    return b"".join(part + b"/" for part in parts) or ROOT
