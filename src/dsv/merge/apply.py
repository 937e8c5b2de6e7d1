"""A merge of trees that becomes a commit: what merge, cherry-pick and revert share.

A large merge is computed twice: once to find every conflict before anything is written, and once to write it.

A history that was merged both ways may have several merge bases. Two are merged first, as in git: a path that
only one of them changed is taken from that one. Any other path, and every path on which more than two
disagree, has no common state. Both sides count as having changed it, so that no change is lost unnoticed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader, BytesIO
from itertools import groupby
from pathlib import Path

import msgspec

from dsv.diff.lines import TooDifferent, decode_text
from dsv.files.errors import about
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.tree import Entry
from dsv.merge.contents import MAX_TABLE, is_table, merge_tables, merge_text
from dsv.merge.paths import (
    UNDECIDED,
    Choices,
    ConflictChoice,
    ConflictKind,
    Decision,
    MergeConflict,
    MergeContent,
    MergedContent,
    NotByRows,
    PathConflict,
    Resolution,
    merge_changes,
    since_another,
)
from dsv.repo.history import merge_bases
from dsv.repo.objects.objects import Objects
from dsv.repo.tree.diff import PathChange, diff_trees
from dsv.repo.tree.reader import TreeReader
from dsv.repo.tree.writer import TreeChange
from dsv.transfer.download import Fetcher, WantedFile
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId
from dsv.values.paths import show, sort_key
from dsv.values.units import format_count, format_lines, format_time

_HELD_DECISIONS = 50_000
_HELD_BYTES = 64 << 20

Changes = Callable[[], Iterator[PathChange]]
"""Computes again what a side changed since the common state, in tree order."""


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """The number of paths that a merge changes in ours."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    merged: int = 0
    """Files with content from both sides."""
    resolved: tuple[Resolution, ...] = ()
    """The merged files, and all conflicts that a choice has decided."""

    @property
    def any(self) -> bool:
        return bool(self.added or self.changed or self.removed)


@dataclass(slots=True)
class MergedTree:
    """The result of the changes of two sides, applied to `ours` (None: an empty tree)."""

    ours: TreeReader | None
    theirs: TreeReader | None
    changes_of_ours: Changes
    changes_of_theirs: Changes
    merge_content: MergeContent
    choices: Choices
    conflicts: list[PathConflict] = field(default_factory=list)
    counts: MergeCounts = field(default_factory=MergeCounts)
    _resolved: list[Resolution] = field(default_factory=list)
    _beside: list[TreeChange] = field(default_factory=list)
    _held: list[Decision] | None = None

    def work_out(self) -> None:
        """Find all conflicts, and count what changes. Writes nothing."""
        held: list[Decision] | None = []
        weight = added = changed = removed = merged = 0
        for decision in self._decisions():
            if decision.conflict is not None:
                self.conflicts.append(decision.conflict)
            if decision.resolved is not None:
                self._resolved.append(decision.resolved.without_data())
            if decision.beside is not None:
                self._keep_beside(decision)
            if not decision.changes_ours:
                continue
            added += decision.ours is None
            removed += decision.result is None
            changed += decision.ours is not None and decision.result is not None
            merged += decision.resolved is not None and decision.resolved.content is not None
            weight += len(decision.content or b"")
            if held is not None:
                held.append(decision)
                if len(held) > _HELD_DECISIONS or weight > _HELD_BYTES:
                    held = None
        self._held = held
        self._beside.sort(key=lambda change: sort_key(change.path))
        self.counts = MergeCounts(added + len(self._beside), changed, removed, merged, tuple(self._resolved))

    @property
    def without_effect(self) -> tuple[bytes, ...]:
        """Paths for which a side was chosen although they had no conflict."""
        resolved = [one.path for one in self._resolved if one.choice is not None]
        return self.choices.without_effect([*resolved, *(one.path for one in self.conflicts)])

    def message(self, message: str) -> str:
        """Return the message, followed by the conflicts that choices decided."""
        lines = [str(one) for one in self._resolved if one.choice is not None]
        if not lines:
            return message
        return f"{message}\n\nConflicts were settled:{format_lines(lines)}".lstrip("\n")

    def check(self, more: str = "") -> None:
        """Raises `MergeConflict` if there are conflicts. more: what else helps, for the hint."""
        if not self.conflicts:
            return
        conflicts = tuple(sorted(self.conflicts, key=lambda one: sort_key(one.path)))
        raise MergeConflict(
            f"the merge stopped at {format_count(len(conflicts), 'conflict')}, and changed nothing:"
            f"{format_lines(list(map(describe, conflicts)))}",
            conflicts,
            hint=f"--ours PATH, --theirs PATH or --both PATH settles one; . is every path{more}",
            without_effect=self.without_effect,
        )

    def tree_changes(self, uploader: Uploader) -> Iterator[TreeChange]:
        """Yield the changes of `ours` in tree order, and store new contents."""
        decisions = self._decisions() if self._held is None else self._held
        stored = (_store(uploader, decision) for decision in decisions if decision.changes_ours)
        return heapq.merge(stored, self._beside, key=lambda change: sort_key(change.path))

    def _decisions(self) -> Iterator[Decision]:
        return merge_changes(
            self.changes_of_ours(), self.changes_of_theirs(), self.merge_content, self.choices
        )

    def _keep_beside(self, decision: Decision) -> None:
        assert decision.beside is not None
        entry, location = decision.beside
        trees = [tree for tree in (self.ours, self.theirs) if tree is not None]
        if any(next(iter(tree.below(entry.path)), None) is not None for tree in trees):
            reason = f"there is {show(entry.path)} already"
            self.conflicts.append(
                PathConflict(decision.path, ConflictKind.IN_THE_WAY, decision.ours, entry, reason)
            )
        else:
            self._beside.append(TreeChange(entry.path, entry, location))


