from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cache.places import ensure_room, make_root, place, publish
from tests.waiting import until

from dsv.cache import cleanup, removal
from dsv.cache.claims import Intent, IntentRecord, LeaseOwner
from dsv.cache.evict import disk_now, evict, preview
from dsv.cache.inventory import take_inventory
from dsv.cache.leases import Lease, hold
from dsv.cache.policy import CachedCommit, EvictionRequest, Need
from dsv.cache.record import Extent
from dsv.cache.removal import Remover
from dsv.cache.root import CacheRoot
from dsv.cache.settings import CacheLimits, CacheSettings, load_settings, prepare_cache
from dsv.errors import Denied, NoRoom, NotFound, Unreachable, Unsupported, UsageError
from dsv.files.shared_path import SharedPath

ALL = EvictionRequest(everything=True)


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    return make_root(tmp_path / "cache")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that other users can reach, as pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def nothing_is_left(root: CacheRoot) -> bool:
    here = sorted(one.name for one in root.path.iterdir())
    parts = [list((root.dot.path / name).iterdir()) for name in ("claims", "fill", "room", "tmp")]
    return (
        here == [".dsv", "dsv-cache.toml"]
        and not any(parts)
        and list(root.trash.path.iterdir()) == [root.spare_folder.path]
    )


def test_the_least_recently_used_is_evicted_first_until_the_limit_holds(root: CacheRoot) -> None:
    for number in range(4):
        publish(root, place(number), {"a": bytes(100_000)}, age=(4 - number) * 100)
    heard: list[CachedCommit] = []
    result = evict(
        root, CacheSettings(limits=CacheLimits(max_size=210_000)), EvictionRequest(), on_evicted=heard.append
    )
    assert [one.place for one in result.evicted] == [place(0), place(1)] == [o.place for o in heard]
    assert all("max_size is 210 kB" in one.reason for one in result.evicted) and result.exceeded == []
    assert len(take_inventory(root).visible) == 2


def test_what_an_heir_inherited_counts_for_the_next_heir(root: CacheRoot) -> None:
    files = {str(number): os.urandom(5000) for number in range(20)}
    first = publish(root, place(1), files, age=300)
    publish(root, place(2), files, age=200, links=first)
    publish(root, place(3), {"z": b"1"}, age=100)
    hold(root, place(2))
    before = sum((one.room for one in take_inventory(root).visible), Extent())
    result = evict(root, CacheSettings(), ALL)
    assert [one.place for one in result.evicted] == [place(1), place(3)]
    (kept,) = take_inventory(root).visible
    assert kept.room == before - result.freed == Extent(20 * 8192, 20)


@pytest.mark.parametrize("error", [-20_000, 20_000])
def test_the_error_of_an_account_goes_to_no_other_commit(root: CacheRoot, error: int) -> None:
    """A fill estimates what its files take."""
    publish(root, place(1), {"a": os.urandom(50_000)})
    hold(root, place(1))
    (before,) = take_inventory(root).visible
    for _ in range(3):
        publish(root, place(2), {str(number): os.urandom(8192) for number in range(9)}, error=error)
        assert [one.place for one in evict(root, CacheSettings(), ALL).evicted] == [place(2)]
        (after,) = take_inventory(root).visible
        assert after.room == before.room


