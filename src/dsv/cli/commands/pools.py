"""dsv pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from dsv.api.pools import PoolReport, Wanted, all_pools, load_pool, locate, report_pools, unknown
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.cli.failure import Failure, of_error
from dsv.cli.output import Column
from dsv.errors import DsvError
from dsv.run.resources import GpuCount, Pool
from dsv.values.names import HERE, Target
from dsv.values.units import format_bytes


@command(
    "pools",
    examples="""
        dsv pools  # every pool: whether it answers, its GPUs, its queue, its cache
        dsv pools chest-xray@v1  # also: where that is cached already
        dsv pools --json | jq -r '.items[] | select(.gpus[]?.free > 0) | .pool'  # pools with a free GPU
    """,
    result=("items(pool engine reachable problem hint unseen gpus nodes waiting cache free_bytes cached)"),
)
def pools(
    call: Call,
    target: Annotated[str | None, typer.Argument(metavar="[TARGET]")] = None,
) -> int:
    """Show the pools that runs may go to, and what is free there.

    All pools are asked at the same time, for 10 seconds at most. One that doesn't answer, or whose settings are wrong,
    keeps no other from being shown. What is wrong is told below the table, and the exit code is not 0: 6, or the code
    of what is wrong in the settings. The pool 'here' is this machine with the cache in effect, which needs no
    configuration; 'dsv config pools.NAME.engine ENGINE' makes another one.
    """
    with call.context() as context:
        wanted = Wanted()
        if target is not None:
            wanted = locate(context, call.settings.cache().path, [Target.parse(target)])
        checked, wrong = _configured(call)
        asked = report_pools(context, call.around.environ, checked, wanted)
    found = {report.pool.name: report for report in (*asked, *wrong)}
    reports = [found[name] for name in (*all_pools(call.settings), HERE)]
    if call.json:
        call.items(_item(call, report) for report in reports)
    else:
        _write_table(call, reports, with_target=target is not None)
    failures = [_failure(report.pool, report.problem) for report in reports if report.problem is not None]
    if failures:
        call.out.publish()  # they are read below the table
    for failure in failures:
        call.complain(failure)
    failures.sort(key=lambda failure: failure.retryable)  # asking again helps only if all else is right
    return failures[0].exit_code if failures else 0


def _configured(call: Call) -> tuple[list[Pool], list[PoolReport]]:
    """Return the pools that can be asked, and those whose settings are wrong."""
    checked, wrong = [], []
    for name, pool in all_pools(call.settings).items():
        try:
            checked.append(load_pool(call.settings, name, "dsv pools"))
        except DsvError as error:
            wrong.append(unknown(pool, error))
    return [*checked, load_pool(call.settings, HERE, "dsv pools")], wrong


def _failure(pool: Pool, problem: DsvError) -> Failure:
    found = of_error(problem)
    return (
        found
        if pool.name in (problem.subject or "").split(".")
        else msgspec.structs.replace(found, message=f"the pool {pool.name}: {found.message}")
    )


def _write_table(call: Call, reports: Sequence[PoolReport], *, with_target: bool) -> None:
    columns = [
        Column("pool", keep=True),
        Column("engine"),
        Column("free GPUs", keep=True),
        Column("waiting", right=True),
        Column("cache"),
        Column("room", right=True),
    ]
    if with_target:
        columns.append(Column("cached", keep=True))
    call.table(columns, [_row(report, with_target) for report in reports])
    for report in reports:
        for what in () if report.facts.capacity is None else report.facts.capacity.unseen:
            call.warn(f"{report.pool.name} does not let you see its {what}")


def _row(report: PoolReport, with_target: bool) -> list[str]:
    """Print each pool's problem in a line of its own below the table, as it may be long."""
    facts = report.facts
    known = facts.capacity
    if known is None:
        away = report.problem is not None and report.problem.retryable
        free, waiting = "unreachable" if away else "not usable", "-"
    else:
        nothing = "not known" if known.unseen else "none"
        free = ", ".join(_gpus(each) for each in known.gpus()) or nothing
        waiting = "-" if known.waiting is None else str(known.waiting)
    cache = report.pool.cache or ("-" if report.cache is None else str(report.cache))
    room = "-" if report.room is None else format_bytes(report.room.free_bytes)
    row = [report.pool.name, report.engine or "-", free, waiting, cache, room]
    cached = "-" if facts.cached is None else "yes" if facts.cached else "no"
    return [*row, cached] if with_target else row


def _gpus(count: GpuCount) -> str:
    return f"{count.free} of {count.total} {count.kind}"


def _item(call: Call, report: PoolReport) -> dict[str, object]:
    facts = report.facts
    known = facts.capacity
    return call.item(
        facts,
        engine=report.engine,
        reachable=facts.unreachable is None,
        problem=facts.unreachable or facts.refused,
        hint=None if report.problem is None else report.problem.hint,
        unseen=() if known is None else known.unseen,
        gpus=None if known is None else known.gpus(),
        nodes=None if known is None else len(known.nodes),
        waiting=None if known is None else known.waiting,
        cache=report.pool.cache or report.cache,
        free_bytes=None if report.room is None else report.room.free_bytes,
    )
