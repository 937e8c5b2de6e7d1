"""Making paths of a workspace what a commit has there."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dsv.api.context import Context
from dsv.api.workspaces import open_to_write
from dsv.errors import Conflict, NotFound, UsageError
from dsv.repo.errors import missing_commit
from dsv.repo.objects.erasures import erased_error
from dsv.repo.repository import Repository
from dsv.repo.tree.diff import Change, pair_entries
from dsv.repo.tree.read import TreeReader
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName, Target, clean_path
from dsv.values.paths import PathSet, show, sort_key
from dsv.workspace.baseline import Baseline, below, open_baseline
from dsv.workspace.checkout import check_out, check_tree
from dsv.workspace.plan import Counts, Goal, OverwritePolicy
from dsv.workspace.sparse import Held
from dsv.workspace.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Restored(Counts):
    """The commit whose files are in the workspace now. It is the base too, unless paths were named."""

    dataset: DatasetName
    commit: CommitId


def restore(
    context: Context, paths: tuple[bytes, ...] = (), source: Target | None = None, *, force: bool = False
) -> Restored:
    """Make these paths, and all below them, what the source (None: the base) has there.

    Naming a path is consent to lose local changes in it. Files that no commit has stay, unless they are in the way.
    Without a path it is the whole workspace, and the source becomes its base; deleted files come back, and `force` is
    needed if anything would be lost. Raises `Conflict` with nothing written, `NotFound` for a path that neither side
    has, and `Erased`.
    """
    with open_to_write(context, "dsv restore") as opened:
        workspace, repository = opened.workspace, opened.repository
        before = workspace.base()
        commit = source_commit(context, repository, workspace, source)
        base = opened.proven_base()
        if source is None and before is not None and base != before:
            raise missing_commit(before, repository.store.url)
        after = TreeReader(repository.objects, commit)
        chosen = PathSet.of(paths)
        with open_baseline(opened, base, writes=True) as baseline:
            may_overwrite = chosen.__contains__ if paths else _deleted(baseline)
            if force:
                may_overwrite = PathSet().__contains__
            held = baseline.held if paths else baseline.held_of(after)
            check_tree(after, workspace.root, held)
            _check_paths(baseline, after, chosen)
            # Paths that may differ from what counts as unchanged; all others need no look.
            suspects = frozenset(item.path for item in baseline.scan.work())
            goal = Goal(
                "dsv restore",
                commit,
                lambda: _restoring(baseline, after, chosen, held, suspects),
                "dsv restore PATH gives up your changes to it; dsv restore --force gives up all of them",
                paths,
                may_overwrite,
            )
            made = check_out(opened, baseline, goal)
        return Restored(workspace.dataset, commit, **made.counts)


def _deleted(baseline: Baseline) -> OverwritePolicy:
    missing, root = frozenset(baseline.scan.missing), os.fsencode(baseline.scan.root)
    return lambda path: path in missing and not os.path.lexists(root + b"/" + path)


def source_commit(
    context: Context, repository: Repository, workspace: Workspace, source: Target | None
) -> CommitId:
    """Return the commit of the workspace's own dataset that `source` (None: the base) means."""
    target = source or Target()
    if target.path is not None:
        raise UsageError(
            f"{target} names a path; name a commit, and the path by itself",
            subject=str(target),
            hint=f"dsv restore {clean_path(target.path).decode(errors='replace')} --from @REV",
        )
    if target.dataset is not None and target.dataset != workspace.dataset:
        # Raises if it is no dataset at all; the hint then tells of a branch of that name.
        context.resolve(repository, target)
        raise UsageError(
            f"{workspace.root} is a workspace of {workspace.dataset}, not of {target.dataset}",
            subject=str(target),
            hint=f"dsv clone {target} DIR",
        )
    return context.resolve(repository, target).commit


def _check_paths(baseline: Baseline, after: TreeReader, chosen: PathSet) -> None:
    for path in chosen.paths:
        found = after.entry(path)
        if found is not None and (erasure := after.objects.erasures.of(found[0])) is not None:
            raise erased_error(show(path), erasure)
        if next(baseline.below(path), None) is None and next(below(after, path, baseline.held), None) is None:
            if next(after.below(path), None) is not None:
                raise Conflict(
                    f"{show(path)} is not in this workspace, which is sparse",
                    subject=path.decode("utf-8", "backslashreplace"),
                    hint=f"dsv sparse add {shlex.quote(path.decode(errors='replace'))} brings it",
                )
            raise NotFound(
                f"{show(path)} is neither in the base nor in {str(after.commit_id)[:12]}",
                subject=path.decode("utf-8", "backslashreplace"),
                hint=f"dsv ls @{str(after.commit_id)[:12]}",
            )


def _restoring(
    before: Baseline, after: TreeReader, chosen: PathSet, held: Held, suspects: frozenset[bytes]
) -> Iterator[Change]:
    """Yield the changes that give the chosen paths the content of `after`, in tree order. suspects: paths to yield even
    if equal.
    """
    starts = chosen.paths or (b"",)
    runs: list[tuple[bytes, Iterable[Change]]] = [
        (sort_key(path), pair_entries(before.below(path, held), below(after, path, held))) for path in starts
    ]
    for path in chosen.ways:
        old = before.entry(path)
        if old is not None and after.entry(path) is None:  # a file here is a folder there
            runs.append((sort_key(path), [Change(path, old, None)]))
    for _, run in sorted(runs, key=lambda each: each[0]):
        for change in run:
            if change.before != change.after or change.path in suspects:
                yield change
