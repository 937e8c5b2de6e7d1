"""Differences of two texts, line by line, and git's format for them.

Lines are matched as in git (Myers' algorithm in linear space, with git's bounds on its cost), so a merge and
a diff find the same changes as git.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, AnyStr, NamedTuple

MOST_STEPS = 10_000_000
"""Steps of the search, some ten seconds, after which two texts count as too different."""
_CONTEXT = 3

# Git's bounds: they decide which of several ways to match the lines is found.
_FEWEST_ROUNDS = 256  # of the search for the middle of a shortest edit before it takes the best so far
_MOST_FREQUENT = 1024  # copies from which a line is dropped among lines that the other text does not have
_WINDOW = 100  # lines that are looked at to either side for that
_DROPPED_RUN = 4
_FAR = 1 << 60


class TooDifferent(Exception):
    """Comparing two texts would take too long."""


class Edit(NamedTuple):
    """`removed` lines from `start` on become the `added` lines of the other text from `there` on."""

    start: int
    removed: int
    there: int
    added: int
    side: int = 0
    """The number of the other text, if there are several."""

    @property
    def end(self) -> int:
        return self.start + self.removed


def edits(before: Sequence[bytes | str], after: Sequence[bytes | str]) -> list[Edit]:
    """Return the edits that turn `before` into `after`, from the top down. Raises `TooDifferent`."""
    numbers: dict[bytes | str, int] = {}
    old = [numbers.setdefault(line, len(numbers)) for line in before]
    new = [numbers.setdefault(line, len(numbers)) for line in after]
    # The last ends every run of changed lines.
    gone, come = [False] * (len(old) + 1), [False] * (len(new) + 1)
    start, end = _equal_ends(old, new)
    _Search(_Side.of(old, new, start, end, gone), _Side.of(new, old, start, end, come)).run()
    _slide(old, gone, come)
    _slide(new, come, gone)
    return _listed(gone, come)


def _equal_ends(old: Sequence[object], new: Sequence[object]) -> tuple[int, int]:
    start, shorter = 0, min(len(old), len(new))
    while start < shorter and old[start] == new[start]:
        start += 1
    end = 0
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return start, end


class _Side(NamedTuple):
    """The lines of one text that are compared."""

    lines: list[int]
    at: list[int]
    """The position of each line in the text."""
    changed: list[bool]
    """The result, for each line of the text."""

    @classmethod
    def of(cls, lines: list[int], others: list[int], start: int, end: int, changed: list[bool]) -> _Side:
        """Mark lines as changed that the other text does not have, and frequent lines among them."""
        frequent = min(_square_root(len(lines)), _MOST_FREQUENT)
        counts = Counter(others)
        matches = [min(counts[line], frequent) for line in lines[start : len(lines) - end]]
        kinds = [0 if count == 0 else 2 if count == frequent else 1 for count in matches]
        kept: list[int] = []
        for at, kind in enumerate(kinds):
            if kind == 1 or (kind == 2 and not _among_new(kinds, at)):
                kept.append(start + at)
            else:
                changed[start + at] = True
        return cls([lines[at] for at in kept], kept, changed)


def _among_new(kinds: list[int], at: int) -> bool:
    """Return whether most lines around the frequent line are missing in the other text."""
    new = frequent = 0
    for around in (
        range(at - 1, max(at - _WINDOW, 0) - 1, -1),
        range(at + 1, min(at + _WINDOW, len(kinds) - 1) + 1),
    ):
        missing = 0
        frequent += 1
        for line in around:
            if kinds[line] == 1:
                break
            missing += kinds[line] == 0
            frequent += kinds[line] == 2
        if not missing:
            return False
        new += missing
    return frequent * _DROPPED_RUN < frequent + new


def _square_root(number: int) -> int:
    root = 1
    while number > 0:
        root, number = root << 1, number >> 2
    return root


class _Search:
    """The shortest edit of one text into another, or a short one if that would take too long."""

    def __init__(self, one: _Side, other: _Side) -> None:
        self._one, self._other = one, other
        diagonals = len(one.lines) + len(other.lines) + 3
        self._middle = len(other.lines) + 1  # where diagonal 0 is in the lists
        self._forward = [0] * diagonals
        self._backward = [0] * diagonals
        self._rounds = max(_square_root(diagonals), _FEWEST_ROUNDS)
        self._steps = 0

    def run(self) -> None:
        one, other = self._one, self._other
        boxes = [(0, len(one.lines), 0, len(other.lines), False)]
        while boxes:
            low, high, start, end, minimal = boxes.pop()
            while low < high and start < end and one.lines[low] == other.lines[start]:
                low, start = low + 1, start + 1
            while low < high and start < end and one.lines[high - 1] == other.lines[end - 1]:
                high, end = high - 1, end - 1
            if low == high or start == end:
                for at in other.at[start:end]:
                    other.changed[at] = True
                for at in one.at[low:high]:
                    one.changed[at] = True
                continue
            at, there, minimal_before, minimal_behind = self._split(low, high, start, end, minimal)
            boxes.append((low, at, start, there, minimal_before))
            boxes.append((at, high, there, end, minimal_behind))

    def _split(self, low: int, high: int, start: int, end: int, minimal: bool) -> tuple[int, int, bool, bool]:
        """Return where a shortest edit is cut in two, and whether either half must be shortest too.

        Diagonal d has the pairs of lines (i, i - d). `forward` and `backward` have how far each diagonal
        reaches with as many changed lines as there were rounds, from the start and from the end of the box.
        """
        one, other, forward, backward, zero = (
            self._one.lines, self._other.lines, self._forward, self._backward, self._middle,
        )  # fmt: skip
        least, most = low - end, high - start
        first, last = low - start, high - end
        is_odd = (first - last) & 1
        top = bottom = first
        upper = lower = last
        forward[zero + first], backward[zero + last] = low, high
        rounds = 0
        while True:
            rounds += 1
            bottom, top = _widen(forward, zero, bottom, top, least, most, -1)
            for d in range(top, bottom - 1, -2):
                at = zero + d
                i = forward[at - 1] + 1 if forward[at - 1] >= forward[at + 1] else forward[at + 1]
                j = i - d
                while i < high and j < end and one[i] == other[j]:
                    i, j = i + 1, j + 1
                forward[at] = i
                if is_odd and lower <= d <= upper and backward[at] <= i:
                    return i, j, True, True
            lower, upper = _widen(backward, zero, lower, upper, least, most, _FAR)
            for d in range(upper, lower - 1, -2):
                at = zero + d
                i = backward[at - 1] if backward[at - 1] < backward[at + 1] else backward[at + 1] - 1
                j = i - d
                while i > low and j > start and one[i - 1] == other[j - 1]:
                    i, j = i - 1, j - 1
                backward[at] = i
                if not is_odd and bottom <= d <= top and i <= forward[at]:
                    return i, j, True, True
            self._steps += top - bottom + upper - lower
            if self._steps > MOST_STEPS:
                raise TooDifferent
            if minimal:
                continue
            if rounds >= self._rounds:
                box = low, high, start, end
                return self._furthest(box, range(top, bottom - 1, -2), range(upper, lower - 1, -2))

    def _furthest(
        self, box: tuple[int, int, int, int], ahead: range, back: range
    ) -> tuple[int, int, bool, bool]:
        """Return the pair of lines furthest from the start or from the end of the box."""
        low, high, start, end = box
        reached, at = -1, -1
        for d in ahead:
            i = min(self._forward[self._middle + d], high)
            j = i - d
            if j > end:
                i, j = end + d, end
            if reached < i + j:
                reached, at = i + j, i
        left, behind = _FAR, _FAR
        for d in back:
            i = max(self._backward[self._middle + d], low)
            j = i - d
            if j < start:
                i, j = start + d, start
            if i + j < left:
                left, behind = i + j, i
        if (high + end) - left < reached - (low + start):
            return at, reached - at, True, False
        return behind, left - behind, False, True


def _widen(
    reached: list[int], zero: int, bottom: int, top: int, least: int, most: int, nothing: int
) -> tuple[int, int]:
    """Add a diagonal on either side, up to the corners of the box."""
    if bottom > least:
        bottom -= 1
        reached[zero + bottom - 1] = nothing
    else:
        bottom += 1
    if top < most:
        top += 1
        reached[zero + top + 1] = nothing
    else:
        top -= 1
    return bottom, top


class _Group:
    """A run of changed lines, perhaps empty. A text is such runs with one unchanged line between each two."""

    def __init__(self, changed: list[bool]) -> None:
        self._changed = changed
        self.start = self.end = 0
        self._extend()

    def _extend(self) -> None:
        while self._changed[self.end]:
            self.end += 1

    def next(self) -> bool:
        if self.end == len(self._changed) - 1:
            return False
        self.start = self.end = self.end + 1
        self._extend()
        return True

    def previous(self) -> None:
        self.start = self.end = self.start - 1
        self._join()

    def _join(self) -> None:
        while self.start and self._changed[self.start - 1]:
            self.start -= 1

    def slide_up(self, lines: list[int]) -> bool:
        """Move it by a line if the result stays the same, and join it with the run that it meets."""
        if not self.start or lines[self.start - 1] != lines[self.end - 1]:
            return False
        self.start, self.end = self.start - 1, self.end - 1
        self._changed[self.start], self._changed[self.end] = True, False
        self._join()
        return True

    def slide_down(self, lines: list[int]) -> bool:
        if self.end == len(lines) or lines[self.start] != lines[self.end]:
            return False
        self._changed[self.start], self._changed[self.end] = False, True
        self.start, self.end = self.start + 1, self.end + 1
        self._extend()
        return True


def _slide(lines: list[int], changed: list[bool], changed_there: list[bool]) -> None:
    """Move each run of changed lines down as far as it goes, or to the last place with a run in the other."""
    group, other = _Group(changed), _Group(changed_there)
    while True:
        if group.end > group.start:
            _slide_group(lines, group, other)
        if not group.next():
            return
        other.next()


def _slide_group(lines: list[int], group: _Group, other: _Group) -> None:
    size = -1
    meets = False
    while size != group.end - group.start:
        size = group.end - group.start
        while group.slide_up(lines):
            other.previous()
        earliest = group.end
        meets = other.end > other.start
        while group.slide_down(lines):
            other.next()
            meets = meets or other.end > other.start
    if group.end != earliest and meets:
        while other.end == other.start:
            group.slide_up(lines)
            other.previous()


def _listed(gone: list[bool], come: list[bool]) -> list[Edit]:
    found: list[Edit] = []
    at = there = 0
    while at < len(gone) and there < len(come):
        start, new_start = at, there
        while gone[at]:
            at += 1
        while come[there]:
            there += 1
        if at > start or there > new_start:
            found.append(Edit(start, at - start, new_start, there - new_start))
        at, there = at + 1, there + 1
    return found


def decode_text(data: bytes) -> str | None:
    """Return a text, or None if the bytes have a NUL or are not UTF-8."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def split_lines(text: AnyStr) -> list[AnyStr]:
    """Return the lines, each with its end. Only a newline ends a line, and no other separator of Unicode."""
    end: Any = "\n" if isinstance(text, str) else b"\n"
    *lines, last = text.split(end)
    return [line + end for line in lines] + ([last] if last else [])


