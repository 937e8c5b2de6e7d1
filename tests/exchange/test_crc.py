"""CRCs by numpy: the values that their definitions publish, and any cuts of a content."""

from __future__ import annotations

import random
import zlib

import pytest

from dsv.exchange.crc import Crc


@pytest.mark.parametrize(
    ("polynomial", "width", "expected"),
    [
        (0xEDB88320, 4, "cbf43926"),
        (0x82F63B78, 4, "e3069283"),
        (0x9A6C9329AC4BC9B5, 8, "ae8b14860a799888"),
    ],
    ids=["CRC32", "CRC32C", "CRC64NVME"],
)
@pytest.mark.parametrize("piece", [1, 2, 5, 9])
def test_the_published_check_value(polynomial: int, width: int, expected: str, piece: int) -> None:
    found, check = Crc(polynomial, width), b"123456789"
    for at in range(0, len(check), piece):
        found.update(check[at : at + piece])
    assert found.digest().hex() == expected


def test_pieces_of_any_length() -> None:
    random_ = random.Random(3)
    data = random_.randbytes(300_000)
    for _ in range(20):
        found, at = Crc(0xEDB88320, 4), 0
        while at < len(data):
            end = at + random_.choice([0, 1, 3, 127, 128, 129, 4096, 70_000])
            found.update(data[at:end])
            at = end
        assert found.digest() == zlib.crc32(data).to_bytes(4, "big")
