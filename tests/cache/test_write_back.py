"""A fill is on the disk before it is visible, and what the disk lost is never believed, by nobody."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.cache import filler
from tests.cache.fake_source import STORE, File, World
from tests.strace import needs_strace
from tests.waiting import PATIENCE

from dsv.cache.filling.request import FillRequest
from dsv.cache.layout import CacheRoot
from dsv.model.ids import CommitId

FILES = [File(f"d/{number:03d}", 5000, str(number)) for number in range(500)]


class Scene:
    """A commit, a cache, and fills that strace watches."""

    def __init__(self, folder: Path) -> None:
        needs_strace()
        self.world = World(folder / "world")
        self.commit: CommitId = self.world.commit(FILES)
        (folder / "cache").mkdir(mode=0o755)
        self.root = CacheRoot(folder / "cache")
        self.visible = self.root.visible(FillRequest("xrays", self.commit, STORE).place)
        self._report = folder / "strace"

    def fill(self, *upset: str, **options: Any) -> dict[str, Any]:
        under = ["strace", "-f", "-o", str(self._report), "-e", "trace=syncfs,rename,execve", *upset]
        process = filler.start(self.root, self.world.folder, self.commit, under=under, **options)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err.decode()
        answer: dict[str, Any] = json.loads(out)
        return answer

    def calls(self) -> list[tuple[bool, str]]:
        """The syncs, and the rename that makes the commit visible: whether the main thread did it, and the line."""
        rows = [line.split(None, 1) for line in self._report.read_text().splitlines()]
        main = rows[0][0]
        shown = re.compile(rf'syncfs\(|resumed>.*|rename\(.*"{re.escape(str(self.visible))}"')
        return [(who == main, what) for who, what in rows if shown.match(what)]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_the_last_thing_before_it_is_visible_is_a_sync(scene: Scene) -> None:
    assert "error" not in scene.fill()
    assert [(main, what.partition("(")[0]) for main, what in scene.calls()] == [
        (True, "syncfs"),
        (True, "rename"),
    ]


def test_the_disk_is_kept_busy_meanwhile(scene: Scene) -> None:
    assert "error" not in scene.fill(sync_step=1 << 20)
    assert any(not main and what.startswith("syncfs(") for main, what in scene.calls())
    assert [what.partition("(")[0] for main, what in scene.calls() if main][-2:] == ["syncfs", "rename"]
    scene.world.check(scene.commit, scene.visible)


@pytest.mark.parametrize("meanwhile", [False, True])
def test_what_the_disk_lost_is_not_believed_by_who_comes_next(scene: Scene, meanwhile: bool) -> None:
    """The kernel tells of it once; every later sync, and every other process, hears that all is well."""
    upset = ["-e", "inject=syncfs:error=EIO:when=1"]  # of each thread
    answer = scene.fill(*upset, sync_step=1 << 20 if meanwhile else 1 << 40)
    assert answer["error"] == "unreachable"
    assert answer["message"].endswith(f"lost what was written to it: {os.strerror(5)}")
    assert {main for main, _ in scene.calls()} == {not meanwhile}
    assert not scene.visible.exists()
    assert list((scene.root.path / ".dsv/fill").rglob("*")) == []
    assert list((scene.root.path / ".dsv/room").iterdir()) == []
    again = scene.fill()
    assert again["fetched"] == sum(file.size for file in FILES)
    scene.world.check(scene.commit, scene.visible)
