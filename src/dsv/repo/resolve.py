"""Resolving the name that a user types to one commit."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from dsv.errors import IntegrityError, NotFound, UsageError
from dsv.format import keys
from dsv.repo.expiry import check_not_expired
from dsv.repo.refs.branches import Head, Refs, deleted, no_commit
from dsv.stores.base import together
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, BranchName, DatasetName, Rev, TagName

if TYPE_CHECKING:
    from dsv.repo.objects.objects import Objects


class Resolved(msgspec.Struct, frozen=True):
    """One commit, and the name it was found by: a branch, a tag, or neither for an id."""

    dataset: DatasetName
    commit: CommitId
    branch: BranchName | None = None
    tag: TagName | None = None

    def no_path(self, path: str, subject: str) -> NotFound:
        """Return the error for a path that the commit does not have."""
        commit = str(self.commit)[:12]
        hint = f"dsv ls {self.dataset}@{commit}"
        return NotFound(f"{path} is not in {self.dataset}@{commit}", subject=subject, hint=hint)


def resolve(
    refs: Refs, objects: Objects, dataset: DatasetName, rev: Rev | None, *, expired_too: bool = False
) -> Resolved:
    """Return the commit that `rev` (None: the head of `main`) names in a dataset. Raises `UsageError`, and
    `NotFound` (also if the commit is expired, unless `expired_too`)."""
    if rev is None:
        return _branch_head(refs.head(dataset, MAIN))
    found = _named(refs, objects, dataset, rev)
    commit = found.commit
    objects.expect_walk(commit, rev.ancestor)
    for step in range(rev.ancestor):
        parents = objects.commit(commit).parents
        if not parents:
            ancestors = "1 ancestor" if step == 1 else f"{step} ancestors"
            before = f"has only {ancestors}" if step else "is the first commit"
            raise NotFound(
                f"{dataset}@{rev.text} {before}, so there is no {dataset}@{rev}",
                subject=str(rev),
                hint=f"dsv log {dataset}@{rev.text}",
            )
        commit = parents[0]
    if commit != found.commit:
        found = Resolved(dataset, commit)
    if found.branch is None and not expired_too:
        with suppress(IntegrityError):  # if `main` or the log is damaged, the commit can be read all the same
            check_not_expired(refs, refs.home(dataset), commit)
    return found


def _named(refs: Refs, objects: Objects, dataset: DatasetName, rev: Rev) -> Resolved:
    text = rev.text
    if rev.commit_prefix is not None:
        commit = objects.commit_or_none(CommitId.parse(text)) if _is_whole(text) else None
        if commit is not None and commit.dataset == dataset:
            return Resolved(dataset, CommitId.parse(text))  # needs no request for a name
        refs.require(dataset)
        return Resolved(dataset, _by_prefix(refs, objects, dataset, text))
    meant = refs.branch_or_tag(dataset, text)
    if isinstance(meant, Head):
        return _branch_head(meant)
    if meant is not None:
        with suppress(IntegrityError):
            if refs.home(dataset) != dataset:
                refs.require(dataset)
        return Resolved(dataset, meant.commit, tag=TagName.parse(text))
    gone = refs.newest(dataset, BranchName.parse(text))
    if gone is not None and gone.entry.deleted:
        raise deleted(gone)
    refs.require(dataset)
    raise refs.no_name(dataset, text, "branch or tag")


def expect(refs: Refs, dataset: DatasetName, rev: Rev | None) -> None:
    """Read ahead what `resolve` will ask for; see `Refs.expect`."""
    named = rev is not None and rev.commit_prefix is None
    refs.expect(dataset, BranchName.parse(rev.text) if rev is not None and named else MAIN)


def _branch_head(head: Head) -> Resolved:
    if head.commit is None:
        raise no_commit(head)
    return Resolved(head.dataset, head.commit, branch=head.branch)


def _is_whole(digits: str) -> bool:
    return len(digits) == CommitId.size * 2


def _by_prefix(refs: Refs, objects: Objects, dataset: DatasetName, text: str) -> CommitId:
    """Return the commit whose id begins with `text`. One made for another dataset is in this one if that was
    renamed to this, or if a branch or a tag leads to it, as in a copy of a renamed dataset."""
    commit_id = CommitId.parse(text) if _is_whole(text) else _listed(objects, text)
    commit = objects.commit_or_none(commit_id)
    if commit is None:
        raise _no_commit(objects, text)
    if commit.dataset in (None, dataset):
        return commit_id
    home = refs.home(commit.dataset)
    if home == dataset or _leads_to(refs, objects, dataset, commit_id):
        return commit_id
    raise NotFound(
        f"there is no commit {text} in dataset {dataset}; it belongs to {home}",
        subject=text,
        hint=f"did you mean {home}@{text}?",
    )


def _leads_to(refs: Refs, objects: Objects, dataset: DatasetName, commit_id: CommitId) -> bool:
    heads, tags = refs.names(dataset)
    waiting = {head.commit for head in heads if head.commit is not None} | {value.commit for _, value in tags}
    seen = set[CommitId]()
    while waiting and commit_id not in waiting:
        seen |= waiting
        read = together([partial(objects.commit, one) for one in waiting])  # one step on all lines of history
        waiting = {parent for commit in read for parent in commit.parents} - seen
    return commit_id in waiting


def _listed(objects: Objects, text: str) -> CommitId:
    listed = objects.store.list(keys.COMMIT_PREFIX + text)
    ids = [item.key.removeprefix(keys.COMMIT_PREFIX) for item in listed]
    if not ids:
        raise _no_commit(objects, text)
    if len(ids) > 1:
        hint = f"give more digits: {ids[0][:16]}…"
        raise UsageError(f"{text} is the start of {len(ids)} commit ids", subject=text, hint=hint)
    try:
        return CommitId.parse(ids[0])
    except UsageError as error:
        message = f"{objects.store.url} holds a commit with a name that is not an id"
        raise IntegrityError(message, subject=ids[0]) from error


def _no_commit(objects: Objects, text: str) -> NotFound:
    return NotFound(
        f"there is no commit {text} in {objects.store.url}", subject=text, hint="dsv log shows the ids"
    )
