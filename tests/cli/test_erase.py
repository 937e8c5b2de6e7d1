"""dsv erase on the command line: what it refuses, what everybody else then does, text, JSON, exit codes."""

from __future__ import annotations

import os
import random
import shutil
import socket
from pathlib import Path

import pytest

import dsv
from dsv import reader
from dsv.cache import erasures
from dsv.cache.root import CachePlace, CacheRoot
from dsv.errors import Denied, DsvError, Unreachable, Unsupported
from dsv.format.keys import parse_obeyed_key
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.stores.base import Bytes, PutResult
from dsv.stores.open import OpenStore, open_store
from dsv.stores.options import StoreOptions
from dsv.transfer.upload import Uploader
from dsv.values.ids import ErasureId, FileId
from tests.cli.test_delete_dataset import Interrupted, Terminal, typed
from tests.kit.dsv import Dsv, assert_documented, made_once, write_files
from tests.kit.packs import everything
from tests.kit.repositories import WRITER
from tests.privileges import modes_count

SECRET = b"the name and number of a patient\n" * 50


@pytest.fixture
@made_once
def pets(dsv: Dsv) -> Dsv:
    """A workspace of a dataset with a file to erase, and another one."""
    write_files(dsv.cwd, {"a.txt": b"alpha\n", "p/secret": SECRET, "p/more": b"more\n"})
    dsv.ok("init", "pets")
    dsv.ok("sync", "-m", "first")
    dsv.ok("tag", "v1", "pets")
    return dsv


def erase(dsv: Dsv, *more: str) -> None:
    dsv.ok("erase", "pets:p/secret", "--reason", "consent withdrawn", "--yes", *more)


def test_what_an_erased_file_is_to_everybody(pets: Dsv) -> None:
    elsewhere = pets.at(pets.home)
    dry = pets.ok("erase", "pets:p/secret", "--dry-run")
    assert dry.lines == ["would erase pets:p/secret  1.65 kB"]
    assert elsewhere.ok("cat", "pets:p/secret").out.encode() == SECRET
    done = pets.ok("erase", "pets:p/secret", "--reason", "consent withdrawn", "--yes", "--json").json
    assert_documented("erase", done)
    assert done["files"] == 1 and done["bytes"] == len(SECRET)
    assert [(one["path"], one["state"]) for one in done["items"]] == [("p/secret", "erased")]
    refused = elsewhere("cat", "pets@v1:p/secret")
    assert refused.code == 3 and not refused.out
    assert "pets:p/secret was erased on " in refused.err and "consent withdrawn" in refused.err
    listed = elsewhere.ok("ls", "pets", "--json").json
    assert_documented("ls", listed)
    assert {one["path"]: one["erased"] and one["erased"]["reason"] for one in listed["items"]} == {
        "a.txt": None, "p/more": None, "p/secret": "consent withdrawn",
    }  # fmt: skip
    assert "p/secret  (erased " in elsewhere.ok("ls", "pets").out
    shown = elsewhere.ok("show", "pets:p/secret").out
    assert "\nerased  " in shown and shown.count("consent withdrawn") == 1 and "\nchunks  " not in shown
    exported = elsewhere.ok("export", "pets@v1", "out", "--json").json
    assert exported["erased"] == 1 and exported["files"] == 2
    assert sorted(one.name for one in (pets.home / "out").rglob("*") if one.is_file()) == ["a.txt", "more"]
    assert elsewhere("export", "pets@v1", "strict", "--strict").code == 4
    assert elsewhere("export", "pets@v1:p/secret", "one").code == 3
    assert not (pets.home / "strict").exists() and not (pets.home / "one").exists()
    assert pets("erase", "pets:p/secret", "--reason", "again", "--yes").code == 0


