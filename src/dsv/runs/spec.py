"""What a run is asked for, read from the words of a command line and checked before anything happens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dsv.engines.base import ALL_GPUS
from dsv.engines.container import check_image
from dsv.errors import UsageError
from dsv.model.names import Target
from dsv.model.run import Json, RunId, check_json

_DATA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_ENV_NAME = re.compile(r"[^=\s\0]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One run to be made. Paths are as the caller's working directory has them.

    data: further targets by the name below `/data`. env: values and all, which no record shows. params: JSON
    values. gpus: how many, or `engines.base.ALL_GPUS`. out: None for a folder of the run's own among the
    user's state. log: whether what the job writes is kept.
    """

    target: Target
    command: tuple[str, ...] = ()
    data: Mapping[str, Target] = field(default_factory=dict)
    image: str | None = None
    engine: str | None = None
    code: Path | None = None
    out: Path | None = None
    gpus: int | None = None
    shm_bytes: int | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    params: Mapping[str, Json] = field(default_factory=dict)
    name: str | None = None
    engine_args: tuple[str, ...] = ()
    log: bool = True
    again_of: RunId | None = None


def parse_data(texts: Iterable[str]) -> dict[str, Target]:
    """`NAME=TARGET`, as given with `--data`. Raises `UsageError`."""
    data: dict[str, Target] = {}
    for text in texts:
        name, equals, target = text.partition("=")
        if not equals or _DATA_NAME.fullmatch(name) is None or ".." in name:
            raise UsageError(f"{text!r} is not NAME=TARGET", subject=text, hint="--data masks=chest-masks@v1")
        if name in data:
            raise UsageError(f"there are two data named {name}", subject=name)
        data[name] = Target.parse(target)
    return data


def parse_env(texts: Iterable[str], environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """`K=V` or `K`, as given with `-e`: K alone passes the caller's value.

    Also returns the names of which the caller has no value, and which so stay unset. Raises `UsageError`.
    """
    env: dict[str, str] = {}
    unset = []
    for text in texts:
        name, equals, value = text.partition("=")
        if _ENV_NAME.fullmatch(name) is None or "\0" in value:
            raise UsageError(
                f"{name!r} is no name of a variable", subject=name, hint="-e NAME or -e NAME=VALUE"
            )
        if equals:
            env[name] = value
        elif name in environ:
            env[name] = environ[name]
        else:
            unset.append(name)
    return env, tuple(unset)


def parse_params(texts: Iterable[str]) -> dict[str, Json]:
    """`K=V`, as given with `-p`. What is JSON is taken as such (`0.1`, `true`, `[1,2]`), else it is a string.

    So `-p v='"1.10"'` is a string. Raises `UsageError`.
    """
    params: dict[str, Json] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{text!r} is not NAME=VALUE", subject=text, hint="-p lr=0.1")
        if name in params:
            raise UsageError(f"there are two parameters named {name}", subject=name)
        try:
            params[name] = check_json(_param(value))
        except ValueError as error:
            raise UsageError(f"the parameter {name} can't be JSON: {error}", subject=name) from error
    return params


def parse_gpus(text: str) -> int:
    """A number from 1, or `all`. Raises `UsageError`."""
    if text == "all":
        return ALL_GPUS
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text, re.ASCII):
        raise UsageError(f"{text!r} is no number of GPUs", subject=text, hint="--gpus 2, or --gpus all")
    return int(text)


def check_request(request: RunRequest) -> None:
    """What can be seen to be wrong before anything is resolved. Raises `UsageError`."""
    for name in request.env:
        if name.startswith("DSV_"):
            raise UsageError(f"{name} is set by dsv itself", subject=name)
        if _ENV_NAME.fullmatch(name) is None:
            raise UsageError(f"{name!r} is no name of a variable", subject=name)
    for name in request.data:
        if _DATA_NAME.fullmatch(name) is None or ".." in name:
            raise UsageError(f"{name!r} is no name for data", subject=name)
    try:
        check_json(request.params)
    except ValueError as error:
        raise UsageError(f"the parameters can't be JSON: {error}") from error
    if request.image is not None:
        check_image(request.image)
    elif not request.command:
        raise UsageError("there is no command to run", hint="dsv run TARGET -- CMD …")


def _param(text: str) -> Json:
    def refuse(constant: str) -> Json:
        raise ValueError(constant)

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return text
