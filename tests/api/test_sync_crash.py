"""A sync that dies at every step: the store is as before plus unreferenced objects, and the next sync continues."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from dsv.errors import Conflict, DsvError
from dsv.format import keys
from dsv.repo.repository import Repository
from dsv.stores.base import Bytes, PutResult, StoreBackend
from dsv.stores.directory import DirectoryStore
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.stores.probe import prove, prove_data
from dsv.stores.retry import Retrying
from dsv.values.names import MAIN
from tests.exhaustive import some
from tests.kit.people import SCANS, Files, Person, every_store_is, read_commit
from tests.stores.faulty import Crash, Fault, Faulty, Kind, Operation

RNG = random.Random(7)
BEFORE: Files = {"a/one": b"1", "a/two.sh": b"2", "old": RNG.randbytes(2 << 20)}
AFTER: Files = {
    **{name: data for name, data in BEFORE.items() if name != "a/one"},
    "a/three": b"3",
    "a/link@": b"three",
    "b": None,
    "large": RNG.randbytes(3 << 20),
    **{f"d/{number}": RNG.randbytes(100) for number in range(50)},
}


class Overwriting(MemoryStore):
    """As a bucket whose server ignores the condition of a put."""

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        self.delete(key)
        return super().put_if_absent(key, data)


def in_one_place() -> StoreBackend:
    return MemoryStore()


def in_two_places() -> StoreBackend:
    """The names where one writer wins, the data where all do."""
    return OpenStore(Overwriting(), MemoryStore())


def prepared(home: Path, make: Callable[[], StoreBackend] = in_one_place) -> tuple[Person, StoreBackend]:
    """A workspace that was synced once and then changed."""
    person, store = Person(home, "memory://unused"), make()
    with every_store_is(store):
        person.init()
        person.write(BEFORE)
        person.sync()
    (person.workspace / "a/one").unlink()
    person.write(AFTER)
    return person, store


def with_faults(store: StoreBackend, plan: Mapping[int, Fault] | None = None) -> tuple[StoreBackend, Faulty]:
    """The store with faults in all that is asked of it, or of either of its places, counted together."""
    leader = Faulty(store, plan)
    if not isinstance(store, OpenStore):
        return leader, leader

    def part(place: StoreBackend) -> StoreBackend:
        class Part(Faulty):
            inner = property(lambda _: place)  # type: ignore[assignment]

            def __init__(self) -> None:
                self.__dict__ = leader.__dict__

        return Part()

    return OpenStore(part(store.data), part(store.names)), leader


def count_calls(tmp_path: Path, make: Callable[[], StoreBackend] = in_one_place) -> int:
    person, store = prepared(tmp_path / "count", make)
    counted, counting = with_faults(store)
    with every_store_is(counted):
        person.sync()
    return counting.calls


def check(person: Person, store: StoreBackend) -> bool:
    """The invariants after a death. Returns whether the new commit was published."""
    assert person.files() == AFTER
    repository = Repository.open(store, None)
    head = repository.refs.head(SCANS, MAIN).commit
    assert head is not None
    contents = read_commit(store, head)
    assert contents in (BEFORE, AFTER)
    for item in store.list(keys.INDEX_PREFIX):  # no index speaks of a pack that is not there
        repository.objects.indexes.refresh()
        index = repository.objects.indexes._loaded[keys.parse_index_key(item.key)]  # type: ignore[index]
        for pack in index.packs:
            store.get(keys.pack_key(pack))
    return contents == AFTER


@pytest.mark.parametrize("make", [in_one_place, in_two_places])
@pytest.mark.parametrize("kind", [Kind.CRASH_BEFORE, Kind.CRASH_AFTER])
def test_a_sync_that_dies_at_any_call_is_continued(
    tmp_path: Path, kind: Kind, make: Callable[[], StoreBackend]
) -> None:
    calls = count_calls(tmp_path, make)
    assert calls > 10
    for number in some(range(1, calls + 1)):
        person, store = prepared(tmp_path / f"{kind.name}-{number}", make)
        failing, faulty = with_faults(store, {number: Fault(kind)})
        with every_store_is(failing):
            try:
                person.sync()
            except Crash:
                assert faulty.crashed
            else:  # there is no "after" for a read of what is absent
                assert faulty.log[number - 1][0] is Operation.GET
        published = check(person, store)
        before = store_size(store)
        with every_store_is(store):
            done = person.sync()
            assert done.commit is not None and read_commit(store, done.commit) == AFTER
            assert done.any_change != published
            assert person.sync().commit == done.commit
        if number > calls - 5:  # the packs were there: what is written again is small
            assert store_size(store) - before < 100_000


@pytest.mark.parametrize("kind", [Kind.CRASH_BEFORE, Kind.CRASH_AFTER])
def test_an_init_that_dies_at_any_call_is_finished_by_the_next(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two places: whichever half is there already, no other store is made beside it."""
    monkeypatch.setattr("dsv.api.store.prove", partial(prove, writers=2, rounds=1))
    monkeypatch.setattr("dsv.api.store.prove_data", partial(prove_data, writers=2))
    counted, counting = with_faults(in_two_places())
    with every_store_is(counted):
        Person(tmp_path / "count", "memory://unused").init()
    for number in some(range(1, counting.calls + 1)):
        person, store = Person(tmp_path / f"{kind.name}-{number}", "memory://unused"), in_two_places()
        failing, _ = with_faults(store, {number: Fault(kind)})
        with every_store_is(failing), suppress(Crash):
            person.init()
        with every_store_is(store):
            with suppress(Conflict):  # it had come to its end
                person.init()
            person.write(BEFORE)
            assert person.sync().commit is not None
        assert isinstance(store, OpenStore)
        for place in (store.names, store.data):
            logged = [keys.parse_format_key(item.key) for item in place.list(keys.FORMAT_PREFIX)]
            assert [number for number in logged if number is not None] == [0]  # a maker's own key may stay


