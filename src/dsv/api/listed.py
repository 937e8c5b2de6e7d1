"""Lists that a notebook shows as tables, and a terminal in a few lines."""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeVar

from dsv.run.listing import RunView
from dsv.values import notebook
from dsv.values.json import flattened

_T = TypeVar("_T")
_SHOWN = 10


class Listed(list[_T]):
    """A list that a notebook shows as a table."""

    def __repr__(self) -> str:
        more = [f"... and {len(self) - _SHOWN:,} more"] if len(self) > _SHOWN else []
        return "\n".join([*map(repr, self[:_SHOWN]), *more]) or "[]"

    def _repr_html_(self) -> str | None:
        return notebook.html(self)


class ListedRuns(Listed[RunView]):
    def to_pandas(self) -> Any:
        """Return a `DataFrame` with a row for each run and a column for each key. It takes pandas."""
        return import_module("pandas").DataFrame([flattened(view.item()) for view in self])
