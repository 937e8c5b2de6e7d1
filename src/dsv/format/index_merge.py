"""Merges of index files: their records, the index files that are in force, and the choice of files to merge.

A merge writes new index files with all the rows of others, a run, and then its record. From then on the others need not
be read, and may be deleted some time later. Everybody may merge: a record is true whatever others do meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from dsv.format.envelope import U32, Millis, Record, Short, is_sorted, learn
from dsv.values.ids import IndexId

MAX_FILES = 1 << 18
MERGE_MAX = (1 << 12) + 30 * MAX_FILES
"""Bytes of an `index-merge` record."""


class MergedFile(NamedTuple):
    """An index file of a run."""

    id: IndexId
    first: U32
    """The first 4 bytes of the id of its first row, as a number."""
    last: U32
    """The same of its last row."""


learn(MergedFile)


Run = tuple[MergedFile, ...]
"""The files that one merge has written."""


class IndexMerge(Record, frozen=True):
    """The record of a merge: `files` have all rows of the `replaced` files."""

    kind = "index-merge"
    limit = MERGE_MAX
    files: tuple[MergedFile, ...]
    runs: tuple[U32, ...]
    """The number of files in each run."""
    replaced: tuple[IndexId, ...]
    time_ms: Millis
    tool: Short

    @classmethod
    def of(cls, runs: Iterable[Run], replaced: Iterable[IndexId], time_ms: int, tool: str) -> IndexMerge:
        grouped = tuple(runs)
        files = tuple(chain.from_iterable(grouped))
        return cls(files, tuple(map(len, grouped)), tuple(sorted(set(replaced))), time_ms, tool)

    @property
    def by_run(self) -> tuple[Run, ...]:
        """The files of each run."""
        files = iter(self.files)
        return tuple(tuple(islice(files, count)) for count in self.runs)

    def fault(self) -> str | None:
        if not self.files or not all(self.runs) or sum(self.runs) != len(self.files):
            return "its runs are not those of its files"
        if not is_sorted(self.replaced):
            return "the files that were replaced are not sorted, each once"
        if len(self.files) + len(self.replaced) > MAX_FILES:
            return "it names too many files"
        if any(one.first > one.last for one in self.files):
            return "the last row of a file is before its first"
        return None


class Standing(msgspec.Struct, frozen=True):
    """The index files of a store that together have all rows."""

    runs: tuple[Run, ...]
    loose: tuple[IndexId, ...]
    """Files outside runs."""
    replaced: frozenset[IndexId]

    @property
    def files(self) -> dict[IndexId, MergedFile | None]:
        """Return what is to be read, and of the files of runs what they may hold."""
        found: dict[IndexId, MergedFile | None] = {one.id: one for run in self.runs for one in run}
        return found | dict.fromkeys(self.loose)


def stand(listed: Iterable[IndexId], records: Iterable[IndexMerge]) -> Standing:
    """Return what stands, of the files that were listed, by the latest records.

    A record counts only if all files of its runs were listed. If one of them was replaced in turn, by a merge that ran
    at the same time, the newer ones have its rows.
    """
    there = set(listed)
    valid = [record for record in records if all(one.id in there for one in record.files)]
    replaced = {index_id for record in valid for index_id in record.replaced} & there
    runs: dict[Run, None] = {}
    for record in valid:
        for run in record.by_run:
            left = tuple(one for one in run if one.id not in replaced)
            if left:
                runs[left] = None
    in_runs = {one.id for run in runs for one in run}
    return Standing(tuple(runs), tuple(sorted(there - replaced - in_runs)), frozenset(replaced))


class Unit(msgspec.Struct, frozen=True):
    """A unit of merging: a loose file, or a run."""

    files: tuple[IndexId, ...]
    rows: int


def units(standing: Standing, rows: Mapping[IndexId, int]) -> list[Unit]:
    found = [Unit(tuple(one.id for one in run), sum(rows[one.id] for one in run)) for run in standing.runs]
    return found + [Unit((one,), rows[one]) for one in standing.loose]


def crowd(found: Sequence[Unit], most_rows: int) -> int:
    """Return how many units may still be merged: one with half of the most rows stays as it is."""
    return sum(2 * unit.rows <= most_rows for unit in found)


def choose(found: Sequence[Unit], most_rows: int) -> list[Unit]:
    """Return the units to merge, smallest first, so that each of the others has at least twice the rows of all smaller
    ones.

    A row is then merged again only when what it lies in has grown by half: in all n log n rows are written for n, and
    log n units are left. Nothing is merged to more than `most_rows`.
    """
    ordered = sorted(found, key=lambda unit: unit.rows)
    chosen = total = 0
    for at, unit in enumerate(ordered):
        if total + unit.rows > most_rows or 2 * unit.rows > most_rows:
            break
        if unit.rows <= 2 * total:
            chosen = at + 1
        total += unit.rows
    return ordered[:chosen]
