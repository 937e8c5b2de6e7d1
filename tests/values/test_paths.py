from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.values.paths import (
    check_joined,
    check_path,
    check_target,
    disorder,
    fold_clashes,
    found_otherwise,
    link_escapes,
    show,
    sort_key,
)
from tests.format.strategies import components, path_lists, paths

BAD = [
    b"",
    b"/",
    b"/etc/passwd",
    b"../../etc/passwd",
    b"a/../b",
    b"..",
    b".",
    b"a/.",
    b"./a",
    b"a//b",
    b"a/",
    b"a\0b",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"x" * 256,
    b"a/" + b"x" * 256,
    b"a/" * 2048 + b"b",
    b".git",
    b"a/.GiT/b",
    b".dsv/x",
    b"a/.DSV",
    ".dſv".encode(),
    "a/.DſV/b".encode(),
]
GOOD = [
    b"a",
    b"...",
    b"..a",
    b".gitignore",
    b".git2",
    b"a.git",
    b".dsvignore",
    b"x" * 255,
    b"a/" * 2047 + b"b",
    b"a b/\n",
    "é/e\u0301".encode(),
    b"-rf",
    b"CON",
    b"a\\b",
    b"\x01",
    "\U0010ffff".encode(),
    "ſ".encode(),
]


@pytest.mark.parametrize("path", BAD)
def test_bad_paths(path: bytes) -> None:
    with pytest.raises(ValueError):
        check_path(path)
    # A NUL in the middle of a joined blob parts two paths, which are good ones then.
    if path != b"a\0b":
        with pytest.raises(ValueError):
            check_joined(b"good\0" + path + b"\0good2")


@pytest.mark.parametrize("path", GOOD)
def test_good_paths(path: bytes) -> None:
    check_path(path)
    assert check_joined(b"first\0" + path) == [b"first", path]


@given(st.lists(paths | st.sampled_from(BAD) | st.binary(max_size=6), min_size=1, max_size=5))
def test_the_fast_check_says_what_the_plain_one_says(found: list[bytes]) -> None:
    found = [path.replace(b"\0", b"") for path in found]
    try:
        for path in found:
            check_path(path)
        good = True
    except ValueError:
        good = False
    try:
        assert check_joined(b"\0".join(found)) == found
        assert good
    except ValueError:
        assert not good


def test_the_message_names_the_path_and_is_printable() -> None:
    with pytest.raises(ValueError, match=r"'evil\\x1b\[2J/\.\.'.*'\.\.'"):
        check_joined(b"a\0evil\x1b[2J/..")
    assert len(show(b"x" * 4096)) == 200


@given(path_lists)
def test_tree_order_is_in_order(found: list[bytes]) -> None:
    assert disorder(b"\0".join(found)) is None


@given(st.lists(paths, min_size=2, max_size=6))
def test_disorder_is_what_the_definition_says(found: list[bytes]) -> None:
    def follows(before: bytes, after: bytes) -> bool:
        return sort_key(before) < sort_key(after) and not after.startswith(before + b"/")

    expected = next((at for at in range(1, len(found)) if not follows(found[at - 1], found[at])), None)
    assert disorder(b"\0".join(found)) == expected


@pytest.mark.parametrize(
    ("before", "after", "fine"),
    [
        (b"a", b"a/b", False),
        (b"a", b"a", False),
        (b"b", b"a", False),
        (b"a", b"a\x01", True),
        (b"a", b"a!", True),
        (b"a/z", b"a!", True),
        (b"a!", b"a/z", False),
        (b"a/b", b"a/b/c/d", False),
        (b"a/b", b"a/bc", True),
        (b"a", "\U0010ffff".encode(), True),
    ],
)
def test_order_goes_by_components(before: bytes, after: bytes, fine: bool) -> None:
    assert (disorder(before + b"\0" + after) is None) == fine


@pytest.mark.parametrize("target", [b"", b"/", b"/etc", b"a\0b", b"\xff", b"x" * 4096])
def test_bad_targets(target: bytes) -> None:
    with pytest.raises(ValueError):
        check_target(target)


@pytest.mark.parametrize(
    ("links", "escaping"),
    [
        ({b"a": b"b", b"c/d": b"../b", b"e": b"."}, []),
        ({b"a": b".."}, [b"a"]),
        ({b"a/b": b".."}, []),
        ({b"a/b": b"../.."}, [b"a/b"]),
        ({b"a": b"/etc/passwd"}, [b"a"]),
        ({b"a": b"missing/../x", b"b": b"missing/x/../../.."}, [b"b"]),
        ({b"d/l": b"../e", b"x": b"d/l/../f"}, []),  # through e, whose parent is the top
        ({b"d/l": b"..", b"x": b"d/l/.."}, [b"x"]),  # the top by way of another, then out
        ({b"d/l": b"..", b"x": b"d/l/../y"}, [b"x"]),
        ({b"d/l": b"deep/er", b"x": b"d/l/../../y"}, []),
        ({b"a": b"a", b"b": b"c", b"c": b"b"}, []),  # round in circles
        ({b"a": b"a", b"b": b"a/../.."}, [b"b"]),  # no system passes a circle, but some programs do
        ({b"a": b"b/x", b"b": b"c", b"c": b"d/y"}, []),
        ({b"l%d" % at: b"l%d" % (at + 1) for at in range(40)}, []),
        ({b"l%d" % at: b"l%d" % (at + 1) for at in range(42)}, [b"l0"]),
        ({b"a": b"b", b"b": b"c", b"c": b"../.."}, [b"a", b"b", b"c"]),
        ({b"a": b"x//./y"}, []),
        ({b"a": b"../top/a"}, [b"a"]),  # out and in again depends on what the folder is called
    ],
)
def test_links_that_leave(links: dict[bytes, bytes], escaping: list[bytes]) -> None:
    assert link_escapes(links) == escaping


