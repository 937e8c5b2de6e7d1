"""Checking out files of a commit into a workspace, for clone, pull, restore, switch and rollback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from dsv.errors import Conflict, IntegrityError, Unreachable
from dsv.files.descent import Descent
from dsv.files.errors import about
from dsv.files.folders import check_folding
from dsv.format.locator import Location
from dsv.format.tree import Entry
from dsv.merge.paths import MergeConflict
from dsv.repo.damage import read_damage
from dsv.repo.expiry import read_expiry
from dsv.repo.objects.objects import Objects
from dsv.repo.tree.diff import PathChange
from dsv.repo.tree.reader import Reached, TreeReader, find_paths, reach_content
from dsv.transfer.download import Fetcher
from dsv.values.ids import CommitId, PackId
from dsv.values.paths import WHOLE, Scope, show, sort_key
from dsv.values.units import format_count, format_lines
from dsv.workspace.baseline import Baseline, open_baseline
from dsv.workspace.open import OpenWorkspace
from dsv.workspace.plan import CheckoutPlan, CheckoutPlanner, CheckoutResult, Goal, WorkspaceFiles
from dsv.workspace.scan.result import WorkspaceScan
from dsv.workspace.sync_journal import SyncJournal
from dsv.workspace.workspace import StartedCommand, restored
from dsv.workspace.write import CommitContents, FileWriter


def check_tree(tree: TreeReader, root: Path, held: Scope = WHOLE) -> None:
    """Refuse a tree with symlinks that lead out of it, or with names that would overwrite each other here.
    held: the part of it that the workspace has."""
    tree.check_links(tree.links(held))
    with about(root):
        check_folding(root, root / ".dsv", (entry.path for entry, _ in tree.within(held)))


def bring_to(opened: OpenWorkspace, base: CommitId | None, after: TreeReader, goal: Goal) -> CheckoutResult:
    """Make the files of a workspace those of `after`; local changes to other paths stay. Raises as `check_out`."""
    with open_baseline(opened, base, writes=True) as baseline:
        check_tree(after, opened.workspace.root, baseline.held)
        return check_out(opened, baseline, replace(goal, changes=lambda: baseline.changes_to(after)))


def check_out(opened: OpenWorkspace, baseline: Baseline, goal: Goal) -> CheckoutResult:
    """Plan, refuse conflicts with a list of them, write, and move the base if the whole workspace is meant.

    The command is recorded as begun before the first file is written, so the next one knows what a killed one
    has written. Raises `Conflict` before anything is written, or if paths change during the writing: only
    these are then as they were. The caller holds the workspace's lock and saves the state.
    """
    workspace, objects, scan = opened.workspace, opened.repository.objects, baseline.scan
    goal = _without_erased(objects, goal)
    writer = FileWriter(scan, goal, opened.progress)
    plan = writer.plan()
    if plan.conflicts:
        conflicts = format_lines([f"{show(one.path)} {reason}" for one, reason in plan.conflicts])
        paths = [*plan.resolved, *(one.path for one, _ in plan.conflicts)]
        there = f" (there: {goal.there})" if goal.there else ""
        raise MergeConflict(
            f"nothing was written, as it would overwrite {format_count(len(plan.conflicts), 'path')} in "
            f"{scan.root}{there}:{conflicts}",
            tuple(one for one, _ in plan.conflicts),
            subject=str(scan.root),
            hint=goal.hint
            if any(" by .dsvignore" not in reason for _, reason in plan.conflicts)
            else "change .dsvignore first, or move what is there away: the next sync would remove it for everybody",
            without_effect=goal.choices.without_effect(paths),
        )
    if objects.access.copy_of is not None:  # a missing content is an error before the first file is written
        writer.check_copies(objects.access.copy_of)
    check_copies(opened, baseline.tree, goal.changes(), goal.may_overwrite)
    if goal.dry_run:
        return plan
    _note_lost(opened, plan.here)
    goal.ready()
    begun = StartedCommand(goal.command, goal.commit, scan.base, tuple(map(bytes.decode, goal.paths)))
    if (plan.writes or goal.branch is not None) and begun.commit != begun.base:
        workspace.set_begun((*baseline.begun, begun))
    if goal.branch is not None:
        workspace = opened.following(goal.branch).workspace
    made = _write(opened, goal.files_of or goal.commit, scan, writer, plan)
    if goal.follow is not None:
        workspace.set_base(goal.follow)
        workspace.set_begun(())
        # It is of a killed sync, whose commit is now the base or an ancestor of it.
        if workspace.journal_path.exists():
            with SyncJournal.open(workspace.journal_path, workspace.store_id) as journal:
                if journal.left.publishing is not None:
                    journal.clear()
    else:
        workspace.set_begun(restored(baseline.begun, goal.paths))
    return made


def _without_erased(objects: Objects, goal: Goal) -> Goal:
    """Return the goal without erased files: they can't be written, and the lack of one is no local change."""
    erasures, changes = objects.erasures, goal.changes
    if not erasures:
        return goal

    def left() -> Iterator[PathChange]:
        for change in changes():
            erasure = None if change.after is None else erasures.of(change.after)
            if erasure is None:
                yield change
            elif change.before is not None:
                yield replace(change, after=None, location=None)

    return replace(goal, changes=left, is_erased=lambda entry: erasures.of(entry) is not None)


