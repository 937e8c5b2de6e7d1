from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import chain, count
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsv.errors import Conflict, DsvError, IntegrityError, NotFound
from dsv.format import keys
from dsv.format.index import Index
from dsv.format.locator import ObjectKind
from dsv.format.records import Damage, ExpiryAction, RefEntry, SessionBeat, TagValue
from dsv.repo.damage import mark_damage
from dsv.repo.expiry import append
from dsv.repo.merge_indexes import IndexMergeResult, merge_indexes
from dsv.repo.repository import Repository
from dsv.repo.session import Session, naming
from dsv.stores.base import StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore, RequestCounts
from dsv.upkeep.erase import Eraser
from dsv.upkeep.gc import Collected, Options
from dsv.values.ids import ChunkId, CommitId, FileId, Nonce
from dsv.values.names import MAIN, BranchName, TagName
from tests.exhaustive import is_full
from tests.kit.packs import verify
from tests.kit.repositories import DATASET, WRITER, Files, commit, create, read
from tests.stores.faulty import Crash, Fault, Faulty, Kind, Operation
from tests.upkeep.gc_world import ORPHAN, Beside, EndsEarly, Time, World, Writing, collect, copy_of, size


def test_what_nothing_needs_goes_and_the_rest_stays(tmp_path: Path) -> None:
    world = World(MemoryStore())
    before = size(world.store)
    done = collect(world.store, tmp_path / "1")
    assert sum(done.freed.values()) == 3
    assert done.plan is not None and done.plan.whole and done.plan.rewrite
    assert done.copied and done.deleted == len(done.plan.whole) + len(done.plan.rewrite)
    assert done.copied_bytes == done.plan.copied, "with the heads and ends of the new packs"
    world.check()
    assert size(world.store) < before - 3 * 20_000
    named = {pack for item in indexes(world) for pack in item.packs}
    assert named == {keys.parse_pack_key(item.key) for item in world.store.list(keys.PACK_PREFIX)}
    again = collect(world.store, tmp_path / "2")
    assert again.deleted == again.copied == 0
    assert not list((tmp_path).glob("*/*"))


def test_a_tag_of_a_freed_commit_ends_no_gc(tmp_path: Path) -> None:
    """The one that lost the race with gc got an error, and the tag is there. The log alone says what is freed: else no
    gc would succeed any more, as the tag's content is gone."""
    world = World(MemoryStore())
    collect(world.store, tmp_path / "1")
    value = TagValue(world.expired[0], Nonce.random(), 0, "a", "")
    world.repository.refs.set_tag(DATASET, TagName.parse("late"), value)
    move_back = RefEntry(world.expired[1], False, Nonce.random(), 0, "a", "create")
    world.repository.refs.move(DATASET, BranchName.parse("late-too"), None, move_back)
    collect(world.store, tmp_path / "2")
    world.check()


def test_a_writer_that_was_killed_when_it_had_published_ends_no_gc(tmp_path: Path) -> None:
    """Its session still names a commit, and freed commits are in the history of that one."""
    world = World(MemoryStore())
    collect(world.store, tmp_path / "1")
    writing = Writing(world.store, {"more": b"1" * 300})
    assert writing.publish()
    world.store.delete(
        f"{keys.session_prefix(writing.session.id)}closed"
    )  # it was killed before it wrote that
    world.files[writing.commit] = writing.files
    repository = Repository.open(world.store, None)
    plan = Eraser(repository).plan([FileId.hash(b"1" * 300)], None, None)
    assert {(place.dataset, place.path) for place, _ in plan.places} == {(str(DATASET), b"more")}
    collect(world.store, tmp_path / "2")
    world.check()


def indexes(world: World) -> list[Index]:
    repository = Repository.open(world.store, None)
    repository.objects.indexes.refresh()
    found = [repository.objects.indexes.whole(one) for one in repository.objects.indexes.listed.sizes]
    assert all(one is not None for one in found)
    return [one for one in found if one is not None]


