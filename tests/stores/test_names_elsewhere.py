"""A store in two places: the names in a folder, the data in a bucket of a server that can't decide who wins."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dsv.api.store import find_heads
from dsv.format import keys
from dsv.format.records import CommitRecord
from dsv.values.ids import CommitId, NodeId
from dsv.values.names import BranchName, DatasetName
from tests.kit.dsv import Dsv, Result, write_files
from tests.stores.split_world import FILES, World, synced


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


def test_people_race_to_make_a_store(world: World) -> None:
    """Four for one dataset, where one wins and the others get an error, and two for datasets of their own."""
    world.does.ignores_condition = True
    names = ["xrays"] * 4 + ["scans", "slides"]
    people = [world.person(f"p{number}") for number in range(len(names))]
    start = threading.Barrier(len(people))

    def init(person: Dsv, name: str) -> Result:
        start.wait()
        return person.process("init", name)

    with ThreadPoolExecutor(len(people)) as pool:
        results = list(pool.map(init, people, names))
    assert sorted(result.code for result in results[:4]) == [0, 4, 4, 4], results
    assert [result.code for result in results[4:]] == [0, 0], results
    for name, person, result in zip(names, people, results, strict=True):
        if result.code == 0:
            synced(person, {"a.txt": name.encode()})
        else:
            assert "dataset xrays already exists" in result.err and "dsv clone xrays" in result.err
            assert person("sync").code == 3  # its folder is no workspace
    for person in people:
        assert [person.ok("cat", f"{name}:a.txt").out for name in sorted({*names})] == sorted({*names})
    assert [key for key in world.stored() if key.startswith("format/")] == [keys.format_key(0)]
    assert [f"format/{path.name}" for path in (world.names / "format").iterdir()] == [keys.format_key(0)]


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


def test_a_person_without_the_setting_of_the_names_is_refused_and_writes_nothing(kept: World) -> None:
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


def test_it_is_shown_where_the_names_are(world: World) -> None:
    ann = world.person("ann")
    ann.ok("init", "xrays")
    user = str(ann.home / ".config/dsv/config.toml")
    new = world.root / "new"
    for now in (world.names, new):
        if now == new:
            ann.ok("store", "move-names", str(new))
        for arguments in (["doctor"], ["store", "check"]):
            items = ann(*arguments, "--json").json["items"]
            found = {item["check"]: item["text"] for item in items}
            assert found["names are in"] == f"{now}; the rest of the store is in {world.url}"
            if arguments == ["doctor"]:
                assert found["names"] == f"{world.names}, from {user}"


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
    synced(ben.at(ben.cwd / "copy"), {"d.txt": b"d"})  # and syncs continue


def test_an_interrupted_rebuild_is_continued(world: World) -> None:
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


def test_syncs_succeed_while_the_server_is_busy_and_cuts_bodies(kept: World) -> None:
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


def commit(
    number: int, parents: tuple[CommitId, ...], branch: str, time: int
) -> tuple[CommitId, CommitRecord]:
    made = CommitRecord(
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


def test_heads_of_names_that_are_lost_again() -> None:
    """Somebody has gone on with a line that had its branch from the first time."""
    first = commit(1, (), "main", 10)
    second = commit(2, (first[0],), "main", 20)
    lost_race = commit(3, (first[0],), "main", 15)
    line = f"main-{str(lost_race[0])[:12]}"
    later = commit(4, (lost_race[0],), line, 30)
    heads = {one.id: one.head_of for one in find_heads([first, second, lost_race, later])}
    assert heads == {second[0]: "main", later[0]: line, first[0]: None, lost_race[0]: None}


@pytest.mark.parametrize("branch", ["b" * 200, "b/" * 49 + "b" * 4, "b" * 185 + "/" + "b" * 8])
def test_a_further_line_of_a_branch_with_a_long_name(branch: str) -> None:
    newest, lost_race = commit(1, (), branch, 20), commit(2, (), branch, 10)
    heads = {one.id: one.head_of for one in find_heads([newest, lost_race])}
    assert heads[newest[0]] == branch
    further = heads[lost_race[0]]
    assert further is not None and len(further.component) <= 200
    assert further.endswith(f"-{str(lost_race[0])[:12]}") and further[:20] == branch[:20]
