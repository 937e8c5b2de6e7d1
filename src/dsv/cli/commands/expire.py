"""dsv expire."""

from __future__ import annotations

from dsv.api.space import expire_commits, undo_expire
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option, whole
from dsv.cli.options import Author, DryRun
from dsv.cli.output import free_from, local_time
from dsv.errors import UsageError
from dsv.run.record import is_output
from dsv.upkeep.expire import Expiry, ExpiryItem, RetentionRules
from dsv.values.names import DatasetName, Rev
from dsv.values.units import format_count, parse_duration

Keep = int | None


@command(
    "expire",
    unused=["--cache"],
    examples="""
        dsv expire chest-xray --keep-last 20 --keep-daily 30 --dry-run  # what would expire, and why not
        dsv expire chest-xray --keep-daily 30 --keep-monthly 12 --older-than 90d  # use it in cron
        dsv expire chest-xray --keep-last 1 --undo-for 0s  # the disk is full: the next dsv gc frees them
        dsv expire chest-xray --outputs --keep-last 20 --older-than 90d  # what runs have left, not their records
        dsv expire chest-xray --undo  # restore what the last expire took
    """,
    result="dataset dry_run free_from items(commit time author branch message expired reasons)",
)
def expire(
    call: Call,
    dataset: str = argument("DATASET"),
    commits: list[str] | None = argument("[COMMIT]..."),
    keep_last: Keep = option("--keep-last N", "Keep the last N commits of each branch.", parser=whole(1)),
    keep_hourly: Keep = option("--keep-hourly N", "Keep the last of each of N hours.", parser=whole(1)),
    keep_daily: Keep = option("--keep-daily N", "Keep the last of each of N days (UTC).", parser=whole(1)),
    keep_weekly: Keep = option("--keep-weekly N", "Keep the last of each of N weeks.", parser=whole(1)),
    keep_monthly: Keep = option("--keep-monthly N", "Keep the last of each of N months.", parser=whole(1)),
    keep_yearly: Keep = option("--keep-yearly N", "Keep the last of each of N years.", parser=whole(1)),
    keep_tagged: bool = option("--keep-tagged", "Keep only what is always kept, such as tagged commits."),
    older_than: str | None = option("--older-than DURATION", "Only what was stored longer ago expires."),
    also_runs: bool = option("--also-runs", "Commits expire even if a run of the last year has used them."),
    outputs: bool = option("--outputs", "Only the kept outputs of runs on DATASET; their records stay."),
    undo_for: int | None = option("--undo-for TIME", "How long gc waits before it frees them (default: 2w)."),
    undo: bool = option("--undo", "Restore COMMITs, or all of the last expire."),
    dry_run: DryRun = False,
    message: str = option("-m --message TEXT", "Why, for the log."),
    author: Author = None,
) -> None:
    """Let old commits of a dataset expire, or restore them.

    A commit expires if no rule keeps it, and if it is older than --older-than. The rules are those of restic forget,
    applied to the commits of each branch by their times in UTC. Always kept are the heads of branches, what has a tag,
    the commits in which a branch and main meet, and those of runs of the last year. With --outputs only what has a
    branch or a tag is always kept.

    Expired commits stay in 'dsv log', and can't be read. 'dsv gc' removes what only they have, after --undo-for
    (dsv gc --grace may ask for more); until then --undo restores them.
    """
    rules = RetentionRules(
        keep_last, keep_hourly, keep_daily, keep_weekly, keep_monthly, keep_yearly, keep_tagged,
        None if older_than is None else parse_duration(older_than), also_runs,
        is_output if outputs else None,
    )  # fmt: skip
    name = DatasetName.parse(dataset)
    if undo:
        call.takes_only("--undo", "undo", "dataset", "commits", "message", "author")
    if commits and not undo:
        raise UsageError(
            "only --undo takes commits; otherwise rules say which expire",
            subject=commits[0],
            hint=f"dsv expire {name} --undo {commits[0]}",
        )
    with call.context(writes=not dry_run, author=author) as context:
        if undo:
            kept = undo_expire(context, name, [Rev.parse(one) for one in commits or ()], message)
            _tell_undone(call, name, kept)
        else:
            done = expire_commits(context, name, rules, message, undo_for=undo_for, dry_run=dry_run)
            _tell_expired(call, done)


def _tell_undone(call: Call, dataset: DatasetName, kept: list[ExpiryItem]) -> None:
    call.results(kept, dataset=dataset, dry_run=False, free_from=None)
    for item in kept:
        call.line(f"restored {_row(item)}")
    if not kept:
        call.say(f"none of these commits of {dataset} is expired")


def _tell_expired(call: Call, done: Expiry) -> None:
    call.results(done.items, done)
    gone = [item for item in done.items if item.expired]
    for item in done.items:
        if item.expired:
            (call.line if done.dry_run else call.routine)(
                f"{'would expire' if done.dry_run else 'expired'} {_row(item)}"
            )
        elif done.dry_run:
            call.line(f"stays {_row(item)}: {'; '.join(item.reasons)}")
    stay = format_count(len(done.items) - len(gone), "commit")
    when = "" if done.free_from_ms is None else free_from(done.free_from_ms)
    if done.dry_run or not gone:
        verb = "would expire" if done.dry_run else "expired"
        end = f"; gc may free their content {when}" if gone else ""
        call.say(f"{format_count(len(gone), 'commit')} {verb}, {stay} of {done.dataset} stay{end}")
    else:
        call.say(
            f"{format_count(len(gone), 'commit')} expired, {stay} of {done.dataset} stay; "
            f"dsv expire {done.dataset} --undo restores them until gc frees their content, {when} (dsv gc --grace)"
        )


def _row(item: ExpiryItem) -> str:
    return f"{str(item.commit)[:12]} {local_time(item.time_ms)} {item.message.partition(chr(10))[0]}".rstrip()
