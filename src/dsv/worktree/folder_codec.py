"""Folders as bytes, for the state file. The bytes are checked as a whole before they come here."""

from __future__ import annotations

import struct
from array import array

from dsv.worktree.folder import ROW, Folder

# path and names in bytes, names in number, recipes, targets; own mark, digest of the ignore rules
_HEADER = struct.Struct("<HIIIIBQ")
_RECIPE = struct.Struct("<I32s")
_TARGET = struct.Struct("<IH")


def encode_folder(folder: Folder) -> bytes:
    header = _HEADER.pack(
        len(folder.path),
        len(folder.names),
        len(folder),
        len(folder.recipes),
        len(folder.targets),
        folder.own,
        folder.rules,
    )
    pieces: list[bytes | bytearray] = [
        header,
        folder.path,
        folder.names,
        folder.rows,
        folder.kinds,
        folder.marks,
    ]
    pieces += [folder.sizes.tobytes(), folder.ids]
    pieces += [_RECIPE.pack(at, recipe) for at, recipe in folder.recipes.items()]
    for at, target in folder.targets.items():
        pieces += [_TARGET.pack(at, len(target)), target]
    return b"".join(pieces)


def split_folders(data: bytes) -> list[tuple[bytes, bytes]]:
    """The (path, encoded folder) of folders that were encoded one behind the other. Raises `ValueError`."""
    found: list[tuple[bytes, bytes]] = []
    offset = 0
    while offset < len(data):
        try:
            path_size, names_size, count, recipes, targets, _, _ = _HEADER.unpack_from(data, offset)
            path = data[offset + _HEADER.size : offset + _HEADER.size + path_size]
            end = offset + _HEADER.size + path_size + names_size
            end += count * (ROW.size + 1 + 1 + 8 + 32) + recipes * _RECIPE.size
            for _ in range(targets):
                end += _TARGET.size + _TARGET.unpack_from(data, end)[1]
        except struct.error as error:
            raise ValueError("a folder is cut short") from error
        if end > len(data):
            raise ValueError("a folder is cut short")
        found.append((path, data[offset:end]))
        offset = end
    return found


def decode_folder(data: bytes) -> Folder:
    """A folder from bytes that `split_folders` gave."""
    path_size, names_size, count, recipes, targets, own, rules = _HEADER.unpack_from(data)
    position = _HEADER.size

    def take(size: int) -> bytes:
        nonlocal position
        position += size
        return data[position - size : position]

    folder = Folder(take(path_size), take(names_size), own=own, rules=rules)
    folder.rows = bytearray(take(count * ROW.size))
    folder.kinds = bytearray(take(count))
    folder.marks = bytearray(take(count))
    folder.sizes = array("Q", take(count * 8))
    folder.ids = bytearray(take(count * 32))
    for _ in range(recipes):
        at, recipe = _RECIPE.unpack(take(_RECIPE.size))
        folder.recipes[at] = recipe
    for _ in range(targets):
        at, size = _TARGET.unpack(take(_TARGET.size))
        folder.targets[at] = take(size)
    return folder
