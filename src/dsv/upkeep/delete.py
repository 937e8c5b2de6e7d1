"""Deleting a dataset, so that it can be brought back until gc has removed its content.

The order of writes: `main` gets its deletion move, which decides; then each other branch that a listing has; then all
commits of the dataset expire by `delete`. The same call finishes what was interrupted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dsv.errors import Conflict
from dsv.format.expiry import ExpiryAction
from dsv.format.records import DELETE_DATASET, MESSAGE_MAX, UNDELETE_DATASET, Action, RefEntry
from dsv.repo import history
from dsv.repo.expiry import FEATURE, ExpiryLog, append, read_expiry
from dsv.repo.refs.branches import Head, LostRace, Moved, is_deleted_dataset, protected
from dsv.repo.session import point_branch
from dsv.upkeep.roots import names_of_refs, names_of_runs
from dsv.values.names import MAIN
from dsv.values.units import rfc3339

if TYPE_CHECKING:
    from dsv.format.records import Writer
    from dsv.repo.repository import Repository
    from dsv.values.ids import CommitId
    from dsv.values.names import DatasetName


class Deletion(msgspec.Struct, frozen=True):
    """A dataset that was deleted."""

    dataset: DatasetName
    author: str
    time_ms: int
    commits: int
    """Commits that expired with it, by this call or an earlier one."""
    already: bool = False
    """It was deleted before this call, by which nothing was left to do."""


def delete_dataset(
    repository: Repository, writer: Writer, dataset: DatasetName, message: str = "", seen: Head | None = None
) -> Deletion:
    """Delete a dataset, or finish its deletion. seen: where its `main` has to be.

    Raises `NotFound` if there never was one, and `Conflict` if a branch is protected and rules are not overridden, if
    somebody moves `main` meanwhile, or brings the dataset back.
    """
    refs = repository.refs
    repository.format.check(repository.store.url, writing=True)
    main = refs.newest(dataset, MAIN)
    if main is None or not is_deleted_dataset(main):
        main = refs.head(dataset, MAIN)
    before = read_expiry(refs, dataset).states
    moved = False
    if not is_deleted_dataset(main):
        if seen is not None and seen.number != main.number:
            raise _moved(main)
        check_protection(repository, dataset)
        repository.add_feature(FEATURE, author=writer.author, tool=writer.tool)
        done = _delete_branch(repository, writer, main, message)
        moved = not isinstance(done, LostRace)
        main = done.winner if isinstance(done, LostRace) else done.head
        if not is_deleted_dataset(main):
            raise _moved(main)
    while _is_still(repository, main):
        others = [head for head in refs.heads(dataset) if head.branch != MAIN]
        for head in others:
            _delete_branch(repository, writer, head, message)
            moved = True
        log = append(
            repository,
            writer,
            dataset,
            ExpiryAction.DELETE,
            lambda _: _all_commits(repository, dataset),
            message,
        )
        if not [head for head in refs.heads(dataset) if head.branch != MAIN]:
            break
    log = read_expiry(refs, dataset)
    if not _is_still(repository, main):  # what was deleted since then comes back too
        append(repository, writer, dataset, ExpiryAction.UNDO, _of_deletion, "the dataset is back")
        _bring_branches_back(repository, writer, dataset, str(Action(UNDELETE_DATASET)))
        raise _moved(refs.head(dataset, MAIN))
    commits = _of_deletion(log)
    already = not moved and before == log.states
    return Deletion(dataset, main.entry.author, main.entry.time_ms, len(commits), already)


def undelete_dataset(
    repository: Repository, writer: Writer, dataset: DatasetName, message: str = ""
) -> list[Head]:
    """Bring a deleted dataset back, with the branches that were deleted with it, and return their heads.

    Raises `NotFound` if there never was one, and `Conflict` if it is not deleted, or gc has removed its content.
    """
    refs = repository.refs
    repository.format.check(repository.store.url, writing=True)
    main = refs.newest(dataset, MAIN)
    if main is None or not is_deleted_dataset(main):
        refs.head(dataset, MAIN)
        raise Conflict(
            f"dataset {dataset} is not deleted", subject=dataset, hint=f"dsv log {dataset} shows its commits"
        )
    log = append(repository, writer, dataset, ExpiryAction.UNDO, _of_deletion, message)
    if any(state.freed and state.entry.action is ExpiryAction.DELETE for state in log.states.values()):
        append(repository, writer, dataset, ExpiryAction.DELETE, lambda _: _all_commits(repository, dataset))
        raise Conflict(
            f"gc has removed the content of dataset {dataset}, which was deleted by {main.entry.author} "
            f"({rfc3339(main.entry.time_ms)})",
            subject=dataset,
            hint="a copy of the store, or a mirror, may still have it",
        )
    action = str(Action(UNDELETE_DATASET, message[:MESSAGE_MAX]))
    found = _bring_branches_back(repository, writer, dataset, action)
    append(repository, writer, dataset, ExpiryAction.UNDO, _of_deletion, message)  # what expired meanwhile
    return found


def _is_still(repository: Repository, main: Head) -> bool:
    """Return whether nobody has moved `main` since."""
    newest = repository.refs.newest(main.dataset, MAIN)
    return newest is not None and newest.number == main.number


def _bring_branches_back(
    repository: Repository, writer: Writer, dataset: DatasetName, action: str
) -> list[Head]:
    refs = repository.refs
    branches = {name.branch for name in names_of_refs(repository, dataset) if name.branch is not None}
    found = list[Head]()
    for branch in [*sorted(branches - {MAIN}), MAIN]:
        newest = refs.newest(dataset, branch)
        if newest is not None and is_deleted_dataset(newest):
            found.append(_bring_back(repository, writer, newest, action))
    return found


def _bring_back(repository: Repository, writer: Writer, tombstone: Head, action: str) -> Head:
    where = tombstone.dataset, tombstone.branch
    moves = repository.refs.history(tombstone)
    commit = next(move.commit for move in moves if not is_deleted_dataset(_as_head(tombstone, move)))
    if commit is not None:
        moved = point_branch(repository, writer, where, tombstone, commit, action)
    else:
        entry = RefEntry.of(writer, repository.clock(), None, action)
        moved = repository.refs.move(*where, tombstone, entry)
    if isinstance(moved, LostRace):
        if is_deleted_dataset(moved.winner):
            return _bring_back(repository, writer, moved.winner, action)
        return moved.winner  # somebody else brings it back, too
    return moved.head


def _as_head(head: Head, entry: RefEntry) -> Head:
    return Head(head.dataset, head.branch, head.number, entry)


def _delete_branch(repository: Repository, writer: Writer, head: Head, message: str) -> Moved | LostRace:
    action = str(Action(DELETE_DATASET, message[:MESSAGE_MAX]))
    entry = RefEntry.of(writer, repository.clock(), None, action, deleted=True)
    return repository.refs.move(head.dataset, head.branch, head, entry)


def _all_commits(repository: Repository, dataset: DatasetName) -> set[CommitId]:
    """Return the commits of all moves and tags of a dataset and of its runs, and their ancestors."""
    names = [*names_of_refs(repository, dataset), *names_of_runs(repository, dataset)]
    starts = dict.fromkeys(name.commit for name in names if name.dataset == dataset)
    return {commit for commit, _ in history.walk(repository.objects, starts)}


def _of_deletion(log: ExpiryLog) -> list[CommitId]:
    """Return the commits that expired with their dataset, and are not freed."""
    return [commit for commit, state in log.expired.items() if state.entry.action is ExpiryAction.DELETE]


def check_protection(repository: Repository, dataset: DatasetName) -> None:
    """Raise `Conflict` for a protected branch, before any branch is deleted."""
    refs = repository.refs
    for head in refs.heads(dataset):
        if refs.limits(dataset, head.branch) is not None and refs.override is None:
            raise protected(head, "it is neither deleted nor renamed")


def _moved(head: Head) -> Conflict:
    return Conflict(
        f"somebody else has moved main of {head.dataset} meanwhile, so the dataset is not deleted "
        f"({head.entry.author}: {head.entry.action})",
        subject=head.dataset,
        hint=f"dsv log {head.dataset} shows what is there now; then the same command again",
    )