WORLDS = [4, 10]
"""Commits of a world, two of them expired. The packs of ten are joined."""
EVERY = 1 if is_full() else 19
"""Of the requests of a gc, so many are passed over for each that a test is about."""


def every(commits: int) -> int:
    """Return `EVERY`, or three times that for a world whose packs are joined, outside full runs."""
    return EVERY if commits == 4 or is_full() else 3 * EVERY


NORMAL = (Kind.LOST_ANSWER, Kind.SHORT)
FAILING = [
    kind if kind in NORMAL else pytest.param(kind, marks=pytest.mark.exhaustive)
    for kind in Kind
    if kind is not Kind.SLOW
]


@pytest.mark.parametrize("kind", FAILING)
@pytest.mark.parametrize("commits", WORLDS, ids=["", "joined"])
def test_any_request_may_fail(kind: Kind, commits: int, tmp_path: Path) -> None:
    _with_faults(kind, commits, tmp_path, every(commits))


@pytest.mark.parametrize("commits", WORLDS, ids=["", "joined"])
def test_a_gc_that_is_killed_after_any_write_is_continued(commits: int, tmp_path: Path) -> None:
    step = 1 if commits == 4 or is_full() else 5
    assert _with_faults(Kind.CRASH_AFTER, commits, tmp_path, step, (Operation.PUT, Operation.DELETE)) > 20


def _with_faults(
    kind: Kind, commits: int, folder: Path, step: int, only: Collection[Operation] = tuple(Operation)
) -> int:
    """Return how many requests there were to fail, one in each run. Afterwards, a gc ends what was begun."""
    world = World(MemoryStore(), commits, 2)
    best = copy_of(world.store)
    plan = collect(best, folder / "best").plan
    assert plan is not None and (plan.joined.packs > 0) == (commits == 10)
    ended = 0
    for number in count(1, step):
        store = copy_of(world.store)
        faulty = Faulty(store, {number: Fault(kind)}, only=only)
        try:
            collect(faulty, folder / f"failing {number}")
        except (DsvError, Crash):
            ended += 1
        world.check(store)
        if faulty.calls < number:
            assert ended
            return number
        collect(store, folder / f"after {number}")
        collect(store, folder / f"last {number}")
        world.check(store)
        assert size(store) <= size(best) * 1.05, number
    raise AssertionError("there is no last request")


@pytest.mark.parametrize("further", [False, True])
def test_a_listing_that_ends_early_takes_nothing_away(further: bool, tmp_path: Path) -> None:
    world = World(MemoryStore(), 4, 2)
    for number in count(1, EVERY):
        store = copy_of(world.store)
        short = EndsEarly(store, number, further=further)
        with suppress(DsvError):
            collect(short, tmp_path / f"failing {number}")
        world.check(store)
        if short.listings < number:
            break
        collect(store, tmp_path / f"after {number}")
        world.check(store)


# --- others beside it


@pytest.mark.parametrize("commits", WORLDS, ids=["", "joined"])
def test_a_writer_beside_any_request_keeps_what_it_publishes(commits: int, tmp_path: Path) -> None:
    """It stores again what gc removes at that moment, or finds in the store what gc would like to remove."""
    world = World(MemoryStore(), commits, 2)
    again = {"again": world.files[world.expired[0]]["changes"]}
    for number in count(1, every(commits)):
        store = copy_of(world.store)
        made: list[Writing] = []

        def write(store: MemoryStore = store, made: list[Writing] = made) -> None:
            made.append(Writing(store, again))
            assert made[0].publish()

        collect(Beside(store, {number: write}), tmp_path / str(number))
        world.check(store)
        if not made:
            break
        assert read(Repository.open(store, None), made[0].commit) == made[0].files, number


