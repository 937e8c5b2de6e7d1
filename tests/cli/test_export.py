"""dsv export: a tar or a folder, whole or not at all."""

from __future__ import annotations

import errno
import io
import os
import pty
import random
import shutil
import signal
import subprocess
import tarfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dsv.exchange import export as export_module
from dsv.exchange import export_folder
from dsv.format.locator import ObjectKind
from tests.api.test_damage_marks import flip
from tests.kit.dsv import Dsv, assert_documented
from tests.kit.people import Person
from tests.waiting import PATIENCE

BIG = random.Random(5).randbytes(5 << 20)


@pytest.fixture
def mixed(pets: Dsv) -> Dsv:
    (pets.cwd / "run.sh").write_bytes(b"#!/bin/sh\n")
    (pets.cwd / "run.sh").chmod(0o755)
    (pets.cwd / "train/l").symlink_to("1.png")
    (pets.cwd / "none").mkdir()
    (pets.cwd / "train/big").write_bytes(BIG)
    (pets.cwd / "zero").write_bytes(b"")
    pets.ok("sync")
    return pets.at(pets.cwd.parent)


def seen(root: Path) -> dict[str, object]:
    return {
        str(path.relative_to(root)): str(path.readlink())
        if path.is_symlink()
        else (path.read_bytes(), path.stat().st_mode & 0o777)
        if path.is_file()
        else None
        for path in root.rglob("*")
    }


@pytest.mark.parametrize("name", ["out.tar", "out.tar.gz", "out.tgz"])
def test_a_folder_and_a_tar_have_the_same_files(mixed: Dsv, name: str) -> None:
    document = mixed.ok("export", "pets", "folder", "--json").json
    assert_documented("export", document, "items")
    assert document["paths"] == document["files"] + 2
    mixed.ok("export", "pets", name)
    with tarfile.open(mixed.cwd / name) as tar:
        tar.extraction_filter = lambda member, _: member  # Python before 3.11.4 has no argument for it
        tar.extractall(mixed.cwd / "unpacked")
    found = seen(mixed.cwd / "folder")
    assert found == seen(mixed.cwd / "unpacked")
    assert (
        found["run.sh"] == (b"#!/bin/sh\n", 0o755) and found["train/l"] == "1.png" and found["none"] is None
    )
    assert found["train/big"] == (BIG, 0o644)
    assert not [one for one in os.listdir(mixed.cwd) if one.startswith(".")]


def test_a_path_is_exported_from_there(mixed: Dsv) -> None:
    with mixed.start("export", "pets:train", "-") as process:
        out, _ = process.communicate()
    with tarfile.open(fileobj=io.BytesIO(out)) as tar:
        assert tar.getnames() == ["1.png", "2.png", "big", "l"]


@pytest.mark.parametrize("at", ["", "file://{}/"], ids=["here", "at a URL"])
def test_a_file_is_exported_as_that_file(mixed: Dsv, at: str) -> None:
    """Unless the destination is a folder."""
    (mixed.cwd / "folder").mkdir()
    for to, there in (
        ("one", "one"),
        ("folder", "folder/a.txt"),
        ("new/", "new/a.txt"),
        ("deep/er", "deep/er"),
    ):
        done = mixed.ok("export", "pets:a.txt", at.format(mixed.cwd) + to, "--json").json
        assert done["files"] == 1
        assert (mixed.cwd / there).read_bytes() == b"beta\n"
    assert not [one for one in mixed.cwd.rglob(".*") if "out" in one.name]
    (mixed.cwd / "one").write_bytes(b"others'")
    assert mixed("export", "pets:a.txt", at.format(mixed.cwd) + "one").code == 4
    assert (mixed.cwd / "one").read_bytes() == b"others'"


