"""The fill protocol, F1 to F10 and W1 to W7 of docs/internals/cache-protocol.md, over every interleaving of its steps.

A plain model of the file server and of processes that fill one commit of one part. Each is a little program whose
steps are the requests that it sends, in the order of the code, and one search runs through all orders of these steps.
A process that takes no further step has crashed; one that takes it very late was cut off, or its request was on the
way all the time. Anybody may be taken for dead at any moment, and the commit may be evicted, or the fill given up, at
any moment too.

What must hold: a visible commit has every file, whole; and nothing in it changes while it is visible, not even a file
for an equal one. And no process that has filled a commit finds another's in the way and takes it for a foreign one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

Variant = frozenset[str]
"""Parts of the protocol that are left out, to see that the check notices."""


class Fill(NamedTuple):
    """One fill and its tree.

    place: `fill`, `visible`, `dead` (given up), `trash` or `gone`. cleared: its claims can no longer be reached.
    files: the inode under each name, 0 for none. claims: the owner of each generation. done: generations.
    drafts: inodes that lie in each generation's private folder; None where a later one removed it.
    """

    place: str
    cleared: bool
    files: tuple[int, ...]
    claims: tuple[int, ...]
    done: frozenset[int]
    drafts: tuple[int | None, ...]


class Worker(NamedTuple):
    """fill, generation: what it works on. at: the file. inode: what it writes. check: it looks before it creates.

    nothing: it saw after its claim that the part was done. `failed` is a step that nobody should come to.
    """

    step: str = "look"
    fill: int = -1
    generation: int = 0
    at: int = 0
    inode: int = 0
    check: bool = False
    nothing: bool = False


class World(NamedTuple):
    """home: the fill that can be joined, -1 for none. whole: inodes with all their bytes. last: inode.

    limit: of fills. generations: the most that there are of each part. files: in the commit.
    """

    home: int
    fills: tuple[Fill, ...]
    workers: tuple[Worker, ...]
    whole: frozenset[int]
    last: int
    limit: int
    generations: int
    files: int

    def put(self, me: int, worker: Worker) -> World:
        return self._replace(workers=(*self.workers[:me], worker, *self.workers[me + 1 :]))

    def change(self, number: int, fill: Fill) -> World:
        return self._replace(fills=(*self.fills[:number], fill, *self.fills[number + 1 :]))

    @property
    def visible(self) -> int:
        return next((number for number, fill in enumerate(self.fills) if fill.place == "visible"), -1)


def with_file(fill: Fill, at: int, inode: int) -> Fill:
    return fill._replace(files=(*fill.files[:at], inode, *fill.files[at + 1 :]))


def with_draft(fill: Fill, generation: int, inode: int | None) -> Fill:
    at = generation - 1
    return fill._replace(drafts=(*fill.drafts[:at], inode, *fill.drafts[at + 1 :]))


def steps(world: World, me: int, variant: Variant) -> Iterator[World]:
    worker = world.workers[me]
    if worker.step in ("over", "failed"):
        return
    if worker.step in ("look", "begin"):
        yield look(world, me) if worker.step == "look" else begin(world, me, variant)
        return
    fill = world.fills[worker.fill]
    if fill.place == "gone" and worker.step != "clear":
        yield world.put(me, Worker())  # ESTALE, whatever it does
        return
    if worker.step in ("compare", "claim", "seen", "finish", "publish", "move"):
        yield from by_path(world, me, fill, variant)
    else:
        yield from by_handle(world, me, fill, variant)


def look(world: World, me: int) -> World:
    if world.visible >= 0:
        return world.put(me, Worker("over"))
    return world.put(me, Worker("begin") if world.home < 0 else Worker("claim", world.home))


def begin(world: World, me: int, variant: Variant) -> World:
    """Planning takes a while, in which others may begin, and even publish and clear away."""
    if world.home >= 0:
        return world.put(me, Worker())
    if len(world.fills) == world.limit:
        return world.put(me, Worker("over"))
    hasty = "who begins does not look again" in variant
    return begin_fill(world).put(me, Worker("claim" if hasty else "compare", len(world.fills)))


def begin_fill(world: World) -> World:
    new = Fill("fill", False, (0,) * world.files, (), frozenset(), (0,) * world.generations)
    return world._replace(home=len(world.fills), fills=(*world.fills, new))


def by_path(world: World, me: int, fill: Fill, variant: Variant) -> Iterator[World]:
    """Claims and the end: paths with the fill's random name, which stop working when it has been cleared."""
    worker = world.workers[me]
    number = world.home if "paths have no random name" in variant else worker.fill
    if number < 0 or world.fills[number].cleared:
        yield world.put(me, Worker())
        return
    fill, newest = world.fills[number], len(world.fills[number].claims)
    match worker.step:
        case "compare":
            yield world.put(me, worker._replace(step="claim")) if world.visible < 0 else given_up(world, me)
        case "claim" if newest in fill.done:
            yield world.put(me, worker._replace(step="publish"))
        case "claim" if newest < world.generations and (not newest or fill.claims[-1] != me):
            step = "seen" if newest else "file"
            mine = worker._replace(step=step, generation=newest + 1, at=0, check=newest > 0)
            yield world.change(number, fill._replace(claims=(*fill.claims, me))).put(me, mine)
        case "seen":
            hasty = "takers of what is done leave the drafts" in variant
            there = worker._replace(
                step="finish" if hasty and fill.done else "drafts", nothing=bool(fill.done)
            )
            yield world.put(me, there)
        case "finish":
            after = fill._replace(done=fill.done | {worker.generation})
            yield world.change(number, after).put(me, worker._replace(step="publish"))
        case "publish":
            complete = bool(fill.done) if "any generation's done counts" in variant else newest in fill.done
            yield world.put(me, worker._replace(step="move" if complete else "claim"))
        case "move" if fill.place == "fill" and world.visible < 0:
            yield world.change(number, fill._replace(place="visible")).put(me, worker._replace(step="clear"))
        case "move" if fill.place == "fill" and "an earlier fill in the way is an error" in variant:
            yield world.put(me, Worker("failed"))
        case "move":
            yield given_up(world, me)


