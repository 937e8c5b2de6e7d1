"""Fixtures of the tests in this folder."""

from __future__ import annotations

import pytest

from dsv.repo.repository import Repository
from dsv.stores.memory import MemoryStore
from tests.kit.repositories import create


@pytest.fixture
def repository() -> Repository:
    return create(MemoryStore())
