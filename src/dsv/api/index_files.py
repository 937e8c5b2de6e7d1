"""The index files of a store: proving them, and merging them."""

from __future__ import annotations

from collections.abc import Iterator

from dsv.api.context import Context
from dsv.api.doctor import Finding, State
from dsv.errors import DsvError, NotFound
from dsv.repo.check_indexes import IndexReport, check_indexes
from dsv.repo.merge_indexes import Merged, merge_indexes
from dsv.repo.repository import Repository


def examine_indexes(context: Context) -> Iterator[Finding]:
    """Nothing if there is no store, or it can't be reached: `examine_store` tells of that."""
    try:
        with context.repository() as repository:
            report = _report(repository)
    except NotFound:
        return
    except DsvError as error:
        report = error
    if isinstance(report, DsvError):
        yield Finding("index files", State.FAIL, report.message, report.hint)
        return
    for fault in report.faults:
        yield Finding("index files", State.FAIL, fault.text, fault.hint)
    if not report.faults:
        some = "" if report.read == report.files else f"{report.read:,} of "
        yield Finding(
            "index files",
            State.OK,
            f"{some}{report.files:,} are whole; a sync needs to know {report.standing:,} of them",
        )


def _report(repository: Repository) -> IndexReport | DsvError:
    """The result of a check, or why it failed. A missing index file is a failure too, and not an absent store."""
    try:
        return check_indexes(repository)
    except DsvError as error:
        return error


def merge_index_files(context: Context) -> Merged:
    """Merges as long as there is something to merge, or to delete. Raises `Denied` if one may not write."""
    merged = deleted = 0
    with context.repository() as repository:
        while True:
            done = merge_indexes(repository, context.writer)
            merged, deleted = merged + done.merged, deleted + done.deleted
            if not done.merged and not done.deleted:
                return Merged(merged, done.files, deleted)
