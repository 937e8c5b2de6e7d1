"""The largest values that the format allows are written and read, and one more is not."""

from __future__ import annotations

from array import array

import pytest

from dsv.errors import IntegrityError
from dsv.format.codec import Codec, Compressor, unpack
from dsv.format.locator import OBJECT_MAX, Location, Locator
from dsv.format.recipe import Recipe
from dsv.format.records import GcCondemned, RefEntry
from dsv.format.segment import Segment
from dsv.format.tree import MAX_ENTRIES, PATHS_LIMIT, Child, Cutter, Entry, Kind, Node
from dsv.values.ids import CommitId, FileId, Nonce, PackId, SegmentId

LONGEST = b"/".join([b"x" * 255] * 15)  # 3,839 bytes


def test_a_segment_of_the_longest_links() -> None:
    links = [Entry(b"%04d" % at, Kind.SYMLINK, target=(b"a/" * 2048)[:4095]) for at in range(MAX_ENTRIES)]
    encoded = Segment.of(links).encode()
    assert 16 << 20 < len(encoded) < OBJECT_MAX
    assert list(Segment.decode(encoded).entries()) == links
    codec, stored = Compressor().pack(encoded)
    assert codec is Codec.ZSTD
    assert unpack(codec, stored, len(encoded)) == encoded


def test_a_segment_with_as_many_bytes_of_paths_as_the_rule_can_give() -> None:
    """The path that passes the limit is still in it, however long it is."""
    entries, cutter = [], Cutter(0)
    for at in range(10_000):
        entries.append(Entry(b"%04d/" % at + LONGEST, Kind.FILE, 1, FileId(b"i" * 32)))
        if cutter.add(entries[-1].path):
            break
    encoded = Segment.of(entries).encode()
    assert list(Segment.decode(encoded).entries()) == entries
    assert sum(len(entry.path) + 1 for entry in entries) > 1 << 20
    # Filled up to one byte below the limit, then the longest path there is: 1 MiB - 1 + 4,096 + its end.
    assert PATHS_LIMIT == (1 << 20) - 1 + 4096 + 1


def test_more_paths_than_the_rule_can_give_are_refused() -> None:
    entries = [Entry(b"%04d/" % at + LONGEST, Kind.FILE, 1, FileId(b"i" * 32)) for at in range(280)]
    with pytest.raises(ValueError, match="over the limit"):
        Segment.of(entries).encode()


def test_a_node_of_the_most_children() -> None:
    children = [Child(b"%04d" % at, SegmentId(b"i" * 32), 4096, 4096, 1 << 40) for at in range(MAX_ENTRIES)]
    node = Node(1, tuple(children))
    assert Node.decode(node.encode()) == node
    with pytest.raises(ValueError, match="over the limit"):
        Node(1, (*children, Child(b"z", SegmentId(b"i" * 32), 1, 1, 1))).encode()


def test_a_recipe_and_a_locator_of_the_most_rows() -> None:
    recipe = Recipe(0, bytes(32 * 65536), array("I", [4 << 20]) * 65536)
    assert Recipe.decode(recipe.encode()) == recipe
    place = Location(PackId(bytes(16)), 8, 1, OBJECT_MAX, Codec.ZSTD, 5)
    locator = Locator.of([place] * 65536)
    assert Locator.decode(locator.encode()) == locator
    with pytest.raises(ValueError, match="65537 rows"):
        Recipe(0, bytes(32 * 65537), array("I", [1]) * 65537).encode()


def test_the_longest_texts() -> None:
    entry = RefEntry(CommitId(bytes(32)), False, Nonce(bytes(16)), (1 << 53) - 1, "😀" * 1024, "x" * 1024)
    assert RefEntry.decode(entry.encode()) == entry


def test_as_many_packs_as_an_epoch_may_condemn() -> None:
    packs = tuple(PackId(at.to_bytes(16, "big")) for at in range(1 << 16))
    record = GcCondemned(1, packs, Nonce(bytes(16)), 0, "dsv")
    assert len(record.encode()) > 1 << 20
    assert GcCondemned.decode(record.encode()) == record
    with pytest.raises(IntegrityError, match="limit"):
        RefEntry.decode(record.encode())
