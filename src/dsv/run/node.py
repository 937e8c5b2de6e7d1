"""Run one node's part of a run, in one attempt: its data is staged and leased, and the command is run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from dsv.errors import DsvError, Interrupted, Terminated, UsageError
from dsv.periodic import now_ms
from dsv.run.attempts import lost_lease, part_of
from dsv.run.completing import salvaged
from dsv.run.dirs import RunPlace, make_folder, remove_scratch, write_params
from dsv.run.engines.attach import Foreground, Signals, spared, supervise
from dsv.run.engines.base import CANNOT_LAUNCH, Job, NoEngine
from dsv.run.engines.log import LogKeeper
from dsv.run.engines.output import Output
from dsv.run.engines.process import Process
from dsv.run.engines.reaper import GRACE
from dsv.run.node_order import NodeOrder, meeting_port, node_environment
from dsv.run.record import EndCause, RunId, RunPart
from dsv.run.staged import Lease, Stage, Staged
from dsv.values.names import data_variable
from dsv.values.progress import NoProgress, Progress
from dsv.values.secrets import Masker


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeat:
    """One node of a run in one attempt."""

    rank: int = 0
    attempt: int = 1
    addresses: tuple[str, ...] = ()
    """Of all nodes by their ranks, as the others reach them; empty if there is one node alone."""


def node_variables(order: NodeOrder, seat: NodeSeat, staged: Sequence[Staged], out: Path) -> dict[str, str]:
    """Return the variables of the command on a node. staged: of `order.all_data`, in its order."""
    seen = [each.at or str(where.path) for each, where in zip(order.all_data, staged, strict=True)]
    main = order.data[0]
    variables = {
        "DSV_RUN": order.run,
        "DSV_ATTEMPT": str(seat.attempt),
        "DSV_DATASET": main.dataset,
        "DSV_COMMIT": main.commit,
        "DSV_DATA": seen[0],
        "DSV_OUT": order.out_at or str(out),
        "DSV_PARAMS": json.dumps(order.params),
    }
    for each, path in zip(order.data[1:], seen[1:], strict=False):
        variables[data_variable(each.name)] = path
    if order.code is not None:
        variables["DSV_CODE"] = seen[-1]
    if order.nodes > 1:
        variables |= node_environment(seat.rank, seat.addresses, meeting_port(order.run))
    return variables


def run_node(
    order: NodeOrder,
    seat: NodeSeat,
    command: tuple[str, ...],
    *,
    place: RunPlace,
    stage: Stage,
    stdout: int | None = 1,
    stderr: int | None = 2,
    signals: Signals | None = None,
    progress: Progress | None = None,
    grace: float = GRACE,
) -> tuple[RunPart, bytes | None]:
    """Run the command here, as a plain process, with its data leased for as long as it lives.

    Return the node's part of the record and what is kept of its output, None if none is. Data that can't be staged is
    an end like any other. Raises `LaunchError` for what else keeps the command from being started; `UsageError` if the
    order has no such seat.
    """
    _check(order, seat)
    watcher = progress if progress is not None else NoProgress()
    run = RunId.parse(order.run)
    own = place.folder(order.dataset, run) / f"node-{seat.rank}-{seat.attempt}"
    out = own.parent / "out" if order.out is None else Path(order.out)
    staged: list[Staged] = []
    held: list[Lease] = []
    with ExitStack() as leases, spared() if signals is not None else nullcontext():
        began = now_ms()
        try:
            for each in order.all_data:
                one, lease = stage(each.target(), run)
                leases.callback(lease.release)
                staged.append(one)
                held.append(lease)
        except DsvError as error:
            if isinstance(error, Interrupted | Terminated):
                raise
            return _never_began(seat, place, began, error), None
        watcher.finish()
        env = node_variables(order, seat, staged, out)
        log = LogKeeper() if order.log else None
        masker = Masker.of({}, place.environ, command, order.params)
        output = Output(stdout, stderr, log)
        job = Job(
            run=order.run, name=f"dsv-{order.run}", command=command, env=env,
            workdir=_workdir(order, staged, place), scratch=own / "scratch",
        )  # fmt: skip
        try:
            make_folder(job.scratch)
            make_folder(out)
            if seat.rank == 0:
                write_params(out, order.params)
            result = _supervised(job, seat, place, output, signals or Signals(), watcher, held, grace)
        finally:
            remove_scratch(own)
    part = _described(result, staged, masker)
    return part, None if log is None else log.kept(masker).data


def _supervised(
    job: Job,
    seat: NodeSeat,
    place: RunPlace,
    output: Output,
    signals: Signals,
    watcher: Progress,
    leases: Sequence[Lease],
    grace: float,
) -> RunPart:
    engine = Process(place.environ)
    facts = engine.probe()
    assert not isinstance(facts, NoEngine)  # this machine answers
    started = now_ms()

    handle = Foreground(engine, engine.plan(job, facts), output, signals.wake, lambda ref: None)
    with signals.caught():
        ended = supervise(
            handle, output, signals, lost=lambda: lost_lease(leases), note=watcher.note, grace=lambda: grace
        )
        handle.check()
    part = part_of(ended, attempt=seat.attempt, host=place.host, started_ms=started, ended_ms=now_ms())
    return replace(part, node=seat.rank)


def _never_began(seat: NodeSeat, place: RunPlace, began: int, error: DsvError) -> RunPart:
    return RunPart(
        node=seat.rank,
        attempt=seat.attempt,
        host=place.host,
        started_ms=began,
        ended_ms=now_ms(),
        end=EndCause.NOT_STARTED,
        exit_code=CANNOT_LAUNCH,
        error=Masker.of({}, place.environ).text(error.message),
    )


def _described(part: RunPart, staged: Sequence[Staged], masker: Masker) -> RunPart:
    text = part.error
    return replace(
        part,
        error=None if text is None else salvaged(lambda: masker.text(text), lambda problem: problem),
        cache_hit=all(each.hit for each in staged),
        stage_seconds=round(sum(each.seconds for each in staged), 3),
        stage_bytes=sum(each.fetched_bytes for each in staged),
    )


def _workdir(order: NodeOrder, staged: Sequence[Staged], place: RunPlace) -> str:
    """The code is where the command works, unless it is a program that puts it elsewhere for a container."""
    own = order.code is not None and order.code.at is None
    return str(staged[-1].path) if own else str(place.cwd)


def _check(order: NodeOrder, seat: NodeSeat) -> None:
    if not 0 <= seat.rank < order.nodes:
        raise UsageError(
            f"there is no node {seat.rank} of {order.nodes}", subject=str(seat.rank), hint="--rank 0"
        )
    if order.nodes > 1 and len(seat.addresses) != order.nodes:
        raise UsageError(
            f"the run has {order.nodes} nodes, and {len(seat.addresses)} addresses were given",
            subject=order.run,
            hint="--addresses HOST0,HOST1,…",
        )
