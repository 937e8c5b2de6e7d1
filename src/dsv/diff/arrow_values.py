"""The values of Arrow columns, such that equal ones are equal in Python."""

from __future__ import annotations

from typing import Any


def comparable(column: Any) -> list[Any]:
    """A column's values; of times and dates their numbers, as some are finer or later than Python's own."""
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
    """All values as `shown` gives them, to be compared with those of another type."""
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        return [shown(column, at) for at in range(len(column))]
    return values


def is_nested(column: Any) -> bool:
    """Whether its values are lists or structs."""
    import pyarrow

    return bool(pyarrow.types.is_nested(column.type))


def _numbers(kind: Any) -> Any:
    """The type with numbers for all times in it."""
    import pyarrow

    types = pyarrow.types
    if types.is_date32(kind) or types.is_time32(kind):
        return pyarrow.int32()
    if types.is_temporal(kind) and not types.is_interval(kind):
        return pyarrow.int64()
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
