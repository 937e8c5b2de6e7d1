"""What a listing says of branches: which there are, and which move of each is the newest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice

from dsv.model import keys
from dsv.store.base import Store

# So many rows are read past to find the next name, which is a page of most stores; beyond that a new listing is less.
_PASSED = 1000


@dataclass(frozen=True, slots=True)
class Listed:
    """A branch's newest move by a listing, which may lag behind. None: it has none. ordered: how it was listed.

    alone: the listing does not have the move before it.
    """

    number: int | None
    ordered: bool
    alone: bool = False


def latest(listed: Iterable[str], ordered: bool) -> Listed:
    """The newest of these moves, and whether the one before it is there too. Takes no more of them than it needs."""
    numbers = (number for key in listed if (number := keys.parse_branch_number(key)) is not None)
    two = list(islice(numbers, 2)) if ordered else nlargest(2, numbers)
    if not two:
        return Listed(None, ordered)
    return Listed(two[0], ordered, two[0] > 0 and two[1:] != [two[0] - 1])


def parts(store: Store, prefix: str) -> dict[str, list[str]]:
    """The next components below a prefix, by name, each with the two smallest keys that begin with it."""
    found: dict[str, list[str]] = {}
    if not store.ordered_listing:
        for item in sorted(store.list(prefix), key=lambda item: item.key):
            listed = found.setdefault(item.key[len(prefix) :].split("/", 1)[0], [])
            listed += [item.key] if len(listed) < 2 else []
        return found
    after: str | None = None
    while True:
        passed = 0
        for item in store.list(prefix, start_after=after):
            part = item.key[len(prefix) :].split("/", 1)[0]
            if part not in found:
                found[part], passed = [item.key], 0
            elif len(found[part]) < 2:
                found[part].append(item.key)
            elif (passed := passed + 1) >= _PASSED:
                after = f"{prefix}{part}0"  # "0" follows "/": behind all that lies below the part
                break
        else:
            return found
