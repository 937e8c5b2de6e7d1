"""dsv expire: what goes, what stays and why, how it comes back, and what every other command says of it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from dsv.format import keys
from dsv.format.locator import ObjectKind
from dsv.format.records import ExpiryAction, WriterIdentity
from dsv.repo.expiry import append
from dsv.repo.repository import Repository
from dsv.stores.directory import DirectoryStore
from dsv.values.ids import ChunkId, CommitId
from dsv.values.names import DatasetName
from tests.kit.dsv import Dsv, made_once, write_files

PETS = DatasetName.parse("pets")


def store_of(dsv: Dsv) -> DirectoryStore:
    return DirectoryStore(dsv.home / "store")


@pytest.fixture
@made_once
def old(dsv: Dsv) -> Dsv:
    """`pets` with five commits on main, of which the second has the tag v1, and one on branch dev, from the third."""
    here = dsv.at(dsv.cwd, DSV_CACHE=str(dsv.cwd.parent / "cache"), DSV_STORE=str(dsv.home / "store"))
    here.ok("init", "pets")
    for number in range(5):
        write_files(here.cwd, {"a.txt": b"%d\n" % number, f"only/{number}.bin": b"%d" % number * 99})
        here.ok("sync", "-m", f"number {number}")
        if number == 1:
            here.ok("tag", "v1")
        if number == 2:
            here.ok("branch", "dev")
    return here


def ids(dsv: Dsv) -> list[str]:
    """Of main, the oldest first."""
    return [item["commit"] for item in reversed(dsv.ok("log", "pets", "--json").json["items"])]


def expired(dsv: Dsv) -> list[int]:
    """The numbers of the commits that the log marks."""
    items = reversed(dsv.ok("log", "pets", "--json").json["items"])
    return [number for number, item in enumerate(items) if item["expired"] is not None]


def test_a_rule_is_needed(old: Dsv) -> None:
    result = old("expire", "pets")
    assert result.code == 2 and "no rule says which commits stay" in result.err
    assert old("expire", "pets", "--also-runs").code == 2
    assert old("expire", "pets", ids(old)[0]).code == 2
    assert old("expire", "pets", "--undo", "--keep-last", "1").code == 2
    assert old("expire", "nobody", "--keep-last", "1").code == 3
    assert expired(old) == []


def test_a_dry_run_says_why_each_commit_stays(old: Dsv) -> None:
    before = sorted(item.key for item in store_of(old).list(""))
    result = old.ok("expire", "pets", "--keep-last", "1", "--dry-run", "--json").json
    found = {item["message"]: (item["expired"], item["reasons"]) for item in result["items"]}
    assert result["dry_run"] and list(found) == [f"number {number}" for number in (4, 3, 2, 1, 0)]
    assert found["number 4"] == (False, ["head of main", "last of main"])
    assert found["number 3"] == (True, []) and found["number 0"] == (True, [])
    assert found["number 2"] == (False, ["head of dev", "where dev and main meet"])
    assert found["number 1"] == (False, ["tag v1"])
    lines = old.ok("expire", "pets", "--keep-last", "1", "--dry-run").lines
    assert lines[0].startswith("stays") and lines[0].endswith("number 4: head of main; last of main")
    assert lines[1].startswith("would expire") and lines[1].endswith("number 3")
    assert [item for item in sorted(item.key for item in store_of(old).list("")) if item not in before] == []


def test_what_expires_is_marked_and_comes_back(old: Dsv) -> None:
    first, _, _, fourth, _ = ids(old)
    done = old.ok("expire", "pets", "--keep-last", "1", "-m", "room", "--author", "Ada")
    assert [line.split()[1] for line in done.lines] == [fourth[:12], first[:12]]
    assert "dsv expire pets --undo restores them until gc frees their content, from 20" in done.err
    assert expired(old) == [0, 3]
    assert (
        f"{first[:12]} (expired " in old.ok("log", "pets", "--oneline").out and "by Ada" in old.ok("log").out
    )
    again = old.ok("expire", "pets", "--keep-last", "1")
    assert again.lines == [] and "0 commits expired" in again.err
    assert old.ok("expire", "pets", "--undo", first[:10]).lines[0].split()[1] == first[:12]
    assert expired(old) == [3]
    old.ok("expire", "pets", "--undo")
    assert expired(old) == []
    result = old.ok("expire", "pets", "--undo")
    assert result.lines == [] and "none of these commits" in result.err, "twice is as once"
    assert old.ok("cat", "pets@main~4:a.txt").out == "0\n"


def test_only_what_was_stored_long_ago_expires(old: Dsv) -> None:
    assert old.ok("expire", "pets", "--older-than", "1h").lines == []
    items = old.ok("expire", "pets", "--older-than", "1h", "--dry-run", "--json").json["items"]
    assert items[-1]["reasons"] == ["younger than 1h"]
    assert len(old.ok("expire", "pets", "--older-than", "0s").lines) == 2


def test_no_command_reads_an_expired_commit(old: Dsv, tmp_path: Path) -> None:
    first = ids(old)[0]
    old.ok("expire", "pets", "--keep-last", "1", "--author", "Ada")
    one = f"pets@{first}"
    for arguments in (
        ("cat", f"{one}:a.txt"), ("ls", one), ("ls", "pets@main~4"), ("ls", "pets@v1~1"), ("show", one),
        ("clone", one, str(tmp_path / "clone")), ("cache", one), ("export", one, str(tmp_path / "out")),
        ("diff", one, "pets@main"), ("diff", "pets@main", one), ("resolve", one), ("tag", "v0", one),
        ("branch", "pets@back", one), ("branch", "main", one, "--reset"), ("merge", one), ("cherry-pick", one),
        ("revert", one), ("rollback", f"@{first}"), ("restore", ".", "--from", f"@{first}"),
        ("run", one, "--", "true"),
    ):  # fmt: skip
        result = old(*arguments)
        assert result.code == (125 if arguments[0] == "run" else 3), (arguments, result)
        assert f"commit {first[:12]} of pets was expired on " in result.err, (arguments, result)
        assert " by Ada" in result.err and f"dsv expire pets --undo {first[:12]}" in result.err, result
        assert "damage" not in result.err
    assert not (tmp_path / "clone").exists() and not (tmp_path / "out").exists()
    assert old.ok("log", one, "--oneline").lines[0].startswith(first[:12]), "histories lead through it"
    heads = {item["branch"]: item["commit"] for item in old.ok("branch", "--json").json["items"]}
    assert set(heads) == {"main", "dev"} and heads["main"] == ids(old)[-1]


def free(dsv: Dsv, *commits: str) -> None:
    """As gc does: after the entry, what only these commits have goes. All packs go here, but those of the others."""
    store = store_of(dsv)
    repository = Repository.open(store, None)
    chosen = [CommitId.parse(one) for one in commits]
    append(repository, WriterIdentity("gc", "lab", "test"), PETS, ExpiryAction.FREE, lambda _: chosen)


def forget_copies(dsv: Dsv) -> None:
    shutil.rmtree(dsv.home / ".cache", ignore_errors=True)


def test_what_gc_has_freed_does_not_come_back(old: Dsv) -> None:
    first = ids(old)[0]
    old.ok("expire", "pets", "--keep-last", "1")
    free(old, first)
    result = old("cat", f"pets@{first}:a.txt")
    assert result.code == 3 and "gc has freed its content" in result.err
    result = old("expire", "pets", "--undo")
    assert result.code == 4 and "gc has removed the content of 1 commit of pets" in result.err
    assert "1 other commit restored" in result.err
    assert expired(old) == [0]
    assert old.ok("log", "pets", "--json").json["items"][-1]["expired"]["freed"] is True
    assert old.ok("log", "pets", "--stat").code == 0


def test_a_workspace_whose_base_was_freed_pulls_or_gets_a_hint(old: Dsv, tmp_path: Path) -> None:
    """With its own copies of the base's tree it pulls; without them the error says what to do."""
    other = old.at(tmp_path / "other")
    first = ids(old)[0]
    old.ok("clone", f"pets@{first}", str(tmp_path / "third"))
    old.ok("clone", f"pets@{first}", str(tmp_path / "other"))
    write_files(tmp_path / "other", {"mine.txt": b"mine\n"})
    write_files(tmp_path / "third", {"mine.txt": b"mine\n"})
    old.ok("expire", "pets", "--keep-last", "1")
    hint = other("cat", f"@{first}:a.txt").err  # nothing has gone yet
    assert f"dsv expire pets --undo {first[:12]}" in hint and "dsv pull" in hint
    free(old, first)
    hint = other("cat", f"@{first}:a.txt").err
    assert "gc has freed its content" in hint and "dsv pull" in hint and "--undo" not in hint
    store = store_of(old)
    kept = Repository.open(store, None)
    _remove_packs_of(kept, CommitId.parse(first))
    other.ok("pull")
    assert (tmp_path / "other/a.txt").read_text() == "4\n"
    assert (tmp_path / "other/mine.txt").read_text() == "mine\n"
    other.ok("sync", "-m", "mine")
    forget_copies(old)
    result = old.at(tmp_path / "third")("pull")
    assert result.code == 3 and f"commit {first[:12]} of pets was expired on" in result.err, result
    assert "dsv clone pets DIR" in result.err and "damage" not in result.err
    assert (tmp_path / "third/mine.txt").read_text() == "mine\n"


