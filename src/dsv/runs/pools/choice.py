"""Which pool a run goes to. Pure: the facts have been asked for before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dsv.model.capacity import Capacity, fit
from dsv.model.pool import PassedOver
from dsv.model.resources import Resources


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
