"""Giving an older commit a new name: a tag, a branch, a run. gc may be about to remove it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dsv.errors import Conflict
from dsv.model.ids import CommitId
from dsv.repo.damage import missing_commit
from dsv.repo.reachability import reach_tree
from dsv.repo.repository import Repository
from dsv.repo.session import Session, Writer
from dsv.repo.trees import TreeReader


@contextmanager
def naming(repository: Repository, writer: Writer, commit_id: CommitId) -> Iterator[None]:
    """What is written in this context may name the commit: the store has it whole, and gc will know of it.

    Raises `IntegrityError` if the store has no such commit, whatever local copies say, and `Conflict` if gc is
    removing it or has fenced this session.
    """
    if repository.objects.stored_commit(commit_id) is None:
        raise missing_commit(commit_id, repository.store.url)
    with Session.open(repository, writer) as session:
        check_whole(session, commit_id)
        session.declare(commit_id)
        yield
        session.close()


def check_whole(session: Session, commit_id: CommitId) -> None:
    """Raises `Conflict` if something of the commit lies in condemned packs only. Asks nothing if none is."""
    if not session.condemned:
        return
    tree = TreeReader(session.repository.objects, commit_id)
    for kind, object_id, location in reach_tree(tree):
        if (location is None or location.pack in session.condemned) and session.find(kind, object_id) is None:
            raise Conflict(
                f"commit {str(commit_id)[:12]} is being removed from {session.repository.store.url} by gc",
                subject=str(commit_id),
                hint="sync its files again, if somebody still has them",
            )
