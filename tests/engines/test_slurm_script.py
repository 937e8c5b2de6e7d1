"""What dsv makes of a job for Slurm, and what it reads from Slurm's answers, without any Slurm."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from dsv.engines.base import Ended, Facts, Job, Mount
from dsv.engines.machine import Machine
from dsv.engines.slurm.capacity import read_capacity
from dsv.engines.slurm.end import Left, ended, read_left, status
from dsv.engines.slurm.engine import Slurm, batch_of
from dsv.engines.slurm.options import SlurmOptions, contained
from dsv.engines.slurm.program import Answer, Queued, SlurmProgram, read_queue
from dsv.engines.slurm.script import MEETING, Batch, passing, render, sbatch_options
from dsv.errors import UsageError
from dsv.model.capacity import GpuCount, fit
from dsv.model.node_env import node_environment
from dsv.model.resources import ALL_GPUS, Resources
from dsv.model.run import RunState
from dsv.model.run_end import EndCause

RUN = "20261122-070000-0a1b2c3d"
FOLDER = Path("/nfs/runs/x y/job")


def job(**more: object) -> Job:
    return Job(**{"run": RUN, "name": "dsv-x", "command": ("train", "a b"), "scratch": FOLDER, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        ({"gpus": 2}, "--gpus-per-node=2"),
        ({"gpus": 8, "gpu_type": "a100"}, "--gpus-per-node=a100:8"),
        ({"cpus": 1.5}, "--cpus-per-task=2"),
        ({"memory_bytes": (1 << 30) + 1}, "--mem=1025M"),
        ({"time_seconds": 61}, "--time=2"),
        ({"nodes": 3}, "--nodes=3"),
        ({"retries": 0}, "--no-requeue"),
        ({"retries": 2}, "--requeue"),
        ({"engine_args": ("--signal=USR2@60",)}, "--signal=USR2@60"),
    ],
)
def test_what_a_job_asks_for_is_an_option_of_sbatch(asked: dict[str, object], option: str) -> None:
    assert option in sbatch_options(batch_of(job(**asked), SlurmOptions()))


def test_what_the_pool_says_comes_before_what_was_typed() -> None:
    """The last of two options counts."""
    options = SlurmOptions.read(
        {"partition": "gpu", "account": "lab", "qos": "high", "sbatch": ["--exclusive"]}
    )
    found = sbatch_options(batch_of(job(engine_args=("--partition=cpu",)), options))
    assert found[-5:] == ["--partition=gpu", "--account=lab", "--qos=high", "--exclusive", "--partition=cpu"]


def test_the_script_is_one_that_bash_understands() -> None:
    batch = Batch(
        run=RUN, name="it's", folder=FOLDER, command=("sh", "-c", "echo 'a\nb' \"$X\""), nodes=2, retries=3,
        stage=("dsv", "with"), hold=("dsv", "with", "--"), passed=("TOKEN",), workdir=Path("/a b"),
    )  # fmt: skip
    text = render(batch)
    assert (
        subprocess.run(["bash", "-n"], input=text, text=True, check=False, capture_output=True).stderr == ""
    )
    assert "#SBATCH " + shlex.quote("--job-name=it's") + "\n" in text
    assert "DSV_JOB_TOKEN" in text


def test_values_of_the_job_are_in_the_environment_of_sbatch_alone() -> None:
    batch = batch_of(
        job(env={"TOKEN": "hunter2", "DSV_PARAMS": '{"key": "hunter2"}', "DSV_RUN": RUN}), SlurmOptions()
    )
    assert "hunter2" not in render(batch) and f"export DSV_RUN={RUN}" in render(batch)
    assert passing({"TOKEN": "hunter2"}) == {"DSV_JOB_TOKEN": "hunter2"}
    with pytest.raises(UsageError, match="can't pass a variable named a-b"):
        passing({"a-b": "1"})


def test_several_nodes_are_told_where_to_meet() -> None:
    assert set(MEETING) == set(node_environment(0, ["n1", "n2"], 20_000))
    text = render(batch_of(job(nodes=2), SlurmOptions()))
    assert all(f"{name}=" in text for name in MEETING)
    assert "MASTER_ADDR" not in render(batch_of(job(), SlurmOptions()))


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({"gpus": ALL_GPUS}, {}),
        ({"image": "team/x"}, {}),
        ({}, {"container": "podman"}),
        ({"command": ()}, {}),
        ({"command": ("a\0b",)}, {}),
        ({"shm_bytes": 1}, {}),
    ],
)
def test_what_slurm_cannot_do_is_refused(asked: dict[str, object], options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        batch_of(job(**asked), SlurmOptions.read(options))


@pytest.mark.parametrize(
    "options",
    [{"partitoin": "x"}, {"partition": 3}, {"sbatch": "--x"}, {"container": "docker"}, {"qos": "a\nb"}],
)
def test_settings_that_mean_nothing_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"pools\.a\.slurm\."):
        SlurmOptions.read(options, "pools.a.slurm")


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ("podman", "podman run --rm --cgroups=disabled --network=host --ipc=host --log-driver=none --mount "
         "type=bind,source=/c/x,target=/data,ro --mount type=bind,source=/o,target=/out --env A --workdir /code "
         "--device nvidia.com/gpu=all --env CUDA_VISIBLE_DEVICES team/x train 'a b'"),
        ("apptainer", "apptainer exec --no-home --bind /c/x:/data:ro --bind /o:/out:rw --pwd /code --nv "
         "docker://team/x train 'a b'"),
        ("enroot", "enroot start --mount /c/x:/data:none:x-create=auto,bind,ro --mount "
         "/o:/out:none:x-create=auto,bind,rw --env A team/x train 'a b'"),
    ],
)  # fmt: skip
def test_an_image_is_run_by_what_the_pool_names(container: str, words: str) -> None:
    mounts = (Mount(Path("/c/x"), "/data"), Mount(Path("/o"), "/out", writable=True))
    found = contained(container, job(image="team/x", mounts=mounts, workdir="/code", gpus=1), ("A",))
    assert shlex.join(found) == words


def queued(state: str, reason: str = "None") -> Queued:
    return Queued("7", state, "n1", reason, f"dsv:{RUN}:{FOLDER}")


def left(folder: Path, **files: str) -> Left:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return read_left(folder)


@pytest.mark.parametrize("name", ["end", "slurm.log", "err.1", "node.1.0", "job.sh", "stopped"])
def test_a_pipe_or_an_endless_file_among_what_a_job_left_is_passed_over(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert read_left(tmp_path) == Left()
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    assert read_left(tmp_path) == Left()


def test_a_line_of_squeue_may_have_anything_in_its_comment() -> None:
    jobs = read_queue(f"7|RUNNING|n[1-2]|None|dsv:{RUN}:/a|b:c\n8|PENDING||Resources|mine\nnonsense\n")
    assert (jobs["7"].run, jobs["7"].folder, jobs["7"].run_state) == (RUN, Path("/a|b:c"), RunState.RUNNING)
    assert (jobs["8"].run, jobs["8"].run_state, jobs["8"].never_begins) == (None, RunState.QUEUED, False)
    assert read_queue("9|PENDING||PartitionTimeLimit|x\n")["9"].never_begins


def test_a_controller_that_is_away_is_told_from_a_refusal() -> None:
    assert Answer(
        problem="slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    ).is_away
    assert not Answer(problem="Batch job submission failed: Invalid partition name specified").is_away


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
    done = ended(queued("FAILED"), left(tmp_path, **files))
    assert done is not None and (done.exit_code, done.reason) == (
        9,
        "node 1 (n2) failed first, with exit code 9",
    )


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"])
def test_a_job_that_slurm_has_lives(tmp_path: Path, state: str) -> None:
    """Also one whose last attempt ended: Slurm begins it again."""
    assert ended(queued(state), left(tmp_path, node__1__0="n1 10 143 12\n")) is None


def test_a_job_of_which_nothing_is_known_was_lost_sight_of(tmp_path: Path) -> None:
    done = ended(None, left(tmp_path, node__1__0="n1 10\n"))
    assert done == Ended(
        exit_code=125, launched=True, seen=False, parts=done.parts if done else (),
        reason="Slurm has no such job any more, and the job left no word of its end",
    )  # fmt: skip


def test_a_job_whose_data_could_not_be_had_never_began(tmp_path: Path) -> None:
    log = "attempt 1 on n1\nerror: the cache has no room\nhint: dsv evict\nsrun: error: n1: task 0: Exited\n"
    done = ended(queued("FAILED", "NonZeroExitCode"), left(tmp_path, end="125\n", slurm__log=log))
    assert done is not None and not done.launched
    assert (done.exit_code, done.reason, done.cause) == (
        125,
        "error: the cache has no room",
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
    """What Slurm calls a success is never called a failure."""
    for state, seen in (("COMPLETED", False), ("FAILED", True)):
        assert ended(queued(state), Left()) is None
        assert status(queued(state), Left()).lives
        done = ended(queued(state), Left(), settled=True)
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
        "its time was over before the data was there",
    )


def test_an_argument_may_be_any_bytes(tmp_path: Path) -> None:
    plan = Slurm({}).plan(job(command=("cat", "\udcff")), Facts(Machine.read({})))
    assert b"cat '\xff'" in plan.files[0].content


def test_options_of_the_users_own_jobs_are_not_those_of_dsv() -> None:
    given = {"SLURM_CONF": "/x", "SLURM_JOB_ID": "1", "SBATCH_EXPORT": "NONE", "SQUEUE_FORMAT": "%i"}
    given |= {"SCANCEL_INTERACTIVE": "1", "PATH": "/bin"}
    assert SlurmProgram(given).environ == {"SLURM_CONF": "/x", "PATH": "/bin"}


NODE = (
    "NodeName={name} CPUAlloc={used} CPUTot=8 ActiveFeatures=a,b Gres=gpu:a100:4(S:0-1),gpu:t4:1 "
    "GresUsed=gpu:a100:{used}(IDX:0),gpu:t4:0 RealMemory=1000 AllocMem=100 State={state} Partitions=gpu,all "
)


def test_free_room_is_read_node_by_node() -> None:
    lines = [NODE.format(name=f"n{number}", used=number, state=state) for number, state in enumerate(
        ["IDLE", "MIXED", "IDLE+DRAIN", "DOWN*", "ALLOCATED+NOT_RESPONDING", "IDLE+PLANNED"])]  # fmt: skip
    found = read_capacity("\n".join(lines), "1\n2\n", SlurmOptions(partition="gpu"))
    assert [node.name for node in found.nodes] == ["n0", "n1", "n5"] and found.waiting == 2
    assert found.nodes[1].gpus == (GpuCount("a100", 3, 4), GpuCount("t4", 1, 1))
    assert (found.nodes[1].free_cpus, found.nodes[1].free_memory) == (7, 900 << 20)
    assert fit(Resources(gpus=4, gpu_type="a100"), found).not_now is None
    assert fit(Resources(gpus=4, gpu_type="a100", nodes=2), found).not_now is not None
    assert read_capacity("\n".join(lines), "", SlurmOptions(partition="cpu")).nodes == ()
    assert read_capacity("\n".join(lines), "", SlurmOptions(constraint="c")).nodes == ()


def test_a_job_of_one_node_makes_sure_of_the_data_as_it_begins() -> None:
    """One program is started there, and not one after the other; of several nodes all have the data first."""
    words = {"stage": ("cache", "x@1"), "hold": ("with", "x@1", "--")}
    alone = render(batch_of(job(**words), SlurmOptions(dsv="/d/dsv")))
    assert alone.count("/d/dsv") == 1
    assert '/d/dsv with x@1 --json-file "$folder/stage.$attempt.0" -- bash -c' in alone
    several = render(batch_of(job(**words, nodes=2), SlurmOptions(dsv="/d/dsv")))
    assert several.index("/d/dsv cache x@1") < several.index("/d/dsv with x@1 -- bash -c")


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
    done = ended(None, read_left(tmp_path))
    assert done is not None and (done.exit_code, str(done.cause or "exited")) == (3, cause)
