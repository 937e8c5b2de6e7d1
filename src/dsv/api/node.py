"""Complete the record of a run on the machine where its job ran."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from msgspec import structs

from dsv.api.context import Context
from dsv.api.run_into import move_into
from dsv.api.run_output import commit_output
from dsv.errors import NotFound
from dsv.periodic import Periodic
from dsv.repo.repository import Repository
from dsv.run.completing import (
    completed,
    completed_by,
    end_of_parts,
    forget_job,
    join_logs,
    kept_log,
    known_secrets,
)
from dsv.run.dirs import hide_params, left_in
from dsv.run.engine_list import Engines, FoundJob
from dsv.run.engines.base import Ended, Engine, JobStatus
from dsv.run.engines.output import KeptLog, LogKeeper
from dsv.run.node_order import PASSED, NodeOrder
from dsv.run.once_claims import Beats
from dsv.run.part import EndCause, RunPart
from dsv.run.record import (
    RECORD,
    RunOutput,
    RunRecord,
    RunState,
    encode_part,
    joint_usage,
    node_log_name,
    part_name,
    start_name,
    start_number,
)
from dsv.run.record_store import RunStore, StoredRun
from dsv.values.secrets import Masker

ARGV: Final = "argv"
"""The file with the command as it was typed, each word terminated by a NUL byte."""
_MAX_ARGV: Final = 8 << 20


@contextmanager
def output_kept(
    context: Context, order: NodeOrder, start: RunRecord, environ: Mapping[str, str]
) -> Iterator[Callable[[Repository, RunRecord | None], RunOutput | None]]:
    """Yield a function that commits the output, if the run requests that, and moves its branch if the whole record,
    without the output, is known.

    gc keeps the commit until the end of the `with` block; a record must name it before.
    """
    if order.author is not None:
        writer = structs.replace(context.writer, author=order.author)
        context = structs.replace(context, writer=writer)
    with ExitStack() as opened:

        def keep(repository: Repository, whole: RunRecord | None) -> RunOutput | None:
            if not order.keep_output:
                return None
            folder, runs = Path(order.out), RunStore(repository.store)
            hide_params(folder, environ.get(f"{PASSED}DSV_PARAMS", ""), start.params)
            beats = Beats(repository.store, order.dataset, order.run)
            if order.beats:
                beats.start(joins=True)
            try:
                output = commit_output(context, lambda: repository, order.dataset, folder, start, opened)
            finally:
                beats.stop()
            output = replace(output, into=None if start.output is None else start.output.into)
            if whole is None or not output.is_due:
                return output
            _send_output(runs, runs.listing(order.dataset, order.run)[0], start, output)
            return move_into(context, replace(whole, output=output))

        yield keep


def read_argv(folder: Path) -> tuple[str, ...] | None:
    """Return the command as it was typed; None if that can't be read, and only the record has it."""
    try:
        with (folder / ARGV).open("rb") as file:
            data = file.read(_MAX_ARGV + 1)
    except OSError:
        return None
    if len(data) > _MAX_ARGV or not data.endswith(b"\0"):
        return None
    return tuple(os.fsdecode(each) for each in data[:-1].split(b"\0"))


_ALIVE: Final = 5.0


def complete_left(
    context: Context, engines: Engines, order: NodeOrder, folder: Path, node: int = 0, attempt: int = 1
) -> bool:
    """Complete the record of a run from the files of its job in this folder; return whether that was done.

    False if this is left to others: the run has its record, its start is not in the store yet, not all nodes
    have ended, or its end can't be known here. Several machines may do this at once; one of them wins. node,
    attempt: of the folder, if each node has its own.
    """
    with context.repository() as repository, context.sending_events(engines.environ) as send:
        runs = RunStore(repository.store, added=partial(send, repository.id))
        found = runs.listing(order.dataset, order.run)
        if not found or RECORD in found[0].parts:
            return False
        try:
            start = runs.read(found[0])
        except NotFound:  # the submitting process has not written its start yet
            return False
        engine = engines.make(start.engine, start.pool)
        left = None if engine is None else engine.left_on_node(folder, node, attempt)
        if engine is None or left is None:
            return False
        masker = known_secrets(start, engines.environ, on_node=True, command=read_argv(folder))
        if not engine.shares_folders:
            log = engine.log_on_node(folder) if order.log else None
            return _complete_node(context, repository, runs, engine, order, start, left, log, masker)
        if start.job is None or (start.then and not left.launched):
            return False
        job = FoundJob(engine, start.job, JobStatus(RunState.ENDED, left.exit_code, left))
        whole, kept = completed_by(job, start, left, masker, logged=order.log)
        with _seen_alive(folder), output_kept(context, order, start, engines.environ) as keep:
            whole = runs.add_end(replace(whole, output=keep(repository, whole)), kept)
        forget_job(whole, engines)
        return True


