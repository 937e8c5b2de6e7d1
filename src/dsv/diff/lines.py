"""How the lines of two texts differ, in git's format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

MOST_LINES = 20_000
"""Lines, on either side, that are compared one by one: comparing many that are much alike takes very long."""
_CONTEXT = 3
_Block = tuple[str, int, int, int, int]


def split_lines(data: bytes) -> list[str] | None:
    """The lines of a text, each with its end; None if these bytes are none, as they hold a NUL or are no UTF-8.

    Only a newline ends a line, as for other tools, and none of the separators that Unicode has besides.
    """
    if b"\0" in data:
        return None
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return None
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def diff_lines(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """Hunks with three lines around each change: `@@ -1,3 +1,4 @@`, then lines that begin with a space, - or +.

    The lines come without their ends. One that is the last of its text and has no newline is followed by git's note.
    """
    for hunk in _hunks(_blocks(before, after)):
        first, last = hunk[0], hunk[-1]
        yield f"@@ -{_span(first[1], last[2])} +{_span(first[3], last[4])} @@"
        for tag, start, end, new_start, new_end in hunk:
            if tag == "equal":
                yield from _marked(" ", before[start:end])
            else:
                yield from _marked("-", before[start:end])
                yield from _marked("+", after[new_start:new_end])


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line.removesuffix("\n")
        if not line.endswith("\n"):
            yield "\\ No newline at end of file"


def _blocks(before: Sequence[str], after: Sequence[str]) -> list[_Block]:
    """What is equal and what is not. Equal ends are set aside first, which most changes leave little beside."""
    start, shorter = 0, min(len(before), len(after))
    while start < shorter and before[start] == after[start]:
        start += 1
    end = 0
    while end < shorter - start and before[-1 - end] == after[-1 - end]:
        end += 1
    stop, new_stop = len(before) - end, len(after) - end
    blocks: list[_Block] = [("equal", 0, start, 0, start)] if start else []
    if max(stop, new_stop) - start > MOST_LINES:
        blocks.append(("replace", start, stop, start, new_stop))
    else:
        matcher = SequenceMatcher(None, before[start:stop], after[start:new_stop])
        blocks += [
            (tag, a + start, b + start, c + start, d + start) for tag, a, b, c, d in matcher.get_opcodes()
        ]
    if end:
        blocks.append(("equal", stop, len(before), new_stop, len(after)))
    return blocks


def _hunks(blocks: Sequence[_Block]) -> Iterator[list[_Block]]:
    """Runs of blocks around changes; equal ones are cut to the context, or in two if they are long."""
    hunk: list[_Block] = []
    changed = False
    for number, (tag, a, b, c, d) in enumerate(blocks):
        if tag != "equal":
            hunk.append((tag, a, b, c, d))
            changed = True
            continue
        is_last = number == len(blocks) - 1
        if changed and (is_last or b - a > 2 * _CONTEXT):
            length = min(_CONTEXT, b - a)
            yield [*hunk, ("equal", a, a + length, c, c + length)] if length else hunk
            hunk, changed = [], False
        length = min(_CONTEXT, b - a) if not changed else b - a
        if length:
            hunk.append(("equal", b - length, b, d - length, d))
    if changed:
        yield hunk


def _span(start: int, end: int) -> str:
    length = end - start
    if length == 1:
        return f"{start + 1}"
    return f"{start + 1 if length else start},{length}"
