"""Taking a branch back to an earlier commit's files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dsv.api.checkout import pull, restore, rollback
from dsv.api.clone import clone
from dsv.api.status import status
from dsv.errors import Conflict, IntegrityError, NotFound
from dsv.format import keys
from dsv.repo.refs.branches import Refs
from dsv.repo.repository import Repository
from dsv.values.ids import CommitId
from dsv.values.names import Target
from tests.exhaustive import is_full, some
from tests.killing import run_killed
from tests.kit.people import SCANS, Files, Person

FIRST: Files = {"a": b"1", "d/b": b"1", "d/c": b"1"}
SECOND: Files = {"a": b"2", "d/b": b"1", "new": b"2"}


@pytest.fixture
def commits(ann: Person) -> tuple[CommitId, CommitId]:
    ann.write(dict(FIRST))
    first = ann.sync().commit
    (ann.workspace / "d/c").unlink()
    ann.write(dict(SECOND))
    second = ann.sync().commit
    assert first is not None and second is not None
    return first, second


def back_to(person: Person, target: object) -> object:
    return rollback(person.context(), Target.parse(f"@{target}"))


def test_a_dry_run_reports_and_changes_nothing(ann: Person, commits: tuple[CommitId, CommitId]) -> None:
    first, second = commits
    done = rollback(ann.context(), Target.parse(f"@{first}"), dry_run=True)
    assert (done.commit, done.source, done.any_change) == (None, first, True)
    assert (done.created, done.replaced, done.removed) == (1, 1, 1)
    assert ann.files() == SECOND and history(ann)[0][1] == second
    ann.write({"a": b"mine"})
    with pytest.raises(Conflict, match="'a' was changed here"):
        rollback(ann.context(), Target.parse(f"@{first}"), dry_run=True)


def history(person: Person) -> list[tuple[str, CommitId | None]]:
    with person.context().store() as store:
        refs = Repository.open(store, None).refs
        head = refs.head(SCANS, status(person.context()).workspace.branch)
        return [(entry.action, entry.commit) for entry in refs.history(head)]


def test_the_branch_has_the_old_files_and_all_of_its_history(
    ann: Person, commits: tuple[CommitId, CommitId]
) -> None:
    first, second = commits
    done = rollback(ann.context(), Target.parse(f"@{first}"), "wrong labels")
    assert (done.before, done.source) == (second, first)
    assert (done.created, done.replaced, done.removed) == (1, 1, 1)
    assert ann.files() == ann.read(done.commit) == FIRST
    assert [commit for _, commit in history(ann)][:3] == [done.commit, second, first]
    assert status(ann.context()).is_clean and not ann.sync().any_change
    assert not rollback(ann.context(), Target.parse(f"@{first}")).any_change
    assert not rollback(ann.context(), Target.parse(f"@{first}"), dry_run=True).any_change
    assert rollback(ann.context(), Target.parse("@main~1")).any_change
    assert ann.files() == SECOND


def test_it_is_one_command_after_the_older_files_were_restored(
    ann: Person, commits: tuple[CommitId, CommitId]
) -> None:
    restore(ann.context(), source=Target.parse(f"@{commits[0]}"))
    done = rollback(ann.context(), Target.parse(f"@{commits[0]}"))
    assert done.before == commits[1]
    assert ann.read(done.commit) == ann.files() == FIRST


def test_local_changes_stay_or_stop_it_before_anything_is_published(
    ann: Person, commits: tuple[CommitId, CommitId]
) -> None:
    ann.write({"d/b": b"mine", "other": b"mine"})
    rollback(ann.context(), Target.parse(f"@{commits[0]}"))
    assert ann.files() == {**FIRST, "d/b": b"mine", "other": b"mine"}
    ann.write({"a": b"mine"})
    before = history(ann)
    with pytest.raises(Conflict, match="'a' was changed here"):
        rollback(ann.context(), Target.parse(f"@{commits[1]}"))
    assert history(ann) == before
    assert ann.files() == {**FIRST, "a": b"mine", "d/b": b"mine", "other": b"mine"}


def test_what_others_published_is_not_taken_back_unseen(
    ann: Person, commits: tuple[CommitId, CommitId], tmp_path: Path
) -> None:
    bob = Person(tmp_path / "bob", ann.store, "bob")
    clone(bob.context(tmp_path), Target.parse("scans"), bob.workspace)
    bob.write({"bobs": b"b"})
    bob.sync()
    with pytest.raises(Conflict, match=r"1 newer commit \(last: bob"):
        back_to(ann, commits[0])
    assert ann.files() == SECOND
    pull(ann.context())
    back_to(ann, commits[0])
    assert ann.files() == FIRST


def test_a_race_that_is_lost_leaves_everything_as_it_was(
    ann: Person, commits: tuple[CommitId, CommitId], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = Person(tmp_path / "bob", ann.store, "bob")
    clone(bob.context(tmp_path), Target.parse("scans"), bob.workspace)
    bob.write({"bobs": b"b"})
    move = Refs.move

    def late(refs: Refs, *arguments: object) -> object:
        monkeypatch.setattr(Refs, "move", move)
        bob.sync()
        return move(refs, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Refs, "move", late)
    with pytest.raises(Conflict, match=r"1 newer commit \(last: bob"):
        back_to(ann, commits[0])
    assert ann.files() == SECOND
    assert status(ann.context()).base == commits[1]


def test_a_commit_that_the_store_has_not_is_no_place_to_go_back_to(
    ann: Person, commits: tuple[CommitId, CommitId], tmp_path: Path
) -> None:
    (tmp_path / "store" / keys.commit_key(commits[0])).unlink()
    with pytest.raises((IntegrityError, NotFound)):
        back_to(ann, commits[0])
    with pytest.raises(NotFound):
        back_to(ann, "nosuch")
    assert ann.files() == SECOND


def test_killed_at_any_step_a_pull_finishes_it(
    ann: Person, commits: tuple[CommitId, CommitId], tmp_path: Path
) -> None:
    """It was killed before the branch moved, just after it, or while it wrote files."""
    first, second = commits
    mine: Files = {"mine": b"by the user"}
    ann.write(mine)
    saved = tmp_path / "saved"
    for name in ("ann", "store"):
        shutil.copytree(tmp_path / name, saved / name, symlinks=True)
    steps = run_killed(lambda: back_to(ann, first), None, inside=ann.workspace)
    assert steps > 10
    published_only = 0
    for step in some(range(1, steps + 1)):
        for name in ("ann", "store"):
            shutil.rmtree(tmp_path / name)
            shutil.copytree(saved / name, tmp_path / name, symlinks=True)
        run_killed(lambda: back_to(ann, first), step, inside=ann.workspace)
        said = status(ann.context()).differences
        assert (said.added, len(said)) == ([b"mine"], 1), f"killed before step {step}"
        (action, head), *_ = history(ann)
        pulled = pull(ann.context())
        assert pulled.commit == head
        if action == "rollback":
            published_only += pulled.before == second
            assert ann.files() == {**FIRST, **mine}, f"killed before step {step}"
        else:
            assert (head, ann.files()) == (second, {**SECOND, **mine}), f"killed before step {step}"
        done = ann.sync()
        assert done.commit is not None and (done.parent, done.added, done.changed, done.removed) == (
            head,
            1,
            0,
            0,
        )
        assert ann.read(done.commit) == ann.files()
    assert published_only or not is_full(), "no step lies between the branch's move and the base's"
