"""Copying records of runs to another store, each with the code and the output that it names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from dsv.api.context import Context
from dsv.errors import DsvError
from dsv.format.keys import run_key
from dsv.repo.expiry import read_expiry
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.run.record import MAX_RECORD, RECORD
from dsv.run.record_store import RunStore
from dsv.upkeep.copy import CommitCopy, Receiver
from dsv.values.names import DatasetName


@dataclass(slots=True)
class CopiedRuns:
    copied: int = 0
    """Records of ended runs that were copied."""
    lacking: int = 0
    """Records that name commits which the other store does not have, or whose code or output is expired here."""
    bytes: int = 0
    """The size of packs and index files that were sent for code and output."""


def copy_runs(
    context: Context,
    source: Repository,
    there: Repository,
    datasets: Sequence[DatasetName],
    skipped: Callable[[DsvError], None],
    *,
    dry_run: bool,
) -> CopiedRuns:
    """Copy the records of ended runs on these datasets that the other store lacks.

    A record is copied only if all commits that it names are there, because gc stops at one that names what is missing.
    Its code and output, which no branch names, are copied before it. skipped: called with the error of each record that
    can't be read
    """
    done, runs, known = CopiedRuns(), RunStore(source.store), RunStore(there.store)
    for dataset in datasets:
        have = {stored.run for stored in known.listing(dataset) if RECORD in stored.parts}
        listed = runs.listing(dataset)
        wanted = {run.run: run for run in listed if RECORD in run.parts and run.run not in have}
        freed = read_expiry(source.refs, dataset).states if wanted else {}
        for record in runs.read_all(wanted.values(), skipped):
            inputs = {(data.dataset, data.commit) for data in record.data}
            trees = [tree for of, tree in record.commits if (of, tree) not in inputs]
            is_whole = all(
                (dry_run and of in datasets) or there.objects.stored_commit(commit) is not None
                for of, commit in inputs
            )
            if not is_whole or any(tree in freed for tree in trees):
                done.lacking += 1
                continue
            done.copied += 1
            with ExitStack() as sessions:  # gc keeps the trees until the record names them
                for tree in () if dry_run else trees:
                    session = sessions.enter_context(Session.open(there, context.writer, resumed=False))
                    with Receiver(session) as receiver:
                        CommitCopy(source.objects, session, receiver, context.progress, None).copy([tree], ())
                        done.bytes += receiver.uploaded_bytes
                    session.declare(tree)
                parts = () if dry_run else wanted[record.run].parts
                for part in sorted(parts, key=lambda part: part == RECORD):
                    data = source.store.get(run_key(dataset, record.run, part), MAX_RECORD)
                    known.add(dataset, record.run, part, data)
    return done
