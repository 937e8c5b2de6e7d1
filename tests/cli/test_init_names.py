"""A store whose names are to be in a place that can't have them: nothing is written that would have to be undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.dsv import Dsv, plain_environment, write_files


class Places:
    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("home", "one", "two"):
            (root / name).mkdir()

    def person(self, name: str) -> Dsv:
        (self.root / name).mkdir()
        return Dsv(self.root / "home", self.root / name, plain_environment(self.root / "home"))

    def keys(self, place: str) -> dict[str, bytes]:
        folder = self.root / place
        return {
            str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


@pytest.mark.parametrize("called", ["../one", "../one/", "../two/../one", "../linked"])
def test_the_place_of_the_data_is_no_place_elsewhere(places: Places, called: str) -> None:
    (places.root / "linked").symlink_to(places.root / "one")
    ann = places.person("ann")
    refused = ann("init", "xrays", "--store", "../one", "--names", called)
    assert refused.code == 2 and "is the place of the data itself" in refused.err, refused
    assert not places.keys("one")
    ann.ok("init", "xrays", "--store", "../one")


def test_two_stores_do_not_share_their_names(places: Places) -> None:
    ann, ben = places.person("ann"), places.person("ben")
    ann.ok("init", "xrays", "--store", "../one", "--names", "../names")
    write_files(ann.cwd, {"a.txt": b"a"})
    ann.ok("sync")
    before = places.keys("names")
    refused = ben("init", "scans", "--store", "../two", "--names", "../names")
    assert refused.code == 4 and "has the names of another store" in refused.err, refused
    assert "--names LOCATION" in refused.err
    assert not places.keys("two") and places.keys("names") == before
    ben.ok("init", "scans", "--store", "../two", "--names", "../others")
    assert ann.ok("cat", "xrays:a.txt").out == "a"


def test_a_whole_store_is_no_place_for_the_names_of_another(places: Places) -> None:
    ann, ben = places.person("ann"), places.person("ben")
    ann.ok("init", "xrays", "--store", "../one")
    before = places.keys("one")
    refused = ben("init", "scans", "--store", "../two", "--names", "../one")
    assert refused.code == 4 and "has the names of another store" in refused.err, refused
    assert not places.keys("two") and places.keys("one") == before
    ben.ok("init", "scans", "--store", "../two")


def test_names_that_are_not_mounted_are_not_made_in_the_mounts_place(places: Places) -> None:
    ann, ben = places.person("ann"), places.person("ben")
    ann.ok("init", "xrays", "--store", "../one", "--names", "../names")
    (places.root / "names").rename(places.root / "away")
    refused = ben("init", "scans", "--store", "../one", "--names", "../names")
    assert refused.code == 6 and "is it mounted?" in refused.err, refused
    assert not (places.root / "names").exists()
    ben.ok("store", "rebuild-names", "--dry-run", "--store", "../one", "--names", "../names")
    assert not (places.root / "names").exists()
