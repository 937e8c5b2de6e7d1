"""The record of a run on Kubernetes, completed in the pod whose command was the last to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dsv.api.context import Context
from dsv.api.output_kept import output_kept, read_argv
from dsv.engines.kubernetes.left import read_left, read_log
from dsv.engines.kubernetes.names import NOT_AGAIN
from dsv.model.node_order import NodeOrder
from dsv.model.run import RunRecord, start_name, start_number
from dsv.model.run_end import RunPart
from dsv.model.run_parts import encode_part, node_log_name, part_name
from dsv.repo.repository import Repository
from dsv.repo.runs import RunStore, StoredRun
from dsv.runs.collect import complete_from_parts
from dsv.runs.completing import kept_log, with_metrics
from dsv.runs.engines import Engines
from dsv.runs.known_secrets import KnownSecrets
from dsv.runs.node import NodeSeat
from dsv.runs.place import read_metrics


def complete_pod(
    context: Context,
    repository: Repository,
    engines: Engines,
    order: NodeOrder,
    start: RunRecord,
    stored: StoredRun,
    folder: Path,
    seat: NodeSeat,
) -> bool:
    """Sends this node's part and its log, and completes the record if no other node is to come.

    If only the cluster can tell why the command ended, that is left to whoever asks it; but not the output, which is
    gone with the pod.
    """
    runs = RunStore(repository.store)
    left = read_left(folder, node=seat.rank, attempt=seat.attempt, host=engines.environ.get("DSV_HOST"))
    log = read_log(folder) if order.log else None
    if left is None or (order.log and log is None):
        return False
    secrets = KnownSecrets.on_node(start, engines.environ, read_argv(folder))
    out = Path(order.out or ".")
    if not left.is_clear and not (left.was_stopped and _failed(runs.node_parts(stored), seat)):
        with output_kept(context, order, out) as keep:
            if (output := keep(repository)) is not None:
                number = max((start_number(part) or 0 for part in stored.parts), default=0) + 1
                told = replace(start, output=output)
                runs.add(order.dataset, start.run, start_name(number), told.encode())
        return False
    kept = None if log is None else kept_log(start, lambda: log, secrets)
    if kept is not None:
        runs.add(order.dataset, start.run, node_log_name(seat.rank, seat.attempt), kept.data)
    runs.add(order.dataset, start.run, part_name(seat.rank, seat.attempt), encode_part(left.part))

    with output_kept(context, order, out) as keep:

        def whole(record: RunRecord) -> RunRecord:
            record = with_metrics(record, lambda: read_metrics(out, None), secrets)
            if record.log is not None and kept is not None:
                lost = kept.total - len(kept.data)
                record = replace(record, log=replace(record.log, bytes=record.log.bytes + lost))
            return replace(record, usage=left.usage if order.nodes == 1 else None, output=keep(repository))

        again = left.part.exit_code not in NOT_AGAIN
        ignored = engines.environ.get("DSV_IGNORED", "")
        uncounted = int(ignored) if ignored.isdecimal() else 0
        return complete_from_parts(runs, order, start.run, whole, again=again, uncounted=uncounted)


def _failed(parts: list[RunPart], seat: NodeSeat) -> bool:
    """Whether another node has failed in this attempt: the cluster then ends the others."""
    return any(part.attempt == seat.attempt and not part.succeeded for part in parts)
