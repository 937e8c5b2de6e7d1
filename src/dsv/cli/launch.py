"""From the options of `dsv run` to a run, and to what is told of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path

from dsv.api.cache_stage import NoLease, Stager
from dsv.api.context import Context
from dsv.api.run_store import LateRunStore
from dsv.cache.claims.leases import Lease
from dsv.cache.layout import CacheRoot
from dsv.cli.call import Call
from dsv.cli.failure import Failure, of_error
from dsv.cli.output import document, to_json
from dsv.engines.base import Plan
from dsv.engines.signals import Signals, spared
from dsv.errors import DsvError, Interrupted, LaunchError, Terminated, UsageError
from dsv.fs.process import host_name, user_name
from dsv.model.names import Rev, Target
from dsv.model.run import RunId, RunRecord
from dsv.model.units import format_duration, parse_size
from dsv.repo.run_spool import Spool
from dsv.repo.runs import RunStore
from dsv.runs.again import again
from dsv.runs.life import RunResult
from dsv.runs.life import dry_run as plan_run
from dsv.runs.life import run as execute
from dsv.runs.listing import show_run, waiting_run
from dsv.runs.marks import Marks
from dsv.runs.place import RunPlace
from dsv.runs.records import RunRecords
from dsv.runs.spec import RunRequest, parse_data, parse_env, parse_gpus, parse_params
from dsv.runs.staged import Staged


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What was typed; None for what was left out."""

    target: str | None
    data: tuple[str, ...]
    image: str | None
    engine: str | None
    code: str | None
    out: str | None
    gpus: str | None
    shm_size: str | None
    env: tuple[str, ...]
    param: tuple[str, ...]
    name: str | None
    engine_arg: tuple[str, ...]
    again: str | None
    offline: bool
    jobs: int | None
    no_log: bool
    json_file: str | None
    dry_run: bool


@spared()
def launch(call: Call, options: RunOptions) -> int:
    """Runs it, and returns the exit code. What keeps it from being launched is a `LaunchError`."""
    _check(call, options)
    # Opened before anything else happens, so that a result can't be lost for a name that can't be written.
    file = None if options.json_file is None or options.dry_run else _JsonFile.open(options.json_file)
    try:
        with as_launch_error():
            result = _launch(call, options)
    except DsvError as error:
        if file is not None:
            _write(call, file, of_error(error).json())
        raise
    return 0 if result is None else _tell(call, result, file)


def _launch(call: Call, options: RunOptions) -> RunResult | None:
    """None where it was only shown."""
    with call.context() as context:
        place = _place(call)
        request = _request(call, options, context, place)
        root = CacheRoot(call.settings.cache().path)
        with Stager(context, root, offline=options.offline, jobs=options.jobs) as stager:
            if not options.dry_run:
                return _run(call, options, context, place, request, stager)
            _show_plan(call, plan_run(request, place=place, staging=stager))
    return None


def _run(
    call: Call, options: RunOptions, context: Context, place: RunPlace, request: RunRequest, stager: Stager
) -> RunResult:
    staging = _Fixed(stager, [request.target, *request.data.values()])
    store = staging.store
    with LateRunStore(context, store) as runs:
        return execute(
            request,
            place=place,
            staging=staging,
            records=RunRecords(
                Spool(place.spool, store), None if options.offline else runs, Marks(place.state, store)
            ),
            signals=Signals(),
            progress=context.progress,
        )


class _Fixed:
    """Finds each target once: what a branch names may change between looking and staging."""

    def __init__(self, stager: Stager, targets: list[Target]) -> None:
        found = {target: stager.targets.find(target) for target in targets}
        self.store = found[targets[0]].store
        self._stager = stager
        self._found = found
        self._whole = {
            target: Target(one.dataset, Rev(str(one.commit)), target.path) for target, one in found.items()
        }

    def locate(self, target: Target) -> Staged:
        return self._stager.locate(self._whole[target])

    def stage(self, target: Target, run: RunId) -> tuple[Staged, Lease | NoLease]:
        staged = self._stager.stage(self._whole[target], run)
        self._stager.targets.remember(self._found[target])
        return staged


