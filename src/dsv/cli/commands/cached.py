"""dsv cached."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dsv.api.cached import CachedItem, CachedReport, RoomItem, check
from dsv.api.cached import cached as report_cache
from dsv.cache.claims import LeaseRecord
from dsv.cache.fill.check import Checked
from dsv.cli.call import Call
from dsv.cli.declare import command, option
from dsv.cli.options import Targets, one_of
from dsv.cli.output import first, local_time, printable, to_item
from dsv.errors import IntegrityError, UsageError
from dsv.values.names import Target
from dsv.values.paths import show
from dsv.values.units import format_bytes, format_count, format_duration

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
    recount: bool = option(
        "--recount", "First count the disk space of all that is cached, and correct the accounts."
    ),
    repair: bool | None = option(
        "--repair/--no-repair",
        "With --check: also remove files that were never committed, or change nothing.",
        show_default=False,
    ),
) -> None:
    """Show what is cached, who uses it, and the free space.

    Reads small records only, and needs no store. With --check every byte is read and compared with its id, and
    what is wrong is fetched from the store. Files that were never committed are only removed with --repair. Exit
    code 5: something is still wrong.
    """
    one_of(check=check, recount=recount)
    if check:
        check_cache(call, [Target.parse(text) for text in targets or ()], repair=repair)
        return
    if targets or repair is not None:
        raise UsageError(
            "TARGET requires --check" if targets else "--repair and --no-repair require --check",
            hint="dsv cached --check [TARGET]...",
        )
    report = report_cache(call.settings.cache().path, anew=recount)
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
        lines.append(f"held by {pin.user}{end} ({pin.id[:12]}){why}")
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

    repair: None replaces what is wrong, True also removes files never committed, False changes nothing.
    """
    folder = call.settings.cache().path
    with call.context() as context:
        results = check(context, folder, targets, repair=repair is not False, remove_foreign=repair is True)
    if wrong_ones := [item for item in results if item.still_wrong]:
        raise _still_wrong(wrong_ones, str(folder), repair=repair)
    keys = "path dataset commit files bytes wrong repaired foreign removed"
    checked = []
    for item in results:
        wrong = [to_item(problem, "path problem links") for problem in item.wrong]
        checked.append(to_item(item, keys, wrong=wrong))
    call.result(None, cache=folder, checked=checked)
    for item in results:
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
    if item.repaired:
        faults.append(f"repaired {item.repaired} of {format_count(len(item.wrong), 'wrong file')}")
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
    return ", ".join(first([f"{show(wrong.path)} ({wrong.problem})" for wrong in item.wrong]))
