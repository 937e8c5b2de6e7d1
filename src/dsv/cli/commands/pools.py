"""dsv pools."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api.pool_settings import all_pools, load_pool
from dsv.api.pools import PoolReport, Wanted, locate, report_pools
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.cli.table import Column
from dsv.errors import DsvError
from dsv.model.capacity import GpuCount
from dsv.model.names import Target
from dsv.model.pool import HERE, Pool
from dsv.model.units import format_bytes


@command(
    "pools",
    examples=[
        ("dsv pools", "every pool: whether it answers, its GPUs, its queue, its cache"),
        ("dsv pools chest-xray@v1", "also: where that is cached already"),
        ("dsv pools --json | jq -r '.items[] | select(.gpus[]?.free > 0) | .pool'", "pools with a free GPU"),
    ],
    result={
        "items.pool": "its name; here is this machine",
        "items.engine": "what runs jobs there",
        "items.reachable": "false if it gave no answer in time",
        "items.problem": "why it is not reachable, or can't be used",
        "items.unseen": "what you may not see there, so that less is known of it, each with the reason",
        "items.gpus": "kind, free and total of each kind of GPU; null if it was not reached",
        "items.nodes": "how many machines it has; null if it was not reached",
        "items.waiting": "jobs in its queue; null if that is not known",
        "items.cache": "the folder of its cache, as the configuration has it",
        "items.free_bytes": "room of the disk that its cache is on; null if that can't be seen from here",
        "items.cached": "with TARGET: whether its cache has it; null if that can't be seen from here",
    },
)
def pools(
    call: Call,
    target: Annotated[str | None, typer.Argument(metavar="[TARGET]")] = None,
) -> None:
    """Show the pools that runs may go to, and what is free there.

    All pools are asked at the same time, for 10 seconds at most; one that doesn't answer is shown as such. The pool
    'here' is this machine with the cache in effect, which needs no configuration; 'dsv config pools.NAME.engine ENGINE'
    makes another one.
    """
    with call.context() as context:
        wanted = Wanted()
        if target is not None:
            wanted = locate(context, call.settings.cache().path, [Target.parse(target)])
        checked, broken = _configured(call)
        reports = report_pools(context, call.around.environ, checked, wanted)
    if call.json:
        call.items([*(_item(report) for report in reports), *(_broken_item(*each) for each in broken)])
        return
    columns = [
        Column("pool", keep=True),
        Column("engine"),
        Column("free GPUs", keep=True),
        Column("waiting", right=True),
        Column("cache"),
        Column("room", right=True),
    ]
    if target is not None:
        columns.append(Column("cached", keep=True))
    rows = [_row(report, target is not None) for report in reports]
    rows += [
        [pool.name, pool.engine or "-", error.message, "-", "-", "-", "-"][: len(columns)]
        for pool, error in broken
    ]
    call.table(columns, rows)
    for report in reports:
        for what in () if report.facts.capacity is None else report.facts.capacity.unseen:
            call.warn(f"{report.pool.name} does not let you see its {what}")


def _configured(call: Call) -> tuple[list[Pool], list[tuple[Pool, DsvError]]]:
    """Those that can be asked, and those whose settings are wrong."""
    checked, broken = [], []
    for name, pool in all_pools(call.settings).items():
        try:
            checked.append(load_pool(call.settings, name, "dsv pools"))
        except DsvError as error:
            broken.append((pool, error))
    return [*checked, load_pool(call.settings, HERE, "dsv pools")], broken


def _row(report: PoolReport, with_target: bool) -> list[str]:
    facts = report.facts
    known = facts.capacity
    if known is None:
        free, waiting = f"unreachable: {facts.unreachable}", "-"
    else:
        nothing = "not known" if known.unseen else "none"
        free = ", ".join(_gpus(each) for each in known.gpus()) or nothing
        waiting = "-" if known.waiting is None else str(known.waiting)
    cache = report.pool.cache or ("-" if report.cache is None else str(report.cache))
    room = "-" if report.room is None else format_bytes(report.room.free_bytes)
    row = [report.pool.name, report.engine or "-", free, waiting, cache, room]
    return [*row, _yes(facts.cached)] if with_target else row


def _gpus(count: GpuCount) -> str:
    return f"{count.free} of {count.total} {count.kind}"


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def _item(report: PoolReport) -> dict[str, object]:
    facts = report.facts
    known = facts.capacity
    return {
        "pool": report.pool.name,
        "engine": report.engine,
        "reachable": facts.unreachable is None,
        "problem": facts.unreachable or facts.refused,
        "unseen": [] if known is None else list(known.unseen),
        "gpus": None
        if known is None
        else [{"kind": each.kind, "free": each.free, "total": each.total} for each in known.gpus()],
        "nodes": None if known is None else len(known.nodes),
        "waiting": None if known is None else known.waiting,
        "cache": report.pool.cache or (None if report.cache is None else str(report.cache)),
        "free_bytes": None if report.room is None else report.room.free_bytes,
        "cached": facts.cached,
    }


def _broken_item(pool: Pool, error: DsvError) -> dict[str, object]:
    nothing = dict.fromkeys(("gpus", "nodes", "waiting", "free_bytes", "cached"))
    return {
        "pool": pool.name,
        "engine": pool.engine,
        "reachable": False,
        "problem": error.message,
        "unseen": [],
        **nothing,
        "cache": pool.cache,
    }
