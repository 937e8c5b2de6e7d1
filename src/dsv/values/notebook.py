"""How notebooks show values. The package sets it: pages are made above all that they show."""

from __future__ import annotations

from collections.abc import Callable

html: Callable[[object], str | None] = lambda _: None  # noqa: E731 (another one takes its place)
"""Returns HTML; None if a notebook is to show the text alone."""
