"""dsv branch: its text, its JSON, its exit codes."""

from __future__ import annotations

import pytest

from dsv.values.names import BranchName
from tests.kit.dsv import Dsv, Result, assert_documented, write_files
from tests.privileges import modes_count


def head(dsv: Dsv, name: str) -> str:
    return dsv.ok("resolve", name).out.strip()


def error(result: Result, code: int) -> str:
    assert (result.code, result.out) == (code, ""), result
    return result.err


def listed(dsv: Dsv) -> dict[str, tuple[object, object]]:
    items = dsv.ok("branch", "--list", "pets", "--json").json["items"]
    return {item["branch"]: (item["ahead"], item["behind"]) for item in items}


@pytest.fixture
def relabel(pets: Dsv) -> Dsv:
    """A second workspace, which follows branch `relabel`; both branches have a commit of their own."""
    other = pets.at(pets.cwd.parent / "other")
    pets.at(pets.cwd.parent).ok("clone", "pets", "other")
    write_files(other.cwd, {"labels.csv": b"dog\n"})
    other.ok("sync", "--new-branch", "relabel", "-m", "2 is a dog")
    write_files(pets.cwd, {"a.txt": b"gamma\n"})
    pets.ok("sync")
    return other


def test_a_branch_is_made_where_the_workspace_is_and_anywhere(pets: Dsv) -> None:
    first, second = head(pets, "@v1"), head(pets, "@v2")
    assert pets.ok("branch", "here").out == f"created pets@here at {second[:12]}\n"
    outside = pets.at(pets.home)
    made = outside.ok("branch", "pets@old/one", "pets@v1", "-m", "for later", "--json").json
    assert_documented("branch", made)
    assert (made["items"][0]["commit"], made["items"][0]["followed"]) == (first, False)
    assert outside.ok("branch", "pets@head").out == f"created pets@head at {second[:12]}\n"
    assert outside.ok("branch", "again", "pets@old/one~0").out == f"created pets@again at {first[:12]}\n"
    assert set(listed(pets)) == {"here", "old/one", "head", "again", "main"}
    assert "names no dataset" in error(outside("branch", "more"), 2)
    assert "commit of dogs" in error(outside("branch", "pets@more", "dogs@v1"), 2)
    assert "no dataset dogs" in error(outside("branch", "dogs@more"), 3)


def test_the_list_compares_each_branch_with_main(relabel: Dsv) -> None:
    table = relabel.ok("branch")
    assert table.lines[0].split() == ["BRANCH", "COMMIT", "AUTHOR", "AGE", "AHEAD", "BEHIND", "RULE"]
    assert table.lines[1].startswith("  main  ") and table.lines[2].startswith("* relabel  ")
    assert listed(relabel) == {"main": (None, None), "relabel": (1, 1)}
    items = relabel.ok("branch", "--json").json
    assert_documented("branch", items)
    assert [item["followed"] for item in items["items"]] == [False, True]
    relabel.ok("branch", "merged", "@main~1")
    assert listed(relabel)["merged"] == (0, 1)
    for columns in (100, 50):
        assert all(len(line) <= columns for line in relabel("branch", terminal=True, width=columns).lines)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("v1", 4),
        ("main", 4),
        ("Main", 4),
        ("V1", 4),
        ("bad name", 2),
        ("0123456789abcdef", 2),
        ("a..b", 2),
        ("\n", 2),
    ],
)
def test_names_that_a_branch_can_not_have(pets: Dsv, name: str, code: int) -> None:
    assert pets("branch", name).code == code
    assert pets.ok("branch", "fine").code == 0
    assert pets("branch", "--move", "fine", name).code == code
    assert set(listed(pets)) == {"main", "fine"}


def test_a_branch_that_is_there_moves_with_reset_alone(relabel: Dsv) -> None:
    before, first = head(relabel, "@main"), head(relabel, "@v1")
    assert "already has a branch main" in error(relabel("branch", "main", "@v1"), 4)
    moved = relabel.ok("branch", "main", "@v1", "--reset", "-m", "bad labels")
    assert moved.out == f"moved pets@main to {first[:12]} (was {before[:12]})\n"
    assert head(relabel, "@main") == first
    assert relabel.ok("branch", "main", "@v1", "--reset").out == f"pets@main is already at {first[:12]}\n"
    back = moved.err.strip().splitlines()[-1].split()[1:5]
    relabel.ok(*back)
    assert head(relabel, "@main") == before
    assert relabel("branch", "nothing", "@v1", "--reset").code == 3
    assert relabel("branch", "main", "--reset").code == 2
    assert relabel("branch", "--reset").code == 2


