"""Merging branches in the store; a workspace is not needed, and one that follows the branch is brought along."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dsv.api.context import Context, check_binding
from dsv.api.pull import Pulled, bring_along
from dsv.errors import Conflict, DsvError, UsageError
from dsv.format.records import RefEntry
from dsv.merge.apply import ContentMerger, MergeCounts, MergedTree
from dsv.merge.base import MergeBase, find_merge_base
from dsv.merge.paths import Choices
from dsv.repo.name_checks import naming
from dsv.repo.refs.branches import Head, LostRace
from dsv.repo.refs.resolve import resolve
from dsv.repo.repository import Repository
from dsv.repo.tree.read import TreeReader
from dsv.transfer.commit import Committed, Draft, commit_changes
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, BranchName, DatasetName, Rev, Target

ATTEMPTS = 20
"""So often a branch that others move meanwhile is tried again."""


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """What to merge, and how.

    source: a branch, tag or commit of a dataset. into: None means the branch of the workspace, if it is one of this
    dataset, and else `main`. message: None says what is merged. fast_forward: move the branch to `source` without a
    commit of its own if it has nothing that `source` has not. table_key: the column that tells the rows of CSV and
    Parquet files; None merges no tables by rows.
    """

    source: Target
    into: BranchName | None = None
    choices: Choices = field(default_factory=Choices)
    message: str | None = None
    fast_forward: bool = True
    table_key: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Merged:
    """A branch after a merge, or as it would be after it.

    commit: the branch's head now; None if the merge was only tried. before: its head before, if it had a commit.
    source: the commit that was merged. bases: what both were made from. counts: what changed on the branch.
    up_to_date: the branch had all of `source`. fast_forwarded: it had nothing else. without_effect: paths for which a
    side was chosen, but that had no conflict. here: as `bring_along` gives it.
    """

    dataset: DatasetName
    branch: BranchName
    commit: CommitId | None
    before: CommitId | None
    source: CommitId
    bases: tuple[CommitId, ...]
    counts: MergeCounts = field(default_factory=MergeCounts)
    up_to_date: bool = False
    fast_forwarded: bool = False
    uploaded_bytes: int = 0
    without_effect: tuple[bytes, ...] = ()
    here: Pulled | DsvError | None = None


def merge(context: Context, request: MergeRequest) -> Merged:
    """Makes a commit with both sides' changes on a branch, and publishes it; begins anew if the branch moves meanwhile.

    Raises `MergeConflict` with all conflicts, and nothing written, if both sides changed a path and nothing was chosen
    for it.
    """
    with context.repository(request.source) as repository:
        dataset = dataset_of(context, repository, request.source)
        branch = into_branch(context, dataset, request.into)
        source = resolve(repository.refs, repository.objects, dataset, request.source.rev).commit
        for _ in range(ATTEMPTS):
            head = repository.refs.head(dataset, branch)
            repository.check_remembered()
            done = _Merge(context, repository, request, head, source).run()
            if isinstance(done, Merged):
                if done.commit in (None, head.commit):
                    return done
                return replace(done, here=bring_along(context, repository, dataset, branch, "dsv merge"))
        raise too_busy(dataset, branch)


def dataset_of(context: Context, repository: Repository, target: Target) -> DatasetName:
    """The dataset that a target names, or that of the workspace. Raises `UsageError` if there is none."""
    if target.dataset is not None:
        return target.dataset
    workspace = context.workspace_or_none()
    if workspace is None:
        raise UsageError(
            f"{target or 'the target'} names no dataset, and this is no workspace",
            subject=str(target) or None,
            hint=f"write DATASET@{target.rev or 'BRANCH'}; dsv datasets lists the names",
        )
    check_binding(workspace, repository)
    return workspace.dataset


def into_branch(context: Context, dataset: DatasetName, named: BranchName | None) -> BranchName:
    """The branch that was named, else the one that the workspace follows, if it is of this dataset, else `main`."""
    if named is not None:
        return named
    workspace = context.workspace_or_none()
    return workspace.branch if workspace is not None and workspace.dataset == dataset else MAIN


def too_busy(dataset: DatasetName, branch: BranchName) -> Conflict:
    return Conflict(
        f"others moved branch {branch} of {dataset} {ATTEMPTS} times while this was worked out; nothing was published",
        subject=f"{dataset}@{branch}",
        hint="run the same command again when it is quieter",
    )


def check_rule(
    repository: Repository, head: Head, author: str, tree: MergedTree, *, merge: bool = False
) -> None:
    """Raises `Conflict` if the branch's rule refuses the merged tree, before anything is done."""
    entries = 0 if tree.ours is None else tree.ours.commit.entries
    removed = tree.counts.removed
    repository.refs.check_mover(head, author, merge=merge, removed=removed, entries=entries)


