"""The log of a branch's moves: who moved it, when, from where to where, and why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice

from dsv.api.branches import BranchPath, dataset_of
from dsv.api.context import Context
from dsv.model.action import Action
from dsv.model.ids import CommitId
from dsv.model.names import BranchName, DatasetName
from dsv.model.records import RefEntry
from dsv.repo.refs import Head
from dsv.repo.repository import Repository
from dsv.store.together import together

_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class MoveItem:
    """One move of a branch. number: from 0. commit: where to; None if it has none, or was deleted.

    before: where from. forced: a rule of the protected branch was overridden. message: of the move, or else of the
    commit that it brought.
    """

    dataset: DatasetName
    branch: BranchName
    number: int
    commit: CommitId | None
    before: CommitId | None
    deleted: bool
    author: str
    time_ms: int
    action: str
    forced: bool
    message: str


@contextmanager
def reflog(
    context: Context, name: BranchPath | None = None, limit: int | None = None
) -> Iterator[Iterator[MoveItem]]:
    """The moves of a branch (None: the one that the workspace follows), newest first, of a deleted one too.

    Reads `limit` moves and the one before them, a few at the same time. Raises `NotFound` for a branch that never was.
    """
    with context.repository() as repository:
        path = name or BranchPath(None, context.workspace().branch)
        dataset = dataset_of(context, repository, path.dataset)
        newest = repository.refs.newest(dataset, path.branch) or repository.refs.head(dataset, path.branch)
        moves = _moves(newest, repository.refs.history(newest, None if limit is None else limit + 1), limit)
        yield _items(repository, dataset, path.branch, moves)


def _items(
    repository: Repository,
    dataset: DatasetName,
    branch: BranchName,
    moves: Iterator[tuple[int, RefEntry, CommitId | None]],
) -> Iterator[MoveItem]:
    while batch := list(islice(moves, _AT_ONCE)):
        messages = together([partial(_message, repository, entry) for _, entry, _ in batch])
        for (number, entry, before), message in zip(batch, messages, strict=True):
            action = Action.parse(entry.action)
            yield MoveItem(
                dataset, branch, number, entry.commit, before, entry.deleted, entry.author,
                entry.time_ms, action.verb, action.forced, message,
            )  # fmt: skip


def _moves(
    newest: Head, entries: Iterator[RefEntry], limit: int | None
) -> Iterator[tuple[int, RefEntry, CommitId | None]]:
    """Each move with its number, and where the branch was before it."""
    numbers = range(newest.number, -1 if limit is None else max(newest.number - limit, -1), -1)
    current = next(entries)
    for number in numbers:
        before = next(entries, None)
        yield number, current, None if before is None else before.commit
        if before is not None:
            current = before


def _message(repository: Repository, entry: RefEntry) -> str:
    message = Action.parse(entry.action).message
    if message or entry.commit is None:
        return message
    commit = repository.objects.commit_or_none(entry.commit)
    return "" if commit is None else commit.message
