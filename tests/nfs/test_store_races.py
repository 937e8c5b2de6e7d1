"""Workspaces on several hosts race for one branch over a bucket that lets every writer win; the names lie on NFS.

They race to make the store, too. Every few rounds the file server loses its
power. A few rounds by default; RACE_ROUNDS=200 in the environment makes as many as it says, and RACE_OUTAGE_EVERY=0
leaves the file server alone.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.kit.dsv import Dsv, plain_environment
from tests.labs import nfs_hosts
from tests.labs.machine import MissingError
from tests.labs.s3_server import S3Server
from tests.nfs.crew import SEARCHED, Answer, Crew, Member, Task
from tests.nfs.racer import Racer, content, meeting
from tests.stores.proxy import Behaviour, proxy
from tests.waiting import until

ROUNDS = int(os.environ.get("RACE_ROUNDS", "6"))
OUTAGE_EVERY = int(os.environ.get("RACE_OUTAGE_EVERY", "3"))  # rounds
HOSTS, ON_EACH = 3, 2
PATIENCE = 600.0  # seconds for a round
CONFIG = """
store = "grid"
[stores.grid]
url = "{}"
names = "{}"
"""
_STACKS = """
for one in /proc/[0-9]*; do
    case "$(tr '\\0' ' ' < $one/cmdline)" in *tests.nfs.race[r]*) kill -USR1 ${one#/proc/};; esac
done
sleep 1
for one in /proc/[0-9]*; do
    echo $one; cat $one/comm $one/stack
done
cat /proc/fs/nfsfs/servers /proc/self/mountstats /proc/net/rpc/nfs; dmesg | tail -50
"""


@dataclass
class Race:
    """near: the bucket's server as this machine has it. names: where the names are, below the export."""

    crew: Crew
    hosts: list[Member]
    near: S3Server
    does: Behaviour
    names: str = "names"

    def here(self) -> Dsv:
        """A person on this machine, who sees the same bucket and the same names."""
        home = self.crew.lab.folder / "person"
        home.mkdir(exist_ok=True)
        config = home / "config.toml"
        config.write_text(CONFIG.format(self.crew.store, self.crew.lab.export / self.names))
        environ = {"DSV_CONFIG": str(config), "DSV_CACHE": str(home / "cache")}
        return Dsv(home, home, {**plain_environment(home), **self.near.env, **environ})

    @property
    def racers(self) -> int:
        return HOSTS * ON_EACH

    def run(self, during: Callable[[int], None] = lambda number: None) -> dict[str, dict[str, bytes]]:
        """All rounds, each with one winner; gives the files of each commit that was published, the first one first.

        during: is called in each round when all are about to sync.
        """
        tasks = []
        for number in range(ROUNDS + 1):
            meeting(self.crew.marks, number).mkdir(parents=True)
        for me in range(self.racers):
            racer = Racer(me, self.racers, f"/run/w{me}", f"/mnt/out/{self.crew.name}", 0, ROUNDS)
            tasks.append(self.hosts[me % HOSTS].start(*racer.arguments(), **SEARCHED))
        for number in range(ROUNDS):
            self._wait(tasks, lambda: len(self.there(number)) == self.racers, f"round {number}")  # noqa: B023
            during(number)
        self._wait(tasks, lambda: all(task.done for task in tasks), "the end")
        answers = [task.answer() for task in tasks]
        assert [answer.status for answer in answers] == [0] * len(answers), (answers, self._told())
        return self._published()

    def there(self, number: int) -> list[Path]:
        """Of each workspace that has done what is before this round a file."""
        return [*meeting(self.crew.marks, number).iterdir()]

    def _wait(self, tasks: list[Task], condition: Callable[[], bool], what: str) -> None:
        def over() -> bool:
            return condition() or any(task.done and task.answer().status for task in tasks)

        try:
            until(over, what, PATIENCE)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self._stacks()}") from late
        failed = [answer for task in tasks if task.done and (answer := task.answer()).status]
        assert not failed, (failed, [lines[-1:] for lines in self._told()])

    def _stacks(self) -> str:
        """Return the stacks that show what every host waits for."""
        seen = [host.run("sh", "-c", _STACKS, timeout=60).out for host in self.hosts]
        stacks = [path.read_text() for path in sorted(self.crew.marks.glob("stacks-*"))]
        text = "\n".join([*stacks, *seen, (self.crew.lab.folder / "server.log").read_text(errors="replace")])
        (self.crew.marks / "stuck").write_text(text)
        return text[-20_000:]

    def _told(self) -> list[list[dict[str, Any]]]:
        files = [self.crew.marks / f"told-{me}" for me in range(self.racers)]
        return [
            [json.loads(line) for line in file.read_text().splitlines()] for file in files if file.exists()
        ]

    def _published(self) -> dict[str, dict[str, bytes]]:
        told, contents = self._told(), {"begin.txt": b"begin\n"}
        published: dict[str, dict[str, bytes]] = {}
        for number, found in enumerate(zip(*told, strict=True)):
            won = [me for me, line in enumerate(found) if line["status"] == 0]
            assert len(won) == 1, (number, found)
            assert sorted(line["status"] for line in found) == [0] + [4] * (self.racers - 1), (number, found)
            contents[f"w{won[0]}.txt"] = content(number, f"w{won[0]}.txt")
            published[found[won[0]]["commit"]] = dict(contents)
        winners = [
            me for lines in zip(*told, strict=True) for me, line in enumerate(lines) if not line["status"]
        ]
        syncs, pulls = (
            [line[what] for lines in told for line in lines if what in line] for what in ("sync", "pull")
        )
        print(
            f"{len(published)} rounds, won by {[winners.count(me) for me in range(self.racers)]}; "
            f"sync {median(syncs):.2f} s (at most {max(syncs):.1f}), pull {median(pulls):.2f} s "
            f"(at most {max(pulls):.1f}); {sum(line['unsure'] for lines in told for line in lines)} answers lost; "
            f"{len(self.does.log):,} requests to the bucket"
        )
        assert len(published) == ROUNDS
        return published


