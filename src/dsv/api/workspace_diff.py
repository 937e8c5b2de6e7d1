"""What differs between a commit and the files of a workspace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dsv.api.context import Context
from dsv.errors import Unreachable
from dsv.model.diff import Change, What
from dsv.model.entry import Entry, sort_key
from dsv.model.ids import CommitId
from dsv.model.path_set import Both, PathSet
from dsv.model.renames import Difference, differences, find_renames
from dsv.repo.tree_diff import diff_trees, find_entries
from dsv.repo.trees import TreeReader
from dsv.worktree.baseline import Baseline, Trees, find_baseline, load_state, save_news
from dsv.worktree.changed_entries import ChangedPath, changed_paths, read_contents
from dsv.worktree.checks import check_paths
from dsv.worktree.scan.problem import Problem
from dsv.worktree.status import Differences, detect_changes
from dsv.worktree.workspace import Workspace

_MOST_PATHS, _MOST_BYTES = 20_000, 64 << 20
"""How much `find_renamed` looks at."""


@dataclass(frozen=True, slots=True)
class WorkspaceChanges:
    """In tree order, without renames. problems: files that can't be compared. note: of a command that did not end."""

    differences: list[Difference]
    problems: tuple[Problem, ...]
    note: str | None


def workspace_changes(
    context: Context, workspace: Workspace, trees: Trees, before: CommitId | None, scope: PathSet
) -> WorkspaceChanges:
    """Compares the workspace with a commit, its base or another.

    Files are read if their stats leave a doubt, and new ones if they may be what was removed under another name.
    """
    state = load_state(workspace)
    base = workspace.base()
    check_paths(workspace.root, lambda: trees.of(before), scope.paths)
    baseline = find_baseline(workspace, state, base, trees, scope.paths)
    scan = baseline.scan
    context.progress.start(None, None)
    found, unread = detect_changes(scan, baseline.entry, context.progress)
    context.progress.finish()
    changed = {each.path: each for each in changed_paths(scan, _paths(found))}
    if before == base:
        old = _unchanged(baseline, changed)
        unread += read_contents(scan, _of_equal_size(changed, old))
        unread += read_contents(scan, _maybe_renamed(changed, old))
        changes = [Change(path, old.get(path), each.entry) for path, each in changed.items()]
    else:
        old, others = _from_another(baseline, trees.of(before), changed, scope)
        unread += read_contents(scan, _of_equal_size(changed, old))
        unread += read_contents(scan, _maybe_renamed(changed, {**old, **_gone(others)}))
        changes = [Change(path, old.get(path), each.entry) for path, each in changed.items()]
        changes = sorted([*changes, *others], key=lambda change: sort_key(change.path))
    save_news(workspace, state)
    return WorkspaceChanges(list(differences(changes)), tuple(scan.problems + unread), baseline.warning)


def find_renamed(baseline: Baseline, found: Differences) -> dict[bytes, bytes]:
    """The old paths of added files, by the new ones; none if too much would have to be read, or the store asked."""
    if not found.removed or not found.added or len(found.added) + len(found.removed) > _MOST_PATHS:
        return {}
    try:
        old = _unchanged(baseline, found.removed)
    except Unreachable:
        return {}
    changed = {each.path: each for each in changed_paths(baseline.scan, [*found.added, *found.removed])}
    unread = [
        each for each in _maybe_renamed(changed, old) if each.item is not None and each.item.known is None
    ]
    if sum(each.item.size for each in unread if each.item is not None) > _MOST_BYTES:
        return {}
    read_contents(baseline.scan, unread)
    changes = [Change(path, old.get(path), each.entry) for path, each in changed.items()]
    return {
        one.path: one.old_path
        for one in find_renames(differences(changes)).differences
        if one.what is What.RENAMED and one.old_path is not None
    }


def _paths(found: Differences) -> Iterator[bytes]:
    for paths in (found.added, found.changed, found.removed, found.retyped):
        yield from paths


def _unchanged(baseline: Baseline, paths: Iterable[bytes]) -> dict[bytes, Entry]:
    """What counts as unchanged at these paths, if anything does."""
    wanted = list(paths)
    tree = baseline.tree if wanted else None
    found = {path: entry for path, (entry, _) in find_entries(tree, wanted).items()}
    for path in wanted:
        written = baseline.written.get(path)
        if written is not None:
            found[path] = written
        elif path in baseline.written:
            found.pop(path, None)
    return found


def _from_another(
    baseline: Baseline, before: TreeReader | None, changed: dict[bytes, ChangedPath], scope: PathSet
) -> tuple[dict[bytes, Entry], list[Change]]:
    """What another commit than the base has at the changed paths, and how it differs from the base at others."""
    others = {change.path: change for change in diff_trees(before, baseline.tree, Both(scope, baseline.held))}
    written = [path for path in baseline.written if path in scope]
    had = find_entries(before, written) if written else {}
    for path in written:
        others[path] = Change(path, had[path][0] if path in had else None, baseline.written[path])
    old = _unchanged(baseline, changed)
    for path in changed:
        if path in others:
            was = others.pop(path).before
            if was is None:
                old.pop(path, None)
            else:
                old[path] = was
    return old, [change for change in others.values() if change.before != change.after]


def _gone(changes: Iterable[Change]) -> dict[bytes, Entry]:
    return {
        change.path: change.before for change in changes if change.before is not None and change.after is None
    }


def _of_equal_size(changed: dict[bytes, ChangedPath], old: dict[bytes, Entry]) -> Iterator[ChangedPath]:
    """Files whose mode may have changed, and nothing else."""
    for path, each in changed.items():
        was, now = old.get(path), each.entry
        if was is not None and now is not None and was.is_file and was.size == now.size:
            yield each


def _maybe_renamed(changed: dict[bytes, ChangedPath], old: dict[bytes, Entry]) -> Iterator[ChangedPath]:
    """New files as large as one that is gone."""
    sizes = {
        was.size
        for path, was in old.items()
        if was.is_file and was.size and (path not in changed or changed[path].item is None)
    }
    for path, each in changed.items():
        now = each.entry
        if path not in old and now is not None and now.is_file and now.size in sizes:
            yield each