def given_up(world: World, me: int) -> World:
    """Of a fill that is not needed, as an earlier one is visible, or that has ended already."""
    number = world.workers[me].fill
    fill = world.fills[number]
    if fill.place == "fill":
        world = world.change(number, fill._replace(place="dead"))
    return world.put(me, Worker())


def by_handle(world: World, me: int, fill: Fill, variant: Variant) -> Iterator[World]:
    """Files: relative to open folders, wherever these have been moved to."""
    worker = world.workers[me]
    new = world.last + 1
    match worker.step:
        case "drafts":
            for generation in range(1, worker.generation):
                if "takers leave the drafts" not in variant:
                    fill = with_draft(fill, generation, None)
            yield world.change(worker.fill, fill).put(
                me, worker._replace(step="finish" if worker.nothing else "file", nothing=False)
            )
        case "file" if worker.at == len(fill.files):
            yield world.put(me, worker._replace(step="finish"))
        case "file" if worker.check and fill.files[worker.at]:
            if fill.files[worker.at] in world.whole:
                yield world.put(me, worker._replace(at=worker.at + 1))
            else:
                yield world.put(me, worker._replace(step="draft"))
        case "file":
            yield world.put(me, worker._replace(step="create"))
        case "create" if fill.files[worker.at] and "files are created over others" in variant:
            torn = world.whole - {fill.files[worker.at]}
            yield world._replace(whole=torn).put(
                me, worker._replace(step="write", inode=fill.files[worker.at])
            )
        case "create" if fill.files[worker.at]:
            yield world.put(me, worker._replace(step="file", check=True))
        case "create":
            after = world._replace(last=new).change(worker.fill, with_file(fill, worker.at, new))
            yield after.put(me, worker._replace(step="write", inode=new))
        case "write":
            done = world._replace(whole=world.whole | {worker.inode})
            yield done.put(me, worker._replace(step="file", at=worker.at + 1, inode=0))
        case "draft" if fill.drafts[worker.generation - 1] is None:
            yield world.put(me, Worker())
        case "draft":
            after = world._replace(last=new, whole=world.whole | {new})
            kept = with_draft(fill, worker.generation, new)
            yield after.change(worker.fill, kept).put(me, worker._replace(step="rename", inode=new))
        case "rename" if fill.drafts[worker.generation - 1] != worker.inode:
            yield world.put(me, Worker())
        case "rename":
            moved = with_draft(with_file(fill, worker.at, worker.inode), worker.generation, 0)
            mine = worker._replace(step="file", at=worker.at + 1, inode=0)
            yield world.change(worker.fill, moved).put(me, mine)
        case "clear":
            home = -1 if world.home == worker.fill else world.home
            cleared = world.change(worker.fill, fill._replace(cleared=True))._replace(home=home)
            yield cleared.put(me, Worker("over"))


