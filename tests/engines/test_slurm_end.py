"""How a job on Slurm ended, from what it left and what Slurm says of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dsv.run.engines.base import Ended
from dsv.run.engines.slurm.engine import read_logs
from dsv.run.engines.slurm.job_status import JobFiles, ended, status
from dsv.run.engines.slurm.program import ProgramResult, Queued
from dsv.run.part import EndCause
from dsv.run.record import JobRef

RUN = "20261122-070000-0a1b2c3d"
FOLDER = Path("/nfs/runs/x y/job")


def queued(state: str, reason: str = "None") -> Queued:
    return Queued("7", state, "n1", reason, f"dsv:{RUN}:{FOLDER}")


def left(folder: Path, **files: str) -> JobFiles:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return JobFiles(folder)


@pytest.mark.parametrize("name", ["end", "slurm.log", "err.1", "node.1.0", "job.sh", "stopped"])
def test_a_pipe_or_an_endless_file_among_what_a_job_left_is_passed_over(tmp_path: Path, name: str) -> None:
    nothing = vars(JobFiles(tmp_path))
    os.mkfifo(tmp_path / name)
    assert vars(JobFiles(tmp_path)) == nothing
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    assert vars(JobFiles(tmp_path)) == nothing


OOM = "attempt 1 on n1\nsrun: error: n1: task 0: Out Of Memory\n"
FOR_ANOTHER = "DUE TO PREEMPTION "
JOB_LOG = "attempt 1 on n1\nslurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T06:41:31 {}***\n"
TAKEN_AWAY = JOB_LOG.format(FOR_ANOTHER)


@pytest.mark.parametrize(
    ("state", "files", "cause", "code"),
    [
        ("COMPLETED", {"node__1__0": "n1 10 0 12\n", "end": "0\n"}, EndCause.EXITED, 0),
        ("FAILED", {"node__1__0": "n1 10 3 12\n", "end": "3\n"}, EndCause.EXITED, 3),
        ("CANCELLED", {"node__1__0": "n1 10 143 12\n", "end": "143\n"}, EndCause.CANCELLED, 143),
        ("TIMEOUT", {"node__1__0": "n1 10\n"}, EndCause.TIME_LIMIT, 124),
        ("TIMEOUT", {"node__1__0": "n1 10 0 12\n", "end": "0\n"}, EndCause.TIME_LIMIT, 124),
        ("PREEMPTED", {"node__1__0": "n1 10 7 12\n", "end": "7\n"}, EndCause.PREEMPTED, 7),
        ("NODE_FAIL", {"node__1__0": "n1 10 143 12\n", "node__1__1": "n2 10\n"}, EndCause.NODE_LOST, 143),
        ("NODE_FAIL", {"node__1__0": "n1 10\n"}, EndCause.NODE_LOST, 137),
        ("OUT_OF_MEMORY", {"node__1__0": "n1 10 137 12\n", "end": "137\n"}, EndCause.OUT_OF_MEMORY, 137),
        ("FAILED", {"node__1__0": "n1 10 137 12\n", "end": "1\n", "slurm__log": OOM}, EndCause.OUT_OF_MEMORY, 137),
        (None, {"node__1__0": "n1 10 143 12\n", "slurm__log": JOB_LOG.format(FOR_ANOTHER)}, EndCause.PREEMPTED, 143),
        (None, {"node__1__0": "n1 10\n", "slurm__log": JOB_LOG.format("DUE TO TIME LIMIT ")}, EndCause.TIME_LIMIT, 124),
        (None, {"node__1__0": "n1 10 143 12\n", "slurm__log": JOB_LOG.format("")}, EndCause.CANCELLED, 143),
        ("FAILED", {"node__1__0": "n1 10 125 12\n", "end": "125 1\n"}, EndCause.EXITED, 125),
        ("FAILED", {"node__1__0": "n1 10 143 12\n", "end": "125 1\n"}, EndCause.LEASE_LOST, 125),
        ("CANCELLED", {"node__1__0": "n1 10 143 12\n", "slurm__log": TAKEN_AWAY}, EndCause.CANCELLED, 143),
        (None, {"node__1__0": "n1 10 5 12\n", "node__2__0": "n2 20 0 22\n", "end": "0\n"}, EndCause.EXITED, 0),
        ("COMPLETED", {"node__1__0": "n1 10 0 12\n", "end": "0\n", "stopped": "me on vm\n"}, EndCause.CANCELLED, 0),
    ],
)  # fmt: skip
def test_how_a_job_ended(
    tmp_path: Path, state: str | None, files: dict[str, str], cause: EndCause, code: int
) -> None:
    done = ended(None if state is None else queued(state), left(tmp_path, **files))
    assert done is not None and (done.cause, done.exit_code, done.launched, done.seen) == (
        cause,
        code,
        True,
        True,
    )
    assert all(part.end is not None for part in done.parts)


def test_the_node_that_failed_first_says_how_the_job_ended(tmp_path: Path) -> None:
    files = {"node__1__0": "n1 10 143 13\n", "node__1__1": "n2 10 9 12\n", "end": "143\n"}
    left(tmp_path, **files)
    for node, written in ((0, 13), (1, 12)):
        os.utime(tmp_path / f"node.1.{node}", (written, written))
    done = ended(queued("FAILED"), JobFiles(tmp_path))
    assert done is not None and (done.exit_code, done.reason) == (
        9,
        "node 1 (n2) failed first, with exit code 9",
    )


@pytest.mark.parametrize(("first", "code"), [(0, 3), (1, 9)])
def test_of_two_nodes_that_failed_in_the_same_second_one_was_first(
    tmp_path: Path, first: int, code: int
) -> None:
    """The file server's clock decides which, also if it differs from that of the nodes."""
    files = {"node__1__0": "n1 10 3 12\n", "node__1__1": "n2 10 9 12\n", "end": "9\n"}
    for clock in (12.0, 12.9):
        left(tmp_path, **files)
        for node, after in ((first, 0.01), (1 - first, 0.02)):
            os.utime(tmp_path / f"node.1.{node}", (0, clock + after))
        done = ended(queued("FAILED"), JobFiles(tmp_path))
        assert done is not None and done.exit_code == code
        assert {part.ended_ms // 1000 for part in done.parts if part.ended_ms is not None} == {12}


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"])
def test_a_job_that_slurm_has_lives(tmp_path: Path, state: str) -> None:
    """Also one whose last attempt ended: Slurm begins it again."""
    assert ended(queued(state), left(tmp_path, node__1__0="n1 10 143 12\n")) is None


@pytest.mark.parametrize(
    ("job", "files", "word"),
    [
        (queued("FAILED", "JobLaunchFailure"), {"node__1__0": "n1 10 143 13\n"}, "batch script"),
        (queued("FAILED", "NonZeroExitCode"), {"node__1__0": "n1 10\n", "end": "137 1\n"}, "node 0 (n1)"),
        (None, {"node__1__0": "n1 10\n", "end": "143 1\n"}, "node 0 (n1)"),
    ],
)
def test_a_job_that_was_killed_from_outside_was_lost_sight_of(
    tmp_path: Path, job: Queued | None, files: dict[str, str], word: str
) -> None:
    """The batch script, srun, or what holds the data: the command itself did not say how it ended."""
    done = ended(job, left(tmp_path, **files))
    assert done is not None and (done.cause, done.exit_code, done.seen) == (EndCause.LOST_SIGHT, 125, True)
    assert word in (done.reason or "")


def test_a_command_that_ended_before_its_batch_script_was_killed_keeps_its_end(tmp_path: Path) -> None:
    done = ended(queued("FAILED", "JobLaunchFailure"), left(tmp_path, node__1__0="n1 10 3 13\n", end="3 1\n"))
    assert done is not None and (done.cause, done.exit_code) == (EndCause.EXITED, 3)


def test_the_reason_why_a_job_waited_is_not_why_it_ended(tmp_path: Path) -> None:
    job = Queued("7", "CANCELLED", "", "Resources", f"dsv:{RUN}:{FOLDER}")
    done = ended(job, left(tmp_path))
    assert done is not None and (done.cause, done.reason) == (
        EndCause.CANCELLED,
        "it was cancelled before it began",
    )


def test_a_job_whose_script_slurm_could_not_run_names_the_node(tmp_path: Path) -> None:
    """Its SlurmdSpoolDir is full, for instance."""
    done = ended(queued("CANCELLED"), left(tmp_path))
    assert done is not None and (done.cause, done.exit_code, done.launched) == (
        EndCause.NOT_STARTED,
        125,
        False,
    )
    assert "on n1" in (done.reason or "")


def test_times_are_of_the_file_servers_clock(tmp_path: Path) -> None:
    """The node's clock is an hour ahead, and is used only for how long the command took."""
    left(tmp_path, node__1__0="n1 4600 0 4612\n", end="0 1\n")
    os.utime(tmp_path / "node.1.0", (1000, 1000))
    done = ended(queued("COMPLETED"), JobFiles(tmp_path))
    assert done is not None and [(part.started_ms, part.ended_ms) for part in done.parts] == [
        (988_000, 1_000_000)
    ]


def test_a_command_that_recorded_no_end_ended_when_the_job_last_wrote(tmp_path: Path) -> None:
    """And not when dsv looked."""
    left(tmp_path, node__1__0="n1 4600\n", err__0="step cancelled\n", attended="", complete__log="")
    os.utime(tmp_path / "node.1.0", (1000, 1000))
    os.utime(tmp_path / "err.0", (1004, 1004))
    done = ended(queued("FAILED", "JobLaunchFailure"), JobFiles(tmp_path))
    assert done is not None and [(part.end, part.started_ms, part.ended_ms) for part in done.parts] == [
        (EndCause.LOST_SIGHT, 1_000_000, 1_004_000)
    ]


def test_a_job_of_which_nothing_is_known_was_lost_sight_of(tmp_path: Path) -> None:
    done = ended(None, left(tmp_path, node__1__0="n1 10\n"))
    assert done == Ended(
        exit_code=125, launched=True, seen=False, parts=done.parts if done else (),
        reason="Slurm has no such job any more, and the job left no record of its end",
    )  # fmt: skip


def test_a_job_whose_data_could_not_be_had_never_began(tmp_path: Path) -> None:
    log = "attempt 1 on n1\nerror: the cache has no room\nhint: dsv evict\nsrun: error: n1: task 0: Exited\n"
    done = ended(queued("FAILED", "NonZeroExitCode"), left(tmp_path, end="125\n", slurm__log=log))
    assert done is not None and not done.launched
    assert (done.exit_code, done.reason, done.cause) == (
        125,
        "the cache has no room",
        EndCause.NOT_STARTED,
    )


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"node__1__0": "", "err__0": "task: line 9: exec: nope: not found\n", "end": "127 1\n"}, 127),
        ({"node__1__0": "n1 10 143 12\n", "node__1__1": "", "end": "126 2\n"}, 126),
    ],
)
def test_a_command_that_can_not_be_started_never_began(
    tmp_path: Path, files: dict[str, str], code: int
) -> None:
    done = ended(queued("FAILED"), left(tmp_path, **files))
    assert done is not None
    assert (done.exit_code, done.launched, done.cause) == (code, False, EndCause.NOT_STARTED)


