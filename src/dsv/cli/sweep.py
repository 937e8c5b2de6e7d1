"""`dsv run --sweep`: a run for each combination of parameters, so many at a time, each in a process of its own.

That process is a detached run. So what was begun goes on if this one is killed, and the records tell what was not.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from signal import SIGHUP

from dsv.api.context import Context
from dsv.api.placing import Placing
from dsv.api.run import dry_run, prepared
from dsv.api.runs import Runs, open_runs
from dsv.cli.call import Call
from dsv.cli.detach import Supervisor, detach
from dsv.cli.launching import launching
from dsv.cli.run_options import Typed, placing_of, plan_document, show_plan, spec_of
from dsv.cli.run_views import write_table
from dsv.cli.sweep_lines import SweepLines
from dsv.engines.base import CANNOT_LAUNCH
from dsv.engines.guard import GRACE
from dsv.engines.signals import Signals, spared
from dsv.errors import DsvError, NotFound, Unsupported, UsageError
from dsv.model.json_values import Json
from dsv.model.names import DatasetName
from dsv.model.run import RunId
from dsv.model.sweep import SweepId, SweepSeat, count_of, due, names_sweep, parse_axes
from dsv.repo.repository import now_ms
from dsv.runs.control import ask_to_stop, find_under_way
from dsv.runs.engines import ENGINES
from dsv.runs.place import RunPlace
from dsv.runs.plan import masker_of
from dsv.runs.spec import JobSpec, seated
from dsv.runs.sweep_mark import driving, sweep_folder
from dsv.runs.sweeps import SweepView


def is_sweep(typed: Typed) -> bool:
    """Whether several runs are asked for."""
    return typed.sweep or (typed.again is not None and names_sweep(typed.again))


@spared()
def sweep(call: Call, typed: Typed) -> int:
    """Begins its runs and waits for them; the exit code is 0 if all have succeeded."""
    _check(call, typed)
    if typed.detach and call.session.announce is None:
        with launching():
            return detach(call)
    with call.context() as context, open_runs(context) as found:
        with launching():
            place = RunPlace.here(call.around.environ, call.settings.state, call.settings.cwd)
            plan = _plan(call, typed, context, place, found)
            cache = call.settings.cache().path
            placing = placing_of(call, typed, context, cache)
            first = dry_run(context, cache, plan.spec, place, offline=typed.offline, placing=placing)
            if typed.dry_run:
                _show(call, typed, context, cache, place, plan, placing)
                return 0
        with driving(place.state, plan.seat.id), ExitStack() as held:
            with launching():
                stage = placing is None and not ENGINES[first.engine].queues
                spec = held.enter_context(
                    prepared(
                        context, cache, plan.spec, place,
                        stage=stage, offline=typed.offline, jobs=typed.jobs, force=typed.force,
                    )
                )  # fmt: skip
                context.progress.finish()
            return _Driver(call, found, place, replace(plan, spec=spec), typed.parallel or 1).drive()


@dataclass(frozen=True, slots=True)
class _Plan:
    """spec: of a run with the first parameters. begun: the numbers of the runs that have begun before; going: those of
    them that go on here. again: the run from whose record the others are made, if the sweep is continued."""

    spec: JobSpec
    seat: SweepSeat
    begun: frozenset[int] = frozenset()
    going: tuple[tuple[int, RunId], ...] = ()
    again: RunId | None = None

    @property
    def left(self) -> tuple[int, ...]:
        return due(self.seat.of, self.begun, 0, self.seat.of)


def _plan(call: Call, typed: Typed, context: Context, place: RunPlace, found: Runs) -> _Plan:
    if typed.again is not None:
        return _continued(call, typed, context, place, found)
    axes = parse_axes(typed.options.get("params") or ())
    options = {name: value for name, value in typed.options.items() if name != "params"}
    spec = spec_of(call, replace(typed, options=options), context, place)
    _check_secrets(spec, axes, place)
    id_ = SweepId.make(now_ms(), os.urandom(4))
    seat = SweepSeat(id=id_, number=1, of=count_of(axes), axes=axes, name=spec.name)
    return _Plan(seated(spec, seat), seat)


def _check_secrets(spec: JobSpec, axes: dict[str, list[Json]], place: RunPlace) -> None:
    """Each record of the sweep shows the values of all its runs."""
    given: dict[str, Json] = {**axes}
    if masker_of(replace(spec, params=given), place).value(given, surely=True) != given:
        raise UsageError(
            "a parameter of the sweep is a secret, which no record shows",
            subject="--param",
            hint="pass secrets by -e alone, the same for all runs",
        )


def _continued(call: Call, typed: Typed, context: Context, place: RunPlace, found: Runs) -> _Plan:
    assert typed.again is not None
    view = found.sweep(typed.again)
    if not view.not_begun:
        raise UsageError(
            f"all {view.seat.of} runs of {view.id} have begun",
            subject=view.id,
            hint=f"dsv run --again {view.members[0].record.run} repeats one of them",
        )
    sibling = view.members[0].record
    spec = spec_of(call, replace(typed, again=sibling.run), context, place)
    _check_secrets(spec, view.seat.axes, place)
    seat = replace(view.seat, number=view.not_begun[0])
    here = [record for record in view.under_way if find_under_way(place.state, record.run) is not None]
    return _Plan(
        seated(spec, seat),
        seat,
        frozenset(range(1, seat.of + 1)) - set(view.not_begun),
        tuple((record.sweep.number, record.run) for record in here if record.sweep is not None),
        sibling.run,
    )


@dataclass(slots=True)
class _Going:
    """A run that goes on: one of this process, or one that an earlier one has begun."""

    run: RunId
    supervisor: Supervisor | None
    state: Path

    def exit_code(self) -> int | None:
        """None while it goes on; -1 if this process can't tell."""
        if self.supervisor is not None:
            return self.supervisor.poll()
        one = find_under_way(self.state, self.run)
        return None if one is not None and not one.mark.is_dead() else -1


