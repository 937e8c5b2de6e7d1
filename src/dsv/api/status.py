"""The status of a workspace: what a sync would do, where the branch is, and the next command to type."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from dsv.errors import Conflict, Unreachable
from dsv.values.units import format_count
from dsv.workspace.baseline import (
    Trees,
    check_paths,
    check_removals,
    find_baseline,
    left_out,
    load_state,
    note_let_go,
    save_news,
)
from dsv.workspace.scan.result import Differences, detect_changes, whole_folders

if TYPE_CHECKING:
    from dsv.api.context import Context
    from dsv.format.records import BranchLimits
    from dsv.repo.objects.objects import Objects
    from dsv.transfer.stable_read import Problem
    from dsv.values.ids import CommitId
    from dsv.workspace.baseline import Baseline, Collision
    from dsv.workspace.workspace import Workspace

_LOCAL, _ASKED = 2000, 100
"""Commits that are read to compare two histories: from local copies, and from the store."""


class Position(StrEnum):
    UNKNOWN = "unknown"
    NO_COMMIT = "no-commit"
    GONE = "gone"
    UP_TO_DATE = "up-to-date"
    AHEAD = "ahead"
    BEHIND = "behind"
    DIVERGED = "diverged"
    ELSEWHERE = "elsewhere"
    """Not at the base, and the commits between them have no local copies."""


class BranchPosition(msgspec.Struct, frozen=True):
    position: Position
    commit: CommitId | None = None
    asked_ms: int | None = None
    """When the store reported it."""
    ahead: int | None = None
    """Commits of the base that the branch lacks; None if unknown."""
    behind: int | None = None
    """Commits of the branch that the base lacks; None if unknown."""
    limits: BranchLimits | None = None
    """The rule of a protected branch."""
    way_on: str | None = None
    """The command that helps if the branch is gone; None if it is not known."""


def fetch_position(context: Context, workspace: Workspace, base: CommitId | None) -> None:
    """Ask the store for `branch_position`. Raises `Unreachable`, and `NotFound` for a missing branch."""
    from dsv.repo.history import distance

    with context.bound_repository(workspace) as repository:
        refs, where = repository.refs, (workspace.dataset, workspace.branch)
        head = refs.newest(*where) or refs.head(*where)  # raises if something is missing
        refs.rule(*where)
        if head.commit is not None and not head.entry.deleted:
            distance(repository.objects, base, head.commit, _ASKED)  # makes local copies


def branch_position(context: Context, workspace: Workspace, base: CommitId | None) -> BranchPosition:
    answer = workspace.tracking().branches.get(str(workspace.branch))
    if answer is None:
        return BranchPosition(Position.UNKNOWN)
    commit, asked, limits = answer.commit_id, answer.time_ms, answer.limits or None
    if commit is None or answer.deleted:
        position = Position.GONE if answer.deleted else Position.NO_COMMIT
        return BranchPosition(position, None, asked, limits=limits, way_on=answer.way_on)
    if commit == base:
        return BranchPosition(Position.UP_TO_DATE, commit, asked, 0, 0, limits)
    from dsv.repo.history import distance

    found = distance(_local_objects(context, workspace, workspace.store), base, commit, _LOCAL)
    if found is None:
        return BranchPosition(Position.ELSEWHERE, commit, asked, limits=limits)
    position = Position.AHEAD if found.ahead else Position.BEHIND
    if found.ahead and found.behind:
        position = Position.DIVERGED
    return BranchPosition(position, commit, asked, found.ahead, found.behind, limits)


_BESIDE = " --new-branch NAME"


class SyncForecast(msgspec.Struct, frozen=True):
    """The expected result of a sync."""

    outcome: Literal["nothing", "publish", "refused"]
    reason: str | None
    """Why the sync would be refused, if it would."""
    next: tuple[str, ...]
    """Command lines, in the order to type them. The user replaces NAME and PATH in them."""
    instead: str | None = None
    """The command line that publishes the removals that `next` would restore."""


def _forecast(workspace: Workspace, compared: _Compared, branch: BranchPosition, author: str) -> SyncForecast:
    """Return the obstacles to a sync, and the commands that resolve them."""
    reasons: list[str] = []
    options = ""
    differences, problems = compared.differences, compared.problems
    if problems:
        reasons.append(f"{format_count(len(problems), 'path')} can't be stored")
        options += " --skip-unsupported"
    if compared.baseline.collisions:
        paths = format_count(len(compared.baseline.collisions), "path")
        reasons.append(f"{paths} in the way of files that this sparse workspace leaves out")
    before, beside, after = _by_branch(workspace, branch, author, reasons, differs=bool(differences))
    if compared.baseline.collisions:
        before = [f"mv {shlex.quote(os.fsdecode(compared.baseline.collisions[0].path))} NAME", *before]
    instead: str | None = None
    sync = "dsv sync" + (_BESIDE if beside else "") + options
    if compared.suspicious is not None:
        reasons.append("it would remove too much")
        restore = _restore(compared)
        steps = [restore, *before]
        if len(differences) > len(differences.removed) or problems:
            steps += [sync, *after]
        instead = f"{sync} --allow-removals"
        if not restore:
            steps, instead = [*before, f"{sync} --allow-removals", *after], None
    else:
        differs = bool(differences or problems)
        steps = [*before, *([sync] if differs or beside else []), *after]
    if compared.baseline.begun:
        steps, instead = [compared.baseline.begun[-1].finish], None
    if reasons:
        return SyncForecast("refused", "; ".join(reasons), tuple(steps), instead)
    return SyncForecast("publish" if differences else "nothing", None, tuple(steps))


def _by_branch(
    workspace: Workspace, branch: BranchPosition, author: str, reasons: list[str], *, differs: bool
) -> tuple[list[str], bool, list[str]]:
    """Return commands before the sync, if it makes a branch, and commands after it; add to `reasons`."""
    name, merge = workspace.branch, f"dsv merge NAME --into {workspace.branch}"
    match branch.position:
        case Position.DIVERGED:
            reasons.append(f"{name} has diverged")
            return [], True, [merge]
        case Position.AHEAD:
            reasons.append(f"{name} was moved back")
            return [], True, []
        case Position.NO_COMMIT if workspace.base() is not None:
            reasons.append(f"{name} has no commit")
            return [], True, []
    before = []
    if branch.position in (Position.BEHIND, Position.ELSEWHERE):
        reasons.append(f"{name} has new commits: pull first")
        before = ["dsv pull"]
    if branch.position is Position.GONE:
        reasons.append(f"branch {name} was deleted or renamed")
        before = [branch.way_on or "dsv status --fetch"]
    if branch.limits is None or not differs:
        return before, False, []
    from dsv.repo.refs.branches import refused_mover

    refused = refused_mover(branch.limits, author, merge=False)
    if refused is None:
        return before, False, []
    reasons.append(f"{name} is protected: {refused}")
    return before, True, [merge] if refused_mover(branch.limits, author, merge=True) is None else []


class WorkspaceStatus(msgspec.Struct, frozen=True):
    """The differences of a workspace from its base."""

    workspace: Workspace
    base: CommitId | None
    differences: Differences
    problems: tuple[Problem, ...]
    """Paths that a sync would refuse to store."""
    clashes: tuple[tuple[bytes, bytes], ...]
    """Pairs of new names that differ only in case or Unicode normalization."""
    suspicious: str | None
    """Why a sync would need `--allow-removals`, if it would."""
    unfinished: str | None
    """A note about an interrupted pull, clone or restore."""
    collisions: tuple[Collision, ...]
    """New paths in the way of dataset paths outside a sparse workspace."""
    branch: BranchPosition
    """The branch when the store was last asked."""
    sync: SyncForecast
    renamed: Mapping[bytes, bytes]
    """Old paths of renamed files by new path; `differences` has both."""
    whole: frozenset[bytes]
    """Folders in which every path was added, or every path removed."""

    @property
    def is_clean(self) -> bool:
        """Return whether nothing differs, and nothing that can't be stored may hide a difference."""
        return not (self.differences or self.collisions or any(one.data for one in self.problems))