@pytest.mark.parametrize("wakes", ["soon", "while gc waits", "after gc"])
@pytest.mark.parametrize("commits", WORLDS, ids=["", "joined"])
def test_a_writer_that_stops_beside_any_request(wakes: str, commits: int, tmp_path: Path) -> None:
    """Either its commit is published and whole, or gc has fenced it, and it says so."""
    world = World(MemoryStore(), commits, 2)
    again = {"again": world.files[world.expired[0]]["changes"]}
    fenced = published = 0
    for number in count(1, every(commits)):
        store = copy_of(world.store)
        made: list[Writing] = []
        woken: list[bool] = []

        def begin(store: MemoryStore = store, made: list[Writing] = made) -> None:
            made.append(Writing(store, again))

        def wake(made: list[Writing] = made, woken: list[bool] = woken) -> None:
            if made and not woken:
                woken.append(made[0].publish())

        actions: dict[int | str, Callable[[], None]] = {number: begin}
        if wakes == "soon":
            actions[number + 9] = wake
        time = Time(wake if wakes == "while gc waits" else lambda: None)
        collect(Beside(store, actions), tmp_path / str(number), time=time)
        wake()
        world.check(store)
        if not made:
            break
        if woken[0]:
            published += 1
            assert read(Repository.open(store, None), made[0].commit) == made[0].files, number
        else:
            fenced += 1
    assert published
    assert (fenced > 0) == (wakes == "after gc")


def test_index_files_may_be_merged_beside_any_request(tmp_path: Path) -> None:
    world = World(MemoryStore(), 5, 3, merged=False)
    for number in count(1, EVERY):
        store = copy_of(world.store)
        merged: list[IndexMergeResult] = []

        def merge(store: MemoryStore = store, merged: list[IndexMergeResult] = merged) -> None:
            merged.append(merge_indexes(Repository.open(store, None), WRITER))

        collect(Beside(store, {number: merge}), tmp_path / str(number))
        world.check(store)
        if not merged:
            break


@pytest.mark.parametrize("commits", WORLDS, ids=["", "joined"])
def test_two_at_once(commits: int, tmp_path: Path) -> None:
    """One wins the epoch and the other says so, or continues what the first one has begun."""
    world = World(MemoryStore(), commits, 2)
    lost = 0
    kinds = ("condemned", "decision", "done", "list packs", "get packs")
    moments: Iterator[int | str] = chain(kinds, count(1, every(commits)))
    for number in moments:
        store = copy_of(world.store)
        other: list[Collected] = []

        folder = tmp_path / f"other {number}"

        def collect_too(
            store: MemoryStore = store, other: list[Collected] = other, folder: Path = folder
        ) -> None:
            other.append(collect(store, folder))

        beside: dict[int | str, Callable[[], None]] = {number: collect_too}
        try:
            collect(Beside(store, beside), tmp_path / str(number))
        except Conflict as error:
            assert "another garbage collection" in error.message
            lost += 1
        world.check(store)
        if not other:
            break
        collect(store, tmp_path / f"last {number}")
        world.check(store)
    assert lost


def test_who_waits_too_long_deletes_nothing_and_ends_the_epoch(tmp_path: Path) -> None:
    world = World(MemoryStore(), 4, 2)
    before = size(world.store)
    with Session.open(Repository.open(world.store, None), WRITER) as session:
        beats = count()

        def beat() -> None:
            record = SessionBeat(Nonce.random(), 0)
            world.store.put_if_absent(keys.session_beat_key(session.id, next(beats)), record.encode())

        options = Options(grace=-60.0, silent=60.0, poll=10.0, max_wait=600.0)
        done = collect(world.store, tmp_path / "1", options, Time(beat))
        assert done.gave_up
        assert done.deleted == 0
        [waited_for] = done.waited_for
        assert f" of {WRITER.author} on lab, " in waited_for
        assert size(world.store) >= before
        world.check()
        with Session.open(Repository.open(world.store, None), WRITER) as later:
            assert not later.condemned
            later.close()
        session.close()
    assert collect(world.store, tmp_path / "2").deleted
    assert size(world.store) < before
    world.check()


