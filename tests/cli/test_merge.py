from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.dsv import Dsv, made_once, write_files


@pytest.fixture
@made_once
def forked(dsv: Dsv) -> Dsv:
    """Workspaces `main` (where this is) and `side`, whose branches have a commit each after their common one."""
    main, side = dsv.at(dsv.cwd / "main"), dsv.at(dsv.cwd / "side")
    main.cwd.mkdir()
    write_files(main.cwd, {"a": b"\0", "b": b"\0", "t.txt": b"1\n2\n3\n4\n5\n"})
    main.ok("init", "pets")
    main.ok("sync", "-m", "first")
    dsv.ok("clone", "pets", "side")
    write_files(side.cwd, {"b": b"\0side", "t.txt": b"1\n2\n3\n4\nfive\n", "new": b"n"})
    side.ok("sync", "--new-branch", "side", "-m", "relabel")
    write_files(main.cwd, {"a": b"\0main", "t.txt": b"one\n2\n3\n4\n5\n"})
    main.ok("sync", "-m", "second")
    return main


def test_a_merge_updates_the_workspace(forked: Dsv) -> None:
    done = forked.ok("merge", "side")
    assert "pets@main merged with side" in done.out and "1 added, 2 changed, 0 removed, 1 merged" in done.out
    assert "updated this workspace: 1 file added, 2 replaced, 0 removed" in done.err
    assert (forked.cwd / "new").read_bytes() == b"n"
    assert forked.ok("status", "--json").json["position"] == "up-to-date"
    assert (forked.cwd / "t.txt").read_bytes() == b"one\n2\n3\n4\nfive\n"
    assert forked.ok("merge", "side").out == "pets@main already has everything of side\n"


def test_a_local_change_in_the_way_stays_and_the_workspace_is_left_behind(forked: Dsv) -> None:
    write_files(forked.cwd, {"b": b"\0mine", "beside": b"b"})
    done = forked.ok("merge", "side")
    assert "the commit is published, but this workspace was not updated" in done.err
    assert "'b' was changed here, and changed there" in done.err and "dsv pull --ours PATH" in done.err
    assert (forked.cwd / "b").read_bytes() == b"\0mine" and not (forked.cwd / "new").exists()
    forked.ok("pull", "--ours", "b")
    assert forked.ok("status", "--json").json["items"] == [
        {"path": "beside", "change": "added"},
        {"path": "b", "change": "changed"},
    ]


def test_json_says_that_the_workspace_was_not_updated(forked: Dsv) -> None:
    write_files(forked.cwd, {"b": b"\0mine"})
    found = forked.ok("merge", "side", "--json").json["workspace"]
    assert found["status"] == "not-updated" and "'b' was changed here" in found["reason"]
    forked.ok("restore", "--force")
    forked.ok("pull")
    write_files(forked.cwd, {"b": b"\0again"})
    assert (
        forked.ok("revert", "main", "--mainline", "1", "--json").json["workspace"]["status"] == "not-updated"
    )


def test_a_workspace_of_another_branch_or_dataset_is_left_alone(forked: Dsv) -> None:
    forked.ok("switch", "side")
    done = forked.ok("merge", "side", "--into", "main")
    assert "workspace" not in done.err
    assert forked.ok("status", "--json").json["branch"] == "side" and (forked.cwd / "a").read_bytes() == b"\0"


def test_a_merge_without_a_workspace(forked: Dsv, dsv: Dsv) -> None:
    outside = dsv.at(dsv.cwd)
    tried = outside.ok("merge", "pets@side", "--dry-run", "--json").json
    assert (tried["commit"], tried["outcome"], tried["added"]) == (None, "merged", 1)
    done = outside.ok("merge", "pets@main", "--into", "side", "-m", "why", "--json").json
    assert done["branch"] == "side" and done["conflicts"] == []
    assert tried["workspace"] is done["workspace"] is None
    assert json.loads(outside.ok("resolve", "pets@side", "--json").out)["commit"] == done["commit"]
    assert outside.ok("merge", "pets@side", "--json").json["outcome"] == "fast-forward"
    plain = outside("merge", "side")
    assert plain.code == 2 and "@side names no dataset, and this is not a workspace" in plain.err
    assert "write DATASET@side; dsv datasets lists the names" in plain.err


