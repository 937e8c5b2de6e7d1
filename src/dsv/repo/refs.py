"""Branches and tags: names of commits, each move a new object, none ever overwritten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from dsv.errors import Conflict, IntegrityError, NotFound, UsageError
from dsv.model import keys
from dsv.model.ids import CommitId
from dsv.model.names import BranchName, DatasetName, TagName
from dsv.model.records import RefEntry, TagDeleted, TagValue
from dsv.repo.damage import put_back, read_record
from dsv.store.base import Put, Store

Name = TypeVar("Name", DatasetName, BranchName, TagName)


@dataclass(frozen=True, slots=True)
class Head:
    """Where a branch stands: its newest entry, and that entry's number from 0."""

    dataset: DatasetName
    branch: BranchName
    number: int
    entry: RefEntry

    @property
    def commit(self) -> CommitId | None:
        """None before the first commit."""
        return self.entry.commit


@dataclass(frozen=True, slots=True)
class Moved:
    """The move was published."""

    head: Head


@dataclass(frozen=True, slots=True)
class LostRace:
    """Somebody else's move took the place; nothing was written."""

    winner: Head


class Refs:
    """The names of one store. Nothing here is remembered: every question is asked of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def datasets(self) -> list[DatasetName]:
        """All datasets, by name. A dataset exists once its branch `main` has a first entry."""
        return _names(DatasetName, self._parts(keys.REFS_PREFIX))

    def branches(self, dataset: DatasetName) -> list[BranchName]:
        """All branches that are not deleted, by name."""
        names = _names(BranchName, self._parts(keys.branches_prefix(dataset)))
        return [name for name in names if self.head_or_none(dataset, name) is not None]

    def tags(self, dataset: DatasetName) -> list[tuple[TagName, TagValue]]:
        """All tags that are not deleted, by name."""
        names = _names(TagName, self._parts(keys.tags_prefix(dataset)))
        found = [(name, self.tag(dataset, name)) for name in names]
        return [(name, value) for name, value in found if value is not None]

    def exists(self, dataset: DatasetName) -> bool:
        return next(iter(self._store.list(keys.branches_prefix(dataset))), None) is not None

    def require(self, dataset: DatasetName) -> None:
        """Raises `NotFound` where there is no such dataset."""
        if not self.exists(dataset):
            raise NotFound(
                f"there is no dataset {dataset} in {self._store.url}",
                subject=dataset,
                hint="dsv datasets lists them",
            )

    def head_or_none(self, dataset: DatasetName, branch: BranchName) -> Head | None:
        """The branch's newest entry; None where it never was or is deleted."""
        head = self._newest(dataset, branch)
        return None if head is None or head.entry.deleted else head

    def head(self, dataset: DatasetName, branch: BranchName) -> Head:
        """As `head_or_none`. Raises `NotFound`, with a hint that tells a missing dataset from a missing branch."""
        head = self.head_or_none(dataset, branch)
        if head is not None:
            return head
        self.require(dataset)
        raise NotFound(
            f"dataset {dataset} has no branch {branch}", subject=branch, hint=f"dsv log {dataset}@main"
        )

    def history(self, head: Head) -> Iterator[RefEntry]:
        """The branch's moves, newest first: its reflog."""
        for number in range(head.number, -1, -1):
            yield self._read(head.dataset, head.branch, number) or _gap(head, number)

    def move(
        self, dataset: DatasetName, branch: BranchName, after: Head | None, entry: RefEntry
    ) -> Moved | LostRace:
        """Publishes the branch's next entry, which must follow `after` (None: a branch that never was).

        A deleted branch is continued by its next number: pass the tombstone's head from `newest`.
        """
        number = 0 if after is None else after.number + 1
        key = keys.branch_key(dataset, branch, number)
        if self._store.put_if_absent(key, entry.encode()) is Put.WON:
            return Moved(Head(dataset, branch, number, entry))
        winner = self._newest(dataset, branch)
        if winner is None:
            raise IntegrityError(f"branch {branch} of {dataset} is there and is not", subject=key)
        return LostRace(winner)

    def newest(self, dataset: DatasetName, branch: BranchName) -> Head | None:
        """The newest entry even if it is a tombstone."""
        return self._newest(dataset, branch)

    def entry(self, dataset: DatasetName, branch: BranchName, number: int) -> RefEntry | None:
        """One move of a branch; None where it was not made."""
        return self._read(dataset, branch, number)

    def tag(self, dataset: DatasetName, tag: TagName) -> TagValue | None:
        """What the tag names; None where it never was or is deleted."""
        try:
            value = self._tag_value(dataset, tag)
        except NotFound:
            return None
        return None if self._tombstone(dataset, tag) else value

    def set_tag(self, dataset: DatasetName, tag: TagName, value: TagValue) -> TagValue:
        """Creates the tag; setting it again to the same commit is fine. Raises `Conflict` for another meaning."""
        if self._store.put_if_absent(keys.tag_key(dataset, tag), value.encode()) is Put.LOST:
            existing = self._tag_value(dataset, tag)
            if existing.commit != value.commit:
                raise Conflict(
                    f"tag {tag} of {dataset} already names {str(existing.commit)[:12]}, and a tag never moves",
                    subject=tag,
                    hint=f"choose another name; dsv log {dataset}@{tag} shows what it names",
                )
            value = existing
        if self._tombstone(dataset, tag):
            raise Conflict(
                f"tag {tag} of {dataset} was deleted, and never comes back",
                subject=tag,
                hint="choose another name",
            )
        return value

    def delete_tag(self, dataset: DatasetName, tag: TagName, record: TagDeleted) -> None:
        """Deletes the tag for good. Raises `NotFound`."""
        if self.tag(dataset, tag) is None:
            raise NotFound(
                f"dataset {dataset} has no tag {tag}", subject=tag, hint=f"dsv tag --list {dataset}"
            )
        self._store.put_if_absent(keys.tag_deleted_key(dataset, tag), record.encode())

    def _tag_value(self, dataset: DatasetName, tag: TagName) -> TagValue:
        key = keys.tag_key(dataset, tag)
        return read_record(TagValue.decode, self._store.get(key), key, self._store.url)

    def _tombstone(self, dataset: DatasetName, tag: TagName) -> bool:
        try:
            self._store.get(keys.tag_deleted_key(dataset, tag))
        except NotFound:
            return False
        return True

    def _newest(self, dataset: DatasetName, branch: BranchName) -> Head | None:
        """The smallest key of the listing, then whatever was added behind the listing's back."""
        prefix = keys.branch_prefix(dataset, branch)
        listing = (keys.parse_branch_number(item.key) for item in self._store.list(prefix))
        if self._store.ordered_listing:
            number = next((number for number in listing if number is not None), None)
        else:
            number = max((number for number in listing if number is not None), default=None)
        entry = None if number is None else self._read(dataset, branch, number)
        if number is not None and entry is None:
            key = keys.branch_key(dataset, branch, number)
            raise IntegrityError(
                f"the head of branch {branch} of {dataset} is listed, but cannot be read: {key}",
                subject=key,
                hint="run the same command again; if it stays so, look at the store's own tools",
            )
        upcoming = 0 if number is None else number + 1
        while (later := self._read(dataset, branch, upcoming)) is not None:
            number, entry, upcoming = upcoming, later, upcoming + 1
        return None if number is None or entry is None else Head(dataset, branch, number, entry)

    def _read(self, dataset: DatasetName, branch: BranchName, number: int) -> RefEntry | None:
        key = keys.branch_key(dataset, branch, number)
        try:
            return read_record(RefEntry.decode, self._store.get(key), key, self._store.url)
        except NotFound:
            return None

    def _parts(self, prefix: str) -> list[str]:
        """The next components below a prefix, skipping over what lies below each."""
        found: list[str] = []
        if not self._store.ordered_listing:
            return sorted({item.key[len(prefix) :].split("/", 1)[0] for item in self._store.list(prefix)})
        after: str | None = None
        while (item := next(iter(self._store.list(prefix, start_after=after)), None)) is not None:
            part = item.key[len(prefix) :].split("/", 1)[0]
            found.append(part)
            after = f"{prefix}{part}0"  # "0" follows "/": behind all that lies below the part
        return found


def _names(kind: type[Name], parts: list[str]) -> list[Name]:
    """What is no name was put there by somebody else, and is passed over."""
    found: list[Name] = []
    for part in parts:
        with suppress(UsageError):
            found.append(kind.from_component(part))
    return found


def _gap(head: Head, number: int) -> RefEntry:
    key = keys.branch_key(head.dataset, head.branch, number)
    raise IntegrityError(
        f"branch {head.branch} of {head.dataset} lacks its entry {number}", subject=key, hint=put_back(key)
    )
