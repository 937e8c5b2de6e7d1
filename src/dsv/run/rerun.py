"""Repeating a run from its record, and saying what can't be repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dsv.errors import UsageError
from dsv.run.dirs import RunPlace, code_state
from dsv.run.engine_list import ENGINES
from dsv.run.record import CodeState, RunData, RunRecord
from dsv.run.spec import JobSpec, restored
from dsv.values.json import Json
from dsv.values.names import Rev, Target
from dsv.values.secrets import HIDDEN


@dataclass(frozen=True, slots=True)
class Again:
    """The spec that repeats a run; cannot: what will differ, or may, a sentence each."""

    spec: JobSpec
    cannot: tuple[str, ...]


def again(
    record: RunRecord,
    place: RunPlace,
    *,
    command: tuple[str, ...] = (),
    engine_args: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    params: Mapping[str, Json] | None = None,
    out: Path | None = None,
    name: str | None = None,
    log: bool = True,
    keep_output: bool = False,
) -> Again:
    """The same commits, image, engine, code folder, command and parameters.

    command, engine_args: used instead of the recorded ones; env: values, which come before those that the caller's
    environment has; params: those that the record hides. Raises `UsageError` if a hidden value is not given again.
    """
    cannot: list[str] = []
    for given, recorded, again_with in (
        (command, record.command, "-- CMD…, with the secrets passed by -e"),
        (engine_args, record.engine_args, "--engine-arg A …"),
    ):
        if not given and any(HIDDEN in argument for argument in recorded):
            raise UsageError(
                f"run {record.run} had secrets in its command, which its record doesn't show",
                subject=record.run,
                hint=f"dsv run --again {record.run} {again_with}",
            )
    spec = JobSpec(
        target=_target(record.data[0]) if record.data else Target(record.dataset, Rev(record.commit.hex())),
        command=command or record.command,
        data={each.name: _target(each) for each in record.data[1:]},
        image=_image(record, place, cannot),
        engine=record.engine,
        code=_code(record.code, place, cannot),
        recorded_code=record.code if record.code is not None and record.code.tree is not None else None,
        out=out,
        shm_bytes=record.shm_bytes,
        env=_env(record, place, dict(env or {}), cannot),
        params=_params(record, params or {}),
        engine_args=engine_args or record.engine_args,
        keep_output=keep_output or record.output is not None,
        log=log,
        name=name,
        again_of=record.run,
        sweep=record.sweep,
        **restored(record),
    )
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
            raise UsageError(
                f"the parameter {name} of a repeated run is what it was", subject=name, hint=again
            )
    missing = [name for name in hidden if name not in given]
    if missing:
        raise UsageError(
            f"the parameter {missing[0]} of run {record.run} is a secret, which its record doesn't show",
            subject=record.run,
            hint=" ".join((again, *(f"-p {name}=…" for name in missing))),
        )
    return {**record.params, **given}


def _env(record: RunRecord, place: RunPlace, given: dict[str, str], cannot: list[str]) -> dict[str, str]:
    """Only names are recorded: the values are the caller's of today."""
    env = dict(given)
    for name in record.env:
        if name in env:
            continue
        if name in place.environ:
            env[name] = place.environ[name]
            cannot.append(f"the value of {name} is today's: values are not recorded")
        else:
            cannot.append(f"{name} has no value here: values are not recorded, give it with -e {name}=…")
    return env


def _image(record: RunRecord, place: RunPlace, cannot: list[str]) -> str | None:
    """The name, if it still means the same image; else the image itself, by id or by digest."""
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
    if code.commit is None:
        cannot.append(f"the code in {folder} was in no git repository: whether it is the same is not known")
    elif code.dirty is not False:
        cannot.append(f"the code in {folder} had changes that git did not know")
    elif today.commit != code.commit:
        cannot.append(
            f"the code in {folder} was at {code.commit[:12]}, and is at {(today.commit or 'none')[:12]}"
        )
    elif today.dirty is not False:
        cannot.append(f"the code in {folder} has changes that git does not know")
    return folder
