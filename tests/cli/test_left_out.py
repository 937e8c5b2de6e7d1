"""What sync and put leave out of a folder, and say so, and what sync asks about before it publishes it."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.cli.test_delete_dataset import typed
from tests.kit.dsv import Dsv, assert_documented, write_files


def paths(dsv: Dsv, *which: str) -> list[str]:
    return dsv.ok("ls", *which).lines


def test_names_of_git_and_dsv_are_left_out_with_a_note_that_a_line_ends(dsv: Dsv) -> None:
    files = {"repos/a/.git/HEAD": b"ref", "b/.GIT": b"data", "c/.dſv": b"data", "d/.dsv/x": b"", "x": b"x"}
    write_files(dsv.cwd, {**files, ".git/HEAD": b"the project's own"})
    dsv.ok("init", "pets")
    for command in ("status", "sync"):
        said = dsv.ok(command).err
        assert said.count("left out") == 1
        assert "4 paths left out" in said and ".dsvignore" in said and "tar" in said
    assert paths(dsv) == ["b", "c", "d", "repos/a", "x"]
    write_files(dsv.cwd, {".dsvignore": b".git/\n.dsv\n"})
    assert (
        "2 paths left out" in dsv.ok("status").err
    )  # .git/ is about folders, and files are left out here too
    write_files(dsv.cwd, {".dsvignore": b".[gG][iI][tT]\n.d*v\n"})
    assert "left out" not in dsv.ok("sync").err


def test_put_notes_git_also_at_the_top(pets: Dsv) -> None:
    write_files(pets.cwd, {"repo/.git/HEAD": b"ref", "repo/x": b"x"})
    assert "1 path left out, such as '.git'" in pets.ok("put", "repo", "pets:").err
    assert paths(pets, "pets:repo") == ["repo/x"]


def test_a_store_and_a_cache_in_the_workspace_are_left_out(dsv: Dsv) -> None:
    write_files(dsv.cwd, {"x": b"x", "mine/README.txt": b"A dsv store is elsewhere", "mine/format/1": b"1"})
    here = dsv.at(dsv.cwd, DSV_STORE=str(dsv.cwd / "lake"), DSV_CACHE=str(dsv.cwd / "cache"))
    here.ok("init", "pets")
    here.ok("sync")
    here.ok("cache", "pets")
    said = here.ok("sync").err
    for left in ("lake", "cache"):
        assert f"'{left}' is a dsv store or cache, and is left out" in said
    assert "nothing changed here" in said
    assert paths(here) == ["mine/README.txt", "mine/format/1", "x"]


@pytest.mark.parametrize("emptied", [True, False])
def test_a_folder_that_becomes_a_store_keeps_what_the_dataset_has_of_it(dsv: Dsv, emptied: bool) -> None:
    write_files(dsv.cwd, {"data/x": b"x", "data/in/y": b"y", "z": b"z"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    other = dsv.at(dsv.cwd.parent / "other", DSV_STORE=str(dsv.cwd / "data"))
    write_files(other.cwd, {"mine": b"mine"})
    if emptied:
        shutil.rmtree(dsv.cwd / "data")
    other.ok("init", "another")
    write_files(dsv.cwd, {"z": b"changed"})
    for rehash in ((), ("--rehash",)):
        assert "D" not in dsv.ok("status", *rehash).out.split()
        said = dsv.ok("sync", *rehash)
        assert "'data' is a dsv store or cache, and is left out" in said.err
        assert {"data/x", "data/in/y", "z"} <= set(paths(dsv))
    shutil.rmtree(dsv.cwd / ".dsv/state")  # all that is known of the base's files
    dsv.ok("sync")
    dsv.ok("pull")
    for what in ((), ("data",), ("data/in",), ("--force",)):
        refused = dsv("restore", *what)
        assert refused.code == 4 and "'data' is a dsv store or cache, so" in refused.err
    assert {"data/x", "data/in/y", "z"} <= set(paths(dsv))
    assert not (dsv.cwd / "data/in").exists() or not emptied
    shutil.rmtree(dsv.cwd / "data")
    assert dsv("sync").code == 4  # a whole folder is gone
    dsv.ok("sync", "--allow-removals")
    assert "data/x" not in paths(dsv)


def test_no_commit_writes_into_a_store_in_the_workspace(dsv: Dsv) -> None:
    """An older dsv has committed a part of it."""
    other = dsv.at(dsv.cwd.parent / "other", DSV_STORE=str(dsv.cwd / "lake"))
    write_files(other.cwd, {"x": b"x", "lake/format/new": b"not the store's"})
    other.ok("init", "pets")
    other.ok("sync")
    here = dsv.at(dsv.cwd, DSV_STORE=str(dsv.cwd / "lake"))
    refused = here("clone", "pets", ".")
    assert refused.code == 4 and "'lake' is a dsv store or cache, and is in the way" in refused.err
    assert not (dsv.cwd / "lake/format/new").exists()


SECRET = (".ssh/id_rsa", ".aws/credentials", "a/.netrc", ".pgpass", ".kube/config", ".docker/config.json")


def test_passwords_and_keys_are_asked_about(dsv: Dsv) -> None:
    write_files(dsv.cwd, {"x": b"x", **dict.fromkeys(SECRET, b"secret"), ".git-credentials": b"secret"})
    write_files(dsv.cwd, dict.fromkeys((".ssh/id_rsa.pub", "config", "credentials", "id_list"), b"public"))
    dsv.ok("init", "pets")
    refused = dsv("sync")
    assert refused.code == 2 and "'.git-credentials' and 6 other files, with passwords or keys" in refused.err
    assert "nothing was published" in refused.err and "--yes" in refused.err
    assert typed(dsv, b"y\n", "sync").code == 4
    assert dsv("ls").code != 0  # no commit yet
    assert typed(dsv, b"pets\n", "sync").code == 0
    write_files(dsv.cwd, {".pgpass": b"another", "y": b"y"})
    dsv.ok("sync")  # what the dataset has already is not asked about again
    write_files(dsv.cwd, {"new/.netrc": b"secret", "z": b"z"})
    dsv.ok("sync", "z")
    assert dsv("sync").code == 2
    dsv.ok("sync", "--yes")


def test_put_and_import_ask_about_passwords_and_keys(dsv: Dsv) -> None:
    dsv = dsv.at(dsv.cwd, DSV_STORE=str(dsv.home.parent / "store"))
    dsv.ok("init", "pets")
    write_files(dsv.home, {".ssh/id_rsa": b"secret", ".ssh/id_rsa.pub": b"public", "x/.netrc": b"secret"})
    write_files(dsv.home, {"x/y": b"y"})
    ssh = str(dsv.home / ".ssh")
    key = f"{ssh}/id_rsa"
    dsv.ok("put", f"{key}.pub", "pets:", "--create")
    for command in (
        ("put", key),
        ("put", f"{ssh}/."),
        ("import", key),
        ("import", ssh),
        ("import", f"file://{ssh}"),
    ):
        refused = dsv(*command, "pets:")
        assert refused.code == 2 and "this publishes 'id_rsa', with passwords or keys" in refused.err
        assert "nothing was published" in refused.err and "--yes" in refused.err
        dsv.ok(*command, "pets:", "--dry-run")
    assert dsv.at(dsv.home / ".ssh")("put", "id_rsa", "pets:as/key").code == 2
    assert dsv.at(dsv.home / ".ssh")("put", ".", "pets:").code == 2
    assert dsv("put", f"{key}.pub", "pets:.netrc").code == 2
    assert typed(dsv, b"pets\n", "put", str(dsv.home / "x"), "pets:").code == 0
    dsv.ok("put", str(dsv.home / "x"), "pets:")  # what the dataset has already is not asked about again
    dsv.ok("mv", "pets:x", "z")
    dsv.ok("import", ssh, "pets:", "--yes")
    assert paths(dsv, "pets:") == ["id_rsa", "id_rsa.pub", "z/.netrc", "z/y"]


def test_put_and_import_ask_about_a_home_folder(dsv: Dsv) -> None:
    dsv = dsv.at(dsv.cwd, DSV_STORE=str(dsv.home.parent / "store"))
    dsv.ok("init", "pets")
    write_files(dsv.home, {"x": b"x", "data/y": b"y"})
    dsv.ok("put", str(dsv.home / "data"), "pets:", "--create")
    dsv.ok("put", str(dsv.home / "x"), "pets:")
    dsv.ok("import", str(dsv.home / "x"), "pets:")
    for command in ("put", "import"):
        for folder in (dsv.home, dsv.home.parent):
            refused = dsv(command, str(folder), "pets:", "--skip-unsupported")
            assert refused.code == 2 and f"this publishes all of {folder}, which" in refused.err
    dsv.ok("put", str(dsv.home), "pets:", "--yes")


@pytest.mark.parametrize("above", [False, True])
def test_a_home_folder_is_asked_about(dsv: Dsv, above: bool) -> None:
    here = dsv.at(dsv.home.parent if above else dsv.home)
    write_files(here.cwd, {"x": b"x", "data/y": b"y"})
    here.ok("init", "pets")
    refused = here("sync")
    assert refused.code == 2 and f"this publishes all of {here.cwd}, which" in refused.err
    here.ok("sync", "data")
    assert paths(here) == ["data/y"]
    said = here.ok("sync", "--yes").err
    assert "is a dsv store or cache, and is left out" in said
    assert "/.dsv'" not in said  # of the cache, which has copies of metadata alone
    assert not any("store/format" in path or ".cache/dsv" in path for path in paths(here))


def test_a_pipe_in_place_of_a_file_never_removes_it(dsv: Dsv) -> None:
    write_files(dsv.cwd, {"a": b"a", "d/b": b"b", "c": b"c"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    (dsv.cwd / "a").unlink()
    os.mkfifo(dsv.cwd / "a")
    shutil.rmtree(dsv.cwd / "d")
    os.mkfifo(dsv.cwd / "d")
    write_files(dsv.cwd, {"c": b"changed"})
    done = dsv.ok("sync", "--skip-unsupported", "--json").json
    assert_documented("sync", done)
    assert [each["path"] for each in done["skipped"]] == ["a", "d"]
    assert (done["changed"], done["removed"]) == (1, 0)
    assert paths(dsv) == ["a", "c", "d/b"]
    assert dsv("status", "--exit-code").code == 1  # what the pipes replace differs
    assert not dsv.ok("status", "--json").json["clean"]
    assert dsv("restore").code == 4  # a pipe is in the way
    dsv.ok("restore", "a", "d")
    assert (dsv.cwd / "a").read_bytes() == b"a" and (dsv.cwd / "d/b").read_bytes() == b"b"


def test_a_mere_pipe_is_no_difference(dsv: Dsv) -> None:
    write_files(dsv.cwd, {"a": b"a"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    os.mkfifo(dsv.cwd / "pipe")
    said = dsv.ok("status", "--exit-code")
    assert "pipe" in said.out and "would be refused" in said.err
    assert dsv.ok("status", "--json").json["clean"]
    dsv.ok("diff", "--exit-code")
    (dsv.cwd / "link").symlink_to("/elsewhere")  # data that would be missing from a commit
    assert dsv("status", "--exit-code").code == 1
    assert dsv("diff", "--exit-code").code == 1


def test_json_says_what_was_left_out(pets: Dsv) -> None:
    write_files(pets.cwd, {"folder/a": b"a"})
    os.mkfifo(pets.cwd / "folder/pipe")
    done = pets.ok("put", "folder", "pets:", "--skip-unsupported", "--json").json
    assert_documented("put", done, "items")
    assert done["skipped"] == [{"path": "pipe", "reason": "it is a named pipe"}]
