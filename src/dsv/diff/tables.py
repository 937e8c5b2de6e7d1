"""Reading tables, joining their rows by key, and comparing two tables. pyarrow is imported only when needed.

A table is read with the dictionaries of its file, and cells are compared by numbers, which are the same for
equal values. So a text that a million rows have is held once.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final

import msgspec
from blake3 import blake3

from dsv.errors import Unsupported, UsageError
from dsv.values.paths import show
from dsv.values.units import format_bytes

LARGEST: Final = 256 << 20
"""Bytes of the largest file that is read as a table."""
MOST_DECODED = 1_000_000_000
"""Bytes that a table may take in memory, with each text of a dictionary counted once."""
MOST_ROWS: Final = 100_000
"""Rows that are listed; all are counted."""
_FORMATS = {
    b"csv": "csv", b"tsv": "tsv", b"parquet": "parquet", b"pq": "parquet",
    b"arrow": "arrow", b"ipc": "arrow", b"feather": "arrow",
}  # fmt: skip
_TEXTS = ("STRING", "NONE", "JSON", "BSON", "ENUM")
"""Logical types of Parquet whose values are read as dictionaries."""
_MARKS = {"added": "+", "removed": "-", "changed": "~"}
Cells = dict[str, object]
"""Names of columns, each with a value for JSON."""


class RowChange(msgspec.Struct, frozen=True):
    """A row that was removed is `before`, one that was added is `after`."""

    change: str
    """`added`, `removed` or `changed`."""
    key: Cells
    """The cells that identify the row."""
    before: Cells | None = None
    after: Cells | None = None
    cells: dict[str, tuple[object, object]] | None = None
    """Old and new value of each changed cell."""


class TableDiff(msgspec.Struct):
    """The differences of two versions of a table. Columns have their types."""

    columns_added: dict[str, str]
    columns_removed: dict[str, str]
    columns_retyped: dict[str, tuple[str, str]]
    rows_added: int = 0
    rows_removed: int = 0
    rows_changed: int = 0
    rows: list[RowChange] = []
    """At most `MOST_ROWS` of the rows that differ."""

    def lines(self, most: int) -> Iterator[str]:
        """Yield a line for each column that differs, and for at most so many rows: +, - or ~, and what it has."""
        yield from (f"+ column {name} ({kind})" for name, kind in self.columns_added.items())
        yield from (f"- column {name} ({kind})" for name, kind in self.columns_removed.items())
        yield from (f"~ column {name} ({old} -> {new})" for name, (old, new) in self.columns_retyped.items())
        yield f"rows: {self.rows_added:,} added, {self.rows_removed:,} removed, {self.rows_changed:,} changed"
        for row in self.rows[:most]:
            whole = row.key if row.cells else row.before or row.after or {}
            cells = [f"{name}={value}" for name, value in whole.items()]
            cells += (f"{name}: {old} -> {new}" for name, (old, new) in (row.cells or {}).items())
            yield f"{_MARKS[row.change]} {'  '.join(cells)}"


def table_format(path: bytes) -> str | None:
    """Return `csv`, `tsv`, `parquet` or `arrow`, by the name's extension; None for another."""
    stem, _, extension = path.rpartition(b"/")[2].lower().rpartition(b".")
    return _FORMATS.get(extension) if stem else None


def require_pyarrow(reason: str = "tables are read by pyarrow") -> None:
    """Raises `Unsupported` if pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        raise Unsupported(f"{reason}, which is not installed", subject="pyarrow", hint="pip install pyarrow")


def diff_tables(path: bytes, before: bytes | None, after: bytes | None, key: Sequence[str] = ()) -> TableDiff:
    """Compare two versions of a file that has a `table_format`. The key columns identify rows.

    Without a key, equal rows are the same row, whatever their order, and none is changed. Columns of only one
    side are named and not compared. Raises `UsageError` for a key that a side does not have or that two rows
    share, and `Unsupported` for a file that is not a table.
    """
    old, new = _read(path, before or b""), _read(path, after or b"")
    types, now = old.types, new.types
    common = [name for name in types if name in now]
    retyped = {name: (types[name], now[name]) for name in common if types[name] != now[name]}
    as_written = {name for name, kinds in retyped.items() if set(kinds) != {"int64", "double"}}
    old.as_written = new.as_written = as_written
    made = TableDiff(
        {name: kind for name, kind in now.items() if name not in types},
        {name: kind for name, kind in types.items() if name not in now},
        retyped,
    )
    if key or common:
        _compare(path, old, new, list(dict.fromkeys(key)), common, made)
    return made


class _Table(msgspec.Struct):
    """One version of a file."""

    typed: Any
    """The columns to show."""
    exact: Any
    """The columns to compare. For CSV the cells as written, because one cell can change its column's type."""
    types: dict[str, str]
    """The types that the file declares."""
    as_written: set[str] = set()
    """Columns to show from `exact`."""

    def column(self, name: str) -> Any:
        """Return a column to compare; in an empty file it is empty."""
        import pyarrow

        return self.exact.column(name) if self.types else pyarrow.chunked_array([], pyarrow.null())

    def cells(self, at: int, names: Iterable[str]) -> Cells:
        return {name: self.cell(name, at) for name in names}

    def cell(self, name: str, at: int, *, as_written: bool = False) -> object:
        value = shown(self.typed.column(name)[at])
        if self.exact is not self.typed:
            written = self.exact.column(name)[at].as_py().decode("utf-8", "backslashreplace")
            is_code = type(value) is int and str(value) != written  # as 007
            value = written if as_written or is_code or name in self.as_written else value
        is_plain = value is None or isinstance(value, bool | int | str)
        return value if is_plain or (isinstance(value, float) and math.isfinite(value)) else str(value)


