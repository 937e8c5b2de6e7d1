"""dsv cat."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api.ls_cat import cat as open_file
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.cli.options.arguments import Offline
from dsv.values.names import Target


@command(
    "cat",
    examples=[
        ("dsv cat chest-xray@v1:labels.csv | head", "without materializing anything else"),
        (
            "dsv cat --offline chest-xray@v1:labels.csv",
            "from a commit that was cached here, without the store",
        ),
        ("dsv cat :notes.txt", "as the base commit of this workspace has it"),
    ],
)
def cat(
    call: Call, target: Annotated[str, typer.Argument(metavar="TARGET")], offline: Offline = False
) -> None:
    """Print one file of a commit.

    TARGET is [DATASET][@REV]:PATH. Every byte is checked against its id before it is printed. A file of
    more than 32 MiB is printed while it arrives; where that fails half way, the exit code says so.
    With --json only a failure is JSON: stdout is the file's.
    """
    call.out.stream_when_large()
    with call.context(offline=offline) as context, open_file(context, Target.parse(target)) as pieces:
        for piece in pieces:
            call.out.write(piece)
