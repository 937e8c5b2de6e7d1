"""Colour on a terminal: the one place that knows when there is any, and with which codes.

Colour repeats what the words say. Nothing is said by colour alone.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec


class Style:
    """The codes of colours, which are those of git and most others."""

    HEADING: Final = "1"
    NAME: Final = "1"
    ERROR: Final = "1;31"
    WARNING: Final = "1;33"
    HINT: Final = "36"
    COMMIT: Final = "33"
    REF: Final = "1;32"
    ADDED: Final = "32"
    CHANGED: Final = "33"
    REMOVED: Final = "31"


class Ink(msgspec.Struct, frozen=True):
    """Paints text for one stream. `on` is false for a pipe, with NO_COLOR, and if TERM is dumb."""

    on: bool

    def paint(self, style: str, text: str) -> str:
        """Add the codes to text that is printable already."""
        return f"\x1b[{style}m{text}\x1b[0m" if self.on and text else text


PLAIN = Ink(on=False)
CHANGES = {
    "added": Style.ADDED,
    "changed": Style.CHANGED,
    "retyped": Style.CHANGED,
    "renamed": Style.REF,
    "removed": Style.REMOVED,
    "refused": Style.ERROR,
}
"""By the words that `dsv status` uses."""


_PAINT = re.compile(r"\x1b\[[0-9;]*m")
_KEPT = re.compile(r" |hint:|next:|then:|or, ")
"""Lines with a command to copy, and those that are indented."""


def wrapped(text: str, columns: int) -> str:
    """Break lines that are longer than a terminal between two words, but for lines with a command to copy."""
    lines = []
    for line in text.split("\n"):
        if _KEPT.match(_PAINT.sub("", line)):
            lines.append(line)
            continue
        row, *words = line.split(" ")
        for word in words:
            if len(_PAINT.sub("", row)) + 1 + len(_PAINT.sub("", word)) > columns:
                lines.append(row)
                row = word
            else:
                row = f"{row} {word}"
        lines.append(row)
    return "\n".join(lines)
