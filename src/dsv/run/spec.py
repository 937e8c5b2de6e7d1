"""The options of a run: parsed from a command line, recorded, and restored to repeat the run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from dsv.errors import UsageError
from dsv.run.dirs import RunPlace
from dsv.run.engine_list import ENGINES
from dsv.run.engines.base import Task, check_image
from dsv.run.origin import code_state
from dsv.run.parameters import SweepSeat, parse_params
from dsv.run.record import CodeState, RunData, RunId, RunRecord
from dsv.run.resources import (
    ALL_GPUS,
    Option,
    PassedOver,
    Pool,
    Resources,
    check_resources,
    option,
    parse_gpus,
    parse_yes,
    setting,
)
from dsv.values.json import Json, check_json
from dsv.values.names import Rev, Target, is_data_name, parse_data
from dsv.values.secrets import HIDDEN
from dsv.values.units import parse_duration

_ENV_NAME = re.compile(r"[^=\s\0]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(Task):
    """The specification of a run. Paths are relative to the caller's working directory."""

    target: Target
    data: Mapping[str, Target] = option(
        "--data NAME=TARGET|@FILE",
        "Further data, at /data/NAME, or that of a lock file.",
        parse_data,
        several=True,
    )
    """Keys are the names below `/data`."""
    engine: str | None = option("--engine ENGINE", "docker, podman or process; else the first that answers.")
    code: Path | None = option("--code DIR", "The code: read-only at /code, the working directory.", Path)
    out: Path | None = option(
        "--out DIR", "The folder for /out, instead of one of the run's own.", Path, anew=True
    )
    """None for a folder in the user's state directory."""
    keep_output: bool = option(
        "--keep-output", "Commit what is in /out into the store, at the end.", default=False, anew=True
    )
    into: Target | None = option(
        "--into DATASET[@BRANCH][:PATH]", "Make this branch, or PATH in it, exactly the output.", Target.parse,
        anew=True,
    )  # fmt: skip
    once: bool = option(
        "--once", "Don't repeat a run: serve the result of an equal one.", default=False, anew=True
    )
    key: tuple[str, ...] = option(
        "--key TEXT|FILE", "With --once: what else decides, a text or a file's content.", tuple, default=(),
        several=True, text=True, anew=True,
    )  # fmt: skip
    fresh: bool = option(
        "--fresh", "With --once: run it anyway, and compare the outputs.", default=False, anew=True
    )
    receipt: Path | None = option(
        "--receipt FILE", "With --into: write DATASET@COMMIT there, if it differs.", Path, anew=True
    )
    params: Mapping[str, Json] = option(
        "-p --param K=V", "A parameter, in DSV_PARAMS and the record.", parse_params,
        several=True, text=True, anew=True,
    )  # fmt: skip
    name: str | None = option("--name NAME", "A name for the container and the record.", text=True, anew=True)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Names and values. Records never have the values."""
    passed: frozenset[str] = frozenset()
    """The variables of `env` that were named without a value, which is the caller's own."""
    pool: Pool | None = None
    passed_over: tuple[PassedOver, ...] = ()
    then: tuple[str, ...] = ()
    """The pools to try next if the run doesn't begin in time."""
    recorded_code: CodeState | None = None
    """The code of a repeated run, which is in the store."""
    sweep: SweepSeat | None = None
    pins: Mapping[str, str] = field(default_factory=dict)
    """The commits of the targets when the sweep started, by the targets' text."""
    log: bool = setting("log", parse_yes, True)
    """Keep the output of the job."""
    again_of: RunId | None = None


