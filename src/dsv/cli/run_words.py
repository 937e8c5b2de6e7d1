"""What a run asked for and how its parts ended, in words for people."""

from __future__ import annotations

from collections.abc import Mapping

from dsv.fs.process import host_name
from dsv.model.json_values import Json
from dsv.model.run import RunRecord, RunState
from dsv.model.run_end import EndCause, RunPart
from dsv.model.units import format_bytes, format_count, format_duration
from dsv.runs.query import as_text


def resources_text(record: RunRecord) -> str | None:
    """`2 GPUs of type A100, 4 CPUs, 16.0 GB of memory`; None if it asked for nothing."""
    gpus = (
        ""
        if record.gpus is None
        else "all GPUs"
        if record.gpus == "all"
        else format_count(int(record.gpus), "GPU")
    )
    parts = [
        f"{record.nodes} nodes" if record.nodes > 1 else "",
        gpus + (f" of type {record.gpu_type}" if record.gpu_type else ""),
        f"TPU {record.tpu} {record.tpu_topology or ''}".rstrip() if record.tpu else "",
        f"{record.cpus:g} CPUs" if record.cpus else "",
        f"{format_bytes(record.memory_bytes)} of memory" if record.memory_bytes else "",
        f"at most {format_duration(record.time_seconds)}" if record.time_seconds else "",
        "" if not record.retries else "1 retry" if record.retries == 1 else f"{record.retries} retries",
    ]
    return ", ".join(part for part in parts if part) or None


def pool_lines(record: RunRecord) -> list[tuple[str, str | None]]:
    """Where it ran, and why it didn't run elsewhere."""
    then = None if record.state.is_terminal else ", ".join(record.then) or None
    passed = [(f"not on {each.pool}", each.reason) for each in record.passed_over]
    return [("pool", record.pool), *passed, ("then", then)]


def job_text(record: RunRecord) -> str | None:
    """The job as its engine calls it, for the engine's own programs: `1234` on Slurm. None for a plain process."""
    if record.job is None or record.engine == "process":
        return None
    return record.job.id.partition(":")[0]


def code_lines(record: RunRecord) -> list[tuple[str, str | None]]:
    """Its folder with git's commit of it, and the commit of the store that has it."""
    code = record.code
    if code is None:
        return []
    changes = " with changes" if code.dirty else ""
    kept = None if code.tree is None else f"{record.dataset}@{code.tree}"
    return [("code", f"{code.path} {code.commit or ''}{changes}"), ("code in the store", kept)]


def params_text(params: Mapping[str, Json]) -> str:
    """`lr=0.1 epochs=3`."""
    return " ".join(f"{name}={as_text(value)}" for name, value in params.items())


def name_lines(record: RunRecord) -> list[tuple[str, str | None]]:
    """Its name, and that of its sweep."""
    seat = record.sweep
    if seat is None:
        return [("name", record.name)]
    named = "" if seat.name is None else f" of {seat.name}"
    return [("name", record.name), ("sweep", f"{seat.id}, run {seat.number} of {seat.of}{named}")]


def result_text(record: RunRecord) -> str:
    """How it ended, or what it does."""
    match record.state:
        case RunState.ENDED:
            if record.exit_code == 0 and record.end in (None, EndCause.EXITED):
                return "ok"
            return f"{cause_text(record) or 'failed'} ({record.exit_code})"
        case RunState.NOT_LAUNCHED:
            return f"not run ({record.exit_code})"
        case RunState.CUT_OFF:
            return "cut off"
        case state if (
            record.host != host_name()
        ):  # whose word it is: nobody here can see that the host still lives
            return f"{state} on {record.host}"
        case state:
            return str(state)


def cause_text(record: RunRecord) -> str | None:
    """Why it ended, if the command itself was not the cause."""
    return None if record.end in (None, EndCause.EXITED) else str(record.end).replace("-", " ")


def output_lines(record: RunRecord) -> list[tuple[str, str | None]]:
    """Its folder, and what the store has of it if it was to be kept there."""
    kept = record.output
    if kept is None:
        return [("output", record.out)]
    more = f", {len(kept.left_out)} left out" if kept.left_out else ""
    size = f"{format_count(kept.files, 'file')}, {format_bytes(kept.bytes)}"
    there = f"{record.dataset}@{kept.tree}, {size}{more}" if kept.tree else f"no: {kept.error}"
    return [("output", record.out), ("in the store", there)]


def part_text(part: RunPart) -> str:
    """`gpu-7, 3m 5s, exit code 137 (SIGKILL), out of memory`."""
    took = (
        None if part.started_ms is None or part.ended_ms is None else (part.ended_ms - part.started_ms) / 1000
    )
    code = None if part.exit_code is None else f"exit code {part.exit_code}"
    words = [
        f"node {part.node}" if part.node else None,
        part.host,
        None if took is None else format_duration(took),
        f"{code} ({part.exit_signal})" if code and part.exit_signal else code,
        "goes on" if part.end is None else str(part.end).replace("-", " "),
        part.error,
    ]
    return ", ".join(word for word in words if word)
