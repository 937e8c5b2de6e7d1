"""From the options of `dsv run` to a run, and to what is told of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from io import FileIO
from pathlib import Path
from typing import Any

from dsv.api.context import Context
from dsv.api.placing import Placing
from dsv.api.pool_settings import pools_to_try
from dsv.api.run import dry_run, recorded_run, run
from dsv.cli.call import Call
from dsv.cli.detach import detach
from dsv.cli.failure import Failure, of_error
from dsv.cli.output import document, to_json
from dsv.engines.base import Plan
from dsv.engines.signals import Signals, spared
from dsv.errors import DsvError, LaunchError, UsageError
from dsv.model.names import Target
from dsv.model.pool import DEFAULT_WAIT, HERE
from dsv.model.units import format_duration, parse_duration
from dsv.runs.again import again
from dsv.runs.life import RunResult, as_launch_error
from dsv.runs.place import RunPlace
from dsv.runs.pools.choice import Prefer
from dsv.runs.spec import OPTIONS, JobSpec, asked, parse_env, parse_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What was typed; None for what was left out. options: of the run, by the field of `JobSpec`; env: as typed."""

    target: str | None
    again: str | None
    env: tuple[str, ...]
    options: Mapping[str, Any]
    offline: bool
    jobs: int | None
    json_file: str | None
    dry_run: bool
    force: bool = False
    on: str | None = None
    prefer: str | None = None
    wait: str | None = None
    detach: bool = False

    @classmethod
    def of(cls, typed: Mapping[str, Any]) -> Typed:
        """From the parameters of the command by their names: for the options of a run the fields of `JobSpec`."""
        own = {each.name for each in fields(cls)} - {"options", "env"}
        options = {name: value for name, value in typed.items() if value and name not in own}
        if options.pop("no_log", False):
            options["log"] = False
        env = tuple(options.pop("env", None) or ())
        return cls(options=options, env=env, **{name: typed[name] for name in own})


@spared()
def launch(call: Call, typed: Typed) -> int:
    """Runs it, and returns the exit code. What keeps it from being launched is a `LaunchError`."""
    _check(call, typed)
    if typed.detach and call.session.announce is None:
        with launching():
            return detach(call)
    # Opened before anything else happens, so that a result can't be lost for a name that can't be written.
    file = None if typed.json_file is None or typed.dry_run else _JsonFile.open(typed.json_file)
    try:
        with launching():
            result = _launch(call, typed)
    except DsvError as error:
        if file is not None:
            _write(call, file, of_error(error).json())
        raise
    return 0 if result is None else _tell(call, result, file)


def _launch(call: Call, typed: Typed) -> RunResult | None:
    """None if it was only shown."""
    with call.context() as context:
        place = RunPlace.here(call.around.environ, call.settings.state, call.settings.cwd)
        spec = _spec(call, typed, context, place)
        cache = call.settings.cache().path
        placing = _placing(call, typed, context, cache)
        if typed.dry_run:
            plan = dry_run(context, cache, spec, place, offline=typed.offline, placing=placing)
            _show_plan(call, plan, spec)
            return None
        return run(
            context,
            cache,
            spec,
            place,
            offline=typed.offline,
            jobs=typed.jobs,
            signals=Signals(),
            announce=call.session.announce,
            placing=placing,
            force=typed.force,
        )


def _placing(call: Call, typed: Typed, context: Context, cache: Path) -> Placing | None:
    """None for this machine. A repeated run has the engine that it had, unless a pool is named."""
    default = typed.again is None and "engine" not in typed.options
    pools = pools_to_try(call.settings, typed.on) if typed.on or default else ()
    if not pools:
        for flag, value in (("--prefer", typed.prefer), ("--wait", typed.wait)):
            if value is not None:
                raise UsageError(
                    f"{flag} says how to choose a pool, and none is named", hint=f"--on A,B {flag} {value}"
                )
        return None
    if any(source.origin == "--cache" for source in call.settings.sources) and any(
        pool.name != HERE for pool in pools
    ):
        raise UsageError("a pool has its cache", subject="--cache", hint=f"leave out --cache, or --on {HERE}")
    if typed.prefer not in (None, *Prefer):
        raise UsageError(
            f"--prefer is cached or order, not {typed.prefer}", subject=typed.prefer, hint="--prefer order"
        )
    return Placing(
        context,
        call.around.environ,
        pools,
        cache,
        Prefer.CACHED if typed.prefer is None else Prefer(typed.prefer),
        DEFAULT_WAIT if typed.wait is None else parse_duration(typed.wait),
        typed.offline,
    )


