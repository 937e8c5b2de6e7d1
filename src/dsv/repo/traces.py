"""What only a store of dsv's can have: its keys are told from those of other programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import NoReturn

from dsv.errors import IntegrityError
from dsv.model import keys
from dsv.repo.damage import put_back
from dsv.store.base import Store
from dsv.store.together import together

_DATA: tuple[tuple[str, Callable[[str], object | None]], ...] = (
    (keys.FORMAT_PREFIX, keys.parse_format_key),
    (keys.REFS_PREFIX, keys.parse_branch_key),
    (keys.COMMIT_PREFIX, keys.parse_commit_key),
    (keys.INDEX_PREFIX, keys.parse_index_key),
    (keys.PACK_PREFIX, keys.parse_pack_key),
)
# So many rows of a prefix are looked at for one that a store of dsv's would have.
_LOOKED_AT = 1000


def has_data(store: Store) -> bool:
    """Whether there is what only a store can have, though its format may be gone."""

    return any(together([partial(_any_of, store, prefix, parse) for prefix, parse in _DATA]))


def has_names(store: Store) -> bool:
    """Whether there is a branch."""
    return _any_of(store, keys.REFS_PREFIX, keys.parse_branch_key)


def _any_of(store: Store, prefix: str, parse: Callable[[str], object | None]) -> bool:
    return any(parse(item.key) is not None for item in islice(store.list(prefix), _LOOKED_AT))


def lost_format(store: Store) -> NoReturn:
    key = keys.format_key(0)
    raise IntegrityError(
        f"{store.url} holds the data of a dsv store, and {key}, which makes it one, is gone",
        subject=key,
        hint=put_back(key),
    )
