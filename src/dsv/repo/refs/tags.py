"""Tags: names of commits that never move. Also the checks of every write of a ref."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from dsv.errors import (
    Conflict,
    Denied,
    DsvError,
    IntegrityError,
    NotFound,
    OutcomeUnknown,
    Unreachable,
    UsageError,
)
from dsv.format import keys
from dsv.format.envelope import RECORD_MAX
from dsv.format.records import DatasetErased, ExpiryEntry, TagDeleted, TagValue, erased_id
from dsv.repo.errors import ONE_WINS_AGAIN, name_denied_write, record_or_none
from dsv.repo.format_log import NAMES_ELSEWHERE, NAMES_MOVED, NAMES_MOVING, FormatLog, read_entry, read_format
from dsv.repo.refs.listing import Signed, check_kept, gone, parts, read_named
from dsv.repo.tracking import Answers
from dsv.stores.base import PutResult, StoreBackend, absent, ask_each, both
from dsv.stores.open import names_of
from dsv.values.names import BranchName, DatasetName, TagName
from dsv.values.units import format_time

if TYPE_CHECKING:
    from dsv.values.ids import StoreId

Name = TypeVar("Name", DatasetName, BranchName, TagName)


class Tags:
    def __init__(self, store: StoreBackend) -> None:
        self.store = store
        self.expiry: dict[DatasetName, tuple[ExpiryEntry, ...]] = {}  # of logs that were read: `repo.expiry`
        self.joined: dict[DatasetName, int] = {}  # how many first entries of such a log have joined copies
        self.answers = Answers()
        self._lost: dict[tuple[DatasetName, TagName], TagValue] = {}  # of which only the copy is there
        self.layout: FormatLog | None = None
        """The format log of the names' location; None while they are created, when no process moves them."""
        self.proved = False  # a session has just proved that one writer still wins, and will write a ref
        self.named = False  # whether entries carry their names
        self.store_id: StoreId | None = None  # None while the store's format is not known

    def erasure(self, dataset: DatasetName) -> DatasetErased | None:
        """Return the tombstone of an erased dataset. Called only if some or all of it is missing."""
        if self.store_id is None:
            return None
        return record_or_none(
            DatasetErased.decode, self.store, keys.erased_key(erased_id(self.store_id, dataset))
        )

    def erased(self, dataset: DatasetName) -> NotFound | None:
        """Return the error for an erased dataset; None if it was not erased."""
        found = self.erasure(dataset)
        return None if found is None else gone(dataset, found, self.store.url)

    def tags(self, dataset: DatasetName) -> list[tuple[TagName, TagValue]]:
        """Return all tags that are not deleted, by name."""
        listed = parts(self.store, keys.tags_prefix(dataset))
        names = [
            tag
            for tag in named_parts(TagName, listed)  # nothing brings a deleted one back
            if keys.tag_deleted_key(dataset, tag) not in listed[tag.component]
        ]
        found = ask_each(partial(self.tag, dataset), names)
        there = [(name, value) for name, value in found if value is not None]
        self.answers.list_names(dataset, "tags")
        return there

    def tag(self, dataset: DatasetName, tag: TagName) -> TagValue | None:
        """Return what the tag names; None if it is deleted or never existed."""
        value, deleted = both(partial(self.tag_value, dataset, tag), partial(self._tombstone, dataset, tag))
        if value is None:
            return None
        self.answers.add_tag(dataset, tag, None if deleted else value.commit)
        return None if deleted else value

    def is_deleted(self, dataset: DatasetName, tag: TagName) -> bool:
        deleted = self._tombstone(dataset, tag)
        if deleted:
            self.answers.add_tag(dataset, tag, None)
        return deleted

    def set_tag(self, dataset: DatasetName, tag: TagName, value: TagValue) -> TagValue:
        """Create the tag; may be repeated. Raises `Conflict` if it was deleted or names another commit."""
        if self.named:
            value = replace(value, dataset=dataset, tag=tag)
        commit, value = value.commit, self._lost.get((dataset, tag), value)
        key = keys.tag_key(dataset, tag)
        won = self.put_record(key, value, f"tag {tag} of {dataset}", partial(self.tag_record, dataset, tag))
        existing = value if won else self.tag_value(dataset, tag)
        if existing is None:
            raise absent(self.store.url, key)
        put_copy = partial(self.store.put_if_absent, key + keys.TAG_COPY, existing.encode())
        both(partial(self._refuse_deleted, dataset, tag), put_copy)
        if existing.commit != commit:
            raise Conflict(
                f"tag {tag} of {dataset} already names {str(existing.commit)[:12]}, and a tag never moves",
                subject=tag,
                hint=f"choose another name; dsv log {dataset}@{tag} shows what it names",
            )
        self.answers.add_tag(dataset, tag, commit)
        return existing

    def _refuse_deleted(self, dataset: DatasetName, tag: TagName) -> None:
        if self._tombstone(dataset, tag):
            raise Conflict(
                f"tag {tag} of {dataset} was deleted, and its name cannot be reused",
                subject=tag,
                hint="choose another name",
            )

    def delete_tag(self, dataset: DatasetName, tag: TagName, record: TagDeleted) -> None:
        """Delete the tag permanently. Raises `NotFound`."""
        if self.tag(dataset, tag) is None:
            raise NotFound(
                f"dataset {dataset} has no tag {tag}", subject=tag, hint=f"dsv tag --list {dataset}"
            )
        self.put(keys.tag_deleted_key(dataset, tag), record.encode(), f"tag {tag} of {dataset}")
        self.answers.add_tag(dataset, tag, None)

    def put_record(self, key: str, record: Signed, what: str, read: Callable[[], Signed | None]) -> bool:
        """Write a record and `read` it back. Return False if another writer has won the key. Raises the same
        as `put`, and `IntegrityError` if the store kept another writer's record."""
        check = partial(check_kept, read, self.store.url, key, what, record)
        return self.put(key, record.encode(), what, check) is PutResult.WON

    def put(self, key: str, data: bytes, what: str, won: Callable[[], None] = lambda: None) -> PutResult:
        """Write a key of the names. `won` is called if this writer wins it; `what` says what the key is for.

        Raises `Conflict` if the names are moving, and `OutcomeUnknown` if they began to during the write.
        """
        with name_denied_write(self.store.url, key, what):
            if self.layout is not None:
                self.layout.check_at_rest(names_of(self.store).url)
                self.check_one_wins()
            put = self.store.put_if_absent(key, data)
            both(won if put is PutResult.WON else lambda: None, partial(self.check_not_moved, what))
        return put

    def check_not_moved(self, what: str) -> None:
        """Raises `OutcomeUnknown` if the names began to move since the store was opened.

        A process that moves them first adds an entry to the format log, then copies them. So if this entry is
        missing after a key was written, the copy has the key. Reads the log again if it has another entry.
        """
        if self.layout is None:
            return
        names = names_of(self.store)
        try:
            if read_entry(names, len(self.layout.entries)) is None:
                return
            self.layout = replace(self.layout, entries=tuple(read_format(names)))
        except (Unreachable, Denied, IntegrityError) as error:
            raise OutcomeUnknown(
                f"{what} may have been written to {self.store.url}, but its format log cannot be read: "
                f"{error.message}",
                subject=names.url,
                hint="run the same command again: it finds out by itself",
            ) from error
        if any(self.layout.has(one) for one in (NAMES_MOVING, NAMES_MOVED, NAMES_ELSEWHERE)):
            last = self.layout.entries[-1]
            raise OutcomeUnknown(
                f"{last.author} began to move the names of {self.store.url} to {last.names} while {what} was written, "
                "and it may be missing at the new location",
                subject=last.names,
                hint="run the same command again when the move is over: it finds out by itself",
            )

    def check_one_wins(self) -> None:
        """Raises `IntegrityError` if the server takes a key twice, as after an upgrade: a ref would then
        overwrite that of another writer. Sends no request if a session has proved it."""
        if self.proved or self.layout is None or self.layout.single_writer:
            return
        names, key = names_of(self.store), f"{keys.PROBE_PREFIX}{os.urandom(8).hex()}"
        puts = [names.put_if_absent(key, data) for data in (b"first", b"second")]
        with suppress(DsvError):
            names.delete(key)
        if puts[1] is PutResult.WON:
            raise IntegrityError(
                f"{self.store.url} no longer lets one writer win: it took {key} twice; nothing was written",
                subject=key,
                hint=ONE_WINS_AGAIN,
            )

    def tag_value(self, dataset: DatasetName, tag: TagName) -> TagValue | None:
        """Return what a tag was set to, if need be by its copy, even if it is deleted; None if it never existed."""
        try:
            found = self.tag_record(dataset, tag)
        except IntegrityError:
            if (found := self.tag_record(dataset, tag, keys.TAG_COPY)) is None:
                raise
        if found is None and (found := self.tag_record(dataset, tag, keys.TAG_COPY)) is not None:
            self._lost[dataset, tag] = found
        return found

    def tag_record(self, dataset: DatasetName, tag: TagName, copy: str = "") -> TagValue | None:
        """Return a tag's record, or its copy (`TAG_COPY`); None if that is absent."""
        return read_named(
            TagValue.decode, self.store, keys.tag_key(dataset, tag) + copy, "tag",
            {"dataset": dataset, "tag": tag}, older=not self.named,
        )  # fmt: skip

    def no_name(self, dataset: DatasetName, name: str, what: str = "branch") -> NotFound:
        """Return the error for a name that no branch has, but a tag may have had. what: what was wanted."""
        tag = TagName.parse(name)
        if self.tag(dataset, tag) is not None:
            return NotFound(
                f"{name} is a tag of {dataset}, not a branch",
                subject=name,
                hint=f"dsv branch NAME {dataset}@{name} makes a branch there; files: dsv restore --from @{name}",
            )
        gone = self.deletion(dataset, tag)
        if gone is not None:
            return NotFound(
                f"tag {name} of {dataset} was deleted ({gone.author}, {format_time(gone.time_ms)}), and its name "
                "cannot be reused",
                subject=name,
                hint=f"dsv tag --list {dataset} shows the tags; dsv log {dataset} finds its commit, if a branch has it",
            )
        hint = f"dsv branch {dataset}@{name} {dataset}@main makes it; dsv branch --list {dataset} lists them"
        if what != "branch":
            git = "dsv has no HEAD: @main is the newest commit of main; " if name == "HEAD" else ""
            hint = f"{git}dsv tag --list {dataset}, dsv branch --list {dataset}"
        return NotFound(f"dataset {dataset} has no {what} {name}", subject=name, hint=hint)

    def _tombstone(self, dataset: DatasetName, tag: TagName) -> bool:
        try:
            self.store.get(keys.tag_deleted_key(dataset, tag), RECORD_MAX)
        except NotFound:
            return False
        return True

    def deletion(self, dataset: DatasetName, tag: TagName) -> TagDeleted | None:
        """Return the record by which a tag was deleted; None if it was not."""
        return record_or_none(TagDeleted.decode, self.store, keys.tag_deleted_key(dataset, tag))


def named_parts(kind: type[Name], parts: Iterable[str]) -> list[Name]:
    """Return the parts that are names. The others were written by another program."""
    found: list[Name] = []
    for part in parts:
        with suppress(UsageError):
            found.append(kind.from_component(part))
    return found
