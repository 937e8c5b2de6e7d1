"""Reading untrusted TOML: dsv's settings, a cache's limits, a workspace's binding."""

from __future__ import annotations

import tomli

MAX_BYTES = 1 << 20
"""Maximum size of a file of settings."""
MAX_DEPTH = 32
_INTEGERS = range(-(1 << 63), 1 << 63)  # the range that TOML guarantees, and that can be printed again


def read_toml(data: bytes) -> dict[str, object]:
    """Return the document. Raises `ValueError` with what is wrong, for any input."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")
    try:
        document = tomli.loads(data.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is not valid UTF-8") from None
    except RecursionError as error:
        raise ValueError(str(error) or "it is nested too deeply") from None
    _check(document)
    return document


BINDING = ".dsv/config.toml"
"""The file that binds a folder to a dataset, relative to the folder."""


def binding(document: dict[str, object]) -> dict[str, object]:
    """Return the binding of a workspace. A sparse one has it in a table, so that older versions refuse it."""
    inner = document.get("workspace")
    return inner if isinstance(inner, dict) else document


def _check(document: dict[str, object]) -> None:
    """Raises `ValueError` for values that tomli takes and that later code can't print or traverse."""
    left: list[tuple[object, int]] = [(document, 0)]
    while left:
        value, depth = left.pop()
        if isinstance(value, int) and value not in _INTEGERS:
            raise ValueError("it has a number of more than 64 bits")
        if isinstance(value, str) and "\0" in value:
            raise ValueError("it has a text with a NUL character")
        if isinstance(value, dict | list) and depth == MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, dict):
            left += [(inner, depth + 1) for inner in value.values()]
        elif isinstance(value, list):
            left += [(inner, depth + 1) for inner in value]
