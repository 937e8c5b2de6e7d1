"""`dsv run --sweep`: its options, the start of the sweep, its progress and its result.

On a terminal the progress is a line for each run, else a line for each event.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from signal import SIGHUP
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dsv.api.context import Context
from dsv.api.pools import Placing
from dsv.api.run import become_driver, dry_run, open_sweep, outcome
from dsv.api.runs import Runs, open_runs
from dsv.api.workspaces import workspace_above
from dsv.cli.call import Call
from dsv.cli.detach import Supervisor, detach
from dsv.cli.launch import Typed, launching, placing_of, plan_document, show_plan, spec_of
from dsv.cli.output import printable
from dsv.cli.views.runs import params_text, result_text, write_table
from dsv.errors import UsageError
from dsv.run.dirs import RunPlace
from dsv.run.engines.attach import spared
from dsv.run.listing import as_text, flattened
from dsv.run.parameters import combination, names_sweep, parse_axes, varied
from dsv.run.sweep import SweepDriver, SweepPlan, continued_sweep, driving, new_sweep, sweep_folder
from dsv.values.units import format_count, format_duration

if TYPE_CHECKING:
    from rich.live import Live

    from dsv.cli.call import Call
    from dsv.run.listing import RunView
    from dsv.run.parameters import SweepSeat
    from dsv.run.record import RunId


def is_sweep(typed: Typed) -> bool:
    """Check that several runs are asked for."""
    return typed.sweep or (typed.again is not None and names_sweep(typed.again))


@spared()
def sweep(call: Call, typed: Typed) -> int:
    """Start its runs and wait for them; return the exit code, 0 if all have succeeded."""
    _check(call, typed)
    if typed.detach and call.session.announce is None:
        with launching():
            return detach(call)
    with ExitStack() as held:
        with launching():
            context = held.enter_context(call.context(writes=True))
            found = held.enter_context(open_runs(context, call.around.environ))
            place = RunPlace.here(
                call.around.environ, call.settings.state, call.settings.cwd, workspace_above
            )
            plan = _plan(call, typed, context, place, found)
            cache = call.settings.cache().path
            placing = placing_of(call, typed, context, cache)
            if typed.dry_run:
                _show(call, context, cache, place, plan, placing)
                return 0
        held.enter_context(driving(place.state, plan.seat.id))
        become_driver(found, plan)
        lines = SweepLines.of(call, plan.seat, plan.left)
        with launching():
            driver = held.enter_context(
                open_sweep(
                    context, found, cache, plan, place,
                    parallel=typed.parallel or 1,
                    start=lambda whole, number: Supervisor.start(call, whole.member(number)),
                    watcher=lines, placing=placing, force=typed.force,
                )
            )  # fmt: skip
        _announce(call, place, plan, driver.parallel)
        with lines:
            driver.drive()
        return _tell(call, found, driver)


def _plan(call: Call, typed: Typed, context: Context, place: RunPlace, found: Runs) -> SweepPlan:
    if typed.again is not None:
        view, turn = found.unfinished(typed.again)
        sibling = replace(typed, again=view.members[0].record.run)
        return continued_sweep(view, turn, spec_of(call, sibling, context, place), place)
    axes = parse_axes(typed.options.get("params") or ())
    options = {name: value for name, value in typed.options.items() if name != "params"}
    return new_sweep(spec_of(call, replace(typed, options=options), context, place), axes, place)


def _announce(call: Call, place: RunPlace, plan: SweepPlan, parallel: int) -> None:
    seat = plan.seat
    folder = sweep_folder(place.state, seat.id)
    if call.session.announce is not None:
        call.session.announce(seat.id, folder, folder)
    else:
        call.say(f"{seat.id}: {format_count(len(plan.left), 'run')}, at most {parallel} at once")


def _tell(call: Call, found: Runs, driver: SweepDriver) -> int:
    if driver.ended_by == SIGHUP:
        return 128 + SIGHUP  # nobody is there to be told
    code, view = outcome(found, driver)
    if call.json:
        runs = [] if view is None else [each.item() for each in view.members]
        call.document({"sweep": {"id": driver.plan.seat.id, "exit_code": code, "runs": runs}})
    elif view is not None:
        write_table(call, view.members)
    return code


def _show(
    call: Call, context: Context, cache: Path, place: RunPlace, plan: SweepPlan, placing: Placing | None
) -> None:
    items = []
    for number in plan.left:
        spec = plan.of_run(number)
        shown, spec = dry_run(context, cache, spec, place, placing=placing)
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


_METRICS = 4
"""Metrics that a line has room for."""


class SweepLines:
    """Writes, in a pipe, a line when a run begins, and one when it has ended."""

    def __init__(self, call: Call, seat: SweepSeat) -> None:
        self._call = call
        self._seat = seat

    @classmethod
    def of(cls, call: Call, seat: SweepSeat, numbers: Sequence[int]) -> SweepLines:
        """numbers: of the runs to come. Nothing is drawn with --quiet, and on a terminal that can't be drawn on."""
        around = call.around
        if around.stderr_is_terminal and not around.is_dumb and not call.quiet:
            return _Drawn(call, seat, numbers)
        return cls(call, seat)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def begun(self, number: int, run: RunId) -> None:
        self._call.say(f"{self._title(number)}: run {run} begun")

    def ended(self, number: int, view: RunView) -> None:
        self._call.say(f"{self._title(number)}: run {view.record.run} {_ending(view)}")

    def note(self, text: str) -> None:
        self._call.say(text)

    def tick(self) -> None:
        """Called several times a second while nothing happens."""

    def _title(self, number: int) -> str:
        params = combination(self._seat.axes, number)
        return f"{number}/{self._seat.of} {params_text(varied(params, self._seat.axes))}"


