"""dsv release."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api.cache import release as end_holds
from dsv.cli.call import Call
from dsv.cli.claims import CLAIM_RESULT, write_claims
from dsv.cli.declare import command
from dsv.model.names import Target


@command(
    "release",
    examples=[
        ("dsv release chest-xray@v1", "end your holds of it"),
        ("dsv release chest-xray@v1 --job $SLURM_JOB_ID", "only those that this batch job took"),
    ],
    result=CLAIM_RESULT,
)
def release(
    call: Call,
    targets: Annotated[list[str], typer.Argument(metavar="TARGET...")],
    job: Annotated[
        str | None, typer.Option("--job", metavar="ID", help="Only holds that were taken in this batch job.")
    ] = None,
) -> None:
    """End holds that 'cache --hold' took.

    Only your own. The commit stays cached until something evicts it.
    """
    with call.context() as context:
        found = end_holds(
            context, call.settings.cache().path, [Target.parse(text) for text in targets], job=job
        )
    write_claims(call, found, "released", "hold")
