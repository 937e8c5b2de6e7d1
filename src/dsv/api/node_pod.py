"""The record of a run on Kubernetes, completed in the pod whose command was the last to end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path

from dsv.api.context import Context
from dsv.api.output_kept import output_kept, read_argv
from dsv.repo.repository import Repository
from dsv.run.completing import kept_log, put_together, with_metrics
from dsv.run.dirs import read_metrics
from dsv.run.engine_list import Engines
from dsv.run.engines.kubernetes.scripts import is_over, read_left, read_log
from dsv.run.node import NodeSeat
from dsv.run.node_order import NodeOrder
from dsv.run.record import (
    RECORD,
    EndCause,
    RunOutput,
    RunPart,
    RunRecord,
    encode_part,
    joint_usage,
    node_log_name,
    part_name,
    start_name,
    start_number,
)
from dsv.run.record_store import RunStore, StoredRun
from dsv.run.records import KnownSecrets


def complete_pod(
    context: Context,
    repository: Repository,
    engines: Engines,
    order: NodeOrder,
    start: RunRecord,
    folder: Path,
    seat: NodeSeat,
) -> bool:
    """Sends this node's part and its log, and completes the record if no other node and no other attempt is to come.

    If only the cluster can tell how the run ended, that is left to whoever asks it; but not the output, which may be
    gone with the pod. Nor the part of a job that a queue may let begin again: the pods of its next attempt are told
    that they are the first, and the cluster keeps nothing of those before them.
    """
    runs = RunStore(repository.store)
    left = read_left(folder, node=seat.rank, attempt=seat.attempt, host=engines.environ.get("DSV_HOST"))
    log = read_log(folder) if order.log else None
    if left is None or (order.log and log is None):
        return False
    queued = bool(engines.environ.get("DSV_QUEUED"))
    part = left.put_back() if queued and left.was_stopped else left.part
    if queued:
        part = _numbered(part, runs.node_parts(runs.listing(order.dataset, start.run)[0]))
    secrets = KnownSecrets.on_node(start, engines.environ, read_argv(folder))
    out, lost = Path(order.out or "."), 0
    if left.is_clear or part.end is EndCause.EVICTED:
        kept = None if log is None else kept_log(start, lambda: log, secrets)
        if kept is not None:
            runs.add(order.dataset, start.run, node_log_name(part.node, part.attempt), kept.data)
            lost = kept.total - len(kept.data)
        name = part_name(part.node, part.attempt)
        runs.add(order.dataset, start.run, name, encode_part(part, left.usage))
    stored = runs.listing(order.dataset, start.run)[0]
    if RECORD in stored.parts:
        return False
    told = runs.node_parts_and_usage(stored)
    parts = [each for each, _ in told]
    over = is_over(parts, start.nodes, start.retries) if left.is_clear else None
    of_last = [each for each in told if each[0].attempt == part.attempt]
    with output_kept(context, order, out) as keep:

        def whole(record: RunRecord) -> RunRecord:
            record = with_metrics(record, lambda: read_metrics(out, None), secrets)
            if record.log is not None:
                record = replace(record, log=replace(record.log, bytes=record.log.bytes + lost))
            usage = joint_usage(took for _, took in of_last if took is not None)
            return replace(record, usage=usage, output=keep(repository))

        if over:
            put_together(runs, stored, start, parts, whole)
        elif over is None and (len(of_last) == start.nodes or not left.is_clear):
            _send_output(runs, stored, start, keep(repository))
    return bool(over)


def _numbered(part: RunPart, told: Iterable[RunPart]) -> RunPart:
    """With the next number that this node has not had: the cluster counts anew if a queue took its place away."""
    here = (part.host, part.started_ms)
    others = {
        each.attempt for each in told if each.node == part.node and (each.host, each.started_ms) != here
    }
    return replace(part, attempt=next(each for each in count(part.attempt) if each not in others))


def _send_output(runs: RunStore, stored: StoredRun, start: RunRecord, output: RunOutput | None) -> None:
    """For whoever completes the record."""
    if output is not None:
        number = max((start_number(part) or 0 for part in stored.parts), default=0) + 1
        runs.add(start.dataset, start.run, start_name(number), replace(start, output=output).encode())