def test_a_file_keeps_its_mode_a_link_its_target_and_a_tar_its_bytes(mixed: Dsv) -> None:
    mixed.ok("export", "pets:run.sh", "r")
    mixed.ok("export", "pets:train/l", "l")
    assert (mixed.cwd / "r").stat().st_mode & 0o777 == 0o755 and str((mixed.cwd / "l").readlink()) == "1.png"
    (mixed.cwd / "x.tar").write_bytes(b"some bytes")
    mixed.ok("put", "x.tar", "pets:x.tar")
    mixed.ok("export", "pets:x.tar", "y.tar")
    mixed.ok("export", "pets:a.txt", "a.tar")
    assert (mixed.cwd / "y.tar").read_bytes() == b"some bytes" and tarfile.is_tarfile(mixed.cwd / "a.tar")


@pytest.mark.parametrize("to", ["ta.tar", "folder", "one"])
def test_an_export_that_loses_a_race_is_a_conflict(
    mixed: Dsv, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """Another makes something of the name while the export writes."""
    contents = export_module.Selection.contents

    def late(*arguments: object, **how: object) -> object:
        (mixed.cwd / to).mkdir()
        (mixed.cwd / to / "theirs").write_bytes(b"")
        return contents(*arguments, **how)  # type: ignore[arg-type]

    with monkeypatch.context() as once:
        once.setattr(export_module.Selection, "contents", late)
        done = mixed("export", "pets:a.txt" if to == "one" else "pets", to)
    assert done.code == 4 and f"{to}' already exists" in done.err, done
    assert os.listdir(mixed.cwd / to) == ["theirs"]
    again = mixed("export", "pets", to)
    assert again.code == 4 and "already exists" in again.err, again
    assert not [one for one in os.listdir(mixed.cwd) if one.startswith(".")]


def test_what_is_there_stays(mixed: Dsv) -> None:
    (mixed.cwd / "there").mkdir()
    assert mixed("export", "pets", "there").code == 4
    assert mixed("export", "pets:nowhere", "new").code == 3 and not (mixed.cwd / "new").exists()


@pytest.mark.parametrize("to", ["out.tar", "folder"])
def test_after_a_failure_nothing_is_there(mixed: Dsv, monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    def failing(*_: object, **__: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_module.Selection, "contents", failing)
    before = sorted(os.listdir(mixed.cwd))
    assert mixed("export", "pets", to).code == 7
    assert sorted(os.listdir(mixed.cwd)) == before


@pytest.fixture
def damaged(mixed: Dsv) -> tuple[Dsv, set[str]]:
    """Somebody whose store has a damaged chunk in each of several packs, and the paths that have these."""
    work = mixed.cwd / "work"
    for number in range(4):
        (work / f"new/{number}").parent.mkdir(exist_ok=True)
        (work / f"new/{number}").write_bytes(b"%d" % number * 99)
        (work / f"new/whole{number}").write_bytes(b"whole %d" % number)
        mixed.at(work).ok("sync")
    (work / "new/big").write_bytes(os.urandom(6 << 20))
    mixed.at(work).ok("sync")
    before = seen(work)
    store = mixed.at(work).ok("config", "store").out.strip()
    assert len(flip(Person(mixed.home, store), ObjectKind.CHUNK)) > 4
    files = [name for name, content in before.items() if isinstance(content, tuple) and ".dsv" not in name]
    other = Dsv.of(mixed.home.parent / "other").at(mixed.cwd, DSV_STORE=store)
    bad = {name for name in files if other("cat", f"pets:{name}").code == 5}
    assert 4 < len(bad) < len(files) and "new/big" in bad
    return other, bad


def test_without_an_option_a_damaged_file_is_named_and_nothing_appears(damaged: tuple[Dsv, set[str]]) -> None:
    person, bad = damaged
    for to in ("folder", "all.tar"):
        done = person("export", "pets", to)
        assert done.code == 5 and any(f"pets:{name} can't be read" in done.err for name in bad)
        assert "--skip-damaged" in done.err and not (person.cwd / to).exists()


@pytest.mark.parametrize("to", ["folder", "all.tar.gz", "-", "url"])
def test_what_is_damaged_is_skipped_and_named(damaged: tuple[Dsv, set[str]], to: str) -> None:
    person, bad = damaged
    place = f"file://{person.cwd}/url" if to == "url" else to
    if to == "-":
        run = person.process(
            "export", "pets", "-", "--skip-damaged", "-q", stdout=(person.cwd / "-").open("xb")
        )
        assert run.code == 5
        assert {name for name in seen(person.cwd / "work") if f"pets:{name} can't be read" in run.err} == bad
    else:
        done = person("export", "pets", place, "--skip-damaged", "--json")
        assert done.code == 5
        assert_documented("export", done.json, "items")
        assert {one["path"] for one in done.json["damaged"]} == bad
        assert all(f"pets:{one['path']} can't be read" in one["text"] for one in done.json["damaged"])
    found = person.cwd / to
    if not found.is_dir():
        with tarfile.open(found) as tar:
            tar.extraction_filter = lambda member, _: member
            tar.extractall(person.cwd / "unpacked")
        found = person.cwd / "unpacked"
    original = {name: one for name, one in seen(person.cwd / "work").items() if ".dsv" not in name}
    exported = seen(found)
    if to == "url":  # which has neither modes nor links
        original = {name: one[0] for name, one in original.items() if isinstance(one, tuple)}
        exported = {name: one[0] for name, one in exported.items() if isinstance(one, tuple)}
    assert {name: one for name, one in original.items() if name not in bad} == exported
    if to != "-":
        assert done.json["files"] == sum(isinstance(one, bytes | tuple) for one in exported.values())
    again = person("export", "pets", place, "--skip-damaged", "-q") if to == "url" else None
    assert again is None or again.code == 5


def test_a_damaged_file_alone_is_not_written(damaged: tuple[Dsv, set[str]]) -> None:
    person, bad = damaged
    for name in sorted(bad)[:2]:
        assert person("export", f"pets:{name}", "one", "--skip-damaged").code == 5
        assert not (person.cwd / "one").exists()


@pytest.mark.parametrize("kind", [ObjectKind.SEGMENT, ObjectKind.RECIPE])
def test_paths_that_cannot_be_listed_are_counted(mixed: Dsv, kind: ObjectKind) -> None:
    store = mixed.at(mixed.cwd / "work").ok("config", "store").out.strip()
    flip(Person(mixed.home, store), kind)
    other = Dsv.of(mixed.home.parent / "other").at(mixed.cwd, DSV_STORE=store)
    failed = other("export", "pets", "folder")
    assert failed.code == 5 and "pets" in failed.err and "--skip-damaged" in failed.err
    done = other("export", "pets", "folder", "--skip-damaged", "--json")
    assert done.code == 5
    [one] = done.json["damaged"]
    if kind is ObjectKind.SEGMENT:
        assert (one["path"], one["upto"]) == (None, "zero") and one["entries"] > 5
        assert not (other.cwd / "folder").exists()
    else:
        assert one["path"] == "train/big" and (other.cwd / "folder" / "zero").exists()


def test_what_a_gc_removes_meanwhile_is_expired_and_not_damaged(
    mixed: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = mixed.at(mixed.cwd / "work")
    old = work.ok("resolve", "pets").out.strip()
    (work.cwd / "newer").write_bytes(b"newer")
    work.ok("sync")
    contents, store = export_module.Selection.contents, Path(work.ok("config", "store").out.strip())

    def late(*arguments: Any, **how: Any) -> object:
        work.ok("expire", "pets", "--keep-last", "1")
        for path in store.glob("packs/*/*"):
            path.unlink()
        return contents(*arguments, **how)

    monkeypatch.setattr(export_module.Selection, "contents", late)
    done = mixed("export", f"pets@{old}", "folder", "--skip-damaged")
    assert done.code == 3 and "was expired on" in done.err


@pytest.mark.parametrize(
    "name", ["p.zip", "out.parquet", "out.tar.zst", "OUT.Zip", "s3://bucket/x/out.csv", "o.gz"]
)
def test_the_name_of_another_kind_of_file_makes_no_folder(mixed: Dsv, name: str) -> None:
    done = mixed("export", "pets", name)
    assert done.code == 2 and "would be a folder" in done.err and "NAME.tar" in done.err, done
    assert not (mixed.cwd / name).exists()


def test_capital_letters_and_a_slash_in_a_name(mixed: Dsv) -> None:
    mixed.ok("export", "pets", "OUT.TAR.GZ")
    with tarfile.open(mixed.cwd / "OUT.TAR.GZ", "r:gz") as tar:
        assert "train/big" in tar.getnames()
    mixed.ok("export", "pets", "p.zip/")
    assert (mixed.cwd / "p.zip/train/big").read_bytes() == BIG
    mixed.ok("export", "pets:run.sh", "run.csv")
    assert (mixed.cwd / "run.csv").read_bytes() == b"#!/bin/sh\n"


def test_stdout_gets_the_content_of_a_file_and_a_terminal_no_tar(mixed: Dsv) -> None:
    assert mixed.process("export", "pets:run.sh", "-").out == "#!/bin/sh\n"
    assert mixed.ok("export", "pets:zero", "-").out == ""
    leader, terminal = pty.openpty()
    with mixed.start("export", "pets", "-", stdout=terminal) as process:
        _, err = process.communicate()
    os.close(terminal)
    os.close(leader)
    assert process.returncode == 2 and b"can't be shown on a terminal" in err, err


def test_zeros_of_a_sparse_file_take_no_room(mixed: Dsv, tmp_path: Path) -> None:
    """Wherever a file is written: a clone, a cache, from there into a clone, pull, restore, an export."""
    size, data = 64 << 20, os.urandom(3 << 20)
    work = tmp_path / "sparse"
    write_sparse_file(work / "s", size, data)
    at = mixed.at(work)
    at.ok("init", "sparse")
    at.ok("sync")
    here = mixed.at(tmp_path)
    here.ok("export", "sparse", "exported")
    here.ok("clone", "sparse", "cloned")
    cached = Path(here.ok("cache", "sparse").lines[-1], "s")
    here.ok("clone", "sparse", "from-cache")
    write_sparse_file(work / "s", size, data[::-1])
    at.ok("sync")
    here.at(tmp_path / "cloned").ok("pull")
    (tmp_path / "from-cache/s").unlink()
    here.at(tmp_path / "from-cache").ok("restore", "s")
    for path, expected in (
        ("exported/s", data), (cached, data), ("cloned/s", data[::-1]), ("from-cache/s", data),
    ):  # fmt: skip
        found = tmp_path / path
        assert found.stat().st_blocks * 512 < 8 << 20, path
        with found.open("rb") as file:
            assert file.read(1 << 20) == bytes(1 << 20)
            file.seek(size // 2)
            assert file.read(len(expected)) == expected
            assert not any(file.read()) and file.tell() == size


def write_sparse_file(path: Path, size: int, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(size // 2)
        file.write(data)


@pytest.fixture
def tagged(mixed: Dsv) -> Dsv:
    """Tags of two commits, which share all files but one."""
    mixed.ok("tag", "w1", "pets")
    (mixed.cwd / "new").write_bytes(b"new\n")
    mixed.ok("put", "new", "pets:train/")
    mixed.ok("tag", "a/b.tar", "pets")
    return mixed


def test_each_tag_becomes_a_folder_and_equal_files_are_one(tagged: Dsv) -> None:
    document = tagged.ok("export", "pets", "--all-tags", "tags", "--json").json
    alone = tagged.ok("export", "pets@w1", "alone", "--json").json
    assert_documented("export", document, tuple(alone))
    assert [item["tag"] for item in document["items"]] == ["a/b.tar", "v1", "v2", "w1"]
    tags = tagged.cwd / "tags"
    assert sorted(path.name for path in tags.iterdir()) == ["a%2Fb.tar", "v1", "v2", "w1"]
    assert {
        name: value if isinstance(value, str | None) else value[0]
        for name, value in seen(tags / "w1").items()
    } == {
        name: value if isinstance(value, str | None) else value[0]
        for name, value in seen(tagged.cwd / "alone").items()
    }
    assert (tags / "a%2Fb.tar/train/new").read_bytes() == b"new\n"
    for name in ("run.sh", "train/big", "zero"):
        assert (tags / "w1" / name).samefile(tags / "a%2Fb.tar" / name)
    assert {
        path.stat().st_mode & 0o222 for path in tags.rglob("*") if path.is_file() and not path.is_symlink()
    } == {0}
    assert (tags / "w1/run.sh").stat().st_mode & 0o111 == 0o111


def test_the_same_command_compares_what_is_there_and_writes_the_rest(
    tagged: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = export_folder.put

    def killed(whole: Path, path: Path, **more: bool) -> None:
        if path.name == "w1":
            raise KeyboardInterrupt
        put(whole, path, **more)

    with monkeypatch.context() as patched:
        patched.setattr(export_folder, "put", killed)
        assert tagged("export", "pets", "--all-tags", "tags").code == 130
    tags = tagged.cwd / "tags"
    assert sorted(path.name for path in tags.iterdir()) == ["a%2Fb.tar", "v1", "v2"]
    tagged.ok("export", "pets", "--all-tags", "tags")
    assert (tags / "w1/train/big").samefile(tags / "a%2Fb.tar/train/big")
    (tags / "w1/zero").unlink()
    (tags / "w1/zero").write_bytes(b"x")
    again = tagged("export", "pets", "--all-tags", "tags")
    assert again.code == 5 and "'tags/w1/zero' is not as in the tag" in again.err
    assert "move tags/w1 away" in again.err
    (tags / "w1/zero").unlink()
    skipped = tagged("export", "pets", "--all-tags", "tags", "--skip-damaged", "--json")
    assert skipped.code == 5 and [one["path"] for one in skipped.json["items"][3]["damaged"]] == ["zero"]
    assert not (tags / "w1/zero").exists(), "what is there is only compared"


def test_a_file_that_was_changed_gets_no_link(tagged: Dsv) -> None:
    tagged.ok("export", "pets", "--all-tags", "tags")
    changed, written = tagged.cwd / "tags/a%2Fb.tar", tagged.cwd / "tags/w1"
    for path in (changed / "train/big", changed / "zero"):
        path.unlink()
    (changed / "train/big").write_bytes(b"other")
    (changed / "zero").symlink_to(os.devnull)
    (changed / "run.sh").chmod(0o444)
    shutil.rmtree(written)
    done = tagged("export", "pets", "--all-tags", "tags", "--skip-damaged", "--json")
    assert done.code == 5
    assert [one["path"] for one in done.json["items"][0]["damaged"]] == ["train/big", "zero"]
    assert (written / "train/big").read_bytes() == BIG and not (written / "zero").is_symlink()
    assert (written / "run.sh").stat().st_mode & 0o777 == 0o555


def test_a_file_without_room_for_another_link_is_written(
    tagged: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMLINK, "too many links")

    monkeypatch.setattr(os, "link", full)
    tagged.ok("export", "pets", "--all-tags", "tags")
    assert (tagged.cwd / "tags/w1/train/big").read_bytes() == BIG


@pytest.mark.parametrize(
    "more",
    [
        ["tags", "--force"],
        ["tags", "--card", "hf"],
        ["tags", "--shuffle", "1"],
        ["-"],
        ["s3://bucket/x"],
        ["file:///tmp/x"],
    ],
    ids=str,
)
def test_tags_become_folders_here_and_nothing_else(tagged: Dsv, more: list[str]) -> None:
    assert tagged("export", "pets", "--all-tags", *more).code == 2
    assert tagged("export", "pets@v1", "--all-tags", "tags").code == 2
    assert not (tagged.cwd / "tags").exists()


def test_a_dataset_without_tags_is_no_empty_export(mixed: Dsv) -> None:
    mixed.ok("export", "pets", "alone")
    mixed.ok("put", "alone/a.txt", "other:", "--create")
    done = mixed("export", "other", "--all-tags", "tags")
    assert done.code == 3 and "other has no tag" in done.err and not (mixed.cwd / "tags").exists()
    assert mixed("export", "none", "--all-tags", "tags").code == 3


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Have three processes share each export to a folder, and return those that it has started."""
    processes: list[subprocess.Popen[bytes]] = []
    start = export_folder.start_program

    def noted(*arguments: Any, **how: Any) -> subprocess.Popen[bytes]:
        processes.append(start(*arguments, **how))
        return processes[-1]

    monkeypatch.setattr(export_folder, "start_program", noted)
    monkeypatch.setattr(export_folder, "processors", lambda: 3)
    for name, value in (("_PATH", 1 << 20), ("_EACH", 1 << 20), ("_START", 0)):
        monkeypatch.setattr(export_folder, name, value)
    return processes


def test_several_processes_write_what_one_does(
    mixed: Dsv, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed.ok("export", "pets", "together")
    assert [process.returncode for process in started] == [0, 0]
    monkeypatch.setattr(export_folder, "processors", lambda: 1)
    mixed.ok("export", "pets", "alone")
    assert seen(mixed.cwd / "together") == seen(mixed.cwd / "alone")
    assert (mixed.cwd / "together").stat().st_mode & 0o777 == 0o755
    assert len(started) == 2


@pytest.mark.parametrize("way", ["killed", "unseen", "in the middle of each file", "not started"])
def test_the_paths_of_a_process_that_fails_are_written_nevertheless(
    mixed: Dsv, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    start = export_folder.start_program

    def fail(program: str, order: Any, **how: Any) -> subprocess.Popen[bytes]:
        if way == "not started" and started:
            raise OSError(11, "Resource temporarily unavailable")
        process = start(program, order, **how)
        process.kill()
        process.wait()
        if way == "in the middle of each file":
            for name in ("none", "train"):
                (order[4] / name).mkdir(exist_ok=True)
            for name in ("run.sh", "train/1.png", "train/2.png", "train/big", "zero"):
                (order[4] / name).write_bytes(b"half")
        return process

    monkeypatch.setattr(export_folder, "start_program", fail)
    monkeypatch.setattr(export_folder, "_bounds", lambda ends, count: [0, 1, 2, len(ends)])
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN if way == "unseen" else signal.SIG_DFL)
    try:
        mixed.ok("export", "pets", "together")
    finally:
        signal.signal(signal.SIGCHLD, before)
    monkeypatch.setattr(export_folder, "processors", lambda: 1)
    mixed.ok("export", "pets", "alone")
    assert seen(mixed.cwd / "together") == seen(mixed.cwd / "alone")


def test_an_error_of_another_process_is_this_ones(
    mixed: Dsv, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process has only an empty folder to write."""
    monkeypatch.setattr(export_folder, "_bounds", lambda ends, count: [0, 1, 2, len(ends)])
    mixed.ok("rm", "pets:a.txt")
    store = mixed.at(mixed.cwd / "work").ok("config", "store").out.strip()
    flip(Person(mixed.home, store), ObjectKind.CHUNK)
    done = mixed("export", "pets", "out")
    assert done.code == 5 and "can't be read" in done.err
    assert started[0].returncode == 1
    assert not [one for one in os.listdir(mixed.cwd) if one.startswith(".") or one == "out"]


def test_slices_cover_all_paths() -> None:
    for ends in ([5], [*range(1, 1000)], [10**9, 10**9 + 1], [1, 10**10]):
        for count in range(1, 9):
            bounds = export_folder._bounds(ends, count)
            assert bounds[0] == 0 and bounds[-1] == len(ends) and bounds == sorted(set(bounds))


def test_a_process_of_an_export_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    order = partial(time.sleep, PATIENCE), None, None, 1, tmp_path, 0, 1
    process = export_folder.start_program("dsv.exchange.export_folder", order)
    with process, process.stdin:  # as the end of its parent closes it
        pass
    assert process.returncode == -signal.SIGKILL
