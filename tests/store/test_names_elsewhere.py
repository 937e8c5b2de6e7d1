"""A store in two places: the names in a folder, the data in a bucket of a server that can't tell who wins."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dsv
from dsv.api import environment
from dsv.model.commit import Commit
from dsv.model.ids import CommitId, NodeId
from dsv.model.names import MAIN, BranchName, DatasetName
from dsv.repo.lost_names import find_heads
from tests.cli.runner import Dsv, Result, plain_environment, write_files
from tests.labs.s3_server import S3Server
from tests.store.proxy import Behaviour, proxy

FILES = {f"train/{number}.txt": f"{number}\n".encode() * 50 for number in range(30)}


@dataclass(frozen=True)
class World:
    """`names` is a folder, `server` the proxied bucket's, `does` what that server does."""

    root: Path
    server: S3Server
    bucket: str
    does: Behaviour

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/dsv"

    @property
    def names(self) -> Path:
        return self.root / "names"

    def person(self, name: str, *, configured: bool = True) -> Dsv:
        """With a home and a folder of their own."""
        home, work = self.root / name / "home", self.root / name / "work"
        for folder in (home, work):
            folder.mkdir(parents=True)
        dsv = Dsv(
            home, work, {**plain_environment(home), **self.server.env, "DSV_CACHE": str(self.root / "cache")}
        )
        dsv.ok("config", "stores.grid.url", self.url)
        dsv.ok("config", "store", "grid")
        if configured:
            dsv.ok("config", "stores.grid.names", str(self.names))
        return dsv

    def stored(self) -> list[str]:
        """Keys in the bucket, as the server itself lists them."""
        found = (
            self.server.client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix="dsv/")
        )
        return [row["Key"].removeprefix("dsv/") for page in found for row in page.get("Contents", [])]


