"""What a listing says of branches: which there are, which move of each is the newest, and whether it has a rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nlargest
from itertools import islice

import msgspec

from dsv.model import keys
from dsv.store.base import Store

# So many rows are read past to find the next name, which is a page of most stores; beyond that a new listing is less.
_PASSED = 1000


class Listed(msgspec.Struct, frozen=True):
    """A branch's newest move by a listing, which may lag behind. None: it has none. ordered: how it was listed.

    alone: the listing does not have the move before it. rule: the number of the branch's newest rule, if it has one.
    """

    number: int | None
    ordered: bool
    alone: bool = False
    rule: int | None = None


def latest(listed: Iterable[str], ordered: bool) -> Listed:
    """The newest of these moves, whether the one before it is there too, and the newest rule. Takes no more of them
    than it needs.
    """
    rules: list[int] = []

    def moves() -> Iterator[int]:
        for key in listed:
            if (number := keys.parse_branch_number(key)) is not None:
                yield number
            elif (rule := keys.parse_branch_rule_key(key)) is not None:
                rules.append(rule[2])

    two = list(islice(moves(), 2)) if ordered else nlargest(2, moves())
    rule = max(rules, default=None)
    if not two:
        return Listed(None, ordered, rule=rule)
    return Listed(two[0], ordered, two[0] > 0 and two[1:] != [two[0] - 1], rule)


class _Smallest:
    """Of the keys of one name, the ones worth keeping: the two smallest, and the smallest of a rule."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._rules = 0

    def add(self, key: str) -> bool:
        """Whether it was kept. Keys are added in order."""
        rule = keys.parse_branch_rule_key(key) is not None
        kept = self._rules < 1 if rule else len(self.keys) - self._rules < 2
        if kept:
            self.keys.append(key)
            self._rules += rule
        return kept


def parts(store: Store, prefix: str) -> dict[str, list[str]]:
    """The next components below a prefix, by name: of each the two smallest keys that begin with it, and besides the
    smallest that is a branch's rule.
    """
    found: dict[str, _Smallest] = {}
    if not store.ordered_listing:
        for key in sorted(item.key for item in store.list(prefix)):
            found.setdefault(_part(prefix, key), _Smallest()).add(key)
        return {part: one.keys for part, one in found.items()}
    after: str | None = None
    while True:
        passed = 0
        for item in store.list(prefix, start_after=after):
            part = _part(prefix, item.key)
            if found.setdefault(part, _Smallest()).add(item.key):
                passed = 0
            elif (passed := passed + 1) >= _PASSED:
                after = f"{prefix}{part}0"  # "0" follows "/": behind all that lies below the part
                break
        else:
            return {part: one.keys for part, one in found.items()}


def _part(prefix: str, key: str) -> str:
    return key[len(prefix) :].split("/", 1)[0]
