"""The record of a run: which command saw which commit, where, how long, and what came of it.

A record is a JSON document, unlike the store's other metadata: nothing refers to it by a hash, half of it
(parameters, metrics) is JSON of somebody else's anyway, and a person with a bucket browser can read it.
Members that a reader doesn't know are ignored; a higher `version` than its own it refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Self

import msgspec

from dsv.errors import DsvError, IntegrityError, Unsupported, UsageError
from dsv.model.ids import CommitId
from dsv.model.json_values import Json, finite_number, whole_number
from dsv.model.names import DatasetName
from dsv.model.pool import PassedOver
from dsv.model.run_end import EndCause, RunPart
from dsv.model.sweep import SweepId, SweepSeat

RECORD_VERSION: Final = 1
MAX_RECORD: Final = 32 << 20
"""Bytes of one record: a MiB of metrics, and commands as long as a kernel takes, several bytes for each."""

START, LOG, RECORD = "start", "log", "record"
"""The parts of a run in the store: what was launched, its log, and all there is to know once it has ended."""
_LATER_START = re.compile(r"start-([2-9]|[1-9][0-9]{1,3})", re.ASCII)

_COUNT = re.compile(r"[0-9]{1,18}", re.ASCII)
_RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}", re.ASCII)


class RunId(str):
    """`20261120-132145-1f2e3d4c`: the time of the start in UTC, then randomness. Sorts by time."""

    __slots__ = ()

    @classmethod
    def make(cls, time_ms: int, entropy: bytes) -> Self:
        """From milliseconds since 1970 and four random bytes."""
        if len(entropy) != 4:
            raise ValueError("a run id takes four random bytes")
        return cls(f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y%m%d-%H%M%S}-{entropy.hex()}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `UsageError`."""
        if _RUN_ID.fullmatch(text) is None:
            raise UsageError(f"{text!r} is no id of a run", subject=text, hint="dsv runs lists them")
        return cls(text)


def start_name(number: int) -> str:
    """`start`, and `start-2` and so on each time that the run went on to another pool."""
    return START if number == 1 else f"{START}-{number}"


def start_number(part: str) -> int | None:
    """None for a part that isn't a start."""
    match = _LATER_START.fullmatch(part)
    return 1 if part == START else None if match is None else int(match[1])


def newest_start(parts: Iterable[str]) -> str:
    """The one of these parts that says where the run went last."""
    return start_name(max((start_number(part) or 1 for part in parts), default=1))


class RunState(StrEnum):
    SUBMITTED = "submitted"
    """Handed over; nothing has been done for it yet."""
    QUEUED = "queued"
    """Held back by an engine until it has room. The engines of one machine hold nothing back."""
    STAGING = "staging"
    """Its data is being brought into the cache. Only known where it was started: no store has a record yet."""
    RUNNING = "running"
    """Launched; nobody has said yet how it ended. A machine that lost power leaves it at that."""
    ENDED = "ended"
    """The command ran and ended by itself or by a signal; its exit code is the run's."""
    NOT_LAUNCHED = "not-launched"
    """The command never began: 125, or 126 and 127 as docker has them."""
    CUT_OFF = "cut-off"
    """Ended by dsv, because its lease was lost and the data could no longer be vouched for; or lost sight of,
    because its engine did not answer any more."""

    @property
    def is_terminal(self) -> bool:
        return self in (RunState.ENDED, RunState.NOT_LAUNCHED, RunState.CUT_OFF)


@dataclass(frozen=True, slots=True)
class RunData:
    """One commit that a run saw. name: of `--data`, empty for the target itself; path: what of the commit."""

    name: str
    dataset: DatasetName
    commit: CommitId
    path: str | None = None
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class CodeState:
    """The folder given as `--code`. commit: git's, if it has one; dirty: changed since, or untracked. tree: the commit
    of the store that has the code as the run saw it, in the dataset of the run; None if it was not committed."""

    path: str
    commit: str | None = None
    dirty: bool | None = None
    tree: str | None = None


