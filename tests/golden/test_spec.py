"""The pages about the format against the golden files and the code: their tables are used to take bytes apart."""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from blake3 import blake3

from dsv import reader
from dsv.format import (
    codec,
    envelope,
    external,
    index,
    keys,
    locator,
    pack,
    recipe,
    records,
    tree,
)
from dsv.format import locator as place
from dsv.format.locator import ObjectKind
from dsv.format.segment import Segment
from dsv.format.tree import Entry, Kind
from dsv.repo import expiry
from dsv.repo.objects import checks
from dsv.run import record
from dsv.values import names, paths
from dsv.values.ids import EXTERNAL_END, CommitId, FileId, Nonce, SegmentId, StoreId
from tests.golden.test_golden import EXTERNAL, GOLDEN, MOVED, NAMED, NODES
from tests.kit import packs

PAGES = [Path(__file__).parents[2] / "docs/internals" / name for name in ("format.md", "format-writing.md")]
DOC = "\n".join(page.read_text() for page in PAGES)
Row = tuple[str, str]


def tables(prefix: str) -> dict[str, list[Row]]:
    """The tables under the headings `### <prefix>: <name>`: the first two cells of each row."""
    found = {}
    for section in re.split(r"^###? ", DOC, flags=re.MULTILINE):
        title, _, body = section.partition("\n")
        if title.startswith(f"{prefix}: "):
            cells = (line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("| `"))
            found[title.removeprefix(f"{prefix}: ")] = [
                (one[0].strip("`"), one[1].strip("`")) for one in cells
            ]
    return found


OBJECTS, LAYOUTS, RECORDS = tables("Object"), tables("Layout"), tables("Record")
SCALARS = {"u8": "<B", "u32": "<I", "u64": "<Q"}

