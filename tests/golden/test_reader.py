"""The independent reader against stores that nobody should trust."""

from __future__ import annotations

import random
import struct
from array import array
from pathlib import Path

import pytest
import zstandard

from dsv import reader
from dsv.format import keys
from dsv.format.codec import Codec
from dsv.format.index import IndexBuilder
from dsv.format.locator import Location, ObjectKind
from dsv.format.pack import PackBuilder
from dsv.format.recipe import Recipe
from dsv.format.records import CommitRecord
from dsv.format.tree import Kind
from dsv.reader import StoreError
from dsv.values.ids import ChunkId, CommitId, FileId, Id, NodeId, PackId, RecipeId, SegmentId
from dsv.values.paths import sort_key
from tests.golden import make
from tests.golden.building import StoreMaker, name_of
from tests.golden.stores import named, refused, stored
from tests.golden.test_golden import GOLDEN, files_of
from tests.kit.people import Person, read_folder

PACK = name_of("pack").pack

# --- trees with several levels


def test_levels_of_nodes_and_recipes(tmp_path: Path) -> None:
    noise = random.Random(5)
    files: dict[bytes, make.File] = {
        b"d%d/%02d.bin" % (at % 7, at): (Kind.FILE, noise.randbytes(100)) for at in range(100)
    }
    files[b"big"] = Kind.EXECUTABLE, noise.randbytes(20 << 20)
    maker = StoreMaker(every=3)
    commit = maker.commit(files, (), "", 0, "")
    assert CommitRecord.decode(maker.keys[keys.commit_key(commit)]).level == 4
    store = stored(tmp_path, {**maker.keys, **named(commit)})
    reader.restore(store, "set", tmp_path / "out")
    assert files_of(tmp_path / "out") == files


def test_an_empty_tree(tmp_path: Path) -> None:
    maker = StoreMaker()
    commit = maker.commit({}, (), "", 0, "")
    store = stored(tmp_path, {**maker.keys, **named(commit)})
    assert reader.restore(store, "set", tmp_path / "out")[1:] == (0, 0)
    assert list((tmp_path / "out").iterdir()) == []


# --- trees that must not be written


class ByHand:
    """A store with objects that dsv's own code would refuse to encode."""

    def __init__(self) -> None:
        self.pack = PackBuilder()
        self.index = IndexBuilder()

    def add(self, kind: ObjectKind, object_id: Id, data: bytes, stored_as: bytes | None = None) -> None:
        codec = Codec.RAW if stored_as is None else Codec.ZSTD
        kept = data if stored_as is None else stored_as
        offset = self.pack.add(kind, object_id, codec, kept, len(data))
        self.index.add(kind, object_id, Location(PACK, offset, len(kept), len(data), codec))

    def finish(self, node: bytes, level: int = 1) -> dict[str, bytes]:
        """`node`, the root, has one child."""
        self.add(ObjectKind.NODE, NodeId.hash(node), node)
        entries, files, size = struct.unpack("<3Q", node[-24:])
        commit = CommitRecord(NodeId.hash(node), level, (), "", 0, "", files, size, entries).encode()
        return {
            keys.pack_key(PACK): bytes(self.pack.finish()),
            keys.index_key(name_of("index").index): self.index.finish(),
            keys.commit_key(CommitId.hash(commit)): commit,
            **named(CommitId.hash(commit)),
        }


def tree_of(paths: list[bytes], links: dict[bytes, bytes] | None = None) -> dict[str, bytes]:
    """A store whose tree has these paths as files of one byte, in this order, and these symlinks."""
    hand, links = ByHand(), links or {}
    hand.add(ObjectKind.CHUNK, ChunkId.hash(b"x"), b"x")
    every = sorted([*paths, *links], key=sort_key) if links else paths
    kinds = bytes(Kind.SYMLINK if path in links else Kind.FILE for path in every)
    column = b"".join(path + b"\0" for path in every)
    segment = b"dsv segment 1\n" + struct.pack("<II", len(every), len(column)) + column + kinds
    segment += struct.pack(f"<{len(paths)}Q", *[1] * len(paths)) + ChunkId.hash(b"x") * len(paths)
    segment += b"".join(links[path] + b"\0" for path in every if path in links)
    segment_id = SegmentId.hash(segment)
    hand.add(ObjectKind.SEGMENT, segment_id, segment)
    last = every[-1] + b"\0"
    node = b"dsv node 1\n" + struct.pack("<III", 1, 1, len(last)) + last + segment_id
    return hand.finish(node + struct.pack("<3Q", len(every), len(paths), len(paths)))