def test_in_another_store_a_merge_is_on_main(forked: Dsv) -> None:
    """The branch of a workspace says nothing about a dataset of the same name."""
    side, there = forked.at(forked.cwd.parent / "side"), str(forked.home / "there")
    side.ok("copy", "pets", "--to", there, "--create")
    done = side.ok("merge", "pets@side", "--store", there, "--json").json
    assert (done["branch"], done["outcome"], done["workspace"]) == ("main", "merged", None)
    assert side.ok("merge", "pets@main", "--dry-run", "--json").json["branch"] == "side"


def test_conflicts_are_listed_with_exit_code_4(forked: Dsv) -> None:
    side = forked.at(forked.cwd.parent / "side")
    write_files(side.cwd, {"a": b"\0side", "bad\n\x1b[31m": b"\0s"})
    side.ok("sync")
    write_files(forked.cwd, {"bad\n\x1b[31m": b"\0m"})
    forked.ok("sync")
    before = forked.ok("resolve", "@main").out
    told = forked("merge", "side")
    assert (
        told.code == 4
        and "stopped at 2 conflicts, and changed nothing" in told.err
        and "--theirs" in told.err
    )
    assert "\x1b" not in told.err and "bad\\n" in told.err
    listed = forked("merge", "side", "--json")
    assert listed.code == 4
    assert [one["path"] for one in listed.json["conflicts"]] == ["a", "bad\n\x1b[31m"]
    assert listed.json["conflicts"][0]["ours"]["kind"] == "file"
    assert forked.ok("resolve", "@main").out == before
    assert forked("merge", "side", "--theirs", "a").code == 4
    forked.ok("merge", "side", "--theirs", "a", "--both", ".")
    names = forked.ok("ls", "pets@main").out
    assert "theirs" in names
    assert forked.ok("cat", "pets@main:a").out == "\0side"


def test_a_path_that_settles_nothing_is_reported(forked: Dsv) -> None:
    """By every command that takes one, whether it succeeds or not, and also with --quiet."""
    side = forked.at(forked.cwd.parent / "side")
    write_files(side.cwd, {"a": b"\0side"})
    side.ok("sync")
    refused = forked("merge", "side", "--theirs", "aa")
    assert refused.code == 4 and "warning: a side was chosen for 'aa', but no conflict" in refused.err
    told = forked("merge", "side", "--theirs", "aa", "--json")
    assert told.code == 4 and told.json["without_effect"] == ["aa"]
    write_files(side.cwd, {"b": b"\0again"})
    assert "'aa'" in side.ok("pull", "--theirs", "aa", "-q").err
    done = forked.ok("merge", "side", "--theirs", "a", "--both", "t.txt", "--json")
    assert done.json["without_effect"] == ["t.txt"] and "'t.txt'" in done.err
    assert "'new'" in forked.ok("revert", "main", "--mainline", "1", "--ours", "new").err
    assert "'new'" in forked.ok("cherry-pick", "main~2", "--ours", "new", "--", "a").err


def test_pull_lists_conflicts_for_programs_and_keeps_both(forked: Dsv) -> None:
    other = forked.at(forked.cwd.parent / "other")
    forked.at(forked.cwd.parent).ok("clone", "pets", "other")
    write_files(forked.cwd, {"a": b"\0theirs", "sub/x": b"\0theirs"})
    forked.ok("sync")
    write_files(other.cwd, {"a": b"\0mine", "sub/x": b"\0mine"})
    listed = other("pull", "--json")
    assert listed.code == 4 and listed.json["commit"] is None
    assert [(one["path"], one["kind"]) for one in listed.json["conflicts"]] == [
        ("a", "both-changed"),
        ("sub/x", "both-added"),
    ]
    assert {one["theirs"]["size"] for one in listed.json["conflicts"]} == {7}
    assert "--both PATH keeps both" in other("pull").err
    done = other.at(other.cwd / "sub").ok("pull", "--both", "x", "--theirs", "../a", "--json").json
    assert (done["created"], done["conflicts"], done["without_effect"]) == (1, [], [])
    assert (other.cwd / "a").read_bytes() == b"\0theirs"
    assert (other.cwd / "sub/x.theirs").read_bytes() == b"\0theirs"
    assert other("pull", "--both", "a", "--ours", "a").code == 2


def test_options_that_exclude_each_other_are_refused(forked: Dsv) -> None:
    both = forked("merge", "side", "--ours", "a", "--theirs", "a/")
    assert both.code == 2 and "--ours and --theirs both name a" in both.err
    assert forked("merge", "side:a").code == 2
    assert forked("merge", "nothing").code == 3
    assert forked("merge", "side", "--into", "nothing").code == 3
    assert forked("merge", "side", "--ours", "").code == 2


