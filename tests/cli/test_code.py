"""The code of a run: committed, seen by the job from the cache, recorded, and taken again exactly."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dsv.api import run_code
from dsv.run.engine_list import ENGINES
from dsv.run.engines.process import ProcessEngine
from tests.kit.dsv import Dsv, made_once, write_files


@pytest.fixture
@made_once
def pets(dsv: Dsv) -> Dsv:
    here = dsv.at(dsv.cwd, DSV_CACHE=str(dsv.home / "cache"))
    write_files(here.cwd, {"train/1.png": b"1"})
    here.ok("init", "pets")
    here.ok("sync")
    here.ok("tag", "v1")
    return here


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    write_files(
        folder,
        {"train.sh": b"#!/bin/sh\necho first\n", "lib/model.py": b"model\n", "data/big.bin": b"x" * 100},
    )
    (folder / "train.sh").chmod(0o755)
    return folder


def run(pets: Dsv, code: Path, *words: str) -> str:
    done = pets.process("run", "pets@v1", "-q", "--code", str(code), "--", *words)
    assert done.code == 0, done
    return done.out


def last(pets: Dsv) -> dict[str, Any]:
    """By its folder: two runs of one second have ids in no order."""
    folders = (pets.home / ".local/state/dsv/runs/pets").iterdir()
    run = max(folders, key=lambda folder: folder.stat().st_mtime_ns).name
    found: dict[str, Any] = pets.ok("runs", run, "--json").json["items"][0]
    return found


def test_the_job_sees_a_copy_that_is_recorded(pets: Dsv, code: Path) -> None:
    out = run(pets, code, "sh", "-c", 'pwd; echo "$DSV_CODE"; ls; ./train.sh; cat lib/model.py')
    folder, *rest = out.splitlines()
    assert rest == [folder, "data", "lib", "train.sh", "first", "model"]
    recorded = last(pets)["code"]
    assert recorded["path"] == str(code)
    assert Path(folder) == pets.home / "cache" / "pets" / recorded["tree"]
    assert not (Path(folder) / "train.sh").stat().st_mode & 0o222
    assert pets.ok("ls", f"pets@{recorded['tree']}").lines == ["data/big.bin", "lib/model.py", "train.sh"]


def test_the_same_code_is_the_same_commit(pets: Dsv, code: Path) -> None:
    run(pets, code, "true")
    first = last(pets)["code"]["tree"]
    copy = code.with_name("copy")
    shutil.copytree(code, copy)
    run(pets, copy, "true")
    assert last(pets)["code"]["tree"] == first
    (copy / "train.sh").write_text("#!/bin/sh\necho second\n")
    run(pets, copy, "true")
    assert last(pets)["code"]["tree"] != first


def test_a_change_while_the_job_runs_does_not_reach_it(pets: Dsv, code: Path) -> None:
    assert run(pets, code, "sh", "-c", f"echo changed > {code}/train.sh; ./train.sh") == "first\n"


def test_a_repeated_run_has_the_code_that_it_had(pets: Dsv, code: Path) -> None:
    """Though it was in no git, has changed since, and is gone."""
    run(pets, code, "./train.sh")
    first = last(pets)
    (code / "train.sh").write_text("#!/bin/sh\necho second\n")
    done = pets.process("run", "--again", first["run"])
    assert (done.code, done.out) == (0, "first\n") and "warning" not in done.err
    shutil.rmtree(code)
    done = pets.process("run", "--again", first["run"])
    assert (done.code, done.out) == (0, "first\n")
    assert last(pets)["code"] == first["code"]


def test_what_is_ignored_is_no_code(pets: Dsv, code: Path) -> None:
    write_files(
        code,
        {".gitignore": b"*.log\n/data/\n", "a.log": b"", "keep.log": b"", "lib/x.log": b"", "lib/y.tmp": b""},
    )
    write_files(code, {".dsvignore": b"!keep.log\n*.tmp\n", ".git/HEAD": b"ref: x\n"})
    out = run(pets, code, "find", ".", "-type", "f")
    assert sorted(out.split()) == [
        "./.dsvignore",
        "./.gitignore",
        "./keep.log",
        "./lib/model.py",
        "./train.sh",
    ]


def test_what_the_work_tree_ignores_is_no_code_in_a_folder_of_it(pets: Dsv, code: Path) -> None:
    subprocess.run(["git", "init", "-q", str(code)], check=True)
    write_files(
        code, {".gitignore": b"*.ckpt\n", "lib/a.ckpt": b"x", "lib/.gitignore": b"b.txt\n", "lib/b.txt": b""}
    )
    found = run(pets, code / "lib", "find", ".", "-type", "f").split()
    assert sorted(found) == ["./.gitignore", "./model.py"]


@pytest.mark.parametrize("place", ["link", "parent", "below a work tree", "no work tree"])
def test_the_path_of_the_code_may_have_symlinks(pets: Dsv, code: Path, place: str) -> None:
    """As where /home or /scratch is a link."""
    if place != "no work tree":
        subprocess.run(["git", "init", "-q", str(code)], check=True)
        write_files(code, {".gitignore": b"data/\n"})
    (code.parent / "link").symlink_to(code.parent if place == "parent" else code)
    named = {"parent": "link/code", "below a work tree": "link/lib"}.get(place, "link")
    out = run(pets, code.parent / named, "ls")
    assert out.split() == {
        "below a work tree": ["model.py"], "no work tree": ["data", "lib", "train.sh"]
    }.get(place, ["lib", "train.sh"])  # fmt: skip


def test_too_much_is_refused_before_anything_is_run(
    pets: Dsv, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_code, "LARGEST", 50)
    marker = code.parent / "ran"
    refused = pets("run", "pets@v1", "--code", str(code), "--", "touch", str(marker))
    assert refused.code == 2 and "--force" in refused.err and not marker.exists()
    pets.ok("run", "pets@v1", "--code", str(code), "--force", "--", "touch", str(marker))
    assert marker.exists()
    assert pets("run", "pets@v1", "--force", "--", "true").code == 2


class NoFolders(ProcessEngine):
    """Plain processes, which are taken for ones on machines that share no folders."""

    name: ClassVar[str] = "far"
    shares_folders: ClassVar[bool] = False


def test_too_much_is_taken_by_force_for_a_sweep_too(
    pets: Dsv, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the plan of its first run commits the code."""
    monkeypatch.setattr(run_code, "LARGEST", 50)
    monkeypatch.setitem(ENGINES, NoFolders.name, NoFolders)
    pets.ok("config", "pools.far.engine", NoFolders.name)
    pets.ok("config", "pools.far.cache", str(pets.home / "cache"))
    for pool in ("here", "far"):
        words = ("run", "pets@v1", "--on", pool, "--code", str(code), "-p", "n=1,2", "--sweep")
        refused = pets(*words, "--", "true")
        assert refused.code == 2 and "--force" in refused.err, refused
        assert "2 runs, at most 1 at once" in pets(*words, "--force", "--", "true").err
        pets.ok(*words, "--force", "--dry-run", "--", "true")


