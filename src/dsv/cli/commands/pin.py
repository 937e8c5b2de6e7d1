"""dsv pin."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api.claims import pin as pin_targets
from dsv.cli.call import Call
from dsv.cli.declare import command, text
from dsv.cli.views.claims import CLAIM_RESULT, write_claims
from dsv.values.names import Target
from dsv.values.units import parse_duration


@command(
    "pin",
    examples=[
        ("dsv pin chest-xray@v1 -m 'the paper uses it'", "until somebody unpins it"),
        ("dsv pin chest-xray@v1 --for 2w", "for two weeks"),
    ],
    result=CLAIM_RESULT,
)
def pin(
    call: Call,
    targets: Annotated[list[str], typer.Argument(metavar="TARGET...")],
    duration: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="How long (default: until it is unpinned)."),
    ] = None,
    message: Annotated[
        str, typer.Option("-m", "--message", parser=text, metavar="TEXT", help="Why: shown by 'dsv cached'.")
    ] = "",
) -> None:
    """Keep a cached commit from eviction.

    TARGET has to be cached already; 'dsv cache' does that.
    """
    seconds = None if duration is None else float(parse_duration(duration))
    wanted = [Target.parse(each) for each in targets]
    with call.context() as context:
        found = pin_targets(context, call.settings.cache().path, wanted, why=message, seconds=seconds)
    write_claims(call, found, "pinned", None)
