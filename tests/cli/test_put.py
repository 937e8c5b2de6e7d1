"""put, rm and mv: their text, their JSON, their exit codes."""

from __future__ import annotations

import io
import os
from contextlib import chdir

import pytest

from dsv.cli.app import run
from dsv.cli.terminal import Surroundings
from tests.kit.dsv import Dsv, assert_documented, write_files
from tests.privileges import modes_count


@pytest.fixture
def outside(pets: Dsv) -> Dsv:
    """Somebody who has no workspace of the dataset, in a folder with some files."""
    folder = pets.cwd.parent / "outside"
    write_files(folder, {"new.csv": b"1,2\n", "imgs/3.png": b"3", "imgs/deep/4.png": b"4"})
    return pets.at(folder)


def listed(dsv: Dsv, target: str = "pets") -> list[str]:
    return dsv.ok("ls", target).lines


def test_put_prints_the_commit_and_says_what_changed(outside: Dsv) -> None:
    done = outside.ok("put", "new.csv", "imgs", "pets:train/", "-m", "more")
    assert done.out == outside.ok("resolve", "pets").out
    assert "pets@main: 3 added; 7 files, " in done.err
    assert listed(outside, "pets:train") == [
        "train/1.png", "train/2.png", "train/imgs/3.png", "train/imgs/deep/4.png", "train/new.csv",
    ]  # fmt: skip
    newest = outside.ok("log", "pets", "--json").json["items"][0]
    assert newest["message"] == "more"
    again = outside.ok("put", "new.csv", "imgs", "pets:train/")
    assert again.out == done.out and "nothing changed; pets@main is at" in again.err


def test_two_sources_never_get_one_path(outside: Dsv) -> None:
    write_files(
        outside.cwd,
        {"a/x.csv": b"from a", "b/x.csv": b"from b", "a/img/1": b"A", "b/img/1": b"B", "b/img/2": b""},
    )
    before = outside.ok("resolve", "pets").out
    for first, second, name in (
        ("a/x.csv", "b/x.csv", ""),
        ("a/img", "b/img", "/1"),
        ("a/.", "b/x.csv", "/x.csv"),
    ):
        for more in ((), ("--no-clobber",), ("-n",)):
            done = outside("put", first, second, "pets:new/", *more)
            assert done.code == 2 and second in done.err and name in done.err, done
            assert "would both be 'new/" in done.err
    assert outside.ok("resolve", "pets").out == before
    outside.ok("put", "a/x.csv", "./a/x.csv", "b/img", "pets:new/")
    assert listed(outside, "pets:new") == ["new/img/1", "new/img/2", "new/x.csv"]


def test_two_paths_are_never_moved_to_one(outside: Dsv) -> None:
    outside.ok("put", "new.csv", "pets:a/x")
    outside.ok("put", "imgs/3.png", "pets:b/x")
    done = outside("mv", "pets:a/x", "pets:b/x", "c/", "--replace")
    assert done.code == 2 and "'a/x' and 'b/x' would both be 'c/x'" in done.err, done
    assert outside.ok("cat", "pets:a/x").out == "1,2\n" and outside.ok("cat", "pets:b/x").out == "3"


def test_a_pipe_of_the_shell_is_put(outside: Dsv) -> None:
    for name, code in (("new.txt", 0), ("", 2)):
        reading, writing = os.pipe()
        os.write(writing, b"of a command")
        os.close(writing)
        done = outside("put", f"/dev/fd/{reading}", f"pets:{name}")
        os.close(reading)
        assert done.code == code, done
    assert outside.ok("cat", "pets:new.txt").out == "of a command"
    assert "pets:NAME" in done.err or "NAME" in done.err, done


def test_a_message_is_made_of_what_was_done(outside: Dsv) -> None:
    outside.ok("put", "new.csv", "pets:")
    outside.ok("put", "new.csv", "imgs/.", "pets:x")
    outside.ok("rm", "pets:new.csv")
    outside.ok("mv", "pets:a.txt", "b.txt")
    messages = [item["message"] for item in outside.ok("log", "pets", "--json").json["items"][:4]]
    assert messages == ["move a.txt to b.txt", "remove new.csv", "put 2 paths", "put new.csv"]
    outside.at(outside.cwd / "imgs").ok("put", ".", "pets:y")
    assert outside.ok("log", "pets", "--json").json["items"][0]["message"] == "put imgs"


@pytest.mark.parametrize(
    "words",
    [
        ["put", "new.csv", "pets:labels.csv"],
        ["put", "new.csv", "pets:labels.csv", "--dry-run"],
        ["rm", "pets:train/", ":test/1.png", "--dry-run"],
        ["mv", "pets:train/1.png", "test/2.png", "-n"],
        ["mv", "pets:train/1.png", "pets:test/2.png"],
    ],
)
def test_json_is_as_documented(outside: Dsv, words: list[str]) -> None:
    before = outside.ok("resolve", "pets").out.strip()
    document = outside.ok(*words, "--json").json
    dry = words[-1] in ("--dry-run", "-n")
    assert_documented(words[0], document, without="" if dry else "items")
    assert document["parent"] == before and document["dry_run"] is dry and document["any_change"]
    assert (outside.ok("resolve", "pets").out.strip() == before) is dry


