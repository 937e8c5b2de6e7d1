"""Merging three versions of a text line by line, with the result of `git merge-file`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dsv.diff.lines import Edit, edits, split_lines
from dsv.merge.paths import Choice, MergedContent, Places

_NEAR = 3  # lines between two conflicts that do not keep them apart

Lines = Sequence[bytes]


class Conflict(NamedTuple):
    """Lines that both sides changed: what each has there."""

    ours: bytes
    theirs: bytes


class FromTheirs(NamedTuple):
    """Lines that theirs alone changed."""

    text: bytes


def merge_text(base: bytes, ours: bytes, theirs: bytes, choice: Choice | None) -> MergedContent | str:
    """Return the text with the changes of both sides; why it can't be merged. choice: whose lines are taken where both
    changed them; None: they can't be merged. Raises `TooDifferent`.
    """
    merged: list[bytes] = []
    taken, settled = Places(), Places()
    line = 1
    for piece in merge_lines(base, ours, theirs):
        if isinstance(piece, Conflict) and choice is None:
            return "both changed the same lines"
        if isinstance(piece, bytes):
            text = piece
        else:
            text = piece.text if isinstance(piece, FromTheirs) else piece[choice is Choice.THEIRS]
            count = max(len(split_lines(text)), 1)
            place = f"line {line}" if count == 1 else f"lines {line}-{line + count - 1}"
            (taken if isinstance(piece, FromTheirs) else settled).note(place)
        merged.append(text)
        line += text.count(b"\n")
    return MergedContent(b"".join(merged), taken, settled)


def merge_lines(base: bytes, ours: bytes, theirs: bytes) -> list[bytes | FromTheirs | Conflict]:
    """Return the text with the changes of both sides, in pieces. Raises `TooDifferent`."""
    was, mine, other = split_lines(base), split_lines(ours), split_lines(theirs)
    left, right = edits(was, mine), edits(was, other)
    if not left or not right:
        return [theirs if not left else ours]
    touching = _merged(_regions(was, mine, other, left, right))
    regions = _joined([part for one in touching for part in one.refined(mine, other)], mine)
    pieces: list[bytes | FromTheirs | Conflict] = []
    at = 0
    for one in regions:
        pieces.append(b"".join(mine[at : one.start]))
        lines, others = one.of(mine, other)
        if one.taken is None:
            pieces.append(Conflict(b"".join(lines), b"".join(others)))
        else:
            pieces.append(FromTheirs(b"".join(others)) if one.taken == _THEIRS else b"".join(lines))
        at = one.end
    return [*pieces, b"".join(mine[at:])]


_OURS, _THEIRS = 1, 2


class _Region:
    """Lines `start` to `end` of ours, which correspond to `there` to `there_end` of theirs."""

    def __init__(self, taken: int | None, start: int, end: int, there: int, there_end: int) -> None:
        self.taken = taken
        """The side whose lines the result has; None for a conflict."""
        self.start, self.end = start, end
        self.there, self.there_end = there, there_end

    def of(self, ours: Lines, theirs: Lines) -> tuple[Lines, Lines]:
        return ours[self.start : self.end], theirs[self.there : self.there_end]

    def refined(self, ours: Lines, theirs: Lines) -> list[_Region]:
        """Return a conflict without the lines that are equal on both sides."""
        if self.taken is not None or self.start == self.end or self.there == self.there_end:
            return [self]
        found = edits(*self.of(ours, theirs))
        if not found:
            return [_Region(_OURS, self.start, self.end, self.there, self.there_end)]
        made: list[_Region] = []
        for one in found:
            start, there = self.start + one.start, self.there + one.there
            made.append(_Region(None, start, start + one.removed, there, there + one.added))
        return made


def _regions(
    was: Lines, ours: Lines, theirs: Lines, left: list[Edit], right: list[Edit]
) -> Iterator[_Region]:
    """Yield the regions that a side or both changed, from the top down, except those that both changed alike."""
    at = at_right = 0
    to_ours = to_theirs = 0  # what is added to a line of the base to get that of a side
    while at < len(left) or at_right < len(right):
        one = left[at] if at < len(left) else Edit(len(was) + 2, 0, 0, 0)
        other = right[at_right] if at_right < len(right) else Edit(len(was) + 2, 0, 0, 0)
        end, end_right = one.start + one.removed, other.start + other.removed
        if end < other.start:
            yield _Region(_OURS, one.there, one.there + one.added, one.start + to_theirs, end + to_theirs)
        elif end_right < one.start:
            there = other.there, other.there + other.added
            yield _Region(_THEIRS, other.start + to_ours, end_right + to_ours, *there)
        elif not _alike(one, other, ours, theirs):
            start, stop = min(one.start, other.start), max(end, end_right)
            yield _Region(
                None,
                one.there + start - one.start,
                one.there + one.added + stop - end,
                other.there + start - other.start,
                other.there + other.added + stop - end_right,
            )
        if end <= end_right:
            at, to_ours = at + 1, one.there + one.added - end
        if end_right <= end:
            at_right, to_theirs = at_right + 1, other.there + other.added - end_right


def _alike(one: Edit, other: Edit, ours: Lines, theirs: Lines) -> bool:
    if (one.start, one.removed, one.added) != (other.start, other.removed, other.added):
        return False
    return ours[one.there : one.there + one.added] == theirs[other.there : other.there + other.added]


def _merged(regions: Iterable[_Region]) -> list[_Region]:
    """Regions that touch each other on a side become one: a conflict, unless both are of one side."""
    found: list[_Region] = []
    for one in regions:
        last = found[-1] if found else None
        if last is None or (one.start > last.end and one.there > last.there_end):
            found.append(one)
            continue
        last.taken = last.taken if last.taken == one.taken else None
        last.end, last.there_end = one.end, one.there_end
    return found


def _joined(regions: Sequence[_Region], ours: Lines) -> list[_Region]:
    """Conflicts with few lines between them, or with none that has a letter or a digit, become one."""
    found: list[_Region] = []
    for one in regions:
        last = found[-1] if found else None
        if last is None or last.taken is not None or one.taken is not None:
            found.append(one)
            continue
        between = ours[last.end : one.start]
        if len(between) > _NEAR and any(byte in _WORDS for line in between for byte in line):
            found.append(one)
        else:
            last.end, last.there_end = one.end, one.there_end
    return found


_WORDS = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
