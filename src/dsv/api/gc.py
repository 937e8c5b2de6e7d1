"""Garbage collection of a store: what it would delete, and doing it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dsv.api.consistent_read import read_consistently, room
from dsv.errors import Conflict, IntegrityError
from dsv.format import keys
from dsv.format.pack import PACK_TARGET
from dsv.repo.expiry import read_expiry
from dsv.store.open import Counts, OpenStore
from dsv.values.units import format_count, format_duration, format_lines

if TYPE_CHECKING:
    from pathlib import Path

    from dsv.api.context import Context
    from dsv.repo.repository import Repository
    from dsv.upkeep.gc import Collected, Options
    from dsv.upkeep.usage import Measured, Packs
    from dsv.values.ids import CommitId
    from dsv.values.names import DatasetName

PRICES = "S3 Standard, us-east-1, November 2026: LIST and PUT $0.005, GET $0.0004 per 1,000, DELETE free"
_PAGE = 1000
"""Keys in one answer to a listing."""
_SESSION = 2
"""Keys that a garbage collection puts in any case."""
_RECORDS = 5
"""Keys that one puts that deletes something: its sessions, and its epoch."""
_LISTINGS = 5
"""Listings of sessions and epochs."""
_OWN = 3
"""Keys of its own session, and one that is not there, which tells whether it may delete."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests to the store, and their price on S3 (`PRICES`)."""

    list: int
    put: int
    get: int
    delete: int

    @property
    def usd(self) -> float:
        return round((self.list + self.put) * 5e-6 + self.get * 4e-7, 6)

    @classmethod
    def of(cls, counts: Counts) -> Requests:
        """Return those that were made."""
        return cls(_pages(counts), counts.puts, counts.gets + counts.ranges, counts.deletes)


@dataclass(frozen=True, slots=True)
class OfDataset:
    """What nothing needs any more once the grace of a dataset's expired commits is over."""

    dataset: DatasetName
    commits: int
    stored: int
    """Bytes in packs that nothing else has."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a garbage collection would do."""

    url: str
    datasets: list[OfDataset]
    shared: int
    """Bytes that expired commits of several datasets have, and nothing else."""
    unused: int
    """Bytes that no commit has."""
    packs: Packs
    copied: int
    """Bytes that are copied out of packs before these are deleted."""
    left: int
    """Packs that are worth writing anew, and are too much for one time."""
    unfinished: bool
    """An earlier garbage collection was not finished."""
    requests: Requests

    @property
    def deleted(self) -> int:
        return self.packs.free + self.packs.rewritten

    @property
    def deleted_bytes(self) -> int:
        return self.freed + self.copied

    @property
    def freed(self) -> int:
        return self.packs.free_bytes + self.packs.rewritten_bytes


def forecast(context: Context, options: Options) -> Forecast:
    """Return what `collect` would do; nothing is written. Grace is measured by this machine's clock here.

    Raises `IntegrityError` if something that is needed is lost, and what the store raises.
    """
    return read_consistently(context, partial(_forecast, context, options))


