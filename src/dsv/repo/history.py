"""The history of commits: order, ancestors, merge bases, and which commits changed some paths."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from dsv.errors import DsvError
from dsv.format.locator import ObjectKind
from dsv.format.records import CommitRecord
from dsv.repo.objects.commits import if_readable
from dsv.repo.objects.objects import Objects
from dsv.repo.tree.diff import diff_trees, difference
from dsv.repo.tree.reader import TreeReader
from dsv.stores.base import together
from dsv.values.ids import CommitId
from dsv.values.paths import PathSet

# The commits of a walk that are kept as whole records until they are yielded. Of further ones only their order is kept.
_HELD = 1024

_LEFT, _RIGHT, _BELOW = 1, 2, 4
_BOTH = _LEFT | _RIGHT


class Commits(Protocol):
    """A source of commits, such as `dsv.repo.objects.objects.Objects`."""

    def commit(self, commit_id: CommitId) -> CommitRecord:
        """Raises `IntegrityError` if the commit is missing or does not match its id."""
        ...


class Distance(NamedTuple):
    """The numbers of commits that only one of two sides has."""

    ahead: int
    """Commits of the first side."""
    behind: int
    """Commits of the second side."""


def walk(commits: Commits, starts: Iterable[CommitId]) -> Iterator[tuple[CommitId, CommitRecord]]:
    """Yield the commits of `starts` and all their ancestors, once, newest first, children before parents.

    Reads no further than needed. Where history is a line, commits are yielded as they are read. Where it
    forks, it is read down to the commit in which the lines meet again. Only that part is held in memory.
    """
    frontier = _Frontier(commits)
    for start in starts:
        frontier.add(start)
    while frontier:
        yield from _in_order(commits, _read_until_lines_meet(frontier))


def is_ancestor(commits: Commits, ancestor: CommitId, descendant: CommitId) -> bool:
    """Return whether `descendant` is `ancestor` or descends from it."""
    painting = _Painting(commits, ancestor, descendant)
    while not painting.flags[ancestor] & _RIGHT and painting.open:
        painting.step()
    return bool(painting.flags[ancestor] & _RIGHT)


class KeptParents:
    """Finds the nearest ancestors that still have trees: gc has removed the trees of freed commits."""

    def __init__(self, commits: Commits, freed: Collection[CommitId]) -> None:
        self._commits = commits
        self.freed = freed
        self.passed = set[CommitId]()
        """The freed commits that were passed over."""

    def of(self, commit: CommitRecord, *, first_only: bool = False) -> tuple[CommitId, ...]:
        """Return the parents of a commit, each freed one replaced by its nearest kept ancestors.

        first_only: follow only the first parent of each commit.
        """
        parents: dict[CommitId, None] = {}
        waiting, seen = list(reversed(commit.parents[: 1 if first_only else None])), set[CommitId]()
        while waiting:
            commit_id = waiting.pop()
            if commit_id not in self.freed:
                parents[commit_id] = None
            elif commit_id not in seen:
                seen.add(commit_id)
                waiting += reversed(self._commits.commit(commit_id).parents[: 1 if first_only else None])
        self.passed |= seen
        return tuple(parents)


def merge_bases(commits: Commits, left: CommitId, right: CommitId) -> tuple[CommitId, ...]:
    """Return the common ancestors of two commits that no other common ancestor descends from, newest first.

    Empty if nothing is in common; several after a criss-cross merge. A commit is its own ancestor.
    """
    painting = _Painting(commits, left, right)
    while painting.open:
        painting.step()
    bases = [one for one, flags in painting.flags.items() if flags == _BOTH]
    # If clocks are wrong, a commit may have been read too early and be an ancestor of another one.
    best = [
        one for one in bases if not any(one != other and is_ancestor(commits, one, other) for other in bases)
    ]
    return tuple(sorted(best, key=lambda one: (-commits.commit(one).time_ms, one)))


def ahead_behind(commits: Commits, left: CommitId, right: CommitId) -> Distance:
    """Return how many commits `left` has that `right` has not, and the other way round."""
    painting = _Painting(commits, left, right)
    while not painting.is_complete:
        painting.step()
    flags = list(painting.flags.values())
    return Distance(flags.count(_LEFT), flags.count(_RIGHT))


def distance(
    commits: Commits, base: CommitId | None, head: CommitId, most: int | None = None
) -> Distance | None:
    """Return how many commits a base (None: an empty history) has that a head has not, and the other way
    round; None if a commit can't be read, or more than `most` would have to be read.
    """
    painting = _Painting(commits, head, *([] if base is None else [base]))
    try:
        while not painting.is_complete:
            if most is not None and len(painting.flags) > most:
                return None
            painting.step()
    except DsvError:
        return None
    flags = list(painting.flags.values())
    return Distance(flags.count(_RIGHT), flags.count(_LEFT))


def count_only_in(commits: Commits, commit_id: CommitId, others: Iterable[CommitId]) -> int:
    """Return how many commits (including itself) only this one has: they are lost with its last name."""
    painting = _Painting(commits, commit_id, *others)
    while not painting.is_complete and not painting.flags[commit_id] & _RIGHT:
        painting.step()
    if painting.flags[commit_id] & _RIGHT:
        return 0
    return list(painting.flags.values()).count(_LEFT)


def lacking(
    commits: Commits, start: CommitId, others: Iterable[CommitId]
) -> tuple[list[CommitId], frozenset[CommitId]]:
    """Return the commits, including itself, that `start` has and none of the others has, parents first; and
    those of the others that `start` descends from."""
    known = tuple(others)
    painting = _Painting(commits, start, *known)
    while not painting.is_complete:
        painting.step()
    wanted = {one for one, flags in painting.flags.items() if flags == _LEFT}
    below = frozenset(one for one in known if painting.flags[one] & _LEFT)
    return _parents_first(commits, start, wanted), below


def _parents_first(commits: Commits, start: CommitId, wanted: set[CommitId]) -> list[CommitId]:
    ordered: dict[CommitId, None] = {}
    stack = [start] if start in wanted else []
    while stack:
        parents = commits.commit(stack[-1]).parents
        before = [one for one in parents if one in wanted and one not in ordered]
        if before and stack[-1] not in ordered:
            stack += before
        else:
            ordered[stack.pop()] = None
    return list(ordered)


class _Frontier:
    """Commits to continue from, without duplicates. The newest is taken first.

    A single commit is read only when it is taken; several are read at the same time.
    """

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._unread: list[CommitId] = []
        self._read: list[tuple[int, int, CommitId, CommitRecord]] = []
        self._members = set[CommitId]()
        self._number = 0

    def __len__(self) -> int:
        return len(self._members)

    def add(self, commit_id: CommitId) -> None:
        if commit_id not in self._members:
            self._members.add(commit_id)
            self._unread.append(commit_id)

    def only(self) -> CommitId | None:
        """Return the commit if it is the only one, else None."""
        return next(iter(self._members)) if len(self._members) == 1 else None

    def take(self) -> tuple[CommitId, CommitRecord]:
        unread, self._unread = self._unread, []
        read = together([partial(self._commits.commit, one) for one in unread])
        for commit_id, commit in zip(unread, read, strict=True):
            self._number += 1
            heapq.heappush(self._read, (-commit.time_ms, self._number, commit_id, commit))
        *_, commit_id, commit = heapq.heappop(self._read)
        self._members.remove(commit_id)
        return commit_id, commit


class _Seen(NamedTuple):
    """A commit that was read and not yielded yet."""

    time_ms: int
    parents: tuple[CommitId, ...]
    commit: CommitRecord | None


def _read_until_lines_meet(frontier: _Frontier) -> dict[CommitId, _Seen]:
    """Take commits until the only one left is an ancestor of all of them, or none is left."""
    seen: dict[CommitId, _Seen] = {}
    has_root = False  # after a root, the commit that is left may be a child, not an ancestor
    while frontier and not (seen and frontier.only() is not None and not has_root):
        commit_id, commit = frontier.take()
        seen[commit_id] = _Seen(commit.time_ms, commit.parents, commit if len(seen) < _HELD else None)
        has_root = has_root or not commit.parents
        for parent in commit.parents:
            if parent not in seen:
                frontier.add(parent)
    return seen


def _in_order(commits: Commits, seen: dict[CommitId, _Seen]) -> Iterator[tuple[CommitId, CommitRecord]]:
    children = dict.fromkeys(seen, 0)
    for one in seen.values():
        for parent in one.parents:
            if parent in children:
                children[parent] += 1
    number = {commit_id: at for at, commit_id in enumerate(seen)}
    ready = [(-seen[one].time_ms, number[one], one) for one, count in children.items() if not count]
    heapq.heapify(ready)
    while ready:
        *_, commit_id = heapq.heappop(ready)
        _, parents, commit = seen.pop(commit_id)
        yield commit_id, commit or commits.commit(commit_id)
        for parent in parents:
            if parent in seen:
                children[parent] -= 1
                if not children[parent]:
                    heapq.heappush(ready, (-seen[parent].time_ms, number[parent], parent))


class _Painting:
    """A walk down two histories that marks the commits of each side."""

    def __init__(self, commits: Commits, left: CommitId, *rights: CommitId) -> None:
        self.flags: dict[CommitId, int] = {}
        """For each commit reached, the sides that have it, and whether it is below a common one. A commit
        that gets another flag later is visited again."""
        self.open = set[CommitId]()
        """Commits to continue from that are not known to be on both sides. Once it is empty, every common
        ancestor that is below no other one has both flags, because no commit on the way to it is common."""
        self._frontier = _Frontier(commits)
        self._passed_a_root = False
        self._paint(left, _LEFT)
        for right in rights:
            self._paint(right, _RIGHT)

    @property
    def is_complete(self) -> bool:
        """True if no flag can change any more: nothing is left, or one common ancestor of all others."""
        if self.open:
            return False
        return not self._frontier or (self._frontier.only() is not None and not self._passed_a_root)

    def step(self) -> None:
        commit_id, commit = self._frontier.take()
        self.open.discard(commit_id)
        flags = self.flags[commit_id]
        self._passed_a_root = self._passed_a_root or not commit.parents
        for parent in commit.parents:
            self._paint(parent, flags | _BELOW if flags & _BOTH == _BOTH else flags)

    def _paint(self, commit_id: CommitId, flags: int) -> None:
        before = self.flags.get(commit_id, 0)
        after = before | flags
        if after == before:
            return
        self.flags[commit_id] = after
        self._frontier.add(commit_id)
        if after & _BOTH == _BOTH:
            self.open.discard(commit_id)
        else:
            self.open.add(commit_id)


def standing(objects: Objects, base: CommitId | None) -> CommitId | None:
    """Return the base, or its nearest first-parent ancestor that the store has, or has a copy of; None if it has
    none."""
    while base is not None and objects.stored_commit(base) is None and objects.copied_commit(base) is None:
        lost = objects.local_commit(base)
        base = lost.parents[0] if lost is not None and lost.parents else None
    return base


_AHEAD = 32
"""Commits that are compared together if the store must be asked."""
_TREES_HELD = 2 * _AHEAD
"""Opened trees that are kept. The next commit to be compared is mostly the parent of one of them."""

_Pair = tuple[CommitId | None, CommitId | None]


class PathHistory:
    """Compares trees at some paths. While the store is asked, it compares the commits before these too.

    freed: commits without trees.
    """

    def __init__(self, objects: Objects, scope: PathSet, freed: Collection[CommitId] = ()) -> None:
        self._objects = objects
        self._scope = scope
        self._kept = KeptParents(objects, freed)
        self._trees: dict[CommitId, TreeReader] = {}
        self._asked_store = False
        self._compared: dict[_Pair, bool | None] = {}

    def differs(self, before: CommitId | None, after: CommitId | None) -> bool:
        """Return whether the two commits differ at the paths. None stands for an empty tree."""
        if self._asked_store and (before, after) not in self._compared:
            line = self._line_from(before, after)
            commits = dict.fromkeys(commit for pair in line for commit in pair)
            self._asked_store = False
            together([partial(if_readable, partial(self._tree, commit)) for commit in commits])
            answers = together([partial(if_readable, partial(self._differ, *pair)) for pair in line])
            self._compared.update(zip(line, answers, strict=True))
        differ = self._compared.pop((before, after), None)
        return self._differ(before, after) if differ is None else differ

    def _line_from(self, before: CommitId | None, after: CommitId | None) -> list[_Pair]:
        """Return this comparison and those of the commits before, each with its first parent."""
        line = [(before, after)]
        while before is not None and len(line) < _AHEAD:
            commit = if_readable(partial(self._objects.commit, before))
            if commit is None:
                break
            parents = if_readable(partial(self._kept.of, commit, first_only=True))
            before, after = next(iter(parents or ()), None), before
            line.append((before, after))
        return line

    def _differ(self, before: CommitId | None, after: CommitId | None) -> bool:
        changes = diff_trees(self._tree(before), self._tree(after), self._scope)
        return any(difference(change.before, change.after) for change in changes)

    def _tree(self, commit_id: CommitId | None) -> TreeReader | None:
        if commit_id is None:
            return None
        found = self._trees.get(commit_id)
        if found is None:
            opened = self._objects.opened
            was_open = commit_id in opened
            found = TreeReader(self._objects, commit_id)
            if not was_open:  # otherwise an error would check each of these commits for expiry
                opened.discard(commit_id)
            if self._objects.local(ObjectKind.NODE, found.commit.root) is None:
                self._asked_store = True
            if len(self._trees) >= _TREES_HELD:
                self._trees.pop(next(iter(self._trees)), None)
            self._trees[commit_id] = found
        return found
