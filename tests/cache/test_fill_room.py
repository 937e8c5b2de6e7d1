"""Room: reserved so that others see it, made during a fill if the disk is full after all, and given back."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cache import filler
from tests.cache.fake_source import STORE, FakeSource, File, World
from tests.cache.places import ensure_room, make_root, place, publish
from tests.cache.test_fill_shared import FILES, PART, plenty, until
from tests.waiting import PATIENCE

from dsv.cache.fill import parts, reservations
from dsv.cache.fill.fill import fill
from dsv.cache.fill.plan import FillRequest
from dsv.cache.fill.workers import Heartbeat, read_workers
from dsv.cache.leases import Lease
from dsv.cache.policy import Need
from dsv.cache.record import used_until
from dsv.cache.root import CachePlace, CacheRoot
from dsv.cache.settings import CacheLimits, CacheSettings
from dsv.errors import NoRoom
from dsv.files.system import FileSystem
from dsv.values.ids import CommitId

MB = 1 << 20


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
    assert not root.visible(request_for(commit).place).path.exists()
    assert reservations.reservations(root) == []
    free = os.statvfs(small_disk)
    assert free.f_bavail * free.f_bsize > 15 * MB


def test_room_is_made_if_others_fill_the_disk_during_a_fill(small_disk: Path, world: World) -> None:
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
    process = filler.start(root, world.folder, commit, part_bytes=PART, wait_after=60)
    until(lambda: len(world.fetched()) == 60)
    until(lambda: reservations.reservations(root)[0].written.bytes)
    (one,) = reservations.reservations(root)
    assert one.place == request_for(commit).place
    assert one.live
    assert one.whole.bytes >= sum(file.size for file in FILES)
    assert one.left.bytes == one.whole.bytes - one.written.bytes
    assert 0 < one.left.files < one.whole.files
    process.kill()
    process.communicate()
    (dead,) = reservations.reservations(root)
    assert not dead.live
    assert dead.left.bytes == dead.left.files == 0  # nobody will write it
    assert dead.written.bytes > 0
    fill(root, request_for(commit), FakeSource(world.folder, str(commit)), ensure_room=plenty)
    assert reservations.reservations(root) == []


def test_a_reservation_whose_maker_died_before_it_began_lapses(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    root = CacheRoot(tmp_path / "cache")
    root.prepare()
    place = CachePlace("xrays", "0" * 64)
    if not (child := os.fork()):
        reservations.reserve(root, place, "f" * 32, 100, 1)
        os._exit(0)
    os.waitpid(child, 0)
    assert reservations.reservations(root) == []
    reservations.reserve(root, place, "e" * 32, 100, 1)
    (one,) = reservations.reservations(root)
    assert (one.left.bytes, one.left.files, one.live) == (100, 1, True)
    reservations.release(root, "e" * 32)
    assert reservations.reservations(root) == []


def test_limits_are_looked_at_while_filling(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv.cache.fill.fill._ROOM_EVERY", 0.05)
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
    assert not root.visible(request_for(commit).place).path.exists()
    assert reservations.reservations(root) == []
    assert not list(root.fill(request_for(commit).place).path.parent.glob("*"))


def test_limits_are_looked_at_while_files_that_could_not_be_linked_are_fetched(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv.cache.fill.fill._ROOM_EVERY", 0.05)
    (tmp_path / "cache").mkdir()
    root = CacheRoot(tmp_path / "cache")
    files = [File(f"f/{number:03d}", 100, str(number)) for number in range(640)]
    first, second = world.commit(files), world.commit([*files, File("new", 10, "n")])
    fill(root, request_for(first), FakeSource(world.folder, str(first)), ensure_room=plenty)
    for file in (root.visible(request_for(first).place).path / "f").iterdir():
        os.utime(file)
    calls: list[Need] = []
    source = FakeSource(world.folder, str(second), pause=0.002)
    fill(root, request_for(second), source, ensure_room=calls.append)
    assert source.fetched_bytes == 640 * 100 + 10
    assert len(calls) >= 6


def test_of_two_that_run_out_of_room_at_the_same_moment_the_last_gives_the_fill_up(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither has left yet when both are refused: each sees the other at work."""
    monkeypatch.setattr("dsv.cache.fill.fill._ROOM_EVERY", 0.0)
    (tmp_path / "cache").mkdir()
    root, commit = CacheRoot(tmp_path / "cache"), world.commit(FILES)
    place = request_for(commit).place
    refused, leaving = threading.Barrier(2), threading.Barrier(2)
    stop = Heartbeat.stop

    def leave(heartbeat: Heartbeat) -> None:
        leaving.wait(PATIENCE)
        stop(heartbeat)

    def limit(need: Need) -> None:
        if root.fill(place).path.is_dir():
            refused.wait(PATIENCE)
            raise NoRoom("others fill the disk")

    monkeypatch.setattr(Heartbeat, "stop", leave)
    monkeypatch.setattr(parts, "PART_BYTES", PART)

    def fill_it() -> None:
        fill(root, request_for(commit), FakeSource(world.folder, str(commit)), ensure_room=limit)

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(fill_it)
        until(lambda: root.fill(place).path.is_dir())
        other = pool.submit(fill_it)
        for ended in (one, other):
            with pytest.raises(NoRoom, match="others fill the disk"):
                ended.result()
    assert list(root.room.path.iterdir()) == []
    assert not root.fill(place).path.exists()


