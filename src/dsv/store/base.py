"""The store protocol: named bytes that are written once and never changed; and several requests at once."""

from __future__ import annotations

import re
import string
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from dsv.errors import DsvError, IntegrityError, NotFound, Unreachable

#: What may be given to a store: contiguous bytes, which it reads during the call and does not keep.
Bytes: TypeAlias = bytes | bytearray | memoryview

MAX_KEY_LENGTH: Final = 900
"""Keys with their store's own prefix stay below the 1,024 bytes that S3 and GCS allow."""

KEY_CHARACTERS: Final = "".join(sorted(string.ascii_letters + string.digits + "._%+=@~,!-"))
"""The characters of a key's components, in byte order."""

LARGEST: Final = 128 << 20
"""Bytes that `get` reads of one object unless its caller says otherwise: no pack is larger."""

_COMPONENT: Final = r"[A-Za-z0-9_%+=@~,!-][A-Za-z0-9._%+=@~,!-]{0,254}"
_KEY: Final = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*\Z")
_ONE_COMPONENT: Final = re.compile(rf"{_COMPONENT}\Z")
_PREFIX: Final = re.compile(rf"(?:{_COMPONENT}/)*(?:{_COMPONENT})?\Z")


_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")


class Put(Enum):
    """The result of a put-if-absent. A lost race is an ordinary one."""

    WON = "won"
    LOST = "lost"


class Item(msgspec.Struct, frozen=True):
    """One row of a listing: the key, and its object's size in bytes."""

    key: str
    size: int


class NoAnswer(Unreachable):
    """The store could not be reached, or did not answer in time.

    `maybe_done` is false only where the request certainly never arrived (refused, no such host).
    """

    def __init__(
        self, message: str, *, subject: str | None = None, hint: str | None = None, maybe_done: bool = True
    ) -> None:
        super().__init__(message, subject=subject, hint=hint)
        self.maybe_done = maybe_done


class Busy(NoAnswer):
    """The store answered that it cannot serve now: 500, 503, 429 and the like."""


class CutShortError(IntegrityError):
    """A body that ended before it should have."""


class TooLargeError(IntegrityError):
    """An object with more bytes than one of its kind can have."""


class StoreMissing(NotFound):
    """The bucket or container itself is absent, which an absent key must not be mistaken for."""


@runtime_checkable
class Store(Protocol):
    """Named bytes. Implementations may be used from many threads at once.

    Every method raises `Unreachable` where the store does not answer, `Denied` where it refuses, and
    `StoreMissing` where its bucket is absent; keys that `check_key` refuses raise ValueError.
    """

    url: str
    """The store as a person would name it, without a credential."""

    ordered_listing: bool
    """True if `list` yields keys in ascending byte order. A caller that has learnt better may set it."""

    conditional: bool
    """True if the server takes the condition of a put-if-absent. If it is set to False, an object store overwrites,
    and looks before it does so if the first bytes of the key are to stay (`keys.first_stays`): right for one writer
    alone, and for all other keys."""

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        """Return the whole object. Raises NotFound, and TooLargeError if it has more than `limit` bytes.

        It takes memory for `limit` bytes at most, whatever the object's size is said to be.
        """
        ...

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        """Exactly `length` bytes from offset `start`, read-only and owned by the caller.

        Raises NotFound, and CutShortError where the object ends before `start + length`. A length of 0 is
        answered without a request.
        """
        ...

    def put_if_absent(self, key: str, data: Bytes) -> Put:
        """Create the object unless the key exists; atomic, durable when it returns WON.

        Raises NoRoom, and OutcomeUnknown where the answer was lost and could not be read back.
        """
        ...

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[Item]:
        """Objects whose key begins with `prefix` (any string of key characters) and is > `start_after`."""
        ...

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the next component of every key below `prefix`, which is empty or ends with a slash, if another
        follows it: sorted, each once. However much lies below them, it takes a request for each 1,000 of them.

        In a folder one may be named below which there is nothing any more, or nothing yet.
        """
        ...

    def modified(self, key: str) -> float:
        """Return when the object was made, in seconds since 1970 by the store's clock. Raises NotFound."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; an absent one is fine."""
        ...

    def free_bytes(self) -> int | None:
        """Room for further objects, in bytes; None where that cannot be known."""
        ...

    def close(self) -> None:
        """Give up connections and descriptors. The store is not used afterwards."""
        ...


def forwarded(place: str, name: str) -> Any:
    """Return a property that is what another store has, which `place` is: for stores around others."""

    def change(self: object, value: object) -> None:
        setattr(getattr(self, place), name, value)

    return property(lambda self: getattr(getattr(self, place), name), change)