@pytest.fixture
def world(ceph_s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(environment, "SYSTEM_CONFIG", tmp_path / "etc/config.toml")
    bucket = ceph_s3.bucket()
    with proxy(ceph_s3) as (server, does):
        yield World(tmp_path, server, bucket, does)
    ceph_s3.remove_bucket(bucket)


@pytest.fixture(params=["ignores", "501", "honours"])
def kept(request: pytest.FixtureRequest, world: World) -> World:
    """The same with a server of each kind."""
    world.does.ignores_condition = request.param == "ignores"
    world.does.condition_answer = 501 if request.param == "501" else None
    return world


def synced(dsv: Dsv, files: dict[str, bytes], *arguments: str) -> str:
    """The commit that a sync of these files makes."""
    write_files(dsv.cwd, files)
    return str(json.loads(dsv.ok("sync", "--json", *arguments).out)["commit"])


def test_a_team_works_over_a_bucket_without_conditions(kept: World) -> None:
    ann, ben = kept.person("ann"), kept.person("ben")
    ann.ok("init", "xrays")
    first = synced(ann, FILES, "-m", "first")
    ann.ok("tag", "v1")
    ben.ok("clone", "xrays", "copy")
    there = ben.at(ben.cwd / "copy")
    assert there.ok("log", "--oneline").lines[0].startswith(first[:12])
    second = synced(there, {"more.txt": b"more"})
    assert ann("sync").code == 4  # ben has moved the branch
    write_files(ann.cwd, {"mine.txt": b"mine"})
    assert ann("sync").code == 4  # ben was first
    ann.ok("pull")
    third = synced(ann, {})
    assert len({first, second, third}) == 3
    assert ben.ok("cat", "xrays:mine.txt").out == "mine"
    assert ben.ok("cache", "xrays@v1").code == 0
    wanted = {"format", "packs", "index", "commits", "locators", "README.txt"}
    assert {key.partition("/")[0] for key in kept.stored()} <= wanted
    assert {path.name for path in kept.names.iterdir() if not path.name.startswith(".")} == {
        "README.txt", "format", "refs", "sessions",
    }  # fmt: skip


def test_writers_race_for_one_branch(world: World, tmp_path: Path) -> None:
    """One wins each round, the others know that they lost, and every commit that was published can be read."""
    world.does.ignores_condition = True
    people = [world.person(f"p{number}") for number in range(4)]
    people[0].ok("init", "xrays")
    synced(people[0], {"a.txt": b"a"})
    spaces = [people[0]]
    for person in people[1:]:
        person.ok("clone", "xrays", "copy")
        spaces.append(person.at(person.cwd / "copy"))
    published: dict[str, bytes] = {}
    for number in range(5):
        start = threading.Barrier(len(spaces))
        results = []
        for one, space in enumerate(spaces):
            write_files(space.cwd, {"a.txt": f"{number} of {one}".encode()})
        with ThreadPoolExecutor(len(spaces)) as pool:
            results = list(pool.map(_process, spaces, [start] * len(spaces)))
        won = [one for one, result in enumerate(results) if result.code == 0]
        assert len(won) == 1, results
        assert {result.code for one, result in enumerate(results) if one not in won} == {4}, results
        published[json.loads(results[won[0]].out)["commit"]] = f"{number} of {won[0]}".encode()
        for space in spaces:
            if space is not spaces[won[0]]:
                space.ok("restore", "--force")
                space.ok("pull")
    for commit, content in published.items():
        assert spaces[0].ok("cat", f"xrays@{commit}:a.txt").out.encode() == content


def _process(space: Dsv, start: threading.Barrier) -> Result:
    start.wait()
    return space.process("sync", "--json")


def test_who_was_not_told_of_the_names_is_refused_and_writes_nothing(kept: World) -> None:
    ann = kept.person("ann")
    ann.ok("init", "xrays")
    synced(ann, FILES)
    before = kept.stored()
    eve = kept.person("eve", configured=False)
    for arguments in (
        ["datasets"],
        ["init", "other"],
        ["clone", "xrays"],
        ["cache", "xrays"],
        ["log", "xrays"],
    ):
        result = eve(*arguments)
        assert (result.code, result.out) == (3, ""), result
        assert "names are elsewhere" in result.err
        assert "stores.NAME.names" in result.err
    assert kept.stored() == before
    # Nor is the place of the names taken for a store.
    result = eve("datasets", "--store", str(kept.names))
    assert result.code == 3
    assert "data is elsewhere" in result.err


def test_a_wrong_place_for_the_names_is_refused(world: World) -> None:
    world.does.ignores_condition = True
    ann = world.person("ann")
    ann.ok("init", "xrays")
    synced(ann, FILES)
    before = world.stored()
    wrong = {"empty": 3, "whole": 4, "others": 4}
    for name in wrong:
        (world.root / name).mkdir()
    ann.at(world.root / "ann").ok("init", "aa", "--store", str(world.root / "whole"))
    other = world.person("otto")
    other.ok("config", "stores.grid.url", f"s3://{world.bucket}/other")
    other.ok("config", "stores.grid.names", str(world.root / "others"))
    other.ok("init", "xrays")
    for name, code in wrong.items():
        eve = world.person(f"eve-{name}")
        eve.ok("config", "stores.grid.names", str(world.root / name))
        for arguments in (["datasets"], ["init", "new"]):
            result = eve(*arguments)
            assert (result.code, result.out) == (code, ""), (name, result)
    assert [key for key in world.stored() if not key.startswith("other")] == before
    assert not [*(world.root / "empty").rglob("*")]


def test_a_whole_store_is_not_given_names_elsewhere(world: World) -> None:
    ann = world.person("ann", configured=False)
    ann.ok("init", "xrays")
    eve = world.person("eve")
    (world.names).mkdir()
    result = eve("datasets")
    assert result.code == 4
    assert "keeps its names itself" in result.err


def test_a_commit_by_its_id_needs_the_bucket_alone(world: World) -> None:
    world.does.condition_answer = 501
    ann = world.person("ann")
    ann.ok("init", "xrays")
    commit = synced(ann, FILES)
    world.names.rename(world.root / "away")
    ben = world.person("ben")
    assert ben.ok("cat", f"xrays@{commit}:train/1.txt").out.encode() == FILES["train/1.txt"]
    path = ben.ok("cache", f"xrays@{commit}").out.strip()
    assert (Path(path) / "train/2.txt").read_bytes() == FILES["train/2.txt"]
    for arguments in (
        ["log", "xrays"],
        ["datasets"],
        ["tag", "--list", "xrays"],
        ["branch", "--list", "xrays"],
    ):
        result = ben(*arguments)
        assert (result.code, result.out) == (6, ""), result
        assert f"the names of {world.url} can't be reached" in result.err
        assert "named by its full id needs no names" in result.err
    assert ann("sync", "--rehash").code == 6


def test_a_program_names_both_places(world: World) -> None:
    world.does.ignores_condition = True
    ann = world.person("ann")
    ann.ok("init", "xrays")
    commit = synced(ann, FILES)
    environ = {**ann.environ, "DSV_CONFIG": "/nonexistent"}
    context = dsv.connect(environ, world.root, store=world.url, names=str(world.names))
    with context.repository() as repository:
        assert str(repository.refs.head(DatasetName("xrays"), MAIN).commit) == commit


@pytest.mark.parametrize(
    ("lie", "one_place", "two_places"),
    [
        ({"ignores_condition": True}, {5}, {0}),
        ({"condition_answer": 501}, {9}, {9}),
        ({"hidden_from_listings": 2}, {0}, {0}),
        ({"slow_down": 6, "cut_body": 5}, {0}, {0}),
    ],
    ids=["ignores", "501", "lists late", "busy"],
)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["one place", "two places"])
def test_a_server_that_changes_its_mind_after_init_and_back_loses_nothing(
    world: World, elsewhere: bool, lie: dict[str, Any], one_place: set[int], two_places: set[int]
) -> None:
    ann = world.person("ann", configured=elsewhere)
    ann.ok("init", "xrays")
    first = synced(ann, FILES)
    honest = {name: getattr(world.does, name) for name in lie}
    for name, value in lie.items():
        setattr(world.does, name, value)
    write_files(ann.cwd, {"new.txt": b"new"})
    result = ann("sync")
    assert result.code in (two_places if elsewhere else one_place), result
    if result.code == 9:
        assert "--names" in result.err and "--single-writer" in result.err
    for name, value in honest.items():
        setattr(world.does, name, value)
    second = synced(ann, {})
    assert second != first
    ben = world.person("ben", configured=elsewhere)
    assert ben.ok("cat", "xrays:new.txt").out == "new"
    for name, content in FILES.items():
        assert ben.ok("cat", f"xrays@{first}:{name}").out.encode() == content
        break
    assert [item["commit"] for item in ben.ok("log", "xrays", "--json").json["items"]] == [second, first]


