"""Reading refs: listings, reading back what was written, and erased datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import msgspec

from dsv.errors import Conflict, Denied, IntegrityError, NotFound, OutcomeUnknown, Unreachable
from dsv.format import envelope, keys
from dsv.format.records import BranchRule, DatasetErased, ExpiryEntry, FormatEntry, RefEntry, TagValue
from dsv.repo.errors import ONE_WINS_AGAIN, record_or_none
from dsv.values.units import format_time

if TYPE_CHECKING:
    from dsv.stores.base import StoreBackend
    from dsv.values.names import DatasetName


R = TypeVar("R")


def read_named(
    decode: Callable[[bytes], R],
    store: StoreBackend,
    key: str,
    kind: str,
    names: dict[str, object],
    *,
    older: bool = False,
) -> R | None:
    """Return the record under a key, or None. Raises `IntegrityError` if it was written for another key.

    names: the members that say for which key. older: the record may lack them.
    """

    def checked(data: bytes) -> R:
        record = decode(data)
        carried = [getattr(record, name) for name in names]
        if carried != [*names.values()] and not (older and carried[0] is None):
            of = (
                " ".join(map(str, carried)) if carried[0] is not None else "a store that keeps no names in it"
            )
            wanted = " ".join(map(str, names.values()))
            raise envelope.damaged(kind, f"it was written for {of}, not for {wanted}")
        return record

    return record_or_none(checked, store, key)


def gone(dataset: DatasetName, found: DatasetErased, url: str) -> NotFound:
    """Return the error for reading an erased dataset."""
    if found.successor is None:
        hint = "it does not come back; dsv datasets lists what is there"
    else:
        hint = f"what could stay is in {found.successor}: dsv log {found.successor}"
    return NotFound(_sentence(dataset, found, url), subject=dataset, hint=hint)


def never_again(dataset: DatasetName, found: DatasetErased, url: str) -> Conflict:
    """Return the error for creating a dataset with the name of an erased one."""
    return Conflict(
        f"{_sentence(dataset, found, url)}, and its name is not used again",
        subject=dataset,
        hint="choose another name",
    )


def _sentence(dataset: DatasetName, found: DatasetErased, url: str) -> str:
    why = "".join(f": {line}" for line in found.message.splitlines()[:1])
    return f"dataset {dataset} was erased from {url} ({format_time(found.time_ms)}{why})"


# The most rows that are read past to find the next name: a page of most stores. For more, a new listing is cheaper.
_PASSED = 1000


class ListedBranch(msgspec.Struct, frozen=True):
    """A branch's newest move in a listing, which may lag behind."""

    number: int | None
    """None without a move."""
    ordered: bool
    """The listing was sorted by key."""
    alone: bool = False
    """The listing lacks the move before it."""
    rule: int | None = None
    """The number of the branch's newest rule, if it has one."""


def latest(listed: Iterable[str], ordered: bool) -> ListedBranch:
    """Return the newest of these moves, whether the one before it is listed too, and the newest rule. Takes
    no more keys than it needs."""
    rules: list[int] = []

    def moves() -> Iterator[int]:
        for key in listed:
            if (move := keys.parse_branch_key(key)) is not None:
                yield move[2]
            elif (rule := keys.parse_branch_rule_key(key)) is not None:
                rules.append(rule[2])

    two = list(islice(moves(), 2)) if ordered else nlargest(2, moves())
    rule = max(rules, default=None)
    if not two:
        return ListedBranch(None, ordered, rule=rule)
    return ListedBranch(two[0], ordered, two[0] > 0 and two[1:] != [two[0] - 1], rule)


def parts(store: StoreBackend, prefix: str) -> dict[str, list[str]]:
    """Return the next components below a prefix, by name, each with its two smallest keys and, besides, the
    smallest key of a branch's rule."""
    by_name: dict[str, list[str]] = {}

    def add(key: str) -> bool:
        """Keep the key if it is one of those, and return whether it is. Keys arrive sorted."""
        kept = by_name.setdefault(_part(prefix, key), [])
        is_rule = keys.parse_branch_rule_key(key) is not None
        alike = [old for old in kept if (keys.parse_branch_rule_key(old) is not None) == is_rule]
        if len(alike) < (1 if is_rule else 2):
            kept.append(key)
            return True
        return False

    if not store.ordered_listing:
        for key in sorted(item.key for item in store.list(prefix)):
            add(key)
        return by_name
    after: str | None = None
    while True:
        passed = 0
        for item in store.list(prefix, start_after=after):
            passed = 0 if add(item.key) else passed + 1
            if passed >= _PASSED:
                after = f"{prefix}{_part(prefix, item.key)}0"  # "0" follows "/": skips all below the part
                break
        else:
            return by_name


def _part(prefix: str, key: str) -> str:
    return key[len(prefix) :].split("/", 1)[0]


Signed = BranchRule | ExpiryEntry | FormatEntry | RefEntry | TagValue
"""A record whose nonce distinguishes its writer from every other."""


def check_kept(read: Callable[[], Signed | None], url: str, key: str, what: str, entry: Signed) -> None:
    """Raises `IntegrityError` if the store has another record: then it let two writers win, and the record of
    the other writer replaced this one.

    what: what was written, for a message.
    """
    try:
        kept = read()
    except (Unreachable, Denied, IntegrityError) as error:
        raise OutcomeUnknown(
            f"{what} may have been published in {url}, but it could not be read back: {error.message}",
            subject=key,
            hint="run the same command again: it finds out by itself",
        ) from error
    if kept is None or kept.nonce != entry.nonce:
        raise changed(url, key, what, kept)


def changed(url: str, key: str, what: str, now: Signed | None) -> IntegrityError:
    """Return the error for a key that was won and read, and has other bytes now."""
    how = "has vanished" if now is None else f"was overwritten by one of {now.author}"
    return IntegrityError(
        f"{url} no longer lets one writer win: {what} {how} ({key})", subject=key, hint=ONE_WINS_AGAIN
    )
