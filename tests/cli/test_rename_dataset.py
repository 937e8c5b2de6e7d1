"""dsv datasets --rename, as a person types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv import reader
from tests.cli.test_delete_dataset import commands, names, outside
from tests.kit.dsv import Dsv

__all__ = ["outside"]


def test_a_dataset_is_renamed_and_its_workspace_follows(pets: Dsv, outside: Dsv, tmp_path: Path) -> None:
    commit = outside.ok("resolve", "pets", "--json").json["commit"]
    done = outside.ok("datasets", "--rename", "pets", "animals/all", "-m", "as agreed", "--author", "Ada")
    assert done.lines == ["renamed dataset pets to animals/all"]
    assert "dsv datasets --rename animals/all pets undoes this" in done.err
    assert names(outside) == ["animals/all"]
    again = outside.ok("datasets", "--rename", "pets", "animals/all")
    assert again.lines == [] and "was already renamed to animals/all by Ada" in again.err
    assert "from pets; as agreed" in outside.ok("log", "--reflog", "animals/all@main").out
    for here, arguments in (
        *commands(pets, outside, tmp_path),
        (outside, ("datasets", "--delete", "pets", "--yes")), (outside, ("datasets", "--undelete", "pets")),
        (outside, ("show", f"pets@{commit[:12]}")), (outside, ("du", "pets")), (outside, ("verify", "pets")),
    ):  # fmt: skip
        result = here(*arguments)
        assert result.code in (3, 4), (arguments, result)
        assert "pets was renamed to animals/all (Ada" in result.err, (arguments, result)
    result = outside("init", "pets")
    assert result.code == 4 and "its name is not used again" in result.err
    for text in ("animals/all@v1", f"animals/all@{commit}", f"animals/all@{commit[:12]}", f"pets@{commit}"):
        assert outside.ok("show", text).out
        assert outside.ok("diff", text, "animals/all").code in (0, 1)
    assert commit[:12] in outside.ok("log", f"animals/all@{commit}").out
    assert "next: dsv switch main" in pets.ok("status").err
    hint = pets("sync").err
    assert "dsv switch main follows it there" in hint
    assert pets.ok("switch", "main").lines == [
        f"pets was renamed: this workspace follows animals/all@main, at {commit[:12]} now"
    ]
    assert pets.ok("switch", "main").out.startswith("this workspace already follows animals/all@main, at ")
    pets.ok("sync")
    assert "new.txt" in outside.ok("ls", "animals/all").out
    assert outside("verify").code == 0
    assert [item["name"] for item in outside.ok("du", "--json").json["items"]] == ["animals/all"]
    outside.ok("gc", "--dry-run")
    back = outside.ok("datasets", "--rename", "animals/all", "pets", "--json").json
    assert back["items"] == [
        {**back["items"][0], "dataset": "pets", "renamed_from": "animals/all", "deleted": None}
    ]
    assert pets.ok("switch", "main", "--json").json["any_change"]
    assert not pets.ok("switch", "main", "--json").json["any_change"]
    assert pets.ok("status").code == 0 and names(outside) == ["pets"]


def test_what_is_not_renamed(pets: Dsv, outside: Dsv) -> None:
    (outside.cwd / "x").write_text("x")
    outside.ok("put", "x", "toys:x", "--create")
    assert outside("datasets", "--rename", "pets", "toys").code == 4
    assert outside("datasets", "--rename", "nobody", "new").code == 3
    assert outside("datasets", "--rename", "pets", "no name").code == 2
    assert outside("datasets", "--rename", "pets", "pets").code == 2
    assert outside("datasets", "--rename", "pets").code == 2
    assert outside("datasets", "new").code == 2
    outside.ok("datasets", "--delete", "toys", "--yes")
    result = outside("datasets", "--rename", "pets", "toys")
    assert result.code == 4 and "toys was deleted" in result.err
    pets.ok("branch", "--protect", "main")
    result = outside("datasets", "--rename", "pets", "animals")
    assert result.code == 4 and "branch main of pets is protected" in result.err
    assert names(outside) == ["pets"]
    assert outside("datasets", "--rename", "pets", "animals", "--force").code == 2
    outside.ok("datasets", "--rename", "pets", "animals", "--force", "-m", "agreed")
    assert names(outside) == ["animals"]
    assert outside("datasets", "--rename", "animals", "pets").code == 4, "the rule went with it"


def test_a_copy_and_the_independent_reader_know_the_new_name(pets: Dsv, outside: Dsv, tmp_path: Path) -> None:
    store = Path(outside.environ["DSV_STORE"].removeprefix("file://"))
    commit = outside.ok("resolve", "pets@v1", "--json").json["commit"]
    outside.ok("datasets", "--rename", "pets", "animals")
    for at, target in enumerate(("animals", "animals@v1", f"animals@{commit}", f"pets@{commit}")):
        reader.restore(store, target, tmp_path / f"restored-{at}")
        assert (tmp_path / f"restored-{at}" / "a.txt").is_file()
    with pytest.raises(reader.StoreError, match="dataset pets was renamed to animals"):
        reader.restore(store, "pets", tmp_path / "none")
    with pytest.raises(reader.StoreError, match="is none of dataset toys, but of pets"):
        reader.restore(store, f"toys@{commit}", tmp_path / "none")
    mirror = f"file://{tmp_path / 'mirror'}"
    copied = outside.ok("copy", "--all", "--tags", "--to", mirror, "--create", "--json").json
    assert {item["dataset"] for item in copied["items"]} == {"animals"}
    there = outside.at(outside.cwd, DSV_STORE=mirror)
    assert "animals" in names(there) and "pets" not in names(there)
    for target in ("animals@v1", f"animals@{commit}", f"animals@{commit[:12]}"):
        assert there.ok("show", target).out


def test_a_file_of_a_renamed_dataset_is_erased_by_its_new_name(pets: Dsv, outside: Dsv) -> None:
    outside.ok("datasets", "--rename", "pets", "animals")
    done = outside.ok("erase", "animals:a.txt", "--reason", "withdrawn", "--yes", "--json").json
    assert {(item["dataset"], item["path"], item["state"]) for item in done["items"]} == {
        ("animals", "a.txt", "erased")
    }
    assert outside("cat", "animals:a.txt").code == 3
    assert outside("verify").code == 0
