"""Who completes the record of a run whose job is over, when, and with what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from dsv.errors import Unreachable
from dsv.repo.repository import now_ms
from dsv.run.active_runs import Marks
from dsv.run.completing import Completer, completed
from dsv.run.dirs import ANSWERS
from dsv.run.engine_list import Engines
from dsv.run.engines.base import Ended, JobStatus
from dsv.run.part import EndCause, RunPart
from dsv.run.record import RECORD, JobRef, LogInfo, RunId, RunRecord, RunState
from dsv.run.record_store import RunStore
from dsv.values.ids import CommitId
from tests.run.shop import SCANS, STORE, Shop

RUN = RunId.parse("20261120-132145-1f2e3d4c")
OVER = Ended(
    exit_code=4, launched=True, cause=EndCause.EXITED, parts=(RunPart(started_ms=5000, ended_ms=9000),)
)
NEVER = Ended(exit_code=137, launched=False, cause=EndCause.CANCELLED)


@dataclass
class Cluster:
    """One engine, which says this of its only job."""

    says: JobStatus | None
    environ: Mapping[str, str] = field(default_factory=dict)
    pools: Mapping[str, Any] = field(default_factory=dict)
    silent: Unreachable | None = None
    forgotten: list[JobRef] = field(default_factory=list)
    kept: tuple[JobRef, ...] = ()
    name = "slurm"
    queues = True
    shares_folders = True

    def make(self, name: str, pool: str | None) -> Cluster:
        return self

    def status(self, ref: JobRef) -> JobStatus | None:
        return self.says

    def probe(self) -> None:
        if self.silent is not None:
            raise self.silent

    def forget(self, ref: JobRef) -> None:
        self.forgotten.append(ref)

    def ended_jobs(self) -> tuple[JobRef, ...]:
        return self.kept

    def logs(self, ref: JobRef, follow: bool) -> AbstractContextManager[Iterator[bytes]]:
        return nullcontext(iter([b"the token is hunter2hunter2\n"]))


def started(**more: Any) -> RunRecord:
    job = JobRef("slurm", RUN, "c", "7:/job")
    record = RunRecord(
        run=RUN, dataset=SCANS, commit=CommitId.hash(b"x"), target="team/scans", data=(), state=RunState.QUEUED,
        engine="slurm", job=job, params={}, out="/nowhere", host="login", user="ada", started_ms=1000,
        log=LogInfo(0, 0),
    )  # fmt: skip
    return replace(record, **more)


def over(ended: Ended = OVER, idle_seconds: float | None = 60.0) -> JobStatus:
    return JobStatus(RunState.ENDED, ended.exit_code, ended, idle_seconds)


class Supervised(Marks):
    """The marks of these runs, whose supervisors live."""

    def __init__(self, shop: Shop, runs: Iterable[RunId]) -> None:
        super().__init__(shop.place.state, STORE)
        self._runs = frozenset(runs)

    def supervised(self) -> frozenset[RunId]:
        return self._runs


def completer(shop: Shop, cluster: Cluster, supervised: Iterable[RunId] = ()) -> Completer:
    engines = cast("Engines", cluster)
    return Completer(engines, shop.runs, shop.spool, Supervised(shop, supervised))


def settler(shop: Shop, says: JobStatus | None, *supervised: RunId, **environ: str) -> Completer:
    return completer(shop, Cluster(says, environ), supervised)


def test_a_run_is_completed_with_its_log_and_its_times(shop: Shop) -> None:
    record, sent = settler(shop, over(), TOKEN="hunter2hunter2").settle(started(env=("TOKEN",)))
    assert sent and (record.state, record.exit_code, record.started_ms) == (RunState.ENDED, 4, 5000)
    (stored,) = shop.runs.listing(SCANS, RUN)
    assert shop.runs.read(stored) == record and record.metrics_error is None
    log = shop.runs.log(stored)
    assert log is not None and b"hunter2" not in log and log.startswith(b"the token is")


def test_a_log_that_may_show_what_is_not_known_here_is_left_out(shop: Shop) -> None:
    record, _ = settler(shop, over()).settle(started(env=("TOKEN",)))
    log = shop.runs.log(shop.runs.listing(SCANS, RUN)[0])
    assert log is not None and b"hunter2" not in log and b"TOKEN, which only login knows" in log
    assert record.log is not None and record.log.kept_bytes == len(log)


def test_hosts_with_wrong_clocks_end_after_they_began(shop: Shop) -> None:
    """One is behind, so that its part seems to be older than the run."""
    began = 3_600_000
    parts = (
        RunPart(node=0, host="n0", started_ms=began + 1000, ended_ms=began + 9000),
        RunPart(node=1, host="n1", started_ms=began - 1_200_000, ended_ms=began - 1_190_000),
    )
    record, _ = settler(shop, over(replace(OVER, parts=parts))).settle(started(started_ms=began))
    assert (record.started_ms, record.ended_ms) == (began, began + 10_000)


def test_of_two_who_complete_it_one_wins(shop: Shop) -> None:
    first, _ = settler(shop, over()).settle(started())
    second, sent = settler(shop, over(replace(OVER, exit_code=9))).settle(started())
    assert sent and second == first and first.exit_code == 4


@pytest.mark.parametrize(
    ("says", "more", "supervised", "shown"),
    [
        (over(idle_seconds=None), {}, False, "ended 4"),  # what the job left can't be seen here
        (over(idle_seconds=3.0), {}, False, "ended 4"),  # whoever waits for it elsewhere completes it
        (over(), {}, True, "ended 4"),
        (over(NEVER), {"then": ("cloud",)}, False, "queued"),  # it may move to another pool
        (over(replace(OVER, seen=False)), {}, False, "queued, last known"),
        (JobStatus(RunState.CUT_OFF), {}, False, "queued, last known"),
    ],
)
def test_a_job_whose_record_others_complete_is_shown_as_it_ended(
    shop: Shop, says: JobStatus, more: dict[str, Any], supervised: bool, shown: str
) -> None:
    """Nothing is stored; for `dsv wait` such a run has not ended."""
    looking = settler(shop, says, *((RUN,) if supervised else ()))
    record, in_store = looking.settle(started(**more))
    code = "" if record.exit_code is None else f" {record.exit_code}"
    assert f"{record.state}{code}{', last known' if RUN in looking.last_known else ''}" == shown
    assert in_store is (record.exit_code is None)
    waited, _ = looking.settle(started(**more), whole=True)
    assert waited.state is RunState.QUEUED and shop.runs.listing(SCANS, RUN) == []


def test_an_end_that_was_seen_is_remembered_while_the_cluster_is_away(shop: Shop) -> None:
    """Until the record is complete: then nothing of it is left here."""
    cluster = Cluster(over(idle_seconds=3.0))
    completer(shop, cluster).settle(started())
    cluster.says, cluster.silent = None, Unreachable("Slurm does not answer: refused")
    away = completer(shop, cluster)
    record, _ = away.settle(started())
    assert (record.state, record.exit_code) == (RunState.ENDED, 4)
    assert away.last_known == {RUN: cluster.silent}
    assert away.settle(started(), whole=True)[0].state is RunState.QUEUED
    cluster.says = over()
    completer(shop, cluster).settle(started())
    assert not any((shop.place.state / ANSWERS).iterdir())


def test_the_exit_code_that_a_job_left_is_shown_while_its_cluster_is_away(shop: Shop) -> None:
    """It is not the end yet: the cluster may begin the job again, or say more about it."""
    cluster = Cluster(JobStatus(RunState.ENDED, 3), silent=Unreachable("Slurm does not answer: refused"))
    for _ in range(2):
        looking = completer(shop, cluster)
        record, _ = looking.settle(started())
        assert (record.state, record.exit_code) == (RunState.ENDED, 3)
        assert looking.last_known == {RUN: cluster.silent}
        assert looking.settle(started(), whole=True)[0].state is RunState.QUEUED
        cluster.says = None
    assert shop.runs.listing(SCANS, RUN) == []


@pytest.mark.parametrize(
    "says",
    [
        JobStatus(RunState.CUT_OFF, 137, NEVER, reason="no such Job"),
        JobStatus(RunState.CUT_OFF),
        over(idle_seconds=0),
    ],
)
def test_a_store_that_does_not_answer_says_nothing_about_a_run(
    shop: Shop, says: JobStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have the record of a job that was deleted since."""
    away = Unreachable("the store does not answer")

    def newest(*_: object) -> None:
        raise away

    monkeypatch.setattr(RunStore, "newest", newest)
    looking = settler(shop, says)
    assert looking.settle(started())[0].state is RunState.QUEUED and looking.last_known == {RUN: away}


