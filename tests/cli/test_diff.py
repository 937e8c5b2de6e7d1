"""dsv diff."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from tests.kit.dsv import Dsv, assert_documented, made_once, write_files

LABELS = b"file,label\na,cat\nb,dog\nc,cat\n"
NEW_LABELS = b"file,label,score\na,cat,1\nb,cat,2\nd,dog,3\n"


@pytest.fixture
@made_once
def zoo(dsv: Dsv) -> Dsv:
    """Dataset `zoo` with the tags v1 and v2, between which everything happened that can."""
    rng = random.Random(5)
    big = rng.randbytes(6 << 20)
    write_files(
        dsv.cwd,
        {
            "train/1.png": b"one", "train/2.png": b"two", "train/3.png": b"three",
            "labels.csv": LABELS, "run.sh": b"#!/bin/sh\n", "kind": b"file", "big.bin": big,
        },
    )  # fmt: skip
    (dsv.cwd / "link").symlink_to("train/1.png")
    dsv.ok("init", "zoo")
    dsv.ok("sync")
    dsv.ok("tag", "v1")
    change(dsv.cwd)
    (dsv.cwd / "big.bin").rename(dsv.cwd / "large.bin")
    with (dsv.cwd / "large.bin").open("ab") as file:
        file.write(b"more")
    dsv.ok("sync")
    dsv.ok("tag", "v2")
    return dsv


def change(folder: Path) -> None:
    (folder / "train/2.png").rename(folder / "train/two.png")
    (folder / "train/3.png").unlink()
    write_files(folder, {"labels.csv": NEW_LABELS, "new/\x1b[31m\n": b"x"})
    (folder / "run.sh").chmod(0o755)
    (folder / "link").unlink()
    (folder / "link").symlink_to("labels.csv")
    (folder / "kind").unlink()
    (folder / "kind").symlink_to("link")


def test_each_kind_of_difference_is_shown(zoo: Dsv) -> None:
    done = zoo.ok("diff", "@v1", "@v2")
    assert zoo.ok("diff", "@v1..v2") == done
    assert done.lines == [
        "retyped   kind  file -> symlink to link",
        "changed   labels.csv  29 B -> 41 B",
        "renamed   big.bin => large.bin (97%)  6.29 MB (+4 B)",
        "changed   link  -> labels.csv, was -> train/1.png",
        "added     new/\\x1b[31m\\n  1 B",
        "changed   run.sh  mode 644 -> 755",
        "removed   train/3.png  5 B",
        "renamed   train/2.png => train/two.png",
    ]
    assert done.err.endswith("1 added, 4 changed, 2 renamed, 1 removed; +8 B\n")


def test_gits_letters_and_names_alone(zoo: Dsv) -> None:
    assert zoo.ok("diff", "@v1", "@v2", "--name-status").lines == [
        "T\tkind",
        "M\tlabels.csv",
        "R097\tbig.bin\tlarge.bin",
        "M\tlink",
        "A\tnew/\\x1b[31m\\n",
        "M\trun.sh",
        "D\ttrain/3.png",
        "R100\ttrain/2.png\ttrain/two.png",
    ]
    assert zoo.ok("diff", "@v2", "@v1", "--name-only", "--", "train").lines == ["train/2.png", "train/3.png"]


def test_sums_by_folder(zoo: Dsv) -> None:
    assert zoo.ok("diff", "@v1", "@v2", "--stat").lines == [
        "FOLDER    ADDED   CHANGED      RENAMED  REMOVED    NET",
        "./            -  4 (51 B)  1 (6.29 MB)        -  +12 B",
        "new/    1 (1 B)         -            -        -   +1 B",
        "train/        -         -      1 (3 B)  1 (5 B)   -5 B",
        "total   1 (1 B)  4 (51 B)  2 (6.29 MB)  1 (5 B)   +8 B",
    ]
    assert len(zoo.ok("diff", "@v1", "@v2", "--dirs", "0").lines) == 2
    document = zoo.ok("diff", "@v1", "@v2", "--stat", "--json").json
    assert [row["folder"] for row in document["folders"]] == ["./", "new/", "train/"]
    assert_documented("diff", document, without=("items", "locks"))


def test_json_says_all_that_is_known_of_both_sides(zoo: Dsv) -> None:
    document = zoo.ok("diff", "@v1", "@v2", "--json").json
    items = {item["path"]: item for item in document["items"]}
    renamed = items["train/two.png"]
    assert (renamed["change"], renamed["old_path"], renamed["similarity"]) == ("renamed", "train/2.png", 100)
    assert renamed["id"] == renamed["old_id"]
    assert (items["run.sh"]["old_kind"], items["run.sh"]["kind"]) == ("file", "executable")
    assert (items["link"]["old_target"], items["link"]["target"]) == ("train/1.png", "labels.csv")
    assert document["before"] == zoo.ok("resolve", "@v1").out.strip() and document["workspace"] is None
    whole = {**document, "folders": []}
    for item in whole["items"]:
        item |= {"lines": None, "table": None}
    assert_documented("diff", whole, without="locks")
    lines = zoo.ok("diff", "@v1", "@v2", "--jsonl").lines
    assert len(lines) == len(items)


def test_the_workspace_is_compared_with_its_base_and_with_another_commit(zoo: Dsv) -> None:
    assert zoo.ok("diff").out == "" and zoo("diff", "--exit-code").code == 0
    against_v1 = zoo.ok("diff", "@v1").lines
    assert against_v1 == zoo.ok("diff", "@v1", "@v2").lines
    write_files(zoo.cwd, {"train/1.png": b"ONE", "kind2": b"new"})
    (zoo.cwd / "train/two.png").rename(zoo.cwd / "train/2.png")
    assert zoo("diff", "--exit-code").code == 1
    assert zoo.ok("diff", "--name-status").lines == [
        "A\tkind2",
        "M\ttrain/1.png",
        "R100\ttrain/two.png\ttrain/2.png",
    ]
    now = zoo.ok("diff", "@v1", "--name-status").lines
    assert "M\ttrain/1.png" in now and "A\tkind2" in now
    assert not any("train/2.png" in line for line in now)  # as it was in v1
    assert zoo.ok("diff", "@v1", "--name-status", "--", "train").lines == ["M\ttrain/1.png", "D\ttrain/3.png"]
    below = zoo.at(zoo.cwd / "train")
    assert below.ok("diff", "--name-only", "--", "1.png").lines == ["train/1.png"]
    assert zoo.ok("diff", "--json").json["workspace"] == str(zoo.cwd)


def test_a_workspace_without_a_commit_is_compared_with_nothing(dsv: Dsv) -> None:
    write_files(dsv.cwd, {"a": b"1"})
    dsv.ok("init", "pets")
    done = dsv.ok("diff")
    assert done.lines == ["added     a  1 B"]
    assert "pets, empty -> " in done.err


def test_lines_of_texts(zoo: Dsv) -> None:
    write_files(zoo.cwd, {"labels.csv": NEW_LABELS + b"\x1b[2J,x\n", "train/1.png": b"\x00\x01"})
    assert zoo.ok("diff", "--text").lines == [
        "changed   labels.csv  41 B -> 48 B",
        "@@ -2,3 +2,4 @@",
        " a,cat,1",
        " b,cat,2",
        " d,dog,3",
        "+\\x1b[2J,x",
        "changed   train/1.png  3 B -> 2 B",
        "  size    3 B -> 2 B",
    ]
    coloured = zoo("diff", "--text", terminal=True).out
    assert "\x1b[32m+\\x1b[2J,x\x1b[0m" in coloured
    items = zoo.ok("diff", "--text", "--json").json["items"]
    assert items[0]["lines"][-1] == "+\x1b[2J,x" and items[1]["lines"] is None


def test_rows_and_columns_of_tables(zoo: Dsv) -> None:
    pytest.importorskip("pyarrow")
    assert zoo.ok("diff", "@v1", "@v2", "--table", "--key", "file", "--", "labels.csv").lines == [
        "changed   labels.csv  29 B -> 41 B",
        "  + column score (int64)",
        "  rows: 1 added, 1 removed, 1 changed",
        "  ~ file=b  label: dog -> cat",
        "  - file=c  label=cat",
        "  + file=d  label=dog  score=3",
    ]
    (item,) = zoo.ok("diff", "@v1", "@v2", "--table", "--json", "--", "labels.csv").json["items"]
    assert (item["table"]["rows_added"], item["table"]["rows_removed"]) == (2, 2)
    missing = zoo("diff", "@v1", "@v2", "--table", "--key", "nope")
    assert (missing.code, missing.out) == (2, "") and "no column nope" in missing.err


@pytest.mark.parametrize("key", [[], ["--key", "file"]])
def test_a_table_with_two_columns_of_one_name_is_refused(zoo: Dsv, key: list[str]) -> None:
    pytest.importorskip("pyarrow")
    write_files(zoo.cwd, {"labels.csv": b"file,file\na,cat\n"})
    done = zoo("diff", "@v1", "--table", *key, "--", "labels.csv")
    assert (done.code, done.out) == (9, "") and "several of its columns are named file" in done.err


def test_a_table_that_cannot_be_read_does_not_hide_the_others(zoo: Dsv) -> None:
    pytest.importorskip("pyarrow")
    write_files(zoo.cwd, {"bad.csv": b"file,label\na,cat\n"})
    zoo.ok("sync")
    write_files(zoo.cwd, {"bad.csv": b"file,file\na,cat\n", "labels.csv": NEW_LABELS + b"e,cat,9\n"})
    done = zoo("diff", "--table")
    assert done.code == 9 and "'bad.csv' can't be read as a table" in done.err
    assert "changed   bad.csv  17 B -> 16 B" in done.lines and "  rows: 1 added" in done.out
    listed = zoo("diff", "--table", "--jsonl")
    tables = {one["path"]: one["table"] for one in map(json.loads, listed.lines)}
    assert listed.code == 9 and tables["bad.csv"] is None and tables["labels.csv"]["rows_added"] == 1
    one_key = zoo("diff", "--table", "--key", "label", "--key", "file", "--exit-code", "--", "labels.csv")
    assert one_key.code == 1


def test_a_change_of_mode_alone_has_the_id_of_its_content(zoo: Dsv) -> None:
    (zoo.cwd / "run.sh").chmod(0o644)
    (item,) = map(json.loads, zoo.ok("diff", "--jsonl").lines)
    assert item["path"] == "run.sh" and item["id"] == item["old_id"] is not None


def test_without_pyarrow_tables_are_refused_with_the_command_that_helps(
    zoo: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv.diff.tables.find_spec", lambda name: None)
    done = zoo("diff", "@v1", "@v2", "--table")
    assert (done.code, done.out) == (9, "") and "hint: pip install pyarrow" in done.err


def test_many_paths_on_a_terminal_are_summed_up_by_folder(zoo: Dsv) -> None:
    write_files(zoo.cwd, {f"many/{n // 10}/{n}": b"%d" % n for n in range(60)})
    shown = zoo("diff", terminal=True, width=100)
    assert len(shown.out.splitlines()) == 8 and "dsv diff --all" in shown.err
    assert len(zoo("diff", "--all", terminal=True).out.splitlines()) == 60
    assert len(zoo.ok("diff").lines) == 60


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["@v1", "@v2", "--", "nope"], 3, "neither side has 'nope'"),
        (["--", "nope"], 3, "is neither in"),
        (["@v1", "@v2", "train"], 2, "hint: dsv diff @v1 @v2 -- train"),
        (["train/"], 2, "hint: paths follow after --: dsv diff -- train/"),
        (["@v1:train"], 2, "is about whole commits"),
        (["@v9"], 3, "no branch or tag v9"),
        (["--key", "file"], 2, "--key is for --table"),
        (["--text", "--stat"], 2, "can't be used together"),
        (["--dirs", "1", "--text"], 2, "--dirs and --text can't be used together"),
        (["--dirs", "1", "--table"], 2, "--dirs and --table can't be used together"),
        (["--dirs", "1", "--name-only"], 2, "--dirs and --name-only can't be used together"),
        (["--dirs", "1", "--name-status"], 2, "--dirs and --name-status can't be used together"),
    ],
)
def test_what_makes_no_sense_is_refused(zoo: Dsv, arguments: list[str], code: int, said: str) -> None:
    done = zoo("diff", *arguments)
    assert (done.code, done.out) == (code, ""), done
    assert said in done.err


def test_outside_a_workspace_two_commits_are_needed(zoo: Dsv) -> None:
    outside = zoo.at(zoo.home)
    refused = outside("diff", "zoo@v1")
    assert (refused.code, refused.out) == (2, "") and "two commits are needed" in refused.err
    assert outside.ok("diff", "zoo@v1", "zoo@v2", "--name-only", "--", "train").lines == [
        "train/3.png",
        "train/two.png",
    ]
    assert outside("diff").code == 3


def test_two_datasets_can_be_compared(zoo: Dsv) -> None:
    other = zoo.at(zoo.home / "other")
    write_files(other.cwd, {"labels.csv": NEW_LABELS})
    other.ok("init", "other")
    other.ok("sync")
    document = zoo.ok("diff", "other", "zoo@v2", "--json").json
    assert (document["before_dataset"], document["after_dataset"]) == ("other", "zoo")
    assert "labels.csv" not in {item["path"] for item in document["items"]}


def test_offline_commits_that_were_read_before_are_compared(zoo: Dsv) -> None:
    online = zoo.ok("diff", "@v1", "@v2").out
    zoo.ok("cache", "@v1")
    zoo.ok("cache", "@v2")
    assert zoo.ok("diff", "@v1", "@v2", "--offline").out == online


def test_a_name_that_is_no_utf8_is_reported(zoo: Dsv) -> None:
    os.close(os.open(os.fsencode(zoo.cwd) + b"/\xff", os.O_CREAT | os.O_WRONLY))
    done = zoo("diff", "--exit-code")
    assert done.code == 1 and "not compared: " in done.err
    for form in ("--json", "--jsonl"):
        told = zoo("diff", form)
        assert told.err == done.err and "not compared" not in told.out