def _compare(
    path: bytes, old: _Table, new: _Table, key: list[str], common: list[str], made: TableDiff
) -> None:
    for table in (old, new):
        missing = [name for name in key if name not in table.types]
        if missing and table.types:
            text = f"{show(path)} has no column {missing[0]} on one side"
            raise UsageError(text, subject=missing[0], hint=f"its columns are {', '.join(table.types)}")
    numbers = [number(old.column(name), new.column(name)) for name in key or common]
    rows = [list(zip(*columns, strict=True)) for columns in zip(*numbers, strict=True)]
    try:
        joined = list(join(*(rows if key else map(_each_once, rows))).values())
    except RepeatedKey as error:
        version, row = error.args
        cells = (old, new)[version].cells(row, key).items()
        text = (
            f"the key names two rows of {show(path)}: {', '.join(f'{name}={value}' for name, value in cells)}"
        )
        hint = "give --key several times for columns that name a row together"
        raise UsageError(text, subject=",".join(key), hint=hint) from None
    changed: dict[int, list[str]] = {}
    for name in common if key else ():
        if name not in key:
            mine, theirs = number(old.column(name), new.column(name))
            for before, after in joined:
                if before >= 0 and after >= 0 and mine[before] != theirs[after]:
                    changed.setdefault(before, []).append(name)

    def changes() -> Iterator[RowChange]:
        for before, after in joined:
            if after < 0:
                cells = old.cells(before, old.types if key else common)
                yield RowChange("removed", old.cells(before, key), before=cells)
            elif before < 0:
                cells = new.cells(after, new.types if key else common)
                yield RowChange("added", new.cells(after, key), after=cells)
            elif before in changed:
                both = {name: _both(old, new, name, before, after) for name in changed[before]}
                yield RowChange("changed", old.cells(before, key), cells=both)

    made.rows_added = sum(before < 0 for before, _ in joined)
    made.rows_removed = sum(after < 0 for _, after in joined)
    made.rows_changed = len(changed)
    made.rows = list(itertools.islice(changes(), MOST_ROWS))


