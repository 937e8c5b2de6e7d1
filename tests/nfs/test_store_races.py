"""Workspaces on several hosts race for one branch over a bucket that lets every writer win; the names lie on NFS.

Few rounds by default. RACE_ROUNDS=200 in the environment makes as many as it says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.runner import Dsv, plain_environment
from tests.labs import nfs_hosts
from tests.labs.machine import MissingError
from tests.labs.s3_server import S3Server
from tests.nfs.crew import Answer, Crew, Member, Task, until
from tests.store.proxy import Behaviour, proxy

ROUNDS = int(os.environ.get("RACE_ROUNDS", "20"))
HOSTS, ON_EACH = 3, 2


@dataclass(frozen=True)
class Space:
    """A workspace in a host's memory."""

    host: Member
    folder: str
    file: str

    def start(self, *arguments: str) -> Task:
        return self.host.dsv(*arguments, "-C", self.folder)

    def ok(self, *arguments: str) -> Answer:
        answer = self.start(*arguments).answer()
        assert answer.status == 0, answer
        return answer


@dataclass
class Race:
    """`here` is a person on this machine, who sees the same bucket and the same names."""

    crew: Crew
    spaces: list[Space]
    here: Dsv
    does: Behaviour

    def write(self, text: str) -> None:
        """Each workspace writes its own file, one after the other on each host."""
        tasks = []
        for host in {space.host.number: space.host for space in self.spaces}.values():
            lines = [
                f"printf %s '{text} of {space.file}' > {space.folder}/{space.file}"
                for space in self.spaces
                if space.host is host
            ]
            tasks.append(host.start("sh", "-c", "; ".join(lines)))
        assert [task.answer().status for task in tasks] == [0] * len(tasks)


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
    url = f"s3://{bucket}/dsv"
    crew = Crew(lab, url)
    crew.begin("race")
    (lab.export / "names").mkdir()
    config = '[stores.grid]\nurl = "{}"\nnames = "{}"\n'
    (crew.marks / "config.toml").write_text(f'store = "grid"\n{config.format(url, "/mnt/nfs/names")}')
    hosts = crew.up(*range(HOSTS))
    for host in hosts:
        host.environ = {**served.env, "DSV_CONFIG": f"/mnt/out/{crew.name}/config.toml"}
    first = Space(hosts[0], "/run/w0", "w0.txt")
    assert hosts[0].run("mkdir", first.folder).status == 0
    first.ok("init", "xrays")
    assert hosts[0].run("sh", "-c", f"echo begin > {first.folder}/begin.txt").status == 0
    first.ok("sync")
    spaces = [first]
    for number in range(1, HOSTS * ON_EACH):
        host = hosts[number % HOSTS]
        space = Space(host, f"/run/w{number}", f"w{number}.txt")
        answer = host.dsv("clone", "xrays", space.folder).answer()
        assert answer.status == 0, answer
        spaces.append(space)
    home = lab.folder / "person"
    home.mkdir()
    (home / "config.toml").write_text(f'store = "grid"\n{config.format(url, lab.export / "names")}')
    here = Dsv(
        home, home, {**plain_environment(home), **near.env, "DSV_CONFIG": str(home / "config.toml"),
                     "DSV_CACHE": str(home / "cache")}
    )  # fmt: skip
    return Race(crew, spaces, here, does)


def answers(tasks: list[Task]) -> list[Answer]:
    try:
        return [task.answer(300) for task in tasks]
    except AssertionError as late:
        stuck = next(task for task in tasks if not task.done).member
        waits = "for one in /proc/[0-9]*; do tr '\\0' ' ' < $one/cmdline; cat $one/wchan $one/stack; echo; done; dmesg"
        raise AssertionError(stuck.run("sh", "-c", waits, timeout=30).out[-8000:]) from late


def run_rounds(race: Race, rounds: range, published: dict[str, dict[str, bytes]]) -> None:
    """One wins each round, all others learn that they lost. `published` gets what each commit has."""
    contents = dict(next(reversed(published.values()))) if published else {"begin.txt": b"begin\n"}
    for number in rounds:
        race.write(str(number))
        found = answers([space.start("sync", "--json") for space in race.spaces])
        note(race, number, found, contents, published)


def note(
    race: Race,
    number: int,
    found: list[Answer],
    contents: dict[str, bytes],
    published: dict[str, dict[str, bytes]],
) -> None:
    won = [one for one, answer in enumerate(found) if answer.status == 0]
    assert len(won) == 1, (number, found)
    assert {answer.status for one, answer in enumerate(found) if one not in won} == {4}, (number, found)
    winner = race.spaces[won[0]]
    contents[winner.file] = f"{number} of {winner.file}".encode()
    published[found[won[0]].json["commit"]] = dict(contents)
    losers = [space for space in race.spaces if space is not winner]
    pulled = answers([space.start("pull") for space in losers])
    assert [answer.status for answer in pulled] == [0] * len(pulled), (number, pulled)


def check_all(race: Race, published: dict[str, dict[str, bytes]]) -> None:
    """The branch has these commits in this order, and each of them is restored byte for byte."""
    log = [item["commit"] for item in race.here.ok("log", "xrays", "--json").json["items"]]
    assert log[::-1][1:] == list(published)
    ids = list(published)
    for begin in range(0, len(ids), 50):
        targets = ids[begin : begin + 50]
        items = race.here.ok("cache", "--json", *(f"xrays@{one}" for one in targets)).json["items"]
        for commit, item in zip(targets, items, strict=True):
            assert item["commit"] == commit
            there = {path.name: path.read_bytes() for path in Path(item["path"]).iterdir()}
            assert there == published[commit], commit


def test_one_workspace_of_six_wins_each_round(race: Race) -> None:
    published: dict[str, dict[str, bytes]] = {}
    run_rounds(race, range(ROUNDS), published)
    check_all(race, published)
    assert len(published) == ROUNDS
    print(f"{ROUNDS} rounds, {len(race.does.log):,} requests of the hosts to the bucket")


def test_one_wins_though_the_file_server_goes_off_in_the_middle(race: Race) -> None:
    """Every few rounds it loses its power while all of them sync, and is back before they are told."""
    published: dict[str, dict[str, bytes]] = {}
    outages = 0
    for begin in range(0, ROUNDS, 10):
        run_rounds(race, range(begin, min(begin + 9, ROUNDS)), published)
        number = begin + 9
        if number >= ROUNDS:
            break
        race.write(str(number))
        requests = len(race.does.log)
        tasks = [space.start("sync", "--json") for space in race.spaces]
        until(lambda: any("PUT" in line for line in race.does.log[requests:]), 120, "data is uploaded")  # noqa: B023
        race.crew.lab.power_off_server()
        outages += 1
        race.crew.lab.power_on_server()
        found = answers(tasks)
        unsure = [one for one, answer in enumerate(found) if answer.status == 6]
        for one in unsure:  # a sync whose answer was lost finds out when it is run again
            found[one] = race.spaces[one].start("sync", "--json").answer(600)
        note(race, number, found, dict(next(reversed(published.values()))), published)
    check_all(race, published)
    assert len(published) == ROUNDS
    print(f"{ROUNDS} rounds, {outages} outages, results {json.dumps(len(published))}")
