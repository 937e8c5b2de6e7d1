"""What each kind of progress shows, by a clock that the test turns."""

from __future__ import annotations

import io
import json
import re
import threading

import pytest

from dsv.cli.progress import Bar, JsonLines, Lines, Meter
from dsv.periodic import NEVER
from dsv.stores.retry import Retrying
from dsv.values.progress import Progress
from tests.kit.dsv import Dsv
from tests.stores.wire import s3_error, serving
from tests.waiting import PATIENCE


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def work(meter: Progress, clock: Clock, seconds: int) -> None:
    meter.start(100, 1_000_000)
    for _ in range(seconds):
        clock.now += 1
        meter.advance(files=1, bytes=10_000, transferred=5_000)
    meter.finish()


def test_without_a_terminal_there_is_a_line_every_ten_seconds(clock: Clock) -> None:
    stream = io.StringIO()
    work(Lines("sync", stream, clock), clock, 35)
    assert stream.getvalue().splitlines() == [
        "sync: 10 of 100 files, 100 kB of 1.00 MB, 10.0 kB/s, 1m 30s left",
        "sync: 20 of 100 files, 200 kB of 1.00 MB, 10.0 kB/s, 1m 20s left",
        "sync: 30 of 100 files, 300 kB of 1.00 MB, 10.0 kB/s, 1m 10s left",
    ]


def test_short_work_says_nothing(clock: Clock) -> None:
    stream = io.StringIO()
    work(Lines("sync", stream, clock), clock, 9)
    work(Bar("sync", stream, 80, True, clock), clock, 0)
    assert stream.getvalue() == ""


def test_json_is_an_object_a_second_and_one_at_the_end(clock: Clock) -> None:
    stream = io.StringIO()
    meter = JsonLines("cache", stream, clock)
    meter.note("waiting")
    work(meter, clock, 3)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["note", "progress", "progress", "progress", "end"]
    assert lines[0] == {"schema": 1, "event": "note", "command": "cache", "text": "waiting"}
    assert lines[2] == {
        "schema": 1,
        "event": "progress",
        "command": "cache",
        "files": 2,
        "total_files": 100,
        "bytes": 20_000,
        "total_bytes": 1_000_000,
        "transferred_bytes": 10_000,
        "bytes_per_second": 10_000,
        "seconds_left": 98.0,
    }


def test_a_new_phase_counts_anew(clock: Clock) -> None:
    meter = Meter("sync", clock=clock)
    meter.start(10, None)
    meter.advance(files=10)
    clock.now += 5
    meter.start(None, None)
    assert meter.summary() == "0 files"
    meter.advance(files=3)
    clock.now += 1
    assert meter.summary() == "3 files"


def test_time_left_comes_from_files_where_bytes_are_unknown(clock: Clock) -> None:
    meter = Meter("sync", clock=clock)
    meter.start(10, None)
    clock.now += 10
    meter.advance(files=5)
    assert meter.seconds_left == pytest.approx(10)


def test_a_summary_fits_and_keeps_the_time_left(clock: Clock) -> None:
    meter = Meter("sync", clock=clock)
    meter.start(50_000, 400_000_000)
    clock.now += 10
    meter.advance(files=1000, bytes=8_000_000)
    assert meter.summary() == "1,000 of 50,000 files, 8.00 MB of 400 MB, 800 kB/s, 8m 10s left"
    assert meter.summary(50) == "8.00 MB of 400 MB, 800 kB/s, 8m 10s left"
    assert meter.summary(35) == "8.00 MB of 400 MB, 8m 10s left"
    assert meter.summary(10) == "8.00 MB of 400 MB"


@pytest.mark.parametrize("columns", [30, 60, 120])
def test_the_bar_is_one_line_that_fits_and_goes_away(clock: Clock, columns: int) -> None:
    stream = io.StringIO()
    bar = Bar("cache", stream, columns, False, clock)
    bar.start(30, 30_000_000)
    clock.now += 1
    bar.advance(files=10, bytes=10_000_000)
    bar.note("part 3 was taken over")
    clock.now += 1
    bar.advance(files=10, bytes=10_000_000)
    shown = stream.getvalue()
    assert "10" in shown and "━" in shown
    assert all(
        len(re.sub(r"\x1b[^A-Za-z]*[A-Za-z]", "", line)) <= columns for line in re.split("[\r\n]", shown)
    )
    assert "part 3 was taken over" in shown
    bar.finish()
    bar.finish()
    assert "\x1b[2K" in stream.getvalue()[len(shown) :]


def test_threads_lose_no_count() -> None:
    meter = Meter("sync")
    threads = [
        threading.Thread(target=lambda: [meter.advance(1, 2, 3) for _ in range(2000)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (meter.files, meter.bytes, meter.transferred) == (16_000, 32_000, 48_000)


def test_a_reader_of_stderr_that_left_stops_nothing(clock: Clock) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    work(Lines("sync", Gone(), clock), clock, 12)


@pytest.mark.parametrize("quiet", [False, True])
def test_a_silent_server_is_named_once(quiet: bool, dsv: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with --quiet. The server answers when the watcher has looked often enough to say it."""
    looked, enough = [], threading.Event()
    look = Retrying.look

    def looking(store: Retrying) -> float:
        looked.append(look(store))
        if looked[-1] == NEVER:
            enough.set()
        return 0.0 if looked[-1] != NEVER else NEVER

    monkeypatch.setattr("dsv.stores.retry.SILENT", 0.0)
    monkeypatch.setattr(Retrying, "look", looking)
    missing = s3_error("404 Not Found", "NoSuchBucket")
    with serving(relay=lambda request: missing if enough.wait(PATIENCE) else b"") as wire:
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
        asking = Dsv(dsv.home, dsv.cwd, {**dsv.environ, **keys, "AWS_ENDPOINT_URL": wire.endpoint})
        result = asking("datasets", "--store", "s3://lake/dsv", *(["--quiet"] if quiet else []))
    assert result.code == 3
    assert result.err.count("waiting for s3://lake/dsv: no usable answer") == (not quiet)
