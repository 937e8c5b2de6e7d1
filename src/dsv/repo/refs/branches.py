"""Branches: names of commits. Each move is a new object, and no object is ever overwritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from shlex import quote

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dsv.errors import Conflict, DsvError, IntegrityError, NotFound, UsageError
from dsv.format import keys
from dsv.format.records import (
    DELETE_DATASET,
    MERGE,
    RENAME,
    RENAME_DATASET,
    RENAMED_FROM,
    RENAMED_TO,
    UNDELETE_DATASET,
    Action,
    BranchLimits,
    BranchRule,
    RefEntry,
    TagValue,
)
from dsv.repo.errors import broken
from dsv.repo.format_log import EXPIRED_COMMITS, FormatLog
from dsv.repo.refs.listing import ListedBranch, changed, latest, never_again, parts, read_named
from dsv.repo.refs.tags import Tags, named_parts
from dsv.stores.base import StoreBackend, absent, both, together
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, BranchName, DatasetName, TagName
from dsv.values.units import format_time


class Head(msgspec.Struct, frozen=True):
    """The newest entry of a branch, and that entry's number from 0."""

    dataset: DatasetName
    branch: BranchName
    number: int
    entry: RefEntry

    @property
    def commit(self) -> CommitId | None:
        """None before the first commit."""
        return self.entry.commit


def protected(head: Head, reason: str) -> Conflict:
    return Conflict(
        f"branch {head.branch} of {head.dataset} is protected: {reason}",
        subject=f"{head.dataset}@{head.branch}",
        hint="the same command with --force -m REASON overrides the rule; dsv branch --list shows the rules",
    )


def is_deleted_dataset(head: Head | None) -> bool:
    """Return whether the branch was deleted with its whole dataset."""
    return head is not None and head.entry.deleted and Action.parse(head.entry.action).verb == DELETE_DATASET


def renamed(entry: RefEntry | None, which: str) -> DatasetName | None:
    """Return the dataset to which (`RENAMED_TO`) or from which (`RENAMED_FROM`) a move renames its own."""
    action = Action("") if entry is None else Action.parse(entry.action)
    if action.verb == RENAME_DATASET and action.message.startswith(which):
        with suppress(UsageError):  # another writer may have put any text there
            return DatasetName.parse(action.message.removeprefix(which).partition(";")[0])
    return None


def no_commit(head: Head, hint: str | None = "dsv sync makes one") -> NotFound:
    where = f"{head.dataset}@{head.branch}"
    return NotFound(f"branch {head.branch} of {head.dataset} has no commit yet", subject=where, hint=hint)


def already_there(head: Head, hint: str | None = None) -> Conflict:
    return Conflict(
        f"{head.dataset} already has a branch {head.branch}",
        subject=f"{head.dataset}@{head.branch}",
        hint=hint or f"dsv switch {head.branch} follows it",
    )


def deleted(tombstone: Head) -> NotFound:
    """Return the error for a deleted branch: which user has deleted it, and how to restore it."""
    what, subject, command, hint = _told(tombstone)
    who = f"({tombstone.entry.author}, {format_time(tombstone.entry.time_ms)})"
    return NotFound(f"{what} {who}", subject=subject, hint=hint.replace("{}", command))


def _told(tombstone: Head) -> tuple[str, str, str, str]:
    """Return what happened, its subject, the command that helps a workspace, and a hint with {} for the command."""
    action, branch, dataset = Action.parse(tombstone.entry.action), tombstone.branch, tombstone.dataset
    to, old = (renamed(tombstone.entry, which) for which in (RENAMED_TO, RENAMED_FROM))
    subject: str = dataset
    if is_deleted_dataset(tombstone):
        what, command = f"dataset {dataset} was deleted", f"dsv datasets --undelete {dataset}"
        hint = "{} brings it back, until gc removes its content"
    elif to is not None:
        what, command = f"dataset {dataset} was renamed to {to}", f"dsv switch {branch}"
        hint = f"name it {to}; in a workspace, {{}} follows it there"
    elif old is not None and branch == MAIN:
        what = f"dataset {old} is being renamed to {dataset}"
        command, hint = f"dsv datasets --rename {old} {dataset}", "if that was interrupted: {} finishes it"
    elif action.verb == RENAME and action.message:
        new = action.message.removeprefix(RENAMED_TO).partition(";")[0]
        what, subject = f"branch {branch} of {dataset} was renamed to {new}", branch
        command, hint = f"dsv switch {quote(new)}", f"name it {new}; a workspace follows it after {{}}"
    else:
        what, subject = f"branch {branch} of {dataset} was deleted", branch
        command, hint = f"dsv branch --restore {dataset}@{branch}", "{} brings it back"
    return what, subject, command, hint


