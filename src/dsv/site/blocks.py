"""What a page shows, as values: a heading, and blocks below it. The template gets nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from blake3 import blake3

from dsv.values.ids import Id
from dsv.values.names import DatasetName
from dsv.values.paths import show
from dsv.values.units import format_bytes, format_duration, format_time

LONGEST_CELL, ROWS = 200, 1_000
"""Characters of a cell, and rows of a table."""
INDEX, RUNS, CACHES = "index.html", "runs.html", "caches.html"


def page_of(dataset: DatasetName, *ids: object) -> str:
    """Return the name of a page. ids: of a commit, of two, of a commit and `lineage`, or `run` and the id of a run.
    Names of datasets may differ in case alone, or in a slash: so part of a hash is in it."""
    plain = "".join(letter if letter.isalnum() else "-" for letter in str(dataset).lower())[:40]
    words = plain, blake3(str(dataset).encode()).hexdigest()[:8], *(str(part)[:32] for part in ids)
    return f"pages/{'-'.join(words)}.html"


def image_of(file_id: Id) -> str:
    return f"images/{file_id.hex()[:32]}.webp"


class SvgShape(msgspec.Struct, frozen=True, omit_defaults=True):
    """A path of SVG, or a text at a place, in pixels. look: its class."""

    look: str
    path: str = ""
    x: float = 0
    y: float = 0
    text: str = ""


class Drawing(msgspec.Struct, frozen=True):
    """label: what it shows, for those who don't see it. width and height are in pixels."""

    label: str
    width: float
    height: float
    shapes: tuple[SvgShape, ...]
    look: str = "small"


class Cell(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text, also a line of text, the head of a column, or the name of an image, with more of them beside it. page:
    where it leads. sort: bytes, seconds or another number to sort by. image: a file of `images/`; "" for none."""

    text: str
    page: str | None = None
    sort: float | None = None
    look: str = ""
    drawing: Drawing | None = None
    image: str | None = None
    more: tuple[Cell, ...] = ()


Row = tuple[Cell, ...]
Value = Cell | str | float | None


class Block(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a page. kind: `table`, `history`, `facts` (rows of two cells), `plots`, `pictures` (those of a row are
    beside each other) or `text`. total: of all rows that there are."""

    kind: str
    title: str
    rows: tuple[Row, ...] = ()
    note: str = ""
    columns: Row = ()
    total: int = 0
    what: str = ""
    filters: bool = False


class Page(msgspec.Struct, frozen=True):
    """above: the pages that lead here. notes: what is wrong."""

    title: str
    blocks: list[Block]
    above: Row = ()
    under: str = ""
    notes: tuple[str, ...] = ()


def name(path: bytes | str) -> str:
    """Return a name as it is; if a screen could show it as another one, quoted, with these characters escaped."""
    raw = path.encode("utf-8", "surrogateescape") if isinstance(path, str) else path
    text = show(raw, LONGEST_CELL)
    return text[1:-1] if text[1:-1].encode() == raw else text


def cut(text: str, most: int = LONGEST_CELL) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def cells(*values: Value) -> Row:
    """Return a row of a table: numbers have commas, and None is a dash."""
    texts = (Cell(cut(value)) if isinstance(value, str) else value for value in values)
    return tuple(value if isinstance(value, Cell) else number(value) for value in texts)


def number(value: float | None, text: str = "", look: str = "") -> Cell:
    return Cell("–") if value is None else Cell(cut(text or f"{value:,}"), sort=value, look=look)


def size(count: int | None) -> Cell:
    return number(count, format_bytes(count or 0))


def took(seconds: float | None) -> Cell:
    return number(seconds, format_duration(seconds or 0))


def when(time_ms: float | None) -> Cell:
    return number(time_ms, format_time(time_ms or 0), "time")


def table(title: str, heads: Iterable[Cell | str], rows: Iterable[Row], what: str, *, total: int | None = None,
          note: str = "", filters: bool = False, kind: str = "table") -> Block:  # fmt: skip
    """heads: a text ends in `>` for numbers, and in `?` if the script may hide the column; a Cell is of a user's words.
    total: of all rows, if these are not all. At most `ROWS` are shown."""
    listed, looks = tuple(rows), {">": "number", "?": "optional"}
    columns = (
        Cell(head.rstrip(">?"), look=looks.get(head[-1:], "")) if isinstance(head, str) else head
        for head in heads
    )
    every = len(listed) if total is None else total
    return Block(kind, title, listed[:ROWS], note, tuple(columns), every, what, filters)


def facts(title: str, rows: Iterable[tuple[str, Value]]) -> Block:
    return Block("facts", title, tuple(cells(*row) for row in rows))


def plots(title: str, drawings: Iterable[Drawing], note: str = "") -> Block:
    return Block("plots", title, tuple((Cell("", drawing=drawing),) for drawing in drawings), note)


def text(title: str, lines: Iterable[str] = (), note: str = "", looks: Mapping[str, str] = {}) -> Block:
    """looks: of lines by their first character."""
    rows = tuple((Cell(cut(line), look=looks.get(line[:1], "")),) for line in lines)
    return Block("text", title, rows, note)


def left_out(shown: int, every: int, what: str) -> list[Block]:
    return [text(f"More {what}", note=f"{shown:,} of {every:,} {what} are shown")] if shown < every else []
