"""Commits and refs that name what is not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from dsv import reader
from dsv.format import keys
from dsv.format.records import RefEntry
from dsv.reader import StoreError
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, BranchName, DatasetName, TagName
from tests.inputs.scene import CACHE, CLONE, RUN, Scene, nothing_partial, refused, write
from tests.kit.dsv import Dsv

SET = DatasetName.parse("set")


@dataclass(frozen=True)
class History:
    """Dataset `set` with three commits of a file `a`, oldest first; the first is tagged v1. ann made them."""

    ann: Dsv
    commits: tuple[str, str, str]


@pytest.fixture
def history(scene: Scene) -> History:
    ann = scene.newcomer()
    ann.ok("init", "set")
    made = []
    for number in range(3):
        write(ann.cwd, {"a": b"%d" % number})
        made.append(ann.ok("sync").out.strip())
    ann.ok("tag", "v1", f"@{made[0]}")
    return History(ann, (made[0], made[1], made[2]))


def lose(scene: Scene, commit: str) -> None:
    """Both copies of a commit's record."""
    scene.remove(f"commits/{commit}")
    scene.remove(f"locators/{commit}")


def test_a_commit_whose_parent_is_missing(scene: Scene, history: History) -> None:
    """It is whole, and everything but its history works."""
    first, parent, head = history.commits
    whole = scene.contents()
    lose(scene, parent)
    person = scene.newcomer()
    refused(person("log", "set"), 5, parent)
    refused(person("log", "set", "--oneline"), 5, parent)
    failure = person("log", "set", "--json")
    assert (failure.code, failure.json["error"]["object"]) == (5, parent)
    assert person("log", "set", "-n", "1", "--json").json["items"][0]["parents"] == [parent]
    for arguments in (["resolve", "set@main~1"], ["ls", "set@main~1"], ["resolve", "set@main~2"]):
        refused(person(*arguments), 5, parent)
    refused(person("tag", "x", "set@main~1"), 5, parent)
    refused(person("cache", "set@main~1"), 5, parent)
    refused(person("cache", f"set@{parent}"), 3, parent)  # nobody but the user has named it
    nothing_partial(person)
    for use in (CACHE, CLONE):
        assert use(person, "set").code == 0
        assert use.result(person, "set") == {"a": b"2"}
    assert person.ok("log", "set@v1", "--json").json["items"][0]["commit"] == first

    there = person.at(person.cwd / "clone")
    write(there.cwd, {"b": b"new"})
    made = there.ok("sync").out.strip()
    assert there.ok("log", "-n", "2", "--json").json["items"][0]["parents"] == [head]
    scene.put(f"commits/{parent}", whole[f"commits/{parent}"])
    listed = [item["commit"] for item in scene.newcomer().ok("log", "set", "--json").json["items"]]
    assert listed == [made, head, parent, first]


def test_a_branch_that_names_no_commit_of_the_store(scene: Scene, history: History) -> None:
    _, parent, head = history.commits
    whole = scene.contents()
    lose(scene, head)
    damaged = scene.contents()
    person = scene.newcomer()
    for arguments in READS:
        refused(person(*arguments), 5, head)
    refused(person("tag", "x", "set"), 5, head)
    for use in (CACHE, CLONE, RUN):
        refused(use(person, "set"), use.code(5), head)
        nothing_partial(person)
    with pytest.raises(StoreError, match=head):
        reader.restore(scene.store, "set", scene.folder / "restored")
    assert scene.contents() == damaged
    assert person.ok("cat", "set@v1:a").out == "0"
    assert person.ok("cat", f"set@{parent}:a").out == "1"
    # Who made it has a copy of the commit, and continues from it; nobody's work depends on the store's copy.
    write(history.ann.cwd, {"a": b"4"})
    history.ann.ok("sync")
    assert scene.newcomer().ok("cat", "set:a").out == "4"
    scene.put(f"commits/{head}", whole[f"commits/{head}"])
    for use in (CACHE, CLONE):
        assert use(person, "set").code == 0
        assert use.result(person, "set") == {"a": b"4"}


READS: Sequence[Sequence[str]] = (
    ["ls", "set"], ["cat", "set:a"], ["log", "set"], ["resolve", "set"], ["datasets"],
)  # fmt: skip


