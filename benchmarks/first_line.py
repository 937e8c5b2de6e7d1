"""What `dsv run` adds to a container whose data is cached: the same command by it and by docker, in turns.

    python -m benchmarks.first_line              seven rounds on a Docker Engine of its own (see CONTRIBUTING.md)
    python -m benchmarks.first_line --rounds 20
    python -m benchmarks.first_line --prefix 'chrt -r 1'   on a busy machine: before its other programs

Prints the seconds from the start of each command to the first byte of the job and to the command's end, and the seconds
of processor time (without docker's daemon), as median and least. Needs root and the packages of the Docker lab.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.labs import docker_engine

JOB = ("sh", "-c", "echo first")


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


def main() -> None:
    parser = argparse.ArgumentParser(description="What dsv run adds to docker run.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--prefix", default="", help="words before each command, such as 'chrt -r 1' on a busy machine"
    )
    given = parser.parse_args()
    rounds, prefix = given.rounds, shlex.split(given.prefix)
    with tempfile.TemporaryDirectory(prefix="dsv-first-line-") as name:
        top = Path(name)
        engine = docker_engine.up(top / "engine")
        try:
            env = {**os.environ, **engine.env, "HOME": str(top / "home"), "DSV_STORE": str(top / "store")}
            dsv = (sys.executable, "-m", "dsv.cli.main")
            (top / "data").mkdir()
            (top / "data" / "file").write_text("content")
            for words in (("init", "data"), ("sync",), ("tag", "v1"), ("cache", "data@v1")):
                subprocess.run([*dsv, *words], cwd=top / "data", env=env, check=True, capture_output=True)
            commands = {
                "docker run --rm --init": ("docker", "run", "--rm", "--init", engine.busybox, *JOB),
                "dsv run --engine docker": (
                    *(*dsv, "run", "data@v1", "--engine", "docker", "--image", engine.busybox, "--"),
                    *JOB,
                ),
                "dsv run --engine process": (*dsv, "run", "data@v1", "--engine", "process", "--", *JOB),
            }
            taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
            for number in range(rounds + 1):
                for name, argv in commands.items():
                    seconds = turn([*prefix, *argv], env)
                    taken[name] += [seconds] if number else []  # the first round fills caches
            for name, turns in taken.items():
                columns = zip(("first byte", "end", "processor"), zip(*turns, strict=True), strict=True)
                print(
                    f"{name:25}",
                    *(f"{what} {statistics.median(v):.2f} ({min(v):.2f})" for what, v in columns),
                )
        finally:
            docker_engine.down(top / "engine")


if __name__ == "__main__":
    main()
