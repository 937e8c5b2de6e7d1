"""Changing a dataset without a workspace: a list of edits becomes one commit on a branch."""

from __future__ import annotations

import os.path
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dsv.api.context import Context
from dsv.api.edit_plan import Edit, Move, MoveAll, Plan, Put, PutSources, Remove, RemoveAll, make_plan
from dsv.errors import Conflict, NotFound, UsageError
from dsv.format.tree import Entry
from dsv.repo.name_checks import check_new_dataset
from dsv.repo.refs.branches import Head, LostRace, deleted
from dsv.repo.repository import Repository
from dsv.repo.tree.diff import Change, diff_trees
from dsv.repo.tree.overlay import Placed
from dsv.repo.tree.read import TreeReader
from dsv.repo.tree.write import TreeChange
from dsv.store.wrappers import Counting
from dsv.transfer.commit import Committed, Draft, Unchanged, commit_changes
from dsv.transfer.file_reader import Problem, refusal
from dsv.transfer.save import OnStored, Source, save_sources
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, BranchName, DatasetName, TagName, Target
from dsv.values.paths import folders_above, show
from dsv.workspace.sparse import MANY


def branch_to_edit(
    context: Context, repository: Repository, target: Target, *, create: bool
) -> tuple[DatasetName, BranchName, Head | None]:
    """The branch that a target means, `main` if it names none, and its newest move.

    create: a dataset that is not there is no error; it has no move. Raises `NotFound`, and `UsageError` for a target
    without a dataset or with what is no branch.
    """
    dataset, rev = target.dataset, target.rev
    if dataset is None:
        workspace = context.workspace_or_none()
        raise UsageError(
            "the target names no dataset",
            subject=str(target) or None,
            hint="dsv datasets lists the names"
            if workspace is None
            else f"in a workspace, change the files and run dsv sync; or name {workspace.dataset}",
        )
    branch = MAIN if rev is None else BranchName.parse(rev.text)
    if rev is not None and (rev.ancestor or rev.commit_prefix is not None):
        raise UsageError(f"{rev} is no branch, and only a branch gets a commit", subject=str(target))
    head = repository.refs.newest(dataset, branch)
    if head is not None and not head.entry.deleted:
        return dataset, branch, head
    if branch == MAIN and create and head is None:
        check_new_dataset(repository, dataset)
        return dataset, branch, None
    if not repository.refs.exists(dataset):
        raise _no_dataset(context, repository, dataset, target)
    if head is not None:
        raise deleted(head)
    if repository.refs.tag(dataset, TagName.parse(branch)) is not None:
        raise UsageError(
            f"{branch} is a tag of {dataset}, and a tag never moves",
            subject=str(target),
            hint=f"dsv branch NAME {dataset}@{branch} makes a branch there; then name that",
        )
    error = repository.refs.no_name(dataset, branch)
    error.hint = (
        f"dsv branch {dataset}@{branch} {dataset}@main makes it; dsv branch --list {dataset} lists them"
    )
    raise error


def _no_dataset(context: Context, repository: Repository, dataset: DatasetName, target: Target) -> NotFound:
    erased = repository.refs.erased(dataset)
    if erased is not None:
        return erased
    workspace = context.workspace_or_none()
    hint = "dsv datasets lists them; --create makes it"
    if workspace is not None and target.path is None and os.path.lexists(context.cwd / dataset):
        hint = f"{dataset} is a file or folder here: in a workspace, change the files and run dsv sync"
    return NotFound(f"there is no dataset {dataset} in {repository.store.url}", subject=dataset, hint=hint)


__all__ = [
    "Edit",
    "EditRequest",
    "Edited",
    "Move",
    "MoveAll",
    "PathEdit",
    "Put",
    "Remove",
    "RemoveAll",
    "edit",
]


