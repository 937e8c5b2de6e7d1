"""Stores in a folder, and what the independent reader must do with a bad one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dsv import reader
from dsv.format import keys
from dsv.format.records import FormatEntry, RefEntry
from dsv.reader import StoreError
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, DatasetName
from tests.golden.building import name_of

SET = DatasetName.parse("set")


def stored(folder: Path, found: Mapping[str, bytes]) -> Path:
    for key, data in found.items():
        path = folder / "store" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / "store"


def named(commit: CommitId | None) -> dict[str, bytes]:
    """A store's format, and a branch `main` of dataset `set` that names this commit."""
    entry = RefEntry(commit, False, Nonce(bytes(16)), 0, "", "")
    return {
        keys.format_key(0): FormatEntry(name_of("s").store, Nonce(bytes(16)), 0, "", "").encode(),
        keys.branch_key(SET, MAIN, 0): entry.encode(),
    }


def refused(folder: Path, found: Mapping[str, bytes], message: str, target: str = "set") -> None:
    """The reader names the fault, and leaves nothing behind."""
    store = stored(folder, found)
    (folder / "there").mkdir()
    with pytest.raises(StoreError, match=message):
        reader.restore(store, target, folder / "there" / "out")
    assert list((folder / "there").iterdir()) == []
