"""dsv unpin."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api.claims import unpin as unpin_targets
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.cli.views.claims import CLAIM_RESULT, write_claims
from dsv.values.names import Target


@command(
    "unpin",
    examples=[
        ("dsv unpin chest-xray@v1", "end your pins of it"),
        ("dsv unpin --everyone chest-xray@v1", "and those of others"),
    ],
    result=CLAIM_RESULT,
)
def unpin(
    call: Call,
    targets: Annotated[list[str], typer.Argument(metavar="TARGET...")],
    everyone: Annotated[bool, typer.Option("--everyone", help="End other people's pins too.")] = False,
) -> None:
    """Remove a pin."""
    wanted = [Target.parse(each) for each in targets]
    with call.context() as context:
        found = unpin_targets(context, call.settings.cache().path, wanted, everyone=everyone)
    write_claims(call, found, "unpinned", "pin")
