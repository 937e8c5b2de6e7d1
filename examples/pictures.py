"""Makes a folder of small pictures to try things on: `python examples/pictures.py FOLDER NUMBER`.

Half of them lie in cats/, half in dogs/, and labels.csv names them all. The same call makes the same bytes.
"""

from __future__ import annotations

import random
import struct
import sys
import zlib
from pathlib import Path

SIDE = 16


def png(random_numbers: random.Random) -> bytes:
    """A grey picture of SIDE x SIDE random pixels."""
    rows = b"".join(b"\0" + random_numbers.randbytes(SIDE) for _ in range(SIDE))
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def main() -> None:
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    random_numbers = random.Random(number)
    lines = ["picture,kind,width,height"]
    for index in range(number):
        kind = "cats" if index < number // 2 else "dogs"
        path = folder / kind / f"{index:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(random_numbers))
        lines.append(f"{path.name},{kind.removesuffix('s')},{SIDE},{SIDE}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
