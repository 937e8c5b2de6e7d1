"""What one node does for a run, with plain processes as nodes."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from signal import SIGTERM

import pytest

from dsv.errors import IntegrityError, NoRoom, Unsupported, UsageError
from dsv.run.completing import assemble, is_over, join_logs
from dsv.run.engines.attach import Signals
from dsv.run.node import NodeSeat, run_node
from dsv.run.node_order import NodeOrder, OrderedData
from dsv.run.record import (
    EndCause,
    RunId,
    RunPart,
    Usage,
    decode_part,
    encode_part,
    node_log_name,
    parse_part_name,
    part_name,
)
from dsv.run.staged import Staged
from dsv.values.ids import CommitId
from dsv.values.names import Target
from tests.run.shop import FolderLease, Folders, Shop
from tests.waiting import until

RUN = "20261120-132145-1f2e3d4c"
DATA = OrderedData(dataset="team/scans", commit=str(CommitId.hash(b"team/scans")))
ORDER = NodeOrder(run=RUN, data=(DATA,))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def on_node(
    shop: Shop, script: str, order: NodeOrder = ORDER, **seat: object
) -> tuple[RunPart, bytes | None]:
    with shop.output() as (stdout, stderr):
        return run_node(
            order, NodeSeat(**seat), ("sh", "-c", script), place=shop.place, stage=shop.data.stage,
            stdout=stdout, stderr=stderr, progress=shop.notes,
        )  # type: ignore[arg-type]  # fmt: skip


def test_the_command_finds_what_it_needs(shop: Shop) -> None:
    names = "DSV_RUN DSV_ATTEMPT DSV_DATASET DSV_DATA DSV_OUT DSV_PARAMS"
    order = NodeOrder(run=RUN, data=(DATA,), params={"lr": 0.1}, out=str(shop.home / "out"))
    on_node(shop, f'for name in {names}; do eval "echo \\$$name"; done', order, attempt=2)
    folder = str(shop.data.locate(DATA.target()).path)
    assert shop.stdout.splitlines() == [RUN, "2", "team/scans", folder, str(shop.home / "out"), '{"lr": 0.1}']
    assert json.loads((shop.home / "out/params.json").read_text()) == {"lr": 0.1}


def test_nodes_are_told_of_each_other(shop: Shop) -> None:
    order = NodeOrder(run=RUN, data=(DATA,), nodes=2)
    on_node(
        shop, 'echo "$MASTER_ADDR $WORLD_SIZE $NODE_RANK $PET_NNODES"', order, rank=1, addresses=("a", "b")
    )
    assert shop.stdout == "a 2 1 2\n"


def test_a_command_that_starts_a_container_is_told_where_that_sees_things(shop: Shop) -> None:
    seen = OrderedData(dataset=DATA.dataset, commit=DATA.commit, at="/data")
    order = NodeOrder(
        run=RUN,
        data=(seen,),
        code=OrderedData(dataset=DATA.dataset, commit=DATA.commit, at="/code"),
        out_at="/out",
    )
    on_node(shop, 'echo "$DSV_DATA $DSV_CODE $DSV_OUT"; pwd', order)
    assert shop.stdout.splitlines() == ["/data /code /out", str(shop.place.cwd)]


def test_code_is_where_the_command_works(shop: Shop) -> None:
    on_node(shop, "ls", NodeOrder(run=RUN, data=(DATA,), code=DATA))
    assert "readme" in shop.stdout.split()


def test_the_part_says_how_it_ended_and_what_staging_took(shop: Shop) -> None:
    part, log = on_node(shop, "echo hello; exit 7", rank=0, attempt=3)
    assert log == b"hello\n"
    assert (part.node, part.attempt, part.host, part.end, part.exit_code) == (
        0,
        3,
        "gpu-7",
        EndCause.EXITED,
        7,
    )
    assert (part.cache_hit, part.stage_seconds, part.stage_bytes) == (True, 0.5, 77)
    assert part.started_ms is not None and part.ended_ms is not None and part.started_ms <= part.ended_ms


def test_the_lease_lasts_as_long_as_the_command(shop: Shop) -> None:
    """And ends with it."""
    go = shop.home / "go"
    threading.Thread(target=lambda: (until(lambda: shop.data.leases, "the lease"), go.touch())).start()
    lease = shop.home / "cache" / ".lease-0"
    on_node(shop, f"until [ -e {go} ]; do sleep 0.1; done; [ -e {lease} ] && echo held")
    assert shop.stdout == "held\n" and shop.data.leases[0].released


def test_a_lost_lease_ends_the_command(shop: Shop) -> None:
    def lose() -> None:
        until(lambda: shop.data.leases, "the lease")
        shop.data.leases[0].reason = "it was evicted"
        shop.data.leases[0].lost.set()

    threading.Thread(target=lose).start()
    part, _ = on_node(shop, "while :; do sleep 0.1; done")
    assert (part.end, part.exit_code, part.error) == (EndCause.LEASE_LOST, 125, "it was evicted")


def test_a_node_that_is_told_to_end_says_so(shop: Shop) -> None:
    signals, ready = Signals(), shop.home / "ready"
    threading.Thread(target=lambda: (until(ready.exists, "the start"), signals.send(SIGTERM))).start()
    part, _ = run_node(
        ORDER, NodeSeat(), ("sh", "-c", f"touch {ready}; while :; do sleep 0.1; done"), place=shop.place,
        stage=shop.data.stage, stdout=None, stderr=None, signals=signals,
    )  # fmt: skip
    assert (part.end, part.cancelled_by, part.exit_code) == (EndCause.CANCELLED, "SIGTERM", 143)


@pytest.mark.parametrize(
    ("order", "seat"),
    [
        (ORDER, NodeSeat(rank=1)),
        (NodeOrder(run=RUN, data=(DATA,), nodes=2), NodeSeat()),
        (NodeOrder(run=RUN, data=(DATA,), nodes=2), NodeSeat(addresses=("a",))),
        (NodeOrder(run=RUN, data=(DATA,), nodes=2), NodeSeat(rank=2, addresses=("a", "b"))),
    ],
)
def test_a_seat_that_the_order_does_not_have(shop: Shop, order: NodeOrder, seat: NodeSeat) -> None:
    with pytest.raises(UsageError):
        run_node(order, seat, ("true",), place=shop.place, stage=shop.data.stage)
    assert shop.data.staged == []


def test_orders_travel() -> None:
    order = NodeOrder(
        run=RUN,
        data=(DATA, OrderedData(name="m", dataset="masks", commit=DATA.commit, path="a/b")),
        code=DATA,
        params={"a": [1]},
        nodes=3,
    )
    assert NodeOrder.decode(order.encode(), "x") == order


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b'{"run": "x", "data": []}', ORDER.encode().replace(RUN.encode(), b"no-run"),
     ORDER.encode().replace(DATA.commit.encode(), b"zz"), ORDER.encode().replace(b'"nodes":1', b'"nodes":0')],
)  # fmt: skip
def test_what_is_no_order_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError, match="no order"):
        NodeOrder.decode(data, "order.json")


def test_an_order_of_a_newer_version_is_refused() -> None:
    with pytest.raises(Unsupported):
        NodeOrder.decode(ORDER.encode().replace(b'"version":1', b'"version":2'), "order.json")


def test_parts_travel() -> None:
    part = RunPart(
        node=3, attempt=2, host="n", end=EndCause.PREEMPTED, exit_code=143, error="x", stage_seconds=1.5
    )
    assert decode_part(encode_part(part), "runs/x/y/part-3-2") == (part, None)
    used = Usage(7, 1.5)
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


def test_when_a_run_is_over(shop: Shop) -> None:
    start = replace(shop.run("true").record, nodes=2, retries=1)
    assert not is_over(start, [])
    assert not is_over(start, [ended(0)])
    assert is_over(start, [ended(0), ended(1)])
    assert not is_over(start, [ended(0), ended(1, 3)]), "another attempt is due"
    assert is_over(start, [ended(0), ended(1, 3, end=EndCause.TIME_LIMIT)])
    again = [ended(0), ended(1, 3), ended(0, 0, 2), ended(1, 4, 2)]
    assert not is_over(start, again[:3]) and is_over(start, again)


def test_the_record_of_several_nodes(shop: Shop) -> None:
    start = replace(shop.run("true").record, nodes=2, parts=(), end=None, started_ms=40)
    parts = [ended(1, 9, at=100, host="b"), ended(0, 143, at=130, host="a", exit_signal="SIGTERM")]
    record = assemble(start, parts)
    assert (record.exit_code, record.end, record.ended_ms, record.started_ms) == (9, EndCause.EXITED, 130, 50)
    assert [part.node for part in record.parts] == [0, 1]
    assert (record.stage_bytes, record.cache_hit) == (20, False)
    assert assemble(start, reversed(parts)).encode() == record.encode()
    unknown = assemble(start, [])
    assert (unknown.end, unknown.exit_code) == (EndCause.LOST_SIGHT, 125)


def test_logs_of_several_nodes_are_told_apart() -> None:
    logs = [(1, 1, b"one\n"), (0, 1, b"zero\n"), (0, 2, b"again\n")]
    assert join_logs(logs[1:], 1) == b"zero\nagain\n"
    assert join_logs(logs, 2) == (
        b"[dsv: node 0, attempt 1]\nzero\n[dsv: node 1, attempt 1]\none\n[dsv: node 0, attempt 2]\nagain\n"
    )


class _Full(Folders):
    def stage(self, target: Target, run: RunId) -> tuple[Staged, FolderLease]:
        raise NoRoom("1 TB is needed, and 1 GB can be made free")


def test_data_that_has_no_room_is_the_end_of_the_part(shop: Shop) -> None:
    """The other nodes, and whoever completes the record, are told why."""
    shop.data = _Full(shop.data.folder)
    part, log = on_node(shop, "true", attempt=2)
    assert (part.exit_code, log, part.attempt, part.end) == (
        125,
        None,
        2,
        EndCause.NOT_STARTED,
    )
    assert part.error == "1 TB is needed, and 1 GB can be made free"
