"""dsv import: a URL becomes a commit, and only what changed is read again."""

from __future__ import annotations

import errno
import io
import os
import random
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv.api import imports as import_module
from dsv.errors import Unreachable
from dsv.exchange.sources import FolderSource, RemoteFile
from tests.kit.dsv import Dsv, assert_documented, write_files
from tests.labs.s3_server import S3Server

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402
from fsspec.spec import AbstractFileSystem  # noqa: E402

BIG = random.Random(9).randbytes(9 << 20)
FILES = {"a.txt": b"1", "d/b.bin": b"2" * 700_000, "d/e/c": b"", "big": BIG}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of files that were read."""
    seen: list[str] = []
    read, opened = FolderSource.read, FolderSource.open

    def counted_read(self: FolderSource, file: RemoteFile) -> bytes:
        seen.append(file.path.decode())
        return read(self, file)

    def counted_open(self: FolderSource, file: RemoteFile) -> object:
        seen.append(file.path.decode())
        return opened(self, file)

    monkeypatch.setattr(FolderSource, "read", counted_read)
    monkeypatch.setattr(FolderSource, "open", counted_open)
    return seen


@pytest.fixture
def bucket(pets: Dsv) -> Iterator[str]:
    """A URL with some files, of which each has a time."""
    memory = fsspec.filesystem("memory")
    for name, content in FILES.items():
        memory.pipe_file(f"/lab/scans/{name}", content)
    yield "memory://lab/scans"
    memory.rm("/lab", recursive=True)


def content(dsv: Dsv, name: str) -> str:
    return dsv.ok("cat", name).out


def test_a_url_becomes_one_commit(pets: Dsv, bucket: str, reads: list[str]) -> None:
    done = pets.ok("import", bucket, "scans:raw", "--create", "--json").json
    assert_documented("import", done, without="items")
    assert (done["found"], done["read"], done["known"], done["added"]) == (4, 4, 0, 4)
    assert done["read_bytes"] == sum(map(len, FILES.values()))
    assert pets.ok("ls", "scans").lines == ["raw/a.txt", "raw/big", "raw/d/b.bin", "raw/d/e/c"]
    assert sorted(reads) == sorted(FILES)
    sizes = {item["path"]: item["size"] for item in pets.ok("ls", "scans", "--json").json["items"]}
    assert sizes["raw/big"] == len(BIG) and content(pets, "scans:raw/d/b.bin") == "2" * 700_000
    assert pets.ok("log", "scans", "--json").json["items"][0]["message"] == (
        "import memory://lab/scans\n\nImported-from: memory://lab/scans"
    )


def test_only_what_changed_is_read_again(pets: Dsv, bucket: str, reads: list[str]) -> None:
    pets.ok("import", bucket, "scans:", "--create")
    reads.clear()
    again = pets.ok("import", bucket, "scans:", "--json").json
    assert (again["any_change"], again["known"], reads) == (False, 4, [])
    fsspec.filesystem("memory").pipe_file("/lab/scans/a.txt", b"new")
    third = pets.ok("import", bucket, "scans:", "--json").json
    assert (third["changed"], third["read"], reads) == (1, 1, ["a.txt"])
    reads.clear()
    assert pets.ok("import", bucket, "other:", "--create", "--json").json["added"] == 4
    assert reads == [], "contents that the store has are not read for another dataset either"


def test_mirror_removes_what_is_gone_there(pets: Dsv, bucket: str) -> None:
    pets.ok("import", bucket, "pets:raw")
    fsspec.filesystem("memory").rm("/lab/scans/a.txt")
    assert not pets.ok("import", bucket, "pets:raw", "--json").json["any_change"]
    done = pets.ok("import", bucket, "pets:raw", "--mirror", "--json").json
    assert done["removed"] == 1
    assert pets.ok("ls", "pets").lines == [
        "a.txt", "raw/big", "raw/d/b.bin", "raw/d/e/c", "test/1.png", "train/1.png", "train/2.png",
    ]  # fmt: skip


def test_the_next_import_continues_where_a_failure_ended_the_last_one(
    pets: Dsv, bucket: str, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module, "SAVE_BYTES", 1)
    counted = FolderSource.read

    def failing(self: FolderSource, file: RemoteFile) -> bytes:
        if file.path == b"d/b.bin":
            raise Unreachable("the server went away")
        return counted(self, file)

    with monkeypatch.context() as once:
        once.setattr(FolderSource, "read", failing)
        failed = pets("import", bucket, "scans:", "--create")
    assert failed.code == 6 and pets("resolve", "scans").code == 3
    reads.clear()
    done = pets.ok("import", bucket, "scans:", "--create", "--json").json
    assert "big" not in reads and "a.txt" not in reads and done["added"] == 4


def test_a_file_that_changes_while_it_is_read_is_a_conflict(
    pets: Dsv, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderSource, "read", lambda self, file: b"more than it was listed with")
    done = pets("import", bucket, "scans:", "--create")
    assert done.code == 4 and "was changed while it was read" in done.err
    assert pets("resolve", "scans").code == 3


@pytest.mark.parametrize("changes", ["x.db", "x.db-wal"])
def test_a_database_that_changes_while_its_journal_is_read_is_a_conflict(
    pets: Dsv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: str
) -> None:
    write_files(tmp_path / "src", {"a": b"a", "d/x.db": b"1", "d/x.db-wal": b"1", "z": b"z"})
    stored = import_module._Importing.stored

    def change(self: Any, *given: Any) -> None:
        if self.read + 1 == 4:  # all is read
            (tmp_path / "src/d" / changes).write_bytes(b"another")
        stored(self, *given)

    with monkeypatch.context() as once:
        once.setattr(import_module._Importing, "stored", change)
        done = pets("import", f"{tmp_path}/src", "scans:", "--create", "--json")
    assert done.code == 4 and f"{changes} was changed while it was read" in done.json["error"]["message"]
    assert done.json["error"]["retryable"]
    assert pets("resolve", "scans").code == 3
    pets.ok("import", f"{tmp_path}/src", "scans:", "--create")


@pytest.mark.parametrize("size", [1000, 20 << 20], ids=["small", "large"])
def test_a_file_that_is_rewritten_in_place_while_it_is_read_is_a_conflict(
    pets: Dsv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Its size stays the same."""
    write_files(tmp_path / "src", {"a": b"1", "z": b"a" * size})
    os.utime(tmp_path / "src/z", (1e9, 1e9))
    opened, check = FolderSource.open, FolderSource._check

    def rewrite() -> None:
        with (tmp_path / "src/z").open("r+b") as file:
            file.write(b"b" * size)

    def open_and_rewrite(self: FolderSource, file: RemoteFile) -> object:
        read = opened(self, file)

        def then(buffer: memoryview) -> int:
            count = read(buffer)
            rewrite()
            return count

        return then

    def rewrite_and_check(self: FolderSource, file: RemoteFile) -> None:
        if file.path == b"z":
            rewrite()
        check(self, file)

    with monkeypatch.context() as once:
        once.setattr(FolderSource, "open", open_and_rewrite)
        once.setattr(FolderSource, "_check", rewrite_and_check)
        done = pets("import", f"file://{tmp_path}/src", "scans:", "--create")
    assert done.code == 4 and "z was changed while it was read" in done.err, done
    assert pets("resolve", "scans").code == 3
    pets.ok("import", f"file://{tmp_path}/src", "scans:", "--create")
    assert content(pets, "scans:z") == "b" * size