def _store(uploader: Uploader, decision: Decision) -> TreeChange:
    entry = decision.result
    if entry is not None and decision.file is not None:
        with about(decision.file), Path(decision.file).open("rb") as file:
            return _store_content(uploader, entry, file)
    if entry is not None and decision.content is not None:
        return _store_content(uploader, entry, BytesIO(decision.content))
    return TreeChange(decision.path, entry, decision.location)


def _store_content(uploader: Uploader, entry: Entry, content: BytesIO | BufferedReader) -> TreeChange:
    start = content.read(SINGLE_CHUNK_MAX + 1)
    if len(start) <= SINGLE_CHUNK_MAX:
        stored = uploader.add_bytes(start)
    else:
        content.seek(0)
        stored = uploader.add_stream(content.readinto)
    made = Entry(entry.path, entry.kind, stored.size, stored.file_id, stored.recipe_id)
    return TreeChange(entry.path, made, stored.location)


def describe(conflict: PathConflict) -> str:
    text = f"{show(conflict.path)}: {_WHAT[conflict.kind]}"
    return f"{text} ({conflict.reason})" if conflict.reason else text


_WHAT = {
    ConflictKind.BOTH_CHANGED: "changed by both",
    ConflictKind.BOTH_ADDED: "added by both, and not the same",
    ConflictKind.OURS_REMOVED: "removed by ours, changed by theirs",
    ConflictKind.THEIRS_REMOVED: "changed by ours, removed by theirs",
    ConflictKind.FILE_AND_FOLDER: "a file on one side, a folder on the other",
    ConflictKind.IN_THE_WAY: "theirs can't be kept beside ours",
}


_REMEMBERED = 64 << 20  # bytes
MAX_TEXT = 1 << 20  # bytes; a text of this size or more is not merged