class _Merge:
    """One attempt, at one head of the branch."""

    def __init__(
        self, context: Context, repository: Repository, request: MergeRequest, head: Head, source: CommitId
    ) -> None:
        self._context = context
        self._repository = repository
        self._request = request
        self._head = head
        self._source = source
        base = MergeBase(())
        if head.commit is not None:
            base = find_merge_base(repository.objects, head.commit, source)
        self._base = base

    def run(self) -> Merged | LostRace:
        head, bases = self._head, self._base.commits
        if self._source in bases:
            without_effect = self._request.choices.without_effect(())
            return replace(self._result(), commit=head.commit, up_to_date=True, without_effect=without_effect)
        tree = self._work_out()
        if head.commit is None or (head.commit in bases and self._request.fast_forward):
            return self._fast_forward(tree)
        tree.check("; dsv diff shows the sides")
        check_rule(self._repository, head, self._context.writer.author, tree, merge=True)
        if self._request.dry_run:
            return replace(self._result(), counts=tree.counts, without_effect=tree.without_effect)
        return self._commit(head.commit, tree)

    def _work_out(self) -> MergedTree:
        objects, ours = self._repository.objects, self._head.commit
        tree = MergedTree(
            None if ours is None else TreeReader(objects, ours),
            TreeReader(objects, self._source),
            lambda: self._base.changes(objects, ours),
            lambda: self._base.changes(objects, self._source),
            ContentMerger(objects, self._request.table_key),
            self._request.choices,
        )
        tree.work_out()
        return tree

    def _commit(self, ours: CommitId, tree: MergedTree) -> Merged | LostRace:
        message = self._request.message
        if message is None:
            message = f"merge {_name(self._request.source)} into {self._head.branch}"
        draft = Draft(
            self._head.dataset,
            self._head.branch,
            self._head,
            (ours, self._source),
            tree.message(message),
            "merge",
        )
        done = commit_changes(self._repository, self._context.writer, draft, tree.ours, tree.tree_changes)
        if isinstance(done, LostRace):
            return done
        assert isinstance(done, Committed)  # a commit with two parents is always made
        return replace(
            self._result(),
            commit=done.id,
            counts=tree.counts,
            uploaded_bytes=done.uploaded_bytes,
            without_effect=tree.without_effect,
        )

    def _fast_forward(self, tree: MergedTree) -> Merged | LostRace:
        without_effect = tree.without_effect
        forwarded = replace(
            self._result(), counts=tree.counts, fast_forwarded=True, without_effect=without_effect
        )
        head = self._head
        check_rule(self._repository, head, self._context.writer.author, tree, merge=True)
        if self._request.dry_run:
            return forwarded
        entry = RefEntry(
            commit=self._source,
            deleted=False,
            nonce=Nonce.random(),
            time_ms=self._context.clock(),
            author=self._context.writer.author,
            action="merge",
        )
        with naming(self._repository, self._context.writer, self._source, head):
            moved = self._repository.refs.move(head.dataset, head.branch, head, entry)
        return moved if isinstance(moved, LostRace) else replace(forwarded, commit=self._source)

    def _result(self) -> Merged:
        head = self._head
        return Merged(head.dataset, head.branch, None, head.commit, self._source, self._base.commits)


def _name(target: Target) -> str:
    return str(target.rev or Rev(str(MAIN)))