def test_a_job_that_its_cluster_does_not_show_makes_no_other_run_last_known(shop: Shop) -> None:
    cluster = Cluster(None)
    looking = completer(shop, cluster)
    looking.settle(started())
    cluster.says = JobStatus(RunState.RUNNING)
    other = replace(started(), run=RunId.parse("20261120-132145-00000000"))
    assert looking.settle(other)[0].state is RunState.RUNNING and list(looking.last_known) == [RUN]


def test_a_record_that_was_completed_meanwhile_is_shown(shop: Shop) -> None:
    settler(shop, over()).settle(started())
    record, in_store = settler(shop, over(idle_seconds=0.0)).settle(started(), whole=True)
    assert in_store and (record.state, record.exit_code) == (RunState.ENDED, 4)


def test_a_run_that_is_not_over_is_shown_with_the_state_of_its_cluster(shop: Shop) -> None:
    record, _ = settler(shop, JobStatus(RunState.RUNNING)).settle(started())
    assert record.state is RunState.RUNNING and shop.runs.listing(SCANS, RUN) == []


def test_a_cluster_forgets_a_job_once_its_record_is_whole(shop: Shop) -> None:
    cluster = Cluster(over())
    completer(shop, cluster).settle(started())
    assert cluster.forgotten == [started().job]
    assert RECORD in shop.runs.listing(SCANS, RUN)[0].parts


