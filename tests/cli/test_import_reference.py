"""dsv import --reference: the files stay where they are; what is read of them is what was imported, or nothing."""

from __future__ import annotations

import http.server
import os
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dsv as program
from dsv.filesystem import DsvFileSystem
from dsv.repo import format_log
from dsv.stores.directory import DirectoryStore
from tests.kit.dsv import Dsv, Result, write_files
from tests.labs.s3_server import S3Server
from tests.upkeep.gc_world import collect

BIG = random.Random(11).randbytes(3 << 20)
FILES = {"a.txt": b"alpha\n", "d/b.bin": random.Random(3).randbytes(700_000), "d/empty": b"", "big.bin": BIG}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that somebody else keeps."""
    write_files(tmp_path / "theirs", FILES)
    return tmp_path / "theirs"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def lab(dsv: Dsv, store: Path) -> Dsv:
    """Somebody with a store in a folder, and a cache."""
    here = dsv.at(dsv.cwd, DSV_STORE=str(store), DSV_CACHE=str(dsv.cwd.parent / "cache"))
    write_files(here.cwd, {"own.txt": b"own\n"})
    here.ok("init", "own")
    here.ok("sync")
    return here.at(here.cwd.parent)


@pytest.fixture
def referred(lab: Dsv, place: Path) -> Dsv:
    lab.ok("import", str(place), "far:", "--create", "--reference")
    return lab


def stored(store: Path) -> int:
    return sum(path.stat().st_size for path in (store / "packs").rglob("*") if path.is_file())


def content(dsv: Dsv, name: str) -> bytes:
    return dsv.ok("cat", name).out.encode("utf-8", "surrogateescape")


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(done: Result, path: str, url: str) -> None:
    assert done.code == 5 and path in done.err and url in done.err and done.out == "", done


def test_ls_and_show_say_which_files_are_references(referred: Dsv, place: Path) -> None:
    urls = {item["path"]: item["url"] for item in referred.ok("ls", "far", "--json").json["items"]}
    assert urls == {path: f"file://{place}/{path}" if data else None for path, data in FILES.items()}
    assert [line.split()[-1] for line in referred.ok("ls", "-l", "far:big.bin").lines] == [
        f"file://{place}/big.bin"
    ]
    assert f"url     file://{place}/big.bin" in referred.ok("show", "far:big.bin").lines
    assert referred.ok("show", "far:a.txt", "--json").json["path"]["url"] == f"file://{place}/a.txt"
    referred.ok("import", str(place), "far:", "--materialize")
    assert {item["url"] for item in referred.ok("ls", "far", "--json").json["items"]} == {None}
    assert referred.ok("show", "far:big.bin", "--json").json["path"]["url"] is None
    assert not any(line.startswith("url") for line in referred.ok("show", "far:a.txt").lines)


def test_every_command_reads_what_is_referred_to(referred: Dsv, place: Path, store: Path) -> None:
    assert stored(store) < 20_000
    assert referred.ok("ls", "far").lines == ["a.txt", "big.bin", "d/b.bin", "d/empty"]
    assert referred.ok("cat", "far:a.txt").out == "alpha\n"
    assert content(referred, "far:big.bin") == BIG
    referred.ok("export", "far", "out")
    assert read_all(referred.cwd / "out") == FILES
    assert read_all(Path(referred.ok("cache", "far").out.strip())) == FILES
    referred.ok("clone", "far", "mine")
    write_files(referred.cwd / "mine", {"new": b"1"})
    referred.at(referred.cwd / "mine").ok("sync")
    referred.at(referred.cwd / "mine").ok("verify", "far")
    assert {*referred.ok("ls", "far").lines} == {*FILES, "new"}
    assert stored(store) < 30_000
    assert referred.ok("du", "far", "--json").json["items"][0]["stored"] < 20_000
    commit = program.store(str(store)).open("far")
    assert commit.read_bytes("big.bin") == BIG
    with commit.open("big.bin") as file:
        file.seek(2_000_001)
        assert file.read(100) == BIG[2_000_001:2_000_101]


def test_ids_are_those_of_an_import_that_stores(referred: Dsv, place: Path, store: Path) -> None:
    referred.ok("import", str(place), "near:", "--create")
    assert stored(store) > len(BIG)
    ids = [referred.ok("ls", name, "--json").json["items"] for name in ("near", "far")]
    assert [(one["path"], one["id"]) for one in ids[0]] == [(one["path"], one["id"]) for one in ids[1]]
    assert referred("diff", "near", "far", "--exit-code").code == 0


def overwritten(path: Path) -> None:
    path.write_bytes(b"ALPHA\n")


def overwritten_in_secret(path: Path) -> None:
    """Overwrite it with the same size and time: only the bytes differ."""
    was = path.stat()
    path.write_bytes(b"ALPHA\n")
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (overwritten, "was changed"),
        (overwritten_in_secret, "has other bytes"),
        (lambda path: path.write_bytes(b"alpha\nbeta\n"), "has 11 bytes now, and had 6"),
        (lambda path: path.unlink(), "is gone"),
        (a_pipe, "is gone"),
    ],
)
def test_a_file_that_changed_is_refused_by_name(
    referred: Dsv, place: Path, change: Callable[[Path], None], why: str
) -> None:
    change(place / "a.txt")
    url = f"file://{place}/a.txt"
    commands = [["cat", "far:a.txt"], ["export", "far", "out"], ["cache", "far"], ["clone", "far", "x"]]
    for command in commands if change is overwritten else commands[:1]:
        done = referred(*command)
        refused(done, "a.txt", url)
        assert why in done.err
    with pytest.raises(program.IntegrityError, match=r"a\.txt"):
        program.store(referred.environ["DSV_STORE"]).open("far").read_bytes("a.txt")
    found = referred("verify", "far", "--full", "--json")
    assert found.code == 5 and [one["path"] for one in found.json["items"]] == ["a.txt"], found
    assert url in found.json["damaged_packs"][0]["text"]


def test_verify_asks_for_versions_and_reads_all_with_full(referred: Dsv, place: Path) -> None:
    quick, full = (referred.ok("verify", *more, "--json").json["bytes_read"] for more in ([], ["--full"]))
    assert quick < 10_000 < len(BIG) < full
    overwritten_in_secret(place / "a.txt")
    referred.ok("verify")
    assert referred("verify", "--full").code == 5
    overwritten(place / "a.txt")
    lost = referred("verify")
    assert lost.code == 5 and "a.txt" in lost.out and "was changed" in lost.err
    again = referred("import", str(place), "far:", "--reference")
    assert again.code == 0 and referred.ok("cat", "far:a.txt").out == "ALPHA\n"
    assert referred("verify", "far").code == 5  # the commit before has lost it
    other = referred.cwd / "kept"
    write_files(other, {"x": b"alpha\n"})
    referred.ok("verify", "--repair", "--from", str(other))
    referred.ok("verify", "--full")
    assert referred.ok("cat", "far@main~1:a.txt").out == "alpha\n"


def external_packs(store: Path) -> list[Path]:
    return sorted(path for path in (store / "packs").rglob("*") if path.name.endswith(b"extern".hex()))


def test_verify_finds_an_external_pack_that_has_the_bytes_of_another(
    referred: Dsv, place: Path, store: Path
) -> None:
    [first] = external_packs(store)
    write_files(place / "later", {"c.txt": b"gamma\n"})
    referred.ok("import", str(place / "later"), "far:later", "--reference")
    [second] = [one for one in external_packs(store) if one != first]
    second.chmod(0o644)
    second.write_bytes(first.read_bytes())
    for more in ([], ["--full"]):
        found = referred("verify", "far", "--json", *more)
        assert found.code == 5 and [one["path"] for one in found.json["items"]] == ["later/c.txt"], found
    assert referred("cat", "far:a.txt").code == 0
    referred.ok("verify", "--repair", "--from", str(place / "later"))
    assert referred.ok("cat", "far:later/c.txt").out == "gamma\n"
    referred.ok("verify", "--full")


def test_a_sync_stores_again_what_verify_has_found_changed(referred: Dsv, place: Path) -> None:
    referred.ok("clone", "far", "mine")
    overwritten(place / "a.txt")
    assert referred("verify").code == 5
    referred.at(referred.cwd / "mine").ok("sync")
    assert referred.ok("cat", "far:a.txt").out == "alpha\n"
    referred.ok("verify", "--full")


def test_a_file_that_was_touched_can_be_referred_to_again(referred: Dsv, place: Path) -> None:
    os.utime(place / "a.txt", ns=(1, 1))
    refused(referred("cat", "far:a.txt"), "a.txt", "a.txt")
    done = referred.ok("import", str(place), "far:", "--reference", "--json").json
    assert (done["any_change"], done["read"]) == (False, 1)
    assert referred.ok("cat", "far:a.txt").out == "alpha\n"


def test_materialize_stores_it_under_the_same_commit(referred: Dsv, place: Path, store: Path) -> None:
    commit = referred.ok("resolve", "far").out
    referred.ok("import", str(place / "d"), "far:", "--materialize")
    assert 700_000 < stored(store) < len(BIG)
    assert "3 files" not in referred.ok("import", str(place), "far:", "--materialize", "--dry-run").err
    done = referred.ok("import", str(place), "far:", "--materialize", "--json").json
    assert (done["found"], done["read"], done["any_change"]) == (2, 2, False)
    assert referred.ok("resolve", "far").out == commit
    assert referred.ok("import", str(place), "far:", "--materialize", "--json").json["found"] == 0
    for path in list(place.rglob("*")):
        if path.is_file():
            path.unlink()
    external = external_packs(store)
    assert len(external) == 1
    assert collect(DirectoryStore(store), referred.cwd / "gc").deleted
    assert not external[0].exists()
    referred.ok("verify", "--full")
    referred.ok("export", "far", "out")
    assert read_all(referred.cwd / "out") == FILES


def test_materialize_stores_the_rest_if_a_file_changed(referred: Dsv, place: Path) -> None:
    overwritten(place / "a.txt")
    refused(referred("import", str(place), "far:", "--materialize"), "a.txt", str(place))
    (place / "big.bin").unlink()
    assert content(referred, "far:big.bin") == BIG
    refused(referred("cat", "far:a.txt"), "a.txt", str(place))


@pytest.mark.parametrize("how", ["put", "import", "sync"])
def test_what_is_stored_is_stored_also_if_it_was_referred_to(
    referred: Dsv, place: Path, tmp_path: Path, how: str
) -> None:
    if how == "put":
        referred.ok("put", str(place / "big.bin"), "own:big.bin")
    elif how == "import":
        referred.ok("import", str(place), "far:")
    else:
        write_files(tmp_path / "work", {"big.bin": BIG})
        referred.at(tmp_path / "work").ok("sync")
    (place / "big.bin").unlink()
    assert content(referred, "far:big.bin") == BIG


def test_gc_leaves_what_something_needs_and_never_the_files(referred: Dsv, place: Path, store: Path) -> None:
    before = read_all(place)
    assert not collect(DirectoryStore(store), referred.cwd / "gc").deleted
    referred.ok("mv", "far:a.txt", "far:moved.txt")
    referred.ok("verify", "--full")
    referred.ok("cat", "far:moved.txt")
    assert read_all(place) == before


def test_a_copy_to_another_store_has_the_content(referred: Dsv, place: Path, tmp_path: Path) -> None:
    referred.ok("copy", "far", "--to", str(tmp_path / "other"), "--create")
    there = referred.at(referred.cwd, DSV_STORE=str(tmp_path / "other"))
    (place / "big.bin").unlink()
    there.ok("verify", "--full")
    assert content(there, "far:big.bin") == BIG


def test_an_erased_file_is_not_read_any_more(referred: Dsv, place: Path, store: Path) -> None:
    referred.ok("erase", "far:big.bin", "--reason", "consent withdrawn", "--yes")
    done = referred("cat", "far:big.bin")
    assert done.code == 3 and "erased" in done.err
    assert (place / "big.bin").read_bytes() == BIG
    again = referred("import", str(place), "far:", "--reference")
    assert again.code == 0 or again.code == 4, again
    collect(DirectoryStore(store), referred.cwd / "gc")
    referred.ok("verify")
    assert referred.ok("cat", "far:a.txt").out == "alpha\n"


def test_older_versions_read_the_rest_and_do_not_write(
    referred: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(format_log, "KNOWN_FEATURES", format_log.KNOWN_FEATURES - {"external-contents"})
    assert referred.ok("cat", "own:own.txt").out == "own\n"
    write_files(referred.cwd, {"x": b"1"})
    done = referred("put", "x", "own:x")
    assert done.code == 9 and "external-contents" in done.err


def test_a_store_without_references_does_not_have_the_feature(lab: Dsv, place: Path, store: Path) -> None:
    lab.ok("import", str(place), "near:", "--create")
    assert len(list((store / "format").iterdir())) == 1
    lab.ok("import", str(place), "far:", "--create", "--reference")  # the store has it all
    assert len(list((store / "format").iterdir())) == 1 and stored(store) > len(BIG)


def test_what_can_not_be_referred_to(lab: Dsv) -> None:
    (lab.cwd / "data.tar").write_bytes(bytes(10240))
    for url, code, why in (
        ("https://ann:secret@example.org/x", 2, "has a secret in it"),
        ("https://example.org/x?X-Amz-Signature=0123456789abcdef0123", 2, "has a secret in it"),
        ("memory://x", 9, "can't be referred to"),
        ("hf://team/pets", 9, "can't be referred to"),
        ("data.tar", 9, "can't be referred to"),
        ("none", 3, "no file at"),
    ):
        done = lab("import", url, "far:", "--create", "--reference")
        assert done.code == code and why in done.err, done


def test_materialize_takes_no_other_options(lab: Dsv, place: Path) -> None:
    for more in ("--mirror", "--reference", "--create", "--anonymous"):
        done = lab("import", str(place), "own:", "--materialize", more)
        assert done.code == 2 and "can't be used together" in done.err


class Web:
    """A web server of files with entity tags. ranges: whether it gives parts of files."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, bytes]] = {}
        self.ranges = True
        self.asked: list[str | None] = []
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                web.asked.append(self.headers["Range"])
                found = web.files.get(self.path)
                if found is None:
                    self.send_error(404)
                    return
                tag, body = found
                part, status = body, 200
                if web.ranges and self.headers["Range"]:
                    start, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
                    part, status = body[int(start) : int(last) + 1 if last else None], 206
                self.send_response(status)
                if status == 206:
                    end = int(start) + len(part) - 1
                    self.send_header("Content-Range", f"bytes {start}-{end}/{len(body)}")
                self.send_header("Content-Length", str(len(part)))
                self.send_header("ETag", f'"{tag}"')
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(part)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def web() -> Iterator[Web]:
    found = Web()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def test_a_file_of_a_web_server(lab: Dsv, web: Web, store: Path) -> None:
    web.files["/big.bin"] = "one", BIG
    lab.ok("import", f"{web.url}/big.bin", "far:", "--create", "--reference")
    assert stored(store) < 20_000
    web.asked.clear()
    assert content(lab, "far:big.bin") == BIG
    assert len([one for one in web.asked if one is not None]) <= 3  # neighbouring chunks are read together
    lab.ok("verify")
    web.files["/big.bin"] = "two", BIG
    refused(lab("cat", "far:big.bin"), "big.bin", f"{web.url}/big.bin")
    assert lab("verify").code == 5
    web.files["/big.bin"] = "one", BIG[: 2 << 20]
    refused(lab("export", "far", "out"), "big.bin", f"{web.url}/big.bin")
    del web.files["/big.bin"]
    refused(lab("export", "far", "out"), "big.bin", f"{web.url}/big.bin")
    web.files["/big.bin"] = "one", BIG
    assert content(lab, "far:big.bin") == BIG
    web.server.socket.close()


