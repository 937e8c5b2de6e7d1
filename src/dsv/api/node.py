"""One node's part of a run: staged through the node's cache, run, and sent to the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dsv.api.cache_stage import Stager
from dsv.api.context import Context
from dsv.api.output_kept import output_kept
from dsv.api.run import LateRunStore
from dsv.cache.root import CacheRoot
from dsv.errors import DsvError, NoRoom, as_launch_error
from dsv.repo.repository import Repository
from dsv.run.completing import complete_from_parts
from dsv.run.dirs import RunPlace
from dsv.run.engines.reaper import GRACE
from dsv.run.engines.signals import Signals
from dsv.run.node import NodeResult, NodeSeat, run_node
from dsv.run.node_order import NodeOrder
from dsv.run.record import RunId, encode_part, node_log_name, part_name
from dsv.run.record_store import RunStore, Spool
from dsv.values.ids import StoreId


def node(
    context: Context,
    cache: Path,
    order: NodeOrder,
    seat: NodeSeat,
    command: tuple[str, ...],
    place: RunPlace,
    *,
    signals: Signals | None = None,
    jobs: int | None = None,
    grace: float = GRACE,
) -> NodeResult:
    """Makes sure of the data in this cache, runs the command with leases on it, and sends the node's part of the
    record.

    Several nodes that share a cache fill it together. Raises what `runs.node.run_node` raises.
    """
    with as_launch_error(), Stager(context, CacheRoot(cache), jobs=jobs) as stager:
        store = stager.targets.find(order.data[0].target()).store
        result = run_node(
            order,
            seat,
            command,
            place=place,
            staging=stager,
            signals=signals,
            progress=context.progress,
            grace=grace,
        )
    return _send(context, store, order, seat, result, place)


def _send(
    context: Context, store: StoreId, order: NodeOrder, seat: NodeSeat, result: NodeResult, place: RunPlace
) -> NodeResult:
    spool, run = Spool(place.spool, store), RunId.parse(order.run)
    try:
        if result.log is not None:
            spool.keep(order.dataset, run, node_log_name(seat.rank, seat.attempt), result.log)
        spool.keep(order.dataset, run, part_name(seat.rank, seat.attempt), encode_part(result.part))
    except OSError as error:
        problem = NoRoom(f"what node {seat.rank} of run {run} left can't be kept: {error}", subject=run)
        return replace(result, problem=problem)
    try:
        with LateRunStore(context, store) as runs:
            spool.send(runs, only=run)
        with context.repository() as repository:
            return replace(result, finished=_finish(context, repository, order, run, place))
    except DsvError as error:
        return replace(result, problem=error)


def _finish(context: Context, repository: Repository, order: NodeOrder, run: RunId, place: RunPlace) -> bool:
    folder = place.folder(order.dataset, run) / "out" if order.out is None else Path(order.out)
    with output_kept(context, order, folder) as keep:
        return complete_from_parts(
            RunStore(repository.store), order, run, lambda whole: replace(whole, output=keep(repository))
        )
