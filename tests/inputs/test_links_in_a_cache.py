"""Symlinks that a user of a shared cache put in place of folders: nothing is written or deleted behind them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.inputs.scene import FILES, Scene, ben, refused, visible, write
from tests.kit.people import read_folder


@pytest.mark.parametrize(
    "folder",
    [
        "",
        "trash",
        "tmp",
        "claims",
        "claims/set",
        "claims/set/*",
        "fill",
        "room",
        "datasets",
        "stores",
        "stores/*",
        "stores/*/objects",
        "stores/*/tracking",
    ],
)
def test_a_link_in_place_of_one_of_dsvs_own_folders(scene: Scene, shared: Path, folder: str) -> None:
    """Whoever evicts, from cron as root perhaps, would clear away what it leads to."""
    precious = scene.folder / "precious"
    write(precious, {"thesis.tex": b"years", "data/one": b"1", "0" * 24: b"2"})
    for path in (*precious.rglob("*"), precious):
        os.utime(path, (1e9, 1e9))
    whole = read_folder(precious)
    place = next((shared / ".dsv").glob(folder)) if folder else shared / ".dsv"
    aside = scene.folder / "aside"
    place.rename(aside)
    place.symlink_to(precious)
    person = ben(scene, shared)
    for arguments in (
        ["cached"],
        ["cache", "set@v1"],
        ["cache", "set"],
        ["evict"],
        ["evict", "--all"],
        ["evict", "set@v1"],
        ["hold", "set@v1"],
        ["release", "set@v1", "--everyone"],
        ["release", "set@v1"],
        ["cached", "--check"],
    ):
        refused(person(*arguments), 4, str(place), "symlink")
        assert read_folder(precious) == whole
    place.unlink()
    aside.rename(place)
    person.ok("release", "set@v1", "--everyone")
    person.ok("cache", "set", "-q")
    assert read_folder(precious) == whole


@pytest.mark.parametrize(
    "of", ["a dataset that is cached", "a dataset that is not", "a commit", "another commit"]
)
def test_a_link_in_place_of_what_is_cached(scene: Scene, shared: Path, of: str) -> None:
    """Nothing is filled behind it, where nobody would count it, and nothing there is evicted or repaired."""
    precious = scene.folder / "precious"
    person = ben(scene, shared)
    commit, newer = visible(shared), shared / "set" / person.ok("resolve", "set").out.strip()
    place = commit if of == "a commit" else newer if of == "another commit" else shared / "set"
    target = "set" if of == "another commit" else "set@v1"
    person.ok("release", "set@v1", "--all")
    if of == "a dataset that is not":
        person.ok("evict", "--all")
        assert not place.exists()
    elif place != newer:
        place.rename(scene.folder / "aside")
        shutil.copytree(scene.folder / "aside", precious)
    write(precious, {"thesis.tex": b"years"})
    for path in (*precious.rglob("*"), precious):
        os.utime(path, (1e9, 1e9))
    whole, entries = read_folder(precious), sorted(precious.rglob("*"))
    place.symlink_to(precious)
    refused(person("cache", target), 4, str(place), "symlink")
    if of == "a dataset that is cached":
        refused(person("cache", f"{target}:b"), 4, str(place), "symlink")
        refused(person("cache", target, "--offline"), 4, str(place), "symlink")
    refused(person("run", target, "--engine", "process", "--", "true"), 125, str(place), "symlink")
    if of.startswith("a dataset"):
        for arguments in (["evict", target], ["hold", target], ["cached", "--check", target]):
            refused(person(*arguments), 4, str(place), "symlink")
    elif place == commit:
        refused(person("hold", target), 4, str(place), "symlink")
    for arguments in (["evict"], ["evict", "--all"], ["evict", "--unused-for", "1s"], ["cached", "--check"]):
        person.ok(*arguments)
    assert place.name in person.ok("cached").err
    assert read_folder(precious) == whole and sorted(precious.rglob("*")) == entries
    place.unlink()
    person.ok("cache", target, "-q")
    assert read_folder(newer if place == newer else commit) == (
        {**FILES, "more": b"more"} if place == newer else FILES
    )


def test_links_in_place_of_a_cached_commit(scene: Scene, shared: Path) -> None:
    """They go with the eviction as links; what they lead to stays."""
    precious = scene.folder / "precious"
    write(precious, {"thesis.tex": b"years"})
    path = visible(shared)
    person = ben(scene, shared)
    person.ok("release", "set@v1", "--everyone")
    (path / "b").rename(scene.folder / "aside")
    (path / "b").symlink_to(precious)
    (path / "further").symlink_to(precious)
    person.ok("evict", "--all")
    assert not path.exists()
    assert read_folder(precious) == {"thesis.tex": b"years"}
