"""Show one commit, or one path of it, and its change since the commit before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from dsv.api.context import Context
from dsv.api.log import names_by_commit
from dsv.diff.paths import Difference, Summary, differences, find_renames
from dsv.format.records import Commit, Erasure
from dsv.format.tree import Entry
from dsv.repo.expiry import read_expiry
from dsv.repo.history import KeptParents
from dsv.repo.objects.recipes import count_chunks, read_chunks, shared_bytes
from dsv.repo.tree.diff import Located, What, diff_trees
from dsv.repo.tree.read import TreeReader
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName, Target, clean_path
from dsv.values.paths import WHOLE, PathSet
from dsv.values.paths import show as quote


@dataclass(frozen=True, slots=True)
class ShownPath:
    """A file, a symlink or a folder."""

    path: bytes
    entry: Entry | None
    """None for a folder that is not empty."""
    files: int = 0
    bytes: int = 0
    chunks: int = 0
    """Chunks of the file."""
    difference: Difference | None = None
    """The change against the first parent, if there is one; None for a folder."""
    shared: int = 0
    """Bytes of the file in chunks that the parent's version has too."""
    erased: Erasure | None = None
    """The erasure of the file's content."""


@dataclass(frozen=True, slots=True)
class ShownCommit:
    """A commit, and the changes that it made."""

    dataset: DatasetName
    id: CommitId
    commit: Commit
    names: tuple[str, ...]
    """Branches and tags that name it now."""
    differences: Iterable[Difference]
    """Changes against `parent` (or against nothing), below the path if one was given. Iterate only once, and
    before closing."""
    unsearched: int = 0
    path: ShownPath | None = None
    parent: CommitId | None = None
    """The first parent, or its nearest ancestor that gc has left."""
    passed: int = 0
    """Commits up to that one whose content gc has removed."""
    tree: TreeReader | None = field(default=None, repr=False)
    """Of a first commit that was asked for as a whole."""

    def summarize(self) -> Summary:
        """Count the differences, in place of taking them."""
        if self.tree is None:
            return Summary(self.differences)
        summary = Summary()
        for located in self.tree.segments():
            summary.add_files(located.segment.paths, located.segment.sizes)
        return summary


@contextmanager
def show(context: Context, target: Target) -> Iterator[ShownCommit]:
    """Open the commit that a target means, or the path in it that the target names. Raises `NotFound`."""
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
        changes = differences(diff_trees(before, after, PathSet.of([path] if path else [])))
        if before is None:  # not held: it is the whole tree
            yield made(changes, path=folder, tree=None if path else after)
            return
        found = find_renames(changes, partial(read_chunks, repository.objects))
        yield made(found.differences, found.unsearched, folder)


def _file(before: TreeReader | None, after: TreeReader, found: Located) -> ShownPath:
    """If the parent lacks it, it may be another one's new name, so all that differs is looked at."""
    entry, where = found
    objects = after.objects
    scope = PathSet.of([entry.path])
    if before is not None and before.entry(entry.path) is None:
        scope = WHOLE
    changes = differences(diff_trees(before, after, scope)) if before is not None else iter(())
    renamed = find_renames(changes, partial(read_chunks, objects)).differences
    mine = next((one for one in renamed if one.path == entry.path), None)
    old = None if mine is None else mine.before
    if before is None:
        mine = Difference(What.ADDED, None, entry)
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
    )


def _folder(after: TreeReader, path: bytes) -> ShownPath | None:
    files = size = entries = 0
    for entry, _ in after.below(path):
        entries, files, size = entries + 1, files + entry.is_file, size + entry.size
    return ShownPath(path, None, files, size) if entries else None
