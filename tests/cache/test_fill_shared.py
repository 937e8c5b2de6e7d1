"""Several real processes fill one commit: each byte leaves the store once, and no death or delay does harm."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cache import filler
from tests.cache.fake_source import STORE, FakeSource, File, World
from tests.processes import running
from tests.waiting import PATIENCE, until

from dsv.cache.account import recount
from dsv.cache.claims import read_claims
from dsv.cache.fill import files, helper_process
from dsv.cache.fill.fill import fill
from dsv.cache.fill.plan import FillRequest
from dsv.cache.fill.reservations import reservations
from dsv.cache.fill.source import StoreSource
from dsv.cache.fill.workers import read_workers
from dsv.cache.policy import Need
from dsv.cache.removal import Remover
from dsv.cache.root import CachePlace, CacheRoot
from dsv.files.process import start_program
from dsv.values.ids import CommitId, FileId

FILES = [File(f"d{number % 5}/{number:03d}", 90_000 + number * 100, str(number)) for number in range(120)]
PART = 1 << 20


def plenty(need: Need) -> None:
    """There is always room."""


def fill_here(root: CacheRoot, world: World, commit: CommitId) -> Path:
    source = FakeSource(world.folder, str(commit))
    return fill(root, FillRequest("xrays", commit, STORE), source, ensure_room=plenty).path


def test_four_processes_fetch_each_byte_once(root: CacheRoot, world: World) -> None:
    commit = world.commit(FILES)
    processes = [filler.start(root, world.folder, commit, part_bytes=PART, crowd=4) for _ in range(4)]
    answers = [filler.finish(process) for process in processes]
    assert {answer["path"] for answer in answers} == {str(root.path / "xrays" / str(commit))}
    world.check(commit, Path(answers[0]["path"]))
    assert sorted(path for path, _ in world.fetched()) == sorted(file.path for file in FILES)
    assert sum(answer["fetched"] for answer in answers) == sum(file.size for file in FILES)
    assert sum(answer["fetched"] > 0 for answer in answers) > 1
    assert reservations(root) == []


def test_helpers_of_one_process_share_by_the_same_claims(root: CacheRoot, world: World) -> None:
    commit = world.commit(FILES)
    answer = filler.finish(filler.start(root, world.folder, commit, part_bytes=PART, pause=0.02, jobs=3))
    world.check(commit, Path(answer["path"]))
    assert sorted(path for path, _ in world.fetched()) == sorted(file.path for file in FILES)
    assert answer["fetched"] == sum(file.size for file in FILES)


@pytest.mark.parametrize("processes", [1, 2])
def test_whoever_shares_a_fill_names_all_that_is_damaged(
    root: CacheRoot, world: World, processes: int
) -> None:
    commit = world.commit(FILES)
    damaged = [file.path for file in FILES[3::20]]
    options = {"jobs": 3, "pause": 0.02} if processes == 1 else {"crowd": 2}
    begun = [
        filler.start(root, world.folder, commit, part_bytes=PART, damaged=damaged, **options)
        for _ in range(processes)
    ]
    told = ""
    for process in begun:
        answer = json.loads(process.communicate(timeout=PATIENCE)[0])
        assert answer["error"] == "integrity"
        told += answer["message"]
    assert {file.path for file in FILES if f"chunk of {file.path} is" in told} == {*damaged}
    assert not (root.path / "xrays" / str(commit)).exists()
    assert {path for path, _ in world.fetched()} == {file.path for file in FILES} - {*damaged}
    answer = filler.finish(filler.start(root, world.folder, commit, part_bytes=PART))
    world.check(commit, Path(answer["path"]))


def pids_at_work(root: CacheRoot, commit: CommitId) -> set[int]:
    sites = root.fill(FillRequest("xrays", commit, STORE).place).path.glob("at-*")
    return {worker.owner.pid for site in sites for worker in read_workers(site / "workers").values()}


def test_a_killed_helper_costs_what_it_had_under_way(root: CacheRoot, world: World) -> None:
    commit = world.commit(FILES)
    process = filler.start(root, world.folder, commit, part_bytes=PART, jobs=2, wait_after=5)
    until(lambda: len(pids_at_work(root, commit)) == 2)
    (helper,) = pids_at_work(root, commit) - {process.pid}
    os.kill(helper, signal.SIGKILL)
    (world.folder / "go").touch()
    world.check(commit, Path(filler.finish(process)["path"]))
    assert len(world.fetched()) <= len(FILES) + 2


def test_helpers_import_nothing_from_the_current_folder(
    root: CacheRoot, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "signal", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the data')")
    monkeypatch.chdir(tmp_path)
    unused: Any = StoreSource  # it is pickled by its name
    helper = start_program(
        helper_process.PROGRAM, (root.path, CachePlace("xrays", "0" * 64), "none", 0, unused)
    )
    helper.communicate()
    assert helper.returncode == 0  # there is no such fill, and it got as far as looking for it


def test_a_fill_whose_helpers_cannot_be_started_is_done_alone(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def fail(module: str, *_: object, **options: object) -> None:
        tried.append(module)
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(helper_process, "start_program", fail)
    commit = world.commit(FILES)
    source = FakeSource(world.folder, str(commit))
    unused: Any = StoreSource
    request = FillRequest("xrays", commit, STORE)
    path = fill(root, request, source, ensure_room=plenty, jobs=3, helper=unused).path
    world.check(commit, path)
    assert tried == [helper_process.PROGRAM]


def test_helpers_end_with_the_process_that_started_them(root: CacheRoot, world: World) -> None:
    commit = world.commit(FILES)
    process = filler.start(root, world.folder, commit, part_bytes=PART, jobs=2, wait_after=5)
    until(lambda: len(pids_at_work(root, commit)) == 2)
    (helper,) = pids_at_work(root, commit) - {process.pid}
    process.kill()
    process.communicate()
    (world.folder / "go").touch()
    until(lambda: not running(helper))
    fill_here(root, world, commit)


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_moment_it_is_resumed(root: CacheRoot, world: World, seed: int) -> None:
    chance = random.Random(seed)
    commit = world.commit(FILES)
    kills = 5
    for _ in range(kills):
        fetching = chance.randrange(20)
        process = filler.start(root, world.folder, commit, part_bytes=PART, die_after=fetching)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    answer = filler.finish(filler.start(root, world.folder, commit, part_bytes=PART))
    world.check(commit, Path(answer["path"]))
    # Whole files stay; what was being fetched or waited in memory (the fake source's 8 ahead) is fetched again.
    assert len(world.fetched()) <= len(FILES) + 2 * kills
    assert reservations(root) == []
    ((item, room),) = recount(root, mend=False)
    assert item.room == room, "what several processes did in part is counted once"


def test_the_parts_of_a_killed_process_are_taken_over_at_once(root: CacheRoot, world: World) -> None:
    commit = world.commit(FILES)
    doomed = filler.start(root, world.folder, commit, part_bytes=PART, wait_after=4, lease=True)
    until(lambda: len(world.fetched()) == 4)
    place = FillRequest("xrays", commit, STORE).place
    assert [lease.owner.pid for lease in read_claims(root, place).leases] == [doomed.pid]
    # A silent process of this host would be waited for longer than this test is.
    other = filler.start(root, world.folder, commit, part_bytes=PART, expiry=1e6)
    until(lambda: len(world.fetched()) > 60)
    doomed.kill()
    doomed.communicate()
    answer = filler.finish(other)
    world.check(commit, Path(answer["path"]))
    assert not read_claims(root, place).leases, "who takes a part over ends the lease of the dead"


LARGE = [File("a", 3 << 20, "a"), File("b", 3 << 20, "b"), *FILES[:10]]


def held_writer(root: CacheRoot, world: World, commit: CommitId) -> object:
    """A process that stands still in the middle of a large file, as if its host were unplugged."""
    process = filler.start(root, world.folder, commit, hold="b")
    until(lambda: (world.folder / "held").exists())
    os.kill(process.pid, signal.SIGSTOP)
    return process


def let_go(process: object, world: World) -> None:
    (world.folder / "go").touch()
    os.kill(process.pid, signal.SIGCONT)  # type: ignore[attr-defined]


def state(folder: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for here, _, names in os.walk(folder):
        for name in names:
            one = os.stat(os.path.join(here, name))
            found[os.path.join(here, name)] = (one.st_ino, one.st_size, one.st_mtime_ns)
    return found


def test_a_writer_that_was_given_up_does_no_harm_later(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv.cache.fill.workers.EXPIRY", 0.5)
    commit = world.commit(LARGE)
    process = held_writer(root, world, commit)
    visible = fill_here(root, world, commit)
    world.check(commit, visible)
    before = state(visible)
    let_go(process, world)
    answer = filler.finish(process)  # type: ignore[arg-type]
    assert answer["path"] == str(visible)
    assert state(visible) == before
    world.check(commit, visible)


def test_nor_when_the_commit_was_evicted_and_filled_again_meanwhile(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv.cache.fill.workers.EXPIRY", 0.5)
    commit = world.commit(LARGE)
    process = held_writer(root, world, commit)
    visible = fill_here(root, world, commit)
    visible.rename(root.trash.path / "evicted")
    for record in root.claims(FillRequest("xrays", commit, STORE).place).path.glob("entry-*"):
        record.unlink()
    Remover().remove(root.trash / "evicted")
    second = filler.start(root, world.folder, commit, wait_after=3)  # until the first is let go
    until(lambda: len(list(root.fill(FillRequest("xrays", commit, STORE).place).path.glob("at-*"))) == 1)
    let_go(process, world)
    assert filler.finish(second)["path"] == str(visible)
    assert filler.finish(process)["path"] == str(visible)  # type: ignore[arg-type]
    world.check(commit, visible)


def test_what_an_earlier_claimer_left_torn_is_replaced(root: CacheRoot, world: World) -> None:
    """As after a power cut: the names are there, their bytes are not."""
    commit = world.commit(FILES)
    process = filler.start(root, world.folder, commit, part_bytes=PART, wait_after=41)
    until(lambda: len(world.fetched()) > 40)
    process.kill()
    process.communicate()
    (site,) = root.fill(FillRequest("xrays", commit, STORE).place).path.glob("at-*")
    done = list((site / "parts").glob("*.done.*"))
    assert done
    for mark in done:  # made under another boot: what it says may not have reached the disk
        mark.rename(mark.with_suffix(".00000000"))
    torn = [path for path in (site / "tree").rglob("*") if path.is_file()][:10]
    for number, path in enumerate(torn):
        path.chmod(0o644)
        path.write_bytes(bytes(1000 if number < 5 else path.stat().st_size))
        path.chmod(0o444)
    world.check(commit, fill_here(root, world, commit))


def test_what_an_earlier_claimer_linked_is_not_read(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be terabytes, and is what the other commit has."""
    fill_here(root, world, world.commit(FILES))
    new = [File(f"new/{number:03d}", 90_000, f"new{number}") for number in range(60)]
    commit, before = world.commit([*FILES, *new]), len(world.fetched())
    process = filler.start(root, world.folder, commit, part_bytes=PART, wait_after=41)
    until(lambda: len(world.fetched()) - before > 40)
    process.kill()
    process.communicate()
    (site,) = root.fill(FillRequest("xrays", commit, STORE).place).path.glob("at-*")
    for mark in list((site / "parts").glob("*.done.*")):  # as after a power cut
        mark.rename(mark.with_suffix(".00000000"))
    read, hash_content = list[int](), files.hash_content

    def count(descriptor: int, size: int) -> tuple[FileId, int]:
        read.append(os.fstat(descriptor).st_nlink)
        return hash_content(descriptor, size)

    monkeypatch.setattr(files, "hash_content", count)
    world.check(commit, fill_here(root, world, commit))
    assert read and set(read) == {1}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter; pytest's own are closed, and closed again by each further pytest."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")