class ContentMerger:
    """`MergeContent` for one store. table_key: the column that identifies rows; None: tables are texts."""

    def __init__(self, objects: Objects, table_key: str | None = None) -> None:
        self._objects = objects
        self._table_key = table_key
        self._known: dict[tuple[Entry | None, ...], MergedContent | str] = {}
        self._weight = 0

    def __call__(
        self,
        ours: PathChange,
        theirs: PathChange,
        choice: ConflictChoice | None,
        read_ours: Callable[[], bytes | None] | None = None,
    ) -> MergedContent | str:
        """Merge a file, and remember the result.

        read_ours: returns the content of ours, which the store may not have; None if it has changed.
        """
        before, mine, other = key = ours.before, ours.after, theirs.after
        fault = self._fault(ours.path, key)
        if fault is not None:
            return fault
        local = None if read_ours is None else read_ours()
        if read_ours is not None and local is None:
            return ""
        if key in self._known:
            return self._known[key]
        assert before is not None and mine is not None and other is not None
        wanted = [WantedFile(before), WantedFile(other, theirs.location)]
        wanted += [WantedFile(mine, ours.location)] if local is None else []
        files = Fetcher(self._objects, connections=4).files(wanted)
        base, there, *stored = (b"".join(pieces) for _, pieces in files)
        merged = self._merge(ours.path, base, stored[0] if local is None else local, there, choice)
        self._weight += len(merged if isinstance(merged, str) else merged.data)
        if self._weight <= _REMEMBERED:
            self._known[key] = merged
        return merged

    def _fault(self, path: bytes, entries: Sequence[Entry | None]) -> str | None:
        for entry in entries:
            if entry is not None and (erased := self._objects.erasures.of(entry)) is not None:
                when = format_time(erased.time_ms)[:10]
                return f"a version that takes part was erased on {when} by {erased.author}"
        largest = max(entry.size for entry in entries if entry is not None)
        if self._key(path) is None:
            return self._unmerged(path) if largest >= MAX_TEXT else None
        if largest > MAX_TABLE:
            return NotByRows(f"it is larger than the {MAX_TABLE >> 20} MiB up to which tables are merged")
        return None

    def _key(self, path: bytes) -> str | None:
        return self._table_key if is_table(path) else None

    def _merge(
        self, path: bytes, base: bytes, mine: bytes, other: bytes, choice: ConflictChoice | None
    ) -> MergedContent | str:
        key = self._key(path)
        if key is not None:
            made = merge_tables(path, key, base, mine, other, choice)
            return NotByRows(made) if isinstance(made, str) else made
        if any(decode_text(text) is None for text in (base, mine, other)):
            return self._unmerged(path)
        try:
            merged = merge_text(base, mine, other, choice)
        except TooDifferent:
            merged = "its lines differ too much to be merged"
        return self._unmerged(path, merged) if isinstance(merged, str) else merged

    def _unmerged(self, path: bytes, reason: str = "") -> str:
        hint = "--table-key COLUMN merges it by rows" if is_table(path) else ""
        return "; ".join(filter(None, (reason, hint)))


_DEPTH = 8
"""Nested criss-cross merges that are followed to a merge base."""


class MergeBase(msgspec.Struct, frozen=True):
    """The tree of a commit (None: an empty tree) with some changes."""

    commits: tuple[CommitId, ...]
    """The merge bases from which it was made."""
    apart: tuple[PathChange, ...] = ()
    """Its changes against the commit's tree, in tree order."""

    @property
    def commit(self) -> CommitId | None:
        return self.commits[0] if self.commits else None

    def changes(self, objects: Objects, commit: CommitId | None) -> Iterator[PathChange]:
        """Yield a commit's changes (None: an empty tree's) since the base. Reads only differing segments."""
        before, after = (None if one is None else TreeReader(objects, one) for one in (self.commit, commit))
        return since_another(diff_trees(before, after), self.apart)


def find_merge_base(objects: Objects, left: CommitId, right: CommitId, depth: int = 0) -> MergeBase:
    """Return the base of a merge of two commits; an empty tree if their histories have nothing in common."""
    commits = merge_bases(objects, left, right)
    if len(commits) < 2:
        return MergeBase(commits)
    if len(commits) == 2 and depth < _DEPTH:
        return MergeBase(commits, tuple(_merged_bases(objects, *commits, depth)))
    return MergeBase(commits, tuple(_disagreements(objects, commits)))


def _merged_bases(objects: Objects, first: CommitId, second: CommitId, depth: int) -> Iterator[PathChange]:
    below = find_merge_base(objects, first, second, depth + 1)
    ours, theirs = below.changes(objects, first), below.changes(objects, second)
    for decision in merge_changes(ours, theirs, lambda *_: ""):
        result: Entry | None = UNDECIDED if decision.undecided else decision.result
        if result != decision.ours:
            yield PathChange(decision.path, decision.ours, result)


def _disagreements(objects: Objects, commits: tuple[CommitId, ...]) -> Iterator[PathChange]:
    first, *others = (TreeReader(objects, commit) for commit in commits)
    every: Iterable[PathChange] = heapq.merge(
        *(diff_trees(first, other) for other in others), key=lambda change: sort_key(change.path)
    )
    for path, changes in groupby(every, key=lambda change: change.path):
        yield PathChange(path, next(changes).before, UNDECIDED)
