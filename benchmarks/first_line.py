"""What `dsv run` adds to a run whose data is cached: the same command by it and by the engine's own client, in turns.

    python -m benchmarks.first_line              seven rounds on the Docker Engine of DSV_LABS, else on one of its own
    python -m benchmarks.first_line --engine kubernetes    on a Kubernetes
    python -m benchmarks.first_line --engine slurm         on a Slurm
    python -m benchmarks.first_line --rounds 20
    python -m benchmarks.first_line --prefix 'chrt -r 1'   on a busy machine: before its other programs
    chrt -r 1 python -m benchmarks.first_line --engine slurm    the same, for the nodes of Slurm too

Prints the seconds from the start of each command to when the job ran, to its first byte and to the command's end, and
the seconds of processor time (without daemons), as median and least. Needs root and the packages of the lab.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.labs import shelf
from tests.run.test_kubernetes_runs import IMAGE, Site, prepare

JOB = ("cat", "/proc/uptime")
WHAT = ("job", "first byte", "end", "end after the job", "processor")
DSV = (sys.executable, "-m", "dsv.cli.main")


def turn(argv: Sequence[str], env: Mapping[str, str]) -> tuple[float, ...]:
    """Return the seconds of `WHAT`."""
    begun, booted = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
    process = subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    first = process.stdout.read(1)
    at_first = time.monotonic() - begun
    output = first + process.stdout.read()
    errors = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    at_end = time.monotonic() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or not first:
        raise SystemExit(f"{argv} ended with {process.returncode}: {(output + errors).decode()}")
    at_job = float(output.split()[0]) - booted
    return at_job, at_first, at_end, at_end - at_job, used.ru_utime + used.ru_stime


Commands = Iterator[tuple[dict[str, str], dict[str, tuple[str, ...]]]]
"""The environment, and the commands by what they are called."""


@contextmanager
def docker_commands(labs: Path, top: Path) -> Commands:
    engine = shelf.attach(labs, "docker-engine")
    env = {**os.environ, **engine.env, "HOME": str(top / "home"), "DSV_STORE": str(top / "store")}
    (top / "data").mkdir()
    (top / "data" / "file").write_text("content")
    for words in (("init", "data"), ("sync",), ("tag", "v1"), ("cache", "data@v1")):
        subprocess.run([*DSV, *words], cwd=top / "data", env=env, check=True, capture_output=True)
    run = (*DSV, "run", "data@v1", "--engine")
    yield (
        env,
        {
            "docker run --rm --init": ("docker", "run", "--rm", "--init", engine.busybox, *JOB),
            "dsv run --engine docker": (*run, "docker", "--image", engine.busybox, "--", *JOB),
            "dsv run --engine process": (*run, "process", "--", *JOB),
        },
    )


@contextmanager
def kubernetes_commands(labs: Path, top: Path) -> Commands:
    cluster = shelf.attach(labs, "kubernetes")
    os.environ.update(cluster.env, HOME=str(top / "home"), XDG_CONFIG_HOME=str(top / "config"))
    top.chmod(0o755)
    prepare(Site(top, cluster))
    kubectl = cluster.programs / "kubectl"
    bare = (
        f"{kubectl} create job first --image={IMAGE} -- {shlex.join(JOB)} >/dev/null;"
        f"until {kubectl} logs -f job/first 2>/dev/null | grep .; do :; done; {kubectl} delete job first >/dev/null"
    )
    yield (
        dict(os.environ),
        {
            "kubectl create job; logs": ("sh", "-c", bare),
            "dsv run on Kubernetes": (*DSV, "run", "digits", "--image", IMAGE, "--", *JOB),
        },
    )


@contextmanager
def slurm_commands(labs: Path, top: Path) -> Commands:
    cluster = shelf.attach(labs, "slurm")
    env = {**os.environ, **cluster.env, "HOME": str(top / "home"), "DSV_STORE": str(top / "store")}
    (top / "data").mkdir()
    (top / "data" / "file").write_text("content")
    for key, value in {"cache": top / "cache", "pools.a.out": top / "out", "pools.a.engine": "slurm"}.items():
        subprocess.run([*DSV, "config", key, str(value)], cwd=top, env=env, check=True, capture_output=True)
    for words in (("init", "data"), ("sync",), ("tag", "v1"), ("cache", "data@v1")):
        subprocess.run([*DSV, *words], cwd=top / "data", env=env, check=True, capture_output=True)
    submitted = f"job=$(sbatch --parsable --output={top}/%j.log --wrap={shlex.quote(shlex.join(JOB))})"
    script = f"{submitted}; until [ -s {top}/$job.log ]; do sleep 0.01; done; cat {top}/$job.log"
    yield (
        env,
        {
            "sbatch, and its log": ("sh", "-c", script),
            "srun": ("srun", "--quiet", *JOB),
            "dsv run on Slurm": (*DSV, "run", "data@v1", "--on", "a", "--", *JOB),
        },
    )


ENGINES = {"docker": docker_commands, "kubernetes": kubernetes_commands, "slurm": slurm_commands}


def main() -> None:
    parser = argparse.ArgumentParser(description="What dsv run adds to the engine's own client.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engine", choices=ENGINES, default="docker")
    parser.add_argument(
        "--prefix", default="", help="words before each command, such as 'chrt -r 1' on a busy machine"
    )
    given = parser.parse_args()
    rounds, prefix = given.rounds, shlex.split(given.prefix)
    commands_of = ENGINES[given.engine]
    with tempfile.TemporaryDirectory(prefix="dsv-first-line-") as name:
        top = Path(name)
        labs = Path(os.environ.get("DSV_LABS", top / "labs"))
        try:
            with commands_of(labs, top) as (env, commands):
                taken: dict[str, list[tuple[float, ...]]] = {name: [] for name in commands}
                for number in range(rounds + 1):
                    for name, argv in commands.items():
                        time.sleep(random.random())  # Slurm looks for new jobs once a second
                        seconds = turn([*prefix, *argv], env)
                        taken[name] += [seconds] if number else []  # the first round fills caches
            for name, turns in taken.items():
                columns = zip(WHAT, zip(*turns, strict=True), strict=True)
                print(
                    f"{name:25}",
                    *(f"{what} {statistics.median(v):.2f} ({min(v):.2f})" for what, v in columns),
                )
        finally:
            if "DSV_LABS" not in os.environ:
                shelf.take_down(labs)


if __name__ == "__main__":
    main()
