"""Choosing the paths that a workspace has, for `dsv sparse`."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from dsv.api.context import Context
from dsv.api.sync import open_to_write
from dsv.errors import Conflict, NotFound, UsageError
from dsv.format.tree import Entry, Kind
from dsv.repo.tree.diff import PathChange
from dsv.repo.tree.reader import TreeReader, find_paths
from dsv.values.ids import CommitId
from dsv.values.names import clean_path
from dsv.values.paths import show, sort_key
from dsv.values.patterns import EVERYTHING, EVERYTHING_LINE, SparsePatterns, escaped, is_pattern
from dsv.values.units import format_count, format_lines
from dsv.workspace.baseline import Baseline, WorkspacePaths, open_baseline
from dsv.workspace.checkout import check_out, check_tree
from dsv.workspace.open import OpenWorkspace
from dsv.workspace.plan import CheckoutResult, Goal
from dsv.workspace.scan.result import detect_changes
from dsv.workspace.workspace import Workspace


def chosen_by(tree: TreeReader | None, only: Sequence[str]) -> SparsePatterns:
    """Return the patterns of `--only`, in order: each adds paths, or with a `!` excludes them.

    Raises `NotFound` for a pattern that matches nothing.
    """
    if not only:
        return EVERYTHING
    chosen = EVERYTHING if only[0].startswith("!") else SparsePatterns(())
    for text in only:
        line = _line(tree, text.removeprefix("!"))
        if text.startswith("!"):
            chosen = chosen.removed([line])
        else:
            check_matches(tree, [line])
            chosen = chosen.added([line])
    return chosen


def check_matches(tree: TreeReader | None, lines: Iterable[str]) -> None:
    """Raises `NotFound` for a pattern that matches nothing in the tree: it may be misspelled."""
    for line in lines:
        pattern = SparsePatterns((line,))
        if tree is not None and not any(pattern.matches(entry.path) for entry, _ in tree.within(pattern)):
            raise NotFound(
                f"nothing in commit {str(tree.commit_id)[:12]} matches {line}",
                subject=line,
                hint="patterns begin at the top of the dataset, and each is named by itself; dsv ls shows paths",
            )


def _line(tree: TreeReader | None, text: str) -> str:
    """Return the line for a pattern. A path of exactly this name in the tree takes precedence."""
    path = clean_path(text.encode("utf-8", "surrogateescape"))
    if not path:
        return EVERYTHING_LINE
    if is_pattern(path) or b"\\" in path:
        if tree is not None:
            [(_, found)] = find_paths(tree, [path])
            if found.entry is not None or found.below:
                path = escaped(path)
    elif path.startswith(b"!"):
        path = b"\\" + path
    try:
        return path.decode()
    except UnicodeDecodeError:
        raise UsageError(
            f"the pattern {show(path)} is not UTF-8, and paths of a dataset are", subject=text
        ) from None


@dataclass(frozen=True, slots=True)
class Sparse:
    workspace: Workspace
    created: int = 0
    removed: int = 0


def sparse_add(context: Context, texts: Sequence[str]) -> Sparse:
    """Add paths that match the patterns to the workspace. If this is killed, the same call finishes it.

    Raises `NotFound` for a pattern that matches nothing, and `Conflict`, with nothing written, if something
    is in the way or another command was interrupted.
    """
    with open_to_write(context, "dsv sparse add") as opened:
        workspace, base = opened.workspace, opened.proven_base()
        tree = None if base is None else TreeReader(opened.repository.objects, base)
        lines = tuple(_line(tree, text) for text in texts)
        check_matches(tree, lines)
        if workspace.chosen.whole:
            return Sparse(workspace)
        chosen, come = workspace.chosen.added(lines), SparsePatterns(lines)
        with open_baseline(opened, base, writes=True) as baseline:
            _check_ended(baseline)
            held = WorkspacePaths(chosen, baseline.held.outside)

            def changes() -> Iterator[PathChange]:
                for entry, where in () if tree is None else tree.within(come):
                    if entry.path not in baseline.held:
                        yield PathChange(entry.path, None, entry, where)

            made = CheckoutResult()
            if tree is not None:
                check_tree(tree, workspace.root, held)
                hint = "move or remove yours, then run the same command again"
                made = check_out(opened, baseline, Goal("dsv sparse add", tree.commit_id, changes, hint))
            workspace = _choose(opened, baseline, chosen, base)
        return Sparse(workspace, created=made.created)


def sparse_remove(context: Context, texts: Sequence[str]) -> Sparse:
    """Remove paths that match the patterns from the workspace, not from the dataset. If this is killed, the
    same call finishes it. Raises `Conflict`, with nothing removed, if such a path was changed here, and
    `NotFound` for a pattern that is not the workspace's and matches nothing in the base.
    """
    with open_to_write(context, "dsv sparse remove") as opened:
        workspace, base = opened.workspace, opened.proven_base()
        tree = None if base is None else TreeReader(opened.repository.objects, base)
        lines = tuple(_line(tree, text) for text in texts)
        recorded = workspace.chosen.lines or ()
        chosen, go = workspace.chosen.removed(lines), SparsePatterns(lines)
        with open_baseline(opened, base, writes=True) as baseline:
            _check_ended(baseline)

            def goes(path: bytes) -> bool:
                return path not in chosen and (path in workspace.chosen or go.matches(path))

            def changes() -> Iterator[PathChange]:
                held = () if tree is None else tree.within(baseline.held)
                return _going(baseline, (entry for entry, _ in held), goes)

            _check_unchanged(baseline, [path for path in _local(opened, baseline) if goes(path)])
            new = [line for line in lines if line not in recorded and f"!{line}" not in recorded]
            if tree is None and new:
                raise NotFound(
                    f"nothing matches {new[0]}: dataset {workspace.dataset} has no commit yet",
                    subject=new[0],
                    hint="dsv status lists the files here",
                )
            check_matches(tree, new)
            made = CheckoutResult()
            if tree is not None:
                hint = "publish the changes with dsv sync, or give them up with dsv restore PATH"
                record = partial(workspace.choose, chosen)
                goal = Goal("dsv sparse remove", tree.commit_id, changes, hint, ready=record)
                made = check_out(opened, baseline, goal)
            workspace = _choose(opened, baseline, chosen, base)
        return Sparse(workspace, removed=made.removed)


def _going(baseline: Baseline, held: Iterable[Entry], goes: Callable[[bytes], bool]) -> Iterator[PathChange]:
    """Yield the removals in tree order, including folders that a killed call has left empty."""
    left = [
        Entry(path, Kind.EMPTY_DIRECTORY) for path in sorted(baseline.scan.filled_elsewhere, key=sort_key)
    ]
    for entry in heapq.merge(held, left, key=lambda entry: sort_key(entry.path)):
        if goes(entry.path):
            yield PathChange(entry.path, entry, None)


def _choose(
    opened: OpenWorkspace, baseline: Baseline, chosen: SparsePatterns, base: CommitId | None
) -> Workspace:
    """Record the new patterns, which the workspace now matches, and that the state mirrors exactly these."""
    workspace = opened.workspace.choose(chosen)
    state = baseline.scan.state
    state.chosen = chosen
    state.set_exact(base, {path for path in state.gone if path in chosen})
    return workspace


def _check_ended(baseline: Baseline) -> None:
    if baseline.warning is not None:
        raise Conflict(
            f"{baseline.begun[-1].command} was interrupted here",
            subject=str(baseline.scan.root),
            hint=f"{baseline.begun[-1].finish} finishes it",
        )


def _local(opened: OpenWorkspace, baseline: Baseline) -> Iterator[bytes]:
    """Yield the paths that differ from the base, or can't be compared with it."""
    found, problems = detect_changes(baseline.scan, baseline.entry, opened.progress)
    yield from found
    for problem in (*baseline.scan.problems, *problems):
        yield problem.path


def _check_unchanged(baseline: Baseline, paths: list[bytes]) -> None:
    if not paths:
        return
    lines = format_lines(list(map(show, sorted(set(paths)))))
    raise Conflict(
        f"nothing was removed, as {format_count(len(paths), 'path')} of these in {baseline.scan.root} "
        f"would be lost, or changes of yours with them:{lines}",
        subject=show(paths[0]),
        hint="publish them with dsv sync, give changes up with dsv restore PATH, or move new files away",
    )
