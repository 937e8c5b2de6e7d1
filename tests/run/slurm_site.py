"""A user with a store, a cache and pools on a real Slurm, for tests of runs from the command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kit import clusters
from tests.kit.clusters import WAIT, save_digits
from tests.labs.slurm import SlurmNodes
from tests.waiting import until


@dataclass
class Site(clusters.Site):
    """A store, a cache and an output folder that every node sees, and a user with a pool on Slurm."""

    slurm: SlurmNodes

    @property
    def env(self) -> dict[str, str]:
        return self.slurm.env

    def argv(self, words: Sequence[str], node: str | None = None) -> list[str]:
        typed = super().argv(words, None)
        return typed if node is None else self.slurm.on_node(node, typed)

    def ready(self, attempt: int = 1, nodes: int = 1) -> None:
        until(lambda: self.has(*(f"ready.{attempt}.{node}" for node in range(nodes))), "the start of the job")

    def held(self) -> bool:
        """Return whether somebody on another machine is kept from evicting the data."""
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
        return Path(os.environ["HOME"]) / ".local/state/dsv/runs/digits" / run

    def nodes(self) -> str:
        """The nodes of the jobs that have some, as Slurm abbreviates them."""
        return self.slurm.call("squeue", "--noheader", "--format=%N").strip()

    def job(self) -> str:
        """The number of the job in Slurm."""
        return self.slurm.call("squeue", "--noheader", "--format=%A").split()[0]


def make_site(folder: Path, slurm: SlurmNodes) -> Site:
    site = Site(folder, slurm)
    save_digits(folder / "data")
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
