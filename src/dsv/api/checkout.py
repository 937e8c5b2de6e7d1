"""Write the files of a commit into a workspace: pull, switch, restore and rollback."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from msgspec.structs import replace

from dsv.api.branches import make_branch
from dsv.api.cache_targets import lending
from dsv.api.context import Context
from dsv.api.sync import open_to_publish, open_to_write
from dsv.errors import Conflict, Denied, DsvError, NotFound, UsageError
from dsv.format.records import Action, CommitRecord
from dsv.merge.apply import ContentMerger
from dsv.merge.paths import Choices, ConflictChoice, Resolution
from dsv.repo.errors import missing_commit
from dsv.repo.history import distance
from dsv.repo.objects.erasures import erased_error
from dsv.repo.refs.branches import Head, LostRace, no_commit
from dsv.repo.repository import Repository
from dsv.repo.session import Session, check_whole
from dsv.repo.tree.diff import PathChange, diff_trees, pair_entries
from dsv.repo.tree.reader import TreeReader
from dsv.transfer.commit import Draft, new_commit, publish_commit
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName, Target, clean_path
from dsv.values.paths import PathSet, show, sort_key
from dsv.workspace.baseline import Baseline, WorkspacePaths, below, open_baseline
from dsv.workspace.checkout import bring_to, check_out, check_tree
from dsv.workspace.open import OpenWorkspace
from dsv.workspace.plan import Goal, OverwritePolicy, PathCounts
from dsv.workspace.publish import adopt_killed_sync
from dsv.workspace.sync_journal import SyncJournal
from dsv.workspace.workspace import SWITCH, Workspace


class Updated(PathCounts):
    """The result of a pull, a switch or a rollback."""

    dataset: DatasetName
    branch: BranchName
    before: CommitId | None
    """The base before; for a rollback, the branch's head before."""
    commit: CommitId | None
    """The same afterwards; None after a dry run."""
    before_branch: BranchName | None = None
    """The branch that was followed before a switch."""
    made: bool = False
    """The switch created the branch."""
    renamed_from: DatasetName | None = None
    """The dataset's name in the workspace before, if it was renamed."""
    source: CommitId | None = None
    """For a rollback: the commit whose files the new head has."""
    without_effect: tuple[bytes, ...] = ()
    """Paths for which a side was chosen although they had no conflict."""
    merged: Sequence[Resolution] = ()

    @property
    def any_change(self) -> bool:
        moved = self.before != self.commit or self.before_branch not in (None, self.branch)
        return moved or self.renamed_from is not None or self.writes


def pull(context: Context, choices: Choices = Choices(), table_key: str | None = None) -> Updated:
    """Move the workspace to the head of its branch; local changes are kept.

    Texts below 1 MiB that both sides changed are merged by line, CSV and Parquet files by row if `table_key`
    names their key column. Other conflicts are settled by `choices`, where `ours` is the workspace. Raises
    `Conflict`, with nothing written, if a conflict remains or the branch does not descend from the base.
    """
    with open_to_write(context, "dsv pull") as opened:
        return _pull(opened, "dsv pull", choices, table_key)