@dataclass(frozen=True, slots=True)
class EditRequest:
    """How to commit edits. action: what the branch's log of moves says.

    create: the dataset is made if it is not there yet. allow_removals: more than half of its files may go.
    skip_unsupported: what can't be stored is left out. dry_run: nothing is written, not even to the store.
    """

    message: str = ""
    action: str = "edit"
    create: bool = False
    allow_removals: bool = False
    skip_unsupported: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class PathEdit:
    """A path that the edits changed: `added`, `changed`, `removed` or `moved`, then with its `old` path."""

    path: bytes
    what: str
    old: bytes | None = None


@dataclass(frozen=True, slots=True)
class Edited:
    """The branch's head after the edits, or before them in a dry run. any_change: whether there was anything to do.

    parent: the head before. files, bytes: of the whole commit, None in a dry run. paths: what the edits come to;
    a file that is put counts as changed though it may have been the same.
    """

    dataset: DatasetName
    branch: BranchName
    commit: CommitId | None
    parent: CommitId | None
    paths: tuple[PathEdit, ...]
    files: int | None
    bytes: int | None
    any_change: bool
    skipped: tuple[Problem, ...] = ()
    uploaded_bytes: int = 0
    uploaded_objects: int = 0
    attempts: int = 1

    def count(self, what: str) -> int:
        return Counter(path.what for path in self.paths)[what]


def edit(context: Context, target: Target, edits: Sequence[Edit], request: EditRequest) -> Edited:
    """Applies the edits in their order, and publishes the result as one commit on the target's branch (`main`).

    If somebody else moves the branch meanwhile, the same changes go on top of theirs, as long as no path was changed by
    both. Killed anywhere, the branch has the whole commit or nothing of it. Raises `NotFound` for a dataset, a branch
    or a path that is not there, `Conflict` for a race over the same paths, a folder that a file would replace, or too
    many removals, and `Unsupported` with a list of all that can't be stored.
    """
    with context.store() as store:
        repository = context.open_repository(store, Target(target.dataset, target.rev))
        return Editing(context, repository, store, target, request).run(edits)


class Editing:
    """Plans edits and publishes them, in a store that is open. stored: told of each content that was read."""

    def __init__(
        self,
        context: Context,
        repository: Repository,
        store: Counting,
        target: Target,
        request: EditRequest,
        stored: OnStored = lambda *_: None,
    ) -> None:
        self._stored = stored
        self._context = context
        self._repository = repository
        self._store = store
        self._request = request
        self._dataset, self._branch, self._head = branch_to_edit(
            context, repository, target, create=request.create
        )
        self._attempts = 1
        self._from_url = False

    def run(self, edits: Sequence[Edit]) -> Edited:
        self._from_url = any(isinstance(one, PutSources) for one in edits)
        base = self._tree(self._head)
        plan = make_plan(base, edits, f"{self._dataset}@{self._branch}")
        self._refuse(plan.problems)
        self._check_removals(plan, base)
        if self._request.dry_run:
            self._repository.refs.check_mover(
                self._head,
                self._context.writer.author,
                removed=sum(what is None for _, what in plan.changes),
                entries=0 if base is None else base.commit.entries,
            )
            head = None if base is None else base.commit_id
            return self._edited(plan, head, head, None, any_change=bool(plan.changes))
        while True:
            done = self._attempt(plan, base)
            if not isinstance(done, LostRace):
                break
            self._attempts += 1
            theirs = self._tree(self._take(done.winner))
            check_no_overlap(plan, diff_trees(base, theirs), done.winner)
            base = theirs
        parent = None if base is None else base.commit_id
        if isinstance(done, Unchanged):
            return self._edited(plan, parent, parent, None if base is None else base.commit, any_change=False)
        return self._edited(plan, done.id, parent, done.commit, any_change=True)

    def _attempt(self, plan: Plan, base: TreeReader | None) -> Committed | Unchanged | LostRace:
        draft = Draft(
            self._dataset,
            self._branch,
            self._head,
            () if base is None else (base.commit_id,),
            self._request.message,
            self._request.action,
        )
        return commit_changes(
            self._repository,
            self._context.writer,
            draft,
            base,
            lambda uploader: self._changes(uploader, plan),
        )

    def _changes(self, uploader: Uploader, plan: Plan) -> Iterator[TreeChange]:
        sources = [what.source for _, what in plan.changes if what is not None and what.source is not None]
        problems = save_sources(uploader, sources, self._context.progress, self._stored)
        self._refuse(problems)
        plan.problems += problems
        for path, what in plan.changes:
            if what is None:
                yield TreeChange(path, None)
            elif what.entry is not None:
                yield TreeChange(path, as_entry(path, what), what.location)
            elif what.source is not None and (change := what.source.change(path)) is not None:
                yield change

    def _tree(self, head: Head | None) -> TreeReader | None:
        commit = None if head is None or head.entry.deleted else head.commit
        return None if commit is None else TreeReader(self._repository.objects, commit)

    def _take(self, winner: Head) -> Head:
        if winner.entry.deleted:
            raise Conflict(
                f"branch {self._branch} of {self._dataset} was deleted meanwhile; nothing was published",
                subject=f"{self._dataset}@{self._branch}",
            )
        self._head = winner
        return winner

    def _refuse(self, problems: Iterable[Problem]) -> None:
        found = list(problems)
        if found and not self._request.skip_unsupported:
            error = refusal(found, "what was to be put")
            ignoring = "" if self._from_url else "name them in .dsvignore, "
            error.hint = f"remove them, {ignoring}or leave them out with --skip-unsupported"
            raise error

    def _check_removals(self, plan: Plan, base: TreeReader | None) -> None:
        before = 0 if base is None else base.commit.entries
        removed = len(plan.lost)
        if self._request.allow_removals or before < MANY or removed * 2 <= before:
            return
        raise Conflict(
            f"this would remove {removed:,} of {before:,} paths of {self._dataset}",
            subject=f"{self._dataset}@{self._branch}",
            hint="--dry-run lists them; --allow-removals removes them",
        )

    def _edited(
        self,
        plan: Plan,
        commit: CommitId | None,
        parent: CommitId | None,
        totals: object,
        *,
        any_change: bool,
    ) -> Edited:
        counts = self._store.counts
        return Edited(
            self._dataset,
            self._branch,
            commit,
            parent,
            tuple(_path_edits(plan)),
            getattr(totals, "files", None),
            getattr(totals, "bytes", None),
            any_change,
            tuple(plan.problems),
            counts.bytes_up,
            counts.won,
            self._attempts,
        )


