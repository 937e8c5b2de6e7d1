"""dsv sparse, and what other commands say of a sparse workspace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.dsv import Dsv, assert_documented, write_files


@pytest.fixture
def part(pets: Dsv) -> Dsv:
    """A clone of the folder train."""
    pets.at(pets.cwd.parent).ok("clone", "pets", "part", "--only", "train")
    return pets.at(pets.cwd.parent / "part")


def names(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and ".dsv" not in path.parts
    )


def refused(done: object, code: int, *texts: str) -> None:
    assert done.code == code and all(text in done.err for text in texts), done  # type: ignore[attr-defined]


def test_a_clone_says_what_came(pets: Dsv) -> None:
    there = pets.at(pets.cwd.parent)
    done = there.ok("clone", "pets", "part", "--only", "train/", "--only", "a*.txt")
    assert "sparse: fetched 3 paths under train, a*.txt" in done.out
    document = there.ok("clone", "pets", "other", "--only", "!test", "--json").json
    assert_documented("clone", document)
    assert document["only"] == ["**", "!test"] and document["created"] == 3 and document["files"] == 4
    assert there.ok("clone", "pets", "whole", "--json").json["only"] is None


def test_the_list_and_its_changes(part: Dsv) -> None:
    assert part.ok("sparse", "list").out == "train\n"
    assert "fetched 1 path" in part.ok("sparse", "add", "test/*.png").out
    done = part.ok("sparse", "remove", "train/1.png", "--json")
    assert_documented("sparse", done.json)
    assert done.json["only"] == ["train", "test/*.png", "!train/1.png"] and done.json["removed"] == 1
    assert names(part.cwd) == ["test/1.png", "train/2.png"]
    whole = part.ok("sparse", "add", "**")
    assert "is not sparse: it has everything" in whole.err
    assert part.ok("sparse", "list").out == ""
    part.ok("sparse", "remove", "**")
    assert names(part.cwd) == [] and "has no files of its dataset" in part.ok("sparse", "list").err


@pytest.mark.parametrize(
    ("line", "code", "texts"),
    [
        ("sparse", 2, ["needs list|add|remove"]),
        ("sparse set a", 2, ["dsv sparse has no action set", "one of list, add, remove"]),
        ("sparse list a", 2, ["takes no pattern"]),
        ("sparse add", 2, ["dsv sparse add needs a PATTERN"]),
        ("sparse add !a", 2, ["dsv sparse remove a"]),
        ("sparse add ../a", 2, ["has a part .."]),
        ("sparse add a\\", 2, ["ends with a backslash"]),
        ("sparse add nope/*", 3, ["nothing in commit", "matches nope/*", "dsv ls"]),
        ("sparse remove nope", 3, ["matches nope", "dsv ls"]),
        ("restore test", 4, ["is not in this workspace, which is sparse", "dsv sparse add test"]),
        ("clone pets . --only train", 4, ["is already a workspace of pets"]),
        ("clone pets ../new --keep --force", 2, ["can't be used together"]),
        ("clone pets ../new --only nope", 3, ["matches nope"]),
    ],
)
def test_what_is_refused(part: Dsv, line: str, code: int, texts: list[str]) -> None:
    refused(part(*line.split()), code, *texts)
    assert names(part.cwd) == ["train/1.png", "train/2.png"] and not (part.cwd.parent / "new").exists()


def test_outside_of_a_workspace(dsv: Dsv) -> None:
    refused(dsv("sparse", "list"), 3, "is not inside a dsv workspace")


def test_a_dataset_without_a_commit_has_nothing_to_remove(dsv: Dsv) -> None:
    write_files(dsv.cwd, {"a": b"a"})
    dsv.ok("init", "pets")
    refused(dsv("sparse", "remove", "nope"), 3, "nothing matches nope", "dsv status")
    assert dsv.ok("sparse", "list", "--json").json["only"] == []


def test_local_changes_keep_files_from_going(part: Dsv) -> None:
    write_files(part.cwd, {"train/1.png": b"changed"})
    refused(part("sparse", "remove", "train"), 4, "'train/1.png'", "dsv sync")
    assert names(part.cwd) == ["train/1.png", "train/2.png"]


def test_status_says_what_the_workspace_has(part: Dsv) -> None:
    assert "sparse workspace: train" in part.ok("status").err
    write_files(part.cwd, {"test": b"a file", "a.txt": b"another"})
    done = part.ok("status")
    assert (
        "changed   a.txt" in done.out
        and "'test' is in the way of 'test/1.png', which this sparse workspace leaves out" in done.out
    )
    assert "dsv sync would be refused" in done.err
    document = part.ok("status", "--json").json
    assert_documented("status", {**document, "problems": [], "clashes": []})
    assert document["only"] == ["train"] and document["collisions"] == [
        {"path": "test", "other": "test/1.png"}
    ]
    refused(part("sync"), 4, "'test' is in the way of 'test/1.png'", "dsv sparse add")
    assert "sparse" in part("doctor").out


def test_diff_and_sync_leave_the_rest_alone(part: Dsv) -> None:
    write_files(part.cwd, {"train/3.png": b"3"})
    assert part.ok("diff", "--name-status").out.split() == ["A", "train/3.png"]
    part.ok("sync", "-m", "one more")
    assert part.ok("ls").out.split() == ["a.txt", "test/1.png", "train/1.png", "train/2.png", "train/3.png"]
    assert part.ok("diff", "@main~1", "--name-status").out.split() == ["A", "train/3.png"]


def test_several_patterns_in_one_word_are_refused_with_a_hint(pets: Dsv) -> None:
    there = pets.at(pets.cwd.parent)
    refused(there("clone", "pets", "new", "--only", "train,test"), 3, "each is named by itself")
    assert not (there.cwd / "new").exists()


@pytest.mark.parametrize("first", ["status", "sync"])
def test_a_deleted_file_outside_of_the_patterns_is_reported_once(part: Dsv, first: str) -> None:
    write_files(part.cwd, {"test/mine": b"m", "test/yours": b"y"})
    part.ok("sync")
    (part.cwd / "test/mine").unlink()
    told = part.ok(first).err
    assert "'test/mine' was deleted here, and remains in the dataset" in told and "dsv rm" in told
    assert "was deleted here" not in part.ok("sync").err + part.ok("status").err
    assert "test/mine" in part.ok("ls").out


def test_status_needs_no_store_for_what_is_new_here(part: Dsv) -> None:
    write_files(part.cwd, {"train/3.png": b"3", "test/1.png": b"changed"})
    (part.cwd / "more").mkdir()
    before = part.ok("status").out
    store = part.home / ".local/share/dsv/store"
    store.rename(store.with_name("away"))
    assert part.ok("status").out == before != ""


def test_status_asks_the_store_for_what_is_damaged_here(part: Dsv) -> None:
    write_files(part.cwd, {"train/3.png": b"3", "test/1.png": b"changed"})
    before = part.ok("status").out
    copies = [path for path in part.home.glob(".cache/dsv/.dsv/stores/*/objects/*/*") if path.is_file()]
    copies += [path for path in part.home.glob(".cache/dsv/.dsv/stores/*/objects/*/*/*") if path.is_file()]
    assert {"commit", "node", "segment"} <= {part for path in copies for part in path.parts}
    for path in copies:
        path.chmod(0o644)
        path.write_bytes(b"damaged")
    assert part.ok("status").out == before != ""


def test_a_damaged_copy_of_a_commit_says_nothing_of_the_store(part: Dsv) -> None:
    for path in part.home.glob(".cache/dsv/.dsv/stores/*/objects/commit/**/*"):
        if path.is_file():
            path.chmod(0o644)
            path.write_bytes(b"damaged")
    refused(part("ls", "--offline"), 6, "there is no copy here of commits/")


def test_a_clone_that_was_begun_with_other_patterns(pets: Dsv) -> None:
    there = pets.at(pets.cwd.parent)
    there.ok("clone", "pets", "part", "--only", "train")
    (there.cwd / "part/.dsv/base").unlink()  # as a kill leaves it
    refused(
        there("clone", "pets", "part", "--only", "test"),
        4,
        "an interrupted clone",
        "--only train finishes it",
    )
    there.ok("clone", "pets", "part", "--only", "train")


def test_a_clone_into_a_folder_that_has_files(pets: Dsv) -> None:
    there = pets.at(pets.cwd.parent)
    write_files(there.cwd / "old", {"a.txt": b"alpha\n", "train/1.png": b"other", "mine": b"m"})
    done = there("clone", "pets", "old")
    refused(done, 4, "'mine' is not in the commit", "'train/1.png' differs", "--keep", "--force")
    assert (
        names(there.cwd / "old") == ["a.txt", "mine", "train/1.png"] and not (there.cwd / "old/.dsv").exists()
    )
    there.ok("clone", "pets", "old", "--force")
    assert (there.cwd / "old/train/1.png").read_bytes() == b"1"
    assert json.loads(there.at(there.cwd / "old").ok("status", "--json").out)["items"] == [
        {"path": "mine", "change": "added"}
    ]


def test_a_newer_kind_of_workspace_is_refused(part: Dsv) -> None:
    config = part.cwd / ".dsv/config.toml"
    config.write_text(config.read_text().replace('"sparse"', '"sparse", "magic"'))
    refused(part("status"), 9, "needs a newer dsv: magic")
    config.write_text("needs = [\n")
    assert part("status").code in (2, 5)
