"""dsv node."""

from __future__ import annotations

import sys
from pathlib import Path

from dsv.api.node import complete_left
from dsv.api.pools import engines_of
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option, whole
from dsv.errors import LaunchError, UsageError
from dsv.run.node_order import MAX_ORDER, NodeOrder


@command(
    "node",
    examples="""
        dsv node order.json --left /nfs/runs/chest-xray/ID.job  # a job on Slurm has ended
    """,
)
def node(
    call: Call,
    order: str = argument("ORDER"),
    left: str = option("--left FOLDER", "The folder with what the job left.", default=...),
    rank: int = option("--rank N", "Which node this is, from 0.", parser=whole(0), default=0),
    attempt: int = option("--attempt N", "Which attempt this is, from 1.", default=1),
) -> None:
    """Complete the record of a run from what its job left.

    The jobs that 'dsv run' submits to a cluster call this at their end; nobody has to type it. What the job left in
    FOLDER becomes the record of the run, with its log, metrics and output, unless somebody else completes it. ORDER is
    a file that 'dsv run' wrote, which names the run and its output folder; '-' is stdin.
    """
    if call.json:
        raise UsageError("--json is not supported: the command has no result", hint="leave out --json")
    ordered = _read(order)
    with call.context() as context:
        engines = engines_of(call.around.environ, call.settings)
        done = complete_left(context, engines, ordered, Path(left), rank, attempt)
    call.say(f"run {ordered.run}: " + ("its record is complete" if done else "its record is left to others"))


def _read(name: str) -> NodeOrder:
    if name == "-":
        return NodeOrder.decode(sys.stdin.buffer.read(MAX_ORDER), "the order on stdin")
    try:
        with Path(name).open("rb") as file:
            return NodeOrder.decode(file.read(MAX_ORDER), name)
    except OSError as error:
        raise LaunchError(f"{name} can't be read: {error.strerror}", subject=name) from error
