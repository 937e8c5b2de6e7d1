"""Branches as programs move them: against a dict, in races, killed half way, and after 10,000 moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dsv.api.branches import (
    BranchItem,
    BranchPath,
    branches,
    create_branch,
    delete_branch,
    delete_tag,
    protect_branch,
    rename_branch,
    reset_branch,
    restore_branch,
    tag,
)
from dsv.api.context import Context
from dsv.api.log import reflog
from dsv.errors import Conflict, DsvError, IntegrityError, NotFound
from dsv.format import keys
from dsv.format.records import BranchLimits, GcDone, RefEntry
from dsv.repo.repository import Repository
from dsv.stores.base import Bytes, PutResult, StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, BranchName, Rev, TagName, Target
from tests.exhaustive import examples
from tests.kit.people import Person, every_store_is
from tests.kit.repositories import DATASET, commit, condemn, create, packs
from tests.stores.wrapper import Wrapper


class World:
    """A store in memory with a line of four commits on `main`, and somebody outside of any workspace."""

    def __init__(self, home: Path, store: StoreBackend | None = None) -> None:
        self.store = store or MemoryStore()
        self.repository = create(self.store)
        self.commits = [commit(self.repository, {f"f{number}": b"%d" % number}) for number in range(4)]
        home.mkdir(exist_ok=True)
        self.context: Context = Person(home, str(home / "unused")).context(home)

    @property
    def fresh(self) -> Repository:
        return Repository.open(self.store, None)

    def create(self, name: str, at: int) -> BranchItem:
        return create_branch(self.context, path(name), self.at(at))

    def at(self, number: int) -> Target:
        return Target(DATASET, Rev(str(self.commits[number])))

    def heads(self) -> dict[str, CommitId | None]:
        return {str(item.branch): item.commit for item in branches(self.context, DATASET)}


def path(name: str) -> BranchPath:
    return BranchPath(DATASET, BranchName.parse(name))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "home")
    with every_store_is(made.store):
        yield made


# --- against a dict

NAMES = ("a", "b", "team/c", "d.1")


@dataclass
class Model:
    """The expected state: where each branch is, where each deleted one was, all moves, the tags."""

    heads: dict[str, int] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    moves: dict[str, list[int | None]] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)

    def move(self, name: str, to: int | None) -> None:
        if to is None:
            self.gone[name] = self.heads.pop(name)
        else:
            self.heads[name] = to
            self.gone.pop(name, None)
        self.moves.setdefault(name, []).append(to)

    def has_lone_commits(self, name: str) -> bool:
        """In a line of commits a branch has some of its own if it is the furthest."""
        others = [at for other, at in self.heads.items() if other != name] + list(self.tags.values())
        return self.heads[name] > max(others)


class Branches(RuleBasedStateMachine):
    @initialize()
    def make(self) -> None:
        self.folder = TemporaryDirectory(prefix="branches-")
        self.world = World(Path(self.folder.name))
        self.model = Model({"main": 3}, moves={"main": [None, 0, 1, 2, 3]})
        self.kept = every_store_is(self.world.store)
        self.kept.__enter__()

    def teardown(self) -> None:
        if hasattr(self, "kept"):
            self.kept.__exit__(None, None, None)
            self.folder.cleanup()

    def expect(self, done: Callable[[], object], error: type[DsvError] | None) -> None:
        if error is None:
            done()
            return
        with pytest.raises(error):
            done()

    @rule(name=st.sampled_from(NAMES), at=st.integers(0, 3))
    def create(self, name: str, at: int) -> None:
        taken = name in self.model.heads or name in self.model.tags
        self.expect(lambda: self.world.create(name, at), Conflict if taken else None)
        if not taken:
            self.model.move(name, at)

    @rule(name=st.sampled_from((*NAMES, "main")), at=st.integers(0, 3))
    def reset(self, name: str, at: int) -> None:
        missing = name not in self.model.heads
        to = self.world.at(at)
        self.expect(lambda: reset_branch(self.world.context, path(name), to), NotFound if missing else None)
        if not missing and self.model.heads[name] != at:
            self.model.move(name, at)

    @rule(name=st.sampled_from((*NAMES, "main")), force=st.booleans())
    def delete(self, name: str, force: bool) -> None:
        error: type[DsvError] | None = None
        if name not in self.model.heads:
            error = NotFound
        elif name == "main" or (self.model.has_lone_commits(name) and not force):
            error = Conflict
        self.expect(lambda: delete_branch(self.world.context, path(name), force=force), error)
        if error is None:
            self.model.move(name, None)

    @rule(name=st.sampled_from(NAMES))
    def restore(self, name: str) -> None:
        error: type[DsvError] | None = None
        if name in self.model.heads or (name in self.model.gone and name in self.model.tags):
            error = Conflict
        elif name not in self.model.gone:
            error = NotFound
        self.expect(lambda: restore_branch(self.world.context, path(name)), error)
        if error is None:
            self.model.move(name, self.model.gone[name])

    @rule(old=st.sampled_from((*NAMES, "main")), new=st.sampled_from(NAMES))
    def rename(self, old: str, new: str) -> None:
        if old == new:
            return
        error: type[DsvError] | None = None
        if old not in self.model.heads:
            error = NotFound
        elif old == "main" or new in self.model.heads or new in self.model.tags:
            error = Conflict
        name = BranchName.parse(new)
        self.expect(lambda: rename_branch(self.world.context, path(old), name), error)
        if error is None:
            self.model.move(new, self.model.heads[old])
            self.model.move(old, None)

    @rule(name=st.sampled_from(NAMES), at=st.integers(0, 3))
    def tag(self, name: str, at: int) -> None:
        wrong = name in self.model.heads or self.model.tags.get(name, at) != at
        to = self.world.at(at)
        self.expect(lambda: tag(self.world.context, TagName.parse(name), to), Conflict if wrong else None)
        if not wrong:
            self.model.tags[name] = at

    @invariant()
    def the_store_says_the_same(self) -> None:
        if not hasattr(self, "model"):
            return
        commits = self.world.commits
        assert self.world.heads() == {name: commits[at] for name, at in self.model.heads.items()}
        for name, moves in self.model.moves.items():
            with reflog(self.world.context, path(name)) as read:
                found = list(read)
            expected = [None if at is None else commits[at] for at in reversed(moves)]
            assert [move.commit for move in found] == expected
            assert [move.before for move in found] == [*expected[1:], None]
            assert [move.number for move in found] == list(range(len(moves) - 1, -1, -1))
            assert [move.deleted for move in found[:-1]] == [at is None for at in list(reversed(moves))[:-1]]


TestBranches = Branches.TestCase
TestBranches.settings = settings(max_examples=examples(30), stateful_step_count=15, deadline=None)


# --- races


def outcomes(works: list[Callable[[], object]]) -> tuple[list[object], list[DsvError]]:
    """Call all works at the same time; return their results and their errors."""

    def done(work: Callable[[], object]) -> object:
        try:
            return work()
        except DsvError as error:
            return error

    with ThreadPoolExecutor(len(works)) as pool:
        ends = list(pool.map(done, works))
    errors = [end for end in ends if isinstance(end, DsvError)]
    return [end for end in ends if not isinstance(end, DsvError)], errors


def test_of_many_who_make_one_name_one_wins(world: World) -> None:
    won, lost = outcomes([lambda at=at: world.create("x", at % 4) for at in range(8)])  # type: ignore[misc]
    assert len(won) == 1 and all(isinstance(error, Conflict) for error in lost)
    (item,) = won
    assert isinstance(item, BranchItem) and world.heads()["x"] == item.commit


class Meeting(Wrapper):
    """Lets somebody else in just before the next write of a move."""

    def __init__(self, inner: StoreBackend) -> None:
        super().__init__(inner)
        self.meanwhile: Callable[[], object] | None = None

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        if key.startswith("refs/") and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().put_if_absent(key, data)


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[tuple[World, Meeting]]:
    store = Meeting(MemoryStore())
    world = World(tmp_path / "home", store)
    with every_store_is(store):
        yield world, store


@pytest.mark.parametrize("act", ["reset", "delete", "move"])
def test_a_move_of_somebody_else_in_between_wins(meeting: tuple[World, Meeting], act: str) -> None:
    world, store = meeting
    world.create("x", 1)
    works: dict[str, Callable[[], object]] = {
        "reset": lambda: reset_branch(world.context, path("x"), world.at(0)),
        "delete": lambda: delete_branch(world.context, path("x")),
        "move": lambda: rename_branch(world.context, path("x"), BranchName.parse("y")),
    }
    theirs = BranchPath(DATASET, BranchName.parse("x"))
    if act == "move":  # the first write is that of the new name

        def second() -> None:
            store.meanwhile = lambda: reset_branch(world.context, theirs, world.at(2))

        store.meanwhile = second
    else:
        store.meanwhile = lambda: reset_branch(world.context, theirs, world.at(2))
    with pytest.raises(Conflict, match="somebody else has moved branch x"):
        works[act]()
    assert world.heads()["x"] == world.commits[2]
    if act == "move":  # the same call again finishes it
        assert world.heads()["y"] == world.commits[1]
        works[act]()
        assert world.heads() == {"main": world.commits[3], "y": world.commits[2]}


# --- killed half way


class Dying(Wrapper):
    """Fails at its n-th write and ever after, like a process that ended there."""

    left: int | None = None

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        if self.left is not None:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
        return super().put_if_absent(key, data)


def test_a_rename_that_was_killed_at_any_write_is_finished_by_the_same_command(tmp_path: Path) -> None:
    steps = 0
    while True:
        store = Dying(MemoryStore())
        world = World(tmp_path / str(steps), store)
        with every_store_is(store):
            world.create("x", 1)
            store.left = steps
            try:
                rename_branch(world.context, path("x"), BranchName.parse("y"))
            except KeyboardInterrupt:
                store.left = None
                assert set(world.heads().values()) == {world.commits[1], world.commits[3]}
                rename_branch(world.context, path("x"), BranchName.parse("y"))
            else:
                assert steps > 5
                return
            finally:
                store.left = None
            assert world.heads() == {"main": world.commits[3], "y": world.commits[1]}
        steps += 1


# --- gc


def test_no_branch_is_made_or_moved_to_what_gc_is_removing(world: World) -> None:
    world.create("x", 0)
    delete_branch(world.context, path("x"))
    condemn(world.repository, 0, packs(world.repository))
    before = world.heads()
    for work in (
        lambda: world.create("y", 0),
        lambda: reset_branch(world.context, path("main"), world.at(0)),
        lambda: restore_branch(world.context, path("x")),
    ):
        with pytest.raises(Conflict, match="being removed"):
            work()
    assert world.heads() == before
    done = GcDone(0, Nonce.random(), 0)
    world.store.put_if_absent(keys.gc_key(0, "done"), done.encode())
    world.create("y", 0)


def test_a_branch_to_a_commit_that_the_store_has_lost(world: World, tmp_path: Path) -> None:
    """It is listed by somebody who has no local copy, and can be deleted."""
    world.create("x", 0)
    world.store.delete(keys.commit_key(world.commits[0]))
    world.store.delete(keys.locator_key(world.commits[0]))  # it has a copy
    world.context = Person(tmp_path, str(tmp_path / "unused")).context(tmp_path)
    item = next(item for item in branches(world.context, DATASET) if item.branch == "x")
    assert (item.author, item.ahead) == (None, None)
    delete_branch(world.context, path("x"))
    with pytest.raises(IntegrityError):
        restore_branch(world.context, path("x"))


# --- many


def test_the_reflog_of_10_000_moves_reads_what_it_shows(world: World) -> None:
    many = 10_000
    for number in range(5, many):
        entry = RefEntry(
            world.commits[number % 4], False, Nonce.random(), number, "a", "sync", DATASET, MAIN, number
        )
        world.store.put_if_absent(keys.branch_key(DATASET, MAIN, number), entry.encode())
    counting = OpenStore(world.store)
    with every_store_is(counting):
        with reflog(world.context, path("main"), 5) as moves:
            shown = list(moves)
        assert [move.number for move in shown] == list(range(many - 1, many - 6, -1))
        # Format 2, listing, the head and what may follow it, six moves less the head, four commits.
        assert counting.counts.requests <= 2 + 1 + 2 + 5 + 4
        with reflog(world.context, path("main")) as moves:
            every = list(islice(moves, many + 1))
    assert len(every) == many
    assert [move.before for move in every] == [move.commit for move in every[1:]] + [None]


def test_the_list_asks_for_each_branch_once(world: World) -> None:
    for number in range(20):
        world.create(f"b{number}", number % 4)
    list(branches(world.context, DATASET))  # the commits are here from now on
    counting = OpenStore(world.store)
    with every_store_is(counting):
        assert len(branches(world.context, DATASET)) == 21
    # Format 2, one listing; each head and what may follow it.
    assert counting.counts.requests <= 2 + 1 + 2 * 21


def test_a_tag_that_goes_no_longer_keeps_a_branch(world: World) -> None:
    world.create("x", 3)
    reset_branch(world.context, path("main"), world.at(0))
    tag(world.context, TagName.parse("keep"), world.at(3))
    delete_branch(world.context, path("x"))
    restore_branch(world.context, path("x"))
    delete_tag(world.context, DATASET, TagName.parse("keep"), force=True)
    with pytest.raises(Conflict, match="has 3 commits that no other branch and no tag has"):
        delete_branch(world.context, path("x"))


@pytest.mark.parametrize(
    "work",
    [
        lambda world: delete_branch(world.context, path("side"), force=True),
        lambda world: protect_branch(world.context, path("main"), BranchLimits()),
        lambda world: delete_tag(world.context, DATASET, TagName.parse("keep"), force=True),
    ],
)
def test_nothing_is_written_once_the_server_lets_everybody_win(
    world: World, monkeypatch: pytest.MonkeyPatch, work: Callable[[World], object]
) -> None:
    create_branch(world.context, path("side"), world.at(0))
    tag(world.context, TagName.parse("keep"), world.at(0))
    before = {item.key for item in world.store.list("")}
    honest = MemoryStore.put_if_absent

    def overwrite(store: MemoryStore, key: str, data: Bytes) -> PutResult:
        with suppress(NotFound):
            store.delete(key)
        return honest(store, key, data)

    monkeypatch.setattr(MemoryStore, "put_if_absent", overwrite)
    with pytest.raises(IntegrityError, match="no longer lets one writer win"):
        work(world)
    assert {item.key for item in world.store.list("")} == before
