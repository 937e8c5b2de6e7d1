"""Hosts that stay up and take orders, and one cache on the export that they share."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import dsv
from tests.labs import nfs_hosts
from tests.labs.nfs_hosts import Host, NfsHosts
from tests.waiting import PATIENCE, until

PROJECT = Path(__file__).parents[2]
SEARCHED = {"PYTHONPATH": f"{Path(dsv.__file__).parents[1]}:{PROJECT}", "PYTHONDONTWRITEBYTECODE": "1"}
AGENT = (sys.executable, "-m", "tests.nfs.agent")
DSV = (sys.executable, "-m", "dsv.cli.main")
# Other tests that may run at the same time have the lower numbers.
FIRST_HOST = 4
_orders = itertools.count()


class Times(NamedTuple):
    """Seconds and files that dsv goes by, see `tests.nfs.hurried`; 0 leaves what is built in."""

    lease: float = 0
    expiry: float = 0
    part_files: int = 0
    part_bytes: int = 0


BUILT_IN = Times()


def hurried(times: Times) -> tuple[str, ...]:
    """The program with these times, where a test starts it by other means than `Member.dsv`."""
    return (sys.executable, "-m", "tests.nfs.hurried", *map(str, times))


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def item(self) -> dict[str, Any]:
        """The one item of a command that was asked for one thing."""
        assert self.status == 0, self
        (item,) = self.json["items"]
        assert isinstance(item, dict)
        return item


@dataclass(frozen=True)
class Task:
    """A command under way on a member."""

    member: Member
    name: str

    @property
    def done(self) -> bool:
        return (self.member.box / "answers" / self.name).exists()

    def answer(self, timeout: float = PATIENCE) -> Answer:
        try:
            until(lambda: self.done, f"{self.name} on host {self.member.number}", timeout)
        except AssertionError as error:
            printed = {one.number: one.printed() for one in self.member.crew.values() if one.is_ready}
            raise AssertionError(f"{error}; the commands that still run printed {printed}") from None
        return Answer(**_as_fields(json.loads((self.member.box / "answers" / self.name).read_text())))

    def kill(self) -> None:
        """SIGKILL to it and its children; returns at once, as a process that waits for NFS may not go yet."""
        self.member.order({"kill": [self.name]})


@dataclass
class Member:
    """One host with an agent; `power_off` and `boot` as often as wanted."""

    lab: NfsHosts
    number: int
    hostname: str | None = None
    identity: str | None = None
    host: Host | None = None
    environ: dict[str, str] = field(default_factory=dict)
    crew: dict[int, Member] = field(default_factory=dict)
    """All members, by their numbers in it."""

    @property
    def box(self) -> Path:
        return self.lab.folder / "hosts" / str(self.number)

    def boot(self) -> None:
        """Starts to boot; `ready` waits."""
        for name in ("orders", "answers"):
            shutil.rmtree(self.box / name, ignore_errors=True)
            (self.box / name).mkdir(parents=True)
        self.host = self.lab.boot(
            self.number, AGENT, env=SEARCHED, hostname=self.hostname, identity=self.identity
        )

    @property
    def is_ready(self) -> bool:
        return self.host is not None and (self.box / "answers/ready").exists()

    def ready(self) -> None:
        until(lambda: self.is_ready, f"boot of host {self.number}")

    def power_off(self) -> None:
        if self.host is not None:
            self.host.power_off()
            self.host = None

    def unplug(self) -> None:
        assert self.host is not None
        self.host.unplug()

    def plug_in(self) -> None:
        assert self.host is not None
        self.host.plug_in()

    def order(self, order: Mapping[str, Any]) -> str:
        name = f"{next(_orders):06d}"
        draft = self.box / "orders" / f"{name}.new"
        draft.write_text(json.dumps(order))
        draft.rename(draft.with_suffix(""))
        return name

    def printed(self) -> dict[str, str]:
        """Return the stderr of each command that runs there; of one that hangs, with its stacks."""
        path = self.box / "answers" / self.order({"show": []})
        try:
            until(path.exists, f"an answer of host {self.number}")
        except AssertionError as error:
            assert self.host is not None
            raise AssertionError(f"{error}, which is at:\n{self.host.state()}") from None
        printed: dict[str, str] = json.loads(path.read_text())
        return printed

    def start(self, *argv: str, **environ: str) -> Task:
        return Task(self, self.order({"argv": argv, "env": {**self.environ, **environ}}))

    def run(self, *argv: str, timeout: float = 300, **environ: str) -> Answer:
        return self.start(*argv, **environ).answer(timeout)

    def dsv(self, *arguments: str, times: Times = BUILT_IN, **environ: str) -> Task:
        order = {"dsv": arguments, "times": times, "env": {**self.environ, **environ}}
        return Task(self, self.order(order))


class Crew:
    """Three hosts, or more, that share one cache; `seen` is its folder as the file server's disk has it."""

    def __init__(self, lab: NfsHosts, store: str = "/mnt/out/lake/store") -> None:
        self.lab = lab
        self.store = store
        self.name = ""
        self.members: dict[int, Member] = {}

    def begin(self, name: str) -> None:
        """A cache of its own for the next test."""
        self.name = f"{name}-{os.urandom(2).hex()}"
        (self.lab.export / self.name).mkdir()
        (self.lab.export / self.name).chmod(0o777)
        (self.lab.out / self.name).mkdir()
        (self.lab.out / self.name).chmod(0o777)

    @property
    def seen(self) -> Path:
        return self.lab.export / self.name / "cache"

    @property
    def cache(self) -> str:
        return f"/mnt/nfs/{self.name}/cache"

    @property
    def marks(self) -> Path:
        """Return the folder of the files by which jobs and tests communicate; `/mnt/out/<name>` on a host."""
        return self.lab.out / self.name

    def up(self, *wanted: int, hostname: str | None = None, identity: str | None = None) -> list[Member]:
        """Members number 0, 1, 2, booted unless they run as wanted already."""
        found = []
        for number in wanted:
            member = self.members.get(number)
            if member is not None and (member.hostname, member.identity) != (hostname, identity):
                member.power_off()
                member = None
            if member is None:
                member = Member(self.lab, FIRST_HOST + number, hostname, identity, crew=self.members)
                self.members[number] = member
            if member.host is None:
                member.boot()
            member.environ = {
                "DSV_CACHE": self.cache,
                "DSV_STORE": self.store,
                "DSV_CONFIG": "/nonexistent",
            }
            found.append(member)
        for member in found:
            member.ready()
        return found

    def down(self) -> None:
        for member in self.members.values():
            member.power_off()
        self.members.clear()

    def visible(self) -> list[str]:
        """The commits that a person sees, as `<dataset>/<name>`."""
        return sorted(
            f"{dataset.name}/{one.name}"
            for dataset in self.seen.iterdir()
            if dataset.is_dir() and not dataset.name.startswith(".")
            for one in dataset.iterdir()
            if not one.name.startswith((".", "@"))
        )

    def hosts_at_work(self) -> int:
        """How many processes have claimed parts of fills."""
        return len({os.readlink(claim) for claim in self.seen.glob(".dsv/fill/*/*/*/parts/*.1")})

    def files_being_filled(self) -> int:
        fills = self.seen / ".dsv/fill"
        return sum(len(names) for at, _, names in os.walk(fills) if "/tree" in at) if fills.exists() else 0