def parse_env(texts: Iterable[str], environ: Mapping[str, str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Parse the values of `-e`: `K=V`, or `K` for the caller's own value. Return the fields of the spec, and the
    names for which the caller has no value; these stay unset. Raises `UsageError`."""
    env: dict[str, str] = {}
    passed, unset = set[str](), []
    for text in texts:
        name, equals, value = text.partition("=")
        if _ENV_NAME.fullmatch(name) is None or "\0" in value:
            raise UsageError(
                f"{name!r} is not a valid name of a variable", subject=name, hint="-e NAME or -e NAME=VALUE"
            )
        if equals:
            env[name] = value
            passed.discard(name)
        elif name in environ:
            env[name] = environ[name]
            passed.add(name)
        else:
            unset.append(name)
    return {"env": env, "passed": frozenset(passed)}, tuple(unset)


def seated(spec: JobSpec, seat: SweepSeat) -> JobSpec:
    """Return the spec of one run of a sweep, with its own parameters, name and output folder."""
    name = None if seat.name is None else f"{seat.name}-{seat.number}"
    out = None if spec.out is None else spec.out / str(seat.number)
    return replace(spec, sweep=seat, params=seat.params, name=name, out=out)


def check_spec(spec: JobSpec) -> None:
    """Check a spec by itself, before its targets are resolved. Raises `UsageError`."""
    for name in spec.env:
        if name.startswith("DSV_"):
            raise UsageError(f"{name} is set by dsv itself", subject=name)
        if _ENV_NAME.fullmatch(name) is None:
            raise UsageError(f"{name!r} is not a valid name of a variable", subject=name)
    for name in spec.data:
        if not is_data_name(name):
            raise UsageError(f"{name!r} is not a valid name for data", subject=name)
    check_resources(spec)
    try:
        check_json(spec.params)
    except ValueError as error:
        raise UsageError(f"the parameters can't be JSON: {error}") from error
    if spec.image is not None:
        check_image(spec.image)
    elif not spec.command:
        raise UsageError("no command given", hint="dsv run TARGET -- CMD …")


def _parse_jobs(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise UsageError(f"{text!r} is not a number of processes", subject=text)
    return int(text)


_RESOURCES: Final = tuple(each.name for each in fields(Resources))
_FIELDS: Final[dict[str, Option]] = {
    each.name: each.metadata["option"]
    for each in sorted(fields(JobSpec), key=lambda each: each.name in _RESOURCES)
    if "option" in each.metadata
}
OPTIONS: Final = {name: each for name, each in _FIELDS.items() if each.help}
"""The options that fill `JobSpec`, by field: all but `--env`, which needs the caller's environment."""
POOL_OPTIONS: Final = {name: each for name, each in _FIELDS.items() if not each.help} | {
    "wait": Option("wait", "", parse_duration),
    "jobs": Option("jobs", "", _parse_jobs),
}
"""A pool's settings for each run, by the field of `JobSpec`; `wait` and `jobs` have no field."""

_Asked = TypeVar("_Asked", bound=Resources)


def on_pool(wanted: _Asked, pool: Pool) -> _Asked:
    """Return the request of a run with the settings of this pool instead of another pool's."""
    defaults = {each.name: each.default for each in fields(wanted)}
    said = {name: pool.run.get(name, defaults[name]) for name in POOL_OPTIONS if name in defaults}
    if wanted.gpus is None:
        said["gpu_type"] = None
    return replace(wanted, **said)


def parse_options(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Convert typed options to fields of a `JobSpec`. Raises `UsageError`."""
    return {name: each.parse(typed[name]) for name, each in OPTIONS.items() if name in typed}


def recorded(spec: Resources) -> dict[str, Any]:
    """Return the resources as a `RunRecord` has them."""
    found = {name: getattr(spec, name) for name in _RESOURCES}
    return {
        **found,
        "gpus": "all" if spec.gpus == ALL_GPUS else None if spec.gpus is None else str(spec.gpus),
    }


def asked(spec: JobSpec) -> dict[str, Any]:
    """Return the resources that a run asks for, as its record will have them."""
    nothing = recorded(Resources())
    return {name: value for name, value in recorded(spec).items() if value != nothing[name]}


def restored(record: RunRecord) -> dict[str, Any]:
    """Return the resources of a recorded run as its spec had them."""
    found = {name: getattr(record, name) for name in _RESOURCES}
    return {**found, "gpus": None if record.gpus is None else parse_gpus(record.gpus)}


@dataclass(frozen=True, slots=True)
class Again:
    """The spec that repeats a run."""

    spec: JobSpec
    cannot: tuple[str, ...]
    """Certain or possible differences from the first run, one sentence each."""


def again(
    record: RunRecord,
    place: RunPlace,
    *,
    command: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    passed: frozenset[str] = frozenset(),
    params: Mapping[str, Json] | None = None,
    keep_output: bool = False,
    moves: bool = False,
    **anew: Any,
) -> Again:
    """Make the spec that repeats a run: the same commits, image, engine, code, command and parameters.

    command: replaces the recorded one; env, passed: take precedence over the caller's environment; params: values
    for those that the record hides; moves: the run moves to a pool, whose settings it takes; anew: further fields
    of the spec. Raise `UsageError` if a hidden value is not given again.
    """
    cannot: list[str] = []
    for given, recorded, hint in (
        (bool(command), record.command, "-- CMD…, with the secrets passed by -e"),
        (moves, record.engine_args, "--on POOL, whose engine_args have them"),
    ):
        if not given and any(HIDDEN in argument for argument in recorded):
            raise UsageError(
                f"run {record.run} had secrets in its command, which its record doesn't show",
                subject=record.run,
                hint=f"dsv run --again {record.run} {hint}",
            )
    spec = JobSpec(
        target=_target(record.data[0]) if record.data else Target(record.dataset, Rev(record.commit.hex())),
        command=command or record.command,
        data={each.name: _target(each) for each in record.data[1:]},
        image=_image(record, place, cannot),
        engine=record.engine,
        code=_code(record.code, place, cannot),
        recorded_code=record.code if record.code is not None and record.code.tree is not None else None,
        shm_bytes=record.shm_bytes,
        env=_env(record, place, dict(env or {}), cannot),
        passed=passed | (set(record.env) - (env or {}).keys()),
        params=_params(record, params or {}),
        engine_args=record.engine_args,
        keep_output=keep_output or record.output is not None,
        again_of=record.run,
        sweep=record.sweep,
        **restored(record),
        **anew,
    )
    former = None if record.output is None else record.output.into
    if former is not None and anew.get("into") is None:
        cannot.append(f"its output is for no branch: the first one's was for --into {former.target}")
    if record.host != place.host:
        cannot.append(f"it ran on {record.host}, and this is {place.host}")
    return Again(spec, tuple(cannot))


def _target(data: RunData) -> Target:
    path = None if data.path is None else data.path.encode("utf-8", "surrogateescape")
    return Target(data.dataset, Rev(data.commit.hex()), path)


def _params(record: RunRecord, given: Mapping[str, Json]) -> dict[str, Json]:
    hidden = [name for name, value in record.params.items() if HIDDEN in json.dumps(value)]
    again = f"dsv run --again {record.run}"
    for name in given:
        if name not in hidden:
            raise UsageError(f"a repeated run keeps its parameter {name}", subject=name, hint=again)
    missing = [name for name in hidden if name not in given]
    if missing:
        raise UsageError(
            f"the parameter {missing[0]} of run {record.run} is a secret, which its record doesn't show",
            subject=record.run,
            hint=" ".join((again, *(f"-p {name}=…" for name in missing))),
        )
    return {**record.params, **given}


def _env(record: RunRecord, place: RunPlace, given: dict[str, str], cannot: list[str]) -> dict[str, str]:
    """Return the variables with the caller's current values, because only names are recorded."""
    env = dict(given)
    for name in record.env:
        if name in env:
            continue
        if name in place.environ:
            env[name] = place.environ[name]
            cannot.append(f"the value of {name} is today's: values are not recorded")
        else:
            cannot.append(f"{name} is not set here: values are not recorded, give it with -e {name}=…")
    return env


def _image(record: RunRecord, place: RunPlace, cannot: list[str]) -> str | None:
    """Return the image's name if it still means the same image, else its id or digest."""
    if record.image is None:
        return None
    make = ENGINES.get(record.engine)
    if record.image_id is None or make is None:
        cannot.append(f"which image {record.image} was is not recorded")
        return record.image
    engine = make(place.environ)
    today = engine.find_image(record.image)
    if today is not None and today.id == record.image_id:
        return record.image
    if engine.find_image(record.image_id) is not None:
        return record.image_id
    if record.image_digest is not None:
        return record.image_digest
    cannot.append(f"{record.image} is another image today, or none: {record.image_id} is not on this machine")
    return record.image


def _code(code: CodeState | None, place: RunPlace, cannot: list[str]) -> Path | None:
    if code is None:
        return None
    folder = Path(code.path)
    if code.tree is not None:
        return folder
    if not folder.is_dir():
        cannot.append(f"the code folder {folder} is not here")
        return folder
    today = code_state(folder, place.environ)
    if code.commit is None or (code.commit, False, False) != (today.commit, code.dirty, today.dirty):
        cannot.append(
            f"the code in {folder} may be another: it was {_version(code)}, and is {_version(today)}"
        )
    return folder


def _version(code: CodeState) -> str:
    if code.commit is None:
        return "in no git repository"
    return f"at {code.commit[:12]}" + ("" if code.dirty is False else " with changes")