def test_a_symlink_whose_file_has_changed_is_read_again(pets: Dsv, tmp_path: Path) -> None:
    write_files(tmp_path, {"src/a": b"1", "outside": b"old"})
    (tmp_path / "src/link").symlink_to("../outside")
    pets.ok("import", f"file://{tmp_path}/src", "scans:", "--create")
    write_files(tmp_path, {"outside": b"new"})
    os.utime(tmp_path / "outside", (1e9, 1e9))
    done = pets.ok("import", f"file://{tmp_path}/src", "scans:", "--json").json
    assert (done["changed"], content(pets, "scans:link")) == (1, "new")


def test_a_tar_and_a_folder_are_imported(pets: Dsv) -> None:
    write_files(pets.cwd.parent / "src", {"x/1": b"1", "2": b"2"})
    outside = pets.at(pets.cwd.parent)
    with tarfile.open(outside.cwd / "some.tar.gz", "w:gz") as tar:
        for name, data in {"x/1": b"one", "y": b"two"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    outside.ok("import", "some.tar.gz", "pets:tar")
    outside.ok("import", "src", "pets:folder/")
    assert content(outside, "pets:tar/x/1") == "one" and content(outside, "pets:folder/x/1") == "1"
    outside.ok("import", "src/2", "pets:one/")
    assert content(outside, "pets:one/2") == "2"


def test_what_is_no_file_in_a_tar_is_named(pets: Dsv) -> None:
    outside = pets.at(pets.cwd.parent)
    with tarfile.open(outside.cwd / "some.tar", "w") as tar:
        for name, kind, link in (
            ("d", tarfile.DIRTYPE, ""), ("d/file", tarfile.REGTYPE, ""), ("good", tarfile.SYMTYPE, "d/file"),
            ("gone", tarfile.SYMTYPE, "none"), ("loop", tarfile.SYMTYPE, "loop"), ("pipe", tarfile.FIFOTYPE, ""),
            ("null", tarfile.CHRTYPE, ""), ("folder", tarfile.SYMTYPE, "d"), ("hard", tarfile.LNKTYPE, "d/file"),
        ):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            info.size = 3 if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(b"one"))
    refused = outside("import", "some.tar", "pets:tar")
    assert refused.code == 9, refused
    assert all(name in refused.err for name in ("gone", "loop", "pipe", "null", "folder")), refused
    outside.ok("import", "some.tar", "pets:tar", "--skip-unsupported")
    for name in ("d/file", "good", "hard"):
        assert content(outside, f"pets:tar/{name}") == "one"
    assert outside("cat", "pets:tar/gone").code == 3


