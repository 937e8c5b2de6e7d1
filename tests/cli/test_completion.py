"""Completion of command lines: what is offered, by real shells too, and from what this machine knows alone."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dsv.cli.catalogue import COMMANDS, HIDDEN
from dsv.cli.commands.completion import complete, split
from dsv.stores.directory import DirectoryStore
from tests.kit.dsv import PROGRAM, Dsv, write_files
from tests.waiting import PATIENCE


def offered(dsv: Dsv, *words: str) -> list[str]:
    """The words that may take the place of the last one."""
    result = dsv.at(dsv.cwd, _DSV_COMPLETE="fish").process(*words)
    assert (result.code, result.err) == (0, "")
    return [row.partition("\t")[0] for row in result.lines[1:]]


def otherwise(dsv: Dsv, *words: str) -> str:
    return dsv.at(dsv.cwd, _DSV_COMPLETE="fish").process(*words).lines[0]


def test_commands_and_options_are_completed(dsv: Dsv) -> None:
    assert offered(dsv, "re") == [name for name in COMMANDS if name.startswith("re")]
    assert {"--unset", "--store"} <= set(offered(dsv, "config", "--"))
    assert offered(dsv, "--st") == ["--store"]
    assert offered(dsv, "--store", "x", "sta") == ["status"]
    assert offered(dsv, "--progress", "") == ["auto", "bar", "lines", "json", "none"]
    assert offered(dsv, "--progress=l") == ["--progress=lines"]
    assert offered(dsv, "unknown", "") == []
    assert offered(dsv) == [name for name in COMMANDS if name not in HIDDEN]
    assert offered(dsv, "demo", "--engine", "p") == ["podman", "process"]
    assert offered(dsv, "completion", "z") == ["zsh"]


def test_names_are_completed(pets: Dsv) -> None:
    assert {"pets@main", "pets@v1", "pets@v2"} <= set(offered(pets, "ls", "pets@"))
    assert offered(pets, "ls", "pets@v") == ["pets@v1", "pets@v2"]
    assert offered(pets, "cat", "@v") == ["@v1", "@v2"]
    pets.ok("put", "a.txt", "other:", "--create")
    assert offered(pets, "ls", "") == ["pets", "other"]
    for typed in ("pe", "pets"):  # not "pets" alone, as the shell would put a space behind it
        assert {"pets", "pets@v1"} <= set(offered(pets, "ls", typed))
    assert offered(pets, "expire", "pe") == ["pets"]
    assert offered(pets, "tag", "--delete", "v") == ["v1", "v2"]


def test_commits_are_completed_with_their_message(pets: Dsv) -> None:
    write_files(pets.cwd, {"b.txt": b"new\n"})
    pets.ok("sync", "-m", "A message\nof two lines")
    commit = json.loads(pets.ok("log", "--json").out)["items"][0]["commit"][:12]
    answer = pets.at(pets.cwd, _DSV_COMPLETE="fish").process("ls", f"@{commit[:3]}").lines
    assert f"@{commit}\tA message" in answer


def test_paths_of_a_cached_commit_and_of_the_workspace_are_completed(pets: Dsv) -> None:
    assert offered(pets, "ls", "pets:") == ["pets:a.txt", "pets:test/", "pets:train/"]
    pets.ok("cache", "pets@v1")
    elsewhere = pets.at(pets.cwd.parent)
    assert offered(elsewhere, "ls", "pets@v1:tr") == ["pets@v1:train/"]
    assert offered(elsewhere, "ls", "pets@v1:train/") == ["pets@v1:train/1.png", "pets@v1:train/2.png"]
    assert offered(elsewhere, "ls", "pets@v2:tr") == []  # not known here without asking


def test_names_that_a_command_has_read_from_a_bucket_are_completed(pets: Dsv, tmp_path: Path) -> None:
    pets.ok("datasets")
    pets.ok("log", "pets@v1")
    away = pets.at(tmp_path, DSV_STORE="s3://nowhere/dsv", DSV_CACHE=str(tmp_path / "none"))
    assert "pets" in offered(away, "ls", "p")
    assert "pets@v1" in offered(away, "ls", "pets@v")


def test_a_folder_that_does_not_answer_is_not_waited_for(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other known names are offered. Such a folder lies on a file server that is away."""
    back, asked = threading.Event(), list[str]()

    def folders(store: DirectoryStore, prefix: str) -> list[str]:
        asked.append(prefix)
        back.wait()
        return []

    monkeypatch.setattr(DirectoryStore, "folders", folders)
    monkeypatch.chdir(pets.cwd)
    try:
        for seconds in ("1", "10", "60"):  # until the machine is fast enough for what else is known
            asked.clear()
            found = complete(["ls", ""], {**pets.environ, "DSV_COMPLETION_SECONDS": seconds})[1]
            if found and asked:
                break
        assert found[0] == ("pets", "") and len(asked) == 1
    finally:
        back.set()


