"""Ids and parameters of runs and sweeps. A sweep has a run for each combination of its parameters' values."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, Final, Self

from dsv.errors import UsageError
from dsv.values.json import Json, check_json, json_or_text

MOST_RUNS: Final = 1000
"""The most runs of a new sweep. Each of its records describes them all, and its driver waits for all."""
MOST_READ: Final = 1_000_000
"""The most runs of a sweep whose records are read."""
PREFIX: Final = "sweep-"

_TIMED = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}", re.ASCII)
ID_PART = re.compile(r"[0-9a-f-]{4,}", re.ASCII)
_PAIRS: Final = {"]": "[", "}": "{"}


class TimedId(str):
    """An id made of the start time in UTC and random digits: `20261120-132145-1f2e3d4c`. Sorts by time."""

    __slots__ = ()
    _what: ClassVar[str]
    _prefix: ClassVar[str] = ""

    @classmethod
    def make(cls, time_ms: int, entropy: bytes) -> Self:
        """Make an id from milliseconds since 1970 and four random bytes."""
        if len(entropy) != 4:
            raise ValueError("an id takes four random bytes")
        moment = datetime.fromtimestamp(time_ms // 1000, UTC)
        return cls(f"{cls._prefix}{moment:%Y%m%d-%H%M%S}-{entropy.hex()}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an id. Raises `UsageError` if it is invalid."""
        if not text.startswith(cls._prefix) or _TIMED.fullmatch(text.removeprefix(cls._prefix)) is None:
            raise UsageError(
                f"{text!r} is not an id of a {cls._what}", subject=text, hint="dsv runs lists them"
            )
        return cls(text)


def is_part(text: str, timed: str) -> bool:
    """Check that a text is a prefix or suffix, of four or more characters, of an id or of its short form, the last 8.
    timed: the id without `sweep-`"""
    known = ID_PART.fullmatch(text) is not None
    return known and (timed.endswith(text) or timed.startswith(text) or timed[-8:].startswith(text))


class RunId(TimedId):
    __slots__ = ()
    _what = "run"


class SweepId(TimedId):
    """`sweep-20261120-132145-1f2e3d4c`."""

    __slots__ = ()
    _what = "sweep"
    _prefix = PREFIX

    @property
    def begun(self) -> str:
        """The start time in the id: a lower bound of the ids of its runs, which begin with a time as well."""
        return self.removeprefix(PREFIX)[:15]

    @property
    def short(self) -> str:
        """`sweep-1f2e3d4c`, which every command accepts."""
        return f"{PREFIX}{self[-8:]}"

    def is_meant_by(self, text: str) -> bool:
        """Check that a text is four or more characters of the id's beginning or end; `sweep-` is optional."""
        return is_part(text.removeprefix(PREFIX), self.removeprefix(PREFIX))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSeat:
    """The position of a run in its sweep."""

    id: SweepId
    number: int
    """From 1 to `of`."""
    of: int
    axes: dict[str, list[Json]]
    """The values of each parameter, as typed, by which each record describes all runs of the sweep."""
    name: str | None = None
    """The name of the sweep."""

    @classmethod
    def of_json(cls, document: Mapping[str, Json]) -> SweepSeat:
        """Make a position from the result of `asdict`."""
        return cls(**{**document, "id": SweepId.parse(document["id"])})

    @property
    def is_possible(self) -> bool:
        """Check that the sweep can have this run: a record may be wrong, or of a dsv with larger sweeps."""
        return 1 <= self.number <= self.of <= MOST_READ and self.of == count_of(self.axes)

    @property
    def params(self) -> dict[str, Json]:
        return combination(self.axes, self.number)


def names_sweep(text: str) -> bool:
    """Check that a text can only be a sweep's id or a part of it; `sweep-base` may be the name of a run."""
    return text.startswith(PREFIX) and ID_PART.fullmatch(text.removeprefix(PREFIX)) is not None