def test_a_web_server_that_gives_no_parts(lab: Dsv, web: Web) -> None:
    web.ranges = False
    web.files |= {"/big.bin": ("one", BIG), "/small.txt": ("one", b"small\n")}
    done = lab("import", f"{web.url}/big.bin", "far:", "--create", "--reference")
    assert done.code == 9 and "does not give parts of files" in done.err
    lab.ok("import", f"{web.url}/small.txt", "far:", "--create", "--reference")
    assert lab.ok("cat", "far:small.txt").out == "small\n"
    lab.ok("verify")


def test_a_bucket_with_versions(lab: Dsv, ceph_s3: S3Server, store: Path) -> None:
    """From Ceph: a version that was overwritten is still read; one that was removed is refused."""
    bucket, client = ceph_s3.bucket(), ceph_s3.client()
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    names = [f"scans/d{n % 3}/{n:03}" for n in range(40)]
    versions = {
        name: client.put_object(Bucket=bucket, Key=name, Body=name.encode())["VersionId"] for name in names
    }
    versions["scans/big"] = client.put_object(Bucket=bucket, Key="scans/big", Body=BIG)["VersionId"]
    person = lab.at(lab.cwd, **ceph_s3.env)
    person.ok("import", f"s3://{bucket}/scans", "far:", "--create", "--reference")
    assert stored(store) < 20_000
    for name in ("scans/big", names[1]):
        client.put_object(Bucket=bucket, Key=name, Body=b"another")
    client.delete_object(Bucket=bucket, Key=names[2])
    assert content(person, "far:big") == BIG
    assert person.ok("cat", f"far:{names[1].removeprefix('scans/')}").out == names[1]
    assert person.ok("cat", f"far:{names[2].removeprefix('scans/')}").out == names[2]
    person.ok("verify")
    elsewhere = {name: value for name, value in ceph_s3.env.items() if not name.startswith("AWS_ENDPOINT")}
    assert lab.at(lab.cwd, **elsewhere).ok("cat", "far:d0/000").out == names[0]  # the endpoint is noted
    client.delete_object(Bucket=bucket, Key=names[1], VersionId=versions[names[1]])
    path = names[1].removeprefix("scans/")
    refused(person("cat", f"far:{path}"), path, f"s3://{bucket}/{names[1]}")
    lost = person("verify", "--json")
    assert lost.code == 5 and [one["path"] for one in lost.json["items"]] == [path]
    done = person("import", f"s3://{bucket}/scans", "far:", "--materialize")
    refused(done, path, f"s3://{bucket}/{names[1]}")
    denied = person.at(person.cwd, AWS_SECRET_ACCESS_KEY="wrong")
    assert denied.ok("cat", "far:d0/000").out == names[0]  # it is stored by now


