"""The code and output of a run: committed as trees that no branch names; and copies of an output."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsv.api.context import Context
from dsv.format.records import CommitRecord
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.repo.tree.writer import write_tree
from dsv.transfer.save import NewContent, save_sources
from dsv.transfer.stable_read import Problem
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName

Sources = Sequence[tuple[bytes, NewContent]]
"""The files of a commit by path, in tree order."""


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
) -> tuple[CommitRecord, CommitId, Session]:
    """Store the contents, then the commit, whose fields name `branch`.

    The session is open, so that gc keeps the commit; the caller closes it when a record names the commit.
    unread: called with unreadable files, if any; if it does not raise, they are left out.
    """
    with Session.open(repository, context.writer) as session, Uploader(session) as uploader:
        problems = save_sources(uploader, [source for _, source in found], context.progress)
        if problems:
            unread(problems)
        changes = (source.change(path) for path, source in found)
        tree = write_tree(uploader, None, (change for change in changes if change is not None))
        uploader.finish()
        commit = CommitRecord(
            root=tree.root, level=tree.level, parents=(), author=author, time_ms=time_ms, message=message,
            files=tree.files, bytes=tree.bytes, entries=tree.entries
        )  # fmt: skip
        commit = repository.named(commit, dataset, branch)
        commit_id = session.put_commit(commit, tree.locator)
        session.declare(commit_id)
    return commit, commit_id, session
