"""List, create, move, rename, delete, restore and protect branches; list, create and delete tags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from dsv.api.context import Context, check_binding
from dsv.errors import Conflict, IntegrityError, UsageError
from dsv.format.records import (
    MESSAGE_MAX,
    RENAME,
    RENAMED_FROM,
    RENAMED_TO,
    Action,
    BranchRule,
    Feature,
    FeatureRule,
    RefEntry,
    TagDeleted,
    TagValue,
    describe_limits,
)
from dsv.repo.format_log import PROTECTED_BRANCHES
from dsv.repo.history import ahead_behind, count_only_in
from dsv.repo.refs.branches import Head, LostRace, already_there, no_commit
from dsv.stores.base import together
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, BranchName, DatasetName, TagName, Target
from dsv.values.units import format_count

if TYPE_CHECKING:
    from dsv.format.records import BranchLimits
    from dsv.repo.repository import Repository
    from dsv.workspace.workspace import Workspace


class BranchPath(msgspec.Struct, frozen=True):
    """A branch as a user writes it: `[DATASET@]BRANCH`. dataset None: the workspace's."""

    dataset: DatasetName | None
    branch: BranchName

    @classmethod
    def parse(cls, text: str) -> BranchPath:
        """Raises `UsageError`."""
        dataset, at, branch = text.rpartition("@")
        return cls(DatasetName.parse(dataset) if dataset else None, BranchName.parse(branch if at else text))

    def __str__(self) -> str:
        return f"{self.dataset}@{self.branch}" if self.dataset else str(self.branch)


class BranchItem(msgspec.Struct, frozen=True):
    dataset: DatasetName
    branch: BranchName
    commit: CommitId | None
    """None before the first commit, and for a branch that was just deleted."""
    author: str | None
    """The author of the commit; `time_ms` is the commit's time."""
    time_ms: int | None
    moved_by: str
    moved_ms: int
    followed: bool
    """The current workspace follows the branch."""
    limits: BranchLimits | None
    """The rule of a protected branch."""
    ahead: int | None = None
    """Commits that the branch has and `main` lacks; None if they were not counted."""
    behind: int | None = None
    """Commits that `main` has and the branch lacks; None if they were not counted."""
    before: CommitId | None = None
    """The commit before this command, if the command changed it."""


def branches(context: Context, dataset: DatasetName | None) -> list[BranchItem]:
    """Return all branches of a dataset (None: the workspace's), by name, each compared with `main`."""
    with context.repository() as repository:
        name = dataset_of(context, repository, dataset)
        heads = repository.refs.heads(name)
        if not heads:
            repository.refs.require(name)
        main = next((head.commit for head in heads if head.branch == MAIN), None)
        items = together([partial(describe, context, repository, head) for head in heads])
        return [_compared(context, repository, item, main) for item in items]


def create_branch(context: Context, name: BranchPath, target: Target, message: str = "") -> BranchItem:
    """Make a branch at the commit that `target` names. Raises `Conflict` if the name is taken."""
    wanted = _target(context, name, target)
    with context.repository(wanted) as repository:
        resolved = context.resolve(repository, wanted)
        where = (resolved.dataset, name.branch)
        head = make_branch(context, repository, where, resolved.commit, Action("create", message))
        return describe(context, repository, head)


def make_branch(
    context: Context,
    repository: Repository,
    where: tuple[DatasetName, BranchName],
    commit: CommitId,
    action: Action,
) -> Head:
    """Publish the first move of a branch. Raises `Conflict` if the name is taken."""
    newest = repository.refs.newest(*where)
    if newest is not None and not newest.entry.deleted:
        branch = newest.branch
        raise already_there(
            newest, f"dsv switch {branch} follows it; dsv branch {branch} TARGET --reset moves it"
        )
    repository.refs.check_new_branch(*where)
    return put_move(context, repository, where, newest, commit, action)


