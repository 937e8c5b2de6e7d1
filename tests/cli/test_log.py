"""dsv log: which commits, and how they are shown."""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dsv.format.records import CommitRecord
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.repo.tree.reader import TreeReader
from dsv.repo.tree.writer import write_tree
from dsv.stores.directory import DirectoryStore
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId
from tests.kit import repositories
from tests.kit.dsv import Dsv, Result, assert_documented, write_files

DAY = 86_400_000
MONDAY = 1_790_000_000_000  # 2026-09-21
Files = dict[str, bytes]


class History:
    """Dataset `scans` with a merge. commits: by the letter that is each one's message."""

    def __init__(self, folder: Path) -> None:
        self.repository: Repository = repositories.create(DirectoryStore(folder, create=True))
        self.commits: dict[str, CommitId] = {}

    def add(
        self, letter: str, parents: str, files: Files, removed: tuple[str, ...] = (), author: str = "Ann"
    ) -> None:
        above = tuple(self.commits[each] for each in parents)
        head = self.repository.refs.head(repositories.DATASET, repositories.MAIN)
        with Session.open(self.repository, repositories.WRITER) as session, Uploader(session) as uploader:
            base = TreeReader(self.repository.objects, above[0]) if above else None
            names = sorted({*files, *removed})
            changes = [
                repositories.change(uploader, name, files.get(name), name in removed) for name in names
            ]
            tree = write_tree(uploader, base, changes)
            uploader.finish()
            time_ms = MONDAY + len(self.commits) * DAY
            made = CommitRecord(
                root=tree.root, level=tree.level, parents=above, author=author, time_ms=time_ms,
                message=f"{letter}\n\nmore of {letter}", files=tree.files, bytes=tree.bytes, entries=tree.entries,
            )  # fmt: skip
            named = self.repository.named(made, repositories.DATASET, repositories.MAIN)
            self.commits[letter] = session.put_commit(named, tree.locator)
            repositories.publish(session, head, self.commits[letter])


BIG = random.Random(4).randbytes(4 << 20)


@pytest.fixture
def scans(dsv: Dsv) -> Dsv:
    """A - B - D (merges B and C) - E, outside of a workspace. C is made on top of A."""
    made = History(dsv.home / "store")
    made.add("A", "", {"train/1": b"one", "train/2": b"two", "big": BIG, "README": b"r"})
    made.add("B", "A", {"train/1": b"ONE"}, author="Bo <bo@example.org>")
    made.add("C", "A", {"val/1": b"v"}, ("big",))
    made.add("D", "BC", {"val/1": b"v", "big2": BIG + b"more"}, ("big",))
    made.add("E", "D", {"val/2": b"two"}, ("train/2",))
    return dsv.at(dsv.home, DSV_STORE=str(dsv.home / "store"))


def letters(done: Result) -> str:
    assert done.code == 0, done
    return "".join(line.split()[-1] for line in done.lines)


def test_a_merge_is_followed_to_both_sides(scans: Dsv) -> None:
    assert letters(scans("log", "scans", "--oneline")) == "EDCBA"
    assert letters(scans("log", "scans", "--oneline", "--first-parent")) == "EDBA"
    assert letters(scans("log", "scans@main~1", "--oneline", "-n", "2")) == "DC"


def test_a_graph_shows_what_was_merged(scans: Dsv) -> None:
    drawn = [line.translate({ord(c): None for c in "0123456789abcdef"}) for line in
             scans.ok("log", "scans", "--oneline", "--graph").lines]  # fmt: skip
    assert drawn == ["*  (min) E", "*  D", "|\\", "| *  C", "* |  B", "|/", "*  A"]
    full = scans.ok("log", "scans", "--graph").lines
    assert full[0].startswith("* commit ") and full[1].startswith("| Author: ")
    assert any(line.startswith("| Merge:  ") for line in full)
    with_paths = scans.ok("log", "scans", "--oneline", "--graph", "--", "train/1").lines
    assert [line.split()[-1] for line in with_paths if "*" in line] == ["B", "A"]


def test_a_graph_of_some_commits_has_no_lines_of_the_others(scans: Dsv) -> None:
    def drawn(*options: str) -> list[str]:
        lines = scans.ok("log", "scans", "--oneline", "--graph", *options).lines
        return [f"{line.split('*')[0]}*{line[-1]}" if "*" in line else line for line in lines]

    assert drawn("--", "train/1") == ["*B", "*A"]
    assert drawn("--author", "bo") == ["*B"]
    assert drawn("--", "val", "train/1") == ["*E", "*D", "|\\", "| *C", "*B", "|/", "*A"]
    assert drawn("--first-parent") == ["*E", "*D", "*B", "*A"]
    assert drawn("-n", "2", "--", "train") == ["*E", "*B"]


def test_with_paths_only_the_commits_that_changed_them(scans: Dsv) -> None:
    assert letters(scans("log", "scans", "--oneline", "--", "train")) == "EBA"
    assert letters(scans("log", "scans", "--oneline", "--", "train/2")) == "EA"
    assert letters(scans("log", "scans", "--oneline", "--", "val", "README")) == "ECA"
    assert letters(scans("log", "scans", "--oneline", "--first-parent", "--", "val")) == "ED"
    assert letters(scans("log", "scans", "--oneline", "-n", "1", "--", "train")) == "E"
    nowhere = scans("log", "scans", "--", "nowhere")
    assert (nowhere.code, nowhere.out) == (3, "") and "no commit has 'nowhere'" in nowhere.err


