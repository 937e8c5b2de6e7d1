"""dsv gc, expire and du."""

from __future__ import annotations

from collections.abc import Iterator

from dsv.api.space import (
    PRICES,
    Collection,
    Forecast,
    Requests,
    StoreUsed,
    Usage,
    collect,
    expire_commits,
    forecast,
    undo_expire,
    usage,
)
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option, whole
from dsv.cli.options import Author, DryRun
from dsv.cli.output import local_time, printable
from dsv.errors import IntegrityError, UsageError
from dsv.upkeep.expire import Expiry, ExpiryItem, Rules
from dsv.values.names import DatasetName, Rev
from dsv.values.units import format_bytes, format_count, parse_duration


@command(
    "gc",
    unused=["--cache"],
    examples="""
        dsv gc --dry-run  # what it would delete, the requests, and their price
        dsv gc  # shows the same, asks, and deletes
        dsv gc --yes --budget 2h  # use it in cron
    """,
    result=(
        "url dry_run continued deleted deleted_bytes rewritten copied_bytes freed spared left unused shared "
        "requests price_usd price_list items(dataset commits stored)"
    ),
    nulls=True,
)
def gc(
    call: Call,
    budget: int | None = option("--budget TIME", "Copy nothing more after so long."),
    max_repack: int | None = option(
        "--max-repack SIZE", "Copy at most so much out of packs (default: 100GB)."
    ),
    max_wait: int | None = option("--max-wait TIME", "Wait so long for others who write (default: 6h)."),
    grace: int | None = option("--grace TIME", "Keep what expired less than so long ago (default: 2w)."),
    dry_run: DryRun = False,
    yes: bool = option("--yes", "Do not ask."),
    author: Author = None,
) -> None:
    """Delete what nothing in a store needs any more.

    That is the content of commits that expired two weeks ago or earlier, and what syncs that were killed have left.
    Everybody may go on working meanwhile. Packs of which nothing is needed are deleted. Of packs of which less than
    half is needed that is copied to new ones first.

    gc waits for those who were writing when it began: until they are done, or have been silent for an hour. Any error
    ends it before more is deleted. A gc that was killed is continued by the next one, on any machine.

    What gc has deleted does not come back. It shows what goes and asks; without a terminal it needs --yes.
    """
    from dsv.upkeep.gc import Options

    given = {"budget": budget, "max_repack": max_repack, "max_wait": max_wait, "grace": grace}
    options = Options(**{name: value for name, value in given.items() if value is not None})
    if dry_run and yes:
        raise UsageError("--dry-run deletes nothing, and --yes is about deleting", hint="dsv gc --dry-run")
    if not (dry_run or yes or call.can_ask):
        raise UsageError(
            "dsv gc deletes for good; nothing was deleted, as nobody can be asked here",
            hint="dsv gc --yes; dsv gc --dry-run shows what it would delete",
        )
    with call.context(writes=not dry_run, author=author) as context:
        if not yes:
            expected = forecast(context, options)
            context.progress.finish()
            if dry_run or not (expected.deleted or expected.datasets or expected.unfinished):
                _tell_forecast(call, expected)
                return
            for line in _lines(expected):
                call.say(line)
            call.confirm(
                f"{format_count(expected.deleted, 'pack')} with {format_bytes(expected.deleted_bytes)} in "
                f"{expected.url} will be deleted for good",
                "gc",
                yes=False,
            )
        _tell(call, collect(context, options))


def _tell_forecast(call: Call, found: Forecast) -> None:
    head = call.head(
        found, dry_run=True, continued=found.unfinished, rewritten=found.packs.rewritten, copied_bytes=found.copied,
        spared=0, **_price(found.url, found.requests),
    )  # fmt: skip
    call.items(map(call.item, found.datasets), head)
    for line in _lines(found):
        call.line(line)


def _lines(found: Forecast) -> Iterator[str]:
    for one in found.datasets:
        yield f"{one.dataset}: {format_bytes(one.stored)} of {format_count(one.commits, 'expired commit')}"
    if found.shared:
        yield f"expired commits of several datasets: {format_bytes(found.shared)}"
    if found.unused:
        yield f"of no commit: {format_bytes(found.unused)}"
    packs = found.packs
    yield (
        f"would delete {format_count(packs.free, 'pack')} with {format_bytes(packs.free_bytes)}, and "
        f"{format_count(packs.rewritten, 'pack')} after copying {format_bytes(found.copied)} out of them"
    )
    yield f"would free {format_bytes(found.freed)} of {format_bytes(packs.bytes)}"
    if packs.partly:
        yield (
            f"would leave {format_bytes(packs.partly_unused_bytes)} that nothing needs in "
            f"{format_count(packs.partly, 'pack')}"
        )
    if found.unfinished:
        yield "would finish an earlier garbage collection first"
    yield f"about {_requests(found.url, found.requests)}"