def test_a_dry_run_lists_every_path(outside: Dsv) -> None:
    assert outside.ok("put", "new.csv", "pets:a.txt", "-n").lines == ["changed  a.txt"]
    assert outside.ok("rm", "pets:t*/1.png", "-n").lines == ["removed  test/1.png", "removed  train/1.png"]
    done = outside.ok("mv", "pets:train", "new", "-n")
    assert done.lines == ["moved    train/1.png -> new/1.png", "moved    train/2.png -> new/2.png"]
    assert "pets@main would change: 2 moved; nothing was written" in done.err


def test_stdin_is_put(outside: Dsv) -> None:
    stdout, stderr = io.BytesIO(), io.StringIO()
    around = Surroundings(outside.environ, stdout, stderr, False, False, None, io.BytesIO(b"from a pipe"))
    with chdir(outside.cwd):
        assert run(["put", "-", "pets:piped"], around) == 0, stderr.getvalue()
    assert outside.ok("cat", "pets:piped").out == "from a pipe"
    refused = outside.process("put", "-", "pets:train/")
    assert refused.code == 2 and "end the path with the name of a file" in refused.err


@pytest.mark.parametrize(
    "words",
    [
        ["pets:a.txt", ":a.txt"],
        ["pets:train", ":train/1.png"],
        ["pets:train/", ":train/*.png", ":train"],
        ["pets:train/1.png", ":train/1.p*"],
    ],
)
def test_what_is_named_twice_is_removed_once(outside: Dsv, words: list[str]) -> None:
    before = listed(outside)
    done = outside.ok("rm", *words, "--json").json
    assert done["removed"] == len(before) - len(listed(outside)) > 0


def test_a_list_of_removals_may_name_a_folder_and_what_is_in_it(outside: Dsv) -> None:
    (outside.cwd / "list").write_bytes(b"train\ntrain/1.png\ntrain/1.png\n")
    outside.ok("rm", "--from-file", "list", "pets")
    assert listed(outside) == ["a.txt", "test/1.png"]


def test_many_moves_come_from_a_list(outside: Dsv) -> None:
    rows = '\ufeffold,new\r\ntrain/1.png,test/1.png\r\ntest/1.png,train/1.png\r\n\r\na.txt,"a,b.txt"\r\n'
    (outside.cwd / "moves.csv").write_text(rows, newline="")
    done = outside.ok("mv", "--from-file", "moves.csv", "pets", "--json").json
    assert (done["moved"], done["added"], done["removed"]) == (3, 0, 0)
    assert outside.ok("cat", "pets:train/1.png").out == "3"
    assert listed(outside) == ["a,b.txt", "test/1.png", "train/1.png", "train/2.png"]
    (outside.cwd / "gone.csv").write_text('path\n"a,b.txt"\ntrain/2.png\n')
    assert outside.ok("rm", "--from-file", "gone.csv", "pets@main", "--json").json["removed"] == 2
    assert listed(outside) == ["test/1.png", "train/1.png"]


