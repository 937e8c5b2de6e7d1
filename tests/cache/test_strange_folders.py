"""Folders in a cache's root that are not dsv's, or that not every user may read: nothing fails for them."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cache.fake_source import STORE, FakeSource, File, World
from tests.cache.places import ensure_room, make_root, place, publish

from dsv.api.cached import cached
from dsv.cache.evict import evict
from dsv.cache.fill.fill import fill
from dsv.cache.fill.plan import FillRequest
from dsv.cache.inventory import take_inventory
from dsv.cache.names import bind
from dsv.cache.policy import EvictionRequest, Need
from dsv.cache.record import Cached
from dsv.cache.root import CacheRoot
from dsv.cache.settings import CacheLimits, CacheSettings
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName

NOBODY = 65534
FILES = [File("a", 100_000, "a"), File("d/b", 1000, "b")]
PROFILES = ("lost+found", "private")
"""Of mkfs.ext4, and of somebody else."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


@pytest.fixture
def base() -> Iterator[Path]:
    """One that other users can reach, as pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture
def root(base: Path) -> CacheRoot:
    """Nobody's own cache, as it would be on a file system of its own."""
    path = base / "cache"
    path.mkdir()
    path.chmod(0o777)
    for name in PROFILES:
        (path / name).mkdir(mode=0o700)
    return CacheRoot(path)


@pytest.fixture
def world(base: Path) -> World:
    world = World(base / "world")
    world.folder.chmod(0o777)
    return world


def as_nobody(do: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            do()
            status = 0
        except BaseException:  # noqa: BLE001 (it ends here, whatever it is)
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0, "see its traceback in stderr"


def cache_it(root: CacheRoot, world: World, commit: CommitId, dataset: str = "xrays") -> Cached:
    def room(need: Need) -> None:
        ensure_room(root, CacheSettings(), need)

    source = FakeSource(world.folder, str(commit))
    return fill(root, FillRequest(dataset, commit, STORE), source, ensure_room=room)


def test_a_fill_looks_for_donors_only_in_folders_that_it_may_read(root: CacheRoot, world: World) -> None:
    first, second = world.commit(FILES), world.commit([*FILES, File("c", 10, "c")])

    def person() -> None:
        assert cache_it(root, world, first, "other").linked_files == 0
        found = cache_it(root, world, second)
        assert found.linked_files == 2
        world.check(second, found.path)

    as_nobody(person)


def test_what_is_cached_is_listed_and_evicted_beside_them(root: CacheRoot, world: World) -> None:
    commit = world.commit(FILES)

    def person() -> None:
        cache_it(root, world, commit)
        report = cached(root.path)
        assert [one.commit for one in report.items] == [commit]
        assert report.foreign == PROFILES
        assert len(evict(root, CacheSettings(), EvictionRequest(everything=True)).evicted) == 1

    as_nobody(person)
    assert all((root.path / name).is_dir() for name in PROFILES)


def test_a_dataset_whose_owner_closed_it_counts_and_stays(root: CacheRoot, world: World) -> None:
    """Its files take room though they can't be seen; who may not even list them can't evict them."""
    make_root(root.path)
    bind(root, DatasetName.parse("theirs"), STORE)
    path = publish(root, place(1, "theirs"), {"a": bytes(50_000)}, age=1e6)
    (root.claims(place(2, "theirs")).path).mkdir()
    path.parent.chmod(0o700)
    commit = world.commit(FILES)
    opened = take_inventory(root).items

    def person() -> None:
        world.check(commit, cache_it(root, world, commit).path)
        closed = next(one for one in take_inventory(root).visible if one.place.dataset == "theirs")
        assert closed.room == next(one for one in opened if one.visible).room
        result = evict(root, CacheSettings(limits=CacheLimits(max_size=1)), EvictionRequest())
        assert [one.dataset for one in result.evicted] == ["xrays"]
        assert [(one.dataset, one.reason) for one in result.kept] == [
            ("theirs", "in a folder that this user can't read")
        ]
        assert len(result.exceeded) == 1 and result.failed == []

    as_nobody(person)
    assert [one.place for one in take_inventory(root).visible] == [place(1, "theirs")]
    assert (path / "a").stat().st_size == 50_000