def test_what_gc_removed_with_the_base_of_a_workspace_is_not_lost(old: Dsv, tmp_path: Path) -> None:
    """A pull replaces such a file, and keeps one of which the store has lost what another commit needs."""
    chance = random.Random(1)
    removed, lost = chance.randbytes(500_000), chance.randbytes(100_000)
    write_files(old.cwd, {"removed": removed, "lost": lost})
    old.ok("sync")
    for name in ("one", "two"):
        old.ok("clone", "pets", str(tmp_path / name))
    for files in ({"removed": b"new"}, {"lost": b"new"}):
        write_files(old.cwd, files)
        old.ok("sync")
    old.ok("expire", "pets", "--keep-last", "2")
    old.ok("gc", "--yes", "--grace", "0s")
    old.at(tmp_path / "one").ok("pull")
    assert (tmp_path / "one/removed").read_bytes() == (tmp_path / "one/lost").read_bytes() == b"new"
    store = store_of(old)
    where = Repository.open(store, None).objects.indexes.find(ObjectKind.CHUNK, ChunkId.hash(lost))
    assert where is not None
    store.delete(keys.pack_key(where.pack))
    refused = old.at(tmp_path / "two")("pull")
    assert refused.code == 4 and "the store has lost the content of 1 file" in refused.err, refused
    assert "'lost'" in refused.err and "'removed'" not in refused.err
    assert (tmp_path / "two/lost").read_bytes() == lost


