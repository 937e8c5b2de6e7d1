"""Where large files are cut: FastCDC (2020) with parameters that are frozen with the format.

A cut depends on the bytes since the cut before it and nothing else, so equal runs of two files are cut alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from dsv.errors import Unsupported

if TYPE_CHECKING:
    from pyfastcdc import FastCDC

ALGORITHM = "fastcdc-2020"
SINGLE_CHUNK_MAX = 1 << 20  # bytes; a file up to this is one chunk whose id is the file id
MIN_CHUNK = 256 << 10
AVERAGE_CHUNK = 1 << 20
MAX_CHUNK = 4 << 20
NORMALIZATION: Literal[1] = 1
_BUFFER = 3 * MAX_CHUNK


def _chunker() -> FastCDC:
    """A new one each time: it may not be shared by threads, and costs a microsecond."""
    from pyfastcdc import FastCDC  # not at import: most commands cut nothing

    if FastCDC.__module__ != "pyfastcdc.cy.fastcdc":
        raise Unsupported(
            "pyfastcdc came without its compiled part and would cut files 200 times slower",
            subject="pyfastcdc",
            hint="pip install --force-reinstall --only-binary :all: pyfastcdc",
        )
    return FastCDC(
        AVERAGE_CHUNK, min_size=MIN_CHUNK, max_size=MAX_CHUNK, normalized_chunking=NORMALIZATION, seed=0
    )


def cut_points(data: bytes | bytearray | memoryview) -> list[int]:
    """The lengths of the chunks of a whole file's bytes; empty for an empty one."""
    return [chunk.length for chunk in _chunker().cut_buf(memoryview(data).toreadonly())]


class FileCutter:
    """Cuts files that are read into memory of its own: nothing is copied but what lies behind the last cut."""

    def __init__(self) -> None:
        self._chunker = _chunker()
        self._buffer = memoryview(bytearray(_BUFFER))

    def chunks(self, readinto: Callable[[memoryview], int]) -> Iterator[memoryview]:
        """The chunks of one file; `readinto` fills what it is given, partly or wholly, and gives 0 at the end.

        A chunk is good until the next one is asked for.
        """
        buffer = self._buffer
        start = end = 0
        ended = False
        while not ended or start < end:
            while end < len(buffer) and not ended:
                got = readinto(buffer[end:])
                end += got
                ended = not got
            cuts = self._chunker.cut_buf(buffer[start:end].toreadonly())
            # Nearer to the end of what was read, a cut may depend on what is still to come.
            while end - start >= MAX_CHUNK or (ended and start < end):
                chunk = next(cuts)
                yield chunk.data
                start += chunk.length
            buffer[: end - start] = buffer[start:end]
            start, end = 0, end - start
