"""What a pull, a clone or a restore finds in its way is found before the first file is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv.api.checkout import pull, restore
from dsv.api.clone import clone
from dsv.api.status import status
from dsv.errors import Conflict
from dsv.values.names import Target
from tests.kit.people import Files, Person
from tests.privileges import modes_count


@pytest.fixture
def team(tmp_path: Path) -> tuple[Person, Person]:
    """Ann has published; Bob has cloned that."""
    ann, bob = (Person(tmp_path / name, str(tmp_path / "store"), name) for name in ("ann", "bob"))
    ann.init()
    ann.write({"a": b"a", "folder/x": b"x"})
    ann.sync()
    clone(bob.context(tmp_path), Target.parse("scans"), bob.workspace)
    return ann, bob


def refused(bob: Person, *said: str) -> None:
    """A pull, and a restore of all by force, write nothing and say what is in the way."""
    before = bob.files()
    for work in (
        lambda: pull(bob.context()),
        lambda: restore(bob.context(), (), Target.parse("@main"), force=True),
    ):
        with pytest.raises(Conflict) as caught:
            work()
        for text in said:
            assert text in caught.value.message
        assert bob.files() == before


@pytest.mark.parametrize("there", [{"out/mine": b"m"}, {"out/x": b"mine"}, {"out/deep/x": b"m"}])
def test_a_folder_that_is_left_out_here(team: tuple[Person, Person], there: Files) -> None:
    ann, bob = team
    bob.write({".dsvignore": b"out/\n", **there})
    ann.write({"a": b"A", "b": b"b", "out/x": b"ann's"})
    ann.sync()
    refused(bob, "'out' is left out by .dsvignore, and is in the way of out/x")
    (bob.workspace / ".dsvignore").unlink()
    (bob.workspace / "out").rename(bob.home / "aside")
    assert pull(bob.context()).any_change and bob.files() == ann.files()


def test_a_file_that_is_left_out_here(team: tuple[Person, Person]) -> None:
    ann, bob = team
    bob.write({".dsvignore": b"*.tmp\n", "one.tmp": b"mine"})
    ann.write({"a": b"A", "one.tmp": b"ann's"})
    ann.sync()
    refused(bob, "'one.tmp' is left out by .dsvignore")
    (bob.workspace / "one.tmp").unlink()
    (bob.workspace / ".dsvignore").unlink()
    assert pull(bob.context()).any_change and not status(bob.context()).differences


def test_a_folder_that_is_left_out_where_a_file_is_to_be(team: tuple[Person, Person]) -> None:
    ann, bob = team
    bob.write({".dsvignore": b"out/\n", "out/mine": b"m"})
    ann.write({"a": b"A", "out": b"a file"})
    ann.sync()
    refused(bob, "'out' is left out by .dsvignore")


def test_a_repository_of_git_in_a_folder_that_becomes_a_file(team: tuple[Person, Person]) -> None:
    """Nothing that a scan sees; it stays unless it may be overwritten."""
    ann, bob = team
    (bob.workspace / "folder/.git").mkdir()
    (ann.workspace / "folder/x").unlink()
    (ann.workspace / "folder").rmdir()
    ann.write({"a": b"A", "folder": b"a file"})
    ann.sync(allow_removals=True)
    before = bob.files()
    with pytest.raises(Conflict, match=r"folder/\.git' is in the way of folder"):
        pull(bob.context())
    assert bob.files() == before
    (bob.workspace / "folder/.git").rmdir()
    pull(bob.context())
    assert bob.files() == ann.files()


def test_a_folder_that_may_not_be_read(team: tuple[Person, Person]) -> None:
    ann, bob = team
    ann.write({"a": b"A", "folder/new": b"n"})
    ann.sync()
    before = bob.files()
    (bob.workspace / "folder").chmod(0)
    with modes_count():
        for work in (
            lambda: pull(bob.context()),
            lambda: restore(bob.context(), (), Target.parse("@main"), force=True),
        ):
            with pytest.raises(Conflict, match="'folder/new' can't be read, and is in the way"):
                work()
    (bob.workspace / "folder").chmod(0o755)
    assert bob.files() == before
