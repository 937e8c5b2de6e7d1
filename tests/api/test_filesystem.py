"""`dsv://` for fsspec: what is read, listed, pinned and published, and what a process has before that."""

from __future__ import annotations

import asyncio
import errno
import gc
import io
import os
import pickle
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
import pytest
from blake3 import blake3

import dsv
from dsv.api.edits import Put
from dsv.filesystem import DsvFileSystem
from tests.api.pets_in_python import BIG, SMALL, close_all, environ_of, make_home, of

IMAGES = {f"pets@v1/{path}": data for path, data in SMALL.items()}


@pytest.fixture
def options(folder: Path) -> dict[str, Any]:
    return {"environ": environ_of(folder), "cwd": folder, "skip_instance_cache": True}


@pytest.fixture
def fs(options: dict[str, Any]) -> DsvFileSystem:
    return DsvFileSystem(**options)


def test_fsspec_finds_the_file_system_by_its_entry_point(options: dict[str, Any]) -> None:
    [found] = entry_points(group="fsspec.specs", name="dsv")
    assert found.load() is DsvFileSystem
    with fsspec.open("dsv://pets@v1/labels.csv", "r", **options) as file:
        assert file.read() == "a,b\n1,2\n"


def test_a_file_has_its_size_and_the_id_of_its_content(fs: DsvFileSystem) -> None:
    digest = blake3(BIG).hexdigest()
    row = {"name": "pets@v1/big.bin", "size": len(BIG), "type": "file", "checksum": digest, "ETag": digest}
    assert fs.info("dsv://pets@v1/big.bin") == row
    assert fs.ls("pets@v1/big.bin") == [row]
    links = {one["name"]: one for one in fs.ls("pets@v1") if one.get("islink")}
    assert links == {
        "pets@v1/big-link": {**row, "name": "pets@v1/big-link", "islink": True, "destination": "big.bin"},
        "pets@v1/last": {"name": "pets@v1/last", "size": 0, "type": "link", "islink": True, "destination": "images/0"},
        "pets@v1/me": {"name": "pets@v1/me", "size": 0, "type": "link", "islink": True, "destination": "me"},
    }  # fmt: skip
    assert fs.size("pets@v1/last/0007.png") == len(SMALL["images/0/0007.png"])
    assert fs.ukey("pets@v1/labels.csv") != fs.ukey("pets@v1/big.bin")
    assert fs.modified("pets@v1/big.bin") == dsv.Commit.time.fget(fs._at("pets@v1")[0])  # type: ignore[attr-defined]


def test_folders_are_listed_walked_and_searched(fs: DsvFileSystem, tmp_path: Path) -> None:
    assert "pets" in fs.ls("", detail=False) and fs.info("")["type"] == "directory"
    assert fs.ls("pets@v1/images", detail=False) == [
        *(f"pets@v1/images/{n}" for n in range(7)),
        "pets@v1/images/up",
    ]
    assert set(fs.find("pets@v1/images")) == {*IMAGES, "pets@v1/images/up"}
    assert set(fs.glob("dsv://pets@v1/images/*/0*7.png")) == {
        one for one in IMAGES if one[-8] == "0" and one[-5] == "7"
    }
    assert fs.ls("pets@v1/nothing/here") == [] and fs.isdir("pets@v1/nothing/here")
    assert set(fs.find("pets@v1")) - set(fs.find("pets@v1/images")) == {
        f"pets@v1/{name}" for name in ("big-link", "big.bin", "empty", "labels.csv", "run.sh")
    }
    assert fs.isdir("pets") and fs.isfile("pets@v1/empty") and not fs.isfile("pets@v1/images")
    fs.get("pets@v1", str(tmp_path / "got"), recursive=True, maxdepth=1)
    assert (tmp_path / "got/big-link").read_bytes() == BIG
    assert fs.du("pets@v1/images") == sum(map(len, SMALL.values())) + 8


