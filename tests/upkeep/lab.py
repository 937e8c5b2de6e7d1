"""A lab that lives for years in minutes: machines, a store, a shared cache with limits, and cron's lines of the docs.

Its clock is pushed forward. Every clock of dsv reads it: that of this machine, and the times that a file system gives
to the files of the store and the cache.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import sys
import tempfile
import time
from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dsv.api import environment
from dsv.cache import leases
from dsv.cache.root import CacheRoot
from dsv.files import lock
from dsv.files.shared_path import SharedPath
from dsv.stores.directory import DirectoryStore
from dsv.stores.open import OpenStore
from tests.kit.dsv import Dsv

OPERATIONS = Path(__file__).parents[2] / "docs/operations"
BEGIN = datetime(2040, 1, 1, tzinfo=UTC)
DAY = 86_400.0
FILES, SIZE = 40, 4000
"""Files of the dataset, and bytes of each."""
MONTH = 28
"""Days: weeks are whole, so that the weekly lines of cron are as old at the end of each."""
CACHE_SIZE, CACHE_FILES = 260_000, 300
"""The limits of the cache: some commits, which share most of their files."""
ASKED = {
    "log": ("log", "chest-xray", "-n", "20"),
    "resolve": ("resolve", "chest-xray@main"),
    "cat": ("cat", "chest-xray@main:scan-0"),
    "cached": ("cache", "chest-xray@main"),
    "status": ("status",),
}
"""The commands whose requests are counted."""


class Calendar:
    """A clock that only `advance` moves on by more than real time, and what it says of the moments of the real one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._real = time.time
        self._moments = [self._real()]
        self._ahead = [0.0, BEGIN.timestamp() - self._moments[0]]
        now, boot, modified, stat = CacheRoot.now, leases.boot_clock, DirectoryStore.modified, SharedPath.stat
        in_folder, taken = CacheRoot.time_in, lock.server_time
        patch.setattr(time, "time", self)
        patch.setattr(time, "time_ns", lambda: int(self() * 1e9))
        patch.setattr(DirectoryStore, "modified", lambda store, key: self.of(modified(store, key)))
        patch.setattr(CacheRoot, "now", lambda root, folder=None: self.of(now(root, folder)))
        patch.setattr(CacheRoot, "time_in", lambda root, folder: self.of(in_folder(root, folder)))
        patch.setattr(SharedPath, "stat", lambda path: self._dated(stat(path)))
        patch.setattr(leases, "boot_clock", lambda: boot() + self._ahead[-1])
        patch.setattr(lock, "server_time", lambda folder: self.of(taken(folder)))

    def __call__(self) -> float:
        return self._real() + self._ahead[-1]

    def of(self, moment: float) -> float:
        """Return what this clock showed at a moment of the real one."""
        return moment + self._ahead[bisect(self._moments, moment)]

    def advance(self, seconds: float) -> None:
        time.sleep(
            0.01
        )  # file systems date by ticks: what was written before has an earlier time than what follows
        self._moments.append(self._real() - 0.005)
        self._ahead.append(self._ahead[-1] + seconds)

    def _dated(self, found: os.stat_result) -> os.stat_result:
        named = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        for name in ("st_mtime", "st_ctime"):
            named[name] = self.of(named[name])
            named[f"{name}_ns"] = int(named[name] * 1e9)
        return os.stat_result(found[:10], named)


@dataclass(frozen=True)
class Line:
    """A line of a crontab."""

    minute: str
    hour: str
    weekday: str
    command: tuple[str, ...]

    @classmethod
    def all(cls) -> list[Line]:
        """Those of the docs that name this dataset or all of a store or a cache, in the order of their hours."""
        page = (OPERATIONS / "automation.md").read_text()
        found = re.findall(r"^ {4}(\S+) +(\S+) +\* +\* +(\S+) +dsv (.*)$", page, re.MULTILINE)
        lines = [
            cls(minute, hour, weekday, tuple(shlex.split(rest, comments=True)))
            for minute, hour, weekday, rest in found
        ]
        return sorted(
            (one for one in lines if one.command[0] != "copy"), key=lambda one: (one.hour == "*", one.hour)
        )

    def is_due(self, day: datetime) -> bool:
        return self.weekday == "*" or int(self.weekday) == day.isoweekday() % 7