def test_names_move_between_a_folder_and_the_bucket_while_people_sync(world: World) -> None:
    """Nobody changes a setting: each sync finds where the names are."""
    people = [world.person(f"p{number}", configured=False) for number in range(2)]
    people[0].ok("init", "xrays")
    synced(people[0], FILES)
    people[1].ok("clone", "xrays", "copy")
    spaces = [people[0], people[1].at(people[1].cwd / "copy")]
    mover = world.person("mover", configured=False)
    done = threading.Event()
    published: list[list[str]] = [[], []]

    def work(one: int) -> None:
        number = 0
        while not done.is_set() or number < 3:
            number += 1
            write_files(spaces[one].cwd, {f"{one}.txt": f"{one} {number}".encode()})
            result = spaces[one].process("sync", "--json")
            while result.code == 4:
                assert spaces[one].process("pull").code == 0
                result = spaces[one].process("sync", "--json")
            assert result.code == 0, result
            published[one].append(json.loads(result.out)["commit"])

    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(work, one) for one in range(2)]
        try:
            for place in (world.root / "n1", world.root / "n2", world.url):
                moved = mover.process("store", "move-names", str(place))
                assert moved.code == 0, moved
        finally:
            done.set()
        for one in working:
            one.result()
    log = [item["commit"] for item in mover.ok("log", "xrays", "--json").json["items"]]
    assert {*published[0], *published[1]} <= {*log}
    for one, commits in enumerate(published):
        assert sorted(commits, key=log.index) == commits[::-1]
        for number, commit in enumerate(commits, 1):
            assert mover.ok("cat", f"xrays@{commit}:{one}.txt").out == f"{one} {number}"


def test_who_names_the_old_place_is_led_to_the_new_one(world: World) -> None:
    world.does.ignores_condition = True
    ann, ben = world.person("ann"), world.person("ben")
    ann.ok("init", "xrays")
    synced(ann, FILES)
    new = world.root / "new names"
    moved = ann.ok("store", "move-names", str(new), "--json").json
    assert (moved["before"], moved["names"], moved["value"]) == (str(world.names), str(new), str(new))
    assert moved["setting"] == "stores.grid.names"
    told = ben.ok("clone", "xrays", "copy")
    assert f"have moved from {world.names} to {new}" in told.err
    assert f"dsv config stores.grid.names '{new}'" in told.err
    synced(ben.at(ben.cwd / "copy"), {"b.txt": b"b"})
    ben.ok("config", "stores.grid.names", str(new))
    assert "moved" not in ben.ok("datasets").err
    assert ann("store", "move-names", str(world.names)).code == 4  # a place has names once in its life
    shutil.rmtree(world.names)  # the bucket knows too
    assert ann.ok("cat", "xrays:b.txt").out == "b"
    refused = ann("store", "move-names", world.url)
    assert refused.code == 9, refused  # one writer does not win there
    assert ann.ok("cat", "xrays:b.txt").out == "b"
    new.rename(world.root / "away")
    result = ann("datasets")
    assert (result.code, result.out) == (6, ""), result
    assert f"has moved them to {new}" in result.err and "stores.NAME.names PLACE" in result.err


