"""What dsv makes of a job for Slurm, and what it reads from Slurm's answers, without any Slurm."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from functools import partial
from pathlib import Path

import pytest

from dsv.errors import UsageError
from dsv.run.engines.base import Facts, Job, Mount, read_options
from dsv.run.engines.machine import Machine
from dsv.run.engines.slurm.engine import Slurm, read_capacity
from dsv.run.engines.slurm.program import ProgramResult, SlurmProgram, read_queue
from dsv.run.engines.slurm.script import (
    CONTAINERS,
    DECODER,
    MEETING,
    BatchScript,
    SlurmOptions,
    passing,
    render,
    sbatch_options,
    warning_of,
)
from dsv.run.node_order import node_environment
from dsv.run.record import RunState
from dsv.run.resources import ALL_GPUS, GpuCount, Resources, fit

read = partial(read_options, DECODER, where="slurm")
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
        ({"time_seconds": 61}, "--time=32"),
        ({"nodes": 3}, "--nodes=3"),
        ({"retries": 0}, "--no-requeue"),
        ({"retries": 2}, "--requeue"),
        ({"engine_args": ("--signal=USR2@60",)}, "--signal=USR2@60"),
    ],
)
def test_what_a_job_asks_for_is_an_option_of_sbatch(asked: dict[str, object], option: str) -> None:
    assert option in sbatch_options(BatchScript(job(**asked), SlurmOptions()))


def test_what_the_pool_says_comes_before_what_was_typed() -> None:
    """The last of two options counts."""
    options = read({"partition": "gpu", "account": "lab", "qos": "high", "sbatch": ["--exclusive"]})
    found = sbatch_options(BatchScript(job(engine_args=("--partition=cpu",)), options))
    assert found[-5:] == ["--partition=gpu", "--account=lab", "--qos=high", "--exclusive", "--partition=cpu"]


def test_the_script_is_one_that_bash_understands() -> None:
    asked = job(
        name="it's", command=("sh", "-c", "echo 'a\nb' \"$X\""), nodes=2, retries=3, hold=("with", "it's", "--"),
        time_seconds=90, engine_args=("--signal=USR2@30",), env={"TOKEN": "x"}, workdir="/a b",
    )  # fmt: skip
    batch = BatchScript(asked, SlurmOptions())
    text = render(batch)
    assert (
        subprocess.run(["bash", "-n"], input=text, text=True, check=False, capture_output=True).stderr == ""
    )
    assert "#SBATCH " + shlex.quote("--job-name=it's") + "\n" in text
    assert "DSV_JOB_TOKEN" in text


def test_words_and_values_reach_the_nodes_as_they_were_typed() -> None:
    odd = ["--x", "", "a\n\n\n\nb ", "%n \\", "it's $HOME `x` {brace}"]
    batch = BatchScript(
        job(command=("printf", "%s|", *odd), env={"DSV_DATASET": "c\n\n\nd"}, time_seconds=9), SlurmOptions()
    )
    text = render(batch)
    command = re.search(r"^  exec -- (.*?)\n\) </dev/null", text, re.MULTILINE | re.DOTALL)
    assert command is not None and shlex.split(command[1]) == ["printf", "%s|", *odd]
    assert "'c\n\n\nd'" in text


def test_values_of_the_job_are_in_the_environment_of_sbatch_alone() -> None:
    batch = BatchScript(
        job(env={"TOKEN": "hunter2", "DSV_PARAMS": '{"key": "hunter2"}', "DSV_RUN": RUN}), SlurmOptions()
    )
    assert "hunter2" not in render(batch) and f"export DSV_RUN={RUN}" in render(batch)
    assert passing({"TOKEN": "hunter2"}) == {"DSV_JOB_TOKEN": "hunter2"}
    with pytest.raises(UsageError, match="can't pass a variable named a-b"):
        passing({"a-b": "1"})


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (
            {"command": ("train", *["x" * 120_000] * 12)},
            r"the command is too long .* 1,440,0\d\d bytes, and 12\d,",
        ),
        ({"env": {"KEY": "x" * 131_072}}, "the value of KEY is too long .* 131,072 bytes, and 131,059 fit"),
        ({"env": {"DSV_PARAMS": "x" * 131_072}}, "the value of DSV_PARAMS is too long"),
    ],
)
def test_what_is_too_long_for_a_job_is_said(asked: dict[str, object], what: str) -> None:
    engine = Slurm({})
    with pytest.raises(UsageError, match=what):
        engine.plan(job(**asked), Facts(Machine.read({})))


def test_the_longest_value_and_the_longest_command_are_passed_on() -> None:
    longest = "x" * ((1 << 17) - 1 - len("DSV_JOB_KEY="))
    env = {**passing({"KEY": longest}), "PATH": os.environ["PATH"]}
    assert subprocess.run(["true"], env=env, check=True)
    with pytest.raises(UsageError) as told:
        render(BatchScript(job(command=("t", "x" * 131_072)), SlurmOptions()))
    most = int(re.findall(r"([\d,]+) fit", told.value.message)[0].replace(",", "")) - len("t ")
    with pytest.raises(UsageError):
        render(BatchScript(job(command=("t", "x" * (most + 1))), SlurmOptions()))
    text = render(BatchScript(job(command=("t", "x" * most)), SlurmOptions()))
    (task,) = re.findall(r"^read -r -d '' task <<'(\w+)'\n(.*?)\n\1$", text, re.MULTILINE | re.DOTALL)
    assert subprocess.run(["true", task[1]], check=True)


def test_several_nodes_get_the_address_of_the_rendezvous() -> None:
    assert set(MEETING) == {*node_environment(["n1", "n2"], 20_000), "NODE_RANK", "PET_NODE_RANK"}
    text = render(BatchScript(job(nodes=2), SlurmOptions()))
    assert all(f"{name}=" in text for name in MEETING)
    assert "MASTER_ADDR" not in render(BatchScript(job(), SlurmOptions()))


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({"gpus": ALL_GPUS}, {}),
        ({"image": "team/x"}, {}),
        ({}, {"container": "podman"}),
        ({"command": ()}, {}),
        ({"command": ("a\0b",)}, {}),
    ],
)
def test_what_slurm_cannot_do_is_refused(asked: dict[str, object], options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        render(BatchScript(job(**asked), read(options)))


@pytest.mark.parametrize(
    "options",
    [
        {"partitoin": "x"},
        {"partition": 3},
        {"sbatch": "--x"},
        {"container": "docker"},
        {"qos": "a\nb"},
        {"stage_time": "soon"},
        {"stage_time": 30},
    ],
)
def test_settings_that_mean_nothing_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"pools\.a\.slurm\."):
        Slurm.check_options(options, "pools.a.slurm")


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ("podman", "podman run --rm --cgroups=disabled --network=host --ipc=host --log-driver=none --mount "
         "type=bind,source=/c/x,target=/data,ro --mount type=bind,source=/o,target=/out --env A --workdir /code "
         "--device nvidia.com/gpu=all --env CUDA_VISIBLE_DEVICES team/x train 'a b'"),
        ("apptainer", "apptainer exec --no-home --bind /c/x:/data:ro --bind /o:/out:rw --pwd /code --nv "
         "docker://team/x train 'a b'"),
        ("enroot", "enroot start --mount /c/x:/data:none:x-create=auto,bind,ro --mount "
         "/o:/out:none:x-create=auto,bind,rw --env A team/x sh -c 'cd \"$0\" && exec \"$@\"' /code train 'a b'"),
    ],
)  # fmt: skip
def test_an_image_is_run_by_what_the_pool_names(container: str, words: str) -> None:
    mounts = (Mount(Path("/c/x"), "/data"), Mount(Path("/o"), "/out", writable=True))
    found = CONTAINERS[container](job(image="team/x", mounts=mounts, workdir="/code", gpus=1), ("A",))
    assert shlex.join(found) == words


@pytest.mark.parametrize("value", ["one\ntwo", '"1.10"', "'a\""])
def test_a_value_that_enroot_would_change_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="enroot can't pass on the value of A, which") as refused:
        CONTAINERS["enroot"](job(image="x.sqsh", env={"A": value}), ("A",))
    assert value not in str(refused.value)


@pytest.mark.parametrize(("container", "name"), [("podman", "a:b"), ("apptainer", "a,b"), ("enroot", "a b")])
def test_a_folder_that_an_option_can_not_name_is_refused(container: str, name: str) -> None:
    mounts = (Mount(Path("/c") / name, "/data"),)
    with pytest.raises(UsageError, match="can't be mounted: its name has a "):
        CONTAINERS[container](job(image="x", mounts=mounts), ())


def test_a_line_of_squeue_may_have_anything_in_its_comment() -> None:
    jobs = read_queue(f"7|RUNNING|n[1-2]|None|dsv:{RUN}:/a|b:c\n8|PENDING||Resources|mine\nnonsense\n")
    assert (jobs["7"].run, jobs["7"].folder, jobs["7"].run_state) == (RUN, Path("/a|b:c"), RunState.RUNNING)
    assert (jobs["8"].run, jobs["8"].run_state, jobs["8"].never_begins) == (None, RunState.QUEUED, False)
    never = read_queue("9|PENDING||PartitionTimeLimit|x\n")["9"]
    assert never.never_begins
    refused = "Job's account not known, so it can't use this partition (gpu allows imaging)"
    never = read_queue(f"9|PENDING||{refused}|x\n")["9"]
    assert never.never_begins and never.reason == refused


def test_a_controller_that_is_away_is_distinguished_from_a_refusal() -> None:
    assert ProgramResult(
        problem="slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    ).is_away
    assert not ProgramResult(problem="Batch job submission failed: Invalid partition name specified").is_away


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
    mistyped = read_capacity("\n".join(lines), "", SlurmOptions(partition="gpuu"))
    assert mistyped.never == "no machine of this Slurm is in the partition gpuu" and found.never is None


@pytest.mark.parametrize(
    ("constraint", "fits"),
    [
        ("gpu-a100", True),
        ("gpu-a100&nvme", True),
        ("gpu-a100,nvme", True),
        ("gpu-h100", False),
        ("gpu-a100&gpu-h100", False),
        # Some of the nodes may lack these.
        ("gpu-h100|nvme", True),
        ("gpu-h100*1", True),
        ("[gpu-h100*1&nvme*3]", True),
        ("(gpu-h100&ib)*2", True),
    ],
)
def test_a_node_fits_if_it_has_the_features_that_every_node_must_have(constraint: str, fits: bool) -> None:
    node = NODE.format(name="n0", used=0, state="IDLE").replace(
        "ActiveFeatures=a,b", "ActiveFeatures=gpu-a100,nvme"
    )
    assert bool(read_capacity(node, "", SlurmOptions(constraint=constraint)).nodes) is fits


@pytest.mark.parametrize(
    ("used", "free"), [("gpu:(null):3(IDX:0-2)", 1), ("gpu:3(IDX:0-2)", 1), ("gpu:(null):0(IDX:N/A)", 4)]
)
def test_used_gpus_without_a_type_are_not_free(used: str, free: int) -> None:
    (node,) = read_capacity(
        f"NodeName=n0 Gres=gpu:4(S:0-1) GresUsed={used} State=MIXED", "", SlurmOptions()
    ).nodes
    assert node.gpus == (GpuCount("GPU", free, 4),)


def test_each_node_is_held_by_one_program_from_its_data_to_the_end_of_its_command() -> None:
    """There is no moment between the two in which somebody could evict what a node has fetched."""
    for nodes, place in ((1, '"$folder/stage.$attempt.0"'), (2, '"$1/stage.$2.$SLURM_NODEID"')):
        text = render(BatchScript(job(hold=("with", "x@1", "--"), nodes=nodes), SlurmOptions(dsv="/d/dsv")))
        assert text.count("/d/dsv") == len(re.findall(r"^ *srun ", text, re.MULTILINE)) == 1
        assert f"env DSV_NODE_REPORT={place} /d/dsv with x@1 -- bash -c" in text


@pytest.mark.parametrize(
    ("stage_time", "minutes"), [(None, 32), ("0s", 2), ("10s", 2), ("31s", 3), ("2h", 122)]
)
def test_slurms_own_limit_has_room_for_the_data(stage_time: str | None, minutes: int) -> None:
    """And for the grace that the command gets; the command's own time is exactly what was asked for."""
    options = read({} if stage_time is None else {"stage_time": stage_time})
    batch = BatchScript(job(time_seconds=61), options)
    assert f"--time={minutes}" in sbatch_options(batch)
    assert "  sleep 61\n" in render(batch)
    assert "sleep 61" not in render(BatchScript(job(), options))


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        (("--signal=USR2@300",), ("USR2", 300)),
        (("--signal=USR2@300", "--signal=R:SIGINT"), ("INT", 60)),
        (("--signal=10@20",), ("10", 20)),
        (("--signal=B:USR2@300",), None),
        (("--signal",), None),
        (("--exclusive",), None),
    ],
)
def test_a_warning_comes_before_the_end_of_the_commands_own_time(
    options: tuple[str, ...], warning: tuple[str, int] | None
) -> None:
    """Slurm's own comes before Slurm's limit, which is later."""
    assert warning_of(options) == warning
    text = render(BatchScript(job(time_seconds=1000, engine_args=options), SlurmOptions()))
    assert ("kill -s USR2" in text) == (warning == ("USR2", 300))
    assert ("  sleep 700\n" in text) == (warning == ("USR2", 300))
