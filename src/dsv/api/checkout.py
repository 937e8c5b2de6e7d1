"""What clone, pull, restore and rollback share: they check out files of a commit into a workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dsv.api.context import Context
from dsv.api.copies import check_copies
from dsv.api.footing import Footing
from dsv.errors import Conflict
from dsv.model.entry import Entry
from dsv.model.ids import CommitId
from dsv.model.location import Location
from dsv.model.paths import show
from dsv.model.units import format_count
from dsv.repo.objects import Objects
from dsv.repo.trees import TreeReader
from dsv.transfer.download import Fetcher, Wanted
from dsv.worktree.checkout_plan import NEVER, OverwritePolicy, Plan
from dsv.worktree.journal import Journal
from dsv.worktree.tree_writer import Changes, Made, TreeWriter, check_folding
from dsv.worktree.unfinished import Begun, restored, write_begun
from dsv.worktree.workspace import Workspace
from dsv.worktree.workspace_scan import WorkspaceScan

_SHOWN = 20


def check_tree(tree: TreeReader, root: Path) -> None:
    """Refuses a tree whose symlinks leave it, or whose names would overwrite each other here."""
    tree.check_links(tree.links())
    check_folding(root, (entry.path for entry, _ in tree.below(b"")))


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a command brings a workspace, and what it changes for that.

    paths: those that it is about; with none it is the whole workspace, whose base `commit` then is.
    may_overwrite: at which paths even what no commit has may be overwritten. hint: what to do about conflicts.
    ready: called when nothing stands in the way and nothing is written yet; what it raises ends all.
    """

    command: str
    commit: CommitId
    changes: Changes
    hint: str
    paths: tuple[bytes, ...] = ()
    may_overwrite: OverwritePolicy = NEVER
    ready: Callable[[], None] = lambda: None


def check_out(context: Context, objects: Objects, workspace: Workspace, footing: Footing, goal: Goal) -> Made:
    """Plans, refuses conflicts with a list of them, acts, and moves the base if the whole workspace is meant.

    What has begun is noted before the first file is written, so that the next command knows what it finds if this one
    is killed. Raises `Conflict` with nothing written, and also if paths changed meanwhile: these alone are then as
    they were. The caller holds the workspace's lock and saves the state.
    """
    follow = None if goal.paths else goal.commit
    scan = footing.scan
    checkout = TreeWriter(
        scan, goal.changes, context.progress, follow=follow, may_overwrite=goal.may_overwrite
    )
    plan = checkout.plan()
    if plan.conflicts:
        lines = [f"{show(path)} {reason}" for path, reason in plan.conflicts[:_SHOWN]]
        if len(plan.conflicts) > _SHOWN:
            lines.append(f"and {len(plan.conflicts) - _SHOWN} more")
        raise Conflict(
            f"nothing was written, as it would overwrite {format_count(len(plan.conflicts), 'path')} in "
            f"{scan.root}:\n  " + "\n  ".join(lines),
            subject=str(scan.root),
            hint=goal.hint,
        )
    if (
        objects.copy_of is not None
    ):  # all or nothing: a missing content is told before the first file is written
        for entry in checkout.to_write():
            if entry.is_file and entry.size:
                objects.copy_of(entry)
    check_copies(footing.tree, goal.changes(), goal.may_overwrite, scan.root)
    goal.ready()
    begun = Begun(goal.command, scan.base, goal.commit, goal.paths)
    if plan.writes and begun.commit != begun.base:
        write_begun(workspace.begun_path, (*footing.begun, begun))
    made = _act(context, objects, scan, checkout, plan)
    if follow is not None:
        workspace.set_base(follow)
        write_begun(workspace.begun_path, ())
        _forget_intent(workspace)
    else:
        write_begun(workspace.begun_path, restored(footing.begun, goal.paths))
    return made


def _act(context: Context, objects: Objects, scan: WorkspaceScan, checkout: TreeWriter, plan: Plan) -> Made:
    context.progress.start(plan.created + plan.replaced, plan.fetched)
    fetcher = Fetcher(objects)

    def contents(asked: Iterator[tuple[Entry, Location | None]]) -> Iterator[Iterator[bytes]]:
        for _, pieces in fetcher.files(Wanted(entry, where) for entry, where in asked):
            yield pieces

    made = checkout.apply(contents)
    context.progress.finish()
    if made.left:
        lines = [show(path) for path in made.left[:_SHOWN]]
        if len(made.left) > _SHOWN:
            lines.append(f"and {len(made.left) - _SHOWN} more")
        raise Conflict(
            f"{len(made.left)} paths in {scan.root} changed while dsv was at work, and stay as they are:\n  "
            + "\n  ".join(lines),
            subject=str(scan.root),
            hint="run the command again",
        )
    return made


def _forget_intent(workspace: Workspace) -> None:
    """A killed sync may have published just before; by now the base is that commit or a later one."""
    if workspace.journal_path.exists():
        with Journal.open(workspace.journal_path, workspace.store_id) as journal:
            if journal.left.publishing is not None:
                journal.clear()
