"""Merging three versions of a text line by line.

Lines are matched as a patience diff does: lines that occur once in both texts first, then what lies between them. That
takes time in proportion to the text for any text, and the blocks that it finds are those that a person sees.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

# Two runs of lines without a line that is in each of them once are compared in full if they are no longer than this.
_COMPARED = 250_000  # products of their lengths

Line = bytes


def merge_lines(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """The text with the changes of both sides; None if they changed the same lines, or lines beside each other."""
    common, left, right = (text.split(b"\n") for text in (base, ours, theirs))
    in_left, in_right = match_lines(common, left), match_lines(common, right)
    in_left[len(common)], in_right[len(common)] = len(left), len(right)
    merged: list[Line] = []
    at = at_left = at_right = 0
    for line in sorted(in_left.keys() & in_right.keys()):
        was, one, other = common[at:line], left[at_left : in_left[line]], right[at_right : in_right[line]]
        if one == other or other == was:
            merged += one
        elif one == was:
            merged += other
        else:
            return None
        merged += common[line : line + 1]
        at, at_left, at_right = line + 1, in_left[line] + 1, in_right[line] + 1
    return b"\n".join(merged)


def match_lines(before: Sequence[Line], after: Sequence[Line]) -> dict[int, int]:
    """The lines of `before` that `after` goes on having, in order: number -> number there."""
    matched: dict[int, int] = {}
    left = [(0, len(before), 0, len(after))]
    while left:
        low, high, start, end = left.pop()
        while low < high and start < end and before[low] == after[start]:
            matched[low] = start
            low, start = low + 1, start + 1
        while low < high and start < end and before[high - 1] == after[end - 1]:
            high, end = high - 1, end - 1
            matched[high] = end
        anchors = _anchors(before[low:high], after[start:end])
        if not anchors:
            matched.update(_compare(before, after, (low, high, start, end)))
            continue
        previous, reached = low, start
        for line, there in anchors:
            matched[low + line] = start + there
            left.append((previous, low + line, reached, start + there))
            previous, reached = low + line + 1, start + there + 1
        left.append((previous, high, reached, end))
    return matched


def _anchors(before: Sequence[Line], after: Sequence[Line]) -> list[tuple[int, int]]:
    """Lines that each side has once: as many of them as stand in the same order on both."""
    once = _single(before)
    there = _single(after)
    pairs = [(number, there[line]) for line, number in once.items() if line in there]
    return _longest_rising(pairs)


def _single(lines: Sequence[Line]) -> dict[Line, int]:
    counts = Counter(lines)
    return {line: number for number, line in enumerate(lines) if counts[line] == 1}


def _longest_rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest run of pairs whose second numbers rise, as their first ones do."""
    tails: list[int] = []  # the smallest second number that a run of each length ends with
    ends: list[int] = []  # which pair that is
    previous: list[int] = []
    for at, (_, number) in enumerate(pairs):
        length = bisect.bisect_left(tails, number)
        previous.append(ends[length - 1] if length else -1)
        tails[length : length + 1] = [number]
        ends[length : length + 1] = [at]
    found: list[tuple[int, int]] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        found.append(pairs[at])
        at = previous[at]
    return found[::-1]


def _compare(
    before: Sequence[Line], after: Sequence[Line], within: tuple[int, int, int, int]
) -> dict[int, int]:
    low, high, start, end = within
    if low == high or start == end or (high - low) * (end - start) > _COMPARED:
        return {}
    matcher = SequenceMatcher(None, before[low:high], after[start:end], autojunk=False)
    return {
        low + block.a + step: start + block.b + step
        for block in matcher.get_matching_blocks()
        for step in range(block.size)
    }