def test_a_worker_can_leave_on_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir()
    root = CacheRoot(tmp_path / "cache")
    root.prepare()
    heartbeat = Heartbeat(root, FileSystem(remote=True, sync_each=True))
    heartbeat.enlist(root.trash)

    def full(path: Path) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(root, "put_name", full)
    heartbeat.stop()
    (worker,) = read_workers(root.trash).values()
    assert worker.left and worker.last_beat > 0


def publish_world(root: CacheRoot, world: World, files: list[File]) -> CachePlace:
    """Fills a commit without any limit, used by nobody."""
    commit = world.commit(files)
    fill(root, request_for(commit), FakeSource(world.folder, str(commit)), ensure_room=plenty)
    return request_for(commit).place


@dataclass(frozen=True, slots=True)
class Owner:
    """Makes room as the cache's owner would have it, within so many bytes."""

    root: CacheRoot
    most: int

    def __call__(self, need: Need, /) -> None:
        ensure_room(self.root, CacheSettings(limits=CacheLimits(max_size=self.most)), need)


def test_a_commit_that_fits_only_without_its_donor_takes_nothing_from_it(
    tmp_path: Path, world: World
) -> None:
    """The donor is what has to go: half of the new commit could be linked from it, but not beside all of it."""
    (tmp_path / "cache").mkdir()
    root = CacheRoot(tmp_path / "cache")
    old = publish_world(root, world, many(60))
    new = world.commit(
        [*many(30), *(File(f"new-{number:03d}", 100_000, f"n{number}") for number in range(50))]
    )
    world.forget()
    most = 100 * 102_400  # 60 are there, 50 would have to come beside them, and 80 are all of the new one
    result = fill(root, request_for(new), FakeSource(world.folder, str(new)), ensure_room=Owner(root, most))
    world.check(new, result.path)
    assert not root.visible(old).path.exists()
    assert (result.linked_files, len(world.fetched())) == (0, 80)
    assert reservations.reservations(root) == []


def test_of_several_donors_only_those_go_that_have_to(tmp_path: Path, world: World) -> None:
    (tmp_path / "cache").mkdir()
    root = CacheRoot(tmp_path / "cache")
    oldest = publish_world(
        root, world, [File(f"a-{number:02d}", 100_000, f"a{number}") for number in range(30)]
    )
    newer = publish_world(
        root, world, [File(f"b-{number:02d}", 100_000, f"b{number}") for number in range(30)]
    )
    used_until(root, newer, root.now() + 5)
    new = world.commit(
        [File(f"{kind}-{number:02d}", 100_000, f"{kind}{number}") for kind in "ab" for number in range(10)]
        + [File(f"c-{number:02d}", 100_000, f"c{number}") for number in range(30)]
    )
    result = fill(
        root, request_for(new), FakeSource(world.folder, str(new)), ensure_room=Owner(root, 80 * 102_400)
    )
    world.check(new, result.path)
    assert not root.visible(oldest).path.exists()
    assert root.visible(newer).path.exists()
    assert result.linked_files == 10


def test_nothing_is_evicted_if_that_would_not_make_enough_room(tmp_path: Path, world: World) -> None:
    (tmp_path / "cache").mkdir()
    root = CacheRoot(tmp_path / "cache")
    there = [
        publish_world(root, world, many(20)),
        publish_world(root, world, [File(f"b-{number}", 100_000, f"b{number}") for number in range(20)]),
    ]
    new = world.commit([*many(10), *(File(f"c-{number}", 100_000, f"c{number}") for number in range(90))])
    source = FakeSource(world.folder, str(new))
    with pytest.raises(NoRoom, match="max_size"):
        fill(root, request_for(new), source, ensure_room=Owner(root, 80 * 102_400))
    assert all(root.visible(place).path.exists() for place in there)
    assert reservations.reservations(root) == []


def test_a_donor_in_use_is_taken_from_for_all_that(tmp_path: Path, world: World) -> None:
    """Planning without it would not help, as it stays."""
    (tmp_path / "cache").mkdir()
    root = CacheRoot(tmp_path / "cache")
    used = publish_world(root, world, many(40))
    spare = publish_world(root, world, [*many(10), *(File(f"b-{n}", 100_000, f"b{n}") for n in range(30))])
    new = world.commit([*many(35), *(File(f"b-{n}", 100_000, f"b{n}") for n in range(25, 75))])
    with Lease.take(root, used, "run"):
        result = fill(
            root, request_for(new), FakeSource(world.folder, str(new)), ensure_room=Owner(root, 95 * 102_400)
        )
    world.check(new, result.path)
    assert root.visible(used).path.exists()
    assert not root.visible(spare).path.exists()
    assert result.linked_files == 35


def test_the_room_that_an_eviction_frees_is_known_before_it(tmp_path: Path) -> None:
    """By its record the old commit stands for all of its files; but one that stays links them."""
    root = make_root(tmp_path / "cache")
    files = {f"{number}": bytes(100_000) for number in range(10)}
    old = publish(root, place(1), files, age=50)
    publish(root, place(2), files, age=5, links=old)
    settings = CacheSettings(limits=CacheLimits(max_size=15 * 102_400))
    with Lease.take(root, place(2), "run"), pytest.raises(NoRoom, match="max_size"):
        ensure_room(root, settings, Need(place(3), 6 * 102_400, 6))
    assert old.exists()
