"""Merging three versions of a table by the values of a key column."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

Row = tuple[object, ...]


def merge_rows(
    columns: Sequence[str], key: str, base: Sequence[Row], ours: Sequence[Row], theirs: Sequence[Row]
) -> list[Row] | str:
    """The rows with the changes of both sides, in the order of ours; why that can't be said, if it can't.

    A row that is new in theirs comes behind the row that it stands behind there. A row that both sides changed has the
    changes of both, if they are to other columns.
    """
    at = columns.index(key)
    tables: list[dict[object, Row]] = []
    for rows in (base, ours, theirs):
        table = _by_key(rows, at)
        if isinstance(table, str):
            return f"column {key} {table}"
        tables.append(table)
    was, mine, other = tables
    merged: dict[object, Row | None] = {}
    for value in {**mine, **other, **was}:
        row = _merge_row(columns, was.get(value), mine.get(value), other.get(value))
        if isinstance(row, str):
            return f"the row with {key} {value} {row}"
        merged[value] = row
    return [row for value in _order(mine, other) if (row := merged[value]) is not None]


def _by_key(rows: Sequence[Row], at: int) -> dict[object, Row] | str:
    table: dict[object, Row] = {}
    for row in rows:
        value = row[at]
        if not isinstance(value, Hashable) or value is None or value != value:
            return f"has {value!r}, which is no key"
        if value in table:
            return f"has {value} twice"
        table[value] = row
    return table


def _merge_row(
    columns: Sequence[str], was: Row | None, mine: Row | None, other: Row | None
) -> Row | str | None:
    if _same_rows(mine, other) or _same_rows(other, was):
        return mine
    if _same_rows(mine, was):
        return other
    if was is None:
        return "was added by both"
    if mine is None or other is None:
        return "was removed by one side and changed by the other"
    cells: list[object] = []
    for column, before, one, another in zip(columns, was, mine, other, strict=True):
        if not (_same(one, another) or _same(another, before) or _same(one, before)):
            return f"was changed by both in column {column}"
        cells.append(another if _same(one, before) else one)
    return tuple(cells)


def _order(mine: Mapping[object, Row], other: Mapping[object, Row]) -> list[object]:
    """All keys of both: those of mine in its order, each other one behind the one that it stands behind."""
    behind: dict[object, list[object]] = {}
    previous: object = _FIRST
    for value in other:
        if value not in mine:
            behind.setdefault(previous, []).append(value)
        else:
            previous = value
    found = list(behind.get(_FIRST, ()))
    for value in mine:
        found.append(value)
        found += behind.get(value, ())
    return found


_FIRST = object()


def _same_rows(one: Row | None, other: Row | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(map(_same, one, other))


def _same(one: object, other: object) -> bool:
    """Equal, or both not a number."""
    return one == other or (one != one and other != other)