def test_by_time_author_and_message(scans: Dsv) -> None:
    assert letters(scans("log", "scans", "--oneline", "--author", "BO@")) == "B"
    assert letters(scans("log", "scans", "--oneline", "--grep", "more of c")) == "C"
    assert letters(scans("log", "scans", "--oneline", "--since", "2026-09-24T12:00:00Z")) == "ED"
    assert letters(scans("log", "scans", "--oneline", "--until", "2026-09-22T23:59:00Z")) == "BA"
    wrong = scans("log", "scans", "--since", "yesterday")
    assert wrong.code == 2 and "is not a time" in wrong.err


def test_what_each_commit_changed(scans: Dsv) -> None:
    lines = scans.ok("log", "scans", "--oneline", "--stat", "-n", "2").lines
    assert lines[1:4] == [
        "  train/  -3 B",
        "  val/    1 renamed; +3 B",
        "  1 renamed; 0 B",
    ]
    assert lines[5:] == [
        "  ./    1 renamed; +4 B",
        "  val/  1 added; +1 B",
        "  1 added, 1 renamed; +5 B",
    ]
    items = scans.ok("log", "scans", "--stat", "--json").json["items"]
    assert [row["folder"] for row in items[0]["folders"]] == ["train/", "val/"]
    only = scans.ok("log", "scans", "--oneline", "--stat", "-n", "1", "--", "val").lines
    assert only[1:] == ["  val/  1 added; +3 B", "  1 added; +3 B"]


def test_where_a_file_and_its_content_come_from(scans: Dsv) -> None:
    items = scans.ok("log", "scans", "--json", "--follow", "big2").json["items"]
    told = [(one["message"][0], one["path"], one["change"], one["old_path"], one["present"]) for one in items]
    assert told == [("D", "big2", "renamed", "big", True), ("A", "big", "added", None, False)]
    assert 50 <= items[0]["similarity"] < 100
    items = scans.ok("log", "scans", "--json", "--follow", "train/1").json["items"]
    assert [(one["message"][0], one["present"]) for one in items] == [("B", True), ("A", False)]
    items = scans.ok("log", "scans", "--json", "--follow", "val/1").json["items"]
    assert [(one["message"][0], one["change"]) for one in items] == [("C", "added")]
    assert_documented("log", {"schema": 1, "items": items}, without="moves")
    gone = scans("log", "scans", "--follow", "train/2")
    assert (gone.code, gone.out) == (3, "") and "is not a file of" in gone.err


def test_follow_describes_a_rename_in_words(scans: Dsv) -> None:
    lines = scans.ok("log", "scans", "--oneline", "--follow", "big2").lines
    assert lines[1].startswith("    big2: renamed from big (") and lines[1].endswith("%), unchanged since")
    assert lines[3] == "    big: added"


def test_in_a_workspace_paths_are_relative_to_the_working_folder(dsv: Dsv) -> None:
    write_files(dsv.cwd, {"train/1": b"1", "val/1": b"1"})
    dsv.ok("init", "pets")
    dsv.ok("sync", "-m", "A")
    write_files(dsv.cwd, {"train/1": b"2"})
    dsv.ok("sync", "-m", "B")
    write_files(dsv.cwd, {"val/1": b"2"})
    dsv.ok("sync", "-m", "C")
    below = dsv.at(dsv.cwd / "train")
    assert letters(below("log", "--oneline", "--", ".")) == "BA"
    assert letters(below("log", "--oneline", "--", "../val")) == "CA"
    assert letters(dsv("log", "--oneline", "--offline", "--", "train")) == "BA"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["scans", "train"], "hint: dsv log scans -- train"),
        (["scans", "--graph", "--jsonl"], "can't be used together"),
        (["scans", "--follow", "x", "--", "y"], "--follow takes one file"),
        (["scans", "-n", "0"], "not a whole number"),
    ],
)
def test_what_makes_no_sense_is_refused(scans: Dsv, arguments: list[str], said: str) -> None:
    done = scans("log", *arguments)
    assert (done.code, done.out) == (2, ""), done
    assert said in done.err


def test_log_shows_people_and_programs_the_same_commits(signed_pets: Dsv) -> None:
    (signed_pets.cwd / "a.txt").write_bytes(b"beta\n")
    head = signed_pets.ok("sync", "-m", "second", "--author", "Bo").out.strip()
    items = signed_pets.ok("log", "--json").json["items"]
    assert items[0]["commit"] == head
    assert_documented("log", {"schema": 1, "items": items}, without="moves")
    assert items[0]["parents"] == [items[1]["commit"]]
    assert (items[0]["author"], items[1]["author"]) == ("Bo", "Ann Lee")
    assert items[1]["message"] == "first\n\nwith a second paragraph"
    age = datetime.now(UTC) - datetime.fromisoformat(items[0]["time"])
    assert abs(age.total_seconds()) < 600
    assert [json.loads(line) for line in signed_pets.ok("log", "--jsonl").lines] == items
    text = signed_pets.ok("log").out
    assert re.search(
        rf"commit {head} \(main\)\nAuthor: Bo\nDate:   \d{{4}}-\d\d-\d\d \d\d:\d\d[+-]\d\d:\d\d\n", text
    )
    assert "    first\n    \n    with a second paragraph" in text.replace("\n\n    with", "\n    \n    with")
    assert signed_pets.ok("log", "--oneline", "-n", "1").lines == [f"{head[:12]} (main) second"]
    assert signed_pets.ok("log", "@v1", "--oneline").lines == [f"{items[1]['commit'][:12]} (v1) first"]
    assert signed_pets("log", "-n", "0").code == 2