def check_key(key: str) -> str:
    """Return `key` if it is one: ASCII components joined by `/`, none of which begins with a dot.

    Raises ValueError. This is what keeps a key from leaving the store's folder, so every store calls it.
    """
    if len(key) > MAX_KEY_LENGTH or not _KEY.match(key):
        raise ValueError(f"{key!r} is not a store key")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if it is the beginning of a key, the empty string included. Raises ValueError."""
    if len(prefix) > MAX_KEY_LENGTH or not _PREFIX.match(prefix):
        raise ValueError(f"{prefix!r} is not the beginning of a store key")
    return prefix


def check_folder(prefix: str) -> str:
    """Return `prefix` if it is empty or names a folder, with the slash behind it. Raises ValueError."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"{prefix!r} is not a folder of store keys")
    return check_prefix(prefix)


def is_component(name: str) -> bool:
    """Return whether a file or folder of this name may be part of a key."""
    return _ONE_COMPONENT.match(name) is not None


def check_range(start: int, length: int) -> None:
    """Raise ValueError for a negative start or length."""
    if start < 0 or length < 0:
        raise ValueError(f"a range of {length} bytes from {start} makes no sense")


def absent(url: str, key: str) -> NotFound:
    """Return the error for a key that is not there."""
    return NotFound(f"{key} is not in {url}", subject=key)


def parsed(parse: Callable[[str], _A | None], listed: Iterable[Item]) -> Iterator[_A]:
    """Yield what the keys of a listing say; others than those that can be parsed were put there by somebody else."""
    return (found for item in listed if (found := parse(item.key)) is not None)


def listed_size(store: Store, key: str) -> int | None:
    """Return the bytes of an object, by a listing; None if there is none."""
    return next((item.size for item in store.list(key) if item.key == key), None)


def if_there(read: Callable[[], _T], *also: type[DsvError]) -> _T | None:
    """Return what is read; None if it is not there, or for another of these errors. Raises `StoreMissing`."""
    try:
        return read()
    except StoreMissing:
        raise
    except NotFound:
        return None
    except also:
        return None


def too_large(url: str, key: str, limit: int) -> TooLargeError:
    """Return the error for an object that has more than `limit` bytes."""
    return TooLargeError(
        f"{key} in {url} has more than the {limit} bytes that it may have",
        subject=key,
        hint=f"put {key} back from a copy of the store, then run the same command again",
    )


def cut_short(url: str, key: str, start: int, wanted: int, got: int) -> CutShortError:
    """Return the error for an object that ended before the range that was asked of it."""
    return CutShortError(
        f"{key} in {url} was cut short: {wanted} bytes were asked for from offset {start}, {got} came",
        subject=key,
    )


_CONNECTIONS: Final = 16
_this_thread: Final = threading.local()  # `busy`: others have as many requests under way as there may be


def both(one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
    """Return what the two calls return, made at the same time. Raises what `one` raised, else what `other` did.

    Both have ended by then; only a signal does not wait for them. One after the other if it is called by one of so
    many of `together` that no more should be under way.
    """
    if getattr(_this_thread, "busy", False):
        return one(), other()
    answers: list[Any] = _ask([one, other], first_failure_ends=False)
    return answers[0], answers[1]


def together(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """As `both`, with any number of calls; after a failure no further one is begun."""
    if len(calls) < 2:
        return [call() for call in calls]
    return _ask(calls, first_failure_ends=True)


def ask_each(ask: Callable[[_T], _A], about: Iterable[_T], at_once: int = 128) -> Iterator[tuple[_T, _A]]:
    """Ask about each, about so many together, and yield it with the answer, in the same order."""
    for some in batches(about, at_once):
        yield from zip(some, together([partial(ask, one) for one in some]), strict=True)


def batches(many: Iterable[_T], count: int) -> Iterator[list[_T]]:
    """Yield lists of so many in a row; the last one may be shorter."""
    source = iter(many)
    while batch := list(islice(source, count)):
        yield batch


def _ask(calls: Sequence[Callable[[], Any]], *, first_failure_ends: bool) -> list[Any]:
    answers: dict[int, Any] = {}
    failures: dict[int, BaseException] = {}
    numbers = iter(range(len(calls)))
    stopped = threading.Event()

    def work() -> None:
        for number in numbers:
            if stopped.is_set():
                return
            try:
                answers[number] = calls[number]()
            except BaseException as error:  # noqa: BLE001 (it is raised by the caller's thread)
                failures[number] = error
                if first_failure_ends:
                    stopped.set()

    def begin() -> None:
        _this_thread.busy = len(calls) >= _CONNECTIONS
        work()

    # As daemons, since nothing waits at the exit for a request that a signal has left.
    threads = [threading.Thread(target=begin, daemon=True) for _ in calls[:_CONNECTIONS]]
    try:
        if started := _start(threads):
            for thread in started:
                thread.join()
        else:
            work()
    finally:
        stopped.set()  # a signal does not wait for the other calls
    if failures:
        raise failures[min(failures)]
    return [answers[number] for number in range(len(calls))]


def _start(threads: Sequence[threading.Thread]) -> list[threading.Thread]:
    """Return those that could be started: fewer where the system grants no more."""
    started = []
    for thread in threads:
        try:
            thread.start()
        except RuntimeError:  # "can't start new thread"
            break
        started.append(thread)
    return started
