"""dsv tag: its text, its JSON, its exit codes."""

from __future__ import annotations

import pytest

from tests.kit.dsv import Dsv, assert_documented


@pytest.fixture
def pets(signed_pets: Dsv) -> Dsv:
    return signed_pets


def test_tags(pets: Dsv) -> None:
    commit = pets.ok("resolve").out.strip()
    made = pets.ok("tag", "v2", "pets@v1", "-m", "as published", "--json").json
    assert_documented("tag", made)
    assert made["items"][0]["commit"] == commit
    listed = pets.ok("tag", "--list", "pets", "--json").json["items"]
    assert [(item["tag"], item["message"]) for item in listed] == [("v1", ""), ("v2", "as published")]
    assert pets.ok("tag").lines[1].split()[:2] == ["v1", commit[:12]]
    assert pets.ok("tag", "v1").out == f"pets@v1 is {commit}\n"
    (pets.cwd / "a.txt").write_bytes(b"beta\n")
    pets.ok("sync")
    assert pets("tag", "v1").code == 4
    refused = pets("tag", "--delete", "v2")
    assert refused.code == 4 and "--force" in refused.err
    commit = pets.ok("resolve", "pets@v2").out.strip()
    done = pets.ok("tag", "--delete", "v2", "--force")
    assert done.out == f"tag v2 is deleted; it was pets@{commit[:12]}\n"
    assert f"dsv tag NEW-NAME pets@{commit}" in done.err
    assert pets.ok("tag", "again", f"pets@{commit}").out == f"pets@again is {commit}\n"
    assert pets("tag", "v2").code == 4
    assert pets("tag", "--delete", "v2", "nowhere").code == 3
