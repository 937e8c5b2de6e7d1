"""dsv hold."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api.holds import hold as hold_targets
from dsv.cli.call import Call
from dsv.cli.declare import command, text
from dsv.cli.views.holds import HOLD_RESULT, write_holds
from dsv.values.names import Target
from dsv.values.units import parse_duration


@command(
    "hold",
    examples=[
        ("dsv hold chest-xray@v1 -m 'the paper uses it'", "until somebody releases it"),
        ("dsv hold chest-xray@v1 --for 2w", "for two weeks"),
    ],
    result=HOLD_RESULT,
)
def hold(
    call: Call,
    targets: Annotated[list[str], typer.Argument(metavar="TARGET...")],
    duration: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="How long (default: until it is released)."),
    ] = None,
    message: Annotated[
        str, typer.Option("-m", "--message", parser=text, metavar="TEXT", help="Why: shown by 'dsv cached'.")
    ] = "",
) -> None:
    """Keep a cached commit from eviction.

    TARGET has to be cached already; 'dsv cache --hold' caches and holds at once. 'dsv release' ends the hold.
    """
    seconds = None if duration is None else float(parse_duration(duration))
    wanted = [Target.parse(each) for each in targets]
    with call.context() as context:
        found = hold_targets(context, call.settings.cache().path, wanted, why=message, seconds=seconds)
    write_holds(call, found, "held")