def status(
    context: Context,
    paths: tuple[bytes, ...] = (),
    *,
    rehash: bool = False,
    fetch: bool = False,
    author: Callable[[], str] | None = None,
    renames: bool = False,
) -> WorkspaceStatus:
    """Compare the workspace (or these paths of it) with its base.

    The store is asked only for data that has no local copy. The branch's position is the one that the store
    reported last; `fetch` asks for it now, and raises `Unreachable`. Files are read only if their stats leave
    a doubt, or always with `rehash`. author: returns the signer of a sync, if not the context's writer;
    called only if the branch's rule names who may move it. renames: detect them, which reads a few new files.
    """
    workspace = context.workspace()
    base = workspace.base()
    if fetch:
        fetch_position(context, workspace, base)
    compare = partial(_compare, context, workspace, base, paths, rehash=rehash, renames=renames)
    with ExitStack() as opened:
        try:
            compared = compare(lambda: _local_objects(context, workspace, context.settings.store().url))
        except Unreachable:  # an object has no local copy
            compared = compare(lambda: opened.enter_context(context.bound_repository(workspace)).objects)
    baseline, differences = compared.baseline, compared.differences
    scan, suspicious, problems = baseline.scan, compared.suspicious, compared.problems
    note_let_go(scan, context.progress)
    if what := left_out(scan):
        context.progress.note(f"dsv sync would remove {what}, after a question (or with --yes)")
    save_news(workspace, scan.state)
    branch = branch_position(context, workspace, base)
    names_movers = branch.limits is not None and bool(branch.limits.who)
    signer = author() if author is not None and names_movers else context.writer.author
    return WorkspaceStatus(
        workspace,
        base,
        differences,
        problems,
        tuple(scan.clashes),
        suspicious,
        baseline.warning,
        baseline.collisions,
        branch,
        _forecast(workspace, compared, branch, signer),
        compared.renamed,
        whole_folders(scan, differences),
    )


