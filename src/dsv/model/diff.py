"""What differs between two runs of entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dsv.model.entry import Entry, sort_key


@dataclass(frozen=True, slots=True)
class Change:
    """A path that only one side has (the other is None), or that the two sides have differently."""

    path: bytes
    before: Entry | None
    after: Entry | None


def diff_entries(before: Iterable[Entry], after: Iterable[Entry]) -> Iterator[Change]:
    """The changes in path order; both sides come in tree order."""
    left, right = iter(before), iter(after)
    old, new = next(left, None), next(right, None)
    while old is not None or new is not None:
        if new is None or (old is not None and sort_key(old.path) < sort_key(new.path)):
            assert old is not None
            yield Change(old.path, old, None)
            old = next(left, None)
        elif old is None or old.path != new.path:
            yield Change(new.path, None, new)
            new = next(right, None)
        else:
            if old != new:
                yield Change(new.path, old, new)
            old, new = next(left, None), next(right, None)
