"""Merging three versions of a table file, CSV or Parquet, by the values of a key column."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from dsv.diff.tables import (
    RepeatedKey,
    TooLarge,
    is_nested,
    join,
    number,
    parquet_schema,
    read_parquet,
    require_pyarrow,
    shown,
    table_format,
)
from dsv.merge.paths import Choice, MergedContent, Places

MAX_TABLE = 64 << 20  # bytes of one version
MAX_ROWS = 1_000_000

Written = TypeVar("Written", str, bool)

_BOM = "\ufeff"
_DELIMITERS = {"csv": ",", "tsv": "\t"}


def is_table(path: bytes) -> bool:
    """Return whether the path's name says that it is a table which can be merged."""
    return table_format(path) in (*_DELIMITERS, "parquet")


def merge_tables(
    path: bytes, key: str, base: bytes, ours: bytes, theirs: bytes, choice: Choice | None = None
) -> MergedContent | str:
    """Return the table with the rows of both sides, or the reason why it can't be merged.

    choice: whose rows and cells are taken where both sides changed them; None: that can't be merged.
    Raises `Unsupported` if what reads Parquet is not installed.
    """
    delimiter = _DELIMITERS.get(table_format(path) or "")
    if delimiter is None:
        return _merge_parquet(key, choice, base, ours, theirs)
    return _merge_csv(delimiter, key, choice, base, ours, theirs)


class RowMerge:
    """Merges the rows of three versions: base, ours and theirs.

    `versions` has the columns `names` of each, with values that are equal if the cells are. The column `key` identifies
    rows. `show` returns the key of a row of a version for people.
    """

    def __init__(
        self,
        names: Sequence[str],
        key: str,
        versions: Sequence[Sequence[Sequence[Hashable]]],
        choice: Choice | None = None,
        show: Callable[[int, int], object] | None = None,
    ) -> None:
        self._names, self._key = names, key
        self._at = names.index(key)
        self._versions = versions
        self._choice = choice
        self._show = show or (lambda version, row: versions[version][self._at][row])
        self._starts = [0]
        for columns in versions:
            self._starts.append(self._starts[-1] + len(columns[self._at]))
        self.taken, self.settled = Places(), Places()

    def rows(self) -> list[int | tuple[int, ...]] | str:
        """Return the rows of the result in the order of ours, or the reason why there is none.

        Rows are counted over all versions, base first. A row is the number of one that is taken as it is, or for each
        column the number of the row that its cell is taken from. A row that is new in theirs comes behind the row that
        it stands behind there. A row that both sides changed has the changes of both, if they are to other columns.
        """
        keys = [columns[self._at] for columns in self._versions]
        try:
            joined = join(*keys)
        except RepeatedKey as error:
            return f"column {self._key} has {self._show(error.version, error.row)} twice"
        merged: dict[Hashable, int | tuple[int, ...] | None] = {}
        for value, places in joined.items():
            row = self._row(places)
            if isinstance(row, str):
                return f"the row with {self._key} {self._named(places)} {row}"
            merged[value] = row
        return [row for value in _order(joined, keys[1], keys[2]) if (row := merged[value]) is not None]

    def _named(self, places: tuple[int, ...]) -> object:
        version = next(version for version, row in enumerate(places) if row >= 0)
        return self._show(version, places[version])

    def _row(self, places: tuple[int, ...]) -> int | tuple[int, ...] | str | None:
        was, mine, other = (
            None if row < 0 else [column[row] for column in columns]
            for columns, row in zip(self._versions, places, strict=True)
        )
        ours, theirs = (
            None if row < 0 else start + row for start, row in zip(self._starts[1:], places[1:], strict=False)
        )
        if mine == other or other == was:
            return ours
        if mine == was:
            self.taken.note(f"row {self._key}={self._named(places)}")
            return theirs
        wins = theirs if self._choice is Choice.THEIRS else ours
        if was is None or ours is None or theirs is None or mine is None or other is None:
            if self._choice is None:
                return (
                    "was added by both" if was is None else "was removed by one side and changed by the other"
                )
            self.settled.note(f"row {self._key}={self._named(places)}")
            return wins
        assert wins is not None
        cells: list[int] = []
        clash = None
        for name, before, one, another in zip(self._names, was, mine, other, strict=True):
            if one not in (another, before) and another != before:
                clash = name
                cells.append(wins)
            else:
                cells.append(theirs if one == before else ours)
        if clash is not None and self._choice is None:
            return f"was changed by both in column {clash}"
        (self.taken if clash is None else self.settled).note(f"row {self._key}={self._named(places)}")
        return tuple(cells)