def _each_once(rows: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the rows, each with the number of earlier equal ones, so that all are different."""
    seen: dict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)
    return [(*row, next(seen[row])) for row in rows]


def _both(old: _Table, new: _Table, name: str, before: int, after: int) -> tuple[object, object]:
    """Return a cell that differs; as written if only the notation differs, such as 1.5 and 1.50."""
    one, other = old.cell(name, before), new.cell(name, after)
    if str(one) != str(other):
        return one, other
    return old.cell(name, before, as_written=True), new.cell(name, after, as_written=True)


class RepeatedKey(Exception):
    """Two rows of a version have the same key. The arguments are the version and the second row."""


def join(*versions: Sequence[Hashable]) -> dict[Hashable, tuple[int, ...]]:
    """Join versions, given by the keys of their rows: key -> its row in each, or -1. Raises `RepeatedKey`."""
    tables: list[dict[Hashable, int]] = []
    for version, keys in enumerate(versions):
        table: dict[Hashable, int] = {}
        for row, key in enumerate(keys):
            if table.setdefault(key, row) != row:
                raise RepeatedKey(version, row)
        tables.append(table)
    return {
        key: tuple(table.get(key, -1) for table in tables)
        for key in dict.fromkeys(itertools.chain.from_iterable(tables))
    }


def number(*columns: Any) -> list[Sequence[int]]:
    """Return the columns with a number for each value: the same for equal values, and -1 for none.

    NaN equals itself, and 0.0 is not -0.0. Values of columns of different types are equal if Python says so.
    """
    import pyarrow

    chunks = [chunk for column in columns for chunk in column.chunks if len(chunk)]
    encoded = {at for at, chunk in enumerate(chunks) if pyarrow.types.is_dictionary(chunk.type)}
    parts = _numbered([chunk.dictionary if at in encoded else chunk for at, chunk in enumerate(chunks)])
    for at in encoded:
        parts[at] = parts[at].take(chunks[at].indices).fill_null(-1)
    whole = pyarrow.concat_arrays([pyarrow.array([], pyarrow.int32()), *parts])
    numbers = memoryview(whole.buffers()[1] or b"")[: 4 * len(whole)].cast("i")
    ends = itertools.accumulate(map(len, columns))
    return [numbers[end - len(column) : end] for column, end in zip(columns, ends, strict=True)]


def _numbered(arrays: Sequence[Any]) -> list[Any]:
    import pyarrow

    if len({array.type for array in arrays}) == 1 and not pyarrow.types.is_nested(arrays[0].type):
        try:
            encoded = pyarrow.chunked_array(arrays).dictionary_encode().unify_dictionaries()
        except pyarrow.ArrowException:  # a type that it can't encode
            pass
        else:
            none = pyarrow.array([], pyarrow.int32())
            whole = pyarrow.concat_arrays([none, *(chunk.indices for chunk in encoded.chunks)]).fill_null(-1)
            starts = itertools.accumulate((len(array) for array in arrays), initial=0)
            return [whole.slice(start, len(array)) for start, array in zip(starts, arrays, strict=False)]
    known: dict[Hashable, int] = {None: -1}
    return [
        pyarrow.array(
            [known.setdefault(_hashable(shown(cell)), len(known)) for cell in array], pyarrow.int32()
        )
        for array in arrays
    ]


def _hashable(value: Any) -> Hashable:
    if isinstance(value, float):
        return ("NaN",) if math.isnan(value) else value if value or math.copysign(1, value) > 0 else ("-0.0",)
    if isinstance(value, list | dict):
        return (blake3(repr(value).encode("utf-8", "surrogateescape")).digest(),)
    return value  # type: ignore[no-any-return]


def shown(cell: Any) -> Any:
    """Return a cell's value; a time without a Python value, and a list or a struct with one, as text."""
    import pyarrow

    with suppress(ValueError, OverflowError, pyarrow.ArrowException):
        return _in_microseconds(cell).as_py()
    try:
        return cell.cast(pyarrow.string()).as_py()
    except pyarrow.ArrowException:
        found = pyarrow.array([cell], cell.type)
        every = 1 << 30
        return found.to_string(window=every, container_window=every, skip_new_lines=True)


def _in_microseconds(cell: Any) -> Any:
    """Return a cell with nanoseconds in microseconds: if pandas is installed, pyarrow returns values of pandas,
    and cuts off the nanoseconds of a time. Raises `pyarrow.ArrowInvalid` if some would be lost, or are nested."""
    import pyarrow

    kind = str(cell.type)
    if "[ns" not in kind:
        return cell
    if getattr(cell.type, "unit", None) != "ns":
        raise pyarrow.ArrowInvalid(f"{kind} has nanoseconds")
    if pyarrow.types.is_timestamp(cell.type):
        return cell.cast(pyarrow.timestamp("us", cell.type.tz))
    return cell.cast(pyarrow.time64("us") if pyarrow.types.is_time(cell.type) else pyarrow.duration("us"))


class TableFault(Exception):
    """The reason why a table can't be read or merged."""


def read_parquet(data: bytes) -> tuple[Any, Any]:
    """Return the table, with texts in dictionaries, and the file. Raises `TableFault`, pyarrow's errors."""
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
    leaves = map(metadata.schema.column, range(metadata.num_columns))
    of_int96 = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}

    def opened(unit: str) -> tuple[Any, Any]:
        file = parquet.ParquetFile(
            pyarrow.BufferReader(data), read_dictionary=sorted(texts), coerce_int96_timestamp_unit=unit
        )
        return _gathered(map(file.read_row_group, range(file.num_row_groups)), file.read), file

    table, file = opened("ns")
    return _with_far_times(table, opened("us")[0], of_int96) if of_int96 else table, file


def _with_far_times(table: Any, coarse: Any, names: set[str]) -> Any:
    """Return the table with times of INT96 in microseconds where nanoseconds reach too few years."""
    import pyarrow
    from pyarrow import compute

    for at, name in enumerate(table.schema.names):
        exact, far = table.column(at), coarse.column(at)
        with suppress(pyarrow.ArrowInvalid):
            if exact.type == far.type or far.cast(exact.type).cast(far.type) == far:
                continue  # none is out of reach
        if name not in names:
            raise TableFault(f"column {name} has times within others that can't be read exactly")
        more = compute.subtract(exact.cast("int64"), compute.multiply(far.cast("int64"), 1000))  # these wrap
        if compute.any(compute.not_equal(more, 0)).as_py():
            raise TableFault(f"column {name} has times with nanoseconds, and some too far away for these")
        table = table.set_column(at, name, far)
    return table


