"""A sweep: one run for each combination of the values of its parameters. Which ones there are, and which are due."""

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
"""Runs of one sweep. Each is named by each record of the sweep, and waited for."""
MOST_READ: Final = 1_000_000
"""Runs of a sweep that is read."""
PREFIX: Final = "sweep-"

_TIMED = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}", re.ASCII)
_PART = re.compile(r"[0-9a-f-]{4,}", re.ASCII)
_PAIRS: Final = {"]": "[", "}": "{"}


class TimedId(str):
    """The time of the start in UTC, then randomness: `20261120-132145-1f2e3d4c`. Sorts by time."""

    __slots__ = ()
    _what: ClassVar[str]
    _prefix: ClassVar[str] = ""

    @classmethod
    def make(cls, time_ms: int, entropy: bytes) -> Self:
        """From milliseconds since 1970 and four random bytes."""
        if len(entropy) != 4:
            raise ValueError("an id takes four random bytes")
        moment = datetime.fromtimestamp(time_ms // 1000, UTC)
        return cls(f"{cls._prefix}{moment:%Y%m%d-%H%M%S}-{entropy.hex()}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an id. Raise `UsageError` if it is invalid."""
        if not text.startswith(cls._prefix) or _TIMED.fullmatch(text.removeprefix(cls._prefix)) is None:
            raise UsageError(f"{text!r} is no id of a {cls._what}", subject=text, hint="dsv runs lists them")
        return cls(text)


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
        """A lower bound of the ids of its runs, which begin with a time as well."""
        return self.removeprefix(PREFIX)[:15]

    @property
    def short(self) -> str:
        """`sweep-1f2e3d4c`, which any command takes for it."""
        return f"{PREFIX}{self[-8:]}"

    def is_meant_by(self, text: str) -> bool:
        """Check that a text may mean it by its id: all of it, or `sweep-` and four characters or more of its end."""
        part = text.removeprefix(PREFIX)
        own = self.removeprefix(PREFIX)
        return _PART.fullmatch(part) is not None and (own.startswith(part) or own.endswith(part))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSeat:
    """The place of a run in its sweep."""

    id: SweepId
    number: int
    """From 1 to `of`."""
    of: int
    axes: dict[str, list[Json]]
    """The values of each parameter, in the order in which they were typed; any record tells of all runs by them."""
    name: str | None = None
    """The name of the sweep."""

    @classmethod
    def of_json(cls, document: Mapping[str, Json]) -> SweepSeat:
        """Make one of the result of `asdict`."""
        return cls(**{**document, "id": SweepId.parse(document["id"])})

    @property
    def is_possible(self) -> bool:
        """Check that there is such a run. A record may say anything, and a later dsv may have larger sweeps."""
        return 1 <= self.number <= self.of <= MOST_READ and self.of == count_of(self.axes)

    @property
    def params(self) -> dict[str, Json]:
        return combination(self.axes, self.number)


def names_sweep(text: str) -> bool:
    """Check that a text can only be the id of a sweep, or part of one. `sweep-base` may be the name of a run."""
    return text.startswith(PREFIX) and _PART.fullmatch(text.removeprefix(PREFIX)) is not None


def parse_params(texts: Iterable[str]) -> dict[str, Json]:
    """`K=V`, as given with `-p`. What is JSON is taken as such (`0.1`, `true`, `[1,2]`), else it is a string.

    So `-p v='"1.10"'` is a string. Raises `UsageError`.
    """
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
    """Parse `K=V1,V2,…`, as given with `-p` to a sweep. Raises `UsageError`.

    A comma within quotes, brackets or braces separates nothing: `-p 'layers=[1,2],[3,4]'`, `-p 'opt="a,b",c'`.
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
    """Return the values between the commas of a text. Raises `UsageError` for an empty one or an open mark."""
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
    """Return the parameters of one run, from 1. The last parameter changes fastest."""
    rest, chosen = number - 1, {}
    for name, values in reversed(list(axes.items())):
        rest, at = divmod(rest, len(values))
        chosen[name] = values[at]
    return dict(reversed(chosen.items()))


def count_of(axes: Mapping[str, Sequence[Json]]) -> int:
    """Return the number of combinations."""
    return math.prod(len(values) for values in axes.values())


def due(of: int, begun: Collection[int], going: int, parallel: int) -> tuple[int, ...]:
    """Return the runs to begin now, in order, if so many go on and at most `parallel` may."""
    return tuple(number for number in range(1, of + 1) if number not in begun)[: max(0, parallel - going)]


def varied(params: Mapping[str, Json], axes: Mapping[str, Sequence[Json]]) -> dict[str, Json]:
    """Return the parameters by which the runs of a sweep differ."""
    return {name: value for name, value in params.items() if len(axes.get(name, ())) > 1}


def _value(name: str, text: str) -> Json:
    try:
        return check_json(json_or_text(text))
    except ValueError as error:
        raise UsageError(f"the parameter {name} can't be JSON: {error}", subject=name) from error
