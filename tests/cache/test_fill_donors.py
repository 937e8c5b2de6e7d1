"""What is taken from which cached commit, against a plain model of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cache.fake_source import FakeTree, File, TornTree

from dsv.cache.fill import plan as subject
from dsv.cache.fill.parts import CHUNKS, FETCH, LINK, MAX_REFERENCES, MOVED, NOTHING
from dsv.cache.fill.plan import Matching, contents
from dsv.errors import IntegrityError
from dsv.format import tree as cutting
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.tree import Kind
from dsv.values.paths import PathSet

PATHS = [f"{folder}/{name:02d}" for folder in ("a", "b", "c/d", "e") for name in range(8)]
KINDS = st.sampled_from(
    [Kind.FILE, Kind.FILE, Kind.FILE, Kind.EXECUTABLE, Kind.SYMLINK, Kind.EMPTY_DIRECTORY]
)


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trees of a few dozen paths, cut into several segments."""
    monkeypatch.setattr(cutting, "MIN_ENTRIES", 4)
    yield


@st.composite
def trees(draw: st.DrawFn) -> list[File]:
    files = []
    for path in sorted(draw(st.sets(st.sampled_from(PATHS)))):
        kind = draw(KINDS)
        size = draw(st.sampled_from([0, 5, 5, 6, SINGLE_CHUNK_MAX + 1])) if kind <= Kind.EXECUTABLE else 0
        seed = draw(st.sampled_from("pqr"))
        files.append(File(path, size, seed, int(kind), target="x" if kind == Kind.SYMLINK else ""))
    return files


def content(file: File) -> tuple[int, int, str]:
    return file.kind, file.size, file.seed


@settings(max_examples=60, deadline=None)
@given(
    trees(),
    st.lists(
        st.tuples(
            trees(),
            st.sampled_from([(), ("a",), ("c/d", "b/01")]),
            st.sampled_from([None, None, 0, 1, 2, 9]),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_codes_say_what_a_plain_comparison_says(
    wanted: list[File], cached: list[tuple[list[File], tuple[str, ...], int | None]]
) -> None:
    """Of some donors only so many segments can be read: after the error, nothing is taken from them."""
    tree = FakeTree(wanted)
    starts = list(accumulate((leaf.child.entries for leaf in tree.leaves()), initial=0))
    matching = Matching(bytearray(starts[-1]), starts)
    there: list[dict[str, File]] = []
    for files, paths, readable in cached:
        selection = PathSet.of(path.encode() for path in paths)
        theirs = FakeTree(files) if readable is None else TornTree(files, readable)
        try:
            matching.add(len(there), tree, theirs, selection)
        except IntegrityError:
            continue
        there.append({one.path: one for one in files if one.path.encode() in selection})
    linked_anywhere = [{content(one) for one in files.values()} for files in there]
    for at, file in enumerate(wanted):
        code = matching.codes[at]
        if file.kind > Kind.EXECUTABLE or not file.size:
            assert code in (FETCH, NOTHING) or LINK <= code < MOVED
            continue
        if LINK <= code < MOVED:
            assert content(there[code - LINK][file.path]) == content(file)
        elif MOVED <= code < CHUNKS:
            other = there[code - MOVED][matching.moves[at].decode()]
            assert content(other) == content(file)
        else:
            assert not any(content(file) in known for known in linked_anywhere)
            if CHUNKS <= code < CHUNKS + MAX_REFERENCES:
                assert there[code - CHUNKS][file.path].size > 0
    assert sorted(matching.moves) == [at for at, code in enumerate(matching.codes) if MOVED <= code < CHUNKS]
    moves = matching.encoded_moves()
    told = [path for number in sorted(moves) for path in moves[number].split(b"\0")]
    assert told == [matching.moves[at] for at in sorted(matching.moves)]


@given(trees())
def test_contents_are_by_kind_and_id(files: list[File]) -> None:
    for located in FakeTree(files).segments():
        column = contents(located.segment)
        for entry, one in zip(located.segment.entries(), column, strict=True):
            kind = entry.kind + 16 * (entry.size > SINGLE_CHUNK_MAX)
            assert one == (bytes((kind,)) + entry.file_id if entry.file_id is not None else b"")


def test_the_codes_do_not_overlap() -> None:
    ranges = [
        range(LINK, LINK + MAX_REFERENCES),
        range(MOVED, MOVED + MAX_REFERENCES),
        range(CHUNKS, CHUNKS + MAX_REFERENCES),
    ]
    codes = [FETCH, NOTHING, *(code for one in ranges for code in one)]
    assert len(set(codes)) == len(codes)
    assert FETCH in subject.OPEN
