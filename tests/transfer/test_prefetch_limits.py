"""Reading processes need neither room in a pipe nor memory without end."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from dsv.files.descent import Descent
from dsv.format.codec import Compressor
from dsv.format.tree import Kind
from dsv.transfer import prefetch as readers_module
from dsv.transfer.prefetch import FILES, SLOT, Readers, ReadRequest, Slot, read_batch
from dsv.workspace.scan.folder import Relation
from dsv.workspace.scan.result import Gone, Pending
from tests.waiting import PATIENCE


def small_pipe() -> tuple[Connection, Connection]:
    """As little room as this system gives."""
    pair = socket.socketpair()
    for one in pair:
        for which in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            one.setsockopt(socket.SOL_SOCKET, which, 1)
    ours, theirs = (Connection(one.detach()) for one in pair)
    return ours, theirs


def test_neither_side_waits_for_room_that_the_other_does_not_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers_module, "Pipe", small_pipe)
    folder = tmp_path / ("long" * 50)
    folder.mkdir()
    names = [os.fsencode(folder.name) + b"/%05d" % number for number in range(8 * FILES)]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(name)
    done: list[bytes] = []
    with Readers(tmp_path, 1) as readers:
        readers._own.clear()  # so that the process reads all of them

        def read() -> None:
            for run in readers.over(iter([pending(name) for name in names])):
                assert run.batch is not None and all(run.batch.read)
                done.extend(run.paths)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        waits = thread.is_alive()
        os.kill(readers._readers[0]._process.pid, signal.SIGKILL)
        thread.join()
    assert not waits and done == names


def test_an_answer_has_room_behind_its_slot_whatever_it_says(tmp_path: Path) -> None:
    names = [b"%03d" % number for number in range(FILES)]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(b"x")
    slot = Slot(memoryview(bytearray(2 * Slot.SIZE)), 1)
    assert len(slot.contents) == SLOT
    with Descent(tmp_path) as descent:
        batch = read_batch(
            descent, Compressor(), ReadRequest(1 << 31, b"\0".join(names), [1] * FILES), slot.contents
        )
    assert slot.read(slot.write(batch)) == batch


def test_work_is_not_cut_without_end_while_a_process_stands_still(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    taken = 0

    def work() -> Iterator[Pending | Gone]:
        nonlocal taken
        yield pending(b"a")
        for number in range(200_000):
            taken += 1
            yield Gone(b"b%06d" % number)

    with Readers(tmp_path, 1) as readers:
        pid = readers._readers[0]._process.pid
        os.kill(pid, signal.SIGSTOP)
        timer = threading.Timer(3, os.kill, (pid, signal.SIGCONT))
        timer.start()
        runs = readers.over(work())
        first = next(runs)
        assert first.batch is not None and first.batch.read == [True]
        assert taken <= (readers_module._RUNS + 2) * FILES
        assert sum(len(run.items) for run in runs) + len(first.items) == 200_001
        timer.join()


def pending(path: bytes) -> Pending:
    return Pending(path, Kind.FILE, len(path), Relation.ABSENT, None, None, b"", 0)
