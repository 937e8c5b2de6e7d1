"""What differs between two commits, or between a commit and the workspace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from dsv.api.context import Context, check_binding
from dsv.api.workspace_diff import workspace_changes
from dsv.errors import NotFound, UsageError
from dsv.fs.descent import Descent
from dsv.fs.errors import about
from dsv.model.entry import Entry
from dsv.model.ids import CommitId
from dsv.model.location import Location
from dsv.model.names import DatasetName, Target
from dsv.model.path_set import PathSet
from dsv.model.paths import show
from dsv.model.renames import Difference, Found, differences, find_renames
from dsv.repo.objects import Objects
from dsv.repo.recipes import read_chunks
from dsv.repo.repository import Repository
from dsv.repo.tree_diff import diff_trees
from dsv.repo.trees import TreeReader
from dsv.transfer.download import Fetcher, Wanted
from dsv.worktree.baseline import Trees
from dsv.worktree.scan.file_reader import read_stable
from dsv.worktree.scan.problem import Problem, refusal
from dsv.worktree.workspace import Workspace


def _no_objects() -> Objects:
    raise AssertionError("a comparison that nobody opened")


def _no_folder() -> Descent:
    raise AssertionError("a comparison without a workspace")


@dataclass(frozen=True, slots=True)
class Side:
    """A commit, or a workspace if `workspace` is given. Neither: a dataset before its first commit."""

    dataset: DatasetName
    commit: CommitId | None
    workspace: Path | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """problems: files of the workspace that can't be compared. note: what to know of the workspace besides."""

    before: Side
    after: Side
    found: Found
    problems: tuple[Problem, ...] = ()
    note: str | None = None
    objects: Callable[[], Objects] = field(default=_no_objects, repr=False)
    folder: Callable[[], Descent] = field(default=_no_folder, repr=False)

    def contents(
        self, chosen: Sequence[Difference]
    ) -> Iterator[tuple[Difference, bytes | None, bytes | None]]:
        """Both sides' contents of these files, whole, while the comparison is open. A side without a file is None."""
        old = self._stored(self.before, ((one.before, None) for one in chosen))
        new = (
            self._stored(self.after, ((one.after, one.location) for one in chosen))
            if self.after.workspace is None
            else self._on_disk(self.after.workspace, chosen)
        )
        for one in chosen:
            before = next(old) if _is_file(one.before) else None
            yield one, before, next(new) if _is_file(one.after) else None

    def _stored(self, side: Side, files: Iterable[tuple[Entry | None, Location | None]]) -> Iterator[bytes]:
        wanted = [Wanted(entry, where) for entry, where in files if entry is not None and entry.is_file]
        if wanted:
            for _, pieces in Fetcher(self.objects(), side.dataset).files(wanted):
                yield b"".join(pieces)

    def _on_disk(self, root: Path, chosen: Sequence[Difference]) -> Iterator[bytes]:
        with about(root):
            for one in chosen:
                if one.after is not None and one.after.is_file:
                    found = read_stable(self.folder(), one.after.path, _read_whole)
                    if isinstance(found, Problem):
                        raise refusal([found], str(root))
                    yield found.value


@contextmanager
def diff(
    context: Context, before: Target | None, after: Target | None, paths: Sequence[bytes] = ()
) -> Iterator[Comparison]:
    """Compares two commits; without `after` a commit, and without both the base, with the workspace.

    paths: below which to look, as the dataset has them. Raises `NotFound` for a path that neither side has.
    """
    scope = PathSet.of(paths)
    if before is None:
        with ExitStack() as opened:
            yield _workspace_with_base(context, opened, scope)
        return
    workspace = context.workspace_or_none()
    if after is None and workspace is None:
        raise UsageError(
            "outside a workspace two commits are needed to compare",
            subject=str(before),
            hint=f"dsv diff {before} OTHER; dsv show {before} compares a commit with its parent",
        )
    with ExitStack() as opened, context.repository(before) as repository:
        left = _side(context, repository, before)
        if after is not None:
            yield _commits(repository, left, _side(context, repository, after), scope)
            return
        assert workspace is not None
        check_binding(workspace, repository)
        yield _with_workspace(context, opened, workspace, left, lambda: repository.objects, scope)


def compare_commits(
    repository: Repository, before: Side, after: Side, scope: PathSet, trees: Trees | None = None
) -> Found:
    """The differences of two commits, with renames."""
    trees = trees or Trees(lambda: repository.objects)
    changes = diff_trees(trees.of(before.commit), trees.of(after.commit), scope)
    return find_renames(differences(changes), lambda entries: read_chunks(repository.objects, entries))


def _commits(repository: Repository, before: Side, after: Side, scope: PathSet) -> Comparison:
    trees = Trees(lambda: repository.objects)
    found = compare_commits(repository, before, after, scope, trees)
    _check_paths(scope, found, [trees.of(before.commit), trees.of(after.commit)])
    return Comparison(before, after, found, objects=lambda: repository.objects)


def _side(context: Context, repository: Repository, target: Target) -> Side:
    resolved = context.resolve(repository, target)
    return Side(resolved.dataset, resolved.commit)


def _workspace_with_base(context: Context, opened: ExitStack, scope: PathSet) -> Comparison:
    """The store is opened only if something of the base must be read."""
    workspace = context.workspace()
    objects = cache(lambda: opened.enter_context(context.bound_repository(workspace)).objects)
    base = Side(workspace.dataset, workspace.base())
    return _with_workspace(context, opened, workspace, base, objects, scope)


def _with_workspace(
    context: Context,
    opened: ExitStack,
    workspace: Workspace,
    before: Side,
    objects: Callable[[], Objects],
    scope: PathSet,
) -> Comparison:
    made = workspace_changes(context, workspace, Trees(objects), before.commit, scope)
    after = Side(workspace.dataset, None, workspace.root)
    found = find_renames(made.differences, lambda entries: read_chunks(objects(), entries))
    folder = cache(lambda: opened.enter_context(Descent(workspace.root)))
    return Comparison(before, after, found, made.problems, made.note, objects, folder)


def _check_paths(scope: PathSet, found: Found, trees: Sequence[TreeReader | None]) -> None:
    """Raises `NotFound` for a path that no tree has."""
    seen = PathSet.of(path for one in found.differences for path in (one.path, one.old_path) if path)
    for path in scope.paths:
        if not (found.differences and seen.touches(path)) and not any(
            tree is not None and next(tree.below(path), None) is not None for tree in trees
        ):
            raise NotFound(
                f"neither side has {show(path)}",
                subject=path.decode("utf-8", "backslashreplace"),
                hint="dsv ls TARGET lists the paths of a commit",
            )


def _is_file(entry: Entry | None) -> bool:
    return entry is not None and entry.is_file


def _read_whole(descriptor: int, size: int) -> tuple[bytes, int]:
    data = b""
    while piece := os.read(descriptor, max(size + 1 - len(data), 1 << 16)):
        data += piece
    return data, len(data)
