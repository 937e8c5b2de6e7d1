"""The protocol of sessions and gc (docs/internals/format-writing.md, section 6), over every interleaving of its steps.

A small store and programs that use it: writers, people who make a tag or expire a commit, merges of index files,
readers, and gcs. Each is a little program whose steps are its requests, in the order of the code, and one search runs
through all orders of these steps. A program that takes no further step has crashed. One that takes it very late was
stopped for hours, or its answer was lost and the request was on its way all the time. gc may take a session for dead at
any moment, and may give up waiting at any moment: no clock counts.

The store has an older commit with the objects x and y, and a head with y. Both lie in one pack. Nobody needs x once the
older commit is freed, and gc copies y elsewhere. The writers want to publish x again.

What must hold: of everything that a name refers to, an index file lists a place, and that pack is there. And a reader
of the head always finds a place that it has not tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

Variant = frozenset[str]
"""Rules of the protocol that are left out, to see that the check notices."""
Objects = frozenset[str]
Pack = str
Row = tuple[str, Pack]
File = tuple[str, frozenset[Row]]

NOTHING: frozenset[str] = frozenset()
OLD = frozenset("xy")
HEAD = frozenset("y")
NEW = frozenset("xy")


class Session(NamedTuple):
    """verdict: what the session is about to name, `fenced`, or None."""

    opened: bool = False
    verdict: Objects | str | None = None
    closed: bool = False

    @property
    def pending(self) -> bool:
        return self.opened and self.verdict is None and not self.closed


class Epoch(NamedTuple):
    """final: the packs that are deleted, once that is decided."""

    condemned: frozenset[Pack]
    final: frozenset[Pack] | None = None
    done: bool = False


class Actor(NamedTuple):
    """A program: its kind, the next step, and what it remembers."""

    kind: str
    step: str = "begin"
    packs: frozenset[Pack] = frozenset()
    rows: frozenset[Row] = frozenset()
    objects: Objects = NOTHING
    files: frozenset[File] = frozenset()
    number: int = 0
    waits: frozenset[int] = frozenset()


CHANGES = {
    ("kept", "unnamed"): "unnamed",
    ("kept", "expire"): "expired",
    ("expired", "undo"): "kept",
    ("expired", "free"): "freed",
}


class World(NamedTuple):
    """log: the expiry log of the older commit, or that nothing ever named it. named: what names refer to, beside it."""

    packs: frozenset[Pack]
    files: frozenset[File]
    named: frozenset[tuple[str, Objects]]
    log: tuple[str, ...]
    epochs: tuple[Epoch, ...]
    sessions: tuple[Session, ...]
    actors: tuple[Actor, ...]

    def put(self, me: int, actor: Actor) -> World:
        return self._replace(actors=(*self.actors[:me], actor, *self.actors[me + 1 :]))

    def at(self, me: int, step: str) -> World:
        return self.put(me, self.actors[me]._replace(step=step))

    def session(self, number: int, session: Session) -> World:
        return self._replace(sessions=(*self.sessions[:number], session, *self.sessions[number + 1 :]))

    def epoch(self, number: int, epoch: Epoch) -> World:
        return self._replace(epochs=(*self.epochs[:number], epoch, *self.epochs[number + 1 :]))

    @property
    def rows(self) -> frozenset[Row]:
        return frozenset(row for _, rows in self.files for row in rows)

    @property
    def condemned(self) -> frozenset[Pack]:
        """What a writer avoids: once an epoch is decided, only what it deletes."""
        found = (one.condemned if one.final is None else one.final for one in self.epochs if not one.done)
        return frozenset().union(*found)

    @property
    def state(self) -> str:
        """Of the older commit: an entry without effect changes nothing."""
        state = "kept"
        for entry in self.log:
            state = CHANGES.get((state, entry), state)
        return state

    @property
    def reached(self) -> Objects:
        """Return what names refer to. The older commit keeps its objects until it is freed: then a tag of it is refused
        as expired, unless somebody got the answer that the tag was made."""
        return self._objects_of(frozenset(["tag"]) if self.state == "freed" else frozenset(), self.state)

    def seen_by_gc(self, variant: Variant) -> Objects:
        state = self.state
        if state == "expired" and "gc removes what is expired without saying so" in variant:
            state = "freed"
        return self._objects_of(
            frozenset(["tag", "told"]) if state == "freed" else frozenset(["told"]), state
        )

    def _objects_of(self, without: frozenset[str], state: str) -> Objects:
        objects = {one for name, content in self.named if name not in without for one in content}
        return frozenset(objects | OLD if state in ("kept", "expired") else objects)


EXPIRED, UNNAMED = ("expire",), ("unnamed",)


def begin(kinds: tuple[str, ...], log: tuple[str, ...]) -> World:
    packs = frozenset(["old"])
    files = frozenset([("first", frozenset([("x", "old"), ("y", "old")]))])
    sessions = tuple(Session() for _ in kinds)
    return World(packs, files, frozenset([("head", HEAD)]), log, (), sessions, tuple(map(Actor, kinds)))


def steps(world: World, me: int, variant: Variant) -> Iterator[World]:
    actor = world.actors[me]
    if actor.step in ("over", "failed"):
        return
    if actor.kind in ("writer", "storer", "tagger", "merge"):
        yield from of_session(world, me, variant)
    elif actor.kind == "gc":
        yield from GC[actor.step](world, me, variant)
    elif actor.kind == "reader":
        yield read(world, me)
    else:
        yield from of_expiry(world, me)


# --- writers, tags, merges


def of_session(world: World, me: int, variant: Variant) -> Iterator[World]:
    actor, mine = world.actors[me], world.sessions[me]
    late = "a session begins after gc/ was listed" in variant
    match actor.step:
        case "begin" if actor.kind == "tagger" and world.state in ("expired", "freed"):
            yield world.at(me, "over")
        case "begin" if "index files are read before gc/ is listed" in variant:
            yield world.put(me, actor._replace(rows=world.rows, step="open"))
        case "begin":
            yield world.at(me, "gc" if late else "open")
        case "open":
            opened = world.session(me, mine._replace(opened=True))
            yield opened.at(me, "index" if late else "gc")
        case "gc":
            blind = "writers ignore what is condemned" in variant
            packs = frozenset[str]() if blind else world.condemned
            early = "index files are read before gc/ is listed" in variant
            step = "open" if late else f"{actor.kind} looks" if early else "index"
            yield world.put(me, actor._replace(packs=packs, step=step))
        case "index":
            yield world.put(
                me, actor._replace(rows=world.rows, files=world.files, step=f"{actor.kind} looks")
            )
        case "verdict" if isinstance(mine.verdict, str):
            yield world.at(me, "over")
        case "verdict":
            content = OLD if actor.kind == "tagger" else NEW
            silent = "nobody puts a verdict before the name" in variant
            declared = world if silent else world.session(me, mine._replace(verdict=content))
            yield declared.put(me, actor._replace(step="name", objects=content))
        case "name" if actor.kind == "tagger":
            named = world._replace(named=world.named | {("tag", OLD)})
            yield named.at(me, "told" if "nobody looks for expiry after a tag" in variant else "look again")
        case "name":
            named = world._replace(named=world.named | {(f"{actor.kind} {me}", actor.objects)})
            yield named.at(me, "close")
        case "close":
            yield world.session(me, mine._replace(closed=True)).at(me, "over")
        case _:
            found = {"writer": write, "storer": write, "tagger": tag, "merge": merge}[actor.kind]
            yield from found(world, me, variant)


def write(world: World, me: int, variant: Variant) -> Iterator[World]:
    """A sync of x, which it finds in the store or stores again. A storer began to store it before anybody else did."""
    actor = world.actors[me]
    trusting = "an index is proof that a pack is there" in variant
    match actor.step:
        case "storer looks":
            yield world.at(me, "pack")
        case "writer looks":
            places = [pack for one, pack in actor.rows if one == "x" and pack not in actor.packs]
            found = any(trusting or pack in world.packs for pack in places)
            yield world.at(me, "verdict" if found else "pack")
        case "pack":
            yield world._replace(packs=world.packs | {f"new {me}"}).at(me, "list")
        case "list":
            file = (f"of {me}", frozenset([("x", f"new {me}")]))
            yield world._replace(files=world.files | {file}).at(me, "verdict")


def tag(world: World, me: int, variant: Variant) -> Iterator[World]:
    """A tag for the older commit, whose objects nobody has at hand."""
    actor = world.actors[me]
    match actor.step:
        case "tagger looks" if world.state in ("expired", "freed"):
            yield world.at(me, "close")
        case "tagger looks" if world.state == "kept":
            yield world.at(me, "verdict")  # a branch has it, so every gc so far has kept it
        case "tagger looks":
            hasty = "only what is condemned now is looked for" in variant and not actor.packs
            hasty = hasty or "a tag does not look at its commit" in variant
            yield world.at(me, "verdict" if hasty else "whole")
        case "whole":
            kept = {one for one, pack in actor.rows if pack not in actor.packs and pack in world.packs}
            yield world.at(me, "verdict" if kept >= OLD else "close")
        case "look again" if world.state in ("kept", "unnamed"):
            yield world.at(me, "told")
        case "look again" if world.state == "freed":
            yield world.at(me, "close")
        case "look again":
            yield world.put(me, actor._replace(number=len(world.log), step="bring back"))
        case "bring back":
            won = len(world.log) == actor.number
            yield (world._replace(log=(*world.log, "undo")) if won else world).at(me, "look again")
        case "told":
            yield world._replace(named=world.named | {("told", OLD)}).at(me, "close")


def merge(world: World, me: int, variant: Variant) -> Iterator[World]:
    """All index files that name nothing condemned become one; then those that were merged go."""
    actor = world.actors[me]
    name = f"merged {me}"
    match actor.step:
        case "merge looks":
            chosen = frozenset(one for one in actor.files if not {pack for _, pack in one[1]} & actor.packs)
            step = "put" if len(chosen) > 1 else "close"
            yield world.put(me, actor._replace(files=chosen, step=step))
        case "put":
            rows = frozenset(row for _, rows in actor.files for row in rows)
            yield world._replace(files=world.files | {(name, rows)}).at(me, "compare")
        case "compare":
            standing = {row for file in world.files - actor.files for row in file[1]}
            safe = frozenset(file for file in actor.files if file[1] <= standing)
            yield world.put(me, actor._replace(files=safe, step="delete"))
        case "delete" if actor.files:
            first = min(actor.files, key=lambda file: file[0])
            after = world._replace(files=world.files - {first})
            yield after.put(me, actor._replace(files=actor.files - {first}))
        case "delete":
            yield world.at(me, "close")


# --- readers, expiry


def read(world: World, me: int) -> World:
    """Of y, which the head has. packs: those that were tried."""
    actor = world.actors[me]
    places = frozenset(pack for one, pack in actor.rows if one == "y") - actor.packs
    if actor.step == "begin":
        return world.put(me, actor._replace(rows=world.rows, step="read"))
    if not places:  # it lists again
        fresh = frozenset(pack for one, pack in world.rows if one == "y") - actor.packs
        return world.put(me, actor._replace(rows=world.rows)) if fresh else world.at(me, "failed")
    first = min(places)
    if first in world.packs:
        return world.at(me, "over")
    return world.put(me, actor._replace(packs=actor.packs | {first}))


def of_expiry(world: World, me: int) -> Iterator[World]:
    """Entries of the log are put under the next number, which one wins."""
    actor = world.actors[me]
    match (actor.kind, actor.step):
        case ("expire", "begin") if not world.log:
            yield world._replace(log=("expire",)).at(me, "over")
        case ("undo", "begin") if world.state == "expired":
            yield world.put(me, actor._replace(number=len(world.log), step="take back"))
        case (_, "take back"):
            won = len(world.log) == actor.number
            yield (world._replace(log=(*world.log, "undo")) if won else world).at(me, "over")
        case _:
            yield world.at(me, "over")


# --- gc


def declared_by(world: World) -> Objects:
    """Return the objects that sessions that are not closed are about to name."""
    each = [one.verdict for one in world.sessions if isinstance(one.verdict, frozenset) and not one.closed]
    return frozenset().union(*each)


def choose_epoch(world: World, me: int, variant: Variant) -> Iterator[World]:
    """An epoch that is not over is continued, else the next one is planned."""
    actor, number = world.actors[me], len(world.epochs)
    if world.epochs and not world.epochs[-1].done:
        yield world.put(me, actor._replace(number=number - 1, step="sessions"))
    else:
        yield world.put(me, actor._replace(number=number, step="free"))


def free(world: World, me: int, variant: Variant) -> Iterator[World]:
    """An expirer of a commit need not look for tags, as gc does before it frees the commit."""
    blind = "gc frees what a tag names" in variant
    if blind or "gc looks at tags before it reads the log" in variant:
        if blind or ("tag", OLD) not in world.named:
            yield world.at(me, "read log")
        else:
            yield world.at(me, "plan")
    else:
        yield from read_log(world, me, variant)


def read_log(world: World, me: int, variant: Variant) -> Iterator[World]:
    actor = world.actors[me]
    step = "put free" if actor.step == "read log" else "look at tags"
    expired = world.state == "expired" and "gc removes what is expired without saying so" not in variant
    yield world.put(me, actor._replace(waits=frozenset([len(world.log)]), step=step if expired else "plan"))


def look_at_tags(world: World, me: int, variant: Variant) -> Iterator[World]:
    yield world.at(me, "plan" if ("tag", OLD) in world.named else "put free")


def put_free(world: World, me: int, variant: Variant) -> Iterator[World]:
    if len(world.log) in world.actors[me].waits:
        yield world._replace(log=(*world.log, "free")).at(me, "plan")
    else:
        yield world.at(me, "free")


def plan(world: World, me: int, variant: Variant) -> Iterator[World]:
    """Every pack that has something that nothing needs, or that no index file lists, is to go."""
    actor = world.actors[me]
    declared = declared_by(world)
    needed = world.seen_by_gc(variant) | declared
    full = {pack for one, pack in world.rows if one in needed} - {
        pack for one, pack in world.rows if one not in needed
    }
    kept = {one for one, pack in world.rows if pack in full & world.packs}
    lacking = frozenset(needed - kept)
    gone = frozenset(world.packs - full)
    if not gone:
        yield world.at(me, "over")
        return
    listed = {one for one, pack in world.rows if pack in world.packs}
    assert lacking <= listed, "gc refuses: something is missing already"
    step = "copy" if lacking else "condemn"
    yield world.put(me, actor._replace(packs=gone, objects=lacking, waits=frozenset(), step=step))


def copy(world: World, me: int, variant: Variant) -> Iterator[World]:
    yield world._replace(packs=world.packs | {copies(world, me)}).at(me, "list copies")


def list_copies(world: World, me: int, variant: Variant) -> Iterator[World]:
    actor = world.actors[me]
    file = (f"copied {me} {actor.number}", frozenset((one, copies(world, me)) for one in actor.objects))
    yield world._replace(files=world.files | {file}).at(me, "condemn")


def copies(world: World, me: int) -> Pack:
    return f"copies {me} {world.actors[me].number}"


def condemn(world: World, me: int, variant: Variant) -> Iterator[World]:
    actor = world.actors[me]
    if len(world.epochs) != actor.number:
        yield world.at(me, "over")  # another gc was faster
        return
    step = "wait" if "sessions are listed before packs are condemned" in variant else "sessions"
    condemned = world._replace(epochs=(*world.epochs, Epoch(actor.packs)))
    yield condemned.at(me, step)


def list_sessions(world: World, me: int, variant: Variant) -> Iterator[World]:
    open_now = frozenset(number for number, one in enumerate(world.sessions) if one.pending)
    yield world.put(me, world.actors[me]._replace(waits=open_now, step="wait"))


def wait(world: World, me: int, variant: Variant) -> Iterator[World]:
    actor = world.actors[me]
    pending = [number for number in actor.waits if world.sessions[number].pending]
    if not pending or "gc does not wait" in variant:
        yield world.at(me, "verdicts")
    for number in pending:
        if "silent sessions are not fenced" in variant:
            yield world.put(me, actor._replace(waits=actor.waits - {number}))
        else:
            yield world.session(number, world.sessions[number]._replace(verdict="fenced"))
    if "who gives up decides nothing" in variant:
        yield world.at(me, "done")
    yield world.put(me, actor._replace(packs=frozenset(), step="final"))


def verdicts(world: World, me: int, variant: Variant) -> Iterator[World]:
    declared = declared_by(world)
    if "verdicts name nothing" in variant:
        declared = frozenset()
    yield world.put(me, world.actors[me]._replace(objects=declared, step="refs"))


def refs(world: World, me: int, variant: Variant) -> Iterator[World]:
    actor = world.actors[me]
    yield world.put(me, actor._replace(objects=actor.objects | world.seen_by_gc(variant), step="spare"))


def spare(world: World, me: int, variant: Variant) -> Iterator[World]:
    """Of what is condemned, keep each pack with something that is needed and lies nowhere else."""
    actor = world.actors[me]
    condemned = world.epochs[actor.number].condemned
    any_row = "an index is proof that a pack is there" in variant
    elsewhere = {
        one for one, pack in world.rows if pack not in condemned and (any_row or pack in world.packs)
    }
    lacking = actor.objects - elsewhere
    held = {pack for one, pack in world.rows if one in lacking}
    hasty = "nothing is looked for again" in variant
    yield world.put(me, actor._replace(packs=condemned if hasty else condemned - held, step="final"))


def decide(world: World, me: int, variant: Variant) -> Iterator[World]:
    actor = world.actors[me]
    epoch = world.epochs[actor.number]
    if epoch.final is None:
        world = world.epoch(actor.number, epoch._replace(final=actor.packs))
    elif "each gc decides for itself" not in variant:
        actor = actor._replace(packs=epoch.final)
    yield world.put(me, actor._replace(step="rewrite"))


def rewrite(world: World, me: int, variant: Variant) -> Iterator[World]:
    """Write what is left of the index files that name packs to go."""
    actor = world.actors[me]
    stale = frozenset(file for file in world.files if {pack for _, pack in file[1]} & actor.packs)
    left = frozenset(row for _, rows in stale for row in rows if row[1] not in actor.packs)
    new = {(f"left {me} {actor.number}", left)} if left else set()
    after = (
        world
        if "index files go before what replaces them" in variant
        else world._replace(files=world.files | new)
    )
    yield after.put(me, actor._replace(files=stale, step="unlist"))


def unlist(world: World, me: int, variant: Variant) -> Iterator[World]:
    actor = world.actors[me]
    if not actor.files:
        early = "an epoch is done before its packs are deleted" in variant
        yield world.at(me, "done" if early else "delete")
        return
    first = min(actor.files, key=lambda file: file[0])
    after = world._replace(files=world.files - {first})
    yield after.put(me, actor._replace(files=actor.files - {first}))


def delete(world: World, me: int, variant: Variant) -> Iterator[World]:
    actor = world.actors[me]
    early = "an epoch is done before its packs are deleted" in variant
    if not actor.packs:
        yield world.at(me, "over" if early else "done")
        return
    first = min(actor.packs)
    after = world._replace(packs=world.packs - {first})
    yield after.put(me, actor._replace(packs=actor.packs - {first}))


def finish(world: World, me: int, variant: Variant) -> Iterator[World]:
    actor = world.actors[me]
    after = world.epoch(actor.number, world.epochs[actor.number]._replace(done=True))
    early = "an epoch is done before its packs are deleted" in variant
    yield after.at(me, "delete" if early else "tidy")


def tidy(world: World, me: int, variant: Variant) -> Iterator[World]:
    """The keys of sessions that are closed go, and of fenced ones all but the verdict."""
    for number, one in enumerate(world.sessions):
        if one.verdict == "fenced" and "verdicts of fenced sessions are deleted" in variant:
            world = world.session(number, Session())
    yield world.put(me, Actor("gc", "over"))


GC = {
    "begin": choose_epoch, "free": free, "read log": read_log, "look at tags": look_at_tags, "put free": put_free,
    "plan": plan, "copy": copy, "list copies": list_copies, "condemn": condemn, "sessions": list_sessions,
    "wait": wait, "verdicts": verdicts, "refs": refs, "spare": spare, "final": decide, "rewrite": rewrite,
    "unlist": unlist, "delete": delete, "done": finish, "tidy": tidy,
}  # fmt: skip


# --- the search


def wrong(world: World) -> str | None:
    if any(actor.step == "failed" for actor in world.actors):
        return "a reader found nothing"
    found = {one for one, pack in world.rows if pack in world.packs}
    lost = world.reached - found
    return f"{sorted(lost)} is missing: {world}" if lost else None


class Explored(NamedTuple):
    """states: how many there are. deleted: of these, in how many a pack is gone. bad: the first that is wrong."""

    states: int
    deleted: int
    bad: str | None


def explore(kinds: tuple[str, ...], log: tuple[str, ...], variant: Variant = frozenset()) -> Explored:
    first = begin(kinds, log)
    seen, waiting, deleted = {first}, [first], 0
    while waiting:
        before = waiting.pop()
        deleted += "old" not in before.packs
        for me in range(len(kinds)):
            for after in steps(before, me, variant):
                if after not in seen:
                    if (bad := wrong(after)) is not None:
                        return Explored(len(seen), deleted, bad)
                    seen.add(after)
                    waiting.append(after)
    return Explored(len(seen), deleted, None)


# Each with states in which the first pack is gone. Those marked take from half a minute to several.
WORLDS = [
    (("gc", "writer", "reader"), EXPIRED), (("gc", "writer", "storer"), EXPIRED), (("gc", "gc", "reader"), EXPIRED),
    (("gc", "expire", "undo"), ()), (("gc", "expire", "tagger"), ()), (("gc", "undo", "tagger"), EXPIRED),
    (("gc", "tagger", "tagger"), UNNAMED), (("gc", "merge", "reader"), EXPIRED),
]  # fmt: skip
LARGE = [
    (("gc", "gc", "writer"), EXPIRED), (("gc", "gc", "tagger", "expire"), ()), (("gc", "gc", "expire", "undo"), ()),
    (("gc", "writer", "merge"), EXPIRED), (("gc", "merge", "storer"), EXPIRED), (("gc", "gc", "merge"), EXPIRED),
    (("gc", "gc", "gc"), EXPIRED), (("gc", "gc", "tagger"), UNNAMED),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "log"), [*WORLDS, *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in LARGE)]
)
def test_what_a_name_refers_to_is_never_missing(kinds: tuple[str, ...], log: tuple[str, ...]) -> None:
    states, deleted, bad = explore(kinds, log)
    print(f"{states} states, in {deleted} of them the pack is gone")
    assert bad is None
    assert deleted > 10


ONE = ("gc", "writer")
TWO = ("writer", "gc", "gc")
LEFT = ("gc", "writer", "storer")


@pytest.mark.parametrize(
    ("rule", "kinds", "log"),
    [
        ("a session begins after gc/ was listed", ONE, EXPIRED),
        ("writers ignore what is condemned", ONE, EXPIRED),
        ("an index is proof that a pack is there", LEFT, EXPIRED),
        ("index files are read before gc/ is listed, an index is proof that a pack is there", ONE, EXPIRED),
        ("nobody puts a verdict before the name", ONE, EXPIRED),
        ("verdicts name nothing", ONE, EXPIRED),
        ("a tag does not look at its commit", ("gc", "tagger"), UNNAMED),
        ("only what is condemned now is looked for", ("gc", "tagger"), UNNAMED),
        ("nobody looks for expiry after a tag", ("gc", "expire", "tagger"), ()),
        ("gc looks at tags before it reads the log", ("gc", "expire", "tagger"), ()),
        ("gc frees what a tag names", ("gc", "expire", "tagger"), ()),
        ("gc removes what is expired without saying so", ("gc", "undo"), EXPIRED),
        ("sessions are listed before packs are condemned", ONE, EXPIRED),
        ("gc does not wait", ONE, EXPIRED),
        ("silent sessions are not fenced", ONE, EXPIRED),
        ("verdicts of fenced sessions are deleted", ONE, EXPIRED),
        ("nothing is looked for again", ONE, EXPIRED),
        ("each gc decides for itself", TWO, EXPIRED),
        ("who gives up decides nothing", TWO, EXPIRED),
        ("index files go before what replaces them", ("gc", "merge"), EXPIRED),
        ("an epoch is done before its packs are deleted", LEFT, EXPIRED),
    ],
)
def test_the_check_notices_when_a_rule_is_left_out(
    rule: str, kinds: tuple[str, ...], log: tuple[str, ...]
) -> None:
    """In the world that takes it: some faults need a second gc, or a writer that was fenced long ago."""
    assert explore(kinds, log, frozenset(rule.split(", "))).bad is not None
