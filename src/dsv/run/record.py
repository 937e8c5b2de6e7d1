"""The record of a run: its command, commit, place and times, and the end of the run and its parts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import msgspec

from dsv.errors import DsvError, IntegrityError, Unsupported, UsageError
from dsv.format.records import CommitRecord
from dsv.run.parameters import RunId as RunId
from dsv.run.parameters import SweepId, SweepSeat
from dsv.run.part import EndCause, Int, RunPart
from dsv.run.resources import PassedOver
from dsv.values.ids import CommitId
from dsv.values.json import Json, finite_number, whole_number
from dsv.values.names import MAIN, BranchName, DatasetName, Target, clean_path
from dsv.values.trailers import parse_run

RECORD_VERSION: Final = 1
MAX_RECORD: Final = 32 << 20
"""Bytes of one record: 1 MiB of metrics, and the longest command that kernels take, encoded."""

START, LOG, SERIES, RECORD = "start", "log", "series", "record"
"""The parts of a run in the store: its start, its log, its curves, and the whole record once it has ended."""
_LATER_START = re.compile(r"start-([2-9]|[1-9][0-9]{1,3})", re.ASCII)

_COUNT = re.compile(r"[0-9]{1,18}", re.ASCII)
_RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}", re.ASCII)


def start_name(number: int) -> str:
    """Return `start`, or `start-2` and so on for each further pool that the run moved to."""
    return START if number == 1 else f"{START}-{number}"


def start_number(part: str) -> int | None:
    """Return the number of a start; None for any other part."""
    match = _LATER_START.fullmatch(part)
    return 1 if part == START else None if match is None else int(match[1])


def newest_start(parts: Iterable[str]) -> str:
    """Return the last start among these parts."""
    return start_name(max((start_number(part) or 1 for part in parts), default=1))


class RunState(StrEnum):
    SUBMITTED = "submitted"
    """Handed over; nothing has been done for it yet."""
    QUEUED = "queued"
    """Waits until the engine has room. The engines of one machine have no queue."""
    STAGING = "staging"
    """Its data is being brought into the cache. Only known where it was started: no store has a record yet."""
    RUNNING = "running"
    """Launched, and the end is not recorded yet. It remains so if the machine loses power."""
    ENDED = "ended"
    """The command ran and ended by itself or by a signal; its exit code is the run's."""
    NOT_LAUNCHED = "not-launched"
    """The command never began: 125, or 126 and 127 as in docker."""
    CUT_OFF = "cut-off"
    """Ended by dsv because the lease on its data was lost, or lost sight of: its engine stopped answering."""

    @property
    def is_terminal(self) -> bool:
        return self in (RunState.ENDED, RunState.NOT_LAUNCHED, RunState.CUT_OFF)


@dataclass(frozen=True, slots=True)
class RunData:
    """One commit that a run saw."""

    name: str
    """The name given with `--data`; empty for the target of the run."""
    dataset: DatasetName
    commit: CommitId
    path: str | None = None
    """The part of the commit that the run saw."""
    files: Int = 0
    bytes: Int = 0
    root: str | None = None
    """The root of the tree that the job saw: of a part, that of its entries alone, with their whole paths."""
    commit_root: str | None = None
    """The root of the whole commit. Both are None if they were not known at the start, and in older records."""


@dataclass(frozen=True, slots=True)
class RunCommit:
    """A commit that the job itself read or made, without being told to by an option of the run."""

    dataset: DatasetName
    commit: CommitId
    root: str | None = None


@dataclass(frozen=True, slots=True)
class CodeState:
    """The folder given as `--code`."""

    path: str
    commit: str | None = None
    """The commit of git."""
    dirty: bool | None = None
    """The folder has changes since, or untracked files."""
    tree: str | None = None
    """The commit of the store with the code, in the dataset of the run; None if it was not committed."""
    root: str | None = None
    """The root of that commit's tree."""
    remote: str | None = None
    """The URL of git's remote `origin`, without user, password and query."""


@dataclass(frozen=True, slots=True)
class LockFile:
    """The file beside the code that pins its packages."""

    name: str
    digest: str
    """BLAKE3 of its content."""


