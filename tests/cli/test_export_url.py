"""dsv export to a URL: nothing half written, nothing of others replaced, nothing written twice."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from dsv.errors import Unreachable
from dsv.exchange.export_url import UrlExport
from dsv.exchange.journal import ExchangeJournal
from dsv.transfer.upload import StoredContent
from dsv.values.ids import FileId
from tests.kit.dsv import Dsv, assert_documented, made_once, write_files
from tests.labs.s3_server import S3Server
from tests.privileges import modes_count
from tests.waiting import until

fsspec = pytest.importorskip("fsspec")
BIG = random.Random(9).randbytes(9 << 20)
FILES = {"a.txt": b"1", "d/b.bin": b"2" * 700_000, "d/e/c": b"", "big": BIG, "d/odd #?%name": b"odd"}
MANY = 1500


@pytest.fixture
@made_once
def things(dsv: Dsv) -> Dsv:
    """A person with one dataset."""
    write_files(dsv.cwd, FILES)
    (dsv.cwd / "link").symlink_to("a.txt")
    (dsv.cwd / "none").mkdir()
    dsv.ok("init", "things")
    dsv.ok("sync")
    return dsv.at(dsv.cwd.parent)


@pytest.fixture
def memory() -> Iterator[Callable[[], dict[str, bytes]]]:
    """Give a function that returns the files at memory://lab/out."""
    there = fsspec.filesystem("memory")
    yield lambda: {key.removeprefix("/lab/out/"): there.cat_file(key) for key in there.find("/lab/out")}
    if there.exists("/lab"):
        there.rm("/lab", recursive=True)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were written."""
    seen: list[str] = []
    real = UrlExport._write

    def write(self: UrlExport, key: str, pieces: Iterable[bytes], size: int) -> str | None:
        seen.append(key.partition("/out/")[2])
        return real(self, key, pieces, size)

    monkeypatch.setattr(UrlExport, "_write", write)
    return seen


def packs(dsv: Dsv) -> Iterator[Path]:
    for folder in dsv.home.rglob("packs"):
        yield from folder.rglob("*")


def damage(dsv: Dsv) -> None:
    """Changes a byte near the end of the large file, in the store."""
    for pack in packs(dsv):
        if pack.is_file() and pack.stat().st_size > len(BIG) // 2:
            data = bytearray(pack.read_bytes())
            data[-len(BIG) // 4] ^= 1
            pack.chmod(0o644)
            pack.write_bytes(data)


def folder(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_files_of_a_commit_are_written(things: Dsv, memory: Callable[[], dict[str, bytes]]) -> None:
    done = things.ok("export", "things", "memory://lab/out", "--json").json
    assert_documented("export", done, "items")
    assert memory() == FILES
    assert (done["files"], done["written"], done["known"], done["left_out"]) == (5, 5, 0, 2)
    assert done["bytes"] == done["written_bytes"] == sum(map(len, FILES.values()))


def test_a_folder_of_a_commit_is_written_from_there(
    things: Dsv, memory: Callable[[], dict[str, bytes]]
) -> None:
    things.ok("export", "things:d", "memory://lab/out/")
    assert memory() == {
        name.removeprefix("d/"): data for name, data in FILES.items() if name.startswith("d/")
    }


def test_a_file_is_written_at_the_top_of_a_server(things: Dsv) -> None:
    there = fsspec.filesystem("memory")
    try:
        things.ok("export", "things:a.txt", "memory://top.txt")
        assert there.cat_file("/top.txt") == b"1"
        assert things.ok("export", "things:a.txt", "memory://top.txt", "--json").json["known"] == 1
        there.pipe_file("/top.txt", b"x")
        done = things("export", "things:a.txt", "memory://top.txt")
        assert done.code == 4 and "\n  /top.txt\n" in done.err, done
    finally:
        there.rm("/top.txt", recursive=True)


@pytest.mark.parametrize("notes", ["with its notes", "without its notes"])
def test_what_is_there_is_not_written_again(
    things: Dsv, tmp_path: Path, writes: list[str], monkeypatch: pytest.MonkeyPatch, notes: str
) -> None:
    url = f"file://{tmp_path}/out"
    things.ok("export", "things", url)
    assert folder(tmp_path / "out") == FILES
    (tmp_path / "out/d/b.bin").unlink()
    writes.clear()
    if notes.startswith("without"):
        monkeypatch.setattr(ExchangeJournal, "find", lambda *_: None)
    done = things.ok("export", "things", url, "--json").json
    assert (done["written"], done["known"], writes) == (1, 4, ["d/b.bin"])
    assert folder(tmp_path / "out") == FILES


def test_the_next_version_replaces_what_an_export_has_written(
    dsv: Dsv, things: Dsv, memory: Callable[[], dict[str, bytes]], writes: list[str]
) -> None:
    things.ok("export", "things", "memory://lab/out")
    write_files(dsv.cwd, {"a.txt": b"2", "new": b"new"})
    (dsv.cwd / "d/b.bin").unlink()
    dsv.ok("sync")
    writes.clear()
    done = things.ok("export", "things", "memory://lab/out", "--json").json
    assert sorted(writes) == ["a.txt", "new"]
    assert done["stays"] == 1
    assert memory() == {**FILES, "a.txt": b"2", "new": b"new"}


@pytest.mark.parametrize(
    "others",
    [{"a.txt": b"mine"}, {"a.txt": b"x"}, {"elsewhere/x": b"y"}],
    ids=["in the way", "of the same size", "beside"],
)
def test_what_others_have_there_is_refused(
    things: Dsv, memory: Callable[[], dict[str, bytes]], writes: list[str], others: dict[str, bytes]
) -> None:
    there = fsspec.filesystem("memory")
    for name, data in others.items():
        there.pipe_file(f"/lab/out/{name}", data)
    done = things("export", "things", "memory://lab/out")
    assert done.code == 4 and next(iter(others)) in done.err and "--force" in done.err
    assert (memory(), writes) == (others, [])
    things.ok("export", "things", "memory://lab/out", "--force")
    assert memory() == {**others, **FILES}


def test_a_file_that_was_changed_there_is_refused(things: Dsv, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/out"
    things.ok("export", "things", url)
    (tmp_path / "out/big").write_bytes(BIG[::-1])
    done = things("export", "things", url)
    assert done.code == 4 and "big" in done.err
    assert (tmp_path / "out/big").read_bytes() == BIG[::-1]


@pytest.mark.parametrize("options", [(), ("--force",)], ids=["plain", "forced"])
def test_a_folder_where_a_file_is_to_be_is_refused_and_the_reverse(
    dsv: Dsv, things: Dsv, tmp_path: Path, options: tuple[str, ...]
) -> None:
    things.ok("export", "things", f"file://{tmp_path}/old")
    shutil.rmtree(dsv.cwd / "d")
    write_files(dsv.cwd, {"d": b"a file now", "a.txt": b"2"})
    dsv.ok("sync", "--allow-removals")
    things.ok("export", "things", f"file://{tmp_path}/new")
    things.ok("export", "things", f"file://{tmp_path}/new")
    for target, place, listed in (("things", "old", "old/d/\n"), ("things@main~1", "new", "new/d\n")):
        before = folder(tmp_path / place)
        done = things("export", target, f"file://{tmp_path}/{place}", *options)
        assert done.code == 4 and listed in done.err and "remove what is listed" in done.err, done
        assert folder(tmp_path / place) == before


def test_nothing_is_written_through_a_link(things: Dsv, tmp_path: Path) -> None:
    write_files(tmp_path, {"outside/b.bin": b"keep", "out/none": b""})
    (tmp_path / "out/d").symlink_to("../outside")
    done = things("export", "things", f"file://{tmp_path}/out", "--force")
    assert done.code == 4 and "out/d\n" in done.err, done
    assert folder(tmp_path / "outside") == {"b.bin": b"keep"} and not (tmp_path / "out/a.txt").exists()


def test_a_named_pipe_in_the_way_is_not_opened(things: Dsv, tmp_path: Path) -> None:
    (tmp_path / "out/d/e").mkdir(parents=True)
    os.mkfifo(tmp_path / "out/d/e/c")
    done = things("export", "things", f"file://{tmp_path}/out")
    assert done.code == 4 and "out/d/e/c" in done.err, done
    things.ok("export", "things", f"file://{tmp_path}/out", "--force")
    assert folder(tmp_path / "out") == FILES


def test_a_damaged_content_never_gets_its_name(things: Dsv, tmp_path: Path) -> None:
    damage(things)
    done = things("export", "things", f"file://{tmp_path}/out")
    assert done.code == 5
    assert not (tmp_path / "out/big").exists()
    assert not list((tmp_path / "out").rglob(".dsv-*"))


def test_a_failure_leaves_whole_files_and_the_next_export_continues(
    things: Dsv, memory: Callable[[], dict[str, bytes]], writes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = UrlExport._write

    def failing(self: UrlExport, key: str, pieces: Iterable[bytes], size: int) -> str | None:
        if key.endswith("d/e/c"):
            raise Unreachable("the server went away")
        return real(self, key, pieces, size)

    with monkeypatch.context() as once:
        once.setattr(UrlExport, "_write", failing)
        assert things("export", "things", "memory://lab/out").code == 6
    writes.clear()
    things.ok("export", "things", "memory://lab/out")
    assert memory() == FILES and "d/e/c" in writes and "a.txt" not in writes


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("nosuch://x", 2, "is not a URL that dsv can read"),
        ("gs://x/y", 9, "gcsfs"),
        ("s3://out.tar", 2, "is a bucket, not a file in one"),
        ("http://127.0.0.1:9/x.tar", 9, "HTTP export is not supported"),
        ("http://127.0.0.1:9/x", 9, "HTTP export is not supported"),
    ],
)
def test_exit_codes(things: Dsv, url: str, code: int, message: str) -> None:
    done = things("export", "things", url)
    assert done.code == code and message in done.err, done


STOPS_ITSELF = """
import os, signal, sys
from dsv.cli.main import main
from dsv.exchange.export_url import UrlExport
write, turns = UrlExport._write, iter(range(10**6))
def write_and_stop(self, *rest):
    if next(turns) == 20:
        os.kill(os.getpid(), signal.SIGSTOP)
    return write(self, *rest)
