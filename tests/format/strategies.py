"""Values that the model's tests draw: all valid, with the odd ones likely."""

from __future__ import annotations

from hypothesis import strategies as st

from dsv.format.codec import Codec
from dsv.format.locator import Location
from dsv.format.tree import Entry, Kind
from dsv.values.ids import EMPTY_FILE, ChunkId, CommitId, FileId, NodeId, Nonce, PackId, RecipeId, SegmentId
from dsv.values.names import BranchName, DatasetName, TagName
from dsv.values.paths import check_path, sort_key

SINGLE = 1 << 20

_letters = st.sampled_from(
    ["a", "b", "A", "é", "z", ".", "-", " ", "\x01", "\x7f", "\n", "0", "ſ", "😀", "%"]
)
_names = st.text(
    _letters | st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=6
)
components = _names | st.sampled_from(
    ["a", "b", "train", ".hidden", "...", "a b", ".gitignore", ".dsvx", "x" * 255]
)


def _valid(path: bytes) -> bool:
    try:
        check_path(path)
    except ValueError:
        return False
    return True


paths = (
    st.lists(components, min_size=1, max_size=4).map(lambda parts: "/".join(parts).encode()).filter(_valid)
)


def ids_of(kind: type, size: int = 32) -> st.SearchStrategy:
    return st.binary(min_size=size, max_size=size).map(kind)


file_ids = ids_of(FileId).filter(lambda one: one != EMPTY_FILE)
recipe_ids, segment_ids, node_ids = ids_of(RecipeId), ids_of(SegmentId), ids_of(NodeId)
commit_ids, chunk_ids = ids_of(CommitId), ids_of(ChunkId)
pack_ids, nonces = ids_of(PackId, 16), ids_of(Nonce, 16)
millis = st.integers(0, (1 << 53) - 1)
texts = st.text(max_size=40)
datasets = st.sampled_from(["set", "demo/letters", "a-1.b_c", "x" * 200]).map(DatasetName.parse)
branches = st.sampled_from(["main", "old/try", "m", "1.0"]).map(BranchName.parse)
tags = branches.map(TagName.parse)


def tree_order(found: set[bytes]) -> list[bytes]:
    """The paths in tree order, without those below another."""
    kept: list[bytes] = []
    for path in sorted(found, key=sort_key):
        if not kept or not path.startswith(kept[-1] + b"/"):
            kept.append(path)
    return kept


path_lists = st.sets(paths, min_size=1, max_size=30).map(tree_order)
targets = st.lists(components | st.just(".."), min_size=1, max_size=4).map(
    lambda parts: "/".join(parts).encode()
)


@st.composite
def entries(draw: st.DrawFn, path: bytes) -> Entry:
    kind = draw(st.sampled_from(Kind))
    if kind == Kind.SYMLINK:
        return Entry(path, kind, target=draw(targets))
    if kind == Kind.EMPTY_DIRECTORY:
        return Entry(path, kind)
    sizes = st.integers(1, SINGLE) | st.sampled_from([0, 1, SINGLE, SINGLE + 1, 1 << 40])
    size = draw(sizes)
    file_id = draw(file_ids) if size else EMPTY_FILE
    return Entry(path, kind, size, file_id, draw(recipe_ids) if size > SINGLE else None)


@st.composite
def entry_lists(draw: st.DrawFn) -> list[Entry]:
    return [draw(entries(path)) for path in draw(path_lists)]


@st.composite
def locations(draw: st.DrawFn, packs: list[PackId] | None = None) -> Location:
    codec = draw(st.sampled_from(Codec))
    stored = draw(st.integers(1, 4 << 20))
    return Location(
        draw(pack_ids if packs is None else st.sampled_from(packs)),
        draw(st.integers(0, 120 << 20)),
        stored,
        stored if codec is Codec.RAW else draw(st.integers(1, 4 << 20)),
        codec,
        draw(st.sampled_from([0, 0, 77, 1 << 20])),
    )


@st.composite
def mutations(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes that differ from `data` a little: one changed, some cut off, put in or doubled."""
    at = draw(st.integers(0, len(data) - 1))
    how = draw(st.sampled_from(["flip", "set", "cut", "insert", "drop", "append"]))
    if how == "flip":
        return data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
    if how == "set":
        return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
    if how == "cut":
        return data[:at]
    if how == "insert":
        return data[:at] + draw(st.binary(min_size=1, max_size=4)) + data[at:]
    if how == "drop":
        return data[:at] + data[at + draw(st.integers(1, 8)) :]
    return data + draw(st.binary(min_size=1, max_size=4))