def test_a_tag_that_names_no_commit_of_the_store(scene: Scene, history: History) -> None:
    first = history.commits[0]
    lose(scene, first)
    person = scene.newcomer()
    for arguments in (["ls", "set@v1"], ["cat", "set@v1:a"], ["log", "set@v1"], ["resolve", "set@v1"]):
        refused(person(*arguments), 5, first)
    for use in (CACHE, CLONE):
        refused(use(person, "set@v1"), 5, first)
        nothing_partial(person)
    assert person.ok("ls", "set").out == "a\n"
    assert first[:12] in person.ok("tag", "--list", "set").out


def test_a_branch_that_names_nothing_yet(scene: Scene) -> None:
    """A branch as `init` leaves it: no damage, so only a sync is needed."""
    ann = scene.newcomer()
    ann.ok("init", "set")
    person = scene.newcomer()
    for arguments in (*READS[:4], ["tag", "x", "set"]):
        result = person(*arguments)
        refused(result, 3, "main", "set", "no commit yet")
        assert "hint: dsv sync makes one" in result.err
    for use in (CACHE, RUN):
        refused(use(person, "set"), use.code(3), "no commit yet")
        nothing_partial(person)
    assert person.ok("datasets", "--json").json["items"][0]["commit"] is None
    assert CLONE(person, "set").code == 0
    with pytest.raises(StoreError, match="names no commit yet"):
        reader.restore(scene.store, "set", scene.folder / "restored")
    write(person.cwd / "clone", {"a": b"1"})
    person.at(person.cwd / "clone").ok("sync")
    assert CACHE(person, "set").code == 0
    assert CACHE.result(person, "set") == {"a": b"1"}


def head_key(number: int, branch: BranchName = MAIN) -> str:
    return keys.branch_key(SET, branch, number)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data + b"\0",
        lambda data: data.replace(b"dsv ref", b"dsv tag"),
        lambda data: b"\xff" * len(data),
    ],
)
def test_a_ref_that_is_damaged(scene: Scene, history: History, damage: Callable[[bytes], bytes]) -> None:
    """The move before it is not taken for the head: that would undo somebody's sync."""
    whole = scene.contents()
    scene.put(head_key(3), damage(whole[head_key(3)]))
    damaged = scene.contents()
    person = scene.newcomer()
    for arguments in READS:
        refused(person(*arguments), 5, "ref", head_key(3))
    for use in (CACHE, CLONE):
        refused(use(person, "set"), 5, "ref", head_key(3))
        nothing_partial(person)
    write(history.ann.cwd, {"a": b"4"})
    refused(history.ann("sync"), 5, head_key(3))
    assert scene.contents() == damaged
    scene.put(head_key(3), whole[head_key(3)])
    history.ann.ok("sync")
    assert person.ok("cat", "set:a").out == "4"


def test_a_commit_that_is_damaged(scene: Scene, history: History) -> None:
    head = history.commits[2]
    whole = scene.contents()[f"commits/{head}"]
    scene.remove(f"locators/{head}")  # it has a copy
    for damaged in (b"", whole[:-1], whole[:40] + b"x" + whole[41:], whole + b"\0"):
        scene.put(f"commits/{head}", damaged)
        person = scene.newcomer()
        refused(CACHE(person, "set"), 5, head, "damaged")
        refused(person("log", "set"), 5, head, "damaged")
        nothing_partial(person)
        assert person.ok("cat", "set@v1:a").out == "0"


def test_a_move_without_the_one_before_it(scene: Scene, history: History) -> None:
    """A copy of an entry under a key of sixteen zeros once made every command end with exit 70."""
    whole = scene.contents()
    last = keys.branch_key(SET, MAIN, 3)
    for number in (keys.LAST_MOVE, 1000, 5):
        scene.reset(whole)
        key = keys.branch_key(SET, MAIN, number)
        scene.put(key, whole[last])
        person = scene.newcomer()
        for arguments in (
            ["ls", "set"],
            ["cache", "set"],
            ["clone", "set", "c"],
            ["log", "set"],
            ["resolve", "set"],
        ):
            refused(person(*arguments), 5, key, "is not there")
        refused(history.ann("sync"), 5, key)
        assert person("ls", "set@v1").code == 0
    scene.reset(whole)
    assert scene.newcomer()("ls", "set").code == 0


