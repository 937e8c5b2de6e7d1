"""Which store a dataset's visible paths belong to, and by which addresses the cache has met each store."""

from __future__ import annotations

import msgspec
from blake3 import blake3

from dsv.cache.layout import folder_name
from dsv.cache.root import CacheRoot
from dsv.errors import Conflict, UsageError
from dsv.fs.files import list_names, read_json
from dsv.model.ids import StoreId
from dsv.model.names import DatasetName

_ADDRESS = "address-"


class _Binding(msgspec.Struct, frozen=True):
    version: int
    store: str


_BINDING = msgspec.json.Decoder(_Binding)


def bind(root: CacheRoot, dataset: DatasetName, store: StoreId) -> None:
    """Gives the dataset's visible paths to this store, if they are nobody's yet.

    Raises `Conflict` if another store has filled a dataset of that name; `OSError`.
    """
    owner = bound_store(root, dataset)
    if owner is None:
        data = msgspec.json.encode(_Binding(1, str(store)))
        if root.write_once(root.binding(folder_name(dataset)), data):
            return
        owner = bound_store(root, dataset)
    if owner != store:
        raise Conflict(
            f"{root.path} holds another store's dataset {dataset}",
            subject=str(dataset),
            hint="use a cache of its own: --cache DIR",
        )


def bound_store(root: CacheRoot, dataset: DatasetName) -> StoreId | None:
    """The store that filled this dataset first; None if no store did. Raises `OSError`."""
    binding = read_json(root.binding(folder_name(dataset)), _BINDING)
    try:
        return None if binding is None else StoreId.parse(binding.store)
    except UsageError:
        return None


def met(root: CacheRoot, store: StoreId, address: str) -> None:
    """Remembers that this address led to this store, so that next time a cached commit can do without asking.

    `address` is a URL and everything else that decides where it leads. Raises `OSError`.
    """
    name = _address_name(address)
    for other in list_names(root.dot / "stores"):
        if other != str(store):  # what was here before has moved
            (root.dot / "stores" / other / name).unlink(missing_ok=True)
    path = root.store(store) / name
    if not path.exists():
        root.write_once(path, address.encode())


def known_store(root: CacheRoot, address: str) -> StoreId | None:
    """The store that this address led to when it was last asked. Raises `OSError`."""
    name = _address_name(address)
    for store in list_names(root.dot / "stores"):
        if (root.dot / "stores" / store / name).exists():
            try:
                return StoreId.parse(store)
            except UsageError:
                continue
    return None


def _address_name(address: str) -> str:
    return f"{_ADDRESS}{blake3(address.encode()).hexdigest(length=16)}"