def _check(call: Call, options: RunOptions) -> None:
    if call.json and not options.dry_run:
        raise UsageError("stdout is the job's, so the result can't go there", hint="--json-file FILE")
    if options.again is None and options.target is None:
        raise UsageError("dsv run needs a target", hint="dsv run DATASET[@REV] -- CMD...")
    if options.again is not None and options.target is not None:
        raise UsageError("a repeated run has its target already", hint=f"dsv run --again {options.again}")


def _request(call: Call, options: RunOptions, context: Context, place: RunPlace) -> RunRequest:
    env, unset = parse_env(options.env, call.around.environ)
    for name in unset:
        call.warn(f"{name} has no value here, so the job doesn't get it")
    if options.again is not None:
        return _again(call, options, context, place, env)
    assert options.target is not None  # _check looked
    return RunRequest(
        target=Target.parse(options.target),
        command=call.words,
        data=parse_data(options.data),
        image=options.image,
        engine=options.engine,
        code=None if options.code is None else Path(options.code),
        out=None if options.out is None else Path(options.out),
        gpus=None if options.gpus is None else parse_gpus(options.gpus),
        shm_bytes=None if options.shm_size is None else parse_size(options.shm_size),
        env=env,
        params=parse_params(options.param),
        name=options.name,
        engine_args=options.engine_arg,
        log=not options.no_log,
    )


def _again(
    call: Call, options: RunOptions, context: Context, place: RunPlace, env: Mapping[str, str]
) -> RunRequest:
    given = {
        "--data": options.data,
        "--image": options.image,
        "--engine": options.engine,
        "--code": options.code,
        "--gpus": options.gpus,
        "--shm-size": options.shm_size,
    }
    for option, value in given.items():
        if value:
            raise UsageError(
                f"{option} of a repeated run is what it was", hint=f"dsv run --again {options.again}"
            )
    repeated = again(
        _recorded(call, options, context, place),
        place,
        command=call.words,
        engine_args=options.engine_arg,
        env=env,
        params=parse_params(options.param),
        out=None if options.out is None else Path(options.out),
        log=not options.no_log,
    )
    for sentence in repeated.cannot:
        call.warn(sentence)
    return repeated.request if options.name is None else replace(repeated.request, name=options.name)


def _recorded(call: Call, options: RunOptions, context: Context, place: RunPlace) -> RunRecord:
    """The run that is to be repeated."""
    assert options.again is not None
    if options.offline:
        record = waiting_run(place.spool, options.again)
        call.say(f"run {record.run} as it waits here to be sent: with --offline the store is not asked")
        return record
    with context.repository() as repository:
        spool = Spool(place.spool, repository.id)
        runs = RunStore(repository.store)
        return show_run(runs, spool, options.again, list(repository.refs.datasets())).record


def _place(call: Call) -> RunPlace:
    return RunPlace(
        environ=call.around.environ,
        state=call.settings.state,
        cwd=call.settings.cwd,
        host=host_name(),
        user=user_name(os.getuid()),
    )


def _show_plan(call: Call, plan: Plan) -> None:
    if call.json:
        call.document({"engine": plan.engine, "argv": list(plan.argv), "env": sorted(plan.env)})
    else:
        call.line(plan.text())
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
def as_launch_error() -> Iterator[None]:
    """Whatever keeps a command from being started is 125, as docker has it; misuse and interrupts stay."""
    try:
        yield
    except (UsageError, LaunchError, Interrupted, Terminated):
        raise
    except DsvError as error:
        raise LaunchError(error.message, subject=error.subject, hint=error.hint) from error
    except OSError as error:
        failure: Failure = of_error(error)
        raise LaunchError(failure.message, subject=failure.subject, hint=failure.hint) from error
