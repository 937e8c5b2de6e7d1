"""Small stores that would take gigabytes, or run for ever: each is refused in little memory.

Every command runs in a process whose address space is limited, so that what takes too much ends with exit 70.
"""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import zstandard

import dsv
from dsv.errors import IntegrityError
from dsv.format import keys
from dsv.format.codec import Codec
from dsv.format.locator import Location, Locator, ObjectKind
from dsv.format.recipe import Recipe
from dsv.format.records import CommitRecord, RefEntry, WriterIdentity
from dsv.format.tree import Entry, Kind
from dsv.repo.objects.checks import FRAME_SLACK, OBJECT_LIMITS, is_possible
from dsv.repo.objects.metadata import MetadataCache
from dsv.repo.objects.objects import Objects
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.stores.directory import DirectoryStore
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.transfer.upload import Uploader
from dsv.values.ids import ChunkId, FileId, Id, NodeId, RecipeId, SegmentId
from dsv.values.names import MAIN, DatasetName
from tests import exhaustive
from tests.golden.building import name_of
from tests.inputs.hostile import SET, Below, Maker, file, node_bytes, segment_bytes
from tests.inputs.scene import Scene, refused
from tests.kit.dsv import Dsv, Result, write_files

MEMORY = 1 << 30
"""Bytes of address space: dsv takes half of it by itself, and what is tried here took four times as much."""
PATIENCE = 300
"""Seconds that nothing comes near to, unless it runs for ever."""
USES = (["ls", "set"], ["cache", "set", "-q"], ["clone", "set", "clone"])


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def little(person: Dsv, *arguments: str) -> Result:
    # One arena for all threads: a thread's own would take address space that nobody uses.
    person = person.at(person.cwd, MALLOC_ARENA_MAX="1")
    return person.process(*arguments, timeout=PATIENCE, preexec_fn=limited)


def read_independently(store: Path, out: Path) -> subprocess.CompletedProcess[str]:
    program = Path(dsv.__file__).with_name("reader.py")
    return subprocess.run(
        [sys.executable, program, store, "set", out],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=limited,
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
        check=False,
    )


def frame(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=19, write_content_size=True).compress(data)


def repeated(maker: Maker, level: int, child: Below) -> Below:
    """A node that lists the same child 4,096 times, under paths that rise, the last of which is the child's own."""
    paths = [b"%04d" % number for number in range(4095)] + [child.last]
    children = [Below(path, child.id, child.entries, child.files, child.bytes) for path in paths]
    data = node_bytes(level, children)
    maker.add(ObjectKind.NODE, NodeId.hash(data), data)  # a frame of it would be too small for so many ids
    return Below(child.last, NodeId.hash(data), 4096 * child.entries, 4096 * child.files, 4096 * child.bytes)


def test_nodes_whose_children_are_all_the_same(scene: Scene) -> None:
    """Three levels of them stand for 68,719,476,736 segments."""
    maker = Maker()
    maker.chunk()
    data = segment_bytes([file(b"z")])
    maker.add(ObjectKind.SEGMENT, SegmentId.hash(data), data)
    top = Below(b"z", SegmentId.hash(data), 1, 1, 1)
    for level in (1, 2, 3):
        top = repeated(maker, level, top)
    commit = maker.commit(NodeId(top.id), (top.files, top.bytes, top.entries), (), level=3)
    scene.reset(maker.store(commit))
    for use in USES:
        refused(little(scene.newcomer(), *use), 5, "not what the node above says")
    done = read_independently(scene.store, scene.folder / "out")
    assert done.returncode == 1 and "not what is said of it above" in done.stderr, done


@pytest.mark.timeout(300)  # ten seconds of processor time, five times as many beside other tests
def test_nodes_that_list_segments_that_nobody_made(scene: Scene) -> None:
    """1,000 nodes of 4,096 segments each, which are missed only when they are read, in some MB."""
    count = len(exhaustive.some(range(1000), every=30))
    maker = Maker()
    nodes = []
    for at in range(count):
        ids = (struct.pack(">32xII", at, number)[-32:] for number in range(4096))
        children = [
            Below(b"%04d/%04d" % (at, number), SegmentId(one), 1, 0, 0) for number, one in enumerate(ids)
        ]
        data = node_bytes(1, children)
        packed = zstandard.ZstdCompressor(level=3, write_content_size=True).compress(data)
        assert len(packed) < 30 * 4096 / 2
        maker.add(ObjectKind.NODE, NodeId.hash(data), data, packed)
        nodes.append(Below(children[-1].last, NodeId.hash(data), 4096, 0, 0))
    root = node_bytes(2, nodes)
    maker.add(ObjectKind.NODE, NodeId.hash(root), root)
    commit = maker.commit(NodeId.hash(root), (0, 0, count * 4096), (), level=2)
    scene.reset(maker.store(commit))
    for use in USES:
        refused(
            little(scene.newcomer(), *use),
            5,
            f"paths of commit {str(commit)[:12]} up to",
            "node",
            "is damaged",
        )


LEVELS = ((0, 65536), (1, 65536), (2, 1000))
"""And how many rows the recipe of each has."""


