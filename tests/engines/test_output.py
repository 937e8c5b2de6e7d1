"""What a job writes: on its way to the terminal, and what is kept of it."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.run.engines import output as output_module
from dsv.run.engines.output import QUEUE_SIZE, JobOutput, LogKeeper, NodeLines, whole_lines
from dsv.values.secrets import Masker
from tests.waiting import PATIENCE


class Pipes:
    """The two streams of a job."""

    def __init__(self) -> None:
        (out_read, self.out), (err_read, self.err) = os.pipe(), os.pipe()
        self.sources = os.fdopen(out_read, "rb", 0), os.fdopen(err_read, "rb", 0)

    def close(self) -> None:
        os.close(self.out)
        os.close(self.err)


def test_a_slow_reader_gets_everything() -> None:
    """More than the queue and the pipes hold, read only after the job's end."""
    reader, writer = os.pipe()
    pipes = Pipes()
    output = JobOutput(writer, None)
    output.attach(*pipes.sources)
    size = QUEUE_SIZE + (1 << 20)

    def job() -> None:
        left = b"x" * size
        while left:
            left = left[os.write(pipes.out, left) :]
        pipes.close()

    thread = threading.Thread(target=job)
    thread.start()
    time.sleep(0.3)
    assert thread.is_alive()  # held back, as a pipe would
    got = 0
    while got < 1 << 20:
        got += len(os.read(reader, 1 << 20))
    thread.join()
    output.job_ended()
    assert not output.drained(0.2)
    while got < size:
        got += len(os.read(reader, 1 << 20))
    assert output.drained(PATIENCE) and got == size
    os.close(reader)
    os.close(writer)


def test_held_back_output_is_not_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that pauses for longer than a stream may be silent."""
    monkeypatch.setattr(output_module, "LAST_READ", 0.2)
    monkeypatch.setattr(output_module, "QUEUE_SIZE", 1000)
    reader, writer = os.pipe()
    pipes = Pipes()
    output = JobOutput(writer, None)
    output.attach(*pipes.sources)
    fcntl.fcntl(pipes.out, fcntl.F_SETPIPE_SZ, 1 << 20)
    _write(pipes.out, b"y" * 500_000)
    pipes.close()
    output.job_ended()
    assert not output.drained(1.0)
    got = 0
    while got < 500_000:
        got += len(os.read(reader, 1 << 20))
    assert output.drained(PATIENCE)
    os.close(reader)
    os.close(writer)


def test_a_stream_that_stays_open_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "LAST_READ", 0.3)
    pipes = Pipes()
    output = JobOutput(None, None)
    output.attach(*pipes.sources)
    assert not output.drained(0.5)
    began = time.monotonic()
    output.job_ended()
    assert output.drained(PATIENCE)
    assert time.monotonic() - began >= 0.3
    pipes.close()


@pytest.mark.parametrize("size", [100, 10_000])
def test_a_process_that_keeps_writing_is_not_read_for_ever(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A daemon that got away: many small writes, and more than any terminal takes. The job's own output is whole."""
    monkeypatch.setattr(output_module, "LAST_READ", 0.5)
    reader, writer = os.pipe()
    pipes = Pipes()
    fcntl.fcntl(pipes.out, fcntl.F_SETPIPE_SZ, 1 << 20)
    keeper = LogKeeper(20 << 20)
    output = JobOutput(writer, None, keeper)
    job = b"j" * 900_000
    _write(pipes.out, job)
    closed = threading.Event()

    def daemon() -> None:
        try:
            while True:
                _write(pipes.out, b"d" * size)
                time.sleep(0.001)
        except BrokenPipeError:
            closed.set()

    threading.Thread(target=daemon, daemon=True).start()
    os.close(pipes.err)
    got: list[bytes] = []

    def read() -> None:
        while data := os.read(reader, 1 << 16):
            got.append(data)
            time.sleep(0.01)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    output.attach(*pipes.sources)
    output.job_ended()
    assert output.drained(PATIENCE)
    assert closed.wait(PATIENCE)
    os.close(writer)
    reading.join(PATIENCE)
    assert b"".join(got).startswith(job) and keeper.kept(Masker()).total >= len(job)
    os.close(reader)
    os.close(pipes.out)


def test_letting_go_of_a_stuck_terminal_keeps_the_log_whole() -> None:
    reader, writer = os.pipe()
    pipes = Pipes()
    keeper = LogKeeper(20 << 20)
    output = JobOutput(writer, None, keeper)
    output.attach(*pipes.sources)
    size = QUEUE_SIZE + (1 << 20)
    thread = threading.Thread(target=lambda: (_write(pipes.out, b"z" * size), pipes.close()))
    thread.start()
    time.sleep(0.2)
    output.let_go()
    output.job_ended()
    thread.join(PATIENCE)
    assert output.drained(PATIENCE)
    assert keeper.kept(Masker()).total == size
    os.close(reader)
    os.close(writer)


def test_a_terminal_that_does_not_block_is_waited_for() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    pipes = Pipes()
    output = JobOutput(writer, None)
    output.attach(*pipes.sources)
    threading.Thread(target=lambda: (_write(pipes.out, b"w" * 300_000), pipes.close())).start()
    time.sleep(0.2)
    got = 0
    while got < 300_000:
        got += len(os.read(reader, 1 << 16))
    output.job_ended()
    assert output.drained(PATIENCE)
    os.close(reader)
    os.close(writer)


