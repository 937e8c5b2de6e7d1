"""One type for each kind of id.

Ids are `bytes` underneath, so that they hash, compare and concatenate at C speed in columns of millions, and
distinct types, so that a type checker refuses one where another is meant. Text becomes an id only by `parse`.
"""

from __future__ import annotations

import os
from typing import ClassVar, Self

from blake3 import blake3

from dsv.errors import UsageError


class Id(bytes):
    """A fixed number of bytes, shown as lower-case hex."""

    __slots__ = ()
    size: ClassVar[int] = 32

    @classmethod
    def of(cls, raw: bytes) -> Self:
        """Return the id with these bytes. Raises `ValueError` if the length is wrong."""
        if len(raw) != cls.size:
            raise ValueError(f"a {cls.__name__} has {cls.size} bytes, not {len(raw)}")
        return cls(raw)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the id for this whole lower-case hex text. Raises `UsageError`."""
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raw = b""
        if len(raw) != cls.size or raw.hex() != text:
            raise UsageError(
                f"{text!r} is not a {cls.__name__}: {cls.size * 2} lower-case hex digits", subject=text
            )
        return cls(raw)

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hex()})"


class _RandomId(Id):
    __slots__ = ()
    size = 16

    @classmethod
    def random(cls) -> Self:
        return cls(os.urandom(cls.size))


class _HashedId(Id):
    """BLAKE3 in derive-key mode: a dataset file can never have the id of metadata."""

    __slots__ = ()
    context: ClassVar[str]

    @classmethod
    def hash(cls, encoded: bytes | bytearray | memoryview) -> Self:
        return cls(blake3(encoded, derive_key_context=cls.context).digest())


class ChunkId(Id):
    """Plain BLAKE3-256 of a chunk's bytes."""

    __slots__ = ()

    @classmethod
    def hash(cls, data: bytes | bytearray | memoryview) -> ChunkId:
        return cls(blake3(data).digest())


class FileId(Id):
    """Plain BLAKE3-256 of a whole file's bytes: what `b3sum` prints."""

    __slots__ = ()

    @classmethod
    def hash(cls, data: bytes | bytearray | memoryview) -> FileId:
        return cls(blake3(data).digest())


EMPTY_FILE = FileId.hash(b"")


class RecipeId(_HashedId):
    __slots__ = ()
    context = "dsv 2026-11 recipe v1"


class SegmentId(_HashedId):
    __slots__ = ()
    context = "dsv 2026-11 segment v1"


class NodeId(_HashedId):
    """A node of the tree above the segments; the top one is a commit's root."""

    __slots__ = ()
    context = "dsv 2026-11 node v1"


class CommitId(_HashedId):
    __slots__ = ()
    context = "dsv 2026-11 commit v1"


class ErasedId(_HashedId):
    """The hash of a store's id and the name of a dataset that was erased from it."""

    __slots__ = ()
    context = "dsv 2026-11 erased dataset v1"


class PackId(_RandomId):
    __slots__ = ()

    @classmethod
    def random(cls) -> Self:
        found = super().random()
        return cls.random() if found.is_external else found

    @classmethod
    def external(cls) -> Self:
        """Return a new id for a pack whose objects lie outside the store."""
        return cls(os.urandom(cls.size - len(EXTERNAL_END)) + EXTERNAL_END)

    @property
    def is_external(self) -> bool:
        return self.endswith(EXTERNAL_END)


EXTERNAL_END = b"extern"
"""The last bytes of an external pack's id, so that every reader of a location recognizes it."""


class ErasureId(_RandomId):
    """The id of the record of an erasure."""

    __slots__ = ()


class IndexId(_RandomId):
    __slots__ = ()


class SessionId(_RandomId):
    __slots__ = ()


class StoreId(_RandomId):
    __slots__ = ()


class Nonce(_RandomId):
    """Makes the bytes of two equal writes differ, so that a writer recognizes its own."""

    __slots__ = ()
