"""Publishing on a branch that others move, too: who loses a race waits and builds on the winner's commit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from dsv.errors import Conflict
from dsv.repo.refs.branches import LostRace

T = TypeVar("T")

DEADLINE: Final = 600.0
"""Seconds for which races may be lost."""
LONGEST: Final = 10.0
"""The most seconds to wait after one."""


def publish_in_turn(commit: Callable[[], T | LostRace]) -> T:
    """Call `commit` until it does not lose the race, with random waits between; return its result.

    commit: makes the commit on the branch's present head, which it reads when all contents are stored: the sooner the
    branch is moved then, the more rarely others come first. What it raises ends this, such as a conflict with the
    winner's changes. Raises `Conflict` if races are lost until the deadline.
    """
    lost, first = 0, 0.0
    while True:
        begin = time.monotonic()
        if not isinstance(done := commit(), LostRace):
            return done
        now, head = time.monotonic(), done.winner
        first, lost = first if lost else now, lost + 1
        if now - first > DEADLINE:
            raise Conflict(
                f"others moved branch {head.branch} of {head.dataset} first, {lost:,} times; nothing was published",
                subject=f"{head.dataset}@{head.branch}",
                hint="run the same command again when it is quieter",
            )
        longest = (now - begin) * 2 ** min(lost + 1, 5)  # 4, 8, 16, then 32 times what the attempt took
        time.sleep(random.random() * min(longest, LONGEST))