MOST_OUTPUT_FILES: Final = 64


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file of an output. id: that of its content."""

    path: str
    size: Int
    id: str


@dataclass(frozen=True, slots=True)
class IntoBranch:
    """The branch that got the output of a run, or was to get it."""

    dataset: DatasetName
    branch: BranchName
    commit: CommitId | None = None
    """The branch's commit with the output; None if it could not be made."""
    root: str | None = None
    """The root of that commit's tree."""
    path: str | None = None
    """The folder of the commit that has the output; None for the whole commit."""
    new: bool = False
    """The commit was made for this output; else the branch had the same content before."""
    error: str | None = None
    """The reason why the branch did not get it; None, as `commit`, until somebody has tried."""

    @classmethod
    def due(cls, target: Target) -> IntoBranch:
        assert target.dataset is not None  # checked before the run
        branch = MAIN if target.rev is None else BranchName.parse(target.rev.text)
        path = clean_path(target.path).decode("utf-8", "surrogateescape")
        return cls(target.dataset, branch, path=path or None)

    @property
    def target(self) -> Target:
        return Target.parse(f"{self.dataset}@{self.branch}" + (f":{self.path}" if self.path else ""))

    def __str__(self) -> str:
        return f"{self.target} {'is now' if self.new else 'was already'} the output: {str(self.commit)[:12]}"


@dataclass(frozen=True, slots=True)
class RunOutput:
    """The output folder of a run that was to be committed into the store."""

    tree: str | None = None
    """The commit with the output, in the dataset of the run; None if the commit failed."""
    files: Int = 0
    bytes: Int = 0
    left_out: tuple[str, ...] = ()
    """Paths that a commit can't hold, with reasons."""
    error: str | None = None
    """The reason why the commit failed, or the move of the branch after it."""
    root: str | None = None
    """The root of the commit's tree."""
    largest: tuple[OutputFile, ...] = ()
    """The largest of its files, at most `MOST_OUTPUT_FILES`, the largest first."""
    into: IntoBranch | None = None
    """The branch that was to get it, if one was named."""

    @property
    def is_due(self) -> bool:
        """A branch was named, and nobody has tried to give it the output."""
        return self.into is not None and self.into.commit is None and self.into.error is None

    def missed(self, why: str) -> RunOutput:
        """Return it with the reason why its branch did not get it."""
        into = None if self.into is None else replace(self.into, error=why)
        return replace(self, error=self.error or why, into=into)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnceKey:
    """What decides whether a run is done already, as far as the rest of its record does not have it."""

    key: str
    """The digest of all that decides, as 64 hex digits. Runs with equal keys have equal results."""
    image: str | None = None
    """The digest of the image, or its local id if no registry has it. None without an image."""
    system: str | None = None
    """Without an image: the operating system and the architecture, such as `linux/x86_64`."""
    files: dict[str, str] = field(default_factory=dict)
    """Words of the command that are files, with the BLAKE3 of their content; only without an image."""
    keys: dict[str, str | None] = field(default_factory=dict)
    """What `--key` named, with the BLAKE3 of the content if that is a file."""
    erased: tuple[str, ...] = ()
    """The ids of erased files that the inputs list."""
    values: tuple[str, ...] = ()
    """Variables whose values are in the key and nowhere else: it can't be computed again from the record."""
    hit_of: str | None = None
    """The run, as DATASET/RUN, whose result this is: nothing was run."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU while the job ran: mean utilisation in per cent, most memory seen in bytes."""

    name: str
    utilization: float
    peak_memory_bytes: Int


@dataclass(frozen=True, slots=True)
class JobUsage:
    """The resources that a job used, as far as they could be measured."""

    peak_memory_bytes: Int | None = None
    """The maximum of two samples per second, without page cache and mapped files. None if the job was too short."""
    cpu_seconds: float | None = None
    """User and system time of all its processes."""
    gpus: tuple[GpuUse, ...] = ()


def joint_usage(of_nodes: Iterable[JobUsage]) -> JobUsage | None:
    """Combine the usage of several nodes: the largest memory, and the sum of the times."""
    usages = list(of_nodes)
    if not usages:
        return None
    memory = max(usage.peak_memory_bytes or 0 for usage in usages)
    return JobUsage(memory or None, sum(usage.cpu_seconds or 0.0 for usage in usages))


