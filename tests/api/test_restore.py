from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from dsv.api.checkout import Restored, Updated, pull, restore
from dsv.api.clone import clone
from dsv.errors import Conflict, NotFound, UsageError
from dsv.values.names import Target
from dsv.workspace.workspace import Workspace
from tests.kit.people import Files, Person

BIG = random.Random(7).randbytes(3 << 20)
FILES: Files = {
    "train/a.png": b"a",
    "train/b.png": b"b",
    "test/c.png": b"c",
    "tool.sh": b"#!/bin/sh\n",
    "link@": b"tool.sh",
    "later": None,
    "big.bin": BIG,
}


@pytest.fixture
def ann(tmp_path: Path) -> Person:
    return Person.who_synced(tmp_path, FILES)


@pytest.fixture
def bob(ann: Person, tmp_path: Path) -> Person:
    person = Person(tmp_path / "bob", ann.store, "bob")
    clone(person.context(tmp_path), Target.parse("scans"), person.workspace)
    return person


def pulled(person: Person) -> Updated:
    return pull(person.context())


def restored(person: Person, *paths: str, source: str | None = None, force: bool = False) -> Restored:
    target = None if source is None else Target.parse(source)
    return restore(person.context(), tuple(os.fsencode(path) for path in paths), target, force=force)


def base(person: Person) -> object:
    workspace = Workspace.find(person.workspace)
    assert workspace is not None
    return workspace.base()


def change_everything(ann: Person) -> Files:
    """Every way in which a commit can differ from the one before."""
    ann.write({"train/a.png": b"changed", "new/deep/file": b"n", "tool.sh": b"#!/bin/dash\n", "test2": None})
    (ann.workspace / "train/b.png").unlink()
    (ann.workspace / "train/b.png").mkdir()  # a file becomes a folder
    ann.write({"train/b.png/inside": b"i", "big.bin": BIG[: 1 << 20] + b"inserted" + BIG[1 << 20 :]})
    shutil.rmtree(ann.workspace / "test")
    (ann.workspace / "test").write_bytes(b"a folder becomes a file")
    (ann.workspace / "link").unlink()
    ann.write({"link@": b"big.bin"})
    (ann.workspace / "later").rmdir()
    ann.sync("second", allow_removals=True)
    return ann.files()


def test_a_pull_brings_every_kind_of_change_and_leaves_nothing_to_sync(ann: Person, bob: Person) -> None:
    expected = change_everything(ann)
    done = pulled(bob)
    assert done.any_change and done.commit == base(ann) == base(bob)
    assert bob.files() == expected
    assert not bob.sync().any_change
    again = pulled(bob)
    assert not again.any_change and again.commit == done.commit


def test_a_pull_keeps_local_changes_elsewhere(ann: Person, bob: Person) -> None:
    ann.write({"train/a.png": b"ann's", "train/new.png": b"new"})
    ann.sync()
    bob.write({"test/c.png": b"bob's", "train/bobs.png": b"own"})
    (bob.workspace / "big.bin").unlink()
    pulled(bob)
    files = bob.files()
    assert files["train/a.png"] == b"ann's" and files["train/new.png"] == b"new"
    assert files["test/c.png"] == b"bob's" and files["train/bobs.png"] == b"own" and "big.bin" not in files
    done = bob.sync()
    assert (done.added, done.changed, done.removed) == (1, 1, 1)


def test_a_pull_where_both_changed_a_path_writes_nothing_and_lists_them(ann: Person, bob: Person) -> None:
    ann.write({"train/a.png": b"ann's", "test/c.png": b"ann's too", "both": b"1"})
    (ann.workspace / "tool.sh").unlink()
    ann.sync()
    bob.write({"train/a.png": b"bob's", "both": b"2", "tool.sh": b"#!/usr/bin/env sh\n"})
    before, files = base(bob), bob.files()
    with pytest.raises(Conflict) as caught:
        pulled(bob)
    for path in ("train/a.png", "both", "tool.sh"):
        assert path in caught.value.message
    assert f"(there: {str(base(ann))[:12]} by ann@lab, " in caught.value.message
    assert "test/c.png" not in caught.value.message
    assert bob.files() == files and base(bob) == before


def test_who_made_the_same_change_has_no_conflict(ann: Person, bob: Person) -> None:
    ann.write({"train/a.png": b"same", "fresh": b"same"})
    ann.sync()
    bob.write({"train/a.png": b"same", "fresh": b"same"})
    assert pulled(bob).any_change
    assert not bob.sync().any_change


def test_a_pull_does_not_overwrite_what_no_commit_has(ann: Person, bob: Person) -> None:
    ann.write({"notes/today": b"ann's"})
    ann.sync()
    bob.write({"notes": b"a file of bob's where the commit has a folder", ".dsvignore": b"secret\n"})
    with pytest.raises(Conflict, match="notes"):
        pulled(bob)
    (bob.workspace / "notes").unlink()
    bob.write({"notes/today": b"bob's", "secret": b"ignored"})
    with pytest.raises(Conflict, match="notes/today"):
        pulled(bob)
    (bob.workspace / "notes/today").unlink()
    ann.write({"secret": b"committed by ann"})
    ann.sync()
    with pytest.raises(Conflict, match="secret"):
        pulled(bob)
    assert (bob.workspace / "secret").read_bytes() == b"ignored"


