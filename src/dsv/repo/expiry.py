"""The expiry log of a dataset: which of its commits are expired, and which expired ones are freed.

Entries are numbered from 0 and written by put-if-absent, so only one of several writers wins a number. The
entries, in order, give the state of a commit (`fold`):

- `expire` and `delete` make it **expired**, if it was not. Its content remains, but can't be read by name.
- `undo` ends that, unless the commit is freed.
- `free` makes an expired commit **freed**, permanently. gc writes the entry before the commit stops being a
  root. The entry has no effect on a commit that is not expired.

So undo and gc can't both succeed: when `append` loses a number, it reads the log and asks its caller again.
gc frees commits whose grace (`upkeep.expire.grace_ends`) is over, by the store's time of the entry that expired
them. Then exactly the commits of `log.freed` are no roots, whatever names them. A commit that expired by `expire` is
not freed while a branch or a tag names it. One that expired by `delete` is: its whole dataset is deleted.

After each 8 entries a joined copy is stored, so that a log is read with few requests: of as many entries as the
largest power of two that divides the number of all. Entries that are in none are read one by one.

A store gets the feature `expired-commits` before its first entry. Without the feature the log is not read.

Races: a process that names an older commit by a branch or a tag writes the name and then reads the log
(`repo.session.naming`). A process that expires commits writes the entry and then reads the names. So one of
the two sees the other, and writes `undo` for the commit that is named.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from dsv.errors import Conflict, DsvError, IntegrityError, NotFound, Unsupported
from dsv.format import keys
from dsv.format.records import MAX_COMMITS, ExpiryAction, ExpiryEntry, Feature, FeatureRule, WriterIdentity
from dsv.repo.errors import broken, explain_denied_write
from dsv.repo.format_log import EXPIRED_COMMITS
from dsv.repo.refs.branches import Refs, is_deleted_dataset
from dsv.repo.refs.listing import read_named
from dsv.stores.base import ask_each, parsed
from dsv.values.cached import cached
from dsv.values.ids import CommitId, Nonce
from dsv.values.units import format_time

if TYPE_CHECKING:
    from dsv.repo.repository import Repository
    from dsv.values.names import DatasetName


class ExpiryState(msgspec.Struct, frozen=True):
    entry: ExpiryEntry
    """The entry by which it expired."""
    freed: bool = False
    """Its content was removed, or will be."""


class ExpiryLog(msgspec.Struct, frozen=True, dict=True):
    """The log of one dataset, as it was read."""

    dataset: DatasetName
    entries: tuple[ExpiryEntry, ...] = ()

    @cached
    def states(self) -> dict[CommitId, ExpiryState]:
        """Return the commits that are expired or freed."""
        return fold(self.entries)

    @property
    def expired(self) -> dict[CommitId, ExpiryState]:
        """Return the commits that are expired and not freed: `undo` brings them back."""
        return {commit: state for commit, state in self.states.items() if not state.freed}

    @property
    def freed(self) -> set[CommitId]:
        """Return the commits that are no roots any more, whatever names them."""
        return {commit for commit, state in self.states.items() if state.freed}

    def affected(self, action: ExpiryAction, commits: Iterable[CommitId]) -> list[CommitId]:
        """Return the commits whose state an entry with this action would change, sorted, each once."""
        found = set(commits)
        if action in (ExpiryAction.UNDO, ExpiryAction.FREE):
            return sorted(found.intersection(self.expired))
        return sorted(found.difference(self.states))


def fold(entries: Iterable[ExpiryEntry]) -> dict[CommitId, ExpiryState]:
    """Return the state of each expired or freed commit, from all entries from number 0 on."""
    states: dict[CommitId, ExpiryState] = {}
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
                states[commit] = ExpiryState(entry)
    return states


def read_expiry(refs: Refs, dataset: DatasetName, *, singly: bool = False) -> ExpiryLog:
    """Return the log of a dataset. If the store has no log, it is empty and no request is sent. What this process has
    read is not read again, because it never changes. singly: read each entry by itself, and all of them again.

    Raises `IntegrityError` if an entry is missing or damaged.
    """
    entries = {} if singly else dict(enumerate(refs.expiry.get(dataset, ())))
    if refs.layout is None or not refs.layout.has(EXPIRED_COMMITS):
        return ExpiryLog(dataset)
    newest, joined = len(entries) - 1, 0
    for item in () if entries else refs.store.list(keys.expiry_prefix(dataset)):
        key = item.key.removesuffix(keys.EXPIRY_JOINED)
        if (found := keys.parse_expiry_key(key)) is not None:
            newest, joined = max(newest, found[1]), max(joined, (found[1] + 1) * (key != item.key))
        if joined and refs.store.ordered_listing:
            break
    refs.joined[dataset] = joined or refs.joined.get(dataset, 0)
    for _, some in ask_each(partial(_joined, refs, dataset), () if singly else _ends(joined)):
        entries.update(some)
    left = (number for number in range(newest + 1) if number not in entries)
    for number, entry in ask_each(partial(expiry_entry, refs, dataset), left):
        if entry is None:
            key = keys.expiry_key(dataset, number)
            raise refs.erased(dataset) or broken(key, f"the expiry log of {dataset} lacks its entry {number}")
        entries[number] = entry
    while (later := expiry_entry(refs, dataset, len(entries))) is not None:  # a listing may lag behind
        entries[len(entries)] = later
    refs.expiry[dataset] = tuple(entries[number] for number in range(len(entries)))
    return ExpiryLog(dataset, refs.expiry[dataset])


def _ends(end: int) -> list[int]:
    """Return where the joined copies end that together have all entries before this end, the last one first."""
    return [end, *_ends(end & (end - 1))] if end else []


def _joined(refs: Refs, dataset: DatasetName, end: int) -> dict[int, ExpiryEntry]:
    """Return the entries of a joined copy by number; none if it is missing or damaged."""
    with suppress(IntegrityError, NotFound, Unsupported, msgspec.DecodeError):
        data = refs.store.get(keys.expiry_key(dataset, end - 1) + keys.EXPIRY_JOINED, JOINED_MAX)
        entries = [ExpiryEntry.decode(one) for one in _ENTRIES.decode(data)]
        return {one.number: one for one in entries if one.dataset == dataset and one.number < end}
    return {}


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
    """Return one entry; None if it does not exist."""
    key = keys.expiry_key(dataset, number)
    return read_named(ExpiryEntry.decode, refs.store, key, "expiry", {"dataset": dataset, "number": number})


def expired(log: ExpiryLog, commit: CommitId) -> NotFound | None:
    """Return the error for reading an expired commit; None if the commit is not expired."""
    state = log.states.get(commit)
    if state is None:
        return None
    entry, dataset, short = state.entry, log.dataset, str(commit)[:12]
    when = format_time(entry.time_ms)[:10]
    if entry.action is ExpiryAction.DELETE:
        message = f"dataset {dataset}, with commit {short}, was deleted on {when} by {entry.author}"
        undo = f"dsv datasets --undelete {dataset} brings it back, until gc removes its content"
    else:
        message = f"commit {short} of {dataset} was expired on {when} by {entry.author}"
        undo = (
            f"dsv expire {dataset} --undo {short} brings it back, until gc removes its content; in a workspace "
            "of it, dsv pull fetches the newest commit"
        )
    gone = (
        f"gc has freed its content; dsv log {dataset} shows which commits are left; in a workspace of it, dsv pull "
        f"works while the content is still there, and else dsv clone {dataset} DIR: copy there what you changed"
    )
    return NotFound(message, subject=str(commit), hint=gone if state.freed else undo)


def check_not_expired(refs: Refs, dataset: DatasetName, commit: CommitId) -> None:
    """Raises `NotFound` if a commit is expired. Sends no request if no commit of the store ever expired."""
    error = expired(read_expiry(refs, dataset), commit)
    if error is not None:
        raise error


FEATURE = Feature(EXPIRED_COMMITS, FeatureRule.READ_ONLY)
_ENTRIES = msgspec.msgpack.Decoder(list[bytes])
JOINED, JOINED_MAX = 8, 1 << 26
"""The entries of a log after which a joined copy is stored, and the maximum size of such a copy in bytes."""


def append(
    repository: Repository,
    writer: WriterIdentity,
    dataset: DatasetName,
    action: ExpiryAction,
    choose: Callable[[ExpiryLog], Collection[CommitId]],
    message: str = "",
) -> ExpiryLog:
    """Write entries with this action until it changes no commit that `choose` returns. Return the new log.

    `choose` gets the newest log before each entry, and again whenever another writer has won its number. If killed
    between two entries, the same call writes the rest. In a renamed dataset `free` writes nothing (the log of the new
    name counts), other actions raise `Conflict`. Raises `Denied`, and what writing a ref raises.
    """
    refs, nonce = repository.refs, Nonce.random()
    while True:
        log = read_expiry(refs, dataset)
        commits = log.affected(action, choose(log))
        if not commits:
            return log
        # After the log is read: a process that renames the dataset takes the next number after that.
        gone = refs.dataset_tombstone(dataset)
        if gone is not None and not is_deleted_dataset(gone):
            if action is ExpiryAction.FREE:
                return log
            refs.check_not_gone(dataset)
        repository.format.check(repository.store.url, writing=True)
        repository.add_feature(FEATURE, writer)
        entry = ExpiryEntry(
            action, tuple(commits[:MAX_COMMITS]), nonce, repository.clock(), writer.author, message,
            dataset, len(log.entries),
        )  # fmt: skip
        put_entry(repository, entry)


def put_entry(repository: Repository, entry: ExpiryEntry) -> bool:
    """Write an entry after those that were read, and joined copies that are missing then, the first one first. Return
    False if another writer has won its number."""
    refs, dataset = repository.refs, entry.dataset
    key, what = keys.expiry_key(dataset, entry.number), f"the expiry log of {dataset}"
    with explain_denied_write(repository.store.url):
        won = refs.put_record(key, entry, what, partial(expiry_entry, refs, dataset, entry.number))
    known = refs.expiry.get(dataset, ())
    if won and len(known) == entry.number:  # all entries before it are known
        entries = refs.expiry[dataset] = (*known, entry)
        ends = _ends(len(entries) // JOINED * JOINED)
        with suppress(DsvError):  # readers do without joined copies
            for end in sorted(one for one in ends if one > refs.joined.get(dataset, 0)):
                data = msgspec.msgpack.encode([one.encode() for one in entries[end & (end - 1) : end]])
                if len(data) <= JOINED_MAX:
                    refs.put(keys.expiry_key(dataset, end - 1) + keys.EXPIRY_JOINED, data, what)
                refs.joined[dataset] = end
    return won


def keep_named(
    repository: Repository, writer: WriterIdentity, dataset: DatasetName, commit: CommitId, name: str
) -> None:
    """Undo the expiry of a commit that a branch or tag was just set to. Raises `Conflict` if it is too late.

    A process that expires the commit at this moment reads the names after that, or this finds it expired.
    """
    state = read_expiry(repository.refs, dataset).states.get(commit)
    if state is not None and not state.freed and state.entry.action is ExpiryAction.EXPIRE:
        log = append(repository, writer, dataset, ExpiryAction.UNDO, lambda _: [commit], f"{name} names it")
        state = log.states.get(commit)
    if state is not None:
        what = "was deleted" if state.entry.action is ExpiryAction.DELETE else "expired"
        raise Conflict(
            f"{name} of {dataset} names commit {str(commit)[:12]}, which {what} meanwhile "
            f"({state.entry.author}, {format_time(state.entry.time_ms)})",
            subject=str(commit),
            hint=f"dsv log {dataset} shows which commits are left",
        )


def explained(repository: Repository, error: IntegrityError) -> DsvError:
    """Return the error for a read that found no object: if a commit whose tree was opened has expired since,
    the error that says so, else `error`."""
    refs, objects = repository.refs, repository.objects
    with suppress(DsvError):
        refs.check_not_moved("nothing")  # reads features that the store got after it was opened
        for commit in sorted(objects.opened):
            made = objects.commit_or_none(commit)
            named = None if made is None else made.dataset
            for dataset in sorted(refs.answers.datasets()) if named is None else [refs.home(named)]:
                found = expired(read_expiry(refs, dataset), commit)
                if found is not None:
                    return found
    return error
