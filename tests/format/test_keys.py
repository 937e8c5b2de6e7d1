from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.format import keys
from dsv.values.ids import CommitId, ErasureId, IndexId, PackId, SessionId
from dsv.values.names import MAIN, BranchName, DatasetName, TagName

LUNGS = DatasetName.parse("team-a/lungs")
PACK = PackId(bytes(range(16)))
COMMIT = CommitId(bytes(range(32)))
SEQUENCES = st.integers(0, (1 << 64) - 1)


def test_the_layout_of_a_store() -> None:
    """The very text of every key: other readers depend on it."""
    session = SessionId(bytes(16))
    assert keys.pack_key(PACK) == "packs/00/000102030405060708090a0b0c0d0e0f"
    assert keys.index_key(IndexId(bytes(16))) == "index/" + "0" * 32
    assert keys.commit_key(COMMIT) == "commits/" + COMMIT.hex()
    assert keys.locator_key(COMMIT) == "locators/" + COMMIT.hex()
    assert keys.format_key(0) == "format/0000000000000000"
    assert keys.branch_key(LUNGS, MAIN, 0) == "refs/team-a%2Flungs/branches/main/ffffffffffffffff"
    assert (
        keys.branch_key(LUNGS, BranchName.parse("x/y"), 16)
        == "refs/team-a%2Flungs/branches/x%2Fy/ffffffffffffffef"
    )
    assert keys.tag_key(LUNGS, TagName.parse("v1")) == "refs/team-a%2Flungs/tags/v1/value"
    assert (
        keys.tag_key(LUNGS, TagName.parse("v1")) + keys.TAG_COPY == "refs/team-a%2Flungs/tags/v1/value-copy"
    )
    assert keys.tag_deleted_key(LUNGS, TagName.parse("v1")) == "refs/team-a%2Flungs/tags/v1/deleted"
    assert keys.expiry_key(LUNGS, 1) == "refs/team-a%2Flungs/expired/fffffffffffffffe"
    assert keys.session_key(session, "open") == f"sessions/{'0' * 32}/open"
    assert keys.session_beat_key(session, 10) == f"sessions/{'0' * 32}/beat-0000000a"
    assert keys.session_key(session, "verdict") == f"sessions/{'0' * 32}/verdict"
    assert keys.session_key(session, "closed") == f"sessions/{'0' * 32}/closed"
    assert keys.gc_key(1, "condemned") == "gc/0000000000000001/condemned"
    assert keys.gc_key(1, "decision") == "gc/0000000000000001/decision"
    assert keys.gc_key(1, "done") == "gc/0000000000000001/done"
    assert keys.gc_verified_key(10) == "gc/verified-000000000000000a"
    assert keys.pack_search_prefix("0") == "packs/0" and keys.pack_search_prefix("0102") == "packs/01/0102"
    assert keys.gc_damage_key(10) == "gc/damage-000000000000000a"
    erasure = ErasureId(bytes(16))
    assert keys.erasure_key(erasure) == f"erased/{'0' * 32}"
    assert keys.parse_erasure_key(keys.erasure_key(erasure)) == erasure
    obeyed = keys.obeyed_key(erasure, "1" * 32)
    assert keys.parse_obeyed_key(obeyed) == (erasure, "1" * 32) and keys.parse_erasure_key(obeyed) is None
    assert keys.run_key(LUNGS, "r1", "start") == "runs/team-a%2Flungs/r1/start"


@given(SEQUENCES, SEQUENCES)
def test_a_later_move_has_a_smaller_key(one: int, other: int) -> None:
    first, second = keys.branch_key(LUNGS, MAIN, one), keys.branch_key(LUNGS, MAIN, other)
    assert (one > other) == (first < second)
    assert keys.parse_branch_key(first) == (LUNGS, MAIN, one)
    assert (one > other) == (keys.expiry_key(LUNGS, one) < keys.expiry_key(LUNGS, other))
    assert keys.parse_expiry_key(keys.expiry_key(LUNGS, one)) == (LUNGS, one)


