"""Verify that a store has all data of its commits; erase contents permanently, and find remaining copies."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from dsv.api.cache_targets import nearby_caches
from dsv.api.context import Context, reads_outside
from dsv.api.erased_runs import ReadingRun, runs_that_read
from dsv.api.space import listed_epochs, read_consistently, room
from dsv.cache.erasures import OBEYED, still_cached
from dsv.cache.root import CacheRoot
from dsv.errors import Conflict, DsvError, IntegrityError, Unsupported, UsageError
from dsv.format import keys
from dsv.format.locator import ObjectKind
from dsv.format.records import Erasure
from dsv.repo.objects.access import Access
from dsv.repo.objects.objects import Objects
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.stores.open import OpenStore
from dsv.upkeep.copy import Succeeded, make_successor
from dsv.upkeep.erase import DatasetPath, ErasedPath, ErasePlan, Eraser, State, find_packs, refuse_shared
from dsv.upkeep.packs import Schedule
from dsv.upkeep.repair import Repair
from dsv.upkeep.verify import Verification, Verifier
from dsv.values.ids import CommitId, ErasureId, FileId
from dsv.values.names import DatasetName, Target, clean_path
from dsv.values.paths import show

if TYPE_CHECKING:
    from dsv.stores.bucket import BucketVersions, History, OldVersion
    from dsv.upkeep.erase import Choice


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    targets: tuple[Target, ...] = ()
    """Datasets with all of their history, and single commits; empty for the whole store."""
    full: bool = False
    """Read every byte of every pack."""
    budget: float | None = None
    """Seconds for reading packs of the store, least recently verified first."""
    repair: bool = False
    """Store lost objects again."""
    sources: tuple[str, ...] = ()
    """Folders with files, and other stores, to restore them from."""


_ROUNDS = 32
"""The most repairs in a row: each restored object may refer to another lost one."""


def verify(context: Context, request: VerifyRequest) -> Verification:
    """Look for damage, mark it in the store, and repair it if requested.

    Raises errors that prevent the check; packs that could not be read are in the result.
    """
    with ExitStack() as opened:
        folders, stores = _sources(context, request.sources, opened)
        done, repaired = _once(context, request, folders, stores)
        total, oldest = repaired, done.oldest
        for _ in range(_ROUNDS):
            if not repaired:
                break
            done, repaired = _once(context, replace(request, full=False, budget=None), folders, stores)
            total += repaired
        done.repaired, done.oldest = total, oldest
        return done


def _once(
    context: Context, request: VerifyRequest, folders: list[Path], stores: list[Objects]
) -> tuple[Verification, int]:
    """Return the result, and how much was repaired after it."""

    def attempt(repository: Repository) -> tuple[Verification, int]:
        with room(context) as folder:
            verifier = Verifier(
                repository, context.writer, folder, context.progress,
                full=request.full or request.repair, anew=request.full and not request.targets,
            )  # fmt: skip
            with verifier.needed:
                result = _verify(context, verifier, request)
                if not request.repair:
                    return result, 0
                repair = Repair(verifier, context.writer, folders, stores, all_names=not request.targets)
                repair.run()
                if not request.targets:
                    _repair_edges(context, repository)
                return result, repair.repaired

    return read_consistently(context, attempt)


def _repair_edges(context: Context, repository: Repository) -> None:
    """Put the edges of lineage that records of runs lack, and delete those of deleted runs."""

    def root(commit_id: CommitId) -> str | None:
        with suppress(IntegrityError, Unsupported):
            commit = repository.objects.stored_commit(commit_id)
            return None if commit is None else commit.root.hex()
        return None

    from dsv.run.record_store import RunStore  # which few verifications need

    put, deleted = RunStore(repository.store).repair_edges(
        root, lambda _: None
    )  # damaged records are told elsewhere
    if put or deleted:
        context.progress.note(f"edges of lineage: {put:,} put, {deleted:,} of deleted runs removed")


def _sources(context: Context, names: Sequence[str], opened: ExitStack) -> tuple[list[Path], list[Objects]]:
    """Return the folders and the stores among these. Raises `Unreachable` for a name that is neither."""
    folders, stores = [], []
    for name in names:
        path = context.cwd / name
        if "://" not in name and path.is_dir() and not (path / keys.format_key(0)).exists():
            folders.append(path)
        else:
            store = opened.enter_context(context.store(name))
            options = partial(context.store_options, context.settings.store(name))
            access = Access(read_source=reads_outside(options))
            stores.append(Repository.open(store, None, access).objects)
    return folders, stores


def _verify(context: Context, verifier: Verifier, request: VerifyRequest) -> Verification:
    repository = verifier.repository
    before = listed_epochs(repository.store)
    schedule = Schedule(repository, context.writer) if not request.targets else None
    if schedule is not None:
        verifier.look_at_format()
    verifier.look_at_erasures()
    if request.budget is not None and schedule is not None:
        verifier.read_slices(schedule, request.budget)
        if not verifier.result.packs and verifier.marks is None:
            return verifier.result
    datasets, commits = _chosen(context, repository, request.targets)
    verifier.look_at_names(datasets, commits)
    if schedule is not None:
        verifier.look_at_unnamed_commits()
    verifier.look_at_trees()
    verifier.look_at_packs(only_needed=bool(request.targets))
    if not request.full:
        verifier.look_at_sources()
    if request.full and schedule is not None:
        verifier.read_slices(schedule, None)
    elif request.full:
        verifier.read_needed()
    if request.full or request.repair:
        verifier.look_at_hints()
    verifier.compare()
    if not verifier.result.is_whole and listed_epochs(repository.store) != before:
        raise IntegrityError(f"a garbage collection of {repository.store.url} was at work meanwhile")
    verifier.mark()
    return verifier.result


def _chosen(
    context: Context, repository: Repository, targets: Sequence[Target]
) -> tuple[list[DatasetName], dict[CommitId, str]]:
    if not targets:
        return repository.refs.datasets(), {}
    datasets: dict[DatasetName, None] = {}
    commits: dict[CommitId, str] = {}
    for target in targets:
        if target.path is not None:
            raise UsageError(
                f"dsv verify is about whole commits, and {target} names a path",
                subject=str(target),
                hint=f"dsv verify {Target(target.dataset, target.rev)}",
            )
        if target.rev is None and target.dataset is not None:
            repository.refs.require(target.dataset)
            datasets[target.dataset] = None
        else:
            commits[context.resolve(repository, target).commit] = str(target)
    return list(datasets), commits


_PARTS = (ObjectKind.CHUNK, ObjectKind.RECIPE)


@dataclass(frozen=True, slots=True)
class EraseRequest:
    targets: tuple[Target, ...] = ()
    """Each with a path: the contents of the files there, in the target's commit."""
    ids: tuple[FileId, ...] = ()
    reason: str = ""
    shared: Choice | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    items: list[ErasedPath]
    erasures: tuple[ErasureId, ...]
    files: int
    bytes: int
    """Bytes of the files."""
    kept_bytes: int
    """Bytes of these files that are kept because other files have them too."""
    unanswered: tuple[str, ...] = ()
    """Facts about the bucket that could not be determined, as sentences."""
    elsewhere: tuple[str, ...] = ()
    """Where copies of the bytes remain after a garbage collection."""
    runs: tuple[ReadingRun, ...] = ()
    """The runs whose jobs saw the files, newest first."""


