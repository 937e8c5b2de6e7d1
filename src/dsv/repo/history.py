"""Questions about the graph of commits: in which order they were made, and what two of them have in common.

Clocks only decide in which order commits are read, and which of several possible orders is shown: no answer depends on
a clock being right. A commit that another one names and that is gone or damaged raises `IntegrityError` once a walk
comes to it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from dsv.model.commit import Commit
from dsv.model.ids import CommitId
from dsv.store.together import together

# Of so many commits of a walk the whole record is kept until it is given away; of more, only what orders them.
_HELD = 1024

_LEFT, _RIGHT, _BELOW = 1, 2, 4
_BOTH = _LEFT | _RIGHT


class Commits(Protocol):
    """Where commits are read; `dsv.repo.objects.Objects` is one."""

    def commit(self, commit_id: CommitId) -> Commit:
        """Raises `IntegrityError` for one that is not there, or not what its id says."""
        ...


class Distance(NamedTuple):
    """ahead: how many commits one side has that the other has not; behind: the other way round."""

    ahead: int
    behind: int


def walk(commits: Commits, starts: Iterable[CommitId]) -> Iterator[tuple[CommitId, Commit]]:
    """The commits of `starts` and all their ancestors, each once, newest first, and none before one of its children.

    Reads no further than needed: where history is a line, commits are given as they are read. Where it forks, it is
    read down to the commit in which the lines meet again; that much is held in memory, and nothing else.
    """
    frontier = _Frontier(commits)
    for start in starts:
        frontier.add(start)
    while frontier:
        yield from _in_order(commits, _read_until_lines_meet(frontier))


def is_ancestor(commits: Commits, ancestor: CommitId, descendant: CommitId) -> bool:
    """Whether `descendant` is `ancestor`, or was made on top of it."""
    painting = _Painting(commits, ancestor, descendant)
    while not painting.flags[ancestor] & _RIGHT and painting.open:
        painting.step()
    return bool(painting.flags[ancestor] & _RIGHT)


def merge_bases(commits: Commits, left: CommitId, right: CommitId) -> tuple[CommitId, ...]:
    """The common ancestors of two commits that no other common ancestor descends from, newest first.

    None if the histories have nothing in common, several after a criss-cross merge. A commit is its own ancestor.
    """
    painting = _Painting(commits, left, right)
    while painting.open:
        painting.step()
    found = [one for one, flags in painting.flags.items() if flags == _BOTH]
    # What wrong clocks had read too early may be an ancestor of another one.
    best = [
        one for one in found if not any(one != other and is_ancestor(commits, one, other) for other in found)
    ]
    return tuple(sorted(best, key=lambda one: (-commits.commit(one).time_ms, one)))


def ahead_behind(commits: Commits, left: CommitId, right: CommitId) -> Distance:
    """How many commits `left` has that `right` has not, and the other way round."""
    painting = _Painting(commits, left, right)
    while not painting.settled:
        painting.step()
    flags = list(painting.flags.values())
    return Distance(flags.count(_LEFT), flags.count(_RIGHT))


def only_in(commits: Commits, commit_id: CommitId, others: Iterable[CommitId]) -> int:
    """How many commits a commit has, itself counted, that none of the others has: these are lost with its last name."""
    painting = _Painting(commits, commit_id, *others)
    while not painting.settled and not painting.flags[commit_id] & _RIGHT:
        painting.step()
    if painting.flags[commit_id] & _RIGHT:
        return 0
    return list(painting.flags.values()).count(_LEFT)


class _Frontier:
    """Commits to go on from, each once; the newest is taken first.

    One that is alone is read only when it is taken; several are read at the same time.
    """

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._unread: list[CommitId] = []
        self._read: list[tuple[int, int, CommitId, Commit]] = []
        self._members = set[CommitId]()
        self._number = 0

    def __len__(self) -> int:
        return len(self._members)

    def add(self, commit_id: CommitId) -> None:
        if commit_id not in self._members:
            self._members.add(commit_id)
            self._unread.append(commit_id)

    def only(self) -> CommitId | None:
        """The commit that is alone in here; None if there are others, or none."""
        return next(iter(self._members)) if len(self._members) == 1 else None

    def take(self) -> tuple[CommitId, Commit]:
        unread, self._unread = self._unread, []
        read = together([partial(self._commits.commit, one) for one in unread])
        for commit_id, commit in zip(unread, read, strict=True):
            self._number += 1
            heapq.heappush(self._read, (-commit.time_ms, self._number, commit_id, commit))
        *_, commit_id, commit = heapq.heappop(self._read)
        self._members.remove(commit_id)
        return commit_id, commit


class _Met(NamedTuple):
    """A commit that was read and not given away yet."""

    time_ms: int
    parents: tuple[CommitId, ...]
    commit: Commit | None


def _read_until_lines_meet(frontier: _Frontier) -> dict[CommitId, _Met]:
    """Takes commits until one is left that is an ancestor of all of them, or none is left."""
    met: dict[CommitId, _Met] = {}
    has_root = False  # from a first commit nothing leads to the one that is left, which might be its child
    while frontier and not (met and frontier.only() is not None and not has_root):
        commit_id, commit = frontier.take()
        met[commit_id] = _Met(commit.time_ms, commit.parents, commit if len(met) < _HELD else None)
        has_root = has_root or not commit.parents
        for parent in commit.parents:
            if parent not in met:
                frontier.add(parent)
    return met


def _in_order(commits: Commits, met: dict[CommitId, _Met]) -> Iterator[tuple[CommitId, Commit]]:
    children = dict.fromkeys(met, 0)
    for one in met.values():
        for parent in one.parents:
            if parent in children:
                children[parent] += 1
    number = {commit_id: at for at, commit_id in enumerate(met)}
    ready = [(-met[one].time_ms, number[one], one) for one, count in children.items() if not count]
    heapq.heapify(ready)
    while ready:
        *_, commit_id = heapq.heappop(ready)
        _, parents, commit = met.pop(commit_id)
        yield commit_id, commit or commits.commit(commit_id)
        for parent in parents:
            if parent in met:
                children[parent] -= 1
                if not children[parent]:
                    heapq.heappush(ready, (-met[parent].time_ms, number[parent], parent))


class _Painting:
    """Two histories, painted downwards from their ends in two colours.

    flags: of each commit reached, the sides that have it, and whether it lies below a common one. A commit that gets
    another flag after it was passed is passed again.
    open: commits to go on from that not both sides are known to have. Every common ancestor below no other one has
    both colours once there is none: no commit on the way to it is common, so all of them were passed.
    """

    def __init__(self, commits: Commits, left: CommitId, *rights: CommitId) -> None:
        self.flags: dict[CommitId, int] = {}
        self.open = set[CommitId]()
        self._frontier = _Frontier(commits)
        self._passed_a_root = False
        self._paint(left, _LEFT)
        for right in rights:
            self._paint(right, _RIGHT)

    @property
    def settled(self) -> bool:
        """Whether no flag can change any more: nothing is left, or one common ancestor of everything reached."""
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
