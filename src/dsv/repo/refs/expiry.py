"""Reading the expiry log of a dataset; see `repo.expiry`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from dsv.errors import IntegrityError, NotFound
from dsv.format import envelope, keys
from dsv.format.expiry import ExpiryAction, ExpiryEntry
from dsv.repo.errors import put_back, read_record
from dsv.repo.format_log import EXPIRED_COMMITS
from dsv.store.base import ask_each, parsed
from dsv.values.cached import cached
from dsv.values.units import rfc3339

if TYPE_CHECKING:
    from dsv.repo.refs.branches import Refs
    from dsv.values.ids import CommitId
    from dsv.values.names import DatasetName


class State(msgspec.Struct, frozen=True):
    """An expired commit."""

    entry: ExpiryEntry
    """The entry by which it expired."""
    freed: bool = False
    """Its content is removed, or about to be."""


class ExpiryLog(msgspec.Struct, frozen=True, dict=True):
    """The log of one dataset, as it was read."""

    dataset: DatasetName
    entries: tuple[ExpiryEntry, ...] = ()

    @cached
    def states(self) -> dict[CommitId, State]:
        """All commits that are expired or freed."""
        return fold(self.entries)

    @property
    def expired(self) -> dict[CommitId, State]:
        """Return the commits that are expired and not freed: `undo` brings them back."""
        return {commit: state for commit, state in self.states.items() if not state.freed}

    @property
    def freed(self) -> set[CommitId]:
        """Return the commits that are no roots any more, whatever names them."""
        return {commit for commit, state in self.states.items() if state.freed}

    def key(self, number: int) -> str:
        """Return the key of an entry, for its time by the store's clock (`Store.modified`)."""
        return keys.expiry_key(self.dataset, number)

    def affected(self, action: ExpiryAction, commits: Iterable[CommitId]) -> list[CommitId]:
        """Return those of the commits whose state an entry with this action would change, sorted, each once."""
        found = set(commits)
        if action in (ExpiryAction.UNDO, ExpiryAction.FREE):
            return sorted(found.intersection(self.expired))
        return sorted(found.difference(self.states))


def fold(entries: Iterable[ExpiryEntry]) -> dict[CommitId, State]:
    """Return the state of each commit that is expired or freed, by the entries from 0 on."""
    states: dict[CommitId, State] = {}
    for entry in entries:
        for commit in entry.commits:
            known = states.get(commit)
            if known is not None and known.freed:
                continue
            if entry.action is ExpiryAction.UNDO:
                states.pop(commit, None)
            elif entry.action is ExpiryAction.FREE:
                if known is not None:
                    states[commit] = replace(known, freed=True)
            elif known is None:
                states[commit] = State(entry)
    return states


def read_expiry(refs: Refs, dataset: DatasetName) -> ExpiryLog:
    """Return the log of a dataset; an empty one, without a request, if the store has none. Entries that this process
    has read are not read again, as they never change.

    Raises `IntegrityError` if an entry is missing or damaged.
    """
    entries = list(refs.expiry.get(dataset, ()))
    if refs.layout is None or not refs.layout.has(EXPIRED_COMMITS):
        return ExpiryLog(dataset)
    listed = () if entries else parsed(keys.parse_expiry_key, refs.store.list(keys.expiry_prefix(dataset)))
    newest = max((number for _, number in listed), default=len(entries) - 1)
    numbers = range(len(entries), newest + 1)
    for number, entry in ask_each(partial(expiry_entry, refs, dataset), numbers):
        if entry is None:
            key = keys.expiry_key(dataset, number)
            raise refs.erased(dataset) or IntegrityError(
                f"the expiry log of {dataset} lacks its entry {number}", subject=key, hint=put_back(key)
            )
        entries.append(entry)
    while (later := expiry_entry(refs, dataset, len(entries))) is not None:  # a listing may lag behind
        entries.append(later)
    refs.expiry[dataset] = tuple(entries)
    return ExpiryLog(dataset, tuple(entries))


def freed_at_least(refs: Refs, dataset: DatasetName) -> set[CommitId]:
    """Return the commits that the readable entries of a damaged log free."""
    found: set[CommitId] = set()
    for _, number in parsed(keys.parse_expiry_key, refs.store.list(keys.expiry_prefix(dataset))):
        with suppress(IntegrityError):
            entry = expiry_entry(refs, dataset, number)
            if entry is not None and entry.action is ExpiryAction.FREE:
                found.update(entry.commits)
    return found


def expiry_entry(refs: Refs, dataset: DatasetName, number: int) -> ExpiryEntry | None:
    """Return one entry; None where it was not put."""

    def decode(data: bytes) -> ExpiryEntry:
        entry = ExpiryEntry.decode(data)
        if (entry.dataset, entry.number) != (dataset, number):
            made_for = f"{entry.dataset} {entry.number}"
            raise envelope.damaged("expiry", f"it was written for {made_for}, not for {dataset} {number}")
        return entry

    try:
        return read_record(decode, refs.store, keys.expiry_key(dataset, number))
    except NotFound:
        return None


def expired(log: ExpiryLog, commit: CommitId) -> NotFound | None:
    """Return the error for anyone who asks for an expired commit; None if it is not expired."""
    state = log.states.get(commit)
    if state is None:
        return None
    entry, dataset, short = state.entry, log.dataset, str(commit)[:12]
    when = rfc3339(entry.time_ms)[:10]
    if entry.action is ExpiryAction.DELETE:
        message = f"dataset {dataset}, with commit {short}, was deleted on {when} by {entry.author}"
        undo = f"dsv datasets --undelete {dataset} brings it back, until gc removes its content"
    else:
        message = f"commit {short} of {dataset} was expired on {when} by {entry.author}"
        undo = f"dsv expire {dataset} --undo {short} brings it back, until gc removes its content"
    gone = (
        f"gc has removed its content; dsv log {dataset} shows which commits are left; if it is the base of a "
        f"workspace: dsv clone {dataset} DIR, and copy there what you changed"
    )
    return NotFound(message, subject=str(commit), hint=gone if state.freed else undo)


def check_not_expired(refs: Refs, dataset: DatasetName, commit: CommitId) -> None:
    """Raise `NotFound` if a commit is expired. Asks nothing of a store in which no commit ever expired."""
    error = expired(read_expiry(refs, dataset), commit)
    if error is not None:
        raise error
