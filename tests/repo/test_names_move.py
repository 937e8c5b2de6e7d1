"""Names that move: killed at every step, finished or taken back, with writers who opened the store before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace

import pytest

from dsv.errors import Conflict, IntegrityError, NotFound, OutcomeUnknown, Unreachable
from dsv.format import keys
from dsv.format.records import BranchLimits, BranchRule, Feature, FeatureRule
from dsv.repo import move_refs
from dsv.repo.format_log import (
    DATA_ELSEWHERE,
    NAMES_ELSEWHERE,
    NAMES_MOVED,
    PROTECTED_BRANCHES,
    FormatLog,
    read_format,
)
from dsv.repo.move_refs import NamesMove
from dsv.repo.refs.branches import Head
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.values.ids import Nonce, SessionId
from dsv.values.names import MAIN, DatasetName, TagName
from tests.repo.moving_world import PETS, WRITER, World, commit, entry, move, run, tag
from tests.stores.faulty import Crash, Fault, Kind


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
def test_a_lost_write_of_a_store_opened_before_the_move_is_not_acknowledged(kind: Kind, split: bool) -> None:
    """It writes while the mover stands at any of its steps."""
    ends = set()
    for number in range(1, calls_of_a_move(split) + 1):
        world = World(split)
        before = world.repository()
        newest = before.refs.newest(PETS, MAIN)
        with suppress(Crash):
            run(world.mover({number: Fault(kind)})[0])
        try:
            moved = before.refs.move(PETS, MAIN, newest, entry(b"late"))
            assert isinstance(moved, Head)
        except OutcomeUnknown as error:
            assert "bob began to move the names of memory://data to memory://new" in error.message
            moved = None
        ends.add(moved is None)
        run(world.mover()[0])
        there = world.repository()
        if moved is not None:
            assert there.refs.head(PETS, MAIN).entry == moved.entry
        elif there.refs.head(PETS, MAIN).commit != commit(b"late"):
            assert isinstance(move(there, MAIN, b"late"), Head)
        assert there.refs.head(PETS, MAIN).number == 2
        world.check(world.new)
    assert ends == {False, True}


@pytest.mark.parametrize("split", [False, True], ids=["from the data", "from another place"])
def test_nothing_is_written_while_names_move(split: bool) -> None:
    world = World(split)
    world.mover()[0].begin()
    before = {key: [item.key for item in place.list("")] for key, place in world.places.items()}
    during = world.repository()
    newest = during.refs.head(PETS, MAIN)
    feature = Feature(PROTECTED_BRANCHES, FeatureRule.READ_ONLY)
    writes: list[Callable[[], object]] = [
        lambda: during.refs.move(PETS, MAIN, newest, entry(b"late")),
        lambda: during.refs.set_tag(PETS, TagName.parse("late"), tag(b"late")),
        lambda: during.refs.add_rule(
            BranchRule.of(BranchLimits(), Nonce.random(), 1, "ann", "", PETS, MAIN, 0)
        ),
        lambda: during.add_feature(feature, WRITER),
        lambda: Session.open(during, WRITER),
    ]
    for write in writes:
        with pytest.raises(Conflict, match="bob is moving the names of this store") as raised:
            write()
        assert "dsv store move-names memory://new finishes it" in str(raised.value.hint)
        assert f"dsv store move-names {world.old.url} takes it back" in str(raised.value.hint)
    assert {key: [item.key for item in place.list("")] for key, place in world.places.items()} == before
    world.mover()[0].take_back()
    world.check(world.old)


def test_a_move_is_not_decided_if_somebody_wrote_meanwhile() -> None:
    world = World()
    writer = world.repository()
    mover, _ = world.mover()
    mover.begin()
    mover.copy()
    mover.check_unchanged()
    with pytest.raises(OutcomeUnknown):
        move(writer, MAIN, b"late")
    with pytest.raises(Conflict, match=f"wrote {keys.branch_key(PETS, MAIN, 2)} to memory://data while"):
        mover.check_unchanged()
    mover.take_back()
    assert world.repository().refs.head(PETS, MAIN).commit == commit(b"late")
    run(world.mover()[0])
    world.check(world.new)


def test_what_is_written_until_the_move_is_decided_is_copied() -> None:
    world = World()
    writer = world.repository()
    mover, _ = world.mover()
    mover.begin()
    mover.copy()
    mover.check_unchanged()
    mover.decide()
    with pytest.raises(OutcomeUnknown):
        move(writer, MAIN, b"late")
    mover.finish(ordered=True)
    assert world.repository().refs.head(PETS, MAIN).commit == commit(b"late")
    world.check(world.new)


@pytest.mark.parametrize("again", ["memory://new", "memory://other"], ids=["to the same place", "elsewhere"])
@pytest.mark.parametrize("split", [False, True], ids=["from the data", "from another place"])
def test_a_mover_does_not_decide_a_move_that_was_begun_anew(split: bool, again: str) -> None:
    """It has copied nothing that was written after its own was taken back."""
    world = World(split)
    late, _ = world.mover()
    late.begin()
    late.copy()
    world.mover()[0].take_back()
    assert isinstance(move(world.repository(), MAIN, b"between"), Head)
    anew, _ = world.mover(target=again)
    anew.begin()
    with pytest.raises(Conflict, match="bob cancelled the move of the names to memory://new"):
        late.decide()
    assert world.repository().refs.head(PETS, MAIN).commit == commit(b"between")
    anew.copy()
    anew.decide()
    anew.finish(ordered=True)
    with pytest.raises(Conflict, match="bob cancelled the move of the names to memory://new"):
        late.decide()
    assert world.repository().refs.head(PETS, MAIN).commit == commit(b"between")
    world.check(world.places[again])


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


def test_a_late_copy_adds_nothing_that_does_not_follow() -> None:
    """An interrupted mover continues when the names are in use in their new place."""
    world = World()
    slow, _ = world.mover()
    slow.begin()
    killed = world.repository()
    killed.refs.layout = None  # it does not look for the move
    fast, _ = world.mover()
    fast.begin()
    fast.copy()
    fast.decide()
    fast.finish(ordered=True)
    for seed in (b"killed", b"killed too"):
        assert isinstance(killed.refs.move(PETS, MAIN, killed.refs.newest(PETS, MAIN), entry(seed)), Head)
    mine = move(world.repository(), MAIN, b"mine")
    assert isinstance(mine, Head) and mine.number == 2
    slow.copy()
    head = world.repository().refs.head(PETS, MAIN)
    assert (head.number, head.commit) == (2, commit(b"mine"))


def test_features_and_their_rules_come_along() -> None:
    world = World()
    before = world.repository()
    repository = world.repository()
    feature = Feature(PROTECTED_BRANCHES, FeatureRule.READ_ONLY)
    assert repository.add_feature(feature, WRITER)
    run(world.mover()[0])
    made = FormatLog(tuple(read_format(world.new)))
    assert feature in made.entries[-1].features and made.has(DATA_ELSEWHERE)
    assert not made.has(NAMES_MOVED) and made.entries[-1].names is None
    other = Feature("unheard-of", FeatureRule.IGNORE)
    with pytest.raises(OutcomeUnknown):  # it opened the store before
        before.add_feature(other, WRITER)
    data = FormatLog(tuple(read_format(world.data)))
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


def test_a_place_with_other_keys_is_refused_before_anything_is_said() -> None:
    key, session = keys.tag_key(PETS, TagName.parse("v1")), SessionId.random()
    for other in (key, keys.branch_key(DatasetName.parse("dogs"), MAIN, 0), keys.gc_key(0, "condemned")):
        world = World(True)
        world.new.put_if_absent(other, b"another's")
        mover, _ = world.mover()
        with pytest.raises(Conflict, match=f"memory://new has another {other} than memory://old") as raised:
            mover.check_free()
        assert "dsv store move-names memory://old takes it back" in str(raised.value.hint)
    world = World(True)
    world.new.put_if_absent(key, world.old.get(key))  # as an earlier copy has left it
    world.new.put_if_absent(keys.session_key(session, "open"), b"deleted since")
    mover, _ = world.mover()
    mover.check_free()
    run(mover)
    with pytest.raises(Conflict, match="has the names of a store already"):
        world.mover()[0].check_free()
    world.check(world.new)


def test_a_mover_takes_back_only_what_it_has_begun_itself() -> None:
    world = World(True)
    one, two = world.mover()[0], world.mover()[0]
    assert one.begin()
    assert not two.begin()
    one.take_back()
    anew, _ = world.mover(target="memory://other")
    assert anew.begin()
    one.take_back()
    assert read_format(world.old)[-1].names == "memory://other"
    run(anew)
    world.check(world.places["memory://other"])


def test_a_tag_that_is_gone_is_not_left_behind() -> None:
    world = World(True)
    mover, _ = world.mover()
    mover.begin()
    key, get = keys.tag_key(PETS, TagName.parse("v1")), world.old.get

    def gone(asked: str, *limit: int) -> bytes:
        if asked == key:
            raise NotFound(f"there is no {key}", subject=key)
        return get(asked, *limit)

    world.old.get = gone  # type: ignore[method-assign]
    with pytest.raises(IntegrityError, match=f"{key} is gone from memory://old"):
        mover.copy()


def test_what_is_asked_ahead_of_a_place_that_was_left_is_asked_again() -> None:
    """A move that came too late for the copy is still listed there."""
    world = World(True)
    killed = world.repository()
    mover, _ = world.mover()
    mover.begin()
    mover.copy()
    mover.decide()
    mover.finish(ordered=True)
    killed.refs.layout = None  # it does not look for the move
    assert isinstance(move(killed, MAIN, b"killed"), Head)
    repository = Repository.open(world.opened(), None, ahead=lambda refs: refs.expect(PETS, MAIN))
    assert repository.refs.head(PETS, MAIN).number == 1


def test_who_finishes_late_does_not_lead_back_to_a_place_that_was_left() -> None:
    world = World(True)
    late, _ = world.mover()
    late.begin()
    late.copy()
    late.decide()
    world.mover()[0].finish(ordered=True)
    other = "memory://other"
    run(NamesMove(world.data, world.new, world.places[other], other, WRITER, lambda: 1))
    late.finish(ordered=True)
    assert [one.names for one in read_format(world.data)[-2:]] == ["memory://new", other]
    world.check(world.places[other])


@pytest.mark.parametrize("split", [False, True], ids=["from the data", "from another place"])
def test_claims_move_with_the_names(split: bool) -> None:
    world, claims = World(split), [keys.once_key("ab" * 32, number) for number in range(12)]
    for claim in claims:
        world.old.put_if_absent(claim, claim.encode())
    run(world.mover()[0])
    assert {claim: world.new.get(claim).decode() for claim in claims} == dict(
        zip(claims, claims, strict=True)
    )
