"""dsv release."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api.holds import release as release_holds
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.cli.views.holds import HOLD_RESULT, write_holds
from dsv.errors import UsageError
from dsv.values.names import Target


@command(
    "release",
    examples=[
        ("dsv release chest-xray@v1", "end your hold of it, if it is the only one"),
        ("dsv release --id 3f9c2a7b41d0", "end this hold, and no other"),
        ("dsv release chest-xray@v1 --job $SLURM_JOB_ID", "those that this batch job took"),
        ("dsv release chest-xray@v1 --all", "all that you hold of it"),
        ("dsv release chest-xray@v1 --everyone", "and what others hold with 'dsv hold'"),
    ],
    result=HOLD_RESULT,
)
def release(
    call: Call,
    targets: Annotated[list[str] | None, typer.Argument(metavar="[TARGET]...")] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="The hold of this id, or of one that begins so."),
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="ID", help="The holds that were taken in this batch job.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All of your holds: of TARGET, or of all that is cached.")
    ] = False,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="Also what other people hold with 'dsv hold'.")
    ] = False,
) -> None:
    """Release holds.

    Only your own, unless --everyone is given. If you have several holds of a TARGET, as two jobs of yours have, nothing
    is released and the exit code is 4: name one with --id. 'dsv cache --hold 3d --json' prints the id of its hold, and
    'dsv cached' shows the ids of all. The commit stays cached until something evicts it.
    """
    if job is not None and ids:
        raise UsageError("name a job or ids, not both", hint="dsv release --id ID")
    with call.context() as context:
        found = release_holds(
            context,
            call.settings.cache().path,
            [Target.parse(text) for text in targets or ()],
            ids=ids or (),
            job=job,
            every=everything,
            everyone=everyone,
        )
    write_holds(call, found, "released")
