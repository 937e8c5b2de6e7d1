"""dsv log --reflog."""

from __future__ import annotations

import json

from tests.kit.dsv import Dsv, assert_documented, write_files


def test_every_move_of_a_branch(pets: Dsv) -> None:
    first, second = (pets.ok("resolve", name).out.strip() for name in ("@v1", "@v2"))
    pets.ok("branch", "side")
    pets.ok("branch", "side", "@v1", "--reset", "-m", "wrong\x1b[31m labels")
    pets.ok("branch", "--delete", "side")
    pets.ok("branch", "--restore", "side", "--author", "Bob <bob@lab>")
    found = pets.ok("log", "--reflog", "side", "--json").json
    assert_documented("log", found, without="items")
    moves = found["moves"]
    assert [move["action"] for move in moves] == ["restore", "delete", "reset", "create"]
    assert [move["number"] for move in moves] == [3, 2, 1, 0]
    assert [(move["before"], move["commit"]) for move in moves] == [
        (None, first), (first, None), (second, first), (None, second),
    ]  # fmt: skip
    assert [move["deleted"] for move in moves] == [False, True, False, False]
    assert (moves[0]["author"], moves[2]["message"]) == ("Bob <bob@lab>", "wrong\x1b[31m labels")
    table = pets.ok("log", "--reflog", "pets@side", "-n", "3")
    assert len(table.lines) == 4 and "\x1b" not in table.out
    assert table.lines[3].split()[-4:] == [*table.lines[3].split()[-4:-2], "wrong\\x1b[31m", "labels"]
    lines = pets.ok("log", "--reflog", "side", "--jsonl").lines
    assert [json.loads(line) for line in lines] == moves
    for columns in (100, 50):
        shown = pets("log", "--reflog", "side", terminal=True, width=columns)
        assert shown.code == 0 and all(len(line) <= columns for line in shown.lines)


def test_syncs_have_their_message_and_forced_moves_are_marked(pets: Dsv) -> None:
    pets.ok("branch", "--protect", "main")
    pets.ok("branch", "main", "@v1", "--reset", "--force", "-m", "all wrong")
    moves = pets.ok("log", "--reflog", "main", "--json").json["moves"]
    assert [(move["action"], move["forced"], move["message"]) for move in moves[:2]] == [
        ("reset", True, "all wrong"), ("protect", False, "only forward"),
    ]  # fmt: skip
    assert moves[-1] == {**moves[-1], "action": "init", "commit": None, "before": None}
    pets.ok("branch", "--unprotect", "main")
    pets.ok("restore", "--from", "@main", "--force")
    write_files(pets.cwd, {"b": b"b"})
    pets.ok("sync", "-m", "added b")
    (last,) = pets.ok("log", "--reflog", "main", "-n", "1", "--json").json["moves"]
    assert (last["action"], last["message"]) == ("sync", "added b")


def test_what_a_list_of_moves_does_not_take(pets: Dsv) -> None:
    for arguments in (["--graph"], ["@v1"], ["--stat"], ["--since", "1d"], ["--oneline"], ["--offline"]):
        assert pets("log", "--reflog", "main", *arguments).code == 2, arguments
    assert pets("log", "--reflog", "nothing").code == 3
    assert pets("log", "--reflog", "dogs@main").code == 3
    assert pets("log", "--reflog", "a..b").code == 2
    assert pets("log", "--reflog", "main", "--json", "--jsonl").code == 2