def test_what_it_refuses(pets: Dsv) -> None:
    for whole in ("pets", "pets:", "pets:."):
        refused = pets("erase", whole, "--reason", "x", "--yes")
        assert refused.code == 2 and "hint: dsv erase pets:PATH, " in refused.err
    refused = pets("erase", "pets:p/secret", "--reason", "x")
    said = "this can't be undone. There is no terminal to confirm on, so nothing was erased\n"
    assert refused.code == 2 and said in refused.err
    write_files(pets.cwd, {"copy": SECRET})
    pets.ok("sync")
    reason = ("--reason", "consent")
    assert pets("erase", "pets:p/secret").code == 2
    assert pets("erase", "pets", *reason).code == 2
    assert pets("erase", *reason).code == 2
    assert pets("erase", "pets:nothing", *reason).code == 3
    assert pets("erase", "--id", "00" * 32, *reason).code == 3
    assert pets("erase", "pets:p/secret", *reason, "--shared", "some").code == 2
    refused = pets("erase", "pets:p/secret", *reason, "--yes")
    assert refused.code == 4 and "--shared" in refused.err
    assert "other files with a part of it:\n  pets:copy  1.65 kB, the same content\n" in refused.err
    kept = pets("erase", "pets:p/secret", *reason, "--yes", "--shared", "keep")
    assert kept.code == 4 and "such as pets:copy" in kept.err
    unasked = pets("erase", "pets:p/secret", *reason, "--shared", "erase")
    assert unasked.code == 2 and "--yes" in unasked.err
    assert pets.ok("cat", "pets:p/secret").out.encode() == SECRET
    pets.ok("erase", "pets:p/secret", *reason, "--shared", "erase", "--yes")
    assert pets("cat", "pets:copy").code == 3


def test_a_workspace_that_still_has_the_file(pets: Dsv) -> None:
    erase(pets)
    write_files(pets.cwd, {"moved": SECRET})
    refused = pets("sync")
    assert refused.code == 4 and "has content that was erased" in refused.err
    for session in next(pets.home.rglob("sessions")).iterdir():
        assert (session / "closed").exists(), "gc would wait for it"
    (pets.cwd / "moved").unlink()
    write_files(pets.cwd, {"b.txt": b"beta\n"})
    pets.ok("sync")
    (pets.cwd / "p/secret").unlink()
    pets.ok("sync", "-m", "without it")
    assert "p/secret" not in pets.ok("ls", "pets").lines


def test_a_workspace_whose_unchanged_file_was_erased_still_works(pets: Dsv) -> None:
    erase(pets)
    assert pets.ok("status", "--json").json["clean"] is True
    pets.ok("sync", "--reupload")
    assert (pets.cwd / "p/secret").read_bytes() == SECRET
    assert pets("cat", "pets:p/secret").code == 3
    for more in ([], ["--force"]):
        refused = pets("restore", *more, "p/secret")
        assert refused.code == 3 and "consent withdrawn" in refused.err
    assert (pets.cwd / "p/secret").read_bytes() == SECRET
    pets.at(pets.home).ok("clone", "pets", "copy")
    assert pets.at(pets.home / "copy")("restore", "p/secret").code == 3
    (pets.cwd / "p/secret").unlink()
    pets.ok("restore", "p/more")
    assert pets("restore", "p/secret").code == 3
    pets.ok("diff", "pets@v1", "pets")


@pytest.mark.parametrize("content", [SECRET, SECRET * 2000])
def test_a_file_that_has_to_be_read_again_to_know_that_it_is_unchanged(pets: Dsv, content: bytes) -> None:
    write_files(pets.cwd, {"p/secret": content})
    pets.ok("sync")
    erase(pets)
    for times in range(2):
        os.utime(pets.cwd / "p/secret", (times, times))
        write_files(pets.cwd, {"b.txt": b"%d" % times})
        pets.ok("sync")
        assert pets.ok("cat", "pets:b.txt").out == str(times)
        (item,) = pets.ok("ls", "pets:p/secret", "--json").json["items"]
        assert item["erased"]
    write_files(pets.cwd, {"p/secret": content[1:] + b"!"})
    (pets.cwd / "p/moved").write_bytes(content)
    refused = pets("sync")
    assert refused.code == 4 and "'p/moved' has content that was erased" in refused.err
    (pets.cwd / "p/moved").unlink()
    pets.ok("sync")
    assert pets.ok("cat", "pets:p/secret").out.encode() == content[1:] + b"!"


