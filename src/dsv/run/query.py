"""Choosing and comparing runs by what their records say.

A key is a path into what `dsv runs --json` shows of a run: `params.lr`, `metrics.val.accuracy`, `exit_code`, `host`.
"""

from __future__ import annotations

import json
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Self

from dsv.errors import NotFound, UsageError
from dsv.run.listing import RunView
from dsv.values.json import Json, json_or_text

Item = Mapping[str, Json]

OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_CONTAINS: Final = "~"
_FILTER = re.compile(r"\s*([^<>=!~]+?)\s*(!=|<=|>=|==|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
_FREE: Final = ("params", "metrics")
"""Members whose keys are the user's."""
_HOW_TO_GET: Final[Mapping[str, str]] = {
    "params": "dsv run -p NAME=VALUE gives a run its parameters",
    "metrics": "a job leaves its metrics in $DSV_OUT/metrics.json",
}
_SMALL_IS_GOOD: Final = frozenset(
    (
        "loss", "error", "err", "mse", "rmse", "mae", "mape", "nll", "ppl", "perplexity", "wer", "cer", "fid", "ece",
        "time", "seconds", "latency", "duration", "bytes", "memory", "distance", "divergence", "cost", "regret", "fpr",
        "fnr", "eer", "bpb", "bpc", "hd", "hd95", "hausdorff", "brier",
    )
)  # fmt: skip
"""A metric with one of these words in its name is the better the smaller it is."""
# fmt: off
_NOT_COMPARED: Final = frozenset(
    (
        "run", "name", "started", "ended", "out", "argv", "log", "sent", "data", "again_of", "cache_hit", "target",
        "stage_seconds", "stage_bytes", "job", "parts", "passed_over", "sweep",
    )
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Filter:
    """`KEY OP VALUE`."""

    key: str
    operator: str
    text: str
    """VALUE as it was typed."""
    value: Json
    """VALUE as JSON, if it is JSON."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a filter such as `params.lr<0.1`. Raise `UsageError` if it is invalid."""
        found = _FILTER.fullmatch(text)
        if found is None:
            raise UsageError(
                f"invalid filter: {text!r}",
                subject=text,
                hint="--filter 'params.lr<0.1', with = != < <= > >= or ~",
            )
        key, sign, value = found.groups()
        return cls(key, "=" if sign == "==" else sign, value, json_or_text(value))

    def matches(self, item: Item) -> bool:
        """Check a run. One without the key matches `KEY=null` and nothing else."""
        actual = look_up(item, self.key)
        if self.value is None and self.operator in ("=", "!="):
            return (actual is None) is (self.operator == "=")
        if actual is None:
            return False
        if self.operator == _CONTAINS:
            return self.text in as_text(actual)
        if isinstance(actual, str):
            wanted = self.value if isinstance(self.value, str) else self.text
            return OPERATORS[self.operator](actual, wanted)
        if self.operator in ("=", "!="):
            same = actual == self.value and isinstance(actual, bool) is isinstance(self.value, bool)
            return same is (self.operator == "=")
        return _is_number(actual) and _is_number(self.value) and OPERATORS[self.operator](actual, self.value)


def choose_runs(
    views: Iterable[RunView], filters: Sequence[Filter], sort: str | None, reverse: bool, limit: int | None
) -> list[RunView]:
    """Return the runs that match all filters, in the order of a key, those without it last; at most `limit` of them.

    sort: the largest first with a `-` before the key, the smallest with a `+`, and else a metric's best; the order
    stays what it was for None. Raises `UsageError` for a key that no record has, and `NotFound` for a parameter or
    metric that none of these has.
    """
    pairs = [(view, view.item()) for view in views]
    key, backwards = (None, False) if sort is None else sort_order(sort)
    for each in (*(one.key for one in filters), *(() if key is None else (key,))):
        _check_key(each, [item for _, item in pairs])
    pairs = [pair for pair in pairs if all(each.matches(pair[1]) for each in filters)]
    if key is not None:
        has = [pair for pair in pairs if look_up(pair[1], key) is not None]
        lacks = [pair for pair in pairs if look_up(pair[1], key) is None]
        has.sort(key=lambda pair: _rank(look_up(pair[1], key)), reverse=backwards is not reverse)
        pairs = has + lacks
    elif reverse:
        pairs.reverse()
    return [view for view, _ in pairs][:limit]


def sort_order(text: str) -> tuple[str, bool]:
    """Return the key, and whether the largest comes first."""
    if text[:1] in ("+", "-"):
        return text[1:], text.startswith("-")
    head, _, name = text.partition(".")
    words = set(re.split(r"[^a-z0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()))
    return text, head == "metrics" and not words & _SMALL_IS_GOOD


def look_up(value: Json, key: str) -> Json:
    """Return the value of a key in a document, or None. A name with a dot in it goes before one below another."""
    if not key:
        return value
    parts = key.split(".")
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        if isinstance(value, Mapping) and name in value:
            found = look_up(value[name], ".".join(parts[count:]))
            if found is not None:
                return found
    return None


def differences(views: Sequence[RunView]) -> tuple[list[tuple[str, list[Json]]], int]:
    """Return the keys in which these runs differ, with the value of each run, and the number of the others."""
    flat = [_compared(view) for view in views]
    keys = list(dict.fromkeys(key for item in flat for key in item))
    rows = [(key, [item.get(key) for item in flat]) for key in keys]
    differ = [(key, values) for key, values in rows if any(_differs(each, values[0]) for each in values)]
    order = {name: rank for rank, name in enumerate(("dataset", "commit", "data", "params", "metrics"), -5)}
    differ.sort(key=lambda row: order.get(row[0].partition(".")[0], 0))
    return differ, len(rows) - len(differ)


def flattened(values: Mapping[str, Json], prefix: str = "") -> dict[str, Json]:
    """Return `{"a": {"b": 1}}` as `{"a.b": 1}`."""
    flat: dict[str, Json] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def as_text(value: Json) -> str:
    """Return a value for a person: strings as they are, a command as a shell has it, all else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return shlex.join(value)
    return json.dumps(value, ensure_ascii=False)


def _compared(view: RunView) -> dict[str, Json]:
    item = {key: value for key, value in view.item().items() if key not in _NOT_COMPARED}
    for data in view.record.data[1:]:
        path = "" if data.path is None else f":{data.path}"
        item[f"data.{data.name}"] = f"{data.dataset}@{data.commit}{path}"
    if view.record.data and view.record.data[0].path is not None:
        item["data"] = view.record.data[0].path
    return {key: value for key, value in flattened(item).items() if value not in (None, [], ())}


def _differs(one: Json, other: Json) -> bool:
    return one != other or isinstance(one, bool) is not isinstance(other, bool)


def _check_key(key: str, items: Sequence[Item]) -> None:
    if not items:
        return
    head = key.partition(".")[0]
    known = list(dict.fromkeys(each for item in items for each in flattened(item)))
    if head not in _FREE:
        if head not in items[0]:
            below = [f"{free}.{key}" for free in _FREE if f"{free}.{key}" in known]
            close = below or get_close_matches(key, [*items[0], *known], 1)
            hint = close[0] if close else "params.NAME, metrics.NAME, or a key that dsv runs --json shows"
            raise UsageError(
                f"runs have no key {key}", subject=key, hint=f"did you mean {hint}?" if close else hint
            )
        return
    if all(look_up(item, key) is None for item in items):
        there = [each for each in known if each.startswith(f"{head}.")]
        names = {
            each.partition(".")[2]: each for each in there
        }  # what they all begin with makes nothing similar
        close = get_close_matches(key.partition(".")[2], names, 1)
        hint = f"did you mean {names[close[0]]}?" if close else f"these runs have {', '.join(there[:9])}"
        raise NotFound(f"no run has {key}", subject=key, hint=hint if there else _HOW_TO_GET[head])


def _rank(value: Json) -> tuple[int, Json]:
    """Return a key that sorts numbers before strings before all else."""
    if _is_number(value):
        return 0, value
    return (1, value) if isinstance(value, str) else (2, as_text(value))


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
