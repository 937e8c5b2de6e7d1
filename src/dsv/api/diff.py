"""Compare two commits, a commit and the workspace, or a commit and its parent (show)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from dsv.api.context import Context, check_binding
from dsv.api.log import changes_between, names_by_commit
from dsv.diff.paths import Difference, PathDifferences, Summary, differences, find_renames
from dsv.errors import NotFound, Unreachable, UsageError
from dsv.files.descent import Descent
from dsv.files.errors import about
from dsv.format.locator import Location
from dsv.format.records import CommitRecord, Erasure
from dsv.format.tree import Entry
from dsv.repo.expiry import read_expiry
from dsv.repo.history import KeptParents
from dsv.repo.objects.objects import Objects
from dsv.repo.objects.recipes import count_chunks, read_chunks, shared_bytes
from dsv.repo.repository import Repository
from dsv.repo.tree.diff import Located, PathChange, What, diff_trees
from dsv.repo.tree.reader import TreePart, TreeReader, find_entries, urls_of
from dsv.transfer.download import Fetcher, WantedFile
from dsv.transfer.stable_read import Problem, read_stable, refusal
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName, Target, clean_path
from dsv.values.paths import WHOLE, Both, PathSet, sort_key
from dsv.values.paths import show as quote
from dsv.workspace.baseline import Baseline, Trees, check_paths, find_baseline, load_state, save_news
from dsv.workspace.scan.result import Differences, Gone, Pending, detect_changes, read_contents
from dsv.workspace.workspace import Workspace

_MOST_PATHS, _MOST_BYTES = 20_000, 64 << 20
"""The most that `find_renamed` considers."""


_Changed = dict[bytes, "Pending | Gone"]


def _workspace_changes(
    context: Context, workspace: Workspace, trees: Trees, before: CommitId | None, scope: PathSet
) -> tuple[list[Difference], tuple[Problem, ...], str | None]:
    """Compare the workspace with its base or another commit.

    Return the differences without renames, the files that can't be compared, and a note of an interrupted
    command. Files are read if their stats leave a doubt, and new files if they may be renamed.
    """
    state = load_state(workspace)
    base = workspace.base()
    check_paths(workspace.root, lambda: trees.of(before), scope.paths)
    baseline = find_baseline(workspace, state, base, trees, scope.paths)
    scan = baseline.scan
    differing, unread = detect_changes(scan, baseline.entry, context.progress)
    changed = _changed(baseline, differing)
    others: list[PathChange] = []
    if before == base:
        old = _unchanged(baseline, changed)
    else:
        old, others = _from_another(baseline, trees.of(before), changed, scope)
    gone = {
        change.path: change.before for change in others if change.before is not None and change.after is None
    }
    unread += read_contents(scan, _to_read(changed, {**gone, **old}))
    changes = [PathChange(path, old.get(path), file.entry) for path, file in changed.items()]
    if others:
        changes = sorted([*changes, *others], key=lambda change: sort_key(change.path))
    save_news(workspace, state)
    return list(differences(changes)), tuple(scan.problems + unread), baseline.warning


def _changed(baseline: Baseline, paths: Iterable[bytes]) -> _Changed:
    """Return the present entries at these paths, which `detect_changes` found to differ, in tree order."""
    wanted = set(paths)
    return {item.path: item for item in baseline.scan.work() if item.path in wanted}


def find_renamed(baseline: Baseline, listed: Differences) -> dict[bytes, bytes]:
    """Return the old paths of added files, by new path; none if that needs much reading, or the store."""
    if not listed.removed or not listed.added or len(listed.added) + len(listed.removed) > _MOST_PATHS:
        return {}
    try:
        old = _unchanged(baseline, listed.removed)
    except Unreachable:
        return {}
    changed = _changed(baseline, [*listed.added, *listed.removed])
    unread = [file for file in _to_read(changed, old) if file.known is None]
    if sum(file.size for file in unread) > _MOST_BYTES:
        return {}
    read_contents(baseline.scan, unread)
    changes = [PathChange(path, old.get(path), file.entry) for path, file in changed.items()]
    return {
        difference.path: difference.old_path
        for difference in find_renames(differences(changes)).differences
        if difference.what is What.RENAMED and difference.old_path is not None
    }


def _unchanged(baseline: Baseline, paths: Iterable[bytes]) -> dict[bytes, Entry]:
    """Return the entries that count as unchanged at these paths."""
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
    baseline: Baseline, before: TreeReader | None, changed: _Changed, scope: PathSet
) -> tuple[dict[bytes, Entry], list[PathChange]]:
    """Return a commit's entries at the changed paths, and its differences from the base elsewhere."""
    others = {change.path: change for change in diff_trees(before, baseline.tree, Both(scope, baseline.held))}
    written = [path for path in baseline.written if path in scope]
    had = find_entries(before, written) if written else {}
    for path in written:
        others[path] = PathChange(path, had[path][0] if path in had else None, baseline.written[path])
    old = _unchanged(baseline, changed)
    for path in changed:
        if path in others:
            was = others.pop(path).before
            if was is None:
                old.pop(path, None)
            else:
                old[path] = was
    return old, [change for change in others.values() if change.before != change.after]


