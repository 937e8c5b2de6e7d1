"""The patterns of `.dsvignore`: git's own verdict on random patterns and paths, and no pattern that is slow."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from dsv.values.patterns import parse
from dsv.workspace.scan.ignore import IgnoreRules
from tests.exhaustive import some

PIECES = [
    *(b"a", b"b", b"ab", b"-", b".", b"/", b"/", b"*", b"*", b"**", b"***", b"**/", b"/**", b"/**/", b"?"),
    *(b"[ab]", b"[!a]", b"[^b]", b"[a-c]", b"[]a]", b"[a-]", b"[[:alpha:]]", b"[[:digit:]b]", b"[[:nope:]]"),
    *(
        b"[",
        b"]",
        b"[[:x]",
        b"[!]",
        b"[b-a]",
        b"[\\]]",
        b"[a-\\c]",
        b"\\a",
        b"\\*",
        b"\\/",
        b"\\ ",
        b" ",
        b"\\?",
    ),
    *(b"!", b"#", b"\xc3\xa9", b"[\xc3\xa9]", b"\t", b"[/]", b"[.-0]", b"[*]", b"[?]", b"[[.a.]]"),
]
NAMES = [
    b"a",
    b"b",
    b"ab",
    b"ba",
    b"abc",
    b"a b",
    b"*",
    b"[a",
    b"]",
    b"-",
    b".",
    b"a.",
    b"\xc3\xa9",
    b"\\",
    b"1b",
]
NAMES = [name for name in NAMES if name != b"."]


def line(chance: random.Random) -> bytes:
    return b"".join(chance.choice(PIECES) for _ in range(chance.randint(1, 7)))


def path(chance: random.Random) -> bytes:
    return b"/".join(chance.choice(NAMES) for _ in range(chance.randint(1, 4)))


def is_pattern(text: bytes) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def ours(lines: list[bytes], deeper: dict[bytes, list[bytes]], asked: bytes, folders: set[bytes]) -> bool:
    """As a scan asks: from the top down, and no further below a folder that is left out."""
    rules = IgnoreRules().enter(b"", b"\n".join(lines))
    parts = asked.split(b"/")
    for depth in range(1, len(parts) + 1):
        part = b"/".join(parts[:depth])
        if rules.ignores(part, directory=part in folders):
            return True
        if part in deeper:
            rules = rules.enter(part, b"\n".join(deeper[part]))
    return False


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git to compare with")
@pytest.mark.parametrize("seed", some(range(12), 2))
def test_git_says_the_same(tmp_path: Path, seed: int) -> None:
    """Up to seven pieces and three levels: git's own matching takes exponential time beyond."""
    chance = random.Random(seed)
    git = ["git", "-C", str(tmp_path), "-c", "core.excludesFile=/dev/null", "-c", "core.ignoreCase=false"]
    subprocess.run([*git, "init", "-q"], check=True)
    asked = sorted({path(chance) for _ in range(60)})
    folders = {one[:at] for one in asked for at in range(len(one)) if one[at : at + 1] == b"/"}
    asked = [one for one in asked if one not in folders]
    for one in asked:
        place = tmp_path.joinpath(one.decode())
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"")
    compared = left_out = 0
    for _ in range(60):
        lines = [text for text in (line(chance) for _ in range(chance.randint(1, 3))) if is_pattern(text)]
        inside = chance.choice(sorted(folders))
        deeper = {inside: [text for text in (line(chance),) if is_pattern(text)]}
        (tmp_path / ".gitignore").write_bytes(b"\n".join(lines))
        (tmp_path / inside.decode() / ".gitignore").write_bytes(b"\n".join(deeper[inside]))
        every = [*asked, *sorted(folders)]
        done = subprocess.run(
            [*git, "check-ignore", "--no-index", "-z", "--stdin"],
            input=b"\0".join(every),
            capture_output=True,
            check=False,
        )
        assert done.returncode in (0, 1), done
        theirs = set(done.stdout.split(b"\0")) - {b""}
        mine = {one for one in every if ours(lines, deeper, one, folders)}
        assert mine == theirs, (lines, deeper, mine ^ theirs)
        (tmp_path / inside.decode() / ".gitignore").unlink()
        compared, left_out = compared + len(every), left_out + len(mine)
    assert left_out > compared // 50


HANGING = [b"*a*a*a*a*a*a*b", b"/" + b"*a" * 200 + b"b", b"**/" * 100 + b"a*b", b"a/" + b"**/a/" * 60 + b"b",
           b"?*" * 300 + b"b", b"[ab]*" * 300 + b"c", b"*a/" * 60 + b"b"]  # fmt: skip


@pytest.mark.parametrize("text", HANGING)
def test_no_pattern_takes_endless_time(text: bytes) -> None:
    """`*a*a*a*a*a*a*b` took days for 120 times `a`."""
    pattern = parse(text)
    assert pattern is not None and not pattern.matches(b"", b"", directory=False)
    for asked in (b"a" * 4000, b"a/" * 2000 + b"a", (b"a" * 200 + b"/") * 18 + b"a"):
        assert not pattern.matches(asked, asked.rpartition(b"/")[2], directory=False)


@pytest.mark.parametrize("text", [b"!", b"\\", b"a\\", b"!  ", b"a\\\\\\"])
def test_what_is_no_pattern(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"exclamation|backslash"):
        parse(text)


@pytest.mark.parametrize("text", [b"", b"  ", b"# a", b"#"])
def test_what_asks_for_nothing(text: bytes) -> None:
    assert parse(text) is None