@pytest.mark.parametrize(
    ("copied", "onto", "target"),
    [
        (("set", "main", 1), ("set", "main", 4), "set"),  # an old move, as the newest
        (("set", "main", 3), ("set", "b", 3), "set@b"),
        (("other", "main", 1), ("set", "main", 4), "set"),
    ],
)
def test_a_move_that_was_copied_to_another_key(
    scene: Scene,
    history: History,
    copied: tuple[str, str, int],
    onto: tuple[str, str, int],
    target: str,
) -> None:
    """Copies of entries were accepted silently: `main` went back to an old commit, or to another dataset's."""

    def key_of(dataset: str, branch: str, number: int) -> str:
        return keys.branch_key(DatasetName.parse(dataset), BranchName.parse(branch), number)

    another_dataset(scene)
    person = scene.newcomer()
    for number in range(onto[2] if onto[1] != "main" else 0):  # the moves before it are there
        scene.put(key_of(*onto[:2], number), scene.contents()[key_of("set", "main", number)])
    scene.put(key_of(*onto), scene.contents()[key_of(*copied)])
    said = f"it was written for {' '.join(map(str, copied))}, not for {' '.join(map(str, onto))}"
    for command in ("ls", "log", "resolve", "tag x"):
        refused(person(*command.split(), target), 5, key_of(*onto), said)
    for use in (CACHE, CLONE):
        refused(use(person, target), 5, key_of(*onto))
        nothing_partial(person)
    assert person.ok("cat", "set@v1:a").out == "0"


def test_a_tag_that_was_copied_to_another_key(scene: Scene, history: History) -> None:
    key, copy = (keys.tag_key(SET, TagName.parse(name)) for name in ("v1", "v2"))
    scene.put(copy, scene.contents()[key])
    person = scene.newcomer()
    refused(person("cat", "set@v2:a"), 5, copy, "it was written for set v1, not for set v2")
    refused(history.ann("tag", "v2"), 5, copy)
    assert person.ok("cat", "set@v1:a").out == "0"


def test_a_move_without_names_in_a_store_whose_moves_have_them(scene: Scene, history: History) -> None:
    """One from an older store, which would be accepted anywhere otherwise."""
    key = keys.branch_key(SET, MAIN, 4)
    commit = CommitId.parse(history.commits[0])
    scene.put(key, RefEntry(commit, False, Nonce.random(), 0, "", "sync").encode())
    refused(scene.newcomer()("ls", "set"), 5, key, "a store that keeps no names")


def another_dataset(scene: Scene) -> str:
    """Its commit."""
    bob = scene.newcomer()
    bob.ok("init", "other")
    write(bob.cwd, {"b": b"bob's"})
    return bob.ok("sync").out.strip()


def test_a_commit_of_another_dataset_is_not_found(scene: Scene, history: History) -> None:
    """It was taken for one of any dataset's, and a tag, a branch or a cache then had it under the wrong name."""
    theirs = another_dataset(scene)
    before = scene.contents()
    person = scene.newcomer()
    for rev in (theirs, theirs[:12]):
        for arguments in (
            ["ls", f"set@{rev}"],
            ["resolve", f"set@{rev}"],
            ["log", f"set@{rev}"],
            ["tag", "x", f"set@{rev}"],
            ["cache", f"set@{rev}"],
            ["clone", f"set@{rev}", "c"],
        ):
            result = person(*arguments)
            refused(result, 3, f"there is no commit {rev} in dataset set", "it belongs to other")
            assert f"other@{rev}" in result.err.split("hint: ")[1]
    refused(history.ann("restore", "--from", f"@{theirs}"), 3, "it belongs to other")
    assert scene.contents() == before
    assert person.ok("cat", f"other@{theirs[:12]}:b").out == "bob's"
    assert person.ok("cat", f"set@{history.commits[0][:12]}:a").out == "0"


def test_a_commit_that_is_cached_needs_no_store_and_belongs_to_its_dataset(
    scene: Scene, history: History
) -> None:
    person = scene.newcomer()
    head = history.commits[2]
    path = person.ok("cache", f"set@{head}").out.strip()
    lose(scene, head)
    for rev in (head, head[:12]):
        assert person.ok("cache", "--offline", f"set@{rev}").out.strip() == path
        refused(person("cache", "--offline", f"other@{rev}"), 6, "not known to the cache")


def test_a_store_that_has_lost_its_format(scene: Scene, history: History) -> None:
    key = keys.format_key(0)
    whole = scene.contents()
    scene.remove(key)
    person = scene.newcomer()
    for arguments in (["init", "other"], ["ls", "set"], ["clone", "set", "c"]):
        refused(person(*arguments), 5, key)
    assert scene.contents().keys() == whole.keys() - {key}
    scene.put(key, whole[key])
    assert person("ls", "set").code == 0


def test_a_folder_of_another_program_is_no_store_that_lost_its_format(scene: Scene) -> None:
    for key in ("index/README", "packs/ab/x.pack", "refs/heads/main", "format/txt"):
        scene.put(key, b"not of dsv")
    scene.newcomer().ok("init", "other")
