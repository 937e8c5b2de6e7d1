"""The runs of a sweep seen together: how far it has come, what has not begun, and how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsv.errors import UsageError
from dsv.model.run import RunRecord, RunState
from dsv.model.sweep import SweepId, SweepSeat
from dsv.runs.listing import RunView

NOT_BEGUN = "not begun"


@dataclass(frozen=True, slots=True)
class SweepView:
    """members: its runs, as many as are looked at, in the order in which they are shown. Never empty. chosen: whether
    they are a choice of its runs, so that they don't tell which have begun."""

    seat: SweepSeat
    members: tuple[RunView, ...]
    chosen: bool = False

    @property
    def id(self) -> SweepId:
        return self.seat.id

    @property
    def latest(self) -> dict[int, RunView]:
        """The run of each number that has begun, in this order: the last one, if it was repeated."""
        found: dict[int, RunView] = {}
        for view in sorted(self.members, key=lambda view: (_seat(view).number, view.record.run)):
            found[_seat(view).number] = view
        return found

    @property
    def not_begun(self) -> tuple[int, ...]:
        begun = {_seat(view).number for view in self.members}
        return tuple(number for number in range(1, self.seat.of + 1) if number not in begun)

    @property
    def under_way(self) -> tuple[RunRecord, ...]:
        return tuple(view.record for view in self.members if not view.record.state.is_terminal)

    @property
    def exit_code(self) -> int | None:
        """That of the first in the order of the numbers that has not succeeded; None while a run goes on or one has
        not begun and none has failed."""
        codes = [view.record.exit_code for view in self.latest.values()]
        failed = next((code for code in codes if code), None)
        return failed if failed is not None or self.not_begun or None in codes else 0

    def counts(self) -> dict[str, int]:
        """How many runs are in which state, in words, those that say most first."""
        words = Counter(_word(view.record) for view in self.latest.values())
        words[NOT_BEGUN] = 0 if self.chosen else len(self.not_begun)
        order = ["ok", "failed", "cut off", "not run", "running"]
        known = sorted(
            words, key=lambda word: (word == NOT_BEGUN, order.index(word) if word in order else 9, word)
        )
        return {word: words[word] for word in known if words[word]}


def grouped(views: Sequence[RunView], *, chosen: bool = False) -> list[SweepView | RunView]:
    """The runs of each sweep together, where the first of them stands; within a sweep the order stays what it was.

    chosen: whether these are not all runs, but those that a filter or a limit leaves."""
    members: dict[SweepId, list[RunView]] = {}
    for view in views:
        if view.record.sweep is not None:
            members.setdefault(view.record.sweep.id, []).append(view)
    found: list[SweepView | RunView] = []
    for view in views:
        seat = view.record.sweep
        if seat is None:
            found.append(view)
        elif members[seat.id][0] is view:
            found.append(SweepView(seat, tuple(members[seat.id]), chosen))
    return found


def sweep_of(views: Iterable[RunView], text: str) -> SweepView | None:
    """The sweep that a text means, by its id or by its name. Raises `UsageError` for a text that means several."""
    every = list(views)
    seats = {view.record.sweep.id: view.record.sweep for view in every if view.record.sweep is not None}
    found = [seat for id_, seat in seats.items() if id_.is_meant_by(text)]
    found = found or [seat for seat in seats.values() if seat.name == text]
    if len(found) > 1:
        some = ", ".join(seat.id for seat in found[:3])
        raise UsageError(
            f"{text} means {len(found)} sweeps", subject=text, hint=f"name one by its id: {some}"
        )
    if not found:
        return None
    id_ = found[0].id
    members = [view for view in every if view.record.sweep is not None and view.record.sweep.id == id_]
    members.sort(key=lambda view: (_seat(view).number, view.record.run))
    return SweepView(found[0], tuple(members))


def _seat(view: RunView) -> SweepSeat:
    assert view.record.sweep is not None  # so they were chosen
    return view.record.sweep


def _word(record: RunRecord) -> str:
    match record.state:
        case RunState.ENDED:
            return "ok" if record.exit_code == 0 else "failed"
        case RunState.NOT_LAUNCHED:
            return "not run"
        case RunState.CUT_OFF:
            return "cut off"
        case state:
            return str(state)
