"""What is said of a dataset that was erased."""

from __future__ import annotations

from dsv.errors import Conflict, NotFound
from dsv.model import keys
from dsv.model.erasure import DatasetErased, erased_id
from dsv.model.ids import StoreId
from dsv.model.names import DatasetName
from dsv.model.units import rfc3339
from dsv.repo.damage import read_record
from dsv.store.base import Store


def tombstone(store: Store, store_id: StoreId, dataset: DatasetName) -> DatasetErased | None:
    """The tombstone of a dataset, if it was erased."""
    key = keys.erased_key(erased_id(store_id, dataset))
    try:
        return read_record(DatasetErased.decode, store, key)
    except NotFound:
        return None


def gone(dataset: DatasetName, found: DatasetErased, url: str) -> NotFound:
    """For anyone who asks for it."""
    if found.successor is None:
        hint = "it does not come back; dsv datasets lists what is there"
    else:
        hint = f"what could stay is in {found.successor}: dsv log {found.successor}"
    return NotFound(_sentence(dataset, found, url), subject=dataset, hint=hint)


def never_again(dataset: DatasetName, found: DatasetErased, url: str) -> Conflict:
    """For anyone who would make it."""
    return Conflict(
        f"{_sentence(dataset, found, url)}, and its name is not used again",
        subject=dataset,
        hint="choose another name",
    )


def _sentence(dataset: DatasetName, found: DatasetErased, url: str) -> str:
    why = "".join(f": {line}" for line in found.message.splitlines()[:1])
    return f"dataset {dataset} was erased from {url} ({rfc3339(found.time_ms)}{why})"
