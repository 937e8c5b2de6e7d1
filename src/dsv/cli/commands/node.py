"""dsv node."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dsv.api.node import complete_left
from dsv.api.node import node as run_here
from dsv.api.pools import engines_of
from dsv.api.workspaces import workspace_above
from dsv.cli.call import Call
from dsv.cli.declare import COMMAND, command, whole
from dsv.cli.launch import launching
from dsv.errors import LaunchError, UsageError
from dsv.run.dirs import RunPlace
from dsv.run.engines.attach import Signals
from dsv.run.node import NodeSeat
from dsv.run.node_order import MAX_ORDER, NodeOrder


@command(
    "node",
    words=COMMAND,
    examples=[
        ("dsv node order.json -- python train.py", "the only node of a run"),
        (
            "dsv node order.json --rank 1 --addresses node-a,node-b -- python train.py",
            "one of two nodes",
        ),
        ("dsv node order.json --left /nfs/runs/chest-xray/ID.job", "CMD has ended already"),
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
    left: Annotated[
        str | None,
        typer.Option(
            "--left", metavar="FOLDER", help="Run nothing: complete the record of a run whose job left this."
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

    With --left no CMD is run: what the job of a run left in FOLDER becomes the record of the run, with its log, metrics
    and output, unless somebody else completes it. ORDER may be '-' for stdin.
    """
    if call.json:
        raise UsageError("--json is not supported: the command writes to stdout", hint="leave out --json")
    if left is not None:
        if call.words:
            raise UsageError("--left runs no command", subject="--left", hint="leave out CMD, or --left")
        return _complete(call, _read(order), Path(left), NodeSeat(rank=rank, attempt=attempt))
    if not call.words or not call.words[0]:
        raise UsageError("no command given", hint="dsv node ORDER -- CMD...")
    names = tuple(name.strip() for name in (addresses or "").split(",") if name.strip())
    return _run(call, order, NodeSeat(rank=rank, attempt=attempt, addresses=names), jobs)


def _run(call: Call, order: str, seat: NodeSeat, jobs: int | None) -> int:
    with launching(), call.context() as context:
        told = _read(order)
        place = RunPlace.here(call.around.environ, call.settings.state, call.settings.cwd, workspace_above)
        part, problem = run_here(
            context,
            call.settings.cache().path,
            told,
            seat,
            call.words,
            place,
            signals=Signals(),
            jobs=jobs,
        )
    call.say(
        f"node {part.node} of run {told.run}, attempt {part.attempt}: exit code {part.exit_code} ({part.end})"
    )
    if part.error is not None:
        call.warn(part.error)
    if problem is not None:
        call.warn(f"what this node left is kept here, and sent by the next run: {problem.message}")
    assert part.exit_code is not None  # it has ended
    return part.exit_code


def _complete(call: Call, order: NodeOrder, left: Path, seat: NodeSeat) -> int:
    with call.context() as context:
        done = complete_left(context, engines_of(call.around.environ, call.settings), order, left, seat)
    call.say(f"run {order.run}: " + ("its record is complete" if done else "its record is left to others"))
    return 0


def _read(name: str) -> NodeOrder:
    if name == "-":
        return NodeOrder.decode(sys.stdin.buffer.read(MAX_ORDER), "the order on stdin")
    try:
        with Path(name).open("rb") as file:
            return NodeOrder.decode(file.read(MAX_ORDER), name)
    except OSError as error:
        raise LaunchError(f"{name} can't be read: {error.strerror}", subject=name) from error
