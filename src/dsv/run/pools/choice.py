"""Choosing the pool that a run goes to, by what the pools report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Thread
from time import monotonic
from typing import Final

from dsv.errors import DsvError
from dsv.run.resources import Capacity, PassedOver, Resources, fit


class Prefer(StrEnum):
    CACHED = "cached"
    """Of the pools that can begin now, one that has the data."""
    ORDER = "order"
    """Of the pools that can begin now, the one that was named first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """What is known of a pool, for one job.

    unreachable: why it gave no answer. refused: why its engine can't run the job at all. capacity: None without an
    answer. cached: whether its cache has the data; None if that can't be seen from here. no_room: why the data has no
    room there; None if it has, or if that is not known.
    """

    pool: str
    unreachable: str | None = None
    refused: str | None = None
    capacity: Capacity | None = None
    cached: bool | None = None
    no_room: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """begins: whether the job can begin there now; otherwise it waits there. passed_over: the pools that come before
    in the order, with the reason for each. then: where it may go if it doesn't begin there: those that can ever run it.
    reason: why it can't begin now."""

    pool: str
    begins: bool
    passed_over: tuple[PassedOver, ...] = ()
    then: tuple[str, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class NoPool:
    """None of them can ever run it."""

    passed_over: tuple[PassedOver, ...]


_NOT_CACHED: Final = "it can begin as well, and doesn't have the data cached"


def choose_pool(
    facts: Sequence[PoolFacts], wanted: Resources, prefer: Prefer = Prefer.CACHED
) -> Choice | NoPool:
    """The first pool that can begin the job now, of those one that has the data; else the first that can ever run it.

    facts: in the order in which the pools were named.
    """
    never = {each.pool: why for each in facts if (why := why_never(each, wanted)) is not None}
    able = [each for each in facts if each.pool not in never]
    if not able:
        return NoPool(tuple(PassedOver(pool, why) for pool, why in never.items()))
    not_now = {each.pool: why for each in able if (why := why_not_now(each, wanted)) is not None}
    ready = [each for each in able if each.pool not in not_now]
    if not ready:
        first = able[0].pool
        return Choice(first, False, _before(facts, first, never), _others(able, first), not_now[first])
    cached = [each for each in ready if each.cached] if prefer is Prefer.CACHED else []
    chosen = (cached or ready)[0]
    reasons = {each.pool: _NOT_CACHED for each in ready} | never | not_now
    return Choice(chosen.pool, True, _before(facts, chosen.pool, reasons), _others(able, chosen.pool))


def why_never(facts: PoolFacts, wanted: Resources) -> str | None:
    """Why a pool can't run the job, however long it waits there. None if it can."""
    if facts.unreachable is not None:
        return f"unreachable: {facts.unreachable}"
    if facts.refused is not None:
        return facts.refused
    if facts.no_room is not None:
        return f"no room in its cache: {facts.no_room}"
    assert facts.capacity is not None  # it was reached
    return fit(wanted, facts.capacity).never


def why_not_now(facts: PoolFacts, wanted: Resources) -> str | None:
    """Why a pool that can run the job can't begin now. None if it can."""
    assert facts.capacity is not None  # it was reached
    return fit(wanted, facts.capacity).not_now


def _others(able: Sequence[PoolFacts], chosen: str) -> tuple[str, ...]:
    return tuple(each.pool for each in able if each.pool != chosen)


def _before(facts: Sequence[PoolFacts], chosen: str, why: dict[str, str]) -> tuple[PassedOver, ...]:
    """The pools that were named before the chosen one."""
    names = [each.pool for each in facts]
    return tuple(PassedOver(name, why[name]) for name in names[: names.index(chosen)])


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
