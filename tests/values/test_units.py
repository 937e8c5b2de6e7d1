from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from dsv.errors import UsageError
from dsv.values.units import (
    LONGEST,
    format_bytes,
    format_count,
    format_duration,
    format_time,
    parse_duration,
    parse_moment,
    parse_size,
    rfc3339,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1800),
        ("12h", 43200),
        ("1d", 86400),
        ("2w", 1209600),
        ("90s", 90),
        ("1.5h", 5400),
        ("0s", 0),
        (" 1d ", 86400),
        ("36525d", LONGEST),
        ("1 d", 86400),
        ("1d12h", 129600),
        ("1.5d 30m", 131400),
        ("42 s", 42),
        ("3m 5s", 185),
        ("1y2w", 365 * 86400 + 1209600),
        ("0", 0),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "d",
        "-1d",
        "1M",
        "1n",
        "12h1d",
        "1d1d",
        "1d  1h",
        "1mo",
        "١d",
        "1e3s",
        "inf",
        "36525.1d",
        "9999999d",
        "1d12",
    ],
)
def test_bad_durations(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1234B", 1234),
        ("1234567", 1234567),
        ("500M", 500_000_000),
        ("1T", 10**12),
        ("1.5GiB", 3 << 29),
        ("1GB", 10**9),
        ("1 GB", 10**9),
        ("2Ki", 2048),
        ("3k", 3000),
        ("10B", 10),
        ("1Ei", 1 << 60),
        ("0.1K", 100),
        ("9P", 9 * 10**15),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    "text",
    ["", "M", "-1M", "1.M", "10%", "1Mb", "1X", "1iB", "1e9", "1,5G", "٣M", "10", " 10 ", "1.5", "999999"],
)
def test_bad_sizes(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1500, "1.50 kB"),
        (9994, "9.99 kB"),
        (9996, "10.0 kB"),
        (32_000_000, "32.0 MB"),
        (250_000_000_000, "250 GB"),
        (999_600, "1.00 MB"),
        (3 * 10**15, "3.00 PB"),
        (5 * 10**18, "5.00 EB"),
        (-1500, "-1.50 kB"),
    ],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text
    if count > 0:
        assert abs(parse_size(text) - count) <= count / 200


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.44, "0.4 s"),
        (9.96, "10 s"),
        (42, "42 s"),
        (60, "1m"),
        (185, "3m 5s"),
        (7200, "2h"),
        (3605, "1h"),
        (129600, "1d 12h"),
        (604800, "1w"),
        (59.7, "1m"),
        (-90, "-1m 30s"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
    if seconds >= 0:
        assert abs(parse_duration(text) - seconds) <= max(1, seconds / 100)


def test_counts() -> None:
    assert [format_count(count, "file") for count in (0, 1, 1195)] == ["0 files", "1 file", "1,195 files"]


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (1_795_180_865_999, "2026-11-20T13:21:05Z"),
        (1_795_180_865_999.9, "2026-11-20T13:21:05Z"),
        (-1, "1969-12-31T23:59:59Z"),
        (10**15, "9999-12-30T00:00:00Z"),
        (1 << 80, "9999-12-30T00:00:00Z"),
        (1e308, "9999-12-30T00:00:00Z"),
        (float("inf"), "9999-12-30T00:00:00Z"),
        (-(1 << 63), "1000-01-02T00:00:00Z"),
        (float("nan"), "1000-01-02T00:00:00Z"),
    ],
)
def test_every_number_is_a_time(time_ms: float, text: str) -> None:
    assert rfc3339(time_ms) == text


def test_moments_are_days_times_or_so_long_ago() -> None:
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp() * 1000
    assert parse_moment("2h", noon) == noon - 7_200_000
    assert parse_moment("2026-11-20T14:00:00+02:00", 0) == noon
    day = parse_moment("2026-11-20", 0)
    assert day == datetime(2026, 11, 20).timestamp() * 1000
    assert parse_moment("2026-11-20 01:30", 0) == day + 5_400_000
    assert parse_moment("2026-11-20", 0, end=True) == parse_moment("2026-11-21", 0) - 1
    assert parse_moment("2026-11-20 14:00+02:00", 0) == noon == parse_moment("2026-11-20T12:00:00Z", 0)
    assert parse_moment("2026-11-20 14:00+0200", 0, end=True) == noon + 59_999
    assert parse_moment("2026-11-20T12:00:00Z", 0, end=True) == noon + 999
    assert parse_moment("2026-11-20T12:00:00.250Z", 0, end=True) == noon + 250
    assert parse_moment("1d12h", noon) == noon - 129_600_000


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/St_Johns"])
@pytest.mark.parametrize("time_ms", [0, 1_795_180_865_999, 4_102_444_800_000])
def test_a_printed_time_is_read_as_the_minute_that_it_was(
    zone: str, time_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        text = format_time(time_ms)
        assert len(text) == len("2026-11-20 14:21+01:00") and text[10] == " "
        assert parse_moment(text, 0) <= time_ms <= parse_moment(text, 0, end=True)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_zone_a_day_away_shows_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XXX-24")
    time.tzset()
    try:
        assert format_time(1_795_180_865_999) == "2026-11-20 13:21+00:00"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["yesterday", "", "2026-13-01", "20", "-1d", "2026-11-20T25:00"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_moment(text, 0)
