from __future__ import annotations

import encodings.ascii  # noqa: F401 (another user may not be able to read this Python installation later)
import errno
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cache.places import everything_below, make_root, place, publish

from dsv.cache.claims import LeaseOwner
from dsv.cache.evict import evict
from dsv.cache.inventory import take_inventory
from dsv.cache.leases import Lease, end_hold, find_holds, hold
from dsv.cache.policy import EvictionRequest
from dsv.cache.root import CachePlace, CacheRoot, explain
from dsv.cache.settings import CacheSettings, prepare_cache
from dsv.errors import Denied, NoRoom, Unreachable
from dsv.files.folders import umask
from dsv.files.small_files import list_names, read_small

ANN, BOB, EVE, TEAM = 61001, 61002, 61003, 61100

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    return make_root(tmp_path / "cache")


@pytest.fixture
def shared() -> Iterator[CacheRoot]:
    """A root that a team shares, as an administrator makes one: group-writable, setgid."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        path = Path(name) / "cache"
        path.mkdir()
        os.chown(path, ANN, TEAM)
        path.chmod(0o2775)
        yield CacheRoot(path)


def as_user(user: int, mask: int, do: Callable[[], None], *, groups: tuple[int, ...] = (TEAM,)) -> None:
    """Runs it in a process of another user, whose own group comes first, and with another umask."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups(list(groups))
            os.setgid(user)
            os.setuid(user)
            os.umask(mask)
            do()
            status = 0
        except BaseException as error:  # noqa: BLE001 (reported to the parent)
            os.write(write, repr(error).encode()[:4000])
        finally:
            os._exit(status)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    said = os.read(read, 4000).decode()
    os.close(read)
    assert status == 0, said


def test_places() -> None:
    name = "ab" * 32
    assert CachePlace.parse("xrays", name) == CachePlace("xrays", name)
    part = CachePlace.parse("team-a%2Flungs", f"{name}+{'12' * 8}")
    assert part is not None and part.selection == "12" * 8 and str(part.commit) == name
    for dataset, wrong in (
        (".dsv", name),
        ("xrays", name[:-1]),
        ("xrays", name + "+"),
        ("x/y", name),
        ("x", ".."),
    ):
        assert CachePlace.parse(dataset, wrong) is None


def test_of_many_writers_of_one_name_exactly_one_wins(root: CacheRoot) -> None:
    path = root.claims(place()) / "name"
    script = f"""
from pathlib import Path
from dsv.cache.root import CacheRoot
import os, sys
sys.stdin.read()
root = CacheRoot(Path({str(root.path)!r}))
won = root.write_once(root.top / {path.below!r}, str(os.getpid()).encode() * 1000)
print(os.getpid() if won else "")
"""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    for one in running:
        assert one.stdin is not None
        one.stdin.close()
    winners = [text for one in running if (text := (one.stdout.read() if one.stdout else "").strip())]
    for one in running:
        one.wait()
    assert len(winners) == 1 and path.path.read_bytes() == winners[0].encode() * 1000
    assert everything_below(root.temporary.path) == []


def test_writing_survives_folders_that_are_removed_meanwhile(root: CacheRoot) -> None:
    folder = root.claims(place())
    stop = threading.Event()

    def remove() -> None:
        while not stop.wait(0.0005):
            for path in (folder, folder.parent):
                try:
                    path.rmdir()
                except OSError:
                    continue

    thread = threading.Thread(target=remove)
    thread.start()
    try:
        for number in range(100):
            assert root.write_once(folder / str(number), b"x")
            (folder / str(number)).unlink()
            root.now(folder)
    finally:
        stop.set()
        thread.join()


def test_the_servers_time_is_the_time_of_a_change_and_never_goes_back(root: CacheRoot) -> None:
    times = []
    before = time.time()
    for _ in range(20):
        times.append(root.now())
        time.sleep(0.002)
    assert times == sorted(times)
    assert before - 1 < times[0] and times[-1] < time.time() + 1
    assert everything_below(root.temporary.path) == []


def test_small_files(tmp_path: Path) -> None:
    assert read_small(tmp_path / "no") is None and read_small(tmp_path / "no" / "no") is None
    (tmp_path / "f").write_bytes(b"12345")
    assert read_small(tmp_path / "f") == b"12345" and read_small(tmp_path / "f", 4) is None
    (tmp_path / ".hidden").touch()
    assert list_names(tmp_path) == ["f"] and list_names(tmp_path / "no") == []


def test_errors_by_what_a_handler_would_do() -> None:
    kinds = {
        errno.EACCES: Denied, errno.EROFS: Denied, errno.EDQUOT: NoRoom, errno.ENOSPC: NoRoom,
        errno.ENOENT: Unreachable, errno.EIO: Unreachable, errno.ESTALE: Unreachable, errno.ETIMEDOUT: Unreachable,
    }  # fmt: skip
    for number, kind in kinds.items():
        assert type(explain(OSError(number, "x"), Path("/c"))) is kind


def test_a_root_that_becomes_a_groups_later_passes_it_on_all_the_same(tmp_path: Path) -> None:
    """The dot folder was made before and does not have the setgid bit, so nothing inherits it from there."""
    root = make_root(tmp_path / "cache")
    root.path.chmod(0o2775)
    if os.geteuid() == 0:
        os.chown(root.path, -1, 12345)
        root.path.chmod(0o2775)
    later = CacheRoot(root.path)
    before = os.umask(0)  # else mkdir alone would not do for other reasons
    try:
        for path in (later.claims(place()), later.top / "xrays"):
            later.make_directory(path)
            found = path.stat()
            assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o2775, root.path.stat().st_gid)
    finally:
        os.umask(before)


