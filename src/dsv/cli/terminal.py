"""The terminal: the standard streams, the environment that controls their use, and colours. Nothing is shown
by colour alone."""

from __future__ import annotations

import io
import os
import re
import sys
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO, Final, TextIO, cast

import msgspec

from dsv.cli.catalogue import has_colour

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Style:
    """The codes of colours, as git and most tools use them."""

    GOOD: Final = "32"
    BAD: Final = "31"
    BEST: Final = "1;32"
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
        return f"\x1b[{style}m{text}\x1b[0m" if self.on and style and text else text


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


def width(text: str) -> int:
    """Return the columns that a terminal needs: two for East Asian wide characters, none for combining marks."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


_PAINT = re.compile(r"\x1b\[[0-9;]*m")
_TO_COPY = re.compile(r" |hint:|next:|then:|or, ")
"""The beginning of lines with a command to copy, and of indented ones."""


def wrapped(text: str, columns: int) -> str:
    """Break lines that are longer than `columns` between words. Lines with a command to copy stay one line: spaces
    fill a row of the terminal, which goes on in the next."""
    lines = []
    for line in text.split("\n"):
        fill = bool(_TO_COPY.match(_PAINT.sub("", line)))
        indent = " " * (len(line) - len(line.lstrip(" ")))
        done, (row, *words) = "", line.split(" ")
        for word in words:
            used = width(_PAINT.sub("", row))
            if used + 1 + width(_PAINT.sub("", word)) <= columns:
                row = f"{row} {word}"
            elif fill:
                done, row = done + row + " " * (-used % columns), indent + word
            else:
                done, row = f"{done}{row}\n", word
        lines.append(done + row)
    return "\n".join(lines)


class Surroundings(msgspec.Struct, frozen=True):
    """The environment of a process. Tests build their own."""

    environ: Mapping[str, str]
    stdout: BinaryIO
    stderr: TextIO
    stdout_is_terminal: bool
    stderr_is_terminal: bool
    width: int | None = None
    """Columns, if the caller knows them better than the terminal."""
    stdin: BinaryIO | None = None
    """None for the process's own."""

    @property
    def colour(self) -> bool:
        """True if a terminal gets colours."""
        return has_colour(self.environ)

    @property
    def is_dumb(self) -> bool:
        """True if the terminal understands no escape codes, so nothing can be redrawn."""
        return self.environ.get("TERM") == "dumb"

    @property
    def stdout_ink(self) -> Ink:
        return Ink(self.stdout_is_terminal and self.colour)

    @property
    def stderr_ink(self) -> Ink:
        return Ink(self.stderr_is_terminal and self.colour)

    def columns(self) -> int:
        """Return the width of the terminal, or 80."""
        if self.width is not None:
            return self.width
        named = self.environ.get("COLUMNS", "")
        if named.isdecimal() and named.isascii() and len(named) < 10 and int(named) > 0:
            return max(20, int(named))
        for descriptor in (1, 2):
            try:
                columns = os.get_terminal_size(descriptor).columns
            except OSError:
                continue
            if columns > 0:  # a terminal whose size was never set has none
                return max(20, columns)
        return 80


class _Lossy(io.FileIO):
    """Drops what it can't write: a full disk or a blocked reader changes no result and no exit code."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            written: int | None = super().write(data)  # None: a full pipe that must not block
        except OSError:
            written = None
        return memoryview(data).nbytes if written is None else written


def of_process() -> Surroundings:
    """Return the surroundings of this process. stdout is unbuffered."""
    _occupy_closed_descriptors()
    # Names that are not UTF-8 are written with escapes.
    if isinstance(sys.stderr, io.TextIOWrapper):
        lossy = io.BufferedWriter(_Lossy(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(lossy, sys.stderr.encoding, "backslashreplace", line_buffering=True)
    return Surroundings(
        environ=os.environ,
        stdout=cast(BinaryIO, io.FileIO(1, "w", closefd=False)),
        stderr=sys.stderr,
        stdout_is_terminal=os.isatty(1),
        stderr_is_terminal=os.isatty(2),
    )


def _occupy_closed_descriptors() -> None:
    """Open descriptors that the caller closed: the next file would get the number, and our messages.

    What is written to stdout then fails, so no command seems to have answered."""
    for descriptor, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)  # children write there too
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 (lives as long as the process)
