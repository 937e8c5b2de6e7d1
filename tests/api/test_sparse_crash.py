"""Commands of a sparse workspace that are killed at every step, and what they cost in a large dataset."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dsv.api.checkout import pull
from dsv.api.clone import Differing, clone
from dsv.api.sparse import sparse_add, sparse_remove
from dsv.api.status import status
from dsv.errors import Conflict, NotFound
from dsv.repo.repository import Repository
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.values.names import Target
from tests.api.test_edits_at_scale import large, segments
from tests.exhaustive import numbers
from tests.killing import run_killed
from tests.kit.people import Files, Person, every_store_is

FILES: Files = {
    "train/a": b"a", "train/deep/b": b"b", "val/c": b"c", "val/deep/d": b"d", "val/link@": b"c", "val/hollow": None,
    "top": b"t",
}  # fmt: skip
TRAIN = {name: data for name, data in FILES.items() if name.startswith("train")}
VAL = {name: data for name, data in FILES.items() if name.startswith("val")}
Work = Callable[[Person], object]


class Team:
    """A store with one commit, and a clone of a part of it, both copied anew for every step."""

    def __init__(self, home: Path) -> None:
        self.home = home
        ann = Person(home / "ann", str(home / "store"))
        ann.init()
        ann.write(FILES)
        self.first = ann.sync().commit
        self.number = 0

    def bob(self, *only: str) -> Person:
        """Somebody new, with a clone of this part, or none yet."""
        self.number += 1
        home = self.home / f"bob-{self.number}"
        shutil.copytree(self.home / "store", home / "store", symlinks=True)
        bob = Person(home, str(home / "store"), "bob")
        if only:
            clone_part(bob, *only)
        return bob


def clone_part(bob: Person, *only: str) -> None:
    clone(bob.context(bob.home), Target.parse("scans"), bob.workspace, only=only)


@pytest.fixture
def team(tmp_path: Path) -> Team:
    return Team(tmp_path)


def killed_everywhere(make: Callable[[], Person], work: Work) -> Iterator[Person]:
    """The work, killed before each of its steps; and in the end done."""
    for step in numbers(every=11):
        bob = make()
        if run_killed(lambda bob=bob: work(bob), step, inside=bob.workspace) < step:  # type: ignore[misc]
            return
        yield bob


def nothing_is_removed(bob: Person) -> None:
    """Neither status nor sync takes anything for changed."""
    assert status(bob.context()).differences.removed == []
    done = bob.sync()
    assert done.commit is not None and bob.read(done.commit) == FILES
    assert not done.any_change


def test_a_clone_of_a_part(team: Team) -> None:
    for bob in killed_everywhere(team.bob, lambda bob: clone_part(bob, "train")):
        with suppress(Conflict):  # it was done
            clone_part(bob, "train")
        assert bob.files() == TRAIN
        nothing_is_removed(bob)


@pytest.mark.parametrize("differing", list(Differing))
def test_a_clone_into_a_folder_that_has_files(team: Team, differing: Differing) -> None:
    """Files that were there are lost only by consent, and the same call finishes it."""
    there: Files = {"train/a": b"a", "val/deep/d": b"d", "val/link@": b"c"}
    if differing is not Differing.REFUSE:
        there |= {"top": b"mine", "notes/n": b"n"}
    kept = {**there, "top": FILES["top"]} if differing is Differing.OVERWRITE else there

    def make() -> Person:
        bob = team.bob()
        bob.write(there)
        return bob

    def work(bob: Person) -> None:
        clone(bob.context(bob.home), Target.parse("scans"), bob.workspace, differing=differing)

    for bob in killed_everywhere(make, work):
        now = bob.files()
        assert all(now[name] in (data, kept[name]) for name, data in there.items())
        with suppress(Conflict):  # it was done
            work(bob)
        assert bob.files() == {**FILES, **kept}
        found = status(bob.context()).differences
        mine = [] if differing is Differing.REFUSE else [b"notes/n"]
        assert (found.added, found.removed) == (mine, [])
        assert found.changed == ([b"top"] if differing is Differing.KEEP else [])


def test_adding(team: Team) -> None:
    for bob in killed_everywhere(lambda: team.bob("train"), lambda bob: sparse_add(bob.context(), ["val"])):
        nothing_is_removed(bob)
        sparse_add(bob.context(), ["val"])
        assert bob.files() == {**TRAIN, **VAL}
        nothing_is_removed(bob)


def test_adding_that_is_never_finished_and_then_pulled(team: Team) -> None:
    """Files that were added before the kill follow the branch, and are not reverted."""
    for bob in killed_everywhere(lambda: team.bob("train"), lambda bob: sparse_add(bob.context(), ["val"])):
        cy = Person(bob.home / "cy", bob.store, "cy")
        clone(cy.context(bob.home), Target.parse("scans"), cy.workspace)
        cy.write({"val/c": b"C", "train/a": b"A"})
        cy.sync()
        pull(bob.context())
        done = bob.sync()
        assert done.commit is not None and bob.read(done.commit) == cy.files()
        assert (bob.workspace / "train/a").read_bytes() == b"A"


@pytest.mark.parametrize("whole", [False, True])
def test_removing(team: Team, whole: bool) -> None:
    def remove(bob: Person) -> None:
        sparse_remove(bob.context(), ["val"])

    left = {name: data for name, data in FILES.items() if name not in VAL} if whole else TRAIN
    for bob in killed_everywhere(lambda: team.bob("**") if whole else team.bob("train", "val"), remove):
        nothing_is_removed(bob)
        with suppress(NotFound):  # it was done
            remove(bob)
        assert bob.files() == left
        nothing_is_removed(bob)


def test_a_sync_of_a_part(team: Team) -> None:
    def make() -> Person:
        bob = team.bob("train")
        bob.write({"train/a": b"A", "val/c": b"C", "new": b"n"})
        (bob.workspace / "train/deep/b").unlink()
        (bob.workspace / "train/deep").rmdir()
        return bob

    now = {**FILES, "train/a": b"A", "val/c": b"C", "new": b"n"}
    del now["train/deep/b"]
    for bob in killed_everywhere(make, lambda bob: bob.sync()):
        done = bob.sync()
        assert done.commit is not None and bob.read(done.commit) == now
        assert status(bob.context()).is_clean


def test_a_pull_into_a_part(team: Team) -> None:
    """Nothing that was written is taken for the user's change, or turned back; nothing else comes."""

    def make() -> Person:
        bob = team.bob("train", "val/deep")
        sparse_remove(bob.context(), ["val"])
        bob.write({"val/c": b"c", "mine": b"m"})  # here as in the base, and of the user's own
        cy = Person(bob.home / "cy", bob.store, "cy")
        clone(cy.context(bob.home), Target.parse("scans"), cy.workspace)
        (cy.workspace / "train/deep/b").unlink()
        (cy.workspace / "train/deep").rmdir()
        cy.write({"train/a": b"A", "train/deep": b"a file", "val/c": b"C", "val/new": b"n", "top": b"T"})
        cy.sync()
        return bob

    here = {"train/a": b"A", "train/deep": b"a file", "val/c": b"C", "mine": b"m"}
    for bob in killed_everywhere(make, lambda bob: pull(bob.context())):
        found = status(bob.context()).differences
        assert (found.added, len(found)) == ([b"mine"], 1)
        with suppress(Conflict):
            bob.sync()
        pull(bob.context())
        assert bob.files() == here
        done = bob.sync()
        now = bob.read(done.commit)  # type: ignore[arg-type]
        assert now == {
            **here,
            "val/deep/d": b"d",
            "val/link@": b"c",
            "val/hollow": None,
            "val/new": b"n",
            "top": b"T",
        }


