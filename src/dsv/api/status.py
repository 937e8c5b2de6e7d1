"""How a workspace differs from its base, and what the next sync will do."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dsv.api.branch_position import BranchPosition, branch_position, fetch_position
from dsv.api.context import Context
from dsv.api.sync_forecast import Findings, Forecast, forecast
from dsv.api.workspace_diff import find_renamed
from dsv.errors import Conflict, Unreachable
from dsv.model.ids import CommitId
from dsv.repo.local_store import LocalStore
from dsv.repo.metadata import MetadataCache
from dsv.repo.objects import Objects
from dsv.worktree.baseline import Baseline, Trees, find_baseline, load_state, save_news
from dsv.worktree.checks import check_paths, check_removals, note_let_go, restorable
from dsv.worktree.held import Collision
from dsv.worktree.scan.problem import Problem
from dsv.worktree.status import Differences, detect_changes, whole_folders
from dsv.worktree.workspace import Workspace

_NAMED = 3
"""Paths that a command line names at most."""


@dataclass(frozen=True, slots=True)
class Status:
    """How a workspace differs from its base.

    problems: what a sync would refuse to store. clashes: pairs of new names that are one if case or
    Unicode is folded. suspicious: why a sync would want `--allow-removals`; None if it would not.
    unfinished: a note about a pull, clone or restore that did not end; None if all did.
    collisions: what is new here, and in the way of what the dataset has and a sparse workspace has not.
    branch: where the branch was when the store last said so. sync: what the next sync will do. renamed: old paths of
    added files, by the new ones; both are among the differences. whole: folders in which everything was added, or
    removed.
    """

    workspace: Workspace
    base: CommitId | None
    differences: Differences
    problems: tuple[Problem, ...]
    clashes: tuple[tuple[bytes, bytes], ...]
    suspicious: str | None
    unfinished: str | None
    collisions: tuple[Collision, ...]
    branch: BranchPosition
    sync: Forecast
    renamed: Mapping[bytes, bytes]
    whole: frozenset[bytes]

    @property
    def is_clean(self) -> bool:
        """Whether a sync would find nothing to do, and nothing to complain about."""
        return not self.differences and not self.problems and not self.collisions


def status(
    context: Context,
    paths: tuple[bytes, ...] = (),
    *,
    rehash: bool = False,
    fetch: bool = False,
    author: Callable[[], str] | None = None,
    renames: bool = False,
) -> Status:
    """Compares the workspace (or these paths of it) with its base.

    The store is asked only for what is not kept locally, so mostly it need not be reachable. Where the branch is, is
    told as the store said when a command last asked it; `fetch` asks it now, and raises `Unreachable`. Files are read
    only if their stats can't tell, or, with `rehash`, always. `author`: who would sign a sync, if that is not the
    context's writer; asked only if the branch's rule names who may move it. renames: looks for them, which reads a few
    new files.
    """
    workspace = context.workspace()
    base = workspace.base()
    if fetch:
        fetch_position(context, workspace, base)
    compare = partial(_compare, context, workspace, base, paths, rehash=rehash, renames=renames)
    with ExitStack() as opened:
        try:
            compared = compare(lambda: _local_objects(context, workspace))
        except Unreachable:  # something has no local copy
            compared = compare(lambda: opened.enter_context(context.bound_repository(workspace)).objects)
    baseline, differences = compared.baseline, compared.differences
    scan, suspicious, problems = baseline.scan, compared.suspicious, compared.problems
    note_let_go(scan, context.progress)
    save_news(workspace, scan.state)
    branch = branch_position(context, workspace, base)
    names_movers = branch.limits is not None and bool(branch.limits.who)
    findings = Findings(
        workspace.dataset,
        workspace.branch,
        base,
        author() if author is not None and names_movers else context.writer.author,
        len(differences),
        len(problems),
        suspicious,
        baseline.begun[-1].finish if baseline.begun else None,
        len(baseline.collisions),
        len(differences.removed),
        "" if suspicious is None else _restore(context.cwd, compared),
    )
    return Status(
        workspace,
        base,
        differences,
        problems,
        tuple(scan.clashes),
        suspicious,
        baseline.warning,
        baseline.collisions,
        branch,
        forecast(findings, branch),
        compared.renamed,
        whole_folders(scan, differences),
    )


@dataclass(frozen=True, slots=True)
class _Compared:
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
    context.progress.start(None, None)
    differences, unread = detect_changes(scan, baseline.entry, context.progress)
    context.progress.finish()
    suspicious = _suspicion(baseline) if scan.missing else None
    renamed = find_renamed(baseline, differences) if renames else {}
    return _Compared(baseline, differences, tuple(scan.problems + unread), suspicious, renamed)


def _local_objects(context: Context, workspace: Workspace) -> Objects:
    """What this machine has copies of; anything else is `Unreachable`."""
    metadata = MetadataCache(context.metadata_folder(workspace.store_id))
    return Objects(LocalStore(context.settings.store().url, metadata), metadata)


def _suspicion(baseline: Baseline) -> str | None:
    try:
        check_removals(baseline.scan, baseline.tree, allowed=False)
    except Conflict as refused:
        return refused.message
    return None


def _restore(cwd: Path, compared: _Compared) -> str:
    """The command line that brings back what is missing, for somebody in `cwd`, and overwrites nothing. Empty if all of
    it was only renamed.
    """
    scan, differences = compared.baseline.scan, compared.differences
    renamed = frozenset(compared.renamed.values())
    if renamed.issuperset(scan.missing):
        return ""
    paths = [
        os.path.relpath(scan.root / os.fsdecode(path), cwd.resolve()) for path in restorable(scan, renamed)
    ]
    if 0 < len(paths) <= _NAMED:
        return "dsv restore " + " ".join(map(shlex.quote, paths))
    return "dsv restore PATH" if differences.changed or differences.retyped else "dsv restore"
