"""Moving the names while others write, over every interleaving of the steps.

A plain model of one branch in an old and a new place. Each process is a little program whose steps are the requests
that it sends, in the order of the code, and one search runs through all orders of them. A process that takes no further
step has been killed; one that takes it very late was slow.

What must hold: a writer that was told that it has won a move finds it in the place where the names are in the end, and
nobody else was told so of the same move; and every move there was made on top of the one before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

Move = tuple[int, int]
"""Who made it, and who made the one before it (-1: there was none)."""
Chain = tuple[Move | None, ...]
NOBODY = -1
LENGTH = 3
Variant = frozenset[str]
"""Parts of the protocol that are left out, to see that the check notices."""


class Process(NamedTuple):
    """kind: `writer` or `mover`. known: the entry of the log that a writer asks for after it has written, or the one by
    which a mover began. after: the move that a writer saw last. listed: what a mover copies, from `at` on."""

    kind: str
    step: str
    known: int = 0
    number: int = 0
    after: int = NOBODY
    listed: Chain = ()
    at: int = 0


class World(NamedTuple):
    """log: entries of the old place's log behind the first: `moving`, then `moved` or `stay`. live: the new place has a
    log. won: who was told to have won which move."""

    log: tuple[str, ...]
    live: bool
    old: Chain
    new: Chain
    processes: tuple[Process, ...]
    won: frozenset[tuple[int, int]]

    def put(self, me: int, process: Process) -> World:
        return self._replace(processes=(*self.processes[:me], process, *self.processes[me + 1 :]))


def with_move(chain: Chain, number: int, move: Move) -> Chain:
    return (*chain[:number], move, *chain[number + 1 :])


def newest(chain: Chain) -> tuple[int, int]:
    """The number that the next move has, and who made the one before it."""
    number = next((one for one, move in enumerate(chain) if move is None), LENGTH)
    last = chain[number - 1] if number else None
    return number, NOBODY if last is None else last[0]


def steps(world: World, me: int, variant: Variant) -> Iterator[World]:
    process = world.processes[me]
    if process.kind == "writer":
        yield from write(world, me, process, variant)
    else:
        yield from move(world, me, process, variant)


def write(world: World, me: int, process: Process, variant: Variant) -> Iterator[World]:
    """It opens the store at any time, and may do everything else much later."""
    match process.step:
        case "open":
            known = len(world.log)
            if world.log[-1:] == ("moving",) and "an entry that says moving is like any other" not in variant:
                known -= 1
            if world.log[-1:] != ("moved",):
                yield world.put(me, process._replace(step="read", known=known))
            elif world.live:
                yield world.put(me, process._replace(step="read here"))
        case "read here":
            number, after = newest(world.new)
            if number < LENGTH:
                yield world.put(me, process._replace(step="put again", number=number, after=after))
        case "read":
            number, after = newest(world.old)
            if number < LENGTH:
                read = process._replace(step="put", number=number, after=after)
                yield world.put(me, read)
                if world.log[-1:] != (
                    "moved",
                ):  # it writes another name first, and so hears of a move that ends now
                    yield world.put(me, read._replace(step="heard"))
        case "heard":
            if world.log[-1:] == ("moved",) and world.live:
                by_number = "what was read in the old place counts in the new one" in variant
                yield world.put(me, process._replace(step="put again" if by_number else "again"))
        case "put":
            won = world.old[process.number] is None
            old = with_move(world.old, process.number, (me, process.after)) if won else world.old
            there = process._replace(step="check" if won else "check lost")
            if "the log is not asked again" in variant:
                there = process._replace(step="won" if won else "over")
            yield told(world._replace(old=old), me, there)
        case "check" | "check lost":
            if len(world.log) == process.known:
                there = process._replace(step="won" if process.step == "check" else "over")
                yield told(world, me, there)
            else:
                yield world.put(me, process._replace(step=process.step.replace("check", "wait")))
        case "wait" | "wait lost":
            if world.log[-1] == "stay":
                step = "won" if process.step == "wait" else "over"
                yield told(world, me, process._replace(step=step))
            elif world.log[-1] == "moved" and world.live:
                yield world.put(me, process._replace(step="again"))
        case "again":
            yield from again(world, me, process, variant)
        case "put again":
            won = world.new[process.number] is None
            new = with_move(world.new, process.number, (me, process.after)) if won else world.new
            yield told(world._replace(new=new), me, process._replace(step="won" if won else "over"))


def again(world: World, me: int, process: Process, variant: Variant) -> Iterator[World]:
    number, after = newest(world.new)
    mine = world.new[process.number]
    if mine is not None and mine[0] == me:
        yield told(world, me, process._replace(step="won"))
    elif (number, after) == (process.number, process.after) or "it follows whatever is there" in variant:
        yield world.put(me, process._replace(step="put again"))
    else:
        yield world.put(me, process._replace(step="over"))


def told(world: World, me: int, process: Process) -> World:
    won = {(me, process.number)} if process.step == "won" else set()
    return world.put(me, process)._replace(won=world.won | won)


def move(world: World, me: int, process: Process, variant: Variant) -> Iterator[World]:
    """It may find what another has begun, and go on with it or take it back."""
    match process.step:
        case "begin":
            log = world.log
            if not log or log[-1] == "stay":
                if len(log) < 4:
                    began = process._replace(step="list", known=len(log))
                    yield world._replace(log=(*log, "moving")).put(me, began)
            elif log[-1] == "moving":
                yield world.put(me, process._replace(step="list", known=len(log) - 1))
                yield world.put(me, process._replace(step="take back", at=len(log)))
            else:
                yield world.put(me, process._replace(step="finish"))
        case "take back":
            yield append(world, process.at, "stay").put(me, process._replace(step="over"))
        case "list":
            yield world.put(me, process._replace(step="copy", listed=world.old, at=0))
        case "copy":
            yield from copy(world, me, process, variant)
        case "decide":
            last = len(world.log) if "it decides whatever is under way" in variant else process.known + 1
            if world.log[-1] == "moving":
                world = append(world, last, "moved")
            decided = world.log[min(last, len(world.log) - 1)] == "moved"
            yield world.put(me, process._replace(step="finish" if decided else "over"))
        case "finish":
            yield world._replace(live=True).put(me, process._replace(step="over"))


def append(world: World, at: int, entry: str) -> World:
    """Whoever is first at a number decides what it says."""
    return world._replace(log=(*world.log, entry)) if len(world.log) == at else world


def copy(world: World, me: int, process: Process, variant: Variant) -> Iterator[World]:
    found = process.listed[process.at] if process.at < LENGTH else None
    if found is None:
        yield world.put(me, process._replace(step="decide"))
        return
    there, on = world.new[process.at], process._replace(at=process.at + 1)
    if there is None:
        yield world._replace(new=with_move(world.new, process.at, found)).put(me, on)
    elif there == found or "the copy goes on where others have gone on" in variant:
        yield world.put(me, on)
    else:
        yield world.put(me, process._replace(step="finish"))  # others have gone on there


def problem(world: World) -> str | None:
    moved = "moved" in world.log
    counts = world.new if moved and world.live else world.old
    for who, number in world.won:
        made = counts[number]
        if made is None or made[0] != who:
            if moved and not world.live and (world.new[number] or (None,))[0] == who:
                continue
            return f"{who} was told to have won move {number}, which is {made}"
    if len({number for _, number in world.won}) < len(world.won):
        return "two were told to have won one move"
    for number in range(1, LENGTH):
        this, before = counts[number], counts[number - 1]
        if this is not None and (before is None or this[1] != before[0]):
            return f"move {number} was not made on top of the one before it"
    return None


def explore(kinds: tuple[Process, ...], variant: Variant = frozenset()) -> tuple[int, str | None]:
    """(how many states there are, what is wrong in one of them)."""
    none: Chain = (None,) * LENGTH
    first = World((), False, none, none, kinds, frozenset())
    seen, todo = {first}, [first]
    while todo:
        world = todo.pop()
        wrong = problem(world)
        if wrong is not None:
            return len(seen), wrong
        for me in range(len(world.processes)):
            for following in steps(world, me, variant):
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
    return len(seen), None


WRITER = Process("writer", "open")
MOVER = Process("mover", "begin")


@pytest.mark.parametrize(
    "kinds",
    [
        (WRITER, WRITER, WRITER, MOVER),
        (WRITER, WRITER, MOVER, MOVER),
        (WRITER, MOVER, MOVER, MOVER),
    ],
    ids=["three writers", "two movers", "three movers"],
)
def test_every_order_of_steps(kinds: tuple[Process, ...]) -> None:
    states, wrong = explore(kinds)
    assert wrong is None
    assert states > 1000


@pytest.mark.parametrize(
    ("left_out", "kinds"),
    [
        ("the log is not asked again", (WRITER, MOVER)),
        ("an entry that says moving is like any other", (WRITER, MOVER)),
        ("it decides whatever is under way", (WRITER, MOVER, MOVER, MOVER)),
        ("what was read in the old place counts in the new one", (WRITER, WRITER, MOVER)),
        ("it follows whatever is there", (WRITER, WRITER, WRITER, MOVER)),
        ("the copy goes on where others have gone on", (WRITER, WRITER, WRITER, MOVER, MOVER)),
    ],
)
def test_the_check_notices_what_is_left_out(left_out: str, kinds: tuple[Process, ...]) -> None:
    _, wrong = explore(kinds, frozenset([left_out]))
    assert wrong is not None
