"""Files of a workspace that come from caches on this machine, and not from the store."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsv.api import cache_targets
from dsv.api.cache import cache
from dsv.api.cache_targets import nearby_caches as find_caches
from dsv.api.checkout import pull, restore, rollback, switch
from dsv.api.clone import Cloned, clone
from dsv.api.evict import evict
from dsv.api.settings import SettingsSource
from dsv.cache import lending
from dsv.cache.lending import LendingCache
from dsv.values.names import BranchName, Target
from tests.kit.people import Files, Person, read_folder
from tests.waiting import PATIENCE

BIG = random.Random(3).randbytes(3 << 20)
FILES: Files = {
    "train/a.png": b"a",
    "train/b.png": b"bb",
    "test/c.png": b"ccc",
    "tool.sh": b"#!/bin/sh\n",
    "link@": b"tool.sh",
    "later": None,
    "nothing": b"",
    "big.bin": BIG,
}
CONTENTS = {name: content for name, content in FILES.items() if content and not name.endswith("@")}
SIZE = sum(len(content) for content in CONTENTS.values())


@pytest.fixture
def ann(tmp_path: Path) -> Person:
    """Who publishes; the others of these tests work on another machine."""
    return Person.who_synced(tmp_path, FILES)


@pytest.fixture
def bob(ann: Person, tmp_path: Path) -> Person:
    """Has the commit in a cache, and no workspace."""
    person = Person(tmp_path / "bob", ann.store, "bob")
    cached(person, "scans")
    return person


def cached(person: Person, target: str) -> Path:
    person.home.mkdir(exist_ok=True)
    context = person.context(person.home)
    return cache(context, person.home / "cache", [Target.parse(target)])[0].path


def cloned(person: Person, target: str = "scans") -> Cloned:
    return clone(person.context(person.home), Target.parse(target), person.workspace)


@contextmanager
def without_packs(person: Person) -> Iterator[None]:
    """Nobody can get a content from the store meanwhile."""
    packs = Path(person.store) / "packs"
    away = packs.with_name("packs-away")
    packs.rename(away)
    try:
        yield
    finally:
        away.rename(packs)


def test_a_clone_takes_all_that_is_cached_and_asks_for_no_pack(bob: Person) -> None:
    with without_packs(bob):
        made = cloned(bob)
    assert bob.files() == FILES
    assert (made.cached_files, made.cached_bytes) == (len(CONTENTS), SIZE)


def test_no_file_of_a_workspace_is_a_link_to_a_cached_one(bob: Person) -> None:
    cloned(bob)
    for name in CONTENTS:
        path = bob.workspace / name
        assert path.stat().st_nlink == 1
        path.write_bytes(b"mine")
    [commit] = [path for path in (bob.home / "cache/scans").iterdir() if path.is_dir()]
    assert read_folder(commit) == FILES


@pytest.mark.parametrize("name", ["train/a.png", "big.bin"])
def test_a_damaged_cached_file_comes_from_the_store(bob: Person, name: str) -> None:
    path = cached(bob, "scans") / name
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    made = cloned(bob)
    assert bob.files() == FILES
    assert made.cached_files == len(CONTENTS) - 1


@pytest.mark.parametrize("kind", ["a link", "a pipe", "a folder", "cut short", "gone"])
def test_what_is_no_such_file_in_the_cache_comes_from_the_store(bob: Person, kind: str) -> None:
    path = cached(bob, "scans") / "big.bin"
    secret = bob.home / "secret"
    secret.write_bytes(BIG)
    path.unlink()
    if kind == "a link":
        path.symlink_to(secret)
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "cut short":
        path.write_bytes(BIG[:-1])
    assert cloned(bob).cached_files == len(CONTENTS) - 1
    assert bob.files() == FILES


def test_nothing_is_lent_through_a_link_in_place_of_a_folder(bob: Person) -> None:
    """Another member of the cache's group has put it there; what it leads to even has the right content."""
    folder = cached(bob, "scans") / "train"
    folder.rename(bob.home / "private")
    folder.symlink_to(bob.home / "private")
    assert cloned(bob).cached_files == len(CONTENTS) - 2
    assert bob.files() == FILES


