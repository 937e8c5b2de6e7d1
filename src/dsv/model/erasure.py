"""The tombstone of a dataset that was erased: its names had to go, so it stands under a hash and not under them."""

from __future__ import annotations

import msgspec

from dsv.model import wire
from dsv.model.ids import ErasedId, Nonce, StoreId
from dsv.model.names import DatasetName
from dsv.model.wire import Buffer, Long, Millis, Raw16, Record, Short

_ERASED = Record("dataset-erased", tuple[Raw16, Millis, Short | None, Long])


class DatasetErased(msgspec.Struct, frozen=True):
    """successor: the dataset that has what was allowed to stay, if there is one. message: why."""

    nonce: Nonce
    time_ms: int
    successor: DatasetName | None
    message: str

    def encode(self) -> bytes:
        successor = None if self.successor is None else str(self.successor)
        return _ERASED.encode((bytes(self.nonce), self.time_ms, successor, self.message))

    @classmethod
    def decode(cls, data: Buffer) -> DatasetErased:
        nonce, time_ms, successor, message = _ERASED.decode(data)
        name = None if successor is None else wire.carried("dataset-erased", DatasetName.parse, successor)
        return cls(Nonce(nonce), time_ms, name, message)


def erased_id(store: StoreId, dataset: DatasetName) -> ErasedId:
    """Under which id the tombstone of a dataset stands: only who knows the name finds it."""
    return ErasedId.hash(store + str(dataset).encode())
