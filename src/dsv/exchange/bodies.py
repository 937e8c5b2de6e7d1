"""The bodies of answers of web servers and of S3: read no further than was asked for, unpacked, and checked.

fsspec takes whole bodies into memory, however long they are, and checks none.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zlib
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from dsv.errors import IntegrityError, Unsupported
from dsv.exchange.remote import HTTP, S3, Place, changed, is_same, path_in
from dsv.values.secrets import hide_in_urls

PIECE: Final = 8 << 20
"""The bytes that are asked for, and in memory, at once."""
_SILENCE: Final = 300
"""Seconds without a byte after which a web server is taken to be gone."""


def open_file(place: Place, key: str, info: dict[str, Any]) -> Any:
    """Open a file for reading. What a web server has packed is not unpacked."""
    if place.protocol in HTTP:
        return io.BufferedReader(WebFile(place, key), PIECE)
    if place.protocol in S3:
        return io.BufferedReader(_ObjectFile(place, key, info), PIECE)
    with place.at_work("read"):
        return place.fs.open(key, "rb", block_size=PIECE)


def open_unpacked(place: Place, key: str, info: dict[str, Any], say: Callable[[str], None]) -> Any:
    """Open a file as a browser saves it: what a web server has packed on the way is unpacked, but not if the
    name says that it is packed. say: takes a line for people."""
    file = open_file(place, key, info)
    if place.protocol not in HTTP:
        return file
    file.peek(1)
    encoding, shown = file.raw.encoding, hide_in_urls(key)
    if not encoding or (encoding == "gzip" and path_in(key).lower().endswith((".gz", ".tgz"))):
        return file
    if encoding != "gzip":
        raise Unsupported(
            f"the server sends {shown} packed by {encoding}, though it was asked not to",
            subject=shown,
            hint=f"curl --compressed {shown} | dsv put - DATASET:PATH",
        )
    say(f"the server sends {shown} packed by gzip, though it was asked not to; it is stored unpacked")
    return gzip.GzipFile(fileobj=file)


async def at_most(body: Any, length: int) -> bytes:
    """Return a body of an expected length; one byte more of a longer one, and less of one that ends before."""
    data = bytearray()
    while len(data) <= length and (part := await body.read(min(length + 1 - len(data), 1 << 20))):
        data += part
    return bytes(data)


async def get_object(place: Place, which: dict[str, str], length: int) -> tuple[dict[str, Any], bytes]:
    """Return S3's answer, and an object or a part of it of an expected length."""
    answer = await place.fs._call_s3("get_object", **which)
    async with answer["Body"] as body:
        return answer, await at_most(body, length)


def read_object(place: Place, key: str, info: dict[str, Any], size: int) -> bytes:
    """Return an object of S3, checked; one byte more if it is longer than `size`. key: with the bucket."""
    answer, data = _get(place, key, info, size, ChecksumMode="ENABLED")
    if len(data) == size:  # else it has changed
        stated = _Stated(answer, key)
        stated.update(data)
        stated.check()
    return data


def _get(
    place: Place, key: str, info: dict[str, Any], length: int, **how: str
) -> tuple[dict[str, Any], bytes]:
    from fsspec.asyn import sync

    which = dict(zip(("Bucket", "Key"), key.split("/", 1), strict=True))
    with place.at_work("read"):
        answer, data = sync(place.fs.loop, get_object, place, {**which, **how}, length)
    if not is_same({**info, "size": 0}, {**answer, "size": 0}):
        raise changed(f"s3://{key}")
    return answer, data


class _Forward(io.RawIOBase):
    """A file that is read at a position."""

    def __init__(self, place: Place, key: str) -> None:
        self._place, self._key, self._at = place, key, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, position: int, whence: int = 0, /) -> int:
        assert whence == 0
        self._at = position
        return position


class _ObjectFile(_Forward):
    """An object of S3, read by parts, and checked if it is read from its start to its end."""

    def __init__(self, place: Place, key: str, info: dict[str, Any]) -> None:
        super().__init__(place, key)
        self._info, self._size, self._checked = info, int(info["size"]), 0
        which = dict(zip(("Bucket", "Key"), key.split("/", 1), strict=True))
        with place.at_work("read"):
            self._stated = _Stated(place.fs.call_s3("head_object", **which, ChecksumMode="ENABLED"), key)

    def readinto(self, buffer: Any, /) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        part = f"bytes={self._at}-{self._at + length - 1}"
        data = _get(self._place, self._key, self._info, length, Range=part)[1]
        if len(data) != length:
            raise changed(f"s3://{self._key}")
        if self._at == self._checked:
            self._stated.update(data)
            self._checked += length
            if self._checked == self._size:
                self._stated.check()
        self._at += length
        buffer[:length] = data
        return length


