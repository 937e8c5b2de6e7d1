"""Holds and the results of cache checks, for a person."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsv.api.cache_check import check
from dsv.cli.output import local_time, rfc3339
from dsv.errors import IntegrityError
from dsv.values.units import format_bytes, format_count

if TYPE_CHECKING:
    from dsv.api.cache_check import CheckedItem, CheckReport
    from dsv.api.claims import ClaimItem
    from dsv.cli.call import Call
    from dsv.values.ids import CommitId
    from dsv.values.names import DatasetName, Target

CLAIM_RESULT = {
    "items.path": "the cached commit's folder",
    "items.dataset": "the dataset",
    "items.commit": "the commit",
    "items.count": "how many claims were made or ended",
    "items.ids": "their ids",
    "items.until": "when the claim ends; null where it doesn't, or where it was ended",
    "items.why": "why it was pinned",
}


def write_claims(call: Call, claims: Sequence[ClaimItem], verb: str, ended: str | None) -> None:
    """A line for each; `ended` is what each of them was, where the command ended them."""
    if call.json:
        call.items(_claim_item(claim) for claim in claims)
        return
    for claim in claims:
        end = "" if claim.until is None else f" until {local_time(claim.until * 1000)}"
        many = f" ({len(claim.ids)} {ended}s)" if ended is not None and len(claim.ids) != 1 else ""
        call.line(f"{verb} {place_name(claim.dataset, claim.commit, part=is_part(claim.path))}{end}{many}")


def place_name(dataset: DatasetName, commit: CommitId, *, part: bool) -> str:
    """A cached commit as a line of text names it: `pets@f54d8ee9f991`, with a + for a part of it."""
    return f"{dataset}@{str(commit)[:12]}{'+' if part else ''}"


def is_part(folder: Path) -> bool:
    """Whether a cached commit's folder has only a part of the commit."""
    return "+" in folder.name


def _claim_item(claim: ClaimItem) -> dict[str, object]:
    return {
        "path": str(claim.path),
        "dataset": str(claim.dataset),
        "commit": str(claim.commit),
        "count": len(claim.ids),
        "ids": list(claim.ids),
        "until": None if claim.until is None else rfc3339(claim.until * 1000),
        "why": claim.why,
    }


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
        call.document({"cache": str(folder), "checked": [_check_item(item) for item in report.items]})
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


def _check_item(item: CheckedItem) -> dict[str, object]:
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
