"""What pin, unpin and release print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsv.api.claims import ClaimItem
from dsv.cli.call import Call
from dsv.cli.output import local_time, rfc3339
from dsv.model.ids import CommitId
from dsv.model.names import DatasetName

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
        call.items(_item(claim) for claim in claims)
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


def _item(claim: ClaimItem) -> dict[str, object]:
    return {
        "path": str(claim.path),
        "dataset": str(claim.dataset),
        "commit": str(claim.commit),
        "count": len(claim.ids),
        "ids": list(claim.ids),
        "until": None if claim.until is None else rfc3339(claim.until * 1000),
        "why": claim.why,
    }
