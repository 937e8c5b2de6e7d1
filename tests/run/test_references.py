"""The reference of a job: written down before the job begins, so that a run can be found whoever is killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from dsv.errors import LaunchError
from dsv.files.process import Process as Known
from dsv.run.active_runs import Marks, RunOwner, RunRecords
from dsv.run.completing import Completer
from dsv.run.dirs import run_folder
from dsv.run.engine_list import Engines, find_job
from dsv.run.engines.attach import FollowedJob, Foreground
from dsv.run.engines.base import JobPlan, JobStatus, SubmittedJob
from dsv.run.engines.output import JobOutput
from dsv.run.engines.process import ProcessEngine, _ProcessRun
from dsv.run.engines.reaper import processes_of
from dsv.run.listing import RunView
from dsv.run.record import START, JobRef, RunId, RunOutput, RunRecord, RunState
from dsv.run.record_store import Spool
from dsv.run.supervisor import run
from tests.run.shop import SCANS, STORE, Folders, Shop
from tests.waiting import until


def start(shop: Shop, *command: str, **more: Any) -> RunView:
    records = RunRecords(shop.place.state, STORE, shop.runs)
    return run(shop.request(*command, **more), place=shop.place, staging=shop.data, records=records)


def complete_cut_off(shop: Shop, marks: Marks, *stop: RunId) -> list[RunRecord]:
    """stop: the runs whose jobs are ended first"""
    completer = Completer(Engines(shop.environ), shop.runs, shop.spool, marks)
    return completer.complete_cut_off(lambda _: None, dict.fromkeys(stop, 0.0))


def test_the_start_names_the_job_before_it_begins(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[RunRecord, JobStatus | None, list[int]]] = []
    keep = Spool.keep

    def watched(self: Spool, dataset: object, number: RunId, part: str, data: bytes) -> Path:
        if part == START:
            begun = RunRecord.decode(data, "start")
            assert begun.job is not None
            seen.append((begun, ProcessEngine(shop.environ).status(begun.job), processes_of(number)))
        return keep(self, dataset, number, part, data)  # type: ignore[arg-type]

    monkeypatch.setattr(Spool, "keep", watched)
    record = start(shop, "sh", "-c", "exit 3").record
    ((begun, status, processes),) = seen
    assert (status, processes) == (JobStatus(RunState.SUBMITTED), [])
    assert (begun.state, begun.job) == (RunState.RUNNING, record.job)
    assert record.job is not None and JobRef.decode(record.job.encode()) == record.job
    assert shop.runs.read(shop.runs.listing(SCANS)[0]).job == record.job
    found = find_job(record, Engines(shop.environ))
    assert found is not None and found.status == JobStatus(RunState.ENDED)


def test_a_job_whose_program_is_being_loaded_has_not_begun(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel shows no words of a process between its exec and their copy."""
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"" if path.name == "cmdline" else read(path))
    here = Known.here()
    ref = JobRef("process", RunId.make(0, bytes(4)), here.kernel, f"{here.pid}:{here.start}")
    assert ProcessEngine(shop.environ).status(ref) == JobStatus(RunState.SUBMITTED)


