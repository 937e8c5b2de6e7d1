"""Names that move: killed at every step, finished or taken back, with writers who opened the store before."""

from __future__ import annotations

import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from dsv.errors import Conflict, OutcomeUnknown, Unreachable
from dsv.format import keys
from dsv.format.records import Feature, FeatureRule, GcCondemned
from dsv.repo import move_refs, refs_location
from dsv.repo.format_log import (
    DATA_ELSEWHERE,
    NAMES_ELSEWHERE,
    NAMES_MOVED,
    PROTECTED_BRANCHES,
    Format,
    read_format,
)
from dsv.repo.refs.branches import LostRace, Moved
from dsv.repo.session import Session
from dsv.store.base import Put
from dsv.store.faulty import Crash, Fault, Kind
from dsv.values.ids import Nonce
from dsv.values.names import MAIN, TagName
from tests.repo.moving_world import PETS, WRITER, World, commit, entry, move, run, tag


def calls_of_a_move(split: bool) -> int:
    mover, counting = World(split).mover()
    run(mover)
    return counting.calls


KILLS = [Kind.CRASH_BEFORE, Kind.CRASH_AFTER]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_refs, "time", SimpleNamespace(sleep=lambda _: None))


@pytest.mark.parametrize("split", [False, True], ids=["from the data", "from another place"])
@pytest.mark.parametrize("kind", KILLS)
def test_a_move_that_is_killed_at_any_call_is_finished_by_the_same_call(kind: Kind, split: bool) -> None:
    calls = calls_of_a_move(split)
    assert calls > 20
    for number in range(1, calls + 1):
        world = World(split)
        mover, _ = world.mover({number: Fault(kind)})
        with suppress(Crash):
            run(mover)
        with suppress(Unreachable):  # decided, and the new place is not complete
            assert world.repository().refs.head(PETS, MAIN).number == 1
        run(world.mover()[0])
        world.check(world.new)


@pytest.mark.parametrize("split", [False, True], ids=["from the data", "from another place"])
@pytest.mark.parametrize("kind", KILLS)
def test_a_move_that_was_killed_is_taken_back_unless_it_is_decided(kind: Kind, split: bool) -> None:
    taken_back = 0
    for number in range(1, calls_of_a_move(split) + 1):
        world = World(split)
        with suppress(Crash):
            run(world.mover({number: Fault(kind)})[0])
        try:
            world.mover()[0].take_back()
        except Conflict:
            run(world.mover()[0])
            world.check(world.new)
            continue
        taken_back += 1
        world.check(world.old)
        run(world.mover()[0])  # and it may be begun again, with more to copy than before
        world.check(world.new)
    assert taken_back > 10


