"""How many system calls a file costs, and a cached commit, as strace counts them.

The same work with few files and with many: the difference, for each file more, has no part of what a process costs
that starts. It doesn't depend on how busy a machine is, so one call more for each file is a failure.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from dsv.format.records import RefEntry
from dsv.repo.refs.branches import Head
from dsv.stores.directory import DirectoryStore
from dsv.values.ids import Nonce
from dsv.values.names import MAIN, DatasetName
from tests.cache.places import make_root, place, publish
from tests.counts.people import path_of, person, write
from tests.kit.dsv import PROGRAM, Dsv
from tests.kit.repositories import WRITER, create
from tests.strace import needs_strace
from tests.waiting import PATIENCE

FEW, MANY = 200, 1200
# Calls by which threads wait for each other and memory is had: they come as the scheduler likes.
BY_CHANCE = {"futex", "mmap", "munmap", "brk", "madvise", "mprotect", "sched_yield", "clock_nanosleep"}

# The most for each file, with a hundredth of a folder and of a changed file where there is one. They are exact but for
# half a call, which leaves room for these hundredths (10 calls for a folder are 0.1) and for chance.
MOST = {
    # lstat, open, fstat, three fcntl (is a file as young as this mapped for writing?), read, fstat, close
    "first sync": 9.5,
    "sync of nothing": 1.5,  # lstat
    "cold cache": 4.5,  # open, write, utimensat, close
    "cache of the next commit": 2.6,  # link, and a look whether it is what it was
    "cache hit": 0.03,  # nothing
    "evict with nothing due": 0.08,  # once an hour each copy of metadata: no tree is looked at
    "cached": 0.03,  # nothing
    "cat": 0.03,  # nothing
}


def traced(who: Dsv, *arguments: str) -> int:
    """The system calls of a command and of all processes that it starts."""
    report = who.home / "strace"
    command = ["strace", "-f", "-c", "-o", str(report), *PROGRAM, *arguments]
    subprocess.run(
        command, cwd=who.cwd, env=dict(who.environ), check=True, capture_output=True, timeout=PATIENCE
    )
    rows = [line.split() for line in report.read_text().splitlines()]
    calls = {row[-1]: int(row[3]) for row in rows if len(row) >= 5 and row[3].isdigit()}
    return sum(count for name, count in calls.items() if name not in BY_CHANCE and name != "total")


def count(home: Path, files: int) -> Iterator[tuple[str, int]]:
    who = person(home, str(home / "lake"))
    write(who.cwd, range(files), 1024, 1)
    assert who.process("init", "scans").code == 0
    yield "first sync", traced(who, "sync", "-q")
    assert who.process("sync", "-q").code == 0  # what was too young to be trusted is trusted now
    yield "sync of nothing", traced(who, "sync", "-q")
    yield "cat", traced(who, "cat", f"scans:{path_of(0)}")
    assert who.process("tag", "v1").code == 0
    yield "cold cache", traced(who, "cache", "scans@v1", "-q")
    yield "cache hit", traced(who, "cache", "scans@v1", "-q")
    yield "evict with nothing due", traced(who, "evict")
    yield "cached", traced(who, "cached")
    write(who.cwd, range(0, files, 100), 1024, 2)
    assert who.process("sync", "-q").code == 0
    yield "cache of the next commit", traced(who, "cache", "scans", "-q")


def test_a_file_costs_no_more_than_it_needs(tmp_path: Path) -> None:
    needs_strace()
    few, many = (dict(count(tmp_path / str(files), files)) for files in (FEW, MANY))
    each = {work: (many[work] - few[work]) / (MANY - FEW) for work in MOST}
    print(each)
    assert {work: calls for work, calls in each.items() if calls > MOST[work]} == {}


# The most for each cached commit of one dataset, in an `evict` with nothing due.
MOST_OF_A_COMMIT = {
    # Each step goes down from the cache's root: two opens and two closes, none of which asks a file server.
    "evict": 27.5,  # its claims are listed, its record is read
    "the next evict": 5.5,  # statx: have its claims changed since?
}


def count_evict(home: Path, commits: int) -> Iterator[tuple[str, int]]:
    who = person(home, str(home / "lake"))
    root = make_root(home / "cache")
    for number in range(commits):
        publish(root, place(number), {})
        os.utime(root.claims(place(number)).path, (number, number))  # as if that was long ago
    yield "evict", traced(who, "evict")
    yield "the next evict", traced(who, "evict")


def test_evict_asks_of_each_commit_only_whether_it_has_changed(tmp_path: Path) -> None:
    needs_strace()
    few, many = (dict(count_evict(tmp_path / str(commits), commits)) for commits in (FEW, MANY))
    each = {work: (many[work] - few[work]) / (MANY - FEW) for work in MOST_OF_A_COMMIT}
    print(each)
    assert {work: calls for work, calls in each.items() if calls > MOST_OF_A_COMMIT[work]} == {}


# The most for each dataset in `datasets`: its folder is opened once, step by step, and listed; two names are looked at,
# the last move is read, and the one after it is proved absent.
MOST_OF_A_DATASET = 37.5


def count_datasets(home: Path, datasets: int) -> int:
    who = person(home, str(home / "lake"))
    repository = create(DirectoryStore(home / "lake", create=True))
    for number in range(datasets):
        name, head = DatasetName.parse(f"d{number}"), None
        for action in ("init", "test"):
            entry = RefEntry(None, False, Nonce.random(), 0, WRITER.author, action)
            moved = repository.refs.move(name, MAIN, head, entry)
            assert isinstance(moved, Head)
            head = moved
    return traced(who, "datasets")


def test_datasets_opens_the_folder_of_each_once(tmp_path: Path) -> None:
    needs_strace()
    each = (count_datasets(tmp_path / "many", 320) - count_datasets(tmp_path / "few", 20)) / 300
    print(each)
    assert each <= MOST_OF_A_DATASET