def test_only_a_first_line_in_its_order_is_a_heading(outside: Dsv) -> None:
    for name in ("old", "new", "path"):
        outside.ok("put", "new.csv" if name == "new" else "imgs/3.png", f"pets:{name}")
    (outside.cwd / "list").write_text("new,old\nold,new\n")
    assert outside.ok("mv", "--from-file", "list", "pets", "--json").json["moved"] == 2
    assert outside.ok("cat", "pets:old").out == "1,2\n"
    (outside.cwd / "list").write_text("path\npath\nold\n")
    assert outside.ok("rm", "--from-file", "list", "pets", "--json").json["removed"] == 2
    (outside.cwd / "list").write_text("old,new\nnew,a.txt\n")
    assert "line 1 of list is not PATH" in outside("rm", "--from-file", "list", "pets").err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b,c\n", "line 1 of list is not OLD,NEW"),
        (b"old,new\na\n", "line 2 of list is not OLD,NEW"),
        (b'a,"b\n', "is not CSV"),
        (b"\xff,b\n", "is not UTF-8"),
        (b"old,new\n", "has no paths"),
    ],
)
def test_a_list_that_is_none_is_refused(outside: Dsv, content: bytes, message: str) -> None:
    (outside.cwd / "list").write_bytes(content)
    done = outside("mv", "--from-file", "list", "pets")
    assert done.code == 2 and message in done.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["put", "new.csv"], 2, "name what to put, and where"),
        (["put", "none.csv", "pets:"], 3, "there is no file or folder 'none.csv'"),
        (["put", "new.csv", "cats:"], 3, "there is no dataset cats"),
        (["put", "new.csv", "pets@v1:"], 2, "v1 is a tag"),
        (["put", "new.csv", "pets@nope:"], 3, "no branch nope"),
        (["put", "new.csv", "pets:train"], 0, ""),
        (["put", "new.csv", "pets:a.txt/"], 4, "'a.txt' is a file, so"),
        (["rm", "pets"], 2, "pets is not DATASET:PATH"),
        (
            ["rm", "new.csv"],
            2,
            "hint: in a workspace: rm new.csv, then dsv sync; without a workspace: dsv rm",
        ),
        (
            ["mv", "new.csv", "b"],
            2,
            "hint: in a workspace: mv new.csv NEW, then dsv sync; without a workspace:",
        ),
        (["rm", "pets:"], 2, "whole dataset"),
        (["rm", "pets:none"], 3, "'none' is not in pets@main\nhint: dsv ls pets@main lists the paths"),
        (["rm", "pets:a.txt", "cats:b"], 2, "another dataset or branch"),
        (["rm", "pets:*"], 0, ""),
        (["rm", "--from-file", "new.csv", "pets:a"], 2, "names a path"),
        (["rm", "--from-file", "none", "pets"], 2, "there is no list none"),
        (["mv", "pets:a.txt"], 2, "name the new path too"),
        (
            ["mv", "pets:a.txt", "train/1.png"],
            4,
            "'train/1.png' already exists\nhint: --replace replaces it",
        ),
        (["mv", "pets:a.txt", "train/1.png", "--replace"], 0, ""),
        (["mv", "pets:a.txt", "cats:a.txt"], 2, "another dataset or branch"),
        (["mv", "pets:a.txt", ":12:30.txt"], 0, ""),
        (["mv", "pets:a.txt", ":train", "test"], 0, ""),
    ],
)
def test_exit_codes(outside: Dsv, words: list[str], code: int, message: str) -> None:
    done = outside(*words)
    assert done.code == code and message in done.err, done


def test_a_dataset_without_a_commit_is_put_into(outside: Dsv) -> None:
    write_files(outside.cwd / "empty", {})
    (outside.cwd / "empty").mkdir()
    outside.at(outside.cwd / "empty").ok("init", "blank")
    refused = outside("rm", "blank:a")
    assert refused.code == 3 and "'a' is not in blank@main" in refused.err, refused
    outside.ok("put", "new.csv", "blank:")
    assert listed(outside, "blank") == ["new.csv"]
    outside.ok("put", "new.csv", "other:", "--create")
    assert listed(outside, "other") == ["new.csv"]


def test_a_workspace_brings_in_what_was_put(pets: Dsv, outside: Dsv) -> None:
    outside.ok("mv", "pets:train", "val")
    pets.ok("pull")
    assert (pets.cwd / "val/1.png").read_bytes() == b"1" and not (pets.cwd / "train").exists()


def test_weird_names_do_nothing_to_a_terminal(outside: Dsv) -> None:
    name = "a\n\x1b[31mb ü'\".png"
    (outside.cwd / name).write_bytes(b"x")
    (outside.cwd / "f\udcff").write_bytes(b"y")
    assert outside.ok("put", name, "pets:").code == 0
    assert "\\x1b" in outside.ok("rm", f"pets:{name}", "-n").out
    refused = outside("put", "f\udcff", "pets:")
    assert refused.code == 2 and "it is not UTF-8" in refused.err
    assert outside.ok("put", "f\udcff", "pets:fine").code == 0


def test_a_store_that_may_only_be_read_is_denied(outside: Dsv) -> None:
    store = outside.ok("config", "store").out.strip()
    for folder, _, _ in os.walk(store):
        os.chmod(folder, 0o555)
    try:
        with modes_count():
            for words in (["put", "new.csv", "pets:"], ["rm", "pets:a.txt"], ["mv", "pets:a.txt", "b"]):
                done = outside(*words)
                assert done.code == 8 and "not write to it" in done.err, done
            assert outside("rm", "pets:a.txt", "--dry-run").code == 0
    finally:
        for folder, _, _ in os.walk(store):
            os.chmod(folder, 0o755)


def test_several_editors_at_once_all_land(outside: Dsv) -> None:
    """Processes that put different files on one branch at the same time; none fails as another was faster."""
    files = {f"by-{n}.txt": b"%d" % n for n in range(6)}
    write_files(outside.cwd, files)
    started = [outside.start("put", name, "pets:many/", "--json") for name in files]
    for process in started:
        _, err = process.communicate()
        assert process.returncode == 0, err
    assert listed(outside, "pets:many") == [f"many/{name}" for name in sorted(files)]
