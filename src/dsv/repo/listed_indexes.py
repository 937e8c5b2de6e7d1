"""What a listing says of a store's index files: which there are, which have a filter, and which stand for others."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial

import msgspec

from dsv.model import keys
from dsv.model.ids import IndexId
from dsv.model.index_merge import IndexMerge, Standing, stand
from dsv.store.base import Store
from dsv.store.together import together

# Of records that can't be used, so many numbers back are looked at.
_NUMBERS = 3


class ListedIndexes(msgspec.Struct, frozen=True):
    """sizes: bytes of each index file. filtered: those that have a filter. records: keys of merges, by number."""

    sizes: dict[IndexId, int]
    filtered: frozenset[IndexId]
    records: dict[int, tuple[str, ...]]
    standing: Standing

    @classmethod
    def of_none(cls) -> ListedIndexes:
        return cls({}, frozenset(), {}, Standing((), (), frozenset()))


def list_indexes(
    store: Store, read: Callable[[str], IndexMerge | None], without: Container[IndexId] = ()
) -> ListedIndexes:
    """Lists once, and reads the latest records of merges: each says all that is to be known of those before it.

    without: index files that are taken for absent, so that no record counts which names one of them.
    """
    sizes: dict[IndexId, int] = {}
    filtered: set[IndexId] = set()
    records: dict[int, list[str]] = {}
    for item in store.list(keys.INDEX_PREFIX):
        if (index_id := keys.parse_index_key(item.key)) is not None:
            if index_id not in without:
                sizes[index_id] = item.size
        elif (index_id := keys.parse_index_filter_key(item.key)) is not None:
            filtered.add(index_id)
        elif (number := keys.parse_index_merge_key(item.key)) is not None:
            records.setdefault(number, []).append(item.key)
    standing = Standing((), tuple(sorted(sizes)), frozenset())
    for number in sorted(records, reverse=True)[:_NUMBERS]:
        found = together([partial(read, key) for key in records[number]])
        later = stand(sizes, [record for record in found if record is not None])
        if later.runs:
            standing = later
            break
    return ListedIndexes(
        sizes, frozenset(filtered), {number: tuple(keyed) for number, keyed in records.items()}, standing
    )