def _write(
    opened: OpenWorkspace, commit: CommitId, scan: WorkspaceScan, writer: FileWriter, plan: CheckoutPlan
) -> CheckoutResult:
    opened.progress.start(plan.created + plan.replaced, plan.fetched)
    fetcher = Fetcher(opened.repository.objects, opened.workspace.dataset)
    with closing(CommitContents(fetcher, opened.copies, commit)) as contents:
        made = writer.apply(contents.of)
    made.cached_files, made.cached_bytes = contents.files, contents.bytes
    opened.progress.finish()
    contents.note(opened.progress)
    if made.left:
        raise Conflict(
            f"{format_count(len(made.left), 'path')} in {scan.root} changed while dsv was at work, and "
            f"{'stays as it is' if len(made.left) == 1 else 'stay as they are'}:"
            f"{format_lines(list(map(show, made.left)))}",
            subject=str(scan.root),
            hint="run the command again",
        )
    return made


def check_copies(
    opened: OpenWorkspace,
    tree: TreeReader | None,
    changes: Iterable[PathChange],
    may_overwrite: Callable[[bytes], bool],
) -> None:
    """Raises `Conflict` if the changes would remove or overwrite a file whose content the store has lost or damaged.
    Content that gc removed with an expired base is not lost. Raises `Unreachable` without the store.

    Each pack is looked up once. Files that may be overwritten without a copy (`may_overwrite`) are not checked.
    """
    root = opened.workspace.root
    going = {
        change.path: change.before
        for change in changes
        if change.before is not None and change.before.is_file and change.before.size
        and (change.after is None or change.after.file_id != change.before.file_id)
        and not may_overwrite(change.path)
    }  # fmt: skip
    if tree is None or not going:
        return
    if tree.objects.access.copy_of is not None:
        raise Unreachable(
            f"nothing was written: {format_count(len(going), 'file')} in {root} would be deleted or overwritten, and "
            "the store cannot be asked whether it still has the contents",
            subject=str(root),
            hint="name the paths that may be lost; dsv restore --offline --force gives up all of them",
        )
    read_damage(opened.repository)
    needed = list(_needed(tree, going))
    packs = tree.objects.packs
    lost = packs.lost_of({pack for _, _, pack in needed})
    suspected = dict.fromkeys(
        path for path, one, pack in needed if not packs.may_rely(one.kind, one.id, pack)
    )
    without = {path: list(_without_place(tree.objects, going[path])) for path in suspected}
    only = [path for path, parts in without.items() if parts]
    refs = opened.repository.refs
    if only and tree.commit_id in read_expiry(refs, refs.home(opened.workspace.dataset)).freed:
        # gc may remove the commit's content, with its index rows
        find = tree.objects.indexes.find
        only = [path for path in only if any(find(one.kind, one.id) is not None for one in without[path])]
    if not only:
        return
    for pack_id in lost:
        packs.note(pack_id)
    raise Conflict(
        f"nothing was written, as the store has lost the content of {format_count(len(only), 'file')} in {root} that "
        f"would go:{format_lines(list(map(show, only)))}",
        subject=str(root),
        hint="dsv sync --reupload stores it again; dsv restore --force gives it up",
    )


