"""The lease protocol, T6, L1 to L9, L13 and E1 to E4 of docs/internals/cache-protocol.md, over every interleaving.

A plain model of the file server and of takers, evictors and a sweeper. Each is a little program whose
steps are the requests that it sends, in the order of the code, and one search runs through all orders of
these steps. So it covers

- listings that are acted upon at any later moment, while others continue;
- crashes and cut-off hosts: who makes no further step has crashed, who makes one very late was cut off, or
its
  request was on the way all the time;
- leases that expire at any moment: the holder stops relying on it first (it counts from before it asked
for the
  time), evictors need not respect it from then on, and the holder may come back and renew.

What must hold in every state: whoever relies on a confirmed commit sees that very commit; and if everybody
stopped for good right here, one sweep and one more eviction would leave nothing behind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

TAKERS, EVICTORS = ("t1", "t2"), ("e1", "e2")
Names = frozenset[str]
NONE: Names = frozenset()


class Actor(NamedTuple):
    """step: what it does next. seen: what it keeps of a listing, or of its plan. mine: the incarnation
    that a taker confirmed. number: of its lease's name. relies: on its lease. expired: others need not
    respect that name. lapsed: the name before it had expired when it was renewed. listed: how the first of two
    listings was, "whole" or "spoilt", until the second is made.
    """

    step: str
    seen: Names = NONE
    mine: int = 0
    number: int = 0
    relies: bool = False
    expired: bool = False
    listed: str = ""
    lapsed: bool = False


class World(NamedTuple):
    """visible: the incarnation that can be seen, 0 for none. trash: of each evictor None (no folder), 0
    (an empty one), or the incarnation that lies in it. claims: names in the claims folder."""

    visible: int
    last: int
    trash: tuple[int | None, ...]
    claims: Names
    actors: tuple[Actor, ...]

    def put(self, at: int, actor: Actor) -> World:
        return self._replace(actors=(*self.actors[:at], actor, *self.actors[at + 1 :]))

    def folder(self, evictor: int, content: int | None) -> World:
        return self._replace(trash=(*self.trash[:evictor], content, *self.trash[evictor + 1 :]))

    def plus(self, name: str) -> World:
        return self._replace(claims=self.claims | {name})

    def minus(self, names: Names) -> World:
        return self._replace(claims=self.claims - names)


def listings(
    world: World, at: int, variant: Variant, own: str, decide: Callable[[World, Names], World]
) -> Iterator[World]:
    """T6: two listings are put together, of which the server may spoil one: all names are left out but the actor's own.

    The step `list` is the first of them; a name that only it had counts if it is still there at the second.
    """
    me = world.actors[at]
    if "listings lack names" not in variant:
        yield decide(world, world.claims)
        return
    spoilt = world.claims & {own}
    one = "one listing decides" in variant
    if me.listed == "":
        for found, listed in ((world.claims, "whole"), (spoilt, "spoilt")):
            after = world.put(
                at, me._replace(listed=listed, seen=me.seen | {f"listed {name}" for name in found})
            )
            yield decide(world, found) if one else after
        return
    first = frozenset(name.removeprefix("listed ") for name in me.seen if name.startswith("listed "))
    kept = frozenset(one for one in me.seen if not one.startswith("listed "))
    plain = world.put(at, me._replace(listed="", seen=kept))
    if any(name.startswith("lease-") for name in first - world.claims):
        yield plain
        return
    yield decide(plain, first | world.claims)
    if me.listed == "whole":
        yield decide(plain, first | spoilt)


Variant = frozenset[str]
"""Parts of the protocol that are left out, to see that the check notices."""


def cancel_intent(world: World, evictor: int) -> World:
    """RMDIR of the trash folder; where that works, the intent is removed. Two requests, of which the first
    counts.
    """
    if world.trash[evictor]:
        return world
    return world.folder(evictor, None).minus(frozenset({f"intent-{EVICTORS[evictor]}"}))


def taker(world: World, at: int, variant: Variant) -> Iterator[World]:
    """`Lease.take`, `confirm`, a fill where nothing is there, then `renew` once or `release`."""
    me = world.actors[at]
    name = TAKERS[at] if "leases keep their name" in variant else f"{TAKERS[at]}.{me.number}"
    match me.step:
        case "write":
            lapsed = me.expired and "listings lack names" in variant
            yield world.plus(f"lease-{name}").put(at, me._replace(step="list", expired=False, lapsed=lapsed))
        case "list":
            ignored = "takers ignore intents" in variant

            def void_next(now: World, found: Names) -> World:
                intents = frozenset(one for one in found if one.startswith("intent-"))
                return now.put(at, now.actors[at]._replace(step="void", seen=NONE if ignored else intents))

            yield from listings(world, at, variant, f"lease-{name}", void_next)
        case "void":
            for number, evictor in enumerate(EVICTORS):
                if f"intent-{evictor}" in me.seen:
                    rest = me._replace(seen=me.seen - {f"intent-{evictor}"})
                    yield cancel_intent(world, number).put(at, rest)
                    return
            yield world.put(at, me._replace(step="confirm"))
        case "confirm":
            if me.mine:  # a renewal: it must be what was confirmed
                same = world.visible == me.mine
                step, relies = "use" if same else "release", same and not me.expired
                yield world.put(at, me._replace(step=step, relies=relies))
            elif world.visible:
                relies = not me.expired
                yield world.put(at, me._replace(step="use", mine=world.visible, relies=relies))
            else:
                yield world.put(at, me._replace(step="publish"))
        case "publish":
            if world.visible:
                renews = "ender" in variant and "confirm without renewal" not in variant
                number = me.number + 1 if renews else me.number
                yield world.put(at, me._replace(step="write" if renews else "confirm", number=number))
            elif world.last == 3:
                yield world.put(at, me._replace(step="release"))
            else:
                new = world.last + 1
                published = world._replace(visible=new, last=new)
                yield published.put(at, me._replace(step="record", seen=frozenset({f"entry-{new}"})))
        case "record":
            (entry,) = me.seen
            renews = "ender" in variant and "confirm without renewal" not in variant
            number = me.number + 1 if renews else me.number
            after = me._replace(step="write" if renews else "confirm", number=number, seen=NONE)
            yield world.plus(entry).put(at, after)
        case "use":
            yield world.put(at, me._replace(step="release", relies=False))
            if me.number == 0 and at == 0:  # one of them renews; with both the search takes a minute
                yield world.put(at, me._replace(step="write", number=1))
        case "release":
            names = frozenset(one for one in world.claims if one.startswith(f"lease-{TAKERS[at]}"))
            yield world.minus(names).put(at, Actor("over"))


def time_passes(world: World, at: int) -> Iterator[World]:
    me = world.actors[at]
    taken = me.step != "over" and (me.step, me.number) != ("write", 0)
    if taken and not me.expired:
        yield world.put(at, me._replace(expired=True, relies=False))


def expired(world: World, listed: Names | None = None) -> Names:
    """Names of leases that need not be respected: expired ones, and those that their holder has renewed.

    listed: what a listing shows, by default all names.
    """
    names = world.claims if listed is None else listed
    found = set()
    for name in names:
        if name.startswith("lease-"):
            holder, _, number = name.removeprefix("lease-").partition(".")
            me = world.actors[TAKERS.index(holder)]
            newer = f"lease-{holder}.{int(number or 0) + 1}"
            late = me.lapsed if number and newer in world.claims else me.expired
            if (number and newer in names) or late or me.step == "over":
                found.add(name)
    return frozenset(found)


def evictor(world: World, at: int, variant: Variant) -> Iterator[World]:
    """`take_inventory`, then `_Executor.evict`."""
    number = at - len(TAKERS)
    me, intent = world.actors[at], f"intent-{EVICTORS[number]}"
    entries = frozenset(one for one in world.claims if one.startswith("entry-"))
    match me.step:
        case "plan":
            yield world.put(at, me._replace(step="folder" if world.visible else "over", seen=entries))
        case "folder":
            yield world.folder(number, 0).put(at, me._replace(step="tell"))
        case "tell":
            yield world.plus(intent).put(at, me._replace(step="list"))
        case "list":

            def look(now: World, found: Names) -> World:
                me, dead = now.actors[at], expired(now, found)
                recorded = frozenset(one for one in found if one.startswith("entry-"))
                recorded |= me.seen & now.claims  # what it knew is looked up by its name
                claimed = any(one.startswith("lease-") and one not in dead for one in found)
                other = bool(me.seen) and not me.seen & recorded
                if "evictors do not look" in variant:
                    claimed = other = False
                step = "withdraw" if claimed or other else "rename"
                return now.put(at, me._replace(step=step, seen=recorded | dead))

            yield from listings(world, at, variant, intent, look)
        case "rename":
            if world.visible and world.trash[number] == 0:
                after = world.folder(number, world.visible)._replace(visible=0)
                yield after.put(at, me._replace(step="forget"))
            else:
                yield world.put(at, me._replace(step="withdraw"))
        case "forget":
            yield world.minus(me.seen).put(at, me._replace(step="delete", seen=NONE))
        case "delete" | "withdraw":
            yield world.folder(number, None).put(at, me._replace(step="untell", seen=NONE))
        case "untell":
            yield world.minus(frozenset({intent})).put(at, Actor("over"))


def ender(world: World, at: int) -> Iterator[World]:
    """L13: while the fill is open it notes the leases of one who is silent in it, and ends them at any later time."""
    me = world.actors[at]
    if me.step == "note":
        silent = [TAKERS[one] for one in range(len(TAKERS)) if world.actors[one].step == "publish"]
        if silent and not world.visible:
            names = frozenset(one for one in world.claims if one.startswith(f"lease-{silent[0]}."))
            yield world.put(at, me._replace(step="end", seen=names))
    elif me.step == "end":
        yield world.minus(me.seen).put(at, Actor("over"))


def sweeper(world: World) -> Iterator[World]:
    """Each thing that `Sweeper` may do, at any moment, to anybody however alive."""
    for number, name in enumerate(EVICTORS):
        if f"intent-{name}" in world.claims:
            yield world.folder(number, None).minus(frozenset({f"intent-{name}"}))
    for name in expired(world):
        yield world.minus(frozenset({name}))
    for name in world.claims:
        if name.startswith("entry-") and int(name.removeprefix("entry-")) != world.visible:
            yield world.minus(frozenset({name}))


def successors(world: World, variant: Variant) -> Iterator[World]:
    for at in range(len(TAKERS)):
        yield from taker(world, at, variant)
        yield from time_passes(world, at)
    for at in range(len(TAKERS), len(TAKERS + EVICTORS)):
        yield from evictor(world, at, variant)
    for at in range(len(TAKERS + EVICTORS), len(world.actors)):
        yield from ender(world, at)
    yield from sweeper(world)


def nobody_is_hurt(world: World) -> str | None:
    for me in world.actors:
        if me.relies and world.visible != me.mine:
            return f"somebody relies on incarnation {me.mine}, visible is {world.visible}"
    return None


def nothing_is_left(world: World) -> str | None:
    """If all stop here for good: the leases expire, a sweep ends intents and empties the trash, and one
    evicts.
    """
    return _left(world.visible, world.claims & {f"entry-{world.visible}"})


@functools.cache
def _left(visible: int, claims: Names) -> str | None:
    stopped = tuple(Actor("over") for _ in TAKERS + EVICTORS)
    world = World(visible, visible, (None, None), claims, stopped).put(2, Actor("plan"))
    while world.actors[2].step != "over":
        world = next(evictor(world, 2, frozenset()))
    left = world.visible or world.claims or world.trash != (None, None)
    return f"left behind: {world}" if left else None


def explore(begin: World, variant: Variant, check: Callable[[World], str | None]) -> tuple[int, str | None]:
    """The number of states reached, and what is wrong in the first bad one."""
    seen, waiting = {begin}, [begin]
    while waiting:
        for after in successors(waiting.pop(), variant):
            if after not in seen:
                if (wrong := check(after)) is not None:
                    return len(seen), wrong
                seen.add(after)
                waiting.append(after)
    return len(seen), None


def begin(takers: tuple[str, ...] = TAKERS, evictors: tuple[str, ...] = EVICTORS) -> World:
    actors = [Actor("write" if name in takers else "over") for name in TAKERS]
    actors += [Actor("plan" if name in evictors else "over") for name in EVICTORS]
    return World(1, 1, (None, None), frozenset({"entry-1"}), tuple(actors))


def both(world: World) -> str | None:
    return nobody_is_hurt(world) or nothing_is_left(world)


@pytest.mark.exhaustive
def test_one_taker_and_two_evictors() -> None:
    states, wrong = explore(begin(takers=("t1",)), frozenset(), both)
    assert wrong is None and states > 5_000, (states, wrong)


def test_two_takers_and_one_evictor() -> None:
    states, wrong = explore(begin(evictors=("e1",)), frozenset(), both)
    assert wrong is None and states > 5_000, (states, wrong)


def test_a_listing_that_lacks_names_hurts_nobody() -> None:
    spoilt = frozenset({"listings lack names"})
    states, wrong = explore(begin(takers=("t1",), evictors=("e1",)), spoilt, nobody_is_hurt)
    assert wrong is None and states > 1_000, (states, wrong)
    _, wrong = explore(
        begin(takers=("t1",), evictors=("e1",)), spoilt | {"one listing decides"}, nobody_is_hurt
    )
    assert wrong is not None and "relies on" in wrong


def filling() -> World:
    """A taker that has to fill, an evictor that comes after that, and somebody who takes over from the taker."""
    world = begin(takers=("t1",), evictors=("e1",))._replace(visible=0, claims=NONE)
    return world._replace(actors=(*world.actors[:2], Actor("plan"), Actor("over"), Actor("note")))


def test_who_ends_the_lease_of_a_silent_process_hurts_nobody() -> None:
    states, wrong = explore(filling(), frozenset({"ender"}), nobody_is_hurt)
    assert wrong is None and states > 500, (states, wrong)
    _, wrong = explore(filling(), frozenset({"ender", "confirm without renewal"}), nobody_is_hurt)
    assert wrong is not None and "relies on" in wrong


def test_the_check_notices_when_a_part_of_the_protocol_is_left_out() -> None:
    for part in ("takers ignore intents", "evictors do not look", "leases keep their name"):
        _, wrong = explore(begin(takers=("t1",)), frozenset({part}), nobody_is_hurt)
        assert wrong is not None and "relies on" in wrong, part
