"""dsv hold and dsv release."""

from __future__ import annotations

from collections.abc import Sequence

from dsv.api import holds as api
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option
from dsv.cli.options import Targets
from dsv.cli.output import cached_name, local_time
from dsv.errors import UsageError
from dsv.values.names import Target
from dsv.values.units import parse_duration

_HOLDS = "items(path dataset commit count ids until why)"


@command(
    "hold",
    examples="""
        dsv hold chest-xray@v1 -m 'the paper uses it'  # until somebody releases it
        dsv hold chest-xray@v1 --for 2w  # for two weeks
    """,
    result=_HOLDS,
)
def hold(
    call: Call,
    targets: list[str] = argument("TARGET..."),
    duration: str | None = option("--for DURATION", "How long (default: until it is released)."),
    message: str = option("-m --message TEXT", "Why: shown by 'dsv cached'."),
) -> None:
    """Keep a cached commit from eviction.

    TARGET has to be cached already; 'dsv cache --hold' caches and holds at once. 'dsv release' ends the hold.
    """
    seconds = None if duration is None else float(parse_duration(duration))
    wanted = [Target.parse(text) for text in targets]
    with call.context() as context:
        holds = api.hold(context, call.settings.cache().path, wanted, why=message, seconds=seconds)
    _write_holds(call, holds, "held")


@command(
    "release",
    examples="""
        dsv release chest-xray@v1  # end your hold of it, if it is the only one
        dsv release chest-xray@v1 --job $SLURM_JOB_ID  # those that this batch job took
        dsv release chest-xray@v1 --everyone  # and what others hold with 'dsv hold'
    """,
    result=_HOLDS,
)
def release(
    call: Call,
    targets: Targets = None,
    ids: list[str] | None = option("--id ID", "The hold with this id; its first 8 digits are enough."),
    job: str | None = option("--job ID", "The holds that were taken in this batch job."),
    everything: bool = option("--all", "All of your holds: of TARGET, or of all that is cached."),
    everyone: bool = option("--everyone", "Also what other people hold with 'dsv hold'."),
) -> None:
    """Release holds.

    Only your own, unless --everyone is given. If you have several holds of a TARGET, as two jobs of yours have, nothing
    is released and the exit code is 4: name one with --id. 'dsv cache --hold 3d --json' prints the id of its hold, and
    'dsv cached' shows the ids of all. The commit stays cached until something evicts it.
    """
    if job is not None and ids:
        raise UsageError("name a job or ids, not both", hint="dsv release --id ID")
    with call.context() as context:
        found = api.release(
            context,
            call.settings.cache().path,
            [Target.parse(text) for text in targets or ()],
            ids=ids or (),
            job=job,
            every=everything,
            everyone=everyone,
        )
    _write_holds(call, found, "released")


def _write_holds(call: Call, holds: Sequence[api.HoldItem], verb: str) -> None:
    call.items(call.item(each, count=len(each.ids)) for each in holds)
    for item in holds:
        end = "" if item.until is None else f" until {local_time(item.until * 1000)}"
        many = f" ({len(item.ids)} holds)" if len(item.ids) != 1 else ""
        call.line(f"{verb} {cached_name(item.dataset, item.commit, item.path)}{end}{many}")