@pytest.mark.parametrize("mode", [0o2770, 0o770, 0o775, 0o2775])
def test_users_of_one_group_share_a_fill_with_any_umasks(open_folder: Path, mode: int) -> None:
    world = World(open_folder / "world")
    commit = world.commit([*FILES, *(File(f"{n}/deep/er/x", 10, str(n)) for n in range(40))])
    world.folder.chmod(0o777)
    path = open_folder / "cache"
    path.mkdir()
    os.chown(path, 0, 4000)
    path.chmod(mode)
    root = CacheRoot(path)
    options = {"part_bytes": PART, "pause": 0.01, "group": 4000}
    doomed = filler.start(root, world.folder, commit, user=4001, umask=0o077, **options)
    until(lambda: len(world.fetched()) > 30)
    others = [
        filler.start(root, world.folder, commit, user=4002, umask=0o022, **options),
        filler.start(root, world.folder, commit, user=4003, umask=0o027, **options),
    ]
    until(lambda: len(world.fetched()) > 60)
    doomed.kill()
    doomed.communicate()
    answers = [filler.finish(process) for process in others]
    visible = Path(answers[0]["path"])
    world.check(commit, visible)
    group_bits = mode & 0o070
    for here, _, names in os.walk(visible):
        found = os.stat(here)
        assert (found.st_gid, found.st_mode & 0o777) == (4000, mode & 0o777)
        for name in names:
            found = os.stat(os.path.join(here, name))
            assert found.st_mode & 0o777 == mode & 0o444
            assert found.st_gid == 4000 or not group_bits or mode & 0o004
