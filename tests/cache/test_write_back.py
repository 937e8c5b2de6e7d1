"""A fill is on the disk before it is visible, and no process believes what the disk has lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cache import filler
from tests.cache.fake_source import STORE, File, World
from tests.strace import needs_strace
from tests.waiting import PATIENCE, until

from dsv.cache.fill.plan import FillRequest
from dsv.cache.root import CacheRoot
from dsv.values.ids import CommitId

FILES = [File(f"d/{number:03d}", 5000, str(number)) for number in range(500)]


class Scene:
    """A commit, a cache, and fills that strace watches."""

    def __init__(self, folder: Path) -> None:
        needs_strace()
        self.world = World(folder / "world")
        self.commit: CommitId = self.world.commit(FILES)
        (folder / "cache").mkdir(mode=0o755)
        self.root = CacheRoot(folder / "cache")
        self.visible = self.root.visible(FillRequest("xrays", self.commit, STORE).place).path
        self._report = folder / "strace"

    def fill(self, *upset: str, **options: Any) -> dict[str, Any]:
        process = self.begin(*upset, **options)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err.decode()
        answer: dict[str, Any] = json.loads(out)
        return answer

    def begin(self, *upset: str, **options: Any) -> subprocess.Popen[bytes]:
        under = ["strace", "-f", "-o", str(self._report), "-e", "trace=syncfs,renameat,execve", *upset]
        return filler.start(self.root, self.world.folder, self.commit, under=under, **options)

    def rows(self) -> list[list[str]]:
        lines = self._report.read_text().splitlines() if self._report.exists() else []
        return [
            row for line in lines if len(row := line.split(None, 1)) == 2
        ]  # the last one may be half there

    def calls(self) -> list[tuple[bool, str]]:
        """The syncs, and the rename that makes the commit visible: whether the filling process did it, and the line."""
        rows = self.rows()
        main = rows[0][0] if rows else ""
        shown = re.compile(rf'syncfs\(|resumed>.*|renameat\(\d+, "tree", \d+, "{self.visible.name}"')
        return [(who == main, what) for who, what in rows if shown.match(what)]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_the_last_thing_before_it_is_visible_is_a_sync(scene: Scene) -> None:
    assert "error" not in scene.fill()
    assert [(main, what.partition("(")[0]) for main, what in scene.calls()] == [
        (False, "syncfs"),
        (True, "renameat"),
    ]


def test_the_disk_is_kept_busy_meanwhile(scene: Scene) -> None:
    assert "error" not in scene.fill(sync_step=1 << 20)
    calls = [what.partition("(")[0] for _, what in scene.calls() if "resumed" not in what]
    assert calls.count("syncfs") > 1
    assert calls[-2:] == ["syncfs", "renameat"]
    scene.world.check(scene.commit, scene.visible)


@pytest.mark.parametrize("meanwhile", [False, True])
def test_what_the_disk_lost_is_not_believed_by_the_next_process(scene: Scene, meanwhile: bool) -> None:
    """The kernel reports it once; every later sync, and every other process, succeeds."""
    upset = ["-e", "inject=syncfs:error=EIO:when=1"]
    answer = scene.fill(*upset, sync_step=1 << 20 if meanwhile else 1 << 40)
    assert answer["error"] == "unreachable"
    assert answer["message"].endswith(f"lost what was written to it: {os.strerror(5)}")
    assert [what.partition("(")[0] for _, what in scene.calls() if "resumed" not in what] == ["syncfs"]
    assert not scene.visible.exists()
    assert list((scene.root.path / ".dsv/fill").rglob("*")) == []
    assert list((scene.root.path / ".dsv/room").iterdir()) == []
    again = scene.fill()
    assert again["fetched"] == sum(file.size for file in FILES)
    scene.world.check(scene.commit, scene.visible)


def test_an_interrupt_waits_for_no_sync(scene: Scene) -> None:
    """The disk takes ten minutes; the process ends at once, nothing is visible, and the next one continues it."""
    process = scene.begin("-e", "inject=syncfs:delay_enter=600s")
    try:
        until(lambda: any("syncfs" in what for _, what in scene.calls()))
        filling = int(scene.rows()[0][0])
        os.kill(filling, signal.SIGINT)
        until(lambda: not is_alive(filling))
    finally:
        process.kill()
        process.communicate()
    assert not scene.visible.exists()
    assert scene.fill()["fetched"] == 0
    scene.world.check(scene.commit, scene.visible)


def test_a_sync_of_an_interrupted_fill_gives_it_up_if_the_disk_lost_something(scene: Scene) -> None:
    """The filling process was interrupted meanwhile, and the kernel reports the loss to nobody else."""
    process = scene.begin("-e", "inject=syncfs:error=EIO:delay_enter=2s")
    until(lambda: any("syncfs" in what for _, what in scene.calls()))
    os.kill(int(scene.rows()[0][0]), signal.SIGINT)
    process.communicate(timeout=PATIENCE)  # strace ends with the last process
    assert list((scene.root.path / ".dsv/fill").rglob("tree")) == []
    assert scene.fill()["fetched"] == sum(file.size for file in FILES)
    scene.world.check(scene.commit, scene.visible)


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
