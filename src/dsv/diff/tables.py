"""Reading tables, joining their rows by key, and how two tables differ. pyarrow is imported only when it is needed.

A table is read with the dictionaries that its file has, and its cells are compared by numbers, which are the same for
equal values. So a text that a million rows have is held once.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

from blake3 import blake3

from dsv.errors import Unsupported, UsageError
from dsv.values.paths import show
from dsv.values.units import format_bytes

LARGEST: Final = 256 << 20
"""Bytes of a file that is read as a table."""
MOST_DECODED = 1_000_000_000
"""Bytes that a table may take in memory, with each text of a dictionary counted once."""
MOST_ROWS: Final = 100_000
"""Rows that are told one by one; all are counted."""
_FORMATS = {
    b"csv": "csv", b"tsv": "tsv", b"parquet": "parquet", b"pq": "parquet",
    b"arrow": "arrow", b"ipc": "arrow", b"feather": "arrow",
}  # fmt: skip
Cells = tuple[tuple[str, Any], ...]
"""Names of columns, each with a value."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row that differs."""

    change: str
    """`added`, `removed` or `changed`."""
    key: Cells = ()
    """The cells that identify the row."""
    before: Cells = ()
    after: Cells = ()
    cells: tuple[tuple[str, Any, Any], ...] = ()
    """Name, old and new value of each changed cell."""

    def document(self) -> dict[str, object]:
        """For JSON."""
        changed = {name: [_plain(old), _plain(new)] for name, old, new in self.cells}
        return {
            "change": self.change,
            "key": _named(self.key),
            "before": _named(self.before) or None,
            "after": _named(self.after) or None,
            "cells": changed or None,
        }


@dataclass(slots=True)
class TableDiff:
    """The differences of two versions of a table. Columns have their types."""

    columns_added: list[tuple[str, str]] = field(default_factory=list)
    columns_removed: list[tuple[str, str]] = field(default_factory=list)
    columns_retyped: list[tuple[str, str, str]] = field(default_factory=list)
    rows_added: int = 0
    rows_removed: int = 0
    rows_changed: int = 0
    rows: list[RowChange] = field(default_factory=list)
    """At most `MOST_ROWS` of the rows that differ."""

    def note(self, row: RowChange, count: int = 1) -> None:
        name = f"rows_{row.change}"
        setattr(self, name, getattr(self, name) + count)
        self.rows += [row] * min(count, MOST_ROWS - len(self.rows))

    def document(self) -> dict[str, object]:
        """For JSON."""
        return {
            "columns_added": dict(self.columns_added),
            "columns_removed": dict(self.columns_removed),
            "columns_retyped": {name: [old, new] for name, old, new in self.columns_retyped},
            "rows_added": self.rows_added,
            "rows_removed": self.rows_removed,
            "rows_changed": self.rows_changed,
            "rows": [row.document() for row in self.rows],
        }


def is_table(path: bytes) -> bool:
    """Return whether the name is that of a table that can be compared."""
    return table_format(path) is not None


def table_format(path: bytes) -> str | None:
    """Return `csv`, `tsv`, `parquet` or `arrow`, as the name says; None for another."""
    stem, _, extension = path.rpartition(b"/")[2].lower().rpartition(b".")
    return _FORMATS.get(extension) if stem else None


