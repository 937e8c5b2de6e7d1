from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from dsv.errors import IntegrityError, Unsupported
from dsv.format.tree import MAX_LEVEL, Child, Cutter, Node, check_follows, parent
from dsv.values.ids import NodeId, SegmentId
from dsv.values.paths import sort_key
from tests.format.strategies import ids_of, mutations, path_lists
from tests.golden.building import group

TOTALS = st.integers(1, 1 << 40)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    level = draw(st.integers(1, MAX_LEVEL))
    kind = SegmentId if level == 1 else NodeId
    made = []
    for last in draw(path_lists):
        entries = draw(TOTALS)
        files = draw(st.integers(0, entries))
        made.append(Child(last, draw(ids_of(kind)), entries, files, draw(TOTALS) if files else 0))
    return Node(level, tuple(made))


@given(nodes())
def test_round_trip(node: Node) -> None:
    decoded = Node.decode(node.encode())
    assert decoded == node
    assert all(type(child.id) is (SegmentId if node.level == 1 else NodeId) for child in decoded.children)


@given(nodes(), st.data())
def test_what_is_decoded_is_what_would_be_encoded(node: Node, data: st.DataObject) -> None:
    changed = data.draw(mutations(node.encode()))
    try:
        decoded = Node.decode(changed)
    except (IntegrityError, Unsupported):
        return
    assert decoded.encode() == changed


def built(
    level: int = 1,
    paths: bytes = b"a\0b\0",
    ids: bytes = b"i" * 64,
    totals: tuple[int, ...] = (1, 2, 1, 2, 5, 6),
    count: int = 2,
    tail: bytes = b"",
) -> bytes:
    head = struct.pack("<III", level, count, len(paths))
    return b"dsv node 1\n" + head + paths + ids + struct.pack(f"<{len(totals)}Q", *totals) + tail


def test_the_layout() -> None:
    children = Child(b"a", SegmentId(b"i" * 32), 1, 1, 5), Child(b"b", SegmentId(b"i" * 32), 2, 2, 6)
    assert Node(1, children).encode() == built()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"level": 0}, "level"),
        ({"level": 9}, "over the limit"),
        ({"count": 4097}, "over the limit"),
        ({"count": 1}, ""),
        ({"paths": b"b\0a\0"}, "does not follow"),
        ({"paths": b"a\0a/b\0"}, "does not follow"),
        ({"paths": b"a\0../b\0"}, r"\.\."),
        ({"ids": b"i" * 63}, "cut short"),
        ({"totals": (1, 2, 2, 2, 5, 6)}, "totals"),
        ({"totals": (0, 2, 0, 2, 0, 6)}, "totals"),
        ({"totals": (1, 2, 0, 2, 5, 6)}, "totals"),
        ({"totals": (1, 1 << 63, 1, 2, 5, 6)}, "totals"),
        ({"totals": (1 << 62, 1 << 62, 1, 2, 5, 6)}, "totals"),
        ({"tail": b"\0"}, "follow its end"),
        ({"level": 2, "count": 0, "paths": b"", "ids": b"", "totals": ()}, "no children"),
    ],
)
def test_damage_is_found(changes: dict[str, object], message: str) -> None:
    assert Node.decode(built())
    with pytest.raises(IntegrityError, match=f"node is damaged.*{message}"):
        Node.decode(built(**changes))  # type: ignore[arg-type]


def test_an_empty_tree_has_a_root() -> None:
    (children,) = group([], 1)
    root = Node(1, tuple(children))
    assert Node.decode(root.encode()) == root


def cut(paths: list[bytes], level: int = 0) -> list[list[bytes]]:
    cutter, runs, run = Cutter(level), [], []
    for path in paths:
        run.append(path)
        if cutter.add(path):
            runs.append(run)
            run = []
    return [*runs, run] if run else runs


PATHS = sorted((b"train/%02d/%05d.png" % (at % 15, at) for at in range(20_000)), key=sort_key)


def test_segments_are_of_the_size_that_the_format_says() -> None:
    runs = cut(PATHS)
    assert all(512 <= len(run) <= 4096 for run in runs[:-1])
    assert 800 < len(PATHS) / len(runs) < 1300


def test_boundaries_are_decided_by_paths_alone_and_an_edit_moves_few() -> None:
    before = cut(PATHS)
    without = cut(PATHS[:7000] + PATHS[7001:])
    added = cut(sorted([*PATHS, b"train/07/new.png"], key=sort_key))
    for after in (without, added):
        same = {tuple(run) for run in before} & {tuple(run) for run in after}
        assert len(same) >= len(before) - 3
    assert cut(PATHS) == before


def test_the_rule_is_as_it_is_written_down() -> None:
    for run in cut(PATHS)[:-1]:
        boundaries = [
            at for at, path in enumerate(run, 1) if at >= 512 and xxh3_64_intdigest(path, 0) % 512 == 0
        ]
        assert boundaries == [len(run)]
    assert cut(PATHS, level=1) != cut(PATHS, level=0)


def test_4096_entries_end_a_segment() -> None:
    never = [path for path in (b"f%07d" % at for at in range(10_000)) if xxh3_64_intdigest(path, 0) % 512]
    assert [len(run) for run in cut(never[:9000])] == [4096, 4096, 808]


def test_a_mebibyte_of_paths_ends_a_segment() -> None:
    long = [b"%04d" % at + b"/" + b"/".join([b"x" * 255] * 15) for at in range(600)]
    runs = cut(long)
    each = len(long[0]) + 1
    assert {len(run) for run in runs[:-1]} == {-(-(1 << 20) // each)}


def test_parents_sum_up() -> None:
    children = [Child(b"f%05d" % at, SegmentId(b"i" * 32), 3, 2, at) for at in range(3000)]
    groups = list(group(children, 1))
    assert [child for run in groups for child in run] == children
    assert len(groups) > 1
    above = parent(NodeId(b"n" * 32), groups[0])
    assert (above.last, above.entries, above.files) == (
        groups[0][-1].last,
        3 * len(groups[0]),
        2 * len(groups[0]),
    )
    assert above.bytes == sum(child.bytes for child in groups[0])


@given(path_lists)
@settings(max_examples=30)
def test_check_follows_agrees_with_the_order_inside_segments(found: list[bytes]) -> None:
    check_follows(None, found[0])
    for before, after in pairwise(found):
        check_follows(before, after)
        with pytest.raises(IntegrityError):
            check_follows(after, before)
        with pytest.raises(IntegrityError, match="below"):
            check_follows(before, before + b"/x")
        with pytest.raises(IntegrityError):
            check_follows(before, before)
