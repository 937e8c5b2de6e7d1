from __future__ import annotations

import struct
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import IntegrityError, Unsupported
from dsv.format.segment import Segment
from dsv.format.tree import Entry, Kind
from dsv.values.ids import EMPTY_FILE, FileId, RecipeId
from tests.format.strategies import SINGLE, entry_lists, mutations, paths
from tests.format.strategies import entries as other_entries

ID = FileId(b"i" * 32)
RECIPE = RecipeId(b"r" * 32)


@given(entry_lists())
def test_round_trip(entries: list[Entry]) -> None:
    segment = Segment.of(entries)
    decoded = Segment.decode(segment.encode())
    assert decoded == segment
    assert list(decoded.entries()) == entries
    assert [decoded.entry(at) for at in range(len(entries))] == entries
    assert decoded.entry(-1) == entries[-1]
    assert (decoded.first, decoded.last) == (entries[0].path, entries[-1].path)
    assert len(decoded) == len(entries)
    assert decoded.files == sum(entry.is_file for entry in entries)
    assert decoded.total_bytes == sum(entry.size for entry in entries)


@given(entry_lists(), st.data())
def test_rows_unlike_are_those_whose_entries_the_other_segment_does_not_have(
    entries: list[Entry], data: st.DataObject
) -> None:
    """Also if the paths are the same, or only modes differ."""
    kept = data.draw(st.lists(st.booleans(), min_size=len(entries), max_size=len(entries)))
    anew = [
        one if stays else data.draw(other_entries(one.path)) for one, stays in zip(entries, kept, strict=True)
    ]
    left_out = data.draw(st.sets(st.integers(0, len(anew) - 1), max_size=len(anew) - 1))
    anew = [one for at, one in enumerate(anew) if at not in left_out]
    mine, others = Segment.of(entries).rows_unlike(Segment.of(anew))
    assert mine == [at for at, one in enumerate(entries) if one not in anew]
    assert others == [at for at, one in enumerate(anew) if one not in entries]


@given(entry_lists(), paths)
def test_find(entries: list[Entry], other: bytes) -> None:
    segment = Segment.of(entries)
    for at, entry in enumerate(entries):
        assert segment.position(entry.path) == at
    if other not in {entry.path for entry in entries}:
        assert segment.position(other) is None


@given(entry_lists(), st.data())
def test_what_is_decoded_is_what_would_be_encoded(entries: list[Entry], data: st.DataObject) -> None:
    changed = data.draw(mutations(Segment.of(entries).encode()))
    try:
        decoded = Segment.decode(changed)
    except (IntegrityError, Unsupported):
        return
    assert decoded.encode() == changed
    assert Segment.of(decoded.entries()) == decoded


def built(
    paths: bytes = b"a\0b\0",
    kinds: bytes = b"\0\0",
    sizes: tuple[int, ...] = (1, 1),
    file_ids: bytes = ID * 2,
    recipe_ids: bytes = b"",
    targets: bytes = b"",
    count: int = 2,
    length: int | None = None,
) -> bytes:
    """A segment's bytes, put together by hand as docs/internals/format.md has them."""
    head = struct.pack("<II", count, len(paths) if length is None else length)
    columns = paths, kinds, struct.pack(f"<{len(sizes)}Q", *sizes), file_ids, recipe_ids, targets
    return b"dsv segment 1\n" + head + b"".join(columns)


