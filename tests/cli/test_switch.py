"""dsv switch, and --force of what moves a protected branch: text, JSON, exit codes."""

from __future__ import annotations

from tests.kit.dsv import Dsv, assert_documented, write_files
from tests.privileges import modes_count


def test_there_and_back(pets: Dsv) -> None:
    made = pets.ok("switch", "relabel", "--create", "--json").json
    assert_documented("switch", made)
    assert (made["made"], made["any_change"], made["before_branch"]) == (True, True, "main")
    write_files(pets.cwd, {"a.txt": b"gamma\n", "mine": b"mine"})
    pets.ok("sync", "a.txt")
    back = pets.ok("switch", "@main")
    assert back.out.startswith("switched to pets@main, at ")
    assert back.err == "0 files added, 1 replaced, 0 removed\n"
    assert (pets.cwd / "a.txt").read_bytes() == b"beta\n" and (pets.cwd / "mine").exists()
    assert pets.ok("switch", "pets@main").out.startswith("this workspace already follows pets@main, at ")
    write_files(pets.cwd, {"a.txt": b"in the way\n"})
    refused = pets("switch", "relabel")
    assert (refused.code, refused.out) == (4, "") and "a.txt" in refused.err
    assert pets.ok("branch").lines[1].startswith("* main")
    for arguments, code in (
        (["v1"], 3), (["nothing"], 3), (["dogs@main"], 2), (["a..b"], 2), ([], 2), (["relabel", "--create"], 4),
        (["v1", "--create"], 4),
    ):  # fmt: skip
        assert pets("switch", *arguments).code == code, arguments
    assert pets.at(pets.home)("switch", "main").code == 3


def test_a_branch_that_is_only_read_can_be_followed(pets: Dsv) -> None:
    pets.ok("branch", "old", "@v1")
    store = pets.home / ".local/share/dsv/store"
    folders = [each for each in (store, *store.rglob("*")) if each.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    try:
        with modes_count():
            pets.ok("switch", "old")
            assert pets("switch", "new", "--create").code == 8
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert (pets.cwd / "a.txt").read_bytes() == b"alpha\n"


def test_a_protected_branch_moves_by_force_with_a_reason(pets: Dsv) -> None:
    done = pets.ok("branch", "--protect", "main", "--who", "bob@lab", "--max-removals", "50")
    assert done.out == "pets@main is protected: only bob@lab; at most 50 % removed\n"
    assert "older versions of dsv, without protected branches" in done.err
    again = pets.ok("branch", "--protect", "main", "--who", "bob@lab", "--max-removals", "50", "--json").json
    assert_documented("branch", again)
    assert again["items"][0]["protected"] == {"only_merge": False, "who": ["bob@lab"], "max_removals": 50}
    assert "only bob@lab" in pets.ok("branch").lines[1]
    write_files(pets.cwd, {"a.txt": b"gamma\n"})
    packs = sorted((pets.home / ".local/share/dsv/store/packs").rglob("*"))
    refused = pets("sync")
    assert refused.code == 4 and "is not among those who may move it, bob@lab" in refused.err
    assert (
        sorted((pets.home / ".local/share/dsv/store/packs").rglob("*")) == packs
    )  # nothing was uploaded in vain
    assert "--force -m REASON" in refused.err
    assert pets("rollback", "@main~1").code == 4
    assert pets("sync", "--force").code == 2
    assert pets("rollback", "@main~1", "--force", "-m", " ").code == 2
    pets.ok("sync", "--force", "-m", "bob is away")
    pets.ok("rollback", "@main~1", "--force", "-m", "bob is still away")
    pets.ok("sync", "--author", "bob@lab")
    assert pets("branch", "--unprotect", "main").code == 4
    assert (
        pets.ok("branch", "--unprotect", "main", "--author", "Bob <bob@lab>").out
        == "pets@main is not protected\n"
    )
    write_files(pets.cwd, {"a.txt": b"delta\n"})
    pets.ok("sync")
