"""What stdout gets, and when."""

from __future__ import annotations

import io
import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.cli import output
from dsv.cli.output import CommandOutput, ReaderGone, local_time, printable, rfc3339, to_json, write_items
from tests.kit.dsv import full_pipe


class Pipe(io.RawIOBase):
    """Takes a few bytes at a time, and is closed by its reader after `limit` bytes."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.got = bytearray()
        self.limit = limit

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        if len(self.got) >= self.limit:
            raise BrokenPipeError
        part = bytes(data)[:7]  # type: ignore[call-overload]
        self.got += part
        return len(part)


def test_nothing_is_sent_before_it_is_published() -> None:
    pipe = Pipe()
    with CommandOutput(pipe) as out:  # type: ignore[arg-type]
        out.line("a result")
        assert not pipe.got
        out.publish()
        out.publish()
    assert pipe.got == b"a result\n"


def test_what_is_not_published_is_dropped() -> None:
    pipe = Pipe()
    with CommandOutput(pipe) as out:  # type: ignore[arg-type]
        out.line("half")
    assert not pipe.got


def test_a_large_result_waits_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "HELD_IN_MEMORY", 100)
    pipe = Pipe()
    with CommandOutput(pipe) as out:  # type: ignore[arg-type]
        for number in range(100):
            out.line(f"line {number}")
        assert not pipe.got
        assert not isinstance(out._held, io.BytesIO)
        out.publish()
    assert pipe.got.decode().splitlines() == [f"line {number}" for number in range(100)]


def test_streaming_begins_when_the_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "HELD_IN_MEMORY", 5)
    pipe = Pipe()
    with CommandOutput(pipe) as out:  # type: ignore[arg-type]
        out.stream_when_large()
        out.write(b"one ")
        assert not pipe.got
        out.write(b"two")
        assert pipe.got == b"one two"


def test_a_reader_that_left_is_distinguished_from_other_errors() -> None:
    with CommandOutput(Pipe(limit=10)) as out, pytest.raises(ReaderGone):  # type: ignore[arg-type]
        out.write(b"x" * 100)
        out.publish()


@given(
    st.lists(
        st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.none(), max_size=3)
    )
)
def test_items_are_one_valid_document(items: list[dict[str, object]]) -> None:
    pipe = Pipe()
    with CommandOutput(pipe) as out:  # type: ignore[arg-type]
        write_items(out, iter(items), {"branch": "main"})
        out.publish()
    assert json.loads(pipe.got) == {"schema": 1, "branch": "main", "items": items}


@given(st.binary(max_size=20))
def test_any_name_makes_valid_json_and_one_printable_line(name: bytes) -> None:
    text = name.decode("utf-8", "surrogateescape")
    assert json.loads(to_json({"path": text})) == {"path": text}
    assert "\n" not in printable(name)
    assert "\x1b" not in printable(name)


def test_names_of_every_script_stay_readable() -> None:
    for name in ("Größe.png", "胸部X線.png", "naïve\u00a0name", "ملف", "a b"):
        assert printable(name) == name
    assert printable("a\nb\tc\x1b[2J\u202e") == "a\\nb\\tc\\x1b[2J\\u202e"


def test_times_are_rfc_3339_in_utc() -> None:
    assert rfc3339(1_795_180_865_999) == "2026-11-20T13:21:05Z"
    assert rfc3339(None) is None


@pytest.mark.parametrize("time_ms", [1 << 63, -(1 << 63), 253_402_300_799_999, 1e308])
def test_times_that_no_calendar_has_are_shown(time_ms: float) -> None:
    assert local_time(time_ms)[:4] in ("9999", "1000")
    assert local_time(None) == "-"


class Counting(io.FileIO):
    """Counts how often it is written to."""

    writes = 0

    def write(self, data: object, /) -> int:
        self.writes += 1
        return super().write(data)  # type: ignore[arg-type]


def test_a_full_stdout_that_does_not_block_is_waited_for() -> None:
    reading, writing, size = full_pipe()
    with open(reading, "rb", buffering=0) as reader, Counting(writing, "w") as raw, CommandOutput(raw) as out:
        out.line("a result" * 100_000)

        def send() -> None:
            out.publish()
            raw.close()

        sender = threading.Thread(target=send)
        sender.start()
        while not raw.writes:
            time.sleep(0.001)
        time.sleep(0.2)
        tries = raw.writes
        got = reader.readall()
        sender.join()
    assert got == b"x" * size + b"a result" * 100_000 + b"\n"
    assert tries == 1
