"""Which runs of a sweep are to be begun, and what the process of each of them is told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from dsv.errors import UsageError
from dsv.repo.repository import now_ms
from dsv.run.dirs import RunPlace
from dsv.run.listing import find_under_way
from dsv.run.parameters import SweepId, SweepSeat, count_of, due
from dsv.run.plan import masker_of
from dsv.run.record import CodeState, RunId
from dsv.run.record_store import NO_NEWS, SweepNews
from dsv.run.spec import JobSpec, seated
from dsv.run.sweep.progress import SweepView
from dsv.values.json import Json


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """spec: of a run with the first parameters. begun: the numbers of the runs that have begun before; going: those of
    them that go on here. again: the run from whose record the others are made, if the sweep is continued; news: what
    was noted of it by then; held: the machines that have taken runs which are therefore not begun here.
    out: the folder in which each run has its output folder, if that was named."""

    spec: JobSpec
    seat: SweepSeat
    begun: frozenset[int] = frozenset()
    going: tuple[tuple[int, RunId], ...] = ()
    again: RunId | None = None
    news: SweepNews = NO_NEWS
    held: Mapping[int, str] = field(default_factory=dict)
    out: Path | None = None

    @property
    def left(self) -> tuple[int, ...]:
        return due(self.seat.of, self.begun, 0, self.seat.of)

    def of_run(self, number: int) -> JobSpec:
        """The spec of one of its runs."""
        return seated(replace(self.spec, out=self.out), replace(self.seat, number=number))

    def member(self, number: int) -> dict[str, Json]:
        """What the process of one of its runs is told: `as_member` makes a spec of it there."""
        code = self.spec.recorded_code
        return {
            "seat": asdict(replace(self.seat, number=number)),
            "pins": dict(self.spec.pins),
            "code": None if code is None else asdict(code),
            "again": self.again,
            "out": None if self.out is None else str(self.out),
        }


def as_member(spec: JobSpec, member: Mapping[str, Json]) -> JobSpec:
    """A spec from the command line of a sweep, as that of the run that `SweepPlan.member` tells of."""
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
    """All combinations of these values. Raises `UsageError`."""
    _check_secrets(spec, axes, place)
    id_ = SweepId.make(now_ms(), os.urandom(4))
    seat = SweepSeat(id=id_, number=1, of=count_of(axes), axes=axes, name=spec.name)
    return SweepPlan(seated(spec, seat), seat, out=spec.out)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A sweep with something left to begin. news: what was noted of it before it was looked at; held: the machines that
    have taken runs without a record, and may still begin them."""

    view: SweepView
    news: SweepNews
    held: Mapping[int, str]

    @classmethod
    def of(cls, view: SweepView, news: SweepNews, held: Mapping[int, str]) -> Unfinished:
        """Raises `UsageError` if all of its runs have begun."""
        if not view.not_begun:
            raise UsageError(
                f"all {view.seat.of} runs of {view.id} have begun",
                subject=view.id,
                hint=f"dsv run --again {view.members[0].record.run} repeats one of them",
            )
        return cls(view, news, {number: host for number, host in held.items() if number in view.not_begun})


def continued_sweep(left: Unfinished, spec: JobSpec, place: RunPlace, *, force: bool = False) -> SweepPlan:
    """What is left of a sweep. spec: as the first of its runs has it, repeated. force: also what others have taken.
    Raises `UsageError`."""
    view = left.view
    _check_secrets(spec, view.seat.axes, place)
    held = {} if force else left.held
    free = [number for number in view.not_begun if number not in held]
    seat = replace(view.seat, number=(free or view.not_begun)[0])
    out = _out_of(view)
    return SweepPlan(
        seated(replace(spec, out=out), seat),
        seat,
        frozenset(range(1, seat.of + 1)) - set(free),
        _going_here(view, place.state),
        view.members[0].record.run,
        left.news,
        held,
        out,
    )


def _out_of(view: SweepView) -> Path | None:
    """The folder that was named for the outputs, which no record has: that of a run is in it, under its number."""
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
    """Each record of the sweep shows the values of all its runs."""
    given: dict[str, Json] = {**axes}
    if masker_of(replace(spec, params=given), place).value(given, surely=True) != given:
        raise UsageError(
            "a parameter of the sweep is a secret, which no record shows",
            subject="--param",
            hint="pass secrets by -e alone, the same for all runs",
        )