def test_a_name_that_has_gone_is_offered_no_more(pets: Dsv, tmp_path: Path) -> None:
    away = pets.at(tmp_path, DSV_STORE="s3://nowhere/dsv", DSV_CACHE=str(tmp_path / "none"))
    pets.ok("log")
    assert "pets@v2" in offered(away, "ls", "pets@")
    pets.ok("tag", "--delete", "v2", "--force")
    pets.ok("log")
    assert "pets@v2" not in offered(away, "ls", "pets@")


def test_deleted_branches_and_tags_of_a_folder_are_offered_no_more(pets: Dsv) -> None:
    """Nor are those that others have deleted, which this machine has recorded as existing."""
    for branch in ("gone", "renamed", "back", "cached"):
        pets.ok("branch", branch)
    pets.ok("log", "@gone")
    pets.ok("cache", "@cached")
    other = pets.at(pets.cwd, XDG_CACHE_HOME=str(pets.home / "another"))
    for branch in ("gone", "back", "cached"):
        other.ok("branch", "--delete", branch)
    other.ok("branch", "--move", "renamed", "now")
    other.ok("branch", "--restore", "back")
    other.ok("tag", "--delete", "v1", "--force")
    other.ok("branch", "--protect", "back")  # the rule is a file beside the moves
    assert offered(pets, "branch", "--delete", "") == ["back", "main", "now"]
    assert offered(pets, "tag", "--delete", "") == ["v2"]


def test_a_branch_of_a_bucket_is_offered_from_its_making_to_its_end(pets: Dsv, tmp_path: Path) -> None:
    """Nothing lists the branches meanwhile."""
    away = pets.at(tmp_path, DSV_STORE="s3://nowhere/dsv")
    pets.ok("log")
    pets.ok("branch", "tried")
    pets.ok("cache", "@tried")
    assert "pets@tried" in offered(away, "ls", "pets@")
    pets.ok("branch", "--delete", "tried")
    assert "pets@tried" not in offered(away, "ls", "pets@")
    pets.ok("branch", "--restore", "tried")
    assert "pets@tried" in offered(away, "ls", "pets@")
    pets.ok("tag", "--delete", "v1", "--force")
    assert "pets@v1" not in offered(away, "ls", "pets@")


def test_stores_caches_and_settings_are_completed(dsv: Dsv) -> None:
    dsv.ok("config", "stores.lake.url", "s3://lake/dsv")
    dsv.ok("config", "caches.gpu.path", "/nfs/gpu")
    assert offered(dsv, "--store", "") == ["lake"]
    assert offered(dsv, "--cache=") == ["--cache=gpu"]
    assert offered(dsv, "config", "st") == ["store", "stores.lake.url"]


def test_files_and_folders_are_left_to_the_shell(pets: Dsv) -> None:
    assert otherwise(pets, "sync", "") == "files"
    assert otherwise(pets, "clone", "pets", "") == "folders"
    assert otherwise(pets, "run", "pets", "--", "") == "files"
    assert otherwise(pets, "ls", "") == "words"


