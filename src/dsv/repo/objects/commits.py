"""Reading commits by their ids (from the store, a local copy, a locator or a mirror), ahead if history is walked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import proxy

import msgspec

from dsv.errors import Denied, IntegrityError, NotFound, Unreachable, Unsupported
from dsv.format import codec, keys
from dsv.format.envelope import RECORD_MAX
from dsv.format.locator import MAX_ROWS, Locator, largest
from dsv.format.records import CommitRecord, RefEntry
from dsv.repo.errors import damaged_commit, decoded, missing_commit
from dsv.repo.objects.access import Access
from dsv.repo.objects.checks import FRAME_SLACK
from dsv.repo.refs.branches import Refs
from dsv.stores.base import StoreBackend, TooLargeError, ask_each, both, if_there, together
from dsv.stores.open import split_of
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, BranchName, DatasetName

if TYPE_CHECKING:
    from dsv.repo.objects.metadata import MetadataCache
    from dsv.repo.tracking import Answers

_LOCATOR_MAX = largest(MAX_ROWS) + FRAME_SLACK  # bytes of a commit's locator

_T = TypeVar("_T")


class CommitReader:
    """The commits of one store."""

    def __init__(
        self, store: StoreBackend, metadata: MetadataCache, answers: Answers | None, access: Access
    ) -> None:
        self.store = store
        self.access = access
        self._metadata = metadata
        self._answers = answers
        self._stored: dict[CommitId, bytes | None] = {}
        """What the store itself has of each commit that it was asked for."""
        self.history: HistoryReader | None = None
        """Reads ahead when history is walked."""

    def commit(self, commit_id: CommitId) -> CommitRecord:
        """Return a commit that is named somewhere. Raises `IntegrityError` if it is missing or damaged."""
        commit = (self.history or self).commit_or_none(commit_id)
        if commit is None:
            raise missing_commit(commit_id, self.store.url)
        if self._answers is not None:
            self._answers.add_commit(commit_id, commit)
        return commit

    def expect_walk(self, start: CommitId, most: int | None) -> None:
        """Prepare for a walk that begins at a commit and asks for at most so many."""
        if self.history is not None and most:
            self.history.walks[start] = _Walk(start, most, min(most, _MOST))

    def commit_or_none(self, commit_id: CommitId) -> CommitRecord | None:
        """Return the commit of an id that may be invented; None if it does not exist. What the store has lost
        is taken from the copy in the commit's locator, or from a mirror."""
        commit = self.local_commit(commit_id)
        if commit is not None:
            return commit
        damage: IntegrityError | Unreachable | None = None
        try:
            commit = self.stored_commit(commit_id)
        except (IntegrityError, Unreachable) as error:
            damage = error
        if commit is None and not isinstance(damage, Unreachable):
            commit = self.copied_commit(commit_id)
            if commit is not None:
                what = f"commit {str(commit_id)[:12]} is {'gone' if damage is None else 'damaged'}"
                self.access.tell(
                    f"{what}, and was read from the copy in its locator; dsv verify --repair puts it back"
                )
        if commit is None and (mirrors := self.access.mirrors) is not None:
            commit = mirrors.commit(commit_id, damage or missing_commit(commit_id, self.store.url))
        if commit is None and damage is not None:
            raise damage
        return commit

    def copied_commit(self, commit_id: CommitId) -> CommitRecord | None:
        """Return a commit from the copy in its locator; None if there is none. No local copy is kept: those are
        of commits that this machine knew before the store lost them (`workspace.open.follows`)."""
        with suppress(NotFound, IntegrityError):
            data = codec.carried(bytes(self.store.get(keys.locator_key(commit_id), _LOCATOR_MAX)), RECORD_MAX)
            if data is not None and CommitId.hash(data) == commit_id:
                return decoded(CommitRecord.decode, data, "commit", commit_id)
        return None

    def stored_commit(self, commit_id: CommitId) -> CommitRecord | None:
        """Return the commit, if the store itself has it. A local copy does not count, because the store may
        have been restored from a backup since. Each commit is asked for once."""
        if commit_id not in self._stored:
            self._stored[commit_id] = get_commit(self.store, commit_id)
        data = self._stored[commit_id]
        if data is None:
            return None
        if CommitId.hash(data) != commit_id:
            raise damaged_commit(commit_id, self.store.url)
        self._metadata.put("commit", str(commit_id), data)
        return decoded(CommitRecord.decode, data, "commit", commit_id)

    def check_stored(self, commits: Iterable[CommitId]) -> None:
        """Raises `IntegrityError` if the store itself lacks one of these commits. Each is asked for once."""
        unknown = [one for one in commits if one not in self._stored]
        self._stored.update(ask_each(partial(get_commit, self.store), unknown))
        for one in commits:
            if self.stored_commit(one) is None:
                raise missing_commit(one, self.store.url)

    def local_commit(self, commit_id: CommitId) -> CommitRecord | None:
        data = self._metadata.get("commit", str(commit_id), RECORD_MAX)
        if data is None or CommitId.hash(data) != commit_id:
            return None
        return decoded(CommitRecord.decode, data, "commit", commit_id)

    def is_at_hand(self, commit_id: CommitId) -> bool:
        """Return whether the commit can be returned without a request."""
        return (
            commit_id in self._stored or self._metadata.get("commit", str(commit_id), RECORD_MAX) is not None
        )

    def stored(self, commit_id: CommitId, data: bytes | None) -> None:
        """Take what `get_commit` has just returned, so `stored_commit` need not ask."""
        self._stored[commit_id] = data

    def commit_and_locator(self, commit_id: CommitId) -> tuple[CommitRecord, Locator | None]:
        """Return `commit` and `commit_locator`, read at the same time if there is no local copy."""
        if self._metadata.get("commit", str(commit_id), RECORD_MAX) is not None:
            return self.commit(commit_id), self.commit_locator(commit_id)
        return both(partial(self.commit, commit_id), partial(self.commit_locator, commit_id))

    def commit_locator(self, commit_id: CommitId) -> Locator | None:
        """Return the location of the commit's root node, if recorded; it is a hint. In a store without
        `node-locators`, return the locations of all its nodes and segments."""
        name, key, decode = str(commit_id), keys.locator_key(commit_id), Locator.decode
        try:
            return self._metadata.record("commit-locator", name, self.store, key, decode, _LOCATOR_MAX)
        except (NotFound, IntegrityError, Unsupported):
            return None
        except Unreachable:
            if self.access.mirrors is None:
                raise
            return None