@dataclass(frozen=True, slots=True)
class RunOutput:
    """The output of a run that was to be kept in the store. tree: the commit that has it, in the dataset of the run;
    None if it could not be kept, for the reason in error. left_out: what no commit can hold, each with why."""

    tree: str | None = None
    files: int = 0
    bytes: int = 0
    left_out: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU while the job ran: mean utilisation in per cent, most memory seen in bytes."""

    name: str
    utilization: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What a job took, as far as it could be seen.

    peak_memory_bytes: the most of samples twice a second, page cache and mapped files not counted; None where
    it was over too soon. cpu_seconds: user and system, of all its processes.
    """

    peak_memory_bytes: int | None = None
    cpu_seconds: float | None = None
    gpus: tuple[GpuUse, ...] = ()


def joint_usage(of_nodes: Iterable[Usage]) -> Usage | None:
    """What several nodes took: the memory of the one that took the most, the time of all."""
    found = list(of_nodes)
    if not found:
        return None
    memory = max(each.peak_memory_bytes or 0 for each in found)
    return Usage(memory or None, sum(each.cpu_seconds or 0.0 for each in found))


@dataclass(frozen=True, slots=True)
class JobRef:
    """A job as its engine knows it: enough to find it again from another process, later.

    run: the id of its run. where: which daemon, kernel or cluster holds it. id: the engine's own: of a container, of
    a batch job; of a process its number and its start.
    """

    engine: str
    run: str
    where: str
    id: str

    def encode(self) -> bytes:
        """A JSON object."""
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> JobRef:
        """Raises `IntegrityError`."""
        try:
            return _JOB.decode(data)
        except msgspec.DecodeError as error:
            raise IntegrityError(f"this is no reference of a job: {error}") from error


_JOB = msgspec.json.Decoder(JobRef)