def test_a_commit_that_is_evicted_meanwhile_is_fetched(bob: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    find = LendingCache.find

    def find_and_evict(self: LendingCache, *arguments: object) -> object:
        found = find(self, *arguments)  # type: ignore[arg-type]
        evict(bob.context(bob.home), bob.home / "cache", everything=True)
        return found

    monkeypatch.setattr(LendingCache, "find", find_and_evict)
    assert cloned(bob).cached_files == 0
    assert bob.files() == FILES


def test_an_older_cached_commit_gives_what_did_not_change(ann: Person, bob: Person) -> None:
    ann.write({"train/a.png": b"A", "train/new.png": b"new"})
    ann.sync("second")
    made = cloned(bob)
    assert bob.files() == ann.files()
    assert made.cached_files == len(CONTENTS) - 1


def test_a_cached_part_gives_what_it_has(ann: Person, tmp_path: Path) -> None:
    kim = Person(tmp_path / "kim", ann.store, "kim")
    cached(kim, "scans:train")
    assert cloned(kim).cached_files == 2
    assert kim.files() == FILES


def test_another_datasets_files_of_the_same_name_are_not_taken(ann: Person, tmp_path: Path) -> None:
    other = Person(tmp_path / "lee", ann.store, "lee")
    other.init(type(Target.parse("other").dataset).parse("other"))  # type: ignore[union-attr]
    other.write({"train/a.png": b"x"})
    other.sync("theirs")
    kim = Person(tmp_path / "kim", ann.store, "kim")
    cached(kim, "other")
    assert cloned(kim).cached_files == 0
    assert kim.files() == FILES


def test_restore_pull_switch_and_rollback_take_from_the_cache(ann: Person, bob: Person) -> None:
    first = cloned(bob).commit
    (bob.workspace / "big.bin").unlink()
    with without_packs(bob):
        restored = restore(bob.context(), (b"big.bin",))
    assert (restored.cached_files, restored.cached_bytes) == (1, len(BIG))
    ann.write({"big.bin": BIG[::-1]})
    ann.sync("second")
    cached(bob, "scans")
    assert pull(bob.context()).cached_bytes == len(BIG)
    ann.write({"train/a.png": b"AA"})
    switch(ann.context(), BranchName.parse("side"), create=True)
    ann.sync("third")
    cached(bob, "scans@side")
    switched = switch(bob.context(), BranchName.parse("side"))
    assert (switched.cached_files, switched.cached_bytes) == (1, 2)
    back = rollback(bob.context(), Target.parse(f"@{first}"))
    assert (back.cached_files, back.cached_bytes) == (2, len(BIG) + 1)
    assert bob.files() == FILES


def test_nothing_is_written_to_a_cache(bob: Person) -> None:
    def state() -> list[tuple[str, int]]:
        return sorted((str(path), path.lstat().st_mtime_ns) for path in (bob.home / "cache").rglob("*"))

    before = state()
    cloned(bob)
    assert state() == before


class Hanging:
    """Stands for a file server that is away: calls wait until the test ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.release = threading.Event()
        self.called = threading.Event()
        for module, name in (
            (lending, "FIND_SECONDS"),
            (lending, "LOOK_SECONDS"),
            (lending, "READ_SECONDS"),
        ):
            monkeypatch.setattr(module, name, 0.01)

    def wait(self, *_: object) -> object:
        self.called.set()
        self.release.wait()
        raise OSError


@pytest.mark.parametrize("where", ["open", "find", "read"])
def test_a_cache_that_hangs_holds_nobody_up(bob: Person, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    hanging = Hanging(monkeypatch)
    if where == "read":
        for name in ("FIND_SECONDS", "LOOK_SECONDS"):
            monkeypatch.setattr(lending, name, 600.0)
        monkeypatch.setattr(lending, "_open_all", hanging.wait)
    else:
        if where == "find":
            monkeypatch.setattr(lending, "FIND_SECONDS", 600.0)
            monkeypatch.setattr(lending.Lenders, "get", lambda *_: None)
        monkeypatch.setattr(LendingCache, where, hanging.wait)
    try:
        assert cloned(bob).cached_files == 0
        assert bob.files() == FILES
        assert hanging.called.wait(PATIENCE)
    finally:
        hanging.release.set()


def test_a_cache_that_was_given_to_a_command_is_used(ann: Person, tmp_path: Path) -> None:
    kim = Person(tmp_path / "kim", ann.store, "kim")
    kim.home.mkdir()
    elsewhere = tmp_path / "elsewhere"
    cache(kim.context(kim.home), elsewhere, [Target.parse("scans")])
    with without_packs(kim):
        assert cloned(kim).cached_files == len(CONTENTS)


def test_the_caches_of_a_machine(bob: Person, tmp_path: Path) -> None:
    settings = bob.context(bob.home).settings
    named = SettingsSource("file", {"caches.lab.path": str(tmp_path / "lab")})
    cache_targets.note_cache(settings, tmp_path / "met")
    cache_targets.note_cache(settings, tmp_path / "lab")
    found = find_caches(replace(settings, sources=[*settings.sources, named]))
    assert found[:2] == [bob.home / "cache", tmp_path / "lab"]
    assert tmp_path / "met" in found
    assert len(found) == len(set(found))


@contextmanager
def mounted(tmp_path: Path, make: list[str]) -> Iterator[Path]:
    if os.geteuid() != 0 or shutil.which(make[0]) is None:
        pytest.skip(f"needs root and {make[0]}")
    image, folder = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(400 << 20)
    folder.mkdir()
    subprocess.run([*make, image], check=True, capture_output=True)
    if subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, check=False).returncode:
        pytest.skip("loop devices can't be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def shares_blocks(path: Path) -> bool:
    told = subprocess.run(["filefrag", "-v", path], capture_output=True, text=True, check=True).stdout
    return ",shared" in told


@pytest.mark.skipif(shutil.which("filefrag") is None, reason="needs filefrag")
@pytest.mark.parametrize(("make", "shared"), [(["mkfs.xfs", "-q"], True), (["mkfs.ext4", "-q"], False)])
def test_blocks_are_shared_if_the_file_system_can(
    ann: Person, tmp_path: Path, make: list[str], shared: bool
) -> None:
    with mounted(tmp_path, make) as disk:
        kim = Person(disk / "kim", ann.store, "kim")
        cached(kim, "scans")
        with without_packs(kim):
            made = cloned(kim)
        os.sync()
        assert made.cached_files == len(CONTENTS)
        assert kim.files() == FILES
        assert shares_blocks(kim.workspace / "big.bin") is shared
        assert shares_blocks(kim.workspace / "train/a.png") is shared


def test_a_clone_on_xfs_of_a_damaged_file_comes_from_the_store(ann: Person, tmp_path: Path) -> None:
    with mounted(tmp_path, ["mkfs.xfs", "-q"]) as disk:
        kim = Person(disk / "kim", ann.store, "kim")
        path = cached(kim, "scans") / "big.bin"
        path.chmod(0o644)
        path.write_bytes(BIG[::-1])
        assert cloned(kim).cached_files == len(CONTENTS) - 1
        assert kim.files() == FILES


def test_a_small_file_that_is_damaged_late_in_a_dataset_comes_from_the_store(
    ann: Person, tmp_path: Path
) -> None:
    """Those are read by another thread, where no blocks can be shared."""
    ann.write({f"many/{number:03}": b"%d" % number for number in range(400)})
    ann.sync("many")
    kim = Person(tmp_path / "kim", ann.store, "kim")
    path = cached(kim, "scans") / "many/399"
    path.chmod(0o644)
    path.write_bytes(b"993")
    assert cloned(kim).cached_files == len(CONTENTS) + 399
    assert kim.files() == ann.files()