def test_what_is_no_file_is_named_and_not_opened(pets: Dsv) -> None:
    outside = pets.at(pets.cwd.parent)
    source = outside.cwd / "src"
    write_files(source, {"x/1": b"1", "2": b"2"})
    os.mkfifo(source / "pipe")
    (source / "folder").symlink_to("x")
    (source / "nothing").symlink_to("none")
    (source / "file").symlink_to("x/1")
    url = f"file://{source}"
    refused = outside("import", url, "pets:src")
    assert refused.code == 9 and "--skip-unsupported" in refused.err, refused
    for line in (
        "'src/pipe': it is a named pipe",
        "'src/folder': it is a symlink to a folder",
        "'src/nothing': it is a symlink to something that is not a file",
    ):
        assert line in refused.err
    assert outside("ls", "pets:src").code == 3
    outside.ok("import", url, "pets:src", "--skip-unsupported")
    assert outside.ok("ls", "pets:src").lines == ["src/2", "src/file", "src/x/1"]
    assert content(outside, "pets:src/file") == "1"


def test_a_folder_whose_name_is_not_utf_8_is_imported_and_its_files_are_always_read(pets: Dsv) -> None:
    source = pets.cwd.parent / os.fsdecode(b"\xff")
    write_files(source, {"a": b"1"})
    for target in ("pets:first", "pets:second"):
        assert pets.ok("import", f"file://{source}", target, "--json").json["read"] == 1
        assert content(pets, f"{target}/a") == "1"


