"""Let old commits of a dataset expire, and keep them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dsv.api.context import Context
from dsv.errors import Conflict, UsageError
from dsv.format.records import ExpiryAction
from dsv.repo.expiry import read_expiry
from dsv.repo.resolve import resolve
from dsv.upkeep.expire import Expiry, ExpiryItem, Rules, expire, last_expiry, plan_expiry, undo_expiry
from dsv.values.units import format_count, rfc3339

if TYPE_CHECKING:
    from dsv.values.names import DatasetName, Rev


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
        if dry_run:
            return plan
        log = expire(repository, context.writer, plan, message)
        meanwhile = ("named, or kept by somebody, meanwhile",)
        items = [
            replace(one, reasons=meanwhile) if one.expired and one.commit not in log.states else one
            for one in plan.items
        ]
        return replace(plan, items=tuple(items))


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
        kept, freed = undo_expiry(repository, context.writer, dataset, wanted or last_expiry(log), message)
        items = [ExpiryItem.of(one, objects.commit(one), ["kept again"]) for one in kept]
        if freed:
            also = f"; {format_count(len(items), 'other commit')} kept again" if items else ""
            raise Conflict(
                f"gc has removed the content of {format_count(len(freed), 'commit')} of {dataset}, among them "
                f"{str(freed[0])[:12]}{also}",
                subject=str(freed[0]),
                hint=f"dsv log {dataset} shows which commits are left",
            )
        return items