def test_a_success_of_which_a_node_says_nothing_is_none(tmp_path: Path) -> None:
    done = ended(None, left(tmp_path, node__1__0="n1 10 0 12\n", end="0 2\n"))
    assert done is not None and (done.exit_code, done.seen) == (125, False)


def test_a_folder_that_shows_no_end_yet_is_looked_at_again(tmp_path: Path) -> None:
    """A success in Slurm is never called a failure."""
    for state, seen in (("COMPLETED", False), ("FAILED", True)):
        assert ended(queued(state), JobFiles(Path("/none"))) is None
        assert status(queued(state), JobFiles(Path("/none"))).lives
        done = ended(queued(state), JobFiles(Path("/none")), drained=True)
        assert done is not None and (done.exit_code, done.seen) == (125, seen)
    half = left(tmp_path, node__1__0="n1 10 0 12\n", end="0 2\n")
    assert ended(queued("COMPLETED"), half) is None and ended(queued("COMPLETING"), half) is None


def test_the_time_may_be_over_before_the_data_is_there(tmp_path: Path) -> None:
    done = ended(queued("TIMEOUT"), left(tmp_path, slurm__log="attempt 1 on n1\n"))
    assert done is not None
    assert (done.exit_code, done.launched, done.cause, done.reason) == (
        124,
        False,
        EndCause.TIME_LIMIT,
        "it reached its time limit before the data was there",
    )