def _order(
    joined: Mapping[Hashable, tuple[int, ...]], mine: Sequence[Hashable], other: Sequence[Hashable]
) -> list[Hashable]:
    """Return all keys of both: those of mine in its order, each other one behind the one that it stands behind."""
    found: list[Hashable] = []
    behind: dict[Hashable, list[Hashable]] = {}
    new = found
    for value in other:
        if joined[value][1] < 0:
            new.append(value)
        else:
            new = behind.setdefault(value, [])
    for value in mine:
        found.append(value)
        found += behind.get(value, ())
    return found


class _Csv(NamedTuple):
    """A CSV file."""

    columns: list[str]
    cells: list[list[str]]
    """The cells of each column."""
    header: str
    texts: list[str]
    """The text of each row, without its line end."""
    line_end: str
    bom: str
    """The byte order mark before the header."""
    ends: bool
    """The last row has a line end too."""


def _merge_csv(delimiter: str, key: str, choice: Choice | None, *versions: bytes) -> MergedContent | str:
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
    merge = RowMerge(ours.columns, key, [list(map(list, table.cells)) for table in tables], choice)
    rows = merge.rows()
    if isinstance(rows, str):
        return rows
    every = [*base.texts, *ours.texts, *theirs.texts]
    columns = [
        [*one, *two, *three] for one, two, three in zip(*(table.cells for table in tables), strict=True)
    ]
    lines = [_changed(base.header, ours.header, theirs.header)]
    for row in rows:
        if isinstance(row, int):
            lines.append(every[row])
        else:
            lines.append(_write_row(delimiter, [column[at] for column, at in zip(columns, row, strict=True)]))
    line_end = _changed(base.line_end, ours.line_end, theirs.line_end)
    bom, ends = _changed(base.bom, ours.bom, theirs.bom), _changed(base.ends, ours.ends, theirs.ends)
    data = (bom + line_end.join(lines) + (line_end if ends else "")).encode()
    return MergedContent(data, merge.taken, merge.settled)


def _changed(base: Written, ours: Written, theirs: Written) -> Written:
    """Return the value of the side that changed it; ours if both did."""
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
    columns: list[list[str]] = [[] for _ in header]
    texts: list[str] = []
    for line, (cells, as_written) in enumerate(records, 2):
        if len(cells) != len(header):
            return f"its row {line} has {len(cells)} cells, and its header {len(header)}"
        if _end(as_written) not in (line_end, ""):
            return f"its row {line} ends in another way than its header"
        for column, cell in zip(columns, cells, strict=True):
            column.append(cell)
        texts.append(as_written.removesuffix(line_end))
    return _Csv(header, columns, written.removesuffix(line_end), texts, line_end, bom, text.endswith("\n"))


def _records(delimiter: str, text: str) -> Iterator[tuple[list[str], str]]:
    """Return the rows, each with how it is written: a quoted cell may hold ends of lines."""
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


def _write_row(delimiter: str, row: Sequence[str]) -> str:
    """Quote cells with an end of a line: Python before 3.13 does so only for what ends its rows."""
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter, lineterminator="\r\n").writerow(row)
    return written.getvalue().removesuffix("\r\n")


