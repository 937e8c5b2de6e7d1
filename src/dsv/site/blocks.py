"""What a page shows, as values: a heading, and blocks below it. The template gets nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from blake3 import blake3

from dsv.run.record import RunRecord
from dsv.values.ids import CommitId, Id
from dsv.values.names import DatasetName
from dsv.values.paths import show
from dsv.values.units import format_bytes, format_duration, utc

LONGEST_CELL, ROWS = 200, 1_000
"""Characters of a cell, and rows of a table."""
INDEX, RUNS, CACHES = "index.html", "runs.html", "caches.html"


def dataset_page(dataset: DatasetName, *more: str) -> str:
    """Two names may differ in case alone, or in a slash: so part of a hash is in the page's name."""
    plain = "".join(letter if letter.isalnum() else "-" for letter in str(dataset).lower())[:40]
    return f"pages/{'-'.join((plain, blake3(str(dataset).encode()).hexdigest()[:8], *more))}.html"


def commit_page(dataset: DatasetName, commit: CommitId) -> str:
    return dataset_page(dataset, commit.hex()[:16])


def difference_page(dataset: DatasetName, before: CommitId, after: CommitId) -> str:
    return dataset_page(dataset, before.hex()[:16], after.hex()[:16])


def lineage_page(dataset: DatasetName, commit: CommitId) -> str:
    return dataset_page(dataset, commit.hex()[:16], "lineage")


def run_page(record: RunRecord) -> str:
    return dataset_page(record.dataset, "run", record.run)


def image_file(file_id: Id, *, small: bool) -> str:
    """small: the image is shown larger than it is."""
    return f"images/{file_id.hex()[:32]}{'-small' if small else ''}.webp"


class SvgShape(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a drawing, in its pixels. kind: the element of SVG. look: its class."""

    kind: Literal["path", "rect", "circle", "text"]
    look: str = ""
    x: float = 0
    y: float = 0
    width: float = 0
    height: float = 0
    path: str = ""
    text: str = ""
    page: str | None = None


class Drawing(msgspec.Struct, frozen=True):
    """label: what it shows, for those who don't see it. width and height are in pixels."""

    label: str
    width: float
    height: float
    shapes: tuple[SvgShape, ...]
    look: str = "small"

    @property
    def links(self) -> bool:
        return any(shape.page for shape in self.shapes)


class Cell(msgspec.Struct, frozen=True, omit_defaults=True):
    """page: the one to which the text leads. sort: the number by which the script sorts, such as bytes or seconds; None
    to sort by the text."""

    text: str
    page: str | None = None
    sort: float | None = None
    look: str = ""
    drawing: Drawing | None = None
    more: tuple[Cell, ...] = ()
    """Further texts and links beside it."""


class TableColumn(msgspec.Struct, frozen=True):
    """optional: the script may hide it."""

    title: str
    number: bool = False
    optional: bool = False


class Picture(msgspec.Struct, frozen=True):
    """An image of `images/`; without a file, the note says why there is none. pixelated: it is shown enlarged."""

    name: str
    note: str
    file: str | None = None
    pixelated: bool = False


class Line(msgspec.Struct, frozen=True):
    text: str
    look: str = ""


class Block(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a page. kind: `table`, `history`, `facts` (rows of two cells), `plots`, `pictures` or `text`."""

    kind: str
    title: str
    note: str = ""
    columns: tuple[TableColumn, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    total: int = 0
    """All rows that there are."""
    what: str = ""
    filters: bool = False
    drawings: tuple[Drawing, ...] = ()
    pictures: tuple[tuple[Picture, ...], ...] = ()
    """Those of a tuple are shown beside each other."""
    lines: tuple[Line, ...] = ()


Head = str | TableColumn
Fact = tuple[str, Cell | str]


class Page(msgspec.Struct, frozen=True):
    """above: the pages that lead here. notes: what is wrong, or left out. broken: something could not be read, so it is
    made anew the next time."""

    title: str
    blocks: tuple[Block, ...]
    above: tuple[Cell, ...] = ()
    under: str = ""
    notes: tuple[str, ...] = ()
    broken: bool = False

    @property
    def images(self) -> list[str]:
        return [
            picture.file
            for block in self.blocks
            for pair in block.pictures
            for picture in pair
            if picture.file
        ]


def name(path: bytes | str) -> str:
    """Return a name as it is; if a screen could show it as another one, quoted, with these characters escaped."""
    raw = path.encode("utf-8", "surrogateescape") if isinstance(path, str) else path
    text = show(raw, LONGEST_CELL)
    return text[1:-1] if text[1:-1].encode() == raw else text


def cut(text: str, most: int = LONGEST_CELL) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def first_line(message: str) -> str:
    return cut(message.partition("\n")[0], 90)


def cells(*values: Cell | str | float | None) -> tuple[Cell, ...]:
    return tuple(
        value if isinstance(value, Cell) else Cell(cut(value)) if isinstance(value, str) else number(value)
        for value in values
    )


def number(value: float | None) -> Cell:
    return Cell("–") if value is None else Cell(f"{value:,}", sort=value)


def size(count: int | None) -> Cell:
    return Cell("–") if count is None else Cell(format_bytes(count), sort=count)


def took(seconds: float | None) -> Cell:
    return Cell("–") if seconds is None else Cell(format_duration(seconds), sort=seconds)


def when(time_ms: float | None) -> Cell:
    return Cell("–") if time_ms is None else Cell(f"{utc(time_ms):%Y-%m-%d %H:%M}", sort=time_ms, look="time")


def _column(title: Head) -> TableColumn:
    """Return the column of a title that ends in `>` for numbers, and in `?` if the script may hide it."""
    if isinstance(title, TableColumn):  # of a user's words
        return title
    return TableColumn(title.rstrip(">?"), ">" in title, title.endswith("?"))


def table(title: str, heads: Sequence[Head], rows: Iterable[tuple[Cell, ...]], what: str,
          total: int | None = None, note: str = "", filters: bool = False, kind: str = "table") -> Block:  # fmt: skip
    """total: of all rows, if these are not all. At most `ROWS` are shown."""
    listed = tuple(rows)
    every = len(listed) if total is None else total
    return Block(kind, title, note, tuple(map(_column, heads)), listed[:ROWS], every, what, filters)


def facts(title: str, rows: Iterable[Fact]) -> Block:
    return Block("facts", title, rows=tuple(cells(*row) for row in rows))


def plots(title: str, drawings: Sequence[Drawing], note: str = "") -> Block:
    return Block("plots", title, note, drawings=tuple(drawings))


def text(title: str, lines: Iterable[Line] = (), note: str = "") -> Block:
    return Block("text", title, note, lines=tuple(lines))


def command(*lines: str) -> Block:
    return text("To type", [Line(f"$ {line}") for line in lines])
