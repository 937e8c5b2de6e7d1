"""A pull, clone or restore that is killed at every step, with the branch moving before it is run again.

Whatever was written by then: nothing of it is taken for a change of the user's, nothing of the user's is lost, and the
next sync publishes what the user changed, no more and no less.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsv.api.checkout import pull, restore
from dsv.api.clone import clone
from dsv.api.status import status
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, Target
from dsv.workspace.workspace import Workspace
from tests.exhaustive import some
from tests.killing import run_killed
from tests.kit.people import Files, Person

FIRST: Files = {
    "x": b"first", "tool": b"1", "link@": b"x", "hollow": None, "gone/y": b"y", "turns": b"a file", "folds/in": b"i",
    "mine/changed": b"of the base", "mine/removed": b"r",
}  # fmt: skip
SECOND: Files = {
    "x": b"SECOND", "tool.sh": b"1", "link@": b"tool.sh", "hollow/no/more": b"m", "turns/into": b"a folder",
    "folds": b"a file", "new/a": b"a", "new/deep/b": b"b", "new/large": bytes(1 << 20) + b"large",
    "mine/changed": b"of the base", "mine/removed": b"r",
}  # fmt: skip
THIRD: Files = {
    "x": b"first", "tool": b"1", "link@": b"x", "hollow": None, "gone/y": b"y again", "turns/into": b"a folder",
    "new/deep/b": b"B", "folds/in": b"i", "mine/changed": b"of the base", "mine/removed": b"r",
}  # fmt: skip
MINE: Files = {"mine/changed": b"by the user", "mine/removed": b"", "mine/new": b"n"}


def with_mine(files: Files) -> Files:
    return {**{name: data for name, data in files.items() if name != "mine/removed"}, **WRITTEN}


WRITTEN: Files = {name: data for name, data in MINE.items() if data}


BESIDE = BranchName.parse("beside")


class Team:
    """A store at each of its commits, and somebody who works in a clone of the first.

    What one step of a test publishes no other sees: the store does not grow from step to step.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = home / "store"
        ann = Person(home / "ann", str(self.store))
        ann.init()
        self.commits: list[CommitId] = []
        for number, files in enumerate((FIRST, SECOND, THIRD)):
            for path in ann.workspace.iterdir():
                if path.name != ".dsv":
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            ann.write(files)
            done = ann.sync(allow_removals=True)
            assert done.commit is not None
            self.commits.append(done.commit)
            shutil.copytree(self.store, home / f"store-{number}", symlinks=True)
        shutil.rmtree(self.store)
        self.clones = 0
        self.copies = 0

    def at(self, number: int) -> None:
        """From now on, the store is as it was after this commit."""
        copy = self.home / f"store-{number}-{self.copies}"
        self.copies += 1
        shutil.copytree(self.home / f"store-{number}", copy, copy_function=os.link)
        self.store.unlink(missing_ok=True)
        self.store.symlink_to(copy.name)

    def bob(self, *, begun: bool = True, changes: bool = True) -> Person:
        """Somebody new, with a clone of the first commit if `begun`, and changes of his own in it."""
        self.clones += 1
        bob = Person(self.home / f"bob-{self.clones}", str(self.store), "bob")
        bob.home.mkdir()
        if begun:
            self.at(0)
            cloned(bob)
            if changes:
                bob.write(WRITTEN)
                (bob.workspace / "mine/removed").unlink()
        return bob


def cloned(bob: Person) -> None:
    clone(bob.context(bob.home), Target.parse("scans"), bob.workspace)


def pulled(bob: Person) -> None:
    pull(bob.context())


def restored(bob: Person) -> None:
    restore(bob.context(), (), Target.parse("@main"))


def restored_by_force(bob: Person) -> None:
    restore(bob.context(), (), Target.parse("@main"), force=True)


PATHS = (b"new", b"x", b"turns", b"folds", b"hollow", b"gone")


def restored_in_part(bob: Person) -> None:
    restore(bob.context(), PATHS, Target.parse("@main"))


def part_of(files: Files) -> Files:
    return {
        name: data
        for name, data in files.items()
        if any(name == path or name.startswith(path + "/") for path in map(os.fsdecode, PATHS))
    }


@dataclass(frozen=True)
class Case:
    """done: what the third commit makes of the workspace. published: what a sync then adds to its base."""

    work: Callable[[Person], None]
    done: Files
    published: Files
    begun: bool = True
    changes: bool = True


