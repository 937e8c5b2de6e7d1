"""Lock files: `dsv lock`, and what reads them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsv.api.lock_files import read_lock
from dsv.errors import UsageError
from tests.cli.detached import here
from tests.kit.dsv import Dsv, assert_documented, write_files

__all__ = ["here"]

A, B = "a" * 64, "b" * 64


@pytest.fixture
def two(here: Dsv) -> Dsv:
    """Outside of a workspace, with `pets@v1` and the dataset `team/labels`, which has a folder `new`."""
    write_files(here.cwd, {"l/labels.csv": b"1\n", "l/new/a=b:c\x1b": b"x"})
    here.ok("put", "l/labels.csv", "l/new", "team/labels:", "--create")
    return here


def lock(dsv: Dsv, *targets: str, name: str = "data.lock") -> str:
    text = dsv.ok("lock", *targets).out
    (dsv.cwd / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    return text


def commit(dsv: Dsv, target: str) -> str:
    return dsv.ok("resolve", target).out.strip()


def test_a_lock_file_has_sorted_lines_with_full_ids(two: Dsv) -> None:
    pets, labels = commit(two, "pets@v1"), commit(two, "team/labels")
    text = lock(two, "team/labels:new/a=b:c\x1b", "team/labels", "pets@v1", "pets@v1:./train/")
    assert text == (
        f"pets@{pets}\npets@{pets}:train\nteam/labels@{labels}\nteam/labels@{labels}:new/a=b:c\x1b\n"
    )
    assert lock(two, "pets@main~1:train", "pets@v1", f"team/labels@{labels[:9]}", "team/labels:new/a=b:c\x1b",
                "pets@v1") == text, "the same commits make the same file"  # fmt: skip
    document = two.ok("lock", "team/labels:new", "pets@v1", "--json").json
    assert document["items"] == [
        {"dataset": "pets", "commit": pets, "path": None},
        {"dataset": "team/labels", "commit": labels, "path": "new"},
    ]
    assert_documented("lock", document)


@pytest.mark.parametrize(
    ("targets", "code", "said"),
    [
        (("pets@v9",), 3, "v9"),
        (("pets@v1:trian",), 3, "trian is not in pets@"),
        (("pets@v1", "pets@main"), 2, "a lock file can't have two commits of pets"),
        (("pets@v1:a\nb",), 2, "line break"),
        (("pets@v1:a\r",), 2, "line break"),
        ((), 2, "needs TARGET"),
    ],
)
def test_what_can_not_be_locked(two: Dsv, targets: tuple[str, ...], code: int, said: str) -> None:
    done = two("lock", *targets)
    assert (done.code, done.out, said in done.err) == (code, "", True), done


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "data.lock names no data"),
        ("# nothing\n\n", "data.lock names no data"),
        (f"pets@{A}\npets@v1\n", "line 2 of data.lock is no DATASET@COMMIT"),
        (f"pets@{A[:12]}\n", "line 1 of data.lock is no DATASET"),
        (f"pets@{A.upper()}\n", "line 1 of data.lock is no DATASET"),
        (f"@{A}\n", "line 1 of data.lock is no DATASET"),
        (f"a b@{A}\n", "'a b' is not a name for a dataset"),
        (f"pets@{A}:\n", "line 1 of data.lock is no DATASET"),
        (f" pets@{A}\n", "' pets' is not a name"),
        (
            f"<<<<<<< HEAD\npets@{A}\n=======\npets@{B}\n>>>>>>> x\n",
            "line 1 of data.lock marks a conflict that git",
        ),
        (f"pets@{A}\n=======\npets@{B}\n", "line 2 of data.lock marks a conflict that git"),
        (f"pets@{A}\npets@{B}\n", "data.lock can't have two commits of pets"),
        ("\0\x1b[31m\n", "'\\x00\\x1b[31m'"),
    ],
)
def test_a_file_that_is_no_lock_file_is_refused(two: Dsv, text: str, said: str) -> None:
    (two.cwd / "data.lock").write_text(text)
    for argv in (
        ("cache", "--lock", "data.lock"),
        ("clone", "pets", "--lock", "data.lock"),
        ("run", "pets", "--data", "@data.lock", "--", "touch", "ran"),
        ("with", "pets", "--data", "@data.lock", "--", "touch", "ran"),
    ):
        done = two(*argv)
        assert (done.code, done.out, said in done.err) == (2, "", True), done
        assert "hint: " in done.err
    assert not (two.cwd / "ran").exists() and not (two.cwd / "pets").exists()


def test_comments_other_line_ends_repeated_and_unsorted_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "data.lock"
    file.write_bytes(
        f"\ufeffz@{A}\r\n# why\r\n\r\na@{B}:x y=\r\nz@{A}\r\na@{B}:\udcff".encode("utf-8", "surrogateescape")
    )
    assert [str(line) for line in read_lock(file).values()] == [f"a@{B}:x y=", f"a@{B}:\udcff", f"z@{A}"]
    file.write_bytes(b"")
    assert read_lock(file, may_be_empty=True) == {}
    with pytest.raises(UsageError, match="/dev/zero is too large"):
        read_lock(Path("/dev/zero"))
    with pytest.raises(UsageError):
        read_lock(file)


def test_cache_and_clone_take_the_commits_of_a_lock_file(two: Dsv) -> None:
    lock(two, "team/labels", "pets@v1:train", "pets@v1")
    v1 = commit(two, "pets@v1")
    two.ok("put", "l/labels.csv", "pets:more.csv")
    lines = two.ok("cache", "team/labels:new", "--lock", "data.lock").lines
    assert len(lines) == 4 and lines[1].endswith(f"/pets/{v1}") and (Path(lines[3]) / "labels.csv").is_file()
    assert (Path(lines[2]) / "train").is_dir() and not (Path(lines[1]) / "more.csv").exists()
    assert two.ok("cache", "--lock", "data.lock", "--offline").lines == lines[1:]
    two.ok("clone", "pets", "mine", "--lock", "data.lock")
    mine = two.at(two.cwd / "mine")
    assert mine.ok("resolve").out.strip() == v1 and not (mine.cwd / "more.csv").exists()
    mine.ok("pull")
    assert (mine.cwd / "more.csv").exists(), "it follows main"
    for target, said in (("dogs", "data.lock has no line for dogs"), ("pets@main", "no line for pets@main")):
        done = two("clone", target, "other", "--lock", "data.lock")
        assert done.code == 3 and said in done.err and f"hint: dsv lock {target}" in done.err
    done = two("cache", "--lock", "gone.lock")
    assert done.code == 3 and "hint: dsv lock TARGET... > gone.lock" in done.err
    assert two("cache", "--hold", "1h").code == 2


def test_a_line_whose_commit_the_store_lacks_or_has_expired_says_which(two: Dsv) -> None:
    (two.cwd / "data.lock").write_text(f"pets@{A}\n")
    done = two("cache", "--lock", "data.lock")
    assert done.code == 3 and f"there is no commit {A}" in done.err
    two.ok("put", "l/labels.csv", "pets:labels.csv")
    expired = lock(two, "pets@main")[5:17]
    two.ok("put", "l/labels.csv", "pets:more.csv")
    two.ok("expire", "pets", "--keep-last", "1")
    done = two("cache", "--lock", "data.lock")
    assert done.code == 3 and f"commit {expired} of pets was expired" in done.err, done


SHOW = 'cat "$DSV_DATA/a.txt"; ls "$DSV_DATA_LABELS" "$DSV_DATA_NEW"; env | grep -c ^DSV_DATA_'


def test_a_run_gets_every_line_under_the_last_part_of_what_it_names(two: Dsv) -> None:
    lock(two, "pets@v1", "team/labels", "team/labels:new")
    v1 = commit(two, "pets@v1")
    two.ok("put", "l/labels.csv", "pets:a.txt")
    for command in ("run", "with"):
        done = two.process(command, "pets", "--data", "@data.lock", "--", "sh", "-c", SHOW)
        assert done.code == 0, done
        assert "1\n" not in done.out.splitlines()[0] and done.out.rstrip().endswith("2"), done
    record = two.ok("runs", "--json").json["items"][0]
    assert record["commit"] == v1 and [
        (data["name"], data["dataset"], data["path"]) for data in record["data"]
    ] == [("", "pets", None), ("labels", "team/labels", None), ("new", "team/labels", "new")]
    lock(two, "pets@v1", name="one.lock")
    done = two.process("run", "pets", "--data", "@one.lock", "--", "sh", "-c", 'cat "$DSV_DATA/a.txt"')
    assert (done.code, done.out) == (0, "alpha\n")
    done = two.process("run", "pets@v1", "--data", "@data.lock", "--", "sh", "-c", "env | grep -c ^DSV_DATA_")
    assert done.out == "3\n", "with a revision the target is not the line's"
    lock(two, "pets:train", "team/labels", "team/labels:new")
    write_files(two.cwd, {"new/x": b""})
    two.ok("put", "new", "pets:")
    lock(two, "pets:new", "team/labels:new")
    done = two("run", "pets", "--data", "@data.lock", "--", "true")
    assert done.code == 2 and "two --data give the variable DSV_DATA_NEW" in done.err


def test_all_runs_of_a_sweep_get_what_the_file_named_when_it_began(two: Dsv) -> None:
    lock(two, "pets@v1", "team/labels")
    v1 = commit(two, "pets@v1")
    two.ok("put", "l/labels.csv", "pets:more.csv")
    lock(two, "pets@main", "team/labels", name="new.lock")
    swap = f"mv {two.cwd}/new.lock {two.cwd}/data.lock 2>/dev/null; test -e $DSV_DATA_LABELS/labels.csv"
    argv = ("run", "pets", "--data", "@data.lock", "-p", "a=1,2", "--sweep", "--", "sh", "-c", swap)
    done = two.process(*argv)
    assert done.code == 0, done
    assert {item["commit"] for item in two.ok("runs", "--json").json["items"]} == {v1}
    assert not (two.cwd / "new.lock").exists()


def test_diff_says_for_each_dataset_what_changed(two: Dsv) -> None:
    old = lock(two, "pets", "pets:train", "team/labels:new", name="old.lock")
    before, labels = commit(two, "pets"), commit(two, "team/labels")
    two.ok("put", "l/labels.csv", "pets:train/more.csv")
    main = commit(two, "pets")
    lock(two, "pets", "pets:train", "team/labels")
    done = two("diff", "old.lock", "data.lock", "--exit-code")
    added = "added     train/more.csv  2 B"
    assert done.code == 1 and done.lines[:5] == [
        f"pets: {before[:12]} -> {main[:12]}: 1 added; +2 B", added,
        f"pets:train: {before[:12]} -> {main[:12]}: 1 added; +2 B", added,
        f"team/labels@{labels}: added",
    ]  # fmt: skip
    assert done.lines[5:] == [f"team/labels@{labels}:new: removed"]
    assert "FOLDER" in two.ok("diff", "./old.lock", f"{two.cwd}/data.lock", "--stat").out
    assert "+1" in two.ok("diff", "old.lock", "data.lock", "--text").lines
    document = two("diff", "old.lock", "data.lock", "--json", "--exit-code")
    assert document.code == 1
    by_target = {each["target"]: each for each in document.json["locks"]}
    assert list(by_target) == ["pets", "pets:train", "team/labels", "team/labels:new"]
    assert (by_target["pets"]["before"], by_target["pets"]["after"]) == (before, main)
    assert [item["path"] for item in by_target["pets:train"]["items"]] == ["train/more.csv"]
    assert by_target["team/labels"] == {"target": "team/labels", "before": None, "after": labels, "items": []}
    same = two("diff", "old.lock", "old.lock", "--exit-code")
    assert (same.code, same.out) == (0, "")
    gone = two.ok("diff", "old.lock", "/dev/null").lines
    assert gone == [f"{line}: removed" for line in old.splitlines()]
    for argv in (("old.lock",), ("old.lock", "pets"), ("old.lock", "data.lock", "--name-only"),
                 ("old.lock", "data.lock", "--jsonl"), ("old.lock", "data.lock", "--", "train")):  # fmt: skip
        refused = two("diff", *argv)
        assert (refused.code, refused.out) == (2, "") and "hint: dsv diff OLD.lock NEW.lock" in refused.err


def test_a_comment_has_a_block_for_each_dataset_in_which_nothing_is_markup(two: Dsv) -> None:
    odd = "new/**b** @all <img> ``` \u202e"
    write_files(two.cwd, {f"l/{odd}": b"x"} | {f"many/{number}": b"1" for number in range(60)})
    two.ok("put", "l/new", "team/a__b.c-d:", "--create")
    before = commit(two, "pets"), commit(two, "team/a__b.c-d")
    lock(two, "pets", "team/labels", "team/a__b.c-d", f"team/a__b.c-d:{odd}", name="old.lock")
    two.ok("put", "many", "pets:")
    two.ok("put", "l/labels.csv", f"team/a__b.c-d:{odd}")
    after = commit(two, "pets"), commit(two, "team/a__b.c-d")
    lock(two, "pets", "team/a__b.c-d", f"team/a__b.c-d:{odd}")
    done = two("diff", "old.lock", "data.lock", "--markdown", "--exit-code")
    shown = odd.replace("\u202e", "\\u202e")
    listed = [f"added     many/{name}  1 B" for name in sorted(map(str, range(60)))]
    short = [f"{old[:12]} -> {new[:12]}" for old, new in zip(before, after, strict=True)]
    assert done.code == 1 and done.lines == [
        "**60 added; +60 B**", "", "```", f"pets: {short[0]}", "", "many/  60 added; +60 B", "", *listed[:50],
        "and 10 more", "```",
        "**1 changed; +1 B**", "", "```", f"team/a__b.c-d: {short[1]}", "```",
        "**1 changed; +1 B**", "", "````", f"team/a__b.c-d:{shown}: {short[1]}", "````",
        "**removed**", "", "```", f"team/labels@{commit(two, 'team/labels')}", "```",
    ]  # fmt: skip
    (two.cwd / "empty.lock").write_bytes(b"")
    added = two.ok("diff", "empty.lock", "data.lock", "--markdown").lines
    assert added[:5] == ["**added**", "", "```", f"pets@{after[0]}", "```"] and added[10:13] == [
        "**added**",
        "",
        "````",
    ]
    assert two.ok("diff", "old.lock", "old.lock", "--markdown").out == "**no differences**\n"
    write_files(two.cwd, {"many/" + "d" * 200 + "/" + "e" * 200: b"12"})
    two.ok("put", "many/.", "pets:many")
    lock(two, "pets", name="new.lock")
    assert max(map(len, two.ok("diff", "data.lock", "new.lock", "--markdown").lines)) == 301


def test_a_dataset_may_still_be_called_like_a_lock_file(two: Dsv) -> None:
    two.ok("put", "l/labels.csv", "x.lock:", "--create")
    assert two.ok("diff", "x.lock@main", "x.lock@main").out == ""


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_shows_what_changed_in_the_data(two: Dsv) -> None:
    """The two lines of docs/guide/lock-files.md."""

    def git(*argv: str) -> str:
        name = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(
            ["git", *name, *argv], cwd=two.cwd, env=dict(two.environ), text=True, capture_output=True
        )
        assert done.returncode == 0, done
        return done.stdout

    git("init", "-q")
    v1 = lock(two, "pets@v1", "team/labels").splitlines()[0]
    git("add", "data.lock")
    git("commit", "-qm", "1")
    two.ok("put", "l/labels.csv", "pets:more.csv")
    main = lock(two, "pets", "team/labels").splitlines()[0]
    plain = [
        line
        for line in git("diff", "-U0").splitlines()
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    assert plain == [f"-{v1}", f"+{main}"]
    page = (Path(__file__).parents[2] / "docs/guide/lock-files.md").read_text("utf-8")
    lines = [
        line.strip()
        for line in page.splitlines()
        if line.startswith(("    echo '*.lock", "    git config diff"))
    ]
    assert len(lines) == 2
    path = f"{Path(sys.executable).parent}:{two.environ['PATH']}"
    for line in lines:
        subprocess.run(["sh", "-c", line], cwd=two.cwd, env=dict(two.environ), check=True)
    env = {**two.environ, "PATH": path}
    done = subprocess.run(["git", "diff"], cwd=two.cwd, env=env, text=True, capture_output=True, check=True)
    assert "added     more.csv  2 B" in done.stdout.splitlines(), done
