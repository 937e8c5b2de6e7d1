"""A run that is known to other commands before its job starts."""

from __future__ import annotations

import pytest

from dsv.errors import LaunchError, NoRoom, Signalled, Terminated
from dsv.run.active_runs import Marks, RunRecords, under_way
from dsv.run.listing import each_run, show_run
from dsv.run.record import RunId, RunRecord, RunState
from dsv.run.staged import Staged
from dsv.run.supervisor import run
from dsv.values.names import Target
from tests.run.shop import SCANS, STORE, FolderLease, Folders, Shop


def start(shop: Shop, *command: str) -> tuple[RunRecord, list[RunId]]:
    told: list[RunId] = []
    records = RunRecords(shop.place.state, STORE, shop.runs)
    result = run(
        shop.request(*command),
        place=shop.place,
        staging=shop.data,
        records=records,
        announce=lambda number, own, out: told.append(number),
    )
    return result.record, told


def test_a_run_is_shown_as_staging_while_its_data_is_fetched(shop: Shop) -> None:
    marks = Marks(shop.place.state, STORE)
    seen: list[RunRecord] = []

    class Watched(Folders):
        def stage(self, target: Target, run: RunId) -> tuple[Staged, FolderLease]:
            views = list(each_run(shop.runs, shop.spool, SCANS, early=marks.known()))
            seen.extend(view.record for view in views)
            seen.append(show_run(shop.runs, shop.spool, run[-8:], [SCANS], marks.known()).record)
            return super().stage(target, run)

    shop.data.__class__ = Watched
    record, told = start(shop, "true")
    assert [each.state for each in seen] == [RunState.STAGING, RunState.STAGING]
    assert told == [record.run] == [seen[0].run] and record.state is RunState.ENDED
    assert under_way(shop.place.state) == []
    assert [each.state for each in (view.record for view in each_run(shop.runs, None, None))] == ["ended"]


@pytest.mark.parametrize(
    ("problem", "raised", "code", "by"),
    [
        (NoRoom("the cache is full"), LaunchError, 125, None),
        (Signalled(Terminated("stopped by SIGTERM")), Signalled, 143, "SIGTERM"),
        (KeyboardInterrupt(), KeyboardInterrupt, 130, "SIGINT"),
    ],
)
def test_what_keeps_its_data_from_being_fetched_is_recorded(
    shop: Shop, problem: BaseException, raised: type[BaseException], code: int, by: str | None
) -> None:
    class Full(Folders):
        def stage(self, target: Target, run: RunId) -> tuple[Staged, FolderLease]:
            raise problem

    shop.data.__class__ = Full
    with pytest.raises(raised):
        start(shop, "true")
    (view,) = each_run(shop.runs, None, None)
    assert (view.record.state, view.record.exit_code) == (RunState.NOT_LAUNCHED, code)
    assert (view.record.error, view.record.cancelled_by) == (str(problem) or "interrupted", by)
    assert under_way(shop.place.state) == []
    assert list(shop.place.state.rglob("live.log")) == []