@pytest.mark.parametrize("broken", ["link", "empty"])
def test_what_no_commit_can_hold_is_refused(pets: Dsv, code: Path, broken: str) -> None:
    if broken == "link":
        (code / "out").symlink_to("../elsewhere")
    else:
        shutil.rmtree(code)
        (code / "only").mkdir(parents=True)
    refused = pets("run", "pets@v1", "--code", str(code), "--", "true")
    assert refused.code in (2, 125) and "hint:" in refused.err


def test_without_the_store_the_job_sees_the_folder_itself(pets: Dsv, code: Path) -> None:
    pets.ok("cache", "pets@v1")
    done = pets.process("run", "pets@v1", "--offline", "--code", str(code), "--", "pwd")
    assert (done.code, done.out) == (0, f"{code}\n")
    assert f"the run sees {code} as it changes" in done.err
    pets.ok("run", "pets@v1", "--", "true")
    offline = next(item for item in pets.ok("runs", "--json").json["items"] if item["code"])
    assert offline["code"]["tree"] is None


def test_the_code_is_held_while_the_job_lives(pets: Dsv, code: Path) -> None:
    started = pets.start("run", "pets@v1", "-q", "--code", str(code), "--", "sh", "-c", "echo up; sleep 600")
    assert started.stdout is not None and started.stdout.readline() == b"up\n"
    items = pets.ok("cached", "--json").json["items"]
    held = {item["commit"]: [lease["purpose"] for lease in item["leases"]] for item in items}
    assert len(held) == 2 and all("run" in purposes for purposes in held.values())
    started.terminate()
    started.communicate()


def test_gc_keeps_the_code_until_a_record_names_it(pets: Dsv) -> None:
    """Its session is closed once the start of the run is in the store, and before the run has ended."""
    code = pets.home / "work"
    code.mkdir()
    (code / "train.py").write_text("pass\n")
    store = Path(pets.ok("config", "store").out.strip())
    closed = f"[ $(ls {store}/sessions/*/closed | wc -l) = $(ls -d {store}/sessions/* | wc -l) ]"
    wait = f"until ls {store}/runs/pets/*/start && {closed}"
    pets.process("run", "pets@v1", "--code", str(code), "--", "sh", "-c", f"{wait}; do sleep 0.1; done")
    start = next(store.glob("runs/pets/*/start")).stat().st_mtime_ns
    assert max(path.stat().st_mtime_ns for path in store.glob("sessions/*/closed")) >= start
