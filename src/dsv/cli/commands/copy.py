"""dsv copy."""

from __future__ import annotations

from dsv.api.copy import CopyRequest, CopyResult
from dsv.api.copy import copy as copy_names
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option, whole
from dsv.cli.options import Author, DryRun
from dsv.cli.output import short
from dsv.errors import UsageError
from dsv.values.names import Target
from dsv.values.units import format_bytes, format_count


@command(
    "copy",
    unused=["--cache"],
    examples="""
        dsv copy chest-xray --to s3://backup/dsv --create  # all branches, to a new store
        dsv copy --all --tags --to mirror  # every dataset; from cron, this keeps a mirror
        dsv copy --all --to mirror --dry-run  # show how much the mirror lacks
    """,
    result=(
        "source to commits bytes objects requests erasures items(dataset name kind state commit before "
        "commits expired) runs(copied lacking bytes)"
    ),
)
def copy(
    call: Call,
    target: str = argument("[DATASET][@REV]"),
    to: str | None = option("--to URL|NAME", "The store to copy to."),
    history: str = option(
        "--history N|all", "Of each branch, copy the content of the last N commits.", default="all"
    ),
    tags: bool = option("--tags", "Copy tags too."),
    runs: bool = option("--runs", "Copy the records of ended runs too."),
    every: bool = option("--all", "Copy every dataset."),
    create: bool = option("--create", "Make the store if it does not exist yet."),
    dry_run: DryRun = False,
    author: Author = None,
) -> None:
    """Copy datasets to another store, with their history.

    The other store gets what it lacks: commits with the same ids, and every object checked on the way. DATASET is all
    of its branches, DATASET@REV one branch or tag; without a dataset it is the workspace's. Run it again after an
    interruption: what was sent is not sent again. Run it from cron for a mirror: with nothing new it takes about ten
    requests.

    Commits that are expired here are copied without their content, and are expired there too. So are,
    permanently, those that --history leaves out: the log shows them, and their content can't be copied there
    later.

    With --runs the records of runs on these datasets are copied, each with its code and its output, if the other store
    has all data that the run saw.

    A branch of the other store is only moved forward. If it has commits of its own, or if a tag names another commit
    there, the others are copied and the exit code is 4. Branches and tags that are deleted here stay there.
    """
    if to is None:
        raise UsageError("--to is needed: the store to copy to", hint="dsv copy DATASET --to URL")
    wanted = Target.parse(target) if target else Target()
    kept = None if history == "all" else whole(1)(history)
    with call.context(writes=True, author=author) as context:
        done = copy_names(context, wanted, to, CopyRequest(every, tags, create, dry_run, kept, runs))
    call.results(done.names, done)
    _show(call, done, dry_run=dry_run)


def _show(call: Call, done: CopyResult, *, dry_run: bool) -> None:
    rows = [
        [
            f"{one.dataset}@{one.name}",
            short(one.commit),
            "would be copied" if dry_run and one.state == "copied" else one.state,
            f"{one.commits:,}",
        ]
        for one in done.names
        if dry_run or not call.quiet or one.state not in ("copied", "up to date")
    ]
    if rows or not call.quiet:
        call.table(["name", "commit", "state", "commits>"], rows)
    size = f"{format_count(done.commits, 'commit')}, {format_bytes(done.bytes)}"
    if dry_run:
        objects = format_count(done.objects or 0, "object")
        call.say(
            f"would send {size} in {objects} to {done.to}, with about {format_count(done.requests, 'request')}"
        )
    else:
        call.say(f"sent {size} to {done.to}, with {format_count(done.requests, 'request')}")
    if done.runs is not None:
        verb = "would be copied" if dry_run else "copied"
        left = f"; {done.runs.lacking:,} not, as their commits are not there" if done.runs.lacking else ""
        call.say(f"{format_count(done.runs.copied, 'record')} of runs {verb}{left}")
    if done.erasures:
        verb = "would be copied" if dry_run else "copied"
        call.say(f"{format_count(done.erasures, 'erasure')} {verb}; dsv erase --status --store {done.to}")
