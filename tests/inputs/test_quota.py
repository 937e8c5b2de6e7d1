"""A quota that is used up in the middle of a file, though the disk has room: nothing shows it before."""

from __future__ import annotations

import errno
import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from tests.inputs.scene import CACHE, Scene, nothing_partial, refused, write
from tests.kit.dsv import PROGRAM, Dsv, Result
from tests.strace import needs_strace
from tests.waiting import PATIENCE

SIZE = 20_000
FILES = {f"d/{number:03d}": random.Random(number).randbytes(SIZE) for number in range(200)}
BEFORE = 60
"""Writes that work: of records, and of some files."""


def short_of_room(who: Dsv, error: str, times: int, *arguments: str) -> tuple[Result, list[int]]:
    """Runs dsv, and the kernel refuses that many writes in a row. Also says how large these were."""
    report = who.home / "strace"
    upset = f"inject=write:error={error}:when={BEFORE}..{BEFORE + times - 1}"
    command = ["strace", "-f", "-o", str(report), "-e", "trace=write", "-e", upset, *PROGRAM, *arguments]
    environ = {**who.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=who.cwd, env=environ, capture_output=True, text=True, timeout=PATIENCE)
    sizes = re.findall(rf"^.*, (\d+)\) = -1 {error} .*INJECTED.*$", report.read_text(), re.MULTILINE)
    return Result(done.returncode, done.stdout, done.stderr), [int(size) for size in sizes]


@pytest.fixture
def person(scene: Scene) -> Dsv:
    needs_strace()
    ann = scene.newcomer()
    write(ann.cwd, FILES)
    ann.ok("init", "set")
    ann.ok("sync")
    return scene.newcomer()


def reservations(person: Dsv) -> list[str]:
    return os.listdir(Path(person.environ["DSV_CACHE"]) / ".dsv/room")


@pytest.mark.parametrize("error", ["EDQUOT", "ENOSPC"])
def test_a_cache_that_has_no_room_in_the_middle(person: Dsv, error: str) -> None:
    """It makes room and tries again a few times, and then says what is missing."""
    result, sizes = short_of_room(person, error, 4, "cache", "set", "--jobs", "1", "-q")
    assert sizes == [SIZE] * 4
    reason = os.strerror(getattr(errno, error))
    refused(result, 7, "no room for set@", reason, " are free and ", "MB still to come in ", " files")
    nothing_partial(person)
    assert reservations(person) == []
    assert CACHE(person, "set").code == 0
    assert CACHE.result(person, "set") == FILES


def test_room_that_comes_back_is_used(person: Dsv) -> None:
    result, sizes = short_of_room(person, "EDQUOT", 2, "cache", "set", "--jobs", "1", "-q")
    assert (result.code, sizes) == (0, [SIZE] * 2), result
    assert CACHE.result(person, "set") == FILES
    assert reservations(person) == []
