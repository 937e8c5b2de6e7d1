"""Decodes images and tables in a process with little memory and time, which can write no file. What goes wrong in it
ends it alone: the next order starts another one."""

from __future__ import annotations

import io
import math
import resource
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final

import msgspec

from dsv.diff.lines import decode_text, diff_lines, split_lines
from dsv.diff.tables import diff_tables, shown, table_format
from dsv.errors import UsageError
from dsv.files.process import read_order, start_program
from dsv.site import blocks as show
from dsv.site import drawings
from dsv.site.blocks import Block, Cell, cells, cut, name
from dsv.values.units import format_bytes

SIDE: Final = 128
"""Pixels of a thumbnail."""
MOST_GROUP: Final = 64 << 20
"""Bytes of a row group of Parquet that is read."""
_MEMORY: Final = 2 << 30
"""Bytes of addresses: the libraries take most of them, and no memory for it."""
_SECONDS, _MOST_ANSWER = 20, 16 << 20
_MOST_PIXELS, _COLUMNS, _ROWS, _COUNTED, _BINS, _LINES = 40_000_000, 40, 10, 100_000, 12, 60
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_LOOKS = {"+": "added", "-": "removed", "~": "changed", "@": "pale"}


class Order(msgspec.Struct):
    """kind: `image`, `table` or `text`. data: of a file, or of two versions to be compared. size: of the file, of which
    `data` may be the first lines."""

    kind: str
    path: bytes
    data: list[bytes]
    size: int = 0


class Answer(msgspec.Struct):
    blocks: list[Block] = []
    image: bytes = b""
    error: str = ""


_ORDER, _ANSWER = msgspec.msgpack.Decoder(Order), msgspec.msgpack.Decoder(Answer)


class Decoder(AbstractContextManager["Decoder"]):
    """The process, from the first order on."""

    _process: subprocess.Popen[bytes] | None = None
    _pipe: Connection

    def ask(self, order: Order) -> Answer:
        if self._process is None:
            self._pipe, theirs = Pipe()
            with theirs:
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                there = theirs.fileno()
                self._process = start_program(
                    "dsv.site.decoding", (_MEMORY, there), pass_fds=[there], **quiet
                )
        with suppress(OSError, EOFError, msgspec.DecodeError):
            self._pipe.send_bytes(msgspec.msgpack.encode(order))
            if self._pipe.poll(_SECONDS):
                return _ANSWER.decode(self._pipe.recv_bytes(_MOST_ANSWER))
        self.__exit__()
        return Answer(error="it takes too much memory or time")

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
            self._pipe.close()


