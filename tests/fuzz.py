"""Mutates real small stores, and holds every decoder to its word: a documented error, in little memory.

    python -m tests.fuzz [--seconds 120] [--memory 1500] [--first N] [--rounds N] [--seed N]

Each round changes an object of a store (bits, bytes, numbers, pieces of others), hashes it anew, so that the change
is seen by the decoder and not by the check before it, and names it by all that led to it. Then the store is read
whole, by dsv and by the independent reader. If that ends with another error than the documented ones, or needs more
memory than the limit, the seed that repeats it is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import zstandard
from blake3 import blake3

from dsv import reader
from dsv.errors import DsvError
from dsv.format import codec, keys, pack
from dsv.format.envelope import sealed
from dsv.format.index import Index, IndexBuilder, IndexFilter
from dsv.format.locator import Location, Locator, ObjectKind
from dsv.format.recipe import Recipe
from dsv.format.records import (
    CommitRecord,
    DatasetErased,
    FormatEntry,
    GcCondemned,
    GcDecision,
    IndexMerge,
    RefEntry,
    SessionOpen,
    TagValue,
)
from dsv.format.segment import Segment
from dsv.format.tree import Node
from dsv.repo.repository import Repository
from dsv.repo.resolve import resolve
from dsv.repo.tree.reader import TreeReader
from dsv.run.record import RunRecord
from dsv.stores.directory import DirectoryStore
from dsv.stores.memory import MemoryStore
from dsv.transfer.download import Fetcher, WantedFile
from dsv.values.ids import ChunkId, CommitId, FileId, Id, IndexId, NodeId, Nonce, PackId, RecipeId, SegmentId
from dsv.values.names import MAIN, DatasetName
from tests.kit import packs
from tests.run.test_record import RECORD

SET = DatasetName.parse("set")
Keys = dict[str, bytes]
HASHES: Mapping[ObjectKind, Callable[[bytes], Id]] = {
    ObjectKind.CHUNK: ChunkId.hash,
    ObjectKind.RECIPE: RecipeId.hash,
    ObjectKind.SEGMENT: SegmentId.hash,
    ObjectKind.NODE: NodeId.hash,
}
DECODERS: Mapping[str, Callable[[bytes], object]] = {
    "commit": CommitRecord.decode,
    "ref": RefEntry.decode,
    "tag": TagValue.decode,
    "format": FormatEntry.decode,
    "session-open": SessionOpen.decode,
    "dataset-erased": DatasetErased.decode,
    "gc-condemned": GcCondemned.decode,
    "gc-decision": GcDecision.decode,
    "run": lambda data: RunRecord.decode(data, "run"),
    "segment": Segment.decode,
    "node": Node.decode,
    "recipe": Recipe.decode,
    "locator": lambda data: Locator.decode(codec.compress(data)),
    "frame": lambda data: Locator.decode(data, 4096),
    "index": Index.parse,
    "index-merge": IndexMerge.decode,
    "filter": lambda data: used(IndexFilter.parse(data, IndexId(data[8:24]))),
    "pack": packs.verify,
}


def used(found: IndexFilter) -> None:
    for block in found.blocks(ChunkId.hash(b"")):
        found.span(block)


NUMBERS = (0, 1, 2, 255, 4096, 4097, 65536, 1 << 22, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1)


class Corpus:
    """The objects of real stores, by kind, and what a store is made of."""

    def __init__(self, *, fresh: bool) -> None:
        """fresh: also a store made just now, whose ids and times are others each time."""
        names = ("store", "store-named", "store-nodes", "store-merged")
        self.stores: list[Keys] = [*map(golden, names), *([synced()] if fresh else [])]
        self.samples: dict[str, list[bytes]] = {name: [] for name in DECODERS}
        self.samples["run"].append(RECORD.encode())
        for store in self.stores:
            for key, data in store.items():
                self._add(key, data)

    def _add(self, key: str, data: bytes) -> None:
        kind = data[4:].partition(b" ")[0].decode("ascii", "replace") if data.startswith(b"dsv ") else ""
        if key.startswith("packs/"):
            self.samples["pack"].append(data)
            for row in packs.verify(data):
                stored = data[row.offset : row.offset + row.stored]
                plain = stored
                if row.codec:
                    plain = zstandard.ZstdDecompressor().decompress(stored, max_output_size=row.length)
                name = row.kind.name.lower()
                if name in self.samples:
                    self.samples[name].append(plain)
                if row.kind is ObjectKind.LOCATOR:
                    self.samples["frame"].append(stored)
        elif keys.parse_index_key(key) is not None:
            self.samples["index"].append(data)
        elif keys.parse_index_filter_key(key) is not None:
            self.samples["filter"].append(data)
        elif kind in self.samples:
            self.samples[kind].append(data)


def golden(name: str) -> Keys:
    store = DirectoryStore(Path(__file__).parent / "golden" / name)
    try:
        return {item.key: store.get(item.key) for item in store.list("")}
    finally:
        store.close()


def synced() -> Keys:
    """As a sync writes it: large, small, empty and compressed files, and a symlink."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        here, noise = home / "here", random.Random(1)
        (here / "b").mkdir(parents=True)
        (here / "a.bin").write_bytes(noise.randbytes(5000))
        (here / "b/large.bin").write_bytes(noise.randbytes(3 << 20))
        (here / "empty").touch()
        (here / "text").write_bytes(b"the same line\n" * 3000)
        (here / "link").symlink_to("a.bin")
        environ = {**os.environ, "HOME": folder, "DSV_STORE": str(home / "store")}
        for arguments in (["init", "set"], ["sync", "-q"], ["tag", "v1"]):
            program = [sys.executable, "-m", "dsv.cli.main", *arguments]
            subprocess.run(program, cwd=here, env=environ, check=True, stdout=subprocess.DEVNULL)
        store = DirectoryStore(home / "store")
        try:
            return {item.key: store.get(item.key) for item in store.list("")}
        finally:
            store.close()


