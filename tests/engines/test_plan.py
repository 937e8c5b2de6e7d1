"""Plans of containers, as values: the whole command line, for every kind of engine and caller."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import LaunchError, UsageError
from dsv.run.engines.base import Facts, Job, Mount
from dsv.run.engines.containers.engine import ContainerEngine, Docker, Podman, mount_option
from dsv.run.engines.machine import Gpu, Machine, read_model, visible
from dsv.run.resources import ALL_GPUS

ADA = Machine(memory_bytes=64 << 30, uid=1000, gid=1001, groups=(44, 2000), user="ada")
JOB = Job(
    run="20261120-132145-1f2e3d4c",
    name="dsv-20261120-132145-1f2e3d4c",
    command=("python", "train.py", "--lr", "0.1"),
    image="team/resnet",
    mounts=(
        Mount(Path("/cache/x"), "/data"),
        Mount(Path("/home/ada/src"), "/code"),
        Mount(Path("/o"), "/out", True),
    ),
    env={"DSV_DATA": "/data", "TOKEN": "hunter2"},
    workdir="/code",
    gpus=2,
    scratch=Path("/s"),
)
BEGIN = "--name dsv-20261120-132145-1f2e3d4c --label dsv.run=20261120-132145-1f2e3d4c --init"
MOUNTS = (
    "--mount type=bind,source=/cache/x,target=/data,readonly "
    "--mount type=bind,source=/home/ada/src,target=/code,readonly "
    "--mount type=bind,source=/o,target=/out --workdir /code --shm-size 34359738368b"
)
END = "--env DSV_DATA --env TOKEN --env-file /s/environment team/resnet python train.py --lr 0.1"


def facts(machine: Machine = ADA, **more: object) -> Facts:
    return replace(Facts(machine, version="1", init=("--init",)), **more)  # type: ignore[arg-type]


def words(engine: ContainerEngine, job: Job, given: Facts) -> str:
    return " ".join(engine.plan(job, given).argv)


def test_docker_as_a_root_daemon() -> None:
    user = "--user 1000:1001 --group-add 44 --group-add 2000"
    assert words(Docker({}), JOB, facts()) == f"docker run {BEGIN} {user} {MOUNTS} --gpus 2 {END}"


def test_limits_are_options_of_the_engine() -> None:
    job = replace(JOB, cpus=1.5, memory_bytes=1 << 30)
    given = words(Docker({}), job, facts())
    assert "--cpus 1.5 --memory 1073741824b --memory-swap 1073741824b" in given
    assert "--shm-size 536870912b" in given, "shared memory is memory of the job"


def test_gpus_of_a_type_are_named() -> None:
    models = (
        Gpu(0, "GPU-t", "Tesla T4"),
        Gpu(1, "GPU-a", "NVIDIA A100"),
        Gpu(2, "GPU-b", "NVIDIA A100"),
    )
    here = facts(replace(ADA, models=models))
    job = replace(JOB, gpu_type="A100")
    assert '--gpus "device=GPU-a,GPU-b"' in words(Docker({}), job, here)
    assert "--device nvidia.com/gpu=1 --device nvidia.com/gpu=2" in words(Podman({}), job, here)
    given = facts(replace(ADA, models=models, visible_gpus=("0", "GPU-b")))
    with pytest.raises(LaunchError, match="there are 1 for this job"):
        words(Docker({}), job, given)


def test_what_the_driver_says_of_a_gpu() -> None:
    text = "Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t 184\nGPU UUID: \t GPU-12ab\nBus Location: \t 0000:07:00.0\n"
    assert read_model(3, text) == Gpu(3, "GPU-12ab", "NVIDIA A100-SXM4-80GB")


def test_docker_rootless() -> None:
    assert (
        words(Docker({}), JOB, facts(rootless=True))
        == f"docker run {BEGIN} --user 0:0 {MOUNTS} --gpus 2 {END}"
    )


def test_docker_with_remapped_users() -> None:
    assert " --userns=host --user 1000:1001 " in words(Docker({}), JOB, facts(remapped=True))


def test_podman_rootless() -> None:
    user = "--userns=keep-id --user 1000:1001 --group-add keep-groups"
    gpus = "--device nvidia.com/gpu=0 --device nvidia.com/gpu=1"
    assert words(Podman({}), JOB, facts(rootless=True, keep_groups=True)) == (
        f"podman run {BEGIN} {user} {MOUNTS} {gpus} {END}"
    )


def test_podman_as_root() -> None:
    root = replace(ADA, uid=0, gid=0, groups=(), user="root")
    said = words(Podman({}), replace(JOB, gpus=None), facts(root))
    assert said == f"podman run {BEGIN} --user 0:0 {MOUNTS} {END}".replace(" --env-file /s/environment", "")


@pytest.mark.parametrize(
    ("wanted", "granted", "docker", "podman"),
    [
        (ALL_GPUS, None, ["all"], ["all"]),
        (1, None, ["1"], ["0"]),
        (1, ("3", "2"), ['"device=3"'], ["3"]),
        (2, ("GPU-a", "GPU-b", "GPU-c"), ['"device=GPU-a,GPU-b"'], ["GPU-a", "GPU-b"]),
        (ALL_GPUS, ("3", "2"), ['"device=3,2"'], ["3", "2"]),
    ],
)
def test_gpus_are_those_that_the_caller_was_given(
    wanted: int, granted: tuple[str, ...] | None, docker: list[str], podman: list[str]
) -> None:
    given = facts(replace(ADA, visible_gpus=granted))
    job = replace(JOB, gpus=wanted)
    argv = Docker({}).plan(job, given).argv
    assert [argv[i + 1] for i, word in enumerate(argv) if word == "--gpus"] == docker
    argv = Podman({}).plan(job, given).argv
    assert [argv[i + 1] for i, word in enumerate(argv) if word == "--device"] == [
        f"nvidia.com/gpu={n}" for n in podman
    ]


@pytest.mark.parametrize(("wanted", "here"), [(3, 2), (1, 0), (ALL_GPUS, 0)])
def test_more_gpus_than_the_machine_has(wanted: int, here: int) -> None:
    for engine in (Docker({}), Podman({})):
        with pytest.raises(LaunchError, match=f"there are {here} for this job"):
            engine.plan(replace(JOB, gpus=wanted), facts(replace(ADA, gpus=here)))


@pytest.mark.parametrize(("wanted", "granted"), [(3, ("0", "1")), (1, ()), (ALL_GPUS, ())])
def test_more_gpus_than_granted(wanted: int, granted: tuple[str, ...]) -> None:
    for engine in (Docker({}), Podman({})):
        with pytest.raises(LaunchError, match="for this job"):
            engine.plan(replace(JOB, gpus=wanted), facts(replace(ADA, visible_gpus=granted)))


@pytest.mark.parametrize(
    ("text", "names"),
    [(None, None), ("", ()), ("0, 2", ("0", "2")), ("1,-1,0", ("1",)), ("-1", ()), ("GPU-x", ("GPU-x",))],
)
def test_the_gpus_in_cuda_visible_devices(text: str | None, names: tuple[str, ...] | None) -> None:
    assert visible({} if text is None else {"CUDA_VISIBLE_DEVICES": text}) == names


def test_selinux_leaves_mounts_alone() -> None:
    assert "--security-opt label=disable" in words(Docker({}), JOB, facts(replace(ADA, selinux=True)))


def test_engine_arguments_come_last_before_the_image() -> None:
    said = words(Docker({}), replace(JOB, engine_args=("--cpus=2", "--network", "host")), facts())
    assert said.endswith(" --cpus=2 --network host team/resnet python train.py --lr 0.1")


def test_what_would_change_the_engines_own_program_goes_by_file() -> None:
    env = {"PATH": "/x", "HOME": "/y", "DOCKER_HOST": "z", "HTTPS_PROXY": "p", "GOMAXPROCS": "1", "LD_PRELOAD": "l",
           "PATHS": "1", "HOMES": "2", "WANDB_MODE": "3", "CUDA_HOME": "4"}  # fmt: skip
    plan = Docker({}).plan(replace(JOB, env=env), facts(replace(ADA, uid=0)))
    assert dict(plan.env) == {name: env[name] for name in ("PATHS", "HOMES", "WANDB_MODE", "CUDA_HOME")}
    assert sorted(plan.files[0].content.decode().splitlines()) == sorted(
        f"{name}={value}" for name, value in env.items() if name not in plan.env
    )


def test_a_user_unknown_to_the_image_gets_a_home_and_a_name() -> None:
    content = Docker({}).plan(JOB, facts()).files[0].content
    assert content == b"HOME=/tmp\nUSER=ada\nLOGNAME=ada\n"
    own = Docker({}).plan(replace(JOB, env={"HOME": "/mine"}), facts()).files[0].content
    assert own == b"HOME=/mine\nUSER=ada\nLOGNAME=ada\n"


def test_what_cannot_be_planned() -> None:
    for wrong in ({"image": None}, {"image": "-it"}, {"name": "a/b"}, {"name": ""}, {"name": "-x"},
                  {"env": {"PATH": "a\nb"}}, {"command": ("a\0b",)}):  # fmt: skip
        with pytest.raises(UsageError):
            Docker({}).plan(replace(JOB, **wrong), facts())  # type: ignore[arg-type]
    with pytest.raises(LaunchError):
        Docker({}).plan(replace(JOB, mounts=(Mount(Path("/a\nb"), "/data"),)), facts())


@given(st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), min_size=1))
def test_a_mount_is_one_line_of_csv(name: str) -> None:
    import csv

    row = next(csv.reader([mount_option(Mount(Path("/") / f"x{name}", "/data"))]))
    assert row == ["type=bind", f"source={Path('/') / f'x{name}'}", "target=/data", "readonly"]
