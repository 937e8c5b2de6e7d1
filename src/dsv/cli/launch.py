"""Start a run or a sweep from the options of `dsv run`, and print its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from shlex import quote
from signal import SIGHUP
from typing import TYPE_CHECKING, Any

from dsv.api.context import Context
from dsv.api.lock_files import check_receipt, further_data, write_receipt
from dsv.api.pools import Placing, pools_to_try
from dsv.api.run import dry_run, recorded_run, run
from dsv.api.settings import parse_setting
from dsv.cli.call import Call
from dsv.cli.detach import detach, start_supervisor
from dsv.cli.failure import failure_json, of_error
from dsv.cli.output import document, to_json
from dsv.cli.run_views import write_table
from dsv.cli.terminal import Style
from dsv.errors import Conflict, DsvError, LaunchError, UsageError, as_launch_error
from dsv.run.dirs import RunPlace
from dsv.run.engines.attach import Signals, informing_ignored
from dsv.run.engines.base import JobPlan
from dsv.run.listing import RunView
from dsv.run.parameters import ID_PART, PREFIX, SweepSeat, combination, names_sweep, parse_axes, varied
from dsv.run.pools import Prefer
from dsv.run.record import RunId, RunOutput, RunRecord
from dsv.run.result import cause_text, result_text
from dsv.run.spec import OPTIONS, JobSpec, again, asked, parse_env, parse_options
from dsv.run.sweep import SweepDriver, SweepPlan, as_member, continued_sweep, driving, new_sweep, sweep_folder
from dsv.values.json import Json, as_text, flattened, params_text
from dsv.values.names import HERE, Rev, Target
from dsv.values.units import format_count, format_duration

if TYPE_CHECKING:
    from dsv.api.runs import Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """The command line of a run; None for options that were not given."""

    target: str | None
    again: str | None
    env: tuple[str, ...]
    options: Mapping[str, Any]
    """By the field of `JobSpec`."""
    offline: bool
    json_file: str | None
    dry_run: bool
    force: bool = False
    on: str | None = None
    detach: bool = False
    sweep: bool = False
    parallel: int | None = None


def spec_of(call: Call, typed: RunArguments, context: Context, place: RunPlace) -> JobSpec:
    env, unset = parse_env(typed.env, call.around.environ)
    for name in unset:
        call.warn(f"{name} is not set here, so the job doesn't get it")
    if typed.again is not None:
        return _again(call, typed, context, place, env)
    assert typed.target is not None  # see _check
    data, target = further_data(typed.options.get("data") or (), Target.parse(typed.target))
    options = parse_options({**typed.options, "data": data} if "data" in typed.options else typed.options)
    return JobSpec(target=target, command=call.words, **env, **options)


def member_spec(call: Call, typed: RunArguments, context: Context, place: RunPlace) -> JobSpec:
    """Return the spec of this process's run, which may be one run of a sweep."""
    member = call.session.member
    if member is None:
        return spec_of(call, typed, context, place)
    return as_member(spec_of(call, replace(typed, again=member["again"]), context, place), member)


def _again(
    call: Call, typed: RunArguments, context: Context, place: RunPlace, env: Mapping[str, Any]
) -> JobSpec:
    assert typed.again is not None
    for name, option in OPTIONS.items():
        if name in typed.options and not option.anew:
            raise UsageError(f"a repeated run keeps its {option.flag}", hint=f"dsv run --again {typed.again}")
    record = recorded_run(context, place, typed.again, offline=typed.offline)
    if record.pool is not None and typed.on is None:
        call.warn(f"it ran on the pool {record.pool}; to run it there again, add --on {record.pool}")
    if typed.offline:
        call.say(f"run {record.run} is read from this machine: with --offline the store is not asked")
    options = parse_options(typed.options)
    if call.session.member is not None and record.once is not None:
        options |= {"once": True, "key": tuple(record.once.keys)}
    repeated = again(record, place, command=call.words, **env, moves=typed.on is not None, **options)
    for sentence in repeated.cannot:
        call.warn(sentence)
    return repeated.spec


def placing_of(call: Call, typed: RunArguments, context: Context, cache: Path) -> Placing | None:
    """Return where the run goes; None for this machine. A repeated run keeps its engine, unless a pool is named."""
    default = typed.again is None and "engine" not in typed.options
    pools = pools_to_try(call.settings, typed.on) if typed.on or default else ()
    if not pools:
        return None
    if any(source.origin == "--cache" for source in call.settings.sources) and any(
        pool.name != HERE for pool in pools
    ):
        raise UsageError(
            "a pool has a cache of its own", subject="--cache", hint=f"leave out --cache, or --on {HERE}"
        )
    prefer = call.settings.get("prefer")
    first = Prefer.CACHED if prefer is None else list(Prefer)[parse_setting(prefer)]
    return Placing(context, call.around.environ, pools, cache, first, typed.offline)


