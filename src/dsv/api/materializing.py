"""What clone, pull and restore share: a commit's files on their way into a workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from dsv.api.context import Context
from dsv.errors import Conflict
from dsv.model.entry import Entry
from dsv.model.ids import CommitId
from dsv.model.location import Location
from dsv.model.paths import show
from dsv.model.units import format_count
from dsv.repo.repository import Repository
from dsv.repo.trees import TreeReader
from dsv.transfer.download import Fetcher, Wanted
from dsv.worktree.materialize import Made, Materializer, Wishes, check_folding
from dsv.worktree.plan import Consents, nobody
from dsv.worktree.survey import Survey

_SHOWN = 20


def check_tree(tree: TreeReader, root: Path) -> None:
    """Refuses a tree whose symlinks leave it, or whose names would overwrite each other here."""
    tree.check_links(tree.links())
    check_folding(root, (entry.path for entry, _ in tree.below(b"")))


def carry_out(
    context: Context,
    repository: Repository,
    survey: Survey,
    wishes: Wishes,
    *,
    follow: CommitId | None,
    consents: Consents = nobody,
    total: tuple[int, int] | None = None,
    ready: Callable[[], None] = lambda: None,
    hint: str = "move them away, or remove them",
) -> Made:
    """Plans, refuses conflicts with a list of them, and acts.

    ready: called when nothing stands in the way and nothing is written yet; what it raises ends all.
    Raises `Conflict` with nothing written, and also where paths changed meanwhile: these alone are then as they were.
    """
    materializer = Materializer(survey, wishes, context.progress, follow=follow, consents=consents)
    plan = materializer.plan()
    if plan.conflicts:
        lines = [f"{show(path)} {reason}" for path, reason in plan.conflicts[:_SHOWN]]
        if len(plan.conflicts) > _SHOWN:
            lines.append(f"and {len(plan.conflicts) - _SHOWN} more")
        raise Conflict(
            f"nothing was written, as it would overwrite {format_count(len(plan.conflicts), 'path')} in "
            f"{survey.root}:\n  " + "\n  ".join(lines),
            subject=str(survey.root),
            hint=hint,
        )
    ready()
    files, size = total or (plan.created + plan.replaced, plan.fetched)
    context.progress.start(files, size)
    fetcher = Fetcher(repository.objects)

    def contents(asked: Iterator[tuple[Entry, Location | None]]) -> Iterator[Iterator[bytes]]:
        for _, pieces in fetcher.files(Wanted(entry, where) for entry, where in asked):
            yield pieces

    made = materializer.carry_out(contents)
    context.progress.finish()
    if made.left:
        lines = [show(path) for path in made.left[:_SHOWN]]
        if len(made.left) > _SHOWN:
            lines.append(f"and {len(made.left) - _SHOWN} more")
        raise Conflict(
            f"{len(made.left)} paths in {survey.root} changed while dsv was at work, and stay as they are:\n  "
            + "\n  ".join(lines),
            subject=str(survey.root),
            hint="run the command again",
        )
    return made