def _tell(call: Call, collected: Collection) -> None:
    done = collected.done
    rewritten = len(done.plan.rewrite) if done.plan is not None else 0
    left = done.plan.left if done.plan is not None else 0
    head = call.head(
        done, url=collected.url, dry_run=False, rewritten=rewritten, left=left,
        freed=done.deleted_bytes - done.copied_bytes, **_price(collected.url, collected.requests),
    )  # fmt: skip
    freed = ({"dataset": one, "commits": count, "stored": None} for one, count in done.freed.items())
    call.items(freed, head)
    for dataset, count in done.freed.items():
        call.line(f"freed {format_count(count, 'expired commit')} of {dataset}")
    copied = f", after copying {format_bytes(done.copied_bytes)} out of {format_count(rewritten, 'pack')}"
    call.line(
        f"deleted {format_count(done.deleted, 'pack')} with {format_bytes(done.deleted_bytes)}"
        f"{copied if rewritten else ''}"
    )
    if done.continued:
        call.say("this includes what an earlier garbage collection had begun")
    if done.spared:
        call.say(f"{format_count(done.spared, 'pack')} stay, as somebody needs them after all")
    if left:
        call.say(f"left to copy out of: {format_count(left, 'pack')}; dsv gc")
    call.say(_requests(collected.url, collected.requests))


def _price(url: str, requests: Requests) -> dict[str, object]:
    usd, prices = (requests.usd, PRICES) if _is_sold(url) else (None, None)
    return {"requests": requests, "price_usd": usd, "price_list": prices}


def _requests(url: str, requests: Requests) -> str:
    counts = (
        f"{requests.list:,} LIST, {requests.put:,} PUT, {requests.get:,} GET and {requests.delete:,} DELETE"
    )
    return f"{counts} requests" + (f", ${requests.usd:.4f} ({PRICES})" if _is_sold(url) else "")


def _is_sold(url: str) -> bool:
    """Return whether requests to a store have a price: those to a folder have none."""
    return "://" in url and not url.startswith(("file:", "memory:"))


Keep = int | None


@command(
    "expire",
    unused=["--cache"],
    examples="""
        dsv expire chest-xray --keep-last 20 --keep-daily 30 --dry-run  # what would expire, and why not
        dsv expire chest-xray --keep-daily 30 --keep-monthly 12 --older-than 90d  # use it in cron
        dsv expire chest-xray --undo  # keep again what the last expire took
    """,
    result="dataset dry_run items(commit time author branch message expired reasons)",
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
    keep_tagged: bool = option("--keep-tagged", "Keep what has a tag, which always stays, and no more."),
    older_than: str | None = option("--older-than DURATION", "Only what was stored longer ago expires."),
    also_runs: bool = option("--also-runs", "Commits expire even if a run of the last year has used them."),
    undo: bool = option("--undo", "Keep COMMITs again, or all of the last expire."),
    dry_run: DryRun = False,
    message: str = option("-m --message TEXT", "Why, for the log."),
    author: Author = None,
) -> None:
    """Let old commits of a dataset expire, or keep them again.

    A commit expires if no rule keeps it, and if it is older than --older-than. The rules are those of restic forget,
    applied to the commits of each branch by their times in UTC. Always kept are the heads of branches, what has a tag,
    the commits in which a branch and main meet, and those of runs of the last year.

    Expired commits stay in 'dsv log', and can't be read. 'dsv gc' removes what only they have, two weeks later at the
    earliest; until then --undo keeps them again.
    """
    rules = Rules(
        keep_last, keep_hourly, keep_daily, keep_weekly, keep_monthly, keep_yearly, keep_tagged,
        None if older_than is None else parse_duration(older_than), also_runs,
    )  # fmt: skip
    name = DatasetName.parse(dataset)
    if undo:
        call.takes_only("--undo", "undo", "dataset", "commits", "message", "author")
    if commits and not undo:
        raise UsageError(
            "commits are named with --undo alone; otherwise rules say which expire",
            subject=commits[0],
            hint=f"dsv expire {name} --undo {commits[0]}",
        )
    with call.context(writes=not dry_run, author=author) as context:
        if undo:
            kept = undo_expire(context, name, [Rev.parse(one) for one in commits or ()], message)
            _tell_undone(call, name, kept)
        else:
            _tell_expired(call, expire_commits(context, name, rules, message, dry_run=dry_run))


def _tell_undone(call: Call, dataset: DatasetName, kept: list[ExpiryItem]) -> None:
    call.results(kept, dataset=dataset, dry_run=False)
    for item in kept:
        call.line(f"kept again {_row(item)}")
    if not kept:
        call.say(f"none of these commits of {dataset} is expired")


