"""Durations, sizes and times as people write and read them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from dsv.errors import UsageError

LONGEST: Final = 36525 * 86400
"""Seconds of the longest duration: a century, so that its end has a date."""

_SECONDS = {"y": 365 * 86400, "w": 7 * 86400, "d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile("".join(rf"(?:(\d{{1,9}}(?:\.\d{{1,6}})?) ?{unit} ?)?" for unit in _SECONDS), re.ASCII)
_MINUTE = re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(?:Z|[+-]\d{2}:?\d{2}(?::\d{2})?)?", re.ASCII)
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s?(?:([kKMGTPE])(i)?)?B?", re.ASCII)
_PLAIN = 1_000_000  # from this size on, a number without a unit means bytes
_EARLIEST, _LATEST = (datetime(*day, tzinfo=UTC).timestamp() * 1000 for day in ((1000, 1, 2), (9999, 12, 30)))
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def parse_duration(text: str) -> int:
    """Return the seconds of `30s`, `1.5h`, `1d12h`, `3m 5s` (as `format_duration` prints it), `2w`, `1y` (365 days)
    or `0`, at most a century. Raises `UsageError`."""
    if text.strip() == "0":
        return 0
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise UsageError(
            f"{text!r} is not a duration", subject=text, hint="write it like 30s, 10m, 1.5h, 1d12h, 2w or 1y"
        )
    counts = zip(match.groups(), _SECONDS.values(), strict=True)
    seconds = round(sum(float(count or 0) * size for count, size in counts))
    if seconds > LONGEST:
        raise UsageError(
            f"{text!r} is longer than 100 years", subject=text, hint="say less, or leave the limit out"
        )
    return seconds


def parse_moment(text: str, now_ms: float, *, end: bool = False) -> float:
    """Return milliseconds since 1970 for `2026-11-20`, `2026-11-20 14:30` (local), `2026-11-20 14:30+01:00` (as
    `format_time` prints it), `2026-11-20T13:30:00Z`, or `2w`, a time two weeks ago.

    end: the last millisecond of the day, minute or second. Raises `UsageError`.
    """
    stripped = text.strip()
    try:
        moment = datetime.fromisoformat(stripped)
        seconds = 86400 if not set(":T") & set(stripped) else 60 if _MINUTE.fullmatch(stripped) else 1
        if end and not moment.microsecond:
            moment += timedelta(seconds=seconds, milliseconds=-1)
        return moment.timestamp() * 1000
    except (ValueError, OverflowError):
        if _DURATION.fullmatch(stripped) and stripped:
            return now_ms - 1000 * parse_duration(stripped)
        raise UsageError(
            f"{text!r} is not a time", subject=text, hint="write it like 2026-11-20, '2026-11-20 14:30' or 2w"
        ) from None


def parse_size(text: str) -> int:
    """Return the bytes of `500M` (10^6), `1.5GiB` (2^30), `10B` or `5000000`. Raises `UsageError`.

    A small number without a unit is refused: 10 hardly means ten bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size", subject=text, hint="write it like 500M, 1T or 1.5GiB")
    number, prefix, binary = match.groups()
    if text.strip().replace(".", "").isdecimal() and 0 < float(number) < _PLAIN:
        raise UsageError(
            f"the size {text} has no unit", subject=text, hint=f"write {number}G, {number}M or {number}B"
        )
    factor = int((1024 if binary else 1000) ** (_POWERS[prefix.upper()] if prefix else 0))
    whole, _, fraction = number.partition(".")
    return int(whole) * factor + int(fraction or "0") * factor // int(10 ** len(fraction))


def utc(time_ms: float) -> datetime:
    """Return the date, to the second, of milliseconds since 1970; the nearest date if no calendar has it."""
    return datetime.fromtimestamp(min(max(_EARLIEST, time_ms), _LATEST) // 1000, UTC)


def format_time(time_ms: float) -> str:
    """Return a time for people, local and with its offset: `2026-11-20 14:21+01:00`."""
    moment = utc(time_ms)
    with suppress(ValueError):  # TZ may name an offset of a day, which no datetime has
        moment = moment.astimezone()
    return moment.isoformat(" ", "minutes")


def rfc3339(time_ms: float) -> str:
    """Format milliseconds since 1970 as `2026-11-20T13:21:05Z`, without fractions, which jq can't read."""
    return f"{utc(time_ms):%Y-%m-%dT%H:%M:%SZ}"


def format_count(count: int, one: str) -> str:
    """Return `1 file`, `1,195 files` or `2 branches`: for nouns whose plural ends in s."""
    return f"{count:,} {one}" + ("" if count == 1 else "es" if one.endswith("ch") else "s")


def format_lines(lines: Sequence[str], most: int = 20) -> str:
    """Return lines to append to a message, each after a newline: at most `most`, and how many more exist."""
    more = [f"and {len(lines) - most:,} more"] if len(lines) > most else []
    return "".join(f"\n  {line}" for line in [*lines[:most], *more])


def format_bytes(count: int) -> str:
    """Return three digits and a decimal unit: `999 B`, `1.50 kB`, `32.0 MB`, `250 GB`."""
    if abs(count) < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        value /= 1000
        if abs(value) < 9.995:
            return f"{value:.2f} {unit}"
        if abs(value) < 99.95:
            return f"{value:.1f} {unit}"
        if abs(value) < 999.5:
            return f"{value:.0f} {unit}"
    return f"{value / 1000:.2f} EB"


def format_duration(seconds: float) -> str:
    """Return the two largest units that are not zero: `0.4 s`, `42 s`, `3m 5s`, `2h`, `1d 12h`, `3w`."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    rest = round(seconds)
    if rest < 60:
        return f"{rest} s"
    parts = []
    for unit, size in (("w", 604800), ("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
        if len(parts) == 2 or (parts and not count):
            break
    return " ".join(parts)
