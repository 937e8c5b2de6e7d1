"""What a scan finds, what it refuses, and what it reads again."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import socket
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.errors import Unreachable
from dsv.transfer.stable_read import ROW, refusal, row_of
from dsv.workspace.scan.folder import differing, list_folder
from dsv.workspace.scan.result import WorkspaceScan
from tests.workspace.worlds import World, readable_by_all, scan_as_another, settle, tree_of, write


def problems(scan: WorkspaceScan) -> dict[bytes, str]:
    return {problem.path: problem.reason for problem in scan.problems}


def test_a_file_that_did_not_change_is_not_read_again(world: World) -> None:
    write(world, a=b"1", sub__b=b"2")
    settle(world)
    reads = world.reads
    write(world, sub__c=b"3")
    world.sync()
    assert world.reads == reads + 1


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"x"),
        lambda path: os.utime(path, ns=(0, 0)),
        lambda path: path.chmod(0o600),
        lambda path: (path.rename(path.with_name("other")), shutil.copy2(path.with_name("other"), path)),
    ],
)
def test_what_makes_a_file_be_read_again(world: World, change: object) -> None:
    write(world, a=b"1")
    settle(world)
    assert callable(change)
    change(world.root / "a")
    assert [item.path for item in world.scan().pending() if item.path == b"a"] == [b"a"]


def test_a_file_as_young_as_the_clock_is_not_trusted(world: World) -> None:
    """Written again within one tick of the clock, it has the same size and times: only a second read shows that."""
    write(world, a=b"1111")
    scan = world.scan()
    (item,) = scan.pending()
    info = (world.root / "a").stat()
    scan.state.trust_before = info.st_ctime_ns  # the scan began in the tick in which the file was written
    from dsv.values.ids import CommitId, FileId

    scan.record(item, row_of(info), info.st_dev, FileId.hash(b"1111"), no_writer=True)
    scan.published(CommitId.hash(b"c"))
    assert [item.path for item in scan.pending()] == [b"a"]  # the row says the same, and is not believed
    scan.state.trust_before = info.st_ctime_ns + 1
    scan.record(item, row_of(info), info.st_dev, FileId.hash(b"1111"), no_writer=True)
    assert list(scan.pending()) == []


def test_an_mtime_far_ahead_is_trusted_and_one_just_ahead_is_not(world: World) -> None:
    state = world.scan().state
    state.trust_before = 1000
    week = 7 * 24 * 3600 * 10**9
    assert state.vouches(ROW.pack(1, 1, 999, 999, 0))
    assert not state.vouches(ROW.pack(1, 1, 1000, 999, 0))
    assert not state.vouches(ROW.pack(1, 1, 999, 1000, 0))
    assert state.vouches(ROW.pack(1, 1, 1000 + week, 999, 0))
    assert not state.vouches(ROW.pack(1, 1, 999, 999, 0), foreign=True)


def test_times_beyond_64_bits_do_not_stop_a_scan(world: World) -> None:
    write(world, old=b"1", far=b"2")
    os.utime(world.root / "old", (-(2**31), -(2**31)))
    os.utime(world.root / "far", (2**33, 2**33))
    world.sync()
    descriptor = os.open(world.root, os.O_RDONLY)
    assert len(list_folder(descriptor)[0]) == 2
    os.close(descriptor)
    assert world.base == tree_of(world.root)


def test_everything_that_can_not_be_stored_is_listed_at_once(world: World) -> None:
    write(world, fine=b"1", sub__fine=b"2")
    root = os.fsencode(world.root)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(world.root / "socket"))
    os.mkfifo(world.root / "sub/pipe")
    if os.geteuid() == 0:
        os.mknod(world.root / "device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    Path(os.fsdecode(root + b"/sub/\xff\xfe")).write_bytes(b"x")
    Path(os.fsdecode(root + b"/\xffolder")).mkdir()
    Path(os.fsdecode(root + b"/\xffolder/file")).write_bytes(b"x")
    (world.root / "absolute").symlink_to("/etc/passwd")
    (world.root / "sub/up").symlink_to("../../outside")
    (world.root / "sub/inside").symlink_to("../fine")
    (world.root / "dangling").symlink_to("nowhere/at/all")
    (world.root / "way").symlink_to("sub")
    (world.root / "by-way").symlink_to("way/../../outside")
    found = problems(world.scan())
    expected = {b"socket", b"sub/pipe", b"sub/\xff\xfe", b"\xffolder", b"absolute", b"sub/up", b"by-way"}
    assert set(found) == expected | ({b"device"} if os.geteuid() == 0 else set())
    assert "socket" in found[b"socket"] and "pipe" in found[b"sub/pipe"] and "UTF-8" in found[b"\xffolder"]
    assert "out of the dataset" in found[b"by-way"]
    error = refusal(world.scan().problems, str(world.root))
    assert error.exit_code == 9 and all(
        text in error.message for text in ("socket", "by-way", "sub/up", "pipe")
    )
    assert set(problems(world.scan([b"sub"]))) == {b"sub/pipe", b"sub/\xff\xfe", b"sub/up"}
    server.close()


def test_a_link_that_leaves_by_way_of_another_that_changed_later(world: World) -> None:
    (world.root / "a/b").mkdir(parents=True)
    (world.root / "way").symlink_to("a/b")
    (world.root / "link").symlink_to("way/../../x")
    settle(world)
    (world.root / "way").unlink()
    (world.root / "way").symlink_to("a")
    assert set(problems(world.scan())) == {b"link"}
    (world.root / "way").unlink()
    assert set(problems(world.scan())) == {b"link"}
    (world.root / "link").unlink()
    assert not world.scan().problems


def test_deep_and_long_paths(world: World) -> None:
    """Deeper than descriptors may be open, and just as long as a path may be."""
    here = os.open(world.root, os.O_RDONLY)
    depth = 0
    while 2 * depth + 1 + 10 < 4096:
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here, depth = below, depth + 1
    room = 4096 - 2 * depth
    for length in (room, room + 1):
        os.close(os.open("f" * length, os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    already = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (already + 200, limits[1]))
    try:
        scan = world.scan()
        (item,) = scan.pending()
        assert len(item.path) == 4096
        (problem,) = scan.problems
        assert len(problem.path) == 4097 and "4096" in problem.reason
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        subprocess.run(["rm", "-rf", str(world.root / "d")], check=True)


def test_a_process_without_descriptors_leaves_no_folder_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(world, sub__x=b"1")

    def list_none(descriptor: int, path: bytes) -> object:
        if path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return list_folder(descriptor, path)

    monkeypatch.setattr("dsv.workspace.scan.scanner.list_folder", list_none)
    with pytest.raises(Unreachable, match="Too many open files"):
        world.scan()


def test_dsv_and_git_folders_are_not_seen_in_any_case_at_any_depth(world: World) -> None:
    write(world, sub__x=b"1")
    for name in (".GIT", "sub/.git", "sub/.Dsv", ".DSV-not"):
        (world.root / name).mkdir(exist_ok=True)
        (world.root / name / "file").write_bytes(b"x")
    (world.root / "sub/.dsv-tmp-0123456789abcdef").write_bytes(b"left by a killed pull")
    (world.root / "sub/.dsv-tmp-mine").write_bytes(b"x")
    world.sync()
    assert set(world.base) == {b"sub/x", b".DSV-not/file", b"sub/.dsv-tmp-mine"}
    assert world.scan().leftovers == [b"sub/.dsv-tmp-0123456789abcdef"]


def test_names_that_clash_elsewhere_are_warned_of(world: World) -> None:
    write(world, Readme=b"1", sub__x=b"2")
    world.sync()
    write(world, readme=b"3", SUB__x=b"4")
    (world.root / "sub/é").write_bytes(b"composed")
    (world.root / "sub/e\u0301").write_bytes(b"decomposed")
    clashes = world.scan().clashes
    assert (b"Readme", b"readme") in clashes and (b"SUB", b"sub") in clashes
    assert len(clashes) == 3
    world.sync()
    assert world.base == tree_of(world.root)


def test_order_is_by_components_whatever_the_names(world: World) -> None:
    for name in ("a/x", "a-b", "a.b/y", "a b", "ab", "é/1", "z\n", "z\x01", "\U0001f600", "\uffee"):
        path = world.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode())
    world.sync()  # asserts the order
    assert world.base == tree_of(world.root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_what_another_user_may_not_read_is_listed_and_not_taken_for_removed(tmp_path: Path) -> None:
    world = readable_by_all(tmp_path)
    write(world, open=b"1", shut=b"2", locked__in=b"3", seen__in=b"4")
    (world.root / "shut").chmod(0o600)
    (world.root / "locked").chmod(0o700)
    (world.root / "seen").chmod(0o744)
    done = scan_as_another(world)
    assert not done.returncode, done.stderr
    found = json.loads(done.stdout)
    assert set(found["problems"]) == {"shut", "locked", "seen"}
    assert all("Permission denied" in reason for reason in found["problems"].values())
    assert found["pending"] == ["open"] and found["missing"] == []


def test_what_can_not_be_listed_stays_as_the_base_has_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(world, a=b"1", sub__b=b"2", sub__deep__c=b"3")
    world.sync()
    from dsv.workspace.scan import scanner

    real = scanner.list_folder
    shut = (world.root / "sub").stat().st_ino

    def refusing(descriptor: int, path: bytes) -> object:
        if os.fstat(descriptor).st_ino == shut:
            raise PermissionError(13, "Permission denied")
        return real(descriptor, path)

    monkeypatch.setattr(scanner, "list_folder", refusing)
    scan = world.scan()
    assert set(problems(scan)) == {b"sub"} and scan.missing == []
    scan.state.save()
    monkeypatch.undo()
    assert world.scan().missing == []


def test_a_scope_ends_where_its_paths_end(world: World) -> None:
    write(world, a__x=b"1", a__y=b"2", ab__x=b"3", b=b"4")
    world.sync([b"a/x", b"b"])
    assert set(world.base) == {b"a/x", b"b"}
    (world.root / "b").unlink()
    (world.root / "a/x").unlink()
    world.sync([b"a"])
    assert set(world.base) == {b"a/y", b"b"}
    world.sync([b"b", b"never/was"])
    assert set(world.base) == {b"a/y"}


def test_the_scan_follows_no_symlink_that_takes_a_folders_place(world: World, tmp_path: Path) -> None:
    write(world, sub__deep__x=b"1")
    outside = tmp_path / "outside/deep"
    outside.mkdir(parents=True)
    (outside / "secret").write_bytes(b"s")
    from dsv.files.descent import Descent

    with Descent(world.root) as descent:
        descent.at(b"")
        shutil.rmtree(world.root / "sub")
        (world.root / "sub").symlink_to("../outside")
        with pytest.raises(NotADirectoryError):
            descent.at(b"sub/deep")


def test_the_tree_of_the_base_is_read_once_if_the_state_does_not_mirror_it(world: World) -> None:
    write(world, a=b"1", gone=b"2")
    world.sync()
    (world.root / "gone").unlink()
    assert world.scan().missing == [b"gone"]
    assert world.tree_reads == 0
    shutil.rmtree(world.state_folder)
    scan = world.scan()
    assert scan.missing == [b"gone"]
    assert world.tree_reads == 1
    scan.state.save()
    assert world.scan().missing == [b"gone"]
    assert world.tree_reads == 1


@settings(deadline=None)
@given(
    st.integers(1, 5),
    st.lists(st.integers(0, 255), max_size=60),
    st.sets(st.integers(0, 59)),
)
def test_differing_rows(width: int, values: list[int], changes: set[int]) -> None:
    left = bytearray(b"".join(bytes([value]) * width for value in values))
    right = bytearray(left)
    places = {at for at in changes if at < len(values)}
    for at in places:
        right[at * width + at % width] ^= 1
    assert differing(left, right, width) == sorted(places)
