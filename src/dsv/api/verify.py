"""Verify that a store has all that its commits refer to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dsv.api.context import Context, reads_outside
from dsv.api.space import listed_epochs, read_consistently, room
from dsv.errors import IntegrityError, UsageError
from dsv.format import keys
from dsv.repo.objects.objects import Objects
from dsv.repo.repository import Repository
from dsv.upkeep.packs import Schedule
from dsv.upkeep.repair import Repair
from dsv.upkeep.verify import Verification, Verifier
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName, Target


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """The options of a verification."""

    targets: tuple[Target, ...] = ()
    """Datasets, each with all of its history, and single commits; empty for the whole store."""
    full: bool = False
    """Read every byte of every pack."""
    budget: float | None = None
    """Seconds for reading packs of the store, those that were verified longest ago first."""
    repair: bool = False
    """Store again what is lost."""
    sources: tuple[str, ...] = ()
    """Folders with files, and other stores, from which it may come."""


_ROUNDS = 32
"""So often a repair is followed by another at most: what is back may refer to something that is lost, too."""


def verify(context: Context, request: VerifyRequest) -> Verification:
    """Look for damage, mark in the store what was found, and repair it if that is asked for. Raises what keeps the
    question from being answered; packs that could not be asked for are in the result.
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
                return result, repair.repaired

    return read_consistently(context, attempt)


def _sources(context: Context, names: Sequence[str], opened: ExitStack) -> tuple[list[Path], list[Objects]]:
    """Return the folders and the stores among these. Raises `Unreachable` for a name that is neither."""
    folders, stores = [], []
    for name in names:
        path = context.cwd / name
        if "://" not in name and path.is_dir() and not (path / keys.format_key(0)).exists():
            folders.append(path)
        else:
            store = opened.enter_context(context.store(name))
            objects = Repository.open(store, None).objects
            objects.externals.read_source = reads_outside(
                partial(context.store_options, context.settings.store(name))
            )
            stores.append(objects)
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
            whole = Target(target.dataset, target.rev)
            raise UsageError(
                f"dsv verify is about whole commits, and {target} names a path",
                subject=str(target),
                hint=f"dsv verify {whole}",
            )
        if target.rev is None and target.dataset is not None:
            repository.refs.require(target.dataset)
            datasets[target.dataset] = None
        else:
            commits[context.resolve(repository, target).commit] = str(target)
    return list(datasets), commits
