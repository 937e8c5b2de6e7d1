"""dsv copy and mirrors on the command line: text, JSON, exit codes."""

from __future__ import annotations

import random
import shlex
import shutil
from pathlib import Path

from tests.kit.dsv import Dsv, assert_documented, write_files
from tests.labs.s3_server import S3Server
from tests.waiting import PATIENCE, until


def test_copy_and_read_from_the_copy(dsv: Dsv) -> None:
    write_files(dsv.cwd, {"a.txt": b"alpha\n", "b/c": b"gamma"})
    here, there = str(dsv.home / "lake"), str(dsv.home / "copy")
    dsv.ok("config", "stores.lake.url", here)
    dsv.ok("config", "store", "lake")
    dsv.ok("config", "stores.lake.mirrors", f"{dsv.home / 'never'},{there}")
    dsv.ok("init", "pets")
    dsv.ok("sync", "-m", "first")
    assert dsv("copy", "pets").code == 2
    assert dsv("copy", "pets", "--to", there, "--history", "0").code == 2
    assert "--to is needed" in dsv("copy", "pets").err
    made = dsv.ok("copy", "pets", "--to", there, "--create", "--json").json
    assert_documented("copy", made)
    assert made["commits"] == 1 and made["items"][0]["state"] == "copied"
    again = dsv.ok("copy", "--to", there)
    assert "up to date" in again.lines[1] and "sent 0 commits" in again.err
    dsv.ok("cat", "pets:a.txt")
    shutil.rmtree(here)
    result = dsv("cat", "pets:a.txt")
    assert (result.code, result.out) == (0, "alpha\n")
    assert f"its mirror {there} is read instead" in result.err
    assert dsv("log", "pets").code == 6  # which asks the store alone


def test_no_store_is_made_for_a_typo_or_in_another_store(dsv: Dsv, tmp_path: Path) -> None:
    write_files(dsv.cwd, {"a.txt": b"alpha\n"})
    store, new = tmp_path / "lake", tmp_path / "new"
    dsv.ok("init", "pets", "--store", str(store))
    dsv.ok("sync")
    absent = dsv("copy", "pets", "--to", str(new))
    assert (absent.code, new.exists()) == (6, False) and "--create makes a new store" in absent.err, absent
    for wrong in ("petss", "pets@nope"):
        for dry in ((), ("--dry-run",)):
            refused = dsv("copy", wrong, "--to", str(new), "--create", *dry)
            assert (refused.code, new.exists()) == (3, False), refused
    link = tmp_path / "link"
    link.symlink_to(store)
    for inside in (store / "inner", store / "packs" / "inner", link / "inner", store.parent):
        refused = dsv("copy", "pets", "--to", str(inside), "--create")
        assert refused.code == 2 and "lies in the other" in refused.err, refused
        assert not (inside / "format").exists()
    dsv.ok("copy", "pets", "--to", f"{store}2", "--create")


def test_a_folder_is_the_same_as_a_path_and_as_a_url(dsv: Dsv, tmp_path: Path) -> None:
    """Of which a space is written as %20."""
    write_files(dsv.cwd, {"a.txt": b"alpha\n"})
    store, there = tmp_path / "my lake", tmp_path / "my copy"
    dsv.ok("init", "pets", "--store", store.as_uri())
    dsv.ok("sync", "--store", store.as_uri())
    person = dsv.at(dsv.cwd, DSV_STORE=str(store))
    for source in (str(store), store.as_uri()):
        for inside in (str(store / "inner"), (store / "inner").as_uri()):
            refused = person("copy", "pets", "--store", source, "--to", inside, "--create")
            assert refused.code == 2 and "lies in the other" in refused.err, refused
            assert not (store / "inner").exists()
    absent = person("copy", "pets", "--to", there.as_uri())
    assert absent.code == 6 and f"ls -ld '{there}'" in absent.err
    person.ok("copy", "pets", "--to", there.as_uri(), "--create")
    again = person.ok("copy", "pets", "--to", there.as_uri())
    assert "up to date" in again.lines[1]
    planned = person.ok("copy", "pets", "--to", there.as_uri(), "--create", "--dry-run", "--json").json
    assert planned["commits"] == 0
    assert (there / "format").exists() and not (tmp_path / "my%20copy").exists()