def test_a_commit_without_a_name_can_not_get_one_after_gc(tmp_path: Path) -> None:
    """Its own object stays, so that is no proof that its content is there."""
    world = World(MemoryStore(), 4, 2)
    unnamed = Writing(world.store, {"lost race": b"never published" * 100})
    unnamed.session.close()
    unnamed.session.__exit__()
    repository = Repository.open(world.store, None)
    with naming(repository, WRITER, DATASET, unnamed.commit, "tag early"):
        pass
    collect(world.store, tmp_path / "1")
    later = Repository.open(world.store, None)
    assert later.objects.stored_commit(unnamed.commit) is not None
    with (
        pytest.raises(Conflict, match="was removed"),
        naming(later, WRITER, DATASET, unnamed.commit, "tag late"),
    ):
        pass
    for kept in world.kept:
        with naming(later, WRITER, DATASET, kept, "tag kept"):
            pass
    with (
        pytest.raises(NotFound, match="expired"),
        naming(later, WRITER, DATASET, world.expired[0], "tag gone"),
    ):
        pass


def test_a_fenced_session_never_publishes_and_keys_of_sessions_go(tmp_path: Path) -> None:
    world = World(MemoryStore(), 4, 2)
    writing = Writing(world.store, {"again": world.files[world.expired[0]]["changes"]})
    beat = keys.session_beat_key(writing.session.id, 0)
    world.store.put_if_absent(beat, SessionBeat(Nonce.random(), 0).encode())
    assert collect(world.store, tmp_path / "1").deleted
    world.change({"more": b"1" * 9000})
    collect(world.store, tmp_path / "2")
    prefix = keys.session_prefix(writing.session.id)
    assert {item.key for item in world.store.list("sessions/")} == {f"{prefix}open", f"{prefix}verdict"}
    assert not writing.publish()
    world.check()


def many_files(store: MemoryStore) -> CommitId:
    """Two thousand small files in a pack of which most is expired, and another commit."""
    repository, chance = create(store), random.Random(1)
    files: Files = {f"d{number // 200}/{number}": b"%d" % number for number in range(2000)}
    first = commit(repository, {**files, "large": chance.randbytes(900_000)})
    head = commit(repository, {"large": b"small"})
    append(repository, WRITER, DATASET, ExpiryAction.EXPIRE, lambda _: [first])
    return head


def counted(store: StoreBackend, work: Callable[[Repository], object]) -> RequestCounts:
    opened = OpenStore(store)
    repository = Repository.open(opened, None)
    before = opened.counts
    work(repository)
    repository.objects.threads.close()
    return opened.counts - before


@pytest.mark.parametrize("begun", [False, True], ids=["", "begun"])
def test_what_was_copied_is_read_with_few_requests_more(begun: bool, tmp_path: Path) -> None:
    """Locators name the old pack: that is asked for once, and what was in it is read together where it lies now.

    begun: who reads has read index files before gc.
    """
    store = MemoryStore()
    head = many_files(store)
    before = counted(store, lambda repository: read(repository, head))
    done: list[Collected] = []

    def work(repository: Repository) -> None:
        if begun:
            repository.objects.indexes.refresh()
            done.append(collect(store, tmp_path / "1"))
        read(repository, head)

    if not begun:
        done.append(collect(store, tmp_path / "1"))
    after = counted(store, work)
    assert done[0].copied >= 2000 and done[0].deleted >= 1
    assert after.ranges <= before.ranges + 2 * done[0].deleted
    files = 10 if begun else 5  # index files, before and after gc
    assert after.gets + after.lists <= before.gets + before.lists + files