def _tell_expired(call: Call, done: Expiry) -> None:
    call.results(done.items, done)
    gone = [item for item in done.items if item.expired]
    for item in done.items:
        if item.expired:
            call.line(f"{'would expire' if done.dry_run else 'expired'} {_row(item)}")
        elif done.dry_run:
            call.line(f"stays {_row(item)}: {'; '.join(item.reasons)}")
    stay = format_count(len(done.items) - len(gone), "commit")
    if done.dry_run or not gone:
        verb = "would expire" if done.dry_run else "expired"
        call.say(f"{format_count(len(gone), 'commit')} {verb}, {stay} of {done.dataset} stay")
    else:
        call.say(
            f"{format_count(len(gone), 'commit')} expired, {stay} of {done.dataset} stay; "
            f"dsv expire {done.dataset} --undo takes this back, until gc removes the content"
        )


def _row(item: ExpiryItem) -> str:
    return f"{str(item.commit)[:12]} {local_time(item.time_ms)} {item.message.partition(chr(10))[0]}".rstrip()


@command(
    "du",
    unused=["--cache"],
    examples="""
        dsv du  # the store, and each of its datasets
        dsv du chest-xray@v1  # one commit
        dsv du chest-xray@v1..v2  # the commits that came after v1, up to v2: what they added
        dsv du --unused  # what dsv gc would free
    """,
    result=(
        "url store(total needed expired unused duplicates packs indexes commits names runs other) lost "
        "items(name kind commits objects stored alone shared original alone_original shared_original)"
    ),
)
def du(
    call: Call,
    targets: list[str] | None = argument("[DATASET][@REV[..REV]]..."),
    by_folder: int | None = option(
        "--by-folder DEPTH", "Show the folders of one target, so many levels of them.", parser=whole(1)
    ),
    unused: bool = option("--unused", "Show the store alone, and what gc would free."),
) -> int:
    """Show what takes the space of a store.

    STORED is what lies in the store: compressed, and each content once. ALONE is the part that nothing else in the
    store has, so it would be freed if only this were removed. SHARED is the rest. ORIGINAL is STORED before it was
    compressed.

    DATASET is all of its branches, tags and runs. DATASET@BRANCH is the whole history of the branch, DATASET@TAG or
    DATASET@ID that commit, and DATASET@A..B the commits of B that A does not have. Every tree of the store is read, as
    any commit may share a content; a second call reads what is new. Memory stays below 500 MiB.
    """
    with call.context() as context:
        found = usage(context, targets or (), depth=by_folder, only_unused=unused)
    call.result(found)
    _write_usage(call, found)
    return IntegrityError.exit_code if found.lost else 0


def _write_usage(call: Call, found: Usage) -> None:
    columns = ["name", "commits>", "stored>", "alone>", "shared>", "original>"]
    rows = [
        [
            one.name,
            f"{one.commits:,}",
            *(format_bytes(size) for size in (one.stored, one.alone, one.shared, one.original)),
        ]
        for one in found.items
    ]
    if found.items and found.items[0].kind in ("folder", "trees"):
        columns[:2] = ["folder"]
        rows = [[row[0], *row[2:]] for row in rows]
    call.table(columns, rows)
    if found.store is not None:
        if rows:
            call.line("")
        _write_store(call, found.store, found.url, found.lost)
    if found.lost:
        call.warn(f"lost: {format_count(found.lost, 'object')} of commits, which dsv verify lists")


def _write_store(call: Call, store: StoreUsed, url: str, lost: int) -> None:
    packs, expired = store.packs, store.expired
    frames = (
        packs.bytes
        - store.needed.stored
        - store.unused.stored
        - store.duplicates.stored
        - packs.unindexed_bytes
    )
    rows = [
        ("needed", store.needed.stored, f"{format_bytes(store.needed.original)} before compression"),
        ("expired", expired.alone, f"of {format_count(expired.commits, 'expired commit')} alone"),
        ("unused", store.unused.stored + packs.unindexed_bytes, "of no commit"),
        ("duplicates", store.duplicates.stored, "stored in several packs"),
        ("frames", frames, f"of {format_count(packs.count, 'pack')}"),
        ("indexes", store.indexes, ""),
        ("commits", store.commits, ""),
        ("names", store.names, ""),
        ("runs", store.runs, ""),
        ("other", store.other, "sessions, garbage collections, erasures, the format log"),
        ("total", store.total, printable(url)),
    ]
    for name, size, note in rows:
        if size or name in ("needed", "unused", "total"):
            call.line(f"{name:<10} {format_bytes(size):>10}  {note}".rstrip())
    call.line("")
    ways = (
        (packs.free, packs.free_bytes, "at once"),
        (packs.rewritten, packs.rewritten_bytes, "by writing anew what is needed"),
    )
    freed = " and ".join(
        f"{format_bytes(size)} {how} ({format_count(count, 'pack')})" for count, size, how in ways if count
    )
    none = "nothing, as something that is needed is lost" if lost else "nothing"
    call.line(f"gc would free {none if lost else freed or none}")
    if packs.partly:
        call.line(
            f"it would leave {format_bytes(packs.partly_unused_bytes)} that nothing needs in "
            f"{format_count(packs.partly, 'pack')} of which most is needed, or that are too much for one time"
        )
    if packs.missing:
        call.warn(f"not there: {format_count(packs.missing, 'pack')} that an index names; dsv verify")