def mutated(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """Changed in one to four places."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        what = chance.randrange(8)
        if what == 0 and out:
            out[at % len(out)] ^= 1 << chance.randrange(8)
        elif what == 1:
            out[at : at + 4] = struct.pack("<I", chance.choice(NUMBERS) & 0xFFFFFFFF)
        elif what == 2:
            out[at : at + 8] = struct.pack("<Q", chance.choice(NUMBERS))
        elif what == 3:
            del out[at : at + chance.choice((1, 4, 8, 32, 1000))]
        elif what == 4:
            out[at:at] = out[at : at + chance.choice((1, 8, 32, 100))] * chance.choice((1, 2, 100))
        elif what == 5:
            other = chance.choice(others)
            begin = chance.randrange(len(other) + 1)
            out[at:at] = other[begin : begin + chance.choice((4, 32, 500))]
        elif what == 6:  # the counts stand at the front
            at = 10 + chance.randrange(20)
            out[at : at + 4] = struct.pack("<I", chance.choice(NUMBERS) & 0xFFFFFFFF)
        else:
            out[at:at] = chance.choice((b"\0", b"/", b"../", b"\xff", b"\x93", b"a" * 300))
    return bytes(out)


def decoded(corpus: Corpus, chance: random.Random) -> None:
    """One decoder, given something mutated whose check or hash is right again."""
    name = chance.choice([name for name, found in corpus.samples.items() if found])
    data = mutated(chance.choice(corpus.samples[name]), corpus.samples[name], chance)
    if name in ("commit", "ref", "tag", "format", "session-open", "gc-condemned", "index-merge"):
        data = sealed(data[:-8])
    elif name in ("index", "filter"):
        data = data[:-32] + blake3(data[:-32]).digest()
    elif name == "pack":
        data = data[:-40] + blake3(data[:-40]).digest() + data[-8:]
    try:
        DECODERS[name](data)
    except DsvError:
        return


def objects_of(store: Keys) -> dict[Id, tuple[ObjectKind, bytes]]:
    objects: dict[Id, tuple[ObjectKind, bytes]] = {}
    for key, data in store.items():
        if key.startswith("packs/"):
            for row in packs.verify(data):
                if row.kind is not ObjectKind.LOCATOR:
                    plain = codec.unpack(row.codec, data[row.offset : row.offset + row.stored], row.length)
                    objects[row.id] = row.kind, plain
    return objects


def rebuilt(store: Keys, chance: random.Random) -> Keys:
    """A store with an object changed, and all that leads to it made anew, so that only its own decoder can object."""
    objects = objects_of(store)
    changed = chance.choice([each for each, (kind, _) in objects.items() if kind is not ObjectKind.CHUNK])
    kind, data = objects[changed]
    names: dict[bytes, bytes] = {}
    objects[changed] = kind, mutated(data, [one for _, one in objects.values()], chance)
    for level in (ObjectKind.RECIPE, ObjectKind.SEGMENT, ObjectKind.NODE, ObjectKind.NODE, ObjectKind.NODE):
        for old, (one, plain) in list(objects.items()):
            if one is level:
                for before, after in names.items():
                    plain = plain.replace(before, after)
                new = HASHES[one](plain)
                objects[new] = one, plain
                if new != old:
                    names[bytes(old)] = bytes(new)
    return _stored(store, objects, names, chance)


def _stored(
    store: Keys,
    objects: Mapping[Id, tuple[ObjectKind, bytes]],
    names: Mapping[bytes, bytes],
    chance: random.Random,
) -> Keys:
    builder, index, pack_id = pack.PackBuilder(), IndexBuilder(), PackId(b"p" * 16)
    for object_id, (kind, plain) in objects.items():
        if plain:
            packed = codec.compress(plain) if chance.random() < 0.5 else plain
            how = codec.Codec.RAW if packed is plain else codec.Codec.ZSTD
            offset = builder.add(kind, object_id, how, packed, len(plain))
            index.add(kind, object_id, Location(pack_id, offset, len(packed), len(plain), how))
    out = {key: data for key, data in store.items() if key.startswith("format/")}
    out[keys.pack_key(pack_id)] = bytes(builder.finish())
    out[keys.index_key(IndexId(b"i" * 16))] = index.finish()
    commits = [data for key, data in store.items() if key.startswith("commits/")]
    commit = chance.choice(commits)
    for before, after in names.items():
        commit = commit.replace(before, after)
    commit = sealed(commit[:-8])
    commit_id = CommitId.hash(commit)
    out[keys.commit_key(commit_id)] = commit
    for number, named in enumerate((None, commit_id)):
        entry = RefEntry(named, False, Nonce(bytes(16)), 0, "", "", SET, MAIN, number)
        out[keys.branch_key(SET, MAIN, number)] = entry.encode()
    return out


def read_by_dsv(found: Keys) -> None:
    store = MemoryStore()
    for key, data in found.items():
        store.put_if_absent(key, data)
    repository = Repository.open(store, None)
    tree = TreeReader(repository.objects, resolve(repository.refs, repository.objects, SET, None).commit)
    tree.check_links(tree.links())
    wanted = [WantedFile(entry, where) for entry, where in tree.below(b"") if entry.is_file]
    for one, content in Fetcher(repository.objects).files(wanted):
        whole = b"".join(content)
        assert FileId.hash(whole) == one.entry.file_id, "a file is not what its id says"


def read_independently(found: Keys, folder: Path) -> None:
    place = folder / "store"
    for key, data in found.items():
        (place / key).parent.mkdir(parents=True, exist_ok=True)
        (place / key).write_bytes(data)
    reader.restore(place, "set", folder / "out")


def restored(corpus: Corpus, chance: random.Random, folder: Path) -> None:
    """A whole store, read by dsv and by the reader that knows nothing of it."""
    found = rebuilt(chance.choice(corpus.stores), chance)
    with contextlib.suppress(DsvError):
        read_by_dsv(found)
    with contextlib.suppress(reader.StoreError, OSError):
        read_independently(found, folder)


def check_that_unchanged_stores_are_read(corpus: Corpus) -> None:
    """Else every round would end at the same refusal, and find nothing."""
    for store in corpus.stores:
        found = _stored(store, objects_of(store), {}, random.Random(0))
        read_by_dsv(found)
        with tempfile.TemporaryDirectory() as folder:
            read_independently(found, Path(folder))


def one_round(corpus: Corpus, seed: int) -> None:
    chance = random.Random(seed)
    if seed % 20:
        decoded(corpus, chance)
        return
    with tempfile.TemporaryDirectory() as folder:
        restored(corpus, chance, Path(folder))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120, help="at most")
    parser.add_argument("--rounds", type=int, default=1 << 60, help="at most")
    parser.add_argument(
        "--first",
        type=int,
        help="the first round, of stores that are the same each time; without it a random one",
    )
    parser.add_argument("--memory", type=int, default=1500, help="MiB of memory")
    parser.add_argument("--seed", type=int, help="this round alone")
    options = parser.parse_args()
    corpus = Corpus(fresh=options.first is None)
    missing = [name for name, found in corpus.samples.items() if not found]
    assert not missing, f"decoders without a sample: {missing}"
    check_that_unchanged_stores_are_read(corpus)
    # Not RLIMIT_AS: each thread reserves address space that it never uses.
    resource.setrlimit(resource.RLIMIT_DATA, (options.memory << 20, options.memory << 20))
    end = time.monotonic() + options.seconds
    first, most = options.first, options.rounds
    if options.seed is not None:
        first, most = options.seed, 1
    elif first is None:
        first = random.SystemRandom().randrange(1 << 40)
    rounds = 0
    while rounds < most and time.monotonic() < end:
        try:
            one_round(corpus, first + rounds)
        except BaseException:
            again = "--seed" if options.first is None else "--rounds 1 --first"
            print(f"fuzz: python -m tests.fuzz {again} {first + rounds}", file=sys.stderr)
            raise
        rounds += 1
    print(f"{rounds} rounds from seed {first}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