def test_the_hand_made_tree_would_be_fine(tmp_path: Path) -> None:
    store = stored(tmp_path, tree_of([b"a", b"b/c"], {b"d": b"b/c"}))
    reader.restore(store, "set", tmp_path / "out")
    assert files_of(tmp_path / "out") == {
        b"a": (Kind.FILE, b"x"),
        b"b/c": (Kind.FILE, b"x"),
        b"d": (Kind.SYMLINK, b"b/c"),
    }


@pytest.mark.parametrize(
    "paths",
    [
        [b"../../etc/passwd"],
        [b"/etc/passwd"],
        [b"a/../../b"],
        [b"a", b"a"],
        [b"b", b"a"],
        [b"a", b"a/b"],
        [b".git/hooks/post-checkout"],
        [b"x/.DSV/config"],
        [".dſv/config".encode()],
        [b"a//b"],
        [b"."],
        [b"\xff"],
        [b"x" * 256],
        [b"a/" * 2048 + b"b"],
    ],
)
def test_unsafe_paths(tmp_path: Path, paths: list[bytes]) -> None:
    refused(tmp_path, tree_of(paths), "may not be in a tree|not UTF-8|is twice in the tree")


@pytest.mark.parametrize(
    "links",
    [
        {b"l": b"/etc"},
        {b"l": b".."},
        {b"d/l": b"..", b"x": b"d/l/../y"},
        {b"a": b"a", b"b": b"a/../.."},
        {b"l": b""},
        {b"l": b"x" * 4096},
    ],
)
def test_symlinks_that_leave(tmp_path: Path, links: dict[bytes, bytes]) -> None:
    refused(tmp_path, tree_of([b"file"], links), "leaves the tree")


def test_a_link_in_place_of_a_folder_is_no_way_out(tmp_path: Path) -> None:
    refused(tmp_path, tree_of([b"l/file"], {b"l": b"elsewhere"}), "twice in the tree, below a file")


# --- contents that are not what they should be


def large_file(recipe: Recipe, chunks: list[bytes], size: int, file_id: FileId) -> dict[str, bytes]:
    hand = ByHand()
    for chunk in chunks:
        hand.add(ObjectKind.CHUNK, ChunkId.hash(chunk), chunk)
    encoded = recipe.encode()
    hand.add(ObjectKind.RECIPE, RecipeId.hash(encoded), encoded)
    segment = b"dsv segment 1\n" + struct.pack("<II", 1, 2) + b"f\0\0" + struct.pack("<Q", size)
    segment += file_id + RecipeId.hash(encoded)
    hand.add(ObjectKind.SEGMENT, SegmentId.hash(segment), segment)
    node = b"dsv node 1\n" + struct.pack("<III", 1, 1, 2) + b"f\0" + SegmentId.hash(segment)
    return hand.finish(node + struct.pack("<3Q", 1, 1, size))


CHUNKS = [bytes(1 << 20), b"1" * (1 << 20)]
IDS = b"".join(map(ChunkId.hash, CHUNKS))


@pytest.mark.parametrize(
    ("lengths", "size", "content"),
    [
        ([1 << 20, 1 << 20], 2 << 20, b"".join(reversed(CHUNKS))),
        ([1 << 20, 1 << 20], (2 << 20) + 1, b"".join(CHUNKS)),
        ([1 << 20, 1 << 20], (2 << 20) - 1, b"".join(CHUNKS)),
        ([1 << 20, (1 << 20) - 1], 2 << 20, b"".join(CHUNKS)),
    ],
)
def test_a_recipe_that_is_not_its_file(tmp_path: Path, lengths: list[int], size: int, content: bytes) -> None:
    recipe = Recipe(0, IDS, array("I", lengths))
    refused(
        tmp_path,
        large_file(recipe, CHUNKS, size, FileId.hash(content)),
        "bytes that are said of it|recipe of b'f' is not its file",
    )


