"""What a tree holds: one entry for each path."""

from __future__ import annotations

import enum
from typing import NamedTuple

from dsv.model.ids import FileId, RecipeId


class Kind(enum.IntEnum):
    """What a path is. Nothing else of a mode is kept: umasks differ."""

    FILE = 0
    EXECUTABLE = 1
    SYMLINK = 2
    EMPTY_DIRECTORY = 3


class Entry(NamedTuple):
    """One path of a tree. A named tuple, as millions are made.

    path: UTF-8 bytes as they stand, relative, parts joined by `/`.
    size: bytes of the content; 0 for symlinks and directories.
    file_id: BLAKE3 of the content; None for symlinks and directories.
    recipe_id: for files above `chunking.SINGLE_CHUNK_MAX` only.
    target: a symlink's target, as it stands; None otherwise.
    """

    path: bytes
    kind: Kind
    size: int = 0
    file_id: FileId | None = None
    recipe_id: RecipeId | None = None
    target: bytes | None = None

    @property
    def is_file(self) -> bool:
        return self.kind <= Kind.EXECUTABLE


def sort_key(path: bytes) -> bytes:
    """Orders paths by their components, bytewise: NUL is in no path and below every other byte."""
    return path.replace(b"/", b"\0")