def test_a_workspace_without_an_erased_file_gets_what_comes_in_its_place(pets: Dsv) -> None:
    erase(pets)
    elsewhere = pets.at(pets.home)
    for name in ("one", "two", "three"):
        elsewhere.ok("clone", "pets", name)
    write_files(pets.home / "two", {"p/secret": b"mine"})
    write_files(pets.cwd, {"p/secret": b"another"})
    pets.ok("sync")
    pets.at(pets.home / "one").ok("pull")
    assert (pets.home / "one/p/secret").read_bytes() == b"another"
    refused = pets.at(pets.home / "two")("pull")
    assert refused.code == 4 and "'p/secret' was changed here, and changed there" in refused.err
    (pets.cwd / "p/secret").unlink()
    pets.ok("sync")
    pets.at(pets.home / "three").ok("pull")
    assert pets.at(pets.home / "three").ok("status", "--json").json["clean"] is True


def test_differences_of_erased_large_files_are_shown(pets: Dsv) -> None:
    first = random.Random(1).randbytes(3_000_000)
    write_files(pets.cwd, {"large": first})
    pets.ok("sync")
    write_files(pets.cwd, {"large": first + b"more"})
    pets.ok("sync")
    (pets.cwd / "large").rename(pets.cwd / "renamed")
    pets.ok("erase", "@main~1:large", "--reason", "order 17", "--shared", "erase", "--yes")
    for command in (
        ["diff", "@main~1", "@main"],
        ["diff", "--text", "@main~1", "@main"],
        ["log", "--stat", "pets"],
    ):
        assert pets(*command).code in (0, 1), pets(*command)
    assert pets("status").code in (0, 1)


def test_offline_commands_know_it_too(pets: Dsv) -> None:
    user = pets.at(pets.home, DSV_CACHE=str(pets.home / "cache"))
    user.ok("cache", "pets@v1")
    erase(pets)
    user.ok("cache", "pets@v1")
    refused = user("cat", "--offline", "pets@v1:p/secret")
    assert refused.code == 3 and "consent withdrawn" in refused.err
    assert user.ok("cat", "--offline", "pets@v1:a.txt").out == "alpha\n"
    assert "p/secret  (erased" in user.ok("ls", "--offline", "pets@v1").out


