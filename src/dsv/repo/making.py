"""Making a store, in one place or in two: the first entries of its format log."""

from __future__ import annotations

from msgspec.structs import replace

from dsv.errors import Conflict
from dsv.model import keys
from dsv.model.ids import Nonce
from dsv.model.readme import readme_text
from dsv.model.records import FormatEntry
from dsv.repo.layout import (
    DATA_ELSEWHERE,
    NAMES_ELSEWHERE,
    UNCONDITIONAL_WRITES,
    Format,
    read_entry,
    read_format,
    with_features,
)
from dsv.repo.traces import has_names
from dsv.store.base import Store
from dsv.store.split import SplitStore, split_of


def make_layout(store: Store, first: FormatEntry) -> None:
    """Makes the store, or adopts what another made at the same moment.

    Of a store in two places the names come first: their winner decides the store's id. Interrupted after that, the
    same call makes the other half. Raises `Conflict` if the place has the names of another store.
    """
    split = split_of(store)
    if split is None:
        conditional = () if store.conditional else (UNCONDITIONAL_WRITES,)
        whole = replace(first, features=with_features(first, *conditional))
        store.put_if_absent(keys.format_key(0), whole.encode())
        store.put_if_absent(keys.README_KEY, readme_text().encode())  # the winner may have died before it
        return
    _check_unused(split)
    names = replace(first, features=with_features(first, DATA_ELSEWHERE))
    split.names.put_if_absent(keys.format_key(0), names.encode())
    made = read_format(split.names)
    if not Format(tuple(made)).has(DATA_ELSEWHERE):
        raise _of_another(split)
    split.names.put_if_absent(keys.README_KEY, readme_text().encode())
    further = (NAMES_ELSEWHERE,) if split.data.conditional else (NAMES_ELSEWHERE, UNCONDITIONAL_WRITES)
    data = replace(
        first, store_id=made[0].store_id, nonce=Nonce.random(), features=with_features(first, *further)
    )
    split.data.put_if_absent(keys.format_key(0), data.encode())
    split.data.put_if_absent(keys.README_KEY, readme_text().encode())


def _check_unused(split: SplitStore) -> None:
    """Raises `Conflict` if there are names already, which are those of other data.

    Anyone who makes the same store at this moment writes the entry of the data before the first name, so the names are
    looked for first.
    """
    if has_names(split.names) and read_entry(split.data, 0) is None:
        raise _of_another(split)


def _of_another(split: SplitStore) -> Conflict:
    return Conflict(
        f"{split.names.url} has the names of another store, so it can't have those of {split.url}",
        subject=split.names.url,
        hint="dsv init --names PLACE, with an empty place: each store needs one of its own",
    )
