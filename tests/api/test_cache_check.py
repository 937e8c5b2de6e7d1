from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from dsv.api import cached as api_check
from dsv.api.cache import cache
from dsv.api.cached import cached, check
from dsv.api.evict import evict
from dsv.cache.fill import check as cache_check
from dsv.cache.fill import files
from dsv.cache.fill.check import Checked
from dsv.cache.fill.files import FileState
from dsv.cache.root import FILE_TIME
from dsv.errors import Conflict, NoRoom, NotFound, Unreachable
from dsv.values.names import Target
from tests.kit.people import Person, read_folder

FILES = {
    "a/1.txt": b"one", "a/2.txt": b"two", "a/empty": b"", "b/run.sh": b"#!/bin/sh\n", "b/link@": b"../a/1.txt",
    "void": None, "large.bin": bytes(range(256)) * 12_000,
}  # fmt: skip


def still_wrong(found: list[Checked]) -> bool:
    return any(one.still_wrong for one in found)


@pytest.fixture
def ann(tmp_path: Path) -> Person:
    return Person.who_synced(tmp_path, FILES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def scans(person: Person, folder: Path, target: str = "scans") -> Path:
    return cache(person.context(), folder, [Target.parse(target)])[0].path


def spoil(path: Path, content: bytes) -> None:
    """Writes into the file itself, as somebody with too many rights does."""
    mode, times = path.stat().st_mode, path.stat().st_mtime_ns
    path.chmod(0o644)
    path.write_bytes(content)
    path.chmod(mode)
    os.utime(path, ns=(times, times))


def test_what_is_right_stays_untouched(ann: Person, folder: Path) -> None:
    path = scans(ann, folder)
    before = {str(one): one.lstat().st_ino for one in path.rglob("*")}
    report = check(ann.context(), folder)
    assert not still_wrong(report) and [(one.files, one.wrong, one.foreign) for one in report] == [(5, [], 0)]
    assert {str(one): one.lstat().st_ino for one in path.rglob("*")} == before
    assert check(ann.context(), folder, [Target.parse("scans")]) == report
    assert not report[0].expected  # the paths of all that is cached would take much memory


def test_every_kind_of_damage_is_found_and_repaired(ann: Person, folder: Path) -> None:
    path = scans(ann, folder)
    spoil(path / "a/1.txt", b"eno")
    spoil(path / "large.bin", FILES["large.bin"][:-1])  # type: ignore[index]
    (path / "a/2.txt").unlink()
    (path / "a/2.txt").mkdir()
    (path / "a/2.txt" / "strange").touch()
    spoil(path / "a/empty", b"x")
    (path / "b/run.sh").chmod(0o444)
    (path / "b/link").unlink()
    (path / "b/link").symlink_to("/etc/passwd")
    (path / "void").rmdir()
    (path / "alien").write_text("x")
    report = check(ann.context(), folder, repair=False)
    (item,) = report
    assert still_wrong(report) and item.repaired == 0
    assert sorted((wrong.path, wrong.problem) for wrong in item.wrong) == [
        (b"a/1.txt", "has other content"),
        (b"a/2.txt", "is something else"),
        (b"a/empty", "has 1 bytes instead of 0"),
        (b"b/link", "is something else"),
        (b"b/run.sh", "has the wrong executable bit"),
        (b"large.bin", "has 3071999 bytes instead of 3072000"),
        (b"void", "is missing"),
    ]
    assert item.strange == item.left == [b"a/2.txt/strange", b"alien"]
    report = check(ann.context(), folder)
    assert still_wrong(report) and report[0].repaired == 7
    assert (report[0].removed, report[0].left) == (1, [b"alien"])
    assert not still_wrong(check(ann.context(), folder, remove_foreign=True))
    assert read_folder(path) == FILES and (path / "a/1.txt").stat().st_mtime == FILE_TIME
    assert (path / "b/run.sh").stat().st_mode & 0o777 == 0o555
    assert check(ann.context(), folder)[0].wrong == []
    evict(ann.context(), folder, everything=True)
    assert [one.name for one in (folder / ".dsv/trash").iterdir()] == ["spare"]


def test_a_folder_that_became_a_file_or_is_gone(ann: Person, folder: Path) -> None:
    path = scans(ann, folder)
    for name in ("1.txt", "2.txt", "empty"):
        (path / "a" / name).unlink()
    (path / "a").rmdir()
    (path / "a").write_text("a file")
    for name in ("run.sh", "link"):
        (path / "b" / name).unlink()
    (path / "b").rmdir()
    assert not still_wrong(check(ann.context(), folder))
    assert read_folder(path) == FILES


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "pipe"])
def test_an_empty_folder_that_became_something_else(ann: Person, folder: Path, kind: str) -> None:
    path = scans(ann, folder)
    (path / "void").rmdir()
    if kind == "file":
        (path / "void").write_text("a file")
    elif kind == "pipe":
        os.mkfifo(path / "void")
    else:
        (path / "void").symlink_to("a" if kind == "link" else "nowhere")
    report = check(ann.context(), folder)
    assert [(wrong.path, wrong.problem) for wrong in report[0].wrong] == [(b"void", "is something else")]
    assert not still_wrong(report)
    assert read_folder(path) == FILES
    assert check(ann.context(), folder)[0].wrong == []


