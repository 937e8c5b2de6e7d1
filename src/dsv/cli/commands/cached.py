"""dsv cached, evict, hold and release."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dsv.api import holds as api
from dsv.api.cached import CachedItem, CachedReport, RoomItem, check
from dsv.api.cached import cached as report_cache
from dsv.api.evict import evict as free_room
from dsv.cache.claims import LeaseRecord
from dsv.cache.evict import EvictionResult
from dsv.cache.fill.check import Checked
from dsv.cache.policy import CachedCommit
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option, whole
from dsv.cli.options import DryRun, Targets
from dsv.cli.output import cached_name, first, local_time, printable, to_item
from dsv.errors import DsvError, IntegrityError, UsageError
from dsv.values.names import Target
from dsv.values.paths import show
from dsv.values.units import format_bytes, format_count, format_duration, parse_duration, parse_size

_LEASE = "id purpose user host run job process program until"
_PIN = "id user why since until"


@command(
    "cached",
    examples="""
        dsv cached  # the cache in effect
        dsv cached --check chest-xray@v1  # read it again, and repair what a bad disk did
        dsv cached --json | jq -r '.items[] | select(.leases == []) | .path'  # what nobody is using
    """,
    result=(
        "cache items(path dataset commit selection names made_for files bytes own_bytes cached_by cached_on "
        "cached last_use leases pins protected complete may_go) fills(dataset commit files files_done bytes "
        "bytes_done room_left workers live) room foreign trash(path bytes files counted) checked(path "
        "dataset commit files bytes wrong repaired foreign removed)"
    ),
)
def cached(
    call: Call,
    targets: Targets = None,
    check: bool = option("--check", "Read cached files (of TARGET, or all) again, and repair what is wrong."),
    repair: bool | None = option(
        "--repair/--no-repair",
        "With --check: also remove files that were never committed, or change nothing.",
        show_default=False,
    ),
) -> None:
    """Show what is cached, who uses it, and the free space.

    Reads small records only, and asks no store. With --check every byte is read and compared with its id, and
    what is wrong is fetched from the store. Files that were never committed are only removed with --repair. Exit
    code 5: something is still wrong.
    """
    if check:
        check_cache(call, [Target.parse(text) for text in targets or ()], repair=repair)
        return
    if targets or repair is not None:
        raise UsageError(
            "TARGET requires --check" if targets else "--repair and --no-repair require --check",
            hint="dsv cached --check [TARGET]...",
        )
    report = report_cache(call.settings.cache().path)
    items = []
    for item in report.items:
        leases = [to_item(lease, _LEASE) for lease in item.leases]
        items.append(call.item(item, leases=leases, pins=[to_item(pin, _PIN) for pin in item.pins]))
    call.result(report, items=items)
    _write(call, report)


def _write(call: Call, report: CachedReport) -> None:
    _write_items(call, report)
    for fill in report.fills:
        by = f"fetched by {', '.join(fill.workers)}"
        state = by if fill.live else "interrupted; the next 'dsv cache' continues it"
        size = f"{format_bytes(fill.bytes_done)} of {format_bytes(fill.bytes)}"
        files = f"{fill.files_done:,} of {format_count(fill.files, 'file')}"
        call.line(f"{fill.dataset}@{str(fill.commit)[:12]}: {size}, {files}, {state}")
    if report.items or report.fills:
        call.line("")
    call.line(_room(report))
    for limit in report.room.exceeded:
        call.line(f"exceeded: {limit}")
    for trash in report.trash:
        size = f"{format_bytes(trash.bytes)} in {format_count(trash.files, 'file')}"
        call.warn(
            f"{'' if trash.counted else 'more than '}{size} of evicted data not deleted yet, in {trash.path}: "
            "'dsv evict' deletes it, or reports why it can't"
        )
    for name in report.foreign:
        call.warn(f"{report.cache / name} was not created by dsv, and is ignored")


def _write_items(call: Call, report: CachedReport) -> None:
    columns = ["dataset", "commit", "names~", "files>", "size>", "own>", "last use", "cached by~"]
    now = time.time()
    rows = [
        [
            str(item.dataset),
            str(item.commit)[:12] + ("+" if item.selection else ""),
            ", ".join(item.names) or item.made_for or "-",
            f"{item.files:,}",
            format_bytes(item.bytes),
            format_bytes(item.own_bytes),
            _ago(now - item.last_use),
            item.cached_by or "-",
        ]
        for item in report.items
    ]
    call.table(columns, rows, [_details(item) for item in report.items])


def _details(item: CachedItem) -> list[str]:
    """Return the lines below a row of the table: the selected parts, and who uses or holds the commit."""
    lines = []
    if item.selection:
        lines.append(f"only {', '.join(item.selection)}")
    lines.extend(_lease(lease) for lease in item.leases)
    for pin in item.pins:
        end = "" if pin.until is None else f" until {_time(pin.until)}"
        why = f": {pin.why}" if pin.why else ""
        lines.append(f"held by {pin.user}{end}{why}")
    if item.protected:
        lines.append("protected by the cache's owner")
    if not item.complete:
        lines.append("its record is missing: run 'dsv evict', then 'dsv cache' again")
    return [printable(line) for line in lines]


def _lease(lease: LeaseRecord) -> str:
    if lease.process is not None and lease.run is None:
        return f"{lease.program} (process {lease.process}) of {lease.user}@{lease.host}"
    what = {"run": f"run {lease.run or ''}".rstrip(), "hold": "held", "stage": "being staged"}
    job = f" in job {lease.job}" if lease.job else ""
    hold = f" ({lease.id[:12]})" if lease.purpose == "hold" else ""
    who = f"{lease.user}@{lease.host}{job}"
    return f"{what.get(lease.purpose, lease.purpose)} by {who} until {_time(lease.until)}{hold}"


def _room(report: CachedReport) -> str:
    room = report.room
    parts = [
        f"{report.cache}: {format_bytes(room.used_bytes)} used in {format_count(room.used_files, 'file')}"
    ]
    if room.metadata_bytes:
        parts[0] += f" ({format_bytes(room.metadata_bytes)} of it metadata)"
    if room.reserved_bytes:
        parts.append(f"{format_bytes(room.reserved_bytes)} reserved")
    parts.append(f"{format_bytes(room.free_bytes)} of {format_bytes(room.total_bytes)} free")
    limits = _limits(room)
    return ", ".join(parts) + (f"; limits: {', '.join(limits)}" if limits else "")


def _limits(room: RoomItem) -> list[str]:
    limits = []
    if room.max_size is not None:
        limits.append(f"at most {format_bytes(room.max_size)}")
    if room.max_files is not None:
        limits.append(f"at most {format_count(room.max_files, 'file')}")
    limits += [f"{amount} stay free" for amount in room.min_free]
    if room.unused_for is not None:
        limits.append(f"unused for {format_duration(room.unused_for)}")
    return limits


def _time(seconds: float) -> str:
    return local_time(seconds * 1000)


def _ago(seconds: float) -> str:
    return "now" if seconds < 10 else f"{format_duration(seconds)} ago"


def check_cache(call: Call, targets: Sequence[Target], *, repair: bool | None) -> None:
    """Check cached commits. Raises `IntegrityError` if something is still wrong.

    With `repair`, None replaces what is wrong, True also removes what was never committed, and False changes nothing.
    """
    folder = call.settings.cache().path
    with call.context() as context:
        found = check(context, folder, targets, repair=repair is not False, remove_foreign=repair is True)
    if wrong_ones := [item for item in found if item.still_wrong]:
        raise _still_wrong(wrong_ones, str(folder), repair=repair)
    keys = "path dataset commit files bytes wrong repaired foreign removed"
    checked = []
    for item in found:
        wrong = [to_item(one, "path problem links") for one in item.wrong]
        checked.append(to_item(item, keys, wrong=wrong))
    call.result(None, cache=folder, checked=checked)
    for item in found:
        done = []
        if item.wrong:
            done.append(f"repaired {item.repaired}: {_paths(item)}")
        if item.removed:
            done.append(f"removed {_foreign([path for path in item.strange if path not in item.left])}")
        what = "; ".join(done) or "as committed"
        call.line(f"{item.path}: {format_count(item.files, 'file')}, {format_bytes(item.bytes)}, {what}")


def _still_wrong(wrong: Sequence[Checked], folder: str, *, repair: bool | None) -> IntegrityError:
    first = f"{wrong[0].dataset}@{str(wrong[0].commit)[:12]}"
    anew = f"dsv evict {first}, then dsv cache {first}"
    return IntegrityError(
        "cached files are not what was committed:\n  "
        + "\n  ".join(f"{item.path}: {item.problem or _faults(item)}" for item in wrong),
        subject=folder,
        hint=anew
        if repair is True
        else f"dsv cached --check --repair {first} also removes files that were never committed; or {anew}"
        if repair is None or any(item.left for item in wrong)
        else f"dsv cached --check {first} repairs it; or {anew}",
    )


def _faults(item: Checked) -> str:
    faults = []
    if item.repaired < len(item.wrong):
        faults.append(
            f"{len(item.wrong) - item.repaired} of {format_count(item.files, 'file')}: {_paths(item)}"
        )
    if item.left:
        faults.append(_foreign(item.left))
    return "; ".join(faults)


def _foreign(paths: Sequence[bytes]) -> str:
    shown = ", ".join(first(list(map(show, paths))))
    return f"{format_count(len(paths), 'file')} never committed: {shown}"


def _paths(item: Checked) -> str:
    return ", ".join(first([f"{wrong.path} ({wrong.problem})" for wrong in item.wrong]))


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
    unused_for: str | None = option("--unused-for DURATION", "Evict what was not used for this long."),
    max_size: str | None = option("--max-size SIZE", "Evict until the cache is no larger than this."),
    max_files: int | None = option("--max-files N", "Evict until it has no more files.", parser=whole(0)),
    min_free: str | None = option("--min-free SIZE|PERCENT", "Evict until this much of the disk is free."),
    everything: bool = option("--all", "Evict all that is not in use, held or protected."),
    dry_run: DryRun = False,
) -> int:
    """Free cache space.

    Without options it applies the limits of the cache's dsv-cache.toml; an option only makes them stricter. What a
    run or a hold uses and what the owner protects stays. The store is never touched. Prints a
    line for each commit that went, and nothing when nothing was due (--all and --dry-run say so); exit code 7 says
    that a limit is still exceeded. A commit that can't be removed keeps no other from going; the exit code is then
    that of the failure.
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
            for item in gone:  # the failure leaves stdout empty, but these did go
                call.say(_line(item, dry_run=False))
            raise
    _tell(call, report, dry_run=dry_run, say_kept=everything or dry_run)
    if (everything or dry_run) and not (report.evicted or report.failed):
        call.say(f"nothing to evict in {call.settings.cache().path}")
    return report.exit_code


def _tell(call: Call, report: EvictionResult, *, dry_run: bool, say_kept: bool) -> None:
    for item in report.evicted:
        call.line(_line(item, dry_run=dry_run))
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
    wanted = [Target.parse(each) for each in targets]
    with call.context() as context:
        found = api.hold(context, call.settings.cache().path, wanted, why=message, seconds=seconds)
    _write_holds(call, found, "held")


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
    ids: list[str] | None = option("--id ID", "The hold of this id, or of one that begins so."),
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
    """Print a line for each commit, or the JSON document."""
    call.items(call.item(each, count=len(each.ids)) for each in holds)
    for item in holds:
        end = "" if item.until is None else f" until {local_time(item.until * 1000)}"
        many = f" ({len(item.ids)} holds)" if len(item.ids) != 1 else ""
        call.line(f"{verb} {cached_name(item.dataset, item.commit, item.path)}{end}{many}")
