"""Applying or undoing the changes of one commit on a branch; a workspace is not needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from dsv.api.context import Context
from dsv.api.merge import ATTEMPTS, check_rule, dataset_of, into_branch, too_busy
from dsv.api.pull import Pulled, bring_along
from dsv.errors import DsvError, NotFound, UsageError
from dsv.merge.apply import ContentMerger, MergeCounts, MergedTree
from dsv.merge.paths import Choices
from dsv.repo.refs.branches import Head, LostRace
from dsv.repo.refs.resolve import resolve
from dsv.repo.repository import Repository
from dsv.repo.tree.diff import Change, diff_trees
from dsv.repo.tree.read import TreeReader
from dsv.transfer.commit import Committed, Draft, Unchanged, commit_changes
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName, Target
from dsv.values.paths import PathSet, show


@dataclass(frozen=True, slots=True)
class PickRequest:
    """Which commit's changes are meant, and where they go.

    paths: only the changes at and below these. into, choices, message, table_key: as in `MergeRequest`.
    mainline: against which of its parents, from 1, a merge commit's changes are; None for a commit with one parent.
    """

    source: Target
    paths: PathSet = field(default_factory=PathSet)
    into: BranchName | None = None
    mainline: int | None = None
    choices: Choices = field(default_factory=Choices)
    message: str | None = None
    table_key: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Picked:
    """What became of a branch.

    commit: its head now; None if it was only tried. before: its head before. source: whose changes. without_effect,
    here: as in `Merged`.
    """

    dataset: DatasetName
    branch: BranchName
    commit: CommitId | None
    before: CommitId | None
    source: CommitId
    counts: MergeCounts = field(default_factory=MergeCounts)
    uploaded_bytes: int = 0
    without_effect: tuple[bytes, ...] = ()
    here: Pulled | DsvError | None = None

    @property
    def any_change(self) -> bool:
        """False if the branch had these changes already."""
        return self.counts.any


def cherry_pick(context: Context, request: PickRequest) -> Picked:
    """Makes a commit on a branch with what another commit changed.

    Raises `MergeConflict`, and nothing is written, if the branch has something else at a path that would change.
    """
    return _pick(context, request, undo=False)


def revert(context: Context, request: PickRequest) -> Picked:
    """Makes a commit on a branch that takes back what another commit changed. Raises `MergeConflict`."""
    return _pick(context, request, undo=True)


def _pick(context: Context, request: PickRequest, *, undo: bool) -> Picked:
    with context.repository(request.source) as repository:
        dataset = dataset_of(context, repository, request.source)
        branch = into_branch(context, dataset, request.into)
        source = resolve(repository.refs, repository.objects, dataset, request.source.rev).commit
        for _ in range(ATTEMPTS):
            head = repository.refs.head(dataset, branch)
            repository.check_remembered()
            done = _Pick(context, repository, request, head, source, undo).run()
            if isinstance(done, Picked):
                if done.commit in (None, head.commit):
                    return done
                command = f"dsv {_action(undo)}"
                return replace(done, here=bring_along(context, repository, dataset, branch, command))
        raise too_busy(dataset, branch)


def _action(undo: bool) -> str:
    return "revert" if undo else "cherry-pick"


class _Pick:
    """One attempt, at one head of the branch."""

    def __init__(
        self,
        context: Context,
        repository: Repository,
        request: PickRequest,
        head: Head,
        source: CommitId,
        undo: bool,
    ) -> None:
        self._context = context
        self._repository = repository
        self._request = request
        self._head = head
        self._source = source
        self._undo = undo

    def run(self) -> Picked | LostRace:
        before, after = self._parent(), self._source
        if self._undo:
            base, theirs = self._tree(after), self._tree(before)
        else:
            base, theirs = self._tree(before), self._tree(after)
        tree = self._work_out(base, theirs)
        result = Picked(
            self._head.dataset,
            self._head.branch,
            self._head.commit,
            self._head.commit,
            self._source,
            tree.counts,
            without_effect=tree.without_effect,
        )
        if not tree.counts.any:
            return result
        check_rule(self._repository, self._head, self._context.writer.author, tree)
        if self._request.dry_run:
            return replace(result, commit=None)
        taken = {one.commit_id for one in (base, theirs) if one is not None}
        draft = Draft(
            self._head.dataset,
            self._head.branch,
            self._head,
            () if self._head.commit is None else (self._head.commit,),
            tree.message(self._message() if self._request.message is None else self._request.message),
            _action(self._undo),
            tuple(sorted(taken)),
        )
        done = commit_changes(self._repository, self._context.writer, draft, tree.ours, tree.tree_changes)
        if isinstance(done, LostRace):
            return done
        if isinstance(done, Unchanged):
            return replace(result, counts=MergeCounts())
        assert isinstance(done, Committed)
        return replace(result, commit=done.id, uploaded_bytes=done.uploaded_bytes)

    def _work_out(self, base: TreeReader | None, theirs: TreeReader | None) -> MergedTree:
        ours = self._tree(self._head.commit)
        tree = MergedTree(
            ours,
            theirs,
            lambda: diff_trees(base, ours),
            lambda: self._chosen(diff_trees(base, theirs)),
            ContentMerger(self._repository.objects, self._request.table_key),
            self._request.choices,
        )
        self._check_paths(base, theirs)
        tree.work_out()
        tree.check("; --ours is what the branch has, --theirs what the commit brings")
        return tree

    def _check_paths(self, base: TreeReader | None, theirs: TreeReader | None) -> None:
        """Raises `NotFound` for paths at which the commit changed nothing."""
        for path in self._request.paths.paths:
            one = PathSet.of([path])
            if not any(change.path in one for change in diff_trees(base, theirs)):
                raise NotFound(
                    f"commit {_short(self._source)} changed nothing at {show(path)}",
                    subject=path.decode("utf-8", "backslashreplace"),
                    hint=f"dsv show {self._head.dataset}@{_short(self._source)} shows what it changed",
                )

    def _chosen(self, changes: Iterator[Change]) -> Iterator[Change]:
        """Those at and below the paths, and what had to go from above them so that they could be added."""
        paths = self._request.paths
        return (
            change
            for change in changes
            if change.path in paths or (change.after is None and paths.touches(change.path))
        )

    def _tree(self, commit: CommitId | None) -> TreeReader | None:
        return None if commit is None else TreeReader(self._repository.objects, commit)

    def _parent(self) -> CommitId | None:
        """The commit that the changes are against. Raises `UsageError` if it is not clear which."""
        parents = self._repository.objects.commit(self._source).parents
        mainline = self._request.mainline
        if mainline is None and len(parents) > 1:
            listed = ", ".join(f"{number} is {_short(one)}" for number, one in enumerate(parents, 1))
            raise UsageError(
                f"commit {_short(self._source)} is a merge, so it is not clear which of its changes are meant",
                subject=str(self._request.source),
                hint=f"--mainline N names the parent that they are against: {listed}",
            )
        if mainline is None:
            return parents[0] if parents else None
        if mainline > len(parents):
            count = f"has {len(parents)}" if len(parents) > 1 else "is no merge"
            raise UsageError(
                f"commit {_short(self._source)} has no parent {mainline}: it {count}",
                subject=str(mainline),
                hint=f"dsv log {self._head.dataset}@{_short(self._source)} -n 1 --json shows its parents",
            )
        return parents[mainline - 1]

    def _message(self) -> str:
        message = self._repository.objects.commit(self._source).message
        if self._undo:
            first = message.partition("\n")[0] or _short(self._source)
            return f'revert "{first}"\n\nThis takes back commit {self._source}.'
        return f"{message}\n\n(cherry-picked from commit {self._source})".lstrip("\n")


def _short(commit: CommitId) -> str:
    return str(commit)[:12]