def update_workspace(
    context: Context, repository: Repository, dataset: DatasetName, branch: BranchName, command: str
) -> Updated | DsvError | None:
    """Update the workspace to the head of the branch on which `command` has just published.

    Return None if the command was not run in a workspace of this branch. Return the error if the workspace
    could not be updated, such as a `Conflict` with local changes.
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
            return _pull(opened, command)
    except DsvError as error:
        return error


def _pull(
    opened: OpenWorkspace, command: str, choices: Choices = Choices(), table_key: str | None = None
) -> Updated:
    workspace, repository = opened.workspace, opened.repository
    base = workspace.base()
    newest = repository.refs.head(workspace.dataset, workspace.branch)
    repository.check_last_seen()
    head = newest.commit
    if head is not None:
        workspace.set_seen(workspace.branch, head)
    if head is None or (head == base and not workspace.begun()):
        without_effect = choices.without_effect(())
        return Updated(workspace.dataset, workspace.branch, base, base, without_effect=without_effect)
    if repository.objects.stored_commit(head) is None:
        raise missing_commit(head, repository.store.url)
    base = opened.proven_base()
    moved = None if base is None else distance(repository.objects, base, head)
    if base is not None and (moved is None or moved.ahead):
        raise opened.not_at_base(newest, base)
    after = TreeReader(repository.objects, head)
    goal = Goal(
        command,
        head,
        hint="dsv pull --ours PATH keeps yours, --theirs PATH takes the branch's, --both PATH keeps both; . means all",
        may_overwrite=lambda path: choices.of(path) is ConflictChoice.THEIRS,
        choices=choices,
        merger=ContentMerger(after.objects, table_key),
        after=after,
        there=f"{str(head)[:12]} by {opened.author(newest)}",
    )
    made = bring_to(opened, base, after, goal)
    without_effect = choices.without_effect(made.resolved)
    done = Updated(
        workspace.dataset, workspace.branch, base, head, without_effect=without_effect, merged=made.merged
    )
    return done.counting(made)


def switch(context: Context, branch: BranchName, *, create: bool = False) -> Updated:
    """Make the workspace follow `branch`, and write its files. create: make it at the base, and write no
    file.

    Local changes are kept. Raises `Conflict`, with nothing written, if a local change is in the way or the
    branch to create exists, and `NotFound` if the branch does not exist. If this is killed while it writes
    files, the same call finishes it, and until then no command takes these files for the user's changes. If
    the dataset was renamed, the workspace takes its new name.
    """
    with open_to_publish(context, f"{SWITCH}{branch}", branch, borrows=True) as opened:
        workspace = opened.workspace
        home = opened.repository.refs.home(workspace.dataset)
        if home != workspace.dataset:
            opened = replace(opened, workspace=workspace.follow(workspace.branch, home))
        if opened.workspace.journal_path.exists():  # a killed sync's commit is the base
            with SyncJournal.open(opened.workspace.journal_path, workspace.store_id) as journal:
                opened = adopt_killed_sync(opened, journal) or opened
        done = _create(context, opened, branch) if create else _switch(opened, branch)
        return done if home == workspace.dataset else replace(done, renamed_from=workspace.dataset)


def _switch(opened: OpenWorkspace, branch: BranchName) -> Updated:
    workspace, repository = opened.workspace, opened.repository
    before = workspace.base()
    head = repository.refs.head(workspace.dataset, branch)
    if head.commit is None:
        if before is not None:
            raise no_commit(head, "dsv sync --branch makes one of what is here")
        opened.following(branch)
        return Updated(head.dataset, branch, None, None, workspace.branch)
    if repository.objects.stored_commit(head.commit) is None:
        raise missing_commit(head.commit, repository.store.url)
    base = opened.proven_base()
    if base == head.commit and not workspace.begun():
        opened.following(branch).workspace.set_seen(branch, head.commit)
        return Updated(head.dataset, branch, before, base, workspace.branch)
    goal = Goal(
        f"{SWITCH}{branch}",
        head.commit,
        hint="to keep yours: dsv sync, or dsv sync --new-branch NAME; to drop yours: dsv restore PATH",
        there=f"{str(head.commit)[:12]} by {opened.author(head)}",
        branch=branch,
    )
    made = bring_to(opened, base, TreeReader(repository.objects, head.commit), goal)
    opened.following(branch).workspace.set_seen(branch, head.commit)
    return Updated(head.dataset, branch, before, head.commit, workspace.branch).counting(made)


def _create(context: Context, opened: OpenWorkspace, branch: BranchName) -> Updated:
    workspace = opened.workspace
    dataset, base = workspace.dataset, opened.proven_base()
    if base is None:
        raise NotFound(
            f"{workspace.root} has no commit yet", subject=str(workspace.root), hint="dsv sync makes one"
        )
    make_branch(context, opened.repository, (dataset, branch), base, Action("create"))
    opened.following(branch).workspace.set_seen(branch, base)
    return Updated(dataset, branch, base, base, workspace.branch, made=True)


class Restored(PathCounts):
    """The commit whose files are now in the workspace. It is also the base, unless paths were given."""

    dataset: DatasetName
    commit: CommitId


def restore(
    context: Context, paths: tuple[bytes, ...] = (), source: Target | None = None, *, force: bool = False
) -> Restored:
    """Make these paths, and all paths below them, equal to the source (None: the base).

    Naming a path is consent to lose its local changes. Files that no commit has are kept, unless in the way.
    Without paths, the whole workspace and its base become the source; deleted files are restored, and `force`
    is needed if anything else would be lost. Raises `Conflict` with nothing written, `NotFound`, `Erased`.
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
            # Only these paths may differ from the entries that count as unchanged.
            scan, hidden = baseline.scan, baseline.scan.hidden
            gone = (path for path in scan.state.gone if hidden is None or path not in hidden)
            suspects = frozenset((*(item.path for item in scan.work()), *gone))
            goal = Goal(
                "dsv restore",
                commit,
                lambda: _restoring(baseline, after, chosen, held, suspects),
                "dsv restore PATH gives up your changes to it; dsv restore --force gives up all of them",
                paths,
                may_overwrite,
            )
            made = check_out(opened, baseline, goal)
            _check_readable(baseline, after, chosen, held)
        return Restored(workspace.dataset, commit).counting(made)


def _deleted(baseline: Baseline) -> OverwritePolicy:
    missing, root = frozenset(baseline.scan.missing), os.fsencode(baseline.scan.root)
    return lambda path: path in missing and not os.path.lexists(root + b"/" + path)


def source_commit(
    context: Context, repository: Repository, workspace: Workspace, source: Target | None
) -> CommitId:
    """Return the commit of the workspace's dataset that `source` (None: the base) names."""
    target = source or Target()
    if target.path is not None:
        raise UsageError(
            f"{target} names a path; name a commit, and the path by itself",
            subject=str(target),
            hint=f"dsv restore {clean_path(target.path).decode(errors='replace')} --from @REV",
        )
    if target.dataset is not None and target.dataset != workspace.dataset:
        # Raises if no such dataset exists; the hint then names a branch of that name.
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