def require_pyarrow(reason: str = "tables are read by pyarrow") -> None:
    """Raise `Unsupported` if pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        raise Unsupported(f"{reason}, which is not installed", subject="pyarrow", hint="pip install pyarrow")


def diff_tables(path: bytes, before: bytes | None, after: bytes | None, key: Sequence[str] = ()) -> TableDiff:
    """Compare two versions of a file that `is_table` knows. Rows are named by the key columns.

    Without a key, equal rows are the same row, whatever their order, and none is changed. Columns that one side alone
    has are told and not compared. Raises `UsageError` for a key that a side does not have or that names two rows, and
    `Unsupported` for what is no table.
    """
    old, new = _read(path, before or b""), _read(path, after or b"")
    made = TableDiff()
    types, now = old.types, new.types
    made.columns_added = [(name, kind) for name, kind in now.items() if name not in types]
    made.columns_removed = [(name, kind) for name, kind in types.items() if name not in now]
    common = [name for name in types if name in now]
    made.columns_retyped = [(name, types[name], now[name]) for name in common if types[name] != now[name]]
    for name, was, kind in made.columns_retyped:
        if {was, kind} != {"int64", "double"}:
            old.as_written.add(name)
            new.as_written.add(name)
    if key:
        _compare_by_key(path, old, new, tuple(dict.fromkeys(key)), common, made)
    else:
        _compare_whole_rows(old, new, common, made)
    return made


@dataclass(slots=True)
class _Table:
    """One version of a file."""

    typed: Any
    """The columns to show."""
    exact: Any
    """The columns to compare. For a CSV file the cells as written, since one cell can change the type that is detected
    for its whole column."""
    types: dict[str, str]
    """The types that the file declares."""
    as_written: set[str] = field(default_factory=set)
    """Columns to show from `exact`."""

    def cells(self, at: int, names: Sequence[str] | None = None) -> Cells:
        return tuple((name, self.cell(name, at)) for name in names or self.typed.schema.names)

    def cell(self, name: str, at: int, *, as_written: bool = False) -> Any:
        value = shown(self.typed.column(name), at)
        if self.exact is self.typed:
            return value
        written = self.exact.column(name)[at].as_py().decode("utf-8", "backslashreplace")
        is_code = isinstance(value, int) and not isinstance(value, bool) and str(value) != written  # as 007
        return written if as_written or is_code or name in self.as_written else value


def _compare_whole_rows(old: _Table, new: _Table, common: Sequence[str], made: TableDiff) -> None:
    if not common:
        return
    columns = [number(old.exact.column(name), new.exact.column(name)) for name in common]
    left, right = (_grouped(zip(*(column[side] for column in columns), strict=True)) for side in (0, 1))
    for row, numbers in left.items():
        if (count := len(numbers) - len(right.get(row, ()))) > 0:
            made.note(RowChange("removed", before=old.cells(numbers[0], common)), count)
    for row, numbers in right.items():
        if (count := len(numbers) - len(left.get(row, ()))) > 0:
            made.note(RowChange("added", after=new.cells(numbers[0], common)), count)


def _grouped(rows: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
    found: dict[tuple[int, ...], list[int]] = {}
    for at, row in enumerate(rows):
        found.setdefault(row, []).append(at)
    return found


def _compare_by_key(
    path: bytes, old: _Table, new: _Table, key: tuple[str, ...], common: Sequence[str], made: TableDiff
) -> None:
    tables = [table for table in (old, new) if _has_key(path, table, key)]
    numbers = [number(*(table.exact.column(name) for table in tables)) for name in key]
    keys = [list(zip(*(column[side] for column in numbers), strict=True)) for side in range(len(tables))]
    try:
        joined = list(
            join(*(keys[tables.index(one)] if one in tables else () for one in (old, new))).values()
        )
    except RepeatedKey as error:
        cells = (old, new)[error.version].cells(error.row, key)
        raise UsageError(
            f"the key names two rows of {show(path)}: {', '.join(f'{name}={value}' for name, value in cells)}",
            subject=",".join(key),
            hint="give --key several times for columns that name a row together",
        ) from None
    changed: dict[int, list[tuple[str, Any, Any]]] = {}
    for name in common:
        if name not in key:
            mine, theirs = number(old.exact.column(name), new.exact.column(name))
            for before, after in joined:
                if before >= 0 and after >= 0 and mine[before] != theirs[after]:
                    changed.setdefault(before, []).append((name, *_both(old, new, name, before, after)))
    for before, after in joined:
        if after < 0:
            made.note(RowChange("removed", old.cells(before, key), before=old.cells(before)))
        elif before in changed:
            made.note(RowChange("changed", old.cells(before, key), cells=tuple(changed[before])))
    for after in sorted(after for before, after in joined if before < 0):
        made.note(RowChange("added", new.cells(after, key), after=new.cells(after)))


def _both(old: _Table, new: _Table, name: str, before: int, after: int) -> tuple[Any, Any]:
    """Return a cell that differs; as it is written if that is all that differs, such as 1.5 and 1.50."""
    one, other = old.cell(name, before), new.cell(name, after)
    if str(one) != str(other):
        return one, other
    return old.cell(name, before, as_written=True), new.cell(name, after, as_written=True)


def _has_key(path: bytes, table: _Table, key: tuple[str, ...]) -> bool:
    """False for a version that is empty. Raises `UsageError` for one that has other columns."""
    missing = [name for name in key if name not in table.types]
    if missing and table.types:
        raise UsageError(
            f"{show(path)} has no column {missing[0]} on one side",
            subject=missing[0],
            hint=f"its columns are {', '.join(table.types)}",
        )
    return not missing


class RepeatedKey(Exception):
    """Two rows of a version have the same key."""

    def __init__(self, version: int, row: int) -> None:
        super().__init__(version, row)
        self.version = version
        self.row = row
        """The second of them."""


def join(*versions: Sequence[Hashable]) -> dict[Hashable, tuple[int, ...]]:
    """For each key that a version has, which row of each version has it (-1: none): a full outer join.

    versions: the keys of the rows of each. Raises `RepeatedKey`.
    """
    tables: list[dict[Hashable, int]] = []
    for version, keys in enumerate(versions):
        table: dict[Hashable, int] = {}
        tables.append(table)
        for row, key in enumerate(keys):
            if table.setdefault(key, row) != row:
                raise RepeatedKey(version, row)
    every = dict.fromkeys(itertools.chain.from_iterable(tables))
    return {key: tuple(table.get(key, -1) for table in tables) for key in every}


def number(*columns: Any) -> list[Sequence[int]]:
    """Return the columns with a number for each value: the same for equal values, and -1 for none.

    Not a number equals itself, and 0.0 does not equal -0.0. Of columns of different types, those values are equal that
    Python calls equal.
    """
    import pyarrow

    is_dictionary = pyarrow.types.is_dictionary
    chunks = [[chunk for chunk in column.chunks if len(chunk)] for column in columns]
    values = [one.dictionary if is_dictionary(one.type) else one for one in itertools.chain(*chunks)]
    numbers = iter(_numbered(values))
    found: list[Sequence[int]] = []
    for version in chunks:
        parts = [pyarrow.array([], pyarrow.int32())]
        for one in version:
            part = next(numbers)
            parts.append(part.take(one.indices).fill_null(-1) if is_dictionary(one.type) else part)
        joined = pyarrow.concat_arrays(parts)
        end = joined.offset + len(joined)
        found.append(memoryview(joined.buffers()[1])[: 4 * end].cast("i")[joined.offset :] if end else ())
    return found


def _numbered(arrays: Sequence[Any]) -> list[Any]:
    import pyarrow

    kinds = {one.type for one in arrays}
    if len(kinds) == 1 and not is_nested(arrays[0]):
        try:
            encoded = pyarrow.chunked_array(arrays).dictionary_encode().unify_dictionaries()
        except pyarrow.ArrowException:  # a type for which it has no way to do so
            pass
        else:
            none = pyarrow.array([], pyarrow.int32())
            whole = pyarrow.concat_arrays([none, *(one.indices for one in encoded.chunks)]).fill_null(-1)
            starts = itertools.accumulate((len(one) for one in arrays), initial=0)
            return [whole.slice(start, len(one)) for start, one in zip(starts, arrays, strict=False)]
    known: dict[Hashable, int] = {}
    read = comparable if len(kinds) == 1 else all_shown
    return [
        pyarrow.array(
            [
                -1 if value is None else known.setdefault(_hashable(value), len(known))
                for start in range(0, len(one), _AT_ONCE)
                for value in read(one.slice(start, _AT_ONCE))
            ],
            pyarrow.int32(),
        )
        for one in arrays
    ]


_AT_ONCE = 256  # values, each of which may be long


def _hashable(value: Any) -> Hashable:
    if isinstance(value, float):
        return ("NaN",) if math.isnan(value) else value if value or math.copysign(1, value) > 0 else ("-0.0",)
    if isinstance(value, list | dict):
        return (blake3(repr(value).encode("utf-8", "surrogateescape")).digest(),)
    return value  # type: ignore[no-any-return]


def comparable(column: Any) -> list[Any]:
    """Return a column's values; of times and dates their numbers, as some are finer or later than Python's own."""
    kind = _numbers(column.type)
    values: list[Any] = (column if kind == column.type else column.cast(kind)).to_pylist()
    return values


def shown(column: Any, at: int) -> Any:
    """One value: a time that Python has no value for as text, and inside of a list or a struct as its number."""
    import pyarrow

    try:
        return column[at].as_py()
    except (ValueError, OverflowError):
        one = column.slice(at, 1)
    try:
        return one.cast(pyarrow.string())[0].as_py()
    except pyarrow.ArrowException:
        return comparable(one)[0]


def all_shown(column: Any) -> list[Any]:
    """Return all values as `shown` gives them, to be compared with those of another type."""
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        return [shown(column, at) for at in range(len(column))]
    return values


def is_nested(column: Any) -> bool:
    """Return whether its values are lists or structs."""
    import pyarrow

    return bool(pyarrow.types.is_nested(column.type))


def _numbers(kind: Any) -> Any:
    import pyarrow

    types = pyarrow.types
    if types.is_date32(kind) or types.is_time32(kind):
        return pyarrow.int32()
    if types.is_temporal(kind) and not types.is_interval(kind):
        return pyarrow.int64()
    parts = [kind.field(at).type for at in range(kind.num_fields)]
    if all(_numbers(one) == one for one in parts):
        return kind
    if types.is_map(kind):
        return pyarrow.map_(_numbers(kind.key_type), _numbers(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(_numbers(kind.value_type), kind.list_size)
    if types.is_large_list(kind):
        return pyarrow.large_list(_numbers(kind.value_type))
    if types.is_list(kind):
        return pyarrow.list_(_numbers(kind.value_type))
    if types.is_struct(kind):
        return pyarrow.struct([(field.name, _numbers(field.type)) for field in kind])
    return kind


class TooLarge(Exception):
    """A table would take too much memory."""


def read_parquet(data: bytes) -> tuple[Any, Any]:
    """Return the table, with texts in dictionaries, and the file. Raises `TooLarge`, and what pyarrow raises."""
    import pyarrow
    from pyarrow import parquet

    metadata = parquet.read_metadata(pyarrow.BufferReader(data))
    size = 0
    texts: set[str] = set()
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            column = metadata.row_group(group).column(at)
            form = metadata.schema.column(at)
            size += column.total_uncompressed_size + column.num_values * max(form.length or 0, 8)
            if form.physical_type == "BYTE_ARRAY" and form.logical_type.type in _TEXTS:
                texts.add(column.path_in_schema)
    _check_decoded(size)
    file = parquet.ParquetFile(pyarrow.BufferReader(data), read_dictionary=sorted(texts))
    return _gathered(map(file.read_row_group, range(file.num_row_groups)), file.read), file


_TEXTS = ("STRING", "NONE", "JSON", "BSON", "ENUM")


def _gathered(pieces: Iterable[Any], empty: Callable[[], Any]) -> Any:
    """Return the table of these parts, each of which is counted as soon as it is read."""
    import pyarrow

    found: list[Any] = []
    size = 0
    for piece in pieces:
        size += piece.nbytes
        _check_decoded(size)
        found.append(piece)
    return pyarrow.concat_tables(found) if found else empty()


def _check_decoded(size: int) -> None:
    if size > MOST_DECODED:
        raise TooLarge(
            f"it takes {format_bytes(size)} in memory, and tables of up to {format_bytes(MOST_DECODED)} are read"
        )


def _read(path: bytes, data: bytes) -> _Table:
    import pyarrow

    try:
        table = _parsed(table_format(path), data)
    except (pyarrow.ArrowException, OSError, TooLarge, struct.error) as error:
        raise _no_table(path, str(error).partition("\n")[0]) from error
    names = Counter(table.typed.schema.names)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise _no_table(path, f"several of its columns are named {twice[0]}")
    return table


def _no_table(path: bytes, reason: str) -> Unsupported:
    return Unsupported(
        f"{show(path)} can't be read as a table: {reason}",
        subject=path.decode("utf-8", "backslashreplace"),
        hint="name other files behind --, or leave out --table",
    )


def _parsed(kind: str | None, data: bytes) -> _Table:
    import pyarrow

    if not data:
        table = pyarrow.table({})
        return _Table(table, table, {})
    source = pyarrow.BufferReader(data)
    if kind == "parquet":
        table, _ = read_parquet(data)
        return _Table(table, table, _types(parquet_schema(data)))
    if kind == "arrow":
        table = _read_arrow(source, is_file=data.startswith(b"ARROW1"))
        return _Table(table, table, _types(table.schema))
    return _parse_csv("\t" if kind == "tsv" else ",", data)


def parquet_schema(data: bytes) -> Any:
    """Return the schema that the file declares."""
    import pyarrow
    from pyarrow import parquet

    return parquet.read_schema(pyarrow.BufferReader(data))


def _read_arrow(source: Any, *, is_file: bool) -> Any:
    import pyarrow
    from pyarrow import ipc

    whole = source.read_buffer()
    _check_decoded(
        sum(map(_decompressed, ipc.MessageReader.open_stream(whole.slice(8) if is_file else whole)))
    )
    reader = ipc.open_file(whole) if is_file else ipc.open_stream(whole)
    batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)
    pieces = (pyarrow.Table.from_batches([batch]) for batch in batches)
    return _gathered(pieces, lambda: reader.schema.empty_table())


def _decompressed(message: Any) -> int:
    """Bytes that the compressed buffers of an Arrow message hold, as they say themselves."""
    if message.type not in ("record batch", "dictionary"):
        return 0
    data, body = memoryview(message.metadata).cast("B"), memoryview(message.body).cast("B")

    def field(table: int, at: int) -> int | None:
        """Return where a field of a flatbuffer's table is; None if the table has no such."""
        (back,) = struct.unpack_from("<i", data, table)
        (end,) = struct.unpack_from("<H", data, table - back)
        (offset,) = struct.unpack_from("<H", data, table - back + 4 + 2 * at) if 4 + 2 * at < end else (0,)
        return table + offset if offset else None

    def follow(position: int | None) -> int:
        if position is None:
            raise TooLarge("its size in memory is not known")
        return position + int(struct.unpack_from("<I", data, position)[0])

    batch = follow(field(follow(0), 2))
    if message.type == "dictionary":
        batch = follow(field(batch, 1))
    if field(batch, 3) is None:  # not compressed
        return 0
    buffers = follow(field(batch, 2))
    size = 0
    for at in range(struct.unpack_from("<I", data, buffers)[0]):
        start, length = struct.unpack_from("<qq", data, buffers + 4 + 16 * at)
        if length >= 8:
            size += max(struct.unpack_from("<q", body, start)[0], 0)
    return size


def _types(schema: Any) -> dict[str, str]:
    return {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)}


def _parse_csv(delimiter: str, data: bytes) -> _Table:
    import pyarrow
    from pyarrow import csv

    how = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    typed = csv.read_csv(pyarrow.BufferReader(data), parse_options=how)
    written = csv.ConvertOptions(column_types=dict.fromkeys(typed.schema.names, pyarrow.binary()))
    exact = csv.read_csv(pyarrow.BufferReader(data), parse_options=how, convert_options=written)
    return _Table(typed, exact, _types(typed.schema))


def _named(cells: Cells) -> dict[str, object]:
    return {name: _plain(value) for name, value in cells}


def _plain(value: Any) -> object:
    """Return a value for JSON: dates, decimals and bytes as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(value)
