"""Proving that a store does what dsv needs, before it is used.

A server may let two writers win only while it is busy. So the thorough test (`race`) uses several processes.
"""

from __future__ import annotations

import multiprocessing
import random
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from queue import Empty
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dsv.errors import Denied, DsvError, Unreachable, Unsupported
from dsv.format.keys import PROBE_PREFIX
from dsv.stores.base import PutResult, StoreBackend, if_there, together
from dsv.stores.open import open_store
from dsv.stores.options import StoreOptions

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

WRITERS: Final = 16
ROUNDS: Final = 6
_SIZES: Final = (64, 64 * 1024)
"""Bytes per value, in turn: a longer body leaves a server more time between its check and its write."""
_LISTED: Final = ("a", "B", "a-b", "a.b", "b/c/d", "0010", "009", "_", "~", "z%2Fz", "y")


class Proof(msgspec.Struct, frozen=True):
    """The result of a proof. `findings` are clauses for a message, empty if all is well."""

    put_if_absent_ok: bool
    """Each time exactly one of many writers of a key won, and the key has its bytes."""
    listing_ok: bool
    """A listing had exactly what had just been written."""
    ordered: bool
    """Listings were in ascending key order, and began where requested."""
    findings: tuple[str, ...] = ()
    unsupported: bool = False
    """The server refuses the condition of a put-if-absent, so no race was run."""

    @property
    def ok(self) -> bool:
        """True if several writers may use the store. Order is not needed for that."""
        return self.put_if_absent_ok and self.listing_ok


def prove(store: StoreBackend, *, writers: int = WRITERS, rounds: int = ROUNDS) -> Proof:
    """Race `writers` threads for `rounds` keys, list, and delete. Raises what the store raises.

    Keys that may not be deleted, because the bucket allows no deletion, are left under `probe/`.
    """
    with _probe_folder(store) as (folder, written):
        try:
            with ThreadPoolExecutor(writers) as pool:
                raced = [_race(store, pool, folder, written, number, writers) for number in range(rounds)]
        except Unsupported as error:
            return Proof(False, False, False, (error.message,), unsupported=True)
        race_keys = list(written)
        listing_ok, ordered, seen = _list(store, folder, written)
        stored = together([partial(store.get, key) for key in race_keys])
    findings = [finding for finding, _ in raced if finding]
    if not findings and [winner for _, winner in raced] != stored:
        findings = ["the bytes of a writer that had won were replaced later"]
    return Proof(not findings, listing_ok, ordered, tuple(dict.fromkeys([*findings, *seen])))


def prove_data(store: StoreBackend, *, writers: int = WRITERS) -> tuple[str, ...]:
    """Return the reasons why a store can't hold data whose names are elsewhere; empty if there is none.

    Many threads write and read back: whole, in ranges, and in a listing. Raises what the store raises.
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


def same_place(one: StoreBackend, other: StoreBackend) -> bool:
    """Return whether what is written to one store appears in the other, whatever their URLs are."""
    with _probe_folder(one) as (folder, written):
        key = f"{folder}same"
        written.append(key)
        one.put_if_absent(key, b"same")
        return if_there(partial(other.get, key)) is not None


@contextmanager
def _probe_folder(store: StoreBackend) -> Iterator[tuple[str, list[str]]]:
    """Yield a prefix of its own, and a list for the keys below it, which are deleted at the end."""
    written: list[str] = []
    try:
        yield f"{PROBE_PREFIX}{secrets.token_hex(8)}/", written
    finally:
        with suppress(Denied):
            for key in written:
                store.delete(key)


def _race(
    store: StoreBackend, pool: ThreadPoolExecutor, folder: str, written: list[str], number: int, writers: int
) -> tuple[str, bytes]:
    """Let many writers put one key at once, then one more. Return what went wrong, and the winner's bytes."""
    key = f"{folder}race/{number}"
    written.append(key)
    size = _SIZES[number % len(_SIZES)]
    values = [secrets.token_bytes(16) + bytes(size - 16) for _ in range(writers)]
    start = threading.Barrier(writers)

    def write(value: bytes) -> PutResult:
        start.wait(timeout=60)
        return store.put_if_absent(key, value)

    results = list(pool.map(write, values))
    winners = [value for value, put in zip(values, results, strict=True) if put is PutResult.WON]
    if len(winners) != 1:
        return f"of {writers} writers of one key {len(winners)} were reported as winners", b""
    if store.get(key) != winners[0]:
        return "the bytes of the writer that won were replaced by another's", b""
    if store.put_if_absent(key, b"late") is not PutResult.LOST or store.get(key) != winners[0]:
        return "a key that existed was written again", b""
    return "", winners[0]


