from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from dsv.files import descent
from dsv.files.descent import Descent, remove_tree


def test_a_path_that_is_gone_when_it_is_opened_again_keeps_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upper folders of a deep path are closed, and opened again on the way back."""
    monkeypatch.setattr(descent, "_MAX_OPEN", 4)
    (tmp_path / "/".join("abcdefgh")).mkdir(parents=True)
    with Descent(tmp_path) as folders:
        folders.at(b"a/b/c/d/e/f/g/h")
        (tmp_path / "a/b/c").rename(tmp_path / "a/b/C")
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(FileNotFoundError):
            folders.at(b"a/b/c/d")
        assert len(os.listdir("/proc/self/fd")) == before - 4


def test_a_deep_tree_is_removed_in_the_memory_of_a_few_paths(tmp_path: Path) -> None:
    name, depth = b"x" * 200, 600
    here = os.open(tmp_path, os.O_RDONLY)
    for at in range(depth):
        os.mkdir(b"tree" if not at else name, dir_fd=here)
        below = os.open(b"tree" if not at else name, os.O_RDONLY, dir_fd=here)
        os.close(os.open(b"file", os.O_CREAT | os.O_WRONLY, dir_fd=below))
        os.close(here)
        here = below
    os.close(here)
    tracemalloc.start()
    try:
        remove_tree(tmp_path / "tree")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert list(tmp_path.iterdir()) == []
    assert peak < 20 * depth * len(name)  # all paths together have depth / 2 times that of the longest