def as_entry(path: bytes, what: Placed[Source]) -> Entry | None:
    """The entry that a path gets; None for a file that could not be read."""
    if what.entry is not None:
        return what.entry._replace(path=path)
    assert what.source is not None
    return what.source.entry(path)


def check_no_overlap(plan: Plan, theirs: Iterable[Change], winner: Head) -> None:
    """Raises `Conflict` if what somebody else has just published and the plan are about one path.

    The same outcome of both is none, but for a path that was moved: where it went there is what it was.
    """
    ours = dict(plan.changes)
    present = {path for path, what in plan.changes if what is not None}
    folders = {folder for path in present for folder in folders_above(path)}
    moved = set(plan.old.values())
    for change in theirs:
        path = change.path
        if path in ours:
            what = ours[path]
            entry = None if what is None else as_entry(path, what)
            if entry != change.after or path in moved:
                raise _race(path, winner)
        elif change.after is not None and (
            path in folders or any(folder in present for folder in folders_above(path))
        ):
            raise _race(path, winner)


def _race(path: bytes, winner: Head) -> Conflict:
    branch = f"{winner.dataset}@{winner.branch}"
    return Conflict(
        f"{winner.entry.author} has just changed {show(path)} on {branch}; nothing was published",
        subject=path.decode("utf-8", "backslashreplace"),
        hint=f"dsv log {branch} shows the commit; if yours is still right, run the same command again",
    )


def _path_edits(plan: Plan) -> Iterator[PathEdit]:
    moved = set(plan.old.values())
    for path, what in plan.changes:
        if what is None:
            if path not in moved:
                yield PathEdit(path, "removed")
        elif path in plan.old:
            yield PathEdit(path, "moved", plan.old[path])
        else:
            yield PathEdit(path, "changed" if path in plan.had else "added")
