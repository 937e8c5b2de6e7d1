"""What counts as unchanged in a workspace: what its base has, and what an interrupted command has written since."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from dsv.errors import Conflict
from dsv.model.diff import Change, diff_entries
from dsv.model.entry import Entry, sort_key
from dsv.model.ids import CommitId
from dsv.model.location import Location
from dsv.model.path_set import PathSet, folders_above
from dsv.model.paths import show
from dsv.model.progress import Progress
from dsv.repo.objects import Objects
from dsv.repo.repository import Repository
from dsv.repo.tree_diff import diff_trees
from dsv.repo.trees import TreeReader
from dsv.worktree.scanner import scan_workspace
from dsv.worktree.state import State
from dsv.worktree.tree_writer import scan_clean_workspace
from dsv.worktree.unfinished import Begun, read_begun, take_written, unfinished
from dsv.worktree.workspace import Workspace
from dsv.worktree.workspace_scan import Pending, WorkspaceScan


class Trees:
    """The trees of commits, each read when it is first asked for. `objects` opens the store, once.

    proven: a commit counts as there only if the store itself has it; else a local copy will do.
    """

    def __init__(self, objects: Callable[[], Objects], *, proven: bool = False) -> None:
        self._open = objects
        self._proven = proven
        self._opened: Objects | None = None
        self._trees: dict[CommitId, TreeReader] = {}

    def of(self, commit: CommitId | None) -> TreeReader | None:
        """None for no commit."""
        if commit is None:
            return None
        if commit not in self._trees:
            self._trees[commit] = TreeReader(self._objects, commit)
        return self._trees[commit]

    def have(self, begun: Begun) -> bool:
        """Whether both of its commits are there. What a lost commit brought is nobody's but the user's."""
        find = self._objects.stored_commit if self._proven else self._objects.commit_or_none
        return find(begun.commit) is not None and (begun.base is None or find(begun.base) is not None)

    @property
    def _objects(self) -> Objects:
        if self._opened is None:
            self._opened = self._open()
        return self._opened


@dataclass(frozen=True, slots=True)
class Footing:
    """A workspace that was scanned; the scan's state stands to all of this.

    begun: the commands that did not end. written: what they have written, by path, in place of what the base has; None
    where they removed it.
    """

    scan: WorkspaceScan
    trees: Trees
    begun: tuple[Begun, ...] = ()
    written: Mapping[bytes, Entry | None] = field(default_factory=dict)

    @property
    def tree(self) -> TreeReader | None:
        """The base's tree."""
        return self.trees.of(self.scan.base)

    @property
    def warning(self) -> str | None:
        """What to tell whoever might wonder about what was written."""
        if not self.begun:
            return None
        last = self.begun[-1]
        return (
            f"{last.command} did not end here; what it wrote on the way to {str(last.commit)[:12]} is not taken for "
            f"your change. {last.finish} finishes it"
        )

    def entry(self, path: bytes) -> Entry | None:
        """What counts as unchanged at the path."""
        if path in self.written:
            return self.written[path]
        found = None if self.tree is None else self.tree.entry(path)
        return None if found is None else found[0]

    def below(self, path: bytes) -> Iterator[Entry]:
        """The entry of this path, or everything below it, in tree order; all for an empty path."""
        entries = (entry for entry, _ in _below(self.tree, path))
        if not self.written:
            return entries
        inside = PathSet.of([path])
        wanted = sorted((each for each in self.written if each in inside), key=sort_key)
        return _laid_over(entries, {each: self.written[each] for each in wanted})

    def changes_to(self, after: TreeReader) -> Iterator[Change]:
        """The paths at which something else counts as unchanged than `after` has."""
        if self.written:
            return diff_entries(self.below(b""), after.below(b""))
        return diff_trees(self.tree, after)

    def check_publishable(self, progress: Progress) -> None:
        """Says what did not end. Raises `Conflict` if no tree can have both the user's changes and what the base
        has in the place of what was written: a file where one of them has a folder.
        """
        if self.warning is None:
            return
        progress.note(self.warning)
        mine = {item.path for item in self.scan.work() if isinstance(item, Pending)}
        ways = PathSet.of(mine).ways
        for path in self.written:
            if path in ways or any(part in mine for part in folders_above(path)):
                raise Conflict(
                    f"{show(path)} was written by {self.begun[-1].command}, which did not end, and a change of yours "
                    "needs it",
                    subject=path.decode("utf-8", "backslashreplace"),
                    hint=self.begun[-1].finish,
                )


def find_footing(
    workspace: Workspace,
    state: State,
    base: CommitId | None,
    trees: Trees,
    only: tuple[bytes, ...] = (),
    *,
    writes: bool = False,
    rehash: bool = False,
) -> Footing:
    """Scans the workspace, or these paths of it. `writes`: for a command that is to write files, so that those that
    a killed one did not finish go first. rehash: no stat is taken for proof that a file is what it was.

    `trees` is asked only if the state does not mirror the base, or a command did not end.
    """
    begun = unfinished(read_begun(workspace.begun_path), base)
    begun = tuple(each for each in begun if trees.have(each))
    if begun:
        state.exact = None  # what it says may be of this command's part alone

    def base_entries() -> Iterator[Entry]:
        return (entry for entry, _ in _below(trees.of(base), b""))

    if writes:
        scan = scan_clean_workspace(workspace.root, state, base, base_entries)
    else:
        scan = scan_workspace(workspace.root, state, base, base_entries, only, rehash=rehash)
    written = take_written(scan, _changes(begun, base, trees)) if begun else {}
    return Footing(scan, trees, begun, written)


@contextmanager
def working(repository: Repository, workspace: Workspace) -> Iterator[Footing]:
    """The workspace as it is, for a command that changes it; what is learned of it is saved."""
    state = State.load(workspace.state_folder)
    trees = Trees(lambda: repository.objects, proven=True)
    try:
        yield find_footing(workspace, state, workspace.base(), trees, writes=True)
    finally:
        state.save()


def _changes(begun: tuple[Begun, ...], base: CommitId | None, trees: Trees) -> Iterator[Change]:
    """What the commands were to change, less what the base has otherwise since."""
    for each in begun:
        before, after = trees.of(each.base), trees.of(each.commit)
        moved = frozenset[bytes]()
        if each.base != base:
            moved = frozenset(change.path for change in diff_trees(before, trees.of(base)))
        for change in each.concerning(diff_trees(before, after)):
            if change.path not in moved:
                yield change


def _below(tree: TreeReader | None, path: bytes) -> Iterator[tuple[Entry, Location | None]]:
    return iter(()) if tree is None else tree.below(path)


def _laid_over(entries: Iterator[Entry], written: Mapping[bytes, Entry | None]) -> Iterator[Entry]:
    """The entries, with the written ones in the place of those at their paths. Both are in tree order."""
    kept = (entry for entry in entries if entry.path not in written)
    new = (entry for entry in written.values() if entry is not None)
    return heapq.merge(kept, new, key=lambda entry: sort_key(entry.path))
