"""Deletion of a dataset, which can be undone until gc has removed its content; and renaming.

A deletion writes the deletion move of `main`, which decides; then that of each other listed branch; then an
expiry of all commits of the dataset, by `delete`. The same call finishes an interrupted deletion.

A rename copies only names: branches, tags, rules and the expiry log. It writes a tombstone on `main` of the new name,
which reserves it; all that the old name has; a tombstone on `main` of the old name, which decides; an entry that closes
the old expiry log; all changes since the first copy, and tombstones on the other old branches; and last, `main` of the
new name. So the two names never exist together, and the old expiry log counts until the new name exists (`Refs.home`).

Any number of callers may rename the same names. Each reads what it will change, checks that the names are
still as it found them, and then takes a number that no other caller can have taken since.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from dsv.errors import Conflict, UsageError
from dsv.format import keys
from dsv.format.records import (
    DELETE_DATASET,
    MAX_COMMITS,
    MESSAGE_MAX,
    RENAME_DATASET,
    RENAMED_FROM,
    RENAMED_TO,
    UNDELETE_DATASET,
    Action,
    BranchRule,
    ExpiryAction,
    ExpiryEntry,
    RefEntry,
    WriterIdentity,
)
from dsv.repo import history
from dsv.repo.expiry import FEATURE, ExpiryLog, ExpiryState, append, put_entry, read_expiry
from dsv.repo.refs.branches import Head, LostRace, deleted, is_deleted_dataset, protected, renamed
from dsv.repo.refs.listing import parts
from dsv.repo.refs.tags import named_parts
from dsv.repo.session import point_branch
from dsv.stores.base import together
from dsv.upkeep.roots import names_of_refs, names_of_runs
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, BranchName, DatasetName, TagName
from dsv.values.units import format_time

if TYPE_CHECKING:
    from dsv.repo.repository import Repository


class Deletion(msgspec.Struct, frozen=True):
    dataset: DatasetName
    author: str
    time_ms: int
    commits: int
    """Commits that expired with it, by this call or an earlier one."""
    already: bool = False
    """It was deleted before this call, and nothing was left to do."""


def delete_dataset(
    repository: Repository,
    writer: WriterIdentity,
    dataset: DatasetName,
    message: str = "",
    seen: Head | None = None,
) -> Deletion:
    """Delete a dataset, or finish its deletion. seen: where its `main` must be. Raises `NotFound` if there
    never was one, and `Conflict` if a branch is protected and rules are not overridden, or if another writer
    moves `main` or undeletes the dataset first."""
    refs = repository.refs
    repository.format.check(repository.store.url, writing=True)
    main = refs.newest(dataset, MAIN)
    if main is None or not is_deleted_dataset(main):
        main = refs.head(dataset, MAIN)
    before = read_expiry(refs, dataset).states
    moved = False
    if not is_deleted_dataset(main):
        if seen is not None and seen.number != main.number:
            raise _moved(main)
        check_protection(repository, dataset)
        repository.add_feature(FEATURE, writer)
        done = _delete_branch(repository, writer, main, message)
        moved = not isinstance(done, LostRace)
        main = done.winner if isinstance(done, LostRace) else done
        if not is_deleted_dataset(main):
            raise _moved(main)
    while _is_still(repository, main):
        for head in [head for head in refs.heads(dataset) if head.branch != MAIN]:
            _delete_branch(repository, writer, head, message)
            moved = True
        append(
            repository,
            writer,
            dataset,
            ExpiryAction.DELETE,
            lambda _: _all_commits(repository, dataset),
            message,
        )
        if not [head for head in refs.heads(dataset) if head.branch != MAIN]:
            break
    log = read_expiry(refs, dataset)
    if not _is_still(repository, main):  # undelete what was deleted since, too
        append(repository, writer, dataset, ExpiryAction.UNDO, _of_deletion, "the dataset is back")
        _bring_branches_back(repository, writer, dataset, str(Action(UNDELETE_DATASET)))
        raise _moved(refs.head(dataset, MAIN))
    commits = _of_deletion(log)
    already = not moved and before == log.states
    return Deletion(dataset, main.entry.author, main.entry.time_ms, len(commits), already)


def undelete_dataset(
    repository: Repository, writer: WriterIdentity, dataset: DatasetName, message: str = ""
) -> list[Head]:
    """Undelete a dataset and the branches that were deleted with it, and return their heads. Raises
    `NotFound` if there never was one, and `Conflict` if it is not deleted, or gc has removed its content."""
    refs = repository.refs
    repository.format.check(repository.store.url, writing=True)
    main = refs.newest(dataset, MAIN)
    if main is None or not is_deleted_dataset(main):
        refs.head(dataset, MAIN)
        raise Conflict(
            f"dataset {dataset} is not deleted", subject=dataset, hint=f"dsv log {dataset} shows its commits"
        )
    log = append(repository, writer, dataset, ExpiryAction.UNDO, _of_deletion, message)
    if any(state.freed and state.entry.action is ExpiryAction.DELETE for state in log.states.values()):
        append(repository, writer, dataset, ExpiryAction.DELETE, lambda _: _all_commits(repository, dataset))
        raise Conflict(
            f"gc has removed the content of dataset {dataset}, which was deleted by {main.entry.author} "
            f"({format_time(main.entry.time_ms)})",
            subject=dataset,
            hint="a copy of the store, or a mirror, may still have it",
        )
    action = str(Action(UNDELETE_DATASET, message[:MESSAGE_MAX]))
    found = _bring_branches_back(repository, writer, dataset, action)
    append(repository, writer, dataset, ExpiryAction.UNDO, _of_deletion, message)  # what expired since
    return found


def _is_still(repository: Repository, main: Head) -> bool:
    """Return whether `main` has not moved since."""
    newest = repository.refs.newest(main.dataset, MAIN)
    return newest is not None and newest.number == main.number


def _bring_branches_back(
    repository: Repository, writer: WriterIdentity, dataset: DatasetName, action: str
) -> list[Head]:
    refs = repository.refs
    branches = {name.branch for name in names_of_refs(repository, dataset) if name.branch is not None}
    found = list[Head]()
    for branch in [*sorted(branches - {MAIN}), MAIN]:
        newest = refs.newest(dataset, branch)
        if newest is not None and is_deleted_dataset(newest):
            found.append(_bring_back(repository, writer, newest, action))
    return found


def _bring_back(repository: Repository, writer: WriterIdentity, tombstone: Head, action: str) -> Head:
    where = tombstone.dataset, tombstone.branch
    moves = repository.refs.history(tombstone)
    commit = next(move.commit for move in moves if not is_deleted_dataset(replace(tombstone, entry=move)))
    if commit is not None:
        moved = point_branch(repository, writer, where, tombstone, commit, action)
    else:
        moved = repository.refs.move(*where, tombstone, RefEntry.of(writer, repository.clock(), None, action))
    if isinstance(moved, LostRace):
        if is_deleted_dataset(moved.winner):
            return _bring_back(repository, writer, moved.winner, action)
        return moved.winner  # another call undeletes it, too
    return moved


def _delete_branch(
    repository: Repository, writer: WriterIdentity, head: Head, message: str
) -> Head | LostRace:
    action = str(Action(DELETE_DATASET, message[:MESSAGE_MAX]))
    entry = RefEntry.of(writer, repository.clock(), None, action, deleted=True)
    return repository.refs.move(head.dataset, head.branch, head, entry)


def _all_commits(repository: Repository, dataset: DatasetName) -> set[CommitId]:
    """Return the commits that the moves, tags and runs of a dataset name, and their ancestors."""
    names = [*names_of_refs(repository, dataset), *names_of_runs(repository, dataset)]
    starts = dict.fromkeys(name.commit for name in names if name.dataset == dataset)
    return {commit for commit, _ in history.walk(repository.objects, starts)}


def _of_deletion(log: ExpiryLog) -> list[CommitId]:
    """Return the commits that expired with their dataset, and are not freed."""
    return [commit for commit, state in log.expired.items() if state.entry.action is ExpiryAction.DELETE]


def check_protection(repository: Repository, dataset: DatasetName) -> None:
    """Raises `Conflict` for a protected branch. Called before any branch is deleted."""
    refs = repository.refs
    for head in refs.heads(dataset):
        if refs.limits(dataset, head.branch) is not None and refs.override is None:
            raise protected(head, "it is neither deleted nor renamed")


def _moved(head: Head) -> Conflict:
    return Conflict(
        f"somebody else has moved main of {head.dataset} meanwhile, so the dataset is not deleted "
        f"({head.entry.author}: {head.entry.action})",
        subject=head.dataset,
        hint=f"dsv log {head.dataset} shows what is there now; then the same command again",
    )


class Renamed(msgspec.Struct, frozen=True):
    old: DatasetName
    new: DatasetName
    author: str
    time_ms: int
    already: bool
    """It had been renamed before this call."""


def rename_dataset(
    repository: Repository, writer: WriterIdentity, old: DatasetName, new: DatasetName, message: str = ""
) -> Renamed:
    """Rename a dataset, or finish that. Raises `NotFound` if there is no such dataset, and `Conflict` if
    another dataset ever used the new name, or if a branch is protected and rules are not overridden."""
    refs = repository.refs
    if old == new:
        raise UsageError(f"{new} is already its name", subject=new)
    repository.format.check(repository.store.url, writing=True)
    try:
        return _rename(repository, writer, old, new, message)
    finally:
        refs.proved = False


def _rename(
    repository: Repository, writer: WriterIdentity, old: DatasetName, new: DatasetName, message: str
) -> Renamed:
    refs, already = repository.refs, True
    while True:
        refs.forget()
        there = refs.newest(new, MAIN)  # read first: it exists only after the old name is deleted
        main = refs.newest(old, MAIN)
        if main is None or (main.entry.deleted and renamed(main.entry, RENAMED_TO) != new):
            refs.head(old, MAIN)
            continue
        if not main.entry.deleted:
            check_protection(repository, old)
        elif there is not None and not there.entry.deleted:
            return Renamed(old, new, main.entry.author, main.entry.time_ms, already)
        if already:
            refs.check_one_wins()
            refs.proved = True
        already = False
        rename = _Rename(repository, writer, old, new, message)
        if there is None or renamed(there.entry, RENAMED_FROM) != old or not there.entry.deleted:
            rename.reserve(there)
        elif main.entry.deleted:
            if rename.finish(main, there):
                return Renamed(old, new, main.entry.author, main.entry.time_ms, already)
        else:
            rename.begin(main, there)


class _Rename:
    """One attempt. Each step may lose to another writer; its caller then reads the names again."""

    def __init__(
        self, repository: Repository, writer: WriterIdentity, old: DatasetName, new: DatasetName, message: str
    ) -> None:
        self._repository, self._refs, self._writer = repository, repository.refs, writer
        self._old, self._new = old, new
        self._message = message

    def reserve(self, there: Head | None) -> None:
        """Take the new name, which is unused or a former name of this dataset."""
        refs, new = self._refs, self._new
        if there is None:
            try:
                refs.check_new_dataset(new)
            except Conflict:
                if refs.newest(new, MAIN) is None:
                    raise
                return  # another writer has just taken it, perhaps for the same rename
        elif not there.entry.deleted:
            hint = "choose another name; dsv datasets lists them"
            raise Conflict(f"there is a dataset {new} already", subject=new, hint=hint)
        elif refs.home(new) != self._old:
            error = deleted(there)
            raise Conflict(
                f"{error.message}, and its name is not used again", subject=new, hint="choose another name"
            )
        self._repository.add_feature(FEATURE, self._writer)
        refs.move(new, MAIN, there, self._move(RENAMED_FROM + self._old, None, deleted=True))

    def begin(self, main: Head, there: Head) -> None:
        """Copy all from the old name to the new one, and write the tombstone on the old `main`."""
        self._carry(there)
        if _is_still(self._repository, there):
            self._refs.move(self._old, MAIN, main, self._move(RENAMED_TO + self._new, None, deleted=True))

    def finish(self, main: Head, there: Head) -> bool:
        """Copy all changes since `begin`, and write `main` of the new name; False if another call was
        faster."""
        last = self._refs.entry(self._old, MAIN, main.number - 1)
        assert last is not None
        self._close_log(main, last.commit)
        while _is_still(self._repository, there):
            self._carry(there, last=True)
            if not self._refs.heads(self._old):
                entry = self._move(RENAMED_FROM + self._old, last.commit)
                return not isinstance(self._refs.move(self._new, MAIN, there, entry), LostRace)
        return False

    def _move(self, what: str, commit: CommitId | None, *, deleted: bool = False) -> RefEntry:
        text = "; ".join(filter(None, (what, self._message)))[: MESSAGE_MAX + 100]
        action = str(Action(RENAME_DATASET, text))
        return RefEntry.of(self._writer, self._repository.clock(), commit, action, deleted=deleted)

    def _close_log(self, main: Head, commit: CommitId | None) -> None:
        """Take a number of the old expiry log: a writer that read the log before `main` got its tombstone
        loses that number and reads again. The entry keeps named commits, which are kept anyway."""
        heads, tags = self._refs.names(self._old)
        named = {*(head.commit for head in heads), *(value.commit for _, value in tags)}
        while commit is not None:
            log = read_expiry(self._refs, self._old)
            kept = [commit, *(one for one in log.expired if one in named and one != commit)]
            if not _is_still(self._repository, main):
                return
            if put_entry(self._repository, self._entry(self._old, log, ExpiryAction.UNDO, kept)):
                return

    def _entry(
        self, dataset: DatasetName, log: ExpiryLog, action: ExpiryAction, commits: list[CommitId]
    ) -> ExpiryEntry:
        why = f"dataset {self._old} is renamed to {self._new}"
        return ExpiryEntry(
            action, tuple(sorted(commits)[:MAX_COMMITS]), Nonce.random(), self._repository.clock(),
            self._writer.author, why, dataset, len(log.entries),
        )  # fmt: skip

    def _carry(self, there: Head, *, last: bool = False) -> None:
        """Copy all from the old name to the new one. last: only its branches can still change, and get
        tombstones. Changes nothing once the new name exists, because others may then use it."""
        refs, old, new = self._refs, self._old, self._new
        self._carry_log(there)
        of_old, of_new = (parts(refs.store, keys.branches_prefix(name)) for name in (old, new))
        branches = named_parts(BranchName, {**of_old, **of_new})
        together([partial(self._carry_rule, name, there) for name in branches])
        together([partial(self._carry_branch, name, there, last=last) for name in branches if name != MAIN])
        known = parts(refs.store, keys.tags_prefix(new))
        tags = named_parts(TagName, parts(refs.store, keys.tags_prefix(old)))
        together([partial(self._carry_tag, tag, known.get(tag.component, [])) for tag in tags])

    def _carry_log(self, there: Head) -> None:
        while True:
            log = read_expiry(self._refs, self._new)
            entry = self._lacking(log, read_expiry(self._refs, self._old).states)
            if entry is None or not _is_still(self._repository, there):
                return
            put_entry(self._repository, entry)

    def _lacking(self, log: ExpiryLog, wanted: dict[CommitId, ExpiryState]) -> ExpiryEntry | None:
        """Return the next entry that brings the log closer to `wanted`; None if they agree."""
        kept = [
            commit
            for commit, state in log.expired.items()
            if commit not in wanted or wanted[commit].entry.nonce != state.entry.nonce
        ]
        if kept:
            return self._entry(self._new, log, ExpiryAction.UNDO, kept)
        expired: dict[int, list[CommitId]] = {}
        for commit, state in wanted.items():
            if commit not in log.states:
                expired.setdefault(state.entry.number, []).append(commit)
        if expired:
            commits = sorted(expired[min(expired)])
            entry = wanted[commits[0]].entry
            return replace(entry, commits=tuple(commits), dataset=self._new, number=len(log.entries))
        freed = log.affected(ExpiryAction.FREE, [commit for commit, state in wanted.items() if state.freed])
        return self._entry(self._new, log, ExpiryAction.FREE, freed) if freed else None

    def _carry_rule(self, branch: BranchName, there: Head) -> None:
        refs = self._refs
        known, rule = refs.rule(self._new, branch), refs.rule(self._old, branch)
        limits = None if rule is None else rule.limits
        if (None if known is None else known.limits) != limits and _is_still(self._repository, there):
            of = rule or known
            assert of is not None
            number = 0 if known is None else known.number + 1
            refs.add_rule(
                BranchRule.of(
                    limits, Nonce.random(), of.time_ms, of.author, of.message, self._new, branch, number
                )
            )

    def _carry_branch(self, branch: BranchName, there: Head, *, last: bool) -> None:
        refs, lost = self._refs, True
        while lost:
            target, head = refs.newest(self._new, branch), refs.newest(self._old, branch)
            if not _is_still(self._repository, there) or (
                head is not None and renamed(head.entry, RENAMED_TO) == self._new
            ):
                return
            lost, dead = False, head is None or head.entry.deleted
            commit = None if head is None else head.commit
            if (dead, commit) != (
                target is None or target.entry.deleted,
                None if target is None else target.commit,
            ):
                entry = self._move(RENAMED_FROM + self._old, commit, deleted=dead)
                lost = isinstance(refs.move(self._new, branch, target, entry), LostRace)
            if last and not lost and not dead:
                gone = self._move(RENAMED_TO + self._new, None, deleted=True)
                lost = isinstance(refs.move(self._old, branch, head, gone), LostRace)

    def _carry_tag(self, tag: TagName, known: list[str]) -> None:
        refs, gone, key = self._refs, keys.tag_deleted_key(self._new, tag), keys.tag_key(self._new, tag)
        deletion, value = refs.deletion(self._old, tag), refs.tag(self._old, tag)
        what = f"tag {tag} of {self._new}"
        if deletion is not None and gone not in known:
            refs.put(gone, deletion.encode(), what)
        if value is not None and key not in known:
            names = (self._new, tag) if refs.named else (None, None)
            for one in (key, key + keys.TAG_COPY):
                refs.put(one, replace(value, dataset=names[0], tag=names[1]).encode(), what)
