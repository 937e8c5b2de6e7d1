"""Tables: aligned plain text in a pipe, fitted to the window on a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import msgspec

from dsv.cli.output import Output, printable
from dsv.cli.process_env import Surroundings
from dsv.cli.style import Style

GAP = "  "
NARROWEST = 8
"""Columns that a shortened cell keeps."""


class Column(msgspec.Struct, frozen=True):
    """A column of a table."""

    title: str
    right: bool = False
    """Align numbers."""
    keep: bool = False
    """Never shorten, in a narrow window either: ids and names to copy."""
    exact: bool = False
    """The title is somebody's own word, and is not written in capitals."""

    @classmethod
    def parse(cls, text: str) -> Column:
        return cls(text.rstrip(">~"), right=">" in text, keep="~" not in text)

    @property
    def head(self) -> str:
        return printable(self.title) if self.exact else self.title.upper()


def write_table(
    out: Output,
    around: Surroundings,
    columns: Sequence[Column | str],
    rows: Sequence[Sequence[str]],
    details: Sequence[Sequence[str]] = (),
) -> None:
    """Write a header and the rows, each with the lines of its `details` below it; nothing if there are no rows.

    A column may be given by its title: with `>` for numbers, and with `~` if it may be shortened.
    """
    if not rows:
        return
    parsed = [Column.parse(column) if isinstance(column, str) else column for column in columns]
    cells = [[printable(cell) for cell in row] for row in rows]
    titles = [column.head for column in parsed]
    widths = [max(width(row[i]) for row in [titles, *cells]) for i in range(len(parsed))]
    if around.stdout_is_terminal:
        fitted = _fitted(widths, parsed, around.columns())
        if fitted is None:
            _write_stacked(out, around, parsed, cells, details)
            return
        widths = fitted
    head = _line(titles, widths, parsed)
    out.line(around.stdout_ink.paint(Style.HEADING, head))
    for number, row in enumerate(cells):
        out.line(_line(row, widths, parsed))
        _write_details(out, details, number)


def width(text: str) -> int:
    """Return the columns that a terminal needs: two for East Asian wide characters, none for combining marks."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def shortened(text: str, room: int) -> str:
    """Return at most `room` columns, with an ellipsis if something went."""
    if width(text) <= room:
        return text
    kept, used = [], 0
    for character in text:
        used += width(character)
        if used > room - 1:
            break
        kept.append(character)
    return "".join(kept) + "…"


def _fitted(widths: Sequence[int], columns: Sequence[Column], room: int) -> list[int] | None:
    """Make columns smaller that may be shortened, widest first. Returns None if that isn't enough."""
    fitted = list(widths)
    excess = sum(fitted) + len(GAP) * (len(fitted) - 1) - room
    while excess > 0:
        candidates = [i for i, column in enumerate(columns) if not column.keep and fitted[i] > NARROWEST]
        if not candidates:
            return None
        widest = max(candidates, key=lambda i: fitted[i])
        fitted[widest] -= 1
        excess -= 1
    return fitted


def _line(row: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> str:
    cells = []
    for cell, room, column in zip(row, widths, columns, strict=True):
        text = shortened(cell, room)
        space = " " * (room - width(text))
        cells.append(space + text if column.right else text + space)
    return GAP.join(cells).rstrip()


def _write_stacked(
    out: Output,
    around: Surroundings,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    details: Sequence[Sequence[str]],
) -> None:
    """Write each row as a block, one value a line, for windows too narrow for the table."""
    titles = [printable(column.title) for column in columns]
    longest = max(map(width, titles[1:]))
    for number, row in enumerate(rows):
        out.line(around.stdout_ink.paint(Style.HEADING, row[0]))
        for cell, title in zip(row[1:], titles[1:], strict=True):
            out.line(f"  {title}{' ' * (longest - width(title))}  {cell}")
        _write_details(out, details, number)


def _write_details(out: Output, details: Sequence[Sequence[str]], number: int) -> None:
    if number < len(details):
        for line in details[number]:
            out.line(GAP + printable(line))