def reset_branch(context: Context, name: BranchPath, target: Target, message: str = "") -> BranchItem:
    """Move a branch to any commit of its dataset.

    Raises `Conflict` if it was moved since this call began, or since the workspace that follows it last saw it.
    """
    wanted = _target(context, name, target)
    with context.repository(wanted) as repository:
        resolved = context.resolve(repository, wanted)
        head = repository.refs.head(resolved.dataset, name.branch)
        repository.check_last_seen()
        if head.commit == resolved.commit:
            return describe(context, repository, head)
        with following(context, repository, head, "dsv branch --reset") as workspace:
            if workspace is not None and head.commit not in (None, workspace.base(), workspace.seen()):
                raise moved_by_other(head)
            where = (head.dataset, head.branch)
            moved = put_move(context, repository, where, head, resolved.commit, Action("reset", message))
            if workspace is not None:
                workspace.set_seen(head.branch, resolved.commit)
        return msgspec.structs.replace(describe(context, repository, moved), before=head.commit)


def delete_branch(
    context: Context, name: BranchPath, message: str = "", *, force: bool = False
) -> BranchItem:
    """Delete a branch. Its moves are kept, for `restore_branch`. Raises `Conflict` for `main`, and, unless
    `force`, if it alone names some commits or the current workspace follows it.
    """
    with context.repository() as repository:
        repository.format.check(repository.store.url, writing=True)
        dataset = dataset_of(context, repository, name.dataset)
        head = repository.refs.head(dataset, name.branch)
        repository.check_last_seen()
        check_not_main(head, "deleted")
        with following(context, repository, head, "dsv branch --delete") as workspace:
            if workspace is not None and not force:
                raise Conflict(
                    f"{workspace.root} follows branch {head.branch}",
                    subject=f"{dataset}@{head.branch}",
                    hint="dsv switch main first; or dsv branch --delete with --force",
                )
            if not force:
                _check_kept_elsewhere(repository, head)
            where, action = (dataset, head.branch), Action("delete", message)
            deleted = put_move(context, repository, where, head, None, action, deleted=True)
        return msgspec.structs.replace(describe(context, repository, deleted), before=head.commit)


def restore_branch(context: Context, name: BranchPath, message: str = "") -> BranchItem:
    """Restore a deleted branch at its last commit. Raises `NotFound` if it never existed, and `Conflict` if
    it is not deleted, its name is taken, or gc is removing its commit.
    """
    with context.repository() as repository:
        dataset = dataset_of(context, repository, name.dataset)
        newest = repository.refs.newest(dataset, name.branch) or repository.refs.head(dataset, name.branch)
        repository.refs.require(dataset)
        if not newest.entry.deleted:
            raise Conflict(
                f"branch {name.branch} of {dataset} is not deleted",
                subject=f"{dataset}@{name.branch}",
                hint=f"dsv log --reflog {dataset}@{name.branch} shows its moves; to move it back: dsv branch "
                f"{name.branch} TARGET --reset",
            )
        repository.refs.check_new_branch(dataset, name.branch)
        last = next((entry for entry in repository.refs.history(newest) if not entry.deleted), None)
        commit = None if last is None else last.commit
        head = put_move(
            context, repository, (dataset, name.branch), newest, commit, Action("restore", message)
        )
        return describe(context, repository, head)


def dataset_of(context: Context, repository: Repository, dataset: DatasetName | None) -> DatasetName:
    """Return the given dataset, or else the workspace's."""
    if dataset is not None:
        return dataset
    workspace = context.workspace()
    check_binding(workspace, repository)
    return workspace.dataset


def put_move(
    context: Context,
    repository: Repository,
    where: tuple[DatasetName, BranchName],
    after: Head | None,
    commit: CommitId | None,
    action: Action,
    *,
    deleted: bool = False,
) -> Head:
    """Publish the branch's next move. commit None: the branch is deleted, or has no commit again.

    Raises `Conflict` if another process has moved it since `after`.
    """
    if len(action.message) > MESSAGE_MAX:
        raise UsageError(
            f"the message has {len(action.message):,} characters, and a move of a branch takes {MESSAGE_MAX}",
            subject="--message",
        )
    if commit is None:
        entry = RefEntry.of(context.writer, context.clock(), None, str(action), deleted=deleted)
        moved = repository.refs.move(*where, after, entry)
    else:
        from dsv.repo.session import point_branch

        moved = point_branch(repository, context.writer, where, after, commit, str(action))
    if isinstance(moved, LostRace):
        raise moved_by_other(moved.winner)
    return moved


