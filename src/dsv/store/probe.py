"""Proving that a store does what dsv needs of it, before anything is entrusted to it.

Some servers accept the condition of a put-if-absent and ignore it, some honour it only while nobody races.
So writers do race here, for keys under `probe/`, which are deleted afterwards.
"""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import msgspec

from dsv.errors import Denied, NotFound, Unsupported
from dsv.format.keys import PROBE_PREFIX
from dsv.store.base import Put, Store, StoreMissing, together

WRITERS: Final = 16
ROUNDS: Final = 6
_SIZES: Final = (64, 64 * 1024)
"""Bytes per value, in turn: a longer body leaves a server more time between its check and its write."""
_LISTED: Final = ("a", "B", "a-b", "a.b", "b/c/d", "0010", "009", "_", "~", "z%2Fz", "y")


class Proof(msgspec.Struct, frozen=True):
    """What was found. `findings` are clauses for a message, empty where all is well."""

    put_if_absent_ok: bool
    """Of many writers of one key exactly one won, each time, and its bytes are what is there."""
    listing_ok: bool
    """A listing showed exactly what had just been written."""
    ordered: bool
    """Listings came in ascending key order, and began where they were asked to."""
    findings: tuple[str, ...] = ()
    unsupported: bool = False
    """The server refuses the condition of a put-if-absent, so nothing was raced."""

    @property
    def ok(self) -> bool:
        """Whether the store may be used by several writers. Order is not needed for that."""
        return self.put_if_absent_ok and self.listing_ok


def prove(store: Store, *, writers: int = WRITERS, rounds: int = ROUNDS) -> Proof:
    """Races `writers` threads for `rounds` keys, lists, and deletes. Raises what the store raises.

    What may not be deleted, as some buckets allow no deletion, is left under `probe/`.
    """
    with _probe_folder(store) as (folder, written):
        try:
            raced = [_race(store, folder, written, number, writers) for number in range(rounds)]
        except Unsupported as error:
            return Proof(False, False, False, (error.message,), unsupported=True)
        race_keys = list(written)
        listing_ok, ordered, seen = _list(store, folder, written)
        stored = together([partial(store.get, key) for key in race_keys])
    findings = [found.finding for found in raced if found.finding]
    if not findings and any(found.winner != data for found, data in zip(raced, stored, strict=True)):
        findings = ["the bytes of a writer that had won were replaced later"]
    return Proof(not findings, listing_ok, ordered, tuple(dict.fromkeys([*findings, *seen])))


def prove_data(store: Store, *, writers: int = WRITERS) -> tuple[str, ...]:
    """What keeps a store from holding data whose names are elsewhere; empty if nothing does.

    Many write at once, and read back what they wrote: whole, in ranges, and in a listing. Raises what the store raises.
    """
    with _probe_folder(store) as (folder, written):
        values = [secrets.token_bytes(_SIZES[number % len(_SIZES)]) for number in range(writers)]
        written += [f"{folder}data/{number}" for number in range(writers)]

        def write_and_read(key: str, value: bytes) -> str:
            store.put_if_absent(key, value)
            middle = len(value) // 2
            if store.get(key) != value:
                return "what was just written was read back differently"
            if bytes(store.get_range(key, middle, 16)) != value[middle : middle + 16]:
                return "a range of what was just written was read back differently"
            return ""

        with ThreadPoolExecutor(writers) as pool:
            seen = list(pool.map(write_and_read, written, values))
        _, _, listed = _list(store, folder, written)
    return tuple(dict.fromkeys(finding for finding in [*seen, *listed] if finding))


def same_place(one: Store, other: Store) -> bool:
    """Whether what is written to one store is there in the other, whatever both are called."""
    with _probe_folder(one) as (folder, written):
        key = f"{folder}same"
        written.append(key)
        one.put_if_absent(key, b"same")
        try:
            other.get(key)
        except StoreMissing:
            raise
        except NotFound:
            return False
    return True


@contextmanager
def _probe_folder(store: Store) -> Iterator[tuple[str, list[str]]]:
    """A prefix of its own, and a list of the keys below it, which are deleted at the end."""
    written: list[str] = []
    try:
        yield f"{PROBE_PREFIX}{secrets.token_hex(8)}/", written
    finally:
        with suppress(Denied):
            for key in written:
                store.delete(key)


class _Raced(msgspec.Struct, frozen=True):
    """finding: what went wrong, or nothing. winner: the bytes of who won."""

    finding: str
    winner: bytes = b""


def _race(store: Store, folder: str, written: list[str], number: int, writers: int) -> _Raced:
    """One key, many writers at once, then one more."""
    key = f"{folder}race/{number}"
    written.append(key)
    size = _SIZES[number % len(_SIZES)]
    values = [secrets.token_bytes(16) + bytes(size - 16) for _ in range(writers)]
    start = threading.Barrier(writers)

    def write(value: bytes) -> Put:
        start.wait(timeout=60)
        return store.put_if_absent(key, value)

    with ThreadPoolExecutor(writers) as pool:
        results = list(pool.map(write, values))
    winners = [value for value, put in zip(values, results, strict=True) if put is Put.WON]
    if len(winners) != 1:
        return _Raced(f"of {writers} writers of one key {len(winners)} were told that they had won")
    if store.get(key) != winners[0]:
        return _Raced("the bytes of the writer that won were replaced by another's")
    if store.put_if_absent(key, b"late") is not Put.LOST or store.get(key) != winners[0]:
        return _Raced("a key that existed was written again")
    return _Raced("", winners[0])


def _list(store: Store, folder: str, written: list[str]) -> tuple[bool, bool, list[str]]:
    """(whether a listing shows what was just written, whether in order, what went wrong)."""
    names = [f"{folder}list/{name}" for name in _LISTED]
    random.shuffle(names)
    for key in names:
        written.append(key)
        store.put_if_absent(key, b"listed")
    found = [item.key for item in store.list(folder)]
    expected = sorted(written)
    if sorted(found) != expected:
        missing = len(set(expected) - set(found))
        return False, False, [f"a listing lacked {missing} of {len(expected)} objects that were just written"]
    if found != expected:
        return True, False, []
    middle = expected[len(expected) // 2]
    behind = [item.key for item in store.list(folder, start_after=middle)]
    return True, behind == [key for key in expected if key > middle], []
