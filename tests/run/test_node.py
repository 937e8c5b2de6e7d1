"""What the nodes of a run leave: their parts of the record and their logs; and the order to complete it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsv.errors import IntegrityError, Unsupported
from dsv.run.completing import completed, end_of_parts, join_logs
from dsv.run.node_order import NodeOrder
from dsv.run.part import EndCause, RunPart
from dsv.run.record import (
    JobUsage,
    RunId,
    decode_part,
    encode_part,
    node_log_name,
    parse_part_name,
    part_name,
)
from dsv.values.names import DatasetName
from tests.run.shop import Shop

RUN = RunId("20261120-132145-1f2e3d4c")
ORDER = NodeOrder(run=RUN, dataset=DatasetName("team/scans"), out="/out")


def test_orders_travel() -> None:
    found = NodeOrder.decode(ORDER.encode(), "x")
    assert found == ORDER and isinstance(found.dataset, DatasetName) and isinstance(found.run, RunId)


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b'{"run": "x"}', ORDER.encode().replace(RUN.encode(), b"no-run"),
     ORDER.encode().replace(b"team/scans", b"../x"), ORDER.encode().replace(b'"/out"', b"1")],
)  # fmt: skip
def test_what_is_no_order_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError, match="not an order"):
        NodeOrder.decode(data, "order.json")


def test_an_order_of_a_newer_version_is_refused() -> None:
    with pytest.raises(Unsupported):
        NodeOrder.decode(ORDER.encode().replace(b'"version":1', b'"version":2'), "order.json")


def test_parts_travel() -> None:
    part = RunPart(
        node=3, attempt=2, host="n", end=EndCause.PREEMPTED, exit_code=143, error="x", stage_seconds=1.5
    )
    assert decode_part(encode_part(part), "runs/x/y/part-3-2") == (part, None)
    used = JobUsage(7, 1.5)
    assert decode_part(encode_part(part, used), "part-3-2") == (part, used)
    with pytest.raises(IntegrityError, match="another node"):
        decode_part(encode_part(part), "runs/x/y/part-0-1")
    for data in (b"", b"[]", b"{}", encode_part(part).replace(b"preempted", b"bored")):
        with pytest.raises(IntegrityError):
            decode_part(data, "part-3-2")
    with pytest.raises(Unsupported):
        decode_part(encode_part(part).replace(b'"version": 1', b'"version": 2'), "part-3-2")
    assert parse_part_name(part_name(3, 2)) == ("part", 3, 2) and parse_part_name(node_log_name(0, 1)) == (
        "log",
        0,
        1,
    )
    assert [parse_part_name(name) for name in ("record", "log", "part-01-1", "part-0-0", "part-1")] == [
        None
    ] * 5


def ended(node: int, code: int = 0, attempt: int = 1, at: int = 100, **more: object) -> RunPart:
    more = {"end": EndCause.EXITED, "cache_hit": False, "stage_bytes": 10, "started_ms": 50, **more}
    return RunPart(node=node, attempt=attempt, exit_code=code, ended_ms=at, **more)  # type: ignore[arg-type]


def test_the_record_of_several_nodes(shop: Shop) -> None:
    start = replace(shop.run("true").record, nodes=2, parts=(), end=None, started_ms=40)
    parts = [ended(1, 9, at=100, host="b"), ended(0, 143, at=130, host="a", exit_signal="SIGTERM")]
    record = completed(start, end_of_parts(start, parts))
    assert (record.exit_code, record.end, record.ended_ms, record.started_ms) == (9, EndCause.EXITED, 130, 50)
    assert [part.node for part in record.parts] == [0, 1]
    assert (record.stage_bytes, record.cache_hit) == (20, False)
    assert completed(start, end_of_parts(start, reversed(parts))).encode() == record.encode()
    unknown = completed(start, end_of_parts(start, []))
    assert (unknown.end, unknown.exit_code) == (EndCause.LOST_SIGHT, 125)


def test_logs_of_several_nodes_are_labelled() -> None:
    logs = [(1, 1, b"one\n"), (0, 1, b"zero\n"), (0, 2, b"again\n")]
    assert join_logs(logs[1:], 1) == b"zero\nagain\n"
    assert join_logs(logs, 2) == (
        b"[dsv: node 0, attempt 1]\nzero\n[dsv: node 1, attempt 1]\none\n[dsv: node 0, attempt 2]\nagain\n"
    )
