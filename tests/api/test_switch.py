"""Following another branch: what comes, what stays, what is refused, and every place to be killed in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dsv.api.branches import BranchPath, create_branch, delete_branch, tag
from dsv.api.checkout import Updated, pull, restore, switch
from dsv.api.clone import clone
from dsv.api.log import reflog
from dsv.errors import Conflict, NotFound
from dsv.values.names import BranchName, TagName, Target
from dsv.workspace.workspace import Workspace
from tests.api.test_killed_moves import FIRST, SECOND, THIRD, WRITTEN, found, with_mine
from tests.exhaustive import some
from tests.killing import run_killed
from tests.kit.people import Files, Person

MINE = {"mine/changed": "changed", "mine/removed": "removed", "mine/new": "added"}


def to(bob: Person, name: str, *, create: bool = False) -> Updated:
    return switch(bob.context(), BranchName.parse(name), create=create)


class Lab:
    """A store with `main`, and with `second` and `third`, each one commit ahead of it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = str(home / "store")
        self.clones = 0
        ann = Person(home / "ann", self.store)
        ann.init()
        self.fill(ann, FIRST)
        ann.sync()
        for name, files in (("second", SECOND), ("third", THIRD)):
            restore(ann.context(), (), Target.parse("@main"), force=True)
            self.fill(ann, files)
            ann.sync(branch=BranchName.parse(name), new_branch=True, allow_removals=True)
        self.ann = ann

    def fill(self, ann: Person, files: Files) -> None:
        for path in ann.workspace.iterdir():
            if path.name != ".dsv":
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        ann.write(files)

    def bob(self, branch: str = "third", *, changes: bool = True) -> Person:
        """Somebody new with a clone of a branch, and changes of his own in it."""
        self.clones += 1
        bob = Person(self.home / f"bob-{self.clones}", self.store, "bob")
        bob.home.mkdir()
        clone(bob.context(bob.home), Target.parse(f"scans@{branch}"), bob.workspace)
        if changes:
            bob.write(WRITTEN)
            (bob.workspace / "mine/removed").unlink()
        return bob


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


def bound(bob: Person) -> Workspace:
    workspace = Workspace.find(bob.workspace)
    assert workspace is not None
    return workspace


def test_the_files_of_the_branch_come_and_changes_stay(lab: Lab) -> None:
    bob = lab.bob()
    done = to(bob, "second")
    assert (done.before_branch, done.branch, done.any_change, done.made) == ("third", "second", True, False)
    assert bob.files() == with_mine(SECOND) and found(bob) == MINE
    assert bound(bob).branch == "second" and bound(bob).base() == done.commit == bound(bob).seen()
    assert not to(bob, "second").any_change
    to(bob, "third")
    assert bob.files() == with_mine(THIRD) and found(bob) == MINE
    published = bob.sync(branch=BranchName.parse("of-bob"), new_branch=True)
    assert published.commit is not None and bob.read(published.commit) == with_mine(THIRD)


def test_what_would_be_overwritten_is_refused_with_a_list(lab: Lab) -> None:
    bob = lab.bob()
    bob.write({"x": b"mine", "new/a": b"mine too"})
    before, base = bob.files(), bound(bob).base()
    with pytest.raises(Conflict, match="2 paths") as caught:
        to(bob, "second")
    assert "x" in caught.value.message and "new/a" in caught.value.message
    assert bob.files() == before and bound(bob).branch == "third" and bound(bob).base() == base
    assert not bound(bob).begun()


def test_a_new_branch_begins_where_the_workspace_is(lab: Lab) -> None:
    bob = lab.bob()
    before = bob.files()
    done = to(bob, "fresh", create=True)
    assert done.made and done.any_change and done.commit == done.before
    assert bob.files() == before and found(bob) == MINE and bound(bob).branch == "fresh"
    with pytest.raises(Conflict, match="already has a branch fresh"):
        to(bob, "fresh", create=True)
    published = bob.sync()
    with reflog(bob.context()) as moves:
        (move, first) = moves
    assert (move.action, first.action) == ("sync", "create") and move.commit == published.commit
    delete_branch(lab.ann.context(), BranchPath.parse("scans@fresh"), force=True)
    with pytest.raises(NotFound, match="was deleted"):
        bob.sync()
    assert to(bob, "again", create=True).commit == published.commit


def test_names_that_are_no_branch(lab: Lab) -> None:
    bob = lab.bob()
    tag(bob.context(), TagName.parse("v1"), Target.parse("@main"))
    with pytest.raises(NotFound, match="v1 is a tag"):
        to(bob, "v1")
    with pytest.raises(NotFound, match="no branch secnod") as caught:
        to(bob, "secnod")
    assert "dsv branch scans@secnod scans@main makes it" in str(caught.value.hint)
    with pytest.raises(Conflict, match="has a tag v1"):
        to(bob, "v1", create=True)
    with pytest.raises(Conflict, match="case only"):
        to(bob, "Second", create=True)


def test_a_dataset_without_a_commit(tmp_path: Path) -> None:
    ann = Person(tmp_path / "ann", str(tmp_path / "store"))
    ann.init()
    assert not to(ann, "main").any_change
    with pytest.raises(NotFound, match="has no commit yet"):
        to(ann, "new", create=True)


def test_killed_at_any_step_it_is_finished_or_undone_by_the_next_switch(lab: Lab) -> None:
    rehearsal = lab.bob()
    steps = run_killed(lambda: to(rehearsal, "second"), None, inside=rehearsal.workspace)
    assert steps > 25
    for step in some(range(1, steps + 1)):
        bob = lab.bob()
        base = bound(bob).base()
        run_killed(lambda bob=bob: to(bob, "second"), step, inside=bob.workspace)  # type: ignore[misc]
        assert found(bob) == MINE, f"killed before step {step}"
        if bound(bob).branch == "third":  # nothing is written before it is known for which branch
            assert bob.files() == with_mine(THIRD)
        if bound(bob).branch == "second" and bound(bob).base() == base:
            with pytest.raises(Conflict, match="dsv switch second was interrupted here") as caught:
                bob.sync()
            assert caught.value.hint == "dsv switch second finishes it"
        if step % 3 == 0:
            run_killed(lambda bob=bob: to(bob, "third"), step * 7 % 31 + 1, inside=bob.workspace)  # type: ignore[misc]
            assert found(bob) == MINE, f"killed before step {step}, and once more"
        name, files = ("third", THIRD) if step % 2 else ("second", SECOND)
        to(bob, name)
        assert bob.files() == with_mine(files), f"killed before step {step}"
        assert bound(bob).branch == name and not bound(bob).begun()
        published = bob.sync(branch=BranchName.parse(f"killed-{step}"), new_branch=True)
        assert published.commit is not None and bob.read(published.commit) == with_mine(files)
        assert found(bob) == {}


def test_a_sync_that_was_killed_behind_its_move_counts_as_published(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit is the base then, so the files that it published are no local changes on the other branch."""
    create_branch(lab.ann.context(), BranchPath.parse("scans@line"), Target.parse("scans@third"))
    bob = lab.bob("line")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Workspace, "set_base", killed)
        bob.sync()
    to(bob, "second")
    assert bob.files() == SECOND and found(bob) == {}
    to(bob, "line")
    assert bob.files() == with_mine(THIRD) and found(bob) == {}
    assert not pull(bob.context()).any_change
