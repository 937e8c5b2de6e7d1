"""The store that fails on purpose fails as planned, and no other way."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from dsv.errors import IntegrityError
from dsv.stores.base import Busy, NoAnswer, PutResult, StoreBackend
from dsv.stores.memory import MemoryStore
from tests.stores.faulty import Crash, Fault, Faulty, Kind, Operation

CALLS: dict[Operation, Callable[[StoreBackend], object]] = {
    Operation.GET: lambda store: store.get("there"),
    Operation.RANGE: lambda store: store.get_range("there", 0, 4),
    Operation.PUT: lambda store: store.put_if_absent("new", b"x"),
    Operation.LIST: lambda store: list(store.list("")),
    Operation.DELETE: lambda store: store.delete("there"),
}
BEFORE = {
    Kind.CRASH_BEFORE: Crash,
    Kind.NEVER_ARRIVED: NoAnswer,
    Kind.REFUSED: NoAnswer,
    Kind.ERROR_500: Busy,
    Kind.ERROR_503: Busy,
}
AFTER = {Kind.CRASH_AFTER: Crash, Kind.LOST_ANSWER: NoAnswer, Kind.ERROR_500_AFTER: Busy}


def filled() -> MemoryStore:
    store = MemoryStore()
    store.put_if_absent("there", b"0123")
    return store


@pytest.mark.parametrize("operation", list(Operation))
@pytest.mark.parametrize(("kind", "error"), [*BEFORE.items(), *AFTER.items()])
def test_fails_before_or_after_the_effect(
    operation: Operation, kind: Kind, error: type[BaseException]
) -> None:
    inner = filled()
    with pytest.raises(error):
        CALLS[operation](Faulty(inner, {1: Fault(kind)}))
    had_effect = [item.key for item in inner.list("")] != ["there"]
    assert had_effect == (kind in AFTER and operation in (Operation.PUT, Operation.DELETE))


def test_fails_the_nth_call_and_no_other() -> None:
    store = Faulty(MemoryStore(), {3: Fault(Kind.ERROR_503)})
    for number in range(1, 6):
        if number == 3:
            with pytest.raises(Busy):
                store.put_if_absent(f"k{number}", b"")
        else:
            assert store.put_if_absent(f"k{number}", b"") is PutResult.WON
    assert store.calls == 5
    assert store.log[2] == (Operation.PUT, "k3")


def test_only_the_given_operations_are_counted() -> None:
    store = Faulty(filled(), {1: Fault(Kind.ERROR_503)}, only=[Operation.PUT])
    assert store.get("there") == b"0123"
    with pytest.raises(Busy):
        store.put_if_absent("k", b"")
    assert store.log == [(Operation.PUT, "k")]


@pytest.mark.parametrize("kind", [Kind.CRASH_BEFORE, Kind.CRASH_AFTER])
@pytest.mark.parametrize("operation", list(Operation))
def test_after_a_crash_nothing_reaches_the_store(kind: Kind, operation: Operation) -> None:
    inner = filled()
    store = Faulty(inner, {1: Fault(kind)}, only=[Operation.GET])
    with pytest.raises(Crash):
        store.get("there")
    with pytest.raises(Crash):
        CALLS[operation](store)
    assert [item.key for item in inner.list("")] == ["there"]


def test_a_crash_is_no_error_that_a_handler_would_catch() -> None:
    assert not issubclass(Crash, Exception)


def test_bodies_that_are_cut_short() -> None:
    with pytest.raises(IntegrityError, match="cut short"):
        Faulty(filled(), {1: Fault(Kind.TRUNCATED)}).get("there")
    for kind in (Kind.TRUNCATED, Kind.SHORT):
        with pytest.raises(IntegrityError, match="cut short"):
            Faulty(filled(), {1: Fault(kind)}).get_range("there", 0, 4)
    assert Faulty(filled(), {1: Fault(Kind.SHORT)}).get("there") == b"01"


def test_a_flipped_bit() -> None:
    store = Faulty(filled(), always=Fault(Kind.FLIPPED))
    assert store.get("there") == b"0133"
    assert store.get_range("there", 1, 1) == b"0"


def test_a_slow_answer_comes_all_the_same() -> None:
    begin = time.monotonic()
    assert Faulty(filled(), {1: Fault(Kind.SLOW, 0.05)}).get("there") == b"0123"
    assert time.monotonic() - begin >= 0.05
