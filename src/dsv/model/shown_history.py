"""A history that shows only some of its commits, as if there were no others."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from dsv.model.ids import CommitId


class Walked(NamedTuple):
    """A commit that a walk came to, and whether it is shown."""

    id: CommitId
    parents: tuple[CommitId, ...]
    shown: bool


def shown_parents(walked: Sequence[Walked]) -> dict[CommitId, tuple[CommitId, ...]]:
    """For each shown commit the nearest ancestors that are shown too, without those that another one leads to.

    walked: no commit comes before one of its children. Parents that are not among them are left out.
    """
    places = {one.id: at for at, one in enumerate(walked)}
    nearest: dict[CommitId, tuple[CommitId, ...]] = {}
    above: dict[CommitId, tuple[CommitId, ...]] = {}  # of commits that are not shown
    for one in reversed(walked):
        found: dict[CommitId, None] = {}
        for parent in one.parents:
            found.update(dict.fromkeys((parent,) if parent in nearest else above.get(parent, ())))
        (nearest if one.shown else above)[one.id] = _without_ancestors(tuple(found), nearest, places)
    return nearest


def _without_ancestors(
    commits: tuple[CommitId, ...],
    parents: dict[CommitId, tuple[CommitId, ...]],
    places: dict[CommitId, int],
) -> tuple[CommitId, ...]:
    """Those of the commits that no other one of them descends from."""
    if len(commits) < 2:
        return commits
    left = set(commits)
    last = max(places[one] for one in commits)
    waiting = [
        (places[parent], parent) for one in commits for parent in parents[one] if places[parent] <= last
    ]
    heapq.heapify(waiting)
    seen: set[CommitId] = set()
    while waiting and len(left) > 1:
        _, one = heapq.heappop(waiting)
        if one in seen:
            continue
        seen.add(one)
        left.discard(one)
        for parent in parents[one]:
            if places[parent] <= last:
                heapq.heappush(waiting, (places[parent], parent))
    return tuple(one for one in commits if one in left)
