"""How the rows and columns of two tables differ. pyarrow is imported only here, and only when it is needed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

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
    types = {name: str(kind) for name, kind in zip(old.schema.names, old.schema.types, strict=True)}
    now = {name: str(kind) for name, kind in zip(new.schema.names, new.schema.types, strict=True)}
    made.columns_added = [(name, kind) for name, kind in now.items() if name not in types]
    made.columns_removed = [(name, kind) for name, kind in types.items() if name not in now]
    common = [name for name in types if name in now]
    made.columns_retyped = [(name, types[name], now[name]) for name in common if types[name] != now[name]]
    if key:
        _compare_by_key(path, old, new, tuple(dict.fromkeys(key)), common, made)
    else:
        _compare_whole_rows(old, new, common, made)
    return made


def _compare_whole_rows(old: Any, new: Any, common: Sequence[str], made: TableDiff) -> None:
    left, right = Counter(_rows(old, common)), Counter(_rows(new, common))
    for row, count in (left - right).items():
        made.note(RowChange("removed", before=tuple(zip(common, row, strict=True))), count)
    for row, count in (right - left).items():
        made.note(RowChange("added", after=tuple(zip(common, row, strict=True))), count)


def _compare_by_key(
    path: bytes, old: Any, new: Any, key: tuple[str, ...], common: Sequence[str], made: TableDiff
) -> None:
    left, right = _by_key(path, old, key), _by_key(path, new, key)
    pairs = [(left[name], at) for name, at in right.items() if name in left]
    changed: dict[int, list[tuple[str, Any, Any]]] = {}
    for name in common:
        if name not in key:
            mine, theirs = _values(old, name), _values(new, name)
            for before, after in pairs:
                if mine[before] != theirs[after]:
                    changed.setdefault(before, []).append((name, mine[before], theirs[after]))
    for names, at in left.items():
        cells = tuple(zip(key, names, strict=True))
        if names not in right:
            made.note(RowChange("removed", cells, before=_row(old, at)))
        elif at in changed:
            made.note(RowChange("changed", cells, cells=tuple(changed[at])))
    for names, at in right.items():
        if names not in left:
            made.note(RowChange("added", tuple(zip(key, names, strict=True)), after=_row(new, at)))


def _by_key(path: bytes, table: Any, key: tuple[str, ...]) -> dict[tuple[Hashable, ...], int]:
    missing = [name for name in key if name not in table.schema.names]
    if missing and table.num_columns:
        raise UsageError(
            f"{show(path)} has no column {missing[0]} on one side",
            subject=missing[0],
            hint=f"its columns are {', '.join(table.schema.names)}",
        )
    found: dict[tuple[Hashable, ...], int] = {}
    for at, names in enumerate(_rows(table, key)) if not missing else ():
        if found.setdefault(names, at) != at:
            told = ", ".join(f"{name}={value}" for name, value in zip(key, names, strict=True))
            raise UsageError(
                f"the key names two rows of {show(path)}: {told}",
                subject=",".join(key),
                hint="give --key several times for columns that name a row together",
            )
    return found


def _rows(table: Any, names: Sequence[str]) -> Iterator[tuple[Hashable, ...]]:
    if not names:
        return iter(())
    return zip(*(_values(table, name) for name in names), strict=True)


def _values(table: Any, name: str) -> list[Hashable]:
    """A column's values such that equal ones are equal in Python: not a number is, and a list is shown as text."""
    values = table.column(name).to_pylist()
    return [_hashable(value) if isinstance(value, float | list | dict) else value for value in values]


def _hashable(value: Any) -> Hashable:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value
    return repr(value)


def _row(table: Any, at: int) -> Cells:
    return tuple((name, table.column(name)[at].as_py()) for name in table.schema.names)


def _format(path: bytes) -> str | None:
    name = path.rpartition(b"/")[2].lower()
    return _FORMATS.get(b"." + name.rpartition(b".")[2]) if b"." in name else None


def _read(path: bytes, data: bytes) -> Any:
    import pyarrow

    try:
        table = _parsed(_format(path), data)
    except (pyarrow.ArrowException, OSError) as error:
        raise _no_table(path, str(error).partition("\n")[0]) from error
    names = Counter(table.schema.names)
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


def _parsed(kind: str | None, data: bytes) -> Any:
    import pyarrow

    if not data:
        return pyarrow.table({})
    source = pyarrow.BufferReader(data)
    if kind == "parquet":
        from pyarrow import parquet

        return parquet.read_table(source)
    if kind == "arrow":
        from pyarrow import ipc

        is_file = data.startswith(b"ARROW1")
        return (ipc.open_file(source) if is_file else ipc.open_stream(source)).read_all()
    from pyarrow import csv

    return csv.read_csv(source, parse_options=csv.ParseOptions(delimiter="\t" if kind == "tsv" else ","))


def _named(cells: Cells) -> dict[str, object]:
    return {name: _plain(value) for name, value in cells}


def _plain(value: Any) -> object:
    """What JSON can hold: dates, decimals and bytes as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(value)
