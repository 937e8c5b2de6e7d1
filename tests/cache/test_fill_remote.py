"""What many threads do at once on a file server, tested on a local disk that is taken for one."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.cache.fake_source import STORE, FakeSource, File, World
from tests.waiting import PATIENCE

from dsv.cache import record
from dsv.cache.fill import files, parts, place_files
from dsv.cache.fill.fill import fill
from dsv.cache.fill.plan import FillRequest
from dsv.cache.policy import Need
from dsv.cache.record import Cached
from dsv.cache.root import CacheRoot
from dsv.files import system
from dsv.files.small_files import write_sparse
from dsv.files.system import FileSystem
from dsv.values.ids import CommitId


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = FileSystem(remote=True, sync_each=True)
    monkeypatch.setattr(system, "kind_of", lambda path: kind)


def cache(
    root: CacheRoot, world: World, commit: CommitId, make_room: Callable[[Need], None] = lambda need: None
) -> Cached:
    """Fails where it does not end."""
    results: list[Cached | BaseException] = []

    def run() -> None:
        request = FillRequest("xrays", commit, STORE)
        source = FakeSource(world.folder, str(commit), ahead=40)
        try:
            results.append(fill(root, request, source, ensure_room=make_room, jobs=1))
        except BaseException as error:  # noqa: BLE001 (raised below)
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert results, "it waits for ever"
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


@pytest.mark.usefixtures("remote")
def test_files_of_many_folders_with_one_name_keep_apart(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More folders than are kept open; a link that is slow must not find another folder under its descriptor."""
    scans = [f"p{number:03d}/study/series/scan" for number in range(400)]
    cache(root, world, world.commit(File(path, 100, path) for path in scans))
    take, turns = files.Links.take, iter(range(10**6))

    def slow(self: files.Links, *arguments: object, **options: object) -> object:
        if next(turns) % 50 == 0:
            time.sleep(0.05)
        return take(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(files.Links, "take", slow)
    commit = world.commit(File(f"flat/{path[:4]}", 100, path) for path in scans)
    result = cache(root, world, commit)
    assert result.linked_files == 400
    world.check(commit, result.path)


class Disk:
    """Full for each write from the `full_from`th on, until room was made `times` times.

    It takes a while to say so: what was begun meanwhile fails as well.
    """

    def __init__(self, full_from: int, times: int) -> None:
        self._left = full_from
        self._times = times
        self._turn = threading.Lock()
        self.asked = -1  # once before anything is written

    def write(self, descriptor: int, pieces: Iterable[bytes]) -> int:
        with self._turn:
            self._left -= 1
            full = self._left < 0 and self.asked < self._times
        if full:
            time.sleep(0.005)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_sparse(descriptor, pieces)

    def make_room(self, need: Need) -> None:
        with self._turn:
            self.asked += 1


@pytest.mark.parametrize("is_remote", [True, False])
@pytest.mark.parametrize("full_from", [0, 50, 130])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_disk_that_is_full_again_and_again_loses_no_part(
    root: CacheRoot,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    is_remote: bool,
    full_from: int,
    times: int,
) -> None:
    kind = FileSystem(remote=is_remote, sync_each=is_remote)
    monkeypatch.setattr(system, "kind_of", lambda path: kind)
    monkeypatch.setattr(parts, "PART_BYTES", 80_000)  # 40 files: more than are in flight at a time
    monkeypatch.setattr(parts, "LEAST_BYTES", 80_000)
    disk = Disk(full_from, times)
    monkeypatch.setattr(files, "write_sparse", disk.write)
    commit = world.commit(File(f"{number:03d}", 2000, str(number)) for number in range(400))
    world.check(commit, cache(root, world, commit, disk.make_room).path)
    assert disk.asked == times


@pytest.mark.parametrize("failing", [0, 1, 5])
def test_a_claim_for_which_there_was_no_room_is_made_later(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 50_000)
    claim, turns = parts.ClaimTable._claim, iter(range(10**6))

    def full_once(self: parts.ClaimTable, part: int, generation: int) -> parts.Claim | None:
        if next(turns) == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return claim(self, part, generation)

    monkeypatch.setattr(parts.ClaimTable, "_claim", full_once)
    commit = world.commit(File(f"{number:03d}", 10_000, str(number)) for number in range(100))
    world.check(commit, cache(root, world, commit).path)


@pytest.mark.usefixtures("remote")
@pytest.mark.parametrize("number", [errno.EIO, errno.EBADF, errno.ETIMEDOUT])
def test_a_host_that_the_file_server_forgot_joins_again(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """ETIMEDOUT is what a mount with `softerr` says after a cut; here at each place that asks the server, once."""
    refresh, lookups, turns = parts.ClaimTable.refresh, record.lookup, iter(range(10**6))

    def cut_off_once(self: parts.ClaimTable) -> float:
        if next(turns) == 0:
            raise OSError(number, os.strerror(number))
        return refresh(self)

    def cut_off_in_the_middle(*arguments: Any, **options: Any) -> Any:
        if options.get("fresh") and next(turns) == 1:
            raise OSError(number, os.strerror(number))
        return lookups(*arguments, **options)

    monkeypatch.setattr(parts.ClaimTable, "refresh", cut_off_once)
    monkeypatch.setattr("dsv.cache.fill.fill.lookup", cut_off_in_the_middle)
    commit = world.commit(File(f"{one:03d}", 100, str(one)) for one in range(10))
    world.check(commit, cache(root, world, commit).path)
    assert next(turns) > 3


@pytest.mark.usefixtures("remote")
@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE])
@pytest.mark.parametrize("size", [3000, 3 << 20])
def test_what_was_fetched_for_a_folder_that_another_replaced_is_not_fetched_again(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch, number: int, size: int
) -> None:
    """Two hosts that make one folder by renaming replace each other's while it is empty."""
    commit = world.commit(File(f"d/{name}", size, name) for name in "abc")
    new_file, failures = files.new_file, ["a", "b"]

    def replaced(folder: int, name: bytes, *rest: Any, **how: Any) -> int:
        if name.decode() in failures:
            failures.remove(name.decode())
            raise OSError(number, os.strerror(number))
        return new_file(folder, name, *rest, **how)

    monkeypatch.setattr(files, "new_file", replaced)
    monkeypatch.setattr(place_files, "new_file", replaced)
    result = cache(root, world, commit)
    assert not failures
    world.check(commit, result.path)
    assert sum(fetched for _, fetched in world.fetched()) == 3 * size
    assert result.fetched_bytes == 3 * size
