"""From the options of `dsv run` to a run, and what is printed about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

from dsv.api.run import dry_run, run
from dsv.api.workspaces import workspace_above
from dsv.cli.call import Call
from dsv.cli.detach import detach
from dsv.cli.failure import Failure, of_error
from dsv.cli.options.run import Typed, member_spec, placing_of, show_plan
from dsv.cli.output import document, to_json
from dsv.cli.views.runs import cause_text
from dsv.errors import DsvError, LaunchError, UsageError, as_launch_error
from dsv.run.dirs import RunPlace
from dsv.run.engines.attach import Signals, spared
from dsv.run.listing import RunView
from dsv.run.supervisor import RunResult
from dsv.values.units import format_duration


@contextmanager
def launching() -> Iterator[None]:
    """Raise errors as `LaunchError`, as `as_launch_error` does, those of the system too."""
    with as_launch_error():
        try:
            yield
        except OSError as error:
            failure: Failure = of_error(error)
            raise LaunchError(failure.message, subject=failure.subject, hint=failure.hint) from error


@spared()
def launch(call: Call, typed: Typed) -> int:
    """Run it and return the exit code. Raises `LaunchError` for what keeps it from being launched."""
    _check(call, typed)
    if typed.detach and call.session.announce is None:
        with launching():
            return detach(call)
    # Opened first, so that no result is lost for a name that can't be written.
    file = None if typed.json_file is None or typed.dry_run else _open(typed.json_file)
    try:
        with launching():
            result = _launch(call, typed)
    except DsvError as error:
        if file is not None:
            _write(call, file, of_error(error).json())
        raise
    return 0 if result is None else _tell(call, result, file)


def _launch(call: Call, typed: Typed) -> RunResult | None:
    """Return None if it was only shown."""
    with call.context(writes=True) as context:
        place = RunPlace.here(call.around.environ, call.settings.state, call.settings.cwd, workspace_above)
        spec = member_spec(call, typed, context, place)
        cache = call.settings.cache().path
        placing = placing_of(call, typed, context, cache)
        if typed.dry_run:
            plan, spec = dry_run(
                context, cache, spec, place, offline=typed.offline, placing=placing, force=typed.force
            )
            show_plan(call, plan, spec)
            return None
        return run(
            context,
            cache,
            spec,
            place,
            offline=typed.offline,
            signals=Signals(),
            announce=call.session.announce,
            placing=placing,
            force=typed.force,
        )


def _check(call: Call, typed: Typed) -> None:
    if typed.parallel is not None and call.session.member is None:
        raise UsageError("--parallel is for a sweep", hint="-p lr=0.1,0.01 --sweep --parallel 2")
    if typed.force and "code" not in typed.options and call.session.member is None:
        raise UsageError("--force is for --code and --again SWEEP", hint="leave out --force")
    if typed.detach and typed.dry_run:
        raise UsageError("--dry-run starts nothing that could be detached", hint="leave out --detach")
    if typed.detach and typed.json_file is not None:
        raise UsageError(
            "--detach does not wait for the result that --json-file is for", hint="dsv wait RUN --json"
        )
    if call.json and not typed.dry_run and not typed.detach and call.session.member is None:
        raise UsageError("stdout is the job's, so the result can't go there", hint="--json-file FILE")
    if typed.on is not None and "engine" in typed.options:
        raise UsageError("a pool has its engine", subject="--engine", hint="leave out --engine, or --on")
    if typed.again is None and typed.target is None:
        raise UsageError("dsv run needs a target", hint="dsv run DATASET[@REV] -- CMD...")
    if typed.again is not None and typed.target is not None:
        raise UsageError("a repeated run has its target already", hint=f"dsv run --again {typed.again}")


def _tell(call: Call, result: RunResult, file: FileIO | None) -> int:
    record = result.record
    if result.error is not None:
        call.complain(of_error(result.error))
    seconds = RunView(record, sent=True).took_seconds
    took = "" if seconds is None else f" after {format_duration(seconds)}"
    reason = None if result.error is not None else record.error or cause_text(record)
    why = "" if reason is None else f": {reason}"
    call.say(f"run {record.run} ended with exit code {result.exit_code}{took}{why}; output in {result.out}")
    if record.output is not None and record.output.error is not None:
        call.warn(f"the output is not in the store: {record.output.error}")
    if record.metrics_error is not None:
        call.warn(f"metrics.json is not in the record: {record.metrics_error}")
    if result.problem is not None:
        call.warn(f"the record is kept here, and sent by the next run: {result.problem.message}")
    if file is not None:
        _write(call, file, to_json(document(_document(result))) + "\n")
    return result.exit_code


def _document(result: RunResult) -> dict[str, object]:
    names = (
        "run", "dataset", "commit", "engine", "exit_code", "cache_hit", "stage_seconds", "params", "metrics"
    )  # fmt: skip
    shown = {name: getattr(result.record, name) for name in names}
    return {**shown, "commit": str(result.record.commit), "out": str(result.out)}


def _open(name: str) -> FileIO:
    try:
        return FileIO(name, "w")
    except OSError as error:
        raise LaunchError(f"{name} can't be written: {error.strerror}", subject=name) from error


def _write(call: Call, file: FileIO, text: str) -> None:
    """Write the result, or warn: an error changes nothing about the job, nor about dsv's exit code."""
    try:
        with file:
            left = memoryview(text.encode())
            while left:
                left = left[file.write(left) or 0 :]
    except OSError as error:
        call.warn(f"{file.name} can't be written: {error.strerror}")
