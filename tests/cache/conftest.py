"""What tests of filling begin with: a store of made up commits, and an empty cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cache.fake_source import World

from dsv.cache.root import CacheRoot


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fill looks at the limits every few seconds, however slow the machine is: here only if a test says so."""
    monkeypatch.setattr("dsv.cache.fill.fill._ROOM_EVERY", 1e9)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    (tmp_path / "cache").mkdir(mode=0o755)
    return CacheRoot(tmp_path / "cache")
