"""The envelope of small metadata: one ASCII line that says what it is, a msgpack array of fixed order, a check.

    dsv <kind> <version>\\n<msgpack array><the first 8 bytes of the BLAKE3 of all before>

Refs, tags and the feature log have no id that they could be held against: the check finds a flipped bit there.
Encodings are canonical: msgpack in its shortest forms, and a decoder refuses bytes that it would not write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from blake3 import blake3
from msgspec import Meta

from dsv.errors import IntegrityError, Unsupported, UsageError
from dsv.values.cached import cached
from dsv.values.json import LONG_MAX, SHORT_MAX

Buffer = bytes | bytearray | memoryview
T = TypeVar("T", bound=tuple[Any, ...])
Name = TypeVar("Name", bound=str)

_HEADER = re.compile(rb"dsv ([a-z-]{1,32}) ([1-9][0-9]{0,3})\n", re.ASCII)
RECORD_MAX = 1 << 20  # bytes
_MAX_HEADER = 4 + 32 + 1 + 4 + 1
CHECK_SIZE = 8  # bytes

# Field types, with the limits that every record keeps to.
Raw16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Raw32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Millis = Annotated[int, Meta(ge=0, lt=1 << 53)]
U32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Short = Annotated[str, Meta(max_length=SHORT_MAX)]
Long = Annotated[str, Meta(max_length=LONG_MAX)]


def header(kind: str, version: int = 1) -> bytes:
    return f"dsv {kind} {version}\n".encode("ascii")


def strip_header(data: Buffer, kind: str, version: int = 1) -> memoryview:
    """Return what follows the header line. Raises `IntegrityError`, or `Unsupported` for a newer version."""
    view = memoryview(data)
    match = _HEADER.match(bytes(view[:_MAX_HEADER]))
    if match is None:
        raise damaged(kind, "it does not begin as one")
    if match[1] != kind.encode("ascii"):
        raise damaged(kind, f"it is a {match[1].decode()}")
    found = int(match[2])
    if found > version:
        raise Unsupported(
            f"a {kind} has version {found}, and this dsv knows version {version}", hint="install a newer dsv"
        )
    if found != version:
        raise damaged(kind, f"there never was a version {found}")
    return view[match.end() :]


def version_of(data: Buffer) -> int | None:
    """Return the version in the header line of a record of any kind; None without such a line."""
    match = _HEADER.match(bytes(memoryview(data)[:_MAX_HEADER]))
    return None if match is None else int(match[2])


def carried(kind: str, parse: Callable[[str], Name], text: str) -> Name:
    """Return a name that a record carries. Raises `IntegrityError` if the text is none."""
    try:
        return parse(text)
    except UsageError as error:
        raise damaged(kind, error.message) from None


def sealed(data: bytes) -> bytes:
    """Return a record with its check behind it."""
    return data + blake3(data).digest(CHECK_SIZE)


def damaged(kind: str, reason: str) -> IntegrityError:
    return IntegrityError(f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} is damaged: {reason}")


class Record(Generic[T]):
    """The encoding of one kind of record: the tuple of its fields, in order."""

    def __init__(self, kind: str, fields: type[T], *, version: int = 1, limit: int = RECORD_MAX) -> None:
        self.kind = kind
        self._version = version
        self._limit = limit
        self._header = header(kind, version)
        self._encoder = msgspec.msgpack.Encoder()
        self._fields = fields

    @cached
    def _decoder(self) -> msgspec.msgpack.Decoder[T]:
        """Made when first used: it takes a millisecond, and most commands need few kinds of records."""
        return msgspec.msgpack.Decoder(self._fields)

    def encode(self, fields: T) -> bytes:
        """Raise `ValueError` for a value that `decode` would refuse."""
        body = self._encoder.encode(fields)
        size = len(self._header) + len(body) + CHECK_SIZE
        if size > self._limit:
            raise ValueError(f"a {self.kind} of {size} bytes is over the limit of {self._limit}")
        try:
            self._decoder.decode(body)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise ValueError(f"a {self.kind} can't hold this: {error}") from None
        return sealed(self._header + body)

    def decode(self, data: Buffer) -> T:
        """Raise `IntegrityError`, or `Unsupported` for a newer version."""
        if len(data) > self._limit:
            raise damaged(self.kind, f"it has {len(data)} bytes, over the limit of {self._limit}")
        body = strip_header(data, self.kind, self._version)[:-CHECK_SIZE]
        if sealed(bytes(data[:-CHECK_SIZE])) != data:
            raise damaged(self.kind, "its bytes are not those its check was written for")
        try:
            fields = self._decoder.decode(body)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise damaged(self.kind, str(error)) from None
        if self._encoder.encode(fields) != body:
            raise damaged(self.kind, "it is not written in the canonical way")
        return fields
