"""Encoding of an object's bytes: plain, or as one zstd frame where that saves a tenth or more."""

from __future__ import annotations

import enum
import re
import threading
from functools import cache
from typing import Any

from dsv.errors import IntegrityError
from dsv.format.envelope import Buffer

_LEVEL = 3
# Below this many bytes, the overhead of a frame exceeds what it could save.
_SMALLEST = 64
# Larger data is sampled first: this many pieces of this many bytes, spread evenly.
_SAMPLED_ABOVE = 64 << 10
_SAMPLES = 4
_SAMPLE = 4 << 10
# After this many contents in a row that zstd could not shrink, as in a folder of images, only one of a few is
# tried until one shrinks again: a trial costs as much as hashing.
_IN_A_ROW = 64
_ONE_OF = 4
_WINDOW_MAX = 32 << 20  # bytes of history a frame may ask a reader to hold


@cache
def _zstandard() -> Any:
    import zstandard  # takes a while to import

    return zstandard


class Codec(enum.IntEnum):
    RAW = 0
    ZSTD = 1


class Compressor:
    """Compresses contents if that saves a tenth or more. Not thread-safe."""

    def __init__(self) -> None:
        self._zstd = _zstandard().ZstdCompressor(level=_LEVEL, write_content_size=True, write_checksum=False)
        self._in_vain = 0

    def pack(self, data: Buffer) -> tuple[Codec, Buffer]:
        """Return the codec and the bytes to store: `data` itself if zstd saves less than a tenth."""
        if len(data) < _SMALLEST or (len(data) > _SAMPLED_ABOVE and not self._promising(data)):
            return Codec.RAW, data
        packed = self._zstd.compress(data)
        if len(packed) * 10 > len(data) * 9:
            return Codec.RAW, data
        return Codec.ZSTD, packed

    def pack_next(self, data: Buffer) -> tuple[Codec, Buffer]:
        """Do as `pack` for the next of many contents in tree order, where neighbours are alike."""
        if self._in_vain >= _IN_A_ROW and self._in_vain % _ONE_OF:
            self._in_vain += 1
            return Codec.RAW, data
        packed = self.pack(data)
        self._in_vain = self._in_vain + 1 if packed[0] is Codec.RAW else 0
        return packed

    def _promising(self, data: Buffer) -> bool:
        view = memoryview(data)
        step = (len(view) - _SAMPLE) // (_SAMPLES - 1)
        sample = b"".join(view[at * step : at * step + _SAMPLE] for at in range(_SAMPLES))
        return len(self._zstd.compress(sample)) * 100 <= len(sample) * 95


class _Local(threading.local):
    zstd: Any = None


_local = _Local()


def _decompressor() -> Any:
    """Return the one of this thread."""
    if _local.zstd is None:
        _local.zstd = _zstandard().ZstdDecompressor(max_window_size=_WINDOW_MAX)
    return _local.zstd


def compress(data: Buffer) -> bytes:
    """Return one zstd frame, even if it saves nothing."""
    compressor = _zstandard().ZstdCompressor(level=_LEVEL, write_content_size=True, write_checksum=False)
    return bytes(compressor.compress(data))


_EMPTY = re.compile(rb"(?:\x02\0\0.)*", re.DOTALL)
"""Blocks of a frame that repeat their byte no times."""


def carrying(frame: bytes, data: bytes) -> bytes:
    """Return a zstd frame that unpacks to the same bytes, with other data in empty blocks before its own: each
    holds a byte of the data, compressed, which unpacking passes over."""
    at, packed = _zstandard().frame_header_size(frame), compress(data)
    return frame[:at] + b"".join(b"\x02\0\0%c" % one for one in packed) + frame[at:]


def carried(frame: bytes, largest: int) -> bytes | None:
    """Return the data that `carrying` has put into a frame; None if there is none that is whole."""
    try:
        blocks = _EMPTY.match(frame, _zstandard().frame_header_size(frame))
        return None if blocks is None else unpack_frame(blocks[0][3::4], 1, largest)
    except (IntegrityError, _zstandard().ZstdError):
        return None


def unpack(codec: Codec, stored: Buffer, length: int) -> bytes:
    """Return the object's `length` bytes, in no more memory than that. Raises `IntegrityError`.
    Thread-safe."""
    if codec is Codec.RAW:
        if len(stored) != length:
            raise IntegrityError(f"a stored object has {len(stored)} bytes, not {length}")
        return stored if isinstance(stored, bytes) else bytes(stored)
    return unpack_frame(stored, length, length)


def unpack_frame(stored: Buffer, smallest: int, largest: int) -> bytes:
    """Return the content of one zstd frame. Raises `IntegrityError` if its stated size is out of range."""
    try:
        promised = _zstandard().frame_content_size(stored)
        if not smallest <= promised <= largest:  # -1: the header has no size
            expected = str(largest) if smallest == largest else f"at most {largest}"
            raise IntegrityError(f"a zstd frame says that it has {promised} bytes, not {expected}")
        data: bytes = _decompressor().decompress(stored, max_output_size=promised, allow_extra_data=False)
    except _zstandard().ZstdError as error:
        raise IntegrityError(f"a zstd frame is damaged: {error}") from None
    if len(data) != promised:
        raise IntegrityError(f"a zstd frame has {len(data)} bytes and says {promised}")
    return data