def test_a_reset_is_reported_in_the_workspace_that_follows_the_branch(pets: Dsv) -> None:
    result = pets.ok("branch", "main", "@v1", "--reset")
    assert "its files are unchanged" in result.err
    assert (pets.cwd / "a.txt").read_bytes() == b"beta\n"
    pets.ok("restore", "--from", "@main")
    assert (pets.cwd / "a.txt").read_bytes() == b"alpha\n"
    pets.ok("sync", "-q")


def test_nobody_resets_what_somebody_else_has_moved_since_it_was_seen_here(pets: Dsv) -> None:
    pets.at(pets.cwd.parent).ok("clone", "pets", "other")
    other = pets.at(pets.cwd.parent / "other")
    write_files(other.cwd, {"b.txt": b"b"})
    other.ok("sync")
    assert "somebody else has moved branch main" in error(pets("branch", "main", "@v1", "--reset"), 4)
    pets.ok("pull")
    pets.ok("branch", "main", "@v1", "--reset")


def test_commits_without_another_name_are_not_deleted_by_accident(relabel: Dsv) -> None:
    tip = head(relabel, "@relabel")
    above = relabel.at(relabel.cwd.parent)
    refused = error(above("branch", "--delete", "pets@relabel"), 4)
    assert "has 1 commit that no other branch and no tag has" in refused
    assert "dsv branch --restore pets@relabel" in refused
    gone = above.ok("branch", "--delete", "relabel", "pets", "--force", "--json").json
    assert_documented("branch", gone)
    assert (gone["items"][0]["commit"], gone["items"][0]["before"]) == (None, tip)
    assert set(listed(relabel)) == {"main"}
    missing = error(relabel("sync"), 3)
    assert "branch relabel of pets was deleted" in missing and "dsv branch --restore pets@relabel" in missing
    for words in (
        ["show", "@relabel"],
        ["log", "@relabel"],
        ["merge", "pets@relabel"],
        ["diff", "@v1", "@relabel~1"],
    ):
        unknown = error(relabel(*words), 3)
        assert "branch relabel of pets was deleted" in unknown and "--restore pets@relabel" in unknown
    assert above.ok("branch", "--restore", "pets@relabel").out == f"restored pets@relabel at {tip[:12]}\n"
    relabel.ok("sync", "-q")
    assert "is not deleted" in error(above("branch", "--restore", "pets@relabel"), 4)
    assert above("branch", "--restore", "pets@never").code == 3


def test_commits_that_a_tag_or_another_branch_keeps_need_no_force(relabel: Dsv) -> None:
    above = relabel.at(relabel.cwd.parent)
    above.ok("tag", "keep", "pets@relabel")
    above.ok("branch", "--delete", "pets@relabel")
    above.ok("branch", "pets@one", "pets@keep")
    above.ok("tag", "--delete", "keep", "pets", "--force")
    above.ok("branch", "pets@two", "pets@one")
    above.ok("branch", "--delete", "pets@two")
    assert above("branch", "--delete", "pets@one").code == 4
    above.ok("branch", "pets@older", "pets@one~1")  # which does not have the commit itself
    assert above("branch", "--delete", "pets@one").code == 4


def test_the_branch_that_is_followed_here_goes_only_by_force(relabel: Dsv) -> None:
    relabel.ok("tag", "keep")
    refused = error(relabel("branch", "--delete", "relabel"), 4)
    assert "follows branch relabel" in refused and "dsv switch main" in refused
    assert "this workspace followed it" in relabel.ok("branch", "--delete", "relabel", "--force").err


def test_main_stays(pets: Dsv) -> None:
    assert "cannot be deleted" in error(pets("branch", "--delete", "main", "--force"), 4)
    assert "cannot be renamed" in error(pets("branch", "--move", "main", "trunk"), 4)
    assert set(listed(pets)) == {"main"}