def test_a_command_whose_time_is_over_ends_the_run_so(tmp_path: Path) -> None:
    """With its own exit code, unless it calls that a success."""
    for code, told, end in ((143, 143, 143), (0, 124, 124), (3, 3, 3)):
        files = {"node__1__0": f"n1 10 {code} 12\n", "late__1__0": "", "end": f"{end} 1\n"}
        done = ended(queued("FAILED"), left(tmp_path / str(code), **files))
        assert done is not None and (done.cause, done.exit_code) == (EndCause.TIME_LIMIT, told)
        assert [part.end for part in done.parts] == [EndCause.TIME_LIMIT]
    files = {"node__1__0": "n1 10 143 12\n", "late__1__0": "", "end": "143 1\n", "stopped": "ann\n"}
    done = ended(queued("FAILED"), left(tmp_path / "stopped", **files))
    assert done is not None and done.cause is EndCause.CANCELLED


def test_the_reason_why_no_command_began_is_that_of_the_node_that_failed_first(tmp_path: Path) -> None:
    files = {
        "slurm__log": "attempt 1 on n[1-3]\nsrun: error: n2: task 1: Exited with exit code 125\n",
        "err__0": "error: interrupted\n",
        "err__1": "error: the cache has no room\nhint: dsv evict\n",
        "err__2": "error: interrupted\n",
        "end": "125 3\n",
    }
    done = ended(queued("FAILED", "NonZeroExitCode"), left(tmp_path, **files))
    assert done is not None and (done.reason, done.hint) == ("the cache has no room", "dsv evict")