def near(changes: Iterable[Edit], gap: int) -> Iterator[list[Edit]]:
    """Group edits, in order from the top down, with at most `gap` unchanged lines between them."""
    group: list[Edit] = []
    end = 0
    for edit in changes:
        if group and edit.start - end > gap:
            yield group
            group = []
        group.append(edit)
        end = max(end, edit.end)
    if group:
        yield group


def diff_lines(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """Yield hunks in git's format (`@@ -1,3 +1,4 @@`), with three lines around each change.

    Lines have no ends; git's note follows a last line without a newline. If the texts are too different,
    everything between equal ends is changed.
    """
    try:
        changes = edits(before, after)
    except TooDifferent:
        start, end = _equal_ends(before, after)
        changes = [Edit(start, len(before) - start - end, start, len(after) - start - end)]
    for hunk in near(changes, 2 * _CONTEXT):
        at, end = max(hunk[0].start - _CONTEXT, 0), min(hunk[-1].end + _CONTEXT, len(before))
        moved = hunk[0].there - hunk[0].start
        grown = sum(edit.added - edit.removed for edit in hunk)
        yield f"@@ -{_span(at, end)} +{_span(at + moved, end + moved + grown)} @@"
        for edit in hunk:
            yield from _marked(" ", before[at : edit.start])
            yield from _marked("-", before[edit.start : edit.end])
            yield from _marked("+", after[edit.there : edit.there + edit.added])
            at = edit.end
        yield from _marked(" ", before[at:end])


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line.removesuffix("\n")
        if not line.endswith("\n"):
            yield "\\ No newline at end of file"


def _span(start: int, end: int) -> str:
    length = end - start
    if length == 1:
        return f"{start + 1}"
    return f"{start + 1 if length else start},{length}"