@pytest.mark.parametrize("kind", [Kind.LOST_ANSWER, Kind.NEVER_ARRIVED, Kind.ERROR_500, Kind.ERROR_503])
def test_a_fault_that_passes_is_survived(tmp_path: Path, kind: Kind) -> None:
    calls = count_calls(tmp_path)
    for number in some(range(1, calls + 1)):
        person, store = prepared(tmp_path / f"{kind.name}-{number}")
        with every_store_is(Retrying(Faulty(store, {number: Fault(kind)}), sleep=lambda _: None)):
            done = person.sync()
        assert done.commit is not None and read_commit(store, done.commit) == AFTER
        assert check(person, store)


@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.ERROR_500])
def test_a_store_that_goes_away_is_an_error_and_loses_nothing(tmp_path: Path, kind: Kind) -> None:
    calls = count_calls(tmp_path)
    for number in some(range(1, calls + 1)):
        person, store = prepared(tmp_path / f"{kind.name}-{number}")
        plan = {call: Fault(kind) for call in range(number, calls + 20)}
        with every_store_is(Faulty(store, plan)):
            try:
                person.sync()
            except DsvError as error:
                assert error.exit_code == 6, error
            else:
                assert number >= calls - 1  # only closing the session may fail unnoticed
        check(person, store)
        with every_store_is(store):
            done = person.sync()
        assert done.commit is not None and read_commit(store, done.commit) == AFTER


def store_size(store: StoreBackend) -> int:
    return sum(item.size for item in store.list(""))


KILLED_SYNC = """
import os, signal, stat, sys, threading
from pathlib import Path
from tests.kit.people import Person

packs, left = map(int, sys.argv[3:])
any_object_is_the_next, one_at_a_time = packs > 0, threading.Lock()
link, write, process = os.link, os.write, os.getpid()

def counting_packs(source, target, *, src_dir_fd=None, **options):
    global packs
    large = os.stat(source, dir_fd=src_dir_fd).st_size > 1 << 20
    with one_at_a_time:
        if packs <= 0 and (large or any_object_is_the_next):
            os.kill(process, signal.SIGKILL)
        link(source, target, src_dir_fd=src_dir_fd, **options)
        packs -= large

def counting_bytes(descriptor, data):
    global left
    if os.getpid() != process or packs > 0 or not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return write(descriptor, data)
    if left < len(data):
        write(descriptor, memoryview(data)[:left])
        os.kill(process, signal.SIGKILL)
    done = write(descriptor, data)
    left -= done
    return done

os.link, os.write = counting_packs, counting_bytes
Person(Path(sys.argv[1]), sys.argv[2]).sync()
"""


def test_a_sync_killed_in_the_middle_of_its_writes_is_continued(tmp_path: Path) -> None:
    """Real processes and SIGKILL: what was stored before the kill is not stored again, and no lock remains."""
    person = Person(tmp_path / "ann", str(tmp_path / "store"))
    person.init()
    rng = random.Random(3)
    files: Files = {f"d{n % 7}/{n:04}": rng.randbytes(60_000) for n in range(2500)}
    person.write(files)
    data = sum(len(content or b"") for content in files.values())
    store = DirectoryStore(Path(person.store))
    moments = [
        (0, 0),
        (0, 1),
        (0, 20 << 20),
        (1, 0),
        (1, 10 << 20),
        (2, 5 << 20),
    ]  # packs stored; bytes after them, of packs that were not yet written by then
    for packs, written in moments:
        before = len(pack_sizes(store))
        command = [
            sys.executable,
            "-c",
            KILLED_SYNC,
            str(person.home),
            person.store,
            str(packs),
            str(written),
        ]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        assert len(pack_sizes(store)) >= before + packs
        assert person.files() == files
    killed = pack_sizes(store)
    assert sum(killed) > data // 2
    done = person.sync()
    assert done.commit is not None and person.read(done.commit) == files
    # Of each sync, one pack may have been stored and not yet been noted.
    unnoted = sum(1 for packs, _ in moments if packs) * max(killed)
    assert sum(pack_sizes(store)) < data + unnoted + 2_000_000 < data + sum(killed)


def pack_sizes(store: DirectoryStore) -> list[int]:
    return [item.size for item in store.list(keys.PACK_PREFIX)]


def test_another_process_of_the_same_name_does_not_hold_the_lock(tmp_path: Path) -> None:
    """The pid of a killed sync may be anybody's by now."""
    person = Person(tmp_path / "ann", str(tmp_path / "store"))
    person.init()
    person.write({"f": b"x"})
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from tests.kit.people import Person\n"
            "lock = Person(Path(sys.argv[1]), '').context().workspace().lock('dsv sync')\n"
            "print('held', flush=True); time.sleep(60)",
            str(person.home),
        ],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert person.sync().any_change
