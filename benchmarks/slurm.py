"""What `dsv run` adds to what sbatch takes, when the data is cached: on the Slurm of the tests, in turns.

    python -m benchmarks.slurm --rounds 5

Needs root and Debian's packages of Slurm (see CONTRIBUTING.md). One line for each round, then the medians: the seconds
from the call until the command begins on its node, those from the command's end until the call returns (sbatch doesn't
wait, so it has none), and the processor seconds of the program that was called.
"""

from __future__ import annotations

import argparse
import compileall
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.labs import slurm
from tests.labs.machine import environment

DSV = str(Path(sys.executable).with_name("dsv"))
PACKAGE = Path(__file__).parents[1] / "src" / "dsv"
STAMPS = "date +%s.%N >{folder}/began; date +%s.%N >{folder}/ended"
POLL = 0.01


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds until the command began, from its end until the call returned, and of the processor."""

    begins: float
    returns: float
    cpu: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    compileall.compile_dir(PACKAGE, quiet=2)  # as an installed dsv is
    with tempfile.TemporaryDirectory(prefix="dsv-bench-") as name:
        folder = Path(name)
        (folder / "home").mkdir()
        cluster = slurm.up(folder / "slurm")
        try:
            _measure(folder, {**environment(cluster.env), "HOME": str(folder / "home")}, rounds)
        finally:
            slurm.down(folder / "slurm")


def _measure(folder: Path, env: Mapping[str, str], rounds: int) -> None:
    _prepare(folder, env)
    stamps = STAMPS.format(folder=folder)
    plain = ["sbatch", f"--output={folder}/plain.log", f"--wrap={stamps}"]
    ours = [DSV, "run", "data", "--on", "a", "--", "sh", "-c", stamps]
    taken: dict[str, list[Took]] = {"sbatch": [], "dsv run": []}
    for number in range(rounds):
        for what, argv in (("sbatch", plain), ("dsv run", ours)):
            took = _time(argv, folder, env)
            taken[what].append(took)
            _tell(f"{number + 1} {what}", took)
    for what, all_ in taken.items():
        fields = (
            [each.begins for each in all_],
            [each.returns for each in all_],
            [each.cpu for each in all_],
        )
        _tell(f"median {what}", Took(*map(median, fields)))
    begins = median(each.begins for each in taken["dsv run"]) - median(
        each.begins for each in taken["sbatch"]
    )
    returns = median(each.returns for each in taken["dsv run"])
    print(f"dsv run adds {begins:.2f} s before the command, and {returns:.2f} s after it")


def _prepare(folder: Path, env: Mapping[str, str]) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "file").write_bytes(os.urandom(1 << 20))
    settings = {"store": folder / "store", "cache": folder / "cache", "pools.a.engine": "slurm",
                "pools.a.out": folder / "out"}  # fmt: skip
    for words in (
        *(("config", key, str(value)) for key, value in settings.items()),
        ("-C", "data", "init", "data"),
        ("-C", "data", "sync"),
        ("cache", "data"),
    ):
        subprocess.run([DSV, *words], cwd=folder, env=env, check=True, capture_output=True)


def _time(argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> Took:
    stamps = folder / "began", folder / "ended"
    for path in stamps:
        path.unlink(missing_ok=True)
    began = time.time()
    child = subprocess.Popen(argv, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    returned = time.time()
    if child.returncode != 0:
        raise RuntimeError(f"{argv[0]} ended with {child.returncode}")
    while not (stamps[1].exists() and stamps[1].read_text().endswith("\n")):
        time.sleep(POLL)
    first, last = (float(path.read_text()) for path in stamps)
    return Took(first - began, max(0.0, returned - last), used.ru_utime + used.ru_stime)


def _tell(what: str, took: Took) -> None:
    print(
        f"{what:<16} begins after {took.begins:5.2f} s  returns after {took.returns:5.2f} s  cpu {took.cpu:5.2f} s"
    )


if __name__ == "__main__":
    main()