def test_a_pull_follows_no_symlink_out_of_the_workspace(ann: Person, bob: Person, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    ann.write({"train/new.png": b"new"})
    ann.sync()
    shutil.rmtree(bob.workspace / "train")
    (bob.workspace / "train").symlink_to(outside)
    with pytest.raises(Conflict):
        pulled(bob)
    assert list(outside.iterdir()) == []


def test_an_interrupted_pull_is_continued(ann: Person, bob: Person) -> None:
    expected = change_everything(ann)
    (bob.workspace / "train/a.png").write_bytes(b"changed")  # as far as a killed pull had come
    (bob.workspace / "new/deep").mkdir(parents=True)
    (bob.workspace / "new/deep/.dsv-tmp-0123456789abcdef").write_bytes(b"half")
    pulled(bob)
    assert bob.files() == expected
    assert not (bob.workspace / "new/deep/.dsv-tmp-0123456789abcdef").exists()


def test_a_branch_that_does_not_descend_from_the_base_is_refused(ann: Person, bob: Person) -> None:
    bob.write({"own": b"1"})
    from dsv.values.names import BranchName

    bob.sync(branch=BranchName.parse("other"), new_branch=True)
    ann.write({"else": b"2"})
    ann.sync()
    workspace = Workspace.find(bob.workspace)
    assert workspace is not None
    workspace.follow(BranchName.parse("main"))
    with pytest.raises(Conflict, match=r"main of scans is at .*, which does not descend from"):
        pulled(bob)


def test_restore_brings_back_named_paths_alone(ann: Person) -> None:
    ann.write({"train/a.png": b"spoilt", "test/c.png": b"spoilt", "train/untracked": b"stays"})
    (ann.workspace / "train/b.png").unlink()
    done = restored(ann, "train")
    files = ann.files()
    assert files["train/a.png"] == b"a" and files["train/b.png"] == b"b"
    assert files["test/c.png"] == b"spoilt" and files["train/untracked"] == b"stays"
    assert (done.created, done.replaced, done.removed) == (1, 1, 0)
    restored(ann, "test/c.png")
    (ann.workspace / "train/untracked").unlink()
    assert not ann.sync().any_change


def test_restore_of_kinds_and_modes(ann: Person) -> None:
    (ann.workspace / "tool.sh").chmod(0o644)
    (ann.workspace / "link").unlink()
    (ann.workspace / "link").write_bytes(b"no link any more")
    (ann.workspace / "later").rmdir()
    shutil.rmtree(ann.workspace / "test")
    (ann.workspace / "test").write_bytes(b"in the way")
    restored(ann, "tool.sh", "link", "later", "test")
    assert ann.files() == FILES
    assert not ann.sync().any_change


def test_restore_from_an_older_commit_keeps_the_base(ann: Person) -> None:
    first = base(ann)
    change_everything(ann)
    second = base(ann)
    restored(ann, "", source=f"@{first}")
    assert ann.files() == FILES and base(ann) == second
    done = ann.sync("back to the first", allow_removals=True)
    assert done.any_change and done.parent == second
    assert ann.read(done.commit) == FILES  # type: ignore[arg-type]


def test_restoring_everything_moves_the_base_and_wants_force_over_changes(ann: Person) -> None:
    first = base(ann)
    change_everything(ann)
    ann.write({"train/a.png": b"not committed"})
    with pytest.raises(Conflict, match=r"train/a\.png"):
        restored(ann, source=f"@{first}")
    restored(ann, source=f"@{first}", force=True)
    assert ann.files() == FILES and base(ann) == first
    with pytest.raises(Conflict, match="moved"):
        ann.write({"x": b"x"})
        ann.sync()


def test_without_a_path_deleted_files_come_back_and_nothing_else_is_overwritten(ann: Person) -> None:
    before = ann.files()
    shutil.rmtree(ann.workspace / "train")
    (ann.workspace / "link").unlink()
    ann.write({"mine": b"m"})
    done = restored(ann)
    assert (done.created, done.replaced, done.removed) == (3, 0, 0)
    assert ann.files() == {**before, "mine": b"m"}
    for name in ("train/a.png", "test/c.png", "tool.sh"):
        (ann.workspace / name).unlink()
    ann.write({"train/a.png": None, "train/a.png/mine": b"m", "tool.sh": b"changed\n"})
    (ann.workspace / "test").rmdir()
    (ann.workspace / "test").write_bytes(b"a file of mine")
    now = ann.files()
    with pytest.raises(Conflict, match="would overwrite 3 paths"):
        restored(ann)
    assert ann.files() == now


def test_what_restore_can_not_do(ann: Person) -> None:
    with pytest.raises(NotFound, match="nothing-here"):
        restored(ann, "nothing-here")
    with pytest.raises(UsageError):
        restored(ann, "tool.sh", source="@main:train")
    with pytest.raises(NotFound, match="no dataset other"):
        restored(ann, "tool.sh", source="other@main")
    ann.write({"train/new/file": b"1"})
    shutil.rmtree(ann.workspace / "test")
    ann.write({"test": b"a file of mine"})
    with pytest.raises(Conflict, match="test"):  # naming what lies in it is no consent for the file itself
        restored(ann, "test/c.png")
    restored(ann, "test/c.png", force=True)
    assert (ann.workspace / "test/c.png").read_bytes() == b"c"
