"""With --offline, what was cached can be listed, read, and restored, and no store is asked."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.dsv import Dsv, Result, write_files

BIG = bytes(range(256)) * (5 << 12)  # 5 MiB: a file of several chunks
FILES = {"a.txt": b"alpha\n", "train/1.png": b"1", "train/2.png": b"2", "big.bin": BIG}
READING = (
    ("log", "--oneline"),
    ("log", "pets@v1"),
    ("ls", "-l", "pets@v1"),
    ("ls", "pets@v1:train"),
    ("cat", "pets@v1:a.txt"),
    ("cat", "pets@main:a.txt"),
    ("resolve", "pets"),
    ("resolve", "pets@v1"),
    ("resolve", "pets@main~1"),
)


@pytest.fixture
def pets(dsv: Dsv) -> Dsv:
    """A workspace at v2, whose a.txt has another content of the same size as that of v1; both are cached."""
    here = dsv.at(dsv.cwd, DSV_CACHE=str(dsv.cwd.parent / "cache"))
    write_files(here.cwd, FILES)
    here.ok("init", "pets")
    here.ok("sync", "-m", "first")
    here.ok("tag", "v1")
    write_files(here.cwd, {"a.txt": b"omega\n"})
    here.ok("sync", "-m", "second")
    here.ok("tag", "v2")
    here.ok("cache", "@v1")
    here.ok("cache", "pets@main")
    here.ok("cache", "pets@v2")
    return here


@pytest.fixture
def silent_port() -> Iterator[socket.socket]:
    """A server that would notice a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def lose_the_store(pets: Dsv) -> Path:
    store = pets.home / ".local/share/dsv/store"
    return store.rename(pets.home / "away")


def cached(pets: Dsv, tag: str) -> Path:
    return Path(pets.ok("cache", f"pets@{tag}", "--offline").out.strip())


def assert_says(done: Result, code: int, *texts: str) -> None:
    assert done.code == code and done.out == "", done
    for text in texts:
        assert text in done.err, (text, done.err)


@pytest.mark.parametrize("line", READING, ids=" ".join)
def test_a_command_prints_the_same_without_the_store(pets: Dsv, line: tuple[str, ...]) -> None:
    before = pets.ok(*line).out
    lose_the_store(pets)
    done = pets.ok(*line, "--offline")
    assert done.out == before
    branch = "main" in line[-1] or "@" not in line[-1]
    assert ("pets@main as the store said" in done.err) is branch, done.err


