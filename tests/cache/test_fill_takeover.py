"""Taking over a part: files that are there are checked, and the process before can't change them any more."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
import time
from pathlib import Path

import pytest
from tests.cache.fake_source import File
from tests.waiting import PATIENCE

from dsv.cache.fill.files import FileState, FillRights, Folders, examine
from dsv.cache.fill.parts import Claim, ClaimTable, block_drafts, draft_name
from dsv.cache.root import FILE_TIME
from dsv.files.attributes import server_time
from dsv.files.shared_path import ListedName, SharedPath
from dsv.files.system import FileSystem

LOCAL, REMOTE = FileSystem(remote=False, sync_each=False), FileSystem(remote=True, sync_each=True)


def listed(names: list[str]) -> list[ListedName]:
    return [ListedName(name, False, True) for name in names]


def table(folder: Path, parts: int, owner: str, kind: FileSystem) -> ClaimTable:
    return ClaimTable(SharedPath(folder), parts, owner, kind, lambda asked: server_time(asked.path))


def claim_table(folder: Path, owner: str, parts: int = 4, kind: FileSystem = LOCAL) -> ClaimTable:
    made = table(folder, parts, owner, kind)
    made.refresh()
    return made


def test_each_part_is_claimed_once_however_many_ask(tmp_path: Path) -> None:
    taken: list[int] = []

    def take(owner: str) -> None:
        mine = claim_table(tmp_path, owner, parts=50)
        while (claim := mine.claim_free()) is not None:
            taken.append(claim.part)

    threads = [threading.Thread(target=take, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(50))


def test_a_listing_that_misses_its_own_claims_gives_no_part_to_a_process_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over NFS a folder that others change meanwhile is sometimes listed without its first names."""
    mine, other = (table(tmp_path, 4, owner, LOCAL) for owner in ("mine", "other"))
    claims = [mine.claim_free() for _ in range(2)]
    mine.finish(Claim(0, 1))
    assert [claim and claim.part for claim in claims] == [0, 1]
    other.refresh()
    other.begin_at(2)
    assert other.claim_free() == Claim(2, 1)
    with monkeypatch.context() as patch:
        patch.setattr(SharedPath, "entries", lambda folder: listed(["2.1"]))
        mine.refresh()
        assert mine.done == 1
        assert mine.claim_free() == Claim(3, 1)
        assert mine.claim_free() is None
    mine.refresh()
    assert (mine.done, mine.free) == (1, 0)


def test_a_listing_that_lacks_a_further_claim_or_its_end_misleads_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (table(tmp_path, 1, owner, REMOTE) for owner in ("first", "second"))
    old = first.claim_free()
    assert old is not None
    second.refresh()
    new = second.claim_abandoned(lambda owner: True)
    assert new == Claim(0, 2)
    first.finish(old)
    with monkeypatch.context() as patch:
        patch.setattr(SharedPath, "entries", lambda folder: listed(["0.1", "0.1.done"]))
        first.refresh()
        assert first.all_done and not first.confirm_done()
    third = table(tmp_path, 1, "third", REMOTE)
    third.refresh()
    second.finish(new)
    with monkeypatch.context() as patch:
        patch.setattr(SharedPath, "entries", lambda folder: listed(["0.1"]))
        taken = third.claim_abandoned(lambda owner: True)
    assert taken == Claim(0, 3, done=True)


def test_only_the_newest_generation_counts(tmp_path: Path) -> None:
    first, second = claim_table(tmp_path, "first", parts=1), claim_table(tmp_path, "second", parts=1)
    old = first.claim_free()
    assert old is not None
    assert second.claim_free() is None
    second.refresh()
    assert second.claim_abandoned(lambda owner: False) is None
    new = second.claim_abandoned(lambda owner: owner == "first")
    assert new is not None
    assert (new.part, new.generation, new.done) == (0, 2, False)
    first.finish(old)
    second.refresh()
    assert not second.all_done
    first.refresh()
    assert first.overtaken(old)
    second.finish(new)
    first.refresh()
    assert first.all_done


def test_a_claim_of_a_part_that_was_finished_meanwhile_says_so(tmp_path: Path) -> None:
    first, second = claim_table(tmp_path, "first", parts=1), claim_table(tmp_path, "second", parts=1)
    old = first.claim_free()
    assert old is not None
    second.refresh()
    first.finish(old)
    new = second.claim_abandoned(lambda owner: True)
    assert new is not None
    assert new.done


@pytest.mark.parametrize(("kind", "kept"), [(LOCAL, False), (REMOTE, True)])
def test_after_a_restart_only_what_was_synced_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: FileSystem, kept: bool
) -> None:
    one = claim_table(tmp_path, "one", parts=1, kind=kind)
    claim = one.claim_free()
    assert claim is not None
    one.finish(claim)
    assert claim_table(tmp_path, "two", parts=1, kind=kind).all_done
    monkeypatch.setattr("dsv.cache.fill.parts.boot", lambda: "another-boot")
    later = claim_table(tmp_path, "two", parts=1, kind=kind)
    assert later.all_done == kept
    if not kept:
        again = later.claim_abandoned(lambda owner: False)
        assert again is not None
        assert (again.generation, again.done) == (2, False)