def test_histories_pass_over_what_gc_has_freed(old: Dsv) -> None:
    """Number 3 and number 0 are freed. A change of theirs shows in the next commit that is left."""
    first, second, third, fourth, fifth = ids(old)
    old.ok("expire", "pets", "--keep-last", "1")
    free(old, first, fourth)
    kept = Repository.open(store_of(old), None)
    _remove_packs_of(kept, CommitId.parse(fourth))
    _remove_packs_of(kept, CommitId.parse(first))
    forget_copies(old)

    def subjects(*arguments: str) -> list[str]:
        result = old.ok("log", "pets", "--json", *arguments)
        many = "2 expired commits" in result.err
        assert many or "1 expired commit on the way" in result.err, result
        return [item["message"].removeprefix("number ") for item in result.json["items"]]

    assert subjects("--follow", "a.txt") == ["4", "2", "1"]
    assert old.ok("log", "pets", "--json").err == "", "nothing is passed over"
    assert len(old.ok("log", "pets@main~2", "--json").json["items"]) == 3
    for paths, messages in (("a.txt", "421"), ("only/3.bin", "4"), ("only/0.bin", "1"), ("only", "421")):
        found = old.ok("log", "pets", "--json", "--", paths)
        assert [item["message"][-1] for item in found.json["items"]] == list(messages)
        assert "gc has removed the content of" in found.err, found
    stat = old.ok("log", "pets", "--stat", "--json").json["items"]
    added = [sum(row["added"] for row in item["folders"] or []) for item in stat]
    assert added == [2, 0, 1, 3, 0], "the fifth adds its own file and the fourth's; the second is the oldest"
    shown = old.ok("show", f"pets@{fifth}")
    assert (
        f"Since pets@{third[:12]} (gc has removed the content of 1 expired commit in between):" in shown.out
    )
    shown = old.ok("show", f"pets@{second}")
    assert "The first commit (gc has removed the content of 1 expired commit before it):" in shown.out
    assert old.ok("show", "pets@v1:a.txt").out.endswith("1 expired commit before it)\n")
    for command in ("cherry-pick", "revert"):  # which compare a commit with its parent
        result = old(command, f"pets@{fifth}", *(("--into", "dev") if command == "cherry-pick" else ()))
        assert result.code == 3 and f"commit {fourth[:12]} of pets was expired on" in result.err, result
    result = old("log", f"pets@{fourth}", "--follow", "a.txt")
    assert result.code == 3 and f"commit {fourth[:12]} of pets was expired on" in result.err
    result = old("log", f"pets@{first}", "--", "a.txt")
    assert result.code == 3 and "no commit that gc has left has 'a.txt'" in result.err


def _remove_packs_of(repository: Repository, commit: CommitId) -> None:
    """The packs that hold something that only this commit has, with their rows."""
    from dsv.format.index import Index
    from dsv.repo.tree.reader import TreeReader, reach_tree

    heads, tags = repository.refs.names(PETS)
    names = [head.commit for head in heads if head.commit is not None] + [value.commit for _, value in tags]
    needed = {
        where.pack
        for name in names
        for _, _, where in reach_tree(TreeReader(repository.objects, name))
        if where is not None
    }
    gone = {
        where.pack for _, _, where in reach_tree(TreeReader(repository.objects, commit)) if where is not None
    } - needed
    assert gone
    for item in list(repository.store.list(keys.INDEX_PREFIX)):
        if keys.parse_index_key(item.key) and set(Index.parse(repository.store.get(item.key)).packs) <= gone:
            repository.store.delete(item.key)
    for pack in gone:
        repository.store.delete(keys.pack_key(pack))


def test_a_store_that_expired_nothing_has_no_feature(old: Dsv) -> None:
    old.ok("expire", "pets", "--keep-last", "9")
    assert [item.key for item in store_of(old).list(keys.FORMAT_PREFIX)] == [keys.format_key(0)]
    old.ok("expire", "pets", "--keep-last", "1")
    assert len([item.key for item in store_of(old).list(keys.FORMAT_PREFIX)]) == 2
