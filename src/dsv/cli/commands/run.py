"""dsv run."""

from __future__ import annotations

from typing import Annotated, Any

from dsv.cli.call import Call
from dsv.cli.declare import COMMAND, argument, command, option, text
from dsv.run.spec import OPTIONS

_ONCE = dict.fromkeys(("once", "key", "fresh", "receipt"), "Runs that are not repeated")
_NAMED: dict[str, Any] = {
    name: Annotated[
        list[str] | None if each.several else bool if each.written == each.flag else str | None,
        option(each.written, each.help, parser=text if each.text else None, rich_help_panel=_ONCE.get(name)),
    ]
    for name, each in OPTIONS.items()
}
"""The options that fill a field of `JobSpec`, by field."""


@command(
    "run",
    words=COMMAND,
    examples="""
        dsv run chest-xray@v1 --image ghcr.io/team/resnet --code . --gpus 2 -p lr=0.1 -- python train.py
        dsv run chest-xray@v1 -- sh -c 'ls $DSV_DATA'  # without an image: a plain process
        dsv run chest-xray@v1 -p lr=0.1,0.01 --sweep --code . -- python train.py  # a run for each value
        dsv run --detach chest-xray@v1 -- python train.py  # then: dsv logs, dsv stop, dsv wait
    """,
    result=(
        "run hit dataset commit engine exit_code cache_hit stage_seconds params metrics out output "
        "sweep(id exit_code runs)"
    ),
    options=_NAMED,
)
def run(
    call: Call,
    target: str | None = argument("[TARGET]"),
    on: str | None = option("--on POOL[,POOL]", "The pools to try; 'here' is this machine.", parser=text),
    force: bool = option("--force", "Take code of more than 200 MB."),
    env: list[str] | None = option("-e --env K[=V]", "A variable; K alone passes your value."),
    sweep: bool = option("--sweep", "A run for each combination of the values in -p K=V,V,…"),
    parallel: int | None = option("--parallel N", "How many runs of a sweep at once (default: 1)."),
    again: str | None = option("--again RUN", "Repeat this run, as far as that can be done."),
    offline: bool = option("--offline", "Don't ask the store; the record is sent by a later run."),
    json_file: str | None = option(
        "--json-file FILE", "Write the result there: stdout and stderr are the job's."
    ),
    dry_run: bool = option("-n --dry-run", "Print what would be executed, and start nothing."),
    detach: bool = option("-d --detach", "Run in the background: print the run's id and return."),
    **options: Any,
) -> int:
    """Run a command on a cached commit, in a container.

    Makes sure that TARGET is cached and stays, starts CMD with the data read-only at /data and an output folder
    at /out, streams what it prints, passes signals on, and ends with its exit code; 125 says that it was not
    launched. DSV_DATASET, DSV_COMMIT, DSV_DATA, DSV_OUT and DSV_PARAMS tell the job what it got; what it writes
    to /out/metrics.json goes into the record that 'dsv runs' shows.

    With --detach the run continues without this terminal; its data stays held, and it is recorded. With --json that
    prints the keys run, hit and out alone.
    """
    typed = {name: value for name, value in locals().items() if name not in ("call", "options", "env")}
    from dsv.cli.launch import RunArguments, launch

    given = {name: value for name, value in options.items() if value}
    return launch(call, RunArguments(**typed, env=tuple(env or ()), options=given))
