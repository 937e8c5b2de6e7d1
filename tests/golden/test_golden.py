"""The golden files against the code that writes the format, and against the independent reader."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3

from dsv import reader
from dsv.format import keys
from dsv.format.codec import unpack
from dsv.format.index import Index
from dsv.format.locator import Locator, ObjectKind
from dsv.format.recipe import cut_points
from dsv.format.records import CommitRecord
from dsv.format.segment import Segment
from dsv.format.tree import Kind, Node
from dsv.values.ids import ChunkId, NodeId, RecipeId, SegmentId
from tests.golden import make
from tests.kit.packs import verify

STORE = Path(__file__).parent / "store"
NAMED_STORE = Path(__file__).parent / "store-named"
MOVED_STORE = Path(__file__).parent / "store-moved"
NODES_STORE = Path(__file__).parent / "store-nodes"


def keys_of(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


GOLDEN = keys_of(STORE)
NAMED = keys_of(NAMED_STORE)
MOVED = {key: data for key, data in NAMED.items() if not keys.needs_winner(key)} | keys_of(MOVED_STORE)
NODES = keys_of(NODES_STORE)
EXTERNAL_STORE = Path(__file__).parent / "store-external"
EXTERNAL = keys_of(EXTERNAL_STORE)
each = pytest.mark.parametrize("golden", [GOLDEN, NAMED, NODES], ids=["old", "named", "nodes"])
each_store = pytest.mark.parametrize(
    "store", [STORE, NAMED_STORE, NODES_STORE], ids=["old", "named", "nodes"]
)
HASHES = {
    ObjectKind.CHUNK: ChunkId.hash,
    ObjectKind.RECIPE: RecipeId.hash,
    ObjectKind.SEGMENT: SegmentId.hash,
    ObjectKind.NODE: NodeId.hash,
}

RECORDS = [
    "commit", "ref", "tag", "tag-deleted", "format", "session-open", "session-beat", "session-verdict",
    "session-closed", "gc-condemned", "gc-done",
]  # fmt: skip


def test_the_code_still_writes_the_golden_names_that_have_moved() -> None:
    assert make.build_moved() == keys_of(MOVED_STORE)


@each_store
def test_the_code_still_writes_the_golden_store(store: Path) -> None:
    golden, made = keys_of(store), make.build(**make.STORES[store.name])
    assert sorted(made) == sorted(golden)
    for key, data in made.items():
        assert data == golden[key], f"{key} is written differently now"


def test_files_trees_and_recipes_are_still_cut_alike() -> None:
    assert make.vectors() == json.loads((STORE.parent / "vectors.json").read_text())


@each
def test_every_kind_of_object_is_there(golden: dict[str, bytes]) -> None:
    found = {row.kind for key, data in golden.items() if key.startswith("packs/") for row in verify(data)}
    assert found == set(ObjectKind)
    lines = {data.split(b"\n")[0].decode() for data in golden.values() if data.startswith(b"dsv ")}
    second = ("ref", "tag", "commit") if golden is not GOLDEN else ()
    kinds = [*RECORDS, "branch-rule", "index-merge"] if golden is not GOLDEN else RECORDS
    kinds = (
        [*kinds, "dataset-erased", "damage", "verified", "expiry", "gc-decision", "erasure"]
        if golden is NODES
        else kinds
    )
    assert lines == {f"dsv {kind} {2 if kind in second else 1}" for kind in kinds}


@each
def test_every_object_has_its_id_and_the_index_finds_it(golden: dict[str, bytes]) -> None:
    indexes = [Index.parse(data) for key, data in golden.items() if keys.parse_index_key(key)]
    rows = 0
    for key, data in golden.items():
        pack = keys.parse_pack_key(key)
        if pack is None:
            continue
        for kind, object_id, place in verify(data).indexed(pack):
            stored = data[place.offset : place.offset + place.stored]
            assert HASHES[kind](unpack(place.codec, stored, place.length)) == object_id
            assert {found for index in indexes if (found := index.find(kind, object_id))} == {place}
            if place.tail:
                start = place.offset + place.stored
                Locator.decode(data[start : start + place.tail])
            rows += 1
    assert rows == len({row for index in indexes for row in index.rows()}) > 10


@each
def test_the_commits_locators_say_where_nodes_and_segments_lie(golden: dict[str, bytes]) -> None:
    def object_at(place: reader.Any) -> bytes:
        stored = golden[keys.pack_key(place.pack)][place.offset : place.offset + place.stored]
        return unpack(place.codec, stored, place.length)

    seen = 0
    for key, data in golden.items():
        commit_id = keys.parse_locator_key(key)
        if commit_id is None:
            continue
        root, *flat = Locator.decode(data).locations()
        behind = root.offset + root.stored
        rows = golden[keys.pack_key(root.pack)][behind : behind + root.tail]
        (segment,) = Locator.decode(rows).locations() if golden is NODES else flat
        assert (golden is NODES) == bool(root.tail) == (not flat)
        commit = CommitRecord.decode(golden[keys.commit_key(commit_id)])
        assert NodeId.hash(object_at(root)) == commit.root
        (child,) = Node.decode(object_at(root)).children
        assert SegmentId.hash(object_at(segment)) == child.id
        own = segment.offset + segment.stored
        pack = golden[keys.pack_key(segment.pack)]
        contents = Locator.decode(pack[own : own + segment.tail])
        files = [entry for entry in Segment.decode(object_at(segment)).entries() if entry.size]
        assert len(contents) == len(files)
        for entry, place in zip(files, contents.locations(), strict=True):
            expected = entry.recipe_id or entry.file_id
            kind = ObjectKind.RECIPE if entry.recipe_id else ObjectKind.CHUNK
            assert HASHES[kind](object_at(place)) == expected
            assert (place.tail > 0) == (kind is ObjectKind.RECIPE)
        seen += 1
    assert seen == 2


def files_of(folder: Path, but: bytes = b"\0") -> dict[bytes, make.File]:
    """but: what the names begin with that are left out."""
    found: dict[bytes, make.File] = {}
    for path in folder.rglob("*"):
        name = os.fsencode(path.relative_to(folder))
        if (name + b"/").startswith(but):
            continue
        if path.is_symlink():
            found[name] = Kind.SYMLINK, os.fsencode(path.readlink())
        elif path.is_file():
            executable = path.stat().st_mode & 0o111
            found[name] = Kind.EXECUTABLE if executable else Kind.FILE, path.read_bytes()
        elif not any(path.iterdir()):
            found[name] = Kind.EMPTY_DIRECTORY, b""
    return found


@each_store
@pytest.mark.parametrize(
    ("target", "files"),
    [
        ("demo/letters", make.SECOND),
        ("demo/letters@main", make.SECOND),
        ("demo/letters@main~1", make.FIRST),
        ("demo/letters@v1", make.FIRST),
    ],
)
def test_the_reader_restores_it(
    tmp_path: Path, target: str, files: dict[bytes, make.File], store: Path
) -> None:
    """As a program, in a Python that can't import dsv."""
    program = Path(reader.__file__).resolve()
    copy = tmp_path / "reader.py"
    copy.write_bytes(program.read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(copy), str(store), target, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert files_of(tmp_path / "out") == files


def test_the_code_still_writes_the_golden_references() -> None:
    assert make.build_external() == EXTERNAL


def test_the_reader_names_what_it_can_not_reach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All else is restored."""
    with pytest.raises(reader.StoreError, match="2 files lie outside the store"):
        reader.restore(EXTERNAL_STORE, "demo/letters", tmp_path / "out")
    rest = {path: file for path, file in make.FIRST.items() if path not in make.EXTERNAL}
    assert files_of(tmp_path / "out") == rest
    told = capsys.readouterr().err
    assert all(
        f"{path.decode()} is not in the store, but at {url}" in told for path, url in make.EXTERNAL.items()
    )
    assert reader.main([str(EXTERNAL_STORE), "demo/letters", str(tmp_path / "again")]) == 1


@each_store
def test_dsv_reads_it_and_keeps_writing_as_the_store_was_made(tmp_path: Path, store: Path) -> None:
    """A store that was made before refs carried names is still written without them, so an older dsv can still read
    it; and so is one that was made before nodes had locators."""
    copy = shutil.copytree(store, tmp_path / "store")
    for entry in (copy / "format").iterdir():
        if entry.name != f"{0:016x}":
            entry.unlink()  # it forbids to write, for the tests of features
    environ = {**os.environ, "HOME": str(tmp_path), "DSV_STORE": str(copy)}

    def dsv(*arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "dsv.cli.main", *arguments], env=environ, cwd=tmp_path, check=True
        )

    dsv("clone", "-q", "demo/letters", "here")
    assert files_of(tmp_path / "here", but=b".dsv/") == make.SECOND
    (tmp_path / "here/new").write_bytes(b"new\n")
    dsv("-C", "here", "sync", "-q")
    dsv("-C", "here", "tag", "v2")
    before, after = keys_of(store), keys_of(copy)
    written = [key for key in after if key not in before and key.startswith(("refs/", "commits/"))]
    assert len(written) == 4  # a commit, a move, and the two copies of a tag
    version = 1 if store == STORE else 2
    for key in written:
        assert after[key].split(b"\n")[0].endswith(b" %d" % version), key
    (locator,) = [key for key in after if key not in before and key.startswith("locators/")]
    root, *flat = Locator.decode(after[locator]).locations()
    assert (bool(root.tail), len(flat)) == ((True, 0) if store == NODES_STORE else (False, 1))


# Runs a program with dsv made impossible to import.
BLOCKED = """
import runpy, sys
sys.modules["dsv"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_written_rule_cuts_like_the_code() -> None:
    """docs/internals/format-writing.md, "Cutting a file", as plain Python."""
    from pyfastcdc.py.constants import GEAR

    def cut(data: bytes, start: int) -> int:
        size = min(len(data) - start, 4 << 20)
        if len(data) - start <= 256 << 10:
            return size
        state = 0
        for at in range(256 << 10, size & ~1):
            state = ((state << 1) + GEAR[data[start + at]]) & 0xFFFF_FFFF_FFFF_FFFF
            mask = 0x0000D91767537000 if at < 1 << 20 else 0x0000D91707537000
            if not state & mask:
                return at
        return size

    packed = b"".join(number.to_bytes(8, "little") for number in GEAR)
    assert (
        blake3(packed).hexdigest()
        in (Path(__file__).parents[2] / "docs/internals/format-writing.md").read_text()
    )
    data = blake3(b"dsv golden").digest(length=5 << 20)
    lengths, start = [], 0
    while start < len(data):
        lengths.append(cut(data, start))
        start += lengths[-1]
    assert lengths == cut_points(data)
