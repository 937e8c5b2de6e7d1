"""A store that was put back from a backup: what was published since is missing there, and still in workspaces."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv.api.branches import tag, tags
from dsv.api.checkout import pull, restore
from dsv.api.clone import clone
from dsv.api.context import Context
from dsv.api.merge import MergeRequest, cherry_pick, revert
from dsv.errors import Conflict, IntegrityError
from dsv.format import keys
from dsv.repo.objects.objects import Objects
from dsv.repo.repository import Repository
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, TagName, Target
from dsv.values.progress import NoProgress
from tests.kit.people import SCANS, Files, Person

FIRST: Files = {f"old/{n}": b"%d" % n * 50 for n in range(30)}
SECOND: Files = {f"new/{n}": b"%d!" % n * 50 for n in range(50)} | {"old/3": b"changed"}
MAIN = BranchName.parse("main")


@pytest.fixture
def ann(tmp_path: Path) -> Person:
    """Her second commit is in her workspace, with local copies of its metadata, and in the store no more."""
    person = Person.who_synced(tmp_path, dict(FIRST))
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    person.write(dict(SECOND))
    person.sync("second")
    put_back(tmp_path)
    return person


@pytest.fixture
def bob(ann: Person, tmp_path: Path) -> Person:
    person = Person(tmp_path / "bob", ann.store, "bob")
    clone(person.context(tmp_path), Target.parse("scans"), person.workspace)
    return person


def put_back(folder: Path) -> None:
    shutil.rmtree(folder / "store")
    shutil.copytree(folder / "backup", folder / "store")


def head(person: Person, branch: BranchName = MAIN) -> CommitId:
    with person.context().store() as store:
        commit = Repository.open(store, None).refs.head(SCANS, branch).commit
        assert commit is not None
        return commit


def test_the_next_sync_publishes_what_was_lost_though_nothing_changed_since(ann: Person) -> None:
    done = ann.sync()
    assert done.any_change
    assert done.commit == head(ann)
    assert ann.read(done.commit) == ann.files() == {**FIRST, **SECOND}
    assert not ann.sync().any_change


def test_a_sync_of_one_path_names_nothing_that_was_lost(ann: Person) -> None:
    ann.write({"more": b"m"})
    done = ann.sync(paths=(b"more",))
    assert done.commit is not None
    assert ann.read(done.commit) == {**FIRST, "more": b"m"}
    done = ann.sync()
    assert done.commit is not None
    assert ann.read(done.commit) == ann.files() == {**FIRST, **SECOND, "more": b"m"}


def test_no_tag_is_given_to_a_commit_that_the_store_has_not(ann: Person) -> None:
    base = (ann.workspace / ".dsv/base").read_text().strip()
    for target in ("", f"@{base}"):
        with pytest.raises(IntegrityError):
            tag(ann.context(), TagName.parse("v2"), Target.parse(target))
    assert tags(ann.context(), None) == []


@pytest.mark.parametrize("work", [cherry_pick, revert])
def test_a_commit_that_the_store_has_lost_gives_nothing_to_a_branch(
    ann: Person, tmp_path: Path, work: Callable[[Context, MergeRequest], object]
) -> None:
    lost = (ann.workspace / ".dsv/base").read_text().strip()
    if work is revert:  # of a commit that removes what another lost one has added
        ann.sync()
        (ann.workspace / "new/1").unlink()
        lost = str(ann.sync().commit)
        put_back(tmp_path)
    before = head(ann)
    with pytest.raises(IntegrityError, match="is named, but not in"):
        work(ann.context(), MergeRequest(Target.parse(f"scans@{lost}")))
    assert head(ann) == before


@pytest.mark.parametrize("changed", [False, True])
def test_a_new_branch_can_be_read_by_everybody(ann: Person, changed: bool) -> None:
    if changed:
        ann.write({"old/1": b"changed too"})
    branch = BranchName.parse("mine")
    done = ann.sync(branch=branch, new_branch=True)
    assert done.commit == head(ann, branch)
    assert ann.read(done.commit) == ann.files()


def test_a_pull_of_what_others_published_since_keeps_what_only_this_workspace_has(
    ann: Person, bob: Person
) -> None:
    bob.write({"bobs": b"b"})
    bob.sync()
    with pytest.raises(Conflict):
        ann.sync()
    pull(ann.context())
    assert ann.files() == {**FIRST, **SECOND, "bobs": b"b"}
    done = ann.sync()
    assert done.commit is not None
    assert ann.read(done.commit) == ann.files()


def test_a_pull_takes_both_sides_changes_of_a_path_for_a_conflict(ann: Person, bob: Person) -> None:
    bob.write({"old/3": b"bob's"})
    bob.sync()
    with pytest.raises(Conflict, match="old/3"):
        pull(ann.context())
    assert ann.files() == {**FIRST, **SECOND}


def test_restoring_the_head_removes_no_only_copy_without_force(ann: Person) -> None:
    with pytest.raises(Conflict, match="old/3"):
        restore(ann.context(), source=Target.parse("@main"))
    assert ann.files() == {**FIRST, **SECOND}


def test_restoring_a_path_from_a_base_that_is_lost_is_refused(ann: Person) -> None:
    with pytest.raises(IntegrityError, match="not in"):
        restore(ann.context(), (b"old/3",))
    assert ann.files() == {**FIRST, **SECOND}


def test_a_branch_that_names_a_lost_commit_is_mended_by_who_has_its_files(tmp_path: Path) -> None:
    """As after a backup that was taken during a sync: the name is there, and what it names is not."""
    ann = Person(tmp_path / "ann", str(tmp_path / "store"))
    ann.init()
    ann.write(dict(FIRST))
    first = ann.sync().commit
    ann.write(dict(SECOND))
    lost = ann.sync().commit
    assert first is not None and lost is not None
    (tmp_path / "store" / keys.commit_key(lost)).unlink()
    assert not ann.sync().any_change and head(ann) == lost, "its locator has a copy"
    (tmp_path / "store" / keys.locator_key(lost)).unlink()
    done = ann.sync()
    assert done.any_change and done.parent == first and done.commit == head(ann)
    assert ann.read(done.commit) == ann.files()


def test_a_store_that_has_no_commit_any_more_gets_all_of_it_again(tmp_path: Path) -> None:
    ann = Person(tmp_path / "ann", str(tmp_path / "store"))
    ann.init()
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    ann.write(dict(FIRST))
    ann.sync()
    put_back(tmp_path)
    done = ann.sync()
    assert done.any_change and done.parent is None and done.commit == head(ann)
    assert ann.read(done.commit) == FIRST


def test_a_commit_of_lost_contents_is_made_whole_by_who_has_its_files(
    ann: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an older dsv published it: it took contents from a commit that the store had lost."""
    noted: list[str] = []
    monkeypatch.setattr(NoProgress, "note", lambda self, text: noted.append(text))
    lost = (ann.workspace / ".dsv/base").read_text().strip()
    with monkeypatch.context() as patch:
        patch.setattr(Objects, "check_stored", lambda *_: None)
        patch.setattr(Uploader, "new_location", lambda self, entry, known: known)
        cherry_pick(ann.context(), MergeRequest(Target.parse(f"scans@{lost}")))
    with pytest.raises(IntegrityError):
        ann.read(head(ann))
    pull(ann.context())
    assert any("dsv sync stores it again" in text for text in noted)
    done = ann.sync()
    assert done.reuploaded >= len(SECOND) and not done.lost
    assert ann.read(head(ann)) == ann.files() == {**FIRST, **SECOND}
    assert not ann.sync().reuploaded