@pytest.mark.parametrize(
    ("content", "mode", "state"),
    [
        (None, 0o444, FileState.MISSING),
        (b"x" * 10, 0o444, FileState.BROKEN),
        (b"x" * 9, 0o444, FileState.BROKEN),
        ("right", 0o444, FileState.WHOLE),
        ("right", 0o555, FileState.BROKEN),
    ],
)
def test_what_is_there_is_judged_by_its_bytes(
    tmp_path: Path, content: bytes | str | None, mode: int, state: FileState
) -> None:
    file = File("name", 10, "seed")
    if content is not None:
        path = tmp_path / "name"
        path.write_bytes(file.content() if isinstance(content, str) else content)
        path.chmod(mode)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert examine(folder, b"name", file.entry()) is state
        if state is FileState.WHOLE:
            assert (tmp_path / "name").stat().st_mtime == FILE_TIME
    finally:
        os.close(folder)


def test_a_symlink_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    file = File("name", 10, "seed")
    (tmp_path / "elsewhere").write_bytes(file.content())
    (tmp_path / "name").symlink_to("elsewhere")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert examine(folder, b"name", file.entry()) is FileState.BROKEN
    finally:
        os.close(folder)


@pytest.mark.parametrize("made", [False, True])
def test_drafts_that_were_barred_can_neither_be_used_nor_made(tmp_path: Path, made: bool) -> None:
    old = tmp_path / draft_name(7, 1)
    handle = -1
    if made:
        old.mkdir()
        (old / "half").write_bytes(b"...")
        handle = os.open(old, os.O_RDONLY)
    block_drafts(SharedPath(tmp_path), 7, 3)
    block_drafts(SharedPath(tmp_path), 7, 3)
    with pytest.raises(OSError):
        old.mkdir()
    with pytest.raises(OSError):
        os.open(old, os.O_RDONLY | os.O_DIRECTORY)
    if made:
        with pytest.raises(FileNotFoundError):
            os.rename("half", tmp_path / "whole", src_dir_fd=handle)
        with pytest.raises(FileNotFoundError):
            os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=handle)
        os.close(handle)
    assert not (tmp_path / draft_name(7, 3)).is_symlink()


def test_a_folder_that_anothers_equal_one_replaced_is_looked_up_again(tmp_path: Path) -> None:
    """Where a umask is in the way, folders are made elsewhere and renamed: onto one that is empty, too."""
    for name in ("tree", "drafts", "others"):
        (tmp_path / name).mkdir()
    top, drafts = (os.open(tmp_path / name, os.O_RDONLY) for name in ("tree", "drafts"))
    rights = FillRights(given=0o775, free=0, file=0o444, executable=0o555, mend=True)
    folders = Folders(top, rights, drafts)
    folders.open(b"a/b")
    (tmp_path / "tree/a/b").rmdir()
    (tmp_path / "others/a").mkdir()
    (tmp_path / "others/a").rename(tmp_path / "tree/a")
    there = folders.open(b"a/c/d")
    assert os.fstat(there).st_ino == (tmp_path / "tree/a/c/d").stat().st_ino
    (tmp_path / "tree/a/c/d").rmdir()
    (tmp_path / "tree/a/c").rmdir()
    (tmp_path / "tree/a").rmdir()
    (tmp_path / "tree").rmdir()
    with pytest.raises(FileNotFoundError):
        folders.open(b"a/e")
    folders.close()
    os.close(top)
    os.close(drafts)


def test_drafts_are_barred_against_a_process_that_keeps_adding_to_them(tmp_path: Path) -> None:
    old = tmp_path / draft_name(0, 1)
    old.mkdir()
    handle = os.open(old, os.O_RDONLY)
    ended = threading.Event()

    def add() -> None:
        with contextlib.suppress(FileNotFoundError):
            for number in itertools.count():
                added = os.open(f"{number}", os.O_CREAT | os.O_WRONLY, dir_fd=handle)
                time.sleep(0.0005)  # for its content, and for the disk
                os.close(added)
        ended.set()

    threading.Thread(target=add, daemon=True).start()
    block_drafts(SharedPath(tmp_path), 0, 2)
    assert ended.wait(PATIENCE)
    assert old.is_symlink()
    os.close(handle)


def test_a_file_that_comes_between_the_listing_and_the_removal_is_removed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / draft_name(0, 1)
    old.mkdir()
    late = iter([old / "1", old / "2"])
    remove = os.rmdir

    def add_and_remove(path: Path, **how: int) -> None:
        for added in itertools.islice(late, 1):
            added.touch()
        remove(path, **how)

    monkeypatch.setattr(os, "rmdir", add_and_remove)
    block_drafts(SharedPath(tmp_path), 0, 2)
    assert old.is_symlink()


def test_a_process_that_never_stops_adding_drafts_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / draft_name(0, 1)
    old.mkdir()
    monkeypatch.setattr("dsv.cache.fill.parts._BAR_SECONDS", 0.05)

    def refuse(path: Path, **how: int) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    monkeypatch.setattr(os, "rmdir", refuse)
    with pytest.raises(OSError, match="not empty"):
        block_drafts(SharedPath(tmp_path), 0, 2)
