"""JSON values: which ones a record can hold, and how to read those of others without surprises."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from dsv.errors import UsageError

Json: TypeAlias = Any
"""A JSON value: dict, list, str, int, float, bool or None."""

MAX_DEPTH: Final = 64
"""The greatest depth of parameters and metrics."""
MAX_DIGITS: Final = 1000
"""Digits of a whole number in parameters and metrics."""


def parse_json(text: str) -> Json:
    """Parse a job's JSON: NaN and the infinities become strings, as JSON has none. Raises `ValueError`."""
    from json import loads  # takes a while to import

    try:
        value = loads(text, parse_constant=str, parse_int=whole_number)
    except RecursionError:
        raise ValueError("it nests too deep") from None
    return check_json(value)


def json_or_text(text: str) -> Json:
    """Return what a person typed: its value if it is JSON (`0.1`, `true`, `[1,2]`), else the text (`NaN`, `1e999`)."""
    from json import loads

    try:
        return loads(text, parse_constant=finite_number, parse_float=finite_number)
    except (ValueError, RecursionError):
        return text


def check_json(value: Json, depth: int = 0) -> Json:
    """Return the value as a record can hold it: infinite numbers and NaN as strings. Raises `ValueError`."""
    if depth > MAX_DEPTH:
        raise ValueError("it nests too deep")
    if isinstance(value, float) and not math.isfinite(value):
        from json import dumps

        return dumps(value)  # `Infinity`, as it is written in a file
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("its keys are not all strings")
        return {check_json(key): check_json(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [check_json(each, depth + 1) for each in value]
    if isinstance(value, str) and not is_text(value):
        raise ValueError("a string in it holds half a character (a lone surrogate such as \\ud800)")
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"a {type(value).__name__} is not JSON")


def on_a_line(value: Json) -> str:
    """Return JSON on one line that YAML reads as the same value: what can't be seen is an escape."""
    from json import dumps

    text = dumps(value, ensure_ascii=False)
    return "".join(sign if sign.isprintable() else f"\\U{ord(sign):08x}" for sign in text)


def flattened(values: Mapping[str, Json], prefix: str = "") -> dict[str, Json]:
    """Return `{"a": {"b": 1}}` as `{"a.b": 1}`."""
    flat: dict[str, Json] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def whole_number(text: str) -> int:
    """Parse an integer that every JSON reader parses in good time: Python itself stops at 4,300 digits."""
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number in it has {len(text)} digits")
    return int(text)


def finite_number(text: str) -> float:
    """Parse a number that can be written as JSON again: one that is finite."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a JSON number")
    return value


def is_text(value: str) -> bool:
    """Return whether a string can be written as UTF-8. It may have lone surrogates, from escapes of JSON or
    in place of bytes of a name that are not UTF-8."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


SHORT_MAX, LONG_MAX = 1024, 65536
"""Maximum characters of an author, and of a message, in the records of a store."""


def check_length(value: str, most: int, what: str) -> None:
    """Raises `UsageError` for a text that no record can hold. what: a noun for it."""
    if len(value) > most:
        raise UsageError(
            f"{what} has {len(value):,} characters, and {most:,} is the most",
            subject=f"{value[:40]}…",
            hint="shorten it; longer texts can be files of the dataset",
        )


def as_text(value: Json) -> str:
    """Return a value for people: a string as it is, a command quoted for a shell, all else as JSON."""
    from json import dumps

    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return shlex.join(value)
    return dumps(value, ensure_ascii=False)


def params_text(params: Mapping[str, Json]) -> str:
    """Return `lr=0.1 epochs=3`."""
    return " ".join(f"{name}={as_text(value)}" for name, value in params.items())