def test_the_cost_is_that_of_the_part(tmp_path: Path) -> None:
    """Of a large dataset, only the segments of the part are read, and rewritten by a sync."""
    store = OpenStore(MemoryStore())
    with every_store_is(store):
        maker = Person(tmp_path / "maker", "/nowhere")
        maker.init()
        large(Repository.open(store, None), 60_000)
        assert segments(store) > 30
        bob = Person(tmp_path / "bob", "/nowhere", "bob")
        bob.home.mkdir()
        before = store.counts
        clone_part(bob, "d0007")
        spent = store.counts - before
        # The commit with its locator, the node above the segments, and the few segments that the folder lies in.
        assert len(bob.files()) == 1000 and spent.ranges <= 6, spent
        before = store.counts
        bob.write({"d0007/new": b"n", "elsewhere": b"e"})
        (bob.workspace / "d0007/f0007003.png").unlink()
        assert bob.sync().any_change
        spent = store.counts - before
        assert spent.ranges <= 3 and spent.requests <= 40, spent
        before = store.counts
        assert status(bob.context()).is_clean
        assert store.counts == before  # local copies show what is outside of the patterns
        sparse_add(bob.context(), ["d0011/f0011???.png"])
        spent = store.counts - before
        assert len(bob.files()) == 2001 and spent.ranges <= 4, spent
        before = store.counts
        sparse_remove(bob.context(), ["d0011"])
        spent = store.counts - before
        assert len(bob.files()) == 1001 and spent.ranges <= 1, spent
