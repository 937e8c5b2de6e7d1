"""fsspec's own conformance tests, with a new dataset for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.tests import abstract

from dsv.filesystem import DsvFileSystem
from tests.api.pets_in_python import close_all, environ_of, make_store

_COUNT = iter(range(1_000_000))


def store_of(home: Path) -> dict[str, str]:
    """In memory it takes a third of the time."""
    return {"DSV_STORE": f"memory://conformance-{home.name}"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("ann")
    make_store(home, **store_of(home))
    yield home
    close_all()


class DsvFixtures(abstract.AbstractFixtures):  # type: ignore[misc]
    @pytest.fixture
    def fs(self, place: Path) -> DsvFileSystem:
        options = {
            "environ": environ_of(place) | store_of(place),
            "cwd": place,
            "create": True,
            "allow_removals": True,
        }
        return fsspec.filesystem("dsv", **options)

    @pytest.fixture
    def fs_path(self) -> str:
        return f"test-{next(_COUNT)}"

    @pytest.fixture
    def fs_join(self) -> Any:
        return lambda *parts: "/".join(parts)

    # A transaction is one commit, which takes a fifth of the time.
    def _bulk_operations_scenario_0(self, some_fs: Any, *rest: Any) -> str:
        with some_fs.transaction if isinstance(some_fs, DsvFileSystem) else nullcontext():
            return str(super()._bulk_operations_scenario_0(some_fs, *rest))

    def _glob_edge_cases_files(self, some_fs: Any, *rest: Any) -> str:
        with some_fs.transaction if isinstance(some_fs, DsvFileSystem) else nullcontext():
            return str(super()._glob_edge_cases_files(some_fs, *rest))

    def _10_files_with_hashed_names(self, some_fs: Any, *rest: Any) -> str:
        with some_fs.transaction if isinstance(some_fs, DsvFileSystem) else nullcontext():
            return str(super()._10_files_with_hashed_names(some_fs, *rest))

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopy(DsvFixtures, abstract.AbstractCopyTests):  # type: ignore[misc]
    pass


class TestGet(DsvFixtures, abstract.AbstractGetTests):  # type: ignore[misc]
    pass


class TestPut(DsvFixtures, abstract.AbstractPutTests):  # type: ignore[misc]
    pass


class TestOpen(DsvFixtures, abstract.AbstractOpenTests):  # type: ignore[misc]
    pass


class TestPipe(DsvFixtures, abstract.AbstractPipeTests):  # type: ignore[misc]
    pass