def show_plan(call: Call, plan: JobPlan, spec: JobSpec, once: dict[str, Json] | None) -> None:
    resources = asked(spec)
    if call.json:
        call.document(plan_document(plan, spec, once))
    else:
        for line in plan.text().split("\n"):
            call.line(line)
    if resources:
        call.say("asked for: " + ", ".join(f"{name} {value}" for name, value in resources.items()))
    for note in plan.notes:
        call.say(note)


def plan_document(plan: JobPlan, spec: JobSpec, once: dict[str, Json] | None) -> dict[str, Json]:
    shown = {"engine": plan.engine, "argv": list(plan.argv), "env": sorted(plan.env)}
    script = {} if plan.script is None else {"script": plan.script}
    return {**shown, "resources": asked(spec), **script, **({} if once is None else {"once": once})}


@contextmanager
def launching() -> Iterator[None]:
    """Raises errors as `LaunchError`, as `as_launch_error` does, and OSErrors too."""
    with as_launch_error():
        try:
            yield
        except OSError as error:
            raise of_error(error) from error


@informing_ignored()
def launch(call: Call, typed: RunArguments) -> int:
    """Launch a run or a sweep, and return the exit code: of a sweep, 0 if all runs succeeded. Raises
    `LaunchError` if it can't be launched."""
    _check_options(typed)
    typed = _with_sweep_id(call, typed)
    several = typed.sweep or (typed.again is not None and names_sweep(typed.again))
    if several and call.session.member is None:
        check, start = _check_sweep, _launch_sweep
    else:
        check, start = _check, _launch_one
    check(call, typed)
    if typed.detach and call.session.announce is None:
        with launching():
            return detach(call)
    return start(call, typed)


def _with_sweep_id(call: Call, typed: RunArguments) -> RunArguments:
    """Return the arguments with the id of the sweep that is to be continued, if `--again` has its name."""
    if (
        typed.again is None
        or typed.offline
        or call.session.member
        or ID_PART.fullmatch(typed.again.removeprefix(PREFIX))
    ):
        return typed
    from dsv.api.runs import open_runs

    with suppress(DsvError), call.context() as context, open_runs(context, call.around.environ) as runs:
        named = runs.show_or_sweep(typed.again)
        return typed if isinstance(named, RunView) else replace(typed, again=named.id)
    return typed  # whoever reads the record says what is wrong


def _launch_one(call: Call, typed: RunArguments) -> int:
    # Opened first: a file that can't be written must not cost the result.
    file = None if typed.json_file is None or typed.dry_run else _open(typed.json_file)
    try:
        with launching():
            result = _launch(call, typed)
    except DsvError as error:
        if file is not None:
            _write(call, file, failure_json(of_error(error)))
        raise
    if result is None or not result.record.state.is_terminal:  # it was left to a cluster
        return 0
    return _tell(call, result, file, typed.options.get("receipt"))


def _launch(call: Call, typed: RunArguments) -> RunView | None:
    """Return None after a dry run."""
    # Without code, a kept output or a pool nothing is signed, and git need not be asked.
    signed = {"code", "keep_output", "into", "once"} & typed.options.keys()
    signs = typed.again or typed.on or signed or call.settings.get("pool")
    with call.context(writes=bool(signs)) as context:
        place = _place(call)
        spec = member_spec(call, typed, context, place)
        if spec.receipt is not None and spec.into is not None:
            check_receipt(spec.receipt, spec.into)
        cache = call.settings.cache().path
        placing = placing_of(call, typed, context, cache)
        if typed.dry_run:
            shown = dry_run(
                context, cache, spec, place, offline=typed.offline, placing=placing, force=typed.force
            )
            show_plan(call, *shown)
            return None
        return run(
            context, cache, spec, place, offline=typed.offline, signals=Signals(), announce=call.session.announce,
            placing=placing, force=typed.force,
        )  # fmt: skip


def _place(call: Call) -> RunPlace:
    return RunPlace.here(call.around.environ, call.settings.state, call.settings.cwd)


def _check_options(typed: RunArguments) -> None:
    """Check what a run and a sweep have in common."""
    if typed.detach and typed.dry_run:
        raise UsageError(
            "--dry-run starts nothing, so --detach can't be used with it", hint="leave out --detach"
        )
    if typed.on is not None and "engine" in typed.options:
        raise UsageError("the pool sets the engine", subject="--engine", hint="leave out --engine, or --on")
    for what in ("key", "fresh"):
        if what in typed.options and "once" not in typed.options:
            raise UsageError(f"--{what} is for --once", hint=f"add --once, or leave out --{what}")
    if typed.offline and "once" in typed.options:
        raise UsageError("--once needs the store, so it can't be used with --offline", hint="leave out one")
    if "receipt" in typed.options and "into" not in typed.options:
        raise UsageError("--receipt requires --into", hint="--into DATASET --receipt FILE")
    if typed.again is not None and typed.target is not None:
        raise UsageError(
            "--again takes no target: it repeats that too", hint=f"dsv run --again {typed.again}"
        )