@dataclass(frozen=True, slots=True)
class JobRef:
    """A reference by which another process can find a job in its engine later."""

    engine: str
    run: str
    where: str
    """The daemon, kernel or cluster that holds the job."""
    id: str
    """The engine's id of the container or batch job; of a process its pid and start."""

    def encode(self) -> bytes:
        """Return a JSON object."""
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> JobRef:
        """Decode a reference. Raises `IntegrityError` if it is damaged."""
        try:
            return _JOB.decode(data)
        except msgspec.DecodeError as error:
            raise IntegrityError(f"this is not a reference of a job: {error}") from error


_JOB = msgspec.json.Decoder(JobRef)


@dataclass(frozen=True, slots=True)
class LogInfo:
    """The size of a job's output."""

    bytes: Int
    """All that the job wrote."""
    kept_bytes: Int
    """The beginning and end that are kept."""


_NOT_COMPARED: Final = {"not compared": True}
"""The comparison of runs leaves it out."""
_NOT_SHOWN: Final = {"not shown": True}
"""`dsv runs ID` has it only as JSON."""
_INTERNAL: Final = _NOT_COMPARED | _NOT_SHOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run. Times are milliseconds since 1970 by the clock of `host`."""

    run: RunId = field(metadata=_NOT_COMPARED)
    dataset: DatasetName = field(metadata=_NOT_SHOWN)
    commit: CommitId = field(metadata=_NOT_SHOWN)
    target: str = field(metadata=_NOT_COMPARED)
    data: tuple[RunData, ...] = field(metadata=_NOT_COMPARED)
    state: RunState
    engine: str
    pool: str | None = None
    """None if the run had no pool."""
    passed_over: tuple[PassedOver, ...] = field(default=(), metadata=_NOT_COMPARED)
    """Pools where the run did not begin, in order."""
    then: tuple[str, ...] = ()
    """Pools to try next if the run doesn't begin in time."""
    engine_version: str | None = None
    job: JobRef | None = field(default=None, metadata=_INTERNAL)
    image: str | None = None
    image_id: str | None = None
    image_digest: str | None = None
    command: tuple[str, ...] = ()
    """Without secrets, as are `engine_args` and `argv`."""
    engine_args: tuple[str, ...] = ()
    argv: tuple[str, ...] = field(default=(), metadata=_INTERNAL)
    env: tuple[str, ...] = ()
    """Names only."""
    params: dict[str, Json]
    gpus: str | None = None
    gpu_type: str | None = None
    tpu: str | None = None
    tpu_topology: str | None = None
    cpus: float | None = None
    memory_bytes: Int | None = None
    time_seconds: Int | None = None
    nodes: Int = 1
    retries: Int = 0
    shm_bytes: Int | None = None
    code: CodeState | None = None
    out: str = field(metadata=_NOT_COMPARED)
    output: RunOutput | None = None
    sweep: SweepSeat | None = field(default=None, metadata=_NOT_COMPARED)
    name: str | None = field(default=None, metadata=_NOT_COMPARED)
    host: str
    user: str
    started_ms: Int = field(metadata=_NOT_COMPARED)
    ended_ms: Int | None = field(default=None, metadata=_NOT_COMPARED)
    exit_code: Int | None = None
    """None while the run is under way."""
    signal: str | None = None
    """The first ending signal that was passed on to the job."""
    end: EndCause | None = None
    """That of the deciding part, as is `cancelled_by`. None during the run, and in older records."""
    cancelled_by: str | None = None
    error: str | None = None
    parts: tuple[RunPart, ...] = field(default=(), metadata=_NOT_COMPARED)
    """One for each node and attempt."""
    cache_hit: bool = field(default=False, metadata=_INTERNAL)
    stage_seconds: float = field(default=0.0, metadata=_NOT_COMPARED)
    stage_bytes: Int = field(default=0, metadata=_NOT_COMPARED)
    usage: JobUsage | None = None
    metrics: dict[str, Json] | None = None
    metrics_error: str | None = None
    log: LogInfo | None = field(default=None, metadata=_INTERNAL)
    again_of: RunId | None = field(default=None, metadata=_NOT_COMPARED)
    within: str | None = field(default=None, metadata=_NOT_COMPARED)
    """The run, as DATASET/RUN, whose job started this one."""
    read: tuple[RunCommit, ...] = field(default=(), metadata=_NOT_COMPARED)
    """What the job read beside `data`, as far as it used dsv for that."""
    made: tuple[RunCommit, ...] = field(default=(), metadata=_NOT_COMPARED)
    """What the job committed with dsv."""
    notes_error: str | None = field(default=None, metadata=_NOT_COMPARED)
    """The reason why `read` and `made` may lack something."""
    python: str | None = None
    """The Python of a run of the process engine: the path of the interpreter that its environment finds."""
    lock: LockFile | None = None
    once: OnceKey | None = field(default=None, metadata=_NOT_COMPARED)
    dsv: str = field(default="", metadata=_NOT_SHOWN)
    curves: bytes = field(default=b"", repr=False, compare=False)
    """The curves of the metrics, encoded: no member of the JSON, but a part of its own in the store."""

    @property
    def outcome(self) -> str | None:
        """`succeeded`, `failed` or `cancelled`; None while it is under way."""
        if not self.state.is_terminal or self.end is EndCause.CANCELLED or self.cancelled_by is not None:
            return "cancelled" if self.state.is_terminal else None
        return "succeeded" if self.state is RunState.ENDED and self.exit_code == 0 else "failed"

    @property
    def hit_of(self) -> tuple[DatasetName, str] | None:
        """The run whose result this is, if nothing was run."""
        return None if self.once is None else parse_run(self.once.hit_of or "")

    @classmethod
    def keys(cls, mark: str = "") -> list[str]:
        """Return the keys of a run's JSON. mark: only those `not compared`, or `not shown`"""
        kept = (each for each in fields(cls) if each.name != "curves")
        return [each.name.removesuffix("_ms") for each in kept if not mark or mark in each.metadata]

    @property
    def commits(self) -> tuple[tuple[DatasetName, CommitId], ...]:
        """Return the commits that this record keeps alive."""
        kept = [(each.dataset, each.commit) for each in self.data]
        if self.code is not None and self.code.tree is not None:
            kept.append((self.dataset, CommitId.parse(self.code.tree)))
        if self.output is not None and self.output.tree is not None:
            kept.append((self.dataset, CommitId.parse(self.output.tree)))
        return tuple(kept)

    def members(self) -> dict[str, Json]:
        """Return the record as JSON has it."""
        return {one.name: json_of(getattr(self, one.name)) for one in fields(self) if one.name != "curves"}

    def encode(self) -> bytes:
        """Return ASCII JSON, one member a line. Raises `ValueError` if parameters or metrics are not JSON."""
        document = {
            "kind": _KINDS["record"],
            "version": RECORD_VERSION,
            **self.members(),
        }
        return json.dumps(document, indent=1, allow_nan=False).encode("ascii") + b"\n"

    @classmethod
    def decode(cls, data: bytes, subject: str) -> RunRecord:
        """Decode the record at key `subject`. Raises `IntegrityError`, or `Unsupported` if it is newer."""
        try:
            record = msgspec.convert(_load(data, subject, "record"), cls, dec_hook=parse_name)
            record.commits  # noqa: B018 (that they can be read)
            if record.gpus not in (None, "all") and _COUNT.fullmatch(record.gpus) is None:
                raise UsageError(f"gpus {record.gpus[:40]!r} is impossible")
            if record.sweep is not None and not record.sweep.is_possible:
                raise UsageError(f"its place in {record.sweep.id} is impossible")
        except (msgspec.ValidationError, UsageError) as error:
            raise IntegrityError(f"{subject} is not a record of a run: {error}", subject=subject) from error
        return record