IN_PART = with_mine({**{n: d for n, d in FIRST.items() if n not in part_of(FIRST)}, **part_of(THIRD)})
CASES = {
    "pull": Case(pulled, with_mine(THIRD), with_mine(THIRD)),
    "clone": Case(cloned, THIRD, THIRD, begun=False, changes=False),
    "restore": Case(restored, THIRD, THIRD, changes=False),
    "restore by force": Case(restored_by_force, {**THIRD, "mine/new": b"n"}, {**THIRD, "mine/new": b"n"}),
    "restore in part": Case(restored_in_part, IN_PART, IN_PART),
}


def found(bob: Person) -> dict[str, str]:
    """Return the differences that `status` lists."""
    said = status(bob.context()).differences
    lists = {"added": said.added, "changed": said.changed, "removed": said.removed, "retyped": said.retyped}
    return {os.fsdecode(path): what for what, paths in lists.items() for path in paths}


def has_ended(bob: Person, before: Files) -> bool:
    """Return whether the killed command had written everything, and recorded that."""
    workspace = Workspace.find(bob.workspace)
    return workspace is not None and not workspace.begun() and bob.files() != before


def check_taken(bob: Person, case: Case) -> None:
    """Between the kill and the next run."""
    workspace = Workspace.find(bob.workspace)
    if workspace is None:
        assert not case.begun
        return
    if workspace.base() is None:
        assert found(bob) == {}
        return
    said = found(bob)
    mine = {"mine/changed": "changed", "mine/removed": "removed", "mine/new": "added"} if case.changes else {}
    if case.work is restored_by_force:  # some of it was given up
        assert set(said) <= set(mine), said
    else:
        assert said == mine, said


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Team:
    return Team(tmp_path_factory.mktemp("team"))


def steps_of(team: Team, case: Case) -> int:
    bob = team.bob(begun=case.begun, changes=case.changes)
    team.at(1)
    return run_killed(lambda: case.work(bob), None, inside=bob.workspace)


@pytest.mark.parametrize("name", list(CASES))
def test_killed_at_any_step_it_is_finished_by_the_next_run(team: Team, name: str) -> None:
    case = CASES[name]
    steps = steps_of(team, case)
    assert steps > 25
    for step in some(range(1, steps + 1), every=11):
        bob = team.bob(begun=case.begun, changes=case.changes)
        before = bob.files()
        team.at(1)
        work = case.work
        run_killed(lambda bob=bob, work=work: work(bob), step, inside=bob.workspace)  # type: ignore[misc]
        team.at(2)
        if has_ended(bob, before) and case.work is restored_in_part:
            others = {name: data for name, data in FIRST.items() if name not in part_of(FIRST)}
            assert bob.files() == with_mine({**others, **part_of(SECOND)})
            continue
        if has_ended(bob, before) and case.work is cloned:
            work = pulled
        check_taken(bob, case)
        if step % 3 == 0 and work is not restored_in_part:  # killed once more, on the way to the next commit
            run_killed(lambda bob=bob, work=work: work(bob), step * 7 % 31 + 1, inside=bob.workspace)  # type: ignore[misc]
            check_taken(bob, case)
        work(bob)
        assert bob.files() == case.done, f"killed before step {step}"
        published = bob.sync(branch=BESIDE, new_branch=True, allow_removals=True)
        assert published.commit is not None
        assert bob.read(published.commit) == case.published, f"killed before step {step}"
        assert found(bob) == {}


def test_a_sync_before_the_pull_continues_publishes_only_the_changes_of_the_user(team: Team) -> None:
    case = CASES["pull"]
    for step in some(range(1, steps_of(team, case) + 1, 2)):
        bob = team.bob()
        team.at(1)
        run_killed(lambda bob=bob: pulled(bob), step, inside=bob.workspace)  # type: ignore[misc]
        published = bob.sync(branch=BESIDE, new_branch=True)
        assert published.commit is not None
        base = FIRST if published.parent == team.commits[0] else SECOND
        assert bob.read(published.commit) == with_mine(base), f"killed before step {step}"
        assert found(bob) == {}
        pulled(bob)  # of the branch that it follows now: what the other pull wrote goes again
        assert bob.files() == with_mine(base) and found(bob) == {}