def parse_params(texts: Iterable[str]) -> dict[str, Json]:
    """Parse `K=V` of `-p`. V is JSON (`0.1`, `true`, `[1,2]`) if it is valid, else a string; `-p v='"1.10"'`
    is a string. Raises `UsageError`."""
    return {name: _value(name, value) for name, value in _by_name(texts).items()}


def _by_name(texts: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{text!r} is not NAME=VALUE", subject=text, hint="-p lr=0.1")
        if name in found:
            raise UsageError(f"there are two parameters named {name}", subject=name)
        found[name] = value
    return found


def parse_axes(texts: Iterable[str]) -> dict[str, list[Json]]:
    """Parse `K=V1,V2,…` of `-p` for a sweep. Raises `UsageError`.

    Commas within quotes, brackets or braces do not separate: `-p 'layers=[1,2],[3,4]'`, `-p 'opt="a,b",c'`.
    """
    axes: dict[str, list[Json]] = {}
    for name, rest in _by_name(texts).items():
        axes[name] = [_value(name, each) for each in split_values(name, rest)]
        written = [repr(value) for value in axes[name]]
        for value in written:
            if written.count(value) > 1:
                raise UsageError(f"the parameter {name} has the value {value} twice", subject=name)
    count = count_of(axes)
    if count < 2:
        raise UsageError("no parameter of the sweep has several values", hint="-p lr=0.1,0.01 --sweep")
    if count > MOST_RUNS:
        raise UsageError(
            f"these are {count:,} combinations, and a sweep has at most {MOST_RUNS:,} runs",
            hint="make several sweeps, each with a part of the values",
        )
    return axes


def split_values(name: str, text: str) -> list[str]:
    """Split a text at its commas. Raises `UsageError` for an empty value or an unclosed quote or bracket."""
    values, start, opened, quoted, escaped = [], 0, "", False, False
    for at, each in enumerate(text):
        if quoted:
            quoted, escaped = escaped or each != '"', not escaped and each == "\\"
        elif each == '"':
            quoted = True
        elif each in "[{":
            opened += each
        elif each in _PAIRS and opened.endswith(_PAIRS[each]):
            opened = opened[:-1]
        elif each == "," and not opened:
            values.append(text[start:at])
            start = at + 1
    values.append(text[start:])
    if (quoted or opened) and "," in text:
        mark = '"' if quoted else opened[-1]
        raise UsageError(
            f"the parameter {name} has a {mark} that is not closed, so its commas can't be told apart",
            subject=name,
            hint=f"""write a text with such a mark as JSON: -p '{name}="a\\"b","c"'""",
        )
    if len(values) > 1 and not all(value.strip() for value in values):
        raise UsageError(
            f"the parameter {name} has an empty value", subject=name, hint=f"""-p '{name}="",x'"""
        )
    return values


def combination(axes: Mapping[str, Sequence[Json]], number: int) -> dict[str, Json]:
    """Return the parameters of one run, numbered from 1. The last parameter changes fastest."""
    rest, chosen = number - 1, {}
    for name, values in reversed(list(axes.items())):
        rest, at = divmod(rest, len(values))
        chosen[name] = values[at]
    return dict(reversed(chosen.items()))


def count_of(axes: Mapping[str, Sequence[Json]]) -> int:
    """Return the number of combinations."""
    return math.prod(len(values) for values in axes.values())


def due(of: int, begun: Collection[int], going: int, parallel: int) -> tuple[int, ...]:
    """Return the numbers of the runs to start now, in order. going: how many are under way"""
    return tuple(number for number in range(1, of + 1) if number not in begun)[: max(0, parallel - going)]


def varied(params: Mapping[str, Json], axes: Mapping[str, Sequence[Json]]) -> dict[str, Json]:
    """Return the parameters by which the runs of a sweep differ."""
    return {name: value for name, value in params.items() if len(axes.get(name, ())) > 1}


def _value(name: str, text: str) -> Json:
    try:
        return check_json(json_or_text(text))
    except ValueError as error:
        raise UsageError(f"the parameter {name} can't be JSON: {error}", subject=name) from error