def test_a_commit_is_reverted_and_applied_again(forked: Dsv) -> None:
    undone = forked.ok("revert", "main")
    assert "reverted on pets@main" in undone.out
    assert "updated this workspace: 0 files added, 2 replaced, 0 removed" in undone.err
    assert 'revert "second"' in forked.ok("log", "--oneline").out
    assert (forked.cwd / "a").read_bytes() == b"\0"
    again = forked.ok("cherry-pick", "main~1", "--", "a").out
    assert "applied on pets@main" in again and "0 added, 1 changed" in again
    assert (forked.cwd / "a").read_bytes() == b"\0main"
    assert (forked.cwd / "t.txt").read_bytes() == b"1\n2\n3\n4\n5\n"
    assert "nothing to do" in forked.ok("cherry-pick", "main~2", "--", "a").out
    assert forked("cherry-pick", "side", "--", "nowhere").code == 3


def test_a_merge_commit_needs_its_mainline(forked: Dsv) -> None:
    forked.ok("merge", "side")
    asked = forked("revert", "main")
    assert asked.code == 2 and "--mainline N" in asked.err and "1 is" in asked.err
    assert forked("revert", "main", "--mainline", "3").code == 2
    forked.ok("revert", "main", "--mainline", "1")
    assert forked.ok("cat", "pets@main:t.txt").out == "one\n2\n3\n4\n5\n"


def test_a_revert_of_what_was_changed_again_is_a_conflict(forked: Dsv) -> None:
    write_files(forked.cwd, {"a": b"\0again"})
    forked.ok("sync")
    told = forked("revert", "main~1", "--json")
    assert told.code == 4 and [one["path"] for one in told.json["conflicts"]] == ["a"]
    done = forked.ok("revert", "main~1", "--ours", "a", "--json").json
    assert done["any_change"] and done["changed"] == 1
    assert done["workspace"] == {"status": "updated", "reason": None}


def test_a_read_only_store_is_reported_before_anything_is_done(forked: Dsv, dsv: Dsv) -> None:
    store = next(path for path in Path(dsv.home).rglob("refs")).parent
    folders = [store, *(path for path in store.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        tried = forked.ok("merge", "side", "--dry-run")
        assert "would be merged" in tried.out
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_a_dataset_without_a_commit(dsv: Dsv) -> None:
    dsv.ok("init", "empty")
    assert dsv("merge", "main").code == 3
    assert dsv("revert", "main").code == 3


def test_merged_and_settled_paths_are_reported(forked: Dsv, tmp_path: Path) -> None:
    side = forked.at(forked.cwd.parent / "side")
    write_files(side.cwd, {"t.txt": b"uno\n2\n3\n4\nfive\n"})
    side.ok("sync")
    refused = forked("merge", "side")
    assert refused.code == 4 and "both changed the same lines" in refused.err
    settled = forked.ok("merge", "side", "--theirs", "t.txt", "--dry-run", "--json").json["settled"]
    assert settled == [
        {
            "path": "t.txt", "choice": "theirs", "from_theirs": ["line 5"], "from_theirs_count": 1,
            "settled": ["line 1"], "settled_count": 1,
        }
    ]  # fmt: skip
    for wrong, code in (("t.txt", 2), ("t.txt=", 2), (f"t.txt={tmp_path}/none", 3)):
        assert forked("merge", "side", "--resolved", wrong).code == code
    file = tmp_path / "mine=resolved"
    file.write_bytes(b"by hand\n")
    assert forked("merge", "side", "--resolved", f"t.txt={file}", "--ours", "t.txt").code == 2
    done = forked.ok("merge", "side", "--resolved", f"t.txt={file}")
    assert "  't.txt': from a resolved file\n" in done.out
    assert (forked.cwd / "t.txt").read_bytes() == b"by hand\n"
    assert "'t.txt': from a resolved file" in forked.ok("log", "-n", "1").out


def test_a_pull_names_the_lines_that_it_merged(forked: Dsv) -> None:
    forked.ok("switch", "side")
    write_files(forked.cwd, {"t.txt": b"one\n2\n3\n4\nfive\n"})
    side = forked.at(forked.cwd.parent / "side")
    write_files(side.cwd, {"t.txt": b"1\n2\n3\n4\nfive\nsix\n"})
    side.ok("sync")
    assert "  't.txt': line 6 from theirs\n" in forked.ok("pull").out