def _to_read(changed: _Changed, old: dict[bytes, Entry]) -> Iterator[Pending | Gone]:
    """Yield files whose mode alone may have changed, and new files as large as a removed file."""
    sizes = {
        was.size
        for path, was in old.items()
        if was.is_file and was.size and (path not in changed or changed[path].entry is None)
    }
    for path, each in changed.items():
        was, now = old.get(path), each.entry
        if now is None or not now.is_file:
            continue
        if now.size in sizes if was is None else was.is_file and was.size == now.size:
            yield each


@dataclass(frozen=True, slots=True)
class Side:
    """A commit, or a workspace if `workspace` is given. Without both: a dataset before its first commit."""

    dataset: DatasetName
    commit: CommitId | None
    workspace: Path | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    before: Side
    after: Side
    found: PathDifferences
    _objects: Callable[[], Objects] = field(repr=False)
    problems: tuple[Problem, ...] = ()
    """Files of the workspace that can't be compared."""
    note: str | None = None
    """A warning about the workspace."""
    _folder: Descent | None = field(default=None, repr=False)

    def is_erased(self, difference: Difference) -> bool:
        """Return whether the content of either side was erased from the store."""
        erasures = self._objects().erasures
        sides = (difference.before, difference.after)
        return any(entry is not None and erasures.of(entry) is not None for entry in sides)

    def contents(
        self, chosen: Sequence[Difference]
    ) -> Iterator[tuple[Difference, bytes | None, bytes | None]]:
        """Yield both sides' whole contents of these files (None: no file). The comparison must be open."""
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
        wanted = [WantedFile(entry, where) for entry, where in files if entry is not None and entry.is_file]
        if wanted:
            for _, pieces in Fetcher(self._objects(), side.dataset).files(wanted):
                yield b"".join(pieces)

    def _on_disk(self, root: Path, chosen: Sequence[Difference]) -> Iterator[bytes]:
        with about(root):
            for difference in chosen:
                if difference.after is not None and difference.after.is_file and self._folder is not None:
                    content = read_stable(self._folder, difference.after.path, _read_whole)
                    if isinstance(content, Problem):
                        raise refusal([content], str(root))
                    yield content.value


@contextmanager
def diff(
    context: Context, before: Target | None, after: Target | None, paths: Sequence[bytes] = ()
) -> Iterator[Comparison]:
    """Compare two commits; or `before` (None: the base) with the workspace.

    paths: compare only these paths of the dataset. Raises `NotFound` for a path that neither side has.
    """
    scope = PathSet.of(paths)
    workspace = context.workspace() if before is None else context.workspace_or_none()
    if before is not None and after is None and workspace is None:
        raise UsageError(
            "outside a workspace two commits are needed to compare",
            subject=str(before),
            hint=f"dsv diff {before} OTHER; dsv show {before} compares a commit with its parent",
        )
    with ExitStack() as opened:
        if before is None:  # the store is opened only if content of the base must be read
            assert workspace is not None
            here = workspace
            objects = cache(lambda: opened.enter_context(context.bound_repository(here)).objects)
            yield _with_workspace(context, opened, here, Side(here.dataset, here.base()), objects, scope)
            return
        repository = opened.enter_context(context.repository(before))
        left = _side(context, repository, before)
        if after is None:
            assert workspace is not None
            check_binding(workspace, repository)
            yield _with_workspace(context, opened, workspace, left, lambda: repository.objects, scope)
            return
        right = _side(context, repository, after)
        trees = Trees(lambda: repository.objects)
        old, new = trees.of(left.commit), trees.of(right.commit)
        found = changes_between(repository.objects, old, new, scope)
        _check_paths(scope, found, [old, new])
        yield Comparison(left, right, found, lambda: repository.objects)


def _side(context: Context, repository: Repository, target: Target) -> Side:
    resolved = context.resolve(repository, target)
    return Side(resolved.dataset, resolved.commit)


def _with_workspace(
    context: Context,
    opened: ExitStack,
    workspace: Workspace,
    before: Side,
    objects: Callable[[], Objects],
    scope: PathSet,
) -> Comparison:
    made, problems, note = _workspace_changes(context, workspace, Trees(objects), before.commit, scope)
    after = Side(workspace.dataset, None, workspace.root)
    found = find_renames(made, lambda entries: read_chunks(objects(), entries))
    folder = opened.enter_context(Descent(workspace.root))
    return Comparison(before, after, found, objects, problems, note, folder)


