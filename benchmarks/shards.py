"""A million small files to shards for WebDataset and back: time, memory, and whether every sample is whole.

    python -m benchmarks.shards FOLDER [--folders 500]

Each folder has 1,000 samples of two files, an image of 0.5 to 1.5 kB and a label. The store is a folder.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from benchmarks.measure import Command, run

_SAMPLES = 1000


def contents(folders: int) -> Iterator[tuple[str, bytes]]:
    """Yield the files by name; the same ones each time."""
    source = random.Random(1)
    for folder in range(folders):
        for sample in range(_SAMPLES):
            yield f"{folder:03}/{sample:04}.jpg", source.randbytes(500 + source.randrange(1000))
            yield f"{folder:03}/{sample:04}.json", b'{"label": %d}' % source.randrange(10**9)


def write_tar(path: Path, folders: int) -> None:
    with path.open("wb", 1 << 20) as out:
        for name, data in contents(folders):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.write(info.tobuf(tarfile.USTAR_FORMAT))
            out.write(data + bytes(-len(data) % tarfile.BLOCKSIZE))
        out.write(bytes(2 * tarfile.BLOCKSIZE))


def read_back(shards: Path, known: dict[str, bytes]) -> int:
    """Read all samples, in any order, and return how many there are. known: a hash of each file."""
    import webdataset

    left, paths = set(known), sorted(map(str, shards.glob("*.tar")))
    count = 0
    for sample in webdataset.WebDataset(paths, shardshuffle=False):
        names = {f"{sample['__key__']}.{suffix}": suffix for suffix in ("jpg", "json")}
        assert names.keys() <= left, f"{sample['__key__']} came twice"
        left.difference_update(names)  # with -= all that is left would be copied each time
        for name, suffix in names.items():
            assert blake3(sample[suffix]).digest(16) == known[name], name
        count += 1
    assert not left, f"{len(left)} files are missing, such as {min(left)}"
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--folders", type=int, default=500)
    given = parser.parse_args()
    below, folders = given.folder.resolve(), given.folders
    (below / "store").mkdir(parents=True, exist_ok=True)
    env = {"HOME": str(below / "home"), "DSV_STORE": str(below / "store")}

    def dsv(*words: str) -> None:
        cost = run(Command([sys.executable, "-m", "dsv.cli.main", *words], below, env))
        print(f"{' '.join(words)}: {cost.seconds:.1f} s, {cost.cpu:.1f} s of processor time, ", end="")
        print(f"at most {cost.largest / 1e6:.0f} MB of memory", flush=True)

    if not (below / "home").exists():
        (below / "boot").mkdir()
        run(Command([sys.executable, "-m", "dsv.cli.main", "init", "boot"], below / "boot", env))
        write_tar(below / "in.tar", folders)
        dsv("import", f"file://{below}/in.tar", "million:", "--create")
        (below / "in.tar").unlink()
    known = {name: blake3(data).digest(16) for name, data in contents(folders)}
    for options in ((), ("--shuffle", "1")):
        dsv("export", "million", f"{below}/shards/s-%05d.tar", "--shard-size", "100MB", *options)
        many = len(list((below / "shards").glob("*.tar")))
        print(f"{read_back(below / 'shards', known):,} samples in {many} shards are as they were", flush=True)
        shutil.rmtree(below / "shards")


if __name__ == "__main__":
    main()