def forge_large_file(store: Path, lie: str = "none", levels: Sequence[tuple[int, int]] = LEVELS) -> None:
    """Dataset `bomb` with a file of 4 TB in 10 kB: recipes that list one below them 65,536 times.
    lie: what says that there is far less below it."""
    repository = Repository.open(DirectoryStore(store), None)
    writer, dataset = WriterIdentity("mallory", "lab", "test"), DatasetName.parse("bomb")
    chunk = bytes(4096 if lie == "chunk" else 1)
    with Session.open(repository, writer) as session:
        with Uploader(session) as uploader:
            below: Id = ChunkId.hash(chunk)
            uploader.put_object(ObjectKind.CHUNK, below, chunk)
            size = 1
            for level, rows in levels:
                size = {1: 1, 2: 4096}[level] if lie == f"recipe {level}" else size
                recipe = Recipe(level, bytes(below) * rows, array("Q" if level else "I", [size] * rows))
                below = RecipeId.hash(recipe.encode())
                uploader.put_object(ObjectKind.RECIPE, below, recipe.encode())
                size = recipe.size
            size = 2 << 20 if lie == "entry" else size
            entry = Entry(b"big", Kind.FILE, size, FileId.hash(b"nothing"), RecipeId(below))
            data = segment_bytes([entry])
            uploader.put_object(ObjectKind.SEGMENT, SegmentId.hash(data), data)
            node = node_bytes(1, [Below(b"big", SegmentId.hash(data), 1, 1, size)])
            uploader.put_object(ObjectKind.NODE, NodeId.hash(node), node)
            uploader.finish()
        commit = CommitRecord(NodeId.hash(node), 1, (), "mallory", 0, "", 1, size, 1)
        head = repository.refs.move(dataset, MAIN, None, RefEntry.of(writer, 0, None, "init"))
        named = session.put_commit(repository.named(commit, dataset, MAIN), None)
        session.publish(dataset, MAIN, head, RefEntry.of(writer, 0, named, "sync"))


def test_recipes_that_list_one_below_them_often(scene: Scene) -> None:
    """An erasure reads each recipe of the store once, a copy too, and neither counts 4 * 10^12 chunks."""
    ann = scene.newcomer()
    write_files(ann.cwd, {"secret": b"secret"})
    ann.ok("init", "ds")
    ann.ok("sync")
    forge_large_file(scene.store)
    done = little(ann, "erase", "ds:secret", "--reason", "asked", "--yes", "-q")
    assert done.code == 0, done
    done = little(ann, "copy", "bomb", "--to", str(scene.folder / "there"), "--create", "-q")
    assert done.code == 0, done
    done = little(ann, "show", "bomb:big", "--json")
    assert done.code == 0 and str(65536 * 65536 * 1000) in done.out, done


WRITES = (
    ["clone", "bomb", "clone"],
    ["cache", "bomb", "-q"],
    ["export", "bomb", "out"],
    ["cat", "bomb:big"],
)


@pytest.mark.parametrize("lie", ["entry", "recipe 2", "recipe 1", "chunk"])
def test_a_recipe_with_more_bytes_than_is_said_of_it_is_not_written(scene: Scene, lie: str) -> None:
    """Not one byte of 4 TB reaches a disk: a lie at any level is seen before what is below it is read."""
    ann = scene.newcomer()
    Repository.create(DirectoryStore(scene.store, create=True), None, author="mallory", tool="test")
    forge_large_file(scene.store, lie, ((0, 65536), (1, 1), (2, 1000)) if lie == "chunk" else LEVELS)
    for use in WRITES:
        done = little(ann, *use)
        print(done)
        refused(done, 5, "big")


def test_recipes_that_are_below_one_of_their_own_level(scene: Scene) -> None:
    """A thousand of them, one below the other."""
    ann = scene.newcomer()
    Repository.create(DirectoryStore(scene.store, create=True), None, author="mallory", tool="test")
    forge_large_file(scene.store, levels=((0, 65536), (1, 32), *[(1, 1)] * 1000))
    refused(little(ann, "clone", "bomb", "clone"), 5, "big", "is not what the recipe above it says")
    assert "unexpected" not in little(ann, "verify", "--full").err  # a RecursionError


def test_totals_beyond_what_a_tree_can_have(scene: Scene) -> None:
    maker = Maker()
    data = node_bytes(1, [])
    maker.add(ObjectKind.NODE, NodeId.hash(data), data)
    good = maker.commit(NodeId.hash(data), (0, 0, 0), ())
    assert maker.store(good)
    with pytest.raises(ValueError, match="over the limit"):
        maker.commit(NodeId.hash(data), (0, 0, (1 << 40) + 1), ())


def rows_of_one_place(where: Location, rows: int) -> bytes:
    """A locator that gives one place so many times, in a few bytes."""
    columns = (where.offset, where.stored, where.length, 0)
    data = b"dsv locator 1\n" + struct.pack("<II", 1, rows) + where.pack + struct.pack("<I", 0) * rows
    for value in columns:
        data += struct.pack("<I", value) * rows
    return frame(data + bytes([where.codec]) * rows)


