"""dsv resolve."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api.look import resolve as find
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.cli.targets import commit_target


@command(
    "resolve",
    unused=["--cache"],
    examples=[
        ("dsv resolve chest-xray@v1", "the commit that the tag names"),
        ("dsv resolve @main~2", "in this workspace's dataset, two commits before the head of main"),
        ("COMMIT=$(dsv resolve)", "the base of this workspace"),
    ],
    result={"dataset": "the dataset's name", "commit": "the full commit id"},
)
def resolve(
    call: Call,
    target: Annotated[str, typer.Argument(metavar="[TARGET]")] = "",
) -> None:
    """Print the full commit id that a target names.

    TARGET is [DATASET][@REV]; without it, the base commit of this workspace.
    """
    wanted = commit_target("resolve", target)
    with call.context() as context:
        found = find(context, wanted)
    if call.json:
        call.document({"dataset": str(found.dataset), "commit": str(found.commit)})
    else:
        call.line(str(found.commit))