class _Compared(msgspec.Struct, frozen=True):
    baseline: Baseline
    differences: Differences
    problems: tuple[Problem, ...]
    suspicious: str | None
    renamed: dict[bytes, bytes]


def _compare(
    context: Context,
    workspace: Workspace,
    base: CommitId | None,
    paths: tuple[bytes, ...],
    objects: Callable[[], Objects],
    *,
    rehash: bool,
    renames: bool,
) -> _Compared:
    trees = Trees(objects)
    check_paths(workspace.root, lambda: trees.of(base), paths)
    baseline = find_baseline(workspace, load_state(workspace), base, trees, paths, rehash=rehash)
    scan = baseline.scan
    differences, unread = detect_changes(scan, baseline.entry, context.progress)
    suspicious = None
    if scan.missing:
        try:
            check_removals(scan, baseline.tree, allowed=False)
        except Conflict as refused:
            suspicious = refused.message
    renamed: dict[bytes, bytes] = {}
    if renames and differences.added and differences.removed:
        from dsv.api.diff import find_renamed

        renamed = find_renamed(baseline, differences)
    return _Compared(baseline, differences, tuple(scan.problems + unread), suspicious, renamed)


def _local_objects(context: Context, workspace: Workspace, url: str) -> Objects:
    """Return the objects that this machine has copies of; reading any other object raises `Unreachable`."""
    from dsv.repo.objects.metadata import LocalStore, MetadataCache
    from dsv.repo.objects.objects import Objects

    metadata = MetadataCache(context.metadata_folder(workspace.store_id))
    return Objects(LocalStore(url, metadata), metadata)


def _restore(compared: _Compared) -> str:
    """Return the command line that restores missing paths; empty if all of them were only renamed or left out."""
    differences, scan = compared.differences, compared.baseline.scan
    if frozenset((*compared.renamed.values(), *scan.ignored_files())).issuperset(scan.missing):
        return ""
    return "dsv restore PATH" if differences.changed or differences.retyped else "dsv restore"
