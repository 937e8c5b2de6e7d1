"""Merges of lines against `git merge-file`, which has to give the same bytes and the same conflicts."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.diff.lines import TooDifferent
from dsv.merge.contents import MergePiece, merge_lines
from dsv.merge.paths import ConflictChoice

LINES = [b"a", b"b", b"c", b"d", b"", b"", b"}", b"\t"]
TEXTS = st.lists(st.sampled_from(LINES), max_size=12).map(b"\n".join)


def side(pieces: Iterable[MergePiece], choice: ConflictChoice) -> bytes:
    """The text with one side's lines in each conflict."""
    return b"".join(
        one.theirs if (one.taken or choice) is ConflictChoice.THEIRS else one.ours for one in pieces
    )


def git_merge_file(folder: Path, texts: Sequence[bytes], *options: str) -> tuple[int, bytes]:
    """Return how many conflicts git has (127 at most), and its text."""
    names = [folder / name for name in ("ours", "base", "theirs")]
    for name, text in zip(names, texts, strict=True):
        name.write_bytes(text)
    command = ["git", "merge-file", "-p", "-q", *options, *map(str, names)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode < 128, done.stderr
    return done.returncode, done.stdout


def edited(chance: random.Random, lines: list[bytes], words: Sequence[bytes]) -> list[bytes]:
    found = list(lines)
    for _ in range(chance.randint(0, 4)):
        at = chance.choice([0, len(found), chance.randint(0, len(found))])
        new = [chance.choice(words) for _ in range(chance.randint(0, 3))]
        if chance.random() < 0.2:  # a line that was there before, or a blank one
            new = found[max(at - 2, 0) : at] if chance.random() < 0.5 else [b""]
        found[at : at + chance.randint(0, 3)] = new
    return found


def texts_of(chance: random.Random) -> list[bytes]:
    """Ours, base and theirs: repeated lines, blank ones, changes at both ends, with or without a last newline."""
    words = chance.choice(
        [LINES, LINES[:2], [b"", b"x"], [b"%d" % number for number in range(60)], [b"}", b"", b"{", b"k"]]
    )
    base = [chance.choice(words) for _ in range(chance.choice([0, 1, 3, 8, 20, 60]))]
    versions = [edited(chance, base, words), base, edited(chance, base, words)]
    if chance.random() < 0.1:
        versions[0] = [chance.choice(words) for _ in range(chance.randint(0, 30))]
    ends = chance.choice([(b"\n",), (b"\r\n",), (b"\n", b"\r\n")])
    texts: list[bytes] = []
    for lines in versions:
        end = chance.choice(ends)
        text = b"".join(line + end for line in lines)
        texts.append(text.removesuffix(end) if chance.random() < 0.3 else text)
    return texts


def compare(folder: Path, texts: Sequence[bytes]) -> None:
    ours, base, theirs = texts
    pieces = list(merge_lines(base, ours, theirs))
    conflicts = any(one.taken is None for one in pieces)
    assert git_merge_file(folder, texts, "--ours")[1] == side(pieces, ConflictChoice.OURS), texts
    assert git_merge_file(folder, texts, "--theirs")[1] == side(pieces, ConflictChoice.THEIRS), texts
    assert bool(git_merge_file(folder, texts)[0]) == conflicts, texts


@pytest.mark.parametrize("seed", range(8))
def test_the_result_is_that_of_git(seed: int, tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    chance = random.Random(seed)
    for _ in range(60):
        compare(tmp_path, texts_of(chance))


@pytest.mark.parametrize("kinds", [3, 40, 100_000])
@pytest.mark.parametrize("size", [1_000, 6_000])
def test_the_result_is_that_of_git_for_long_texts_that_differ_much(
    kinds: int, size: int, tmp_path: Path
) -> None:
    """The search is cut short for these, and git's bounds decide where."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    chance = random.Random(kinds + size)
    base = [b"%d" % chance.randrange(kinds) for _ in range(size)]
    versions = [list(base), base, list(base)]
    for lines in (versions[0], versions[2]):
        for _ in range(size // 5):
            at = chance.randrange(len(lines))
            lines[at : at + chance.randint(0, 3)] = [b"%d" % chance.randrange(kinds)] * chance.randint(0, 2)
        part = lines[: size // 4]
        lines[: size // 4] = lines[size // 4 : size // 2]
        lines[size // 4 : size // 2] = part
    compare(tmp_path, [b"\n".join(lines) + b"\n" for lines in versions])


@given(TEXTS, TEXTS)
def test_a_side_without_changes_takes_the_other(base: bytes, other: bytes) -> None:
    assert side(merge_lines(base, base, other), ConflictChoice.OURS) == other
    assert side(merge_lines(base, other, base), ConflictChoice.OURS) == other
    assert side(merge_lines(base, other, other), ConflictChoice.OURS) == other


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "merged", "conflicts"),
    [
        (b"1\n2\n3\n", b"1\n2\n3\n4\n", b"0\n1\n2\n3\n", b"0\n1\n2\n3\n4\n", []),
        (b"1\n2\n3\n", b"1\nx\n3\n", b"1\ny\n3\n", b"1\nx\n3\n", [(b"x\n", b"y\n")]),
        (b"1\n2\n3\n", b"1\nx\n3\n", b"1\n3\n", b"1\nx\n3\n", [(b"x\n", b"")]),
        (b"1\n2\n3\n4\n5\n", b"1\n3\n4\n5\n", b"1\n2\n3\n5\n", b"1\n3\n5\n", []),
        (b"1\r\n2\r\n3\r\n", b"x\r\n2\r\n3\r\n", b"1\r\n2\r\ny\r\n", b"x\r\n2\r\ny\r\n", []),
        (b"1\n2\n3", b"x\n2\n3", b"1\n2\n3\n", b"x\n2\n3\n", []),
        (b"", b"1\n", b"", b"1\n", []),
        (b"1\n2\n", b"1\n2\n\n", b"1\n2\n\n", b"1\n2\n\n", []),
    ],
)
def test_texts(
    base: bytes, ours: bytes, theirs: bytes, merged: bytes, conflicts: list[tuple[bytes, bytes]]
) -> None:
    pieces = list(merge_lines(base, ours, theirs))
    assert [one[:2] for one in pieces if one.taken is None] == conflicts
    assert side(pieces, ConflictChoice.OURS) == merged


@pytest.mark.parametrize("line", [b"", b"0", b"same"])
def test_a_megabyte_of_equal_lines_is_merged(line: bytes) -> None:
    base = (line + b"\n") * ((1 << 20) // (len(line) + 1))
    begun = time.process_time()
    assert (
        side(merge_lines(base, b"first\n" + base, base + b"last\n"), ConflictChoice.OURS)
        == b"first\n" + base + b"last\n"
    )
    changed = base[: len(base) // 2] + b"x\n" + base[len(base) // 2 :]
    assert side(merge_lines(base, changed, base), ConflictChoice.OURS) == changed
    assert time.process_time() - begun < 60


def test_texts_that_would_take_too_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv.diff.lines.MOST_STEPS", 100_000)
    chance = random.Random(1)
    base, ours = (b"".join(chance.choice([b"0\n", b"1\n"]) for _ in range(50_000)) for _ in range(2))
    with pytest.raises(TooDifferent):
        list(merge_lines(base, ours, base + b"x\n"))