def erase(
    context: Context,
    request: EraseRequest,
    show: Callable[[Done], None] = lambda done: None,
    confirm: Callable[[Done], None] = lambda done: None,
) -> Done:
    """Erase contents in every commit of the store.

    show: gets the plan and the paths that share content, before anything is refused. confirm: raises if the
    user refuses. Raises `NotFound`, `Denied`, the errors of reading, and `Conflict` if other paths share
    content and `request` does not decide about them, or if the store changed while the user was asked.
    """
    with context.repository() as repository:
        repository.format.check(repository.store.url, writing=not request.dry_run)
        if repository.format.single_writer:
            raise Unsupported(
                f"{repository.store.url} can't tell which of two writers was first, so nothing is ever removed there",
                subject=repository.store.url,
                hint="dsv copy --all --tags --to NEW --create, dsv erase there, and then delete this store",
            )
        files, places = _wanted(context, repository, request.targets)
        eraser = Eraser(repository, context.progress)
        wanted = [*files, *request.ids], places if not request.ids else None, request.shared
        plan = eraser.plan(*wanted)
        history = _history(context, repository)
        done = Done(
            _items(plan, request.shared), (), len(plan.files), sum(plan.files.values()), plan.kept_bytes,
            tuple(history.unanswered), tuple(history.elsewhere),
            runs_that_read(repository, plan.files.keys(), (place for place, _ in plan.places)),
        )  # fmt: skip
        if request.dry_run or not (plan.files or plan.kept):
            return done
        context.progress.finish()  # its line would stay above what is shown
        show(done)
        refuse_shared(plan, request.shared)
        if not plan.files:
            first = plan.kept[0]
            raise Conflict(
                f"nothing was erased, as other paths have the same content, such as {first.dataset}:"
                f"{first.path.decode('utf-8', 'backslashreplace')}",
                subject=first.dataset,
                hint="--shared erase erases them, too",
            )
        confirm(done)
        if eraser.new_commits(plan):
            plan = eraser.plan(*wanted)
            if _items(plan, request.shared) != done.items:
                raise Conflict(
                    "somebody stored or erased the same content, or a part of it, meanwhile; nothing was erased",
                    subject=repository.store.url,
                    hint="run the same command again, which lists it",
                )
        made = eraser.carry_out(plan, context.writer, request.reason)
        late = _with_state(eraser.late(plan), "damaged")
        return replace(done, items=done.items + late, erasures=tuple(made))


