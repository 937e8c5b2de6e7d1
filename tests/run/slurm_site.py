"""A user with a store, a cache and pools on a real Slurm, for tests of runs from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.labs.machine import environment
from tests.labs.slurm import SlurmNodes
from tests.waiting import PATIENCE, until

DSV = str(Path(sys.executable).with_name("dsv"))
WAIT = 'touch "$DSV_OUT/ready.$DSV_ATTEMPT.$NODE_RANK"; until [ -e "$DSV_OUT/go" ]; do sleep 0.1; done'


@dataclass
class Site:
    """A store, a cache and an output folder that every node sees, and a user with a pool on Slurm."""

    slurm: SlurmNodes
    folder: Path

    def argv(self, *words: str) -> list[str]:
        return [DSV, *words]

    def dsv(self, *words: str, node: str | None = None, code: int | None = 0) -> str:
        """stdout of dsv, as typed here or on a node."""
        argv = self.argv(*words) if node is None else self.slurm.on_node(node, self.argv(*words))
        done = subprocess.run(
            argv,
            env={**environment(self.slurm.env), "PATH": os.environ["PATH"]},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    def start(self, *words: str, node: str | None = None, path: str | None = None) -> subprocess.Popen[str]:
        """dsv in a terminal of its own, here or on a node."""
        argv = self.argv(*words) if node is None else self.slurm.on_node(node, self.argv(*words))
        return subprocess.Popen(
            argv,
            env={**environment(self.slurm.env), "PATH": path or os.environ["PATH"]},
            cwd=self.folder,
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def last(self) -> dict[str, Any]:
        items: list[dict[str, Any]] = json.loads(self.dsv("runs", "--json", "-n", "1"))["items"]
        return items[0] if items else {}

    def out(self) -> Path:
        """The output folder of the last run."""
        until(self._outs, "the run")
        return max(self._outs())

    def _outs(self) -> list[Path]:
        return [path for path in (self.folder / "out").glob("digits/*") if path.suffix != ".job"]

    def ready(self, attempt: int = 1, nodes: int = 1) -> None:
        until(lambda: self.has(*(f"ready.{attempt}.{node}" for node in range(nodes))), "the start of the job")

    def has(self, *names: str) -> bool:
        return all((self.out() / name).exists() for name in names)

    def go(self) -> None:
        (self.out() / "go").touch()

    def held(self) -> bool:
        """Whether somebody on another machine is kept from evicting the data."""
        self.dsv("evict", "--all", node="n3", code=None)
        return any((self.folder / "cache" / "digits").glob("*/part0.npy"))

    def queued(self) -> list[str]:
        """The numbers of dsv's jobs that live."""
        lines = self.slurm.call("squeue", "--noheader", "--format=%A|%k").splitlines()
        return [line.partition("|")[0] for line in lines if line.partition("|")[2].startswith("dsv:")]

    def state(self, job: str) -> str:
        return self.slurm.call("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()

    def folder_of(self, run: str) -> Path:
        """Of a run, among the user's state."""
        return next(Path(os.environ["HOME"]).glob(f".local/state/dsv/runs/digits/{run}"))

    def job(self) -> str:
        """The number of the job in Slurm."""
        return self.slurm.call("squeue", "--noheader", "--format=%A").split()[0]


def make_site(folder: Path, slurm: SlurmNodes) -> Site:
    numpy = pytest.importorskip("numpy")
    from sklearn.datasets import load_digits

    site = Site(slurm, folder)
    bunch = load_digits()
    rows = numpy.column_stack([bunch.data, bunch.target])
    (folder / "data").mkdir()
    for number in range(2):
        numpy.save(folder / "data" / f"part{number}.npy", rows[number::2])
    for key, value in (
        ("store", folder / "store"),
        ("cache", folder / "cache"),
        ("pools.a.engine", "slurm"),
        ("pools.a.out", folder / "out"),
    ):
        site.dsv("config", key, str(value))
    site.dsv("-C", "data", "init", "digits")
    site.dsv("-C", "data", "sync")
    return site


def run_of(*options: str, script: str = WAIT) -> tuple[str, ...]:
    return ("run", "digits", "--on", "a", *options, "--", "sh", "-c", script)