def test_a_job_whose_start_cannot_be_kept_does_not_begin(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dsv.run.record_store.replace_file", full)
    with pytest.raises(LaunchError, match="can't be kept"):
        start(shop, "touch", str(shop.home / "begun"))
    assert not (shop.home / "begun").exists()


def test_a_run_is_shown_as_submitted_until_its_engine_has_the_job(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RunState] = []
    submit = ProcessEngine.submit

    def watched(self: ProcessEngine, plan: JobPlan, output: JobOutput, cancelled: Event) -> SubmittedJob:
        seen.extend(each.state for each in Marks(shop.place.state, STORE).known())
        return submit(self, plan, output, cancelled)

    monkeypatch.setattr(ProcessEngine, "submit", watched)
    assert start(shop, "true").record.state is RunState.ENDED
    assert seen == [RunState.SUBMITTED]


def test_a_run_whose_job_may_begin_yet_stays_under_way(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster gave no answer when the job should begin, and none when it should be ended."""

    def unanswered(*_: object) -> None:
        raise LaunchError("no answer")

    def not_known(self: Foreground, ref: JobRef) -> bool:
        ProcessEngine(shop.environ).cancel(ref, 0)
        return False

    monkeypatch.setattr(FollowedJob, "begin", unanswered)
    monkeypatch.setattr(Foreground, "_is_gone", not_known)
    result = start(shop, "true")
    assert result.exit_code == 125 and result.error is not None
    assert f"could not determine whether run {result.record.run} ended: no answer" == result.error.message
    marks = Marks(shop.place.state, STORE)
    (known,) = marks.known()
    assert (known.run, known.state, known.job is not None) == (result.record.run, RunState.RUNNING, True)
    scratch = run_folder(shop.place.state, SCANS, known.run) / "scratch"
    assert scratch.is_dir()
    monkeypatch.setattr(RunOwner, "is_dead", True)
    completed: list[RunRecord] = []
    until(
        lambda: completed.extend(complete_cut_off(shop, marks)) or completed
    )  # its process may take time to end
    (cut,) = completed
    assert (cut.run, cut.state.is_terminal) == (known.run, True)
    assert marks.known() == [] and not scratch.exists()


def test_a_job_of_this_machine_that_can_not_be_followed_is_ended(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:

    def fail(job: _ProcessRun) -> None:
        Thread(target=job._process.wait, daemon=True).start()
        raise ValueError("odd")

    monkeypatch.setattr(_ProcessRun, "_until_end", fail)
    result = start(shop, "sh", "-c", "exec tail -f /dev/null >/dev/null 2>&1")
    assert (
        result.exit_code == 125 and result.error is not None and "ValueError('odd')" in result.error.message
    )
    assert result.record.state is RunState.CUT_OFF and Marks(shop.place.state, STORE).known() == []
    until(lambda: not processes_of(result.record.run), "its end by the reaper")


def test_a_reference_from_the_store_ends_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone who may write to the store could name a job of somebody else in a record."""
    monkeypatch.setattr(RunOwner, "is_dead", True)
    bystander = ProcessEngine(shop.environ)
    plan = JobPlan(engine="process", run="another", where=Known.here().kernel, argv=("true",), env={})
    job = bystander.submit(plan, JobOutput(None, None), Event())
    ref = job.ref
    try:
        record = start(shop, "true").record
        begun = replace(
            record,
            run=RunId.parse("20200101-000000-00000000"),
            state=RunState.RUNNING,
            exit_code=None,
            ended_ms=None,
            job=None,
        )
        marks = Marks(shop.place.state, STORE)
        marks.set(begun)
        shop.runs.write(SCANS, begun.run, START, replace(begun, job=ref).encode())
        (cut,) = complete_cut_off(shop, marks)
        assert (cut.run, cut.state) == (begun.run, RunState.CUT_OFF)
        assert bystander.status(ref) == JobStatus(RunState.SUBMITTED)
    finally:
        bystander.cancel(ref, 0)
        job.abandon()
    assert bystander.status(ref) == JobStatus(RunState.ENDED)


def test_a_supervisor_that_is_killed_during_the_upload_of_output_has_saved_the_end(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: Folders, folder: Path | None, run: RunId) -> RunOutput:
        raise SystemExit  # as SIGKILL: nothing is written any more

    monkeypatch.setattr(Folders, "output", killed)
    with pytest.raises(SystemExit):
        start(shop, "sh", "-c", "echo said; exit 6", keep_output=True)
    marks = Marks(shop.place.state, STORE)
    monkeypatch.setattr(RunOwner, "is_dead", True)
    (cut,) = complete_cut_off(shop, marks)
    assert (cut.state, cut.exit_code) == (RunState.ENDED, 6)
    assert cut.output is not None and cut.output.error == "dsv was killed while it sent it"
    (stored,) = shop.runs.listing(SCANS)
    assert shop.runs.read(stored) == cut and shop.runs.log(stored) == b"said\n"