def _history(context: Context, repository: Repository) -> ErasureStatus:
    """Return what keeps old versions and copies of packs, as far as the store reports it."""
    found = ErasureStatus([])
    with suppress(DsvError):
        asked = _ask_history(context, repository, found)
        if asked is not None and asked[1].versioned:
            found.elsewhere.insert(
                0, "old versions in the bucket, which dsv erase --purge deletes after dsv gc"
            )
        if asked is not None and asked[1].locked:
            found.elsewhere.insert(0, "what the bucket's Object Lock keeps, until that ends")
    return found


def successor(context: Context, text: str, new: str) -> Succeeded:
    """Copy the history of a dataset to a new one, without erased content. Raises like `make_successor`."""
    target = Target.parse(text)
    if target.dataset is None or target.rev is not None or target.path is not None:
        raise UsageError(
            f"{text} is not the name of a dataset",
            subject=text,
            hint=f"dsv erase DATASET --successor {new}; dsv datasets lists them",
        )
    with context.repository() as repository:
        return make_successor(repository, context.writer, target.dataset, DatasetName.parse(new))


def _wanted(
    context: Context, repository: Repository, targets: Sequence[Target]
) -> tuple[list[FileId], list[DatasetPath]]:
    files: list[FileId] = []
    places: list[DatasetPath] = []
    for target in targets:
        path = clean_path(target.path)
        if not path:
            raise UsageError(
                f"{target} has no path; dsv erase takes files and folders, not whole datasets",
                subject=str(target),
                hint=f"dsv erase {Target(target.dataset, target.rev)}:PATH, or dsv datasets --delete NAME",
            )
        resolved = context.resolve(repository, target)
        found = [entry for entry, _ in TreeReader(repository.objects, resolved.commit).below(path)]
        if not found:
            raise resolved.no_path(show(path), str(target))
        for entry in found:
            if entry.is_file and entry.size and entry.file_id is not None:
                files.append(entry.file_id)
                places.append(DatasetPath(str(resolved.dataset), entry.path))
        if not any(entry.is_file and entry.size for entry in found):
            raise UsageError(
                f"{target} has no content that could be erased",
                subject=str(target),
                hint="dsv ls -l shows sizes",
            )
    return files, places


def _items(plan: ErasePlan, choice: Choice | None) -> list[ErasedPath]:
    shared = {((file.dataset, file.path), file.file_id) for file in plan.shared}
    paths = [
        ErasedPath(*place, file_id, plan.files[file_id], state="erased")
        for place, file_id in plan.places
        if (place, file_id) not in shared
    ]
    paths += _with_state(plan.shared, "erased" if choice == "erase" else "shared")
    return paths + _with_state(plan.kept, "kept")


def _with_state(items: Iterable[ErasedPath], state: State) -> list[ErasedPath]:
    return [structs.replace(one, state=state) for one in items]


@dataclass(frozen=True, slots=True)
class ErasureItem:
    """An erasure, and the caches that have obeyed it."""

    erasure: ErasureId
    time_ms: int
    author: str
    reason: str
    files: int
    caches: tuple[str, ...]
    """`HOST:PATH` of the caches that have removed the erased files."""
    waiting: tuple[str, ...]
    """Caches that have obeyed another erasure, but not yet this one, and those of this machine that may still
    have the files."""
    deadline_ms: int
    """Caches that have not obeyed at this time are to be removed."""


@dataclass(slots=True)
class ErasureStatus:
    """Where erased contents may remain."""

    items: list[ErasureItem]
    overdue: bool = False
    """A known cache has not obeyed by its deadline."""
    cached: bool = False
    """A cache of this machine may still have the files."""
    packs: int = 0
    """Packs that have erased contents: gc removes them."""
    unindexed: int = 0
    """Packs in no index, which may have erased contents: gc removes them."""
    versions: int = 0
    """Old versions of packs in the bucket that have erased contents."""
    removed_versions: int = 0
    """Old versions that this command deleted."""
    unanswered: list[str] = field(default_factory=list)
    """Problems: facts not determined, and contents not removed."""
    elsewhere: list[str] = field(default_factory=list)
    """Other places that may have copies, unknown to the store."""

    @property
    def is_gone(self) -> bool:
        return not (self.packs or self.unindexed or self.versions or self.cached)