def test_the_journal_is_written_where_the_system_has_no_fdatasync(
    pets: Dsv, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fdatasync")
    pets.ok("import", bucket, "scans:", "--create")
    assert pets.ok("import", bucket, "scans:", "--json").json["known"] == len(FILES)


@pytest.mark.parametrize(
    ("url", "target", "code", "message"),
    [
        ("memory://nowhere", "pets:", 3, "no file at memory://nowhere"),
        ("nosuch://x", "pets:", 2, "is not a URL that dsv can read"),
        ("gs://x/y", "pets:", 9, "package that is not installed"),
        ("memory://lab/scans", "none:", 3, "no dataset none"),
        ("memory://lab/scans", "pets:a.txt", 4, "is a file, so"),
    ],
)
def test_exit_codes(pets: Dsv, bucket: str, url: str, target: str, code: int, message: str) -> None:
    done = pets("import", url, target)
    assert done.code == code and message in done.err, done


def test_a_dry_run_reads_and_writes_nothing(pets: Dsv, bucket: str, reads: list[str]) -> None:
    done = pets.ok("import", bucket, "pets:raw", "-n")
    assert done.lines == [
        "added    raw/a.txt",
        "added    raw/big",
        "added    raw/d/b.bin",
        "added    raw/d/e/c",
    ]
    assert reads == [] and pets("ls", "pets:raw").code == 3


def test_a_bucket_is_imported_with_the_credentials_of_the_store(
    pets: Dsv, ceph_s3: S3Server, reads: list[str]
) -> None:
    """From Ceph, through s3fs."""
    pytest.importorskip("s3fs")
    bucket = ceph_s3.bucket()
    client = ceph_s3.client()
    names = [f"scans/d{n % 3}/{n:03}" for n in range(60)]
    for name in names:
        client.put_object(Bucket=bucket, Key=name, Body=name.encode())
    client.put_object(Bucket=bucket, Key="scans/folder/", Body=b"")
    client.put_object(Bucket=bucket, Key="scans/big", Body=BIG)
    try:
        person = pets.at(pets.cwd, **ceph_s3.env)
        done = person.ok("import", f"s3://{bucket}/scans", "pets:s3", "--json").json
        assert (done["found"], done["added"], done["read"]) == (61, 61, 61)
        assert content(person, "pets:s3/d1/001") == "scans/d1/001"
        reads.clear()
        client.put_object(Bucket=bucket, Key="scans/d1/001", Body=b"other, as long")
        again = person.ok("import", f"s3://{bucket}/scans/", "pets:s3", "--json").json
        assert (again["changed"], reads) == (1, ["d1/001"])
        none = person("import", f"s3://{bucket}-none/scans", "pets:s3")
        assert none.code == 3, none
        denied = pets.at(pets.cwd, **{**ceph_s3.env, "AWS_SECRET_ACCESS_KEY": "wrong"})
        refused = denied("import", f"s3://{bucket}/scans", "pets:s3")
        assert refused.code == 8, refused
    finally:
        ceph_s3.remove_bucket(bucket)


@pytest.fixture
def listings_fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, OSError], None]:
    """Lets the listing of a folder of this machine fail."""

    def fail(folder: str, error: OSError) -> None:
        scan = os.scandir

        def scandir(path: Any = ".") -> Any:
            if os.fspath(path).endswith(folder):
                raise error
            return scan(path)

        monkeypatch.setattr(os, "scandir", scandir)

    return fail


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EACCES, 8), (errno.EIO, 6), (errno.ESTALE, 6), (errno.ENOENT, 4)]
)
def test_a_folder_that_cant_be_listed_is_not_an_empty_one(
    pets: Dsv, tmp_path: Path, listings_fail: Callable[[str, OSError], None], number: int, code: int
) -> None:
    source = tmp_path / "src"
    write_files(source, {"a/1": b"1", "b/c/2": b"2", "b/c/3": b"3"})
    pets.ok("import", str(source), "scans:", "--create")
    listings_fail("src/b/c", OSError(number, os.strerror(number), f"{source}/b/c"))
    for mirror in ([], ["--mirror", "--allow-removals", "--skip-unsupported"]):
        done = pets("import", str(source), "scans:", *mirror)
        assert done.code == code and f"{source}/b/c" in done.err, done
    assert pets.ok("ls", "scans").lines == ["a/1", "b/c/2", "b/c/3"]


class Unsteady(MemoryFileSystem):  # type: ignore[misc]
    """A file system of fsspec that lists folder by folder. Its second level does not always answer."""

    protocol = "unsteady"
    answers = True
    find = AbstractFileSystem.find

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("unsteady:/")))

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        if not self.answers and path.rstrip("/").endswith("b/c"):
            raise TimeoutError("no answer")
        return super().ls(path, detail=detail, **more)