@pytest.mark.parametrize(
    ("log", "retries", "cause"),
    [
        ("attempt 1 on n1\nx: *** JOB 7 ON n1 CANCELLED AT 2026 DUE TO JOB REQUEUE ***\n", 1, "cancelled"),
        ("attempt 1 on n1\nx: *** JOB 7 ON n1 CANCELLED AT 2026 DUE TO NODE FAILURE ***\n", 1, "cancelled"),
        ("attempt 1 on n1\nx: *** JOB 7 ON n1 CANCELLED AT 2026 DUE TO NODE FAILURE ***\n", 0, "node-lost"),
        ("attempt 1 on n1\nx DUE TO JOB REQUEUE ***\nattempt 2 on n1\n", 1, "exited"),
    ],
)  # fmt: skip
def test_a_job_that_went_while_it_waited_for_another_attempt(
    tmp_path: Path, log: str, retries: int, cause: str
) -> None:
    """It was cancelled: what the log says is of the attempt before."""
    (tmp_path / "job.sh").write_text(f"#SBATCH --nodes=1\nretries={retries}\n")
    (tmp_path / "slurm.log").write_text(log)
    (tmp_path / "node.1.0").write_text("n1 1770000000 3 1770000009\n")
    done = ended(None, JobFiles(tmp_path))
    assert done is not None and (done.exit_code, str(done.cause or "exited")) == (3, cause)


class Knows:
    """Stands for Slurm's programs: Slurm knows the job, and still knows it for minutes after its end."""

    state = "RUNNING"

    def find(self, number: str, *, fresh: float) -> tuple[Queued, ProgramResult]:
        return queued(self.state), ProgramResult()


def test_a_log_that_is_followed_ends_if_another_dsv_completes_the_record(tmp_path: Path) -> None:
    """It then removes what the job left, so that nothing shows the end any more."""
    folder, slurm = tmp_path / "job", Knows()
    left(folder, out__0="first\n")
    ref = JobRef("slurm", RUN, "cluster", f"7:{folder}")
    with read_logs(slurm, ref, follow=True) as pieces:  # type: ignore[arg-type]
        assert next(pieces) == b"first\n"
        slurm.state = "FAILED"
        shutil.rmtree(folder)
        assert list(pieces) == []


HOSTS = "n1\nn2\nn3\n"
LAUNCH = "srun: error: Task launch for StepId=7.0 failed on node n2: {}\nsrun: error: Application launch failed: {}\n"