class _Drawn(SweepLines):
    """Draws one line for each run, on a terminal."""

    def __init__(self, call: Call, seat: SweepSeat, numbers: Sequence[int]) -> None:
        super().__init__(call, seat)
        self._states = dict.fromkeys(numbers, "waits")
        self._since: dict[int, float] = {}
        self._notes: list[str] = []
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live

        around = self._call.around
        console = Console(
            file=around.stderr, force_terminal=True, no_color=not around.colour, width=around.columns()
        )
        self._live = Live(console=console, auto_refresh=False, transient=False, vertical_overflow="ellipsis")
        self._live.start()
        self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._draw()
            self._live.stop()

    def begun(self, number: int, run: RunId) -> None:
        self._states[number] = f"{run[-8:]}  runs"
        self._since[number] = monotonic()
        self._draw()

    def ended(self, number: int, view: RunView) -> None:
        self._since.pop(number, None)
        self._states[number] = f"{view.record.run[-8:]}  {_ending(view)}"
        self._draw()

    def note(self, text: str) -> None:
        self._notes.append(text)
        self._draw()

    def tick(self) -> None:
        self._draw()

    def _draw(self) -> None:
        from rich.text import Text

        assert self._live is not None  # it was entered
        room = max((len(self._title(number)) for number in self._states), default=0)
        lines = [f"{self._title(number):<{room}}  {self._said(number)}" for number in self._in_sight()]
        text = Text(
            "\n".join(printable(line) for line in (*lines, *self._notes)), no_wrap=True, overflow="ellipsis"
        )
        self._live.update(text, refresh=True)

    def _in_sight(self) -> list[int]:
        """Return all of them, or of very many those that go on and the last that ended, as far as there is room."""
        assert self._live is not None  # it was entered
        room = max(1, self._live.console.height - len(self._notes) - 1)
        numbers = list(self._states)
        if len(numbers) <= room:
            return numbers
        begun = [number for number in numbers if self._states[number] != "waits"]
        first = max(0, len(begun) - room + 1)
        return numbers[first : first + room]

    def _said(self, number: int) -> str:
        since = self._since.get(number)
        took = "" if since is None else f" for {format_duration(int(monotonic() - since))}"
        return self._states[number] + took


def _ending(view: RunView) -> str:
    """`ok after 3.2 s, acc=0.93`."""
    took = "" if view.took_seconds is None else f" after {format_duration(view.took_seconds)}"
    metrics = list(flattened(view.record.metrics or {}).items())
    shown = "".join(f", {name}={as_text(value)[:12]}" for name, value in metrics[:_METRICS])
    return f"{result_text(view.record)}{took}{shown}"