def test_lost_names_are_made_anew_from_the_commits(world: World) -> None:
    world.does.ignores_condition = True
    ann = world.person("ann")
    ann.ok("init", "xrays")
    synced(ann, FILES, "-m", "first")
    main = synced(ann, {"b.txt": b"b"}, "-m", "second")
    side = synced(ann, {"c.txt": b"c"}, "--new-branch", "relabel", "-m", "third")
    shutil.rmtree(world.names)
    new = world.root / "new"
    ben = world.person("ben")
    ben.ok("config", "stores.grid.names", str(new))
    planned = ben.ok("store", "rebuild-names", "--dry-run", "--json").json["items"]
    assert not new.exists()
    assert {item["head_of"]: item["commit"] for item in planned if item["head_of"]} == {
        "main": main,
        "relabel": side,
    }
    assert [item["message"] for item in planned] == ["third", "second", "first"]
    ben.ok("store", "rebuild-names")
    assert ben.ok("resolve", "xrays").out.strip() == main
    assert ben.ok("resolve", "xrays@relabel").out.strip() == side
    again = ben("store", "rebuild-names")
    assert again.code == 4
    ben.ok("clone", "xrays", "copy")
    synced(ben.at(ben.cwd / "copy"), {"d.txt": b"d"})  # and it goes on


def test_an_interrupted_rebuild_goes_on(world: World) -> None:
    ann = world.person("ann")
    ann.ok("init", "xrays")
    commit = synced(ann, FILES)
    shutil.rmtree(world.names)
    ann.ok("store", "rebuild-names")
    (world.names / "format" / "0000000000000000").unlink()  # killed before the last write
    assert ann("datasets").code == 3
    ann.ok("store", "rebuild-names")
    assert ann.ok("resolve", "xrays").out.strip() == commit


def test_init_says_what_to_do_about_such_a_bucket(kept: World) -> None:
    ann = kept.person("ann", configured=False)
    result = ann("init", "xrays")
    if not kept.does.ignores_condition and kept.does.condition_answer is None:
        assert result.code == 0
        return
    assert result.code == 9, result
    assert "--names" in result.err
    assert "--single-writer" in result.err
    assert kept.stored() == []
    ann.ok("init", "xrays", "--single-writer")
    commit = synced(ann, FILES)
    assert synced(ann, {"e.txt": b"e"}) != commit
    assert ann.ok("cat", "xrays:e.txt").out == "e"
    assert "can't tell two writers apart" in ann.ok("sync").err


def test_absent_keys_that_are_answered_with_an_error_are_not_absent(world: World) -> None:
    ann = world.person("ann")
    ann.ok("init", "xrays")
    synced(ann, FILES)
    world.does.nodes_down = True
    missing = "ab" * 32
    result = ann("resolve", f"xrays@{missing}")
    assert result.code == 6, result
    assert "500" in result.err
    world.does.nodes_down = False
    assert ann("resolve", f"xrays@{missing}").code == 3


def test_syncs_go_on_while_the_server_is_busy_and_cuts_bodies(kept: World) -> None:
    ann = kept.person("ann")
    ann.ok("init", "xrays")
    kept.does.slow_down, kept.does.cut_body = 7, 5
    commit = synced(ann, FILES)
    assert ann.ok("cat", f"xrays@{commit}:train/3.txt").out.encode() == FILES["train/3.txt"]


def test_listings_that_are_late_are_found_out_at_init(world: World) -> None:
    world.does.hidden_from_listings = 1000
    ann = world.person("ann")
    result = ann("init", "xrays")
    assert result.code == 9, result
    assert "listing" in result.err


def test_the_store_check_finds_a_server_that_changed_its_mind(world: World) -> None:
    ann = world.person("ann", configured=False)
    ann.ok("init", "xrays")
    synced(ann, FILES)
    assert ann("store", "check").code == 0
    world.does.two_winners = 0.5
    checked = ann("store", "check", "--json")
    assert checked.code == 1
    assert [item["check"] for item in checked.json["items"] if item["state"] == "fail"] == ["write"]
    world.does.two_winners = 0.0
    world.does.ignores_condition = True
    write_files(ann.cwd, {"n.txt": b"n"})
    assert ann("sync").code == 5  # before any branch is moved


def commit(number: int, parents: tuple[CommitId, ...], branch: str, time: int) -> tuple[CommitId, Commit]:
    made = Commit(
        NodeId(bytes([number] * 32)),
        1,
        parents,
        "ann",
        time,
        str(number),
        1,
        1,
        1,
        DatasetName("d"),
        BranchName(branch),
    )
    return made.id, made


def test_heads_of_lost_names() -> None:
    first = commit(1, (), "main", 10)
    second = commit(2, (first[0],), "main", 20)
    lost_race = commit(3, (first[0],), "main", 15)
    other = commit(4, (second[0],), "side", 5)
    found = find_heads([other, lost_race, second, first])
    heads = {one.id: one.head_of for one in found}
    assert heads == {
        second[0]: "main", lost_race[0]: f"main-{str(lost_race[0])[:12]}", other[0]: "side", first[0]: None,
    }  # fmt: skip
    assert [one.commit.time_ms for one in found] == [20, 15, 10, 5]
