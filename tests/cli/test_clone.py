"""dsv clone: its text, its JSON, its exit codes."""

from __future__ import annotations

import pytest

from tests.cli.conftest import UNTAGGED_FILES
from tests.kit.dsv import Dsv, assert_documented


@pytest.fixture
def pets(untagged_pets: Dsv) -> Dsv:
    return untagged_pets


def test_clone_says_one_line(pets: Dsv) -> None:
    above = pets.at(pets.cwd.parent)
    result = above.ok("clone", "pets")
    assert len(result.lines) == 1
    assert result.out.startswith(f"{pets.cwd.parent}/pets follows pets@main at ")
    for name, content in UNTAGGED_FILES.items():
        assert (pets.cwd.parent / "pets" / name).read_bytes() == content
    made = above.ok("clone", "pets", "deep/er", "--json").json
    assert_documented("clone", made)
    assert made["workspace"] == f"{pets.cwd.parent}/deep/er"
    again = above("clone", "pets")
    assert (again.code, again.out) == (4, "")
    assert above("clone", "nothing").code == 3
    assert above("clone", "pets", "").code == 2
    assert above("clone").code == 2