@pytest.mark.parametrize(
    ("said", "is_lost"),
    [
        (LAUNCH.format("Communication connection failure", "Communication connection failure"), True),
        (LAUNCH.format("Zero Bytes were transmitted or received", "Zero Bytes"), True),
        (LAUNCH.format("Invalid job credential", "Invalid job credential"), False),
        ("srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 1\n", True),
        ("srun: error: Aborting, io error and missing step on node 1\n", True),
        ("x: *** JOB 7 ON n1 CANCELLED AT 1 DUE TO NODE FAILURE ***\nsrun: error: Node failure on n2\n", True),
    ],
)  # fmt: skip
def test_a_node_that_srun_could_not_reach_was_lost(tmp_path: Path, said: str, is_lost: bool) -> None:
    """Of three nodes: before any command began, and after it did on the others."""
    log = f"attempt 1 on n[1-3]\n{said}srun: error: n1: task 0: Killed\n"
    files = {"slurm__log": log, "hosts__1": HOSTS, "end": "125 3\n"}
    done = ended(queued("FAILED"), left(tmp_path / "early", **files))
    assert done is not None and (done.launched, done.exit_code) == (False, 125)
    assert done.cause is (EndCause.NODE_LOST if is_lost else EndCause.NOT_STARTED)
    assert ("Slurm lost node n2 of the job: " in (done.reason or "")) == is_lost
    assert [(part.node, part.host, part.end) for part in done.parts] == (
        [(1, "n2", EndCause.NODE_LOST)] if is_lost else []
    )
    files |= {"node__1__0": "n1 10 137 12\n", "node__1__2": "n3 10\n", "end": "137 3\n"}
    done = ended(queued("FAILED"), left(tmp_path / "late", **files))
    assert done is not None and (done.launched, done.cause is EndCause.NODE_LOST) == (True, is_lost)
    if is_lost:
        assert [(part.host, str(part.end)) for part in sorted(done.parts, key=lambda part: part.node)] == [
            ("n1", "exited"),
            ("n2", "node-lost"),
            ("n3", "node-lost"),
        ]


@pytest.mark.parametrize(
    ("said", "code", "end"),
    [
        (JOB_LOG.format("DUE TO PREEMPTION "), 143, "preempted"),
        (JOB_LOG.format("DUE TO PREEMPTION "), 0, "preempted"),
        (JOB_LOG.format("DUE TO JOB REQUEUE "), 143, "evicted"),
        ("attempt 1 on n1\nattempt 1 ended with 3\n" + JOB_LOG[16:].format("DUE TO JOB REQUEUE "), 3, "exited"),
        ("attempt 1 on n1\nattempt 1 ended with 137\n" + JOB_LOG[16:].format("DUE TO JOB REQUEUE "), 137, "exited"),
        (OOM + "attempt 1 ended with 137\n", 137, "out-of-memory"),
        ("attempt 1 on n1\n", None, "node-lost"),
    ],
)  # fmt: skip
def test_a_part_of_an_earlier_attempt_says_how_that_ended(
    tmp_path: Path, said: str, code: int | None, end: str
) -> None:
    part = "n1 10\n" if code is None else f"n1 10 {code} 12\n"
    files = {"node__1__0": part, "node__2__0": "n2 20 0 22\n", "end": "0 1\n"}
    done = ended(queued("COMPLETED"), left(tmp_path, slurm__log=f"{said}attempt 2 on n2\n", **files))
    assert done is not None and [(each.attempt, str(each.end), each.exit_code) for each in done.parts] == [
        (1, end, code),
        (2, "exited", 0),
    ]


def test_a_part_says_what_ended_it(tmp_path: Path) -> None:
    """All nodes are stopped; one alone runs out of memory, and the others are ended with it."""
    two = {"node__1__0": "n1 10 143 13\n", "node__1__1": "n2 10 137 12\n", "end": "143 2\n"}
    left(tmp_path / "oom", **two, slurm__log="attempt 1 on n[1-2]\nsrun: error: n2: task 1: Out Of Memory\n")
    os.utime(tmp_path / "oom" / "node.1.1", (12, 12))
    done = ended(queued("FAILED"), JobFiles(tmp_path / "oom"))
    assert done is not None and [str(part.end) for part in done.parts] == ["exited", "out-of-memory"]
    done = ended(queued("CANCELLED"), left(tmp_path / "stopped", **two, stopped="me@vm\n"))
    assert (
        done is not None
        and [(str(part.end), part.cancelled_by) for part in done.parts] == [("cancelled", "me@vm")] * 2
    )
    two["node__1__0"] = "n1 10 0 12\n"  # it had succeeded before
    done = ended(queued("CANCELLED"), left(tmp_path / "success", **two))
    assert done is not None and [str(part.end) for part in done.parts] == ["exited", "cancelled"]


def test_a_lost_node_ended_at_its_last_sign(tmp_path: Path) -> None:
    """And not when it was missed."""
    left(tmp_path, node__1__0="n1 10\n", alive__1__0="", slurm__log="attempt 1 on n1\n")
    os.utime(tmp_path / "node.1.0", (1000, 1000))
    os.utime(tmp_path / "alive.1.0", (1031, 1031))
    done = ended(queued("NODE_FAIL"), JobFiles(tmp_path))
    assert done is not None and [(part.end, part.started_ms, part.ended_ms) for part in done.parts] == [
        (EndCause.NODE_LOST, 1_000_000, 1_031_000)
    ]
