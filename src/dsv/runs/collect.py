"""The record of a run of several nodes, put together from what each of them left."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from dsv.engines.base import CANNOT_LAUNCH
from dsv.engines.log import LogKeeper
from dsv.errors import DsvError
from dsv.model.node_order import NodeOrder
from dsv.model.run import RECORD, LogInfo, RunId, RunRecord, RunState
from dsv.model.run_end import EndCause, RunPart, deciding_part, may_try_again, on_one_clock
from dsv.model.secrets import Masker
from dsv.repo.runs import RunStore, StoredRun
from dsv.runs.completing import finish

_NEVER_BEGAN = (EndCause.NOT_STARTED, EndCause.IMAGE_NOT_PULLED, EndCause.UNSCHEDULABLE)


def complete_from_parts(
    runs: RunStore,
    order: NodeOrder,
    run: RunId,
    whole: Callable[[RunRecord], RunRecord],
) -> bool:
    """Completes the record if all nodes have left their parts. Several may do so at once: one of them wins.

    whole: adds what the parts don't tell.
    """
    found = runs.listing(order.dataset, run)
    if not found or RECORD in found[0].parts:
        return False
    stored = found[0]
    try:
        start = runs.read(stored)
    except DsvError:
        return False  # whoever submitted it has not written its start yet, and completes it
    parts = runs.node_parts(stored)
    if not is_over(start, parts):
        return False
    put_together(runs, stored, start, parts, whole)
    return True


def put_together(
    runs: RunStore,
    stored: StoredRun,
    start: RunRecord,
    parts: Iterable[RunPart],
    whole: Callable[[RunRecord], RunRecord],
) -> None:
    """Completes the record of a run that is over from these parts, and from the logs of its nodes."""
    keeper = LogKeeper()
    keeper.add(join_logs(runs.node_logs(stored), start.nodes))
    log = keeper.kept(Masker())
    record = assemble(start, parts, LogInfo(log.total, len(log.data)) if log.data else None)
    finish(runs, whole(record), log.data or None)


def is_over(start: RunRecord, parts: Iterable[RunPart]) -> bool:
    """Whether every node of the last attempt has ended, and no other attempt is due."""
    found = list(parts)
    last = max((each.attempt for each in found), default=0)
    of_last = {each.node for each in found if each.attempt == last and each.end is not None}
    decided = deciding_part(found)
    if decided is None or len(of_last) < start.nodes:
        return False
    return last > start.retries or not may_try_again(decided)


def assemble(start: RunRecord, parts: Iterable[RunPart], log: LogInfo | None = None) -> RunRecord:
    """The whole record. Whoever puts it together from the same parts gets the same: the nodes, and any machine that
    looks. Without a part nobody knows how the run ended."""
    found = on_one_clock(sorted(parts, key=lambda each: (each.attempt, each.node)), start.started_ms)
    decided = deciding_part(found)
    if decided is None or decided.end is None:
        return replace(
            start,
            state=RunState.CUT_OFF,
            end=EndCause.LOST_SIGHT,
            exit_code=CANNOT_LAUNCH,
            parts=found,
            log=log,
        )
    lost = decided.end in (EndCause.LEASE_LOST, EndCause.LOST_SIGHT)
    state = RunState.NOT_LAUNCHED if decided.end in _NEVER_BEGAN else RunState.ENDED
    first = [each for each in found if each.attempt == 1]
    return replace(
        start,
        state=RunState.CUT_OFF if lost else state,
        end=decided.end,
        exit_code=decided.exit_code,
        cancelled_by=decided.cancelled_by,
        error=decided.error or _who_failed_first(start, decided),
        started_ms=min(
            (each.started_ms for each in first if each.started_ms is not None), default=start.started_ms
        ),
        ended_ms=max((each.ended_ms for each in found if each.ended_ms is not None), default=None),
        cache_hit=all(each.cache_hit for each in first) if first else start.cache_hit,
        stage_bytes=sum(each.stage_bytes or 0 for each in found),
        stage_seconds=max((each.stage_seconds or 0.0 for each in first), default=0.0),
        parts=found,
        log=log,
    )


def _who_failed_first(start: RunRecord, part: RunPart) -> str | None:
    if start.nodes == 1 or part.succeeded or part.end is not EndCause.EXITED:
        return None
    return f"node {part.node} ({part.host}) failed first, with exit code {part.exit_code}"


def join_logs(logs: Iterable[tuple[int, int, bytes]], nodes: int) -> bytes:
    """One log of all: node, attempt, what it wrote there. With several nodes a line says where each begins."""
    found = sorted(logs, key=lambda each: (each[1], each[0]))
    if nodes == 1:
        return b"".join(data for _, _, data in found)
    return b"".join(
        b"[dsv: node %d, attempt %d]\n%s" % (node, attempt, data) for node, attempt, data in found
    )
