"""Branches and tags: names of commits, each move a new object, none ever overwritten.

Every entry carries the dataset, the branch or tag, and the number that it was written for, so that one that somebody
copied to another key is not taken for what the key says. Stores that were made before that go on without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from dsv.errors import Conflict, Denied, IntegrityError, NotFound, OutcomeUnknown, Unreachable, UsageError
from dsv.model import keys, wire
from dsv.model.ids import CommitId
from dsv.model.names import BranchName, DatasetName, TagName
from dsv.model.records import RefEntry, TagDeleted, TagValue
from dsv.model.wire import RECORD_MAX
from dsv.repo.damage import ONE_WINS_AGAIN, put_back, read_record
from dsv.repo.heard import Heard
from dsv.repo.listed import Listed, latest, parts
from dsv.store.base import Put, Store
from dsv.store.together import both, together

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
    """The names of one store. Every question is asked of the store: what is remembered is where to begin.

    Moves and their numbers never go, so a search for the newest may begin at any that was there.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.heard = Heard()
        self.named = False  # until the store's format has said whether its entries carry their names
        self._listed: dict[tuple[DatasetName, BranchName], Listed] = {}
        self._seen: dict[tuple[DatasetName, BranchName], Head] = {}

    def expect(self, dataset: DatasetName, branch: BranchName) -> None:
        """Lists a branch that will be asked for, while there is something else to wait for.

        The store's format need not be known yet: should it forbid to trust the order, the branch is listed again.
        """
        self._listed[dataset, branch] = self._list(dataset, branch)

    def datasets(self) -> list[DatasetName]:
        """All datasets, by name. A dataset exists once its branch `main` has a first entry."""
        found = _names(DatasetName, parts(self._store, keys.REFS_PREFIX))
        self.heard.datasets(found)
        return found

    def names(self, dataset: DatasetName) -> tuple[list[Head], list[tuple[TagName, TagValue]]]:
        """All branches and all tags, as `heads` and `tags` give them."""
        return both(partial(self.heads, dataset), partial(self.tags, dataset))

    def heads(self, dataset: DatasetName) -> list[Head]:
        """The newest entry of every branch that is not deleted, by name."""
        found = parts(self._store, keys.branches_prefix(dataset))
        names = _names(BranchName, found)
        for name in names:
            listed = latest(found[name.component], self._store.ordered_listing)
            if listed.number is not None:
                self._listed[dataset, name] = listed
        heads = together([partial(self.head_or_none, dataset, name) for name in names])
        there = [head for head in heads if head is not None]
        self.heard.branches(dataset, [head.branch for head in there])
        return there

    def tags(self, dataset: DatasetName) -> list[tuple[TagName, TagValue]]:
        """All tags that are not deleted, by name."""
        names = _names(TagName, parts(self._store, keys.tags_prefix(dataset)))
        found = zip(names, together([partial(self.tag, dataset, name) for name in names]), strict=True)
        there = [(name, value) for name, value in found if value is not None]
        self.heard.tags(dataset, [name for name, _ in there])
        return there

    def branch_or_tag(self, dataset: DatasetName, text: str) -> Head | TagValue | None:
        """What a name means, which is never both; None for one that has gone, or never was."""
        branch, tag = BranchName.parse(text), TagName.parse(text)
        if self._beginning(dataset, branch) is None:
            head, value = both(partial(self.head_or_none, dataset, branch), partial(self.tag, dataset, tag))
            return head or value
        return self.head_or_none(dataset, branch) or self.tag(dataset, tag)

    def exists(self, dataset: DatasetName) -> bool:
        if any(name == dataset and listed.number is not None for (name, _), listed in self._listed.items()):
            return True
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
        if self.named:
            entry = replace(entry, dataset=dataset, branch=branch, number=number)
        if self._store.put_if_absent(key, entry.encode()) is Put.WON:
            self._check_kept(dataset, branch, number, entry)
            return Moved(Head(dataset, branch, number, entry))
        winner = self._newest(dataset, branch)
        if winner is None:
            raise IntegrityError(f"branch {branch} of {dataset} is there and is not", subject=key)
        return LostRace(winner)

    def _check_kept(self, dataset: DatasetName, branch: BranchName, number: int, entry: RefEntry) -> None:
        """Raises `IntegrityError` if what was just won is not what the store has: then it does not keep its promise
        that one writer wins, and another writer's move took the place of this one.
        """
        key = keys.branch_key(dataset, branch, number)
        try:
            kept = self._read(dataset, branch, number)
        except (Unreachable, Denied, IntegrityError) as error:
            raise OutcomeUnknown(
                f"this move of branch {branch} of {dataset} may have been published in {self._store.url}, but it could "
                f"not be read back: {error.message}",
                subject=key,
                hint="run the same command again: it finds out by itself",
            ) from error
        if kept is not None and kept.nonce == entry.nonce:
            return
        what = "has vanished" if kept is None else f"was overwritten by one of {kept.author}"
        raise IntegrityError(
            f"{self._store.url} no longer lets one writer win: this move of branch {branch} of {dataset} {what} "
            f"({key})",
            subject=key,
            hint=ONE_WINS_AGAIN,
        )

    def newest(self, dataset: DatasetName, branch: BranchName) -> Head | None:
        """The newest entry even if it is a tombstone."""
        return self._newest(dataset, branch)

    def entry(self, dataset: DatasetName, branch: BranchName, number: int) -> RefEntry | None:
        """One move of a branch; None where it was not made."""
        return self._read(dataset, branch, number)

    def tag(self, dataset: DatasetName, tag: TagName) -> TagValue | None:
        """What the tag names; None where it never was or is deleted."""
        try:
            value, deleted = both(
                partial(self._tag_value, dataset, tag), partial(self._tombstone, dataset, tag)
            )
        except NotFound:
            return None
        return None if deleted else value

    def set_tag(self, dataset: DatasetName, tag: TagName, value: TagValue) -> TagValue:
        """Creates the tag; setting it again to the same commit is fine. Raises `Conflict` for another meaning."""
        if self.named:
            value = replace(value, dataset=dataset, tag=tag)
        if self._store.put_if_absent(keys.tag_key(dataset, tag), value.encode()) is Put.LOST:
            existing = self._tag_value(dataset, tag)
            self._refuse_deleted(dataset, tag)
            if existing.commit != value.commit:
                raise Conflict(
                    f"tag {tag} of {dataset} already names {str(existing.commit)[:12]}, and a tag never moves",
                    subject=tag,
                    hint=f"choose another name; dsv log {dataset}@{tag} shows what it names",
                )
            return existing
        self._refuse_deleted(dataset, tag)
        return value

    def _refuse_deleted(self, dataset: DatasetName, tag: TagName) -> None:
        if self._tombstone(dataset, tag):
            raise Conflict(
                f"tag {tag} of {dataset} was deleted, and never comes back",
                subject=tag,
                hint="choose another name",
            )

    def delete_tag(self, dataset: DatasetName, tag: TagName, record: TagDeleted) -> None:
        """Deletes the tag for good. Raises `NotFound`."""
        if self.tag(dataset, tag) is None:
            raise NotFound(
                f"dataset {dataset} has no tag {tag}", subject=tag, hint=f"dsv tag --list {dataset}"
            )
        self._store.put_if_absent(keys.tag_deleted_key(dataset, tag), record.encode())

    def _tag_value(self, dataset: DatasetName, tag: TagName) -> TagValue:
        def decode(data: bytes) -> TagValue:
            value = TagValue.decode(data)
            self._check("tag", (value.dataset, value.tag), (dataset, tag))
            return value

        return read_record(decode, self._store, keys.tag_key(dataset, tag))

    def _tombstone(self, dataset: DatasetName, tag: TagName) -> bool:
        try:
            self._store.get(keys.tag_deleted_key(dataset, tag), RECORD_MAX)
        except NotFound:
            return False
        return True

    def _newest(self, dataset: DatasetName, branch: BranchName) -> Head | None:
        """From a move that was there on to the one that none follows, whatever a listing says."""
        seen = self._seen.get((dataset, branch))
        if seen is not None:
            number, entry = seen.number, seen.entry
            later = self._read(dataset, branch, number + 1)
        elif (beginning := self._beginning(dataset, branch)) is not None:
            number = beginning
            self._check_unbroken(dataset, branch, number)
            entry, later = self._read_listed(dataset, branch, number)
        else:
            self._listed.pop((dataset, branch), None)  # it may be made any time
            first = self._read(dataset, branch, 0)
            if first is None:
                return None
            number, entry, later = 0, first, self._read(dataset, branch, 1)
        while later is not None:
            number, entry = number + 1, later
            later = self._read(dataset, branch, number + 1)
        head = Head(dataset, branch, number, entry)
        self._seen[dataset, branch] = head
        return head

    def _read_listed(
        self, dataset: DatasetName, branch: BranchName, number: int
    ) -> tuple[RefEntry, RefEntry | None]:
        """A move that was listed, and the one behind it, which a listing may not have yet."""
        entry, later = both(
            partial(self._read, dataset, branch, number), partial(self._read, dataset, branch, number + 1)
        )
        if entry is None:
            key = keys.branch_key(dataset, branch, number)
            raise IntegrityError(
                f"the head of branch {branch} of {dataset} is listed, but cannot be read: {key}",
                subject=key,
                hint="run the same command again; if it stays so, look at the store's own tools",
            )
        return entry, later

    def _beginning(self, dataset: DatasetName, branch: BranchName) -> int | None:
        """A move from which the newest can be found; None where the listing has none."""
        listed = self._listed.get((dataset, branch))
        if listed is None or listed.ordered != self._store.ordered_listing:
            listed = self._listed[dataset, branch] = self._list(dataset, branch)
        return listed.number

    def _list(self, dataset: DatasetName, branch: BranchName) -> Listed:
        """The newest move has the smallest key."""
        ordered = self._store.ordered_listing
        rows = self._store.list(keys.branch_prefix(dataset, branch))
        return latest((row.key for row in rows), ordered)

    def _check_unbroken(self, dataset: DatasetName, branch: BranchName, number: int) -> None:
        """Raises `IntegrityError` for a move without the one before it, as moves are never deleted: it was put there
        by something else than a writer of dsv's. Asks the store only if a listing had it alone.
        """
        listed = self._listed.get((dataset, branch))
        if listed is None or not listed.alone or self._read(dataset, branch, number - 1) is not None:
            return
        key = keys.branch_key(dataset, branch, number)
        missing = keys.branch_key(dataset, branch, number - 1)
        raise IntegrityError(
            f"{key} in {self._store.url} is move {number} of branch {branch} of {dataset}, and the move before it, "
            f"{missing}, is not there",
            subject=key,
            hint=f"put {missing} back from a copy of the store, or remove {key} if no dsv has written it",
        )

    def _read(self, dataset: DatasetName, branch: BranchName, number: int) -> RefEntry | None:
        if number > keys.LAST_MOVE:
            return None

        def decode(data: bytes) -> RefEntry:
            entry = RefEntry.decode(data)
            self._check("ref", (entry.dataset, entry.branch, entry.number), (dataset, branch, number))
            return entry

        try:
            return read_record(decode, self._store, keys.branch_key(dataset, branch, number))
        except NotFound:
            return None

    def _check(self, kind: str, carried: tuple[object, ...], expected: tuple[object, ...]) -> None:
        """Raises `IntegrityError` for an entry that was written for another key."""
        if carried == expected or (carried[0] is None and not self.named):
            return
        made_for = (
            " ".join(map(str, carried)) if carried[0] is not None else "a store that keeps no names in it"
        )
        raise wire.damaged(kind, f"it was written for {made_for}, not for {' '.join(map(str, expected))}")


def _names(kind: type[Name], parts: Iterable[str]) -> list[Name]:
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