def _note_lost(opened: OpenWorkspace, here: list[PathChange]) -> None:
    """Record contents that the store has lost, of files that are here. The next sync stores them again."""
    objects = opened.repository.objects
    if not here or objects.access.copy_of is not None:
        return
    packs, lost = objects.packs, 0
    for change in here:
        assert change.after is not None
        try:
            gone = list(_without_place(objects, change.after, change.location))
        except IntegrityError:  # of a recipe, whose loss is noted
            lost += 1
            continue
        for one in gone:
            packs.note_missing(one.kind, one.id)
            if one.location is not None and one.location.pack in packs.known_lost:
                packs.note(one.location.pack)
        lost += bool(gone)
    if lost:
        opened.progress.note(
            f"the store has lost the content of {format_count(lost, 'file')} of this commit, which this workspace has: "
            "dsv sync stores it again"
        )


def _without_place(objects: Objects, entry: Entry, location: Location | None = None) -> Iterator[Reached]:
    """Yield the parts of a file's content for which neither a locator nor an index gives a location that the
    store still has. An index may give one where they were stored again."""
    rely = objects.packs.may_rely
    for one in reach_content(objects, entry, location):
        has_place = one.location is not None and rely(one.kind, one.id, one.location.pack)
        if not has_place and objects.indexes.find(one.kind, one.id, usable=rely) is None:
            yield one


def _needed(tree: TreeReader, going: dict[bytes, Entry]) -> Iterator[tuple[bytes, Reached, PackId]]:
    """Yield each path, and each part of these files' contents with its pack. Reads segments and recipes, with
    locators."""
    holding = tree.holding(sorted(going, key=sort_key))
    for located in tree.segments([*{leaf.id: leaf for leaf in holding if leaf is not None}.values()]):
        for entry, where in located.entries():
            if where is not None and going.get(entry.path) == entry:
                for reached in reach_content(tree.objects, entry, where):
                    if reached.location is not None:
                        yield entry.path, reached, reached.location.pack


def check_equal(baseline: Baseline, tree: TreeReader, goal: Goal) -> None:
    """Raises `Conflict` with a list of paths that the commit has otherwise or lacks. Reads every file."""
    scan = baseline.scan
    if next(scan.pending(), None) is None:
        return  # an empty folder, as most are
    with Descent(scan.root) as descent:
        conflicts = CheckoutPlanner(goal, WorkspaceFiles(scan, descent)).plan().conflicts
    reasons = {
        conflict.path: "differs from the commit's" if reason.startswith("was added") else reason
        for conflict, reason in conflicts
    }
    for path, there in find_paths(tree, (item.path for item in scan.pending())):
        if there.entry is None and not there.below:
            reasons.setdefault(path, "is not in the commit")
    if not reasons:
        return
    lines = format_lines([f"{show(path)} {reasons[path]}" for path in sorted(reasons, key=sort_key)])
    raise Conflict(
        f"nothing was written, as {scan.root} differs from the commit in {format_count(len(reasons), 'path')}:"
        f"{lines}",
        subject=str(scan.root),
        hint="dsv clone --keep keeps what differs as your changes, --force overwrites it; both keep what is not in the "
        "commit",
    )
