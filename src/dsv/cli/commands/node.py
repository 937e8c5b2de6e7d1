"""dsv node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv.api.node import node as run_here
from dsv.cli.call import Call
from dsv.cli.declare import COMMAND, command, whole
from dsv.cli.run_options import launching
from dsv.engines.signals import Signals
from dsv.errors import LaunchError, UsageError
from dsv.model.node_order import MAX_ORDER, NodeOrder
from dsv.runs.node import NodeSeat
from dsv.runs.place import RunPlace


@command(
    "node",
    words=COMMAND,
    examples=[
        ("dsv node order.json -- python train.py", "the only node of a run"),
        (
            "dsv node order.json --rank 1 --addresses node-a,node-b -- python train.py",
            "one of two nodes",
        ),
    ],
    result={},
)
def node(
    call: Call,
    order: Annotated[str, typer.Argument(metavar="ORDER")],
    rank: Annotated[
        int, typer.Option("--rank", parser=whole(0), metavar="N", help="Which node this is, from 0.")
    ] = 0,
    attempt: Annotated[
        int, typer.Option("--attempt", parser=whole(1), metavar="N", help="Which attempt this is, from 1.")
    ] = 1,
    addresses: Annotated[
        str | None,
        typer.Option(
            "--addresses", metavar="HOST,HOST", help="All nodes, by their ranks, as they reach each other."
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("-j", "--jobs", parser=whole(1), metavar="N", help="Processes that fill the cache."),
    ] = None,
) -> int:
    """Do what one node does for a run of a cluster.

    Stages the data, holds it, runs CMD, and sends the log and how it ended. The jobs that 'dsv run' submits to a
    cluster call this; nobody has to type it. ORDER is a file that 'dsv run' wrote, which names the commits, the output
    folder and the parameters. The data stays leased for as long as CMD lives. With several nodes, MASTER_ADDR,
    NODE_RANK and what else torchrun reads are set. The exit code is that of CMD; 125 says that it could not be started.
    """
    if call.json:
        raise UsageError("stdout is the command's, so no document can go there", hint="leave out --json")
    if not call.words or not call.words[0]:
        raise UsageError("there is no command to run", hint="dsv node ORDER -- CMD...")
    names = tuple(name.strip() for name in (addresses or "").split(",") if name.strip())
    with launching(), call.context() as context:
        told = _read(order)
        place = RunPlace.here(call.around.environ, call.settings.state, call.settings.cwd)
        done = run_here(
            context,
            call.settings.cache().path,
            told,
            NodeSeat(rank=rank, attempt=attempt, addresses=names),
            call.words,
            place,
            signals=Signals(),
            jobs=jobs,
        )
    part = done.result.part
    call.say(
        f"node {part.node} of run {told.run}, attempt {part.attempt}: exit code {part.exit_code} ({part.end})"
    )
    if done.result.error is not None:
        call.warn(done.result.error)
    if done.problem is not None:
        call.warn(f"what this node left is kept here, and sent by the next run: {done.problem.message}")
    return done.result.exit_code


def _read(name: str) -> NodeOrder:
    try:
        with Path(name).open("rb") as file:
            return NodeOrder.decode(file.read(MAX_ORDER), name)
    except OSError as error:
        raise LaunchError(f"{name} can't be read: {error.strerror}", subject=name) from error
