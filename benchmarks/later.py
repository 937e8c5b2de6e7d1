"""What follows the first sync: nothing changed, a little changed, the next commit, a hit, and starting up."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks import data, parquet
from benchmarks.measure import Command, Cost, run
from benchmarks.notebook import Notebook
from benchmarks.peers import Dsv, Job
from benchmarks.transfers import turn

HITS = 5
FRACTIONS = {"one file": 0.0, "0.1%": 0.001, "1%": 0.01, "10%": 0.1}  # of all files


def measure(shape: data.Shape, dsv: Dsv, book: Notebook, below: Path, rounds: int) -> None:
    """Many small files, against find and cp -al on the same tree."""
    source = data.make(shape, below / "data")
    for number in range(rounds):
        with turn(dsv, source, below, on_server=True) as job:
            run(dsv.up(job)[0])
            run(dsv.down(job)[0])
            _unchanged(dsv, job, book)
            for _ in range(HITS):
                book.add("a cache hit", dsv.name, run(dsv.call(job, "cache", "bench")))
            for what, fraction in FRACTIONS.items():
                count = max(1, round(shape.files * fraction))
                _changed(dsv, job, book, what, count, random.Random(f"{number} {what}"))
            _links(job, book)


def _unchanged(dsv: Dsv, job: Job, book: Notebook) -> None:
    """The workspace's state is old enough to be trusted, as it is on any later day."""
    run(dsv.call(job, "sync"))
    listing = job.command("find", job.data, "-type", "f", "-printf", "%p %s %T@\\n")
    for _ in range(3):
        book.add("sync, nothing changed", "find", run(listing))
        book.add("sync, nothing changed", dsv.name, run(dsv.call(job, "sync")))


def _changed(dsv: Dsv, job: Job, book: Notebook, what: str, count: int, source: random.Random) -> None:
    """So many files have other bytes of the same length; then sync, and cache beside the commit before."""
    size = 0
    for path in data.some_files(job.data, count):
        content = source.randbytes(path.stat().st_size)
        size += len(content)
        data.replace(path, content)
    os.sync()
    cost, told = _json(dsv.call(job, "sync", "--json"))
    book.add(f"sync, {what} changed", dsv.name, cost, changed=size, uploaded=told["uploaded_bytes"])
    os.sync()
    cost, told = _json(dsv.call(job, "cache", "bench", "--json"))
    book.add(
        f"cache, {what} changed", dsv.name, cost, changed=size, fetched=told["items"][0]["fetched_bytes"]
    )
    if what == "1%":
        _fetch_alone(dsv, job, book, count)


def _fetch_alone(dsv: Dsv, job: Job, book: Notebook, count: int) -> None:
    """The changed files as a dataset of their own, from the same packs into an empty cache: what a fetch takes."""
    alone = job.work / "alone"
    for path in data.some_files(job.data, count):
        copy = alone / path.relative_to(job.data)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    run(dsv.call(job, "-C", str(alone), "init", "alone"))
    run(dsv.call(job, "-C", str(alone), "sync"))
    os.sync()
    cost = run(dsv.call(job, "--cache", str(job.work / "empty"), "cache", "alone"))
    book.add("cache, the changed 1% alone", dsv.name, cost)
    for folder in ("alone", "empty"):
        shutil.rmtree(job.work / folder)


def _links(job: Job, book: Notebook) -> None:
    """What making as many hard links costs, for comparison with caching the next commit."""
    for _ in range(3):
        book.add("link the tree", "cp -al", run(job.command("cp", "-al", job.data, job.work / "linked")))
        shutil.rmtree(job.work / "linked")


def measure_big(dsv: Dsv, book: Notebook, below: Path, rounds: int) -> None:
    """Little changes in large files: what is uploaded, and how long that takes."""
    source = data.make(data.ONE_BIG, below / "data")
    for number in range(rounds):
        with turn(dsv, source, below, on_server=True) as job:
            (path,) = data.some_files(job.data, 1)
            run(dsv.up(job)[0])
            old = path.read_bytes()
            more, middle = random.Random(number).randbytes(1024), len(old) // 2
            data.replace(path, old[:middle] + more + old[middle:])
            cost, told = _json(dsv.call(job, "sync", "--json"))
            book.add("1 KB inserted into 1 GiB", dsv.name, cost, uploaded=told["uploaded_bytes"])
    for chunked in (True, False):
        work = f"Parquet, 1% of rows changed, chunked {'by content' if chunked else 'by size'}"
        tables = [parquet.make(below / "data", chunked, changed) for changed in (False, True)]
        for _ in range(rounds):
            with turn(dsv, tables[0].parent / "nothing", below, on_server=True) as job:
                shutil.copy(tables[0], job.data / "table.parquet")
                run(dsv.up(job)[0])
                data.replace(job.data / "table.parquet", tables[1].read_bytes())
                cost, told = _json(dsv.call(job, "sync", "--json"))
                size = tables[1].stat().st_size
                book.add(work, dsv.name, cost, uploaded=told["uploaded_bytes"], size=size)


def measure_start(dsv: Dsv, book: Notebook, below: Path, rounds: int) -> None:
    """Starting up, against an empty Python program."""
    for _ in range(rounds * 7):
        for name, argv in (
            ("python", [sys.executable, "-c", "pass"]),
            ("dsv", [dsv.program, "--version"]),
            ("help", [dsv.program, "--help"]),
        ):
            book.add("start", name, run(Command([str(word) for word in argv], below)))


def _json(command: Command) -> tuple[Cost, dict[str, Any]]:
    cost = run(command)
    told: dict[str, Any] = json.loads(cost.output)
    return cost, told
