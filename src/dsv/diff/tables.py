"""How the rows and columns of two tables differ. pyarrow is imported only here, and only when it is needed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

from dsv.diff.arrow_values import all_shown, comparable, shown
from dsv.errors import Unsupported, UsageError
from dsv.model.paths import show

LARGEST: Final = 256 << 20
"""Bytes of a file that is read as a table."""
MOST_ROWS: Final = 100_000
"""Rows that are told one by one; all are counted."""
_FORMATS = {
    b".csv": "csv",
    b".tsv": "tsv",
    b".parquet": "parquet",
    b".pq": "parquet",
    b".arrow": "arrow",
    b".ipc": "arrow",
    b".feather": "arrow",
}
Cells = tuple[tuple[str, Any], ...]
"""Names of columns, each with a value."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """change: added, removed or changed. key: what names the row. cells: name, old and new value of what changed."""

    change: str
    key: Cells = ()
    before: Cells = ()
    after: Cells = ()
    cells: tuple[tuple[str, Any, Any], ...] = ()

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
    """Columns come with their types. rows: at most `MOST_ROWS` of those that differ."""

    columns_added: list[tuple[str, str]] = field(default_factory=list)
    columns_removed: list[tuple[str, str]] = field(default_factory=list)
    columns_retyped: list[tuple[str, str, str]] = field(default_factory=list)
    rows_added: int = 0
    rows_removed: int = 0
    rows_changed: int = 0
    rows: list[RowChange] = field(default_factory=list)

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
    """Whether the name is that of a table that can be compared."""
    return _format(path) is not None


def require_pyarrow() -> None:
    """Raises `Unsupported` if tables can't be read here."""
    if find_spec("pyarrow") is None:
        raise Unsupported(
            "tables are read by pyarrow, which is not installed",
            subject="pyarrow",
            hint="pip install pyarrow",
        )


def diff_tables(path: bytes, before: bytes | None, after: bytes | None, key: Sequence[str] = ()) -> TableDiff:
    """Compares two versions of a file that `is_table` knows. Rows are named by the key columns.

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
    old.alike = new.alike = {name for name in common if types[name] == now[name]}
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
    """One version of a file.

    typed: what is shown. exact: what is compared; of a CSV file the cells as they are written, as one cell decides of
    which type its whole column seems to be. as_written: columns of which `exact` is shown. alike: columns that have
    the same type in both versions.
    """

    typed: Any
    exact: Any
    as_written: set[str] = field(default_factory=set)
    alike: set[str] = field(default_factory=set)

    @property
    def types(self) -> dict[str, str]:
        schema = self.typed.schema
        return {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)}

    def rows(self, names: Sequence[str]) -> Iterator[tuple[Hashable, ...]]:
        if not names:
            return iter(())
        return zip(*(self.values(name) for name in names), strict=True)

    def values(self, name: str) -> list[Hashable]:
        """A column's values such that equal ones are equal in Python: not a number is, and a list is shown as text."""
        column = self.exact.column(name)
        values = comparable(column) if name in self.alike else all_shown(column)
        return [_hashable(value) if isinstance(value, float | list | dict) else value for value in values]

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
    left, right = _numbered(old, common), _numbered(new, common)
    for row, numbers in left.items():
        if (count := len(numbers) - len(right.get(row, ()))) > 0:
            made.note(RowChange("removed", before=old.cells(numbers[0], common)), count)
    for row, numbers in right.items():
        if (count := len(numbers) - len(left.get(row, ()))) > 0:
            made.note(RowChange("added", after=new.cells(numbers[0], common)), count)


def _numbered(table: _Table, names: Sequence[str]) -> dict[tuple[Hashable, ...], list[int]]:
    """Where each row stands."""
    found: dict[tuple[Hashable, ...], list[int]] = {}
    for at, row in enumerate(table.rows(names)):
        found.setdefault(row, []).append(at)
    return found


def _compare_by_key(
    path: bytes, old: _Table, new: _Table, key: tuple[str, ...], common: Sequence[str], made: TableDiff
) -> None:
    left, right = _by_key(path, old, key), _by_key(path, new, key)
    pairs = [(left[name], at) for name, at in right.items() if name in left]
    changed: dict[int, list[tuple[str, Any, Any]]] = {}
    for name in common:
        if name not in key:
            mine, theirs = old.values(name), new.values(name)
            for before, after in pairs:
                if mine[before] != theirs[after]:
                    changed.setdefault(before, []).append((name, *_both(old, new, name, before, after)))
    for names, at in left.items():
        if names not in right:
            made.note(RowChange("removed", old.cells(at, key), before=old.cells(at)))
        elif at in changed:
            made.note(RowChange("changed", old.cells(at, key), cells=tuple(changed[at])))
    for names, at in right.items():
        if names not in left:
            made.note(RowChange("added", new.cells(at, key), after=new.cells(at)))


def _both(old: _Table, new: _Table, name: str, before: int, after: int) -> tuple[Any, Any]:
    """A cell that differs; as it is written if that is all that differs, such as 1.5 and 1.50."""
    one, other = old.cell(name, before), new.cell(name, after)
    if str(one) != str(other):
        return one, other
    return old.cell(name, before, as_written=True), new.cell(name, after, as_written=True)


def _by_key(path: bytes, table: _Table, key: tuple[str, ...]) -> dict[tuple[Hashable, ...], int]:
    columns = table.typed.schema.names
    missing = [name for name in key if name not in columns]
    if missing and columns:
        raise UsageError(
            f"{show(path)} has no column {missing[0]} on one side",
            subject=missing[0],
            hint=f"its columns are {', '.join(columns)}",
        )
    found: dict[tuple[Hashable, ...], int] = {}
    for at, names in enumerate(table.rows(key)) if not missing else ():
        if found.setdefault(names, at) != at:
            told = ", ".join(f"{name}={value}" for name, value in table.cells(at, key))
            raise UsageError(
                f"the key names two rows of {show(path)}: {told}",
                subject=",".join(key),
                hint="give --key several times for columns that name a row together",
            )
    return found


def _hashable(value: Any) -> Hashable:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value
    return repr(value)


def _format(path: bytes) -> str | None:
    name = path.rpartition(b"/")[2].lower()
    return _FORMATS.get(b"." + name.rpartition(b".")[2]) if b"." in name else None


def _read(path: bytes, data: bytes) -> _Table:
    import pyarrow

    try:
        table = _parsed(_format(path), data)
    except (pyarrow.ArrowException, OSError) as error:
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
        return _Table(table, table)
    source = pyarrow.BufferReader(data)
    if kind == "parquet":
        from pyarrow import parquet

        table = parquet.read_table(source)
    elif kind == "arrow":
        from pyarrow import ipc

        is_file = data.startswith(b"ARROW1")
        table = (ipc.open_file(source) if is_file else ipc.open_stream(source)).read_all()
    else:
        return _parse_csv("\t" if kind == "tsv" else ",", data)
    return _Table(table, table)


def _parse_csv(delimiter: str, data: bytes) -> _Table:
    import pyarrow
    from pyarrow import csv

    how = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    typed = csv.read_csv(pyarrow.BufferReader(data), parse_options=how)
    written = csv.ConvertOptions(column_types=dict.fromkeys(typed.schema.names, pyarrow.binary()))
    return _Table(typed, csv.read_csv(pyarrow.BufferReader(data), parse_options=how, convert_options=written))


def _named(cells: Cells) -> dict[str, object]:
    return {name: _plain(value) for name, value in cells}


def _plain(value: Any) -> object:
    """What JSON can hold: dates, decimals and bytes as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(value)