def test_a_file_system_of_fsspec_that_does_not_answer_is_not_empty(
    pets: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.register_implementation("unsteady", Unsteady, clobber=True)
    memory = fsspec.filesystem("memory")
    for name in ("a/1", "b/c/2", "b/c/3"):
        memory.pipe_file(f"/unsteady/{name}", b"1")
    try:
        pets.ok("import", "unsteady://unsteady", "scans:", "--create")
        monkeypatch.setattr(Unsteady, "answers", False)
        how = ("--mirror", "--allow-removals", "--skip-unsupported")
        done = pets("import", "unsteady://unsteady", "scans:", *how)
        assert done.code == 6 and "unsteady/b/c could not be read" in done.err, done
        assert pets.ok("ls", "scans").lines == ["a/1", "b/c/2", "b/c/3"]
    finally:
        memory.rm("/unsteady", recursive=True)


def test_a_symlink_whose_target_cant_be_looked_at_ends_the_import(
    pets: Dsv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"src/a": b"1", "private/file": b"2"})
    (tmp_path / "src/link").symlink_to("../private/file")
    pets.ok("import", str(tmp_path / "src"), "scans:", "--create")
    stat = os.stat

    def refuse(path: Any, *arguments: Any, follow_symlinks: bool = True, **more: Any) -> os.stat_result:
        if follow_symlinks and isinstance(path, str) and path.endswith("src/link"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return stat(path, *arguments, follow_symlinks=follow_symlinks, **more)

    monkeypatch.setattr(os, "stat", refuse)
    how = ("--mirror", "--allow-removals", "--skip-unsupported")
    done = pets("import", str(tmp_path / "src"), "scans:", *how)
    assert done.code == 8 and "link" in done.err, done
    assert pets.ok("ls", "scans").lines == ["a", "link"]


def test_a_question_mark_is_a_part_of_a_name_on_this_machine(pets: Dsv, tmp_path: Path) -> None:
    write_files(tmp_path, {"what?.csv": b"1", "x.tar?y": b"2"})
    for name in ("what?.csv", "x.tar?y"):
        pets.ok("import", str(tmp_path / name), "pets:odd/")
        pets.ok("import", f"file://{tmp_path}/{name}", "pets:odd2/")
    assert pets.ok("ls", "pets:odd").lines == ["odd/what?.csv", "odd/x.tar?y"]
    assert pets.ok("ls", "pets:odd2").lines == ["odd2/what?.csv", "odd2/x.tar?y"]


def test_the_files_of_a_folder_of_git_are_one_problem(pets: Dsv, tmp_path: Path) -> None:
    write_files(tmp_path / "src", {"a": b"1", **{f"sub/.git/o/{n}": b"2" for n in range(35)}})
    refused = pets("import", str(tmp_path / "src"), "pets:src")
    assert refused.code == 9 and refused.err.count(".git") == 1 and "35 files" in refused.err, refused
    done = pets.ok("import", str(tmp_path / "src"), "pets:src", "--skip-unsupported")
    assert done.err.count(".git") == 1 and pets.ok("ls", "pets:src").lines == ["src/a"], done


def test_a_zip_is_stored_as_it_is_and_a_note_says_how_to_import_its_files(pets: Dsv, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "cats.zip", "w") as file:
        file.writestr("a/b", "1")
    done = pets.ok("import", str(tmp_path / "cats.zip"), "pets:zip/")
    url = f"zip://::{tmp_path}/cats.zip"
    assert f"dsv import {url}" in done.err and pets.ok("ls", "pets:zip").lines == ["zip/cats.zip"], done
    pets.ok("import", url, "pets:unzipped")
    assert content(pets, "pets:unzipped/a/b") == "1"


def test_the_message_has_the_whole_path_of_a_folder(pets: Dsv) -> None:
    outside = pets.at(pets.cwd.parent)
    write_files(outside.cwd / "src", {"a": b"1"})
    outside.ok("import", "src", "pets:src")
    assert outside.ok("log", "pets", "--json").json["items"][0]["message"] == (
        f"import {outside.cwd}/src\n\nImported-from: {outside.cwd}/src"
    )