@given(SEQUENCES)
def test_what_is_built_is_parsed(number: int) -> None:
    assert keys.parse_format_key(keys.format_key(number)) == number
    assert keys.parse_gc_damage_key(keys.gc_damage_key(number)) == number
    assert keys.parse_gc_verified_key(keys.gc_verified_key(number)) == number
    assert keys.parse_gc_key(keys.gc_key(number, "condemned")) == (number, "condemned")
    assert keys.parse_gc_key(keys.gc_key(number, "decision")) == (number, "decision")
    assert keys.parse_gc_key(keys.gc_key(number, "done")) == (number, "done")


def test_ids_are_parsed() -> None:
    assert keys.parse_pack_key(keys.pack_key(PACK)) == PACK
    assert keys.parse_commit_key(keys.commit_key(COMMIT)) == COMMIT
    assert keys.parse_locator_key(keys.locator_key(COMMIT)) == COMMIT
    assert keys.parse_index_key(keys.index_key(IndexId(bytes(16)))) == bytes(16)
    assert keys.parse_run_key(keys.run_key(LUNGS, "r1", "start")) == (LUNGS, "r1", "start")


@pytest.mark.parametrize(
    "key",
    [
        "",
        "packs/",
        "packs/zz/00",
        "packs/01/000102030405060708090a0b0c0d0e0f",
        "packs/00/000102030405060708090A0B0C0D0E0F",
        "index/00",
        "refs/a/branches/main/xyz",
        "refs/a//main/ffffffffffffffff",
        "refs/../branches/main/ffffffffffffffff",
        "refs/chest/branches/main/FFFFFFFFFFFFFFFF",
        "refs/chest/tags/v1/other",
        "refs/chest/branches/main/0-rule-xyz",
        "refs/chest/branches/main/1-rule-ffffffffffffffff",
        "refs/chest/branches/0-rule-ffffffffffffffff",
        "refs/chest/expired/0",
        "refs/../expired/ffffffffffffffff",
        "format/0",
        "gc/1/condemned",
        "sessions/00/open",
        "runs/chest/../x",
        "README.txt",
        "refs/a%2fb/branches/main/ffffffffffffffff",
        f"sessions/{'0' * 32}/beat-x",
        f"sessions/{'0' * 32}/open-1",
        f"sessions/{'0' * 32}/beat",
    ],
)
def test_foreign_keys_are_ignored(key: str) -> None:
    parsers = (
        keys.parse_pack_key,
        keys.parse_index_key,
        keys.parse_commit_key,
        keys.parse_locator_key,
        keys.parse_format_key,
        keys.parse_branch_key,
        keys.parse_branch_rule_key,
        keys.parse_expiry_key,
        keys.parse_gc_key,
        keys.parse_run_key,
        keys.parse_erasure_key,
        keys.parse_obeyed_key,
    )
    assert [parse(key) for parse in parsers] == [None] * len(parsers)


@pytest.mark.parametrize(("run", "part"), [("../x", "a"), ("r", "a/b"), ("", "a"), ("r", ""), (".r", "a")])
def test_a_run_key_stays_in_its_place(run: str, part: str) -> None:
    with pytest.raises(ValueError, match="component"):
        keys.run_key(LUNGS, run, part)


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_sequence_numbers_have_64_bits(number: int) -> None:
    with pytest.raises(ValueError, match="sequence"):
        keys.branch_key(LUNGS, MAIN, number)


@given(st.text(max_size=60))
def test_no_text_breaks_a_parser(text: str) -> None:
    for prefix in ("", "refs/", "refs/a/branches/", "packs/", "sessions/", "runs/"):
        key = prefix + text
        parsed = keys.parse_branch_key(key)
        assert parsed is None or keys.branch_key(*parsed) == key
        rule = keys.parse_branch_rule_key(key)
        assert rule is None or keys.branch_rule_key(*rule) == key
        pack = keys.parse_pack_key(key)
        assert pack is None or keys.pack_key(pack) == key