def _check_readable(baseline: Baseline, after: TreeReader, chosen: PathSet, held: WorkspacePaths) -> None:
    """Raises `Denied` for a chosen path that can't be read here, and `Conflict` for one in a store or cache: neither
    was restored."""
    hidden, apart = baseline.scan.hidden, baseline.scan.apart
    for path in () if hidden is None else hidden.paths:
        known = chain(baseline.below(path), below(after, path, held))
        if chosen.touches(path) and next(known, None) is not None:
            if path in apart:
                text = f"{show(path)} is a dsv store or cache, so the dataset's files were not restored there"
                raise Conflict(text, subject=show(path), hint=f"move it out of {baseline.scan.root}")
            raise Denied(
                f"{show(path)} can't be read, so it was not restored",
                subject=path.decode("utf-8", "backslashreplace"),
                hint=f"ls -ld {shlex.quote(path.decode(errors='replace'))}",
            )


def _restoring(
    before: Baseline, after: TreeReader, chosen: PathSet, held: WorkspacePaths, suspects: frozenset[bytes]
) -> Iterator[PathChange]:
    """Yield the changes that make the paths equal `after`, in tree order; `suspects` even if equal."""
    starts = chosen.paths or (b"",)
    runs: list[tuple[bytes, Iterable[PathChange]]] = [
        (sort_key(path), pair_entries(before.below(path, held), below(after, path, held))) for path in starts
    ]
    for path in chosen.ways:
        old = before.entry(path)
        if old is not None and after.entry(path) is None:  # a file here is a folder there
            runs.append((sort_key(path), [PathChange(path, old, None)]))
    for _, run in sorted(runs, key=lambda each: each[0]):
        for change in run:
            if change.before != change.after or change.path in suspects:
                yield change


def rollback(
    context: Context, target: Target, message: str | None = None, *, dry_run: bool = False
) -> Updated:
    """Publish a new commit with the files of `target` on the workspace's branch, and write them here.

    Local changes are kept. Raises `Conflict`, with nothing changed, if a local change is in the way, or if
    the branch was moved since this workspace last saw it: no commit is undone unseen. dry_run: check only.
    """
    with open_to_publish(context, "dsv rollback", borrows=True) as opened:
        workspace, repository = opened.workspace, opened.repository
        source = source_commit(context, repository, workspace, target)
        if repository.objects.stored_commit(source) is None:
            raise missing_commit(source, repository.store.url)
        base = opened.proven_base()
        head = repository.refs.head(workspace.dataset, workspace.branch)
        repository.check_last_seen()
        if head.commit is None:
            raise no_commit(head)
        if head.commit not in (base, workspace.seen()):
            raise opened.not_at_base(head, base)
        after = TreeReader(repository.objects, source)
        if after.commit.root == repository.objects.commit(head.commit).root:
            return Updated(workspace.dataset, workspace.branch, head.commit, head.commit, source=source)
        _check_rule(repository, head, context.writer.author, after)
        text = (
            f"roll back to {str(target) or 'the base'} ({str(source)[:12]})" if message is None else message
        )
        draft = Draft(workspace.dataset, workspace.branch, head, (head.commit,), text, "rollback")
        commit = new_commit(repository, context.writer, draft, after.commit)
        goal = Goal(
            "dsv rollback",
            commit.id,
            hint="to drop yours: dsv restore PATH; or publish them first: dsv sync",
            ready=lambda: _publish(opened, draft, commit, source),
            files_of=source,
            dry_run=dry_run,
        )
        made = bring_to(opened, base, after, goal)
        new = None if dry_run else commit.id
        done = Updated(workspace.dataset, workspace.branch, head.commit, new, source=source)
        return done.counting(made)


def _check_rule(repository: Repository, head: Head, author: str, after: TreeReader) -> None:
    """Raises `Conflict` if the branch's rule refuses this, before anything is written; for a dry run too."""
    repository.refs.check_mover(head, author)
    limits = repository.refs.limits(head.dataset, head.branch)
    if limits is None or limits.max_removals is None or head.commit is None:
        return
    before = TreeReader(repository.objects, head.commit)
    removed = sum(change.after is None for change in diff_trees(before, after))
    repository.refs.check_mover(head, author, removed=removed, entries=before.commit.entries)


def _publish(opened: OpenWorkspace, draft: Draft, commit: CommitRecord, source: CommitId) -> None:
    """Publish without a journal record: if this is killed before it writes files, `dsv pull` writes them."""
    with Session.open(opened.repository, opened.writer) as session:
        check_whole(session, draft.dataset, source)
        locator = opened.repository.objects.commit_locator(source)
        done = publish_commit(session, opened.writer, draft, commit, locator, opened.lock.check)
    if isinstance(done, LostRace):
        raise opened.not_at_base(done.winner, draft.head)
    opened.workspace.set_seen(draft.branch, done.id)