def test_a_bucket_without_versions(lab: Dsv, ceph_s3: S3Server) -> None:
    """By entity tag and size; whoever may not read the bucket gets an error that says so."""
    bucket, client = ceph_s3.bucket(), ceph_s3.client()
    client.put_object(Bucket=bucket, Key="a.txt", Body=b"alpha\n")
    client.put_object(Bucket=bucket, Key="big", Body=BIG)
    person = lab.at(lab.cwd, **ceph_s3.env)
    person.ok("import", f"s3://{bucket}", "far:", "--create", "--reference")
    assert content(person, "far:big") == BIG
    denied = person.at(person.cwd, AWS_SECRET_ACCESS_KEY="wrong")
    done = denied("cat", "far:a.txt")
    assert done.code == 8 and f"s3://{bucket}/a.txt" in done.err and done.out == ""
    client.put_object(Bucket=bucket, Key="a.txt", Body=b"ALPHA\n")
    refused(person("cat", "far:a.txt"), "a.txt", f"s3://{bucket}/a.txt")
    client.put_object(Bucket=bucket, Key="big", Body=b"")
    refused(person("cat", "far:big"), "big", f"s3://{bucket}/big")
    ceph_s3.remove_bucket(bucket)
    refused(person("cat", "far:a.txt"), "a.txt", f"s3://{bucket}/a.txt")