UrlExport._write = write_and_stop
sys.exit(main())
"""
"""`dsv` that stands still in the middle of an export."""


def test_two_exports_to_one_url_do_not_run_at_the_same_time(many: Dsv, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/out"
    stopping = [sys.executable, "-c", STOPS_ITSELF, "export", "many", url]
    with subprocess.Popen(stopping, cwd=many.cwd, env=dict(many.environ)) as process:
        ends = os.WSTOPPED | os.WEXITED | os.WNOWAIT
        how = os.waitid(os.P_PID, process.pid, ends)
        assert how is not None and how.si_code == os.CLD_STOPPED
        refused = many("export", "many", url)
        process.send_signal(signal.SIGCONT)
        assert process.wait() == 0
    assert refused.code == 4 and str(process.pid) in refused.err
    assert len(folder(tmp_path / "out")) == MANY


def test_a_journal_saves_by_itself_after_its_time(tmp_path: Path) -> None:
    """So that a killed export knows what it has written before."""
    stored = StoredContent(1, FileId.hash(b"1"), None, None)
    ExchangeJournal(tmp_path, "never").add("key", "version", stored)
    assert ExchangeJournal(tmp_path, "never").find("key", "version") is None
    ExchangeJournal(tmp_path, "at once", every=0).add("key", "version", stored)
    assert ExchangeJournal(tmp_path, "at once").find("key", "version") == stored


def test_options_for_urls_are_refused_elsewhere(things: Dsv) -> None:
    assert things("export", "things", "folder", "--force").code == 2


@pytest.fixture
def many(dsv: Dsv) -> Dsv:
    return with_many(dsv, MANY)


def with_many(dsv: Dsv, count: int) -> Dsv:
    write_files(dsv.cwd, {f"{n % 10}/{n:04}": f"content {n}".encode() for n in range(count)})
    dsv.ok("init", "many")
    dsv.ok("sync")
    return dsv.at(dsv.cwd.parent)


def test_a_killed_export_is_continued(many: Dsv, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with many.start("export", "many", f"file://{out}") as process:
        until(lambda: len(folder(out)) >= 50, "the export writes")
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = {name: (out / name).stat().st_ino for name in folder(out) if ".dsv-" not in name}
    assert all((out / name).read_bytes() == f"content {int(name[2:])}".encode() for name in before)
    done = many.ok("export", "many", f"file://{out}", "--json").json
    assert (done["known"], done["written"]) == (len(before), MANY - len(before))
    after = folder(out)
    assert len(after) == MANY and all(len(name) == 6 for name in after)
    assert {name: (out / name).stat().st_ino for name in before} == before


def test_a_killed_export_to_a_bucket_is_continued(dsv: Dsv, ceph_s3: S3Server) -> None:
    """To Ceph, through s3fs."""
    pytest.importorskip("s3fs")
    bucket, client, count = ceph_s3.bucket(), ceph_s3.client(), 400
    many = with_many(dsv, count)

    def there() -> dict[str, object]:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return {each["Key"]: each["LastModified"] for page in pages for each in page.get("Contents", ())}

    person = many.at(many.cwd, **ceph_s3.env)
    url = f"s3://{bucket}/out"
    try:
        with person.start("export", "many", url) as process:
            until(lambda: len(there()) >= 50, "the export writes")
            process.send_signal(signal.SIGKILL)
            process.wait()
        before = there()
        done = person.ok("export", "many", url, "--json").json
        # The server may still have been at work on what the killed one had sent.
        assert done["known"] >= len(before) and done["known"] + done["written"] == count
        after = there()
        assert len(after) == count
        assert {key: after[key] for key in before} == before
        again = person.ok("export", "many", url, "--json").json
        assert (again["known"], again["written"]) == (count, 0)
        client.put_object(Bucket=bucket, Key="out/0/0000", Body=b"others'")
        assert person("export", "many", url).code == 4
        person.ok("export", "many", url, "--force")
        assert client.get_object(Bucket=bucket, Key="out/0/0000")["Body"].read() == b"content 0"
    finally:
        ceph_s3.remove_bucket(bucket)


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tgz", ".tar.xz"])
def test_a_tar_is_written_at_a_url(things: Dsv, tmp_path: Path, ending: str) -> None:
    url = f"file://{tmp_path}/new/out{ending}"
    done = things.ok("export", "things", url, "--json").json
    assert_documented("export", done, "items")
    assert (done["files"], done["paths"], done["written"]) == (5, 7, None)
    there = tmp_path / "new" / f"out{ending}"
    assert list(there.parent.iterdir()) == [there]
    with tarfile.open(there) as tar:
        files = {one.name: file.read() for one in tar if one.isfile() and (file := tar.extractfile(one))}
        assert files == FILES and tar.getmember("link").linkname == "a.txt"


def test_a_tar_at_a_url_replaces_nothing_without_force(things: Dsv, tmp_path: Path) -> None:
    write_files(tmp_path, {"out.tar": b"others'", "folder.tar/x": b""})
    done = things("export", "things", f"file://{tmp_path}/out.tar")
    assert done.code == 4 and "--force replaces a file" in done.err, done
    assert (tmp_path / "out.tar").read_bytes() == b"others'"
    things.ok("export", "things", f"file://{tmp_path}/out.tar", "--force")
    assert tarfile.is_tarfile(tmp_path / "out.tar")
    done = things("export", "things", f"file://{tmp_path}/folder.tar", "--force")
    assert done.code == 4 and "but no folder" in done.err, done


def test_of_a_tar_that_fails_nothing_is_there(things: Dsv, tmp_path: Path) -> None:
    damage(things)
    (tmp_path / "out").mkdir()
    assert things("export", "things", f"file://{tmp_path}/out/x.tar").code == 5
    assert not list((tmp_path / "out").iterdir())


def test_a_tar_in_a_bucket_is_whole_or_not_there(things: Dsv, ceph_s3: S3Server) -> None:
    """In several parts, as it is larger than one."""
    pytest.importorskip("s3fs")
    bucket, client = ceph_s3.bucket(), ceph_s3.client()
    person = things.at(things.cwd, **ceph_s3.env)
    try:
        person.ok("export", "things", f"s3://{bucket}/x/all.tar")
        body = client.get_object(Bucket=bucket, Key="x/all.tar")["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(body)) as tar:
            file = tar.extractfile("big")
            assert file is not None and file.read() == BIG
        assert person("export", "things", f"s3://{bucket}/x/all.tar").code == 4
        damage(things)
        assert person("export", "things", f"s3://{bucket}/y.tar").code == 5
        assert [each["Key"] for each in client.list_objects_v2(Bucket=bucket)["Contents"]] == ["x/all.tar"]
        assert not client.list_multipart_uploads(Bucket=bucket).get("Uploads")
    finally:
        ceph_s3.remove_bucket(bucket)


def test_an_empty_folder_where_a_file_is_to_be_is_refused(things: Dsv, tmp_path: Path) -> None:
    (tmp_path / "out/a.txt").mkdir(parents=True)
    done = things("export", "things", f"file://{tmp_path}/out", "--force")
    assert done.code == 4 and "out/a.txt/\n" in done.err, done
    assert not folder(tmp_path / "out")


def test_what_another_machine_writes_now_is_left_to_it(things: Dsv, tmp_path: Path) -> None:
    """Until it is a day old: then that machine has left it behind."""
    out = tmp_path / "out"
    write_files(out, {".dsv-0123456789abcdef.part": b"now", "d/.dsv-123456789abcdef0.part": b"long ago"})
    os.utime(out / "d/.dsv-123456789abcdef0.part", (1e9, 1e9))
    things.ok("export", "things", f"file://{out}")
    assert folder(out) == {**FILES, ".dsv-0123456789abcdef.part": b"now"}


def test_a_large_file_is_in_a_bucket_whole_or_not_at_all(things: Dsv, ceph_s3: S3Server) -> None:
    pytest.importorskip("s3fs")
    bucket, client = ceph_s3.bucket(), ceph_s3.client()
    person = things.at(things.cwd, **ceph_s3.env)
    try:
        person.ok("export", "things", f"s3://{bucket}/x")
        assert client.get_object(Bucket=bucket, Key="x/big")["Body"].read() == BIG
        assert client.get_object(Bucket=bucket, Key="x/d/odd #?%name")["Body"].read() == b"odd"
        again = person.ok("export", "things", f"s3://{bucket}/x", "--json").json
        assert (again["known"], again["written"]) == (5, 0)
        damage(things)
        assert person("export", "things", f"s3://{bucket}/y").code == 5
        found = client.list_objects_v2(Bucket=bucket, Prefix="y/").get("Contents", [])
        assert "y/big" not in [each["Key"] for each in found]
        assert not client.list_multipart_uploads(Bucket=bucket).get("Uploads")
    finally:
        ceph_s3.remove_bucket(bucket)


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), OSError(5, "I/O"), TimeoutError("slow")])
def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    things: Dsv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    local = fsspec.get_filesystem_class("file")
    real = local.ls

    def ls(self: object, path: str, *rest: object, **options: object) -> object:
        if str(path).endswith("/out/d"):
            raise error
        return real(self, path, *rest, **options)

    write_files(tmp_path / "out/d", {"b.bin": b"of others"})
    monkeypatch.setattr(local, "ls", ls)
    done = things("export", "things", f"file://{tmp_path}/out")
    assert done.code == (8 if isinstance(error, PermissionError) else 6), done
    assert f"file://{tmp_path}/out/d" in done.err, done
    assert folder(tmp_path / "out") == {"d/b.bin": b"of others"}


def test_a_folder_without_the_right_to_list_it_is_refused(things: Dsv, tmp_path: Path) -> None:
    write_files(tmp_path / "out/d", {"b.bin": b"of others"})
    (tmp_path / "out/d").chmod(0o300)
    with modes_count():
        done = things("export", "things", f"file://{tmp_path}/out")
    (tmp_path / "out/d").chmod(0o700)
    assert done.code == 8 and f"file://{tmp_path}/out/d" in done.err, done
    assert folder(tmp_path / "out") == {"d/b.bin": b"of others"}


class Renaming(fsspec.get_filesystem_class("file")):  # type: ignore[misc]
    """A folder on a server that gives some names to its files itself: `change` has it for each part of a path."""

    protocol = "renaming"
    top: ClassVar[str] = ""
    change: ClassVar[Callable[[str], str]] = staticmethod(str)

    @classmethod
    def _strip_protocol(cls, path: object) -> str:
        text = os.fspath(path).removeprefix("renaming://").rstrip("/")  # type: ignore[call-overload]
        below = text.removeprefix(cls.top)
        return cls.top + "/".join(map(cls.change, below.split("/"))) if below != text else str(text)


def _kept(name: str) -> str:
    return name.rstrip(". ")


@pytest.fixture
def renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    fsspec.register_implementation("renaming", Renaming, clobber=True)
    monkeypatch.setattr(Renaming, "top", f"{tmp_path}/server")
    return f"renaming://{tmp_path}/server/out"


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (str.lower, ("A.txt", "a.txt")),
        (str.upper, ("Img/x", "img/y")),
        (partial(unicodedata.normalize, "NFD"), ("caf\u00e9", "cafe\u0301")),
        (_kept, ("a", "a.")),
        (_kept, ("b ", "c")),
        (_kept, ("d./x", "d/y")),
    ],
)
def test_names_that_a_server_takes_for_one_are_refused_before_anything_is_written(
    dsv: Dsv,
    tmp_path: Path,
    renaming: str,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[str], str],
    names: tuple[str, str],
) -> None:
    monkeypatch.setattr(Renaming, "change", staticmethod(change))
    write_files(dsv.cwd, {name: name.encode() for name in names})
    dsv.ok("init", "named")
    dsv.ok("sync")
    done = dsv("export", "named", renaming)
    assert done.code == 9 and names[0].partition("/")[0] in done.err and "are one name in" in done.err, done
    assert folder(tmp_path / "server") == {}
    dsv.ok("export", "named", f"file://{tmp_path}/plain")  # this machine tells them apart
    assert folder(tmp_path / "plain") == {name: name.encode() for name in names}


def test_names_that_a_server_has_changed_are_reported(
    dsv: Dsv, tmp_path: Path, renaming: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Renaming, "change", staticmethod(lambda name: name.replace("?", "_")))
    write_files(dsv.cwd, {"d/what?": b"1", "d/what_": b"2", "e": b"3"})
    dsv.ok("init", "named")
    dsv.ok("sync")
    done = dsv("export", "named", renaming)
    assert done.code == 5 and "has changed the names of 1 file:" in done.err and "/d/what?" in done.err, done


def test_a_name_with_the_signs_of_a_pattern_is_only_a_name(
    dsv: Dsv, memory: Callable[[], dict[str, bytes]]
) -> None:
    files = {"[ab]/x*": b"1", "[ab]/xy": b"2", "a/xq": b"3", "a/x?": b"4"}
    write_files(dsv.cwd, files)
    dsv.ok("init", "named")
    dsv.ok("sync")
    dsv.ok("export", "named", "memory://lab/out")
    assert {name.removeprefix("/lab/out/"): data for name, data in memory().items()} == files


def test_what_is_beside_at_the_url_is_left_alone(things: Dsv, tmp_path: Path) -> None:
    write_files(tmp_path / "out", {"x": b"mine", "y": b"mine"})
    done = things.ok("export", "things", f"file://{tmp_path}/out", "--force")
    assert "2 extra files at the destination left alone" in done.err
