"""Further data of a run, each by a name of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dsv.errors import UsageError
from dsv.model.names import Target

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def is_data_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and ".." not in text


def parse_data(texts: Iterable[str]) -> dict[str, Target]:
    """`NAME=TARGET`, as given with `--data`. Raises `UsageError`."""
    data: dict[str, Target] = {}
    for text in texts:
        name, equals, target = text.partition("=")
        if not equals or not is_data_name(name):
            raise UsageError(f"{text!r} is not NAME=TARGET", subject=text, hint="--data masks=chest-masks@v1")
        if name in data:
            raise UsageError(f"there are two data named {name}", subject=name)
        data[name] = Target.parse(target)
    return data


def data_variable(name: str) -> str:
    """The variable that holds the folder of the data of this name: `DSV_DATA_MASKS` for `masks`."""
    return "DSV_DATA_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
