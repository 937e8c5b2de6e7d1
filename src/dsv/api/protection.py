"""Protect branches by rules that every dsv keeps."""

from __future__ import annotations

from typing import NamedTuple

from dsv.api.branches import BranchItem, BranchPath, dataset_of, describe, put_rule
from dsv.api.context import Context
from dsv.errors import Conflict
from dsv.format.records import (
    MESSAGE_MAX,
    Action,
    BranchRule,
    Feature,
    FeatureRule,
    Limits,
    RefEntry,
    describe_limits,
)
from dsv.repo.format_log import PROTECTED_BRANCHES
from dsv.repo.refs.branches import Head, Moved
from dsv.repo.repository import Repository
from dsv.values.ids import Nonce


class Protected(NamedTuple):
    """A branch that got a rule, or lost it."""

    item: BranchItem
    changed: bool
    """The rule was another one before."""
    first: bool
    """It is the store's first rule, so that versions of dsv which know no rules no longer write to it."""


def protect_branch(context: Context, name: BranchPath, limits: Limits | None, message: str = "") -> Protected:
    """Give a branch a rule (None: take it away), and note it in the log of the branch's moves.

    The note is a move of its own, to the commit where the branch is: anyone who looked at the branch before the rule
    was there loses the race for it, and looks again. Raises `Conflict` for an author whom the last rule does not name,
    and for a branch that has another rule, unless rules are overridden.
    """
    with context.repository() as repository:
        repository.format.check(repository.store.url, writing=True)
        dataset = dataset_of(context, repository, name.dataset)
        head = repository.refs.head(dataset, name.branch)
        before = repository.refs.rule(dataset, name.branch)
        if limits == (None if before is None else before.limits):
            return Protected(describe(context, repository, head), changed=False, first=False)
        repository.refs.check_mover(head, context.writer.author, merge=True)
        if (
            before is not None
            and before.limits is not None
            and limits is not None
            and context.override is None
        ):
            raise Conflict(
                f"branch {name.branch} of {dataset} has a rule already: {describe_limits(before.limits)}",
                subject=f"{dataset}@{name.branch}",
                hint="the same command with --force -m REASON replaces it",
            )
        first = limits is not None and repository.add_feature(
            Feature(PROTECTED_BRANCHES, FeatureRule.READ_ONLY),
            author=context.writer.author,
            tool=context.writer.tool,
        )
        rule = BranchRule.of(
            limits, Nonce.random(), context.clock(), context.writer.author, message,
            dataset, name.branch, 0 if before is None else before.number + 1,
        )  # fmt: skip
        put_rule(repository, rule)
        head = _note(context, repository, head, rule)
        return Protected(describe(context, repository, head), changed=True, first=first)


def _note(context: Context, repository: Repository, head: Head, rule: BranchRule) -> Head:
    verb = "unprotect" if rule.limits is None else "protect"
    said = "" if rule.limits is None else describe_limits(rule.limits)
    action = Action(verb, "; ".join(filter(None, (said, rule.message)))[:MESSAGE_MAX])
    if repository.refs.override is not None:
        action = action.overriding(repository.refs.override)
    after = head
    while not after.entry.deleted:
        entry = RefEntry.of(context.writer, context.clock(), after.commit, str(action))
        moved = repository.refs.move(head.dataset, head.branch, after, entry)
        after = moved.head if isinstance(moved, Moved) else moved.winner
        if isinstance(moved, Moved):
            break
    return after
