"""Jobs that no dsv follows, because Slurm holds them: when they are left to it, and what becomes of them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from dsv.run.engines.slurm.engine import Slurm, SlurmRun
from dsv.run.engines.slurm.script import comment
from dsv.run.part import EndCause
from dsv.run.record import JobRef, RunState
from tests.engines.test_slurm_stubs import RUN, SCONTROL, programs

FORGOTTEN = 'case $* in *--jobs=*) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;; esac'
"""Slurm removes a job from its memory some minutes after its end."""


@pytest.mark.parametrize(
    ("said", "ended", "is_left"),
    [
        ("PENDING||Resources", False, True),
        ("RUNNING|n1|None", False, True),
        ("PENDING||None", False, False),  # it may turn out that it can never begin
        ("PENDING||PartitionTimeLimit", False, False),
        ("PENDING||JobHeldUser", False, False),
        ("RUNNING|n1|None", True, False),  # its end is being recorded here
        ("COMPLETED|n1|None", False, False),
    ],
)
def test_a_job_is_left_to_its_nodes_once_slurm_can_run_it(
    tmp_path: Path, said: str, ended: bool, is_left: bool
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "job.sh").write_text(f"#SBATCH --comment=dsv:{RUN}:{folder}\n")
    if ended:
        (folder / "end").write_text("0\n")
    engine = Slurm(programs(tmp_path, squeue=f'echo "7|{said}|dsv:{RUN}:{folder}"'))
    assert engine.leave(JobRef("slurm", RUN, "c@h", f"7:{folder}")) is is_left
    assert (folder / "unwatched").exists() is (is_left or ended)
    SlurmRun(engine._program, JobRef("slurm", RUN, "c@h", f"7:{folder}")).signal(signal.SIGTERM)
    assert not (folder / "unwatched").exists(), "this machine looks on until the job has ended"


@pytest.mark.parametrize(("files", "at_once"), [((), True), (("slurm.log", "end"), False)])
def test_the_end_of_a_job_that_was_left_and_never_ran_is_recorded_by_the_next_dsv(
    tmp_path: Path, files: tuple[str, ...], at_once: bool
) -> None:
    """Else its node may still do that."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "job.sh").write_text(f"#SBATCH --comment={comment(RUN, folder)}\n")
    for name in ("unwatched", *files):
        (folder / name).write_text("0\n" if name == "end" else "")
    engine = Slurm(
        programs(tmp_path, scontrol=SCONTROL, squeue=f'echo "7|CANCELLED||None|{comment(RUN, folder)}"')
    )
    status = engine.status(JobRef("slurm", RUN, "c@h", f"7:{folder}"))
    assert status is not None and (status.state is RunState.NOT_LAUNCHED) and status.idle_seconds is not None
    assert (status.idle_seconds > 3600) is at_once


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ((), (RunState.NOT_LAUNCHED, EndCause.NOT_STARTED, True)),
        (("stopped",), (RunState.NOT_LAUNCHED, EndCause.CANCELLED, True)),
        (("slurm.log",), (RunState.NOT_LAUNCHED, EndCause.LOST_SIGHT, False)),
        (("slurm.log", "node.1.0"), (RunState.ENDED, EndCause.LOST_SIGHT, False)),
    ],
)
def test_a_job_that_was_left_and_that_slurm_has_forgotten_is_over(
    tmp_path: Path, files: tuple[str, ...], shown: tuple[RunState, EndCause, bool]
) -> None:
    """Nobody else will ever know more. It is cut off by a cause `LOST_SIGHT`, see `completed`."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "job.sh").write_text(f"#SBATCH --comment={comment(RUN, folder)}\n")
    for name in ("unwatched", *files):
        (folder / name).write_text({"node.1.0": "n1 10\n", "stopped": "ada@login\n"}.get(name, ""))
    env = programs(tmp_path, scontrol=f'[ -e "$CALLS.away" ] && exit 1\n{SCONTROL}', squeue=FORGOTTEN)
    ref = JobRef("slurm", RUN, "c@h", f"7:{folder}")
    status = Slurm(env).status(ref)
    assert status is not None and status.ended is not None and status.idle_seconds is not None
    assert (status.state, status.ended.cause, status.idle_seconds > 3600) == shown
    assert status.exit_code == 125 and status.ended.seen and status.ended.reason
    (tmp_path / "calls.away").touch()
    assert Slurm(env).status(ref) is None, "it may be another cluster that has no such job"
    (tmp_path / "calls.away").unlink()
    (folder / "unwatched").unlink()
    followed = Slurm(env).status(ref)
    assert followed is not None and (followed.state, followed.ended) == (RunState.CUT_OFF, None)
