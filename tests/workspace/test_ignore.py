"""`.dsvignore`: what it leaves out, and that it is read whole or not gone by."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsv.errors import UsageError
from dsv.format.tree import Kind
from tests.workspace.worlds import World, readable_by_all, scan_as_another, settle, tree_of, write


def test_dsvignore(world: World) -> None:
    write(
        world,
        **{
            ".dsvignore": b"# not these\n*.tmp\n/build/\n!keep.tmp\n",
            "a.tmp": b"",
            "keep.tmp": b"k",
            "build__x": b"",
            "sub__build__x": b"y",
            "sub__.dsvignore": b"!*.tmp\r\nsecret\r",  # git takes a CR off the last line too
            "sub__b.tmp": b"b",
            "sub__secret": b"",
            "secret": b"s",
            "only__x.tmp": b"",
        },
    )
    world.sync()
    ignored = [b"a.tmp", b"build", b"sub/secret", b"only/x.tmp"]
    assert world.base == tree_of(world.root, ignored)
    assert world.base[b"only"].kind is Kind.EMPTY_DIRECTORY
    write(world, **{"a.tmp": b"changed", "build__z": b"new", "sub__c.tmp": b"c"})
    world.sync()
    assert world.base == tree_of(world.root, ignored)
    (world.root / "build/x").unlink()
    (world.root / "build/z").unlink()
    (world.root / "build").rmdir()
    (world.root / "build").write_bytes(b"a file now, which the pattern does not mean")
    world.sync()
    assert b"build" in world.base
    (world.root / "sub/.dsvignore").unlink()
    world.sync()
    assert {b"sub/b.tmp", b"sub/c.tmp"}.isdisjoint(world.base) and b"sub/secret" in world.base
    (world.root / ".dsvignore").unlink()
    world.sync()
    assert world.base == tree_of(world.root)


def test_verdicts_of_ignore_rules_are_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    write(world, **{".dsvignore": b"*.tmp\n", "a.tmp": b"", "b": b"1"})
    settle(world)
    from dsv.workspace.scan.ignore import IgnoreRules

    def never(*_: object, **__: object) -> bool:
        raise AssertionError("asked again")

    monkeypatch.setattr(IgnoreRules, "ignores", never)
    (world.root / "a.tmp").write_bytes(b"other")
    assert world.scan().unchanged


def test_a_line_that_is_no_pattern_is_said_to_be(world: World) -> None:
    write(world, **{"sub__.dsvignore": b"fine\n!\n"})
    with pytest.raises(UsageError, match=r"sub/\.dsvignore"):
        world.scan()


def test_a_pattern_that_backtracking_would_never_finish(world: World) -> None:
    write(world, **{".dsvignore": b"*a*a*a*a*a*a*b\n", "a" * 120: b"1", "a" * 120 + "b": b"2"})
    assert [item.path for item in world.scan().pending()] == [b".dsvignore", b"a" * 120]


def test_a_long_dsvignore_is_read_to_its_end(world: World) -> None:
    rules = (
        b"".join(b"/none/%06d.tmp\n" % number for number in range(1000))
        + b"# "
        + bytes(2 << 20)
        + b"\n*.key\n"
    )
    write(world, **{".dsvignore": rules, "my.key": b"secret", "a": b"a"})
    assert [item.path for item in world.scan().pending()] == [b".dsvignore", b"a"]


def test_what_can_not_be_read_whole_is_no_set_of_rules(world: World) -> None:
    """Nor is it left out as something unsupported: what it names would be committed."""
    write(world, sub__secret=b"s", target=b"secret")
    path = world.root / "sub/.dsvignore"
    path.write_bytes(b"secret\n")
    os.truncate(path, (16 << 20) + 1)
    with pytest.raises(UsageError, match=r"sub/\.dsvignore' is larger than 16"):
        world.scan()
    path.unlink()
    for make in (os.mkfifo, os.mkdir, lambda path: path.symlink_to("../target")):
        make(path)
        with pytest.raises(UsageError, match=r"sub/\.dsvignore' is not a regular file"):
            world.scan()
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_rules_that_another_user_may_not_read_are_an_error_that_names_them(tmp_path: Path) -> None:
    world = readable_by_all(tmp_path)
    write(world, sub__secret=b"s", **{"sub__.dsvignore": b"secret\n"})
    (world.root / "sub/.dsvignore").chmod(0o600)
    done = scan_as_another(world)
    assert done.returncode and "Denied: 'sub/.dsvignore' was refused" in done.stderr