def test_a_branch_gets_another_name(relabel: Dsv) -> None:
    tip = head(relabel, "@relabel")
    moved = relabel.ok("branch", "--move", "relabel", "labels/2")
    assert moved.out == f"renamed pets@relabel to pets@labels/2, at {tip[:12]}\n"
    assert "this workspace now follows labels/2" in moved.err
    write_files(relabel.cwd, {"labels.csv": b"cat\n"})
    relabel.ok("sync", "-q")
    assert set(listed(relabel)) == {"main", "labels/2"}
    gone = error(relabel("resolve", "pets@relabel"), 3)
    assert "no branch or tag relabel" in gone or "renamed" in gone
    assert "is already its name" in error(relabel("branch", "--move", "labels/2", "labels/2"), 2)
    assert relabel("branch", "--move", "labels/2").code == 2
    assert relabel("branch", "--move", "labels/2", "main").code == 4
    assert relabel("branch", "--move", "pets@labels/2", "dogs@x").code == 2


def test_another_workspace_learns_the_new_name(relabel: Dsv) -> None:
    relabel.at(relabel.cwd.parent).ok("branch", "--move", "pets@relabel", "labels")
    missing = error(relabel("sync"), 3)
    assert "was renamed to labels" in missing and "dsv switch labels" in missing


def test_a_tag_may_have_the_name_of_a_deleted_branch_which_then_stays_away(pets: Dsv) -> None:
    pets.ok("branch", "spare")
    pets.ok("branch", "--delete", "spare")
    pets.ok("tag", "spare")
    assert "has a tag spare" in error(pets("branch", "--restore", "spare"), 4)
    assert "has a tag spare" in error(pets("branch", "spare"), 4)


def test_options_that_do_not_go_together(pets: Dsv) -> None:
    for arguments in (
        ["--list", "pets", "--delete", "x"],
        ["--list", "pets", "name"],
        ["--delete", "x", "pets", "more"],
        ["--delete", "pets@x", "pets"],
        ["--only-merge"],
        ["x", "--who", "ann"],
        ["-m", "a list has none"],
        ["--protect", "main", "--max-removals", "101"],
        ["--protect", "main", "--max-removals", "few"],
        ["x", "-m", "y" * 1000],
    ):
        assert pets("branch", *arguments).code == 2, arguments


def test_a_dataset_without_a_commit(dsv: Dsv) -> None:
    dsv.ok("init", "pets")
    assert dsv.ok("branch").lines[1].split()[:3] == ["*", "main", "-"]
    assert "has no commit yet" in error(dsv("branch", "relabel"), 3)
    assert dsv("branch", "--list", "dogs").code == 3


def test_without_the_right_to_write(relabel: Dsv) -> None:
    """Names can be read, and nothing is written: neither a move nor a rule."""
    store = relabel.home / ".local/share/dsv/store"
    relabel.ok("branch", "spare", "@v1")
    before = sorted(store.rglob("*"))
    folders = [each for each in (store, *before) if each.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    try:
        with modes_count():
            assert set(listed(relabel)) == {"main", "relabel", "spare"}
            for arguments in (
                ["new", "@v1"], ["main", "@v1", "--reset"], ["--delete", "spare"], ["--move", "spare", "other"],
                ["--protect", "main"],
            ):  # fmt: skip
                assert relabel("branch", *arguments).code == 8, arguments
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert sorted(store.rglob("*")) == before


def test_the_longest_name(pets: Dsv) -> None:
    name = BranchName.parse("n" * 200)
    pets.ok("branch", name)
    assert name in listed(pets)
    assert pets("branch", name + "n").code == 2


def test_merges_move_a_branch_that_only_merges_move(relabel: Dsv) -> None:
    """Other commands need --force and a reason: of a commit that is made without a workspace, too."""
    above = relabel.at(relabel.cwd.parent)
    above.ok("branch", "--protect", "pets@main", "--only-merge")
    tip = head(relabel, "@relabel")
    assert "only a merge moves it" in error(above("cherry-pick", f"pets@{tip}", "--into", "main"), 4)
    above.ok("merge", "pets@relabel", "--into", "main")
    assert "only a merge moves it" in error(above("revert", f"pets@{tip}", "--into", "main"), 4)
    assert above("revert", f"pets@{tip}", "--into", "main", "--force").code == 2
    above.ok("revert", f"pets@{tip}", "--into", "main", "--force", "-m", "not a dog")
    (move,) = above.ok("log", "--reflog", "pets@main", "-n", "1", "--json").json["moves"]
    assert (move["forced"], move["message"]) == (True, "not a dog")
    above.ok("branch", "pets@ahead", "pets@main")
    other = relabel.at(relabel.cwd)
    other.ok("switch", "ahead")
    write_files(other.cwd, {"more": b"m"})
    other.ok("sync")
    above.ok("merge", "pets@ahead", "--into", "main")  # forward to a commit that has one parent
