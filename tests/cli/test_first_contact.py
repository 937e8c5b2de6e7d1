"""What a new user types, and whether the answer leads on."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv.cli.catalogue import COMMANDS, root_help
from dsv.cli.declare import load
from dsv.cli.parser import OTHER_NAMES, root
from tests.kit.dsv import Dsv, made_once, write_files


@pytest.fixture
@made_once
def pets(dsv: Dsv) -> Dsv:
    write_files(dsv.cwd, {"labels.csv": b"a,b\n", "val/cat/1.txt": b"1\n"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    return dsv


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("config --list", "dsv config"),
        ("datasets --size", "dsv datasets shows the sizes"),
        ("delete", "dsv datasets --delete deletes a dataset, dsv rm files"),
        ("remote", "dsv config store shows the store"),
        ("login", "there is nothing to log in to"),
        ("stash", "dsv sync --new-branch NAME"),
        ("branches", "dsv branch\n"),
        ("undo", "dsv restore gives up your changes; dsv revert undoes one commit"),
        ("cancel", "dsv stop RUN\n"),
        ("mount", "ratarmount dsv://DATASET@REV DIR mounts a commit"),
        (
            "rm labels.csv",
            "in a workspace: rm labels.csv, then dsv sync; without a workspace: dsv rm DATASET:PATH",
        ),
        ("cp a.txt b.txt", "dsv put copies files into a dataset"),
        ("fsck", "dsv verify checks a store, dsv cached --check a cache"),
        ("push", "dsv sync\n"),
        ("ls val", "did you mean :val?"),
        ("log labels.csv", "did you mean :labels.csv? For dsv log and dsv diff: -- labels.csv"),
        ("show labels.csv", "did you mean :labels.csv?"),
        ("diff labels.csv", "did you mean :labels.csv? For dsv log and dsv diff: -- labels.csv"),
        ("diff HEAD~1", "write @main~1 for the commit"),
        ("diff @HEAD~1", "dsv has no HEAD: @main is the newest commit of main"),
        ("diff @v1..@v2", "write v2, as in @v1.0..v2\n"),
        ("--store ./val ls pets", "dsv config store shows where it is sought"),
        ("cat labels.csv", "dsv cat :labels.csv\n"),
    ],
)
def test_what_other_tools_call_it_leads_on(pets: Dsv, line: str, hint: str) -> None:
    done = pets(*line.split())
    assert done.code in (2, 3) and done.out == "", done
    assert f"hint: {hint}" in done.err


def test_no_name_of_another_tool_is_a_command_of_ours() -> None:
    assert not set(OTHER_NAMES) & set(COMMANDS)


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_every_command_and_option_in_a_hint_is_there(name: str) -> None:
    words = [word.strip("';,") for word in OTHER_NAMES[name].split()]
    assert words
    command = ""
    for before, word in zip(["", *words], words, strict=False):
        if before == "dsv" and word not in ("can't", "keeps"):
            command = word
            assert word in COMMANDS, word
        elif word.startswith("-"):
            options = [option for param in load(command).parameters for option in param.opts]
            assert word in options, (command, word)
    assert root() is not None


@pytest.mark.parametrize("width", [60, 70, 80])
def test_help_fits_the_terminal(dsv: Dsv, width: int) -> None:
    shown = root_help(width).partition("\nExamples:")[0]
    assert max(len(line) for line in shown.splitlines()[3:]) <= width
    words = " ".join(root_help(80).split())
    assert " ".join(root_help(width).split()) == words
    assert dsv("--quiet", "--help", width=width).out == root_help(width)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("sync", "--allow-removals Publish even if most files, or a whole top-level folder, are gone."),
        ("branch", "--max-removals PERCENT With --protect: no move removes more of its paths."),
        ("branch", "--force Delete a branch whose commits have no other name;"),
        ("tag", "--delete NAME Delete this tag of the dataset named after it, or else of the workspace's."),
        ("copy", "--history N|all Of each branch, copy the content of the last N commits."),
        ("cached", "--repair / --no-repair With --check: also remove files that were never committed,"),
        ("du", "--by-folder DEPTH Show folders of one target to this depth."),
        ("bench", "An MLPerf model."),
        ("bench", "Simulated GPU (default: newest)."),
        (
            "status",
            "this shows what it answered to the last command that asked it from here, and how long ago",
        ),
    ],
)
def test_help_says_what_an_option_takes_and_when_it_is_needed(dsv: Dsv, command: str, words: str) -> None:
    assert words in " ".join(dsv.ok(command, "--help").out.split())


def test_a_store_that_nobody_set_up_is_no_missing_mount(dsv: Dsv) -> None:
    done = dsv("datasets")
    assert done.code == 3
    assert done.err.startswith("error: no store is set up for you yet\nhint: dsv config store URL ")


def test_init_without_a_store_says_that_it_is_private_and_how_to_choose(dsv: Dsv) -> None:
    said = dsv.ok("init", "pets").err
    assert "choose another store first:\n  rm -r " in said
    assert "only you can see it" in said and f"rm -r {dsv.cwd}/.dsv; dsv init pets --store" in said
    (dsv.home / "birds").mkdir()
    shared = dsv.at(dsv.home / "birds").ok("init", "--store", str(dsv.home / "shared"))
    assert "nobody else" not in shared.err


def test_a_workspace_of_another_store_says_how_to_unbind_it(pets: Dsv) -> None:
    for line in (["init", "pets", "--store", "../other"], ["init", "birds"]):
        done = pets(*line)
        assert done.code == 4
        assert f"rm -r {pets.cwd}/.dsv" in done.err, done


def test_a_deleted_tag_is_said_to_be_deleted_at_whichever_commit(pets: Dsv) -> None:
    pets.ok("tag", "v1.0")
    pets.ok("tag", "--delete", "v1.0", "--force")
    same = pets("tag", "v1.0")
    write_files(pets.cwd, {"new.txt": b"new\n"})
    pets.ok("sync")
    other = pets("tag", "v1.0")
    assert (same.code, other.code) == (4, 4)
    assert same.err == other.err
    assert "tag v1.0 of pets was deleted, and its name cannot be reused" in other.err


def test_a_name_that_is_none_gets_one_that_is_near(pets: Dsv) -> None:
    assert "hint: such as my-tag\n" in pets("tag", "my tag").err
    assert "hint: such as gr-n\n" in pets("tag", "gr\u00fcn").err
    assert "hint:" not in pets("tag", "???").err


def test_the_first_commit_has_none_before_it(pets: Dsv) -> None:
    assert "pets@main is the first commit, so there is no pets@main~1" in pets("log", "@main~1").err


def test_a_reader_who_may_not_write_gets_an_error_that_says_so(
    pets: Dsv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsv.errors import Denied
    from dsv.stores.directory import DirectoryStore

    put = DirectoryStore.put_if_absent

    def refuse(self: DirectoryStore, key: str, data: bytes) -> object:
        if key.startswith("sessions/"):
            raise Denied(f"{key} was refused: Permission denied", hint="ls -ld")
        return put(self, key, data)

    monkeypatch.setattr(DirectoryStore, "put_if_absent", refuse)
    write_files(pets.cwd, {"new.txt": b"new\n"})
    done = pets("sync")
    assert done.code == 8
    assert f"you can read {pets.home}/.local/share/dsv/store but not write to it" in done.err


def test_version_is_a_command_too(dsv: Dsv) -> None:
    assert dsv.process("version").out == dsv.process("--version").out


def test_without_the_store_the_hint_says_what_the_cache_can_do(pets: Dsv) -> None:
    store = pets.home / ".local/share/dsv/store"
    there = pets.ok("cache", "@main").out
    store.rename(pets.home / "away")
    done = pets("cache", "@main")
    assert done.code == 6
    assert "hint: the cache knows @main: --offline uses it as last seen; " in done.err
    assert pets.ok("cache", "@main", "--offline").out == there
    assert "--offline" not in pets("cache", "@never").err
    folder = Path(pets.ok("cache", "@main", "--offline").out.strip())
    assert (folder / "labels.csv").read_bytes() == b"a,b\n"