def test_a_sync_while_gc_waits_makes_at_most_twice_the_requests(tmp_path: Path) -> None:
    store = MemoryStore()
    many_files(store)

    def sync(repository: Repository) -> None:
        commit(repository, {"d3/new": b"new", "d5/1000": b"changed"})

    made = [counted(store, sync).requests]
    session = Session.open(Repository.open(store, None), WRITER)

    def asleep() -> None:
        if len(made) < 3:
            made.append(counted(store, sync).requests)
        else:
            session.close()

    with session:
        done = collect(store, tmp_path / "1", time=Time(asleep))
    assert done.deleted and len(done.waited_for) == 1
    assert len(made) == 3 and max(made[1:]) <= 2 * made[0], made


# --- what is lost


def test_a_pack_that_is_gone_and_needed_ends_it(tmp_path: Path) -> None:
    world = World(MemoryStore(), 4, 2)
    world.store.delete(pack_of(world, "kept 3"))
    before = _objects(world)
    with pytest.raises(IntegrityError) as raised:
        collect(world.store, tmp_path / "1")
    assert "gone" in raised.value.message or "nothing was deleted" in raised.value.message
    assert _objects(world) == before


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_a_place_that_is_marked_as_damaged_is_no_reason_to_delete_another(late: bool, tmp_path: Path) -> None:
    """late: it is marked when gc has condemned the other one, and waits."""
    world = World(MemoryStore(), 4, 2)
    content = next(reversed(world.files.values()))["kept 3"]
    assert content is not None
    key, chunk = pack_of(world, "kept 3"), ChunkId.hash(content)
    pack = keys.parse_pack_key(key)
    assert pack is not None
    nothing = Damage((), (), (), True, Nonce.random(), 0, "", "")
    mark = replace(nothing, objects=((pack, ObjectKind.CHUNK, chunk),))
    repository = Repository.open(world.store, None)
    mark_damage(repository, WRITER, lambda _: mark)
    again = Writing(world.store, {"stored again": content, "other": b"1" * 50})
    assert again.publish()
    whole = bytearray(world.store.get(key))
    whole[whole.index(content[:8])] ^= 1
    world.store.delete(key)
    world.store.put_if_absent(key, whole)
    if late:
        mark_damage(repository, WRITER, lambda _: nothing)
    session = Session.open(Repository.open(world.store, None), WRITER)

    def asleep() -> None:
        mark_damage(repository, WRITER, lambda _: mark)
        session.close()

    with session:
        done = collect(world.store, tmp_path / "1", time=Time(asleep))
    assert read(Repository.open(world.store, None), again.commit) == again.files
    assert done.deleted and (done.spared > 0) == late


def _objects(world: World) -> list[str]:
    kept = ("packs/", "index/", "commits/", "locators/", "gc/")
    return [item.key for item in world.store.list("") if item.key.startswith(kept)]


def pack_of(world: World, name: str) -> str:
    """The key of the pack that an index names for the content of a file of the last commit."""
    content = next(reversed(world.files.values()))[name]
    assert content is not None
    packs = [item.key for item in world.store.list(keys.PACK_PREFIX) if item.key != keys.pack_key(ORPHAN)]
    return next(one for one in packs if verify(world.store.get(one)).ids.find(ChunkId.hash(content)) >= 0)


@pytest.mark.parametrize("lost", [False, True])
def test_the_content_of_a_commit_whose_move_is_lost_is_kept_for_the_grace(lost: bool, tmp_path: Path) -> None:
    """So that who reads of it in verify can still name it; one that lost a race has a successor in its place."""
    store = MemoryStore()
    repository = create(store)
    commit(repository, {"a": b"2" * 300})
    newest = commit(repository, {"a": b"3" * 300})
    head = repository.refs.head(DATASET, MAIN)
    store.delete(keys.branch_key(DATASET, MAIN, head.number))
    if not lost:
        commit(Repository.open(store, None), {"a": b"another" * 50})
    collect(store, tmp_path / "1", Options(poll=0))
    opened = Repository.open(store, None)
    if lost:
        assert read(opened, newest) == {"a": b"3" * 300}
        collect(store, tmp_path / "2")
    with pytest.raises(IntegrityError):
        read(Repository.open(store, None), newest)
