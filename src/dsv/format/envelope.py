"""The envelope of small metadata: an ASCII line with its kind, a msgpack array of fixed order, and a check.

    dsv <kind> <version>\\n<msgpack array><the first 8 bytes of the BLAKE3 of all before>

Refs, tags and the feature log have no id to verify their bytes with, so the check detects flipped bits there.
Encodings are canonical: msgpack in its shortest forms, and a decoder refuses bytes that it would not write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Self, get_args

import msgspec
from blake3 import blake3
from msgspec import Meta

from dsv.errors import UPGRADE, IntegrityError, Unsupported, UsageError
from dsv.values.ids import Id
from dsv.values.json import LONG_MAX, SHORT_MAX

Buffer = bytes | bytearray | memoryview

_HEADER = re.compile(rb"dsv ([a-z-]{1,32}) ([1-9][0-9]{0,3})\n", re.ASCII)
RECORD_MAX = 1 << 20  # bytes
_MAX_HEADER = 4 + 32 + 1 + 4 + 1
CHECK_SIZE = 8  # bytes

# Field types, with the limits that every record keeps to.
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
        raise _newer(kind, found, version)
    if found != version:
        raise damaged(kind, f"there never was a version {found}")
    return view[match.end() :]


def version_of(data: Buffer) -> int | None:
    """Return the version in the header line of a record of any kind; None without such a line."""
    match = _HEADER.match(bytes(memoryview(data)[:_MAX_HEADER]))
    return None if match is None else int(match[2])


def sealed(data: bytes) -> bytes:
    """Return the data followed by its check."""
    return data + blake3(data).digest(CHECK_SIZE)


def damaged(kind: str, reason: str) -> IntegrityError:
    return IntegrityError(f"{_one(kind)} is damaged: {reason}")


def _newer(kind: str, found: int, known: int) -> Unsupported:
    return Unsupported(f"{_one(kind)} has version {found}, and this dsv knows version {known}", hint=UPGRADE)


def _one(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def check_magic(found: bytes, magic: bytes, kind: str) -> None:
    """Raises `Unsupported` for the magic of a newer version, `IntegrityError` for any other wrong magic."""
    if found[:-1] == magic[:-1] and found[-1:].isdigit() and found > magic:
        raise _newer(kind, int(found[-1:]), int(magic[-1:]))
    if found != magic:
        raise damaged(kind, "it does not begin and end as one")


def check_hash(view: memoryview, kind: str) -> None:
    """Raises `IntegrityError` unless the last 32 bytes are the BLAKE3 of all bytes before."""
    if blake3(view[:-32]).digest() != view[-32:]:
        raise damaged(kind, "its bytes are not those its hash was written for")


def is_sorted(values: Sequence[Any]) -> bool:
    """Return whether the values are sorted, each once."""
    return list(values) == sorted(set(values))


class Record(msgspec.Struct, frozen=True):
    """A record: the array of its fields, in order.

    Version 2 has `added` more fields at the end. All of them are None in a record of version 1.
    """

    kind: ClassVar[str]
    added: ClassVar[int] = 0
    limit: ClassVar[int] = RECORD_MAX
    """Maximum size of a record in bytes."""
    order: ClassVar[tuple[str, ...]] = ()
    """The order in which the fields are written; empty for the order of their definition."""

    def fault(self) -> str | None:
        """Return what is wrong with the values of the fields, or None."""
        return None

    def encode(self) -> bytes:
        """Raises `ValueError` for what `decode` would refuse."""
        version, body = self._packed()
        data = sealed(header(self.kind, version) + body)
        try:
            self.decode(data)
        except IntegrityError as error:
            raise ValueError(f"this can't be written: {error.message}") from None
        return data

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Raises `IntegrityError`, or `Unsupported` for a newer version."""
        if len(data) > cls.limit:
            raise damaged(cls.kind, f"it has {len(data)} bytes, over the limit of {cls.limit}")
        version = 2 if cls.added and version_of(data) != 1 else 1
        body = bytes(strip_header(data, cls.kind, version)[:-CHECK_SIZE])
        if sealed(bytes(data[:-CHECK_SIZE])) != data:
            raise damaged(cls.kind, "its bytes are not those its check was written for")
        names, decoder = _schema(cls, version)
        try:
            found = cls(**dict(zip(names, decoder.decode(body), strict=True)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise damaged(cls.kind, str(error)) from None
        if (fault := found.fault()) is not None:
            raise damaged(cls.kind, fault)
        if found._packed() != (version, body):
            raise damaged(cls.kind, "it is not written in the canonical way")
        return found

    def _packed(self) -> tuple[int, bytes]:
        fields = msgspec.structs.astuple(self)
        if self.order:
            fields = tuple(getattr(self, name) for name in self.order)
        known = len(fields) - self.added
        is_newer = fields[known:].count(None) < self.added
        return (2, _ENCODER.encode(fields)) if is_newer else (1, _ENCODER.encode(fields[:known]))


_ENCODER = msgspec.msgpack.Encoder(
    enc_hook=lambda value: bytes(value) if isinstance(value, Id) else str(value)
)


@cache
def _schema(record: type[Record], version: int) -> tuple[tuple[str, ...], msgspec.msgpack.Decoder[Any]]:
    """Return the names of the fields and their decoder. Making a decoder takes a millisecond."""
    types = {field.name: field.type for field in msgspec.structs.fields(record)}
    names = record.order or record.__struct_fields__
    kept = len(names) - record.added
    # A field that was added may not be None in version 2.
    kinds = [types[name] for name in names[:kept]] + [get_args(types[name])[0] for name in names[kept:]]
    if version == 1:
        names, kinds = names[:kept], kinds[:kept]
    return names, msgspec.msgpack.Decoder(tuple[tuple(kinds)], dec_hook=_typed)  # type: ignore[misc]


def learn(*kinds: type[Any]) -> None:
    """Prepare classes of record fields for msgspec after their definition: any thread may read the first one.

    msgspec inspects a class on first use, and crashes (0.22: SIGSEGV) if two threads trigger that at once.
    """
    for kind in kinds:
        msgspec.msgpack.Decoder(kind, dec_hook=_typed)


def _typed(kind: type[Any], value: Any) -> Any:
    is_id = issubclass(kind, Id)
    if not isinstance(value, bytes if is_id else str):
        raise ValueError(f"{value!r} is not a valid {kind.__name__}")
    try:
        return kind.of(value) if is_id else kind.parse(value)
    except UsageError as error:
        raise ValueError(error.message) from None
