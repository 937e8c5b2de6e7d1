"""Detached runs that wait in the queue of a Slurm, with stand-ins for its programs: no process of dsv follows them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsv.run.engines.slurm.script import comment
from dsv.run.part import EndCause
from dsv.run.record import JobRef, RunId, RunRecord, RunState
from dsv.run.record_store import RunStore
from dsv.stores.directory import DirectoryStore
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName
from tests.engines.test_slurm_stubs import programs
from tests.kit.dsv import Dsv, Result

RUN = RunId.parse("20261122-070000-0a1b2c3d")
PETS = DatasetName.parse("pets")
AWAY = '[ ! -e "$CALLS.away" ] || { echo "error: Unable to contact slurm controller" >&2; exit 1; }\n'
SQUEUE = f"""{AWAY}
[ -s "$CALLS.queue" ] && exec cat "$CALLS.queue"
case $* in *--jobs=*) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;; esac
"""
SCONTROL = f"{AWAY}[ \"$2\" != config ] || printf 'ClusterName = c\\nSlurmctldHost[0] = h\\n'"
SCANCEL = 'sed -i "s/PENDING/CANCELLED/" "$CALLS.queue"'


@dataclass
class Unwatched:
    """A run whose job has this folder, and what Slurm has in its queue."""

    dsv: Dsv
    folder: Path
    calls: Path
    runs: RunStore

    def left(self, files: Mapping[str, str], age: float = 3600) -> None:
        for name, text in files.items():
            (self.folder / name).write_text(text)
        now = self.folder.stat().st_mtime
        for path in self.folder.iterdir():
            os.utime(path, (now - age, now - age))

    def is_queued(self) -> None:
        Path(f"{self.calls}.queue").write_text(f"7|PENDING||Resources|{comment(RUN, self.folder)}\n")

    def forgotten(self) -> None:
        Path(f"{self.calls}.queue").unlink(missing_ok=True)

    def away(self) -> None:
        Path(f"{self.calls}.away").touch()

    def back(self) -> None:
        Path(f"{self.calls}.away").unlink(missing_ok=True)
        for kept in (self.calls.parent / "dsv").glob("squeue-*.json"):  # an answer serves for a second
            kept.unlink()

    def shown(self) -> Result:
        return self.dsv("runs", RUN)

    def stored(self) -> RunRecord:
        record = self.runs.newest(PETS, RUN)
        assert record is not None
        return record


@pytest.fixture
def unwatched(pets: Dsv, tmp_path: Path) -> Unwatched:
    folder = tmp_path / "x.job"
    folder.mkdir()
    env = programs(tmp_path, squeue=SQUEUE, scontrol=SCONTROL, scancel=SCANCEL)
    of_slurm = {name: env[name] for name in ("PATH", "CALLS", "SLURM_CONF", "XDG_RUNTIME_DIR")}
    runs = RunStore(DirectoryStore(Path(pets.ok("config", "store").out.strip())))
    start = RunRecord(
        run=RUN, dataset=PETS, commit=CommitId.hash(b"x"), target="pets", data=(), state=RunState.QUEUED, params={},
        engine="slurm", job=JobRef("slurm", RUN, "c@h", f"7:{folder}"), out="/nowhere", host="login", user="ada",
        started_ms=1,
    )  # fmt: skip
    runs.write(PETS, RUN, "start", start.encode())
    it = Unwatched(pets.at(pets.cwd, **of_slurm), folder, tmp_path / "calls", runs)
    it.left({"job.sh": f"#SBATCH --comment={comment(RUN, folder)}\n", "unwatched": ""})
    return it


def test_the_record_of_a_run_that_is_stopped_in_the_queue_is_complete_at_once(unwatched: Unwatched) -> None:
    """Slurm forgets the job some minutes later, and nobody might look until then."""
    unwatched.is_queued()
    said = unwatched.dsv.ok("stop", RUN)
    assert "was stopped, and ended with exit code 125" in said.err
    record = unwatched.stored()
    assert (record.state, record.end, record.exit_code) == (RunState.NOT_LAUNCHED, EndCause.CANCELLED, 125)
    assert record.cancelled_by is not None
    unwatched.forgotten()
    assert unwatched.shown().code == 0 and unwatched.dsv("wait", RUN).code == 125


@pytest.mark.parametrize(
    ("files", "state", "end"),
    [
        ({}, RunState.NOT_LAUNCHED, EndCause.NOT_STARTED),
        ({"slurm.log": ""}, RunState.CUT_OFF, EndCause.LOST_SIGHT),
        ({"slurm.log": "", "node.1.0": "n1 10\n"}, RunState.CUT_OFF, EndCause.LOST_SIGHT),
    ],
)
@pytest.mark.parametrize(("command", "code"), [("runs", 0), ("wait", 125), ("stop", 0)])
def test_whoever_looks_first_completes_a_run_whose_job_slurm_has_forgotten(
    unwatched: Unwatched, files: dict[str, str], state: RunState, end: EndCause, command: str, code: int
) -> None:
    unwatched.left(files)
    said = unwatched.dsv(command, RUN)
    assert said.code == code and "last known" not in said.out + said.err, said
    record = unwatched.stored()
    assert (record.state, record.end, record.exit_code) == (state, end, 125)
    assert str(record.error).startswith("Slurm has no such job any more, and ")


def test_the_exit_code_in_the_folder_is_shown_while_slurm_is_away(unwatched: Unwatched) -> None:
    unwatched.left({"slurm.log": "attempt 1 on n1\n", "node.1.0": "n1 10 3 12\n", "end": "3 1\n"})
    unwatched.away()
    said = unwatched.shown()
    assert (
        said.code == 6
        and f"only the last known state of run {RUN} is shown: Slurm does not answer" in said.err
    )
    assert (
        "no such job" not in said.err and "exit_code      3" in said.out and "hint: scontrol ping" in said.err
    )
    unwatched.back()
    assert unwatched.shown().code == 0 and unwatched.stored().exit_code == 3


def test_a_job_that_left_nothing_here_is_to_be_looked_for_elsewhere(unwatched: Unwatched) -> None:
    shutil.rmtree(unwatched.folder)
    said = unwatched.shown()
    assert said.code == 6 and f"slurm has no job of run {RUN} any more" in said.err
    assert f"hint: dsv runs {RUN}, on login" in said.err and "dsv pools" not in said.err


def test_who_waits_is_told_once_that_slurm_is_away(
    unwatched: Unwatched, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(range(3))

    def after_three(_: float) -> None:
        if next(looks, None) is None:
            unwatched.back()

    monkeypatch.setattr("dsv.cli.commands.stop.sleep", after_three)
    unwatched.away()
    said = unwatched.dsv("wait", RUN)
    assert said.code == 125 and unwatched.stored().state is RunState.NOT_LAUNCHED
    seen = "can't tell now whether a run has ended: queued is the last known state, of 1970-01-01T00:00:00Z: Slurm does"
    assert said.err.count(seen) == 1


def test_who_stops_is_told_first_that_slurm_is_away(unwatched: Unwatched) -> None:
    unwatched.is_queued()
    unwatched.away()
    said = unwatched.dsv("stop", RUN)
    warning, error = (
        said.err.index("does not end before its cluster answers"),
        said.err.index("error: Slurm does not"),
    )
    assert said.code == 6 and warning < error
