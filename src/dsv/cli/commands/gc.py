"""dsv gc."""

from __future__ import annotations

from collections.abc import Iterator

from dsv.api.space import PRICES, Collection, GcForecast, Requests, collect, forecast
from dsv.cli.call import Call
from dsv.cli.declare import command, option
from dsv.cli.options import Author, DryRun
from dsv.cli.output import free_from
from dsv.errors import UsageError
from dsv.values.units import format_bytes, format_count


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
    budget: int | None = option("--budget TIME", "Copy nothing more after TIME."),
    max_repack: int | None = option("--max-repack SIZE", "Copy at most SIZE out of packs (default: 100GB)."),
    max_wait: int | None = option("--max-wait TIME", "Wait at most TIME for others who write (default: 6h)."),
    grace: int | None = option("--grace TIME", "Keep what expired within TIME (default: --undo-for, or 2w)."),
    dry_run: DryRun = False,
    yes: bool = option("--yes", "Do not ask."),
    author: Author = None,
) -> None:
    """Delete unreferenced data from a store.

    That is the content of commits that expired two weeks ago or earlier (dsv expire --undo-for), and what interrupted
    syncs have left. Everybody can keep working meanwhile. Packs of which nothing is needed are deleted. If less than
    half of a pack is needed, that part is copied to a new pack first. Many small packs, as edits make them, are
    joined to a few in the same way, so that reading takes fewer requests.

    gc waits for those who were writing when it began: until they are done, or have been silent for an hour. Any error
    ends it before more is deleted. A gc that was killed is continued by the next one, on any machine.

    What gc deletes can't be restored. It shows what it will delete, and asks; without a terminal it needs --yes.
    """
    from dsv.upkeep.gc import Options

    given = {"budget": budget, "max_repack": max_repack, "max_wait": max_wait, "grace": grace}
    options = Options(**{name: value for name, value in given.items() if value is not None})
    if dry_run and yes:
        raise UsageError("--dry-run deletes nothing, and --yes is about deleting", hint="dsv gc --dry-run")
    if not (dry_run or yes or call.can_ask):
        raise UsageError(
            "dsv gc deletes for good; there is no terminal to confirm on, so nothing was deleted",
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


def _tell_forecast(call: Call, found: GcForecast) -> None:
    head = call.head(
        found, dry_run=True, continued=found.unfinished, rewritten=found.packs.rewritten, copied_bytes=found.copied,
        spared=0, **_price(found.url, found.requests),
    )  # fmt: skip
    call.items(map(call.item, found.datasets), head)
    for line in _lines(found):
        call.line(line)


def _lines(sizes: GcForecast) -> Iterator[str]:
    for dataset in sizes.datasets:
        yield f"{dataset.dataset}: {format_bytes(dataset.stored)} of {format_count(dataset.commits, 'expired commit')}"
    if sizes.shared:
        yield f"expired commits of several datasets: {format_bytes(sizes.shared)}"
    if sizes.unused:
        yield f"unreferenced: {format_bytes(sizes.unused)}"
    packs = sizes.packs
    if sizes.free_from_ms is not None:
        waiting, when = format_count(sizes.waiting, "expired commit"), free_from(sizes.free_from_ms)
        yield f"{waiting} can be freed {when} (--grace)"
    if not (sizes.deleted or sizes.unfinished):
        yield "nothing to free"
        return
    if sizes.deleted:
        yield f"would delete {_packs(sizes.deleted, sizes.deleted_bytes, sizes.copied)}"
    yield f"would free {format_bytes(sizes.freed)} of {format_bytes(packs.bytes)}"
    if packs.joined.packs:
        yield packs.joined.text
    if packs.partly:
        yield (
            f"would leave {format_bytes(packs.partly_unused_bytes)} unused in "
            f"{format_count(packs.partly, 'pack')}"
        )
    if sizes.unfinished:
        yield "would finish an earlier garbage collection first"
    yield f"about {_requests(sizes.url, sizes.requests)}"


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
        call.routine(f"freed {format_count(count, 'expired commit')} of {dataset}")
    packs = _packs(done.deleted, done.deleted_bytes, done.copied_bytes)
    call.routine(f"deleted {packs}" if done.deleted else "nothing to delete")
    if done.plan is not None and done.plan.joined.packs:
        call.routine(done.plan.joined.text)
    if done.continued:
        call.say("this includes what an earlier garbage collection had begun")
    if done.spared:
        call.say(f"{format_count(done.spared, 'pack')} kept: in use again")
    if left:
        call.say(f"{format_count(left, 'pack')} left to repack: run dsv gc again")
    call.say(_requests(collected.url, collected.requests))


def _packs(count: int, size: int, copied: int) -> str:
    """Return `3 packs (40.1 GB), 664 MB of it copied to new packs first`."""
    first = f", {format_bytes(copied)} of it copied to new packs first" if copied else ""
    return f"{format_count(count, 'pack')} ({format_bytes(size)}){first}"


def _price(url: str, requests: Requests) -> dict[str, object]:
    usd, prices = (requests.usd, PRICES) if _is_sold(url) else (None, None)
    return {"requests": requests, "price_usd": usd, "price_list": prices}


def _requests(url: str, requests: Requests) -> str:
    counts = (
        f"{requests.list:,} LIST, {requests.put:,} PUT, {requests.get:,} GET and {requests.delete:,} DELETE"
    )
    return f"{counts} requests" + (f", ${requests.usd:.4f} ({PRICES})" if _is_sold(url) else "")


def _is_sold(url: str) -> bool:
    """Return whether requests to a store have a price: requests to a folder have none."""
    return "://" in url and not url.startswith(("file:", "memory:"))
