from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.merge.lines import match_lines, merge_lines

TEXTS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b""]), max_size=12).map(b"\n".join)


@given(TEXTS, TEXTS)
def test_a_side_without_changes_takes_the_other(base: bytes, other: bytes) -> None:
    assert merge_lines(base, base, other) == other
    assert merge_lines(base, other, base) == other
    assert merge_lines(base, other, other) == other


@given(TEXTS, TEXTS, TEXTS)
@settings(max_examples=500)
def test_a_merge_of_lines_is_the_same_from_either_side(base: bytes, ours: bytes, theirs: bytes) -> None:
    assert merge_lines(base, ours, theirs) == merge_lines(base, theirs, ours)


@given(st.data())
@settings(max_examples=500)
def test_edits_of_lines_apart_from_each_other_are_both_in_the_result(data: st.DataObject) -> None:
    lines = [b"%d" % number for number in range(data.draw(st.integers(3, 30)))]
    count = st.integers(0, len(lines) - 1)
    one, other = data.draw(count), data.draw(count)
    left, right, both = list(lines), list(lines), list(lines)
    edit = st.sampled_from([[], [b"new"], [b"new", b"lines"]])
    change, second = data.draw(edit), data.draw(edit)
    left[one : one + 1] = change
    right[other : other + 1] = [line + b"!" for line in second]
    for at, new in sorted([(one, change), (other, [line + b"!" for line in second])], reverse=True):
        both[at : at + 1] = new
    merged = merge_lines(*(b"\n".join(each) for each in (lines, left, right)))
    if abs(one - other) > 1:
        assert merged == b"\n".join(both)
    elif one == other:
        assert merged is None or change == second == []
    else:
        assert merged is None  # beside each other


@given(TEXTS, TEXTS)
def test_matched_lines_are_equal_and_in_order(one: bytes, other: bytes) -> None:
    before, after = one.split(b"\n"), other.split(b"\n")
    matched = match_lines(before, after)
    assert all(before[line] == after[there] for line, there in matched.items())
    assert [matched[line] for line in sorted(matched)] == sorted(set(matched.values()))


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "merged"),
    [
        (b"1\n2\n3\n", b"1\n2\n3\n4\n", b"0\n1\n2\n3\n", b"0\n1\n2\n3\n4\n"),
        (b"1\n2\n3\n", b"1\nx\n3\n", b"1\ny\n3\n", None),
        (b"1\n2\n3\n", b"1\nx\n3\n", b"1\n3\n", None),
        (b"1\n2\n3\n4\n5\n", b"1\n3\n4\n5\n", b"1\n2\n3\n5\n", b"1\n3\n5\n"),
        (b"1\r\n2\r\n3\r\n", b"x\r\n2\r\n3\r\n", b"1\r\n2\r\ny\r\n", b"x\r\n2\r\ny\r\n"),
        (b"1\n2\n3", b"x\n2\n3", b"1\n2\n3\n", b"x\n2\n3\n"),
        (b"", b"1\n", b"", b"1\n"),
    ],
)
def test_texts(base: bytes, ours: bytes, theirs: bytes, merged: bytes | None) -> None:
    assert merge_lines(base, ours, theirs) == merged


@pytest.mark.parametrize("line", [b"", b"0", b"same"])
def test_a_megabyte_of_equal_lines_is_merged(line: bytes) -> None:
    base = (line + b"\n") * ((1 << 20) // (len(line) + 1))
    begun = time.process_time()
    assert merge_lines(base, b"first\n" + base, base + b"last\n") == b"first\n" + base + b"last\n"
    changed = base[: len(base) // 2] + b"x\n" + base[len(base) // 2 :]
    assert merge_lines(base, changed, base) == changed
    assert time.process_time() - begun < 60