def _check_paths(scope: PathSet, compared: PathDifferences, trees: Sequence[TreeReader | None]) -> None:
    seen = PathSet.of(path for item in compared.differences for path in (item.path, item.old_path) if path)
    for path in scope.paths:
        if not (compared.differences and seen.touches(path)) and not any(
            tree is not None and next(tree.below(path), None) is not None for tree in trees
        ):
            raise NotFound(
                f"neither side has {quote(path)}",
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


@dataclass(frozen=True, slots=True)
class ShownPath:
    """A file, a symlink or a folder."""

    path: bytes
    entry: Entry | None
    """None for a folder that is not empty."""
    files: int = 0
    bytes: int = 0
    chunks: int = 0
    difference: Difference | None = None
    """The change from the first parent, if any; None for a folder."""
    shared: int = 0
    """Bytes of the file in chunks that the parent's version also has."""
    erased: Erasure | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class ShownCommit:
    dataset: DatasetName
    id: CommitId
    commit: CommitRecord
    names: tuple[str, ...]
    """Branches and tags that name it now."""
    differences: Iterable[Difference]
    """Changes from `parent` (or from nothing), below the path if given. Iterate only once, before closing."""
    unsearched: int = 0
    path: ShownPath | None = None
    parent: CommitId | None = None
    """The first parent, or its nearest ancestor that gc has not removed."""
    passed: int = 0
    """Commits before `parent` whose content gc has removed."""
    tree: TreeReader | None = field(default=None, repr=False)
    """Of a first commit that was requested as a whole."""

    def summarize(self) -> Summary:
        """Count the differences, instead of iterating over them."""
        if self.tree is None:
            return Summary(self.differences)
        summary = Summary()
        for located in self.tree.segments():
            summary.add_files(located.segment.paths, located.segment.sizes)
        return summary


@contextmanager
def show(context: Context, target: Target) -> Iterator[ShownCommit]:
    """Open the commit that a target means, or the path that it names in it. Raises `NotFound`."""
    path = clean_path(target.path)
    with context.repository(target) as repository:
        resolved = context.resolve(repository, target)
        after = TreeReader(repository.objects, resolved.commit)
        names = names_by_commit(*repository.refs.names(resolved.dataset)).get(resolved.commit, ())
        kept = KeptParents(repository.objects, read_expiry(repository.refs, resolved.dataset).freed)
        parent = next(iter(kept.of(after.commit, first_only=True)), None)
        made = partial(
            ShownCommit, resolved.dataset, resolved.commit, after.commit, tuple(names), parent=parent,
            passed=len(kept.passed),
        )  # fmt: skip
        before = None if parent is None else TreeReader(repository.objects, parent)
        entry = after.entry(path) if path else None
        if entry is not None:
            shown = _file(before, after, entry)
            yield made(() if shown.difference is None else (shown.difference,), path=shown)
            return
        folder = _folder(after, path) if path else None
        if path and folder is None:
            raise resolved.no_path(quote(path), str(target))
        scope = PathSet.of([path] if path else [])
        if before is None:  # the changes are the whole tree, and are not kept in memory
            changes = differences(diff_trees(None, after, scope))
            yield made(changes, path=folder, tree=None if path else after)
            return
        found = changes_between(repository.objects, before, after, scope)
        yield made(found.differences, found.unsearched, folder)


def _file(before: TreeReader | None, after: TreeReader, located: Located) -> ShownPath:
    """Describe a file. If the parent lacks its path, it may be renamed, so all differences are searched."""
    entry, where = located
    objects = after.objects
    is_lacking = before is not None and before.entry(entry.path) is None
    made = changes_between(objects, before, after, WHOLE if is_lacking else PathSet.of([entry.path]))
    mine = next((difference for difference in made.differences if difference.path == entry.path), None)
    old = None if mine is None else mine.before
    shared = entry.size if mine is None else 0 if old is None else shared_bytes(objects, old, entry)
    return ShownPath(
        entry.path,
        entry,
        int(entry.is_file),
        entry.size,
        count_chunks(objects, entry, where),
        mine,
        shared,
        objects.erasures.of(entry),
        next(urls_of(objects, entry, where), None),
    )


def _folder(after: TreeReader, path: bytes) -> ShownPath | None:
    scope, files, size, entries = PathSet.of([path]), 0, 0, 0
    partly: list[TreePart] = []
    for leaf in after.leaves_of(scope):
        one = leaf.child
        if leaf.before is not None and leaf.before in scope and one.last in scope:  # its node has the totals
            files, size, entries = files + one.files, size + one.bytes, entries + one.entries
        else:
            partly.append(leaf)
    for located in after.segments(partly):
        for entry, _ in located.entries():
            if entry.path in scope:
                entries, files, size = entries + 1, files + entry.is_file, size + entry.size
    return ShownPath(path, None, files, size) if entries else None
