"""Fixtures of the tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.pets_in_python import close_all, make_home
from tests.kit.people import Person


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield make_home(tmp_path_factory.mktemp("ann"))
    close_all()


@pytest.fixture
def ann(tmp_path: Path) -> Person:
    person = Person(tmp_path / "ann", str(tmp_path / "store"))
    person.init()
    return person