def others(world: World) -> Iterator[World]:
    """An evictor, a sweeper, and who finds the rest of a fill that has ended."""
    for number, fill in enumerate(world.fills):
        if fill.place == "visible":
            yield world.change(number, fill._replace(place="trash"))
        if fill.place == "fill":
            yield world.change(number, fill._replace(place="dead"))
        if fill.place in ("trash", "dead") and fill.cleared:
            yield world.change(number, fill._replace(place="gone"))
        if fill.place != "fill" and not fill.cleared:
            home = -1 if world.home == number else world.home
            yield world.change(number, fill._replace(cleared=True))._replace(home=home)


def wrong(before: World, after: World) -> str | None:
    if any(worker.step == "failed" for worker in after.workers):
        return "the work was for nothing"
    number = after.visible
    if number < 0:
        return None
    files = after.fills[number].files
    if not all(files):
        return f"a file is missing in {files}"
    if not set(files) <= after.whole:
        return f"a file is torn in {files}"
    if before.visible == number and before.fills[number].files != files:
        return f"a visible file was replaced: {before.fills[number].files}, then {files}"
    return None


def explore(
    files: int, workers: int, fills: int, generations: int, variant: Variant = frozenset()
) -> tuple[int, int, str | None]:
    """States, states in which a commit is visible, and what is wrong in the first bad one."""
    empty = World(-1, (), (Worker(),) * workers, frozenset(), 0, fills, generations, files)
    first = empty if fills > 1 else begin_fill(empty)
    seen, waiting, visible = {first}, [first], 0
    met = set()  # as they came, before they are renumbered: most states are come to in several ways
    while waiting:
        before = waiting.pop()
        visible += before.visible >= 0
        following = [after for me in range(workers) for after in steps(before, me, variant)]
        for after in (*following, *others(before)):
            if (bad := wrong(before, after)) is not None:
                return len(seen), visible, bad
            if after in met:
                continue
            met.add(after)
            plain = renumbered(after)
            if plain not in seen:
                seen.add(plain)
                waiting.append(plain)
    return len(seen), visible, None


def renumbered(world: World) -> World:
    """States that differ only in the inodes' numbers, or in which worker is which, are one."""
    names: dict[int, int] = {0: 0}

    def name(inode: int) -> int:
        return names.setdefault(inode, len(names))

    order = sorted(range(len(world.workers)), key=world.workers.__getitem__)
    if len(set(world.workers)) < len(order):  # those at the same step differ by their claims
        order.sort(
            key=lambda me: (world.workers[me], [[me == owner for owner in f.claims] for f in world.fills])
        )
    places = tuple(order.index(me) for me in range(len(order)))
    fills = tuple(
        Fill(
            fill.place,
            fill.cleared,
            tuple([name(inode) for inode in fill.files]),
            tuple([places[owner] for owner in fill.claims]),
            fill.done,
            tuple([None if inode is None else name(inode) for inode in fill.drafts]),
        )
        for fill in world.fills
    )
    workers = [world.workers[me] for me in order]
    found = tuple([one._replace(inode=name(one.inode)) if one.inode else one for one in workers])
    whole = frozenset([names[inode] for inode in world.whole if inode in names])
    kept = (world.limit, world.generations, world.files)
    return World(world.home, fills, found, whole, len(names) - 1, *kept)


# Files, workers, fills one after the other, generations of the part. (1, 2, 2, 3) and (2, 2, 2, 3) hold too, with
# one and two million states; they take minutes.
SIZES = [(2, 2, 1, 3), (1, 3, 1, 3), (1, 2, 2, 2)]


@pytest.mark.parametrize(
    ("files", "workers", "fills", "generations"),
    [
        SIZES[1],
        pytest.param(*SIZES[0], marks=pytest.mark.exhaustive),
        pytest.param(*SIZES[2], marks=pytest.mark.exhaustive),
    ],
)
def test_what_is_visible_is_whole_and_stays_as_it_is(
    files: int, workers: int, fills: int, generations: int
) -> None:
    states, visible, bad = explore(files, workers, fills, generations)
    print(f"{states} states, {visible} of them with a visible commit")
    assert bad is None
    assert visible > 100


@pytest.mark.parametrize(
    ("part", "size"),
    [
        ("any generation's done counts", SIZES[0]),
        ("takers leave the drafts", SIZES[0]),
        ("takers of what is done leave the drafts", SIZES[0]),
        ("files are created over others", SIZES[0]),
        ("paths have no random name", SIZES[2]),
        ("who begins does not look again, an earlier fill in the way is an error", SIZES[2]),
    ],
)
def test_the_check_notices_when_a_part_of_the_protocol_is_left_out(
    part: str, size: tuple[int, int, int, int]
) -> None:
    """At the size that takes it: some faults need a second fill."""
    assert explore(*size, frozenset(part.split(", ")))[2] is not None