def test_a_recipe_that_lists_itself_would_need_a_hash_collision_so_a_wrong_level_is_tried(
    tmp_path: Path,
) -> None:
    below = Recipe(1, bytes(32), array("Q", [2 << 20]))
    top = Recipe(3, RecipeId.hash(below.encode()), array("Q", [2 << 20]))
    hand = large_file(top, CHUNKS, 2 << 20, FileId.hash(b"".join(CHUNKS)))
    builder, index = PackBuilder(), IndexBuilder()
    other = PackId(b"o" * 16)
    encoded = below.encode()
    offset = builder.add(ObjectKind.RECIPE, RecipeId.hash(encoded), Codec.RAW, encoded, len(encoded))
    place = Location(other, offset, len(encoded), len(encoded), Codec.RAW)
    index.add(ObjectKind.RECIPE, RecipeId.hash(encoded), place)
    hand |= {
        keys.pack_key(other): bytes(builder.finish()),
        keys.index_key(name_of("i2").index): index.finish(),
    }
    refused(tmp_path, hand, "level 1 where 2 belongs")


def test_a_frame_that_unpacks_to_100_gb(tmp_path: Path) -> None:
    chunk = b"x" * 1000
    bomb = bytearray(zstandard.ZstdCompressor().compress(chunk))
    header = zstandard.frame_header_size(bytes(bomb))
    bomb[4:header] = b"\xc0\x58" + (100_000_000_000).to_bytes(8, "little")
    hand = ByHand()
    hand.add(ObjectKind.CHUNK, ChunkId.hash(chunk), chunk, bytes(bomb))
    segment = (
        b"dsv segment 1\n"
        + struct.pack("<II", 1, 2)
        + b"f\0\0"
        + struct.pack("<Q", 1000)
        + FileId.hash(chunk)
    )
    hand.add(ObjectKind.SEGMENT, SegmentId.hash(segment), segment)
    node = b"dsv node 1\n" + struct.pack("<III", 1, 1, 2) + b"f\0" + SegmentId.hash(segment)
    refused(tmp_path, hand.finish(node + struct.pack("<3Q", 1, 1, 1000)), "chunk .* is damaged")


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_store_gives_the_right_files_or_none(tmp_path: Path, seed: int) -> None:
    """One byte of one object changed, or its end cut off."""
    choice = random.Random(seed)
    found = dict(GOLDEN)
    key = choice.choice([key for key in found if key.startswith(("packs/", "index/", "commits/", "refs/"))])
    data = found[key]
    at = choice.randrange(len(data))
    found[key] = data[:at] + (
        bytes([data[at] ^ 1 << choice.randrange(8)]) + data[at + 1 :] if seed % 3 else b""
    )
    store = stored(tmp_path, found)
    try:
        reader.restore(store, "demo/letters", tmp_path / "out")
    except StoreError:
        assert not (tmp_path / "out").exists()
        return
    assert files_of(tmp_path / "out") == make.SECOND


def test_an_index_that_claims_what_its_pack_lacks(tmp_path: Path) -> None:
    found = {key: data for key, data in GOLDEN.items() if not key.startswith("packs/")}
    refused(tmp_path, found, "is damaged in every copy", "demo/letters")


def test_no_index_at_all(tmp_path: Path) -> None:
    found = {key: data for key, data in GOLDEN.items() if not key.startswith("index/")}
    refused(tmp_path, found, "is in no index", "demo/letters")


@pytest.mark.parametrize("gone", [True, False])
def test_a_commit_that_is_lost_or_damaged_is_read_from_its_locator(tmp_path: Path, gone: bool) -> None:
    ann = Person.who_synced(tmp_path, {"a": b"1", "b": b"2"})
    [path] = (tmp_path / "store" / "commits").iterdir()
    data = path.read_bytes()
    path.unlink()
    if not gone:
        path.write_bytes(data[:-1] + b"?")
    out = tmp_path / "out"
    reader.restore(tmp_path / "store", "scans", out)
    assert read_folder(out) == ann.files()
