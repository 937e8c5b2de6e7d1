"""What only a directory store has: modes, links, leftovers, a file system's errors."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv.errors import Denied, DsvError, IntegrityError, NoRoom, NotFound, Unreachable, Unsupported
from dsv.stores import directory
from dsv.stores.base import NoAnswer, PutResult
from dsv.stores.directory import DirectoryStore, as_store_error
from dsv.stores.open import open_store
from tests.stores.opened import Opened
from tests.waiting import PATIENCE

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o755)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask() -> Callable[[int], None]:
    """Sets the umask for the rest of the test."""
    before = os.umask(0)
    os.umask(before)
    yield lambda value: os.umask(value) and None  # type: ignore[misc]
    os.umask(before)


@pytest.mark.parametrize(("mask", "file", "folder"), [(0o022, 0o444, 0o755), (0o077, 0o400, 0o700)])
def test_files_are_read_only_and_follow_the_umask(
    root: Path, umask: Callable[[int], None], mask: int, file: int, folder: int, opened: Opened
) -> None:
    umask(mask)
    opened(DirectoryStore(root)).put_if_absent("a/b", b"x")
    assert mode(root / "a/b") == file
    assert mode(root / "a") == mode(root / ".tmp") == folder


def test_a_groups_store_stays_the_groups(root: Path, umask: Callable[[int], None], opened: Opened) -> None:
    root.chmod(0o2770)
    umask(0o077)
    opened(DirectoryStore(root)).put_if_absent("a/b/c", b"x")
    assert mode(root / "a/b/c") == 0o440
    for folder in ("a", "a/b", ".tmp"):
        assert mode(root / folder) == 0o2770
        assert (root / folder).stat().st_gid == root.stat().st_gid


def test_a_folder_that_must_be_made(tmp_path: Path, opened: Opened) -> None:
    with pytest.raises(Unreachable, match="is not there") as caught:
        DirectoryStore(tmp_path / "deep/down/store")
    assert caught.value.hint and "ls -ld" in caught.value.hint and "--store" in caught.value.hint
    store = opened(DirectoryStore(tmp_path / "deep/down/store", create=True))
    assert store.put_if_absent("k", b"x") is PutResult.WON
    assert opened(DirectoryStore(tmp_path / "deep/down/store", create=True)).get("k") == b"x"


def test_the_store_may_be_reached_through_a_link(root: Path, tmp_path: Path, opened: Opened) -> None:
    (tmp_path / "link").symlink_to(root)
    opened(DirectoryStore(tmp_path / "link")).put_if_absent("k", b"x")
    assert (root / "k").read_bytes() == b"x"


@pytest.mark.parametrize("planted", ["a", "a/b"])
def test_no_link_inside_is_followed(root: Path, tmp_path: Path, planted: str, opened: Opened) -> None:
    """Neither a folder nor a file that is a link leads out, to read or to write."""
    outside = tmp_path / "outside"
    (outside / "b").mkdir(parents=True)
    (outside / "b/c").write_text("secret")
    (outside / "c").write_text("secret")
    (root / planted).parent.mkdir(exist_ok=True)
    (root / planted).symlink_to(outside)
    store = opened(DirectoryStore(root))
    before = sorted(str(path) for path in outside.rglob("*"))
    for key in (f"{planted}/c", planted):
        with pytest.raises(IntegrityError, match="not followed"):
            store.get(key)
        with pytest.raises(DsvError):
            store.put_if_absent(key, b"x")
        with pytest.raises(DsvError):
            store.put_if_absent(f"{key}/new", b"x")
    with pytest.raises(IntegrityError):
        store.delete(f"{planted}/c")
    for prefix in ("", "a/"):
        with pytest.raises(IntegrityError, match="not followed"):
            list(store.list(prefix))
    assert sorted(str(path) for path in outside.rglob("*")) == before


def test_what_is_no_plain_file_is_no_object(root: Path, opened: Opened) -> None:
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    store = opened(DirectoryStore(root))
    with pytest.raises(IntegrityError, match="not a plain file"):
        store.get("pipe")
    with pytest.raises(NotFound):
        store.get("folder")
    with pytest.raises(IntegrityError):
        store.put_if_absent("folder", b"x")
    assert list(store.list("")) == []


def test_what_others_left_in_the_folder_is_not_listed(root: Path, opened: Opened) -> None:
    store = opened(DirectoryStore(root))
    store.put_if_absent("a/real", b"x")
    for name in (".DS_Store", "a/.nfs0000000123", "a/notes (copy).txt", ".tmp/left", "a/über"):
        (root / name).write_text("x")
    assert [item.key for item in store.list("")] == ["a/real"]


def test_nothing_is_left_behind(root: Path, opened: Opened) -> None:
    store = opened(DirectoryStore(root))
    for number in range(3):
        store.put_if_absent(f"k{number % 2}", b"x")
    assert list((root / ".tmp").iterdir()) == []


def test_leftovers_of_killed_writers_go_after_a_day(root: Path, opened: Opened) -> None:
    temporary = root / ".tmp"
    temporary.mkdir()
    now = temporary.stat().st_mtime
    for name, age in (("old", 25 * 3600), ("young", 3600)):
        (temporary / name).write_text("x")
        os.utime(temporary / name, (now - age, now - age))
    opened(DirectoryStore(root)).put_if_absent("k", b"x")
    assert [path.name for path in temporary.iterdir()] == ["young"]


def test_a_file_swept_before_it_was_linked_is_written_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    """The writer stood still for a day between the two steps."""
    real, swept = DirectoryStore._sweep_once, []

    def sweep_mine(self: DirectoryStore, folder: int) -> None:
        if not swept:
            swept.extend(os.listdir(folder))
            for name in swept:
                os.unlink(name, dir_fd=folder)
        else:
            real(self, folder)

    monkeypatch.setattr(DirectoryStore, "_sweep_once", sweep_mine)
    assert opened(DirectoryStore(root)).put_if_absent("a/k", b"x") is PutResult.WON
    assert swept and (root / "a/k").read_bytes() == b"x"


def test_a_link_that_was_made_though_its_answer_was_lost(root: Path, opened: Opened) -> None:
    """NFS repeats the call and gets the error that the name exists: it exists for this very file."""
    store = opened(DirectoryStore(root))
    with store._holding(b"mine") as (holder, file, inode):
        assert store._link(holder, file, inode, ["a"], "k") is PutResult.WON
        assert store._link(holder, file, inode, ["a"], "k") is PutResult.WON
    with store._holding(b"mine") as (holder, file, inode):
        assert store._link(holder, file, inode, ["a"], "k") is PutResult.LOST


def test_everything_is_synced_before_it_counts(
    root: Path, monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    """The file before it gets its name, its folder after, and the parent of every folder made."""
    events: list[str] = []
    real_sync, real_link = os.fsync, os.link

    def name(descriptor: int) -> str:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        return str(path.relative_to(root)) if path.parent.name != ".tmp" else "the file"

    def fsync(descriptor: int) -> None:
        events.append(f"sync {name(descriptor)}")
        real_sync(descriptor)

    def link(*args: object, **more: object) -> None:
        events.append("link")
        real_link(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    opened(DirectoryStore(root)).put_if_absent("a/b/k", b"x")
    assert events == ["sync the file", "link", "sync a/b", "sync a", "sync ."]


def test_a_folder_that_upkeep_removes_meanwhile(root: Path, opened: Opened) -> None:
    """Deleting the last object of a folder removes the folder; who writes into it makes it again."""
    store = opened(DirectoryStore(root))
    stop = threading.Event()

    def remove() -> None:
        while not stop.wait(0.0005):
            store.delete("a/b/gone")

    thread = threading.Thread(target=remove)
    thread.start()
    try:
        for number in range(40):
            assert store.put_if_absent(f"a/b/{number}", b"x") is PutResult.WON
            store.delete(f"a/b/{number}")
    finally:
        stop.set()
        thread.join()
    assert not (root / "a").exists()


def test_a_store_whose_folder_is_removed_is_unreachable_not_empty(root: Path, opened: Opened) -> None:
    store = opened(DirectoryStore(root))
    root.rmdir()
    calls: list[Callable[[], object]] = [
        lambda: store.get("k"),
        lambda: list(store.list("")),
        lambda: store.put_if_absent("k", b"x"),
        lambda: store.delete("k"),
    ]
    for call in calls:
        with pytest.raises(Unreachable, match="is not there"):
            call()
    assert not root.exists()


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, NoRoom),
        (errno.EDQUOT, NoRoom),
        (errno.EACCES, Denied),
        (errno.EPERM, Denied),
        (errno.EROFS, Denied),
        (errno.EIO, NoAnswer),
        (errno.ESTALE, NoAnswer),
        (errno.ETIMEDOUT, NoAnswer),
        (errno.ENOTCONN, NoAnswer),
        (errno.EMFILE, NoAnswer),
        (errno.ELOOP, IntegrityError),
        (errno.ENAMETOOLONG, Unsupported),
    ],
)
def test_what_the_systems_errors_mean(number: int, error: type[DsvError]) -> None:
    found = as_store_error(OSError(number, os.strerror(number)), "/store", "packs/k")
    assert type(found) is error
    assert found.subject == "packs/k" and "/store" in found.message and not found.message.endswith(".")


def in_a_process(program: str, *argv: str, before: tuple[str, ...] = ()) -> str:
    """Return the output of a Python program, which may do to itself what a test must not."""
    argv = (*before, sys.executable, "-c", textwrap.dedent(program), *argv)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_root
def test_a_full_disk(tmp_path: Path) -> None:
    """On a file system of 256 KiB, mounted where only this process sees it."""
    program = """
        import subprocess, sys
        from dsv.errors import NoRoom
        from dsv.stores.directory import DirectoryStore
        mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=755", "none", sys.argv[1]]
        subprocess.run(mount, check=True)
        store = DirectoryStore(sys.argv[1])
        store.put_if_absent("small", bytes(1000))
        try:
            store.put_if_absent("big", bytes(1 << 20))
        except NoRoom as error:
            print(error.exit_code, [item.key for item in store.list("")], store.free_bytes() > 200_000)
    """
    assert in_a_process(program, str(tmp_path), before=("unshare", "-m")) == "7 ['small'] True"


@needs_root
def test_without_permission(root: Path) -> None:
    """As a user who may read the store and not write it, and then not read it either."""
    root.parent.chmod(0o755)
    program = """
        import os, sys
        from dsv.errors import Denied
        from dsv.stores.directory import DirectoryStore
        store = DirectoryStore(sys.argv[1])
        store.put_if_absent("a/k", b"x")
        os.chmod(f"{sys.argv[1]}/a/k", 0)
        os.setresuid(65534, 65534, 65534)
        for call, *rest in ((store.put_if_absent, "new", b"x"), (store.get, "a/k"), (store.delete, "a/k")):
            try:
                call(*rest)
            except Denied as error:
                print(error.subject, end=" ")
    """
    assert in_a_process(program, str(root)) == "new a/k a/k"


@needs_root
def test_a_folder_that_cannot_be_linked_into(root: Path) -> None:
    """Another file system is mounted inside the store; one without hard links answers likewise."""
    (root / "packs").mkdir()
    program = """
        import subprocess, sys
        from dsv.errors import Unsupported
        from dsv.stores.directory import DirectoryStore
        subprocess.run(["mount", "-t", "tmpfs", "none", f"{sys.argv[1]}/packs"], check=True)
        store = DirectoryStore(sys.argv[1])
        try:
            store.put_if_absent("packs/k", b"x")
        except Unsupported as error:
            print(error.exit_code, bool(error.hint), [item.key for item in store.list("")])
    """
    assert in_a_process(program, str(root), before=("unshare", "-m")) == "9 True []"


def test_room_is_what_a_user_may_use(root: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[os.statvfs_result] = []
    real = os.fstatvfs

    def look(descriptor: int) -> os.statvfs_result:
        assert os.path.samestat(os.fstat(descriptor), root.stat())
        looked.append(real(descriptor))
        return looked[-1]

    monkeypatch.setattr(os, "fstatvfs", look)
    free = opened(open_store(str(root))).free_bytes()
    (room,) = looked  # others write to this disk, too
    assert free == room.f_bavail * room.f_frsize


def test_the_first_rows_of_a_large_folder_cost_no_look_at_the_others(
    root: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(DirectoryStore(root))
    for number in range(50):
        store.put_if_absent(f"a/{number:02}", b"x")
    looked: list[str] = []
    real = os.stat

    def look(name: str, *, dir_fd: int, follow_symlinks: bool) -> os.stat_result:
        looked.append(name)
        return real(name, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    rows = store.list("a/")
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", look)
        assert [next(rows).key, next(rows).key] == ["a/00", "a/01"]
    rows.close()  # type: ignore[attr-defined]
    assert looked == ["00", "01"]


def test_a_link_instead_of_a_folder_is_not_passed_over(root: Path, opened: Opened) -> None:
    store = opened(DirectoryStore(root))
    store.put_if_absent("refs/a/x", b"x")
    (root / "refs/b").symlink_to(root / "refs/a")
    with pytest.raises(IntegrityError, match="links inside a store are not followed"):
        store.folders("refs/")


def test_a_folder_that_was_listed_and_made_anew_is_read_where_it_is_now(tmp_path: Path) -> None:
    """A listed folder stays open for a moment: a read must not use one that was deleted meanwhile."""
    reader, writer = (DirectoryStore(tmp_path / "store", create=True) for _ in range(2))
    writer.put_if_absent("refs/a/1", b"1")
    assert [item.key for item in reader.list("refs/a/")] == ["refs/a/1"]
    with pytest.raises(NotFound):
        reader.get("refs/a/2")
    writer.put_if_absent("refs/a/2", b"2")
    assert reader.get("refs/a/2") == b"2"
    for name in ("1", "2"):
        writer.delete(f"refs/a/{name}")  # the last one takes the folder with it
    with pytest.raises(NotFound):
        reader.get("refs/a/1")
    writer.put_if_absent("refs/a/1", b"new")
    assert reader.get("refs/a/1") == b"new"
    for store in (reader, writer):
        store.close()


@pytest.mark.parametrize("prefix", ["", "a/", "a/b/"])
def test_a_folder_that_another_host_removes_while_it_is_listed_is_opened_again(
    root: Path, opened: Opened, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where what is open then is stale."""
    store = opened(DirectoryStore(root))
    keys = ["a/b/1", "a/b/2", "a/b/3", "a/c/4", "d"]
    for key in keys:
        store.put_if_absent(key, b"x")
    look = directory._look

    def removed(folder: int, name: str) -> os.stat_result | None:
        if name == "2":
            shutil.rmtree(root / "a/b")
            store.put_if_absent("a/b/3", b"y")
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return look(folder, name)

    def stale(folder: int, name: str) -> os.stat_result | None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(directory, "_look", removed)
    wanted = [key for key in keys if key.startswith(prefix) and key != "a/b/2"]
    assert [item.key for item in store.list(prefix)] == wanted
    assert [item.key for item in store.list(prefix)] == [key for key in wanted if key != "a/b/1"]
    monkeypatch.setattr(directory, "_look", stale)
    with pytest.raises(NoAnswer, match="Stale"):
        list(store.list(prefix))
