"""What tests of filling begin with: a store of made up commits, and an empty cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cache.fake_source import World

from dsv.cache.root import CacheRoot


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    (tmp_path / "cache").mkdir(mode=0o755)
    return CacheRoot(tmp_path / "cache")
