"""From what a person types to one commit."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from dsv.repo import resolve
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName

LINES, LENGTH = 4, 6


def _id(line: int, number: int) -> CommitId:
    return CommitId(bytes([line, number]) * 16)


class _Lines:
    """Lines of history without a common commit, of which a commit is given only when one of each line was asked for."""

    def __init__(self) -> None:
        self._all = threading.Barrier(LINES, timeout=20)

    def commit(self, commit_id: CommitId) -> Any:
        self._all.wait()
        line, number = commit_id[0], commit_id[1]
        return SimpleNamespace(time_ms=number, parents=(_id(line, number - 1),) if number else ())


def test_whether_a_name_leads_to_a_commit_is_asked_of_all_lines_of_history_together() -> None:
    heads = [SimpleNamespace(commit=_id(line, LENGTH - 1)) for line in range(LINES)]
    refs: Any = SimpleNamespace(names=lambda _: (heads, []))
    objects: Any = _Lines()
    dataset = DatasetName.parse("cats")
    assert resolve._leads_to(refs, objects, dataset, _id(2, 0))
    assert not resolve._leads_to(refs, objects, dataset, _id(LINES, 0))