# What the tables' own text defines: names in sizes that are no fields.
DERIVED: dict[str, Callable[[dict[str, Any]], int]] = {
    "files": lambda got: sum(kind in (0, 1) for kind in got["kinds"]),
    "large": lambda got: sum(size > 1 << 20 for size in numbers("Q", got["sizes"])),
    "blocks": lambda got: -(-got["rows"] // 256),
    "width": lambda got: 8 if got["level"] else 4,
}


def numbers(code: str, column: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(column) // struct.calcsize(code)}{code}", column))


def taken_apart(data: bytes, table: list[Row], known: dict[str, int] | None = None) -> dict[str, Any]:
    """The fields of `data` by their names, as a table of the document has them; all of it must be used."""
    got: dict[str, Any] = dict(known or {})
    at = 0
    for name, size in table:
        if size.startswith('"'):
            literal = size.strip('"').replace("\\n", "\n").encode()
            assert data[at : at + len(literal)] == literal, name
            at += len(literal)
        elif size in SCALARS:
            (got[name],) = struct.unpack_from(SCALARS[size], data, at)
            at += struct.calcsize(SCALARS[size])
        else:
            length = len(data) - at if size == "rest" else evaluated(size, got)
            got[name] = data[at : at + length]
            assert len(got[name]) == length, name
            at += length
    assert at == len(data)
    return got


def evaluated(expression: str, got: dict[str, Any]) -> int:
    names_in_it = re.findall(r"[a-z_]+", expression)
    values = {name: got[name] if name in got else DERIVED[name](got) for name in names_in_it}
    result = eval(expression, {"__builtins__": {}}, values)
    assert isinstance(result, int)
    return result


def objects(kind: ObjectKind, store: dict[str, bytes] = GOLDEN) -> Iterator[bytes]:
    for key, data in store.items():
        if key.startswith("packs/"):
            for row in packs.verify(data):
                if row.kind is kind:
                    yield codec.unpack(row.codec, data[row.offset : row.offset + row.stored], row.length)


def split(column: bytes) -> list[bytes]:
    *parts, empty = column.split(b"\0")
    assert empty == b""
    return parts


def test_all_tables_were_found() -> None:
    assert set(OBJECTS) == {"segment", "node", "recipe", "locator"}
    assert set(LAYOUTS) == {
        "pack",
        "external pack",
        "external pack, unpacked",
        "index",
        "index row",
        "index filter",
    }
    assert len(RECORDS) == 19 + 4
    assert all(table for found in (OBJECTS, LAYOUTS, RECORDS) for table in found.values())


def test_segments() -> None:
    for data in objects(ObjectKind.SEGMENT):
        got = taken_apart(data, OBJECTS["segment"])
        segment = Segment.decode(data)
        assert split(got["paths"]) == segment.paths
        assert got["kinds"] == segment.kinds
        files = [entry for entry in segment.entries() if entry.is_file]
        assert numbers("Q", got["sizes"]) == [entry.size for entry in files]
        assert got["file_ids"] == b"".join(entry.file_id or b"" for entry in files)
        assert got["recipe_ids"] == b"".join(entry.recipe_id or b"" for entry in files)
        assert split(got["targets"]) == [entry.target for entry in segment.entries() if entry.target]


def test_nodes() -> None:
    for data in objects(ObjectKind.NODE):
        got = taken_apart(data, OBJECTS["node"])
        node = tree.Node.decode(data)
        assert (got["level"], got["children"]) == (node.level, len(node.children))
        ids = [got["ids"][at : at + 32] for at in range(0, len(got["ids"]), 32)]
        totals = (numbers("Q", got[name]) for name in ("entries", "files", "bytes"))
        assert list(zip(split(got["paths"]), ids, *totals, strict=True)) == [
            (child.last, child.id, child.entries, child.files, child.bytes) for child in node.children
        ]


def test_recipes() -> None:
    made = recipe.build_recipe(bytes(32) * 70_000, [9] * 70_000)
    for data in (*objects(ObjectKind.RECIPE), *(one.encode() for _, one in made)):
        got = taken_apart(data, OBJECTS["recipe"])
        decoded = recipe.Recipe.decode(data)
        assert (got["level"], got["rows"], got["ids"]) == (decoded.level, len(decoded), decoded.ids)
        assert numbers("Q" if decoded.level else "I", got["lengths"]) == list(decoded.lengths)


def test_locators() -> None:
    bodies = []
    for store in (GOLDEN, NODES):
        frames = [data for key, data in store.items() if key.startswith("locators/")]
        bodies += [*map(zstandard.decompress, frames), *objects(ObjectKind.LOCATOR, store)]
    assert len(bodies) > 8
    for body in bodies:
        got = taken_apart(body, OBJECTS["locator"])
        ids = [got["pack_ids"][at : at + 16] for at in range(0, len(got["pack_ids"]), 16)]
        columns = [numbers("I", got[name]) for name in ("places", "offsets", "stored", "lengths", "tails")]
        rows = [(ids[at], *rest) for at, *rest in zip(*columns, strict=True)]
        decoded = locator.Locator.decode(codec.compress(body)).locations()
        assert [(*row, number) for row, number in zip(rows, got["codecs"], strict=True)] == [
            (one.pack, one.offset, one.stored, one.length, one.tail, one.codec) for one in decoded
        ]


def test_packs() -> None:
    footer = LAYOUTS["pack"][-5:]
    for key, data in GOLDEN.items():
        if not key.startswith("packs/"):
            continue
        ends = taken_apart(data[-56:], footer)
        got = taken_apart(data, LAYOUTS["pack"], ends)
        table = packs.verify(data)
        assert got["hash"] == blake3(data[:-40]).digest()
        assert got["cipher"] == 0
        assert (got["kinds"], got["codecs"], got["ids"]) == (table.kinds, table.codecs, table.ids)
        for name, column in (
            ("offsets", table.offsets),
            ("stored", table.stored),
            ("lengths", table.lengths),
        ):
            assert numbers("I", got[name]) == list(column)


def test_external_packs() -> None:
    (data,) = (data for key, data in EXTERNAL.items() if key.endswith(EXTERNAL_END.hex()))
    table = LAYOUTS["external pack"]
    got = {**taken_apart(data[:-40], table[:2]), **taken_apart(data[-40:], table[2:])}
    assert got["hash"] == blake3(data[:-40]).digest()
    body = taken_apart(zstandard.decompress(got["frame"]), LAYOUTS["external pack, unpacked"])
    decoded = external.ExternalPack.decode(data)
    texts = [text.decode() for text in split(body["texts"])]
    sources = [texts[at : at + 4] for at in range(0, len(texts), 4)]
    assert sources == [list(one.texts()) for one in decoded.sources] and len(sources) == 2
    assert numbers("Q", body["sizes"]) == [one.size for one in decoded.sources]
    columns = [
        numbers(code, body[name]) for code, name in (("I", "places"), ("Q", "starts"), ("I", "lengths"))
    ]
    rows = [decoded.row(at) for at in range(len(decoded))]
    assert list(zip(*columns, strict=True)) == [
        (decoded.sources.index(row.source), row.start, row.length) for row in rows
    ]
    assert body["ids"] == b"".join(row.id for row in rows)
    indexed = [
        (kind, one, where)
        for key, file in EXTERNAL.items()
        if keys.parse_index_key(key) is not None
        for kind, one, where in index.Index.parse(file).rows()
        if where.pack.is_external
    ]
    assert sorted(indexed) == sorted(decoded.indexed(indexed[0][2].pack))


def test_index_files() -> None:
    for key, data in GOLDEN.items():
        if keys.parse_index_key(key) is None:
            continue
        got = taken_apart(data, LAYOUTS["index"])
        assert got["hash"] == blake3(data[:-32]).digest()
        rows = [got["row_data"][at : at + 56] for at in range(0, len(got["row_data"]), 56)]
        assert numbers("I", got["fanout"]) == [sum(row[0] <= first for row in rows) for first in range(256)]
        parsed = list(index.Index.parse(data).rows())
        assert len(parsed) == len(rows) == got["rows"]
        for row, (kind, object_id, where) in zip(rows, parsed, strict=True):
            fields = taken_apart(row, LAYOUTS["index row"])
            pack_id = got["pack_ids"][16 * fields["pack"] : 16 * fields["pack"] + 16]
            assert (fields["id"], fields["kind"], fields["where"], fields["zero"]) == (object_id, kind, 0, 0)
            assert (
                pack_id,
                *(fields[name] for name in ("offset", "stored", "length", "codec", "tail")),
            ) == where


def test_filters() -> None:
    filters = {
        one: data for key, data in NAMED.items() if (one := keys.parse_index_filter_key(key)) is not None
    }
    assert filters
    for index_id, data in filters.items():
        got = taken_apart(data, LAYOUTS["index filter"])
        of = taken_apart(NAMED[keys.index_key(index_id)], LAYOUTS["index"])
        rows = [of["row_data"][at : at + 56] for at in range(0, len(of["row_data"]), 56)]
        blocks = [of["row_data"][at : at + 56 * 256] for at in range(0, len(of["row_data"]), 56 * 256)]
        assert got["hash"] == blake3(data[:-32]).digest()
        assert (got["index"], got["packs"], got["rows"]) == (index_id, of["packs"], of["rows"])
        assert got["pack_ids"] == of["pack_ids"]
        assert numbers("I", got["firsts"]) == [int.from_bytes(block[:4], "big") for block in blocks]
        assert got["hashes"] == b"".join(blake3(block).digest(16) for block in blocks)
        assert got["ends"] == b"".join(row[30:32] for row in rows)


RECORD_TYPES: dict[str, Any] = {
    "commit": records.CommitRecord,
    "ref": records.RefEntry,
    "tag": records.TagValue,
    "tag-deleted": records.TagDeleted,
    "format": records.FormatEntry,
    "session-open": records.SessionOpen,
    "index-merge": records.IndexMerge,
    "session-beat": records.SessionBeat,
    "session-verdict": records.SessionVerdict,
    "session-closed": records.SessionClosed,
    "gc-condemned": records.GcCondemned,
    "gc-decision": records.GcDecision,
    "gc-done": records.GcDone,
    "damage": records.Damage,
    "verified": records.Verified,
    "dataset-erased": records.DatasetErased,
    "branch-rule": records.BranchRule,
    "expiry": records.ExpiryEntry,
    "erasure": records.Erasure,
}


def member(decoded: Any, name: str) -> Any:
    """One member of a record; those of a branch's rule are in its limits."""
    if isinstance(decoded, records.BranchRule) and not hasattr(decoded, name):
        limits = decoded.limits
        return limits is not None if name == "protected" else getattr(limits or records.BranchLimits(), name)
    return getattr(decoded, name)


def fits(value: object, kind: str) -> bool:
    if kind.startswith("[") and "," in kind:  # a fixed row of types
        parts = kind[1:-1].strip("[]").split(", ")
        rows = value if kind.startswith("[[") else [value]
        return isinstance(rows, list) and all(
            all(map(fits, row, parts)) and len(row) == len(parts) for row in rows
        )
    if kind.startswith("["):
        return isinstance(value, list) and all(fits(one, kind[1:-1]) for one in value)
    if kind.endswith("?"):
        return value is None or fits(value, kind[:-1])
    if kind in ("id32", "id16"):
        return isinstance(value, bytes) and len(value) == int(kind[2:])
    return (
        type(value)
        is {"bool": bool, "uint": int, "bytes": bytes, "time": int, "text": str, "long text": str}[kind]
    )


def plain(value: Any) -> Any:
    """A decoded record's value as msgpack has it."""
    if isinstance(value, records.ChunkingParams | records.Feature):
        return [plain(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, tuple):
        return list(map(plain, value))
    return bytes(value) if isinstance(value, bytes) else str(value) if isinstance(value, str) else value


@pytest.mark.parametrize("title", RECORDS)
def test_records(title: str) -> None:
    """A table of a second version has what comes behind the fields of the first."""
    kind, second, version = title.partition(", version ")
    line = f"dsv {kind} {version or 1}\n".encode()
    golden = [
        data
        for data in (*GOLDEN.values(), *NAMED.values(), *MOVED.values(), *NODES.values())
        if data.startswith(line)
    ]
    assert golden
    for data in golden:
        assert blake3(data[:-8]).digest(8) == data[-8:]
        fields = msgspec.msgpack.decode(data[len(line) : -8])
        table = RECORDS[kind] + (RECORDS[title] if second else [])
        decoded = RECORD_TYPES[kind].decode(data)
        assert len(fields) == len(table)
        for (name, expected), value in zip(table, fields, strict=True):
            assert fits(value, expected), name
            assert plain(member(decoded, name)) == value, name


def test_run_records() -> None:
    """The document has the members of a run's record that have to be there, and those of each commit that it names."""
    needed = [
        field.name
        for field in dataclasses.fields(record.RunRecord)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    assert [name for name, _ in tables_of("Run record")] == ["kind", "version", *needed]
    assert [name for name, _ in tables_of("Run data")] == [
        field.name for field in dataclasses.fields(record.RunData)
    ]


def tables_of(title: str) -> list[Row]:
    (body,) = re.findall(rf"^### {title}\n(.*?)(?=^#|^\*\*)", DOC, re.MULTILINE | re.DOTALL)
    rows = [line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("| `")]
    return [(row[0].strip("`"), row[1]) for row in rows]


LIMITS = {
    "bytes of a path": paths.MAX_PATH,
    "bytes of a component": paths.MAX_COMPONENT,
    "bytes of a symlink's target": paths.MAX_TARGET,
    "bytes of a name in a key": names.MAX_COMPONENT,
    "bytes of a small record": envelope.RECORD_MAX,
    "packs in one `gc-condemned`": records.MAX_CONDEMNED,
    "packs, objects, or missing objects of a `damage`": records.MAX_MARKS,
    "commits of an entry of an expiry log": records.MAX_COMMITS,
    "bytes of a joined copy of entries of an expiry log": expiry.JOINED_MAX,
    "files, or objects, of an `erasure`": records.MAX_ERASED,
    "parents of a commit": records.MAX_PARENTS,
    "levels of a tree": tree.MAX_LEVEL,
    "entries of a segment, children of a node": tree.MAX_ENTRIES,
    "smallest number of entries before a hash ends a segment": tree.MIN_ENTRIES,
    "bytes of paths that end a segment or node": tree.MAX_PATH_BYTES,
    "bytes of the column of paths": tree.PATHS_LIMIT,
    "bytes of a file that is one chunk": recipe.SINGLE_CHUNK_MAX,
    "smallest chunk but the last": recipe.MIN_CHUNK,
    "average chunk size, as a parameter": recipe.AVERAGE_CHUNK,
    "largest chunk": recipe.MAX_CHUNK,
    "entries of a tree": tree.MAX_TREE_ENTRIES,
    "rows of a recipe": recipe.MAX_ROWS,
    "smallest number of rows before a hash ends a recipe": recipe.MIN_ROWS,
    "levels above a recipe's first": recipe.MAX_LEVEL,
    "rows of a locator": locator.MAX_ROWS,
    "bytes of an unpacked object": place.OBJECT_MAX,
    "bytes at which a writer begins another pack": pack.PACK_TARGET,
    "bytes of a pack": pack.PACK_MAX,
    "objects in a pack": pack.MAX_ROWS,
    "bytes of a filter": index.FILTER_MAX,
    "index files that one `index-merge` names": records.MAX_FILES,
    "rows of an index file": index.MAX_ROWS,
    "bytes of an index file": index.FILE_MAX,
    "bytes of an unpacked recipe": checks.OBJECT_LIMITS[ObjectKind.RECIPE],
    "bytes of an unpacked segment": checks.OBJECT_LIMITS[ObjectKind.SEGMENT],
    "bytes of an unpacked node": checks.OBJECT_LIMITS[ObjectKind.NODE],
    "rows of a segment's locator": checks.LOCATOR_ROWS[ObjectKind.SEGMENT],
    "rows of a node's locator": checks.LOCATOR_ROWS[ObjectKind.NODE],
    "rows of a recipe's locator": checks.LOCATOR_ROWS[ObjectKind.RECIPE],
    "stored bytes of a node for each child, at least": checks.STORED_CHILD,
    "bytes by which a stored object may be larger than its kind's limit": checks.FRAME_SLACK,
    "chunks, or sources, of an external pack": external.MAX_ROWS,
    "bytes of the texts of an external pack": external.MAX_TEXTS,
    "bytes of one of them": external.MAX_TEXT,
    "bytes of a locator, and 128 more for each stored byte": locator.FREE_BYTES,
}


def test_limits() -> None:
    section = DOC.split("## 13. Limits")[1].split("\n## ")[0]
    written = {
        name: int(value) for name, value in re.findall(r"^\| (.+?) \| (\d+) \|$", section, re.MULTILINE)
    }
    assert written == LIMITS


def test_contexts_kinds_and_codecs() -> None:
    for kind in ("recipe", "segment", "node", "commit"):
        assert f"`dsv 2026-11 {kind} v1`" in DOC
    for kind in ObjectKind:
        assert f"| {kind.value} | {kind.name.lower()} |" in DOC
    assert [
        codec.Codec(int(number)).value for number in re.findall(r"^\| (\d) \| (?:stored|one zstd)", DOC, re.M)
    ] == [0, 1]
    assert blake3().hexdigest() in DOC


def example(title: str) -> bytes:
    """The bytes under a heading, which are written in hex and indented."""
    section = DOC.split(f"### Example: {title}\n")[1].split("\n#")[0]
    return bytes.fromhex("".join(re.findall(r"^ {4}([0-9a-f ]+)$", section, re.MULTILINE)))


def test_examples() -> None:
    dataset, branch = names.DatasetName.parse("team/scans"), names.BranchName.parse("main")
    move = records.RefEntry(
        CommitId(b"\x11" * 32),
        False,
        Nonce(b"\x22" * 16),
        1_795_000_000_000,
        "Ann",
        "sync",
        dataset,
        branch,
        0,
    )
    assert example("record") == move.encode()
    assert f"`{keys.branch_key(dataset, branch, 0)}`" in DOC
    entries = [
        Entry(b"a.txt", Kind.FILE, 6, FileId.hash(b"hello\n")),
        Entry(b"empty", Kind.EMPTY_DIRECTORY),
        Entry(b"link", Kind.SYMLINK, target=b"a.txt"),
        Entry(b"run.sh", Kind.EXECUTABLE, 0, FileId.hash(b"")),
    ]
    segment = Segment.of(entries).encode()
    assert example("segment") == segment
    assert reader.decode_segment(example("segment"))[0].path == b"a.txt"
    assert f"`{SegmentId.hash(segment).hex()}`" in DOC
    store = StoreId(bytes(example("tombstone")[:16]))
    assert example("tombstone") == store + str(dataset).encode()
    assert f"`{store.hex()}`" in DOC and f"`{keys.erased_key(records.erased_id(store, dataset))}`" in DOC
