"""Names that can't move, and movers who come late."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dsv.errors import Conflict, IntegrityError, NotFound
from dsv.format import keys
from dsv.format.records import BranchRule, Limits
from dsv.repo.format_log import read_format
from dsv.repo.move_refs import NamesMove, Stamp
from dsv.repo.refs.branches import LostRace, Moved
from dsv.repo.repository import Repository
from dsv.values.ids import Nonce, SessionId
from dsv.values.names import MAIN, DatasetName, TagName
from tests.repo.moving_world import PETS, World, entry, move, run, tag


def test_a_place_with_other_keys_is_refused_before_anything_is_said() -> None:
    key, session = keys.tag_key(PETS, TagName.parse("v1")), SessionId.random()
    for other in (key, keys.branch_key(DatasetName.parse("dogs"), MAIN, 0), keys.gc_condemned_key(0)):
        world = World(True)
        world.new.put_if_absent(other, b"another's")
        mover, _ = world.mover()
        with pytest.raises(Conflict, match=f"memory://new has another {other} than memory://old") as raised:
            mover.check_free()
        assert "dsv store move-names memory://old takes it back" in str(raised.value.hint)
    world = World(True)
    world.new.put_if_absent(key, world.old.get(key))  # as an earlier copy has left it
    world.new.put_if_absent(keys.session_open_key(session), b"deleted since")
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
    killed.refs.place = None  # it does not come to ask
    assert isinstance(move(killed, MAIN, b"killed"), Moved)
    mover.decide()
    mover.finish(ordered=True)
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
    stamp = Stamp("bob", "dsv test", lambda: 1)
    run(NamesMove(world.data, world.new, world.places[other], other, stamp))
    late.finish(ordered=True)
    assert [one.names for one in read_format(world.data)[-2:]] == ["memory://new", other]
    world.check(world.places[other])


def test_what_was_read_in_the_old_place_is_no_base_in_the_new_one() -> None:
    """It writes another name first, and so hears that the names have moved before it moves the branch. What it read was
    a move that came too late for the copy, of somebody who was killed."""
    world = World(True)
    killed, writer, protecting = world.repository(), world.repository(), world.repository()
    mover, _ = world.mover()
    mover.begin()
    mover.copy()
    killed.refs.place = None  # it does not come to ask
    assert isinstance(move(killed, MAIN, b"killed"), Moved)
    limits = Limits(only_merge=True)
    late = BranchRule(limits, Nonce.random(), 1, "ann", "", PETS, MAIN, 0)
    assert killed.refs.add_rule(late, None)
    after, rule = writer.refs.head(PETS, MAIN), protecting.refs.rule(PETS, MAIN)
    assert (after.number, rule) == (2, late)
    mover.decide()
    mover.finish(ordered=True)
    for one in (writer, protecting):
        one.refs.set_tag(PETS, TagName.parse("v2"), tag(b"2"))
        assert one.place.moves == 1
    lost = writer.refs.move(PETS, MAIN, after, entry(b"on top"))
    assert isinstance(lost, LostRace) and lost.winner.number == 1
    newer = replace(late, nonce=Nonce.random(), number=1)
    assert not protecting.refs.add_rule(newer, rule)
    assert protecting.refs.rule(PETS, MAIN) is None
    assert isinstance(writer.refs.move(PETS, MAIN, lost.winner, entry(b"after the move")), Moved)
    assert writer.refs.add_rule(replace(late, nonce=Nonce.random()), None)