class WebFile(_Forward):
    """The bytes that a web server sends for a URL, by one request. If that breaks off, or reading goes on
    elsewhere, another one asks for the rest."""

    def __init__(self, place: Place, key: str) -> None:
        super().__init__(place, key)
        self._began = 0
        self._answer: Any = None
        self.encoding = ""
        """How the server has packed the file, although it was asked not to."""

    def seek(self, position: int, whence: int = 0, /) -> int:
        if position != self._at:
            self._drop()
        return super().seek(position, whence)

    def close(self) -> None:
        self._drop()
        super().close()

    def readinto(self, buffer: Any, /) -> int:
        from fsspec.asyn import sync

        with self._place.at_work("read"):
            data = sync(self._place.fs.loop, self._read, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _drop(self) -> None:
        if self._answer is not None:
            self._place.fs.loop.call_soon_threadsafe(self._answer.close)
        self._answer = None

    async def _read(self, most: int) -> bytearray:
        from aiohttp import ClientError

        data = bytearray()
        while len(data) < most:
            try:
                if self._answer is None:
                    self._answer = await self._ask()
                part = await self._answer.content.read(most - len(data))
            except (ClientError, TimeoutError):
                if self._at == self._began:
                    raise
                self._drop()
                continue
            if not part:
                break
            data += part
            self._at += len(part)
        return data

    async def _ask(self) -> Any:
        from aiohttp import ClientTimeout

        fs, self._began = self._place.fs, self._at
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={self._at}-"} if self._at else {})}
        session = await fs.set_session()
        limit = ClientTimeout(total=None, sock_connect=30, sock_read=_SILENCE)
        answer = await session.get(fs.encode_url(self._key), headers=headers, timeout=limit)
        fs._raise_not_found_for_status(answer, self._key)
        to_skip = 0 if answer.headers.get("Content-Range", "").startswith(f"bytes {self._at}-") else self._at
        while to_skip:  # the server gives no parts of files
            to_skip -= len(await answer.content.readexactly(min(to_skip, 1 << 20)))
        self.encoding = encoding_of(answer)
        return answer


def encoding_of(answer: Any) -> str:
    """Return how a web server has packed a body; empty if it has not."""
    said = str(answer.headers.get("Content-Encoding", "")).strip().lower().removeprefix("x-")
    return "" if said == "identity" else said


class _Crc32:
    def __init__(self) -> None:
        self._sum = 0

    def update(self, data: bytes) -> None:
        self._sum = zlib.crc32(data, self._sum)

    def digest(self) -> bytes:
        return self._sum.to_bytes(4, "big")


class _Stated:
    """Compares a whole object with the hashes that S3 states: its checksums, and its ETag where that is its
    MD5."""

    def __init__(self, answer: dict[str, Any], key: str) -> None:
        """answer: to a request with `ChecksumMode`."""
        self._key = key
        self._sums: list[tuple[str, Any, bytes]] = []
        tag = str(answer.get("ETag", "")).strip('"').lower()
        own_key = "kms" in str(answer.get("ServerSideEncryption")) or answer.get("SSECustomerAlgorithm")
        if re.fullmatch("[0-9a-f]{32}", tag) and not own_key and not key.partition("/")[0].endswith("--x-s3"):
            self._sums.append(("ETag", hashlib.md5(usedforsecurity=False), bytes.fromhex(tag)))
        known: dict[str, Any] = {"CRC32": _Crc32, "SHA1": hashlib.sha1, "SHA256": hashlib.sha256}
        with suppress(ImportError):
            import google_crc32c

            known["CRC32C"] = google_crc32c.Checksum
        for name, kind in known.items():
            value = str(answer.get(f"Checksum{name}") or "-")
            if "-" not in value:  # else it is one of the checksums of the parts
                self._sums.append((f"checksum {name}", kind(), b64decode(value)))

    def update(self, data: bytes) -> None:
        for _, one, _ in self._sums:
            one.update(data)

    def check(self) -> None:
        """Raise `IntegrityError` if what was read is not what is stated."""
        for name, one, expected in self._sums:
            if one.digest() != expected:
                raise IntegrityError(
                    f"s3://{self._key} has not arrived as it is there: its {name} is another",
                    subject=f"s3://{self._key}",
                    hint="run the same command again; if it says so again, the object or its server is damaged: "
                    f"dsv put takes what 'aws s3 cp s3://{self._key}' reads",
                )
