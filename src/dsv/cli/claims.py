"""What pin, unpin and release print."""

from __future__ import annotations

from collections.abc import Sequence

from dsv.api.cache import ClaimItem
from dsv.cli.call import Call
from dsv.cli.output import local_time, rfc3339

CLAIM_RESULT = {
    "items.path": "the cached commit's folder",
    "items.dataset": "the dataset",
    "items.commit": "the commit",
    "items.count": "how many claims were made or ended",
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
        many = f" ({claim.count} {ended}s)" if ended is not None and claim.count != 1 else ""
        call.line(f"{verb} {claim.path}{end}{many}")


def _item(claim: ClaimItem) -> dict[str, object]:
    return {
        "path": str(claim.path),
        "dataset": str(claim.dataset),
        "commit": str(claim.commit),
        "count": claim.count,
        "until": None if claim.until is None else rfc3339(claim.until * 1000),
        "why": claim.why,
    }
