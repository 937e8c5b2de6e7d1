"""How much memory a sync and a cache take: a million small files, and one file of 20 GB."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from benchmarks import data
from benchmarks.measure import run_all
from benchmarks.notebook import Notebook
from benchmarks.peers import Dsv
from benchmarks.transfers import check, turn

MILLION = data.Shape(1_000_000, 100)
HUGE = data.Shape(1, 20_000_000_000)
RANDOM, HOLE = 256 << 10, 768 << 10  # of every MiB of the huge file, so that its three copies fit on a disk


def measure(dsv: Dsv, book: Notebook, below: Path) -> None:
    """Once each with the directory store; memory is that of dsv with all its helpers, sampled."""
    for shape, what, write in (
        (MILLION, "1,000,000 files", _million),
        (HUGE, "a file of 20 GB", _huge),
    ):
        _measure(dsv, book, below, shape, what, write)


def _measure(
    dsv: Dsv, book: Notebook, below: Path, shape: data.Shape, what: str, write: Callable[[Path], None]
) -> None:
    with turn(dsv, None, below, on_server=False) as job:
        write(job.data)
        book.add(f"memory: sync {what}", dsv.name, run_all(dsv.up(job)))
        book.add(f"memory: sync {what} again", dsv.name, run_all(dsv.up(job)))
        dsv.arrive(job)
        book.add(f"memory: cache {what}", dsv.name, run_all(dsv.down(job)))
        book.add(f"memory: cache {what} again", dsv.name, run_all(dsv.down(job)))
        check(job.back, shape)


def _million(folder: Path) -> None:
    data.write(MILLION, folder)


def _huge(folder: Path) -> None:
    """No byte of it is like another MiB's; the holes take no room, and compress well."""
    source = random.Random(data.SEED)
    with (folder / "file-0000000.bin").open("wb") as file:
        while file.tell() < HUGE.size - RANDOM:
            file.write(source.randbytes(RANDOM))
            file.seek(min(HOLE, HUGE.size - file.tell()), 1)
        file.truncate(HUGE.size)