def _check(call: Call, typed: RunArguments) -> None:
    if typed.parallel is not None and call.session.member is None:
        raise UsageError("--parallel is for a sweep", hint="-p lr=0.1,0.01 --sweep --parallel 2")
    if typed.force and "code" not in typed.options and call.session.member is None:
        raise UsageError("--force is for --code and --again SWEEP", hint="leave out --force")
    for flag, given in (("--json-file", typed.json_file), ("--receipt", typed.options.get("receipt"))):
        if typed.detach and given is not None:
            why = f"--detach does not wait for the result that {flag} is for"
            raise UsageError(why, hint="dsv wait RUN --json")
    if call.json and not typed.dry_run and not typed.detach and call.session.member is None:
        raise UsageError("stdout is the job's, so the result can't go there", hint="--json-file FILE")
    if typed.offline and "into" in typed.options:
        raise UsageError("--into needs the store, so it can't be used with --offline", hint="leave out one")
    if typed.again is None and typed.target is None:
        raise UsageError("dsv run needs a target", hint="dsv run DATASET[@REV] -- CMD...")


def _tell(call: Call, result: RunView, file: FileIO | None, receipt: str | None) -> int:
    record = result.record
    if result.error is not None:
        call.complain(result.error)
    took = "" if result.took_seconds is None else f" after {format_duration(result.took_seconds)}"
    reason = None if result.error is not None else record.error or cause_text(record)
    why = "" if reason is None else f": {reason}"
    if not result.hit:
        call.say(
            f"run {record.run} ended with exit code {record.exit_code}{took}{why}; output in {result.out}",
            Style.GOOD if record.exit_code == 0 else Style.BAD,
        )
    code = result.exit_code
    try:
        _tell_output(call, record, receipt)
    except Conflict as error:
        call.complain(error) if not code else None
        code = code or error.exit_code
    if record.metrics_error is not None:
        call.warn(f"metrics.json is not in the record: {record.metrics_error}")
    if result.problem is not None:
        kept = "the record is kept here, and sent by the next run" if result.kept else "the record is lost"
        call.warn(f"{kept}: {result.problem.message}")
    if file is not None:
        out = None if result.out is None else str(result.out)
        item = call.head(record, out=out, run=result.result_run, hit=result.hit)
        del item["sweep"]
        _write(call, file, to_json(document(item)) + "\n")
    return code


def _tell_output(call: Call, record: RunRecord, receipt: str | None) -> None:
    """Say where the output is, and write the receipt. Raises `Conflict` if a job has succeeded and that can't be."""
    output = record.output or RunOutput()
    into = output.into
    if output.tree is None and output.error is not None:
        call.warn(f"the output is not in the store: {output.error}")
    if into is not None and into.commit is not None:
        call.say(str(into))
        made = Target(into.dataset, Rev(str(into.commit)), into.target.path)
        try:
            write_receipt(Path(receipt), [made]) if receipt is not None else None
        except OSError as error:
            why, line = f"{receipt} can't be written: {error.strerror}", f"echo {quote(str(made))} > FILE"
            raise Conflict(why, subject=receipt, hint=line) from error
    elif into is not None:
        why = f"{into.target} stays as it is: {into.error or 'nobody has moved it'}"
        later = f"to put the output there: dsv runs {record.run} --into {into.target}"
        if record.exit_code == 0:
            hint = f"dsv runs {record.run} --out DIR" if output.tree is None else later
            raise Conflict(why, subject=str(into.target), hint=hint)
        if output.tree is not None:
            call.warn(f"{why}; {later}")


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


def _launch_sweep(call: Call, typed: RunArguments) -> int:
    from dsv.api.runs import open_runs
    from dsv.api.sweep import become_driver, open_sweep

    with ExitStack() as held:
        with launching():
            context = held.enter_context(call.context(writes=True))
            found = held.enter_context(open_runs(context, call.around.environ))
            place = _place(call)
            plan = _plan(call, typed, context, place, found)
            cache = call.settings.cache().path
            placing = placing_of(call, typed, context, cache)
            if typed.dry_run:
                _show(call, context, cache, place, plan, placing, force=typed.force)
                return 0
        become_driver(found, plan)
        held.enter_context(driving(place.state, plan.seat.id))
        with launching():
            driver = held.enter_context(
                open_sweep(
                    context, found, cache, plan, place,
                    parallel=typed.parallel or 1,
                    start=lambda whole, number: start_supervisor(call, whole.member(number)),
                    watch=_watcher(call, plan.seat), note=call.say, placing=placing, force=typed.force
                )
            )  # fmt: skip
        _announce(call, place, plan, driver.parallel)
        driver.drive()
        return _tell_sweep(call, found, driver)


