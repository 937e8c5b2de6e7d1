"""File systems that run out of inodes while there is room for bytes: evicting helps, or a fill is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cache.fake_source import STORE, FakeSource, File, World
from tests.cache.places import ensure_room, make_root, place, publish
from tests.inputs.small_disk import SmallDisk, small_disk

from dsv.cache.evict import disk_now, evict, preview
from dsv.cache.fill import reservations
from dsv.cache.fill.fill import fill
from dsv.cache.fill.plan import FillRequest
from dsv.cache.leases import Lease
from dsv.cache.policy import EvictionRequest, Need
from dsv.cache.record import Cached
from dsv.cache.root import CacheRoot
from dsv.cache.settings import CacheSettings
from dsv.errors import NoRoom
from dsv.values.ids import CommitId

FEW = 80
OLD = 100


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def root(disk: SmallDisk) -> CacheRoot:
    """With two old commits of a hundred files each in it."""
    root = make_root(disk.path / "cache")
    for number in (1, 2):
        publish(root, place(number), {f"{one}": b"1" for one in range(OLD)}, age=1000.0 - number)
    return root


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


def cache_it(root: CacheRoot, world: World, commit: CommitId) -> Cached:
    def make_room(need: Need) -> None:
        ensure_room(root, CacheSettings(), need)

    source = FakeSource(world.folder, str(commit))
    return fill(root, FillRequest("xrays", commit, STORE), source, ensure_room=make_room)


def small_files(count: int) -> list[File]:
    return [File(f"{number:03}", 10, str(number)) for number in range(count)]


def test_what_is_evicted_for_a_fill_is_counted_in_inodes_too(
    disk: SmallDisk, root: CacheRoot, world: World
) -> None:
    commit = world.commit(small_files(OLD + 40))
    disk.limit(files=FEW)
    world.check(commit, cache_it(root, world, commit).path)
    assert not root.visible(place(1)).path.exists()
    assert not root.visible(place(2)).path.exists(), "one of the two was not enough"
    assert reservations.reservations(root) == []


def test_no_more_is_evicted_than_the_inodes_need(disk: SmallDisk, root: CacheRoot, world: World) -> None:
    commit = world.commit(small_files(OLD - 10))
    disk.limit(files=FEW)
    world.check(commit, cache_it(root, world, commit).path)
    assert root.visible(place(2)).path.is_dir()
    assert not root.visible(place(1)).path.exists()


def test_a_fill_that_has_too_few_inodes_is_refused_before_anything_is_evicted(
    disk: SmallDisk, root: CacheRoot, world: World
) -> None:
    commit = world.commit(small_files(2 * OLD))
    with Lease.take(root, place(1), "run") as lease:
        assert lease.confirm()
        disk.limit(files=FEW)
        with pytest.raises(
            NoRoom, match=r"[0-9]+ inodes are free, 264 are needed; in use or held: 1 cached"
        ) as caught:
            cache_it(root, world, commit)
        assert caught.value.exit_code == 7
        assert len(list(root.visible(place(2)).path.iterdir())) == OLD, "it would not have been enough"
    assert world.fetched() == []
    assert reservations.reservations(root) == []


def test_what_evicting_frees_is_what_the_file_system_says(disk: SmallDisk, root: CacheRoot) -> None:
    disk.limit(files=50)
    free = disk_now(root).free_files
    assert free == os.statvfs(disk.path).f_favail
    assert free is not None
    assert evict(root, CacheSettings(), EvictionRequest(only=frozenset([place(1)]))).freed.files == OLD
    assert (disk_now(root).free_files or 0) >= free + OLD


def test_there_is_no_limit_of_inodes_if_the_file_system_reports_none(
    disk: SmallDisk, root: CacheRoot
) -> None:
    disk.limit()
    assert os.statvfs(disk.path).f_files == 0, "as a tmpfs without a limit says"
    assert disk_now(root).free_files is None
    assert preview(root, CacheSettings(), EvictionRequest(need=Need(place(99), 0, 10**9))).exceeded == []


def test_folders_are_counted_before_anything_is_fetched(
    disk: SmallDisk, root: CacheRoot, world: World
) -> None:
    """Each of the files has two folders of its own: their inodes are needed as well."""
    commit = world.commit(File(f"{number:03}/a/b", 10, str(number)) for number in range(100))
    with Lease.take(root, place(1), "run"), Lease.take(root, place(2), "run"):
        disk.limit(files=300)
        with pytest.raises(NoRoom, match=r"2[0-9][0-9] inodes are free, 364 are needed"):
            cache_it(root, world, commit)
    assert world.fetched() == []
    assert reservations.reservations(root) == []
    disk.limit(files=200)
    world.check(commit, cache_it(root, world, commit).path)
    assert not root.visible(place(1)).path.exists() and not root.visible(place(2)).path.exists()


def test_a_fill_that_lacks_inodes_alone_asks_for_no_bytes(
    disk: SmallDisk, root: CacheRoot, world: World
) -> None:
    """Others make files meanwhile; of bytes there is plenty, but less would be enough."""
    commit = world.commit(small_files(50))
    asked: list[Need] = []

    def make_room(need: Need) -> None:
        asked.append(need)
        if len(asked) == 1:
            disk.limit(files=25)
        else:
            disk.limit(files=200)

    source = FakeSource(world.folder, str(commit))
    path = fill(root, FillRequest("xrays", commit, STORE), source, ensure_room=make_room).path
    world.check(commit, path)
    assert len(asked) == 2
    assert asked[1].bytes < 1 << 20
    assert asked[1].files >= 64
