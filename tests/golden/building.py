"""Builds stores by hand from the model's functions: keys and bytes, with nothing random and nothing of sync.

Compressed objects are zstd frames that are put together here, of blocks that are stored or one byte repeated, so
that no version of a zstd library changes them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import zstandard
from blake3 import blake3

from dsv.format import keys
from dsv.format.codec import Codec
from dsv.format.external import MAGIC as EXTERNAL_MAGIC
from dsv.format.external import Builder, ExternalSource
from dsv.format.index import IndexBuilder
from dsv.format.locator import Location, Locator, ObjectKind
from dsv.format.pack import PackBuilder
from dsv.format.recipe import SINGLE_CHUNK_MAX, Recipe, build_recipe, cut_points
from dsv.format.records import CommitRecord
from dsv.format.segment import Segment
from dsv.format.tree import Child, Cutter, Entry, Kind, Node, parent
from dsv.values.ids import (
    EXTERNAL_END,
    ChunkId,
    CommitId,
    FileId,
    Id,
    IndexId,
    NodeId,
    Nonce,
    PackId,
    RecipeId,
    SegmentId,
    StoreId,
)
from dsv.values.names import BranchName, DatasetName
from dsv.values.paths import sort_key

_BLOCK = 128 << 10


@dataclass(frozen=True, slots=True)
class Named:
    """Ids that follow from a label, so that nothing is random."""

    label: str

    def raw(self, size: int) -> bytes:
        return blake3(b"golden " + self.label.encode()).digest(length=size)

    @property
    def store(self) -> StoreId:
        return StoreId(self.raw(16))

    @property
    def nonce(self) -> Nonce:
        return Nonce(self.raw(16))

    @property
    def pack(self) -> PackId:
        return PackId(self.raw(16))

    @property
    def index(self) -> IndexId:
        return IndexId(self.raw(16))


def name_of(label: str) -> Named:
    return Named(label)


def frame(data: bytes) -> bytes:
    """A zstd frame (RFC 8878) of this content, without any compression but runs of one byte."""
    blocks = [data[at : at + _BLOCK] for at in range(0, len(data), _BLOCK)] or [b""]
    # Four-byte content size, single segment, no checksum, no dictionary.
    out = bytearray(b"\x28\xb5\x2f\xfd\xa0" + len(data).to_bytes(4, "little"))
    for at, block in enumerate(blocks):
        run = len(block) > 1 and block == block[:1] * len(block)
        head = len(block) << 3 | (2 if run else 0) | (at == len(blocks) - 1)
        out += head.to_bytes(3, "little") + (block[:1] if run else block)
    assert zstandard.decompress(bytes(out)) == data
    return bytes(out)


class StoreMaker:
    """Collects keys; every commit gets a pack of chunks, a pack of metadata and an index of its own.

    With `every`, segments, nodes and recipes are cut after so many entries instead of by the format's rule: small
    inputs then have several levels. Readers don't care. With `dataset` and `branch`, commits carry them. With
    `node_locators` each node has a locator, and that of a commit names the root alone. Of the paths in `external` the
    content lies at the URL.
    """

    def __init__(
        self,
        every: int | None = None,
        dataset: DatasetName | None = None,
        branch: BranchName | None = None,
        *,
        node_locators: bool = False,
        external: Mapping[bytes, str] | None = None,
    ) -> None:
        self._every = every
        self._dataset, self._branch = dataset, branch
        self._node_locators = node_locators
        self._external = external or {}
        self._referred = Builder()
        self._referred.pack = PackId(name_of("external").raw(10) + EXTERNAL_END)
        self.keys: dict[str, bytes] = {}
        self._known: dict[tuple[ObjectKind, bytes], Location] = {}
        self._rows: list[tuple[ObjectKind, Id, Location]] = []
        self._commits = 0

    def put(self, key: str, data: bytes) -> None:
        assert key not in self.keys
        self.keys[key] = data

    def commit(
        self,
        files: Mapping[bytes, tuple[Kind, bytes]],
        parents: Sequence[CommitId],
        author: str,
        time_ms: int,
        message: str,
        *,
        branch: BranchName | None = None,
    ) -> CommitId:
        """Stores a tree of these files (a symlink's content is its target) and a commit of it.

        branch: the one that the commit carries, if it is another one than that of the maker.
        """
        self._commits += 1
        chunks = _Pack(name_of(f"chunks {self._commits}").pack)
        metadata = _Pack(name_of(f"metadata {self._commits}").pack)
        entries, places = [], {}
        for path in sorted(files, key=sort_key):
            kind, content = files[path]
            entry, place = self._content(path, kind, content, chunks, metadata)
            entries.append(entry)
            if place is not None:
                places[path] = place
        root, level, totals, locator = self._tree(entries, places, metadata)
        if self._referred:
            encoded = self._referred.finish().encode()
            head = EXTERNAL_MAGIC + frame(zstandard.decompress(encoded[8:-40]))
            self.put(keys.pack_key(self._referred.pack), head + blake3(head).digest() + EXTERNAL_MAGIC)
            self._referred = Builder()
        for pack in (chunks, metadata):
            if pack.builder.rows:
                self.put(keys.pack_key(pack.id), bytes(pack.builder.finish()))
        index = IndexBuilder()
        for kind, object_id, location in self._rows:
            index.add(kind, object_id, location)
        self._rows.clear()
        self.put(keys.index_key(name_of(f"index {self._commits}").index), index.finish())
        size, count, total = totals
        commit = CommitRecord(
            root, level, tuple(parents), author, time_ms, message, count, size, total,
            self._dataset, branch or self._branch,
        )  # fmt: skip
        self.put(keys.commit_key(commit.id), commit.encode())
        self.put(keys.locator_key(commit.id), frame(zstandard.decompress(Locator.of(locator).encode())))
        return commit.id

    def _content(
        self, path: bytes, kind: Kind, content: bytes, chunks: _Pack, metadata: _Pack
    ) -> tuple[Entry, Location | None]:
        if kind == Kind.SYMLINK:
            return Entry(path, kind, target=content), None
        if kind == Kind.EMPTY_DIRECTORY:
            return Entry(path, kind), None
        file_id = FileId.hash(content)
        if not content:
            return Entry(path, kind, 0, file_id), None
        url = self._external.get(path)
        source = None if url is None else ExternalSource(url, "", "", f"tag of {len(content)}", len(content))
        if source is not None and len(content) <= SINGLE_CHUNK_MAX:
            place = self._refer(ChunkId(file_id), source, 0, len(content))
            return Entry(path, kind, len(content), file_id), place
        if len(content) <= SINGLE_CHUNK_MAX:
            place = self._add(chunks, ObjectKind.CHUNK, ChunkId(file_id), content)
            return Entry(path, kind, len(content), file_id), place
        ids, lengths, below = b"", cut_points(content), []
        at = 0
        for length in lengths:
            chunk = content[at : at + length]
            ids += ChunkId.hash(chunk)
            if source is not None:
                below.append(self._refer(ChunkId.hash(chunk), source, at, length))
            else:
                below.append(self._add(chunks, ObjectKind.CHUNK, ChunkId.hash(chunk), chunk))
            at += length
        recipe_id, place = self._recipe(ids, lengths, below, metadata)
        return Entry(path, kind, len(content), file_id, recipe_id), place

    def _refer(self, chunk: ChunkId, source: ExternalSource, start: int, length: int) -> Location:
        place = self._known.get((ObjectKind.CHUNK, chunk))
        if place is None:
            place = self._known[ObjectKind.CHUNK, chunk] = self._referred.add(chunk, source, start, length)
            self._rows.append((ObjectKind.CHUNK, chunk, place))
        return place

    def _recipe(
        self, ids: bytes, lengths: list[int], below: list[Location], metadata: _Pack
    ) -> tuple[RecipeId, Location]:
        made = build_recipe(ids, lengths) if self._every is None else _nested(ids, lengths, self._every)
        places: dict[bytes, Location] = {}
        chunks = iter(below)
        for recipe_id, recipe in made:
            rows = [places[child] if recipe.level else next(chunks) for child in recipe.children()]
            places[recipe_id] = self._add(metadata, ObjectKind.RECIPE, recipe_id, recipe.encode(), rows)
        return made[-1][0], places[made[-1][0]]

    def _tree(
        self, entries: list[Entry], places: Mapping[bytes, Location], metadata: _Pack
    ) -> tuple[NodeId, int, tuple[int, int, int], list[Location]]:
        children: list[Child] = []
        rows: list[list[Location]] = [[]]
        for run in _runs(entries, self._every):
            segment = Segment.of(run)
            encoded = segment.encode()
            segment_id = SegmentId.hash(encoded)
            below = [places[entry.path] for entry in run if entry.path in places]
            rows[0].append(self._add(metadata, ObjectKind.SEGMENT, segment_id, encoded, below))
            children.append(Child(segment.last, segment_id, len(segment), segment.files, segment.total_bytes))
        level = 0
        while True:
            level += 1
            above: list[Child] = []
            rows.append([])
            places_below = iter(rows[-2])
            for listed in _groups(children, level, self._every):
                encoded = Node(level, tuple(listed)).encode()
                node_id = NodeId.hash(encoded)
                own = [next(places_below) for _ in listed] if self._node_locators else None
                rows[-1].append(self._add(metadata, ObjectKind.NODE, node_id, encoded, own))
                above.append(parent(node_id, listed) if listed else Child(b"", node_id, 0, 0, 0))
            if len(above) == 1:
                break
            children = above
        top = above[0]
        locator = rows[-1] if self._node_locators else [place for row in reversed(rows) for place in row]
        return NodeId(top.id), level, (top.bytes, top.files, top.entries), locator

    def _add(
        self, pack: _Pack, kind: ObjectKind, object_id: Id, data: bytes, locator: list[Location] | None = None
    ) -> Location:
        known = self._known.get((kind, object_id))
        if known is not None:
            return known
        packed = frame(data)
        codec, stored = (Codec.ZSTD, packed) if len(packed) * 10 <= len(data) * 9 else (Codec.RAW, data)
        offset = pack.builder.add(kind, object_id, codec, stored, len(data))
        tail = 0
        if locator is not None:
            body = zstandard.decompress(Locator.of(locator).encode())
            tail = len(frame(body))
            pack.builder.add(ObjectKind.LOCATOR, object_id, Codec.ZSTD, frame(body), len(body))
        place = Location(pack.id, offset, len(stored), len(data), codec, tail)
        self._known[kind, object_id] = place
        self._rows.append((kind, object_id, place))
        return place


class _Pack:
    def __init__(self, pack_id: PackId) -> None:
        self.id = pack_id
        self.builder = PackBuilder()


def _runs(entries: list[Entry], every: int | None) -> Iterable[list[Entry]]:
    if every is not None:
        yield from (entries[at : at + every] for at in range(0, len(entries), every))
        return
    cutter, run = Cutter(0), list[Entry]()
    for entry in entries:
        run.append(entry)
        if cutter.add(entry.path):
            yield run
            run = []
    if run:
        yield run


def group(children: Iterable[Child], level: int) -> Iterator[list[Child]]:
    """The children of each node of a level; one empty group if there are none: an empty tree's root."""
    cutter, taken, any_yet = Cutter(level), list[Child](), False
    for child in children:
        taken.append(child)
        if cutter.add(child.last):
            yield taken
            taken, any_yet = [], True
    if taken or not any_yet:
        yield taken


def _groups(children: list[Child], level: int, every: int | None) -> Iterable[list[Child]]:
    if every is None:
        return group(children, level)
    return [children[at : at + every] for at in range(0, len(children), every)] or [[]]


def _nested(ids: bytes, lengths: Sequence[int], every: int) -> list[tuple[RecipeId, Recipe]]:
    """As `build_recipe`, with `every` rows in a recipe."""
    made: list[tuple[RecipeId, Recipe]] = []
    level = 0
    while True:
        above: list[tuple[RecipeId, Recipe]] = []
        for at in range(0, len(lengths), every):
            column = array("Q" if level else "I", lengths[at : at + every])
            recipe = Recipe(level, ids[32 * at : 32 * (at + every)], column)
            above.append((RecipeId.hash(recipe.encode()), recipe))
        made += above
        if len(above) == 1:
            return made
        level, ids = level + 1, b"".join(recipe_id for recipe_id, _ in above)
        lengths = [recipe.size for _, recipe in above]
