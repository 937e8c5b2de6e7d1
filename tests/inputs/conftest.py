"""A store, and people around it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dsv.api import environment
from tests.inputs.scene import FILES, Scene, write


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """No store yet."""
    monkeypatch.setattr(environment, "SYSTEM_CONFIG", tmp_path / "etc/config.toml")
    return Scene(tmp_path)


@pytest.fixture(autouse=True)
def _impatient(impatient: None) -> None:
    """In all of these tests."""


@pytest.fixture(scope="session")
def synced(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """Every key of a store with `FILES` as dataset `set`, as `dsv sync` has written it."""
    scene = Scene(tmp_path_factory.mktemp("synced"))
    ann = scene.newcomer()
    write(ann.cwd, FILES)
    ann.ok("init", "set")
    ann.ok("sync")
    return scene.contents()


@pytest.fixture
def shared(scene: Scene, synced: Mapping[str, bytes]) -> Path:
    """A cache in which `set@v1` is held twice by ann, once without an end; the head of `main` is newer."""
    scene.reset(synced)
    ann = scene.newcomer()
    ann.ok("tag", "v1", "set")
    ann.ok("clone", "set", "clone")
    write(ann.cwd / "clone", {"more": b"more"})
    ann.at(ann.cwd / "clone").ok("sync")
    path = scene.folder / "shared"
    in_shared = ann.at(ann.cwd, DSV_CACHE=str(path))
    in_shared.ok("cache", "set@v1", "-q", "--hold", "1h")
    in_shared.ok("cache", "set@v1:b", "-q")
    in_shared.ok("hold", "set@v1")
    return path