def test_many_files_and_ranges_are_read_at_once(fs: DsvFileSystem) -> None:
    chance = random.Random(3)
    shuffled = chance.sample(list(IMAGES), len(IMAGES))
    assert fs.cat(shuffled) == IMAGES
    assert fs.cat("pets@v1/images", recursive=True) == {**IMAGES, "pets@v1/images/up": b"a,b\n1,2\n"}
    assert (
        fs.cat("pets@v1/labels.csv") == b"a,b\n1,2\n" and fs.cat("pets@v1/labels.csv", start=-4) == b"1,2\n"
    )
    paths = chance.choices([*IMAGES, "pets/big.bin", "pets@v1/big.bin"], k=300)
    starts = [chance.choice([None, 0, 5, -100, 10_000]) for _ in paths]
    ends = [chance.choice([None, 0, 77, -5, 1 << 40]) for _ in paths]
    whole = {**IMAGES, "pets/big.bin": BIG, "pets@v1/big.bin": BIG}
    found = fs.cat_ranges(paths, starts, ends)
    assert found == [whole[path][a:b] for path, a, b in zip(paths, starts, ends, strict=True)]
    assert fs.cat_ranges(paths, 1, 3) == [whole[path][1:3] for path in paths]
    with pytest.raises(ValueError):
        fs.cat_ranges(paths, [0], 1)


def test_what_is_missing_is_an_error_in_its_place(fs: DsvFileSystem) -> None:
    paths = ["pets@v1/no", "pets@v1/labels.csv", "pets@v1/images", "nope/x", "pets@v1/empty"]
    found = fs.cat(paths, on_error="return")
    kinds = {path: type(data) for path, data in found.items()}
    assert kinds == dict(
        zip(paths, [FileNotFoundError, bytes, IsADirectoryError, FileNotFoundError, bytes], strict=True)
    )
    assert fs.cat(paths, on_error="omit") == {"pets@v1/labels.csv": b"a,b\n1,2\n", "pets@v1/empty": b""}
    with pytest.raises(FileNotFoundError):
        fs.cat(paths)
    with pytest.raises(IsADirectoryError):
        fs.open("pets@v1/images")
    for path in ("pets@v1/no", "pets@nope/x", "nope", "a b/c", "pets@v1:labels.csv", "pets@"):
        with pytest.raises(FileNotFoundError) as caught:
            fs.info(path)
        assert caught.value.errno == errno.ENOENT and not fs.exists(path)


def test_a_question_that_the_store_does_not_answer_is_no_no(tmp_path: Path) -> None:
    fs = DsvFileSystem(str(tmp_path / "away"), environ={"HOME": str(tmp_path)}, cwd=tmp_path)
    for ask in (fs.exists, fs.isfile, fs.isdir, fs.cat_file):
        with pytest.raises(dsv.Unreachable):
            ask("pets/x")
    assert [type(one).__mro__[1] for one in fs.cat_ranges(["pets/x", "pets/y"], 0, 1)] == [
        dsv.Unreachable
    ] * 2


