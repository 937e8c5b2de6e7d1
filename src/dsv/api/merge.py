"""Merge a branch into another, and apply or undo the changes of one commit.

No workspace is needed; a workspace that follows the branch is updated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from dsv.api.checkout import Updated, update_workspace
from dsv.api.context import Context, check_binding
from dsv.errors import DsvError, NotFound, UsageError
from dsv.merge.apply import Changes, ContentMerger, MergeBase, MergeCounts, MergedTree, find_merge_base
from dsv.merge.paths import Choices
from dsv.repo.races import publish_in_turn
from dsv.repo.refs.branches import Head, LostRace
from dsv.repo.repository import Repository
from dsv.repo.resolve import resolve
from dsv.repo.session import point_branch
from dsv.repo.tree.diff import PathChange, diff_trees
from dsv.repo.tree.reader import TreeReader
from dsv.transfer.commit import Committed, Draft, commit_changes
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, BranchName, DatasetName, Rev, Target
from dsv.values.paths import PathSet, show

Action = Literal["merge", "cherry-pick", "revert"]


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """The source, the destination and the options of a merge, cherry-pick or revert."""

    source: Target
    """A branch, a tag or a commit."""
    into: BranchName | None = None
    """None means the workspace's branch, if it is one of this dataset, else `main`."""
    choices: Choices = field(default_factory=Choices)
    message: str | None = None
    """None means a message that names the source."""
    table_key: str | None = None
    """The column that identifies the rows of CSV and Parquet files; None merges no tables by row."""
    dry_run: bool = False
    fast_forward: bool = True
    """Merge: move the branch without a new commit if the source has all its commits."""
    paths: PathSet = field(default_factory=PathSet)
    """Cherry-pick and revert: only the changes at and below these paths."""
    mainline: int | None = None
    """Cherry-pick and revert: the number, from 1, of the parent to compare a merge commit with."""


@dataclass(frozen=True, slots=True)
class MergeResult:
    """A branch after a merge, a cherry-pick or a revert; in a dry run, as it would be."""

    dataset: DatasetName
    branch: BranchName
    commit: CommitId | None
    """The head of the branch; None after a dry run."""
    before: CommitId | None
    source: CommitId
    bases: tuple[CommitId, ...] = ()
    counts: MergeCounts = field(default_factory=MergeCounts)
    up_to_date: bool = False
    fast_forwarded: bool = False
    uploaded_bytes: int = 0
    without_effect: tuple[bytes, ...] = ()
    """Paths for which a side was chosen although they had no conflict."""
    here: Updated | DsvError | None = None
    """The update of the workspace, see `update_workspace`."""

    @property
    def any_change(self) -> bool:
        """False if the branch already had these changes."""
        return self.counts.any


def merge(context: Context, request: MergeRequest) -> MergeResult:
    """Publish a commit with the changes of both sides; retry if the branch moves.

    Raises `MergeConflict` with all conflicts, and nothing written, if a path changed by both has no choice.
    """
    return _run(context, request, "merge")


def cherry_pick(context: Context, request: MergeRequest) -> MergeResult:
    """Publish a commit on a branch with the changes of another commit. Raises `MergeConflict`."""
    return _run(context, request, "cherry-pick")


def revert(context: Context, request: MergeRequest) -> MergeResult:
    """Publish a commit on a branch that undoes the changes of another commit. Raises `MergeConflict`."""
    return _run(context, request, "revert")


def _run(context: Context, request: MergeRequest, action: Action) -> MergeResult:
    with context.repository(request.source) as repository:
        workspace = context.workspace_or_none()
        dataset = request.source.dataset
        if dataset is None:
            workspace = context.workspace_of(str(request.source))
            check_binding(workspace, repository)
            dataset = workspace.dataset
        here = workspace is not None and (workspace.store_id, workspace.dataset) == (repository.id, dataset)
        branch = request.into or (workspace.branch if workspace is not None and here else MAIN)
        source = resolve(repository.refs, repository.objects, dataset, request.source.rev).commit

        def commit() -> MergeResult | LostRace:
            head = repository.refs.head(dataset, branch)
            repository.check_last_seen()
            attempt = _Attempt(context, repository, request, action, head, source)
            return attempt.merge() if action == "merge" else attempt.pick()

        done = publish_in_turn(commit)
        if done.commit in (None, done.before):
            return done
        return replace(done, here=update_workspace(context, repository, dataset, branch, f"dsv {action}"))


