"""A list of edits becomes one commit, without a workspace."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from dsv.api.edits import Edit, Edited, EditRequest, Move, MoveAll, PathEdit, Put, Remove, edit
from dsv.errors import Changing, Conflict, DsvError, NotFound, Unsupported, UsageError
from dsv.format import keys
from dsv.repo import races
from dsv.repo.repository import Repository
from dsv.stores.base import Bytes, PutResult
from dsv.stores.memory import MemoryStore
from dsv.transfer import save
from dsv.transfer.stable_read import Problem
from dsv.values.names import DatasetName, TagName, Target
from dsv.values.progress import NoProgress
from tests.kit.people import SCANS, Files, Person, every_store_is

TARGET = Target(SCANS)


@pytest.fixture
def ann(tmp_path: Path) -> Iterator[Person]:
    with every_store_is(MemoryStore()):
        person = Person(tmp_path / "ann", "/nowhere")
        person.init()
        yield person


def change(person: Person, *edits: Edit, target: Target = TARGET, **options: Any) -> Edited:
    return edit(person.context(), target, edits, EditRequest(**options))


def files(person: Person, done: Edited) -> Files:
    return {} if done.commit is None else person.read(done.commit)


def begin(person: Person, content: Files) -> Edited:
    """A commit of a folder with this content."""
    other = Person(person.home / "there", person.store)
    other.workspace.mkdir(parents=True, exist_ok=True)
    other.write(content)
    return change(person, Put("", other.workspace, contents=True), allow_removals=True)


def test_a_file_is_put_under_its_name_or_under_a_new_one(ann: Person, tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_bytes(b"a,b\n")
    done = change(ann, Put("", file), Put("d/", file), Put("d", file), Put("new/name", file), message="why")
    expected = {"labels.csv": b"a,b\n", "d/labels.csv": b"a,b\n", "new/name": b"a,b\n"}
    assert files(ann, done) == expected
    assert (done.count("added"), done.files, done.bytes, done.any_change) == (3, 3, 12, True)
    with ann.context().store() as store:
        repository = Repository.open(store, None)
        assert done.commit is not None
        commit = repository.objects.commit(done.commit)
        assert (commit.message, commit.author, commit.parents) == ("why", "ann@lab", ())


def test_a_folder_is_put_as_a_sync_would_take_it(ann: Person, tmp_path: Path) -> None:
    lee = Person(tmp_path / "lee", "")
    content: Files = {
        "a.txt": b"1",
        "run.sh": b"#!/bin/sh\n",
        "deep/er/b.txt": b"2" * 600_000,
        "link@": b"deep/er",
        "empty": None,
        ".dsvignore": b"*.tmp\nskipped/\n",
        "large": random.Random(3).randbytes(3 << 20),
    }
    lee.write({**content, "x.tmp": b"", "skipped/y": b"", "deep/.git/config": b"", "none": b""})
    (lee.workspace / "deep/.dsv").mkdir()
    done = change(ann, Put("in/", lee.workspace))
    assert files(ann, done) == {f"in/work/{name}": data for name, data in {**content, "none": b""}.items()}
    again = change(ann, Put("in/", lee.workspace))
    assert not again.any_change and again.commit == done.commit


def test_many_small_files_are_put_by_several_processes(ann: Person, tmp_path: Path) -> None:
    lee = Person(tmp_path / "lee", "")
    content: Files = {f"d{n % 7}/f{n:04}": b"%d" % n for n in range(4200)}
    lee.write(content)
    assert files(ann, change(ann, Put("", lee.workspace, contents=True))) == content


def test_a_folder_is_put_under_a_new_name_as_cp_does(ann: Person, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/f").write_bytes(b"1")
    (tmp_path / "none").mkdir()
    assert files(ann, change(ann, Put("one", tmp_path / "src"))) == {"one/f": b"1"}
    second = change(ann, Put("one", tmp_path / "src"), Put("empty", tmp_path / "none"))
    assert files(ann, second) == {"one/f": b"1", "one/src/f": b"1", "empty": None}
    third = change(ann, Put("empty/", tmp_path / "src", contents=True))
    assert files(ann, third) == {"one/f": b"1", "one/src/f": b"1", "empty/f": b"1"}


def test_a_symlink_that_is_named_is_followed_and_one_in_a_folder_is_kept(ann: Person, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/f").write_bytes(b"1")
    (tmp_path / "real/l").symlink_to("f")
    (tmp_path / "to-folder").symlink_to("real")
    (tmp_path / "to-file").symlink_to("real/f")
    done = change(ann, Put("", tmp_path / "to-folder"), Put("", tmp_path / "to-file"))
    assert files(ann, done) == {"to-folder/f": b"1", "to-folder/l@": b"f", "to-file": b"1"}


def test_bytes_and_streams_are_put(ann: Person) -> None:
    large = random.Random(5).randbytes(5 << 20)
    with (ann.home / "large").open("w+b") as file:
        file.write(large)
        file.seek(0)
        done = change(ann, Put("small", b"1"), Put("none", b""), Put("large", file.readinto))
    assert files(ann, done) == {"small": b"1", "none": b"", "large": large}


def test_without_replace_paths_that_are_there_stay(ann: Person, tmp_path: Path) -> None:
    begin(ann, {"d/a": b"old"})
    (tmp_path / "d").mkdir()
    for name in ("a", "b"):
        (tmp_path / "d" / name).write_bytes(b"new")
    done = change(ann, Put("", tmp_path / "d", replace=False))
    assert files(ann, done) == {"d/a": b"old", "d/b": b"new"}


def test_what_is_removed_takes_its_folder_with_it(ann: Person) -> None:
    begin(ann, {"a": b"1", "d/b": b"2", "d/e/c": b"3", "d/e/d.tmp": b"4", "x/y.tmp": b"5"})
    done = change(ann, Remove("**/*.tmp"), Remove("d/e/"), message="less")
    assert files(ann, done) == {"a": b"1", "d/b": b"2"}
    assert done.paths == (
        PathEdit(b"d/e/c", "removed"),
        PathEdit(b"d/e/d.tmp", "removed"),
        PathEdit(b"x/y.tmp", "removed"),
    )


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("*.png", ["d/b.png", "d/e/c.png", "d/e/f", "e1/x"]),
        ("**/*.png", ["d/e/f", "e1/x"]),
        ("d/**/*.png", ["a.png", "d/e/f", "e1/x", "[1].png"]),
        ("d/*", ["a.png", "e1/x", "[1].png"]),
        ("?1", ["a.png", "d/b.png", "d/e/c.png", "d/e/f", "[1].png"]),
        ("[1].png", ["a.png", "d/b.png", "d/e/c.png", "d/e/f", "e1/x"]),
        ("d/[a-e]*", ["a.png", "e1/x", "[1].png"]),
        ("*/", ["a.png", "[1].png"]),
    ],
)
def test_patterns_are_those_of_a_shell(ann: Person, pattern: str, left: list[str]) -> None:
    """Of the whole path, `*` takes no slash, a folder goes with all in it, an exact name comes first."""
    begin(ann, dict.fromkeys(("a.png", "d/b.png", "d/e/c.png", "d/e/f", "e1/x", "[1].png"), b""))
    assert sorted(files(ann, change(ann, Remove(pattern)))) == sorted(left)


def test_files_and_folders_are_moved(ann: Person) -> None:
    begin(ann, {"a": b"1", "d/b.sh": b"2", "d/l@": b"b.sh", "e/c": b"3"})
    done = change(ann, Move("a", "e/"), Move("d", "e"), Move("e/c", "new/name"))
    assert files(ann, done) == {"e/a": b"1", "e/d/b.sh": b"2", "e/d/l@": b"b.sh", "new/name": b"3"}
    assert done.paths[0] == PathEdit(b"e/a", "moved", b"a")
    assert done.count("moved") == 4 and done.count("removed") == done.count("added") == 0


def test_a_list_of_moves_is_made_at_once(ann: Person) -> None:
    begin(ann, {"a": b"1", "b": b"2", "c/d": b"3"})
    done = change(ann, MoveAll([("a", "b"), ("b", "a"), ("c", "e"), ("c/d", "c/d")]))
    assert files(ann, done) == {"a": b"2", "b": b"1", "e/d": b"3"}


@pytest.mark.parametrize(
    ("edits", "error", "message"),
    [
        ([Put("d", b"")], UsageError, "is a folder"),
        ([Put("d/", b"")], UsageError, "is a folder"),
        ([Put("", b"")], UsageError, "^what is put there has no name"),
        ([Put("a/x", b"")], Conflict, "'a' is a file, so 'a/x' can't lie below it"),
        ([Put("l/x", b"")], Conflict, "'l' is a symlink, so"),
        ([Put("../x", b"")], UsageError, r"part \.\."),
        ([Put(".git/x", b"")], UsageError, "can't be a path"),
        ([Put(b"\xff", b"")], UsageError, "not UTF-8"),
        ([Remove("none")], NotFound, "'none' is not in scans@main"),
        ([Remove("*.none")], NotFound, r"'\*.none' matches nothing in scans@main"),
        ([Remove("a/")], NotFound, "is not in scans@main"),
        ([Remove("")], UsageError, "whole dataset"),
        ([Remove("a"), Remove("a")], NotFound, "'a' is not in scans@main"),
        ([Remove("x\\")], NotFound, "not in scans@main"),
        ([Remove("*\\")], UsageError, "backslash"),
        ([Move("a", "b")], Conflict, "'b' already exists"),
        ([Move("a", "a")], UsageError, "to itself"),
        ([Move("d", "d/e")], UsageError, "into itself"),
        ([Move("d", "a", replace=True)], Conflict, "can't lie below it"),
        ([Move("?", "new")], UsageError, "paths can't all be moved"),
        ([Move("e/d", "")], Conflict, "'d' already exists"),
        ([MoveAll([("a", "x"), ("b", "x")])], Conflict, "two paths"),
        ([MoveAll([("a", "x"), ("a", "y")])], Conflict, "moved twice"),
        ([MoveAll([("a", "b")])], Conflict, "already exists"),
        ([MoveAll([("none", "b")])], NotFound, "none"),
        ([Put("x", Path("/dev/null"))], Unsupported, "a device"),
        ([Put("x", Path("/nowhere/at/all"))], NotFound, "no file or folder"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_published(
    ann: Person, edits: list[Edit], error: type[DsvError], message: str
) -> None:
    before = begin(ann, {"a": b"1", "b": b"2", "d/c": b"3", "e/d/x": b"4", "l@": b"d"})
    with pytest.raises(error, match=message):
        change(ann, *edits)
    assert change(ann).commit == before.commit


def test_a_file_replaces_a_file_if_that_is_said(ann: Person) -> None:
    begin(ann, {"a": b"1", "b": b"2", "d/x": b"3", "e/d/x": b"4", "e/d/y": b"5"})
    done = change(ann, Move("a", "b", replace=True), Move("e/d", "", replace=True))
    assert files(ann, done) == {"b": b"1", "d/x": b"4", "d/y": b"5"}


def test_what_cannot_be_stored_is_listed_or_left_out(ann: Person, tmp_path: Path) -> None:
    root = tmp_path / "src"
    (root / "d").mkdir(parents=True)
    (root / "fine").write_bytes(b"1")
    (root / "d/away").symlink_to("/etc/passwd")
    (root / "d/f\udcff".encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")).write_bytes(
        b""
    )
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(root / "d/socket"))
        with pytest.raises(Unsupported) as refused:
            change(ann, Put("", root))
        done = change(ann, Put("", root), skip_unsupported=True)
    assert all(text in str(refused.value) for text in ("away", "socket", "not UTF-8", "3 paths"))
    assert files(ann, done) == {"src/fine": b"1", "src/d": None} and len(done.skipped) == 3


def test_a_symlink_that_leads_out_where_it_comes_to_lie_is_refused(ann: Person, tmp_path: Path) -> None:
    begin(ann, {"d/e/l@": b"../../x", "x": b"1"})
    with pytest.raises(Unsupported, match="would lead out"):
        change(ann, Move("d/e/l", "l"))
    root = tmp_path / "src"
    root.mkdir()
    (root / "l").symlink_to("../up")
    assert "in/src/l@" in files(ann, change(ann, Put("in/", root)))
    with pytest.raises(Unsupported, match="would lead out"):
        change(ann, Put("", root, contents=True))


def test_most_of_a_dataset_is_removed_only_if_that_is_said(ann: Person) -> None:
    begin(ann, {f"d/{n:03}": b"" for n in range(60)} | {"a": b""})
    with pytest.raises(Conflict, match="would remove 60 of 61"):
        change(ann, Remove("d"))
    assert change(ann, Move("d", "e")).count("moved") == 60
    assert files(ann, change(ann, Remove("e"), allow_removals=True)) == {"a": b""}


def test_a_dataset_is_made_only_if_that_is_said(ann: Person) -> None:
    new = Target(DatasetName.parse("new"))
    with pytest.raises(NotFound, match="no dataset new"):
        change(ann, Put("a", b"1"), target=new)
    done = change(ann, Put("a", b"1"), target=new, create=True)
    assert files(ann, done) == {"a": b"1"}
    again = change(ann, Put("b", b"2"), target=new, create=True)
    assert again.parent == done.commit
    with pytest.raises(Conflict, match="differ in case only"):
        change(ann, Put("a", b"1"), target=Target(DatasetName.parse("NEW")), create=True)


@pytest.mark.parametrize(
    ("target", "error"),
    [
        (":", UsageError),
        ("scans@v1", UsageError),
        ("scans@main~1", UsageError),
        ("scans@12345678", UsageError),
        ("scans@none", NotFound),
    ],
)
def test_only_a_branch_gets_a_commit(ann: Person, target: str, error: type[DsvError]) -> None:
    from dsv.api.branches import tag

    begin(ann, {"a": b"1"})
    tag(ann.context(), TagName.parse("v1"), Target.parse("scans@main"))
    with pytest.raises(error):
        change(ann, Put("b", b""), target=Target.parse(target), create=True)


def test_a_dry_run_writes_nothing(ann: Person, tmp_path: Path) -> None:
    before = begin(ann, {"a": b"1", "b": b"2"})
    with ann.context().store() as store:
        keys = {item.key for item in store.list("")}
        done = change(ann, Put("c", b"3"), Put("a", b""), Remove("b"), dry_run=True)
        assert {item.key for item in store.list("")} == keys
    assert done.commit == before.commit and done.any_change
    assert [(one.path, one.what) for one in done.paths] == [
        (b"a", "changed"),
        (b"b", "removed"),
        (b"c", "added"),
    ]


class Race:
    """Before each of the first moves of a branch, somebody else commits one of these edits."""

    def __init__(self, person: Person, monkeypatch: pytest.MonkeyPatch, *others: list[Edit]) -> None:
        self.others = list(others)
        self.person = person
        self.lost = 0
        self.waits: list[float] = []
        self._really = MemoryStore.put_if_absent
        self._busy = False
        monkeypatch.setattr(MemoryStore, "put_if_absent", lambda *given: self.put(*given))
        monkeypatch.setattr(races, "time", SimpleNamespace(monotonic=monotonic, sleep=self.waits.append))

    def put(self, store: MemoryStore, key: str, data: Bytes) -> PutResult:
        if self.others and not self._busy and key.startswith(keys.branches_prefix(SCANS)):
            self._busy = True
            change(self.person, *self.others.pop(0))
            self._busy = False
            self.lost += 1
        return self._really(store, key, data)


def test_a_lost_race_is_run_again_on_top_of_the_winner(ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(ann, {"a": b"1", "d/b": b"2", "e": None})
    bob = Person(ann.home / "bob", ann.store, "bob")
    others: list[list[Edit]] = [
        [Put("x", b"theirs")],
        [Put("d/c", b"theirs"), Put("same", b"1")],
        [Remove("x")],
    ]
    race = Race(bob, monkeypatch, *others)
    with (ann.home / "stream").open("w+b") as stream:
        stream.write(b"read once")
        stream.seek(0)
        edits = [Put("e/y", b"mine"), Move("a", "d/a"), Put("same", b"1"), Put("s", stream.readinto)]
        done = change(ann, *edits)
    assert files(ann, done) == {
        "d/a": b"1", "d/b": b"2", "d/c": b"theirs", "e/y": b"mine", "same": b"1", "s": b"read once",
    }  # fmt: skip
    assert race.lost == 3 and len(race.waits) == 3, "one before each attempt on top of a winner"


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (Put("a", b"mine"), Put("a", b"theirs")),
        (Put("a", b"mine"), Remove("a")),
        (Remove("a"), Put("a", b"theirs")),
        (Move("a", "n"), Remove("a")),
        (Move("a", "n"), Put("a", b"theirs")),
        (Move("a", "n"), Put("n", b"theirs")),
        (Put("n/x", b"mine"), Put("n", b"theirs")),
        (Put("n", b"mine"), Put("n/x", b"theirs")),
        (Remove("d"), Put("d/b", b"theirs")),
    ],
)
def test_a_race_over_one_path_is_a_conflict(
    ann: Person, monkeypatch: pytest.MonkeyPatch, mine: Edit, theirs: Edit
) -> None:
    begin(ann, {"a": b"1", "d/b": b"2", "keep": b"3"})
    bob = Person(ann.home / "bob", ann.store, "bob")
    race = Race(bob, monkeypatch, [theirs])
    with pytest.raises(Conflict, match="bob@lab has just changed"):
        change(ann, mine)
    assert race.lost == 1 and not race.waits, "it is said at once"
    last = change(ann)
    assert files(ann, last) == files(ann, change(bob)), "theirs alone"


def test_two_who_remove_the_same_are_no_conflict(ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(ann, {"a": b"1", "b": b"2"})
    Race(Person(ann.home / "bob", ann.store, "bob"), monkeypatch, [Remove("a")])
    done = change(ann, Remove("a"))
    assert files(ann, done) == {"b": b"2"} and not done.any_change


@pytest.mark.parametrize("fails", [1, 2])
def test_a_lost_race_names_a_file_that_was_left_out_once(
    ann: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    begin(ann, {"a": b"1"})
    left = [Problem(b"f", "it can't be read: Input/output error")] * fails
    really_save = save.save_file
    monkeypatch.setattr(save, "save_file", lambda *given: left.pop() if left else really_save(*given))
    (tmp_path / "f").write_bytes(b"mine")
    race = Race(Person(ann.home / "bob", ann.store, "bob"), monkeypatch, [Put("x", b"theirs")])
    done = change(ann, Put("f", tmp_path / "f"), Put("g", b"1"), skip_unsupported=True)
    assert race.lost == 1
    assert [each.path for each in done.skipped] == [b"f"] * (fails - 1)
    assert ("f" in files(ann, done)) == (fails == 1)


@pytest.mark.parametrize("alone", [False, True])
def test_a_database_that_changes_while_it_is_put_is_refused(ann: Person, tmp_path: Path, alone: bool) -> None:
    folder = tmp_path / "in use"
    folder.mkdir()
    for name in ("x.db", "x.db-wal"):
        (folder / name).write_bytes(b"1")

    class Meanwhile(NoProgress):
        def advance(self, files: int = 0, bytes: int = 0, transferred: int = 0) -> None:  # noqa: A002
            (folder / "x.db").write_bytes(b"22")

    context = structs.replace(ann.context(), progress=Meanwhile())
    put = Put("there", folder / "x.db" if alone else folder)
    with pytest.raises(Changing, match=r"x\.db': it changed while what"):
        edit(context, Target(SCANS), [put], EditRequest("put"))
    edit(ann.context(), Target(SCANS), [put], EditRequest("put"))
