"""Tracking files: what stores last said, as every reader of them finds it."""

from __future__ import annotations

import json
from pathlib import Path

from dsv.format.records import BranchLimits, RefEntry, TagDeleted, TagValue
from dsv.repo.refs.branches import Head, Refs
from dsv.repo.tracking import Answers, Tracked, Tracking, file_of, read, tracked_datasets
from dsv.stores.memory import MemoryStore
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, BranchName, DatasetName, TagName

SCANS = DatasetName.parse("team/scans")
V1 = TagName.parse("v1")
FIRST, SECOND = CommitId(b"1" * 32), CommitId(b"2" * 32)


def entry(commit: CommitId) -> RefEntry:
    return RefEntry(commit, False, Nonce.random(), 0, "ann", "sync")


def move(refs: Refs, branch: BranchName, commit: CommitId, after: Head | None = None) -> Head:
    moved = refs.move(SCANS, branch, after, entry(commit))
    assert isinstance(moved, Head)
    return moved


def test_a_tag_that_another_has_deleted_is_gone_at_the_next_question(tmp_path: Path) -> None:
    store = MemoryStore()
    mine, theirs = Refs(store), Refs(store)
    mine.set_tag(SCANS, V1, TagValue(FIRST, Nonce.random(), 0, "ann", ""))
    mine.answers.write_all(tmp_path, "", 1000)
    path = file_of(tmp_path, SCANS)
    known = read(path).tag(V1)
    assert known is not None and (known.commit_id, known.time_ms) == (FIRST, 1000)
    theirs.delete_tag(SCANS, V1, TagDeleted(Nonce.random(), 0, "ben", ""))
    for ask in (lambda refs: refs.tag(SCANS, V1), lambda refs: refs.tags(SCANS)):
        again = Refs(store)
        ask(again)
        again.answers.write_all(tmp_path, "", 2000)
        found = read(path)
        assert found.tag(V1) is None and found.there("tags") == {}
        assert found.newest(Tracking(tags={"v1": known})).tag(V1) is None, "the older answer does not count"


def test_a_branch_that_no_listing_has_any_more_keeps_the_proof_of_its_move(tmp_path: Path) -> None:
    refs = Refs(MemoryStore())
    head = move(refs, MAIN, FIRST)
    head = move(refs, MAIN, SECOND, head)
    path = tmp_path / "tracking.json"
    refs.answers.write(path, SCANS, "place", 1)
    put_back = Refs(MemoryStore())
    assert put_back.heads(SCANS) == []
    put_back.answers.write(path, SCANS, "place", 2)
    assert read(path).branches == {"main": Tracked(2, str(SECOND), True, 1, "place", None)}
    assert read(path).branch(MAIN) is None


def test_an_answer_without_the_rule_keeps_the_rule(tmp_path: Path) -> None:
    path, answers = tmp_path / "tracking.json", Answers()
    answers.add_branch(SCANS, MAIN, entry(FIRST), 0, BranchLimits(only_merge=True))
    answers.write(path, SCANS, "place", 1)
    refs = Refs(MemoryStore())
    move(refs, MAIN, SECOND)  # it was listed nowhere, so there may be a rule
    refs.answers.write(path, SCANS, "place", 2)
    assert read(path).branches["main"] == Tracked(
        2, str(SECOND), False, 0, "place", BranchLimits(only_merge=True)
    )


def test_a_listing_of_datasets_is_the_whole_truth(tmp_path: Path) -> None:
    other = DatasetName.parse("other")
    for names in ([SCANS, other], [other]):
        answers = Answers()
        answers.list_datasets(names)
        answers.write_all(tmp_path, "", 1)
        assert sorted(tracked_datasets(tmp_path)) == sorted(names)


def test_what_somebody_else_wrote_into_a_shared_file_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "tracking.json"
    good = {"time_ms": 1, "commit": str(FIRST)}
    names = {"main": good, "../up": good, "": good, "a//b": good}
    path.write_text(json.dumps({"branches": names, "tags": {**names, "v1": {"time_ms": 1}}}))
    found = read(path)
    assert list(found.there("branches")) == list(found.there("tags")) == ["main"]
    assert found.tag(V1) is None and found.branch(MAIN) is not None