@pytest.mark.parametrize("split", [False, True], ids=["from the data", "from another place"])
@pytest.mark.parametrize("kind", KILLS)
def test_who_opened_the_store_before_the_move_follows(
    kind: Kind, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes while the mover stands at any of its steps; while it waits, somebody goes on with the move."""
    followed = 0
    for number in range(1, calls_of_a_move(split) + 1):
        world = World(split)
        before = world.repository()
        newest = before.refs.newest(PETS, MAIN)
        with suppress(Crash):
            run(world.mover({number: Fault(kind)})[0])
        waits = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _, of=world: run(of.mover()[0]))
        monkeypatch.setattr(refs_location, "time", waits)
        moved = before.refs.move(PETS, MAIN, newest, entry(b"late"))
        assert isinstance(moved, Moved)
        value = before.refs.set_tag(PETS, TagName.parse("late"), tag(b"late"))
        run(world.mover()[0])
        followed += before.place.moves
        there = world.repository()
        assert there.refs.head(PETS, MAIN).entry == moved.head.entry
        assert there.refs.head(PETS, MAIN).number == 2
        assert there.refs.tag(PETS, TagName.parse("late")) == value
        world.check(world.new)
    assert followed > 5


@pytest.mark.parametrize("split", [False, True], ids=["from the data", "from another place"])
@pytest.mark.parametrize("moved", [False, True], ids=["taken back", "moved"])
def test_who_opened_the_store_while_names_were_moving_waits_for_the_decision(
    split: bool, moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it writes may come too late for the copy. It can read all the while."""
    world = World(split)
    mover, _ = world.mover()
    mover.begin()
    mover.copy()
    during = world.repository()
    newest = during.refs.head(PETS, MAIN)
    waited: list[float] = []

    def end(seconds: float) -> None:
        waited.append(seconds)
        if moved:
            mover.decide()
            mover.finish(ordered=True)
        else:
            world.mover()[0].take_back()

    monkeypatch.setattr(refs_location, "time", SimpleNamespace(monotonic=time.monotonic, sleep=end))
    value = during.refs.set_tag(PETS, TagName.parse("late"), tag(b"late"))
    assert len(waited) == 1
    assert isinstance(during.refs.move(PETS, MAIN, newest, entry(b"late")), Moved)
    there = world.repository()
    assert there.refs.tag(PETS, TagName.parse("late")) == value
    assert (there.refs.head(PETS, MAIN).number, there.refs.head(PETS, MAIN).commit) == (2, commit(b"late"))
    world.check(world.new if moved else world.old)


@pytest.mark.parametrize("again", ["memory://new", "memory://other"], ids=["to the same place", "elsewhere"])
@pytest.mark.parametrize("split", [False, True], ids=["from the data", "from another place"])
def test_a_mover_does_not_decide_a_move_that_was_begun_anew(split: bool, again: str) -> None:
    """It has copied nothing that was written after its own was taken back."""
    world = World(split)
    late, _ = world.mover()
    late.begin()
    late.copy()
    world.mover()[0].take_back()
    assert isinstance(move(world.repository(), MAIN, b"between"), Moved)
    anew, _ = world.mover(target=again)
    anew.begin()
    with pytest.raises(Conflict, match="bob has taken back that the names move to memory://new"):
        late.decide()
    assert world.repository().refs.head(PETS, MAIN).commit == commit(b"between")
    anew.copy()
    anew.decide()
    anew.finish(ordered=True)
    with pytest.raises(Conflict, match="bob has taken back that the names move to memory://new"):
        late.decide()
    assert world.repository().refs.head(PETS, MAIN).commit == commit(b"between")
    world.check(world.places[again])


def test_a_writer_that_waits_in_vain_says_what_to_do() -> None:
    world = World()
    before = world.repository()
    newest = before.refs.newest(PETS, MAIN)
    world.mover()[0].begin()
    before.place._patience = 0.0
    with pytest.raises(OutcomeUnknown) as raised:
        before.refs.move(PETS, MAIN, newest, entry(b"late"))
    assert "dsv store move-names memory://new finishes it" in str(raised.value.hint)
    assert "memory://data takes it back" in str(raised.value.hint)
    world.mover()[0].take_back()
    head = world.repository().refs.head(PETS, MAIN)  # it stays where it was written
    assert (head.number, head.commit) == (2, commit(b"late"))


def test_of_two_moves_to_different_places_one_wins() -> None:
    world = World()
    one, _ = world.mover()
    other, _ = world.mover(target="memory://other")
    one.begin()
    with pytest.raises(Conflict, match="memory://new already"):
        run(other)
    run(one)
    with pytest.raises(Conflict, match="memory://new already"):
        run(other)
    assert read_format(world.places["memory://other"]) == []
    world.check(world.new)


def test_a_move_built_on_one_that_was_not_carried_over_is_lost() -> None:
    """Somebody was killed after a move that came too late for the copy: what follows it does not get there either."""
    world = World()
    before, killed = world.repository(), world.repository()
    mover, _ = world.mover()
    mover.begin()
    mover.copy()
    killed.refs.place = None  # it does not come to ask
    newest = killed.refs.newest(PETS, MAIN)
    assert isinstance(killed.refs.move(PETS, MAIN, newest, entry(b"killed")), Moved)
    seen = before.refs.newest(PETS, MAIN)
    assert seen is not None and seen.commit == commit(b"killed")
    mover.decide()
    mover.finish(ordered=True)
    lost = before.refs.move(PETS, MAIN, seen, entry(b"on top"))
    assert isinstance(lost, LostRace) and lost.winner.number == 1
    world.check(world.new)


def test_a_late_copy_adds_nothing_that_does_not_follow() -> None:
    """A mover that was cut off goes on when the names are in use in their new place."""
    world = World()
    slow, _ = world.mover()
    slow.begin()
    killed = world.repository()
    killed.refs.place = None
    fast, _ = world.mover()
    fast.begin()
    fast.copy()
    for seed in (b"killed", b"killed too"):
        assert isinstance(killed.refs.move(PETS, MAIN, killed.refs.newest(PETS, MAIN), entry(seed)), Moved)
    fast.decide()
    fast.finish(ordered=True)
    mine = move(world.repository(), MAIN, b"mine")
    assert isinstance(mine, Moved) and mine.head.number == 2
    slow.copy()
    head = world.repository().refs.head(PETS, MAIN)
    assert (head.number, head.commit) == (2, commit(b"mine"))


def test_a_session_of_before_is_opened_in_the_new_place() -> None:
    """So that a gc there knows of it; a gc that began there before that ends it."""
    for gc_began in (False, True):
        world = World()
        before = world.repository()
        newest = before.refs.newest(PETS, MAIN)
        with Session.open(before, WRITER) as session:
            session.declare(commit(b"late"))
            for key in (keys.session_open_key(session.id), keys.session_verdict_key(session.id)):
                world.old.delete(key)  # as if the copy had not seen them
            run(world.mover()[0])
            if gc_began:
                epoch = GcCondemned(0, (), Nonce.random(), 1, "gc")
                assert world.new.put_if_absent(keys.gc_condemned_key(0), epoch.encode()) is Put.WON
                with pytest.raises(Conflict, match="gc began there"):
                    before.refs.move(PETS, MAIN, newest, entry(b"late"))
                assert world.repository().refs.head(PETS, MAIN).number == 1
                continue
            assert isinstance(before.refs.move(PETS, MAIN, newest, entry(b"late")), Moved)
        there = {item.key for item in world.new.list(keys.session_prefix(session.id))}
        assert {keys.session_open_key(session.id), keys.session_verdict_key(session.id)} <= there


def test_features_and_their_rules_come_along() -> None:
    world = World()
    before = world.repository()
    repository = world.repository()
    feature = Feature(PROTECTED_BRANCHES, FeatureRule.READ_ONLY)
    assert repository.add_feature(feature, author="ann", tool="dsv test")
    run(world.mover()[0])
    made = Format(tuple(read_format(world.new)))
    assert feature in made.entries[-1].features and made.has(DATA_ELSEWHERE)
    assert not made.has(NAMES_MOVED) and made.entries[-1].names is None
    other = Feature("unheard-of", FeatureRule.IGNORE)
    assert before.add_feature(other, author="ann", tool="dsv test")  # it has not heard of the move yet
    assert other in read_format(world.new)[-1].features
    data = Format(tuple(read_format(world.data)))
    assert data.has(NAMES_ELSEWHERE) and data.entries[-1].names == "memory://new"


def test_moves_that_a_listing_has_missed_are_copied_too() -> None:
    """One that is made while it is listed may be in the listing without the one before it."""
    world = World()
    repository = world.repository()
    for seed in (b"3", b"4", b"5"):
        move(repository, MAIN, seed)
    listed, missed = world.old.list, keys.branch_key(PETS, MAIN, 3)
    world.old.list = lambda *of: (item for item in listed(*of) if item.key != missed)  # type: ignore[method-assign]
    run(world.mover()[0])
    assert [one.commit for one in world.repository().refs.history(world.repository().refs.head(PETS, MAIN))][:3] == [
        commit(b"5"), commit(b"4"), commit(b"3"),
    ]  # fmt: skip
