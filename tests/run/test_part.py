"""What a node reports of a run's data."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv.run.part import NodeReport
from dsv.run.staged import Staged
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName


def staged(hit: bool, seconds: float, fetched: int) -> Staged:
    commit = CommitId(b"c" * 32)
    return Staged(
        Path("/d"), DatasetName.parse("x"), commit, 1, 2, hit, seconds=seconds, fetched_bytes=fetched
    )


def test_a_report_sums_up_the_data_of_a_node_and_comes_back_as_it_was() -> None:
    report = NodeReport.of([staged(True, 0.0, 0), staged(False, 1.2504, 7), staged(False, 2.5, 5)])
    assert report.fields == {"cache_hit": False, "stage_seconds": 3.75, "stage_bytes": 12}
    assert NodeReport.decode(report.encode().decode()) == report
    many = NodeReport.of([staged(False, 1e6, 1 << 60)] * 1000)
    assert len(many.encode()) < 4096, "Kubernetes cuts longer messages"


@pytest.mark.parametrize(
    "text",
    ["", "no JSON", '{"cache_hit": tr', "[]", '{"stage_bytes": "7"}', '{"stage_seconds": NaN}', "[" * 99_999],
)
def test_what_is_no_report_says_nothing(text: str) -> None:
    assert NodeReport.decode(text).fields == {}


def test_a_report_of_another_version_is_read_as_far_as_it_is_known() -> None:
    assert NodeReport.decode('{"cache_hit": true, "of a newer dsv": {}}').fields == {"cache_hit": True}
