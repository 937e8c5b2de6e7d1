"""Giving a commit a new name: which names may be given, and a commit that gc may be about to remove."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dsv.errors import Conflict
from dsv.format.records import RefEntry
from dsv.repo.session import Session
from dsv.repo.tree.read import TreeReader, reach_tree
from dsv.values.ids import Nonce
from dsv.values.names import BranchName, TagName

if TYPE_CHECKING:
    from dsv.format.records import Writer
    from dsv.repo.refs.branches import Head, LostRace, Moved
    from dsv.repo.repository import Repository
    from dsv.values.ids import CommitId
    from dsv.values.names import DatasetName


@contextmanager
def naming(
    repository: Repository, writer: Writer, commit_id: CommitId, after: Head | None = None
) -> Iterator[None]:
    """What is written in this context may name the commit: the store has it whole, and gc will know of it.

    after: the move of a branch that the new name is to follow.

    Raises `IntegrityError` if the store has no such commit, whatever local copies say, and `Conflict` if gc is
    removing it or has fenced this session.
    """
    repository.objects.check_stored([commit_id])
    with Session.open(repository, writer) as session:
        check_whole(session, commit_id)
        session.declare(commit_id, after)
        with session.ending():
            yield


def point_branch(
    repository: Repository,
    writer: Writer,
    where: tuple[DatasetName, BranchName],
    after: Head | None,
    commit_id: CommitId,
    action: str,
) -> Moved | LostRace:
    """Move a branch to a commit, or make it there. after: its head now. Raises as `naming`."""
    entry = RefEntry(commit_id, False, Nonce.random(), repository.clock(), writer.author, action)
    with naming(repository, writer, commit_id, after):
        return repository.refs.move(*where, after, entry)


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


def check_new_dataset(repository: Repository, dataset: DatasetName) -> None:
    """Raises `Conflict` if another dataset's name differs from this in case only."""
    for other in repository.refs.datasets():
        if other != dataset and other.casefold() == dataset.casefold() and repository.refs.exists(other):
            raise Conflict(
                f"{repository.store.url} has a dataset {other}, and names may not differ in case only",
                subject=dataset,
            )


def check_new_branch(repository: Repository, dataset: DatasetName, name: BranchName) -> None:
    """Raises `Conflict` where a tag has the name, or another name differs from it in case only."""
    if repository.refs.tag(dataset, TagName.parse(name)) is not None:
        raise Conflict(f"{dataset} has a tag {name}, so a branch can't have that name", subject=name)
    _check_case(repository, dataset, name)


def check_new_tag(repository: Repository, dataset: DatasetName, name: TagName) -> None:
    """Raises `Conflict` where a branch has the name, or another name differs from it in case only."""
    if repository.refs.head_or_none(dataset, BranchName.parse(name)) is not None:
        raise Conflict(f"{dataset} has a branch {name}, so a tag can't have that name", subject=name)
    _check_case(repository, dataset, name)


def _check_case(repository: Repository, dataset: DatasetName, name: str) -> None:
    heads, tags = repository.refs.names(dataset)
    for other in [*(str(head.branch) for head in heads), *(str(tag) for tag, _ in tags)]:
        if other != name and other.casefold() == name.casefold():
            raise Conflict(f"{dataset} has {other}, and names may not differ in case only", subject=name)
