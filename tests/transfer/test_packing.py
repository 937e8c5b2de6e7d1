"""The memory of packs, which is filled again and again."""

from __future__ import annotations

import pickle

from dsv.model.codec import Codec
from dsv.model.ids import ChunkId
from dsv.model.location import ObjectKind
from dsv.model.pack import PACK_TARGET, PackBuilder
from dsv.transfer.packing import Memory


def packed(contents: list[bytes], memory: bytearray | None = None) -> memoryview:
    builder = PackBuilder(memory)
    for content in contents:
        builder.add(ObjectKind.CHUNK, ChunkId.hash(content), Codec.RAW, content, len(content))
    return builder.finish()


def test_a_pack_is_the_same_whatever_its_memory_held_before() -> None:
    contents = [bytes([number]) * 70_000 for number in range(40)]
    assert packed(contents, bytearray(b"\xff" * 500)) == packed(contents)
    assert packed(contents, bytearray(b"\xff" * 10_000_000)) == packed(contents)
    assert packed(contents[:1], bytearray(b"\xff" * 10_000_000)) == packed(contents[:1])


def test_memory_is_taken_again_once_its_pack_is_stored() -> None:
    memory = Memory()
    assert memory.take() is None
    whole = packed([b"x" * PACK_TARGET])
    was = whole.obj
    memory.give(whole)
    assert memory.take() is was
    assert memory.take() is None


def test_memory_that_somebody_still_reads_is_left_to_him() -> None:
    memory = Memory()
    whole = packed([b"x" * PACK_TARGET])
    part = whole[100:200]
    memory.give(whole)
    assert memory.take() is None
    assert part == b"x" * 100


def test_nor_is_memory_taken_from_a_request_that_goes_on() -> None:
    memory = Memory()
    whole = packed([b"x" * PACK_TARGET])
    request = pickle.PickleBuffer(whole)  # holds it as a client's request does
    memory.give(whole)
    assert memory.take() is None
    assert len(request.raw()) == len(whole)


def test_the_memory_of_small_packs_is_not_kept() -> None:
    memory = Memory()
    memory.give(packed([b"x"]))
    assert memory.take() is None
