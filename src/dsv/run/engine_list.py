"""The engines: choosing one for a run, and finding a job by its reference."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, cast

from dsv.errors import DsvError, LaunchError, Unreachable, UsageError
from dsv.run.engines.base import NO_OPTIONS, Engine, Facts, JobStatus, NotInstalled, Task, check_given
from dsv.run.engines.reaper import processes_of
from dsv.run.record import JobRef, RunRecord, RunState
from dsv.run.resources import Pool
from dsv.values.json import Json

PROCESS: Final = "process"
"""The engine of a command without an image."""


class _Registry(UserDict[str, Any]):
    """Engine classes by name, imported on first use: most commands need one or none, and each is large."""

    def __getitem__(self, name: str) -> type[Engine]:
        found = self.data[name]
        if isinstance(found, str):
            module, _, kind = found.partition(":")
            found = self.data[name] = getattr(import_module(module), kind)
        return cast("type[Engine]", found)


ENGINES: Final[MutableMapping[str, type[Engine]]] = _Registry(
    {
        "docker": "dsv.run.engines.containers.engine:Docker",
        "podman": "dsv.run.engines.containers.engine:Podman",
        PROCESS: "dsv.run.engines.process:ProcessEngine",
        "slurm": "dsv.run.engines.slurm.engine:Slurm",
        "kubernetes": "dsv.run.engines.kubernetes.engine:Kubernetes",
    }
)
"""By name, in the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Makes engines for a caller."""

    environ: Mapping[str, str]
    pools: Mapping[str, Pool] = field(default_factory=dict)
    """The configured pools by name, for the settings of their engines."""

    def make(self, name: str, pool: str | None = None) -> Engine | None:
        """Return the engine, or None for an unknown name. pool: that of the job; ignored if it is not
        configured here, or has another engine here"""
        kind = ENGINES.get(name)
        known = None if pool is None else self.pools.get(pool)
        if kind is None:
            return None
        return kind(self.environ, known.options if known is not None and known.engine == name else NO_OPTIONS)


def engine_of(pool: Pool) -> type[Engine]:
    """Return the engine of a pool that has one, and check its options. Raises `UsageError`."""
    assert pool.engine is not None  # only the pool HERE has none
    kind = ENGINES.get(pool.engine)
    if kind is None:
        raise UsageError(
            f"the pool {pool.name} has the engine {pool.engine}, and there is none of that name",
            subject=pool.engine,
            hint=f"dsv config pools.{pool.name}.engine {next(iter(ENGINES))} (one of {', '.join(ENGINES)})",
        )
    kind.check_options(pool.options, f"pools.{pool.name}.{pool.engine}")
    return kind


_PLAIN: Final = (
    "without --image the command runs as a plain process. "
    "Data protected only by file permissions (shown once)"
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The engine of a run."""

    engine: Engine
    facts: Facts
    note: str | None = None
    """A remark for the user if the choice may be surprising, to be shown once."""
    passed_over: str | None = None
    """A remark on engines that are installed here, would have been taken first, and do not answer."""


def choose(
    environ: Mapping[str, str], name: str | None, image: str | None, options: Mapping[str, Json] = NO_OPTIONS
) -> Chosen:
    """Choose the engine of this name, with the options of its pool.

    Without a name, choose the first that answers, or `process` if there is no image. Raises `UsageError` for an unknown
    name or an image that the engine can't run; `LaunchError` if the named engine, or every engine, doesn't answer.
    """
    if name is not None:
        return _named(environ, name, image, options)
    if image is None:
        chosen = _named(environ, PROCESS, None)
        return Chosen(chosen.engine, chosen.facts, _PLAIN)
    reasons: list[str] = []
    silent: list[str] = []
    for make in ENGINES.values():
        engine = make(environ)
        if not engine.needs_image:
            continue
        try:
            facts = engine.probe()
        except DsvError as error:
            reasons.append(error.message)
            silent += [] if isinstance(error, NotInstalled) else [error.message]
        else:
            told = f"{engine.name} is used, because {'; '.join(silent)}" if silent else None
            return Chosen(engine, facts, passed_over=told)
    raise LaunchError(
        f"no engine can run {image}: {'; '.join(reasons)}",
        subject=image,
        hint="start docker or podman, or leave out --image to run a plain process",
    )


def check_image_for(engine: type[Engine] | Engine, image: str | None) -> None:
    """Raises `UsageError` if the engine can't run this image, or can't do without one."""
    name = engine.name
    if engine.needs_image and image is None:
        raise UsageError(
            f"{name} needs an image", subject=name, hint=f"dsv run --engine {name} --image IMAGE …"
        )
    check_given(engine, Task(image=image))


def _named(
    environ: Mapping[str, str], name: str, image: str | None, options: Mapping[str, Json] = NO_OPTIONS
) -> Chosen:
    make = ENGINES.get(name)
    if make is None:
        raise UsageError(f"there is no engine {name}", subject=name, hint=f"one of {', '.join(ENGINES)}")
    check_image_for(make, image)
    engine = make(environ, options)
    try:
        return Chosen(engine, engine.probe())
    except DsvError as error:
        hint = error.hint or "dsv run chooses one that answers, without --engine"
        raise LaunchError(error.message, subject=name, hint=hint) from error


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job that its engine has: alive, or ended and not yet removed."""

    engine: Engine
    ref: JobRef
    status: JobStatus

    def cancel(self, grace: float) -> JobStatus:
        """End the job if it lives, and return its last status."""
        return self.engine.cancel(self.ref, grace) or self.status

    def logs(self, follow: bool) -> AbstractContextManager[Iterator[bytes]] | None:
        return self.engine.logs(self.ref, follow)


def find_job(record: RunRecord, engines: Engines) -> FoundJob | None:
    """Return the job; None if the engine doesn't have it. Raises `Unreachable` if the engine doesn't answer.
    Without a recorded reference, because dsv was killed, the job is found by the run's id; this raises `Unreachable`
    while a program that outlived dsv may still hand it to the engine."""
    engine = engines.make(record.engine, record.pool)
    if engine is None:
        return None
    handing = record.job is None and engine.queues and processes_of(record.run)  # asked before the engine
    refs = engine.list(record.run) if record.job is None else (record.job, *engine.list(record.run))
    found = None
    for ref in refs:
        status = engine.status(ref)
        if status is None or (status.state is RunState.CUT_OFF and status.ended is None):
            continue
        if found is None or status.lives:
            found = FoundJob(engine, ref, status)
            if status.lives:
                break
    if found is None and handing:
        said = f"process {handing[0]} is still handing the job of run {record.run} to {engine.name}"
        raise Unreachable(said, subject=record.run, hint=f"dsv stop {record.run}")
    return found
