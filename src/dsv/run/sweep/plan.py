"""Which runs of a sweep are to be begun, and what the process of each of them is told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dsv.errors import UsageError
from dsv.repo.repository import now_ms
from dsv.run.dirs import RunPlace
from dsv.run.listing import find_under_way
from dsv.run.parameters import SweepId, SweepSeat, count_of, due
from dsv.run.plan import masker_of
from dsv.run.record import CodeState, RunId
from dsv.run.spec import JobSpec, seated
from dsv.run.sweep.progress import SweepView
from dsv.values.json import Json


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The runs of a sweep that are to be started."""

    spec: JobSpec
    """Of a run with the first parameters."""
    seat: SweepSeat
    begun: frozenset[int] = frozenset()
    """The numbers of the runs that were started before."""
    going: tuple[tuple[int, RunId], ...] = ()
    """Those of them that run now, on this machine."""
    again: RunId | None = None
    """The run from whose record the others are made, if the sweep is continued."""
    turn: int = 1
    """Its driver is the sweep's first, or a later one."""
    out: Path | None = None
    """The folder in which each run has its output folder, if that was named."""

    @property
    def left(self) -> tuple[int, ...]:
        return due(self.seat.of, self.begun, 0, self.seat.of)

    def of_run(self, number: int) -> JobSpec:
        """Return the spec of one of its runs."""
        return seated(replace(self.spec, out=self.out), replace(self.seat, number=number))

    def member(self, number: int) -> dict[str, Json]:
        """Return what the process of one of its runs needs: `as_member` makes a spec of it there."""
        code = self.spec.recorded_code
        return {
            "seat": asdict(replace(self.seat, number=number)),
            "pins": dict(self.spec.pins),
            "code": None if code is None else asdict(code),
            "again": self.again,
            "out": None if self.out is None else str(self.out),
        }


def as_member(spec: JobSpec, member: Mapping[str, Json]) -> JobSpec:
    """Turn the spec of a sweep's command line into that of one run, from what `SweepPlan.member` returned."""
    code = member["code"]
    spec = replace(
        spec,
        pins=member["pins"],
        recorded_code=spec.recorded_code if code is None else CodeState(**code),
        again_of=None,
        out=None if member["out"] is None else Path(member["out"]),
    )
    return seated(spec, SweepSeat.of_json(member["seat"]))


def new_sweep(spec: JobSpec, axes: dict[str, list[Json]], place: RunPlace) -> SweepPlan:
    """Plan a run for each combination of these values. Raises `UsageError`."""
    _check_secrets(spec, axes, place)
    id_ = SweepId.make(now_ms(), os.urandom(4))
    seat = SweepSeat(id=id_, number=1, of=count_of(axes), axes=axes, name=spec.name)
    return SweepPlan(seated(spec, seat), seat, out=spec.out)


def continued_sweep(view: SweepView, turn: int, spec: JobSpec, place: RunPlace) -> SweepPlan:
    """Plan the rest of a sweep. spec: the one of its first run, repeated. Raises `UsageError`."""
    _check_secrets(spec, view.seat.axes, place)
    seat = replace(view.seat, number=view.not_begun[0])
    out = _out_of(view)
    return SweepPlan(
        spec=seated(replace(spec, out=out), seat),
        seat=seat,
        begun=frozenset(range(1, seat.of + 1)) - set(view.not_begun),
        going=_going_here(view, place.state),
        again=view.members[0].record.run,
        turn=turn,
        out=out,
    )


def _out_of(view: SweepView) -> Path | None:
    """Return the folder that was named for the outputs. No record has it: a run's is in it, under its number."""
    first = view.members[0].record
    folder = Path(first.out)
    return folder.parent if first.sweep is not None and folder.name == str(first.sweep.number) else None


def _going_here(view: SweepView, state: Path) -> tuple[tuple[int, RunId], ...]:
    return tuple(
        (record.sweep.number, record.run)
        for record in view.under_way
        if record.sweep is not None and find_under_way(state, record.run) is not None
    )


def _check_secrets(spec: JobSpec, axes: dict[str, list[Json]], place: RunPlace) -> None:
    """Refuse parameters that are secrets: each record of the sweep shows the values of all its runs."""
    given: dict[str, Json] = {**axes}
    if masker_of(replace(spec, params=given), place).value(given, surely=True) != given:
        raise UsageError(
            "a parameter of the sweep is a secret, which no record shows",
            subject="--param",
            hint="pass secrets by -e alone, the same for all runs",
        )