def get_commit(store: StoreBackend, commit_id: CommitId) -> bytes | None:
    """Return the store's bytes of a commit, unchecked; None if it has none."""
    try:
        return if_there(partial(store.get, keys.commit_key(commit_id), RECORD_MAX))
    except TooLargeError:
        raise damaged_commit(commit_id, store.url) from None


_SINGLY = 4
"""Commits that are read one by one before others are read ahead: short histories are not worth it."""
_SEARCHED = 8
"""The same if the walk's place must be found among the moves of its branch."""
_MOST = 128


class _Walk(msgspec.Struct):
    """A line of history that is followed from each commit to its first parent."""

    start: CommitId
    left: int | None = None
    """How many more commits will be asked for at most, if known."""
    window: int = 8
    """How many moves to read next."""
    asked: int = 0
    """How many commits were not at hand."""
    last: CommitRecord | None = None
    branch: tuple[DatasetName, BranchName] | None = None
    """The branch whose moves are read."""
    next: int = 0
    """Its moves from this one on were read."""


class HistoryReader:
    """Reads the commits of a store. If one after the other is asked for, it reads ahead."""

    def __init__(self, objects: CommitReader, refs: Refs) -> None:
        # In no cycle: the repository owns both, and the objects own this.
        self._objects: CommitReader = proxy(objects)
        self._refs: Refs = proxy(refs)
        self.walks: dict[CommitId, _Walk] = {}
        """By the commit that each would ask for next. A thread takes a walk out while it reads."""

    def commit_or_none(self, commit_id: CommitId) -> CommitRecord | None:
        """Return a commit as `CommitReader.commit_or_none`."""
        walk = self.walks.pop(commit_id, None)
        if walk is not None and walk.left is not None:
            walk.left = max(0, walk.left - 1)
        commit = self._objects.local_commit(commit_id)
        if commit is None:
            walk = walk or _Walk(commit_id)
            if walk.left != 0 and not self._objects.is_at_hand(commit_id):
                self._prepare(walk, commit_id)
            commit = self._objects.commit_or_none(commit_id)
        if walk is not None and commit is not None and walk.left != 0:
            walk.last = commit
            for parent in commit.parents:
                self.walks[parent] = walk if parent == commit.parents[0] else _Walk(parent)
        return commit

    def _prepare(self, walk: _Walk, commit_id: CommitId) -> None:
        walk.asked += 1
        try:
            if not walk.next:
                self._find_place(walk)
            if walk.next:
                self._read_ahead(walk, commit_id)
        except ReferenceError:
            self._objects.history = None  # the repository was dropped with its names; its objects are in use
        except Unreachable:
            if self._objects.access.mirrors is None and split_of(self._objects.store) is None:
                raise
            self._objects.history = None  # the names are out of reach, but perhaps not the commits

    def _find_place(self, walk: _Walk) -> None:
        """Find the moves before the one that made the last commit, if it is time for that."""
        asked = _SEARCHED + 1 if walk.left is not None and walk.left >= _SEARCHED else walk.asked
        head = None if walk.branch else self._refs.read_at(walk.start)
        if head is not None and asked > _SINGLY:
            walk.branch, walk.next = (head.dataset, head.branch), head.number
        elif head is None and walk.last is not None and asked > _SEARCHED:
            dataset, branch = walk.last.dataset, walk.last.branch or MAIN
            if dataset is not None and walk.branch != (dataset, branch):
                walk.branch = dataset, branch
                head = if_readable(partial(self._refs.newest, dataset, branch))
                moves = range(0 if head is None else head.number)
                walk.next = bisect_left(
                    moves, True, key=partial(self._is_since, walk.branch, walk.last.time_ms)
                )

    def _is_since(self, branch: tuple[DatasetName, BranchName], time_ms: int, number: int) -> bool:
        """Return whether a move is not older. A wrong clock only causes reads of commits that are not needed."""
        move = self._move(branch, number)
        return move is not None and move.time_ms >= time_ms

    def _read_ahead(self, walk: _Walk, commit_id: CommitId) -> None:
        """Read the commits that the next moves name, and this one. Damaged moves and commits are left out."""
        assert walk.branch is not None
        first = max(0, walk.next - (walk.window if walk.left is None else min(walk.window, walk.left + 1)))
        walk.window = min(2 * walk.window, _MOST)
        moves = together([partial(self._move, walk.branch, number) for number in range(first, walk.next)])
        walk.next = first
        named = {move.commit for move in moves if move is not None and move.commit is not None}
        wanted = [one for one in {*named, commit_id} if not self._objects.is_at_hand(one)]
        together([partial(if_readable, partial(self._objects.commit_or_none, one)) for one in wanted])

    def _move(self, branch: tuple[DatasetName, BranchName], number: int) -> RefEntry | None:
        return if_readable(partial(self._refs.entry, *branch, number))


def if_readable(read: Callable[[], _T]) -> _T | None:
    """Return what is read ahead; None if it can't be read: the caller may not need it. Raises `Unreachable`."""
    try:
        return read()
    except (IntegrityError, Unsupported, Denied):
        return None
