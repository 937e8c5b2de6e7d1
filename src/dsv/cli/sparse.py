"""The patterns of a sparse workspace, for a person."""

from __future__ import annotations

from dsv.values.patterns import SparsePatterns

_SHOWN = 5


def patterns_of(chosen: SparsePatterns) -> str:
    """A few of them, and how many more there are."""
    lines = chosen.lines or ()
    more = [f"and {len(lines) - _SHOWN:,} more"] if len(lines) > _SHOWN else []
    return ", ".join([*lines[:_SHOWN], *more]) or "nothing"
