"""What `dsv run` adds to a run whose data is cached: the same command by it and by docker or srun, in turns.

    python -m benchmarks.first_line              seven rounds on a Docker Engine of its own (see CONTRIBUTING.md)
    python -m benchmarks.first_line --engine slurm         on a Slurm of its own
    python -m benchmarks.first_line --rounds 20
    python -m benchmarks.first_line --prefix 'chrt -r 1'   on a busy machine: before its other programs
    chrt -r 1 python -m benchmarks.first_line --engine slurm    the same, for the nodes of Slurm too

Prints the seconds from the start of each command to the first byte of the job and to the command's end, and the seconds
of processor time (without the engine's daemons), as median and least. Needs root and the packages of that lab.
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

from tests.labs import docker_engine, slurm

JOB = ("sh", "-c", "echo first")
DSV = (sys.executable, "-m", "dsv.cli.main")
Commands = dict[str, tuple[str, ...]]


def turn(argv: Sequence[str], env: Mapping[str, str]) -> tuple[float, float, float]:
    """Return the seconds to the first byte and to the end, and those of the processor."""
    begun = time.monotonic()
    process = subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    first = process.stdout.read(1)
    at_first = time.monotonic() - begun
    said = process.stdout.read() + process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    at_end = time.monotonic() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or not first:
        raise SystemExit(f"{argv} ended with {process.returncode}: {said.decode()}")
    return at_first, at_end, used.ru_utime + used.ru_stime


@contextmanager
def on_docker(top: Path) -> Iterator[tuple[Mapping[str, str], Commands]]:
    engine = docker_engine.up(top / "engine")
    ours = (*DSV, "run", "data@v1", "--engine")
    try:
        yield (
            engine.env,
            {
                "docker run --rm --init": ("docker", "run", "--rm", "--init", engine.busybox, *JOB),
                "dsv run --engine docker": (*ours, "docker", "--image", engine.busybox, "--", *JOB),
                "dsv run --engine process": (*ours, "process", "--", *JOB),
            },
        )
    finally:
        docker_engine.down(top / "engine")


@contextmanager
def on_slurm(top: Path) -> Iterator[tuple[Mapping[str, str], Commands]]:
    cluster = slurm.up(top / "engine")
    submitted = f"job=$(sbatch --parsable --output={top}/%j.log --wrap={shlex.quote(JOB[-1])})"
    script = f"{submitted}; until [ -s {top}/$job.log ]; do sleep 0.01; done; cat {top}/$job.log"
    try:
        commands = {
            "sbatch, and its log": ("sh", "-c", script),
            "srun": ("srun", "--quiet", *JOB),
            "dsv run --on a": (*DSV, "run", "data@v1", "--on", "a", "--", *JOB),
        }
        yield cluster.env, commands
    finally:
        slurm.down(top / "engine")


def main() -> None:
    parser = argparse.ArgumentParser(description="What dsv run adds to docker run or srun.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engine", choices=("docker", "slurm"), default="docker")
    parser.add_argument(
        "--prefix", default="", help="words before each command, such as 'chrt -r 1' on a busy machine"
    )
    given = parser.parse_args()
    rounds, prefix = given.rounds, shlex.split(given.prefix)
    with tempfile.TemporaryDirectory(prefix="dsv-first-line-") as name:
        top = Path(name)
        with {"docker": on_docker, "slurm": on_slurm}[given.engine](top) as (variables, commands):
            env = {**os.environ, **variables, "HOME": str(top / "home"), "DSV_STORE": str(top / "store")}
            (top / "data").mkdir()
            (top / "data" / "file").write_text("content")
            settings = {"cache": top / "cache", "pools.a.out": top / "out", "pools.a.engine": "slurm"}
            for key, value in settings.items():
                config = [*DSV, "config", key, str(value)]
                subprocess.run(config, cwd=top, env=env, check=True, capture_output=True)
            for words in (("init", "data"), ("sync",), ("tag", "v1"), ("cache", "data@v1")):
                subprocess.run([*DSV, *words], cwd=top / "data", env=env, check=True, capture_output=True)
            taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
            for number in range(rounds + 1):
                for name, argv in commands.items():
                    time.sleep(random.random())  # Slurm looks for new jobs once a second
                    seconds = turn([*prefix, *argv], env)
                    taken[name] += [seconds] if number else []  # the first round fills caches
            for name, turns in taken.items():
                columns = zip(("first byte", "end", "processor"), zip(*turns, strict=True), strict=True)
                print(
                    f"{name:25}",
                    *(f"{what} {statistics.median(v):.2f} ({min(v):.2f})" for what, v in columns),
                )


if __name__ == "__main__":
    main()