def assert_same(found: Path, wanted: Path) -> None:
    """Both trees have the same paths and bytes, and what is cached is read-only."""
    assert listed(found).keys() == listed(wanted).keys()
    for path in listed(wanted):
        assert (found / path).read_bytes() == (wanted / path).read_bytes(), path
        assert stat.S_IMODE((found / path).stat().st_mode) & 0o222 == 0, path


def listed(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Each file's path, with inode, size and time: what changes when somebody writes or replaces it."""
    found = {}
    for here, _, names in os.walk(folder):
        for name in names:
            one = Path(here) / name
            stated = one.lstat()
            found[str(one.relative_to(folder))] = (stated.st_ino, stated.st_size, stated.st_mtime_ns)
    return found


def _as_fields(answer: dict[str, Any]) -> dict[str, Any]:
    return {"status": -1, "out": "", "err": "", "seconds": 0.0, **answer}


@contextmanager
def crew_of_its_own(folder: Path, lake: Path, name: str, **exported: str) -> Iterator[Crew]:
    """Another file server with its own hosts, and the lake's store; `exported`: how it exports (`nfs_hosts.up`)."""
    try:
        lab = nfs_hosts.up(folder, **exported)
        shutil.copytree(lake / "store", lab.out / "lake/store")
        crew = Crew(lab)
        crew.begin(name)
        yield crew
        crew.down()
    finally:
        nfs_hosts.down(folder)
