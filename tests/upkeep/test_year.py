"""A year of a lab: from month to month nothing grows but what the page "What grows" says, and no command slows down.

By hand, `python -m tests.upkeep.lab 5` lives five years with 20 users, and prints what each month left; figures are in
docs/internals/performance.md.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks import year as paper

from dsv.repo.refs.branches import Refs
from dsv.upkeep.gc import Collector
from tests.upkeep.lab import CACHE_FILES, CACHE_SIZE, OPERATIONS, Lab, Month, lab

FOR_GOOD = ("commits", "locators", "refs", "expired", "gc")
"""First parts of the keys that no command removes."""
OBJECTS, COPIES = 5, 60
"""Kept for good for each commit, with its share of tags and runs; and local copies, in both homes and the cache."""
NOISE = 25
"""By which the objects that come and go may differ: index files up to the next merge, packs up to the next gc."""
NOTES = 12
"""Of `expire` and `gc`, by which `log` may read more: seven that are in no joined copy, and a few joined copies."""
BLOCKS = 12_000
"""Bytes on the disk for each object: one or two blocks, and its part of the folders."""


def problems(before: Month, now: Month) -> set[str]:
    """Return what has grown by more than it may between two moments of a lab, by the four kinds of leaks."""
    made, found = now.commits - before.commits, set[str]()
    kept = [sum(one.objects.get(kind, 0) for kind in FOR_GOOD) for one in (before, now)]
    passing = [sum(one.objects.values()) - some for one, some in zip((before, now), kept, strict=True)]
    if kept[1] - kept[0] > OBJECTS * made or passing[1] - passing[0] > NOISE:
        found.add(f"objects stay: {before.objects} became {now.objects}")
    if now.store.bytes > BLOCKS * sum(now.objects.values()):
        found.add(f"objects stay: the store has {now.store}")
    for name in ("workspace", "home"):
        old, new = getattr(before, name), getattr(now, name)
        if new.files - old.files > 3 or new.bytes - old.bytes > 32_000 + 150 * made:
            found.add(f"a folder grows: {name}, {old} became {new}")
    if now.cache.files > 2 * CACHE_FILES or now.cache.bytes > 3 * CACHE_SIZE:  # what is held, and claims
        found.add(f"a folder grows: cache, {before.cache} became {now.cache}")
    if now.copies.files - before.copies.files > COPIES * made:
        found.add(f"a folder grows: copies, {before.copies} became {now.copies}")
    if abs(now.account - now.taken) > 0.02 * now.taken:
        found.add(f"an account drifts: {now.account} of {now.taken}")
    for name, count in now.requests.items():
        if count - before.requests[name] > 4 + NOTES * (name == "log"):
            found.add(f"requests grow: {name}, {before.requests[name]} became {count}")
    return found


@pytest.mark.timeout(3000)
def test_a_year_leaves_what_the_page_says(tmp_path: Path) -> None:
    with lab(tmp_path) as year:
        year.live(365)
    assert len(year.months) == 13 and year.commits == 365
    full = year.months[3:]  # from then on as much expires as is made
    assert [problems(before, now) for before, now in pairwise(full)] == [set()] * (len(full) - 1)
    assert problems(full[0], full[-1]) == set()


def objects_that_stay(year: Lab, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Collector, "_tidy_sessions", lambda _: None)


def a_folder_that_grows(year: Lab, patch: pytest.MonkeyPatch) -> None:
    for one in year.people:
        one.dsv.ok("config", "runs.keep_local", "10y")


def an_account_that_drifts(year: Lab, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dsv.cache.evict.inherit", lambda *_, **__: iter(()))


def requests_that_grow(year: Lab, patch: pytest.MonkeyPatch) -> None:
    """A head whose moves are all read."""
    newest = Refs.newest

    def read_all(refs: Refs, *name: object) -> object:
        head = newest(refs, *name)  # type: ignore[arg-type]
        for _ in () if head is None else refs.history(head):
            pass
        return head

    patch.setattr(Refs, "newest", read_all)


LEAKS = {
    objects_that_stay: "objects stay",
    a_folder_that_grows: "a folder grows",
    an_account_that_drifts: "an account drifts",
    requests_that_grow: "requests grow",
}


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("plant", LEAKS)
def test_a_planted_leak_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Lab, pytest.MonkeyPatch], None]
) -> None:
    with lab(tmp_path, month=14) as year:
        year.live(14)
        plant(year, monkeypatch)
        year.live(14)
    found = problems(*year.months)
    assert {one.partition(":")[0] for one in found} == {LEAKS[plant]}, found


def test_the_costs_of_the_page_are_those_of_the_formula() -> None:
    assert paper.table() in (OPERATIONS.parent / "internals/performance.md").read_text()
