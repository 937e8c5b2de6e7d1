"""How much of an exhaustive test runs: all of it with `--exhaustive`, else the same part of it each time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final, TypeVar

import pytest

_T = TypeVar("_T")

VARIABLE: Final = "DSV_EXHAUSTIVE"
"""Set by `--exhaustive`; processes that tests start inherit it."""
EVERY: Final = 7


def is_full() -> bool:
    return VARIABLE in os.environ


def is_repeated(item: pytest.Item) -> bool:
    """Check that a test is one of a suite that its class inherits, and that the class leaves to a full run.

    Such a class names in `runs` the tests whose answer may differ from that of the other classes with the suite.
    """
    suite, name = getattr(item, "cls", None), getattr(item, "originalname", None)
    runs = getattr(suite, "runs", None)
    return runs is not None and name not in runs and name not in vars(suite)


def some(steps: Sequence[_T], every: int = EVERY) -> list[_T]:
    """All steps in a full run, else the first, each seventh after it, and the last."""
    if is_full() or len(steps) < 3:
        return list(steps)
    chosen = list(range(0, len(steps), every))
    return [steps[at] for at in chosen] + ([] if chosen[-1] == len(steps) - 1 else [steps[-1]])


def following(at: int, end: int) -> int:
    """The step after `at` that is tried, of those below `end`; `end` after the last."""
    if is_full() or at >= end - 1:
        return at + 1
    return min(at + EVERY, end - 1)


def numbers(first: int = 1, every: int = EVERY) -> Iterator[int]:
    """Numbers of steps without an end: each one in a full run, else each seventh."""
    return count(first, 1 if is_full() else every)


def examples(most: int, part: int = 5) -> int:
    """Return how many examples hypothesis tries: `most` in a full run, else one of `part`, and at least 5."""
    return most if is_full() else max(most // part, 5)