def status(context: Context, *, deadline: float, purge: bool = False) -> ErasureStatus:
    """Look for erased contents in packs and in old versions of packs, and for caches that have obeyed.

    deadline: seconds that caches have. purge: delete the old versions of packs that have erased contents.
    """
    with context.repository() as repository, room(context) as folder:
        done = ErasureStatus(_erasures(repository, deadline))
        if not done.items:
            return done
        _look_at_caches(context, repository, done)
        now = repository.clock()
        done.overdue = any(one.waiting and one.deadline_ms < now for one in done.items)
        done.packs, done.unindexed = find_packs(repository, folder)
        _look_at_versions(context, repository, done, purge=purge)
        return done


def _erasures(repository: Repository, deadline: float) -> list[ErasureItem]:
    erasures: dict[ErasureId, Erasure] = repository.objects.erasures.known
    obeyed: dict[ErasureId, dict[str, str]] = {erasure_id: {} for erasure_id in erasures}
    names: dict[str, str] = {}
    for item in repository.store.list(keys.ERASURE_PREFIX) if erasures else ():
        parsed = keys.parse_obeyed_key(item.key)
        if parsed is not None and parsed[0] in obeyed:
            cache = parsed[1]
            if cache not in names:
                names[cache] = _cache_name(repository, item.key)
            obeyed[parsed[0]][cache] = names[cache]
    items = [
        ErasureItem(
            erasure_id,
            record.time_ms,
            record.author,
            record.reason,
            len(record.files),
            tuple(sorted(obeyed[erasure_id].values())),
            tuple(sorted(names[cache] for cache in names.keys() - obeyed[erasure_id].keys())),
            int(1000 * (repository.store.modified(keys.erasure_key(erasure_id)) + deadline)),
        )
        for erasure_id, record in erasures.items()
    ]
    return sorted(items, key=lambda item: (item.time_ms, item.erasure))


def _look_at_caches(context: Context, repository: Repository, done: ErasureStatus) -> None:
    """Look into each cache that this user has used or configured on this machine."""
    for path in nearby_caches(context.settings):
        name = f"{socket.gethostname()}:{path}"
        try:
            root = CacheRoot(path)
            if not root.exists():
                done.elsewhere.append(f"the cache {name}, which is not there now")
                continue
            left = set(still_cached(root, repository))
        except (OSError, DsvError) as error:
            done.unanswered.append(f"the cache {name} can't be looked into: {error}")
            continue
        done.cached |= bool(left)
        done.items = [
            replace(one, waiting=tuple(sorted({*one.waiting, name}))) if one.erasure in left else one
            for one in done.items
        ]


def _cache_name(repository: Repository, key: str) -> str:
    try:
        said = OBEYED.decode(repository.store.get(key, 1 << 16))
    except (DsvError, msgspec.DecodeError, RecursionError):
        return "a cache without a name"
    return f"{said.host}:{said.path}"


def _ask_history(
    context: Context, repository: Repository, done: ErasureStatus
) -> tuple[BucketVersions, History] | None:
    """Find out what keeps copies of deleted data. Return the versions in the bucket, if it is on S3."""
    store = repository.store
    url = store.data.url if isinstance(store, OpenStore) else store.url
    scheme = url.partition("://")[0] if "://" in url else "file"
    if scheme in ("gs", "az"):
        done.unanswered.append(f"dsv can't tell whether {url} keeps old versions of what is deleted")
    if scheme == "file" and any(Path(url, ".tmp").glob("*")):
        done.elsewhere.append(
            "files in .tmp that killed commands left; the next one that writes removes them after a day"
        )
    if scheme != "s3":
        return None
    from dsv.stores.bucket import BucketVersions

    versions = BucketVersions(url, context.store_options(context.settings.store()))
    history = versions.history()
    done.unanswered += history.unanswered
    done.elsewhere += [f"bucket {one}, to which objects are replicated" for one in history.replicas]
    return versions, history


def _look_at_versions(context: Context, repository: Repository, done: ErasureStatus, *, purge: bool) -> None:
    found = _ask_history(context, repository, done)
    done.elsewhere.append(
        "snapshots and backups of the store, copies that dsv copy or other tools have made, and pages that dsv site "
        "made before"
    )
    if found is None:
        return
    versions, history = found
    erased = repository.objects.erasures.objects.keys()
    for old in versions.old_packs():
        if old.table is None:
            done.unanswered.append(f"version {old.version} of {old.key} can't be read")
        elif any((row.kind, row.id) in erased for row in old.table if row.kind in _PARTS):
            _remove_version(versions, old, done, purge=purge, locked=history.locked)


def _remove_version(
    versions: BucketVersions, old: OldVersion, done: ErasureStatus, *, purge: bool, locked: bool
) -> None:
    failure = versions.delete(old) if purge else ""
    if failure is None:
        done.removed_versions += 1
        return
    done.versions += 1
    if failure:
        why = " (its bucket has Object Lock, which keeps it for some time)" if locked else ""
        done.unanswered.append(f"version {old.version} of {old.key} could not be deleted{why}: {failure}")