def _list(store: StoreBackend, folder: str, written: list[str]) -> tuple[bool, bool, list[str]]:
    """Return whether a listing shows what was just written, whether in order, and what went wrong."""
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


PROCESSES: Final = 4
THREADS: Final = 4
KEYS: Final = 48
_SIZE: Final = 4096
_SECONDS: Final = 120.0


def race(store: StoreBackend, options: StoreOptions, *, keys: int = KEYS) -> tuple[str, ...]:
    """Return what went wrong when many writers in several processes put the same keys; empty if each key has
    one winner and its bytes. Raises `Denied` or `Unreachable` if a process could not use the store.

    store: open here; the other processes open it by its URL with `options`.
    """
    folder = f"{PROBE_PREFIX}{secrets.token_hex(8)}/load/"
    names = [f"{folder}{number:04d}" for number in range(keys)]
    try:
        won = _run(store.url, options, names)
        stored = together([partial(store.get, name) for name in names])
    finally:
        with suppress(Denied):
            together([partial(store.delete, name) for name in names])
    findings = set()
    for name, data in zip(names, stored, strict=True):
        winners = won.get(name, [])
        if len(winners) != 1:
            findings.add(
                f"of {PROCESSES * THREADS} writers of one key in {PROCESSES} processes {len(winners)} were told that "
                "they had won"
            )
        elif data != _value(winners[0], name):
            findings.add("the bytes of the writer that won were replaced by another's")
    return tuple(sorted(findings))


def _run(url: str, options: StoreOptions, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the writers that have won each key."""
    spawn = multiprocessing.get_context("spawn")
    start, results = spawn.Barrier(PROCESSES), spawn.Queue()
    shared = url, options, names, start, results
    racers = [spawn.Process(target=_write, args=(*shared, str(me)), daemon=True) for me in range(PROCESSES)]
    won: dict[str, list[str]] = {}
    try:
        for racer in racers:
            racer.start()
        for _ in racers:
            found = results.get(timeout=_SECONDS)
            if isinstance(found, DsvError):
                kind = Denied if isinstance(found, Denied) else Unreachable
                raise kind(f"a writer of the test of {url} failed: {found.message}", subject=url)
            for name, who in found:
                won.setdefault(name, []).append(who)
    except Empty:
        raise Unreachable(f"the test of {url} took more than {_SECONDS:.0f} s", subject=url) from None
    finally:
        for racer in racers:
            if racer.pid is not None:
                racer.kill()
                racer.join()
    return won


def _value(who: str, name: str) -> bytes:
    return f"{who} {name} ".encode().ljust(_SIZE, b".")


def _write(
    url: str, options: StoreOptions, names: Sequence[str], start: Barrier, results: Queue[Any], me: str
) -> None:
    """Write all keys in a process of its own, when the others are ready too, and send those that were won."""
    try:
        with closing(open_store(url, options)) as store:
            next(iter(store.list(PROBE_PREFIX)), None)  # connected before the start
            start.wait(_SECONDS)

            def write(thread: int) -> list[tuple[str, str]]:
                who = f"{me}-{thread}"
                values = ((name, _value(who, name)) for name in names)
                return [
                    (name, who) for name, value in values if store.put_if_absent(name, value) is PutResult.WON
                ]

            with ThreadPoolExecutor(THREADS) as pool:
                results.put([pair for won in pool.map(write, range(THREADS)) for pair in won])
    except DsvError as error:
        results.put(error)