def test_a_dry_run_says_exactly_what_evicting_frees(root: CacheRoot) -> None:
    """Three commits that share files pairwise: the order decides what each frees."""
    shared = {f"s/{n}": os.urandom(5000 + n) for n in range(20)}
    first = publish(root, place(1), {**shared, "x": os.urandom(9000)}, age=300)
    second = publish(root, place(2), {**shared, "y": os.urandom(13000)}, age=200, links=first)
    publish(root, place(3), {**dict(list(shared.items())[:5]), "z": b"1"}, age=100, links=second)
    some = EvictionRequest(only=frozenset({place(1), place(2)}))
    dry = preview(root, CacheSettings(), some)
    assert evict(root, CacheSettings(), some).evicted == dry.evicted
    frees = [one.freed for one in dry.evicted]
    assert frees[0] == Extent(12288, 1) and frees[1].files == 16
    kept = take_inventory(root).visible
    assert [item.room.files for item in kept] == [6], "what stays on disk is on the account of what stays"
    on_disk = sum(
        path.stat().st_blocks * 512 for path in root.visible(place(3)).path.rglob("*") if path.is_file()
    )
    assert kept[0].room.bytes == on_disk
    dry = preview(root, CacheSettings(), ALL)
    result = evict(root, CacheSettings(), ALL)
    assert result.freed == dry.freed == Extent(on_disk, 6) and nothing_is_left(root)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_sum_of_all_accounts_is_what_the_disk_holds(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = make_root(tmp_path_factory.mktemp("c"))
    contents = {f"f{n}": os.urandom(n * 900) for n in range(6)}
    for number in range(data.draw(st.integers(1, 4))):
        names = data.draw(st.sets(st.sampled_from(sorted(contents))))
        visible = sorted(item.place for item in take_inventory(root).visible)
        reference = data.draw(st.sampled_from([None, *visible]))
        publish(
            root, place(number), {name: contents[name] for name in names}, age=10 - number,
            links=None if reference is None else root.visible(reference).path,
        )  # fmt: skip
    order = data.draw(st.permutations([item.place for item in take_inventory(root).visible]))
    for chosen in order:
        files = {path.stat().st_ino: path.stat() for path in root.path.glob("xrays/*/*")}
        items = take_inventory(root).visible
        assert sum((item.room for item in items), Extent()) == Extent(
            sum(found.st_blocks * 512 for found in files.values()), len(files)
        )
        dry = preview(root, CacheSettings(), EvictionRequest(only=frozenset({chosen})))
        assert evict(root, CacheSettings(), EvictionRequest(only=frozenset({chosen}))).freed == dry.freed
    assert nothing_is_left(root)


def test_what_a_killed_evictor_left_is_cleared_by_the_next(root: CacheRoot) -> None:
    publish(root, place(1), {"a": b"1"})
    publish(root, place(2), {"a": bytes(5000), "b/c": b"2"})
    for number, last in ((1, "told"), (2, "fired")):
        script = f"""
import os
from pathlib import Path
from dsv.cache.claims import Intent, IntentRecord
from dsv.cache.root import CacheRoot
from tests.cache.places import place
root = CacheRoot(Path({str(root.path)!r}))
intent = Intent.declare(root, place({number}), root.now())
if {last!r} == "fired":
    intent.rename_to_trash(root.visible(place({number})))
os._exit(9)
"""
        assert subprocess.run([sys.executable, "-c", script], cwd=Path.cwd()).returncode == 9
    assert root.visible(place(1)).path.exists() and not root.visible(place(2)).path.exists()
    result = evict(root, CacheSettings(), EvictionRequest())
    assert result.evicted == [] and result.leftovers == Extent(8192 + 4096, 2)
    assert list(root.trash.path.iterdir()) == [root.spare_folder.path]
    assert [item.place for item in take_inventory(root).items] == [place(1)]
    evict(root, CacheSettings(), ALL)
    assert nothing_is_left(root)


def test_what_an_evictor_of_another_host_does_is_left_to_it_for_a_while(
    root: CacheRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(root, place(1), {"a": b"1"})
    intent = Intent.declare(root, place(1), root.now())
    intent.file.unlink()
    elsewhere = LeaseOwner(id=intent.owner.id, kernel="another", pid=1, start=1)
    root.write_once(intent.file, msgspec.json.encode(IntentRecord(owner=elsewhere, at=root.now())))
    evict(root, CacheSettings(), EvictionRequest())
    assert intent.folder.is_dir()
    monkeypatch.setattr(cleanup, "ABANDONED", -1.0)
    evict(root, CacheSettings(), EvictionRequest())
    assert not intent.folder.exists() and not intent.file.exists()


def test_two_evicts_at_once_are_safe_and_count_each_commit_once(root: CacheRoot) -> None:
    total = 0
    for number in range(12):
        visible = publish(
            root, place(number), {f"d{d}/f{f}": os.urandom(300) for d in range(9) for f in range(4)}
        )
        total += sum(path.stat().st_blocks * 512 for path in visible.rglob("*") if path.is_file())
    script = f"""
from pathlib import Path
from dsv.cache.evict import evict
from dsv.cache.root import CacheRoot
from dsv.cache.policy import CachedCommit, EvictionRequest
from dsv.cache.settings import CacheSettings
from dsv.files.shared_path import SharedPath
result = evict(CacheRoot(Path({str(root.path)!r})), CacheSettings(), EvictionRequest(everything=True))
assert not result.failed, result.failed
print(len(result.evicted), result.freed.bytes)
"""
    running = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    said = [one.communicate()[0].split() for one in running]
    assert [one.returncode for one in running] == [0, 0, 0]
    assert sum(int(words[0]) for words in said) == 12 and sum(int(words[1]) for words in said) == total
    assert nothing_is_left(root)


def test_a_commit_used_since_the_plan_was_made_stays(root: CacheRoot) -> None:
    visible = publish(root, place(1), {"a": b"1"}, age=1e6)
    publish(root, place(2), {"a": b"1"}, age=1e6 - 1)

    def use_the_second(_: CachedCommit) -> None:
        with Lease.take(root, place(2), "run") as lease:
            assert lease.confirm()

    result = evict(root, CacheSettings(), EvictionRequest(), on_evicted=use_the_second)
    assert [one.place for one in result.evicted] == [place(1)] and not visible.exists()
    assert [one.reason for one in result.kept] == ["in use right now"]


def test_room_for_a_fill_is_made_or_refused(root: CacheRoot) -> None:
    publish(root, place(1), {"a": bytes(100_000)}, age=5)
    publish(root, place(2), {"a": bytes(100_000)}, age=4)
    limited = CacheSettings(limits=CacheLimits(unused_for=1.0, max_size=320_000))
    need = Need(place(3), 100_000, 1)
    assert ensure_room(root, limited, need).evicted == [], "age is no reason while there is room"
    big = Need(place(3), 150_000, 1, frozenset({place(1)}))
    assert [one.place for one in ensure_room(root, limited, big).evicted] == [place(2)]
    with (
        Lease.take(root, place(1), "run"),
        pytest.raises(NoRoom, match=r"max_size is 320 kB; in use or held: 1 cached commit$"),
    ):
        ensure_room(root, limited, Need(place(3), 300_000, 1))
    disk = disk_now(root)
    with pytest.raises(NoRoom, match="are free"):
        ensure_room(root, CacheSettings(), Need(place(3), disk.total * 2, 1))


def test_nothing_is_due_of_50_commits(root: CacheRoot) -> None:
    """tests/counts/test_system_calls.py limits its cost."""
    for number in range(50):
        publish(root, place(number), {"a": b"1"}, age=number)
    assert evict(root, CacheSettings(), EvictionRequest()).evicted == []


def test_an_older_dsv_reads_a_newer_cache_but_does_not_write_it(root: CacheRoot) -> None:
    publish(root, place(1), {"a": b"1"}, age=1e6)
    root.settings_file.path.write_text('protocol = 2\nsomething_new = "x"\n')
    found = load_settings(root)
    assert preview(root, found, EvictionRequest()).evicted != []
    with pytest.raises(Unsupported, match="protocol 2"):
        evict(root, found, EvictionRequest())
    with pytest.raises(Unsupported):
        prepare_cache(root)


@pytest.mark.parametrize(
    "text",
    [
        "max_size = 1.5",
        'max_sise = "1G"',
        "protocol = 0",
        "[datasets.a]\nx = 1",
        "]",
        'min_free = "200%"',
        "unused_for = 5",
        'protected = "a"',
    ],
)
def test_settings_that_cannot_be_meant_are_named(root: CacheRoot, text: str) -> None:
    root.settings_file.path.write_text(text)
    with pytest.raises(UsageError, match=r"dsv-cache\.toml"):
        load_settings(root)


def test_settings_that_cannot_be_read_are_an_error_and_never_no_limits(root: CacheRoot) -> None:
    comment = "# " + "x" * 78 + "\n"
    root.settings_file.path.write_text('max_size = "1G"\n' + comment * 14_000)  # more than 1 MiB
    with pytest.raises(UsageError, match=r"dsv-cache\.toml is not a file of at most"):
        load_settings(root)
    root.settings_file.path.unlink()
    assert load_settings(root).limits.max_size is None
    for make in (root.settings_file.path.mkdir, lambda: root.settings_file.path.symlink_to("nowhere")):
        make()
        with pytest.raises(UsageError, match=r"dsv-cache\.toml is not a file of at most"):
            prepare_cache(root)
        if root.settings_file.path.is_symlink():
            root.settings_file.path.unlink()
        else:
            root.settings_file.path.rmdir()


def test_settings_as_documented(root: CacheRoot) -> None:
    root.settings_file.path.write_text(
        'unused_for = "never"\nmax_size = "20T"\nmax_files = 50_000_000\nmin_free = "5%"\nprotected = ["team-a/*"]\n'
        '[datasets."scratch/*"]\nunused_for = "6h"\nmax_size = "500G"\n[datasets."team-a/tmp"]\nprotected = false\n'
    )
    found = load_settings(root)
    assert found.limits.max_size == 20 * 10**12 and found.unused_for("x") is None
    assert found.unused_for("scratch/a") == 6 * 3600 and found.rule("scratch/a").max_size == 500 * 10**9
    assert found.is_protected("team-a/b") and not found.is_protected("team-a/tmp")
    assert found.tightened(CacheLimits(unused_for=60.0)).unused_for("scratch/a") == 60.0


class TestRemoval:
    def test_it_follows_no_link_and_counts_last_links_only(self, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "precious").write_bytes(bytes(5000))
        tree = tmp_path / "tree"
        for n in range(20):
            (tree / f"d{n}").mkdir(parents=True)
            (tree / f"d{n}" / "f").write_bytes(bytes(5000))
        os.link(outside / "precious", tree / "shared")
        os.link(tree / "d0" / "f", tree / "d1" / "twice")
        (tree / "link").symlink_to("../outside")
        (tree / "d2" / "link").symlink_to("../../outside")
        dry = Remover(dry=True).remove(SharedPath(tree.parent) / tree.name)
        assert (tree / "d0" / "f").exists()
        removed = Remover().remove(SharedPath(tree.parent) / tree.name)
        assert not tree.exists() and (outside / "precious").read_bytes() == bytes(5000)
        assert removed.room == dry.room and removed.files == dry.files == 24
        assert removed.room.files == 22 and removed.room.bytes == 20 * 8192

    def test_trees_deeper_than_any_recursion(self, tmp_path: Path) -> None:
        top = tmp_path / "tree"
        top.mkdir()
        folder = os.open(top, os.O_RDONLY)
        for _ in range(1200):
            os.mkdir("d", dir_fd=folder)
            deeper = os.open("d", os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = deeper
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
        os.close(folder)
        Remover(dry=True).remove(SharedPath(top.parent) / top.name)
        assert Remover().remove(SharedPath(top.parent) / top.name).files == 1
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_is_still_written_to_is_removed_in_the_end(self, tmp_path: Path) -> None:
        top = tmp_path / "tree"
        (top / "d").mkdir(parents=True)
        script = f"""
import os, time
folder = os.open({str(top / "d")!r}, os.O_RDONLY)
for n in range(50):
    try:
        os.close(os.open(f"f{{n}}", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    except FileNotFoundError:
        break
    time.sleep(0.02)
"""
        writer = subprocess.Popen([sys.executable, "-c", script])
        while not any((top / "d").iterdir()):
            time.sleep(0.01)
        Remover().remove(SharedPath(top.parent) / top.name)
        assert not top.exists()
        writer.wait()

    def test_what_threads_still_empty_stays_open_after_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise they would continue in whatever has got the number of its descriptor."""
        top = tmp_path / "tree"
        (top / "stuck").mkdir(parents=True)
        (top / "f").touch()
        on = threading.Event()  # the remover waits for its threads, or closes the folder
        closing, waiting, status, removing = os.close, removal.wait, os.stat, os.rmdir
        numbers: list[int] = []

        def stat(name: Any, *, dir_fd: int | None = None, **options: Any) -> os.stat_result:
            if name == "f" and dir_fd is not None:
                numbers.append(dir_fd)
                on.wait()
            return status(name, dir_fd=dir_fd, **options)

        def rmdir(name: Any, *, dir_fd: int | None = None) -> None:
            if name == "stuck":
                until(lambda: numbers)
                raise PermissionError(errno.EPERM, "it may not be removed")
            removing(name, dir_fd=dir_fd)

        def close(number: int) -> None:
            closing(number)
            if number in numbers:
                on.set()

        def wait(jobs: Any) -> Any:
            on.set()
            return waiting(jobs)

        monkeypatch.setattr(os, "stat", stat)
        monkeypatch.setattr(os, "rmdir", rmdir)
        monkeypatch.setattr(os, "close", close)
        monkeypatch.setattr(removal, "wait", wait)
        with pytest.raises(PermissionError):
            Remover().remove(SharedPath(top.parent) / top.name)
        assert [one.name for one in top.iterdir()] == ["stuck"]

    def test_what_threads_still_empty_stays_open_if_no_further_thread_starts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The job for which one was wanted is in the queue already, and other threads would take it."""
        top = tmp_path / "tree"
        for number in range(12):
            (top / f"d{number}").mkdir(parents=True)
        on = threading.Event()  # the pool ends, or the remover closes the folder
        opening, closing = os.open, os.close
        numbers: set[int] = set()
        lost: list[OSError] = []

        class Pool(ThreadPoolExecutor):
            submitted = 0

            def submit(self, *given: Any, **more: Any) -> Any:
                made = super().submit(*given, **more)
                self.submitted += 1
                if self.submitted == 4:
                    raise RuntimeError("can't start new thread")
                return made

            def shutdown(self, *given: Any, **more: Any) -> None:
                on.set()
                super().shutdown(*given, **more)

        def open_below(name: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if dir_fd is None or not str(name).startswith("d"):
                return opening(name, flags, mode, dir_fd=dir_fd)
            numbers.add(dir_fd)
            on.wait()
            try:
                return opening(name, flags, mode, dir_fd=dir_fd)
            except OSError as error:
                lost.append(error)
                raise

        def close(number: int) -> None:
            closing(number)
            if number in numbers:
                on.set()

        monkeypatch.setattr(removal, "ThreadPoolExecutor", Pool)
        monkeypatch.setattr(os, "open", open_below)
        monkeypatch.setattr(os, "close", close)
        with pytest.raises(RuntimeError):
            Remover().remove(SharedPath(top.parent) / top.name)
        assert lost == []

    def test_what_is_missing_is_no_error(self, tmp_path: Path) -> None:
        assert Remover().remove(SharedPath(tmp_path) / "no").files == 0
        assert Remover().remove(SharedPath(tmp_path) / "no/deeper").files == 0


def test_a_full_disk_does_not_keep_from_evicting(tmp_path: Path) -> None:
    """On a file system without a free block or inode, as root can make one."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    mount = tmp_path / "small"
    mount.mkdir()
    options = "size=400k,nr_inodes=60"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", mount], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    try:
        root = make_root(mount / "cache")
        publish(root, place(1), {"a": bytes(100_000)}, age=1e6)
        publish(root, place(2), {"a": bytes(100_000)})
        lease = Lease.take(root, place(2), "run", ttl=60)
        assert lease.confirm()
        for number in range(100):
            try:
                (mount / f"filler{number}").write_bytes(bytes(50_000))
            except OSError:
                continue
        with pytest.raises(OSError, match="No space"):
            (mount / "one-more").touch()
        before = set(root.claims(place(2)).path.glob("lease-*"))
        lease.renew()
        assert before.isdisjoint(root.claims(place(2)).path.glob("lease-*"))
        result = evict(root, CacheSettings(), ALL)
        assert result.failed == [] and [one.place for one in result.evicted] == [place(1)]
        assert "in use by run" in result.kept[0].reason
        lease.release()
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


def test_a_cache_that_may_only_be_read_says_so(open_folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    root = make_root(open_folder / "cache")
    publish(root, place(1), {"a": b"1"}, age=1e6)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            assert len(take_inventory(root).visible) == 1
            try:
                evict(root, CacheSettings(), EvictionRequest())
            except Denied:
                code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_file_in_place_of_one_of_dsvs_own_folders_is_not_an_absent_cache(root: CacheRoot) -> None:
    (root.dot.path / "claims").rmdir()
    (root.dot.path / "claims").touch()
    with pytest.raises(Unreachable, match="Not a directory"):
        evict(root, CacheSettings(), ALL)
    with pytest.raises(NotFound, match="Not a directory"):
        prepare_cache(CacheRoot(root.settings_file.path / "cache"))