def _merge_parquet(key: str, choice: Choice | None, *versions: bytes) -> MergedContent | str:
    require_pyarrow("to merge Parquet files by their rows, dsv needs pyarrow")
    import pyarrow
    from pyarrow import parquet

    try:
        if any(parquet.read_metadata(io.BytesIO(version)).num_rows > MAX_ROWS for version in versions):
            return f"it has more than {MAX_ROWS:,} rows"
        schemas = [parquet_schema(version) for version in versions]
        if not (schemas[1].equals(schemas[0]) and schemas[1].equals(schemas[2])):
            return "its columns were changed"
        fault = _column_fault(key, [schemas[1].names])
        if fault is not None:
            return fault
        read = [read_parquet(version) for version in versions]
    except TooLarge as error:
        return str(error)
    except (pyarrow.ArrowException, OSError) as error:
        return f"it is no Parquet file: {str(error).splitlines()[0]}"
    tables = [table for table, _ in read]
    if any(_has_gap(table.column(key)) for table in tables):
        return f"column {key} has a row without a value"
    if is_nested(tables[0].column(key)):
        return f"column {key} has values that are no keys"
    names = schemas[1].names
    numbers = [number(*(table.column(name) for table in tables)) for name in names]
    columns = [[one[version] for one in numbers] for version in range(3)]
    merge = RowMerge(
        names, key, columns, choice, lambda version, row: shown(tables[version].column(key), row)
    )
    rows = merge.rows()
    if isinstance(rows, str):
        return rows
    metadata = _merge_metadata(merge, choice, *(schema.metadata or {} for schema in schemas))
    if isinstance(metadata, str):
        return metadata
    try:
        every = pyarrow.concat_tables(tables).unify_dictionaries()
        cells = [
            column.take(
                pyarrow.array([row if isinstance(row, int) else row[at] for row in rows], pyarrow.int64())
            )
            for at, column in enumerate(every.columns)
        ]
        data = _write_parquet(cells, schemas[1].with_metadata(metadata or None), _compression(read[1][1]))
    except pyarrow.ArrowException as error:
        return f"its columns can't be put together: {str(error).splitlines()[0]}"
    return MergedContent(data, merge.taken, merge.settled)


def _has_gap(column: Any) -> bool:
    import pyarrow
    from pyarrow import compute

    floating = pyarrow.types.is_floating(column.type)
    return bool(column.null_count or (floating and compute.any(compute.is_nan(column)).as_py()))


def _merge_metadata(
    merge: RowMerge, choice: Choice | None, base: Values, ours: Values, theirs: Values
) -> Values | str:
    merged: Values = {}
    for name in {**ours, **theirs}:
        was, one, other = (values.get(name) for values in (base, ours, theirs))
        value = other if one == was else one
        if one not in (was, other) and other != was:
            shown_name = name.decode("utf-8", "backslashreplace")
            if choice is None:
                return f"both changed its metadata {shown_name}"
            merge.settled.note(f"metadata {shown_name}")
            value = other if choice is Choice.THEIRS else one
        elif one != other and one == was:
            merge.taken.note(f"metadata {name.decode('utf-8', 'backslashreplace')}")
        if value is not None:
            merged[name] = value
    return merged


Values = dict[bytes, bytes]


def _write_parquet(columns: Sequence[Any], schema: Any, compression: str) -> bytes:
    """Return a file that declares this schema, although texts of the columns are in dictionaries."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table(list(columns), names=schema.names)
    written = io.BytesIO()
    if table.schema.equals(schema):
        parquet.write_table(pyarrow.table(list(columns), schema=schema), written, compression=compression)
        return written.getvalue()
    declared = base64.b64encode(schema.serialize().to_pybytes())
    fields = [
        field.with_type(column.type).with_metadata(field.metadata)
        for field, column in zip(schema, table.columns, strict=True)
    ]
    made = pyarrow.schema(fields)
    with parquet.ParquetWriter(written, made, store_schema=False, compression=compression) as writer:
        writer.write_table(pyarrow.table(list(columns), schema=made))
        writer.add_key_value_metadata({**(schema.metadata or {}), b"ARROW:schema": declared})
    return written.getvalue()


def _compression(file: Any) -> str:
    if not file.metadata.num_row_groups or not file.metadata.num_columns:
        return "snappy"
    name: str = file.metadata.row_group(0).column(0).compression
    return "none" if name == "UNCOMPRESSED" else name.lower()
