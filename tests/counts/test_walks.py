"""How many round trips a walk down a long history takes: commits are read ahead, whichever command walks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from dsv.api.context import Context
from dsv.api.copy import CopyRequest, copy
from dsv.api.datasets import resolve
from dsv.api.diff import diff, show
from dsv.api.log import LogQuery, log
from dsv.repo.repository import Repository
from dsv.stores import open as opening
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, Target
from tests.kit.people import SCANS, Kept, Person, every_store_is
from tests.kit.repositories import commit, create
from tests.kit.round_trips import DistantStore

COMMITS = 200
BACK = 150


@pytest.fixture(scope="module")
def distant() -> tuple[DistantStore, list[CommitId]]:
    """A store whose `main` has 200 commits: each changes one of twenty folders."""
    store = DistantStore()
    writer = create(store)
    made = [commit(writer, {f"d{n % 20}/f": b"%d" % n, f"d{n % 20}/g{n}": b"x"}) for n in range(COMMITS)]
    return store, made


def _resolve(context: Context, made: list[CommitId]) -> None:
    assert resolve(context, Target.parse(f"scans@main~{BACK}")).commit == made[-1 - BACK]


def _resolve_id(context: Context, made: list[CommitId]) -> None:
    """An id says nothing about its place in a branch."""
    assert resolve(context, Target.parse(f"scans@{made[-20]}~{BACK}")).commit == made[-20 - BACK]


def _show(context: Context, made: list[CommitId]) -> None:
    with show(context, Target.parse(f"scans@main~{BACK}")) as shown:
        assert shown.id == made[-1 - BACK]


def _diff(context: Context, made: list[CommitId]) -> None:
    back, main = (Target.parse(f"scans@{name}") for name in (f"main~{BACK}", "main"))
    with diff(context, back, main) as found:
        assert len(list(found.found.differences)) == BACK + 20


def _log(context: Context, made: list[CommitId]) -> None:
    with log(context, Target(SCANS)) as items:
        assert [item.id for item in items] == made[::-1]


def _log_of_a_path(context: Context, made: list[CommitId]) -> None:
    with log(context, Target(SCANS), LogQuery(paths=(b"d3/f",))) as items:
        assert [item.id for item in items] == made[3::20][::-1]


def _log_of_a_file(context: Context, made: list[CommitId]) -> None:
    with log(context, Target(SCANS), LogQuery(follow=b"d3/f")) as items:
        assert [item.id for item in items] == made[3::20][::-1]


@pytest.mark.parametrize(
    ("walk", "most"),
    [
        (_resolve, 40),
        (_resolve_id, 40),
        (_show, 40),
        (_diff, 40),
        (_log, 40),
        (_log_of_a_path, 80),
        (_log_of_a_file, 90),
    ],
)
def test_a_walk_reads_many_commits_at_a_time(
    distant: tuple[DistantStore, list[CommitId]],
    tmp_path: Path,
    walk: Callable[[Context, list[CommitId]], None],
    most: int,
) -> None:
    store, made = distant
    with every_store_is(OpenStore(store)):
        person = Person(tmp_path, "/nowhere")
        with store.trips.counted():
            walk(person.context(tmp_path), made)
    assert store.trips.now <= most, store.trips


def test_a_copy_reads_what_many_commits_changed_at_a_time(
    distant: tuple[DistantStore, list[CommitId]], tmp_path: Path
) -> None:
    store, made = distant
    there = OpenStore(MemoryStore())
    with every_store_is(OpenStore(store)):
        own = opening.open_store

        def opened(url: object, *_: object, **__: object) -> OpenStore:
            return Kept(there) if "other" in str(url) else own("")

        with mock.patch.object(opening, "open_store", opened), store.trips.counted():
            copy(
                Person(tmp_path, "/nowhere").context(tmp_path),
                Target(SCANS),
                "/other",
                CopyRequest(create=True),
            )
    assert Repository.open(there, None).refs.head(SCANS, MAIN).commit == made[-1]
    assert store.trips.now <= 120, store.trips
