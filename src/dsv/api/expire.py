"""Let old commits of a dataset expire, and keep them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv.api.context import Context
from dsv.errors import Conflict, UsageError
from dsv.format.expiry import ExpiryAction
from dsv.repo.expiry import read_expiry
from dsv.repo.refs.resolve import resolve
from dsv.upkeep.expire import Rules, expire, last_expiry, plan_expiry, undo_expiry
from dsv.values.units import format_count, rfc3339

if TYPE_CHECKING:
    from dsv.format.commit import Commit
    from dsv.values.ids import CommitId
    from dsv.values.names import DatasetName, Rev


@dataclass(frozen=True, slots=True)
class ExpiryItem:
    """A commit that expires, or stays."""

    commit: CommitId
    time_ms: int
    author: str
    branch: str | None
    message: str
    expired: bool
    """It is expired now, or would be."""
    reasons: tuple[str, ...] = ()
    """Why it stays."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """The commits of a dataset that were not expired before, newest first."""

    dataset: DatasetName
    items: tuple[ExpiryItem, ...]
    dry_run: bool


def expire_commits(
    context: Context, dataset: DatasetName, rules: Rules, message: str = "", *, dry_run: bool = False
) -> Expiry:
    """Let the commits of a dataset expire that no rule keeps.

    Raises `UsageError` without a rule, and `NotFound` if there is no such dataset. dry_run: nothing is written.
    """
    if not rules.any:
        raise UsageError(
            "no rule says which commits stay",
            subject=dataset,
            hint="dsv expire DATASET --keep-last 20 --keep-daily 30, or --older-than 90d; --dry-run shows what would "
            "expire",
        )
    with context.repository() as repository:
        repository.format.check(repository.store.url, writing=not dry_run)
        plan = plan_expiry(repository, dataset, rules, dry_run=dry_run)
        kept: set[CommitId] = set()
        if not dry_run:
            log = expire(repository, context.writer, plan, message)
            kept = {one for one in plan.commits if one not in log.states}
        items = [
            _item(
                one.commit_id,
                one.commit,
                one.reasons or (("named, or kept by somebody, meanwhile",) if one.commit_id in kept else ()),
            )
            for one in plan.considered
        ]
        return Expiry(dataset, tuple(items), dry_run)


def undo_expire(
    context: Context, dataset: DatasetName, commits: Sequence[Rev], message: str = ""
) -> list[ExpiryItem]:
    """Keep commits again: these, or all of the last expiry. Return those that were expired.

    Raises `NotFound` for what is no commit of the dataset, and `Conflict` if gc has removed the content of one; the
    others are kept again nevertheless.
    """
    with context.repository() as repository:
        refs, objects = repository.refs, repository.objects
        repository.format.check(repository.store.url, writing=True)
        refs.require(dataset)
        wanted = [resolve(refs, objects, dataset, one, expired_too=True).commit for one in commits]
        log = read_expiry(refs, dataset)
        for one in wanted or last_expiry(log):
            state = log.states.get(one)
            if state is not None and state.entry.action is ExpiryAction.DELETE:
                raise Conflict(
                    f"dataset {dataset} was deleted by {state.entry.author} ({rfc3339(state.entry.time_ms)})",
                    subject=dataset,
                    hint=f"dsv datasets --undelete {dataset} brings it back",
                )
        if not wanted and not log.entries:
            raise Conflict(f"no commit of {dataset} ever expired", subject=dataset)
        done = undo_expiry(repository, context.writer, dataset, wanted or last_expiry(log), message)
        items = [_item(one, objects.commit(one), ("kept again",)) for one in done.commits]
        if done.freed:
            also = f"; {format_count(len(items), 'other commit')} kept again" if items else ""
            raise Conflict(
                f"gc has removed the content of {format_count(len(done.freed), 'commit')} of {dataset}, among them "
                f"{str(done.freed[0])[:12]}{also}",
                subject=str(done.freed[0]),
                hint=f"dsv log {dataset} shows which commits are left",
            )
        return items


def _item(commit_id: CommitId, commit: Commit, reasons: tuple[str, ...]) -> ExpiryItem:
    return ExpiryItem(
        commit_id, commit.time_ms, commit.author, commit.branch, commit.message, not reasons, reasons
    )
