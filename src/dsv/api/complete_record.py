"""The record of a run, completed where its job ran, from what that left: nobody else has to look at it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from dsv.api.context import Context
from dsv.api.node_pod import complete_pod
from dsv.api.output_kept import ARGV, output_kept, read_argv
from dsv.errors import NotFound
from dsv.periodic import Periodic
from dsv.repo.repository import Repository
from dsv.run.completing import completed, finish, forget_job, with_what_it_left
from dsv.run.engine_list import Engines, FoundJob
from dsv.run.engines.base import Ended, JobStatus
from dsv.run.engines.kubernetes.options import NAME as KUBERNETES
from dsv.run.engines.slurm.exit_files import read_left
from dsv.run.engines.slurm.job_status import left_here
from dsv.run.engines.slurm.program import NAME as SLURM
from dsv.run.node import NodeSeat
from dsv.run.node_order import NodeOrder
from dsv.run.record import RECORD, RunId, RunRecord, RunState
from dsv.run.record_store import RunStore
from dsv.run.records import KnownSecrets

_ALIVE: Final = 5.0
_ALONE: Final = NodeSeat()


def complete_left(
    context: Context, engines: Engines, order: NodeOrder, folder: Path, seat: NodeSeat = _ALONE
) -> bool:
    """Completes the record of a run from what its job left in this folder. False if that is left to others: the run has
    its record, its start is not in the store yet, not all nodes have ended, or its end can't be told here.

    seat: whose folder it is, if each node has its own.

    Several may do so at once, on whichever machine: one of them wins.
    """
    run = RunId.parse(order.run)
    with context.repository() as repository:
        runs = RunStore(repository.store)
        found = runs.listing(order.dataset, run)
        if not found or RECORD in found[0].parts:
            return False
        try:
            start = runs.read(found[0])
        except NotFound:  # whoever submitted it has not written its start yet
            return False
        if start.engine == KUBERNETES:
            return complete_pod(context, repository, engines, order, start, folder, seat)
        done = left_here(read_left(folder)) if start.engine == SLURM else None
        if done is None or (start.then and not done.launched):
            return False
        return _complete(context, repository, engines, order, start, done, folder)


def _complete(
    context: Context,
    repository: Repository,
    engines: Engines,
    order: NodeOrder,
    start: RunRecord,
    done: Ended,
    folder: Path,
) -> bool:
    engine = engines.make(start.engine, start.pool)
    if engine is None or start.job is None:
        return False
    secrets = KnownSecrets.on_node(start, engines.environ, read_argv(folder))
    job = FoundJob(engine, start.job, JobStatus(RunState.ENDED, done.exit_code, done))
    whole, log = with_what_it_left(completed(start, done), job, secrets, logged=order.log)
    with _seen_alive(folder), output_kept(context, order, Path(order.out or ".")) as keep:
        whole = finish(RunStore(repository.store), replace(whole, output=keep(repository)), log)
    forget_job(whole, engines)
    return True


@contextmanager
def _seen_alive(folder: Path) -> Iterator[None]:
    """Whoever looks at the job meanwhile, on another machine, is told that its record is being completed."""

    def tell() -> float:
        with suppress(OSError):
            os.utime(folder / ARGV)
        return _ALIVE

    telling = Periodic("dsv-complete", tell)
    telling.start()
    try:
        yield
    finally:
        telling.stop()
