"""What killed processes have left is removed, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cache.places import make_root, place, publish

from dsv.cache import cleanup
from dsv.cache.evict import evict
from dsv.cache.fill.directory import PREFIX
from dsv.cache.policy import EvictionRequest
from dsv.cache.settings import CacheSettings
from dsv.files.attributes import PROBE

ALL = EvictionRequest(everything=True)


def test_the_leftovers_of_a_process_that_died_asking_for_the_time_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_root(tmp_path / "cache")
    root.write_once(root.binding("d"), b"")
    folders = [
        root.path,
        root.room.path,
        root.path / "d",
        root.dot.path / "fill/d",
        root.dot.path / "claims/d",
    ]
    for folder in folders:
        folder.mkdir(exist_ok=True)
        (folder / f"{PROBE}0123").touch()
    (root.path / "d/mine").touch()
    evict(root, CacheSettings(), ALL)
    assert all(any(folder.iterdir()) for folder in folders), "it may be at work"
    monkeypatch.setattr(cleanup, "ABANDONED", -1.0)
    evict(root, CacheSettings(), ALL)
    assert [folder.exists() for folder in folders] == [True, True, True, False, False]
    assert list(root.path.rglob(f"{PROBE}*")) == []


def test_a_fills_folder_with_nothing_but_such_leftovers_is_removed(tmp_path: Path) -> None:
    root = make_root(tmp_path / "cache")
    home = root.fill(place())
    root.make_directory(home)
    (home / f"{PROBE}0123").path.touch()
    evict(root, CacheSettings(), EvictionRequest())
    assert list((root.dot.path / "fill").iterdir()) == []


@pytest.mark.parametrize("plan", [b"a plan of a newer dsv", b'{"version": 2}'])
def test_a_fill_of_a_newer_dsv_is_left_to_it(tmp_path: Path, plan: bytes) -> None:
    root = make_root(tmp_path / "cache")
    publish(root, place(1), {"a": b"1"})
    folder = root.fill(place(2)) / f"{PREFIX}0123"
    root.make_directory(folder / "tree")
    root.write_once(folder / "plan", plan)
    assert [one.place for one in evict(root, CacheSettings(), ALL).evicted] == [place(1)]
    assert (folder / "plan").path.read_bytes() == plan
    assert (folder / "tree").is_dir()
