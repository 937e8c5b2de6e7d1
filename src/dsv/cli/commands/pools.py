"""dsv pools."""

from __future__ import annotations

from collections.abc import Sequence

from dsv.api.pools import JobNeeds, all_pools, load_pool, locate, report_pools, unknown
from dsv.cli.call import Call
from dsv.cli.declare import argument, command
from dsv.cli.failure import of_error
from dsv.errors import DsvError
from dsv.run.pools import PoolFacts
from dsv.run.resources import Pool
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
def pools(call: Call, target: str | None = argument("[TARGET]")) -> int:
    """Show the pools that runs may go to, and what is free there.

    All pools are asked at the same time, for 10 seconds at most. One that doesn't answer, or whose settings are
    wrong, does not hide the others. What is wrong is shown below the table, and the exit code is not 0: 6, or the
    code of what is wrong in the settings. The pool 'here' is this machine with the cache in effect, which needs no
    configuration; 'dsv config pools.NAME.engine ENGINE' makes another one.
    """
    with call.context() as context:
        wanted = JobNeeds()
        if target is not None:
            wanted = locate(context, call.settings.cache().path, [Target.parse(target)])
        checked, wrong = _configured(call)
        asked = report_pools(context, call.around.environ, checked, wanted)
    by_name = {facts.pool: facts for facts in (*asked, *wrong)}
    found = [by_name[name] for name in (*all_pools(call.settings), HERE)]
    call.results(found)
    _write_table(call, found, with_target=target is not None)
    failures = [_failure(facts.pool, facts.error) for facts in found if facts.error is not None]
    if failures:
        call.out.publish()  # the table first
    for failure in failures:
        call.complain(failure)
    failures.sort(key=lambda failure: failure.retryable)  # a retry helps only if nothing else is wrong
    return failures[0].exit_code if failures else 0


def _configured(call: Call) -> tuple[list[Pool], list[PoolFacts]]:
    """Return the pools that can be asked, and those whose settings are wrong."""
    checked, wrong = [], []
    for name, pool in all_pools(call.settings).items():
        try:
            checked.append(load_pool(call.settings, name, "dsv pools"))
        except DsvError as error:
            wrong.append(unknown(pool, error))
    return [*checked, load_pool(call.settings, HERE, "dsv pools")], wrong


def _failure(pool: str, problem: DsvError) -> DsvError:
    found = of_error(problem)
    if pool not in (problem.subject or "").split("."):
        found.message = f"the pool {pool}: {found.message}"
    return found


def _write_table(call: Call, found: Sequence[PoolFacts], *, with_target: bool) -> None:
    columns = [
        "pool",
        "engine~",
        "free GPUs",
        "waiting>~",
        "cache~",
        "room>~",
        *(["cached"] if with_target else []),
    ]
    call.table(columns, [_row(facts)[: len(columns)] for facts in found])
    for facts in found:
        for what in facts.unseen:
            call.warn(f"{facts.pool} does not let you see its {what}")


def _row(facts: PoolFacts) -> list[str]:
    """Return a row without the pool's problem, which may be long and is printed below the table."""
    if facts.error is not None:
        free = "unreachable" if facts.error.retryable else "not usable"
    else:
        nothing = "not known" if facts.unseen else "none"
        free = ", ".join(f"{each.free} of {each.total} {each.kind}" for each in facts.gpus or ()) or nothing
    return [
        facts.pool,
        facts.engine or "-",
        free,
        "-" if facts.waiting is None else str(facts.waiting),
        facts.cache or "-",
        "-" if facts.free_bytes is None else format_bytes(facts.free_bytes),
        "-" if facts.cached is None else "yes" if facts.cached else "no",
    ]
