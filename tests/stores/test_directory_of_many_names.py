"""Folders of very many names, of which a caller mostly wants the first ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsv.stores import directory
from dsv.stores.directory import DirectoryStore
from tests.stores.opened import Opened


@pytest.mark.parametrize("count", [1, 3, 4, 8, 9, 40])
def test_the_first_of_many_names_come_before_all_are_sorted(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """A branch of a million moves is a folder of as many names, and its head is the first of them."""
    monkeypatch.setattr(directory, "_FIRST", 3)
    monkeypatch.setattr(directory, "_MANY", 8)
    store = opened(DirectoryStore(tmp_path))
    keys = sorted(f"a/{'xy'[number % 2]}{number * 37 % 101:03}" for number in range(count))
    for key in reversed(keys):
        store.put_if_absent(key, b"")
    assert [item.key for item in store.list("a/")] == keys
    assert [item.key for item in store.list("a/x")] == [key for key in keys if key.startswith("a/x")]
    assert next(iter(store.list("a/"))).key == keys[0]
    middle = keys[count // 2]
    assert [item.key for item in store.list("a/", start_after=middle)] == keys[count // 2 + 1 :]


class _Name(str):
    """A name that counts how often two are compared."""

    compared = 0

    def __lt__(self, other: str) -> bool:
        type(self).compared += 1
        return str.__lt__(self, other)


def test_the_first_name_costs_one_look_at_each(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(DirectoryStore(tmp_path))
    monkeypatch.setattr(directory, "_FIRST", 4)
    monkeypatch.setattr(directory, "_MANY", 64)
    names = [_Name(f"{number * 7919 % 10_007:05}") for number in range(10_007)]
    store.put_if_absent("a/00000", b"")
    monkeypatch.setattr(os, "listdir", lambda _: list(names))
    assert next(iter(store.list("a/"))).key == "a/00000"
    assert _Name.compared < 2 * len(names)
