"""Merging three versions of a table file, CSV or Parquet, by the values of a key column."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from dsv.diff.arrow_values import comparable, is_nested
from dsv.errors import Unsupported
from dsv.merge.rows import Row, merge_rows

MAX_TABLE = 64 << 20  # bytes of one version
MAX_ROWS = 1_000_000

Written = TypeVar("Written", str, bool)

_BOM = "\ufeff"
_DELIMITERS = {b"csv": ",", b"tsv": "\t"}


def is_table(path: bytes) -> bool:
    """Whether the path's name says that it is a table which can be merged."""
    return _extension(path) in (*_DELIMITERS, b"parquet")


def merge_tables(path: bytes, key: str, base: bytes, ours: bytes, theirs: bytes) -> bytes | str:
    """The table with the rows of both sides; why it can't be merged, if it can't.

    Raises `Unsupported` if what reads Parquet is not installed.
    """
    delimiter = _DELIMITERS.get(_extension(path))
    if delimiter is None:
        return _merge_parquet(key, base, ours, theirs)
    return _merge_csv(delimiter, key, base, ours, theirs)


def _extension(path: bytes) -> bytes:
    stem, _, extension = path.rpartition(b"/")[2].rpartition(b".")
    return extension.lower() if stem else b""


class _Csv(NamedTuple):
    """A CSV file. texts: how each row is written in it, without its end. line_end: what ends a row. bom: what stands
    before the header. ends: whether the last row has an end too.
    """

    columns: list[str]
    rows: list[Row]
    header: str
    texts: dict[Row, str]
    line_end: str
    bom: str
    ends: bool


def _merge_csv(delimiter: str, key: str, *versions: bytes) -> bytes | str:
    tables: list[_Csv] = []
    for version in versions:
        table = _read_csv(delimiter, version)
        if isinstance(table, str):
            return table
        tables.append(table)
    base, ours, theirs = tables
    fault = _column_fault(key, [table.columns for table in tables])
    if fault is not None:
        return fault
    rows = merge_rows(ours.columns, key, base.rows, ours.rows, theirs.rows)
    if isinstance(rows, str):
        return rows
    lines = [_changed(base.header, ours.header, theirs.header)]
    for row in rows:
        text = ours.texts.get(row) or theirs.texts.get(row)
        lines.append(_write_row(delimiter, row) if text is None else text)
    line_end = _changed(base.line_end, ours.line_end, theirs.line_end)
    bom, ends = _changed(base.bom, ours.bom, theirs.bom), _changed(base.ends, ours.ends, theirs.ends)
    return (bom + line_end.join(lines) + (line_end if ends else "")).encode()


def _changed(base: Written, ours: Written, theirs: Written) -> Written:
    """How the side that changed it writes it; ours if both did."""
    return theirs if ours == base else ours


def _column_fault(key: str, columns: list[list[str]]) -> str | None:
    if any(one != columns[0] for one in columns):
        return "its columns were changed"
    if key not in columns[0]:
        return f"it has no column {key}"
    if len(set(columns[0])) != len(columns[0]):
        return "it has two columns of one name"
    return None


def _read_csv(delimiter: str, data: bytes) -> _Csv | str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "it is not UTF-8"
    bom = _BOM if text.startswith(_BOM) else ""
    try:
        records = list(_records(delimiter, text[len(bom) :]))
    except csv.Error as error:
        return f"it is no table: {error}"
    if not records:
        return "it has no header"
    (header, written), *records = records
    line_end = _end(written) or "\n"
    if len(records) > MAX_ROWS:
        return f"it has more than {MAX_ROWS:,} rows"
    rows: list[Row] = []
    texts: dict[Row, str] = {}
    for number, (cells, as_written) in enumerate(records, 2):
        if len(cells) != len(header):
            return f"its row {number} has {len(cells)} cells, and its header {len(header)}"
        if _end(as_written) not in (line_end, ""):
            return f"its row {number} ends in another way than its header"
        rows.append(tuple(cells))
        texts[rows[-1]] = as_written.removesuffix(line_end)
    return _Csv(header, rows, written.removesuffix(line_end), texts, line_end, bom, text.endswith("\n"))