def test_only_a_repair_that_was_asked_for_removes_what_was_never_committed(ann: Person, folder: Path) -> None:
    path = scans(ann, folder)
    for name in ("a/alien", "deep/er/alien", "void/alien"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("x")
    (path / "b/hollow/er").mkdir(parents=True)
    (path / "alias").symlink_to("/etc")
    for options in ({"repair": False, "remove_foreign": True}, {}):
        report = check(ann.context(), folder, **options)
        assert still_wrong(report) and report[0].wrong == []
        assert (report[0].foreign, report[0].removed) == (5, 0)
    report = check(ann.context(), folder, remove_foreign=True)
    assert not still_wrong(report) and (report[0].foreign, report[0].removed) == (5, 5)
    assert read_folder(path) == FILES and Path("/etc/passwd").exists()
    assert check(ann.context(), folder)[0].foreign == 0


def test_files_that_commits_share_stay_shared_after_a_repair(ann: Person, folder: Path) -> None:
    first = scans(ann, folder)
    ann.write({"a/1.txt": b"changed"})
    ann.sync("second")
    second = scans(ann, folder)
    spoil(first / "a/2.txt", b"tow")
    assert (second / "a/2.txt").read_bytes() == b"tow"
    report = check(ann.context(), folder)
    assert [len(one.wrong) for one in report] == [1, 1] and report[0].wrong[0].links == 1
    assert (first / "a/2.txt").read_bytes() == b"two" and (first / "a/2.txt").samefile(second / "a/2.txt")


def test_parts_of_commits_are_checked_as_parts(ann: Person, folder: Path) -> None:
    path = scans(ann, folder, "scans:a")
    (path / "a/1.txt").unlink()
    report = check(ann.context(), folder)
    assert report[0].files == 3 and report[0].repaired == 1
    assert sorted(read_folder(path)) == ["a/1.txt", "a/2.txt", "a/empty"]


@pytest.mark.parametrize("when", ["create", "sync"])
def test_a_disk_that_takes_no_repair(
    ann: Person, folder: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The damage stays as it is, nothing is left behind, and no file stays open."""
    path = scans(ann, folder)
    spoil(path / "a/1.txt", b"eno")
    sync = os.fsync

    def failing(descriptor: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).parent == folder / ".dsv/tmp" and drafts:
            raise OSError(errno.EIO, "the disk is broken")
        sync(descriptor)

    drafts: list[int] = []
    create = files.new_file

    def started(*arguments: Any, **options: Any) -> int:
        if when == "create":
            raise OSError(errno.ENOSPC, "the disk is full")
        drafts.append(create(*arguments, **options))
        return drafts[-1]

    monkeypatch.setattr(os, "fsync", failing)
    monkeypatch.setattr(files, "new_file", started)
    with pytest.raises((Unreachable, NoRoom)):
        check(ann.context(), folder)
    assert not any(Path(f"/proc/self/fd/{descriptor}").exists() for descriptor in drafts)
    assert (path / "a/1.txt").read_bytes() == b"eno"
    assert list((folder / ".dsv/tmp").iterdir()) == []


def test_a_file_server_that_is_away_is_no_broken_file(
    ann: Person, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A soft mount says EIO of each file then; and once of what was open while the server forgot this host."""
    path = scans(ann, folder)
    there = {str(one): one.lstat().st_ino for one in path.rglob("*")}
    answers = iter([errno.EIO])
    examine = cache_check.examine

    def upset(*arguments: Any) -> FileState:
        number = next(answers, None)
        if number is not None:
            raise OSError(number, os.strerror(number))
        return examine(*arguments)

    monkeypatch.setattr(cache_check, "examine", upset)
    assert check(ann.context(), folder)[0].wrong == []

    def away(folder: Path) -> None:
        raise OSError(errno.EIO, "the server does not answer")

    answers = itertools.repeat(errno.EIO)
    monkeypatch.setattr(cache_check, "refresh", away)
    with pytest.raises(Unreachable, match="does not answer"):
        check(ann.context(), folder)
    assert {str(one): one.lstat().st_ino for one in path.rglob("*")} == there


def test_what_it_cannot_do(ann: Person, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        check(ann.context(), folder, [Target.parse("scans")])
    assert check(ann.context(), folder) == []
    scans(ann, folder)
    bob = Person(tmp_path / "bob", str(tmp_path / "other"), "bob")
    bob.init()
    with pytest.raises(Conflict, match="another store"):
        check(bob.context(), folder)
    (tmp_path / "store").rename(tmp_path / "away")
    with pytest.raises(Unreachable):
        check(ann.context(), folder)
    assert len(cached(folder).items) == 1


@pytest.mark.parametrize("content", [None, b"", b"{"])
def test_what_nothing_is_known_of_does_not_pass(ann: Person, folder: Path, content: bytes | None) -> None:
    path = scans(ann, folder)
    (entry,) = (folder / ".dsv/claims").rglob("entry-*")
    saved = entry.read_bytes()
    entry.unlink()
    if content is not None:
        entry.write_bytes(content)
    for targets in ([], [Target.parse("scans")]):
        report = check(ann.context(), folder, targets)
        (item,) = report
        assert still_wrong(report) and item.path == path
        assert item.problem is not None and "record is missing" in item.problem
    if content is not None:
        entry.unlink()
    entry.write_bytes(saved)
    assert not still_wrong(check(ann.context(), folder))


def test_what_is_recorded_a_moment_later_is_checked(
    ann: Person, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who publishes makes it visible first, and records then; who evicts does it the other way round."""
    path = scans(ann, folder)
    (entry,) = (folder / ".dsv/claims").rglob("entry-*")
    saved = entry.read_bytes()
    entry.unlink()
    monkeypatch.setattr(api_check.time, "sleep", lambda _: entry.write_bytes(saved))
    assert [item.problem for item in check(ann.context(), folder)] == [None]
    entry.unlink()
    monkeypatch.setattr(api_check.time, "sleep", lambda _: path.rename(folder / "gone"))
    assert check(ann.context(), folder, [Target.parse("scans")]) == []
