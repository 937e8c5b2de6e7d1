"""What pulls and restores write to the disk: modes, races, crashes, folders in the way."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv.errors import Denied, DsvError, IntegrityError, NoRoom, Unsupported
from dsv.files.folders import check_folding
from dsv.format.locator import Location
from dsv.format.tree import Entry, Kind
from dsv.repo.tree.diff import PathChange
from dsv.transfer.stable_read import row_of
from dsv.values.ids import CommitId, FileId
from dsv.values.progress import NoProgress
from dsv.workspace.baseline import scan_clean_workspace
from dsv.workspace.plan import CheckoutResult, Goal
from dsv.workspace.scan.state import WorkspaceState
from dsv.workspace.write import CheckoutWriter, FileWriter, Fill, fill_from
from tests.exhaustive import numbers
from tests.workspace.worlds import Tree, World, tree_of


def file(path: str, content: bytes, kind: Kind = Kind.FILE) -> Entry:
    return Entry(path.encode(), kind, len(content), FileId.hash(content))


CONTENT = {FileId.hash(text): text for text in (b"one", b"two", b"x" * 100_000)}
GOAL: Tree = {
    entry.path: entry
    for entry in (
        file("a/one", b"one"),
        file("a/run", b"two", Kind.EXECUTABLE),
        Entry(b"b", Kind.EMPTY_DIRECTORY),
        Entry(b"link", Kind.SYMLINK, target=b"a/one"),
        file("nothing", b""),
    )
}
COMMIT = CommitId.hash(b"goal")


def contents(wanted: Iterator[tuple[Entry, Location | None]]) -> Iterator[Fill]:
    for entry, _ in wanted:
        assert entry.file_id is not None
        content = CONTENT[entry.file_id]
        yield fill_from([content[:2], content[2:]])


def bring(world: World, goal: Tree, reader: object = contents) -> CheckoutResult:
    scan = world.scan()
    paths = sorted({*world.base, *goal})
    changes = [PathChange(path, world.base.get(path), goal.get(path)) for path in paths]
    work = FileWriter(scan, Goal("", COMMIT, lambda: changes), NoProgress())
    assert not work.plan().conflicts
    made = work.apply(reader)  # type: ignore[arg-type]
    if not made.left:
        world.base, world.commit = dict(goal), COMMIT
    scan.state.save()
    return made


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_modes_follow_the_umask_and_nothing_has_to_be_read_afterwards(world: World, umask: int) -> None:
    before = os.umask(umask)
    try:
        made = bring(world, GOAL)
    finally:
        os.umask(before)
    assert (made.created, made.replaced, made.removed) == (5, 0, 0)
    assert tree_of(world.root) == GOAL
    assert stat.S_IMODE((world.root / "a/one").stat().st_mode) == 0o666 & ~umask
    assert stat.S_IMODE((world.root / "a/run").stat().st_mode) == 0o777 & ~umask
    assert stat.S_IMODE((world.root / "a").stat().st_mode) == 0o777 & ~umask
    assert world.scan().unchanged


def test_new_files_get_the_group_of_a_folder_that_hands_it_down(world: World) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to any group")
    (world.root / "a").mkdir()
    os.chown(world.root / "a", -1, 54321)
    (world.root / "a").chmod(0o2775)
    bring(world, GOAL)
    assert (world.root / "a/one").stat().st_gid == 54321


def test_a_file_that_changes_between_plan_and_act_stays(world: World) -> None:
    bring(world, GOAL)
    goal = {
        **GOAL,
        b"a/one": file("a/one", b"two"),
        b"a/run": file("a/run", b"one"),
        b"new": file("new", b"one"),
    }
    del goal[b"nothing"]

    def late(wanted: Iterator[tuple[Entry, Location | None]]) -> Iterator[Fill]:
        for content in contents(wanted):
            (world.root / "a/one").write_bytes(b"mine")
            (world.root / "new").write_bytes(b"mine too")
            yield content

    made = bring(world, goal, late)
    assert made.left == [b"a/one", b"new"]
    assert (world.root / "a/one").read_bytes() == b"mine" and (world.root / "new").read_bytes() == b"mine too"
    assert (world.root / "a/run").read_bytes() == b"one" and not (world.root / "nothing").exists()
    assert not [name for name in os.listdir(world.root / "a") if name.startswith(".dsv")]
    scan = world.scan()  # still of the old base, and nothing is lost or taken for something else
    assert {item.path for item in scan.pending()} == {b"a/one", b"a/run", b"new"}


def test_content_that_turns_out_wrong_never_gets_its_name(world: World) -> None:
    def wrong(wanted: Iterator[tuple[Entry, Location | None]]) -> Iterator[Fill]:
        def pieces() -> Iterator[bytes]:
            yield b"par"
            raise IntegrityError("chunk is not its id")

        for _ in wanted:
            yield fill_from(pieces())

    with pytest.raises(IntegrityError):
        bring(world, GOAL, wrong)
    assert all(entry.kind is Kind.EMPTY_DIRECTORY for entry in tree_of(world.root).values())
    assert sorted(os.listdir(world.root / "a")) == []
    bring(world, GOAL)
    assert tree_of(world.root) == GOAL


def test_a_folder_stays_also_where_unlink_calls_that_not_permitted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """POSIX wants that, and macOS does it."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "not permitted")

    (world.root / "folder").mkdir()
    (world.root / "file").touch()
    with CheckoutWriter(world.root) as writer:
        assert not writer.remove(b"folder", None)  # as Linux answers
        monkeypatch.setattr(os, "unlink", refuse)
        assert not writer.remove(b"folder", None)
        with pytest.raises(Denied):
            writer.remove(b"file", None)


