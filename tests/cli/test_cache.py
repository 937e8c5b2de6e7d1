"""dsv cache: its text, its JSON, its exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsv.format.locator import ObjectKind
from tests.api.test_damage_marks import flip
from tests.cli.conftest import FILES
from tests.kit.dsv import Dsv, assert_documented, write_files
from tests.kit.people import Person


def test_cache_prints_a_path_for_each_target(pets: Dsv) -> None:
    result = pets.ok("cache", "pets@v1", "@v2:train")
    first, second = map(Path, result.lines)
    assert first == pets.cwd.parent / "cache/pets" / pets.ok("resolve", "@v1").out.strip()
    assert (first / "a.txt").read_bytes() == b"alpha\n"
    assert sorted(path.name for path in second.rglob("*.png")) == ["1.png", "2.png"]
    assert not (second / "a.txt").exists()
    assert result.err.count("; kept until ") == 2
    assert pets.ok("cache", "@v1", "-q").err == ""


def test_a_hit_imports_nothing_that_fills_or_runs(pets: Dsv) -> None:
    """Importing it would take longer than all that a hit does."""
    banned = [
        "dsv.cache.fill.fill",
        "dsv.cache.evict",
        "dsv.transfer",
        "dsv.engines",
        "obstore",
        "rich",
    ]
    code = "import sys; sys.argv = ['dsv', 'cache', 'pets@v1']\nfrom dsv.cli.main import main\nmain()\n"
    code += f"print([name for name in {banned!r} if name in sys.modules], file=sys.stderr)"

    def imported() -> str:
        line = [sys.executable, "-c", code]
        done = subprocess.run(
            line, env=dict(pets.environ), cwd=pets.cwd, capture_output=True, text=True, check=True
        )
        return done.stderr.splitlines()[-1]

    assert imported() == "['dsv.cache.fill.fill', 'dsv.cache.evict', 'dsv.transfer']"
    assert imported() == "[]"


def test_cache_prints_as_json_what_it_cost(pets: Dsv) -> None:
    first = pets.ok("cache", "@v1", "--json").json
    assert_documented("cache", first)
    item = first["items"][0]
    assert set(item) == {
        "path",
        "dataset",
        "commit",
        "files",
        "bytes",
        "fetched_bytes",
        "linked_files",
        "erased",
        "hit",
        "seconds",
        "hold",
        "held_until",
    }
    assert item["seconds"] > 0
    assert (item["files"], item["bytes"], item["fetched_bytes"], item["hit"]) == (4, 9, 9, False)
    again = pets.ok("cache", "@v1", "--json").json["items"][0]
    assert (again["hit"], again["fetched_bytes"]) == (True, 0)
    linked = pets.ok("cache", "@v2", "--json").json["items"][0]
    assert (linked["linked_files"], linked["fetched_bytes"]) == (3, 5)


@pytest.mark.parametrize("arguments", [[], [""], ["@v1", " "]])
def test_an_empty_target_is_a_usage_error(pets: Dsv, arguments: list[str]) -> None:
    result = pets("cache", *arguments)
    assert (result.code, result.out) == (2, "")


def test_a_store_is_no_cache(pets: Dsv) -> None:
    """The link of a tag would be a key of the store."""
    store = pets.home / ".local/share/dsv/store"
    before = sorted(path.relative_to(store) for path in store.rglob("*"))
    refused = pets.at(pets.cwd, DSV_CACHE=str(store))("cache", "pets@v1")
    assert refused.code == 4 and f"{store} is a store" in refused.err
    assert sorted(path.relative_to(store) for path in store.rglob("*")) == before


def test_an_unreadable_binding_of_a_dataset_is_named(pets: Dsv) -> None:
    path = Path(pets.ok("cache", "pets@v1").lines[0])
    (binding,) = path.parents[1].glob(".dsv/datasets/*")
    binding.chmod(0o644)
    binding.write_bytes(b"")
    refused = pets("cache", "pets@v1")
    assert refused.code == 5 and f"{binding} does not say which store's" in refused.err
    binding.unlink()
    pets.ok("cache", "pets@v1")


def test_a_cached_tag_needs_no_store(pets: Dsv) -> None:
    path = pets.ok("cache", "pets@v1").out
    (pets.home / ".local/share/dsv/store").rename(pets.home / "away")
    assert pets.ok("cache", "pets@v1").out == path
    gone = pets("cache", "pets@v2")
    assert (gone.code, gone.out) == (6, "")
    assert pets("cache", "pets@v2", "--offline").code == 6
    assert pets("cache", "pets@v2", "--json").json["error"]["retryable"] is True


@pytest.mark.parametrize("name", ["dsv-cache.toml", "DSV-Cache.TOML", "dsv-cache.toml/x"])
def test_a_dataset_may_have_the_name_of_the_settings_file(dsv: Dsv, name: str) -> None:
    here = dsv.at(dsv.cwd, DSV_CACHE=str(dsv.cwd.parent / "cache"))
    write_files(here.cwd, FILES)
    here.ok("init", name)
    here.ok("sync")
    path = Path(here.ok("cache", name, "--hold", "1h").lines[0])
    assert (path / "a.txt").read_bytes() == FILES["a.txt"]
    settings = path.parents[1] / "dsv-cache.toml"
    assert settings.is_file() and path.parent.name.casefold() != settings.name
    assert here.ok("cached", "--json").json["items"][0]["dataset"] == name
    assert here.ok("cached").err == ""
    assert here.ok("release", name).out.startswith(f"released {name}@")
    assert here.ok("hold", name).out.startswith(f"held {name}@")
    settings.write_text(f'max_files = 0\nprotected = ["{name}"]\n')
    assert here.ok("release", name).code == 0
    assert here("evict").code == 7 and path.is_dir()
    settings.write_text("")
    assert here.ok("evict", name).out.startswith(f"evicted {name}@")
    assert not path.parent.exists()


def test_a_cache_of_a_damaged_commit_names_every_path_and_shows_nothing(pets: Dsv) -> None:
    for number in range(4):
        write_files(pets.cwd, {f"d/{number}": b"%d" % number * 99, f"d/whole{number}": b"whole %d" % number})
        pets.ok("sync")
    write_files(pets.cwd, {"d/big": os.urandom(6 << 20)})
    pets.ok("sync")
    store = pets.ok("config", "store").out.strip()
    flip(Person(pets.home, store), ObjectKind.CHUNK)
    other = Dsv.of(pets.home.parent / "other").at(pets.home, DSV_STORE=store, DSV_CACHE=str(pets.home / "c"))
    files = [str(path.relative_to(pets.cwd)) for path in pets.cwd.rglob("*") if path.is_file()]
    files = [name for name in files if not name.startswith(".dsv/")]
    bad = {name for name in files if other("cat", f"pets:{name}").code == 5}
    assert {"a.txt", "d/big", *(f"d/{number}" for number in range(4))} == bad
    done = other("cache", "pets", "--json")
    assert done.code == 5
    assert {name for name in files if f"pets:{name} can't be read" in done.json["error"]["message"]} == bad
    assert not list((pets.home / "c/pets").glob("*")) and not other.ok("cached", "--json").json["items"]
    write_files(pets.cwd, {"more": b"more"})
    pets.ok("sync")
    assert other("cache", "pets").code == 5  # only this user's reads know of the damage
    assert other("verify", "--full").code == 5
    assert pets.ok("sync", "--json").json["reuploaded"] == len(bad)
    cached = Path(other.ok("cache", "pets").out.strip())
    assert {name: (cached / name).read_bytes() for name in files} == {
        name: (pets.cwd / name).read_bytes() for name in files
    }


def test_a_bucket_is_no_cache(pets: Dsv) -> None:
    assert pets("cache", "pets@v1", "--cache", "s3://bucket").code == 2
