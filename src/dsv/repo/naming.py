"""Giving an older commit a new name: a tag, a branch, a run. gc may be about to remove it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dsv.errors import Conflict
from dsv.model.ids import CommitId, Id, RecipeId
from dsv.model.location import Location, ObjectKind
from dsv.repo.damage import missing_commit
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
    """Raises `Conflict` where something of the commit lies in condemned packs alone. Where none is, asks nothing."""
    if not session.condemned:
        return
    for kind, object_id, where in _needed(session.repository, commit_id):
        if (where is None or where.pack in session.condemned) and session.find(kind, object_id) is None:
            raise Conflict(
                f"commit {str(commit_id)[:12]} is being removed from {session.repository.store.url} by gc",
                subject=str(commit_id),
                hint="sync its files again, if somebody still has them",
            )


def _needed(repository: Repository, commit_id: CommitId) -> Iterator[tuple[ObjectKind, Id, Location | None]]:
    """Every object of a commit's tree, and where a locator says that it lies."""
    tree = TreeReader(repository.objects, commit_id)
    seen = set[RecipeId]()
    yield from tree.nodes()
    for leaf in tree.leaves():
        yield ObjectKind.SEGMENT, leaf.id, leaf.where
    for entry, where in tree.below(b""):
        if entry.recipe_id is not None:
            yield from _recipe(repository, entry.recipe_id, where, seen)
        elif entry.is_file and entry.size:
            assert entry.file_id is not None
            yield ObjectKind.CHUNK, entry.file_id, where


def _recipe(
    repository: Repository,
    recipe_id: RecipeId,
    where: Location | None,
    seen: set[RecipeId],
    said: tuple[int, int] | None = None,
) -> Iterator[tuple[ObjectKind, Id, Location | None]]:
    if recipe_id in seen:
        return
    seen.add(recipe_id)
    yield ObjectKind.RECIPE, recipe_id, where
    recipe, locator = repository.objects.recipe(recipe_id, where, said)
    for row, (child, length) in enumerate(recipe.rows()):
        place = locator.get(row) if locator is not None and row < len(locator) else None
        if recipe.level:
            yield from _recipe(repository, RecipeId(child), place, seen, (recipe.level - 1, length))
        else:
            yield ObjectKind.CHUNK, child, place
