"""The bytes of files at URLs: read no further than was asked for, unpacked, and checked.

Of web servers and S3 fsspec takes whole bodies into memory, however long they are, and checks none.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
from abc import abstractmethod
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Any, Final

from dsv.errors import IntegrityError, Unsupported
from dsv.exchange.remote import HTTP, S3, RemoteRoot, changed, is_same, path_in
from dsv.values.secrets import hide_in_urls
from dsv.values.units import format_count

PIECE: Final = 8 << 20
"""The bytes that are asked for, and in memory, at once."""


def _crc(polynomial: int, width: int) -> Any:
    from dsv.exchange.crc import Crc  # numpy takes a while to import

    return Crc(polynomial, width)


_CHECKSUMS: Final[dict[str, Callable[[], Any]]] = {
    "SHA1": hashlib.sha1, "SHA256": hashlib.sha256, "SHA512": hashlib.sha512, "MD5": hashlib.md5,
    "CRC32": partial(_crc, 0xEDB88320, 4), "CRC32C": partial(_crc, 0x82F63B78, 4),
    "CRC64NVME": partial(_crc, 0x9A6C9329AC4BC9B5, 8),
}  # fmt: skip
"""Those of S3, the fastest first."""


def open_file(place: RemoteRoot, key: str, info: dict[str, Any]) -> io.BufferedReader:
    """Open a file for reading, with dsv's errors. What a web server has packed is not unpacked."""
    if place.protocol not in (*HTTP, *S3):
        with place.at_work("read"):
            return io.BufferedReader(_File(place, place.fs.open(key, "rb", block_size=PIECE)))
    body = WebFile(place, key) if place.protocol in HTTP else _Object(place, key, info)
    return io.BufferedReader(body, min(PIECE, 1 + (info.get("size") or PIECE)))


def open_unpacked(place: RemoteRoot, key: str, info: dict[str, Any], say: Callable[[str], None]) -> Any:
    """Open a file as a browser saves it: what a web server has packed on the way is unpacked, but not if the
    name says that it is packed. say: takes a line for people."""
    file = open_file(place, key, info)
    if not isinstance(file.raw, WebFile):
        return file
    file.peek(1)
    encoding, shown = file.raw.encoding, hide_in_urls(key)
    if encoding not in ("", "gzip"):
        text = f"the server sends {shown} packed by {encoding}, though it was asked not to"
        raise Unsupported(text, subject=shown, hint=f"curl --compressed {shown} | dsv put - DATASET:PATH")
    if not encoding or path_in(key).lower().endswith((".gz", ".tgz")):
        return file
    say(f"the server sends {shown} packed by gzip, though it was asked not to; it is stored unpacked")
    return gzip.GzipFile(fileobj=file)


async def at_most(body: Any, length: int) -> bytes:
    """Return a body of an expected length; one byte more of a longer one, and less of one that ends before."""
    data = bytearray()
    while len(data) <= length and (part := await body.read(min(length + 1 - len(data), 1 << 20))):
        data += part
    return bytes(data)


async def get_part(
    place: RemoteRoot, which: dict[str, str], start: int, length: int, *, whole: bool = False
) -> tuple[dict[str, Any], bytes]:
    """Return part of an object, with what S3 says of it. whole: the part is all of it, and its checksums are wanted"""
    how = {"ChecksumMode": "ENABLED"} if whole else {"Range": f"bytes={start}-{start + length - 1}"}
    answer = await place.fs._call_s3("get_object", **which, **how)
    async with answer["Body"] as body:
        return answer, await at_most(body, length)


