"""Names that could be taken for others, and stores that could: each is refused, with what was meant as the hint."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.dsv import Dsv, Result, made_once, write_files
from tests.labs.s3_server import S3Server
from tests.stores.servers_on_moto import LaxServer


@pytest.fixture
@made_once
def pets(dsv: Dsv) -> Dsv:
    """A workspace of `pets` with one commit, tagged v1, on the branches main and relabel."""
    write_files(dsv.cwd, {"a.txt": b"alpha\n"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    dsv.ok("tag", "v1")
    dsv.ok("sync", "--new-branch", "relabel")
    return dsv


def refused(result: Result, code: int, said: str, hint: str = "") -> None:
    assert (result.code, result.out) == (code, ""), result
    assert said in result.err, result
    assert f"hint: {hint}" in result.err if hint else True, result


@pytest.mark.parametrize("word", ["relabel", "v1"])
@pytest.mark.parametrize(
    "arguments", [["ls"], ["log"], ["resolve"], ["cache"], ["tag", "v2"], ["restore", "--from"]]
)
def test_a_bare_word_is_a_dataset_and_the_hint_says_how_a_branch_is_named(
    pets: Dsv, arguments: list[str], word: str
) -> None:
    refused(pets(*arguments, word), 3, f"there is no dataset {word} in ", f"did you mean @{word}?\n")
    told = pets(*arguments, word, "--json").json["error"]
    assert (told["kind"], told["object"]) == ("not-found", word)


def test_a_dataset_of_that_name_is_what_a_bare_word_means(pets: Dsv) -> None:
    write_files(pets.home / "v1", {"b.txt": b"beta\n"})
    pets.at(pets.home / "v1").ok("init")
    pets.at(pets.home / "v1").ok("sync")
    assert pets.ok("ls", "v1").out == "b.txt\n"
    refused(pets("restore", "--from", "v1"), 2, "is a workspace of pets, not of v1", "dsv clone v1 DIR")
    refused(pets("ls", "nothing"), 3, "there is no dataset nothing", "dsv datasets lists them")


def test_a_missing_branch_is_reported_with_the_command_that_helps(pets: Dsv) -> None:
    refused(
        pets("put", "a.txt", "pets@nob:x"),
        3,
        "dataset pets has no branch nob",
        "dsv branch pets@nob pets@main makes it",
    )
    refused(
        pets("put", "a.txt", "pets@v1:x"), 2, "v1 is a tag of pets", "dsv branch NAME pets@v1 makes a branch"
    )
    refused(
        pets("branch", "--delete", "v1"), 3, "v1 is a tag of pets, not a branch", "dsv branch NAME pets@v1"
    )
    refused(
        pets("switch", "v1"),
        3,
        "v1 is a tag of pets",
        "dsv branch NAME pets@v1 makes a branch there; files: dsv restore --from @v1",
    )
    refused(pets("switch", "nob"), 3, "no branch nob", "dsv branch pets@nob pets@main makes it")
    refused(pets("resolve", "@nob"), 3, "no branch or tag nob", "dsv tag --list pets, dsv branch --list pets")


def test_a_deleted_tag_is_reported_as_deleted(pets: Dsv) -> None:
    pets.ok("tag", "--delete", "v1", "--force")
    for arguments in (["ls", "@v1"], ["switch", "v1"], ["branch", "--delete", "v1"], ["merge", "v1"]):
        refused(pets(*arguments), 3, "tag v1 of pets was deleted (")


def test_put_reports_a_deleted_branch_as_deleted(pets: Dsv) -> None:
    pets.ok("switch", "main")
    pets.ok("branch", "--delete", "relabel")
    refused(
        pets("put", "a.txt", "pets@relabel:x"),
        3,
        "branch relabel of pets was deleted",
        "dsv branch --restore pets@relabel",
    )


def test_a_name_is_not_both_branch_and_tag(pets: Dsv) -> None:
    refused(pets("tag", "relabel"), 4, "pets has a branch relabel, so a tag can't have that name")
    refused(pets("sync", "--new-branch", "v1"), 4, "pets has a tag v1, so a branch can't have that name")


def test_names_that_differ_in_case_only_are_refused(pets: Dsv) -> None:
    """Places in a cache would be one, where its file system folds case."""
    said = "names may not differ in case only"
    refused(pets.at(pets.home)("init", "Pets"), 4, said)
    assert not (pets.home / ".dsv").exists()
    refused(pets("tag", "V1"), 4, said)
    refused(pets("tag", "Relabel"), 4, said)
    refused(pets("sync", "--new-branch", "Relabel"), 4, said)
    refused(pets("sync", "--new-branch", "V1"), 4, said)


def test_a_workspace_knows_its_store_wherever_that_lies(pets: Dsv) -> None:
    """By its id: it may move, and another one in its place is not taken for it."""
    head = pets.ok("resolve").out
    store, moved = pets.home / ".local/share/dsv/store", pets.home / "moved"
    (pets.home / "other").mkdir()
    pets.at(pets.home / "other").ok("init", "other")  # which notes where the store of the fixture lies now
    store.rename(moved)
    assert pets("sync").code == 6
    assert pets.ok("sync", "--store", str(moved)).out == head
    refused(pets.at(pets.home)("init", "pets", "--store", str(store)), 6, "is not there, and it was once")
    store.mkdir()
    pets.at(pets.home).ok("init", "pets", "--store", str(store))
    pets.ok("put", "a.txt", "pets:a.txt")
    pets.ok("branch", "pets@relabel", "pets@main")
    for command in (
        ["sync"], ["pull"], ["ls"], ["restore", "a.txt"], ["tag"], ["tag", "--delete", "v1"],
        ["log"], ["du", "@main"], ["copy", "--to", str(pets.home / "new"), "--create"],
    ):  # fmt: skip
        refused(pets(*command), 4, "belongs to another store than")
    assert pets.ok("pull", "--store", str(moved)).code == 0


def test_a_log_without_the_store_is_that_of_the_workspaces_store(pets: Dsv) -> None:
    """Although the cache has the dataset of the same name of another store."""
    other = str(pets.home / "other")
    write_files(pets.home / "there", {"b.txt": b"beta\n"})
    there = pets.at(pets.home / "there")
    there.ok("init", "pets", "--store", other)
    there.ok("sync", "-m", "elsewhere")
    cache = {"DSV_CACHE": str(pets.home / "cache")}
    pets.at(pets.home, **cache).ok("cache", "pets", "--store", other)
    here = pets.at(pets.cwd, **cache)
    head = here.ok("log", "--json").json["items"][0]["commit"]
    assert [each["commit"] for each in here.ok("log", "--offline", "--json").json["items"]] == [head]


def test_a_workspace_keeps_its_stores_name_and_with_it_how_that_is_reached(
    dsv: Dsv, moto_s3: S3Server
) -> None:
    """Nothing but the configuration says where the server is."""
    keys = {name: value for name, value in moto_s3.env.items() if name != "AWS_ENDPOINT_URL"}
    person = dsv.at(dsv.cwd, **keys)
    person.ok("config", "stores.lake.url", f"s3://{moto_s3.bucket()}/dsv")
    person.ok("config", "stores.lake.endpoint", moto_s3.endpoint)
    write_files(person.cwd, {"a.txt": b"alpha\n"})
    person.ok("init", "pets", "--store", "lake")
    commit = person.ok("sync").out
    person.at(person.home).ok("clone", "pets", "copy", "--store", "lake")
    copy = person.at(person.home / "copy")
    write_files(copy.cwd, {"a.txt": b"beta\n"})
    assert copy.ok("sync").out != commit
    assert person.ok("pull").lines == [
        f"pulled pets@main ({copy.ok('resolve').out[:12]}): 0 files added, 1 replaced, 0 removed"
    ]


def test_a_store_that_has_moved_is_named_anew_once(dsv: Dsv) -> None:
    store, moved = dsv.home / "lake", dsv.home / "moved"
    dsv.ok("config", "stores.lake.url", str(store))
    write_files(dsv.cwd, {"a.txt": b"alpha\n"})
    dsv.ok("init", "pets", "--store", "lake")
    commit = dsv.ok("sync").out
    store.rename(moved)
    assert dsv("sync").code == 6
    dsv.ok("config", "stores.lake.url", str(moved))
    assert dsv.ok("sync").out == commit
    dsv.ok("config", "--unset", "stores.lake.url")
    refused(dsv("sync"), 3, "no store named lake is configured", "dsv config stores.lake.url URL")


@pytest.fixture
def lax() -> Iterator[S3Server]:
    pytest.importorskip("moto.server", reason="needs moto[server]")
    server = LaxServer()
    yield S3Server(server.endpoint, "testing", "secret-testing")
    server.close()


def test_a_store_for_a_single_writer_is_a_choice_that_every_sync_repeats(dsv: Dsv, lax: S3Server) -> None:
    person = dsv.at(dsv.cwd, **lax.env, DSV_STORE=f"s3://{lax.bucket()}/dsv")
    write_files(person.cwd, {"a.txt": b"alpha\n"})
    refused(
        person("init", "pets"),
        9,
        "ignores If-None-Match",
        "keep its names where one writer wins: dsv init --names DIR",
    )
    assert not (person.cwd / ".dsv").exists()
    person.ok("init", "pets", "--single-writer")
    for content in (b"beta\n", b"gamma\n"):
        write_files(person.cwd, {"a.txt": content})
        assert "make sure that nobody else syncs to it now" in person.ok("sync", "--quiet").err
    person.at(person.home).ok("clone", "pets", "copy")
    copy = person.at(person.home / "copy")
    assert "make sure that nobody else syncs to it now" in copy.ok("sync").err


@pytest.mark.parametrize(
    ("arguments", "code", "said", "hint"),
    [
        (["show", "main~1"], 2, "a ~ belongs to a revision, after an @", "write @main~1 for the commit\n"),
        (["show", "@~1"], 2, "comes before the ~", "such as main~1\n"),
        (["show", "@a b"], 2, "'a b' is not a revision", "such as main, v1.0 or main~2\n"),
        (["tag", "pets@v2"], 2, "a tag is named without its dataset", "dsv tag v2 pets\n"),
        (["tag", "pets@v2", "@relabel"], 2, "without its dataset", "dsv tag v2 @relabel\n"),
        (["blame", "a.txt"], 2, "there is no command blame", "dsv log --follow PATH says"),
    ],
)
def test_the_syntax_of_git_is_refused_with_a_hint_at_that_of_dsv(
    pets: Dsv, arguments: list[str], code: int, said: str, hint: str
) -> None:
    refused(pets(*arguments), code, said, hint)