@dataclass(frozen=True)
class Place:
    """What a folder takes."""

    files: int
    bytes: int

    @classmethod
    def of(cls, *folders: Path, besides: str = "") -> Place:
        """As `du` counts: blocks, and a file with several names once. besides: a folder's name that is left out."""
        seen: dict[int, int] = {}
        for folder in folders:
            for above, below, names in os.walk(folder):
                below[:] = [name for name in below if name != besides]
                for name in (above, *(os.path.join(above, name) for name in names)):
                    status = os.lstat(name)
                    seen[status.st_ino] = status.st_blocks * 512
        return cls(len(seen), sum(seen.values()))


@dataclass(frozen=True)
class Month:
    """What a month left, and what the five commands asked the store for at its end."""

    commits: int
    """Ever made."""
    objects: dict[str, int]
    """Of the store, by the first part of their keys."""
    store: Place
    cache: Place
    """Without copies of metadata."""
    workspace: Place
    home: Place
    """Likewise."""
    copies: Place
    """Of metadata, in the homes and the cache."""
    account: int
    """Bytes that `dsv cached` names for all commits."""
    taken: int
    """Bytes that `du` finds in them."""
    requests: dict[str, int]


@dataclass
class Person:
    dsv: Dsv
    work: Path
    """The workspace."""


