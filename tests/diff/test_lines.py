from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.diff import lines as line_diff
from dsv.diff.lines import decode_text, diff_lines, split_lines

texts = st.lists(st.sampled_from(["a", "b", "c", "", "d e"]), max_size=40).map(lambda lines: "\n".join(lines))


def diff(before: str, after: str) -> list[str]:
    left, right = split_lines(before), split_lines(after)
    assert left is not None and right is not None
    return list(diff_lines(left, right))


def patch(before: list[str], hunks: list[str]) -> list[str]:
    """Return the lines after the hunks are applied, as `patch` does."""
    made, at, marked = list[str](), 0, ""
    for line in hunks:
        if line.startswith("@@"):
            old = line.split()[1][1:].split(",")
            start, length = int(old[0]), int(old[1]) if len(old) > 1 else 1
            begin = start - 1 if length else start
            made += before[at:begin]
            at = begin
        elif line.startswith("\\"):
            made[-1:] = [made[-1].removesuffix("\n")] if marked != "-" else made[-1:]
        else:
            marked, text = line[0], line[1:] + "\n"
            if marked != "-":
                made.append(text)
            if marked != "+":
                assert before[at].removesuffix("\n") + "\n" == text
                at += 1
    return made + before[at:]


@given(texts, texts)
def test_applied_to_the_one_it_gives_the_other(before: str, after: str) -> None:
    left, right = split_lines(before), split_lines(after)
    assert left is not None and right is not None
    assert patch(left, list(diff_lines(left, right))) == right


@given(texts)
def test_equal_texts_have_no_hunk(text: str) -> None:
    assert diff(text, text) == []


def test_it_reads_like_a_unified_diff() -> None:
    before = "".join(f"line {n}\n" for n in range(30))
    after = before.replace("line 5\n", "line five\n").replace("line 20\n", "")
    expected = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3)
    assert diff(before, after) == list(expected)[2:]


def test_a_missing_newline_is_shown() -> None:
    assert diff("a\nb", "a\nb\n") == ["@@ -1,2 +1,2 @@", " a", "-b", "\\ No newline at end of file", "+b"]


def test_what_is_no_text_has_no_lines() -> None:
    assert decode_text(b"a\0b") is None and decode_text(b"\xff\n") is None
    assert split_lines("a\u2028b\nc\r\nd") == ["a\u2028b\n", "c\r\n", "d"]


def test_too_many_lines_are_replaced_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_diff, "MOST_STEPS", 0)
    assert diff("0\na\nb\nc\n9\n", "0\nc\na\nb\nb\n9\n") == [
        "@@ -1,5 +1,6 @@", " 0", "-a", "-b", "-c", "+c", "+a", "+b", "+b", " 9",
    ]  # fmt: skip
