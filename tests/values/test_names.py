from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import UsageError
from dsv.values.names import BranchName, DatasetName, Rev, TagName, Target, parse_data

GOOD = [
    "chest-xray",
    "team-a/lungs",
    "a1",
    "9",
    "v1.0",
    "A_b-c.d",
    "a/b/c",
    "x" * 200,
    "deadbee",
    "g" * 64,
    "f" * 65,
]
BAD = [
    "",
    "/",
    "a/",
    "/a",
    "a//b",
    "a..b",
    "..",
    ".a",
    "-a",
    "_a",
    "a b",
    "a:b",
    "a@b",
    "a~b",
    "ä",
    "a\n",
    "a%2Fb",
    "x" * 201,
    "a/" * 66 + "aaa",
    "deadbeef",
    "DEADBEEF",
    "0" * 64,
    "12345678",
    "a/.b",
    "a/-b",
]


@pytest.mark.parametrize("kind", [DatasetName, BranchName, TagName])
@pytest.mark.parametrize("text", GOOD)
def test_good_names(kind: type, text: str) -> None:
    name = kind.parse(text)
    assert name == text and isinstance(name, kind)
    assert "/" not in name.component and len(name.component) <= 200
    assert kind.from_component(name.component) == name


@pytest.mark.parametrize("text", BAD)
def test_bad_names(text: str) -> None:
    for kind in (DatasetName, BranchName, TagName):
        with pytest.raises(UsageError):
            kind.parse(text)


def test_the_limit_counts_the_encoded_bytes() -> None:
    assert DatasetName.parse("a/" + "b" * 196)
    with pytest.raises(UsageError, match="200 bytes"):
        DatasetName.parse("a/" + "b" * 197)


def test_one_letter_is_a_name() -> None:
    assert BranchName.parse("C") == DatasetName.parse("C") == "C"
    assert Target.parse("C@v1:x") == Target(DatasetName.parse("C"), Rev.parse("v1"), b"x")


@pytest.mark.parametrize("text", ["a/b", "a%2fb", "a%2F", "a%252Fb"])
def test_a_component_has_one_spelling(text: str) -> None:
    with pytest.raises(UsageError):
        DatasetName.from_component(text)


@pytest.mark.parametrize(
    ("text", "dataset", "rev", "path"),
    [
        ("", None, None, None),
        ("chest", "chest", None, None),
        ("chest@v1", "chest", Rev("v1"), None),
        ("chest@main~2", "chest", Rev("main", 2), None),
        ("@deadbeef", None, Rev("deadbeef"), None),
        ("@DEADBEEF~10", None, Rev("deadbeef", 10), None),
        ("@team/x", None, Rev("team/x"), None),
        (":train/", None, None, b"train/"),
        ("chest:", "chest", None, b""),
        ("a1@v1:p@q:r", "a1", Rev("v1"), b"p@q:r"),
        (":a@b", None, None, b"a@b"),
        (":\udcff", None, None, b"\xff"),
    ],
)
def test_targets(text: str, dataset: str | None, rev: Rev | None, path: bytes | None) -> None:
    target = Target.parse(text)
    assert (target.dataset, target.rev, target.path) == (dataset, rev, path)
    assert Target.parse(str(target)) == target


@pytest.mark.parametrize(
    "text",
    [
        "chest@",
        "@",
        "a1@b@c",
        "@v1~",
        "@v1~x",
        "@v1~1~2",
        "@~1",
        "@..",
        "@v1~1234567",
        "a b",
        "chest@:x",
        "x/",
    ],
)
def test_bad_targets(text: str) -> None:
    with pytest.raises(UsageError):
        Target.parse(text)


def test_hex_as_dataset_hints_at_the_commit() -> None:
    with pytest.raises(UsageError) as caught:
        Target.parse("deadbeef")
    assert caught.value.hint is not None and "@deadbeef" in caught.value.hint


def test_a_revision_knows_whether_it_is_a_commit() -> None:
    assert Rev.parse("ABCDEF12").commit_prefix == "abcdef12"
    assert Rev.parse("abcdef1").commit_prefix is None
    assert Rev.parse("main").commit_prefix is None


@given(st.text(max_size=30))
def test_any_text_parses_to_what_prints_the_same_or_is_a_usage_error(text: str) -> None:
    try:
        target = Target.parse(text)
    except UsageError:
        return
    assert Target.parse(str(target)) == target


def test_each_data_has_a_variable_of_its_own() -> None:
    assert list(parse_data(["a=x@v1", "b=x@v1"])) == ["a", "b"]
    for name in ("a-b", "a.b", "A_b"):
        with pytest.raises(UsageError, match="two --data give the variable DSV_DATA_A_B"):
            parse_data(["a-b=x@v1", f"{name}=x@v2"])