@dataclass
class Lab:
    """Ann and Ben, each with a machine, and their dataset."""

    top: Path
    calendar: Calendar
    users: int = 2
    edits: int = 1
    """A day."""
    nightly: int = 7
    """Days between two nights in which the lines of every night run, to save time."""
    month: int = MONTH
    day: int = 0
    commits: int = 0
    people: list[Person] = field(default_factory=list)
    months: list[Month] = field(default_factory=list)
    asked: int = 0
    """Requests to the store, of all."""
    chance: random.Random = field(default_factory=lambda: random.Random(37))

    def __post_init__(self) -> None:
        for number in range(self.users):
            home, work = self.top / f"home-{number}", self.top / f"work-{number}"
            dsv = Dsv.of(home, work, DSV_STORE=str(self.top / "store"), DSV_CACHE=str(self.top / "cache"))
            self.people.append(Person(dsv, work))
            dsv.ok("config", "author", f"User {number}")
            dsv.ok("config", "runs.keep_local", "7d")
        first, *others = self.people
        for number in range(FILES):
            (first.work / f"scan-{number}").write_bytes(self.chance.randbytes(SIZE))
        first.dsv.ok("init", "chest-xray")
        first.dsv.ok("sync", "-m", "first")
        for one in others:
            one.work.rmdir()
            one.dsv.at(self.top).ok("clone", "chest-xray", str(one.work))
        first.dsv.ok("cache", "chest-xray@main")
        settings = self.top / "cache/dsv-cache.toml"
        settings.write_text(f'unused_for = "30d"\nmax_size = {CACHE_SIZE}\nmax_files = {CACHE_FILES}\n')
        self.lines = Line.all()

    @property
    def now(self) -> datetime:
        return BEGIN + timedelta(days=self.day)

    def live(self, days: int) -> None:
        for _ in range(days):
            self.day += 1
            self._edit()
            self._use()
            for line in self.lines:
                often = self.day % self.nightly == 0 or line.weekday != "*" or line.command[0] == "evict"
                if often and line.is_due(self.now):
                    done = self.people[self.day % self.users].dsv(*line.command)
                    assert done.code == 0 or (line.command[0] == "evict" and done.code == 7), (line, done)
            self.calendar.advance(DAY)
            if self.day % self.month == 0:
                self._end_month()
                self.months.append(self.measure())

    def _edit(self) -> None:
        """By turns a `put` without a workspace, and a sync of one that was pulled before."""
        for number in range(self.edits):
            person = self.people[(self.day + number) % self.users]
            name, content = f"scan-{self.chance.randrange(FILES)}", self.chance.randbytes(SIZE)
            if (self.day + number) % 2:
                new = self.top / "new"
                new.write_bytes(content)
                person.dsv.at(self.top).ok("put", str(new), f"chest-xray:{name}")
            else:
                person.dsv.ok("pull")
                (person.work / name).unlink(missing_ok=True)
                (person.work / name).write_bytes(content)
                person.dsv.ok("sync", "-m", f"day {self.day}")
            self.commits += 1

    def _use(self) -> None:
        person = self.people[self.day // 2 % self.users].dsv
        if self.day % 2 == 0:
            person.ok("cache", "chest-xray@main", *(("--hold", "1d") if self.day % 7 == 1 else ()))
        if self.day % 7 == 2:
            person.ok(
                "run", "chest-xray@main", "--keep-output", "--", "sh", "-c", 'echo done > "$DSV_OUT/model"'
            )
        if self.day % 7 == 3:
            person.ok("tag", f"week-{self.day}", "chest-xray@main")
            if self.day > 35:
                person.ok("tag", "--delete", f"week-{self.day - 28}", "chest-xray", "--force")

    def _end_month(self) -> None:
        self.people[0].dsv.ok("runs", "--delete", "--older-than", "28d", "--yes")
        for one in self.people:  # local copies are dated by the file system alone
            _age(one.dsv.home / ".cache", self.month * DAY)

    def requests(self, *command: str) -> int:
        """Return how many requests Ann's command makes when it is called again."""
        self.people[0].dsv.ok(*command)
        with pytest.MonkeyPatch.context() as patch:
            add = OpenStore._add

            def count(store: OpenStore, **more: int) -> None:
                self.asked += sum(
                    more.get(name, 0) for name in ("gets", "ranges", "puts", "lists", "deletes")
                )
                add(store, **more)

            patch.setattr(OpenStore, "_add", count)
            before = self.asked
            self.people[0].dsv.ok(*command)
            return self.asked - before

    def measure(self) -> Month:
        self.people[0].dsv.ok("pull")
        asked = {name: self.requests(*command) for name, command in ASKED.items()}
        kinds: dict[str, int] = {}
        for item in DirectoryStore(self.top / "store").list(""):
            kind = "expired" if "/expired/" in item.key else item.key.partition("/")[0]
            kinds[kind] = kinds.get(kind, 0) + 1
        cached = self.people[0].dsv.ok("cached", "--json").json
        cache, homes = self.top / "cache", [one.dsv.home for one in self.people]
        copies = Place.of(*(home / ".cache/dsv/.dsv/stores" for home in homes), cache / ".dsv/stores")
        return Month(
            self.commits,
            kinds,
            Place.of(self.top / "store"),
            Place.of(cache, besides="stores"),
            Place.of(*(one.work / ".dsv" for one in self.people)),
            Place.of(*homes, besides="stores"),
            copies,
            sum(item["own_bytes"] for item in cached["items"]),
            Place.of(*(Path(item["path"]) for item in cached["items"])).bytes,
            asked,
        )


def _age(folder: Path, seconds: float) -> None:
    for above, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(above, name)
            status = os.lstat(path)
            os.utime(path, (status.st_atime - seconds, status.st_mtime - seconds), follow_symlinks=False)


@contextmanager
def lab(top: Path, **options: Any) -> Iterator[Lab]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "SYSTEM_CONFIG", top / "none.toml")
        yield Lab(top, Calendar(patch), **options)


def main(years: float) -> None:
    """Live so many years with 20 users, and print what each month left."""
    with (
        tempfile.TemporaryDirectory(prefix="dsv-years-") as top,
        lab(Path(top), users=20, edits=3, nightly=7) as one,
    ):
        while one.day < 365 * years:
            one.live(MONTH)
            print(one.day, one.months[-1], flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