def refused_mover(limits: BranchLimits, author: str, *, merge: bool) -> str | None:
    """Return why this author may not move the branch in this way, as far as known without the new commit."""
    if not limits.names(author):
        return f"{author} is not among those who may move it, {', '.join(limits.who)}"
    if limits.only_merge and not merge:
        return "only a merge moves it"
    return None


def refused_removals(limits: BranchLimits, removed: int, entries: int) -> str | None:
    """Return why the branch's next commit may not remove this many of the entries; None if it may."""
    if limits.max_removals is None or removed * 100 <= limits.max_removals * entries:
        return None
    return f"{removed:,} of {entries:,} paths would be removed, more than {limits.max_removals} %"


class LostRace(msgspec.Struct, frozen=True):
    """The move of another writer has won; nothing was written."""

    winner: Head


# The most moves of a branch that are read at the same time.
_AT_ONCE = 256


Refused = Callable[[BranchLimits, CommitId | None, RefEntry, bool], str | None]
"""Returns why the limits of a branch forbid a move from a commit to that of an entry. bool: by a merge."""


class Refs(Tags):
    """The names of one store. The store is always asked; what is remembered only says where to begin.

    Moves and their numbers are never deleted, so a search for the newest may begin at any known move.
    """

    def __init__(self, store: StoreBackend) -> None:
        super().__init__(store)
        self._listed: dict[tuple[DatasetName, BranchName], ListedBranch] = {}
        self._seen: dict[tuple[DatasetName, BranchName], Head] = {}
        self._rules: dict[tuple[DatasetName, BranchName], BranchRule] = {}
        self.refused: Refused | None = None
        self.override: str | None = None

    def bind(self, layout: FormatLog, refused: Refused, override: str | None) -> None:
        """Take the store's format, which may be read while names are, and how to judge moves (`Access`)."""
        self.layout, self.named, self.store_id = layout, layout.named_records, layout.store_id
        self.refused, self.override = refused, override

    def forget(self) -> None:
        for known in (self._listed, self._seen, self._rules, self.expiry):
            known.clear()

    def expect(self, dataset: DatasetName, branch: BranchName) -> None:
        """List a branch that will be asked for, while another request is under way.

        The store's format need not be known yet: if it says the order is not reliable, list again.
        """
        self._listed[dataset, branch] = self._list(dataset, branch)

    def datasets(self) -> list[DatasetName]:
        """Return all datasets by name, also one that does not exist yet: its `main` has no first entry."""
        found = named_parts(DatasetName, self.store.folders(keys.REFS_PREFIX))
        self.answers.list_datasets(found)
        return found

    def names(self, dataset: DatasetName) -> tuple[list[Head], list[tuple[TagName, TagValue]]]:
        """Return all branches and all tags, like `heads` and `tags`."""
        return both(partial(self.heads, dataset), partial(self.tags, dataset))

    def heads(self, dataset: DatasetName) -> list[Head]:
        """Return the newest entry of every branch that is not deleted, by name."""
        found = parts(self.store, keys.branches_prefix(dataset))
        names = named_parts(BranchName, found)
        for name in names:
            listed = latest(found[name.component], self.store.ordered_listing)
            if listed.number is not None:
                self._listed[dataset, name] = listed
        heads = together([partial(self.head_or_none, dataset, name) for name in names])
        self.answers.list_names(dataset, "branches")
        return [head for head in heads if head is not None]

    def branch_or_tag(self, dataset: DatasetName, text: str) -> Head | TagValue | None:
        """Return what a name means (never both); None if it was deleted or never existed."""
        branch, tag = BranchName.parse(text), TagName.parse(text)
        if self._beginning(dataset, branch) is None:
            found = both(partial(self.head_or_none, dataset, branch), partial(self.tag, dataset, tag))
            return found[0] or found[1]
        return self.head_or_none(dataset, branch) or self.tag(dataset, tag)

    def exists(self, dataset: DatasetName) -> bool:
        if any(name == dataset and listed.number is not None for (name, _), listed in self._listed.items()):
            return True
        return next(iter(self.store.list(keys.branches_prefix(dataset))), None) is not None

    def deleted_dataset(self, dataset: DatasetName) -> Head | None:
        """Return the move that deleted the dataset, if any. Sends no more requests than `dataset_tombstone`."""
        gone = self.dataset_tombstone(dataset)
        return gone if is_deleted_dataset(gone) else None

    @property
    def _may_be_gone(self) -> bool:
        return self.layout is not None and self.layout.has(EXPIRED_COMMITS)

    def dataset_tombstone(self, dataset: DatasetName) -> Head | None:
        """Return the move by which the dataset was deleted or renamed, or its name reserved for another one;
        None if the dataset exists or never did. Sends no request if no commit of the store ever expired."""
        main = self.newest(dataset, MAIN) if self._may_be_gone else None
        return main if main is not None and main.entry.deleted else None

    def home(self, dataset: DatasetName) -> DatasetName:
        """Return the dataset whose expiry log counts for the commits of this one: the dataset that it was
        finally renamed to, as soon as that exists, or itself."""
        seen = {dataset}
        while (gone := self.dataset_tombstone(dataset)) is not None:
            to = renamed(gone.entry, RENAMED_TO)
            after = None if to is None else self.dataset_tombstone(to)
            if after is not None and renamed(after.entry, RENAMED_FROM) == dataset:
                break  # the new name does not exist yet
            found = to or renamed(gone.entry, RENAMED_FROM)
            if found is None or found in seen:
                break
            seen.add(found)
            dataset = found
        return dataset

    def former_names(self, dataset: DatasetName) -> list[DatasetName]:
        """Return the dataset, and all names from which it was renamed."""
        names = [dataset]
        for name in names:
            main = self.newest(name, MAIN) if self._may_be_gone else None
            for entry in () if main is None else self.history(main):
                old = renamed(entry, RENAMED_FROM)
                if old is not None and old not in names and self.home(old) == self.home(dataset):
                    names.append(old)
        return names

    def require(self, dataset: DatasetName) -> None:
        """Raises `NotFound` if the dataset does not exist."""
        gone = self.dataset_tombstone(dataset)
        if gone is not None:
            raise deleted(gone)
        if not self.exists(dataset):
            raise self.erased(dataset) or NotFound(
                f"there is no dataset {dataset} in {self.store.url}",
                subject=dataset,
                hint="dsv datasets lists them",
            )

    def head_or_none(self, dataset: DatasetName, branch: BranchName) -> Head | None:
        """Return the branch's newest entry; None if the branch is deleted or never existed."""
        head = self.newest(dataset, branch)
        return None if head is None or head.entry.deleted else head

    def head(self, dataset: DatasetName, branch: BranchName) -> Head:
        """Like `head_or_none`, but raise `NotFound`, which says if the dataset or the branch is missing."""
        head = self.head_or_none(dataset, branch)
        if head is not None:
            return head
        self.require(dataset)
        newest = self.newest(dataset, branch)
        raise deleted(newest) if newest is not None else self.no_name(dataset, branch)

    def history(self, head: Head, limit: int | None = None) -> Iterator[RefEntry]:
        """Yield `limit` or all moves, newest first. Reads many at the same time, few more than are taken."""
        yield head.entry
        number, last = head.number - 1, -1 if limit is None else max(head.number - limit, -1)
        batch = 4
        while number > last:
            numbers = range(number, max(number - batch, last), -1)
            read = together([partial(self.entry, head.dataset, head.branch, each) for each in numbers])
            for each, entry in zip(numbers, read, strict=True):
                if entry is None:
                    raise self._lacks(head.dataset, head.branch, each)
                yield entry
            number, batch = number - batch, min(batch * 4, _AT_ONCE)

    def move(
        self, dataset: DatasetName, branch: BranchName, after: Head | None, entry: RefEntry
    ) -> Head | LostRace:
        """Publish the branch's next entry, which must follow `after` (None: a new branch), and return it.

        A deleted branch continues with its next number: pass the tombstone's head from `newest`. Raises
        `Conflict` if the branch is protected, its rule refuses this move, and `override` is not set.
        """
        number = 0 if after is None else after.number + 1
        if not entry.deleted and (branch != MAIN or (after is not None and after.entry.deleted)):
            self._check_there(dataset, entry)
        made = entry if after is None else self.permitted(after, entry)
        if after is None and branch == MAIN and (erasure := self.erasure(dataset)) is not None:
            raise never_again(dataset, erasure, self.store.url)
        key = keys.branch_key(dataset, branch, number)
        if self.named:
            made = replace(made, dataset=dataset, branch=branch, number=number)
        read = partial(self.entry, dataset, branch, number)
        if self.put_record(key, made, f"branch {branch} of {dataset}", read):
            moved = self._saw(Head(dataset, branch, number, made))
            if branch != MAIN and not made.deleted:
                self._check_there(dataset, made, f"branch {branch} was moved to {str(made.commit)[:12]}")
            return moved
        winner = self.newest(dataset, branch)
        if winner is None:
            raise IntegrityError(f"branch {branch} of {dataset} is there and is not", subject=key)
        return LostRace(winner)

    def _check_there(self, dataset: DatasetName, entry: RefEntry, doing: str = "") -> None:
        """Raises `Conflict` if the dataset was deleted or renamed before or during this move of a branch.

        A process that does that deletes `main` first, and then every other branch that a listing still has.
        """
        if Action.parse(entry.action).verb not in (UNDELETE_DATASET, RENAME_DATASET):
            self.check_not_gone(dataset, doing)

    def check_not_gone(self, dataset: DatasetName, doing: str = "") -> None:
        """Raises `Conflict` if the dataset was deleted or renamed while something was written for it."""
        gone = self.dataset_tombstone(dataset)
        if gone is not None:
            error = deleted(gone)
            message = f"{error.message}, while {doing}" if doing else error.message
            raise Conflict(message, subject=dataset, hint=error.hint)

    def check_same(self, head: Head) -> None:
        """Raises `IntegrityError` if the move of this head is missing or changed: no move may follow it."""
        now = self.entry(head.dataset, head.branch, head.number)
        if now is None:
            raise self._lacks(head.dataset, head.branch, head.number)
        if now.nonce != head.entry.nonce:
            key = keys.branch_key(head.dataset, head.branch, head.number)
            what = f"move {head.number} of branch {head.branch} of {head.dataset}"
            raise changed(self.store.url, key, what, now)

    def limits(self, dataset: DatasetName, branch: BranchName) -> BranchLimits | None:
        """Return what a protected branch allows, else None, by a listing that is made anyway."""
        rule = self.rule(dataset, branch)
        return None if rule is None else rule.limits

    def rule(self, dataset: DatasetName, branch: BranchName) -> BranchRule | None:
        """Return the newest rule of a branch; None if it never had one."""
        read = partial(self._read_rule, dataset, branch)
        known = self._rules.get((dataset, branch))
        later: BranchRule | None = None
        if known is not None:
            later = read(known.number + 1)
        else:
            self._beginning(dataset, branch)
            number = self._listed[dataset, branch].rule
            if number is not None:
                known, later = both(partial(read, number), partial(read, number + 1))
                if known is None:
                    raise absent(self.store.url, keys.branch_rule_key(dataset, branch, number))
        while later is not None:
            known, later = later, read(later.number + 1)
        if known is not None:
            self._rules[dataset, branch] = known
        self.answers.add_limits(dataset, branch, None if known is None else known.limits)
        return known

    def _read_rule(self, dataset: DatasetName, branch: BranchName, number: int) -> BranchRule | None:
        key = keys.branch_rule_key(dataset, branch, number)
        names: dict[str, object] = {"dataset": dataset, "branch": branch, "number": number}
        return read_named(BranchRule.decode, self.store, key, "branch-rule", names)

    def last_read(self, dataset: DatasetName, branch: BranchName) -> Head | None:
        """Return the newest entry of a branch that was read. Sends no request."""
        return self._seen.get((dataset, branch))

    def read_at(self, commit: CommitId) -> Head | None:
        """Return the head of a branch that was read and is at this commit. Sends no request."""
        return next((head for head in list(self._seen.values()) if head.commit == commit), None)

    def check_new_dataset(self, dataset: DatasetName) -> None:
        """Raises `Conflict` if the name was deleted or renamed, or differs from another one only in case."""
        gone = self.dataset_tombstone(dataset)
        if gone is not None:
            error = deleted(gone)
            hint = f"choose another name; {error.hint}"
            raise Conflict(f"{error.message}, and its name is not used again", subject=dataset, hint=hint)
        for other in self.datasets():
            if other != dataset and other.casefold() == dataset.casefold() and self.exists(other):
                raise Conflict(
                    f"{self.store.url} has a dataset {other}, and names may not differ in case only",
                    subject=dataset,
                )

    def check_new_branch(self, dataset: DatasetName, name: BranchName) -> None:
        """Raises `Conflict` if a tag has the name, or another name differs from it only in case."""
        if self.tag(dataset, TagName.parse(name)) is not None:
            raise Conflict(f"{dataset} has a tag {name}, so a branch can't have that name", subject=name)
        self._check_case(dataset, name)

    def check_new_tag(self, dataset: DatasetName, name: TagName) -> None:
        """Raises `Conflict` if a branch has the name, or another name differs from it only in case."""
        if self.head_or_none(dataset, BranchName.parse(name)) is not None:
            raise Conflict(f"{dataset} has a branch {name}, so a tag can't have that name", subject=name)
        self._check_case(dataset, name)

    def _check_case(self, dataset: DatasetName, name: str) -> None:
        heads, tags = self.names(dataset)
        for other in [*(str(head.branch) for head in heads), *(str(tag) for tag, _ in tags)]:
            if other != name and other.casefold() == name.casefold():
                raise Conflict(f"{dataset} has {other}, and names may not differ in case only", subject=name)

    def add_rule(self, rule: BranchRule) -> bool:
        """Add the next rule of a branch. Return False if another writer has added one with its number."""
        branch = rule.dataset, rule.branch
        what = f"the rule of branch {rule.branch} of {rule.dataset}"
        key = keys.branch_rule_key(*branch, rule.number)
        won = self.put_record(key, rule, what, partial(self._read_rule, *branch, rule.number))
        if won:
            self._rules[branch] = rule
            self.answers.add_limits(*branch, rule.limits)
        return won

    def check_mover(
        self, head: Head | None, author: str, *, merge: bool = False, removed: int = 0, entries: int = 0
    ) -> None:
        """Raises `Conflict` for a move that the branch's rule would refuse, before the work for it is done.

        removed: how many of the head's `entries` it would remove, as far as known.
        """
        limits = None if head is None else self.limits(head.dataset, head.branch)
        refused = None
        if limits is not None:
            refused = refused_mover(limits, author, merge=merge) or refused_removals(limits, removed, entries)
        if head is not None and refused is not None and self.override is None:
            raise protected(head, refused)

    def permitted(self, after: Head, entry: RefEntry) -> RefEntry:
        """Return the entry to write, which says so if it overrides a rule. Raises `Conflict`."""
        limits = self.limits(after.dataset, after.branch)
        if limits is None or self.refused is None:
            return entry
        action = Action.parse(entry.action)
        reason = self.refused(limits, after.commit, entry, action.verb == MERGE)
        if reason is None:
            return entry
        if self.override is None:
            raise protected(after, reason)
        return replace(entry, action=str(action.overriding(self.override)))

    def newest(self, dataset: DatasetName, branch: BranchName) -> Head | None:
        """Return the newest entry, even a tombstone: from a known move to the one that none follows."""
        seen = self._seen.get((dataset, branch))
        if seen is not None:
            number, entry = seen.number, seen.entry
            later = self.entry(dataset, branch, number + 1)
        elif (beginning := self._beginning(dataset, branch)) is not None:
            number = beginning
            self._check_unbroken(dataset, branch, number)
            entry, later = self._read_listed(dataset, branch, number)
        else:
            self._listed.pop((dataset, branch), None)  # the branch may be created at any time
            first = self.entry(dataset, branch, 0)
            if first is None:
                return None
            number, entry, later = 0, first, self.entry(dataset, branch, 1)
        while later is not None:
            number, entry = number + 1, later
            later = self.entry(dataset, branch, number + 1)
        return self._saw(Head(dataset, branch, number, entry))

    def _saw(self, head: Head) -> Head:
        branch = head.dataset, head.branch
        self._seen[branch] = head
        rule, listed = self._rules.get(branch), self._listed.get(branch)
        has_none = listed is not None and listed.rule is None
        limits = rule.limits if rule is not None else None if has_none else UNSET
        then = _told(head)[2] if head.entry.deleted else None
        self.answers.add_branch(head.dataset, head.branch, head.entry, head.number, limits, then)
        return head

    def _read_listed(
        self, dataset: DatasetName, branch: BranchName, number: int
    ) -> tuple[RefEntry, RefEntry | None]:
        """Return a listed move, and the one after it, which a listing may lack."""
        entry, later = both(
            partial(self.entry, dataset, branch, number), partial(self.entry, dataset, branch, number + 1)
        )
        if entry is None:
            raise self._lacks(dataset, branch, number)
        return entry, later

    def _lacks(self, dataset: DatasetName, branch: BranchName, number: int) -> DsvError:
        """Return the error for a missing move that a later one or a listing proves."""
        key = keys.branch_key(dataset, branch, number)
        return self.erased(dataset) or broken(key, f"branch {branch} of {dataset} lacks its entry {number}")

    def _beginning(self, dataset: DatasetName, branch: BranchName) -> int | None:
        """Return a move from which the newest can be found; None if the listing has none."""
        listed = self._listed.get((dataset, branch))
        if listed is None or listed.ordered != self.store.ordered_listing:
            listed = self._listed[dataset, branch] = self._list(dataset, branch)
        return listed.number

    def _list(self, dataset: DatasetName, branch: BranchName) -> ListedBranch:
        """List a branch. Its newest move has the smallest key."""
        ordered = self.store.ordered_listing
        return latest((row.key for row in self.store.list(keys.branch_prefix(dataset, branch))), ordered)

    def _check_unbroken(self, dataset: DatasetName, branch: BranchName, number: int) -> None:
        """Raises `IntegrityError` for a move without the one before it. Moves are never deleted, so another
        program has written it. Sends a request only if the listing lacks the move before."""
        listed = self._listed.get((dataset, branch))
        if listed is None or not listed.alone or self.entry(dataset, branch, number - 1) is not None:
            return
        key = keys.branch_key(dataset, branch, number)
        missing = keys.branch_key(dataset, branch, number - 1)
        raise self.erased(dataset) or IntegrityError(
            f"{key} in {self.store.url} is move {number} of branch {branch} of {dataset}, and the move before it, "
            f"{missing}, is not there",
            subject=key,
            hint=f"put {missing} back from a copy of the store, or remove {key} if no dsv has written it",
        )

    def entry(self, dataset: DatasetName, branch: BranchName, number: int) -> RefEntry | None:
        """Return one move of a branch; None if it does not exist."""
        if number > keys.LAST_MOVE:
            return None
        key = keys.branch_key(dataset, branch, number)
        names: dict[str, object] = {"dataset": dataset, "branch": branch, "number": number}
        return read_named(RefEntry.decode, self.store, key, "ref", names, older=not self.named)
