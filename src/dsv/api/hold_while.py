"""Keep data cached for exactly as long as a process lives."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dsv.api.cache import NoLease, Stager
from dsv.api.context import Context
from dsv.cache.hold import HoldRequest, LeaseHolder, failure
from dsv.cache.root import CacheRoot, explaining
from dsv.errors import NotFound, Unreachable, Unsupported, UsageError
from dsv.files.process import Watched
from dsv.run.staged import Staged
from dsv.values.names import Target, data_variable

_ANSWERS_WITHIN = 600.0
"""Seconds for a holder to take its leases: long enough to wait for a file server that is down for a while."""


@dataclass(frozen=True, slots=True)
class HeldData:
    """Staged targets, and the process that holds them."""

    staged: tuple[Staged, ...]
    holder: LeaseHolder | None
    """None if no lease is needed: all targets have holds without an end, in a cache that is not writable."""
    order: HoldRequest


def hold_while(
    context: Context,
    folder: Path,
    targets: Sequence[Target],
    watched: Watched,
    *,
    program: str = "",
    run: str | None = None,
    job: str | None = None,
    offline: bool = False,
    jobs: int | None = None,
) -> HeldData:
    """Stage the targets, and start a process that holds them until `watched` has ended; it holds them already
    when this returns.

    Raises like `Stager.stage`, and `Unsupported` if the system can't report when a process ends. program:
    what `watched` runs, for messages. run, job: its run and batch job.
    """
    if not sys.platform.startswith("linux"):
        raise Unsupported("data can be held while a process lives on Linux only", hint="dsv cache --hold 3d")
    root = CacheRoot(folder)
    with ExitStack() as leases:
        with explaining(sys.executable, "start"):
            holder = LeaseHolder.start()  # first, because it takes a while to start
        unused = leases.enter_context(ExitStack())
        unused.callback(holder.close)
        stager = leases.enter_context(Stager(context, root, offline=offline, jobs=jobs))
        commits = []
        places = []
        for target in targets:
            commit, lease = stager.stage(target, None)
            leases.callback(lease.release)
            commits.append(commit)
            if not isinstance(lease, NoLease):
                places.append(lease.place)
        order = HoldRequest(
            root=str(root.path),
            places=tuple((place.dataset, place.name) for place in dict.fromkeys(places)),
            pid=watched.process.pid,
            start=watched.process.start,
            program=program,
            run=run,
            job=job,
        )
        staged = tuple(commits)
        if not order.places:
            return HeldData(staged, None, order)
        holder.send(order.encode())
        said = holder.answer(_ANSWERS_WITHIN)
        if said is None or not said.startswith("held "):
            away = f"the process that holds commits in {root.path} does not start"
            raise failure(said or "") or Unreachable(away, subject=str(root.path))
        unused.pop_all()
        return HeldData(staged, holder, order.after(said))


def cache_while(
    context: Context,
    folder: Path,
    targets: Sequence[Target],
    pid: int,
    *,
    offline: bool = False,
    jobs: int | None = None,
) -> list[Staged]:
    """Like `cache`, with a hold that lasts exactly as long as process `pid` of this host.

    Raises like `hold_while`, and `NotFound` if there is no such process.
    """
    if not targets:
        raise UsageError("no target given", hint="dsv cache DATASET@REV")
    watched = Watched(pid)
    if not watched.process.start or watched.has_ended():
        raise NotFound(f"there is no process {pid} here", subject=str(pid), hint="ps -e lists them")
    held = hold_while(
        context, folder, targets, watched, program=watched.program(), offline=offline, jobs=jobs
    )
    if held.holder is not None:
        held.holder.close()
    return list(held.staged)


def environment_of(staged: Staged, further: Mapping[str, Staged]) -> dict[str, str]:
    """Return the variables that give a command the paths of its data, as in a run."""
    variables = {
        "DSV_DATASET": str(staged.dataset),
        "DSV_COMMIT": str(staged.commit),
        "DSV_DATA": str(staged.path),
    }
    return variables | {data_variable(name): str(one.path) for name, one in further.items()}


__all__ = ["HeldData", "Watched", "cache_while", "environment_of", "hold_while"]
