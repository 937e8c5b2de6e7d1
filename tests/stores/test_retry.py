"""Trying again: what is retried, for how long, and what a lost answer comes to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import (
    Denied,
    DsvError,
    IntegrityError,
    Interrupted,
    NotFound,
    OutcomeUnknown,
    Terminated,
    Unreachable,
)
from dsv.format.keys import PACK_PREFIX
from dsv.periodic import NEVER, Periodic
from dsv.stores.base import (
    LARGEST,
    Busy,
    Bytes,
    CutShortError,
    ListedObject,
    NoAnswer,
    PutResult,
    StoreBackend,
)
from dsv.stores.memory import MemoryStore
from dsv.stores.retry import SILENT, Retrying, RetryPolicy
from tests.stores.faulty import Fault, Faulty, Kind, Operation
from tests.stores.wrapper import Wrapper


@dataclass
class Time:
    """A clock that only sleeping moves."""

    now: float = 0.0
    naps: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now


def retrying(store: StoreBackend, time: Time | None = None) -> Retrying:
    time = time or Time()
    return Retrying(store, clock=time.clock, sleep=time.sleep)


def failing(inner: StoreBackend, *kinds: Kind, only: Operation) -> Faulty:
    """Fails the first calls as given, one after another."""
    return Faulty(inner, {n: Fault(kind) for n, kind in enumerate(kinds, 1)}, only=[only])


@pytest.mark.parametrize("kind", [Kind.LOST_ANSWER, Kind.ERROR_500_AFTER])
def test_a_lost_answer_is_no_lost_write(kind: Kind) -> None:
    inner = MemoryStore()
    assert retrying(failing(inner, kind, only=Operation.PUT)).put_if_absent("k", b"mine") is PutResult.WON
    assert inner.get("k") == b"mine"


@pytest.mark.parametrize("kind", [Kind.NEVER_ARRIVED, Kind.REFUSED, Kind.ERROR_500, Kind.ERROR_503])
def test_a_write_that_never_arrived_is_made_again(kind: Kind) -> None:
    inner = MemoryStore()
    faulty = failing(inner, kind, kind, only=Operation.PUT)
    assert retrying(faulty).put_if_absent("k", b"mine") is PutResult.WON
    assert inner.get("k") == b"mine" and faulty.calls == 3


def test_the_same_bytes_under_the_key_are_ones_own() -> None:
    inner = MemoryStore()
    inner.put_if_absent("k", b"same")
    for data in (b"same", bytearray(b"same"), memoryview(b"same")):
        assert retrying(inner).put_if_absent("k", data) is PutResult.WON
    assert retrying(inner).put_if_absent("k", b"other") is PutResult.LOST


def test_a_lost_answer_and_another_writer() -> None:
    """This writer's put never arrived; before it tries again another one's did."""

    class AnotherComesFirst(Wrapper):
        def put_if_absent(self, key: str, data: Bytes) -> PutResult:
            if self.inner.put_if_absent(key, b"theirs") is PutResult.WON:
                raise NoAnswer("nothing came back")
            return PutResult.LOST

    assert retrying(AnotherComesFirst(MemoryStore())).put_if_absent("k", b"mine") is PutResult.LOST


def test_a_write_that_never_arrived_and_another_writer() -> None:
    """The key was read back, and was absent; another one's put arrived before this writer's second one."""

    class AnotherComesBetween(Wrapper):
        calls = 0

        def put_if_absent(self, key: str, data: Bytes) -> PutResult:
            self.calls += 1
            if self.calls == 1:
                raise NoAnswer("nothing came back")
            self.inner.put_if_absent(key, b"theirs")
            return self.inner.put_if_absent(key, data)

    assert retrying(AnotherComesBetween(MemoryStore())).put_if_absent("k", b"mine") is PutResult.LOST


def test_a_conflict_with_a_writer_that_never_finished() -> None:
    """S3 answers 409 while another put is under way; when that came to nothing, this one is made again."""

    class Conflicts(Wrapper):
        times = 2

        def put_if_absent(self, key: str, data: Bytes) -> PutResult:
            self.times -= 1
            return PutResult.LOST if self.times >= 0 else self.inner.put_if_absent(key, data)

    assert retrying(Conflicts(MemoryStore())).put_if_absent("k", b"mine") is PutResult.WON


def test_a_conflict_that_never_ends_is_no_lost_race() -> None:
    class Refuses(Wrapper):
        def put_if_absent(self, key: str, data: Bytes) -> PutResult:
            return PutResult.LOST

    with pytest.raises(Unreachable, match="never finished"):
        retrying(Refuses(MemoryStore())).put_if_absent("k", b"mine")


@pytest.mark.parametrize("kind", [Kind.LOST_ANSWER, Kind.ERROR_500_AFTER])
@pytest.mark.parametrize(("there", "put"), [(None, PutResult.WON), (b"theirs", PutResult.LOST)])
def test_the_answers_of_all_puts_are_lost(kind: Kind, there: bytes | None, put: PutResult) -> None:
    """The key is read back, which shows what was written."""
    store = MemoryStore()
    if there is not None:
        store.put_if_absent("k", there)
    faulty = Faulty(store, always=Fault(kind), only=[Operation.PUT])
    assert retrying(faulty).put_if_absent("k", b"mine") is put
    assert store.get("k") == (there or b"mine")
    assert faulty.calls == 1


@pytest.mark.parametrize("kind", [Kind.LOST_ANSWER, Kind.NEVER_ARRIVED, Kind.ERROR_500_AFTER])
def test_an_outcome_that_stays_unknown_says_so(kind: Kind) -> None:
    class Dead(Faulty):
        def get(self, key: str, limit: int = LARGEST) -> bytes:
            raise NoAnswer("nothing came back")

    with pytest.raises(OutcomeUnknown, match="is not known") as caught:
        retrying(Dead(MemoryStore(), always=Fault(kind), only=[Operation.PUT])).put_if_absent("k", b"mine")
    assert caught.value.exit_code == 6 and caught.value.retryable and caught.value.hint


def test_credentials_that_expire_between_the_write_and_its_answer() -> None:
    class Expires(Wrapper):
        asked = 0

        def put_if_absent(self, key: str, data: Bytes) -> PutResult:
            self.asked += 1
            if self.asked > 1:
                raise Denied("expired", hint="log in")
            self.inner.put_if_absent(key, data)
            raise NoAnswer("nothing came back")

        def get(self, key: str, limit: int = LARGEST) -> bytes:
            raise Denied("expired", hint="log in")

    with pytest.raises(OutcomeUnknown, match="expired") as caught:
        retrying(Expires(MemoryStore())).put_if_absent("k", b"mine")
    assert caught.value.hint == "log in"


@pytest.mark.parametrize("end", [Terminated("stopped by SIGTERM"), Interrupted("interrupted")])
@pytest.mark.parametrize("kind", [Kind.LOST_ANSWER, Kind.NEVER_ARRIVED])
def test_a_signal_during_the_wait_is_no_failure_of_the_store(end: DsvError, kind: Kind) -> None:
    """SIGTERM raises where the program just is: mostly in the wait before the next attempt."""

    class Dead(Faulty):
        def get(self, key: str, limit: int = LARGEST) -> bytes:
            raise OutcomeUnknown("nothing came back")

    def sleep(seconds: float) -> None:
        raise end

    dead = Dead(MemoryStore(), always=Fault(kind), only=[Operation.PUT])
    with pytest.raises(DsvError) as caught:
        Retrying(dead, sleep=sleep).put_if_absent("k", b"mine")
    assert caught.value is end


def test_refusals_are_not_repeated() -> None:
    class Refuses(Wrapper):
        asked = 0

        def put_if_absent(self, key: str, data: Bytes) -> PutResult:
            self.asked += 1
            raise Denied("no")

    store = Refuses(MemoryStore())
    with pytest.raises(Denied):
        retrying(store).put_if_absent("k", b"mine")
    faulty = Faulty(MemoryStore())
    with pytest.raises(NotFound):
        retrying(faulty).get("absent")
    assert store.asked == 1 and faulty.calls == 1


def test_a_busy_store_is_asked_with_growing_waits() -> None:
    time, faulty = Time(), Faulty(MemoryStore(), always=Fault(Kind.ERROR_503))
    with pytest.raises(Busy, match="503"):
        retrying(faulty, time).get("k")
    policy = RetryPolicy()
    assert faulty.calls == policy.busy_attempts
    for number, nap in enumerate(time.naps, 1):
        longest = min(policy.longest_wait, policy.first_wait * 2 ** (number - 1))
        assert longest / 2 <= nap <= longest
    assert time.naps[-1] > 10 * time.naps[0]


def test_waits_differ_between_callers() -> None:
    def naps() -> tuple[float, ...]:
        time = Time()
        with pytest.raises(Busy):
            retrying(Faulty(MemoryStore(), always=Fault(Kind.ERROR_503)), time).get("k")
        return tuple(time.naps)

    assert len({naps() for _ in range(5)}) == 5


@pytest.mark.parametrize(
    ("kind", "each"), [(Kind.REFUSED, 0.0), (Kind.REFUSED, 5.0), (Kind.NEVER_ARRIVED, 14.0)]
)
@pytest.mark.parametrize("operation", list(Operation))
def test_silence_is_reported_within_thirty_seconds(kind: Kind, each: float, operation: Operation) -> None:
    time = Time()

    class TakesTime(Faulty):
        def _begin(self, operation: Operation, key: str) -> Fault | None:
            time.now += each
            return super()._begin(operation, key)

    store = retrying(TakesTime(MemoryStore(), always=Fault(kind)), time)
    calls = {
        Operation.GET: lambda: store.get("k"),
        Operation.RANGE: lambda: store.get_range("k", 0, 1),
        Operation.PUT: lambda: store.put_if_absent("k", b"x"),
        Operation.LIST: lambda: list(store.list("k")),
        Operation.DELETE: lambda: store.delete("k"),
    }
    with pytest.raises(Unreachable):
        calls[operation]()
    assert time.now <= 30
    assert len(time.naps) >= 1


def test_a_long_transfer_that_breaks_is_made_again() -> None:
    """However long it took until it broke."""
    time = Time()

    class Slow(Wrapper):
        broke = False

        def put_if_absent(self, key: str, data: Bytes) -> PutResult:
            time.now += 200
            if not self.broke:
                self.broke = True
                raise NoAnswer("broke off")
            return self.inner.put_if_absent(key, data)

    assert retrying(Slow(MemoryStore()), time).put_if_absent("k", bytes(100)) is PutResult.WON


def test_a_body_cut_short_is_read_again() -> None:
    inner = MemoryStore()
    inner.put_if_absent("k", b"0123456789")
    store = retrying(failing(inner, Kind.TRUNCATED, only=Operation.RANGE))
    assert store.get_range("k", 2, 3) == b"234"
    store = retrying(failing(inner, Kind.TRUNCATED, only=Operation.GET))
    assert store.get("k") == b"0123456789"
    always = Faulty(inner, always=Fault(Kind.TRUNCATED))
    with pytest.raises(IntegrityError, match="cut short"):
        retrying(always).get("k")
    assert always.calls == 3


def test_where_an_object_ends_too_soon_is_found_out_once() -> None:
    inner = MemoryStore()
    inner.put_if_absent("k", b"0123456789")
    counted, time = Faulty(inner), Time()
    store = retrying(counted, time)
    with pytest.raises(CutShortError) as caught:
        store.get_range("k", 8, 3)
    assert caught.value.end == 10 and counted.calls == 2
    for start in (8, 9, 10, 4000):
        with pytest.raises(CutShortError, match="cut short"):
            store.get_range("k", start, 3)
    assert counted.calls == 2
    assert store.get_range("k", 7, 3) == b"789" and store.get_range("k", 10, 0) == b""
    inner.delete("k")
    inner.put_if_absent("k", b"0123456789ab")  # somebody has put the whole object back
    time.now += 31
    assert store.get_range("k", 8, 3) == b"89a"


class BreaksOff(Wrapper):
    """Listings that break after every third row, in the order that `mixed` makes of them."""

    def __init__(self, inner: StoreBackend, *, ordered: bool) -> None:
        super().__init__(inner)
        self.ordered_listing = ordered
        self.times = 0

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        rows = [*self.inner.list(prefix, start_after)]
        if not self.ordered_listing:
            rows = rows[::2] + rows[1::2]
        self.times += 1
        for number, row in enumerate(rows):
            if number == 3 * (1 if self.ordered_listing else self.times):
                raise NoAnswer("broke off")
            yield row


@pytest.mark.parametrize("ordered", [True, False])
def test_a_listing_that_breaks_off_is_continued(ordered: bool) -> None:
    inner = MemoryStore()
    for number in range(20):
        inner.put_if_absent(f"k/{number:02}", b"")
    store = BreaksOff(inner, ordered=ordered)
    found = [item.key for item in retrying(store).list("k/", "k/01")]
    assert sorted(found) == [f"k/{number:02}" for number in range(2, 20)]
    assert len(set(found)) == len(found)
    assert store.times > 5


TRANSIENT = [
    Kind.LOST_ANSWER,
    Kind.NEVER_ARRIVED,
    Kind.REFUSED,
    Kind.ERROR_500,
    Kind.ERROR_500_AFTER,
    Kind.ERROR_503,
]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=12),
    st.dictionaries(st.integers(1, 40), st.sampled_from(TRANSIENT), max_size=12),
)
def test_won_means_that_ones_own_bytes_are_there(
    writes: list[tuple[str, int]], faults: dict[int, Kind]
) -> None:
    """Whatever fails on the way: WON exactly where the key holds the writer's bytes, and then for good."""
    inner = MemoryStore()
    faulty = Faulty(inner, {number: Fault(kind) for number, kind in faults.items()})
    store = retrying(faulty)
    first: dict[str, bytes] = {}
    for key, value in writes:
        data = b"%d" % value
        try:
            won = store.put_if_absent(key, data) is PutResult.WON
        except Unreachable:  # so many faults in a row are a store that is away: it may be there or not
            if any(item.key == key for item in inner.list("")):
                first.setdefault(key, inner.get(key))
            continue
        assert won == (inner.get(key) == data)
        assert first.setdefault(key, data) == inner.get(key)


