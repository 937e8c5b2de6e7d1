"""dsv cached --check: what was read again, and what was wrong."""

from __future__ import annotations

from collections.abc import Sequence

from dsv.api.cache_check import CheckedItem, CheckReport, check
from dsv.cli.call import Call
from dsv.errors import IntegrityError
from dsv.model.names import Target
from dsv.model.units import format_bytes, format_count

SHOWN = 20
"""Wrong paths of one commit that are told; JSON has all."""


def check_cache(call: Call, targets: Sequence[Target], *, repair: bool) -> None:
    """Raises `IntegrityError` where something still is wrong."""
    folder = call.settings.cache().path
    with call.context() as context:
        report = check(context, folder, targets, repair=repair)
    for item in report.items:
        if item.foreign:
            call.warn(
                f"{item.path} has {format_count(item.foreign, 'file')} that were never committed: "
                f"{', '.join(item.foreign_paths)}"
            )
    if report.exit_code:
        raise _still_wrong(report, str(folder), repair=repair)
    if call.json:
        call.document({"cache": str(folder), "checked": [_item(item) for item in report.items]})
        return
    for item in report.items:
        what = f"{item.repaired} of them repaired: {_paths(item)}" if item.wrong else "as committed"
        call.line(f"{item.path}: {format_count(item.files, 'file')}, {format_bytes(item.bytes)}, {what}")


def _still_wrong(report: CheckReport, folder: str, *, repair: bool) -> IntegrityError:
    lines = [
        f"{item.path}: "
        + (
            item.problem
            or f"{len(item.wrong) - item.repaired} of {format_count(item.files, 'file')}: {_paths(item)}"
        )
        for item in report.items
        if item.still_wrong
    ]
    mends = not repair and all(item.problem is None for item in report.items)
    return IntegrityError(
        "cached files are not what was committed:\n  " + "\n  ".join(lines),
        subject=folder,
        hint="dsv cached --check TARGET repairs them" if mends else "dsv evict TARGET, then dsv cache TARGET",
    )


def _paths(item: CheckedItem) -> str:
    told = [f"{wrong.path} ({wrong.problem})" for wrong in item.wrong[:SHOWN]]
    if len(item.wrong) > SHOWN:
        told.append(f"and {len(item.wrong) - SHOWN:,} more")
    return ", ".join(told)


def _item(item: CheckedItem) -> dict[str, object]:
    return {
        "path": str(item.path),
        "dataset": str(item.dataset),
        "commit": str(item.commit),
        "files": item.files,
        "bytes": item.bytes,
        "wrong": [
            {"path": wrong.path, "problem": wrong.problem, "links": wrong.links} for wrong in item.wrong
        ],
        "repaired": item.repaired,
        "foreign": item.foreign,
    }
