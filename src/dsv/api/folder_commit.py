"""A folder of this machine as a commit of its own, which no branch names: a run's record does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsv.api.context import Context
from dsv.api.local_files import Source, store_sources
from dsv.model.commit import Commit
from dsv.model.entry import Entry, Kind
from dsv.model.ids import CommitId
from dsv.model.names import BranchName, DatasetName
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.repo.tree_edit import TreeChange, write_tree
from dsv.transfer.upload import Uploader
from dsv.worktree.scan.problem import Problem

Sources = Sequence[tuple[bytes, Source]]
"""What goes into a commit, in tree order, by its path there."""


def commit_sources(
    context: Context,
    repository: Repository,
    found: Sources,
    unread: Callable[[list[Problem]], None],
    *,
    dataset: DatasetName,
    branch: BranchName,
    author: str,
    time_ms: int,
    message: str,
) -> tuple[Commit, CommitId, Session]:
    """Stores the contents, then the commit.

    unread: told of the files that could not be read, if there are any; if it doesn't raise, they are left out. branch:
    what the commit says that it was made for. The session is open, so that gc keeps the commit: whoever has named it in
    a record closes the session.
    """
    with Session.open(repository, context.writer) as session, Uploader(session) as uploader:
        problems = store_sources(uploader, [source for _, source in found], context.progress)
        if problems:
            unread(problems)
        tree = write_tree(
            uploader, None, (_change(path, source) for path, source in found if _is_had(source))
        )
        uploader.finish()
        commit = Commit(
            root=tree.root, level=tree.level, parents=(), author=author, time_ms=time_ms, message=message,
            files=tree.files, bytes=tree.bytes, entries=tree.entries,
        )  # fmt: skip
        commit = repository.named(commit, dataset, branch)
        commit_id = session.put_commit(commit, tree.locator)
        session.declare(commit_id)
    return commit, commit_id, session


def _is_had(source: Source) -> bool:
    return source.kind in (Kind.EMPTY_DIRECTORY, Kind.SYMLINK) or source.stored is not None


def _change(path: bytes, source: Source) -> TreeChange:
    if source.kind is Kind.EMPTY_DIRECTORY:
        return TreeChange(path, Entry(path, source.kind))
    if source.target is not None:
        return TreeChange(path, Entry(path, source.kind, target=source.target))
    assert source.stored is not None  # the others were left out
    stored = source.stored
    entry = Entry(path, source.kind, stored.size, stored.file_id, stored.recipe_id)
    return TreeChange(path, entry, stored.location)