def test_a_program_gets_an_error_of_its_own(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    erase(pets)
    for name, value in pets.environ.items():
        monkeypatch.setenv(name, value)
    commit = dsv.store(str(next(pets.home.rglob("packs")).parent)).open("pets@v1")
    with pytest.raises(dsv.Erased, match="consent withdrawn") as raised:
        commit.read_bytes("p/secret")
    assert isinstance(raised.value, dsv.NotFound)
    assert commit.read_bytes("a.txt") == b"alpha\n"


def test_runs_and_merges_work_without_an_erased_file(pets: Dsv) -> None:
    pets.ok("branch", "dev", "pets")
    erase(pets)
    script = 'find "$DSV_DATA"/ -type f -printf "%P " > "$DSV_OUT/found"'
    pets.at(pets.home).ok("run", "pets@v1", "--", "sh", "-c", script)
    (found,) = pets.home.rglob("out/found")
    assert sorted(found.read_text().split()) == ["a.txt", "p/more"]
    pets.ok("put", "a.txt", "pets@dev:new.txt")
    pets.ok("put", "a.txt", "pets:other.txt")
    pets.ok("merge", "dev")
    assert "p/secret  (erased" in pets.ok("ls", "pets").out
    pets.ok("mv", "pets:p/secret", "pets:moved")
    assert pets("cat", "pets:moved").code == 3
    pets.ok("rm", "pets:moved")
    assert pets.ok("ls", "pets").lines == ["a.txt", "new.txt", "other.txt", "p/more"]


def test_a_version_that_was_erased_is_merged_by_choice(pets: Dsv) -> None:
    """The common state of a text, of which both sides have made another one; in a merge, and in a pull."""
    write_files(pets.cwd, {"t.txt": b"a\nb\nc\nd\ne\n"})
    pets.ok("sync", "-m", "text")
    pets.ok("branch", "dev", "pets")
    write_files(pets.home, {"t.txt": b"A\nb\nc\nd\ne\n"})
    pets.at(pets.home).ok("put", "t.txt", "pets@dev:t.txt")
    base = pets.ok("log", "pets", "--json").json["items"][0]["commit"]
    write_files(pets.home, {"t.txt": b"a\nb\nc\nd\nE\n"})
    pets.at(pets.home).ok("put", "t.txt", "pets:t.txt")
    write_files(pets.cwd, {"t.txt": b"a\nb\nC\nd\ne\n"})
    pets.ok("erase", f"pets@{base}:t.txt", "--reason", "consent withdrawn", "--yes")
    refused = pets("merge", "dev")
    assert (
        refused.code == 4 and "'t.txt': changed by both (" in refused.err and "was erased on " in refused.err
    )
    assert pets("pull").code == 4
    pets.ok("merge", "dev", "--theirs", "t.txt")
    assert pets.ok("cat", "pets:t.txt").out == "A\nb\nc\nd\ne\n"
    pets.ok("pull", "--theirs", "t.txt")
    assert (pets.cwd / "t.txt").read_bytes() == b"A\nb\nc\nd\ne\n"


def test_at_the_question_nothing_has_changed_yet(pets: Dsv) -> None:
    wanted = ("erase", "pets:p/secret", "--reason", "consent withdrawn")
    asked = typed(pets, b"no\n", *wanted)
    assert (
        asked.code == 4
        and "to be erased from all commits:\n  pets:p/secret" in asked.err
        and "type pets" in asked.err
    )
    assert typed(pets, b"", *wanted, terminal=Interrupted()).code == 130
    assert pets.ok("cat", "pets:p/secret").out.encode() == SECRET
    assert typed(pets, b"pets\n", *wanted).code == 0
    assert pets("cat", "pets:p/secret").code == 3


class Meanwhile(Terminal):
    """Somebody else stores the same content while the question waits for its answer."""

    def __init__(self, dsv: Dsv, files: dict[str, bytes]) -> None:
        super().__init__(b"pets\n")
        self._dsv, self._files = dsv, files

    def readline(self, size: int | None = -1, /) -> bytes:
        write_files(self._dsv.cwd, self._files)
        self._dsv.ok("sync")
        return super().readline()


def test_what_is_stored_while_the_question_waits_is_not_erased_unseen(pets: Dsv) -> None:
    wanted = ("erase", "pets:p/secret", "--reason", "consent withdrawn")
    refused = typed(pets, b"", *wanted, terminal=Meanwhile(pets, {"copy": SECRET}))
    assert refused.code == 4 and "somebody stored or erased the same content" in refused.err
    assert pets.ok("cat", "pets:p/secret").out.encode() == SECRET
    both = (*wanted, "--shared", "erase")
    assert typed(pets, b"", *both, terminal=Meanwhile(pets, {"other": b"other\n"})).code == 0
    assert pets("cat", "pets:copy").code == 3
    assert pets.ok("cat", "pets:other").out == "other\n"


def test_a_content_of_no_path_is_asked_about_by_its_id(pets: Dsv) -> None:
    """As a sync leaves it that was killed."""
    store = open_store(str(next(pets.home.rglob("packs")).parent), StoreOptions())
    with Session.open(Repository.open(store, None), WRITER) as session, Uploader(session) as uploader:
        uploader.add_bytes(b"of nobody\n" * 50)
        uploader.finish()
        session.close()
    store.close()
    file_id = str(FileId.hash(b"of nobody\n" * 50))
    wanted = ("erase", "--id", file_id, "--reason", "order 17")
    assert pets(*wanted).code == 2
    assert f"type {file_id[:12]}" in typed(pets, b"pets\n", *wanted).err
    assert typed(pets, file_id[:12].encode() + b"\n", *wanted).code == 0
    assert "nothing is left to erase" in pets.ok(*wanted).err


def test_a_verification_misses_nothing(pets: Dsv, tmp_path: Path) -> None:
    """Also where gc has copied metadata, so that locators name packs that are gone."""
    write_files(pets.cwd, {"large": random.Random(2).randbytes(3_000_000)})
    pets.ok("sync")
    pets.ok("erase", "pets:large", "--reason", "order 17", "--yes")
    (pets.cwd / "large").unlink()
    pets.ok("sync")
    erase(pets)
    lake = next(pets.home.rglob("packs")).parent
    pets.ok("gc", "--yes")
    store = open_store(str(lake), StoreOptions())
    assert SECRET not in everything(store)
    store.close()
    for more in ([], ["--full"]):
        done = pets.ok("verify", *more, "--json").json
        assert done["whole"] is True and done["lost_objects"] == 0
    pets.ok("erase", "--status")
    assert pets.ok("du", "--json").json["lost"] == 0
    assert reader.main([str(lake), "pets", str(tmp_path / "out")]) == 0
    assert sorted(one.name for one in (tmp_path / "out").rglob("*") if one.is_file()) == ["a.txt", "more"]


def test_a_clone_has_the_rest_and_no_local_change(pets: Dsv) -> None:
    erase(pets)
    there = pets.at(pets.home)
    there.ok("clone", "pets", "copy")
    copy = pets.at(pets.home / "copy")
    there_now = [one for one in copy.cwd.rglob("*") if one.is_file() and ".dsv" not in one.parts]
    assert sorted(one.name for one in there_now) == ["a.txt", "more"]
    assert there.ok("clone", "pets", "again", "--json").json["erased"] == 1
    assert "1 file left out, erased from the store" in there.ok("clone", "pets", "third").out
    assert copy.ok("status", "--json").json["clean"] is True
    write_files(copy.cwd, {"new": b"new\n"})
    copy.ok("sync")
    assert "p/secret  (erased" in copy.ok("ls", "pets").out
    pets.ok("pull")
    assert (pets.cwd / "new").exists()
    copy.ok("switch", "--create", "dev")
    copy.ok("switch", "main")
    assert copy.ok("status", "--json").json["clean"] is True


def test_caches_remove_what_was_erased_when_they_next_ask_the_store(pets: Dsv) -> None:
    folder = pets.home / "cache"
    user = pets.at(pets.home, DSV_CACHE=str(folder))
    first = Path(user.ok("cache", "pets@v1").lines[0])
    assert (first / "p/secret").read_bytes() == SECRET
    erase(pets)
    before = pets("erase", "--status", "--json")
    assert before.json["items"][0]["caches"] == []
    assert before.json["items"][0]["waiting"] == [f"{socket.gethostname()}:{folder}"]
    again = user.ok("cache", "pets", "--json").json["items"][0]
    assert again["erased"] == 1
    assert not (first / "p/secret").exists() and (first / "p/more").exists()
    assert SECRET not in b"".join(one.read_bytes() for one in folder.rglob("*") if one.is_file())
    assert user("cache", "pets@v1", "--strict").code == 4
    assert user.ok("cached", "--check", "pets@v1").code == 0
    after = pets("erase", "--status", "--json").json
    assert_documented("erase", after)
    assert [one.rpartition(":")[2] for one in after["items"][0]["caches"]] == [str(folder)]
    fresh = pets.at(pets.home, DSV_CACHE=str(pets.home / "fresh"))
    assert fresh.ok("cache", "pets@v1", "--json").json["items"][0]["erased"] == 1
    assert not list((pets.home / "fresh").rglob("secret"))


@pytest.mark.parametrize("error", [Unreachable, Denied, Unsupported])
def test_a_cache_confirms_later_what_it_could_not_confirm_at_once(
    pets: Dsv, monkeypatch: pytest.MonkeyPatch, error: type[DsvError]
) -> None:
    """Unless this user can't write to the store: each command would read all cached trees to ask again."""
    folder = pets.home / "cache"
    user = pets.at(pets.home, DSV_CACHE=str(folder))
    first = Path(user.ok("cache", "pets@v1").lines[0])
    erase(pets)
    pets.ok("erase", "pets:p/more", "--reason", "consent withdrawn", "--yes")
    put = OpenStore.put_if_absent
    refusals = 0

    def refuse(store: OpenStore, key: str, data: Bytes) -> PutResult:
        nonlocal refusals
        if parse_obeyed_key(key) is not None:
            refusals += 1
            raise error("not now")
        return put(store, key, data)

    read: list[CachePlace] = []
    obey_at = erasures.obey_at

    def counted(root: CacheRoot, place: CachePlace, repository: Repository) -> bool:
        read.append(place)
        return obey_at(root, place, repository)

    with monkeypatch.context() as patched:
        patched.setattr(OpenStore, "put_if_absent", refuse)
        patched.setattr(erasures, "obey_at", counted)
        for _ in range(3):
            user.ok("cache", "pets")
    assert len(read) == (3 if error is Unreachable else 1)
    assert refusals == (3 if error is Unreachable else 2), (
        "after no answer, the others wait for the next command"
    )
    assert not (first / "p/secret").exists()
    told = []
    for _ in range(2):
        told.append([len(each["caches"]) for each in pets("erase", "--status", "--json").json["items"]])
        user.ok("cache", "pets")
    assert told == [[0, 0], [1, 1] if error is Unreachable else [0, 0]]


def test_a_cache_that_has_a_commit_asks_once_an_hour(pets: Dsv) -> None:
    folder = pets.home / "cache"
    user = pets.at(pets.home, DSV_CACHE=str(folder))
    commit = user.ok("resolve", "pets@v1").lines[0].rpartition("@")[2]
    target = f"pets@{commit}"
    first = Path(user.ok("cache", target).lines[0])
    erase(pets)
    (note,) = folder.rglob("erasures/asked")
    user.ok("cache", target)
    assert (first / "p/secret").exists()
    os.utime(note, (0, 0))
    user.ok("cache", target, "--offline")
    assert (first / "p/secret").exists()
    assert user.ok("cache", target, "--json").json["items"][0]["erased"] == 1
    assert not (first / "p/secret").exists() and (first / "p/more").exists()
    assert note.stat().st_mtime > 0
    os.utime(note, (0, 0))
    lake = next(pets.home.rglob("packs")).parent
    lake.rename(lake.with_name("away"))
    assert user.ok("cache", target, "--json").json["items"][0]["hit"] is True


def test_a_successor_has_never_listed_what_was_erased(pets: Dsv) -> None:
    pets.ok("branch", "dev", "pets")
    write_files(pets.cwd, {"b.txt": b"beta\n"})
    pets.ok("sync", "-m", "second")
    erase(pets)
    made = pets.ok("erase", "pets", "--successor", "pets2", "--json").json
    assert_documented("erase", made)
    assert (made["successor"], made["commits"], made["paths"], made["branches"], made["tags"]) == (
        "pets2", 2, 2, 2, 1,
    )  # fmt: skip
    heads = {name: pets.ok("ls", f"pets2@{name}").lines for name in ("main", "dev", "v1")}
    assert heads == {
        "main": ["a.txt", "b.txt", "p/more"],
        "dev": ["a.txt", "p/more"],
        "v1": ["a.txt", "p/more"],
    }
    old, new = (pets.ok("log", one, "--json").json["items"] for one in ("pets", "pets2"))
    same = ("message", "author", "time")
    assert [[one[key] for key in same] for one in new] == [[one[key] for key in same] for one in old]
    assert not {one["commit"] for one in new} & {one["commit"] for one in old}
    again = pets.ok("erase", "pets", "--successor", "pets2", "--json").json
    assert again == made and len(pets.ok("log", "pets2", "--json").json["items"]) == 2
    pets.at(pets.home).ok("datasets", "--delete", "pets", "--yes")
    pets.ok("gc", "--yes")
    assert pets.ok("verify", "--full", "--json").json["whole"] is True
    assert pets.ok("cat", "pets2@v1:p/more").out == "more\n"


def test_a_successor_takes_no_name_that_is_in_use(pets: Dsv) -> None:
    erase(pets)
    assert pets("erase", "pets", "--successor", "pets").code == 4
    assert pets("erase", "nothing", "--successor", "new").code == 3
    assert pets("erase", "pets:p", "--successor", "new").code == 2
    assert pets("erase", "--successor", "new").code == 2
    pets.ok("erase", "pets", "--successor", "new")
    pets.ok("put", "a.txt", "new:more.txt")
    moved = pets("erase", "pets", "--successor", "new")
    assert moved.code == 4 and "new" in moved.err
    assert pets.ok("ls", "new").lines == ["a.txt", "more.txt", "p/more"]


def test_names_that_are_made_anew_know_that_something_was_erased(dsv: Dsv) -> None:
    write_files(dsv.cwd, {"a.txt": b"alpha\n", "secret": SECRET})
    dsv.ok("config", "stores.lake.url", str(dsv.home / "lake"))
    dsv.ok("config", "stores.lake.names", str(dsv.home / "names"))
    dsv.ok("config", "store", "lake")
    dsv.ok("init", "pets")
    dsv.ok("sync")
    dsv.ok("erase", "pets:secret", "--reason", "order 17", "--yes")
    commit = dsv.ok("resolve", "pets").lines[0].rpartition("@")[2]
    shutil.rmtree(dsv.home / "names")
    assert dsv("cat", f"pets@{commit}:secret").code == 3
    dsv.ok("store", "rebuild-names")
    refused = dsv("cat", "pets:secret")
    assert refused.code == 3 and "order 17" in refused.err


def test_while_it_looks_it_says_so(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv.cli.progress.Lines.every", 0.0)
    done = pets.ok("erase", "pets:p/secret", "--reason", "asked", "--yes").err
    assert "looking through: " in done and "erase: " not in done


def test_status_lists_what_is_left(pets: Dsv) -> None:
    assert "nothing has been erased" in pets.ok("erase", "--status").err
    erase(pets)
    left = pets("erase", "--status")
    assert left.code == 1 and "1 pack with erased contents" in left.err
    assert "consent withdrawn" in left.out


def test_status_looks_into_the_caches_of_this_machine(pets: Dsv) -> None:
    """Also those that have never told the store of themselves, and says which it could not look into."""
    user = pets.at(pets.home, DSV_CACHE=str(pets.home / "cache"))
    other = pets.at(pets.home, DSV_CACHE=str(pets.home / "other"))
    empty = pets.at(pets.home, DSV_CACHE=str(pets.home / "empty"))
    first = Path(user.ok("cache", "pets@v1").lines[0])
    other.ok("cache", "pets@v1")
    erase(pets)
    assert pets("gc", "--yes").code == 0
    left = empty("erase", "--status")
    assert left.code == 1 and "still to be removed by 2 caches" in left.out
    assert (first / "p/secret").exists() and str(pets.home / "cache") in left.out
    user.ok("cache", "pets@main")
    (pets.home / "other").rename(pets.home / "away")
    left = empty("erase", "--status")
    assert left.code == 0 and "no known cache still has to remove it" in left.out
    assert f"{pets.home / 'other'}, which is not there now" in left.err


def test_a_folder_of_a_cache_that_this_user_cannot_read_is_not_called_clean(pets: Dsv) -> None:
    folder = pets.home / "cache"
    user = pets.at(pets.home, DSV_CACHE=str(folder))
    first = Path(user.ok("cache", "pets@v1").lines[0])
    erase(pets)
    assert pets("gc", "--yes").code == 0
    (folder / "pets").chmod(0)
    with modes_count():
        told = user("cache", "pets@main").err
        status = pets("erase", "--status")
    (folder / "pets").chmod(0o755)
    assert "still has files that were erased" in told
    assert status.code == 6 and f"this user can't read {folder / 'pets'}" in status.err
    assert (first / "p/secret").exists()


def test_status_ends_with_6_if_a_cache_can_not_be_looked_into(
    pets: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pets.home / "cache"
    pets.at(pets.home, DSV_CACHE=str(folder)).ok("cache", "pets@v1")
    erase(pets)

    def denied(root: CacheRoot, repository: Repository) -> list[ErasureId]:
        raise PermissionError(13, "Permission denied", str(root.path))

    monkeypatch.setattr("dsv.api.verify.still_cached", denied)
    status = pets("erase", "--status")
    assert status.code == 6 and f"{folder} can't be looked into" in status.err


def test_a_copy_takes_erasures_over(pets: Dsv) -> None:
    there = str(pets.home / "there")
    pets.ok("copy", "pets", "--to", there, "--create")
    assert pets.ok("cat", "--store", there, "pets:p/secret").out.encode() == SECRET
    erase(pets)
    assert pets.ok("copy", "pets", "--to", there, "--json").json["erasures"] == 1
    assert pets("cat", "--store", there, "pets:p/secret").code == 3
    assert pets.ok("copy", "pets", "--to", there, "--json").json["erasures"] == 0
    new = str(pets.home / "new")
    pets.ok("copy", "pets", "--to", new, "--create")
    assert pets("cat", "--store", new, "pets:p/secret").code == 3
    assert pets.ok("cat", "--store", new, "pets:a.txt").out == "alpha\n"
    assert pets("erase", "--status", "--store", new).code == 0