def json_of(value: object) -> Any:
    """Return the value of a member as JSON has it."""
    if isinstance(value, CommitId):
        return value.hex()
    if isinstance(value, tuple):
        return [json_of(each) for each in value]
    return (
        asdict(value, dict_factory=_with_text)
        if is_dataclass(value) and not isinstance(value, type)
        else value
    )


def _with_text(members: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value.hex() if isinstance(value, CommitId) else value for name, value in members}


_KINDS: Final = {"record": "dsv run", "part": "dsv run part"}


def _load(data: bytes, subject: str, what: str) -> dict[str, Json]:
    if len(data) > MAX_RECORD:
        raise IntegrityError(f"{subject} is larger than a record of a run may be", subject=subject)
    try:
        document = json.loads(
            data, parse_int=whole_number, parse_float=finite_number, parse_constant=finite_number
        )
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{subject} is not JSON", subject=subject) from error
    if not isinstance(document, dict) or document.get("kind") != _KINDS[what]:
        raise IntegrityError(f"{subject} is not a {what} of a run", subject=subject)
    version = document.get("version")
    if isinstance(version, int) and version > RECORD_VERSION:
        raise Unsupported(
            f"{subject} was written by a newer dsv (version {version} of its kind)",
            subject=subject,
            hint="update dsv",
        )
    if version != RECORD_VERSION:
        raise IntegrityError(f"{subject} is not a {what} of a run", subject=subject)
    return document