def test_a_damaged_file_does_not_hide_the_others(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    fs = DsvFileSystem(environ=environ_of(home), cwd=home)
    paths = ["pets/big.bin", "pets/empty", "pets/big-link"]
    with (home / "pets/big.bin").open("rb") as file:
        where = file.read(5_000_000)[-1000:]
    for pack in (home / "store/packs").rglob("*"):
        if pack.is_file() and where in (data := pack.read_bytes()):
            pack.chmod(0o600)
            pack.write_bytes(data.replace(where, bytes(1000)))
    found = fs.cat(paths, on_error="return")
    assert isinstance(found["pets/big.bin"], dsv.IntegrityError) and found["pets/empty"] == b""
    close_all()


def test_an_open_file_is_read_in_ranges(fs: DsvFileSystem) -> None:
    with fs.open("pets@v1/big.bin", block_size=1 << 16) as file:
        assert (file.size, file.path, file.details["type"]) == (len(BIG), "pets@v1/big.bin", "file")
        file.seek(-100, os.SEEK_END)
        assert file.read() == BIG[-100:]
    assert fs.head("pets@v1/big.bin", 10) == BIG[:10] and fs.tail("pets@v1/big.bin", 10) == BIG[-10:]
    with fs.open("pets@v1/labels.csv", "rt") as text:
        assert list(text) == ["a,b\n", "1,2\n"]


def test_names_with_slashes_have_an_escape(folder: Path, fs: DsvFileSystem) -> None:
    store = of(folder)
    with store.edit("team/cats@main", create=True) as edits:
        edits.put("a@b/c:d", b"1")
    assert fs.cat("dsv://team%2Fcats/a@b/c:d") == b"1"
    assert fs.cat("dsv://team%2Fcats@main/a@b/c:d") == b"1"
    assert "team%2Fcats" in fs.ls("", detail=False)
    assert fs.find("team%2Fcats") == ["team%2Fcats/a@b/c:d"]


def test_a_url_names_another_store(folder: Path, tmp_path: Path) -> None:
    odd = tmp_path / "100% [x](:)"
    odd.symlink_to(folder / "store")
    here = {"environ": {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, "cwd": tmp_path}
    for store in (str(folder / "store"), str(odd)):
        top = f"({quote(store, safe='')})/pets@v1"
        fs, path = fsspec.url_to_fs(f"dsv://{top}/labels.csv", **here)
        assert path == f"{top}/labels.csv" and fs.unstrip_protocol(path) == f"dsv://{path}"
        assert fs.cat(path) == fs.cat(f"dsv://{path}") == b"a,b\n1,2\n"
        assert fs.glob(f"dsv://{top}/*.csv") == fs.glob(f"{top}/la*.?sv") == [path]
        assert f"{top[: -len('@v1')]}" in fs.ls(top.partition("/")[0], detail=False)
        assert fs.cat([path, f"{top}/empty"]) == {path: b"a,b\n1,2\n", f"{top}/empty": b""}
        named = DsvFileSystem(store, **here)
        assert (
            named.cat("pets@v1/labels.csv") == named.cat(path) == b"a,b\n1,2\n" and len(named._commits) == 1
        )
        assert named.unstrip_protocol("pets@v1/labels.csv") == named.unstrip_protocol(path) == f"dsv://{path}"
    brackets = f"dsv://[{folder}/store]/pets@v1"
    assert fs.cat(f"{brackets}/labels.csv") == b"a,b\n1,2\n"
    [opened] = fsspec.open_files(f"{brackets}/*.csv", "rt", **here)
    with opened as file:
        assert file.read() == "a,b\n1,2\n"
    for wrong in ("dsv://[open/pets/a", "dsv://[a]b/c", "dsv://[]/pets"):
        with pytest.raises(ValueError, match="is not dsv:"):
            fs.cat(wrong)
    for ask in (fs.cat, fs.find, fs.exists, fs.glob):  # without a store nothing is known of its datasets
        with pytest.raises(dsv.NotFound):
            ask("pets@v1/labels.csv")


def test_a_branch_stays_at_its_commit_also_in_a_pickle(folder: Path, options: dict[str, Any]) -> None:
    store = of(folder)
    with store.edit("moving", create=True) as edits:
        edits.put("a", b"1")
    fs = DsvFileSystem(**options)
    assert fs.cat("moving/a") == b"1"
    with store.edit("moving") as edits:
        edits.put("a", b"2")
    copy = pickle.loads(pickle.dumps(fs))
    for one in (fs, copy, pickle.loads(pickle.dumps(copy))):
        assert one.cat("moving/a") == one.cat("moving@main/a") == b"1"
    assert DsvFileSystem(**options).cat("moving/a") == b"2"


def test_coroutines_give_the_same(options: dict[str, Any]) -> None:
    async def ask() -> None:
        fs = DsvFileSystem(asynchronous=True, **options)
        assert await fs._cat_file("pets@v1/labels.csv") == b"a,b\n1,2\n"
        assert await fs._cat(list(IMAGES)) == IMAGES
        assert (await fs._cat_ranges(["pets@v1/big.bin", "pets@v1/no"], 0, 5))[0] == BIG[:5]
        assert len(await fs._find("pets@v1/images/3")) == 143
        assert [one async for one, _, _ in fs._walk("pets@v1/nothing")] == [
            "pets@v1/nothing",
            "pets@v1/nothing/here",
        ]
        answers = await asyncio.gather(*(fs._info(path) for path in list(IMAGES)[:50]))
        assert [one["size"] for one in answers] == [len(data) for data in list(IMAGES.values())[:50]]
        with pytest.raises(FileNotFoundError):
            await fs._info("pets@v1/no")
        with pytest.raises(FileNotFoundError):
            await fs._cat_file("pets@v1/no")

    asyncio.run(ask())


PROGRAM = """
import os, pickle, sys, threading
import fsspec
def tasks(): return len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 1
before = len(os.listdir("/dev/fd"))
fs, path = fsspec.url_to_fs("dsv://pets@v1/labels.csv")
again = pickle.loads(pickle.dumps(fs))
from dsv.api import open_commits
from fsspec import asyn
assert (tasks(), len(os.listdir("/dev/fd")) - before, open_commits._processes[-1].opened) == (1, 0, {})
assert asyn.loop == [None] and asyn.iothread == [None]
if len(sys.argv) > 1:
    assert fs.cat(path) == again.cat(path) and len(fs.cat(fs.glob("pets@v1/images/3/*"))) == 143
    assert asyn.iothread == [None]
    for _ in range(10):
        done = threading.Event()
        others = [threading.Thread(target=lambda: [fs.cat(path) for _ in iter(done.is_set, True)]) for _ in range(3)]
        for one in others: one.start()
        child = os.fork()
        if not child:
            os._exit(fs.cat(path) != b"a,b\\n1,2\\n" or len(fs.find("pets@v1/images/3")) != 143)
        assert os.waitpid(child, 0)[1] == 0
        done.set()
        for one in others: one.join()
    assert fs.loop.is_running()
print("done")
"""


@pytest.mark.parametrize("reads", [[], ["reads"]])
def test_nothing_is_there_before_something_is_read_and_forks_read_on(folder: Path, reads: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *reads],
        env=environ_of(folder),
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "done\n", done.stderr


def messages(folder: Path, dataset: str) -> list[str]:
    return [one.message for one in of(folder).open(dataset).log()]


def test_a_transaction_is_one_commit(folder: Path, options: dict[str, Any], tmp_path: Path) -> None:
    fs = DsvFileSystem(message="by default", create=True, allow_removals=True, **options)
    (tmp_path / "local/deep").mkdir(parents=True)
    (tmp_path / "local/deep/x").write_bytes(b"x")
    with fs.transaction as transaction:
        transaction.message = "first"
        with fs.open("new/a.txt", "w") as text:
            text.write("äh")
        fs.pipe({"new/b": b"b", "new/c": BIG})
        fs.put(str(tmp_path / "local"), "new/local", recursive=True)
        (tmp_path / "local/deep/x").write_bytes(b"later")
        fs.cp_file("pets@v1/labels.csv", "new/labels.csv")
        left_open = fs.open("new/open", "wb")
        left_open.write(b"left open")
        assert not fs.exists("new")  # nothing is there before the end
    assert messages(folder, "new") == ["first"]
    assert fs.cat("new", recursive=True) == {
        "new/a.txt": "äh".encode(), "new/b": b"b", "new/c": BIG, "new/local/deep/x": b"x",
        "new/labels.csv": b"a,b\n1,2\n", "new/open": b"left open",
    }  # fmt: skip
    with fs.transaction:
        fs.rm("new/b")
        fs.mv("new/c", "new/moved")
        fs.rm("new/local", recursive=True)
    assert messages(folder, "new") == ["by default", "first"]
    assert fs.ls("new", detail=False) == ["new/a.txt", "new/labels.csv", "new/moved", "new/open"]
    with pytest.raises(KeyError), fs.transaction:
        fs.pipe("new/b", b"b")
        abandoned = fs.open("new/d", "wb")
        raise KeyError
    assert abandoned.closed and not fs.exists("new/b")
    with pytest.raises(dsv.Conflict, match="writes to new@main"), fs.transaction:
        fs.pipe("new/b", b"b")
        fs.pipe("pets/b", b"b")
    with pytest.raises(dsv.Conflict), fs.transaction:
        fs.pipe("new/moved/below-a-file", b"b")
    fs.pipe("new/e", b"e")  # what failed is over
    assert messages(folder, "new") == ["by default", "by default", "first"]


def test_a_call_outside_of_a_transaction_is_one_commit(
    folder: Path, options: dict[str, Any], tmp_path: Path
) -> None:
    fs = DsvFileSystem(create=True, allow_removals=True, **options)
    fs.pipe({f"single/{number}/x": b"%d" % number for number in range(20)})
    fs.copy("single/1", "single/one", recursive=True)
    fs.mv("single/2", "single/two", recursive=True)
    fs.rm(["single/3", "single/4/x"], recursive=True)
    (tmp_path / "f").write_bytes(b"f")
    fs.put([str(tmp_path / "f")], ["single/f"])
    with fs.open("single/g", "wb") as file:
        file.write(b"g")
    assert len(messages(folder, "single")) == 6
    assert fs.cat(["single/one/x", "single/two/x", "single/f"]) == {
        "single/one/x": b"1", "single/two/x": b"2", "single/f": b"f"
    }  # fmt: skip
    assert not fs.exists("single/2") and not fs.exists("single/3") and not fs.exists("single/4")
    with pytest.raises(FileNotFoundError):
        fs.rm("single/nope")
    with pytest.raises(IsADirectoryError):
        fs.rm("single/1")
    with pytest.raises(KeyError), fs.open("single/h", "wb") as file:
        file.write(b"half")
        raise KeyError
    abandoned = fs.open("single/h", "wb")
    abandoned.write(b"half")
    del abandoned
    gc.collect()
    with pytest.raises(FileExistsError):
        fs.open("single/g", "xb")
    with pytest.raises(NotImplementedError):
        fs.open("single/g", "ab")
    assert len(messages(folder, "single")) == 6


def test_what_moves_keeps_its_mode_and_links_and_empty_folders(
    folder: Path, options: dict[str, Any], tmp_path: Path
) -> None:
    source = tmp_path / "d"
    (source / "empty").mkdir(parents=True)
    (source / "run.sh").write_bytes(b"#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("run.sh")
    (source / "dangling").symlink_to("nowhere")
    fs = DsvFileSystem(create=True, allow_removals=True, **options)
    fs._publish(("", "moved"), [Put("d", source)])
    before = [(one.path, one.kind) for one in of(folder).open("moved").ls("d")]
    with pytest.raises(IsADirectoryError):
        fs.mv("moved/d", "moved/e")
    fs.mv("moved/d", "moved/e", recursive=True)
    after = [(one.path, one.kind) for one in of(folder).open("moved").ls("e")]
    assert [(path.replace("d", "e", 1), kind) for path, kind in before] == after and len(after) == 4
    with pytest.raises(FileNotFoundError):
        fs.mv("moved/nope", "moved/x")
    fs.mv("moved/e/run.sh", "moved/")
    assert fs.exists("moved/run.sh") and not fs.exists("moved/e/run.sh")
    fs.mv("moved/run.sh", "dsv://moved/run.sh")
    assert fs.exists("moved/run.sh")
    with fs.transaction:
        fs.rm("moved/e", recursive=True)
        with fs.open("moved/e", "wb") as file:
            file.write(b"a file now")
    assert fs.cat("moved/e") == b"a file now"


def test_a_folder_is_never_written_and_an_exclusive_file_never_lost(
    folder: Path, options: dict[str, Any], tmp_path: Path
) -> None:
    fs = DsvFileSystem(create=True, **options)
    fs.pipe("lock/d/x", b"x")
    (tmp_path / "f").write_bytes(b"f")
    with pytest.raises(IsADirectoryError):
        fs.open("lock/d", "wb")
    for write in (
        lambda: fs.pipe_file("lock/d", b"y"), lambda: fs.touch("lock/d"), lambda: fs.cp_file("lock/d/x", "lock/d"),
        lambda: fs.put_file(str(tmp_path / "f"), "lock/d"),
    ):  # fmt: skip
        with pytest.raises((OSError, dsv.Conflict)):
            write()
    assert fs.find("lock") == ["lock/d/x"]
    other = DsvFileSystem(**options)
    other.pipe("lock/theirs", b"theirs")
    with pytest.raises(dsv.Conflict, match="already exists"), fs.open("lock/theirs", "xb") as file:
        file.write(b"mine")
    assert DsvFileSystem(**options).cat("lock/theirs") == b"theirs"
    with pytest.raises(FileNotFoundError):
        fs.modified("lock/nope")


def test_only_a_branch_is_written_to(fs: DsvFileSystem, options: dict[str, Any]) -> None:
    commit = fs._at("pets")[0].id
    for path in ("pets@v1/x", f"pets@{commit}/x", "pets@main~0/x"):
        if "~" not in path:
            with pytest.raises(dsv.UsageError, match="only a branch can be written to"):
                fs.pipe(path, b"x")
    with pytest.raises(FileNotFoundError):
        fs.pipe("nope/x", b"x")
    with pytest.raises(IsADirectoryError):
        fs.pipe("pets", b"x")


def test_threads_publish_their_own_commits(folder: Path, options: dict[str, Any]) -> None:
    fs = DsvFileSystem(create=True, **options)
    fs.pipe("threads/first", b"")

    def write(number: int) -> bytes:
        fs.pipe({f"threads/{number}/{part}": b"%d" % number for part in range(5)})
        return bytes(fs.cat(f"threads/{number}/3"))

    with ThreadPoolExecutor(6) as pool:
        assert [*pool.map(write, range(6))] == [b"%d" % number for number in range(6)]
    assert len(messages(folder, "threads")) == 7
    assert len(fs.find("threads")) == 31


def test_no_temporary_file_stays(
    folder: Path, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fs = DsvFileSystem(create=True, **options)
    fs.pipe({"tidy/a": b"1", "tidy/b": io.BytesIO(b"2").getvalue()})
    with pytest.raises(KeyError), fs.transaction:
        fs.pipe("tidy/c", b"3")
        fs.open("tidy/d", "wb").write(b"4")
        raise KeyError
    assert os.listdir(tmp_path) == []
