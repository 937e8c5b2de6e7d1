"""dsv pull: its text, its JSON, its exit codes."""

from __future__ import annotations

import os
import time

import pytest

from dsv.workspace.write import CheckoutWriter
from tests.kit.dsv import Dsv, assert_documented, write_files


@pytest.fixture
def pets(untagged_pets: Dsv) -> Dsv:
    return untagged_pets


@pytest.fixture
def other(pets: Dsv) -> Dsv:
    """A clone of the dataset beside it."""
    pets.at(pets.cwd.parent).ok("clone", "pets", "other")
    return pets.at(pets.cwd.parent / "other")


def test_pull_brings_what_others_synced(pets: Dsv, other: Dsv) -> None:
    assert other.ok("pull").out.startswith("pets@main is already at ")
    write_files(pets.cwd, {"a.txt": b"beta\n", "b.txt": b"b"})
    head = pets.ok("sync").out.strip()
    write_files(other.cwd, {"mine.txt": b"mine"})
    moved = other("sync")
    assert (moved.code, moved.out) == (4, "")
    assert "dsv pull" in moved.err
    assert "dsv sync --new-branch NAME" in moved.err
    assert other.ok("pull").lines == [f"pulled pets@main ({head[:12]}): 1 file added, 1 replaced, 0 removed"]
    assert (other.cwd / "a.txt").read_bytes() == b"beta\n"
    assert other.ok("sync", "--json").json["parent"] == head
    document = pets.ok("pull", "--json").json
    assert_documented("pull", document)
    assert document["any_change"] is True


def test_pull_where_both_changed_a_path_writes_nothing(pets: Dsv, other: Dsv) -> None:
    write_files(pets.cwd, {"a.txt": b"theirs\n", "b.txt": b"b"})
    pets.ok("sync")
    write_files(other.cwd, {"a.txt": b"mine\n"})
    result = other("pull")
    assert (result.code, result.out) == (4, "")
    assert "a.txt" in result.err
    assert (other.cwd / "a.txt").read_bytes() == b"mine\n"
    assert not (other.cwd / "b.txt").exists()
    beside = other.ok("sync", "--new-branch", "mine", "--json").json
    assert beside["branch"] == "mine"
    assert other.ok("status", "--json").json["branch"] == "mine"


def test_an_edit_by_another_name_meanwhile_is_not_lost(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it keeps the size, and sets the time back."""
    write_files(pets.cwd, {"one": b"same\n"})
    os.link(pets.cwd / "one", pets.cwd / "two")
    pets.ok("sync")
    pets.at(pets.home).ok("rm", "pets:one", "pets:two")
    remove, edits = CheckoutWriter.remove, iter([True])

    def remove_and_edit(writer: CheckoutWriter, path: bytes, expected: bytes | None) -> bool:
        done = remove(writer, path, expected)
        if next(edits, False):
            time.sleep(0.1)  # the clock of the file system goes on
            before = (pets.cwd / "two").stat()
            (pets.cwd / "two").write_bytes(b"edit\n")
            os.utime(pets.cwd / "two", ns=(before.st_atime_ns, before.st_mtime_ns))
        return done

    with monkeypatch.context() as patched:
        patched.setattr(CheckoutWriter, "remove", remove_and_edit)
        assert pets("pull").code == 4
    assert (pets.cwd / "two").read_bytes() == b"edit\n"


@pytest.mark.parametrize("end", ["rm", "put"])
def test_files_with_several_names_follow_the_branch(pets: Dsv, end: str) -> None:
    """To remove or replace one name changes the ctime of the file, which its other names show."""
    write_files(pets.cwd, {"one": b"same\n"})
    for name in ("two", "three"):
        os.link(pets.cwd / "one", pets.cwd / name)
    pets.ok("sync")
    write_files(pets.home, {"new": b"new\n"})
    elsewhere = pets.at(pets.home)
    for name in ("one", "two", "three"):
        elsewhere.ok(*(["rm", f"pets:{name}"] if end == "rm" else ["put", "new", f"pets:{name}"]))
    pets.ok("pull")
    left = {
        name: (pets.cwd / name).read_bytes() for name in ("one", "two", "three") if (pets.cwd / name).exists()
    }
    assert left == ({} if end == "rm" else dict.fromkeys(("one", "two", "three"), b"new\n"))
    assert pets.ok("status", "--json").json["clean"] is True
