"""dsv evict."""

from __future__ import annotations

from dsv.api.evict import evict as free_room
from dsv.cache.evict import EvictionResult
from dsv.cache.policy import CachedCommit
from dsv.cli.call import Call
from dsv.cli.declare import command, option, whole
from dsv.cli.options import DryRun, Targets
from dsv.cli.output import cached_name
from dsv.errors import DsvError
from dsv.values.names import Target
from dsv.values.units import format_bytes, format_count, parse_duration, parse_size


@command(
    "evict",
    examples="""
        dsv evict  # apply the cache owner's limits (by default: unused for a day); use it in cron
        dsv evict --dry-run --unused-for 12h  # show what would be evicted
        dsv evict --max-size 500G --min-free 10%  # stricter limits, least recently used first
    """,
    result=(
        "evicted(path dataset commit bytes freed_bytes reason) kept(path dataset commit reason) failed(path "
        "dataset commit problem half_removed) stuck(path of bytes files problem) freed_bytes exceeded "
        "dry_run"
    ),
)
def evict(
    call: Call,
    targets: Targets = None,
    unused_for: str | None = option(
        "--unused-for DURATION",
        "Evict what was not used for this long, or for the owner's unused_for (1d by default) if that is shorter.",
    ),
    max_size: str | None = option("--max-size SIZE", "Evict until the cache is no larger than this."),
    max_files: int | None = option("--max-files N", "Evict until it has no more files.", parser=whole(0)),
    min_free: str | None = option("--min-free SIZE|PERCENT", "Evict until this much of the disk is free."),
    everything: bool = option("--all", "Evict all that is not in use, held or protected."),
    dry_run: DryRun = False,
) -> int:
    """Free cache space.

    Without options it applies the limits of the cache's dsv-cache.toml; an option only makes them stricter. What a
    run or a hold uses and what the owner protects stays. The store is never touched. Prints a line for each evicted
    commit, and nothing if there was none (--all and --dry-run say so); exit code 7 says that a limit is still
    exceeded. A commit that can't be removed does not stop the others; the exit code is then that of the failure.
    """
    gone: list[CachedCommit] = []
    wanted = [Target.parse(text) for text in targets or ()]
    with call.context() as context:
        try:
            report = free_room(
                context,
                call.settings.cache().path,
                wanted,
                unused_for=None if unused_for is None else parse_duration(unused_for),
                max_size=None if max_size is None else parse_size(max_size),
                max_files=max_files,
                min_free=min_free,
                everything=everything,
                dry_run=dry_run,
                on_evicted=gone.append,
            )
        except DsvError:
            for item in gone:  # the failure leaves stdout empty, but these were evicted
                call.say(_line(item, dry_run=False))
            raise
    _tell(call, report, dry_run=dry_run, say_kept=everything or dry_run)
    if (everything or dry_run) and not (report.evicted or report.failed):
        call.say(f"nothing to evict in {call.settings.cache().path}")
    return report.exit_code


def _tell(call: Call, report: EvictionResult, *, dry_run: bool, say_kept: bool) -> None:
    for item in report.evicted:
        (call.line if dry_run or report.exit_code else call.routine)(_line(item, dry_run=dry_run))
    for item in report.evicted:
        if item.foreign:
            named = ", ".join(item.foreign_paths)
            call.warn(f"{_name(item)} had {format_count(item.foreign, 'file')} not created by dsv: {named}")
    if say_kept:
        for kept in report.kept:
            call.say(f"kept {_name(kept)}: {kept.reason}")
    for error in report.errors:
        call.complain(error)
    for limit in report.exceeded:
        call.warn(f"still exceeded: {limit}")
    call.result(report, dry_run=dry_run)


def _line(item: CachedCommit, *, dry_run: bool) -> str:
    verb, freed = ("would evict", "to free") if dry_run else ("evicted", "freed")
    shared = " (others share its files)" if item.freed_bytes == 0 < item.bytes else ""
    return f"{verb} {_name(item)}: {item.reason}, {format_bytes(item.freed_bytes)} {freed}{shared}"


def _name(item: CachedCommit) -> str:
    return cached_name(item.place.dataset_name, item.commit, item.path)