def _check(call: Call, typed: Typed) -> None:
    if typed.force and "code" not in typed.options:
        raise UsageError("--force is for --code", hint="leave out --force")
    if typed.detach and typed.dry_run:
        raise UsageError("--dry-run starts nothing that could be detached", hint="leave out --detach")
    if typed.detach and typed.json_file is not None:
        raise UsageError(
            "--detach does not wait for the result that --json-file is for", hint="dsv wait RUN --json"
        )
    if call.json and not typed.dry_run and not typed.detach:
        raise UsageError("stdout is the job's, so the result can't go there", hint="--json-file FILE")
    if typed.on is not None and "engine" in typed.options:
        raise UsageError("a pool has its engine", subject="--engine", hint="leave out --engine, or --on")
    if typed.again is None and typed.target is None:
        raise UsageError("dsv run needs a target", hint="dsv run DATASET[@REV] -- CMD...")
    if typed.again is not None and typed.target is not None:
        raise UsageError("a repeated run has its target already", hint=f"dsv run --again {typed.again}")


def _spec(call: Call, typed: Typed, context: Context, place: RunPlace) -> JobSpec:
    env, unset = parse_env(typed.env, call.around.environ)
    for name in unset:
        call.warn(f"{name} has no value here, so the job doesn't get it")
    if typed.again is not None:
        return _again(call, typed, context, place, env)
    assert typed.target is not None  # _check looked
    target = Target.parse(typed.target)
    return JobSpec(target=target, command=call.words, env=env, **parse_options(typed.options))


def _again(call: Call, typed: Typed, context: Context, place: RunPlace, env: Mapping[str, str]) -> JobSpec:
    assert typed.again is not None
    for option in OPTIONS:
        if option.field in typed.options and not option.anew:
            raise UsageError(
                f"{option.flag} of a repeated run is what it was", hint=f"dsv run --again {typed.again}"
            )
    record = recorded_run(context, place, typed.again, offline=typed.offline)
    if record.pool is not None and typed.on is None:
        call.warn(f"it ran on the pool {record.pool}: --on {record.pool} takes it there again")
    if typed.offline:
        call.say(f"run {record.run} as it waits here to be sent: with --offline the store is not asked")
    repeated = again(record, place, command=call.words, env=env, **parse_options(typed.options))
    for sentence in repeated.cannot:
        call.warn(sentence)
    return repeated.spec


def _show_plan(call: Call, plan: Plan, spec: JobSpec) -> None:
    resources = asked(spec)
    if call.json:
        shown = {"engine": plan.engine, "argv": list(plan.argv), "env": sorted(plan.env)}
        script = {} if plan.script is None else {"script": plan.script}
        call.document({**shown, "resources": resources, **script})
    else:
        for line in plan.text().split("\n"):
            call.line(line)
    if resources:
        call.say("asked for: " + ", ".join(f"{name} {value}" for name, value in resources.items()))
    for note in plan.notes:
        call.say(note)


def _tell(call: Call, result: RunResult, file: _JsonFile | None) -> int:
    record = result.record
    if result.error is not None:
        call.complain(of_error(result.error))
    took = (
        ""
        if record.ended_ms is None
        else f" after {format_duration((record.ended_ms - record.started_ms) / 1000)}"
    )
    call.say(f"run {record.run} ended with exit code {result.exit_code}{took}; output in {result.out}")
    if record.output is not None and record.output.error is not None:
        call.warn(f"the output is not in the store: {record.output.error}")
    if record.metrics_error is not None:
        call.warn(f"metrics.json is not in the record: {record.metrics_error}")
    if result.sent.problem is not None:
        call.warn(f"the record is kept here, and sent by the next run: {result.sent.problem.message}")
    if file is not None:
        _write(call, file, to_json(document(_document(result))) + "\n")
    return result.exit_code


def _document(result: RunResult) -> dict[str, object]:
    record = result.record
    return {
        "run": record.run,
        "dataset": str(record.dataset),
        "commit": str(record.commit),
        "engine": record.engine,
        "exit_code": result.exit_code,
        "cache_hit": record.cache_hit,
        "stage_seconds": record.stage_seconds,
        "params": record.params,
        "metrics": record.metrics,
        "out": str(result.out),
    }


@dataclass(frozen=True, slots=True)
class _JsonFile:
    """Where a result for programs goes, once."""

    name: str
    file: FileIO

    @classmethod
    def open(cls, name: str) -> _JsonFile:
        """Raises `LaunchError`."""
        try:
            return cls(name, FileIO(name, "w"))
        except OSError as error:
            raise LaunchError(f"{name} can't be written: {error.strerror}", subject=name) from error


def _write(call: Call, to: _JsonFile, text: str) -> None:
    """That it can't be written changes nothing about the job, nor about dsv's exit code."""
    try:
        with to.file as file:
            left = memoryview(text.encode())
            while left:
                left = left[file.write(left) or 0 :]
    except OSError as error:
        call.warn(f"{to.name} can't be written: {error.strerror}")


@contextmanager
def launching() -> Iterator[None]:
    """As `as_launch_error`, for errors of the system too."""
    with as_launch_error():
        try:
            yield
        except OSError as error:
            failure: Failure = of_error(error)
            raise LaunchError(failure.message, subject=failure.subject, hint=failure.hint) from error
