"""Reading whole packs, and all that a store holds."""

from __future__ import annotations

from dsv.format import keys
from dsv.format.codec import unpack
from dsv.format.locator import ObjectKind
from dsv.format.pack import FOOTER_SIZE, PackRow, PackTable, parse_footer, parse_table, verify
from dsv.stores.base import StoreBackend


def unpacked(key: str, data: bytes) -> bytes:
    """The bytes of an object of a store, and those of everything in it if it is a pack."""
    found = [data]
    if keys.parse_pack_key(key) is not None:
        found += [
            bytes(unpack(row.codec, memoryview(data)[row.offset : row.offset + row.stored], row.length))
            for row in verify(data)
            if row.kind is not ObjectKind.LOCATOR
        ]
    return b"\0".join(found)


def everything(store: StoreBackend) -> bytes:
    """Every key of a store as it is, and every object of every pack unpacked."""
    return b"\0".join(unpacked(item.key, store.get(item.key)) for item in store.list(""))


__all__ = [
    "FOOTER_SIZE",
    "PackRow",
    "PackTable",
    "everything",
    "parse_footer",
    "parse_table",
    "unpacked",
    "verify",
]
