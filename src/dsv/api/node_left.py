"""The record of a run, completed where its job ran, from what that left: nobody else has to look at it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from dsv.api.context import Context
from dsv.api.output_tree import KeptOutput
from dsv.engines.base import Ended, JobStatus
from dsv.engines.slurm.end import left_here
from dsv.engines.slurm.program import NAME as SLURM
from dsv.model.node_order import NodeOrder
from dsv.model.run import RECORD, RunId, RunOutput, RunRecord, RunState
from dsv.periodic import Periodic
from dsv.repo.repository import Repository
from dsv.repo.runs import RunStore
from dsv.runs.completing import finish, forget_job, with_end, with_what_it_left
from dsv.runs.engines import Engines
from dsv.runs.jobs import FoundJob
from dsv.runs.known_secrets import KnownSecrets

ARGV: Final = "argv"
"""The file with the command as it was typed, each word ended by a NUL byte."""
_ALIVE: Final = 5.0
_MAX_ARGV: Final = 8 << 20


def complete_left(context: Context, engines: Engines, order: NodeOrder, folder: Path) -> bool:
    """Completes the record of a run from what its job left in this folder. False if that is left to others: the run has
    its record, its start is not in the store yet, or its end can't be told here.

    Several may do so at once, on whichever machine: one of them wins.
    """
    run = RunId.parse(order.run)
    with context.repository() as repository:
        runs = RunStore(repository.store)
        found = runs.listing(order.dataset, run)
        if not found or RECORD in found[0].parts:
            return False
        start = runs.read(found[0])
        done = left_here(folder) if start.engine == SLURM else None
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
    whole, log = with_what_it_left(with_end(start, done), job, secrets, logged=order.log)
    with _seen_alive(folder), output_kept(context, order, Path(order.out or ".")) as keep:
        whole = finish(RunStore(repository.store), replace(whole, output=keep(repository)), log)
    forget_job(whole, engines)
    return True


@contextmanager
def output_kept(
    context: Context, order: NodeOrder, folder: Path
) -> Iterator[Callable[[Repository], RunOutput | None]]:
    """What commits the output, if the run asks for that. gc keeps it until the record names it, which is to be written
    within this."""
    kept = KeptOutput(context, offline=False)

    def keep(repository: Repository) -> RunOutput | None:
        if not order.keep_output:
            return None
        return kept.keep(lambda: repository, order.dataset, folder, RunId.parse(order.run))

    try:
        yield keep
    finally:
        kept.close()


def read_argv(folder: Path) -> tuple[str, ...] | None:
    """None if it can't be read: then only the record tells the command."""
    try:
        with (folder / ARGV).open("rb") as file:
            data = file.read(_MAX_ARGV + 1)
    except OSError:
        return None
    if len(data) > _MAX_ARGV or not data.endswith(b"\0"):
        return None
    return tuple(os.fsdecode(each) for each in data[:-1].split(b"\0"))


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
