"""As many files as the reference data set has: time per file and memory, and one file read from afar."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks import data
from benchmarks.measure import run, run_all
from benchmarks.notebook import Notebook
from benchmarks.peers import Copy, Dsv, Job, Peer
from benchmarks.transfers import PATIENCE, check, turn

STEPS = (0.01, 0.08, 0.3, 1.0)  # of the number of files, for the curve


def measure(scale: float, dsv: Dsv, others: Sequence[Peer], book: Notebook, below: Path) -> None:
    """Sync and cache at four sizes; one round each, as the largest takes minutes.

    A peer that takes minutes already is not asked for more files.
    """
    slow: set[str] = set()
    for step in STEPS:
        shape = data.Shape(round(data.MANY.files * step * scale), data.MANY.size)
        source = data.make(shape, below / "data")
        for peer in others:
            if peer.name in slow:
                continue
            with turn(peer, source, below, on_server=not isinstance(peer, Copy)) as job:
                up = run_all(peer.up(job))
                book.add(f"{shape.files} files of 1 KB up", peer.name, up, files=shape.files)
                peer.arrive(job)
                down = run_all(peer.down(job))
                book.add(f"{shape.files} files of 1 KB down", peer.name, down, files=shape.files)
                if up.seconds + down.seconds > PATIENCE:
                    slow.add(peer.name)
        with turn(dsv, source, below, on_server=True) as job:
            book.add(f"{shape.files} files of 1 KB up", dsv.name, run_all(dsv.up(job)), files=shape.files)
            dsv.arrive(job)
            down = run_all(dsv.down(job))
            book.add(f"{shape.files} files of 1 KB down", dsv.name, down, files=shape.files)
            check(job.back, shape)
            for _ in range(5):
                book.add(f"a cache hit, {shape.files} files", dsv.name, run(dsv.call(job, "cache", "bench")))
            if step == STEPS[-1]:
                _one_file(dsv, job, book, shape)


def _one_file(dsv: Dsv, job: Job, book: Notebook, shape: data.Shape) -> None:
    """`dsv cat` of one file on a machine that has seen nothing of this store, then of its neighbours."""
    assert job.running
    shutil.rmtree(job.back)
    dsv.arrive(job)
    inner = [
        f"part-{number // data.PER_FOLDER:04}/file-{number:07}.bin" for number in (shape.files // 2, 7, 8)
    ]
    for what, path in zip(("first", "far away", "its neighbour"), inner, strict=True):
        before = len(job.running.requests())
        cost = run(dsv.call(job, "cat", f"bench:{path}"))
        requests = job.running.requests()[before:]
        sent = sum(int(line.split()[2]) for line in requests if line.startswith("GET"))
        book.add("cat one file of many", what, cost, requests=len(requests), received=sent)