def _plan(call: Call, typed: RunArguments, context: Context, place: RunPlace, found: Runs) -> SweepPlan:
    if typed.again is not None:
        view, turn = found.unfinished(typed.again)
        sibling = replace(typed, again=view.members[0].record.run)
        return continued_sweep(view, turn, spec_of(call, sibling, context, place), place)
    axes = parse_axes(typed.options.get("params") or ())
    options = {name: value for name, value in typed.options.items() if name != "params"}
    return new_sweep(spec_of(call, replace(typed, options=options), context, place), axes, place)


def _announce(call: Call, place: RunPlace, plan: SweepPlan, parallel: int) -> None:
    seat = plan.seat
    folder = sweep_folder(place.state, seat.id)
    if call.session.announce is not None:
        call.session.announce(seat.id, folder, folder)
    else:
        call.say(f"{seat.id}: {format_count(len(plan.left), 'run')}, at most {parallel} at once")


def _tell_sweep(call: Call, opened: Runs, driver: SweepDriver) -> int:
    from dsv.api.sweep import outcome

    if driver.ended_by == SIGHUP:
        return 128 + SIGHUP  # the terminal is gone
    code, view = outcome(opened, driver)
    if call.json:
        runs = [] if view is None else [member.item() for member in view.members]
        call.document({"sweep": {"id": driver.plan.seat.id, "exit_code": code, "runs": runs}})
    elif view is not None:
        write_table(call, view.members)
    return code


def _show(
    call: Call,
    context: Context,
    cache: Path,
    place: RunPlace,
    plan: SweepPlan,
    placing: Placing | None,
    *,
    force: bool,
) -> None:
    items = []
    for number in plan.left:
        spec = plan.of_run(number)
        shown = dry_run(context, cache, spec, place, placing=placing, force=force)
        if call.json:
            items.append({"number": number, "params": spec.params, **plan_document(*shown)})
        else:
            params = " ".join(f"{name}={value}" for name, value in spec.params.items())
            call.line(f"# run {number} of {plan.seat.of}: {params}")
            show_plan(call, *shown)
    if call.json:
        call.items(items)


def _check_sweep(call: Call, typed: RunArguments) -> None:
    if typed.sweep and typed.again is not None:
        raise UsageError(
            "--again SWEEP continues a sweep, without --sweep", hint=f"dsv run --again {typed.again}"
        )
    if typed.sweep and typed.target is None:
        raise UsageError("dsv run needs a target", hint="dsv run DATASET[@REV] -p K=V,V --sweep -- CMD...")
    if typed.offline:
        raise UsageError(
            "a sweep needs the store, so it can't run with --offline",
            subject="--offline",
            hint="leave out --offline",
        )
    if "into" in typed.options:
        best = "--keep-output, and then for the best of them: dsv runs ID --into TARGET"
        raise UsageError("each run of a sweep would replace what the one before put there", hint=best)
    if typed.json_file is not None:
        raise UsageError("--json-file is for one run", hint="--json prints the runs of a sweep")
    if typed.again is not None and (typed.options or call.words):
        raise UsageError(
            f"the runs of {typed.again} keep their options and their command",
            subject=typed.again,
            hint=f"dsv run --again {typed.again}",
        )


_METRICS = 4
"""Metrics that a line has room for."""


def _watcher(call: Call, seat: SweepSeat) -> Callable[[int, RunId | RunView], None]:
    """Return a function that prints that a run, by its number, has begun or ended."""

    def say(number: int, run: RunId | RunView) -> None:
        params = params_text(varied(combination(seat.axes, number), seat.axes))
        what = f"{run.record.run} {_ending(run)}" if isinstance(run, RunView) else f"{run} begun"
        call.say(f"{number}/{seat.of} {params}: run {what}")

    return say


def _ending(view: RunView) -> str:
    """Return `ok after 3.2 s, acc=0.93`."""
    took = "" if view.took_seconds is None or view.hit else f" after {format_duration(view.took_seconds)}"
    metrics = list(flattened(view.record.metrics or {}).items())
    shown = "".join(f", {name}={as_text(value)[:12]}" for name, value in metrics[:_METRICS])
    how = f"is the same as {view.result_run}" if view.hit else result_text(view.record)
    return f"{how}{took}{shown}"