def test_a_copy_that_went_its_own_way_is_exit_code_4(dsv: Dsv) -> None:
    there = str(dsv.home / "copy")
    write_files(dsv.cwd, {"a.txt": b"alpha\n"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    dsv.ok("copy", "--to", there, "--create")
    dsv.ok("put", "--store", there, "a.txt", "pets:theirs.txt", "-m", "theirs")
    dsv.ok("put", "a.txt", "pets:ours.txt", "-m", "ours")
    refused = dsv("copy", "pets", "--to", there)
    assert refused.code == 4 and "not in the history of" in refused.err
    hint = next(line for line in refused.err.splitlines() if "--reset" in line)
    command = hint[hint.index("dsv branch") :].split(" moves it back")[0].split()[1:]
    dsv.ok(*command)
    assert "copied" in dsv.ok("copy", "pets", "--to", there).lines[1]
    assert dsv.ok("cat", "--store", there, "pets:ours.txt").out == "alpha\n"


def test_what_expired_there_is_brought_back_by_the_command_of_the_hint(dsv: Dsv) -> None:
    there = str(dsv.home / "my copy")
    write_files(dsv.cwd, {"a.txt": b"alpha\n"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    old = dsv.ok("log", "pets", "--json").json["items"][0]["commit"]
    dsv.ok("put", "a.txt", "pets:b.txt")
    dsv.ok("copy", "--to", there, "--create")
    dsv.ok("expire", "pets", "--keep-last", "1", "--store", there)
    dsv.ok("branch", "pets@again", f"pets@{old}")
    refused = dsv("copy", "pets", "--to", there)
    assert refused.code == 4 and f"{old[:12]} of pets is expired in" in refused.err, refused
    [hint] = [line for line in refused.err.splitlines() if "brings it back" in line]
    dsv.ok(*shlex.split(hint[hint.index("dsv expire") :].split(" brings it back")[0])[1:])
    dsv.ok("copy", "pets", "--to", there)
    assert dsv.ok("cat", "--store", there, "pets@again:a.txt").out == "alpha\n"


def test_a_killed_copy_to_ceph_is_continued_and_is_a_mirror(dsv: Dsv, ceph_s3: S3Server) -> None:
    bucket, client = ceph_s3.bucket(), ceph_s3.client()
    person = dsv.at(dsv.cwd, **ceph_s3.env)
    here, there = str(dsv.home / "lake"), f"s3://{bucket}/copy"
    files = {f"d{number % 9}/{number}": b"%d" % number * 500 for number in range(300)}
    files["large"] = random.Random(4).randbytes(40 << 20)
    write_files(person.cwd, files)
    person.ok("config", "stores.lake.url", here)
    person.ok("config", "stores.lake.mirrors", there)
    person.ok("config", "store", "lake")
    person.ok("init", "pets")
    person.ok("sync", "-m", "first")
    person.ok("tag", "v1")
    write_files(person.cwd, {"d1/1": b"changed"})
    person.ok("sync", "-m", "second")
    planned = person.ok("copy", "pets", "--tags", "--to", there, "--create", "--dry-run", "--json").json
    assert planned["commits"] == 2 and planned["to"] == there
    assert not client.list_objects_v2(Bucket=bucket).get("KeyCount")
    command = ("copy", "pets", "--tags", "--to", there, "--create")
    with person.start(*command) as process:
        until(
            lambda: (
                process.poll() is not None
                or client.list_objects_v2(Bucket=bucket, Prefix="copy/packs/").get("KeyCount")
            )
        )
        process.kill()
        process.communicate(timeout=PATIENCE)
    done = person.ok(*command, "--json").json
    assert {item["name"]: item["state"] for item in done["items"]}.keys() <= {"main", "v1"}
    again = person.ok(*command, "--json").json
    assert again["commits"] == again["bytes"] == 0 and again["requests"] <= 24, again
    assert person.ok("verify", "--full", "--store", there, "--json").json["items"] == []
    for pack in (Path(here) / "packs").rglob("*"):
        if pack.is_file():
            pack.unlink()
    shutil.rmtree(dsv.home / ".cache")
    cached = person.ok("cache", "pets", "--cache", str(dsv.home / "cache")).lines[-1]
    found = {
        str(path.relative_to(cached)): path.read_bytes() for path in Path(cached).rglob("*") if path.is_file()
    }
    assert found == {**files, "d1/1": b"changed"}
    assert person.ok("cat", "pets@v1:d1/1").out == "1" * 500
    ceph_s3.remove_bucket(bucket)
