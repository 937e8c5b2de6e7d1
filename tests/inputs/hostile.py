"""Stores whose ids and hashes are right and whose content no encoder of dsv's would write.

So nothing but the rule that is broken can be what a reader trips over.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from dsv.format import keys
from dsv.format.codec import Codec
from dsv.format.index import IndexBuilder
from dsv.format.locator import Location, Locator, ObjectKind
from dsv.format.pack import PackBuilder
from dsv.format.records import CommitRecord, FormatEntry, RefEntry
from dsv.format.tree import Entry, Kind
from dsv.values.ids import ChunkId, CommitId, FileId, Id, IndexId, NodeId, Nonce, PackId, SegmentId
from dsv.values.names import MAIN, BranchName, DatasetName
from tests.golden.building import name_of

SET = DatasetName.parse("set")
SMALL = b"x"


def file(path: bytes, content: bytes = SMALL) -> Entry:
    return Entry(path, Kind.FILE, len(content), FileId.hash(content))


def link(path: bytes, target: bytes) -> Entry:
    return Entry(path, Kind.SYMLINK, target=target)


def segment_bytes(entries: Sequence[Entry]) -> bytes:
    """As docs/internals/format.md has it, with nothing checked."""
    column = b"".join(entry.path + b"\0" for entry in entries)
    files = [entry for entry in entries if entry.is_file]
    out = b"dsv segment 1\n" + struct.pack("<II", len(entries), len(column)) + column
    out += bytes(entry.kind for entry in entries)
    out += b"".join(struct.pack("<Q", entry.size) for entry in files)
    out += b"".join(entry.file_id or b"" for entry in files)
    out += b"".join(entry.recipe_id for entry in files if entry.recipe_id is not None)
    return out + b"".join(entry.target + b"\0" for entry in entries if entry.target is not None)


@dataclass(frozen=True)
class Below:
    """What a node says of what is below it."""

    last: bytes
    id: Id
    entries: int
    files: int
    bytes: int


def node_bytes(level: int, children: Sequence[Below]) -> bytes:
    column = b"".join(child.last + b"\0" for child in children)
    out = b"dsv node 1\n" + struct.pack("<III", level, len(children), len(column)) + column
    out += b"".join(child.id for child in children)
    for values in zip(*((child.entries, child.files, child.bytes) for child in children), strict=True):
        out += struct.pack(f"<{len(children)}Q", *values)
    return out


@dataclass
class Maker:
    """Collects objects for one pack, one index and any number of commits of dataset `set`."""

    pack_id: PackId = field(default_factory=lambda: name_of("pack").pack)
    index_id: IndexId = field(default_factory=lambda: name_of("index").index)
    pack: PackBuilder = field(default_factory=PackBuilder)
    index: IndexBuilder = field(default_factory=IndexBuilder)
    keys: dict[str, bytes] = field(default_factory=dict)

    def add(self, kind: ObjectKind, object_id: Id, data: bytes, frame: bytes | None = None) -> Location:
        """`frame` is what is stored as zstd instead of the data as it is."""
        codec, kept = (Codec.RAW, data) if frame is None else (Codec.ZSTD, frame)
        offset = self.pack.add(kind, object_id, codec, kept, len(data))
        where = Location(self.pack_id, offset, len(kept), len(data), codec)
        self.index.add(kind, object_id, where)
        return where

    def chunk(self, data: bytes = SMALL, frame: bytes | None = None) -> Location:
        return self.add(ObjectKind.CHUNK, ChunkId.hash(data), data, frame)

    def tree(self, *segments: Sequence[Entry], frame: bytes | None = None) -> CommitId:
        """A commit of these segments, with a locator of its own. frame: what is stored for each instead."""
        below, places = [], []
        for entries in segments:
            data = segment_bytes(entries)
            places.append(self.add(ObjectKind.SEGMENT, SegmentId.hash(data), data, frame))
            files = [entry for entry in entries if entry.is_file]
            size = sum(entry.size for entry in files)
            below.append(Below(entries[-1].path, SegmentId.hash(data), len(entries), len(files), size))
        data = node_bytes(1, below)
        places.insert(0, self.add(ObjectKind.NODE, NodeId.hash(data), data))
        totals = [sum(values) for values in zip(*((b.files, b.bytes, b.entries) for b in below), strict=True)]
        return self.commit(NodeId.hash(data), totals, places)

    def commit(
        self,
        root: NodeId,
        totals: Sequence[int],
        places: Sequence[Location],
        parents: Sequence[CommitId] = (),
        level: int = 1,
    ) -> CommitId:
        files, size, entries = totals
        commit = CommitRecord(root, level, tuple(parents), "mallory", 0, "", files, size, entries).encode()
        commit_id = CommitId.hash(commit)
        self.keys[keys.commit_key(commit_id)] = commit
        self.keys[keys.locator_key(commit_id)] = Locator.of(places).encode()
        return commit_id

    def store(self, commit: CommitId | None) -> dict[str, bytes]:
        """All keys, with `main` of `set` naming the commit."""
        return {
            keys.format_key(0): FormatEntry(name_of("store").store, Nonce(bytes(16)), 0, "", "").encode(),
            keys.pack_key(self.pack_id): bytes(self.pack.finish()),
            keys.index_key(self.index_id): self.index.finish(),
            **self.keys,
            **named(commit),
        }


def named(commit: CommitId | None, number: int = 0, branch: BranchName = MAIN) -> dict[str, bytes]:
    entry = RefEntry(commit, False, Nonce(bytes(16)), 0, "mallory", "sync", SET, branch, number)
    return {keys.branch_key(SET, branch, number): entry.encode()}


def tree(*segments: Sequence[Entry]) -> dict[str, bytes]:
    """A store with one commit of these segments; the files' contents are `SMALL`."""
    maker = Maker()
    maker.chunk()
    return maker.store(maker.tree(*segments))
