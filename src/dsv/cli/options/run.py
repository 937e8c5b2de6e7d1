"""The options of `dsv run`: what was typed, and what that means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsv.api.context import Context
from dsv.api.pools import Placing, pools_to_try
from dsv.api.run import recorded_run
from dsv.cli.call import Call
from dsv.errors import UsageError
from dsv.run.dirs import RunPlace
from dsv.run.engines.base import Plan
from dsv.run.pools import Prefer
from dsv.run.spec import OPTIONS, JobSpec, again, asked, parse_env, parse_options
from dsv.run.sweep import as_member
from dsv.values.json import Json
from dsv.values.names import HERE, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
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


def spec_of(call: Call, typed: Typed, context: Context, place: RunPlace) -> JobSpec:
    env, unset = parse_env(typed.env, call.around.environ)
    for name in unset:
        call.warn(f"{name} has no value here, so the job doesn't get it")
    if typed.again is not None:
        return _again(call, typed, context, place, env)
    assert typed.target is not None  # _check looked
    target = Target.parse(typed.target)
    return JobSpec(target=target, command=call.words, env=env, **parse_options(typed.options))


def member_spec(call: Call, typed: Typed, context: Context, place: RunPlace) -> JobSpec:
    """Return the spec of this process's run, of a sweep if it was started for one."""
    member = call.session.member
    if member is None:
        return spec_of(call, typed, context, place)
    return as_member(spec_of(call, replace(typed, again=member["again"]), context, place), member)


def _again(call: Call, typed: Typed, context: Context, place: RunPlace, env: Mapping[str, str]) -> JobSpec:
    assert typed.again is not None
    for name, option in OPTIONS.items():
        if name in typed.options and not option.anew:
            raise UsageError(
                f"{option.flag} of a repeated run is what it was", hint=f"dsv run --again {typed.again}"
            )
    record = recorded_run(context, place, typed.again, offline=typed.offline)
    if record.pool is not None and typed.on is None:
        call.warn(f"it ran on the pool {record.pool}: --on {record.pool} takes it there again")
    if typed.offline:
        call.say(f"run {record.run} as it waits here to be sent: with --offline the store is not asked")
    options = parse_options(typed.options)
    repeated = again(record, place, command=call.words, env=env, moves=typed.on is not None, **options)
    for sentence in repeated.cannot:
        call.warn(sentence)
    return repeated.spec


def placing_of(call: Call, typed: Typed, context: Context, cache: Path) -> Placing | None:
    """Return where the run goes; None for this machine. A repeated run keeps its engine, unless a pool is named."""
    default = typed.again is None and "engine" not in typed.options
    pools = pools_to_try(call.settings, typed.on) if typed.on or default else ()
    if not pools:
        return None
    if any(source.origin == "--cache" for source in call.settings.sources) and any(
        pool.name != HERE for pool in pools
    ):
        raise UsageError("a pool has its cache", subject="--cache", hint=f"leave out --cache, or --on {HERE}")
    prefer = call.settings.get("prefer")
    if prefer is not None and prefer.value not in tuple(Prefer):
        raise UsageError(
            f"the setting prefer is cached or order, not {prefer.value}",
            subject="prefer",
            hint="dsv config prefer order",
        )
    return Placing(
        context,
        call.around.environ,
        pools,
        cache,
        Prefer.CACHED if prefer is None else Prefer(prefer.value),
        typed.offline,
    )


def show_plan(call: Call, plan: Plan, spec: JobSpec) -> None:
    resources = asked(spec)
    if call.json:
        call.document(plan_document(plan, spec))
    else:
        for line in plan.text().split("\n"):
            call.line(line)
    if resources:
        call.say("asked for: " + ", ".join(f"{name} {value}" for name, value in resources.items()))
    for note in plan.notes:
        call.say(note)


def plan_document(plan: Plan, spec: JobSpec) -> dict[str, Json]:
    """For `--json`."""
    shown = {"engine": plan.engine, "argv": list(plan.argv), "env": sorted(plan.env)}
    script = {} if plan.script is None else {"script": plan.script}
    return {**shown, "resources": asked(spec), **script}