@contextmanager
def following(
    context: Context, repository: Repository, head: Head, command: str
) -> Iterator[Workspace | None]:
    """Lock the current workspace if it follows this branch; otherwise yield None."""
    found = followed_by(context, repository, head)
    with nullcontext((None, None)) if found is None else found.locked(command) as (workspace, _):
        yield workspace


def followed_by(context: Context, repository: Repository, head: Head) -> Workspace | None:
    workspace = context.workspace_or_none()
    if workspace is None or workspace.store_id != repository.id:
        return None
    return workspace if (workspace.dataset, workspace.branch) == (head.dataset, head.branch) else None


def describe(context: Context, repository: Repository, head: Head) -> BranchItem:
    commit = None if head.commit is None else repository.objects.commit_or_none(head.commit)
    return BranchItem(
        head.dataset,
        head.branch,
        head.commit,
        None if commit is None else commit.author,
        None if commit is None else commit.time_ms,
        head.entry.author,
        head.entry.time_ms,
        followed_by(context, repository, head) is not None,
        repository.refs.limits(head.dataset, head.branch),
    )


def check_not_main(head: Head, what: str) -> None:
    if head.branch == MAIN:
        raise Conflict(
            f"main of {head.dataset} cannot be {what}",
            subject=f"{head.dataset}@main",
            hint="dsv branch main TARGET --reset moves it",
        )


def moved_by_other(head: Head) -> Conflict:
    at = "has no commit" if head.commit is None else f"is at {str(head.commit)[:12]}"
    if head.entry.deleted:
        at = "is deleted"
    return Conflict(
        f"somebody else has moved branch {head.branch} of {head.dataset} meanwhile: it {at} now "
        f"({head.entry.author}: {head.entry.action})",
        subject=f"{head.dataset}@{head.branch}",
        hint=f"dsv log --reflog {head.dataset}@{head.branch} shows its moves; then the same command again",
    )


def _target(context: Context, name: BranchPath, target: Target) -> Target:
    """Return the target in the dataset that the branch name or the target gives."""
    if name.dataset is None:
        return target
    if target.dataset is not None and target.dataset != name.dataset:
        raise UsageError(
            f"{name} is a branch of {name.dataset}, and {target} a commit of {target.dataset}",
            subject=str(target),
        )
    workspace = context.workspace_or_none()
    here = None if workspace is None else workspace.dataset
    if target.rev is None and target.dataset is None and here == name.dataset:
        return target  # its base
    return Target(name.dataset, target.rev)


def _compared(
    context: Context, repository: Repository, item: BranchItem, main: CommitId | None
) -> BranchItem:
    if item.commit is None or main is None or item.branch == MAIN:
        return item
    try:
        ahead, behind = ahead_behind(repository.objects, item.commit, main)
    except IntegrityError as error:
        context.progress.note(f"{item.branch} can't be compared with main: {error.message}")
        return item
    return msgspec.structs.replace(item, ahead=ahead, behind=behind)


def _check_kept_elsewhere(repository: Repository, head: Head) -> None:
    """Raises `Conflict` if some commits have no other name. Commits lost by the store are not checked."""
    if head.commit is None or repository.objects.stored_commit(head.commit) is None:
        return
    heads, tags = repository.refs.names(head.dataset)
    others: Sequence[CommitId | None] = [other.commit for other in heads if other.branch != head.branch]
    commits = {*others, *(value.commit for _, value in tags)} - {None}
    alone = count_only_in(repository.objects, head.commit, [tip for tip in commits if tip is not None])
    if alone:
        raise Conflict(
            f"branch {head.branch} of {head.dataset} has {format_count(alone, 'commit')} that no other branch and no "
            "tag has",
            subject=f"{head.dataset}@{head.branch}",
            hint=f"dsv tag NAME {head.dataset}@{head.branch} keeps them; --force deletes it all the same, and "
            f"dsv branch --restore {head.dataset}@{head.branch} restores it",
        )


