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

from dsv.errors import DsvError, IntegrityError, NoStore, NotFound, Unreachable

#: Contiguous bytes to store. A store reads them during the call and does not keep them.
Bytes: TypeAlias = bytes | bytearray | memoryview

MAX_KEY_LENGTH: Final = 900
"""Keys with their store's own prefix stay below the 1,024 bytes that S3 and GCS allow."""

KEY_CHARACTERS: Final = "".join(sorted(string.ascii_letters + string.digits + "._%+=@~,!-"))
"""The characters of a key's components, in byte order."""

LARGEST: Final = 128 << 20
"""The most bytes that `get` reads unless its caller says otherwise: no pack is larger."""

_COMPONENT: Final = r"[A-Za-z0-9_%+=@~,!-][A-Za-z0-9._%+=@~,!-]{0,254}"
_KEY: Final = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*\Z")
_ONE_COMPONENT: Final = re.compile(rf"{_COMPONENT}\Z")
_PREFIX: Final = re.compile(rf"(?:{_COMPONENT}/)*(?:{_COMPONENT})?\Z")


_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")


class PutResult(Enum):
    """The result of a put-if-absent. A lost race is an ordinary result."""

    WON = "won"
    LOST = "lost"


class ListedObject(msgspec.Struct, frozen=True):
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
    """A body that ended before it should have: at offset `end` of its object, or before it."""

    def __init__(self, message: str, *, subject: str, end: int) -> None:
        super().__init__(message, subject=subject)
        self.end = end


class TooLargeError(IntegrityError):
    """An object with more bytes than one of its kind can have."""


class StoreMissing(NoStore):
    """The bucket or container itself is absent. This must not be mistaken for an absent key."""


@runtime_checkable
class StoreBackend(Protocol):
    """Named bytes. Implementations may be used from many threads at once.

    Every method raises `Unreachable` if the store does not answer, `Denied` if it refuses, and `StoreMissing`
    if its bucket is absent. Keys that `check_key` refuses raise ValueError.
    """

    url: str
    """The store's URL as a user would write it, without a credential."""

    ordered_listing: bool
    """True if `list` yields keys in ascending byte order. A caller that knows better may set it."""

    conditional: bool
    """True if the server supports the condition of a put-if-absent. If set to False, an object store
    overwrites. If the first bytes of a key must stay (`keys.first_stays`), it first looks whether the key
    exists: safe for a single writer, and for all other keys."""

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        """Return the whole object. Raises NotFound, and TooLargeError if it has more than `limit` bytes.

        It takes memory for at most `limit` bytes, whatever size is reported.
        """
        ...

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        """Return exactly `length` bytes from offset `start`, read-only and owned by the caller.

        Raises NotFound, and CutShortError if the object ends before that. A length of 0 sends no request.
        """
        ...

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        """Create the object unless the key exists. Atomic, and durable when it returns WON.

        Raises NoRoom, and OutcomeUnknown if the answer was lost and could not be read back.
        """
        ...

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        """Yield objects whose key begins with `prefix` (of any key characters) and is > `start_after`."""
        ...

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the next component of every key below `prefix`, if another one follows it: sorted, each
        once. `prefix` is empty or ends with a slash. Sends one request per 1,000 components, not per key.

        A folder store may return a component below which no key exists any more, or yet.
        """
        ...

    def modified(self, key: str) -> float:
        """Return when the object was made, in seconds since 1970 by the store's clock. Raises NotFound."""
        ...

    def delete(self, key: str) -> None:
        """Delete the object, which may be absent."""
        ...

    def free_bytes(self) -> int | None:
        """Return the room for further objects, in bytes; None if unknown."""
        ...

    def close(self) -> None:
        """Close connections and descriptors. The store is not used afterwards."""
        ...


def forwarded(place: str, name: str) -> Any:
    """Return a property that forwards to the store in attribute `place`: for stores that wrap others."""

    def change(self: object, value: object) -> None:
        setattr(getattr(self, place), name, value)

    return property(lambda self: getattr(getattr(self, place), name), change)


def check_key(key: str) -> str:
    """Return `key` if it is one: ASCII components joined by `/`, none of which begins with a dot.

    Raises ValueError. This keeps keys inside the store's folder, so every store calls it.
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
    """Return `prefix` if it is empty or names a folder and ends with a slash. Raises ValueError."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"{prefix!r} is not a folder of store keys")
    return check_prefix(prefix)


def is_component(name: str) -> bool:
    """Return whether a file or folder of this name may be part of a key."""
    return _ONE_COMPONENT.match(name) is not None


def check_range(start: int, length: int) -> None:
    """Raises ValueError for a negative start or length."""
    if start < 0 or length < 0:
        raise ValueError(f"a range of {length} bytes from {start} makes no sense")


def absent(url: str, key: str) -> NotFound:
    """Return the error for a key that is not there."""
    return NotFound(f"{key} is not in {url}", subject=key)


def parsed(parse: Callable[[str], _A | None], listed: Iterable[ListedObject]) -> Iterator[_A]:
    """Yield the parsed keys of a listing. Other keys, which another program has written, are left out."""
    return (found for item in listed if (found := parse(item.key)) is not None)


def listed_size(store: StoreBackend, key: str) -> int | None:
    """Return the size of an object in bytes, by a listing; None if it is absent."""
    return next((item.size for item in store.list(key) if item.key == key), None)


def if_there(read: Callable[[], _T], *also: type[DsvError]) -> _T | None:
    """Return what is read; None if it is absent, or for another of these errors. Raises `StoreMissing`."""
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
    """Return the error for an object that ended before the requested range."""
    return CutShortError(
        f"{key} in {url} was cut short: {wanted} bytes were asked for from offset {start}, {got} came",
        subject=key,
        end=start + got,
    )


_CONNECTIONS: Final = 16
_this_thread: Final = threading.local()  # `busy`: the most requests allowed are already under way


def both(one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
    """Make two calls at the same time, and return both results. Raises the error of `one`, else of `other`.

    Both have ended then, except after a signal. If a large `together` runs this, one is made after the other,
    to limit the requests under way.
    """
    if getattr(_this_thread, "busy", False):
        return one(), other()
    answers: list[Any] = _ask([one, other], first_failure_ends=False)
    return answers[0], answers[1]


def together(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """Like `both`, with any number of calls. After a failure no further one is begun."""
    return [call() for call in calls] if len(calls) < 2 else _ask(calls, first_failure_ends=True)


def ask_each(ask: Callable[[_T], _A], about: Iterable[_T], at_once: int = 128) -> Iterator[tuple[_T, _A]]:
    """Call `ask` for each item, for `at_once` of them at a time. Yield items and answers, in order."""
    for some in batches(about, at_once):
        yield from zip(some, together([partial(ask, one) for one in some]), strict=True)


def batches(many: Iterable[_T], count: int) -> Iterator[list[_T]]:
    """Yield lists of `count` consecutive items; the last one may be shorter."""
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

    # As daemons, because the exit must not wait for a request that a signal has abandoned.
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
    """Return the threads that could be started: fewer if the system grants no more."""
    started = []
    for thread in threads:
        try:
            thread.start()
        except RuntimeError:  # "can't start new thread"
            break
        started.append(thread)
    return started
