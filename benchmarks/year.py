"""What a year costs on S3, on paper: `python -m benchmarks.year` prints the table of docs/internals/performance.md.

Requests of a command are those of tests/counts/test_requests.py, each at most. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

LIST_PUT, GET = 0.005 / 1000, 0.0004 / 1000
"""US$ a request: S3 Standard, us-east-1, as published in November 2026 (https://aws.amazon.com/s3/pricing/)."""
STORAGE = ((50_000, 0.023), (450_000, 0.022))
"""GB, and US$ for each of them a month; the next 450,000 after the first 50,000."""
DAYS, WEEKS, MONTHS = 365, 52, 12
EDITS, HITS, COLD = 50, 1000, 20
"""A day: edits of a file; `dsv cache` of what is there, by 20 users with 50 jobs each; `dsv cache` of a new commit."""
BYTES = 200e12
PACK = 32 << 20
READ = 8 << 20
"""Bytes of a read, at most."""
FULL_READS = 2
"""How often each byte leaves the store in a year, to fill caches."""
PAGE = 1000
FOLDERS = 65_536
"""Listings of one round of `verify --budget`, one for each part of the ids of packs."""


@dataclass(frozen=True)
class Row:
    what: str
    formula: str
    lists_and_puts: float
    gets: float

    @property
    def usd(self) -> float:
        return self.lists_and_puts * LIST_PUT + self.gets * GET


def rows() -> Iterator[Row]:
    packs = BYTES / PACK
    pages = packs / PAGE
    yield Row("edits", "50 a day, 22 requests each, 13 of them LIST or PUT", *_times(EDITS * DAYS, 13, 9))
    yield Row("cache hits", "1,000 a day, 5 requests each", *_times(HITS * DAYS, 1, 4))
    yield Row("cache of a new commit", "20 a day, 10 requests each", *_times(COLD * DAYS, 2, 8))
    yield Row("filling caches", "each byte twice, in reads of 8 MiB", 0, FULL_READS * BYTES / READ)
    yield Row(
        "`verify --budget` each night", "each pack twice, 65,536 listings a round", 2 * FOLDERS, 2 * packs
    )
    yield Row("`verify` each week", "all packs listed", *_times(WEEKS, pages, 0))
    yield Row(
        "`gc` each week",
        "all packs listed twice, new trees and moves read",
        *_times(WEEKS, 2 * pages, 3 * EDITS * 7),
    )
    yield Row("`expire` each week", "new moves and commits read", *_times(WEEKS, 5, 2 * EDITS * 7))


def _times(count: float, lists_and_puts: float, gets: float) -> tuple[float, float]:
    return count * lists_and_puts, count * gets


def storage() -> float:
    """Return US$ a year for the bytes."""
    left, month = BYTES / 1e9, 0.0
    for most, price in STORAGE:
        month += min(left, most) * price
        left -= min(left, most)
    return month * MONTHS


def table() -> str:
    made = [*rows()]
    lines = ["| in a year | how many | LIST and PUT | GET | US$ |", "|---|---|--:|--:|--:|"]
    lines += [
        f"| {one.what} | {one.formula} | {one.lists_and_puts:,.0f} | {one.gets:,.0f} | {one.usd:,.2f} |"
        for one in made
    ]
    puts, gets, usd = (
        sum(column) for column in zip(*((one.lists_and_puts, one.gets, one.usd) for one in made), strict=True)
    )
    lines.append(f"| all requests | | {puts:,.0f} | {gets:,.0f} | {usd:,.2f} |")
    lines.append(
        f"| 200 TB kept | 50 TB at $0.023 and 150 TB at $0.022 for each GB and month | | | {storage():,.0f} |"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
