"""The space of a store: usage (du), expiry of commits, and garbage collection."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec.structs import replace

from dsv.api.context import Context, check_binding
from dsv.errors import Conflict, IntegrityError, NotFound, UsageError
from dsv.format import keys
from dsv.format.pack import PACK_TARGET
from dsv.format.records import ExpiryAction
from dsv.repo.expiry import read_expiry
from dsv.repo.repository import Repository
from dsv.repo.resolve import resolve
from dsv.run.record import is_output
from dsv.stores.base import StoreBackend, StoreMissing
from dsv.stores.open import OpenStore, RequestCounts
from dsv.upkeep.expire import (
    GRACE_SECONDS,
    Expiry,
    ExpiryItem,
    RetentionRules,
    due_ms,
    expire,
    last_expiry,
    plan_expiry,
    undo_expiry,
)
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName, Rev, Target
from dsv.values.units import format_count, format_duration, format_lines, format_time

if TYPE_CHECKING:
    from dsv.upkeep.gc import Collected, Options
    from dsv.upkeep.roots import Name, Parents
    from dsv.upkeep.usage import GroupUsage, MeasuredSpace, PackUsage, Sum

T = TypeVar("T")
_TIMES = 3


def listed_epochs(store: StoreBackend) -> set[tuple[int, str]]:
    """Return the records of garbage collections; they are never deleted."""
    return set(filter(None, (keys.parse_gc_key(item.key) for item in store.list(keys.GC_PREFIX))))


def read_consistently(
    context: Context, look: Callable[[Repository], T], is_right: Callable[[T], bool] = lambda _: True
) -> T:
    """Return what `look` finds. Retry if something is missing and a garbage collection ran at the same time,
    which may have removed it. Raises `Conflict` if that happens each time.
    """
    for _ in range(_TIMES):
        with context.repository() as repository:
            before = listed_epochs(repository.store)
            try:
                found = look(repository)
                if is_right(found) or listed_epochs(repository.store) == before:
                    return found
            except StoreMissing:
                raise
            except (IntegrityError, NotFound):
                if listed_epochs(repository.store) == before:
                    raise
            url = repository.store.url
    raise Conflict(
        f"garbage collections of {url} were at work all the time",
        subject=url,
        hint="when they have ended, run the same command again",
    )


@contextmanager
def room(context: Context) -> Iterator[Path]:
    """A folder for ids, beside the local copies of metadata: temporary folders may be in memory."""
    try:
        context.metadata.mkdir(parents=True, exist_ok=True)
        above = tempfile.TemporaryDirectory(
            prefix="upkeep-", dir=context.metadata, ignore_cleanup_errors=True
        )
    except OSError:
        above = tempfile.TemporaryDirectory(prefix="dsv-upkeep-", ignore_cleanup_errors=True)
    with above as folder:
        yield Path(folder)


Kind = Literal["dataset", "branch", "commit", "range", "folder", "trees", "expired", "outputs"]


@dataclass(frozen=True, slots=True)
class Used:
    """The space that something uses: bytes in packs, with locators and rows; `original`: uncompressed."""

    name: str
    kind: Kind
    commits: int
    objects: int
    stored: int
    alone: int
    """Part of `stored` that nothing else in the store has."""
    shared: int
    original: int
    alone_original: int
    shared_original: int


@dataclass(frozen=True, slots=True)
class StoreUsed:
    total: int
    """Bytes of all keys."""
    needed: Sum
    """Objects that a commit has."""
    expired: Used
    """Expired commits whose content gc has not freed yet; it will free their `alone` bytes."""
    free_from_ms: int | None
    """When gc may free the first of these, without a --grace of its own."""
    outputs: Used
    """Commits with outputs of runs that are not expired."""
    unused: Sum
    """Objects that no commit has."""
    duplicates: Sum
    """Additional copies of objects that a commit has."""
    packs: PackUsage
    indexes: int
    commits: int
    """Bytes of commits and their locators."""
    names: int
    runs: int
    other: int


@dataclass(frozen=True, slots=True)
class SpaceUsage:
    url: str
    items: list[Used]
    lost: int
    """Objects that commits have and no index lists."""
    store: StoreUsed | None = None


def usage(
    context: Context, texts: Sequence[str], *, depth: int | None = None, only_unused: bool = False
) -> SpaceUsage:
    """Measure each `[DATASET][@REV]` or `[DATASET]@REV..REV`; by default the store and each of its datasets.

    A branch means its whole history, a tag or an id only that commit, a range the commits of its end that its
    start lacks. depth: measure the folders of one target. only_unused: the store without datasets.
    """
    if depth is not None and len(texts) != 1:
        raise UsageError("--by-folder measures one target", hint="dsv du DATASET@REV --by-folder 1")
    if only_unused and (texts or depth is not None):
        raise UsageError("--unused is about the whole store, and takes no target", hint="dsv du --unused")
    return read_consistently(
        context,
        lambda repository: _usage(context, repository, texts, depth, only_unused),
        lambda found: not found.lost and (found.store is None or not found.store.packs.missing),
    )


def _usage(
    context: Context, repository: Repository, texts: Sequence[str], depth: int | None, only_unused: bool
) -> SpaceUsage:
    from dsv.upkeep import usage as measuring
    from dsv.upkeep.roots import Parents, kept, read_names

    with room(context) as folder:
        wanted = [_Wanted.parse(context, repository, text) for text in texts]
        context.progress.start(None, None)
        names, parents = read_names(repository), Parents(repository.objects)
        logs = {
            dataset: read_expiry(repository.refs, dataset)
            for dataset in {name.dataset for name in names}
            if dataset is not None
        }
        roots = set(kept(parents, names, lambda dataset: logs[dataset].freed))
        if not texts and not only_unused:
            datasets = sorted(
                {name.dataset for name in names if name.dataset is not None and name.branch is not None}
            )
            wanted = [_Wanted(str(dataset), "dataset", dataset) for dataset in datasets]
        groups = [what.commits(parents, names, roots) for what in wanted]
        unexpired = set(kept(parents, names, lambda dataset: logs[dataset].states))
        expired = [commit for commit in roots if commit not in unexpired]
        versions = [name for name in names if not name.why.startswith("run ")]
        of_runs = unexpired.intersection(name.commit for name in names).difference(kept(parents, versions))
        outputs = [commit for commit in of_runs if is_output(repository.objects.commit(commit))]
        if depth is not None:
            folders, measured = measuring.measure_folders(
                repository, roots, groups[0], depth, folder, context.progress
            )
            ordered = sorted(folders.items(), key=lambda item: (item[0] == measuring.TREES, item[0]))
            items = [
                _used(name.decode("utf-8", "surrogateescape"), "folder", len(groups[0]), part)
                if name
                else _used("(nodes and segments)", "trees", len(groups[0]), part)
                for name, part in ordered
            ]
            return SpaceUsage(repository.store.url, items, measured.unlisted + measured.gone)
        measured = measuring.measure(
            repository, roots, [*groups, expired, outputs], folder, context.progress, packs=not texts
        )
        items = [  # the commits of what runs have left count in bytes alone
            _used(what.name, what.kind, len(what.commits(parents, versions, roots)), part)
            for what, part in zip(wanted, measured.groups[:-2], strict=True)
        ]
        store = None
        if measured.packs is not None:
            sizes = measuring.list_sizes(repository.store)
            shown = [sizes.pop("index/"), sizes.pop("commits/") + sizes.pop("locators/")]
            shown += [sizes.pop("refs/"), sizes.pop("runs/"), sum(sizes.values())]
            total = measured.packs.bytes + sum(shown)
            store = StoreUsed(
                total, measured.reached, _used("", "expired", len(expired), measured.groups[-2]),
                due_ms(repository, logs.values()), _used("", "outputs", len(outputs), measured.groups[-1]),
                measured.unused, measured.duplicates, measured.packs, *shown,
            )  # fmt: skip
        return SpaceUsage(repository.store.url, items, measured.unlisted + measured.gone, store)


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    kind: Kind
    dataset: DatasetName
    commit: CommitId | None = None
    since: CommitId | None = None

    @classmethod
    def parse(cls, context: Context, repository: Repository, text: str) -> _Wanted:
        """Raises `UsageError`, `NotFound`."""
        names, at, revs = text.partition("@")
        first, dots, last = revs.partition("..")
        target = Target.parse(f"{names}{at}{first}")
        if target.path is not None or ":" in last:
            raise UsageError(
                f"dsv du is about whole commits, and {text} names a path",
                subject=text,
                hint=f"dsv du {text.partition(':')[0]} --by-folder 1",
            )
        if dots and not last:
            raise UsageError(
                f"{text!r} names no revision after the ..", subject=text, hint=f"dsv du {text}main"
            )
        dataset = target.dataset
        if dataset is None:
            here = context.workspace_of(text)
            check_binding(here, repository)
            dataset = here.dataset
        if target.rev is None:
            repository.refs.require(dataset)
            return cls(str(dataset), "dataset", dataset)
        found = resolve(repository.refs, repository.objects, dataset, target.rev)
        if dots:
            end = resolve(repository.refs, repository.objects, dataset, Rev.parse(last)).commit
            return cls(f"{dataset}@{revs}", "range", dataset, end, found.commit)
        return cls(f"{dataset}@{revs}", "commit" if found.branch is None else "branch", dataset, found.commit)

    def commits(self, parents: Parents, names: Sequence[Name], roots: set[CommitId]) -> set[CommitId]:
        """Return the wanted commits, except those whose content is freed."""
        from dsv.upkeep.roots import kept

        if self.commit is None:
            return roots.intersection(kept(parents, [one for one in names if one.dataset == self.dataset]))
        if self.kind == "commit":
            return {self.commit}
        seen: set[CommitId] = set()
        if self.since is not None:
            for _ in parents.walk([self.since], seen):
                pass
        return roots.intersection(parents.walk([self.commit], seen))


def _used(name: str, kind: Kind, commits: int, part: GroupUsage) -> Used:
    total, alone, shared = part.total, part.alone, part.shared
    return Used(
        name, kind, commits, total.objects, total.stored, alone.stored, shared.stored,
        total.original, alone.original, shared.original,
    )  # fmt: skip


def expire_commits(
    context: Context, dataset: DatasetName, rules: RetentionRules, message: str = "", *,
    undo_for: int | None = None, dry_run: bool = False,
) -> Expiry:  # fmt: skip
    """Expire the commits of a dataset that no rule keeps. undo_for: seconds until gc may free them. dry_run: no write.

    Raises `UsageError` without a rule, and `NotFound` if there is no such dataset.
    """
    if not rules.any:
        raise UsageError(
            "no rule says which commits stay",
            subject=dataset,
            hint="dsv expire DATASET --keep-last 20 --keep-daily 30, or --older-than 90d; --dry-run shows what would "
            "expire",
        )
    with context.repository() as repository:
        repository.format.check(repository.store.url, writing=not dry_run)
        plan = plan_expiry(repository, dataset, rules, dry_run=dry_run)
        grace = GRACE_SECONDS if undo_for is None else undo_for
        free_from = int(repository.clock() + 1000 * grace) if plan.commits else None
        plan = replace(plan, undo_for=undo_for, free_from_ms=free_from)
        if dry_run:
            return plan
        log = expire(repository, context.writer, plan, message)
        meanwhile = ("named, or kept by somebody, meanwhile",)
        items = [
            replace(one, reasons=meanwhile) if one.expired and one.commit not in log.states else one
            for one in plan.items
        ]
        return replace(plan, items=tuple(items))


def undo_expire(
    context: Context, dataset: DatasetName, commits: Sequence[Rev], message: str = ""
) -> list[ExpiryItem]:
    """Restore expired commits: these, or all of the last expiry. Return those that were expired.

    Raises `NotFound` for an unknown commit, and, after keeping the others, `Conflict` if gc has removed the
    content of one.
    """
    with context.repository() as repository:
        refs, objects = repository.refs, repository.objects
        repository.format.check(repository.store.url, writing=True)
        refs.require(dataset)
        wanted = [resolve(refs, objects, dataset, rev, expired_too=True).commit for rev in commits]
        log = read_expiry(refs, dataset)
        for commit in wanted or last_expiry(log):
            state = log.states.get(commit)
            if state is not None and state.entry.action is ExpiryAction.DELETE:
                raise Conflict(
                    f"dataset {dataset} was deleted by {state.entry.author} ({format_time(state.entry.time_ms)})",
                    subject=dataset,
                    hint=f"dsv datasets --undelete {dataset} brings it back",
                )
        if not wanted and not log.entries:
            raise Conflict(f"no commit of {dataset} ever expired", subject=dataset)
        kept, freed = undo_expiry(repository, context.writer, dataset, wanted or last_expiry(log), message)
        items = [ExpiryItem.of(commit, objects.commit(commit), ["restored"]) for commit in kept]
        if freed:
            also = f"; {format_count(len(items), 'other commit')} restored" if items else ""
            raise Conflict(
                f"gc has removed the content of {format_count(len(freed), 'commit')} of {dataset}, among them "
                f"{str(freed[0])[:12]}{also}",
                subject=str(freed[0]),
                hint=f"dsv log {dataset} shows which commits are left",
            )
        return items


PRICES = "S3 Standard, us-east-1, November 2026: LIST and PUT $0.005, GET $0.0004 per 1,000, DELETE free"
_PAGE = 1000
"""Keys per listing page."""
_SESSION = 2
"""Keys that every garbage collection writes."""
_RECORDS = 5
"""Keys that a garbage collection with deletions writes: its sessions, and its epoch."""
_LISTINGS = 5
"""Listings of sessions and epochs."""
_OWN = 3
"""Keys of its own session, and the missing key that shows whether it may delete."""


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
    def of(cls, counts: RequestCounts) -> Requests:
        return cls(_pages(counts), counts.puts, counts.gets + counts.ranges, counts.deletes)


@dataclass(frozen=True, slots=True)
class OfDataset:
    """The expired commits of a dataset, whose content is not needed after their grace."""

    dataset: DatasetName
    commits: int
    stored: int
    """Bytes in packs that nothing else has."""


@dataclass(frozen=True, slots=True)
class GcForecast:
    """The plan of a garbage collection."""

    url: str
    datasets: list[OfDataset]
    shared: int
    """Bytes that only expired commits of several datasets have."""
    unused: int
    """Bytes that no commit has."""
    packs: PackUsage
    copied: int
    """Bytes to copy out of packs before these are deleted."""
    left: int
    """Packs that are worth rewriting, but are too much for one collection."""
    unfinished: bool
    """An earlier garbage collection was not finished."""
    waiting: int
    """Expired commits whose grace is not over."""
    free_from_ms: int | None
    """When the grace of the first of these ends."""
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


def forecast(context: Context, options: Options) -> GcForecast:
    """Return what `collect` would do, without writing. Grace is measured by this machine's clock.

    Raises `IntegrityError` if a needed object is lost, and the store's errors.
    """
    return read_consistently(context, partial(_forecast, context, options))


def _forecast(context: Context, options: Options, repository: Repository) -> GcForecast:
    from dsv.upkeep.gc import due, expiring
    from dsv.upkeep.roots import known_moves, list_all, read_notes, read_roots
    from dsv.upkeep.usage import measure

    with room(context) as folder:
        store, before = repository.store, _counts(repository)
        context.progress.start(None, None)
        now = time.time()
        going: dict[DatasetName, set[CommitId]] = {}
        logs = [read_expiry(repository.refs, dataset) for dataset in expiring(repository)]
        for log in logs:
            if chosen := due(repository, log, now, options.grace):
                going[log.dataset] = set(chosen)
        waiting = sum(len(log.expired) for log in logs) - sum(map(len, going.values()))
        free_from = due_ms(repository, logs, options.grace) if waiting and not going else None
        freed = {
            dataset: {*read_expiry(repository.refs, dataset).freed, *commits}
            for dataset, commits in going.items()
        }
        known = known_moves(repository, read_notes(_notes(context, repository))[0])
        roots = read_roots(
            repository,
            freed=lambda dataset: freed.get(dataset) or read_expiry(repository.refs, dataset).freed,
            known=known,
        )
        groups = [commits.difference(roots) for commits in going.values()]
        names = _counts(repository) - before
        measured = measure(
            repository, roots, [*groups, set().union(*groups)], folder, context.progress, packs=True,
            max_repack=options.max_repack,
        )  # fmt: skip
        _check(repository, measured)
        listed = [keys.parse_gc_key(item.key) for item in list_all(store, keys.GC_PREFIX, 1)]
        epochs = {
            what: {key[0] for key in listed if key and key[1] == what} for what in ("condemned", "done")
        }
        requests = _estimate(repository, measured, names, _counts(repository) - before)
        assert measured.packs is not None and measured.plan is not None
        datasets = [
            OfDataset(dataset, len(commits), part.alone.stored)
            for dataset, commits, part in zip(going, groups, measured.groups[:-1], strict=True)
        ]
        shared = measured.groups[-1].alone.stored - sum(item.stored for item in datasets)
        return GcForecast(
            store.url, datasets, shared, measured.unused.stored + measured.packs.unindexed_bytes, measured.packs,
            measured.plan.copied, measured.plan.left,
            epochs["condemned"] > epochs["done"], waiting, free_from, requests,
        )  # fmt: skip


def _check(repository: Repository, found: MeasuredSpace) -> None:
    if lost := found.unlisted + found.gone:
        raise IntegrityError(
            f"{repository.store.url} has lost {format_count(lost, 'object')} that commits need, so gc deletes nothing",
            subject=repository.store.url,
            hint="dsv verify lists what is lost, and dsv verify --repair looks for it elsewhere",
        )


def _estimate(
    repository: Repository, found: MeasuredSpace, names: RequestCounts, all_counts: RequestCounts
) -> Requests:
    """Index files and trees are read once. Before a deletion, names are listed and partly read again."""
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


def _counts(repository: Repository) -> RequestCounts:
    store = repository.store
    assert isinstance(store, OpenStore)
    return store.counts


def _pages(counts: RequestCounts) -> int:
    return counts.lists + counts.listed // _PAGE


@dataclass(frozen=True, slots=True)
class Collection:
    url: str
    done: Collected
    requests: Requests


def collect(context: Context, options: Options) -> Collection:
    """Delete data that is not needed, or continue an earlier collection.

    Raises `Conflict` if it waited too long for sessions, and the errors of `Collector.run`.
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
                f"after {format_duration(options.max_wait)} {waited} of {repository.store.url} had not ended; nothing "
                f"was deleted{format_lines(list(done.waited_for))}",
                subject=repository.store.url,
                hint="when they have ended, run the same command again; --max-wait is how long it waits",
            )
        return Collection(repository.store.url, done, Requests.of(_counts(repository) - before))