def _forecast(context: Context, options: Options, repository: Repository) -> Forecast:
    from dsv.upkeep.gc import due, expiring
    from dsv.upkeep.roots import known_moves, list_all, read_notes, read_roots
    from dsv.upkeep.usage import measure

    with room(context) as folder:
        store, before = repository.store, _counts(repository)
        context.progress.start(None, None)
        now = time.time()
        going: dict[DatasetName, set[CommitId]] = {}
        for dataset in expiring(repository):
            if chosen := due(repository, read_expiry(repository.refs, dataset), now, options.grace):
                going[dataset] = set(chosen)
        freed = {one: {*read_expiry(repository.refs, one).freed, *commits} for one, commits in going.items()}
        known = known_moves(repository, read_notes(_notes(context, repository))[0])
        roots = read_roots(
            repository,
            freed=lambda one: freed.get(one) or read_expiry(repository.refs, one).freed,
            known=known,
        ).commits
        groups = [commits.difference(roots) for commits in going.values()]
        names = _counts(repository) - before
        found = measure(
            repository, roots, [*groups, set().union(*groups)], folder, context.progress, packs=True,
            max_repack=options.max_repack,
        )  # fmt: skip
        _check(repository, found)
        listed = [keys.parse_gc_key(item.key) for item in list_all(store, keys.GC_PREFIX, 1)]
        epochs = {
            what: {one[0] for one in listed if one and one[1] == what} for what in ("condemned", "done")
        }
        requests = _estimate(repository, found, names, _counts(repository) - before)
        assert found.packs is not None and found.plan is not None
        datasets = [
            OfDataset(one, len(commits), part.alone.stored)
            for one, commits, part in zip(going, groups, found.groups[:-1], strict=True)
        ]
        shared = found.groups[-1].alone.stored - sum(one.stored for one in datasets)
        return Forecast(
            store.url, datasets, shared, found.unused.stored + found.packs.unindexed_bytes, found.packs,
            found.plan.copied, found.plan.left,
            epochs["condemned"] > epochs["done"], requests,
        )  # fmt: skip


def _check(repository: Repository, found: Measured) -> None:
    if lost := found.unlisted + found.gone:
        raise IntegrityError(
            f"needed, and in no pack of {repository.store.url} that is there: {format_count(lost, 'object')}; "
            "gc deletes nothing then",
            subject=repository.store.url,
            hint="dsv verify lists what is lost, and dsv verify --repair looks for it elsewhere",
        )


def _estimate(repository: Repository, found: Measured, names: Counts, all_counts: Counts) -> Requests:
    """Index files and trees are read once. Before anything is deleted, names are listed and partly read again."""
    from dsv.upkeep.roots import list_all

    plan, listed = found.plan, repository.objects.indexes.listed
    assert plan is not None
    deleted = len(plan.whole) + len(plan.rewrite)
    sessions = list_all(repository.store, keys.SESSIONS_PREFIX, 1)
    packs = -(-plan.copied // PACK_TARGET) if plan.rewrite else 0
    reads = (names.gets + names.ranges) * (3 if deleted else 2) // 2
    return Requests(
        list=_pages(all_counts) * (2 if deleted else 1) + _LISTINGS,
        put=packs + 2 * (packs > 0) + found.new_index_files + (_RECORDS if deleted else _SESSION),
        get=reads + len(listed.sizes) + found.index_files + len(plan.rewrite),
        delete=deleted + 2 * found.index_files + len(sessions) + _OWN,
    )


def _notes(context: Context, repository: Repository) -> Path:
    return context.metadata_folder(repository.id).parent / "gc"


def _counts(repository: Repository) -> Counts:
    store = repository.store
    assert isinstance(store, OpenStore)
    return store.counts


def _pages(counts: Counts) -> int:
    return counts.lists + counts.listed // _PAGE


@dataclass(frozen=True, slots=True)
class Collection:
    """What a garbage collection has done."""

    url: str
    done: Collected
    requests: Requests


def collect(context: Context, options: Options) -> Collection:
    """Delete what nothing needs, or continue what an earlier garbage collection has begun.

    Raises `Conflict` if it waited too long for sessions, and what `Collector.run` raises.
    """
    from dsv.upkeep.gc import Collector

    with context.repository() as repository, room(context) as folder:
        before = _counts(repository)
        context.progress.start(None, None)
        done = Collector(
            repository, context.writer, folder / "gc", options, context.progress,
            notes=_notes(context, repository),
        ).run()  # fmt: skip
        if done.gave_up:
            waited = format_count(len(done.waited_for), "session")
            raise Conflict(
                f"after {format_duration(options.max_wait)} {waited} still write to {repository.store.url}; nothing "
                f"was deleted{format_lines([one.text for one in done.waited_for])}",
                subject=str(done.waited_for[0].id) if done.waited_for else repository.store.url,
                hint="when they have ended, run the same command again; --max-wait is how long it waits",
            )
        return Collection(repository.store.url, done, Requests.of(_counts(repository) - before))
