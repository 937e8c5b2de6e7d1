"""Renaming a branch: the new name is made first, then the old one is deleted, so its commits always have a name."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from dsv.api.branches import (
    BranchItem,
    BranchPath,
    check_not_main,
    dataset_of,
    describe,
    following,
    put_move,
)
from dsv.api.context import Context
from dsv.errors import Conflict, NotFound, UsageError
from dsv.model.action import RENAME, RENAMED_TO, Action
from dsv.model.ids import Nonce
from dsv.model.names import BranchName
from dsv.model.records import RefEntry
from dsv.repo.naming import check_new_branch
from dsv.repo.refs import Head
from dsv.repo.repository import Repository

_RENAMED_FROM = "from "


def rename_branch(context: Context, old: BranchPath, new: BranchName, message: str = "") -> BranchItem:
    """Gives a branch another name; a workspace around here that follows it follows the new name.

    Killed between the two moves, both names are there, and the same call finishes it. Raises `Conflict` if the new name
    is taken, or if somebody moves the branch meanwhile.
    """
    if old.branch == new:
        raise UsageError(f"{new} is already its name", subject=new)
    with context.repository() as repository:
        repository.format.check(repository.store.url, writing=True)
        dataset = dataset_of(context, repository, old.dataset)
        head = repository.refs.head(dataset, old.branch)
        check_not_main(head, "renamed")
        gone = _action(RENAMED_TO + new, message)
        repository.refs.permitted(head, _tombstone(context, gone))  # before the new name is made
        with following(context, repository, head, "dsv branch --move") as workspace:
            renamed = _new_name(context, repository, head, new, message)
            _carry_rule(context, repository, head, new)
            put_move(context, repository, (dataset, old.branch), head, None, gone, deleted=True)
            if workspace is not None:
                workspace = workspace.follow(new)
                if head.commit is not None:
                    workspace.set_seen(new, head.commit)
        return replace(describe(context, repository, renamed), before=head.commit)


def _new_name(context: Context, repository: Repository, head: Head, new: BranchName, message: str) -> Head:
    """The branch of the new name at the old one's commit; perhaps an earlier, killed call has made it."""
    newest = repository.refs.newest(head.dataset, new)
    action = _action(_RENAMED_FROM + head.branch, message)
    if newest is not None and not newest.entry.deleted:
        made = Action.parse(newest.entry.action)
        if made.verb != RENAME or made.message.partition(";")[0] != _RENAMED_FROM + head.branch:
            raise Conflict(
                f"{head.dataset} already has a branch {new}",
                subject=f"{head.dataset}@{new}",
                hint="choose another name",
            )
        if newest.commit == head.commit:
            return newest
    else:
        check_new_branch(repository, head.dataset, new)
    if head.commit is None:
        raise NotFound(
            f"branch {head.branch} of {head.dataset} has no commit yet",
            subject=f"{head.dataset}@{head.branch}",
        )
    return put_move(context, repository, (head.dataset, new), newest, head.commit, action)


def _carry_rule(context: Context, repository: Repository, head: Head, new: BranchName) -> None:
    """What protects the old name protects the new one before the old one goes. Raises `Conflict` if somebody else
    changes its rule."""
    rule = repository.refs.rule(head.dataset, head.branch)
    there = repository.refs.rule(head.dataset, new)
    if rule is None or rule.limits is None or (there is not None and there.limits == rule.limits):
        return
    carried = structs.replace(
        rule,
        nonce=Nonce.random(),
        time_ms=context.clock(),
        author=context.writer.author,
        message=f"renamed from {head.branch}",
        branch=new,
        number=0 if there is None else there.number + 1,
    )
    if not repository.refs.add_rule(carried, there):
        raise Conflict(
            f"somebody else has changed the rule of branch {new} of {head.dataset} meanwhile",
            subject=f"{head.dataset}@{new}",
            hint=f"dsv branch --list {head.dataset} shows it; then the same command again",
        )


def _action(what: str, message: str) -> Action:
    return Action(RENAME, "; ".join(filter(None, (what, message))))


def _tombstone(context: Context, action: Action) -> RefEntry:
    return RefEntry(None, True, Nonce.random(), context.clock(), context.writer.author, str(action))
