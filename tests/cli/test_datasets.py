"""dsv datasets: its text, its JSON, its exit codes."""

from __future__ import annotations

import pytest

from tests.kit.dsv import Dsv, assert_documented


@pytest.fixture
def pets(signed_pets: Dsv) -> Dsv:
    return signed_pets


def test_datasets(pets: Dsv) -> None:
    (pets.cwd.parent / "birds").mkdir()
    pets.at(pets.cwd.parent / "birds").ok("init")
    items = pets.ok("datasets", "--json").json["items"]
    assert [(item["dataset"], item["files"]) for item in items] == [("birds", 0), ("pets", 4)]
    assert (items[0]["commit"], items[0]["time"]) == (None, None)
    assert_documented("datasets", {"schema": 1, "items": items})
    lines = pets.ok("datasets").lines
    assert lines[0].split() == ["DATASET", "COMMIT", "COMMITTED", "FILES", "SIZE"]
    assert pets("datasets", "--store", f"{pets.cwd}/none").code == 6