def test_a_locator_of_a_segment_with_more_rows_than_a_segment_has(scene: Scene) -> None:
    """64 segments are read ahead at a time, and each had one of these behind it. The index decides instead."""
    maker = Maker()
    chunk = maker.chunk()
    bomb = rows_of_one_place(chunk, 1 << 22)
    assert len(bomb) < 10_000 and len(Locator.decode(rows_of_one_place(chunk, 1))) == 1
    below, places = [], []
    for number in range(64):
        data = segment_bytes([file(b"%02d" % number)])
        where = maker.add(ObjectKind.SEGMENT, SegmentId.hash(data), data)
        maker.pack.add(ObjectKind.LOCATOR, SegmentId.hash(data), Codec.ZSTD, bomb, 1000)
        places.append(where._replace(tail=len(bomb)))
        below.append(Below(b"%02d" % number, SegmentId.hash(data), 1, 1, 1))
    node = node_bytes(1, below)
    places.insert(0, maker.add(ObjectKind.NODE, NodeId.hash(node), node))
    commit = maker.commit(NodeId.hash(node), (64, 64, 64), places)
    scene.reset(maker.store(commit))
    for use in USES:
        done = little(scene.newcomer(), *use)
        assert done.code == 0, done


def test_a_locator_of_a_commit_that_unpacks_to_more_than_it_can_hold(scene: Scene) -> None:
    maker = Maker()
    chunk = maker.chunk()
    commit = maker.tree([file(b"a")])
    bomb = rows_of_one_place(chunk, 1 << 22)
    with pytest.raises(IntegrityError, match="at most"):
        Locator.decode(bomb)
    maker.keys[keys.locator_key(commit)] = bomb
    scene.reset(maker.store(commit))
    for use in USES:
        done = little(scene.newcomer(), *use)
        assert done.code == 0, done


def test_an_object_that_unpacks_to_more_than_its_kind_has() -> None:
    """In the index each has what the largest object of any kind has; nothing of it is read."""
    for kind in (ObjectKind.CHUNK, ObjectKind.NODE, ObjectKind.SEGMENT, ObjectKind.RECIPE):
        limit = OBJECT_LIMITS[kind]
        for length, stored, possible in (
            (limit, limit, True),
            (limit + 1, 100, False),
            (100, limit + FRAME_SLACK + 1, False),
        ):
            where = Location(name_of("pack").pack, 8, stored, length, Codec.ZSTD)
            assert is_possible(kind, where) is possible
            store = OpenStore(MemoryStore())
            read = partial(Objects(store, MetadataCache(None)).read, kind, ChunkId(bytes(32)), where)
            with pytest.raises(IntegrityError, match="in no index"):
                read()
            assert store.counts.ranges == (1 if possible else 0)


def of_six_gigabytes(scene: Scene, key: str) -> None:
    """Holes take no room on disk, and would take all of it in memory."""
    path = scene.store / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, 6 << 30)


@pytest.mark.parametrize(
    "key",
    [
        keys.branch_key(SET, MAIN, 1),
        keys.format_key(0),
        keys.format_key(1),
    ],
)
def test_a_small_record_of_six_gigabytes(scene: Scene, key: str) -> None:
    maker = Maker()
    maker.chunk()
    scene.reset(maker.store(maker.tree([file(b"a")])))
    (scene.store / key).unlink(missing_ok=True)
    of_six_gigabytes(scene, key)
    for use in (*USES, ["datasets"], ["log", "set"]):
        refused(little(scene.newcomer(), *use), 5, key, "may have")
    done = read_independently(scene.store, scene.folder / "out")
    assert done.returncode == 1 and "larger than" in done.stderr, done


def test_a_commit_an_index_and_a_run_of_six_gigabytes(scene: Scene) -> None:
    maker = Maker()
    maker.chunk()
    commit = maker.tree([file(b"a")])
    content = maker.store(commit)
    scene.reset(content)
    (scene.store / keys.commit_key(commit)).unlink()
    of_six_gigabytes(scene, keys.commit_key(commit))
    refused(little(scene.newcomer(), "ls", "set"), 5, "damaged")
    scene.reset(content)
    (scene.store / keys.index_key(maker.index_id)).unlink()
    (scene.store / keys.locator_key(commit)).unlink()
    of_six_gigabytes(scene, keys.index_key(maker.index_id))
    refused(little(scene.newcomer(), "ls", "set"), 5, "may have")
    scene.reset(content)
    of_six_gigabytes(scene, keys.locator_key(commit))
    assert little(scene.newcomer(), "ls", "set").code == 0
    of_six_gigabytes(scene, keys.run_key(SET, "20261120-132145-1f2e3d4c", "record"))
    done = little(scene.newcomer(), "runs", "20261120-132145-1f2e3d4c")
    refused(done, 5, "may have")


def test_the_limit_of_memory_is_one() -> None:
    """A process that takes more is stopped, so that the tests above mean something."""
    program = [sys.executable, "-c", f"bytearray({MEMORY})"]
    done = subprocess.run(program, capture_output=True, text=True, preexec_fn=limited, check=False)
    assert "MemoryError" in done.stderr