def test_the_layout() -> None:
    entries = [
        Entry(b"a", Kind.FILE, SINGLE + 1, ID, RECIPE),
        Entry(b"b/c", Kind.SYMLINK, target=b"../a"),
        Entry(b"d", Kind.EMPTY_DIRECTORY),
        Entry(b"e", Kind.EXECUTABLE, 0, EMPTY_FILE),
    ]
    by_hand = built(
        b"a\0b/c\0d\0e\0", b"\0\2\3\1", (SINGLE + 1, 0), ID + EMPTY_FILE, RECIPE, b"../a\0", count=4
    )
    assert Segment.of(entries).encode() == by_hand


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paths": b"../../etc/passwd\0z\0"}, "etc/passwd"),
        ({"paths": b"/etc/passwd\0z\0"}, "absolute"),
        ({"paths": b"a\0a\0"}, "does not follow"),
        ({"paths": b"b\0a\0"}, "does not follow"),
        ({"paths": b"a\0a/b\0"}, "does not follow"),
        ({"paths": b"a\0.GIT\0"}, "git's own"),
        ({"paths": b"a\0x/.dsv/y\0"}, "dsv's"),
        ({"paths": b"a\0\xff\0"}, "UTF-8"),
        ({"paths": b"a\0" + b"x" * 256 + b"\0"}, "255"),
        ({"paths": b"a\0b\0c\0"}, "the 2 paths"),
        ({"paths": b"a\0", "kinds": b"\0\0"}, "the 2 paths"),
        ({"paths": b"a\0b"}, "cut short"),
        ({"paths": b""}, "cut short"),
        ({"paths": b"\0\0"}, "empty"),
        ({"length": 5}, ""),
        ({"length": (1 << 20) + 4097}, "over the limit"),
        ({"count": 4097}, "over the limit"),
        ({"count": 0, "paths": b"", "kinds": b"", "sizes": (), "file_ids": b""}, "0 entries"),
        ({"kinds": b"\0\4"}, ""),
        ({"kinds": b"\2\2", "sizes": (), "file_ids": b""}, "symlinks"),
        ({"sizes": (1, 0)}, "size and id"),
        ({"file_ids": ID + EMPTY_FILE}, "size and id"),
        ({"sizes": (0, 1), "file_ids": ID + EMPTY_FILE}, "size and id"),
        ({"sizes": (1, SINGLE + 1)}, ""),
        ({"sizes": (1, 1 << 63), "recipe_ids": RECIPE}, "too large"),
        ({"sizes": ((1 << 63) - 1, 1), "recipe_ids": RECIPE}, "too large"),
        ({"recipe_ids": RECIPE}, ""),
        ({"targets": b"x\0"}, "symlinks"),
        ({"targets": b"x"}, "cut short"),
        ({"targets": b"\0" * 4097}, "more symlink targets"),
    ],
)
def test_damage_is_found(changes: dict[str, object], message: str) -> None:
    assert Segment.decode(built())
    with pytest.raises(IntegrityError, match=f"segment is damaged.*{message}"):
        Segment.decode(built(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [b"", b"/etc/passwd", b"x" * 4096, b"\xff"])
def test_impossible_targets(target: bytes) -> None:
    with pytest.raises(IntegrityError, match="symlink target"):
        Segment.decode(built(b"a\0", b"\2", (), b"", targets=target + b"\0", count=1))


def test_another_kind_and_a_newer_version() -> None:
    with pytest.raises(IntegrityError, match="it is a node"):
        Segment.decode(built().replace(b"dsv segment 1", b"dsv node 1"))
    with pytest.raises(Unsupported, match="segment has version 2"):
        Segment.decode(b"dsv segment 2\n...")


def test_counts_are_checked_before_memory_is_taken() -> None:
    """A few bytes that promise as much as the limits allow fail without reading beyond themselves."""
    for count, length in product((4096, 0xFFFFFFFF), (1 << 20, 0xFFFFFFFF)):
        with pytest.raises(IntegrityError):
            Segment.decode(b"dsv segment 1\n" + struct.pack("<II", count, length) + b"a\0")


@pytest.mark.parametrize(
    "entry",
    [
        Entry(b"a", Kind.FILE, 1),
        Entry(b"a", Kind.FILE, 1, FileId(b"short")),
        Entry(b"a", Kind.FILE, 1, ID, RECIPE),
        Entry(b"a", Kind.FILE, SINGLE + 1, ID),
        Entry(b"a", Kind.FILE, 0, ID),
        Entry(b"a", Kind.FILE, 1, EMPTY_FILE),
        Entry(b"a", Kind.FILE, 1, ID, target=b"b"),
        Entry(b"a", Kind.SYMLINK),
        Entry(b"a", Kind.SYMLINK, target=b"/abs"),
        Entry(b"a", Kind.SYMLINK, 1, target=b"b"),
        Entry(b"a", Kind.EMPTY_DIRECTORY, target=b"b"),
        Entry(b"a", Kind.EMPTY_DIRECTORY, file_id=ID),
        Entry(b"../a", Kind.FILE, 1, ID),
        Entry(b"a\0b", Kind.FILE, 1, ID),
        Entry(b"a", Kind.SYMLINK, target=b"b\0c"),
    ],
)
def test_nothing_is_encoded_that_would_not_be_decoded(entry: Entry) -> None:
    with pytest.raises(ValueError):
        Segment.of([entry]).encode()


def test_order_and_number_are_checked_when_encoding() -> None:
    one, two = Entry(b"a", Kind.FILE, 1, ID), Entry(b"a/b", Kind.FILE, 1, ID)
    for entries in (
        [two, one],
        [one, one],
        [one, two],
        [],
        [Entry(b"%d" % at, Kind.FILE, 1, ID) for at in range(4097)],
    ):
        with pytest.raises(ValueError):
            Segment.of(entries).encode()
