"""The speed of `dsv verify --full`, beside that of reading the packs and hashing them alone.

    python -m benchmarks.verify                        in a folder of its own
    python -m benchmarks.verify --folder /data/x --mebibytes 2048

Two stores are made, of large files and of small ones. Then, in turns and in one run: every pack is read, its bytes are
hashed, each object in it is unpacked and hashed, without a look at anything else; and
`dsv verify --full` verifies the store. The ratio is of the best of each; that of processor time does not depend on what
else the machine does.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from blake3 import blake3

from dsv.format.codec import Codec, unpack
from dsv.format.locator import ObjectKind
from dsv.format.pack import read_table
from dsv.values.ids import NodeId, RecipeId, SegmentId

CONTEXTS = {
    ObjectKind.RECIPE: RecipeId.context,
    ObjectKind.SEGMENT: SegmentId.context,
    ObjectKind.NODE: NodeId.context,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="where the stores are made, and removed")
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--threads", type=int, default=2, help="of what is compared with; 1: as a plain loop does"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder is removed
    folder = Path(tempfile.mkdtemp(prefix="dsv-verify-", dir=options.folder))
    try:
        for size, what in (
            (64 << 20, "large files"),
            (100 << 10, "files of 100 KiB"),
            (10 << 10, "files of 10 KiB"),
        ):
            measure(folder / what.replace(" ", "-"), size, what, options)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        shutil.rmtree(folder, ignore_errors=True)


def measure(folder: Path, size: int, what: str, options: argparse.Namespace) -> None:
    total, rounds = options.mebibytes << 20, options.rounds
    store, work, home = folder / "store", folder / "work", folder / "home"
    for one in (work, home):
        one.mkdir(parents=True)
    draw = random.Random(size)
    for number in range(total // size):
        path = work / f"{number % 50}" / f"{number}"
        path.parent.mkdir(exist_ok=True)
        # Half of it can be compressed.
        path.write_bytes(draw.randbytes(size) if number % 2 else draw.randbytes(size // 4) * 4)
    environ = {**os.environ, "HOME": str(home), "DSV_STORE": str(store)}
    for arguments in (("init", "bench"), ("sync", "-q")):
        subprocess.run([program(), *arguments], cwd=work, env=environ, check=True, capture_output=True)
    packs = list((store / "packs").glob("*/*"))
    stored = sum(path.stat().st_size for path in packs)
    plain, verified, quick, work_alone, work_of_dsv = [], [], [], [], []
    for _ in range(rounds):
        begin, worked = time.monotonic(), time.process_time()
        with ThreadPoolExecutor(options.threads) as pool:
            objects = sum(pool.map(hashed, packs))
        plain.append(time.monotonic() - begin)
        work_alone.append(time.process_time() - worked)
        begin, worked = time.monotonic(), children()
        subprocess.run(
            [program(), "verify", "--full", "-q"], cwd=work, env=environ, check=True, capture_output=True
        )
        verified.append(time.monotonic() - begin)
        work_of_dsv.append(children() - worked)
        begin = time.monotonic()
        subprocess.run([program(), "verify", "-q"], cwd=work, env=environ, check=True, capture_output=True)
        quick.append(time.monotonic() - begin)
    ratios = min(plain) / min(verified), min(work_alone) / min(work_of_dsv)
    print(
        f"{what}: {stored / 1e6:,.0f} MB in {len(packs)} packs, {objects:,} objects; read and hashed in "
        f"{min(plain):.2f} s, verified in {min(verified):.2f} s: ratio {ratios[0]:.2f}; of "
        f"processor time {min(work_alone):.2f} s and {min(work_of_dsv):.2f} s: ratio {ratios[1]:.2f}; "
        f"without contents, dsv verify takes {min(quick):.2f} s",
        flush=True,
    )


def children() -> float:
    """Return the processor time of the processes that were started and have ended."""
    times = os.times()
    return times.children_user + times.children_system


def hashed(path: Path) -> int:
    data = memoryview(path.read_bytes())
    blake3(data).digest()
    table = read_table(data)
    for row in table:
        content: memoryview | bytes = data[row.offset : row.offset + row.stored]
        if row.kind is ObjectKind.LOCATOR:
            continue
        if row.codec is not Codec.RAW:
            content = unpack(row.codec, content, row.length)
        context = CONTEXTS.get(row.kind)
        digest = blake3(content) if context is None else blake3(content, derive_key_context=context)
        if digest.digest() != row.id:
            raise SystemExit(f"{path} is damaged")
    return len(table)


def program() -> str:
    return str(Path(sys.executable).parent / "dsv")


if __name__ == "__main__":
    main()
