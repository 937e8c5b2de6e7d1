"""Bringing files of a commit into a workspace that has work in it: pull and restore.

Both plan before they write, write nothing where the plan has a conflict, and never write over what no commit
has, unless they were told that it may go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dsv.api.bases import distance, not_at_base, proven_base
from dsv.api.checkout import Goal, check_out, check_tree
from dsv.api.context import Context
from dsv.api.footing import Footing, working
from dsv.errors import NotFound, UsageError
from dsv.model.diff import Change, pair_entries
from dsv.model.entry import sort_key
from dsv.model.ids import CommitId
from dsv.model.names import BranchName, DatasetName, Target, clean_path
from dsv.model.path_set import PathSet
from dsv.model.paths import show
from dsv.repo.damage import missing_commit
from dsv.repo.repository import Repository
from dsv.repo.trees import TreeReader
from dsv.worktree.checkout_plan import ALWAYS, NEVER, OverwritePolicy
from dsv.worktree.unfinished import read_begun
from dsv.worktree.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Pulled:
    """The workspace's base after a pull, and how many paths were written for it. `before` is the base before."""

    dataset: DatasetName
    branch: BranchName
    before: CommitId | None
    commit: CommitId | None
    created: int = 0
    replaced: int = 0
    removed: int = 0

    @property
    def any_change(self) -> bool:
        return self.before != self.commit or bool(self.created or self.replaced or self.removed)


@dataclass(frozen=True, slots=True)
class Restored:
    """What `commit` has is in the workspace; with no paths named it is the base, too."""

    dataset: DatasetName
    commit: CommitId
    created: int
    replaced: int
    removed: int


def pull(context: Context) -> Pulled:
    """Moves the workspace to the head of its branch; local changes stay.

    Raises `Conflict`, with nothing written, where both sides changed a path, and where the branch does not go
    on from the base.
    """
    workspace = context.workspace()
    with workspace.lock("dsv pull"), context.bound_repository(workspace) as repository:
        base = workspace.base()
        newest = repository.refs.head(workspace.dataset, workspace.branch)
        head = newest.commit
        if head is not None:
            workspace.set_seen(workspace.branch, head)
        if head is None or (head == base and not read_begun(workspace.begun_path)):
            return Pulled(workspace.dataset, workspace.branch, base, base)
        if repository.objects.stored_commit(head) is None:
            raise missing_commit(head, repository.store.url)
        base = proven_base(context, repository, workspace)
        if base is not None and distance(repository.objects, head, base) is None:
            raise not_at_base(context, repository, workspace, newest, base)
        with working(repository, workspace) as footing:
            after = TreeReader(repository.objects, head)
            check_tree(after, workspace.root)
            goal = Goal(
                "dsv pull",
                head,
                lambda: footing.changes_to(after),
                "to drop yours: dsv restore PATH; to keep both: dsv sync --new-branch NAME",
            )
            made = check_out(context, repository.objects, workspace, footing, goal)
        return Pulled(
            workspace.dataset, workspace.branch, base, head, made.created, made.replaced, made.removed
        )


def restore(
    context: Context, paths: tuple[bytes, ...] = (), source: Target | None = None, *, force: bool = False
) -> Restored:
    """Makes these paths, and all below them, what the source (None: the base) has there.

    Naming a path is consent to lose local changes in it; files that no commit has stay, unless they are in
    the way. With no path it is the whole workspace, whose base the source then is: that wants `force` where
    it would lose anything. Raises `Conflict` with nothing written, and `NotFound` for a path that neither
    side has.
    """
    workspace = context.workspace()
    with workspace.lock("dsv restore"), context.bound_repository(workspace) as repository:
        before = workspace.base()
        commit = source_commit(context, repository, workspace, source)
        base = proven_base(context, repository, workspace)
        if source is None and before is not None and base != before:
            raise missing_commit(before, repository.store.url)
        after = TreeReader(repository.objects, commit)
        check_tree(after, workspace.root)
        chosen = PathSet.of(paths)
        may_overwrite: OverwritePolicy = NEVER
        if force:
            may_overwrite = ALWAYS
        elif paths:
            may_overwrite = chosen.__contains__
        with working(repository, workspace) as footing:
            _check_paths(footing, after, chosen)
            # Paths that may differ from what counts as unchanged; all others need no look.
            suspects = frozenset(item.path for item in footing.scan.work())
            goal = Goal(
                "dsv restore",
                commit,
                lambda: _restoring(footing, after, chosen, suspects),
                "to drop a change of yours: dsv restore PATH; to drop all of them: dsv restore --force",
                paths,
                may_overwrite,
            )
            made = check_out(context, repository.objects, workspace, footing, goal)
        return Restored(workspace.dataset, commit, made.created, made.replaced, made.removed)


def source_commit(
    context: Context, repository: Repository, workspace: Workspace, source: Target | None
) -> CommitId:
    """The commit of the workspace's own dataset that `source` (None: the base) means."""
    target = source or Target()
    if target.path is not None:
        raise UsageError(
            f"{target} names a path; name a commit, and the path by itself",
            subject=str(target),
            hint=f"dsv restore {clean_path(target.path).decode(errors='replace')} --from @REV",
        )
    if target.dataset is not None and target.dataset != workspace.dataset:
        # A word that is no dataset at all is told to be none; perhaps it is a branch here.
        context.resolve(repository, target)
        raise UsageError(
            f"{workspace.root} is a workspace of {workspace.dataset}, not of {target.dataset}",
            subject=str(target),
            hint=f"dsv clone {target} DIR",
        )
    return context.resolve(repository, target).commit


def _check_paths(footing: Footing, after: TreeReader, chosen: PathSet) -> None:
    for path in chosen.paths:
        if next(footing.below(path), None) is None and next(after.below(path), None) is None:
            raise NotFound(
                f"{show(path)} is neither in the base nor in {str(after.commit_id)[:12]}",
                subject=path.decode("utf-8", "backslashreplace"),
                hint=f"dsv ls @{str(after.commit_id)[:12]}",
            )


def _restoring(
    before: Footing, after: TreeReader, chosen: PathSet, suspects: frozenset[bytes]
) -> Iterator[Change]:
    """What makes the chosen paths what `after` has, in tree order. suspects: paths that come also if equal."""
    starts = chosen.paths or (b"",)
    runs: list[tuple[bytes, Iterable[Change]]] = [
        (sort_key(path), pair_entries(before.below(path), after.below(path))) for path in starts
    ]
    for path in chosen.ways:
        old = before.entry(path)
        if old is not None and after.entry(path) is None:  # a file here is a folder there
            runs.append((sort_key(path), [Change(path, old, None)]))
    for _, run in sorted(runs, key=lambda each: each[0]):
        for change in run:
            if change.before != change.after or change.path in suspects:
                yield change
