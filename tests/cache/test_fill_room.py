"""Room: reserved where others see it, made in the middle where a disk is full after all, and given back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cache import filler
from tests.cache.fake_source import STORE, FakeSource, File, World
from tests.cache.test_fill_shared import FILES, PART, plenty, until

from dsv.cache.filling import room
from dsv.cache.filling.fill import fill
from dsv.cache.filling.request import FillRequest, Need
from dsv.cache.layout import CacheRoot, Place
from dsv.errors import NoRoom
from dsv.model.ids import CommitId

MB = 1 << 20


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m,mode=755", "dsv-test", str(path)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"a small file system can't be mounted: {made.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def request_for(commit: CommitId) -> FillRequest:
    return FillRequest("xrays", commit, STORE)


def many(count: int) -> list[File]:
    return [File(f"{number:03d}", 100_000, str(number)) for number in range(count)]


def test_a_fill_that_does_not_fit_ends_without_a_trace(small_disk: Path, world: World) -> None:
    root, commit = CacheRoot(small_disk / "cache"), world.commit(many(300))
    source = FakeSource(world.folder, str(commit))
    with pytest.raises(NoRoom, match="still to come") as caught:
        fill(root, request_for(commit), source, ensure_room=plenty)
    assert caught.value.exit_code == 7
    assert not root.visible(request_for(commit).place).exists()
    assert room.reservations(root) == []
    free = os.statvfs(small_disk)
    assert free.f_bavail * free.f_bsize > 15 * MB


def test_where_others_fill_the_disk_in_the_middle_room_is_made(small_disk: Path, world: World) -> None:
    root, commit = CacheRoot(small_disk / "cache"), world.commit(many(80))
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(12 * MB))
    asked: list[Need] = []

    def make_room(need: Need) -> None:
        asked.append(need)
        if len(asked) > 1:
            ballast.unlink(missing_ok=True)

    result = fill(root, request_for(commit), FakeSource(world.folder, str(commit)), ensure_room=make_room)
    world.check(commit, result.path)
    assert asked[0].bytes >= 80 * 100_000
    assert len(asked) == 2
    # what was whole before the disk was full is not fetched again; the source is 8 files ahead
    assert len(world.fetched()) <= 80 + 10


def test_a_reservation_is_seen_while_it_is_filled(tmp_path: Path, world: World) -> None:
    (tmp_path / "cache").mkdir()
    root, commit = CacheRoot(tmp_path / "cache"), world.commit(FILES)
    process = filler.start(root, world.folder, commit, part_bytes=PART, pause=0.05)
    until(lambda: len(world.fetched()) > 25)
    until(lambda: room.reservations(root)[0].written_bytes)
    (one,) = room.reservations(root)
    assert one.place == request_for(commit).place
    assert one.live
    assert one.bytes >= sum(file.size for file in FILES)
    assert one.left_bytes == one.bytes - one.written_bytes
    assert 0 < one.left_files < one.files
    process.kill()
    process.communicate()
    (dead,) = room.reservations(root)
    assert not dead.live
    assert dead.left_bytes == dead.left_files == 0  # nobody will write it
    assert dead.written_bytes > 0
    fill(root, request_for(commit), FakeSource(world.folder, str(commit)), ensure_room=plenty)
    assert room.reservations(root) == []


def test_a_reservation_whose_maker_died_before_it_began_lapses(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    root = CacheRoot(tmp_path / "cache")
    root.prepare()
    place = Place("xrays", "0" * 64)
    if not (child := os.fork()):
        room.reserve(root, place, "f" * 32, 100, 1)
        os._exit(0)
    os.waitpid(child, 0)
    assert room.reservations(root) == []
    room.reserve(root, place, "e" * 32, 100, 1)
    (one,) = room.reservations(root)
    assert (one.left_bytes, one.left_files, one.live) == (100, 1, True)
    room.release(root, "e" * 32)
    assert room.reservations(root) == []


def test_limits_are_looked_at_while_filling(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv.cache.filling.shift._ROOM_EVERY", 0.05)
    (tmp_path / "cache").mkdir()
    root, commit = CacheRoot(tmp_path / "cache"), world.commit(FILES)
    calls: list[Need] = []

    def limit(need: Need) -> None:
        calls.append(need)
        if len(calls) == 3:
            raise NoRoom("the owner's limit is reached")

    with pytest.raises(NoRoom, match="owner's limit"):
        fill(root, request_for(commit), FakeSource(world.folder, str(commit), pause=0.01), ensure_room=limit)
    assert calls[0].bytes >= calls[1].bytes >= calls[2].bytes
    assert not root.visible(request_for(commit).place).exists()
    assert room.reservations(root) == []
    assert not list(root.fill(request_for(commit).place).parent.glob("*"))