def test_the_umask_is_read_without_being_touched() -> None:
    before = os.umask(0o027)
    try:
        assert umask() == 0o027 and umask() == 0o027
    finally:
        os.umask(before)


class TestOwners:
    def test_they_are_never_the_same(self) -> None:
        assert LeaseOwner.new().id != LeaseOwner.new().id and not LeaseOwner.new().surely_dead()

    def test_a_dead_process_is_known_on_its_own_kernel_only(self) -> None:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            me = LeaseOwner.new()
            os.write(write, f"{me.kernel} {me.pid} {me.start}".encode())
            os._exit(0)
        kernel, number, start = os.read(read, 1000).decode().split()
        os.close(read)
        os.close(write)
        dead = LeaseOwner("a" * 32, "host", "ann", kernel, int(number), int(start))
        while not Path(f"/proc/{pid}/stat").read_text().split(") ")[1].startswith("Z"):
            time.sleep(0.01)
        assert dead.surely_dead(), "it only waits to be reaped"
        os.waitpid(pid, 0)
        assert dead.surely_dead()
        assert not LeaseOwner(
            "a" * 32, "host", "ann", "another kernel", int(number), int(start)
        ).surely_dead()
        assert not LeaseOwner("a" * 32, "host", "ann", "", int(number), int(start)).surely_dead()

    def test_a_pid_that_came_back_is_another_process(self) -> None:
        me = LeaseOwner.new()
        assert LeaseOwner("a" * 32, "", "", me.kernel, me.pid, me.start - 1).surely_dead()


@needs_root
class TestSeveralUsers:
    def test_two_users_with_any_umask_share_everything(self, shared: CacheRoot) -> None:
        def ann() -> None:
            prepare_cache(shared)
            publish(shared, place(1), {"a": b"1"}, age=1e6)
            Lease.take(shared, place(1), "hold", ttl=60)
            hold(shared, place(1), seconds=0.01)

        def bob() -> None:
            prepare_cache(shared)
            with Lease.take(shared, place(1), "run") as lease:
                assert lease.confirm()
            assert [
                one.reason[:7]
                for one in evict(shared, CacheSettings(), EvictionRequest(everything=True)).kept
            ] == ["held by"]
            publish(shared, place(2), {"a": b"1"}, age=1e6)
            publish(shared, place(2, "others"), {"a": b"1"}, age=1e6)

        def ann_again() -> None:
            (held,) = find_holds(shared, [place(1)])
            end_hold(shared, held)
            assert len(evict(shared, CacheSettings(), EvictionRequest(everything=True)).evicted) == 3

        as_user(ANN, 0o077, ann)
        as_user(BOB, 0o027, bob)
        for path in [shared.dot.path, *shared.dot.path.rglob("*")]:
            found = path.lstat()
            assert found.st_gid == TEAM, path
            if stat.S_ISDIR(found.st_mode):
                assert stat.S_IMODE(found.st_mode) == 0o2775, path
            else:
                assert found.st_mode & 0o440 == 0o440, path
        as_user(ANN, 0o077, ann_again)
        assert take_inventory(shared).items == ()

    def test_without_setgid_the_roots_group_is_given_by_hand(self, shared: CacheRoot) -> None:
        shared.path.chmod(0o775)

        def make() -> None:
            prepare_cache(shared)
            publish(shared, place(1), {"a": b"1"}, age=1e6)

        as_user(BOB, 0o022, make)
        assert {path.lstat().st_gid for path in shared.dot.path.rglob("*") if path.is_dir()} == {TEAM}
        as_user(ANN, 0o022, lambda: _evicts(shared, 1))

    def test_a_private_cache_stays_private(self, shared: CacheRoot) -> None:
        shared.path.chmod(0o700)
        os.chown(shared.path, ANN, ANN)
        as_user(ANN, 0o022, lambda: publish(_prepared(shared), place(1), {"a": b"1"}) and None, groups=())
        for path in shared.path.rglob("*"):
            assert not path.lstat().st_mode & 0o077 or path == shared.settings_file, path
        as_user(EVE, 0o022, lambda: _is_denied(lambda: evict(shared, CacheSettings(), EvictionRequest())))

    def test_a_user_without_the_right_to_write_reads_and_gets_an_error_on_writing(
        self, shared: CacheRoot
    ) -> None:
        as_user(ANN, 0o022, lambda: publish(_prepared(shared), place(1), {"a": b"1"}, age=1e6) and None)

        def eve() -> None:
            prepare_cache(shared)
            assert len(take_inventory(shared).visible) == 1
            _is_denied(lambda: evict(shared, CacheSettings(), EvictionRequest()))
            with pytest.raises(PermissionError):
                Lease.take(shared, place(1), "run")

        as_user(EVE, 0o022, eve, groups=())
        assert shared.visible(place(1)).is_dir()

    def test_a_group_that_one_is_not_in_is_no_obstacle_to_a_cache_open_to_all(
        self, shared: CacheRoot
    ) -> None:
        shared.path.chmod(0o1777)
        as_user(
            EVE, 0o077, lambda: publish(_prepared(shared), place(1), {"a": b"1"}, age=1e6) and None, groups=()
        )
        as_user(BOB, 0o077, lambda: _evicts(shared, 1), groups=())


def _prepared(root: CacheRoot) -> CacheRoot:
    prepare_cache(root)
    return root


def _evicts(root: CacheRoot, count: int) -> None:
    result = evict(root, CacheSettings(), EvictionRequest())
    assert len(result.evicted) == count, (result.kept, result.failed)


def _is_denied(act: Callable[[], object]) -> None:
    try:
        act()
    except Denied:
        return
    raise AssertionError("it was allowed")
