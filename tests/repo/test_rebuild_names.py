"""Names that are made anew after they had moved."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dsv
from dsv.api import store as store_upkeep
from dsv.api.store import prove_names
from dsv.errors import Conflict
from dsv.repo.format_log import make_names
from dsv.stores.base import StoreBackend
from dsv.stores.probe import Proof
from tests.kit.dsv import Dsv, plain_environment, write_files


def test_names_that_have_moved_are_made_anew_only_if_they_are_lost(tmp_path: Path) -> None:
    data, old, moved, new = (tmp_path / name for name in ("data", "old", "moved", "new"))
    home, work = tmp_path / "home", tmp_path / "work"
    for folder in (data, home, work):
        folder.mkdir()
    ann = Dsv(home, work, plain_environment(home))
    ann.ok("config", "stores.grid.url", str(data))
    ann.ok("config", "stores.grid.names", str(old))
    ann.ok("config", "store", "grid")
    ann.ok("init", "xrays")
    write_files(work, {"a.txt": b"a"})
    ann.ok("sync")
    ann.ok("store", "move-names", str(moved))
    ann.ok("config", "stores.grid.names", str(new))
    refused = ann("store", "rebuild-names")
    assert refused.code == 4, refused
    assert f"are not lost: they have moved to {moved}" in refused.err
    assert f"dsv config stores.NAME.names {moved}" in refused.err
    shutil.rmtree(moved / "refs")
    refused = ann("store", "rebuild-names")  # others may work there, with the names that are left
    assert refused.code == 4 and "first move that place away" in refused.err, refused
    moved.rename(tmp_path / "away")
    ann.ok("store", "rebuild-names")
    assert ann.ok("cat", "xrays:a.txt").out == "a"
    ann.ok("config", "stores.grid.names", str(old))
    shutil.rmtree(old)  # the data's log leads to the new place
    assert ann.ok("cat", "xrays:a.txt").out == "a"


@pytest.fixture
def two_stores(tmp_path: Path) -> tuple[Dsv, Dsv]:
    """Two stores, each with a dataset, whose names are lost; both are to get them in one empty place."""
    people = []
    for name in ("one", "two"):
        home = tmp_path / name
        (home / "work").mkdir(parents=True)
        person = Dsv(home, home / "work", plain_environment(home))
        person.ok("config", "stores.grid.url", str(tmp_path / f"data-{name}"))
        person.ok("config", "stores.grid.names", str(tmp_path / f"names-{name}"))
        person.ok("config", "store", "grid")
        person.ok("init", f"xrays-{name}")
        write_files(home / "work", {"a.txt": name.encode()})
        person.ok("sync")
        person.ok("config", "stores.grid.names", str(tmp_path / "names"))
        people.append(person)
    return people[0], people[1]


def test_a_place_gets_the_names_of_one_store_if_two_race(
    two_stores: tuple[Dsv, Dsv], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Barrier(2)

    def prove_together(names: StoreBackend) -> Proof:
        start.wait()  # both have seen that the place is empty
        return prove_names(names)

    monkeypatch.setattr(store_upkeep, "prove_names", prove_together)
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(rebuild, two_stores))
    assert sorted(outcomes) == [
        "",
        f"the names of another store are being rebuilt in {two_stores[0].home.parent / 'names'}",
    ]
    winner = two_stores[outcomes.index("")]
    assert winner.ok("datasets", "--json").json["items"][0]["dataset"] == f"xrays-{winner.home.name}"
    assert len(winner.ok("datasets", "--json").json["items"]) == 1


def test_a_place_that_has_become_that_of_another_store_at_the_last_moment_is_refused(
    two_stores: tuple[Dsv, Dsv], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An init does not look for the claim of a rebuild."""
    one = two_stores[0]
    folder = one.home.parent

    def make_late(names: StoreBackend, *arguments: Any, **named: Any) -> None:
        shutil.copytree(folder / "names-two/format", folder / "names/format", dirs_exist_ok=True)
        make_names(names, *arguments, **named)

    monkeypatch.setattr(store_upkeep, "make_names", make_late)
    assert rebuild(one) == f"somebody has made {folder / 'names'} the names of another store meanwhile"


def rebuild(person: Dsv) -> str:
    """Rebuild the names in this process; return why it was refused."""
    try:
        ann = dsv.store(environ=person.environ, cwd=person.cwd, author="Ann <ann@lab>")
        store_upkeep.rebuild_names(ann.context)
    except Conflict as error:
        return error.message
    return ""


def test_an_unfinished_rebuild_keeps_its_place_from_other_stores(two_stores: tuple[Dsv, Dsv]) -> None:
    one, two = two_stores
    one.ok("store", "rebuild-names")
    (one.home.parent / "names/format/0000000000000000").unlink()  # killed before the last write
    refused = two("store", "rebuild-names")
    assert refused.code == 4 and "the names of another store are being rebuilt in" in refused.err, refused
    one.ok("store", "rebuild-names")
    assert one.ok("cat", "xrays-one:a.txt").out == "one"