@pytest.mark.parametrize("broken", ["[", '{"tags": 3}', '{"tags": {"a": 3}}', "\0"])
def test_what_can_not_be_read_is_left_out(pets: Dsv, broken: str) -> None:
    pets.ok("log")
    (found,) = (pets.home / ".cache/dsv/.dsv/stores").glob("*/tracking/pets.json")
    found.write_text(broken)
    assert "pets" in offered(pets, "ls", "")
    (pets.cwd / ".dsv/config.toml").write_text(broken)
    offered(pets, "ls", "@")
    pets.at(pets.cwd.parent).ok("log", "pets")  # and is written anew
    assert json.loads(found.read_text())["tags"].keys() == {"v1", "v2"}


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("dsv ", ["dsv", ""]),
        ("dsv ls 'a b", ["dsv", "ls", "a b"]),
        ('dsv "a\\"b" c', ["dsv", 'a"b', "c"]),
        ("dsv a\\ b", ["dsv", "a b"]),
        ("dsv ''  x ", ["dsv", "", "x", ""]),
    ],
)
def test_a_line_is_split_as_shells_split_it(typed: str, words: list[str]) -> None:
    assert split(typed) == words


def program_folder(dsv: Dsv, folder: Path) -> str:
    """A folder with a program `dsv`, for PATH."""
    folder.mkdir(exist_ok=True)
    program = folder / "dsv"
    program.write_text("#!/bin/sh\nexec " + " ".join(PROGRAM) + ' "$@"\n')
    program.chmod(0o755)
    return f"{folder}:{dsv.environ['PATH']}"


def in_shell(dsv: Dsv, shell: str, script: str, tmp_path: Path) -> list[str]:
    if shutil.which(shell) is None:
        assert "DSV_REQUIRE_LABS" not in os.environ, f"{shell} is missing"
        pytest.skip(f"{shell} is not installed")
    arguments = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    environ = {
        **dsv.environ,
        "PATH": program_folder(dsv, tmp_path / "bin"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [shell, *arguments, "-c", script],
        cwd=dsv.cwd,
        env=environ,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("dsv resol", ["resolve"]),
        ("dsv ls pets@v", ["v1", "v2"]),
        ("dsv ls pets@v1:tr", ["train/"]),
        ("dsv ls pets@v1:train/1", ["train/1.png"]),
        ("dsv ls @v1:wi", ["with\\ space.txt"]),
    ],
)
def test_bash(pets: Dsv, tmp_path: Path, typed: str, expected: list[str]) -> None:
    write_files(pets.cwd, {"with space.txt": b"x"})
    script = f"""eval "$(dsv completion bash)"
COMP_LINE={typed!r}; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=(dsv); compopt() {{ :; }}
_dsv; printf '%s\\n' "${{COMPREPLY[@]}}" """
    assert in_shell(pets, "bash", script, tmp_path) == expected


def test_fish(pets: Dsv, tmp_path: Path) -> None:
    script = """dsv completion fish | source
complete -C 'dsv ls pets@v'
complete -C 'dsv sta'"""
    assert in_shell(pets, "fish", script, tmp_path) == [
        "pets@v1\ttag",
        "pets@v2\ttag",
        f"status\t{COMMANDS['status']}",
    ]


@pytest.mark.parametrize(
    ("shell", "start"),
    [
        ("bash", "bind 'set enable-bracketed-paste off'; PS1=; eval \"$(dsv completion bash)\""),
        ("zsh", 'autoload -U compinit; compinit -u -D; eval "$(dsv completion zsh)"'),
    ],
)
def test_a_person_presses_the_key(pets: Dsv, tmp_path: Path, shell: str, start: str) -> None:
    """In a terminal: a part of a target is completed where it stands, and the line runs."""
    arguments = {"bash": ["--norc"], "zsh": ["-f"]}[shell]
    if shutil.which(shell) is None:
        assert "DSV_REQUIRE_LABS" not in os.environ, f"{shell} is missing"
        pytest.skip(f"{shell} is not installed")
    environ = {**pets.environ, "PATH": program_folder(pets, tmp_path / "bin"), "TERM": "dumb"}
    environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [shell, *arguments, "-i"],
        cwd=pets.cwd,
        env=environ,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    try:
        type_and_wait(leader, f"{start}; echo rea''dy\n", "ready")
        type_and_wait(leader, "dsv cat pe\t@v1:a\t", "a.txt")
        type_and_wait(leader, "\n", "alpha")
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def type_and_wait(terminal: int, keys: str, shown: str) -> None:
    os.write(terminal, keys.encode())
    text, deadline = "", time.monotonic() + PATIENCE
    while shown not in text:
        assert time.monotonic() < deadline, text
        if select.select([terminal], [], [], 1.0)[0]:
            text += os.read(terminal, 4096).decode(errors="replace")
