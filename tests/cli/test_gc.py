"""dsv gc: what it prints before, what it deletes, and how it ends when something is in its way."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dsv.errors import Denied
from dsv.format import keys
from dsv.format.records import ExpiryAction, WriterIdentity
from dsv.repo.expiry import append
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.stores.base import Bytes
from dsv.stores.directory import DirectoryStore
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName
from tests.cli.test_delete_dataset import Interrupted, typed
from tests.kit.dsv import Dsv, assert_documented, made_once, write_files

PETS = DatasetName.parse("pets")
NOW = ("--grace", "0s")


def store_of(dsv: Dsv) -> DirectoryStore:
    return DirectoryStore(dsv.home / "store")


def packs(dsv: Dsv) -> dict[str, int]:
    return {item.key: item.size for item in store_of(dsv).list(keys.PACK_PREFIX)}


def everything(dsv: Dsv) -> dict[str, int]:
    """All keys but those of sessions."""
    return {item.key: item.size for item in store_of(dsv).list("") if not item.key.startswith("sessions/")}


@pytest.fixture
@made_once
def old(dsv: Dsv) -> Dsv:
    """`pets` with four commits, of which the first two are expired; dataset `others` has a file of the first one.

    Most of each pack of an expired commit is needed by nobody else.
    """
    here = dsv.at(dsv.cwd, DSV_CACHE=str(dsv.cwd.parent / "cache"), DSV_STORE=str(dsv.home / "store"))
    here.ok("init", "pets")
    chance = random.Random(3)
    for number in range(4):
        files = {f"kept/{number}": chance.randbytes(20_000), "again.bin": chance.randbytes(400_000)}
        write_files(here.cwd, {**files, "shared.bin": chance.randbytes(90_000)})
        here.ok("sync", "-m", f"number {number}")
        if number == 0:
            here.ok("put", "shared.bin", "others:shared.bin", "--create", "-m", "shared")
    assert len(here.ok("expire", "pets", "--keep-last", "2").lines) == 2
    return here


def ids(dsv: Dsv) -> list[str]:
    """Of main, the oldest first."""
    return [item["commit"] for item in reversed(dsv.ok("log", "pets", "--json").json["items"])]


def free(dsv: Dsv) -> None:
    """Put `free` for the expired commits, and delete nothing: as a gc that was killed then."""
    repository = Repository.open(store_of(dsv), None)
    chosen = [CommitId.parse(one) for one in ids(dsv)[:2]]
    append(repository, WriterIdentity("gc", "lab", "test"), PETS, ExpiryAction.FREE, lambda _: chosen)


def check(dsv: Dsv) -> None:
    for number, commit in enumerate(ids(dsv)[2:], 2):
        assert len(dsv.ok("cat", f"pets@{commit}:kept/{number}").out) > 0
        dsv.ok("export", f"pets@{commit}", str(dsv.home / f"export {number} {random.random()}"))
    dsv.ok("export", "others", str(dsv.home / f"export {random.random()}"))
    assert dsv.ok("verify", "--full", "--json").json["whole"]


def test_a_dry_run_says_all_and_writes_nothing(old: Dsv) -> None:
    before = everything(old)
    found = old.ok("gc", "--dry-run", *NOW, "--json").json
    assert_documented("gc", found)
    assert everything(old) == before and found["dry_run"]
    (item,) = found["items"]
    assert (item["dataset"], item["commits"]) == ("pets", 2) and item["stored"] > 800_000
    assert found["rewritten"] >= 1 and found["copied_bytes"] > 0
    assert found["freed"] == found["deleted_bytes"] - found["copied_bytes"] > 800_000
    assert found["price_usd"] is None and found["price_list"] is None and found["requests"]["get"] > 0
    lines = old.ok("gc", "--dry-run", *NOW).lines
    assert lines[0].startswith("pets: ") and lines[0].endswith(" of 2 expired commits")
    assert any(line.startswith("would delete ") for line in lines)
    assert lines[-1].startswith("about ") and lines[-1].endswith(" DELETE requests")
    assert old.ok("gc", "--dry-run", "--json").json["freed"] == 0, "grace is two weeks"


def assert_near(told: dict[str, Any], done: dict[str, Any]) -> None:
    """Check that a dry run printed about as many requests as were made."""
    for kind, made in done["requests"].items():
        assert abs(told["requests"][kind] - made) <= max(made / 4, 8), (kind, made, told["requests"])


def test_it_frees_what_the_dry_run_said(old: Dsv) -> None:
    before = sum(packs(old).values())
    told = old.ok("gc", "--dry-run", *NOW, "--json").json
    done = old.ok("gc", "--yes", *NOW, "--json").json
    assert_documented("gc", done)
    freed = before - sum(packs(old).values())
    assert abs(freed - told["freed"]) < 0.01 * freed and abs(freed - done["freed"]) < 0.01 * freed
    assert done["items"] == [{"dataset": "pets", "commits": 2, "stored": None}]
    assert_near(told, done)
    check(old)
    first = ids(old)[0]
    result = old("cat", f"pets@{first}:shared.bin")
    assert result.code == 3 and "gc has freed its content" in result.err
    assert old("expire", "pets", "--undo").code == 4
    told = old.ok("gc", "--dry-run", *NOW, "--json").json
    assert_near(told, old.ok("gc", "--yes", *NOW, "--json").json)
    again = old.ok("gc", "--yes", *NOW)
    assert again.lines == ["nothing to delete"]


def test_it_frees_what_du_said(old: Dsv) -> None:
    """Also if much lies twice: a gc that copied was killed, then somebody stored everything again."""
    free(old)
    interrupt(old, "gc", "--yes", at="gc/")
    old.ok("sync", "--reupload")
    before = sum(packs(old).values())
    found = old.ok("du", "--unused", "--json").json["store"]["packs"]
    told = found["free_bytes"] + found["rewritten_bytes"]
    dry = old.ok("gc", "--dry-run", "--json").json
    assert (dry["freed"], dry["deleted"]) == (told, found["free"] + found["rewritten"])
    old.ok("gc", "--yes")
    freed = before - sum(packs(old).values())
    assert abs(freed - told) < 0.01 * freed and freed > 800_000
    check(old)


def interrupt(dsv: Dsv, *arguments: str, at: str) -> None:
    """Press Ctrl-C when a key that begins so is put or deleted."""

    def stopping(write: Callable[..., Any]) -> Callable[..., Any]:
        def stop(self: DirectoryStore, key: str, *data: Bytes) -> Any:
            if key.startswith(at):
                raise KeyboardInterrupt
            return write(self, key, *data)

        return stop

    with pytest.MonkeyPatch.context() as patch:
        for name in ("put_if_absent", "delete"):
            patch.setattr(DirectoryStore, name, stopping(getattr(DirectoryStore, name)))
        result = dsv(*arguments)
    assert result.code == 130, result


@pytest.mark.parametrize(
    "at", ["packs/", "index/", "gc/0000000000000000/decision", "gc/0000000000000000/done"]
)
def test_a_gc_that_was_interrupted_is_continued(old: Dsv, at: str) -> None:
    """packs/ is used first when gc checks its rights: then nothing has changed."""
    before, after = packs(old), everything(old)
    interrupt(old, "gc", "--yes", *NOW, at=at)
    if at == "packs/":
        assert everything(old) == after
    for commit in ids(old)[2:]:
        old.ok("cat", f"pets@{commit}:again.bin")
    begun = at.startswith("gc/")
    assert old.ok("gc", "--dry-run", "--json").json["continued"] == begun
    done = old.ok("gc", "--yes", *NOW, "--json").json
    assert done["continued"] == begun and done["deleted"] >= 2
    assert sum(packs(old).values()) < sum(before.values()) - 800_000
    check(old)


def test_what_has_its_grace_says_from_when_it_can_be_freed(old: Dsv) -> None:
    day = rf"from {datetime.now() + timedelta(days=14):%Y-%m-}(\d\d) \d\d:\d\d[+-]\d\d:\d\d on"  # or midnight
    found = old.ok("gc", "--dry-run")
    assert re.fullmatch(rf"2 expired commits can be freed {day} \(--grace\)", found.lines[0])
    assert found.lines[1:] == ["nothing to free"]
    assert re.search(rf"of expired commits can be freed, the first {day}", old.ok("du").out)
    assert old.ok("gc", "--dry-run", "--grace", "0").out == old.ok("gc", "--dry-run", *NOW).out
    said = old.ok("expire", "pets", "--keep-last", "1").err
    assert re.search(rf"until gc frees their content, {day}", said)


def test_what_expires_with_a_time_for_undo_is_freed_after_it(old: Dsv) -> None:
    """The two commits that expired before keep their two weeks, and a --grace that is asked for holds for all."""
    planned = old.ok("expire", "pets", "--keep-last", "1", "--undo-for", "0", "--dry-run").err
    assert "1 commit would expire, 1 commit of pets stay; gc may free their content now" in planned
    done = old.ok("expire", "pets", "--keep-last", "1", "--undo-for", "0s", "-m", "full", "--json").json
    [gone] = [item["commit"] for item in done["items"] if item["expired"]]
    for shown in (done, old.ok("du", "--json").json["store"]):
        assert datetime.fromisoformat(shown["free_from"]) <= datetime.now(UTC)
    assert "can be freed, the first now (dsv gc --grace)" in old.ok("du").out
    assert old.ok("gc", "--yes", "--grace", "1h", "--json").json["items"] == []
    freed = old.ok("gc", "--yes", "--json").json
    assert [(item["dataset"], item["commits"]) for item in freed["items"]] == [("pets", 1)]
    assert old("expire", "pets", "--undo", gone).code == 4
    assert old.ok("expire", "pets", "--undo", ids(old)[0]).lines != []
    assert old.ok("cat", "pets@main:again.bin").code == 0


def test_a_longer_time_for_undo_outlasts_the_grace_of_gc(old: Dsv) -> None:
    old.ok("expire", "pets", "--keep-last", "1", "--undo-for", "30d")
    assert sum(item["commits"] for item in old.ok("gc", "--yes", *NOW, "--json").json["items"]) == 2
    left = old.ok("gc", "--dry-run").lines[0]
    day = datetime.now() + timedelta(days=30)
    assert left.startswith("1 expired commit can be freed from ") and f"{day:%Y-%m}" in left, left


def test_a_line_of_cron_prints_nothing_when_all_is_well(old: Dsv, tmp_path: Path) -> None:
    old.ok("cache", "pets@main")
    there = str(tmp_path / "there")
    for line in (
        ["verify", "--budget", "1s"],
        ["verify", "--full"],
        ["expire", "pets", "--keep-last", "1", "--older-than", "0"],
        ["gc", "--yes", "--budget", "2h", *NOW],
        ["copy", "--all", "--tags", "--to", there, "--create"],
        ["copy", "--all", "--tags", "--to", there],
        ["evict", "--all"],
    ):
        quiet = old.ok(*line, "--quiet")
        assert quiet.out == quiet.err == "", line
    assert old.ok("log", "pets", "--store", there).out


def test_with_quiet_a_result_that_was_asked_for_is_still_printed(old: Dsv, tmp_path: Path) -> None:
    assert old.ok("gc", "--dry-run", *NOW, "-q").out
    assert old.ok("expire", "pets", "--keep-last", "1", "--dry-run", "-q").out
    assert old.ok("copy", "--all", "--to", str(tmp_path / "there"), "--create", "--dry-run", "-q").out


def test_without_a_terminal_it_takes_yes(old: Dsv) -> None:
    before = everything(old)
    result = old("gc", *NOW)
    assert result.code == 2 and "dsv gc --yes" in result.err and not result.out
    assert old("gc", "--yes", "--dry-run").code == 2
    assert everything(old) == before


def test_at_a_terminal_it_shows_what_goes_and_asks(old: Dsv) -> None:
    before = everything(old)
    result = typed(old, b"y\n", "gc", *NOW)
    assert result.code == 4 and "nothing was deleted" in result.err
    assert "type gc to delete it" in result.err and "pets: " in result.err
    assert typed(old, b"", "gc", *NOW, terminal=Interrupted()).code == 130
    assert everything(old) == before
    result = typed(old, b"gc\n", "gc", *NOW)
    assert result.code == 0 and "freed 2 expired commits of pets" in result.out
    check(old)
    again = typed(old, b"", "gc", *NOW)
    assert again.code == 0 and "nothing to free" in again.out, "nothing is asked if nothing goes"


def test_open_sessions_are_named_and_nothing_is_deleted(old: Dsv) -> None:
    store = store_of(old)
    with Session.open(Repository.open(store, None), WriterIdentity("Ada", "node7", "dsv 0.9")) as session:
        path = old.home / "store" / keys.session_key(session.id, "open")
        os.utime(path, (os.stat(path).st_mtime - 3 * 86400,) * 2)
        before = packs(old)
        result = old("gc", "--yes", *NOW, "--max-wait", "0s", "--json")
        assert result.code == 4
        message = result.json["error"]["message"]
        assert "1 session of" in message and "had not ended; nothing was deleted" in message
        assert "dsv 0.9 of Ada on node7, 3d old" in message
        assert before.items() <= packs(old).items()
        check(old)
        session.close()
    assert old.ok("gc", "--yes", *NOW, "--json").json["deleted"] >= 2
    check(old)


@pytest.mark.parametrize("refused", ["put_if_absent", "delete"])
def test_without_rights_nothing_changes(old: Dsv, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(old)

    def deny(self: DirectoryStore, key: str, *_: object) -> None:
        raise Denied(f"{key} was refused")

    monkeypatch.setattr(DirectoryStore, refused, deny)
    result = old("gc", "--yes", *NOW)
    assert result.code == 8 and "hint:" in result.err and not result.out
    assert everything(old) == before


def test_what_is_lost_ends_it(old: Dsv) -> None:
    root = old.home / "store"
    needed = max(packs(old), key=lambda key: os.stat(root / key).st_mtime_ns * (packs(old)[key] > 400_000))
    (root / needed).unlink()
    before = packs(old)
    for arguments in (("gc", "--yes", *NOW), ("gc", "--dry-run", *NOW)):
        result = old(*arguments)
        assert result.code == 5 and "dsv verify" in result.err, result
        assert packs(old) == before


def test_a_budget_and_a_limit_leave_copying_to_the_next_time(old: Dsv) -> None:
    for limit in (("--budget", "0s"), ("--max-repack", "1B")):
        done = old.ok("gc", "--yes", *NOW, *limit, "--json").json
        assert done["rewritten"] == done["copied_bytes"] == 0 and done["left"] >= 1, limit
        check(old)
    assert "2 packs left to repack: run dsv gc again" in old.ok("gc", "--yes", "--budget", "0s").err
    done = old.ok("gc", "--yes", "--json").json
    assert done["rewritten"] >= 1 and done["left"] == 0
    check(old)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "soon"], "is not a duration"),
        (["--max-repack", "much"], "is not a size"),
        (["--grace", "-1d"], "--grace"),
        (["pets"], "pets"),
    ],
)
def test_wrong_arguments_are_reported(old: Dsv, words: list[str], said: str) -> None:
    result = old("gc", "--yes", *words)
    assert result.code == 2 and said in result.err and not result.out


def test_no_store_and_an_empty_one(dsv: Dsv) -> None:
    assert dsv("gc", "--yes").code == 3
    assert dsv("gc", "--yes", "--store", str(dsv.cwd / "none")).code == 6
    dsv.ok("init", "pets")
    assert dsv.ok("gc", "--yes").lines == ["nothing to delete"]
    assert not list(Path(dsv.home).rglob("upkeep-*"))


def test_small_packs_that_edits_have_left_are_joined(dsv: Dsv) -> None:
    here = dsv.at(dsv.cwd, DSV_STORE=str(dsv.home / "store"))
    here.ok("init", "pets")
    chance = random.Random(4)
    contents = [chance.randbytes(2_000) for _ in range(8)]
    for number, content in enumerate(contents):
        (here.cwd / "file").write_bytes(content)
        here.ok("put", "file", f"pets:{number}", "-m", "edit")
    assert len(packs(here)) == 16
    assert "16 small packs become 2" in here.ok("gc", "--dry-run").lines
    assert "gc would join packs: 16 small packs become 2" in here.ok("du", "--unused").lines
    assert here.ok("du", "--unused", "--json").json["store"]["packs"]["joined"] == {"packs": 16, "into": 2}
    assert "16 small packs become 2" in here.ok("gc", "--yes").out
    assert len(packs(here)) == 2
    here.ok("export", "pets", "out")
    assert [(here.cwd / "out" / str(number)).read_bytes() for number in range(8)] == contents
    assert "nothing to free" in here.ok("gc", "--dry-run").out
