"""The progress of a sweep while its runs go on: on a terminal a line for each run, else a line for each event."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dsv.cli.output import printable
from dsv.cli.views.runs import params_text, result_text
from dsv.run.parameters import combination, varied
from dsv.run.query import as_text, flattened
from dsv.values.units import format_duration

if TYPE_CHECKING:
    from rich.live import Live

    from dsv.cli.call import Call
    from dsv.run.listing import RunView
    from dsv.run.parameters import SweepSeat
    from dsv.run.record import RunId


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
