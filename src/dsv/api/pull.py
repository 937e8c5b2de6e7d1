"""Bringing a workspace to the head of its branch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dsv.api.cache_targets import lending
from dsv.api.context import Context
from dsv.api.workspaces import open_to_write
from dsv.errors import DsvError
from dsv.fs.errors import about
from dsv.merge.apply import ContentMerger
from dsv.merge.paths import Choices, Settled
from dsv.repo.errors import missing_commit
from dsv.repo.repository import Repository
from dsv.repo.tree.read import TreeReader
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName
from dsv.values.paths import PathSet
from dsv.workspace.checkout.checkout import Goal, bring_to
from dsv.workspace.checkout.plan import Settlement
from dsv.workspace.open import OpenWorkspace, distance
from dsv.workspace.unfinished import read_begun


@dataclass(frozen=True, slots=True)
class Pulled:
    """The workspace's base after a pull, and how many paths were written for it.

    before: the base before. cached_files, cached_bytes: what came from caches on this machine. without_effect: paths
    for which a side was chosen, but that had no conflict. merged: files that were put together from both sides.
    """

    dataset: DatasetName
    branch: BranchName
    before: CommitId | None
    commit: CommitId | None
    created: int = 0
    replaced: int = 0
    removed: int = 0
    cached_files: int = 0
    cached_bytes: int = 0
    without_effect: tuple[bytes, ...] = ()
    merged: tuple[Settled, ...] = ()

    @property
    def any_change(self) -> bool:
        return self.before != self.commit or bool(self.created or self.replaced or self.removed)


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What to do about paths that were changed here and on the branch.

    Texts below 1 MiB are merged line by line, and CSV and Parquet files by their rows if `table_key` names the column
    that tells them apart. ours: at and below these, what can't be merged stays as it is here, as a local change.
    theirs: there, it goes. both: there, it stays, and what the branch has is written beside it. resolved: the local
    file with the content of a file that both changed.
    """

    ours: PathSet | None = None
    theirs: PathSet | None = None
    table_key: str | None = None
    both: PathSet | None = None
    resolved: dict[bytes, str] = field(default_factory=dict)

    @property
    def choices(self) -> Choices:
        return Choices(self.ours, self.theirs, self.both, self.resolved)


def pull(context: Context, request: PullRequest | None = None) -> Pulled:
    """Moves the workspace to the head of its branch; local changes stay.

    Raises `Conflict`, with nothing written, if both sides changed a path and that can't be settled, or if the branch
    does not descend from the base.
    """
    with open_to_write(context, "dsv pull") as opened:
        return _pull(opened, "dsv pull", request or PullRequest())


def update_workspace(
    context: Context, repository: Repository, dataset: DatasetName, branch: BranchName, command: str
) -> Pulled | DsvError | None:
    """Update the workspace to the head of the branch on which `command` has just published.

    Return None if the command was not typed in a workspace of this branch, and the error if the workspace could not be
    updated, such as a `Conflict` with local changes.
    """
    try:
        found = context.workspace_or_none()
        if found is None or found.store_id != repository.id:
            return None
        with found.locked(command) as (workspace, lock), lending(context, repository, dataset) as copies:
            if (workspace.dataset, workspace.branch) != (dataset, branch):
                return None
            opened = OpenWorkspace(
                workspace, repository, lock, context.writer, context.progress, copies=copies
            )
            return _pull(opened, command, PullRequest())
    except DsvError as error:
        return error


def _pull(opened: OpenWorkspace, command: str, request: PullRequest) -> Pulled:
    workspace, repository = opened.workspace, opened.repository
    base = workspace.base()
    newest = repository.refs.head(workspace.dataset, workspace.branch)
    repository.check_remembered()
    head = newest.commit
    if head is not None:
        workspace.set_seen(workspace.branch, head)
    if head is None or (head == base and not read_begun(workspace.begun_path)):
        without_effect = request.choices.without_effect(())
        return Pulled(workspace.dataset, workspace.branch, base, base, without_effect=without_effect)
    if repository.objects.stored_commit(head) is None:
        raise missing_commit(head, repository.store.url)
    base = opened.proven_base()
    if base is not None and distance(repository.objects, head, base) is None:
        raise opened.not_at_base(newest, base)
    after = TreeReader(repository.objects, head)
    goal = Goal(
        command,
        head,
        hint="dsv pull --ours PATH keeps yours, --theirs PATH takes the branch's, --both PATH keeps both; . means all",
        may_overwrite=_within(request.theirs),
        settlement=_settlement(after, request),
        without_effect=request.choices.without_effect,
        there=f"{str(head)[:12]} by {opened.author(newest)}",
    )
    made = bring_to(opened, base, after, goal)
    return Pulled(
        workspace.dataset, workspace.branch, base, head, made.created, made.replaced, made.removed,
        made.copied, made.copied_bytes, request.choices.without_effect(made.settled), tuple(made.merged),
    )  # fmt: skip


def _within(paths: PathSet | None) -> Callable[[bytes], bool]:
    return lambda path: paths is not None and path in paths


def _settlement(after: TreeReader, request: PullRequest) -> Settlement:
    merger = ContentMerger(after.objects, request.table_key)
    choices = request.choices
    return Settlement(
        may_stay=_within(request.ours),
        keep_both=_within(request.both),
        taken=lambda path: next(iter(after.below(path)), None) is not None,
        merge=lambda change, now, mine: merger.merge_local(change, mine, choices.of(change.path)),
        choice=choices.of,
        resolved=lambda path: _read(request.resolved[path]) if path in request.resolved else None,
        mergeable=lambda change, now: merger.takes(change.path, (change.before, change.after, now)),
    )


def _read(name: str) -> bytes:
    """The content of a resolved file."""
    with about(name):
        return Path(name).read_bytes()
