"""dsv init: its text, its JSON, its exit codes."""

from __future__ import annotations

import re
import shlex
import shutil

import pytest

from tests.kit.dsv import Dsv, assert_documented, write_files


@pytest.fixture
def pets(signed_pets: Dsv) -> Dsv:
    return signed_pets


def test_init_says_one_line_and_documents_what_it_made(dsv: Dsv) -> None:
    result = dsv.ok("init", "pets")
    assert result.lines == [
        f"{dsv.cwd} is bound to the new dataset pets in {dsv.home}/.local/share/dsv/store"
    ]
    (dsv.cwd.parent / "birds").mkdir()
    other = dsv.at(dsv.cwd.parent / "birds").ok("init", "--json").json
    assert other == {
        "schema": 1,
        "dataset": "birds",
        "store": f"{dsv.home}/.local/share/dsv/store",
        "workspace": str(dsv.cwd.parent / "birds"),
        "branch": "main",
        "new_store": False,
        "warnings": [],
    }
    assert_documented("init", other)


def test_init_of_a_folder_whose_name_is_none_suggests_one(dsv: Dsv) -> None:
    folder = dsv.cwd / "My Data (2)"
    folder.mkdir()
    result = dsv.at(folder)("init")
    assert (result.code, result.out) == (2, "")
    assert result.err.endswith("hint: dsv init My-Data-2\n")


def test_init_of_a_dataset_that_exists_leads_to_clone(pets: Dsv) -> None:
    other = pets.cwd.parent / "other"
    other.mkdir()
    result = pets.at(other)("init", "pets")
    assert (result.code, result.out) == (4, "")
    assert "hint: dsv clone pets\n" in result.err
    assert list(other.iterdir()) == []


def test_init_of_a_folder_with_the_files_of_a_dataset_leads_to_a_clone_that_keeps_them(pets: Dsv) -> None:
    shutil.rmtree(pets.cwd / ".dsv")
    write_files(pets.cwd, {"a.txt": b"mine\n"})
    result = pets("init", "pets")
    assert result.code == 4
    [_, command, _] = re.split("hint: dsv | makes a workspace", result.err)
    pets.ok(*shlex.split(command))
    assert (pets.cwd / "a.txt").read_bytes() == b"mine\n"
    assert pets.ok("status").lines == ["changed   a.txt"]