@dataclass(frozen=True, slots=True)
class LogInfo:
    """bytes: what the job wrote; kept_bytes: what is kept of it, its head and its tail."""

    bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run. Times are milliseconds since 1970 by the clock of `host`.

    command, engine_args and argv are without secrets; env holds names only. exit_code is None while it runs. signal:
    the first ending one that was passed on to the job. end, cancelled_by: of the part that decides; None while it
    runs, and in records of versions that did not tell. parts: one for each node and attempt. pool: None if it ran here
    without one; passed_over: the pools that it did not go to, or did not stay at, in that order; then: those that it
    goes on to if it doesn't begin in time.
    """

    run: RunId
    dataset: DatasetName
    commit: CommitId
    target: str
    data: tuple[RunData, ...]
    state: RunState
    engine: str
    pool: str | None = None
    passed_over: tuple[PassedOver, ...] = ()
    then: tuple[str, ...] = ()
    engine_version: str | None = None
    job: JobRef | None = None
    image: str | None = None
    image_id: str | None = None
    image_digest: str | None = None
    command: tuple[str, ...] = ()
    engine_args: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    params: dict[str, Json]
    gpus: str | None = None
    gpu_type: str | None = None
    tpu: str | None = None
    tpu_topology: str | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    time_seconds: int | None = None
    nodes: int = 1
    retries: int = 0
    shm_bytes: int | None = None
    code: CodeState | None = None
    out: str
    output: RunOutput | None = None
    sweep: SweepSeat | None = None
    name: str | None = None
    host: str
    user: str
    started_ms: int
    ended_ms: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    end: EndCause | None = None
    cancelled_by: str | None = None
    error: str | None = None
    parts: tuple[RunPart, ...] = ()
    cache_hit: bool = False
    stage_seconds: float = 0.0
    stage_bytes: int = 0
    usage: Usage | None = None
    metrics: dict[str, Json] | None = None
    metrics_error: str | None = None
    log: LogInfo | None = None
    again_of: RunId | None = None
    dsv: str = ""

    @property
    def commits(self) -> tuple[tuple[DatasetName, CommitId], ...]:
        """What this record keeps alive."""
        kept = [(each.dataset, each.commit) for each in self.data]
        if self.code is not None and self.code.tree is not None:
            kept.append((self.dataset, CommitId.parse(self.code.tree)))
        if self.output is not None and self.output.tree is not None:
            kept.append((self.dataset, CommitId.parse(self.output.tree)))
        return tuple(kept)

    def encode(self) -> bytes:
        """ASCII JSON, one member a line. Raises `ValueError` where parameters or metrics are no JSON."""
        document = {"kind": "dsv run", "version": RECORD_VERSION, **asdict(self), "commit": self.commit.hex()}
        document["data"] = [asdict(each) | {"commit": each.commit.hex()} for each in self.data]
        return json.dumps(document, indent=1, allow_nan=False).encode("ascii") + b"\n"

    @classmethod
    def decode(cls, data: bytes, subject: str) -> RunRecord:
        """Raises `IntegrityError`, or `Unsupported` for a newer version; `subject` is the key."""
        document = _load(data, subject)
        version = document.get("version")
        if isinstance(version, int) and version > RECORD_VERSION:
            raise Unsupported(
                f"{subject} was written by a newer dsv (version {version} of its kind)",
                subject=subject,
                hint="update dsv",
            )
        if document.get("kind") != "dsv run" or version != RECORD_VERSION:
            raise IntegrityError(f"{subject} is no record of a run", subject=subject)
        try:
            record = msgspec.convert(document, cls, dec_hook=_convert)
        except msgspec.ValidationError as error:
            raise IntegrityError(f"{subject} is no record of a run: {error}", subject=subject) from error
        try:
            record.commits  # noqa: B018 (that they can be read)
        except UsageError as error:
            raise IntegrityError(
                f"{subject} is no record of a run: {error.message}", subject=subject
            ) from error
        odd = "a number in it" if _has_odd_number(record) else _odd_member(record)
        if odd is not None:
            raise IntegrityError(f"{subject} is no record of a run: {odd} is impossible", subject=subject)
        return record


def _odd_member(record: RunRecord) -> str | None:
    """What no dsv writes, and what readers would stumble over."""
    if record.gpus not in (None, "all") and _COUNT.fullmatch(record.gpus) is None:
        return f"gpus {record.gpus[:40]!r}"
    if record.sweep is not None and not record.sweep.is_possible:
        return f"its place in {record.sweep.id}"
    return None


def _has_odd_number(record: RunRecord) -> bool:
    """Whether a number has more than 64 bits, which no dsv writes."""
    counts = [
        record.started_ms,
        record.ended_ms or 0,
        record.stage_bytes,
        record.shm_bytes or 0,
        record.exit_code or 0,
        record.memory_bytes or 0,
        record.time_seconds or 0,
        record.nodes,
        record.retries,
    ]
    for part in record.parts:
        counts += [part.node, part.attempt, part.exit_code or 0, part.stage_bytes or 0]
        counts += [part.started_ms or 0, part.ended_ms or 0]
    counts += [number for each in record.data for number in (each.files, each.bytes)]
    counts += [] if record.log is None else [record.log.bytes, record.log.kept_bytes]
    counts += [] if record.sweep is None else [record.sweep.number, record.sweep.of]
    counts += [] if record.output is None else [record.output.files, record.output.bytes]
    if record.usage is not None:
        counts += [record.usage.peak_memory_bytes or 0, *(gpu.peak_memory_bytes for gpu in record.usage.gpus)]
    return any(abs(each) >= 1 << 63 for each in counts)


def _load(data: bytes, subject: str) -> dict[str, Json]:
    if len(data) > MAX_RECORD:
        raise IntegrityError(f"{subject} is larger than a record of a run may be", subject=subject)
    try:
        document = json.loads(
            data, parse_int=whole_number, parse_float=finite_number, parse_constant=finite_number
        )
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{subject} is no JSON", subject=subject) from error
    if not isinstance(document, dict):
        raise IntegrityError(f"{subject} is no record of a run", subject=subject)
    return document


def _convert(kind: type, value: Json) -> object:
    """Ids and names become what they are only by their own parsers."""
    if kind in (CommitId, DatasetName, RunId, SweepId) and isinstance(value, str):
        try:
            return kind.parse(value)
        except DsvError as error:
            raise ValueError(error.message) from error
    raise ValueError(f"{value!r} is no {kind.__name__}")


# msgspec learns a dataclass when it first meets it, and two threads that make it do so at once crash the process
# (0.22: SIGSEGV). A listing of runs reads them in several threads, so it learns all of a record's here.
msgspec.json.Decoder(RunRecord, dec_hook=_convert)