def test_a_bomb_of_links_ends_and_is_refused() -> None:
    links = {b"l%d" % at: b"/".join([b"l%d" % (at + 1)] * 40)[:4095] for at in range(60)}
    assert b"l0" in link_escapes(links)


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=3).map(b"/".join),
        st.lists(st.sampled_from([b"a", b"b", b"c", b"..", b"."]), min_size=1, max_size=5).map(b"/".join),
        min_size=1,
        max_size=5,
    )
)
def test_no_link_of_a_real_tree_leads_out_unseen(
    tmp_path_factory: pytest.TempPathFactory, links: dict[bytes, bytes]
) -> None:
    top = tmp_path_factory.mktemp("tree") / "top"
    made = {}
    for path in sorted(links, key=sort_key):
        place = top / os.fsdecode(path)
        if any((top / parent).is_symlink() for parent in Path(os.fsdecode(path)).parents):
            continue  # below a symlink: no tree has that
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.symlink_to(os.fsdecode(links[path]))
            made[path] = links[path]
    escaping = set(link_escapes(made))
    for path in made:
        end = os.path.realpath(top / os.fsdecode(path))
        if end != str(top) and not end.startswith(f"{top}/"):
            assert path in escaping


@pytest.mark.parametrize(
    ("found", "clashes"),
    [
        (["A/x", "B/x", "a"], [("A", "a")]),
        (["A/x", "a/y"], [("A", "a")]),
        (["d/A.png", "d/a.png", "e/a.png"], [("d/A.png", "d/a.png")]),
        (["caf\u00e9", "cafe\u0301"], [("cafe\u0301", "caf\u00e9")]),
        (["STRASSE", "stra\u00dfe"], [("STRASSE", "stra\u00dfe")]),
        (["a", "b", "c/a", "c/b"], []),
        (["A/B/x", "A/b/x", "a/b/x"], [("A/B", "A/b"), ("A", "a")]),
        (["ab", "a\u200db"], [("ab", "a\u200db")]),
        ([], []),
    ],
)
def test_clashes(found: list[str], clashes: list[tuple[str, str]]) -> None:
    ordered = sorted((path.encode() for path in found), key=sort_key)
    assert fold_clashes(ordered) == [(one.encode(), other.encode()) for one, other in clashes]


def test_clashes_where_dots_and_spaces_at_the_end_are_dropped() -> None:
    found = [b"a", b"a.", b"b /x", b"c..d", b"e.", b"e..", b"f", b"f.g/."]
    ordered = sorted(found, key=sort_key)
    assert fold_clashes(ordered, spelling=False, ends=True) == [
        (b"a", b"a."), (b"b", b"b "), (b"e", b"e."), (b"e", b"e.."), (b"f.g/", b"f.g/."),
    ]  # fmt: skip
    assert fold_clashes(ordered) == []


@given(st.sets(st.lists(components, min_size=1, max_size=3).map(lambda parts: "/".join(parts)), max_size=8))
def test_paths_that_fold_apart_do_not_clash(found: set[str]) -> None:
    plain = {path.casefold() for path in found if path.isascii()}
    ordered = sorted((path.encode() for path in plain), key=sort_key)
    assert fold_clashes(ordered) == []


@pytest.mark.parametrize("name", ["drafts", "a\xe9", "x/probe-a\xe9", "plain"])
def test_a_file_system_that_tells_all_names_apart_finds_a_name_by_itself_alone(name: str) -> None:
    assert found_otherwise(name, {name}.__contains__) == (False, False)


def test_folding_of_case_or_unicode_and_lost_ends_are_found() -> None:
    name = "x/probe-a\xe9"
    for other in (name.replace("probe-a\xe9", "PROBE-A\xc9"), "x/probe-ae\u0301", "x/probe-a\u200d\xe9"):
        assert found_otherwise(name, {name, other}.__contains__) == (True, False)
    for other in (f"{name}.", f"{name} "):
        assert found_otherwise(name, {name, other}.__contains__) == (False, True)
    assert found_otherwise("drafts", {"drafts", "DRAFTS"}.__contains__) == (True, False)