def parse_name(kind: type, value: Json) -> object:
    """Decode ids and names with their own parsers, for msgspec."""
    if kind in (CommitId, DatasetName, BranchName, RunId, SweepId) and isinstance(value, str):
        return _parsed(kind, value)
    raise ValueError(f"{value!r} is not a valid {kind.__name__}")


@lru_cache(maxsize=1024)  # many records name a few datasets and commits
def _parsed(kind: Any, text: str) -> object:
    try:
        return kind.parse(text)
    except DsvError as error:
        raise ValueError(error.message) from error


# msgspec inspects a dataclass on first use, and two threads that cause this at once crash the process
# (0.22: SIGSEGV). Runs are read in several threads, so all dataclasses of a record are inspected here.
msgspec.json.Decoder(RunRecord, dec_hook=parse_name)


MAX_PART: Final = 1 << 20
"""Bytes of one part: only its error can be long."""

_PART_NAME = re.compile(r"(part|log)-(0|[1-9][0-9]{0,4})-([1-9][0-9]{0,4})", re.ASCII)


def part_name(node: int, attempt: int) -> str:
    """Return the last component of the key of a node's part."""
    return f"part-{node}-{attempt}"


def node_log_name(node: int, attempt: int) -> str:
    """Return the last component of the key of a node's log."""
    return f"log-{node}-{attempt}"


def parse_part_name(name: str) -> tuple[str, int, int] | None:
    """Return `part` or `log`, the node and the attempt; None for any other name."""
    match = _PART_NAME.fullmatch(name)
    return None if match is None else (match[1], int(match[2]), int(match[3]))


def encode_part(part: RunPart, usage: JobUsage | None = None) -> bytes:
    """Return ASCII JSON. usage: what the command used there"""
    document = {"kind": _KINDS["part"], "version": RECORD_VERSION, **asdict(part)}
    if usage is not None:
        document["usage"] = asdict(usage)
    return json.dumps(document, indent=1, allow_nan=False).encode("ascii") + b"\n"


def decode_part(data: bytes, subject: str) -> tuple[RunPart, JobUsage | None]:
    """Decode the part at key `subject`. Raises `IntegrityError`, or `Unsupported` for a newer version."""
    document = _load(data, subject, "part")
    try:
        part = msgspec.convert(document, RunPart)
        usage = msgspec.convert(document.get("usage"), JobUsage | None)
    except msgspec.ValidationError as error:
        raise IntegrityError(f"{subject} is not a part of a run: {error}", subject=subject) from error
    named = parse_part_name(subject.rpartition("/")[2])
    if named is not None and named[1:] != (part.node, part.attempt):
        raise IntegrityError(f"{subject} holds the part of another node or attempt", subject=subject)
    return part, usage


# For the same reason.
msgspec.json.Decoder(RunPart)


CODE_OF_A_RUN: Final = "code of a run"
OUTPUT_OF_RUN: Final = "output of run "
TREE_AUTHOR: Final = "dsv"
"""The author of commits of code, so that equal code gives equal commits for every user."""


def tree_of_run(commit: CommitRecord) -> str | None:
    """Return the message of a commit of a run's code or output; None for any other commit."""
    if commit.parents:
        return None
    if commit.message == CODE_OF_A_RUN and commit.author == TREE_AUTHOR:
        return commit.message
    run = commit.message.removeprefix(OUTPUT_OF_RUN)
    return commit.message if run != commit.message and _RUN_ID.fullmatch(run) else None


def is_output(commit: CommitRecord) -> bool:
    return tree_of_run(commit) not in (None, CODE_OF_A_RUN)