@dataclass(slots=True)
class _Driver:
    """Begins what is due, and looks after what goes on, until nothing is left of either."""

    call: Call
    found: Runs
    place: RunPlace
    plan: _Plan
    parallel: int
    signals: Signals = field(default_factory=Signals)
    going: dict[int, _Going] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    ended_by: int | None = None
    stopping: bool = False
    refused: int | None = None

    def drive(self) -> int:
        seat, dataset = self.plan.seat, self._dataset
        self.begun = set(self.plan.begun)
        for number, run in self.plan.going:
            self.going[number] = _Going(run, None, self.place.state)
        self._announce()
        stops = self._stops(dataset)
        with SweepLines.of(self.call, seat, self.plan.left) as lines, self.signals.caught():
            while True:
                for number in self._due():
                    if self._stops(dataset) > stops:
                        lines.note("the sweep is being stopped: nothing more is begun")
                        self.stopping = True
                        break
                    self._begin(number, lines)
                self._look(lines)
                if not self.going and not self._due():
                    break
                self._heed(self.signals.next(0.2), lines)
                if self.ended_by == SIGHUP:
                    return 128 + SIGHUP  # the terminal is gone: what was begun goes on
        return self._tell()

    def _due(self) -> tuple[int, ...]:
        if self.stopping:
            return ()
        return due(self.plan.seat.of, self.begun, len(self.going), self.parallel)[:1]

    def _begin(self, number: int, lines: SweepLines) -> None:
        plan = self.plan
        seat = replace(plan.seat, number=number)
        member = {
            "seat": asdict(seat),
            "pins": dict(plan.spec.pins),
            "code": None if plan.spec.recorded_code is None else asdict(plan.spec.recorded_code),
            "again": plan.again,
        }
        self.begun.add(number)
        try:
            supervisor = Supervisor.start(self.call, member)
        except DsvError as error:
            self._refuse(number, error.message, error.exit_code, lines)
            return
        if supervisor.told is None:
            self._refuse(number, supervisor.said, supervisor.poll(), lines)
            return
        run = RunId.parse(supervisor.told["run"])
        self.going[number] = _Going(run, supervisor, self.place.state)
        lines.begun(number, run)

    def _refuse(self, number: int, why: str, code: int | None, lines: SweepLines) -> None:
        """What keeps one run from being started before it has a record keeps all others from it too."""
        self.begun.discard(number)
        self.stopping, self.refused = True, code or CANNOT_LAUNCH
        lines.note(f"run {number} could not be started, and nothing more is begun: {why}")

    def _look(self, lines: SweepLines) -> None:
        for number, one in list(self.going.items()):
            if one.exit_code() is None:
                continue
            del self.going[number]
            try:
                view = self.found.show(one.run, self._dataset)
            except DsvError as error:
                lines.note(f"run {one.run} has ended, and its record can't be read: {error.message}")
            else:
                lines.ended(number, view)

    def _heed(self, number: int | None, lines: SweepLines) -> None:
        if number is None:
            lines.tick()
            return
        again, self.stopping = self.ended_by is not None, True
        self.ended_by = number
        if number == SIGHUP:
            return
        if self.going:
            patient = (
                f"nothing more is begun, and what goes on has {GRACE:.0f} s to end; once more ends it now"
            )
            lines.note("the runs are ended at once" if again else patient)
        for one in self.going.values():
            found = find_under_way(self.place.state, one.run)
            if found is not None:
                with suppress(NotFound, Unsupported):  # it has ended just now
                    ask_to_stop(found, 0 if again else GRACE)

    @property
    def _dataset(self) -> DatasetName:
        assert self.plan.spec.target.dataset is not None  # `prepared` saw to it
        return self.plan.spec.target.dataset

    def _stops(self, dataset: DatasetName) -> int:
        try:
            return self.found.runs.sweep_stops(dataset, self.plan.seat.id)
        except DsvError:
            return 0  # the store is away: it will be asked again

    def _announce(self) -> None:
        seat = self.plan.seat
        folder = sweep_folder(self.place.state, seat.id)
        if self.call.session.announce is not None:
            self.call.session.announce(seat.id, folder, folder)
        else:
            self.call.say(f"{seat.id}: {len(self.plan.left)} runs, at most {self.parallel} at once")

    def _tell(self) -> int:
        view = self._view()
        code = None if view is None else view.exit_code
        if code is None:
            code = CANNOT_LAUNCH if self.ended_by is None else 128 + self.ended_by
        if self.refused is not None:
            code = self.refused
        if self.call.json:
            runs = [] if view is None else [each.item() for each in view.members]
            self.call.document({"sweep": {"id": self.plan.seat.id, "exit_code": code, "runs": runs}})
        elif view is not None:
            write_table(self.call, view.members)
        return code

    def _view(self) -> SweepView | None:
        with suppress(NotFound):
            return self.found.sweep(self.plan.seat.id)
        return None


