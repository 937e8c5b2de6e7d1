"""`dsv node`: two processes of this machine as the nodes of a run, with a cache that they share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsv.run.node_order import NodeOrder, OrderedData
from dsv.run.record import LOG, EndCause, RunId, RunRecord, RunState
from dsv.run.record_store import RunStore
from dsv.store.directory import DirectoryStore
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName
from tests.kit.dsv import Dsv, write_files

RUN = RunId.parse("20261120-132145-1f2e3d4c")


@pytest.fixture
def pets(dsv: Dsv) -> Dsv:
    write_files(dsv.cwd, {f"train/{number}.bin": os.urandom(300_000) for number in range(12)})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    return dsv


def commit(pets: Dsv) -> str:
    return pets.ok("resolve", "pets").out.strip()


def write_order(pets: Dsv, nodes: int, retries: int = 0) -> Path:
    data = OrderedData(dataset="pets", commit=commit(pets))
    path = pets.home / "order.json"
    path.write_bytes(
        NodeOrder(run=RUN, data=(data,), nodes=nodes, retries=retries, out=str(pets.home / "out")).encode()
    )
    return path


def runs(pets: Dsv) -> RunStore:
    return RunStore(DirectoryStore(Path(pets.ok("config", "store").out.strip())))


def write_start(pets: Dsv, nodes: int, retries: int = 0) -> None:
    start = RunRecord(
        run=RUN, dataset=DatasetName.parse("pets"), commit=CommitId.parse(commit(pets)), target="pets", data=(),
        state=RunState.RUNNING, engine="process", params={}, out="/out", host="a", user="ada", started_ms=1,
        nodes=nodes, retries=retries,
    )  # fmt: skip
    runs(pets).write(start.dataset, RUN, "start", start.encode())


def on_nodes(pets: Dsv, order: Path, script: str, attempt: int = 1) -> list[int]:
    nodes = [
        pets.start("node", str(order), "--rank", str(rank), "--addresses", "127.0.0.1,127.0.0.2",
                   "--attempt", str(attempt), "--", "sh", "-c", script)
        for rank in (0, 1)
    ]  # fmt: skip
    ends = []
    for process in nodes:
        process.communicate()
        ends.append(process.returncode)
    return ends


def record(pets: Dsv) -> RunRecord:
    return runs(pets).read(runs(pets).listing(DatasetName.parse("pets"), RUN)[0])


def test_two_nodes_fetch_each_byte_once_and_leave_one_record(pets: Dsv) -> None:
    """Each waits for the other's file, so both are there at the same time."""
    order = write_order(pets, 2)
    write_start(pets, 2)
    meet = 'touch "$DSV_OUT/$NODE_RANK"; until [ -e "$DSV_OUT/0" ] && [ -e "$DSV_OUT/1" ]; do sleep 0.1; done'
    ends = on_nodes(
        pets, order, f'{meet}; cat "$DSV_DATA"/train/* | wc -c; echo "node $NODE_RANK of $WORLD_SIZE"'
    )
    assert ends == [0, 0]
    whole = record(pets)
    assert (whole.state, whole.exit_code, whole.end) == (RunState.ENDED, 0, EndCause.EXITED)
    assert [(part.node, part.attempt, part.exit_code) for part in whole.parts] == [(0, 1, 0), (1, 1, 0)]
    fetched = (
        pets.at(pets.cwd, DSV_CACHE=str(pets.home / "alone")).ok("cache", "pets", "--json").json["items"][0]
    )
    assert whole.stage_bytes == fetched["fetched_bytes"] > 3_000_000
    log = pets.ok("runs", RUN, "--log").out
    assert log.count("3600000") == 2 and "node 0 of 2" in log and "[dsv: node 1, attempt 1]" in log
    assert pets("wait", RUN).code == 0


def test_the_last_node_sends_the_output(pets: Dsv) -> None:
    """Of the folder that both nodes write to, when both have ended."""
    order = write_order(pets, 2)
    order.write_bytes(order.read_bytes().replace(b'"keep_output":false', b'"keep_output":true'))
    write_start(pets, 2)
    assert on_nodes(pets, order, 'echo hello >"$DSV_OUT/of-$NODE_RANK"') == [0, 0]
    output = record(pets).output
    assert output is not None and output.tree is not None
    assert {"of-0", "of-1"} <= set(pets.ok("ls", f"pets@{output.tree}").out.split())


def test_the_node_that_failed_first_says_how_the_run_ended(pets: Dsv) -> None:
    order = write_order(pets, 2)
    write_start(pets, 2)
    fail = 'if [ "$NODE_RANK" = 1 ]; then touch "$DSV_OUT/failed"; exit 9; fi; '
    wait = 'until [ -e "$DSV_OUT/failed" ]; do sleep 0.1; done; sleep 1; exit 5'
    assert on_nodes(pets, order, fail + wait) == [5, 9]
    assert (record(pets).exit_code, record(pets).end) == (9, EndCause.EXITED)
    assert pets("wait", RUN).code == 9


def test_a_further_attempt_belongs_to_the_same_run(pets: Dsv) -> None:
    order = write_order(pets, 2, retries=1)
    write_start(pets, 2, retries=1)
    assert on_nodes(pets, order, 'test "$DSV_ATTEMPT" = 2') == [1, 1]
    assert record(pets).state is RunState.RUNNING, "there is an attempt left"
    assert on_nodes(pets, order, 'test "$DSV_ATTEMPT" = 2', attempt=2) == [0, 0]
    whole = record(pets)
    assert (whole.exit_code, len(whole.parts)) == (0, 4)


def test_a_log_that_another_has_written_leaves_the_record_whole(pets: Dsv) -> None:
    """Whoever wrote it was killed before the record."""
    order = write_order(pets, 2)
    write_start(pets, 2)
    runs(pets).write(DatasetName.parse("pets"), RUN, LOG, b"what another saw")
    assert on_nodes(pets, order, "exit 3") == [3, 3]
    whole = record(pets)
    assert (whole.state, whole.exit_code) == (RunState.ENDED, 3)
    assert whole.log is not None and whole.log.kept_bytes == len(b"what another saw")


def test_what_a_node_left_waits_if_the_store_is_away(pets: Dsv) -> None:
    order = write_order(pets, 1)
    write_start(pets, 1)
    pets.ok("cache", "pets")
    store = Path(pets.ok("config", "store").out.strip())
    away = store.with_name("away")
    done = pets.process("node", str(order), "--", "sh", "-c", f"mv {store} {away}; exit 3")
    assert done.code == 3 and "is kept here" in done.err
    away.rename(store)
    pets.ok("run", "pets", "--", "true")
    stored = runs(pets).listing(DatasetName.parse("pets"), RUN)[0]
    assert "part-0-1" in stored.parts and runs(pets).node_parts(stored)[0].exit_code == 3


@pytest.mark.parametrize("content", [b"", b"{}", b"no json"])
def test_a_file_that_is_no_order(pets: Dsv, content: bytes) -> None:
    path = pets.home / "order.json"
    path.write_bytes(content)
    refused = pets("node", str(path), "--", "true")
    assert refused.code == 125 and "is no order for the nodes of a run" in refused.err
    missing = pets("node", str(pets.home / "none"), "--", "true")
    assert missing.code == 125 and "No such file" in missing.err
    assert pets("node", str(path)).code == 2
