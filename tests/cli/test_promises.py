"""What the documentation says and users rely on, tried as they would try it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from dsv.errors import Unreachable
from tests.kit.dsv import Dsv, write_files

STORE = ".local/share/dsv/store"
MANY = {f"t/{number}": b"%d" % number for number in range(25)}


def sessions(dsv: Dsv) -> list[list[str]]:
    return [sorted(os.listdir(one)) for one in (dsv.home / STORE / "sessions").iterdir()]


@pytest.mark.parametrize("command", ["sync", "sync --rehash", "sync --rehash a.txt", "sync --new-branch nb"])
def test_a_sync_that_publishes_nothing_leaves_nothing_open(untagged_pets: Dsv, command: str) -> None:
    os.utime(untagged_pets.cwd / "a.txt", (1, 1))
    assert "nothing changed here" in untagged_pets.ok(*command.split()).err
    assert all("closed" in names for names in sessions(untagged_pets))
    assert "waiting" not in untagged_pets.ok("gc", "--yes", "--grace", "0s").err


def test_a_dry_run_lists_what_a_guard_would_refuse(dsv: Dsv) -> None:
    write_files(dsv.cwd, MANY | {"r": b"r"})
    dsv.ok("init", "gd")
    head = dsv.ok("sync").out
    (dsv.home / "src").mkdir(parents=True)
    (dsv.home / "src/x").write_bytes(b"x")
    for command, count in (("rm gd:t/**", 25), (f"import {dsv.home}/src gd: --mirror", 27)):
        listed = dsv.ok(*command.split(), "--dry-run")
        assert len(listed.lines) == count and "removed  t/7" in listed.lines
        assert "without --dry-run this is refused: this would remove" in listed.err
        assert dsv.ok(*command.split(), "--dry-run", "--json").json["refused"].startswith("this would remove")
        assert dsv(*command.split()).code == 4
    dsv.ok("branch", "--protect", "gd@main", "--who", "somebody else")
    listed = dsv.ok("rm", "gd:r", "--dry-run")
    assert listed.lines == ["removed  r"] and "is protected" in listed.err
    assert dsv.ok("rm", "gd:r", "--dry-run", "--json", "--force", "-m", "why").json["refused"] is None
    assert dsv.ok("log", "gd", "--json").json["items"][0]["commit"] == head.strip()


def test_next_is_a_command_that_works(dsv: Dsv) -> None:
    """On a branch that was renamed, of a dataset that was renamed or deleted, and with a path in the way."""

    def next_of(place: Dsv, *options: str) -> list[str]:
        return list(place.ok("status", "--json", *options).json["next"])

    write_files(dsv.cwd, {"a/1": b"1", "d/2": b"2", "3": b"3"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    dsv.ok("clone", "pets", "../sparse", "--only", "a")
    dsv.ok("clone", "pets", "../other")
    other, sparse = dsv.at(dsv.cwd.parent / "other"), dsv.at(dsv.cwd.parent / "sparse")

    (sparse.cwd / "d").write_bytes(b"in the way")
    first, then = next_of(sparse)
    assert (first, then) == ("mv d NAME", "dsv sync")
    (sparse.cwd / "d").rename(sparse.cwd / "NAME")
    sparse.ok(*shlex.split(then)[1:])

    other.ok("sync", "--new-branch", "d9")
    dsv.ok("branch", "--move", "pets@d9", "d10")
    assert next_of(other, "--fetch") == next_of(other) == ["dsv switch d10"]
    other.ok("switch", "d10")
    other.ok("sync")
    dsv.ok("branch", "--delete", "pets@d10", "--force")
    assert next_of(other, "--fetch") == ["dsv branch --restore pets@d10"]
    other.ok("branch", "--restore", "pets@d10")

    dsv.ok("datasets", "--rename", "pets", "cats")
    assert next_of(other, "--fetch") == ["dsv switch d10"]
    other.ok("switch", "d10")
    other.ok("sync")
    dsv.at(dsv.home).ok("datasets", "--delete", "cats", "--yes")
    assert next_of(other, "--fetch") == ["dsv datasets --undelete cats"]
    other.ok("datasets", "--undelete", "cats")
    other.ok("sync")


def test_the_rules_at_the_top_are_in_every_sparse_workspace(dsv: Dsv) -> None:
    write_files(dsv.cwd, {".dsvignore": b"*.tmp\n", "a/1": b"1", "a/.dsvignore": b"x\n", "b/2": b"2"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    for only in ("!**", "b"):
        dsv.ok("clone", "pets", "../part", "--only", only)
        part = dsv.at(dsv.cwd.parent / "part")
        part.ok("sparse", "remove", "**")
        assert os.listdir(part.cwd / "a" if (part.cwd / "a").exists() else part.cwd) != []
        assert sorted(os.listdir(part.cwd)) == [".dsv", ".dsvignore"]
        (part.cwd / "left.tmp").write_bytes(b"out")
        assert part.ok("status", "--json").json["clean"]
        assert not part.ok("sync", "--json").json["any_change"]
        part.cwd.rename(dsv.home / f"part-{len(only)}")


def test_a_path_that_local_rules_leave_out_is_not_restored(untagged_pets: Dsv) -> None:
    pets = untagged_pets
    write_files(pets.cwd, {".dsvignore": b"train/\na.txt\n"})
    (pets.cwd / "a.txt").unlink()
    for path in ("a.txt", "train/1.png"):
        for force in ((), ("--force",)):
            (pets.cwd / path).unlink(missing_ok=True)
            refused = pets("restore", path, *force)
            assert refused.code == 4 and "is left out by .dsvignore" in refused.err
            assert "hint: change .dsvignore first" in refused.err
            assert not (pets.cwd / path).exists()
    write_files(pets.cwd, {".dsvignore": b"train/\n!a.txt\n"})
    assert "1 file added" in pets.ok("restore", "a.txt").out


def test_rules_that_name_committed_files_ask_before_they_remove_them(untagged_pets: Dsv) -> None:
    pets = untagged_pets
    write_files(pets.cwd, {".dsvignore": b"a.txt\n2.png\n"})
    assert (
        "'a.txt' and 1 other path from the dataset for everybody, as .dsvignore leaves them out"
        in pets.ok("status").err
    )
    refused = pets("sync")
    assert refused.code == 2 and "this removes 'a.txt' and 1 other path from the dataset" in refused.err
    assert "hint: the same command with --yes" in refused.err
    assert "a.txt" in pets.ok("ls", "pets").lines
    assert pets.ok("sync", "--yes", "--json").json["removed"] == 2
    assert pets.ok("ls", "pets").lines == [".dsvignore", "train/1.png"]
    assert (pets.cwd / "a.txt").read_bytes() == b"alpha\n"

    write_files(pets.cwd, {".dsvignore": b"a.txt\n2.png\ntrain/\n"})
    refused = pets("sync", "--yes")
    assert (
        refused.code == 4
        and "everything in train/ from the dataset; if unintended, check .dsvignore and the mounts in"
        in refused.err
    )
    assert pets.ok("status", "--json").json["next"] == ["dsv sync --allow-removals"]
    assert pets.ok("sync", "--allow-removals", "--json").json["removed"] == 1

    (pets.cwd / "new").write_bytes(b"n")
    pets.ok("sync")
    (pets.cwd / "new").unlink()  # what is gone here too was meant to go
    write_files(pets.cwd, {".dsvignore": b"new\na.txt\n2.png\ntrain/\n"})
    assert pets.ok("sync", "--json").json["removed"] == 1


def test_clashes_of_case_are_told_until_they_are_published(untagged_pets: Dsv) -> None:
    pets = untagged_pets
    write_files(pets.cwd, {"Foo/1": b"1", "foo/2": b"2", "train/X": b"3", "train/x": b"4"})
    for _ in range(3):
        assert pets.ok("status", "--json").json["clashes"] == [["Foo", "foo"], ["train/X", "train/x"]]
        assert "Foo and foo are one name" in pets.ok("status").err
    said = pets.ok("sync").err
    assert "'Foo' and 'foo' are one name" in said and "'train/X' and 'train/x' are one name" in said
    assert pets.ok("status", "--json").json["clashes"] == []


def test_a_store_that_is_gone_is_not_replaced_by_an_empty_one(dsv: Dsv, tmp_path: Path) -> None:
    write_files(dsv.cwd, {"a": b"a"})
    for store in (dsv.home / STORE, tmp_path / "team store"):
        work = (
            dsv.at(dsv.cwd / store.name)
            if store.name == "store"
            else dsv.at(dsv.cwd / "team", DSV_STORE=str(store))
        )
        work.cwd.mkdir()
        work.ok("init", "pets")
        away = work.at(dsv.home, **({} if store.name == "store" else {"DSV_STORE": str(store)}))
        store.rename(tmp_path / "away")
        for command in ("cache pets@main", "cat pets@main:a", "log pets", "datasets"):
            gone = away(*command.split())
            assert gone.code == Unreachable.exit_code == 6, (command, gone)
        (work.cwd / "new").mkdir()
        refused = away("init", "zz")
        private = "-m 700 " if store.name == "store" else ""
        assert refused.code == 6 and f"mkdir -p {private}{shlex.quote(str(store))}" in refused.err
        assert not store.exists()
        (tmp_path / "away").rename(store)
        assert away.ok("datasets").out.count("pets") == 1


def test_only_you_is_said_of_a_store_that_only_you_can_read(dsv: Dsv) -> None:
    old = os.umask(0o022)
    try:
        assert "so only you can see it" in dsv.ok("init", "pets").err
        write_files(dsv.cwd, {"a": b"a", "d/b": bytes(1 << 17)})
        dsv.ok("sync")
        dsv.ok("tag", "v1")
        for path in ((dsv.home / STORE), *(dsv.home / STORE).rglob("*")):
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o400), path
        (dsv.home / STORE).chmod(0o755)
        work = dsv.at(dsv.home / "more")
        work.cwd.mkdir()
        assert "and others may read it" in work.ok("init", "more").err
        shared = dsv.home / "shared"
        shared.mkdir()
        shared.chmod(0o2770)
        team = dsv.at(dsv.home / "team")
        team.cwd.mkdir()
        team.ok("init", "pets", "--store", str(shared))
        files = [path for path in shared.rglob("*") if path.is_file()]
        assert files and all(path.stat().st_mode & 0o777 == 0o444 for path in files)
    finally:
        os.umask(old)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prefer", "sideways"),
        ("pool", "a,a"),
        ("pool", "a,,b"),
        ("pools.b.engine", "nonsense"),
        ("pools.p.wait", "abc"),
        ("pools.p.jobs", "0"),
        ("pools.p.shm_size", "much"),
        ("pools.p.slurm.nonsense", "x"),
        ("pools.p.kubernetes.namespace", "7"),
        ("pools.p.nonsense.x", "7"),
        ("pools.here.wait", "1h"),
    ],
)
def test_a_setting_that_no_command_can_use_is_refused(dsv: Dsv, key: str, value: str) -> None:
    refused = dsv("config", key, value)
    assert refused.code == 2 and refused.out == ""
    assert not (dsv.home / ".config/dsv/config.toml").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prefer", "order"),
        ("pools.b.engine", "slurm"),
        ("pools.p.wait", "1d12h"),
        ("pools.p.slurm.partition", "gpu"),
    ],
)
def test_a_setting_that_a_command_can_use_is_taken_in_any_order(dsv: Dsv, key: str, value: str) -> None:
    done = dsv.ok("config", key, value)
    assert dsv.ok("config", key).out.strip() == value and "configured yet" not in done.err


def test_create_makes_the_dataset_on_any_branch(dsv: Dsv) -> None:
    write_files(dsv.cwd, {"x": b"x"})
    dsv.ok("init", "other")
    dry = dsv.ok("put", "x", "new@dev:", "--create", "--dry-run")
    assert "new" not in dsv.ok("datasets").out and dry.lines == ["added    x"]
    dsv.ok("put", "x", "new@dev:", "--create")
    assert dsv.ok("ls", "new@dev").lines == ["x"]
    assert "new" in dsv.ok("datasets").out
    assert dsv("put", "x", "new@misspelt:", "--create").code == 3
    dsv.ok("put", "x", "new:", "--create")


def test_a_workspace_has_its_own_store_and_says_if_a_variable_names_another(
    untagged_pets: Dsv, tmp_path: Path
) -> None:
    """A base is in one store; a variable is often set for a whole login."""
    other = untagged_pets.at(untagged_pets.cwd, DSV_STORE=str(tmp_path / "other"))
    for command in ("datasets", "status", "config store"):
        told = other.ok(*command.split(), "--quiet")
        assert f"DSV_STORE={tmp_path}/other is not used: this workspace has its own store" in told.err
    assert other.ok("datasets", "--json").json["items"][0]["dataset"] == "pets"
    assert other("datasets", "--store", str(tmp_path / "other")).code == 6
    same = untagged_pets.at(untagged_pets.cwd, DSV_STORE=str(untagged_pets.home / STORE))
    assert "DSV_STORE" not in same.ok("datasets").err
    assert "DSV_STORE" not in untagged_pets.ok("datasets").err
    outside = other.at(untagged_pets.home, DSV_STORE=str(tmp_path / "other"))
    assert outside("datasets").code == 6


def test_what_is_printed_is_read(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are printed with their offset; every command that takes a time or a duration reads them."""
    import time

    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        log = pets.ok("log", "pets").out
        date = (
            next(line for line in log.splitlines() if line.startswith("Date:")).removeprefix("Date:").strip()
        )
        assert date.endswith("+05:45")
        assert len(pets.ok("log", "pets", "--since", date, "--json").json["items"]) >= 1
        assert len(pets.ok("log", "pets", "--until", date, "--json").json["items"]) == 2
        pets.at(pets.cwd).ok("run", "pets@v1", "--", "true")
        run: Any = pets.ok("runs", "--json").json["items"][0]
        assert run["started"].endswith("Z")
        shown = pets.ok("runs", run["run"]).out
        started = (
            next(line for line in shown.splitlines() if "+05:45" in line).partition("  ")[2].strip()[:22]
        )
        for wanted in (f"started={started}", f"started>={started}", f"ended>={run['started']}", "started>1h"):
            assert pets.ok("runs", "--filter", wanted, "--json").json["items"], wanted
        assert not pets.ok("runs", "--filter", f"started<{started}", "--json").json["items"]
        assert pets("runs", "--filter", "started>yesterday").code == 2
        until = (
            pets.ok("cache", "pets@v1", "--hold", "1d12h").err.partition("held until ")[2].partition(",")[0]
        )
        assert until.endswith("+05:45")
        assert until in pets.ok("evict", "--all").err
    finally:
        monkeypatch.undo()
        time.tzset()
