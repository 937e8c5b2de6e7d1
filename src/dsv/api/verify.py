"""Verify that a store has all that its commits refer to."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsv.api.context import Context
from dsv.upkeep.schedule import Schedule
from dsv.upkeep.verify import Verification, Verifier
from dsv.values.names import Target

if TYPE_CHECKING:
    from dsv.repo.repository import Repository
    from dsv.values.ids import CommitId
    from dsv.values.names import DatasetName


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """The options of a verification."""

    targets: tuple[Target, ...] = ()
    """Datasets, each with all of its history, and single commits; empty for the whole store."""
    full: bool = False
    """Read every byte of every pack."""
    budget: float | None = None
    """Seconds for reading packs of the store, those that were verified longest ago first."""


def verify(context: Context, request: VerifyRequest) -> Verification:
    """Look for damage, and mark in the store what was found. Raises what keeps the question from being answered; packs
    that could not be asked for are in the result.
    """
    with context.repository() as repository:
        folder = Path(tempfile.mkdtemp(prefix="dsv-verify-", dir=_scratch(context)))
        try:
            return _verify(context, repository, request, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _scratch(context: Context) -> Path:
    context.metadata.mkdir(parents=True, exist_ok=True)
    return context.metadata


def _verify(context: Context, repository: Repository, request: VerifyRequest, folder: Path) -> Verification:
    verifier = Verifier(repository, context.writer, folder / "needed", context.progress)
    with verifier.needed:
        schedule = Schedule(repository, context.writer) if not request.targets else None
        if request.budget is not None and schedule is not None:
            verifier.read_slices(schedule, request.budget)
            if not verifier.result.packs and verifier.marks is None:
                return verifier.result
        datasets, commits = _chosen(context, repository, request.targets)
        verifier.look_at_names(datasets, commits)
        verifier.look_at_trees()
        verifier.look_at_packs(only_needed=bool(request.targets))
        if request.full and schedule is not None:
            verifier.read_slices(schedule, None)
        elif request.full:
            verifier.read_needed()
        verifier.compare()
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
        if target.rev is None and target.dataset is not None:
            repository.refs.require(target.dataset)
            datasets[target.dataset] = None
        else:
            commits[context.resolve(repository, target).commit] = str(target)
    return list(datasets), commits