def test_a_folder_swapped_for_a_symlink_leads_nowhere(world: World, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    bring(world, GOAL)
    goal = {**GOAL, b"a/one": file("a/one", b"two"), b"a/two": file("a/two", b"two")}

    def swapping(wanted: Iterator[tuple[Entry, Location | None]]) -> Iterator[Fill]:
        for content in contents(wanted):
            if not (world.root / "a").is_symlink():
                (world.root / "a").rename(tmp_path / "moved")
                (world.root / "a").symlink_to(outside)
            yield content

    with contextlib.suppress(DsvError):
        bring(world, goal, swapping)
    assert list(outside.iterdir()) == []


def test_a_full_disk_leaves_no_half_file(world: World) -> None:
    goal = {b"big": file("big", b"x" * 100_000)}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(Exception, match="big"):
            bring(world, goal)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert tree_of(world.root) == {}
    assert sorted(os.listdir(world.root)) == [".dsv"]


def test_no_room_is_said_to_be_no_room() -> None:
    from dsv.files.errors import as_error

    assert isinstance(as_error(OSError(28, "No space left on device"), "x"), NoRoom)


OLD: Tree = {
    entry.path: entry
    for entry in (
        file("a/one", b"two"),
        file("b/file", b"one"),
        file("nothing", b"one"),
        file("same", b"two"),
    )
}
NEW: Tree = {**GOAL, b"same": OLD[b"same"]}


def killed_at(world: World, step: int) -> bool:
    """Pulls in a child process that is killed at the given call of the operating system; False if it got through."""
    child = os.fork()
    if child == 0:
        left = step
        for name in ("link", "rename", "unlink", "write", "mkdir", "symlink", "rmdir", "open"):

            def counted(*args: object, real: object = getattr(os, name), **options: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **options)  # type: ignore[operator]

            setattr(os, name, counted)
        try:
            bring(world, NEW)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def test_killed_anywhere_each_path_is_old_or_new_and_doing_it_again_finishes_it(tmp_path: Path) -> None:
    for step in numbers(every=3):
        world = World(tmp_path / str(step))
        for entry in OLD.values():
            place = world.root / entry.path.decode()
            place.parent.mkdir(parents=True, exist_ok=True)
            assert entry.file_id is not None
            place.write_bytes(CONTENT[entry.file_id])
        world.sync()
        assert world.base == OLD
        if not killed_at(world, step):
            break
        found = tree_of(world.root)
        for path, entry in found.items():
            if b".dsv-tmp-" not in path:
                assert entry in (OLD.get(path), NEW.get(path)) or entry.kind is Kind.EMPTY_DIRECTORY
        for path in OLD.keys() & NEW.keys():
            assert path in found
        scan_clean_workspace(
            world.root, WorkspaceState.load(world.state_folder), world.commit, world.base_entries
        )
        bring(world, NEW)
        assert tree_of(world.root) == NEW
        world.scan().state.save()
    assert step > 30


def test_a_file_system_without_hard_links(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("dsv.workspace.write.os.link", no_links)
    bring(world, GOAL)
    assert tree_of(world.root) == GOAL
    with CheckoutWriter(world.root) as writer:
        assert writer.file(file("a/one", b"two"), fill_from([b"two"]), None, replace=False) is None
    assert (world.root / "a/one").read_bytes() == b"one"


@pytest.mark.parametrize(("theirs", "is_ours"), [(None, True), (b"two", False), (b"three", False)])
def test_where_each_name_of_a_file_has_an_inode_of_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch, theirs: bytes | None, is_ours: bool
) -> None:
    """As on sshfs; theirs: what another process has put there in this moment."""

    def link(old: bytes, new: bytes, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool) -> None:
        source = os.open(old, os.O_RDONLY, dir_fd=src_dir_fd)
        copy = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=dst_dir_fd)
        os.write(copy, os.read(source, 100) if theirs is None else theirs)
        os.utime(copy, ns=(0, os.fstat(source).st_mtime_ns))
        os.close(copy)
        os.close(source)

    monkeypatch.setattr("dsv.workspace.write.os.link", link)
    with CheckoutWriter(world.root) as writer:
        row = writer.file(file("a", b"one"), fill_from([b"one"]), None, replace=False)
    assert row == (row_of((world.root / "a").stat()) if is_ours else None)
    assert (world.root / "a").read_bytes() == theirs or b"one"


def test_trees_whose_names_overwrite_each_other_are_refused_where_they_would(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [b"A/x", b"a/x", b"b"]
    check_folding(world.root, world.root / ".dsv", paths)  # this file system distinguishes them
    monkeypatch.setattr("dsv.files.folders.how_folded", lambda _: (True, False))
    with pytest.raises(Unsupported, match="one name"):
        check_folding(world.root, world.root / ".dsv", paths)
    check_folding(world.root, world.root / ".dsv", [b"a", b"b"])
    assert os.listdir(world.root / ".dsv") == []


def test_many_paths_at_once_are_merged_in_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv.workspace.scan.state._LIMIT", 7)
    goal = {
        entry.path: entry
        for number in range(60)
        for entry in (
            file(f"d{number % 3}/f{number:02}", b"one"),
            file(f"d{number % 3}/sub/{number}", b"two"),
        )
    }
    bring(world, goal)
    assert tree_of(world.root) == goal and world.scan().unchanged
    other = {path: file(path.decode(), b"two") for path in list(goal)[::2]}
    bring(world, other)
    assert tree_of(world.root) == other and world.scan().unchanged
