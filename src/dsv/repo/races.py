"""Publishing on a branch that others move, too: who loses a race waits and builds on the winner's commit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from dsv.errors import Conflict
from dsv.repo.refs.branches import Head, LostRace

T = TypeVar("T")
H = TypeVar("H", Head, Head | None)

DEADLINE: Final = 600.0
LONGEST: Final = 10.0
"""Seconds to lose races, and to wait after one."""


def publish_in_turn(find: Callable[[], H], commit: Callable[[Callable[[], H]], T | LostRace]) -> T:
    """Call `commit` until it does not lose the race, with random waits between; return its result.

    find: returns the branch's head. commit: makes the commit on the head that its argument returns, which calls `find`.
    It calls that when all contents are stored: the sooner the branch is moved then, the more rarely others come first.
    What it raises ends this, such as a conflict with the winner's changes. Raises `Conflict` at the deadline.
    """
    first = looked = time.monotonic()

    def look() -> H:
        nonlocal looked
        looked = time.monotonic()
        return find()

    lost = 0
    while isinstance(done := commit(look), LostRace):
        now, head = time.monotonic(), done.winner
        first, lost = first if lost else now, lost + 1
        if now - first > DEADLINE:
            raise Conflict(
                f"others moved branch {head.branch} of {head.dataset} first, {lost:,} times; nothing was published",
                subject=f"{head.dataset}@{head.branch}",
                hint="run the same command again when it is quieter",
            )
        longest = (now - looked) * 2 ** min(lost + 2, 5)  # 8, 16, then 32 times what the attempt took
        time.sleep(random.random() * min(longest, LONGEST))
    return done
