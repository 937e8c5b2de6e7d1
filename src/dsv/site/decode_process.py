"""The process that decodes what datasets hold: images and tables.

Its memory and time are limited, it can write no file, and what goes wrong in it ends it alone.
"""

from __future__ import annotations

import io
import resource
import struct
import sys
from typing import Any, Final

import msgspec

from dsv.diff.tables import TableDiff, diff_tables, shown, table_format
from dsv.errors import UsageError
from dsv.files.process import read_order
from dsv.site.blocks import cut

READY: Final = b"r"
SIDE: Final = 128
"""Pixels of a thumbnail."""
MOST_GROUP: Final = 64 << 20
"""Bytes of a row group of Parquet that is read."""
_MOST_PIXELS, _COLUMNS, _ROWS, _BINS = 40_000_000, 40, 10, 12
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


class Order(msgspec.Struct):
    """what: `thumbnail`, `head` or `difference`. data: of the file, with `cut_off` its beginning; after: of its later
    version."""

    what: str
    path: bytes
    data: bytes
    after: bytes = b""
    cut_off: bool = False


class Thumbnail(msgspec.Struct):
    data: bytes
    width: int
    height: int


class ColumnHead(msgspec.Struct):
    """about: the range of the values, or how many there are."""

    name: str
    kind: str
    missing: int
    about: str = ""
    bars: list[int] = []


class TableHead(msgspec.Struct):
    """read: the rows of which the columns were counted. total: all rows, if that is known. wide: all columns."""

    columns: list[ColumnHead]
    rows: list[list[str]]
    read: int
    total: int | None
    wide: int


class Answer(msgspec.Struct):
    thumbnail: Thumbnail | None = None
    head: TableHead | None = None
    difference: TableDiff | None = None
    error: str = ""


def thumbnail(data: bytes) -> Thumbnail:
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        wide, high = image.size
        if wide * high > _MOST_PIXELS:
            raise ValueError(f"it has {wide:,} × {high:,} pixels")
        image.draft("RGB", (2 * SIDE, 2 * SIDE))
        made: Any = ImageOps.exif_transpose(image)
        if made.mode.startswith(
            ("I", "F")
        ):  # one channel of 16 or 32 bits: from the darkest to the brightest
            low, top = made.getextrema()
            made = made.convert("F").point(
                lambda value: value * (255 / ((top - low) or 1)) - low * 255 / ((top - low) or 1)
            )
        made = made.convert("RGBA" if "transparency" in made.info or "A" in made.getbands() else "RGB")
        made.thumbnail((SIDE, SIDE))
        out = io.BytesIO()
        made.save(out, "WEBP", quality=80, lossless=max(wide, high) <= SIDE)
    return Thumbnail(out.getvalue(), wide, high)


def _csv_options(path: bytes) -> Any:
    from pyarrow import csv

    return csv.ParseOptions(delimiter="\t" if table_format(path) == "tsv" else ",", newlines_in_values=True)


def table_head(order: Order) -> TableHead:
    import pyarrow
    from pyarrow import csv, parquet

    if table_format(order.path) == "parquet":
        file = parquet.ParquetFile(pyarrow.BufferReader(order.data))
        names, total = file.schema_arrow.names, file.metadata.num_rows
        small = file.num_row_groups and file.metadata.row_group(0).total_byte_size <= MOST_GROUP
        table = file.read_row_group(0, columns=names[:_COLUMNS]) if small else file.schema_arrow.empty_table()
    else:
        data = order.data[: order.data.rfind(b"\n") + 1] if order.cut_off else order.data
        nulls = csv.ConvertOptions(strings_can_be_null=True)
        table = csv.read_csv(
            pyarrow.BufferReader(data), parse_options=_csv_options(order.path), convert_options=nulls
        )
        names, total = table.schema.names, None if order.cut_off else table.num_rows
    chosen = range(min(_COLUMNS, table.num_columns))
    columns = [_column(table.schema.field(at), table.column(at)) for at in chosen]
    rows = [[_cell(table.column(at)[row]) for at in chosen] for row in range(min(_ROWS, table.num_rows))]
    return TableHead(columns, rows, table.num_rows, total, len(names))


