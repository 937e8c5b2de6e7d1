"""Asking pools what they have: all of them at once, with a bounded wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread
from time import monotonic
from typing import Final

from dsv.errors import DsvError
from dsv.runs.pools.choice import PoolFacts

ANSWERS_WITHIN: Final = 10.0
"""Seconds for all pools together. One that needs longer is shown as unreachable, and the others as they are."""


def ask_all(
    pools: Sequence[str], ask: Callable[[str], PoolFacts], seconds: float = ANSWERS_WITHIN
) -> tuple[PoolFacts, ...]:
    """The facts of each pool, in order. ask: called for each, in a thread of its own; an error that it raises is the
    reason why the pool is unreachable. One that hangs (in a file server that is away) is left behind."""
    answers: dict[str, PoolFacts] = {}

    def note(pool: str) -> None:
        try:
            answers[pool] = ask(pool)
        except DsvError as error:
            answers[pool] = PoolFacts(pool=pool, unreachable=error.message)
        except Exception as error:  # noqa: BLE001 (of one pool: the others are asked nevertheless)
            answers[pool] = PoolFacts(pool=pool, unreachable=str(error) or type(error).__name__)

    threads = [Thread(target=note, args=(pool,), name="dsv-pool", daemon=True) for pool in pools]
    for thread in threads:
        thread.start()
    deadline = monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))
    late = f"no answer in {seconds:.0f} s"
    return tuple(answers.get(pool) or PoolFacts(pool=pool, unreachable=late) for pool in pools)