def test_nothing_connects_to_the_store(pets: Dsv, silent_port: socket.socket, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    port = silent_port.getsockname()[1]
    away = pets.at(
        elsewhere,
        DSV_STORE="s3://lab/dsv",
        DSV_S3_ENDPOINT=f"http://127.0.0.1:{port}",
        AWS_ACCESS_KEY_ID="x",
        AWS_SECRET_ACCESS_KEY="x",
    )
    assert away.ok("log", "pets", "--oneline", "--offline").lines[1].endswith("first")
    assert away.ok("ls", "pets@v1", "--offline").lines == sorted(FILES)
    assert away.ok("cat", "pets@v1:big.bin", "--offline").out.encode("utf-8", "surrogateescape") == BIG
    assert away.ok("resolve", "pets@main", "--offline").out == pets.ok("resolve").out
    with pytest.raises(BlockingIOError):
        silent_port.accept()


def test_restore_copies_from_the_cache_and_shares_no_inode_with_it(pets: Dsv) -> None:
    lose_the_store(pets)
    (pets.cwd / "big.bin").unlink()
    write_files(pets.cwd, {"a.txt": b"mine\n"})
    pets.ok("restore", "a.txt", "big.bin", "--offline")
    assert (pets.cwd / "a.txt").read_bytes() == b"omega\n" and (pets.cwd / "big.bin").read_bytes() == BIG
    for name in ("a.txt", "big.bin"):
        assert (pets.cwd / name).stat().st_nlink == 1
        write_files(pets.cwd, {name: b"changed\n"})
    assert (cached(pets, "v2") / "a.txt").read_bytes() == b"omega\n"
    assert (cached(pets, "v2") / "big.bin").read_bytes() == BIG


def test_restore_takes_a_path_from_another_cached_commit(pets: Dsv) -> None:
    lose_the_store(pets)
    pets.ok("restore", "a.txt", "--from", "@v1", "--offline")
    assert (pets.cwd / "a.txt").read_bytes() == b"alpha\n"


def test_restore_of_all_to_another_commit_is_refused_as_only_the_store_has_what_goes(pets: Dsv) -> None:
    lose_the_store(pets)
    assert_says(pets("restore", "--from", "@v1", "--offline"), 6, "1 file in", "--offline --force")
    assert (pets.cwd / "a.txt").read_bytes() == b"omega\n"
    pets.ok("restore", "--from", "@v1", "--offline", "--force")
    assert (pets.cwd / "a.txt").read_bytes() == b"alpha\n"


def test_restore_writes_nothing_if_one_content_is_not_cached(pets: Dsv) -> None:
    for tag in ("v1", "v2"):
        (cached(pets, tag) / "train/2.png").unlink()
    lose_the_store(pets)
    shutil.rmtree(pets.cwd / "train")
    done = pets("restore", "train", "--offline")
    assert_says(
        done, 6, "no cached copy of 'train/2.png' of pets", "hint: without --offline the store is asked"
    )
    assert not (pets.cwd / "train").exists()


def test_a_damaged_copy_is_not_printed(pets: Dsv) -> None:
    copy = cached(pets, "v1") / "big.bin"
    copy.chmod(0o644)
    copy.write_bytes(b"x" * len(BIG))
    lose_the_store(pets)
    done = pets("cat", "@v1:big.bin", "--offline")
    assert_says(done, 5, "does not hold what its commit has at 'big.bin'", "dsv cached --check")


@pytest.mark.parametrize(
    "line",
    ["cat @v3:a.txt", "ls pets@v3", "resolve pets@other", "log dogs", "ls @0123456789", "ls dogs@main"],
)
def test_what_is_not_known_here_is_unreachable_and_not_absent(pets: Dsv, line: str) -> None:
    lose_the_store(pets)
    done = pets(*line.split(), "--offline")
    assert_says(done, 6, "is not asked", "--offline")


@pytest.mark.parametrize("line", ["log", "ls", "ls @v1", "cat @v1:a.txt", "resolve", "resolve @main"])
def test_outside_of_a_workspace_a_dataset_is_needed(pets: Dsv, line: str) -> None:
    done = pets.at(pets.home)(*line.split(), "--offline")
    assert_says(done, 2, "names no dataset, and this is not a workspace")


def test_a_path_that_the_commit_lacks_is_not_found(pets: Dsv) -> None:
    lose_the_store(pets)
    assert_says(pets("cat", "@v1:none.txt", "--offline"), 3, "none.txt is not in pets@")


def test_a_commit_of_which_only_the_name_is_known_is_unreachable(pets: Dsv) -> None:
    lose_the_store(pets)
    for folder in (pets.home / ".cache/dsv/.dsv", pets.cwd.parent / "cache/.dsv"):
        for kind in ("segment", "node"):
            for path in folder.glob(f"stores/*/objects/{kind}"):
                shutil.rmtree(path)
    assert_says(pets("ls", "pets@v1", "--offline"), 6, "there is no copy here of")


def test_the_branch_of_the_workspace_is_where_it_was_last_seen(pets: Dsv) -> None:
    write_files(pets.cwd, {"new.txt": b"new\n"})
    pets.ok("sync", "-m", "third")  # after the cache recorded main
    head = pets.ok("resolve", "@main").out
    lose_the_store(pets)
    assert pets.ok("resolve", "@main", "--offline").out == head
    assert pets.ok("log", "--oneline", "-n", "1", "--offline").out.strip().endswith("third")


@pytest.mark.parametrize("line", ["log", "ls @v1", "cat @v1:a.txt", "resolve pets@v1", "restore a.txt"])
def test_without_the_store_the_hint_names_the_command_that_works(pets: Dsv, line: str) -> None:
    lose_the_store(pets)
    name, *rest = line.split()
    offline = " ".join(["dsv", name, "--offline", *rest])
    done = pets(*line.split())
    assert_says(done, 6, f"from what is cached here: {offline}\n")
    pets.ok(*offline.split()[1:])


def test_no_hint_names_a_command_that_would_fail(pets: Dsv) -> None:
    lose_the_store(pets)
    shutil.rmtree(pets.cwd.parent / "cache/pets")
    for line in ("cat @v1:a.txt", "ls pets@v3"):
        done = pets(*line.split())
        assert done.code == 6 and "--offline" not in done.err, done