def _records(delimiter: str, text: str) -> Iterator[tuple[list[str], str]]:
    """The rows, each with how it is written: a quoted cell may hold ends of lines."""
    csv.field_size_limit(MAX_TABLE)
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in io.StringIO(text, newline="\n"):
            taken.append(line)
            yield line

    for row in csv.reader(lines(), delimiter=delimiter, strict=True):
        yield row, "".join(taken)
        taken.clear()


def _end(written: str) -> str:
    return written[len(written.rstrip("\r\n")) :]


def _write_row(delimiter: str, row: Row) -> str:
    """A cell that holds an end of a line is quoted: Python before 3.13 does so for what ends its rows alone."""
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter, lineterminator="\r\n").writerow(row)
    return written.getvalue().removesuffix("\r\n")


def _merge_parquet(key: str, *versions: bytes) -> bytes | str:
    parquet, pyarrow = _import_pyarrow()
    try:
        files = [parquet.ParquetFile(pyarrow.BufferReader(version)) for version in versions]
        if any(file.metadata.num_rows > MAX_ROWS for file in files):
            return f"it has more than {MAX_ROWS:,} rows"
        tables = [file.read() for file in files]
    except (pyarrow.ArrowException, OSError) as error:
        return f"it is no Parquet file: {str(error).splitlines()[0]}"
    base, ours, theirs = tables
    if not (ours.schema.equals(base.schema) and ours.schema.equals(theirs.schema)):
        return "its columns were changed"
    fault = _column_fault(key, [ours.column_names])
    if fault is not None:
        return fault
    rows = _merge_by_number(key, tables)
    if isinstance(rows, str):
        return rows
    written = io.BytesIO()
    try:
        every = pyarrow.concat_tables(tables)
        taken = [pyarrow.array(numbers, pyarrow.int64()) for numbers in rows]
        columns = [every.column(at).take(numbers) for at, numbers in enumerate(taken)]
        merged = pyarrow.table(columns, schema=ours.schema)
        parquet.write_table(merged, written, compression=_compression(files[1]))
    except pyarrow.ArrowException as error:
        return f"its columns can't be put together: {str(error).splitlines()[0]}"
    return written.getvalue()


class _Cell:
    """A value that is compared, and the number of a row that has it: what is written is taken from there."""

    __slots__ = ("number", "value")

    def __init__(self, value: Any, number: int) -> None:
        self.value = value
        self.number = number

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Cell):
            return False
        return bool(self.value == other.value or (self.value != self.value and other.value != other.value))

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return str(self.value)

    __repr__ = __str__


def _merge_by_number(key: str, tables: Sequence[Any]) -> list[list[int]] | str:
    """For each column the rows, counted over all three tables, that its cells are taken from."""
    names: list[str] = tables[0].column_names
    versions: list[list[Row]] = []
    start = 0
    for table in tables:
        columns = [_comparable(table.column(name)) for name in names]
        numbered = range(start, start + table.num_rows)
        start += table.num_rows
        cells = [list(map(_Cell, column, numbered)) for column in columns]
        if any(cell.value is None or cell.value != cell.value for cell in cells[names.index(key)]):
            return f"column {key} has a row without a value"
        if is_nested(table.column(key)):
            return f"column {key} has values that are no keys"
        versions.append(list(zip(*cells, strict=True)))
    merged = merge_rows(names, key, *versions)
    if isinstance(merged, str):
        return merged
    by_column = zip(*merged, strict=True) if merged else [[] for _ in names]
    return [[cell.number for cell in column if isinstance(cell, _Cell)] for column in by_column]


def _comparable(column: Any) -> list[Any]:
    values = comparable(column)
    return list(map(repr, values)) if is_nested(column) else values  # so that not a number in a list is equal


def _compression(file: Any) -> str:
    """That of the file, by its first column."""
    if not file.metadata.num_row_groups or not file.metadata.num_columns:
        return "snappy"
    name: str = file.metadata.row_group(0).column(0).compression
    return "none" if name == "UNCOMPRESSED" else name.lower()


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise Unsupported(
            "to merge Parquet files by their rows, dsv needs pyarrow, which is not installed",
            subject="pyarrow",
            hint="pip install pyarrow",
        ) from error
    return pyarrow.parquet, pyarrow
