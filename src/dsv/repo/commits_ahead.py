"""Reading the commits of a long history with few round trips."""

from __future__ import annotations

from functools import partial

from dsv.errors import Denied, IntegrityError, Unsupported
from dsv.model.commit import Commit
from dsv.model.ids import CommitId
from dsv.model.names import MAIN, BranchName, DatasetName
from dsv.model.records import RefEntry
from dsv.repo.objects import Objects
from dsv.repo.refs import Head, Refs
from dsv.store.together import together

_SINGLY = 4
"""Commits that are read one after the other before others are read ahead: short histories are not worth it."""
_MOST = 128
_SEARCHED = 8
"""The same if the place of the first one among a branch's moves has to be found."""


class CommitsAhead:
    """Commits as `Objects.commit` gives them. The moves of a branch name the commits that will be asked for next.

    head: that of the branch, if the first commit that is asked for is its; None if the branch that the commits were
    made for is to be searched. most: how many commits will be asked for at most.
    """

    def __init__(
        self, objects: Objects, refs: Refs, dataset: DatasetName, head: Head | None, most: int | None = None
    ) -> None:
        self._objects = objects
        self._refs = refs
        self._dataset = dataset
        self._searching = head is None
        self._head = head
        self._next = 0 if head is None else head.number  # moves below this one were not read
        self._asked = 0
        self._window = 8
        self._left = most

    def commit(self, commit_id: CommitId) -> Commit:
        """Raises `IntegrityError`."""
        if self._left is not None:
            self._left = max(0, self._left - 1)
        if self._objects.is_at_hand(commit_id):
            return self._objects.commit(commit_id)
        self._asked += 1
        if self._searching and self._asked == _SEARCHED and self._left != 0:
            found = self._objects.commit(commit_id)
            self._searching = False
            self._find_place(found)
            return found
        if self._asked <= _SINGLY or self._head is None or not self._next or self._left == 0:
            return self._objects.commit(commit_id)
        self._read_ahead(commit_id)
        return self._objects.commit(commit_id)

    def _find_place(self, commit: Commit) -> None:
        """Looks for the first move of the commit's branch that is not older than the commit, by halves. If a clock was
        wrong, commits are read that nobody asks for, and that is all."""
        branch = commit.branch or MAIN
        head = self._refs.head_or_none(self._dataset, branch)
        if head is None:
            return
        first, last = 0, head.number
        while first < last:
            middle = (first + last) // 2
            move = self._move(branch, middle)
            if move is None or move.time_ms < commit.time_ms:
                first = middle + 1
            else:
                last = middle
        self._head, self._next = head, first

    def _read_ahead(self, commit_id: CommitId) -> None:
        """The commits before this one, by the moves before its own. One that can't be read is not asked for yet."""
        assert self._head is not None
        count = self._window if self._left is None else min(self._window, self._left + 1)
        self._window = min(2 * self._window, _MOST)
        first = max(0, self._next - count)
        read = partial(self._move, self._head.branch)
        moves = together([partial(read, number) for number in range(first, self._next)])
        self._next = first
        named = {move.commit for move in moves if move is not None and move.commit is not None}
        wanted = [one for one in {*named, commit_id} if not self._objects.is_at_hand(one)]
        together([partial(self._objects.commit_or_none, one) for one in wanted])

    def _move(self, branch: BranchName, number: int) -> RefEntry | None:
        """None for one that can't be read too: nobody has asked for it."""
        try:
            return self._refs.entry(self._dataset, branch, number)
        except (IntegrityError, Unsupported, Denied):
            return None
