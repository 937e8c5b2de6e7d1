"""The log of a branch's rules: reading it, and what it refuses before there is a commit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dsv.errors import NotFound
from dsv.format import envelope, keys
from dsv.format.records import BranchRule
from dsv.repo.errors import read_record
from dsv.store.base import both

if TYPE_CHECKING:
    from dsv.format.records import Limits
    from dsv.store.base import Store
    from dsv.values.names import BranchName, DatasetName


def newest_rule(store: Store, dataset: DatasetName, branch: BranchName, number: int) -> BranchRule:
    """The last rule of a branch, searched by number from one that exists. Needs no listing."""
    rule, later = both(
        partial(read_rule, store, dataset, branch, number),
        partial(rule_or_none, store, dataset, branch, number + 1),
    )
    while later is not None:
        rule, number = later, number + 1
        later = rule_or_none(store, dataset, branch, number + 1)
    return rule


def rule_or_none(store: Store, dataset: DatasetName, branch: BranchName, number: int) -> BranchRule | None:
    try:
        return read_rule(store, dataset, branch, number)
    except NotFound:
        return None


def read_rule(store: Store, dataset: DatasetName, branch: BranchName, number: int) -> BranchRule:
    """Raises `NotFound`, and `IntegrityError` for a rule that was written for another key."""

    def decode(data: bytes) -> BranchRule:
        rule = BranchRule.decode(data)
        if (rule.dataset, rule.branch, rule.number) != (dataset, branch, number):
            raise envelope.damaged(
                "branch-rule",
                f"it was written for {rule.dataset} {rule.branch} {rule.number}, not for {dataset} {branch} {number}",
            )
        return rule

    return read_record(decode, store, keys.branch_rule_key(dataset, branch, number))


def refused_mover(limits: Limits, author: str, *, merge: bool) -> str | None:
    """Return why this author may not move the branch in this way, as far as that is known before there is a commit."""
    if not limits.names(author):
        return f"{author} is not among those who may move it, {', '.join(limits.who)}"
    if limits.only_merge and not merge:
        return "only a merge moves it"
    return None


def refused_removals(limits: Limits, removed: int, entries: int) -> str | None:
    """Return why a commit that removes so many of the entries may not be the branch's next; None if it may."""
    if limits.max_removals is None or removed * 100 <= limits.max_removals * entries:
        return None
    return f"{removed:,} of {entries:,} paths would be removed, more than {limits.max_removals} %"