@pytest.fixture
def race(ceph_s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Race]:
    folder = tmp_path_factory.mktemp("race")
    bucket = ceph_s3.bucket()
    try:
        lab = nfs_hosts.up(folder)
        with proxy(ceph_s3, lab.listen()) as (served, does), proxy(ceph_s3) as (near, near_does):
            does.ignores_condition = near_does.ignores_condition = True
            yield _race(lab, bucket, served, near, does)
    except MissingError as reason:
        if os.environ.get("DSV_REQUIRE_LABS") == "1":
            pytest.fail(str(reason))
        pytest.skip(str(reason))
    finally:
        nfs_hosts.down(folder)
        ceph_s3.remove_bucket(bucket)


def _race(lab: nfs_hosts.NfsHosts, bucket: str, served: S3Server, near: S3Server, does: Behaviour) -> Race:
    """The workspaces, made of the race for the store: one has made it, all others have learnt that, and clone."""
    crew = Crew(lab, f"s3://{bucket}/dsv")
    crew.begin("race")
    (crew.marks / "config.toml").write_text(CONFIG.format(crew.store, "/mnt/nfs/names"))
    hosts = crew.up(*range(HOSTS))
    for host in hosts:
        # An author, or each command would fork to ask git for one.
        host.environ = {**served.env, "DSV_CONFIG": f"/mnt/out/{crew.name}/config.toml", "DSV_AUTHOR": "ann"}
        ok(host.start("mkdir", *(f"/run/w{me}" for me in range(HOSTS * ON_EACH))))
    race = Race(crew, hosts, near, does)
    made = [hosts[me % HOSTS].dsv("init", "xrays", "-C", f"/run/w{me}") for me in range(race.racers)]
    answers = [task.answer() for task in made]
    assert sorted(answer.status for answer in answers) == [0] + [4] * (race.racers - 1), answers
    lost = [me for me, answer in enumerate(answers) if answer.status]
    assert all("dataset xrays already exists" in answers[me].err for me in lost), answers
    assert len([*(lab.export / "names/format").iterdir()]) == 1
    (first,) = set(range(race.racers)) - set(lost)
    ok(hosts[first % HOSTS].start("sh", "-c", f"echo begin > /run/w{first}/begin.txt"))
    ok(hosts[first % HOSTS].dsv("sync", "-C", f"/run/w{first}"))
    for clone in [hosts[me % HOSTS].dsv("clone", "xrays", f"/run/w{me}") for me in lost]:
        ok(clone)
    return race


def ok(task: Task) -> Answer:
    answer = task.answer()
    assert answer.status == 0, answer
    return answer


def check_all(race: Race, published: dict[str, dict[str, bytes]]) -> None:
    """The branch has these commits in this order, and each of them is restored byte for byte."""
    here = race.here()
    log = [item["commit"] for item in here.ok("log", "xrays", "--json").json["items"]]
    assert log[::-1][1:] == list(published)
    ids = list(published)
    for begin in range(0, len(ids), 50):
        targets = ids[begin : begin + 50]
        items = here.ok("cache", "--json", *(f"xrays@{one}" for one in targets)).json["items"]
        for commit, item in zip(targets, items, strict=True):
            assert item["commit"] == commit
            there = {path.name: path.read_bytes() for path in Path(item["path"]).iterdir()}
            assert there == published[commit], commit


@pytest.mark.timeout(0 if ROUNDS > 20 else 1200)
def test_one_workspace_of_six_wins_each_round(race: Race) -> None:
    """The names' server goes off while they sync, at another moment each time, and comes back."""
    chance, outages = random.Random(1), []

    def strike(number: int) -> None:
        if not OUTAGE_EVERY or number % OUTAGE_EVERY != OUTAGE_EVERY // 2:
            return
        before, later = len(race.does.log), chance.randrange(60)
        until(lambda: len(race.does.log) > before + later or race.there(number + 1), "requests")
        race.crew.lab.power_off_server()
        race.crew.lab.power_on_server()
        outages.append(later)

    published = race.run(strike)
    check_all(race, published)
    print(f"{len(outages)} outages, after so many requests of their rounds: {outages}")