def rename_branch(context: Context, old: BranchPath, new: BranchName, message: str = "") -> BranchItem:
    """Rename a branch; a current workspace that follows it follows the new name. Raises `Conflict` if the new
    name is taken or another process moves it. If killed between its two moves, both names exist, and the same
    call finishes.
    """
    if old.branch == new:
        raise UsageError(f"{new} is already its name", subject=new)
    with context.repository() as repository:
        repository.format.check(repository.store.url, writing=True)
        dataset = dataset_of(context, repository, old.dataset)
        head = repository.refs.head(dataset, old.branch)
        check_not_main(head, "renamed")
        gone = _action(RENAMED_TO + new, message)
        tombstone = RefEntry.of(context.writer, context.clock(), None, str(gone), deleted=True)
        repository.refs.permitted(head, tombstone)  # before the new name is made
        with following(context, repository, head, "dsv branch --move") as workspace:
            renamed = _new_name(context, repository, head, new, message)
            _carry_rule(context, repository, head, new)
            put_move(context, repository, (dataset, old.branch), head, None, gone, deleted=True)
            if workspace is not None:
                workspace = workspace.follow(new)
                if head.commit is not None:
                    workspace.set_seen(new, head.commit)
        return msgspec.structs.replace(describe(context, repository, renamed), before=head.commit)


def _new_name(context: Context, repository: Repository, head: Head, new: BranchName, message: str) -> Head:
    """Make the new name at the old one's commit, unless an earlier call that was killed has made it."""
    newest = repository.refs.newest(head.dataset, new)
    action = _action(RENAMED_FROM + head.branch, message)
    if newest is not None and not newest.entry.deleted:
        made = Action.parse(newest.entry.action)
        if made.verb != RENAME or made.message.partition(";")[0] != RENAMED_FROM + head.branch:
            raise already_there(newest, "choose another name")
        if newest.commit == head.commit:
            return newest
    else:
        repository.refs.check_new_branch(head.dataset, new)
    if head.commit is None:
        raise no_commit(head, None)
    return put_move(context, repository, (head.dataset, new), newest, head.commit, action)


def _carry_rule(context: Context, repository: Repository, head: Head, new: BranchName) -> None:
    """Give the new name the old one's rule before that is deleted. Raises `Conflict` if its rule changes."""
    rule = repository.refs.rule(head.dataset, head.branch)
    there = repository.refs.rule(head.dataset, new)
    if rule is None or rule.limits is None or (there is not None and there.limits == rule.limits):
        return
    carried = msgspec.structs.replace(
        rule,
        nonce=Nonce.random(),
        time_ms=context.clock(),
        author=context.writer.author,
        message=f"renamed from {head.branch}",
        branch=new,
        number=0 if there is None else there.number + 1,
    )
    put_rule(repository, carried)


def put_rule(repository: Repository, rule: BranchRule) -> None:
    """Give a branch a rule. Raises `Conflict` if another process has changed it since it was read."""
    if not repository.refs.add_rule(rule):
        raise Conflict(
            f"somebody else has changed the rule of branch {rule.branch} of {rule.dataset} meanwhile",
            subject=f"{rule.dataset}@{rule.branch}",
            hint=f"dsv branch --list {rule.dataset} shows it; then the same command again",
        )


def _action(what: str, message: str) -> Action:
    return Action(RENAME, "; ".join(filter(None, (what, message))))


def protect_branch(
    context: Context, name: BranchPath, limits: BranchLimits | None, message: str = ""
) -> tuple[BranchItem, bool]:
    """Give a branch a rule (None: remove it), and record that in the log of the branch's moves.

    The record is a move to the present commit: a process that read the branch before loses the race to move
    it, and reads it again. Also return whether this is the store's first rule: versions of dsv without rules
    then stop writing to it. Raises `Conflict` if the last rule does not name this author, or for another
    rule, unless overridden.
    """
    with context.repository() as repository:
        repository.format.check(repository.store.url, writing=True)
        dataset = dataset_of(context, repository, name.dataset)
        head = repository.refs.head(dataset, name.branch)
        before = repository.refs.rule(dataset, name.branch)
        present = None if before is None else before.limits
        if limits == present:
            return describe(context, repository, head), False
        repository.refs.check_mover(head, context.writer.author, merge=True)
        if present is not None and limits is not None and context.override is None:
            raise Conflict(
                f"branch {name.branch} of {dataset} has a rule already: {describe_limits(present)}",
                subject=f"{dataset}@{name.branch}",
                hint="the same command with --force -m REASON replaces it",
            )
        first = limits is not None and repository.add_feature(
            Feature(PROTECTED_BRANCHES, FeatureRule.READ_ONLY), context.writer
        )
        rule = BranchRule.of(
            limits, Nonce.random(), context.clock(), context.writer.author, message,
            dataset, name.branch, 0 if before is None else before.number + 1,
        )  # fmt: skip
        put_rule(repository, rule)
        head = _note(context, repository, head, rule)
        return describe(context, repository, head), first