def _show(
    call: Call,
    typed: Typed,
    context: Context,
    cache: Path,
    place: RunPlace,
    plan: _Plan,
    placing: Placing | None,
) -> None:
    items = []
    for number in plan.left:
        spec = seated(plan.spec, replace(plan.seat, number=number))
        with launching():
            shown = dry_run(context, cache, spec, place, offline=typed.offline, placing=placing)
        if call.json:
            items.append({"number": number, "params": spec.params, **plan_document(shown, spec)})
        else:
            params = " ".join(f"{name}={value}" for name, value in spec.params.items())
            call.line(f"# run {number} of {plan.seat.of}: {params}")
            show_plan(call, shown, spec)
    if call.json:
        call.items(items)


def _check(call: Call, typed: Typed) -> None:
    if typed.sweep and typed.again is not None:
        raise UsageError("a sweep that is continued is one already", hint=f"dsv run --again {typed.again}")
    if typed.sweep and typed.target is None:
        raise UsageError("dsv run needs a target", hint="dsv run DATASET[@REV] -p K=V,V --sweep -- CMD...")
    if typed.offline:
        raise UsageError(
            "a sweep asks the store what has become of its runs, and --offline forbids that",
            subject="--offline",
            hint="leave out --offline",
        )
    if typed.json_file is not None:
        raise UsageError("--json-file is for one run", hint="--json prints the runs of a sweep")
    if typed.again is not None and (typed.options or call.words):
        raise UsageError(
            f"the runs of {typed.again} that are begun now are like the others",
            subject=typed.again,
            hint=f"dsv run --again {typed.again}",
        )