def exported(commit: program.Commit, to: Path) -> dict[str, bytes]:
    commit.export(to)
    return read_all(to)


def test_programs_read_what_lies_in_a_bucket_or_are_refused(
    lab: Dsv, ceph_s3: S3Server, store: Path, tmp_path: Path
) -> None:
    """Python, dsv://, samples, an export and the cache."""
    bucket, client = ceph_s3.bucket(), ceph_s3.client()
    for name, body in FILES.items():
        client.put_object(Bucket=bucket, Key=name, Body=body)
    person = lab.at(lab.cwd, **ceph_s3.env)
    person.ok("import", f"s3://{bucket}", "far:", "--create", "--reference")
    here: dict[str, Any] = {"environ": {**person.environ, "HOME": str(person.home)}, "cwd": person.cwd}

    def reads(number: int) -> list[Callable[[], dict[str, bytes]]]:
        commit = pickle.loads(pickle.dumps(program.store(str(store), **here).open("far")))
        fs = DsvFileSystem(str(store), **here)
        samples = commit.samples(cache=False)
        whole = [f"far/{name}" for name in FILES]
        return [
            lambda: commit.read_many(FILES),
            lambda: dict(zip(FILES, fs.cat_ranges(whole, 0, None, on_error="raise"), strict=True)),
            lambda: {one.path: one.data for one in samples.__getitems__(range(len(samples)))},
            lambda: exported(commit, tmp_path / f"out{number}"),
            lambda: read_all(commit.cache()),
        ]

    *others, cached = reads(0)
    for read in others:
        assert read() == FILES
    client.put_object(Bucket=bucket, Key="d/b.bin", Body=bytes(700_000))
    for read in reads(1):
        with pytest.raises(program.IntegrityError, match=r"d/b\.bin"):
            read()
    client.put_object(Bucket=bucket, Key="d/b.bin", Body=FILES["d/b.bin"])  # the same entity tag
    assert cached() == FILES
    ceph_s3.remove_bucket(bucket)
    assert cached() == FILES
