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


def check_cache(call: Call, targets: Sequence[Target], *, repair: bool | None) -> None:
    """Raises `IntegrityError` if something is still wrong.

    repair: None replaces what is wrong; True also removes what was never committed; False changes nothing.
    """
    folder = call.settings.cache().path
    with call.context() as context:
        report = check(context, folder, targets, repair=repair is not False, remove_foreign=repair is True)
    if report.exit_code:
        raise _still_wrong(report, str(folder), repair=repair)
    if call.json:
        call.document({"cache": str(folder), "checked": [_item(item) for item in report.items]})
        return
    for item in report.items:
        done = []
        if item.wrong:
            done.append(f"repaired {item.repaired}: {_paths(item)}")
        if item.removed:
            done.append(f"removed {_foreign(item, item.removed)}")
        what = "; ".join(done) or "as committed"
        call.line(f"{item.path}: {format_count(item.files, 'file')}, {format_bytes(item.bytes)}, {what}")


def _still_wrong(report: CheckReport, folder: str, *, repair: bool | None) -> IntegrityError:
    wrong = [item for item in report.items if item.still_wrong]
    return IntegrityError(
        "cached files are not what was committed:\n  "
        + "\n  ".join(f"{item.path}: {_fault(item)}" for item in wrong),
        subject=folder,
        hint=_hint(wrong, repair=repair),
    )


def _fault(item: CheckedItem) -> str:
    if item.problem is not None:
        return item.problem
    faults = []
    if item.repaired < len(item.wrong):
        faults.append(
            f"{len(item.wrong) - item.repaired} of {format_count(item.files, 'file')}: {_paths(item)}"
        )
    if item.removed < item.foreign:
        faults.append(_foreign(item, item.foreign - item.removed))
    return "; ".join(faults)


def _hint(wrong: list[CheckedItem], *, repair: bool | None) -> str:
    first = f"{wrong[0].dataset}@{str(wrong[0].commit)[:12]}"
    if repair is True or any(item.problem is not None for item in wrong):
        return f"dsv evict {first}, then dsv cache {first}"
    if any(item.removed < item.foreign for item in wrong):
        return f"dsv cached --check --repair {first} removes files that were never committed"
    return f"dsv cached --check {first} repairs it"


def _foreign(item: CheckedItem, count: int) -> str:
    rest = count - len(item.foreign_paths)
    more = f" and {rest:,} more" if rest > 0 else ""
    return f"{format_count(count, 'file')} never committed: {', '.join(item.foreign_paths)}{more}"


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
        "removed": item.removed,
    }