class _Body(io.RawIOBase):
    """A file that can be read at any position."""

    def __init__(self, place: RemoteRoot) -> None:
        self.place, self._at = place, 0

    @abstractmethod
    def read_at(self, at: int, most: int) -> bytes:
        """Return at most so many bytes, none only at the end."""

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

    def readinto(self, buffer: Any, /) -> int:
        with self.place.at_work("read"):
            data = self.read_at(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class _File(_Body):
    """A file as fsspec reads it."""

    def __init__(self, place: RemoteRoot, file: Any) -> None:
        super().__init__(place)
        self._file = file

    def close(self) -> None:
        if not self.place.by_ssh:  # paramiko's is closed when nobody has it, without waiting for an answer
            self._file.close()
        super().close()

    def read_at(self, at: int, most: int) -> bytes:
        if self._file.tell() != at:
            self._file.seek(at)
        return self._file.read(most)  # type: ignore[no-any-return]


class _Object(_Body):
    """An object of S3. If it is read from its start to its end, it is compared with a hash that S3 states: its
    ETag where that is its MD5, else a checksum."""

    def __init__(self, place: RemoteRoot, key: str, info: dict[str, Any]) -> None:
        super().__init__(place)
        self._info, self._size = info, int(info["size"])
        self._which = dict(zip(("Bucket", "Key"), key.split("/", 1), strict=True))
        self._shown, self._compared = f"s3://{key}", 0
        self._sums: list[tuple[str, Any, bytes]] | None = None

    def read_at(self, at: int, most: int) -> bytes:
        from botocore.exceptions import FlexibleChecksumError
        from fsspec.asyn import sync

        length = min(most, self._size - at)
        if length <= 0:
            return b""
        data: bytes
        whole, get = length == self._size, partial(get_part, self.place, self._which)
        try:
            answer, data = sync(self.place.fs.loop, get, at, length, whole=whole)
        except FlexibleChecksumError as error:  # botocore compares some of them itself
            raise self._differs("checksum") from error
        if len(data) != length or not is_same({**self._info, "size": 0}, {**answer, "size": 0}):
            raise changed(self._shown)
        if self._sums is None:
            self._sums = [*islice(self._stated(answer if whole else self._head(ChecksumMode="ENABLED")), 1)]
        if at == self._compared:
            self._compared += length
            for name, one, expected in self._sums:
                one.update(data)
                if self._compared == self._size and one.digest() != expected and self._is_even(one):
                    raise self._differs(name)
        return data

    def _differs(self, name: str) -> IntegrityError:
        text = f"{self._shown} arrived damaged: its {name} is another"
        hint = f"run the same command again, or dsv put what 'aws s3 cp {self._shown} FILE' gives"
        return IntegrityError(text, subject=self._shown, hint=hint)

    def _head(self, **more: Any) -> dict[str, Any]:
        return self.place.fs.call_s3("head_object", **self._which, **more)  # type: ignore[no-any-return]

    def _stated(self, answer: dict[str, Any]) -> Iterator[tuple[str, Any, bytes]]:
        """Yield the name of each hash that S3 states of the content, an object to compute it, and it."""
        bucket = self._which["Bucket"]
        tag = str(answer.get("ETag", "")).strip('"').lower()
        own_key = "kms" in str(answer.get("ServerSideEncryption")) or answer.get("SSECustomerAlgorithm")
        if re.fullmatch("[0-9a-f]{32}", tag) and not own_key and not bucket.endswith("--x-s3"):
            yield "ETag", hashlib.md5(usedforsecurity=False), bytes.fromhex(tag)
        stated = [(name, *str(answer.get(f"Checksum{name}") or "").partition("-")) for name in _CHECKSUMS]
        for name, value, _, count in sorted(stated, key=lambda one: one[3]):
            if value and not count:
                yield f"checksum {name}", _CHECKSUMS[name](), b64decode(value)
            elif value:
                with suppress(OSError):  # not every server says how large a part is
                    size = int(self._head(PartNumber=1)["ContentLength"])
                    if size * (int(count) - 1) < self._size <= size * int(count):
                        yield f"checksum {name}", _OfParts(_CHECKSUMS[name], size), b64decode(value)

    def _is_even(self, one: Any) -> bool:
        """Return whether all parts have the size of the first, if the hash is that of the hashes of parts."""
        rest = range(2, -(-self._size // one.size)) if isinstance(one, _OfParts) else ()
        return all(int(self._head(PartNumber=number)["ContentLength"]) == one.size for number in rest)


class _OfParts:
    """The hash of the hashes of parts, all of one size except the last."""

    def __init__(self, kind: Callable[[], Any], size: int) -> None:
        self.size, self._kind = size, kind
        self._all, self._part, self._left = kind(), kind(), size

    def update(self, data: bytes) -> None:
        while data:
            if not self._left:
                self._all.update(self._part.digest())
                self._part, self._left = self._kind(), self.size
            piece, data = data[: self._left], data[self._left :]
            self._part.update(piece)
            self._left -= len(piece)

    def digest(self) -> bytes:
        self._all.update(self._part.digest())
        return bytes(self._all.digest())


class WebFile(_Body):
    """What a web server sends for a URL, by one request. If that breaks off, or reading goes on elsewhere,
    another one asks for the rest."""

    def __init__(self, place: RemoteRoot, url: str) -> None:
        super().__init__(place)
        self._url = url
        self._began = self._next = 0
        self._answer: Any = None
        self._is_read = False
        self.encoding = ""
        """How the server has packed the file, although it was asked not to."""

    def close(self) -> None:
        self._hang_up()
        super().close()

    def _hang_up(self) -> None:
        if self._answer is not None:
            self.place.fs.loop.call_soon_threadsafe(self._answer.close)
        self._answer = None

    def read_at(self, at: int, most: int) -> bytes:
        from fsspec.asyn import sync

        return bytes(sync(self.place.fs.loop, self._read, at, most))

    async def _read(self, at: int, most: int) -> bytearray:
        from aiohttp import ClientError

        data = bytearray()
        while not data:
            if self._answer is None or at != self._next:
                self._hang_up()
                self._began = self._next = at
                self._answer = await self._ask(at)
            try:
                while len(data) < most and not self._is_read:
                    part = await self._answer.content.read(most - len(data))
                    data += part
                    self._next += len(part)
                    self._is_read = not part
                break
            except (ClientError, TimeoutError) as error:
                self._hang_up()
                if self._next == self._began:
                    text = f"the server ends {self.place.shown} after {format_count(self._next, 'byte')}"
                    raise ConnectionError(text) from error
        return data

    async def _ask(self, at: int) -> Any:
        answer = await ask_web(self.place, self._url, f"bytes={at}-" if at else "")
        self.place.fs._raise_not_found_for_status(answer, self._url)
        is_rest = answer.headers.get("Content-Range", "").startswith(f"bytes {at}-") and at > 0
        if answer.status not in (HTTPStatus.OK, HTTPStatus.NON_AUTHORITATIVE_INFORMATION) and not is_rest:
            answer.close()
            text = f"the server answers {answer.status} {answer.reason} for {self.place.shown}, and no whole file"
            raise Unsupported(text, subject=self.place.shown)
        self._is_read = False
        to_skip = 0 if is_rest else at
        while to_skip:  # the server gives no parts of files
            to_skip -= len(await answer.content.readexactly(min(to_skip, 1 << 20)))
        self.encoding = encoding_of(answer)
        return answer


async def ask_web(place: RemoteRoot, url: str, part: str, **headers: str) -> Any:
    """Return the answer of a web server that was asked for a file, or a part such as `bytes=5-`, not packed."""
    from aiohttp import ClientTimeout

    asked = {**headers, "Accept-Encoding": "identity", **({"Range": part} if part else {})}
    session = await place.fs.set_session()
    limit = ClientTimeout(total=None, sock_connect=30, sock_read=300)  # seconds, the last without a byte
    return await session.get(place.fs.encode_url(url), headers=asked, timeout=limit)


def encoding_of(answer: Any) -> str:
    """Return how a web server has packed a body; empty if it has not."""
    said = str(answer.headers.get("Content-Encoding", "")).strip().lower().removeprefix("x-")
    return "" if said == "identity" else said