def _complete_node(
    context: Context,
    repository: Repository,
    runs: RunStore,
    engine: Engine,
    order: NodeOrder,
    start: RunRecord,
    left: Ended,
    log: LogKeeper | None,
    masker: Masker,
) -> bool:
    """Send this node's part and log, and complete the record if no other node and no other attempt follows.

    If only the cluster knows how the run ended, the process that asks it completes the record. But the output
    is sent, because it may be deleted with the pod, and so is the part of a job that a queue may restart: the
    cluster keeps no data of former pods, and numbers the attempts of new pods from 1.
    """
    if order.log and log is None:
        return False
    (part,) = left.parts
    if engine.environ.get("DSV_QUEUED"):
        earlier = runs.node_parts_and_usage(runs.listing(order.dataset, start.run)[0])
        part = _numbered(part, (each for each, _ in earlier))
    out, lost = Path(order.out), 0
    if left.seen or part.end is EndCause.EVICTED:
        kept = None if log is None else kept_log(start, lambda: log, masker)
        if kept is not None:
            runs.add(order.dataset, start.run, node_log_name(part.node, part.attempt), kept.data)
            lost = kept.total - len(kept.data)
        name = part_name(part.node, part.attempt)
        runs.add(order.dataset, start.run, name, encode_part(part, left.usage))
    stored = runs.listing(order.dataset, start.run)[0]
    if RECORD in stored.parts:
        return False
    known = runs.node_parts_and_usage(stored)
    parts = [each for each, _ in known]
    over = engine.is_over(parts, start.nodes, start.retries) if left.seen else None
    of_last = [each for each in known if each[0].attempt == part.attempt]
    with output_kept(context, order, start, engine.environ) as keep:
        if over:
            joined = _joined(runs, stored, start.nodes, lost)
            record = completed(
                start,
                end_of_parts(start, parts),
                kept=joined,
                metrics=lambda _: left_in(out, start.run),
                masker=masker,
            )
            usage = joint_usage(took for _, took in of_last if took is not None)
            record = replace(record, usage=usage, output=keep(repository, record))
            runs.add_end(record, None if joined is None else joined.data)
        elif over is None and (len(of_last) == start.nodes or not left.seen):
            _send_output(runs, stored, start, keep(repository, None))
    return bool(over)


def _joined(runs: RunStore, stored: StoredRun, nodes: int, lost: int) -> KeptLog | None:
    """Return the joint log of the nodes, which are masked already; None if empty. lost: bytes that this
    node's log lacks.
    """
    keeper = LogKeeper()
    keeper.add(join_logs(runs.node_logs(stored), nodes))
    log = keeper.kept(Masker())
    return KeptLog(log.data, log.total + lost) if log.data else None


def _numbered(part: RunPart, known: Iterable[RunPart]) -> RunPart:
    """Give the part the next number unused on this node: a queue that has requeued the job counts from 1."""
    here = (part.host, part.started_ms)
    others = {
        each.attempt for each in known if each.node == part.node and (each.host, each.started_ms) != here
    }
    return replace(part, attempt=next(each for each in count(part.attempt) if each not in others))


def _send_output(runs: RunStore, stored: StoredRun, start: RunRecord, output: RunOutput | None) -> None:
    """Store the output for the process that will complete the record."""
    if output is not None:
        number = max((start_number(part) or 0 for part in stored.parts), default=0) + 1
        runs.add(start.dataset, start.run, start_name(number), replace(start, output=output).encode())


@contextmanager
def _seen_alive(folder: Path) -> Iterator[None]:
    """Show other machines that check the job that its record is being completed."""

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
