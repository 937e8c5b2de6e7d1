"""A source of MLflow's datasets: an input of a run there opens the commit that the run read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mlflow.data.dataset_source import DatasetSource

import dsv


@dataclass
class DsvSource(DatasetSource):  # type: ignore[misc]  # of a class that mypy does not know
    """The commit `target`; `path` is the part of it that the run saw, and `store` the id of its store."""

    target: str
    path: str | None
    store: str

    def load(self, store: str | None = None) -> dsv.Commit:
        """Return the commit, whose files are verified when they are read. store: as for `dsv.store`"""
        return dsv.store(store).open(self.target)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, source_dict: dict[Any, Any]) -> DsvSource:
        return cls(**source_dict)

    @staticmethod
    def _get_source_type() -> str:
        return "dsv"