def test_the_last_line_of_stderr() -> None:
    pipes = Pipes()
    output = JobOutput(None, None)
    output.attach(*pipes.sources)
    _write(pipes.err, b"pulling\ndocker: it failed\n\nRun 'docker run --help' for more information\n")
    pipes.close()
    assert output.was_read(5)
    assert output.last_line() == "docker: it failed"


def written(*pieces: bytes, end: bool = False) -> bytes:
    """Return the bytes that a reader gets after node 3 of several nodes has written these."""
    reader, writer = os.pipe()
    lines = NodeLines(writer)
    for piece in pieces:
        lines.write(piece, 3)
    if end:
        lines.end_lines()
    os.close(writer)
    with os.fdopen(reader, "rb") as shown:
        return shown.read()


def test_a_progress_bar_of_one_of_several_nodes_is_shown_as_it_changes() -> None:
    assert written(b"10%\r20%\r30%") == b"[3] 10%\r[3] 20%\r"
    assert written(b"10%\r", b"20%\r", b"30%\n") == b"[3] 10%\r[3] 20%\r[3] 30%\n"


def test_a_line_of_one_of_several_nodes_that_ends_in_two_writes_is_one() -> None:
    assert written(b"one\r", b"\ntwo\r\n") == b"[3] one\r\n[3] two\r\n"


@given(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"5%", b"epoch "]), max_size=12))
def test_the_lines_of_one_of_several_nodes_are_the_same_however_they_were_written(parts: list[bytes]) -> None:
    whole = b"".join(parts)
    shown = written(whole, end=True)
    assert shown == written(*parts, end=True) == written(*(bytes([each]) for each in whole), end=True)
    assert shown.replace(b"[3] ", b"").removesuffix(b"\n") == whole.removesuffix(b"\n")


@given(st.lists(st.binary(max_size=400), max_size=30), st.integers(400, 2000))
def test_a_log_is_whole_or_head_and_tail(parts: list[bytes], limit: int) -> None:
    keeper = LogKeeper(limit)
    for part in parts:
        keeper.add(part)
    whole = b"".join(parts)
    kept = keeper.kept(Masker())
    assert kept.total == len(whole)
    assert len(kept.data) <= limit
    if kept.data != whole:
        head, _, rest = kept.data.partition(b"\n[dsv: ")
        middle, _, tail = rest.partition(b" bytes are left out here]\n")
        assert whole.startswith(head) and whole.endswith(tail)
        assert int(middle) == len(whole) - len(head) - len(tail) > 0
        assert len(whole) > limit - 200


def test_no_part_of_a_secret_is_left_at_the_cut() -> None:
    secret = "abcdefghijklmnopqrst"
    for shift in range(45):
        keeper = LogKeeper(1000)
        keeper.add(b"-" * shift + secret.encode() * 500)
        data = keeper.kept(Masker((("TOKEN", secret),))).data
        assert len(data) > 100
        rest = data.replace(b"bytes are left out here", b"")
        assert not any(secret[start : start + 4].encode() in rest for start in range(len(secret) - 3))


def test_a_full_log_is_masked() -> None:
    keeper = LogKeeper()
    keeper.add(b"token is hunter2-hunter2, and AKIAABCDEFGHIJKLMNOP\n")
    assert keeper.kept(Masker((("TOKEN", "hunter2-hunter2"),))).data == b"token is ***, and ***\n"


def test_a_secret_that_was_written_in_pieces_is_masked() -> None:
    """Each stream by itself, whatever the other one writes in between."""
    keeper = LogKeeper()
    for data, stream in (
        (b"token hunter2-", "stdout"),
        (b"warn", "stderr"),
        (b"hunter2\n", "stdout"),
        (b"ing", "stderr"),
    ):
        keeper.add(data, stream)
    kept = keeper.kept(Masker((("TOKEN", "hunter2-hunter2"),)))
    assert kept.data == b"token ***\nwarning" and kept.total == len(b"token hunter2-hunter2\nwarning")


def test_what_is_known_by_its_looks_alone_is_not_left_at_the_cut() -> None:
    token, key = (
        b"ghp_" + b"x" * 36,
        b"-----BEGIN PRIVATE KEY-----\n" + b"MIIx\n" * 60 + b"-----END PRIVATE KEY-----\n",
    )
    for secret, part in ((token, b"xxx"), (key, b"MIIx")):
        for shift in range(0, 2 * len(secret), 3):
            keeper = LogKeeper(2000)
            keeper.add(b"-" * shift + (b" line of words\n" + secret + b"\n") * 50)
            assert part not in keeper.kept(Masker()).data


def test_lines_of_a_log_come_whole() -> None:
    """A secret is then found, wherever the pieces end."""
    assert list(whole_lines([b"a tok", b"en\nan", b"d 10%\r20%", b""])) == [
        b"a token\n",
        b"and 10%\r",
        b"20%",
    ]
    long = b"x" * 50_000
    assert list(whole_lines([long, long, b"y"])) == [long + long, b"y"]


def test_memory_of_a_log_is_bounded(tmp_path: Path) -> None:
    keeper = LogKeeper(1 << 20)
    for _ in range(3000):
        keeper.add(b"x" * 1000)
    assert len(keeper._head) + sum(map(len, keeper._tail)) < (1 << 20) + (1 << 17)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