def _thumbnail(order: Order) -> Answer:
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(*order.data), formats=_FORMATS) as image:
        wide, high = image.size
        if wide * high > _MOST_PIXELS:
            raise ValueError(f"it has {wide:,} × {high:,} pixels")
        image.draft("RGB", (2 * SIDE, 2 * SIDE))
        made: Any = ImageOps.exif_transpose(image)
        if made.mode[0] in "IF":  # one channel of 16 or 32 bits: from the darkest to the brightest
            low, top = made.getextrema()
            scale = 255 / ((top - low) or 1)
            made = made.convert("F").point(lambda value: value * scale - low * scale)
        made = made.convert("RGBA" if "transparency" in made.info or "A" in made.getbands() else "RGB")
        made.thumbnail((SIDE, SIDE))
        made = ImageOps.scale(made, max(1, SIDE // max(made.size)), Image.Resampling.NEAREST)
        out = io.BytesIO()
        made.save(out, "WEBP", quality=80, lossless=max(wide, high) <= SIDE)
    return Answer(image=out.getvalue())


def _text(order: Order) -> Answer:
    known = list(map(decode_text, order.data))
    texts = [text for text in known if text is not None]
    if len(texts) < len(known):
        raise ValueError("it is no text")
    lines = [*diff_lines(*map(split_lines, texts))] if texts[1:] else texts[0].splitlines()
    is_whole = len(order.data[0]) == order.size
    note = f"{len(lines[:_LINES]):,} of {len(lines):,} lines" if is_whole else ""
    title, looks = f"Text {name(order.path)}", _LOOKS if texts[1:] else {}
    return Answer([show.text(title, lines[:_LINES], note, looks)])


def _table(order: Order) -> Answer:
    return Answer([_difference(order.path, *order.data)] if order.data[1:] else _head(order, *order.data))


def _head(order: Order, data: bytes) -> list[Block]:
    import pyarrow
    from pyarrow import csv, parquet

    is_cut, is_large, path = len(data) < order.size, False, name(order.path)
    if table_format(order.path) == "parquet":
        file = parquet.ParquetFile(pyarrow.BufferReader(data))
        names, total = file.schema_arrow.names, file.metadata.num_rows
        groups = [*range(file.num_row_groups)][:1]
        is_large = any(file.metadata.row_group(at).total_byte_size > MOST_GROUP for at in groups)
        read = file.read_row_groups([] if is_large else groups, columns=names[:_COLUMNS])
    else:
        delimiter = "\t" if table_format(order.path) == "tsv" else ","
        options = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        nulls = csv.ConvertOptions(strings_can_be_null=True)
        read = csv.read_csv(pyarrow.BufferReader(data), parse_options=options, convert_options=nulls)
        names, total = read.schema.names, None if is_cut else read.num_rows
    read = read.slice(0, _COUNTED)
    columns = list(zip(read.schema, read.columns, strict=True))[:_COLUMNS]
    counted = [("–", "") if is_large else (column.null_count, _values(column)) for _, column in columns]
    about = [cells(of.name, str(of.type), *some) for (of, _), some in zip(columns, counted, strict=True)]
    rows = [cells(*(_cell(column[row]) for _, column in columns)) for row in range(min(_ROWS, len(read)))]
    note = f"Counted in {len(read):,}{'' if total is None else f' of {total:,}'} rows"
    note += f" (the first {format_bytes(len(data))} of {format_bytes(order.size)})" if is_cut else ""
    note = (
        f"Its first row group is not read: it has more than {format_bytes(MOST_GROUP)}" if is_large else note
    )
    heads, named = ("column", "kind", "missing>", "values"), cells(*(of.name for of, _ in columns))
    return [
        show.table(f"Table {path}", heads, about, "columns", total=len(names), note=note),
        show.table(f"First rows of {path}", named, rows, "rows", total=total or len(read)),
    ]


def _cell(cell: Any) -> str:
    value = shown(cell)
    return "" if value is None else cut(f"{value:.6g}" if isinstance(value, float) else str(value))


def _values(column: Any) -> Cell:
    """Return the range of a column, or the values if they are few, with a histogram."""
    import pyarrow
    from pyarrow import compute, types

    kind, is_whole, about, bars = column.type, types.is_integer(column.type), "", list[int]()
    try:
        if is_whole or types.is_floating(kind) or types.is_temporal(kind):
            ends = compute.min_max(column)
            about = f"{_cell(ends['min'])} to {_cell(ends['max'])}" if ends["min"].is_valid else ""
            plain = column.cast(f"int{kind.bit_width}") if types.is_temporal(kind) else column
            values = [value for value in plain.drop_null().to_pylist() if math.isfinite(value)]
            low, span = min(values), max(values) - min(values)
            bins = min(_BINS, span + 1) if is_whole else _BINS  # a bar for each value, if they are few
            unit = bins / (span + is_whole or 1)
            counts = Counter(min(int((value - low) * unit), bins - 1) for value in values)
            bars = [counts[at] for at in range(bins)]
        else:
            rows = compute.value_counts(column.drop_null())
            about = f"{len(rows):,} different values"
            if 0 < len(rows) <= _BINS:
                pairs = sorted(((row["counts"].as_py(), _cell(row["values"])) for row in rows), reverse=True)
                about, bars = ", ".join(f"{value} {n:,}" for n, value in pairs), [n for n, _ in pairs]
    except (pyarrow.ArrowException, ValueError, TypeError, OverflowError):
        pass  # no value, or a kind without an order
    return Cell(cut(about, 120), drawing=drawings.bars(bars) if bars else None)


def _difference(path: bytes, before: bytes, after: bytes) -> Block:
    """Rows are told apart by the first column, if its values name them; else equal rows are the same row."""
    table = diff_tables(path, before, after)
    for row in table.rows[:1]:
        with suppress(UsageError):
            table = diff_tables(path, before, after, [*(row.before or row.after or {})][:1])
    total = table.rows_added + table.rows_removed + table.rows_changed
    note = f"{_ROWS} of {total:,} rows" if total > _ROWS else ""
    lines = (line.replace("\n", " ") for line in table.lines(_ROWS))
    return show.text(f"Table {name(path)}", lines, note, _LOOKS)


_MAKERS: Final[dict[str, Callable[[Order], Answer]]] = {"image": _thumbnail, "table": _table, "text": _text}


def _answered(order: Order) -> Answer:
    try:
        return _MAKERS[order.kind](order)
    except MemoryError:
        return Answer(error="it takes too much memory")
    except Exception as error:  # noqa: BLE001 (a decoder may raise anything)
        reason = str(error).partition("\n")[0].partition(" <_io")[0]
        return Answer(error=cut(reason or type(error).__name__, 120))


def main() -> None:
    memory, pipe = read_order()
    for limit, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (value, value))
    with Connection(pipe) as orders, suppress(EOFError):
        while True:
            order = _ORDER.decode(orders.recv_bytes())
            signal.alarm(_SECONDS)  # also if nobody waits any more
            orders.send_bytes(msgspec.msgpack.encode(_answered(order)))
            signal.alarm(0)


if __name__ == "__main__":
    main()