@pytest.mark.parametrize(
    ("kept", "ended_days_ago", "supervised", "removed"),
    [(True, 1, False, True), (False, 1, False, False), (True, 9, False, False), (True, 1, True, False)],
)
def test_a_job_that_completed_its_own_record_is_removed_by_whoever_looks_next(
    shop: Shop, kept: bool, ended_days_ago: int, supervised: bool, removed: bool
) -> None:
    ended_ms = now_ms() - ended_days_ago * 86_400_000
    record = started(state=RunState.ENDED, exit_code=0, ended_ms=ended_ms)
    assert record.job is not None
    cluster = Cluster(None, kept=(record.job,) if kept else ())
    by = frozenset([RUN] if supervised else ())
    completer(shop, cluster, by).remove_job(record)
    assert cluster.forgotten == ([record.job] if removed else [])


def test_a_cluster_that_answers_but_not_about_the_job_is_said_to(shop: Shop) -> None:
    record, _ = settler(shop, None).settle(started())
    assert str(record.error).endswith("slurm answers, but not about this job")


def test_what_is_known_of_a_run_whose_cluster_is_away_is_said_to_be_old(shop: Shop) -> None:
    away = Unreachable("Kubernetes does not answer: refused")
    cluster = Cluster(None, silent=away)

    def seen() -> RunRecord:
        return completer(shop, cluster).settle(started())[0]

    assert seen().state is RunState.QUEUED
    since = "queued is the last known state, of 1970-01-01T00:00:01"
    assert since in str(seen().error) and str(seen().error).endswith(away.message)
    cluster.says = JobStatus(RunState.RUNNING)
    assert (seen().state, seen().error) == (RunState.RUNNING, None)
    cluster.says = None
    assert seen().state is RunState.RUNNING
    assert str(seen().error).startswith("running is the last known state, of 20")


def test_a_run_whose_job_no_cluster_has_is_cut_off(shop: Shop) -> None:
    """Unless somebody has completed its record meanwhile, and then removed the job."""
    gone = JobStatus(RunState.CUT_OFF, reason="the cluster has no Job j any more")
    record, _ = settler(shop, gone).settle(started())
    assert (record.state, record.end, record.error) == (RunState.CUT_OFF, EndCause.LOST_SIGHT, gone.reason)
    assert settler(shop, gone, RUN).settle(started())[0] == started()
    whole, _ = settler(shop, over()).settle(started())
    assert settler(shop, gone).settle(started())[0] == whole


def took(*parts: RunPart) -> tuple[int, int | None]:
    record = completed(started(started_ms=4_000), replace(OVER, parts=parts), noticed_ms=90_000_000)
    return record.started_ms, record.ended_ms


def test_times_of_clocks_that_differ_are_never_subtracted() -> None:
    """Node 1 is 20 minutes ahead of node 0, and so is the node of the second attempt."""
    ahead = 1_200_000
    one = RunPart(node=0, host="n1", started_ms=5_000, ended_ms=9_000)
    other = RunPart(node=1, host="n2", started_ms=5_000 + ahead, ended_ms=12_000 + ahead)
    assert took(one, other) == (5_000, 12_000)
    assert took(replace(one, node=1), replace(other, node=0)) == (5_000, 12_000)
    behind = RunPart(attempt=2, host="n3", started_ms=15_000 - ahead, ended_ms=18_000 - ahead)
    assert took(one, behind) == (5_000, 12_000)
    assert took(one, replace(behind, started_ms=15_000, ended_ms=18_000)) == (5_000, 18_000)


def test_without_times_of_the_job_those_of_whoever_looked_count() -> None:
    assert took(RunPart(host="n1", started_ms=5_000)) == (5_000, 90_000_000)
    assert took() == (4_000, 90_000_000)


def test_a_run_says_what_its_nodes_say_of_the_cache() -> None:
    parts = (
        RunPart(node=0, cache_hit=True, stage_seconds=0.5, stage_bytes=0),
        RunPart(node=1, cache_hit=False, stage_seconds=9.5, stage_bytes=7),
        RunPart(node=1, attempt=2, cache_hit=True, stage_seconds=12.0, stage_bytes=0),
    )
    record = completed(started(cache_hit=True), replace(OVER, parts=parts))
    assert (record.cache_hit, record.stage_seconds, record.stage_bytes) == (False, 9.5, 7)


def test_a_job_that_was_certainly_lost_is_completed_as_cut_off(shop: Shop) -> None:
    gone = replace(OVER, exit_code=125, cause=EndCause.LOST_SIGHT, reason="the batch script was killed")
    record, sent = settler(shop, over(gone)).settle(started())
    assert sent and (record.state, record.end, record.error) == (
        RunState.CUT_OFF,
        EndCause.LOST_SIGHT,
        "the batch script was killed",
    )