class Slow(Wrapper):
    """Passes `seconds` in each request, and lets the watcher look before and after the limit."""

    def __init__(self, inner: StoreBackend, time: Time) -> None:
        super().__init__(inner)
        self.time = time
        self.looked: list[float] = []

    def _pass(self) -> None:
        for seconds in (SILENT - 0.1, 0.1):
            self.time.now += seconds
            self.looked.append(self.watched.look())

    watched: Retrying

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        self._pass()
        return self.inner.get(key, limit)

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        self._pass()
        return self.inner.get_range(key, start, length)

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        self._pass()
        return self.inner.put_if_absent(key, data)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        self._pass()
        yield from self.inner.list(prefix, start_after)


@pytest.mark.parametrize("call", ["get", "get_range", "put", "list"])
def test_a_person_is_told_what_is_waited_for(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Periodic, "start", lambda watch: None)  # the test looks by itself
    inner = MemoryStore()
    inner.put_if_absent("k", bytes(9))
    time, said = Time(), list[str]()
    slow = Slow(inner, time)
    store = Retrying(slow, clock=time.clock, sleep=time.sleep, notice=said.append)
    slow.watched = store
    assert store.look() == 1.0
    calls = {
        "get": lambda: store.get("k"),
        "get_range": lambda: store.get_range("k", 0, 3),
        "put": lambda: store.put_if_absent("new", b"x"),
        "list": lambda: list(store.list("")),
    }
    calls[call]()
    store.close()
    assert slow.looked == [1.0, NEVER]
    assert said == [f"waiting for {inner.url}: no usable answer for 4 s"]
    assert store.look() == 1.0 and len(said) == 1  # nothing is under way


def test_a_large_transfer_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Periodic, "start", lambda watch: None)
    inner, time, said = MemoryStore(), Time(), list[str]()
    pack = f"{PACK_PREFIX}00/x"
    inner.put_if_absent(pack, bytes(1 << 20))
    slow = Slow(inner, time)
    slow.watched = store = Retrying(slow, clock=time.clock, sleep=time.sleep, notice=said.append)
    store.get(pack)
    store.get_range(pack, 0, 1 << 20)
    store.put_if_absent("new", bytes(1 << 20))
    assert set(slow.looked) == {1.0} and not said
