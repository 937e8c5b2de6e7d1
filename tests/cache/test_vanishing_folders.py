"""Evictors and other fills remove folders while these are empty, between any two steps of other processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cache.fake_source import STORE, FakeSource, File, World
from tests.cache.places import make_root
from tests.cache.steps import watched
from tests.exhaustive import following

from dsv.cache.fill import files
from dsv.cache.fill.fill import fill
from dsv.cache.fill.plan import FillRequest
from dsv.cache.leases import Lease
from dsv.cache.root import CacheRoot
from dsv.errors import Unreachable
from dsv.files import system
from dsv.files.system import FileSystem
from dsv.format.tree import Kind
from dsv.values.ids import CommitId

FILES = [
    File("a/b/one", 10, "1"),
    File("a/b/two", 20, "2", int(Kind.EXECUTABLE)),
    File("a/empty", kind=int(Kind.EMPTY_DIRECTORY)),
    File("c/link", kind=int(Kind.SYMLINK), target="../a/b/one"),
    File("d/e/nothing"),
    File("f", 30, "3"),
]


@pytest.fixture(params=["local", "remote"])
def _disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give a disk that counts as local or as a file server, where much is done otherwise.

    On a file server the user's umask has folders made elsewhere and renamed into place, too. Nothing waits for the
    disk.
    """
    remote = request.param == "remote"
    monkeypatch.setattr(system, "kind_of", lambda path: FileSystem(remote=remote, sync_each=remote))
    monkeypatch.setattr(files.Syncer, "__init__", lambda syncer, tree, dead: None)
    monkeypatch.setattr(files.Syncer, "busy", False, raising=False)
    for name in ("poll", "sync", "close"):
        monkeypatch.setattr(files.Syncer, name, lambda syncer: None)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    before = os.umask(0o077 if remote else 0o022)
    yield
    os.umask(before)


def remove_empty_folders(root: CacheRoot) -> None:
    """Remove empty folders, as an evictor or the end of a fill may do at any moment."""
    for top in (root.dot.path / "claims", root.dot.path / "fill", root.path):
        for dataset in top.iterdir():
            if dataset.is_dir() and not dataset.name.startswith("."):
                for folder in (*dataset.iterdir(), dataset):
                    with contextlib.suppress(OSError):
                        folder.rmdir()


def replace_empty_folders(root: CacheRoot) -> None:
    """Replace empty folders of a fill's tree, as another host does that renames its own into place at the same time."""
    for here, folders, names in os.walk(root.dot.path / "fill", topdown=False):
        if not folders and not names and "/tree/" in here:
            draft = root.temporary.path / os.urandom(8).hex()
            draft.mkdir(0o755)
            with contextlib.suppress(OSError):
                draft.rename(here)


def cache_it(root: CacheRoot, world: World, commit: CommitId) -> Path:
    """As `dsv cache` does it: under a lease."""
    request = FillRequest("xrays", commit, STORE)
    with Lease.take(root, request.place, "stage") as lease:
        while True:
            source = FakeSource(world.folder, str(commit))
            path = fill(root, request, source, ensure_room=lambda need: None, jobs=1).path
            if lease.confirm():
                return path


@pytest.mark.usefixtures("_disk")
@pytest.mark.parametrize("disturb", [remove_empty_folders, replace_empty_folders])
def test_a_folder_that_vanishes_before_any_step_is_made_again(
    tmp_path: Path, world: World, disturb: Callable[[CacheRoot], None]
) -> None:
    commit = world.commit(FILES)
    at, steps = 0, 1
    while at < steps:
        root = make_root(tmp_path / f"cache-{at}")

        def act(number: int, _: bool, *, at: int = at, root: CacheRoot = root) -> None:
            if number == at:
                disturb(root)

        with watched(root.path, act) as watching:
            path = cache_it(root, world, commit)
        world.check(commit, path)
        steps = max(steps, watching.count)
        at = following(at, steps)
    assert steps > 60


@pytest.mark.usefixtures("_disk")
@pytest.mark.parametrize("times", [5, 40])
def test_folders_that_vanish_at_each_step_are_made_again_in_the_end(
    tmp_path: Path, world: World, times: int
) -> None:
    commit = world.commit(FILES)
    root = make_root(tmp_path / "cache")

    def act(number: int, _: bool) -> None:
        if number < times:
            remove_empty_folders(root)

    with watched(root.path, act):
        world.check(commit, cache_it(root, world, commit))


def test_folders_that_vanish_for_ever_are_something_to_try_again(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv.cache.root._TRIES", 3)
    monkeypatch.setattr("dsv.cache.fill.fill._LONGEST_PAUSE", 0.001)
    root.prepare()
    commit = world.commit(FILES)
    source = FakeSource(world.folder, str(commit))
    with (
        watched(root.path, lambda number, new: remove_empty_folders(root)),
        pytest.raises(Unreachable, match="keep vanishing") as caught,
    ):
        fill(root, FillRequest("xrays", commit, STORE), source, ensure_room=lambda need: None, jobs=1)
    assert (caught.value.exit_code, caught.value.retryable) == (6, True)
    assert caught.value.hint
