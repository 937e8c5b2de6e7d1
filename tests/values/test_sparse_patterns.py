"""Patterns of sparse workspaces against a plain reading of them, on random lines and paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import UsageError
from dsv.values.paths import folders_above, sort_key
from dsv.values.patterns import EVERYTHING, PathPattern, SparsePatterns, escaped

NAMES = st.sampled_from(["a", "b", "ab", "a.c", ".dsvignore", "ba"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PARTS = st.sampled_from(["a", "b", "ab", "*", "**", "a*", "*.c", "?", "[ab]", "a\\b", "b*"])
TEXTS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
LINES = st.lists(TEXTS | TEXTS.map("!{}".format), max_size=4)


def plainly(lines: list[str], path: bytes) -> bool:
    """The last line that matches the path or a folder above it decides."""
    for line in reversed(lines):
        pattern = PathPattern(line.removeprefix("!").encode())
        if any(pattern.matches(each, folder=True) for each in (path, *folders_above(path))):
            return not line.startswith("!")
    return False


@given(LINES, st.lists(PATHS, min_size=1, max_size=8))
def test_the_last_line_that_matches_decides(lines: list[str], paths: list[str]) -> None:
    patterns = SparsePatterns(tuple(lines))
    for path in (text.encode() for text in paths):
        if path.rpartition(b"/")[2] != b".dsvignore":
            assert (path in patterns) == plainly(lines, path)
        if plainly(lines, path):
            assert path in patterns


@given(LINES, st.lists(PATHS, min_size=1, max_size=12, unique=True), st.integers(0, 11), st.integers(0, 11))
def test_no_run_of_paths_is_skipped_that_has_one(
    lines: list[str], texts: list[str], one: int, other: int
) -> None:
    paths = sorted((text.encode() for text in texts), key=sort_key)
    first, last = sorted((one % len(paths), other % len(paths)))
    after = paths[first - 1] if first else None
    patterns = SparsePatterns(tuple(lines))
    if any(path in patterns for path in paths[first : last + 1]):
        assert patterns.overlaps(after, paths[last])


@given(LINES, TEXTS, st.lists(PATHS, min_size=1, max_size=8))
def test_adding_and_removing_change_what_the_pattern_matches_and_nothing_else(
    lines: list[str], text: str, paths: list[str]
) -> None:
    before = SparsePatterns(tuple(lines))
    more, less = before.added([text]), before.removed([text])
    pattern = PathPattern(text.encode())
    for path in (each.encode() for each in paths):
        if path.rpartition(b"/")[2] == b".dsvignore":
            continue
        named = any(pattern.matches(each, folder=True) for each in (path, *folders_above(path)))
        assert (path in more) == (named or path in before)
        assert (path in less) == (path in before and not named)


def test_segments_of_other_folders_are_skipped() -> None:
    patterns = SparsePatterns(("train/**/*.png", "notes*"))
    assert patterns.overlaps(b"train/a", b"train/b/c.png")
    assert patterns.overlaps(b"n/x", b"p/y")
    assert not patterns.overlaps(b"test/a", b"test/b/c.png")
    assert not patterns.overlaps(b"val/a", b"val/b")
    assert not patterns.overlaps(b"a/x", b"m/y")
    assert patterns.overlaps(None, b"a/x")  # where the .dsvignore of the root would lie
    assert not SparsePatterns(("**", "!raw")).overlaps(b"raw/a", b"raw/b")
    nothing = SparsePatterns(())
    assert nothing.overlaps(None, b"z") and b".dsvignore" in nothing
    assert not nothing.overlaps(b".dsvignore", b"z") and b"a/.dsvignore" not in nothing


def test_few_lines_stay() -> None:
    train = SparsePatterns(("train",))
    assert train.added(["val", "val"]).lines == ("train", "val")
    assert train.added(["val"]).removed(["val"]).lines == ("train",)
    assert train.removed(["train/raw"]).lines == ("train", "!train/raw")
    assert train.removed(["train/raw"]).removed(["train"]).lines == ()
    assert train.removed(["train/raw"]).added(["train/raw"]).lines == ("train", "train/raw")
    assert train.added(["**"]) == EVERYTHING and EVERYTHING.added(["a"]) == EVERYTHING
    assert EVERYTHING.removed(["raw"]).lines == ("**", "!raw")
    assert EVERYTHING.removed(["**"]).lines == ()
    assert len({train.digest, EVERYTHING.digest, SparsePatterns(()).digest}) == 3


@pytest.mark.parametrize("line", ["", "!", "!!a", "/", "a\\", "\udcff"])
def test_what_is_no_pattern_is_refused(line: str) -> None:
    with pytest.raises(UsageError):
        SparsePatterns((line,))
    with pytest.raises(UsageError):
        EVERYTHING.removed([line])


@given(PATHS.map(lambda text: text.replace("a", "*").replace("b", "[\\")))
def test_an_escaped_path_matches_itself(path: str) -> None:
    assert PathPattern(escaped(path.encode())).matches(path.encode(), folder=False)
