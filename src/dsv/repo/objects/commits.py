"""Reading commits by their ids: the store's own, a local copy, the copy in a locator, or a mirror's."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from dsv.errors import IntegrityError, NotFound, Unreachable, Unsupported
from dsv.format import codec, keys
from dsv.format.envelope import RECORD_MAX
from dsv.format.locator import MAX_ROWS, Locator, largest
from dsv.format.records import CommitRecord
from dsv.repo.errors import damaged_commit, decoded, missing_commit
from dsv.repo.objects.access import Access
from dsv.repo.objects.checks import FRAME_SLACK
from dsv.stores.base import StoreBackend, TooLargeError, ask_each, both, if_there
from dsv.values.ids import CommitId

if TYPE_CHECKING:
    from dsv.repo.objects.metadata import MetadataCache
    from dsv.repo.tracking import Answers

_LOCATOR_MAX = largest(MAX_ROWS) + FRAME_SLACK  # bytes of a commit's locator


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

    def commit(self, commit_id: CommitId) -> CommitRecord:
        """Return a commit that is named somewhere. Raises `IntegrityError` if it is missing or damaged."""
        found = self.commit_or_none(commit_id)
        if found is None:
            raise missing_commit(commit_id, self.store.url)
        if self._answers is not None:
            self._answers.add_commit(commit_id, found)
        return found

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
