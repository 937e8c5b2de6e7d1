"""Symlinks that leave a tree: the code, the reader, and a third description agree with docs/internals/format.md."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv import reader
from dsv.values.paths import link_escapes

DOC = (Path(__file__).parents[2] / "docs/internals/format.md").read_text()
Links = dict[bytes, bytes]


class Left(Exception):
    """The walk climbed above the top."""


def leaves(path: bytes, links: Links) -> bool:
    """As its section on paths says it, by recursion."""
    followed = 0
    circle = False

    def walk(here: tuple[bytes, ...], target: bytes, walking: frozenset[bytes]) -> tuple[bytes, ...]:
        nonlocal followed, circle
        for part in target.split(b"/"):
            if part in (b"", b"."):
                continue
            if part == b"..":
                if not here:
                    raise Left
                here = here[:-1]
                continue
            name = b"/".join([*here, part])
            if circle or name not in links:
                here = (*here, part)
            elif name in walking:
                circle = True
                here = (*here, part)
            else:
                followed += 1
                if followed > 40:
                    raise Left
                here = walk(here, links[name], walking | {name})
        return here

    try:
        walk(tuple(path.split(b"/")[:-1]), links[path], frozenset([path]))
    except Left:
        return True
    return False


def agreed(links: Links) -> set[bytes]:
    """The links that leave, if all three say the same."""
    by_code = set(link_escapes(links))
    assert by_code == {path for path in links if leaves(path, links)}, links
    assert by_code == {path for path in links if reader.leaves(path, links[path], links)}, links
    return by_code


def written() -> list[tuple[Links, set[bytes]]]:
    rows = re.findall(r"^\| `(\{.*\})` \| ([^:|]*)", DOC, re.MULTILINE)
    return [
        (
            {path.encode(): target.encode() for path, target in json.loads(links).items()},
            {name.encode() for name in re.findall("`([^`]*)`", which)},
        )
        for links, which in rows
    ]


@pytest.mark.parametrize(("links", "left"), written())
def test_the_documents_vectors(links: Links, left: set[bytes]) -> None:
    assert agreed(links) == left


def test_there_are_vectors_of_both_kinds() -> None:
    assert len(written()) >= 10
    assert {bool(left) for _, left in written()} == {True, False}


def test_forty_links_are_followed_and_no_more() -> None:
    chain = {b"l%02d" % at: b"l%02d" % (at + 1) for at in range(41)}
    assert agreed(chain) == set(), "l00 follows the other forty"
    chain[b"l41"] = b"x"
    assert agreed(chain) == {b"l00"}
    again = {b"a": b".", b"forty": b"/".join([b"a"] * 40), b"more": b"/".join([b"a"] * 41)}
    assert agreed(again) == {b"more"}
    ring = {b"r%02d" % at: b"r%02d" % ((at + 1) % 41) for at in range(41)}
    assert agreed(ring) == set(), "the circle itself is not counted"


parts = st.sampled_from([b"a", b"b", b"c", b"d", b"..", b".", b""])
places = st.sampled_from([b"a", b"b", b"c", b"d/a", b"d/b", b"d/d/c"])
targets = st.lists(parts, min_size=1, max_size=6).map(b"/".join)
some_links = st.dictionaries(places, targets.filter(lambda one: one and one[:1] != b"/"), max_size=6)


@settings(max_examples=400, deadline=None)
@given(some_links)
def test_all_three_agree(links: Links) -> None:
    agreed(links)


def test_all_three_agree_in_twenty_thousand_cases() -> None:
    noise = random.Random(40)
    names = [b"a", b"b", b"c", b"e/a", b"e/b", b"e/f/c"]
    words = [b"a", b"b", b"c", b"e", b"f", b"..", b"..", b"."]
    left = 0
    for _ in range(20_000):
        links = {
            path: b"/".join(noise.choices(words, k=noise.randrange(1, 6)))
            for path in noise.sample(names, noise.randrange(1, 6))
        }
        left += len(agreed(links))
    assert left > 1000