def parquet_forms(data: bytes) -> dict[str, str]:
    """Return the physical and the logical type of each column of a Parquet file, by its path."""
    import pyarrow
    from pyarrow import parquet

    schema = parquet.read_metadata(pyarrow.BufferReader(data)).schema
    forms = {}
    for leaf in map(schema.column, range(len(schema))):
        logical = msgspec.json.decode(leaf.logical_type.to_json())
        kind = logical.pop("Type")
        more = [
            f"{key}={value}" for key, value in logical.items() if not key.startswith(("is_from", "force"))
        ]
        levels = f"levels={leaf.max_definition_level}/{leaf.max_repetition_level}/{leaf.length}"
        said = [leaf.physical_type, leaf.converted_type if kind == "None" else kind, *more, levels]
        forms[leaf.path] = " ".join(part for part in said if part != "NONE")
    return forms


def _gathered(pieces: Iterable[Any], empty: Callable[[], Any]) -> Any:
    """Join these parts of a table. Each is counted as soon as it is read."""
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
        raise TableFault(
            f"it takes {format_bytes(size)} in memory, and tables of up to {format_bytes(MOST_DECODED)} are read"
        )


def _read(path: bytes, data: bytes) -> _Table:
    import pyarrow
    from pyarrow import parquet

    kind = table_format(path)
    try:
        if not data:
            table = exact = pyarrow.table({})
        elif kind == "parquet":
            table = exact = read_parquet(data)[0]
        elif kind == "arrow":
            table = exact = _read_arrow(pyarrow.py_buffer(data), is_file=data.startswith(b"ARROW1"))
        else:
            table, exact = _read_csv("\t" if kind == "tsv" else ",", data)
        is_parquet = data and kind == "parquet"  # its texts are in dictionaries here, but not declared so
        schema = parquet.read_schema(pyarrow.BufferReader(data)) if is_parquet else table.schema
        twice = [name for name, count in Counter(table.schema.names).items() if count > 1]
        if twice:
            raise TableFault(f"several of its columns are named {twice[0]}")
    except (pyarrow.ArrowException, OSError, TableFault, struct.error) as error:
        reason = str(error).partition("\n")[0]
        text = f"{show(path)} can't be read as a table: {reason}"
        hint = "name other files after --, or leave out --table"
        raise Unsupported(text, subject=path.decode("utf-8", "backslashreplace"), hint=hint) from error
    forms = parquet_forms(data) if is_parquet else {}
    lost = {one: "interval" for one, form in forms.items() if " Interval " in form}  # bytes for pyarrow
    return _Table(table, exact, {field.name: lost.get(field.name, str(field.type)) for field in schema})


def _read_csv(delimiter: str, data: bytes) -> tuple[Any, Any]:
    """Return the columns with detected types, and the cells as written."""
    import pyarrow
    from pyarrow import csv

    how = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    typed = csv.read_csv(pyarrow.BufferReader(data), parse_options=how)
    written = csv.ConvertOptions(column_types=dict.fromkeys(typed.schema.names, pyarrow.binary()))
    return typed, csv.read_csv(pyarrow.BufferReader(data), parse_options=how, convert_options=written)


def _read_arrow(whole: Any, *, is_file: bool) -> Any:
    import pyarrow
    from pyarrow import ipc

    _check_decoded(
        sum(map(_decompressed, ipc.MessageReader.open_stream(whole.slice(8) if is_file else whole)))
    )
    reader = ipc.open_file(whole) if is_file else ipc.open_stream(whole)
    batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)
    pieces = (pyarrow.Table.from_batches([batch]) for batch in batches)
    return _gathered(pieces, lambda: reader.schema.empty_table())


def _decompressed(message: Any) -> int:
    """Return the decompressed size of the compressed buffers of an Arrow message, as it states itself."""
    if message.type not in ("record batch", "dictionary"):
        return 0
    data, body = memoryview(message.metadata).cast("B"), memoryview(message.body).cast("B")

    def field(table: int, at: int) -> int | None:
        """Return the position of a field of a flatbuffer's table; None if the table does not have it."""
        (back,) = struct.unpack_from("<i", data, table)
        (end,) = struct.unpack_from("<H", data, table - back)
        (offset,) = struct.unpack_from("<H", data, table - back + 4 + 2 * at) if 4 + 2 * at < end else (0,)
        return table + offset if offset else None

    def follow(position: int | None) -> int:
        if position is None:
            raise TableFault("its size in memory is not known")
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