def _cell(cell: Any) -> str:
    value = shown(cell)
    return "" if value is None else cut(f"{value:.6g}" if isinstance(value, float) else str(value))


def _column(field: Any, column: Any) -> ColumnHead:
    import pyarrow
    from pyarrow import compute, types

    head = ColumnHead(cut(field.name), cut(str(field.type), 60), column.null_count)
    if len(column) == column.null_count:
        return head
    try:
        if types.is_integer(field.type) or types.is_floating(field.type) or types.is_temporal(field.type):
            ends = compute.min_max(column)
            head.about = f"{_cell(ends['min'])} to {_cell(ends['max'])}"
            exact = (
                column if types.is_integer(field.type) or types.is_floating(field.type) else _as_whole(column)
            )
            values = exact.cast("float64", safe=False).drop_null()
            values = values.filter(compute.is_finite(values))
            low, high = compute.min(values).as_py(), compute.max(values).as_py()
            few = types.is_integer(field.type) and high - low < _BINS
            count, span = (int(high - low) + 1, high - low + 1) if few else (_BINS, (high - low) or 1.0)
            scaled = compute.floor(compute.multiply(compute.subtract(values, low), count / span))
            rows = compute.value_counts(compute.min_element_wise(scaled, count - 1)).to_pylist()
            counted = {int(row["values"]): row["counts"] for row in rows}
            head.bars = [counted.get(at, 0) for at in range(count)]
        else:
            counts = compute.value_counts(column.drop_null())
            head.about = f"{len(counts):,} different values"
            if len(counts) <= _BINS:
                pairs = sorted(
                    ((row["counts"].as_py(), _cell(row["values"])) for row in counts), reverse=True
                )
                head.about = ", ".join(f"{value} {count:,}" for count, value in pairs)
                head.bars = [count for count, _ in pairs]
    except (pyarrow.ArrowException, ValueError, TypeError, OverflowError):
        pass  # a kind without an order
    return head


def _as_whole(column: Any) -> Any:
    """Return times as whole numbers."""
    return column.cast("int32" if column.type.bit_width == 32 else "int64")


def difference(order: Order) -> TableDiff:
    """Rows are told apart by the first column, if its values name them; else equal rows are the same row."""
    import pyarrow
    from pyarrow import csv, parquet

    opened, names = pyarrow.BufferReader(order.after), list[str]()
    if table_format(order.path) == "parquet":
        names = parquet.read_schema(opened).names
    elif table_format(order.path) in ("csv", "tsv"):
        names = csv.open_csv(opened, parse_options=_csv_options(order.path)).schema.names
    try:
        made = diff_tables(order.path, order.data, order.after, names[:1])
    except UsageError:
        made = diff_tables(order.path, order.data, order.after)
    made.rows = made.rows[:_ROWS]
    return made


def answered(order: Order) -> Answer:
    try:
        if order.what == "thumbnail":
            return Answer(thumbnail=thumbnail(order.data))
        return (
            Answer(head=table_head(order)) if order.what == "head" else Answer(difference=difference(order))
        )
    except MemoryError:
        return Answer(error="it takes too much memory")
    except Exception as error:  # noqa: BLE001 (a decoder may raise anything)
        return Answer(error=cut(str(error).partition("\n")[0] or type(error).__name__, 120))


def main() -> None:
    memory, seconds = read_order()
    for limit, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (value, value))
    decoder, given, back = msgspec.msgpack.Decoder(Order), sys.stdin.buffer, sys.stdout.buffer
    back.write(READY)  # what came before this was read together with the order
    back.flush()
    while length := given.read(8):
        used = resource.getrusage(resource.RUSAGE_SELF)
        until = int(used.ru_utime + used.ru_stime + seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
        made = msgspec.msgpack.encode(
            answered(decoder.decode(given.read(*struct.unpack(">Q", length)))), enc_hook=str
        )
        back.write(struct.pack(">Q", len(made)) + made)
        back.flush()


if __name__ == "__main__":
    main()
