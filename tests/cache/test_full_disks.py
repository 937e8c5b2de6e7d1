"""A disk that is full at any step of a fill: the refusal has the figures, and with room made the fill continues."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cache.fake_source import STORE, FakeSource, File, World
from tests.cache.places import ensure_room, make_root
from tests.cache.steps import watched
from tests.exhaustive import following, is_full

from dsv.cache.fill import files, reservations
from dsv.cache.fill.fill import fill
from dsv.cache.fill.plan import FillRequest
from dsv.cache.policy import Need
from dsv.cache.root import CacheRoot
from dsv.cache.settings import CacheSettings
from dsv.errors import NoRoom
from dsv.files import system
from dsv.files.small_files import FULL
from dsv.files.system import FileSystem
from dsv.format.tree import Kind
from dsv.values.ids import CommitId

OLD = [File(f"a/{number}", 100, str(number)) for number in range(4)]
NEW = [
    *OLD,
    File("a/b/more", 100, "more", int(Kind.EXECUTABLE)),
    File("c/link", kind=int(Kind.SYMLINK), target="../a/1"),
    File("d", kind=int(Kind.EMPTY_DIRECTORY)),
]
FIGURES = r"[\d.]+ [kMGT]?B are free .*[\d.]+ [kMGT]?B (are needed|still to come)"
WRITING = ("write", "fsync", "utime")


class Disk:
    """Full from a given write on, or for that one alone, until room is made."""

    def __init__(self, full_at: int, error: int, *, once: bool) -> None:
        self.full_at = full_at
        self.writes = 0
        self.refused = 0
        self._error = error
        self._once = once

    def write(self) -> None:
        number, self.writes = self.writes, self.writes + 1
        if number == self.full_at or (number > self.full_at and not self._once):
            self.refused += 1
            raise OSError(self._error, os.strerror(self._error))


@pytest.fixture(params=["local", "remote"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FileSystem:
    remote = request.param == "remote"
    found = FileSystem(remote=remote, sync_each=remote)
    monkeypatch.setattr(system, "kind_of", lambda path: found)
    monkeypatch.setattr(files.Syncer, "__init__", lambda syncer, tree, dead: None)
    monkeypatch.setattr(files.Syncer, "busy", False, raising=False)
    for name in ("poll", "sync", "close"):
        monkeypatch.setattr(files.Syncer, name, lambda syncer: None)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return found


class Scene:
    """A commit in a cache, and a newer one that is to be cached beside it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self.world = World(folder / "world")
        self.old, self.new = self.world.commit(OLD), self.world.commit(NEW)

    def cache(self, name: str) -> CacheRoot:
        root = make_root(self._folder / name)
        self.fill(root, self.old)
        return root

    def fill(self, root: CacheRoot, commit: CommitId) -> Path:
        def make_room(need: Need) -> None:
            ensure_room(root, CacheSettings(), need)

        source = FakeSource(self.world.folder, str(commit))
        return fill(root, FillRequest("xrays", commit, STORE), source, ensure_room=make_room, jobs=1).path

    def fill_on(self, disk: Disk, root: CacheRoot) -> Path:
        def act(_: int, new: bool) -> None:
            if new:
                disk.write()

        def writing(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                disk.write()
                return real(*arguments, **options)

            return call

        with self._monkeypatch.context() as patch, watched(root.path, act):
            for name in WRITING:
                patch.setattr(os, name, writing(getattr(os, name)))
            return self.fill(root, self.new)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("error", FULL)
def test_a_disk_that_is_full_from_any_write_on_is_reported_with_the_figures(scene: Scene, error: int) -> None:
    at, writes = 0, 1
    refused = 0
    while at < writes:
        root, disk = scene.cache(f"cache-{at}"), Disk(at, error, once=False)
        try:
            path = scene.fill_on(disk, root)
        except NoRoom as told:
            refused += 1
            assert re.search(FIGURES, told.message), (at, told.message)
            assert told.exit_code == 7
            assert reservations.reservations(root) == []
            assert len(list((root.path / "xrays").iterdir())) == 1
            path = scene.fill(root, scene.new)  # with room again it continues to the end
        scene.world.check(scene.new, path)
        writes = max(writes, disk.writes)
        at = following(at, writes)
    assert refused > (20 if is_full() else 3)


@pytest.mark.usefixtures("kind")
def test_a_write_that_is_refused_once_is_done_again(scene: Scene) -> None:
    at, writes = 0, 1
    while at < writes:
        root, disk = scene.cache(f"cache-{at}"), Disk(at, errno.ENOSPC, once=True)
        scene.world.check(scene.new, scene.fill_on(disk, root))
        writes = max(writes, disk.writes)
        at = following(at, writes)
    assert writes > 40