def _note(context: Context, repository: Repository, head: Head, rule: BranchRule) -> Head:
    verb = "unprotect" if rule.limits is None else "protect"
    said = "" if rule.limits is None else describe_limits(rule.limits)
    action = Action(verb, "; ".join(filter(None, (said, rule.message)))[:MESSAGE_MAX])
    if repository.refs.override is not None:
        action = action.overriding(repository.refs.override)
    while not head.entry.deleted:
        entry = RefEntry.of(context.writer, context.clock(), head.commit, str(action))
        moved = repository.refs.move(head.dataset, head.branch, head, entry)
        if isinstance(moved, Head):
            return moved
        head = moved.winner
    return head


class TagItem(msgspec.Struct, frozen=True):
    dataset: DatasetName
    tag: TagName
    commit: CommitId
    author: str
    time_ms: int
    message: str


def tags(context: Context, dataset: DatasetName | None) -> list[TagItem]:
    """Return all tags of a dataset (None: the workspace's), by name."""
    with context.repository() as repository:
        name = dataset_of(context, repository, dataset)
        repository.refs.require(name)
        return [_tag_item(name, tag, value) for tag, value in repository.refs.tags(name)]


def tag(context: Context, name: TagName, target: Target, message: str = "") -> TagItem:
    """Name the commit that `target` means. Raises `Conflict` if the tag names another commit."""
    from dsv.repo.session import naming

    with context.repository(target) as repository:
        resolved = context.resolve(repository, target)
        repository.refs.check_new_tag(resolved.dataset, name)
        value = TagValue(
            commit=resolved.commit,
            nonce=Nonce.random(),
            time_ms=context.clock(),
            author=context.writer.author,
            message=message,
        )
        with naming(repository, context.writer, resolved.dataset, resolved.commit, f"tag {name}"):
            made = repository.refs.set_tag(resolved.dataset, name, value)
        repository.refs.check_not_gone(resolved.dataset, f"tag {name} was made")
        return _tag_item(resolved.dataset, name, made)


def delete_tag(
    context: Context, dataset: DatasetName | None, name: TagName, message: str = "", *, force: bool = False
) -> TagItem:
    """Delete a tag permanently, and return it. Its name can't be used again, even for the same commit.

    Raises `NotFound`; and `Conflict` unless `force`, because this can't be undone.
    """
    with context.repository() as repository:
        repository.format.check(repository.store.url, writing=True)
        where = dataset_of(context, repository, dataset)
        value = repository.refs.tag(where, name)
        if value is None:
            repository.refs.require(where)
            raise repository.refs.no_name(where, name, "tag")
        if not force:
            raise Conflict(
                f"a deleted tag can't be restored, and its name is never used again; tag {name} of {where} names "
                f"{str(value.commit)[:12]}",
                subject=name,
                hint=f"dsv tag --delete {name} {where} --force deletes it",
            )
        record = TagDeleted(
            nonce=Nonce.random(), time_ms=context.clock(), author=context.writer.author, message=message
        )
        repository.refs.delete_tag(where, name, record)
        repository.refs.check_not_gone(where, f"tag {name} was deleted")
        return _tag_item(where, name, value)


def _tag_item(dataset: DatasetName, name: TagName, value: TagValue) -> TagItem:
    return TagItem(dataset, name, value.commit, value.author, value.time_ms, value.message)