@dataclass(frozen=True, slots=True)
class _Attempt:
    context: Context
    repository: Repository
    request: MergeRequest
    action: Action
    head: Head
    source: CommitId

    def merge(self) -> MergeResult | LostRace:
        objects, head = self.repository.objects, self.head
        base = MergeBase(()) if head.commit is None else find_merge_base(objects, head.commit, self.source)
        result = replace(self._result(), bases=base.commits)
        if self.source in base.commits:
            without_effect = self.request.choices.without_effect(())
            return replace(result, commit=head.commit, up_to_date=True, without_effect=without_effect)
        tree = self._merged_tree(
            self._tree(self.source),
            lambda: base.changes(objects, head.commit),
            lambda: base.changes(objects, self.source),
        )
        done = replace(result, counts=tree.counts, without_effect=tree.without_effect)
        if head.commit is None or (head.commit in base.commits and self.request.fast_forward):
            return self._fast_forward(tree, replace(done, fast_forwarded=True))
        tree.check("; dsv diff shows the sides")
        self._check_rule(tree)
        message = f"merge {self.request.source.rev or Rev(str(MAIN))} into {head.branch}"
        return self._commit(tree, done, message, (head.commit, self.source))

    def pick(self) -> MergeResult | LostRace:
        base, theirs = self._tree(self._parent()), self._tree(self.source)
        if self.action == "revert":
            base, theirs = theirs, base
        self._check_paths(base, theirs)
        ours = self._tree(self.head.commit)
        tree = self._merged_tree(
            theirs, lambda: diff_trees(base, ours), lambda: self._chosen(diff_trees(base, theirs))
        )
        tree.check("; --ours is what the branch has, --theirs what the commit brings")
        done = replace(self._result(), counts=tree.counts, without_effect=tree.without_effect)
        if not tree.counts.any:
            return replace(done, commit=self.head.commit)
        self._check_rule(tree)
        parents = () if self.head.commit is None else (self.head.commit,)
        taken = tuple(sorted({one.commit_id for one in (base, theirs) if one is not None}))
        return self._commit(tree, done, self._pick_message(), parents, taken)

    def _merged_tree(self, theirs: TreeReader | None, of_ours: Changes, of_theirs: Changes) -> MergedTree:
        merger = ContentMerger(self.repository.objects, self.request.table_key)
        ours = self._tree(self.head.commit)
        tree = MergedTree(ours, theirs, of_ours, of_theirs, merger, self.request.choices)
        tree.work_out()
        return tree

    def _check_rule(self, tree: MergedTree) -> None:
        """Raises `Conflict` if the branch's rule refuses the merged tree, before anything is written."""
        entries = 0 if tree.ours is None else tree.ours.commit.entries
        self.repository.refs.check_mover(
            self.head,
            self.context.writer.author,
            merge=self.action == "merge",
            removed=tree.counts.removed,
            entries=entries,
        )

    def _commit(
        self,
        tree: MergedTree,
        done: MergeResult,
        message: str,
        parents: tuple[CommitId, ...],
        taken_from: tuple[CommitId, ...] = (),
    ) -> MergeResult | LostRace:
        if self.request.dry_run:
            return done
        head, chosen = self.head, self.request.message
        text = tree.message(message if chosen is None else chosen)
        draft = Draft(head.dataset, head.branch, head, parents, text, self.action, taken_from)
        made = commit_changes(self.repository, self.context.writer, draft, tree.ours, tree.tree_changes)
        if isinstance(made, LostRace):
            return made
        if not isinstance(made, Committed):  # a pick that leaves the tree as it is
            return replace(done, commit=head.commit, counts=MergeCounts())
        return replace(done, commit=made.id, uploaded_bytes=made.uploaded_bytes)

    def _fast_forward(self, tree: MergedTree, done: MergeResult) -> MergeResult | LostRace:
        self._check_rule(tree)
        if self.request.dry_run:
            return done
        head, where = self.head, (self.head.dataset, self.head.branch)
        moved = point_branch(self.repository, self.context.writer, where, head, self.source, "merge")
        return moved if isinstance(moved, LostRace) else replace(done, commit=self.source)

    def _result(self) -> MergeResult:
        return MergeResult(self.head.dataset, self.head.branch, None, self.head.commit, self.source)

    def _tree(self, commit: CommitId | None) -> TreeReader | None:
        return None if commit is None else TreeReader(self.repository.objects, commit)

    def _check_paths(self, base: TreeReader | None, theirs: TreeReader | None) -> None:
        """Raises `NotFound` for paths at which the commit changed nothing."""
        for path in self.request.paths.paths:
            one = PathSet.of([path])
            if not any(change.path in one for change in diff_trees(base, theirs)):
                raise NotFound(
                    f"commit {_short(self.source)} changed nothing at {show(path)}",
                    subject=path.decode("utf-8", "backslashreplace"),
                    hint=f"dsv show {self.head.dataset}@{_short(self.source)} shows what it changed",
                )

    def _chosen(self, changes: Iterator[PathChange]) -> Iterator[PathChange]:
        """Yield changes at and below the paths, and removals above them that make way for additions."""
        paths = self.request.paths
        return (
            change
            for change in changes
            if change.path in paths or (change.after is None and paths.touches(change.path))
        )

    def _parent(self) -> CommitId | None:
        """Return the parent to compare with. Raises `UsageError` if it is ambiguous."""
        parents = self.repository.objects.commit(self.source).parents
        mainline = self.request.mainline
        if mainline is None and len(parents) > 1:
            listed = ", ".join(f"{number} is {_short(one)}" for number, one in enumerate(parents, 1))
            raise UsageError(
                f"commit {_short(self.source)} is a merge, so it is not clear which of its changes are meant",
                subject=str(self.request.source),
                hint=f"--mainline N names the parent that they are against: {listed}",
            )
        if mainline is None:
            return parents[0] if parents else None
        if mainline > len(parents):
            count = f"has {len(parents)}" if len(parents) > 1 else "is not a merge"
            raise UsageError(
                f"commit {_short(self.source)} has no parent {mainline}: it {count}",
                subject=str(mainline),
                hint=f"dsv log {self.head.dataset}@{_short(self.source)} -n 1 --json shows its parents",
            )
        return parents[mainline - 1]

    def _pick_message(self) -> str:
        message = self.repository.objects.commit(self.source).message
        if self.action == "revert":
            first = message.partition("\n")[0] or _short(self.source)
            return f'revert "{first}"\n\nThis takes back commit {self.source}.'
        return f"{message}\n\n(cherry-picked from commit {self.source})".lstrip("\n")


def _short(commit: CommitId) -> str:
    return str(commit)[:12]
