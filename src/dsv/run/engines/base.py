"""The interface of engines: an engine takes a job, runs it, and answers questions about it later.

    facts = engine.probe()                     the state of the engine, asked once
    plan = engine.plan(job, facts)             pure: what will be run, as a value that `--dry-run` prints
    job = engine.submit(plan, ...)             the engine has the job, which has not begun
    ...                                        the caller records the reference `job.ref`
    job.begin(...)                             the job begins; its output arrives
    supervise(job, ...)                        in attach.py
    status, logs, cancel, list                 later, from any process, by the reference

`Foreground` of attach.py submits, records the reference and lets the job begin. A new engine is a subclass of
`Engine`, has a `FollowedJob`, is registered in run/engine_list.py, and joins the conformance suite.
"""

from __future__ import annotations

import json
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from types import MappingProxyType
from typing import Any, ClassVar, Final, Protocol, TypeVar

import msgspec

from dsv.errors import LaunchError, Unreachable, UsageError
from dsv.files.process import host_name
from dsv.run.engines.machine import Machine, gpu_counts, memory, visible
from dsv.run.engines.output import JobOutput, LogKeeper
from dsv.run.node_order import NO_ACCESS, StoreAccess
from dsv.run.part import EndCause, RunPart
from dsv.run.record import JobRef, JobUsage, RunState
from dsv.run.resources import Capacity, NodeRoom, Option, Resources, option, parse_words, parse_yes, setting
from dsv.values.json import Json
from dsv.values.units import parse_size

CANNOT_LAUNCH: Final = 125
CANNOT_INVOKE: Final = 126
NOT_FOUND: Final = 127
OUT: Final = "/dsv/out"
"""The output folder of a job whose engine shares no folders with this machine, and whose pool names none."""
_PAUSE: Final = 0.2
NO_OPTIONS: Final[Mapping[str, Json]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine as the job sees it."""

    source: Path
    target: str
    """An absolute path inside a container."""
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Resources):
    """The options of a run that an engine gets unchanged."""

    command: tuple[str, ...] = ()
    image: str | None = option("--image IMAGE", "The container's image.")
    shm_bytes: int | None = setting("shm_size", parse_size)
    """None for half of the job's memory."""
    engine_args: tuple[str, ...] = setting("engine_args", parse_words, ())
    """Further options of the engine itself."""
    forward: bool = setting("forward_credentials", parse_yes, False)
    """Pass the caller's credentials for the store to dsv in the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Task):
    """One job, in terms common to all engines. `hold`, `close`, `order` and `access` are for engines with a
    queue, whose machines stage the data."""

    run: str
    name: str
    """The name of the container."""
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to the variables that the engine sets for every job."""
    workdir: str | None = None
    """As the job sees it; None for the engine's default."""
    scratch: Path
    """An empty folder of this run for the engine's files."""
    hold: tuple[str, ...] = ()
    """The arguments of dsv on the node, before the command. It stages and holds the data for the command."""
    close: tuple[str, ...] = ()
    """The arguments of dsv to complete the record of the run after the command."""
    order: str = ""
    """The standard input of both."""
    access: StoreAccess = NO_ACCESS
    """The access to the store for dsv on a node without a configuration for it."""

    @property
    def shown(self) -> dict[str, str]:
        """The variables that may be shown: dsv's own, except the attempt and possibly secret parameters."""
        return {
            name: value
            for name, value in sorted(self.env.items())
            if name.startswith("DSV_") and name != "DSV_ATTEMPT" and (name != "DSV_PARAMS" or value == "{}")
        }

    @property
    def hidden(self) -> dict[str, str]:
        """The variables whose values no other user may see."""
        own = {*self.shown, "DSV_ATTEMPT"}
        return {name: value for name, value in sorted(self.env.items()) if name not in own}

    @classmethod
    def of(cls, task: Task, **more: Any) -> Job:
        """Make the job of a task. more: the fields that a task lacks"""
        return cls(**{each.name: getattr(task, each.name) for each in fields(Task)}, **more)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a machine and its engine that planning needs."""

    machine: Machine
    where: str = ""
    """The daemon, kernel or cluster that would hold the job, as in a `JobRef`."""
    version: str | None = None
    rootless: bool = False
    """The engine runs as the caller."""
    remapped: bool = False
    """Root in its containers is an unprivileged user outside."""
    init: tuple[str, ...] = ()
    """The options for an init process in a container; empty if it can't provide one."""
    keep_groups: bool = False
    """The engine can pass on the caller's supplementary groups with `keep-groups`."""
    gpu_labels: tuple[tuple[str, str], ...] = ()
    """The labels, with their values, that show which GPUs the nodes of a cluster have."""
    hosts: tuple[tuple[str, str], ...] = ()
    """Commits, each with a node that recently had it in its own cache."""


@dataclass(frozen=True, slots=True)
class PrivateFile:
    """A file that only the caller can read, written just before the job is submitted and removed right after."""

    path: Path
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """The plan of a job."""

    engine: str
    run: str
    where: str = ""
    """As in `Facts`."""
    argv: tuple[str, ...]
    """An equivalent command line for a person to type, without the values of `env`."""
    env: Mapping[str, str] = field(repr=False)
    """Added to the caller's environment."""
    cwd: Path | None = None
    files: tuple[PrivateFile, ...] = ()
    image: str | None = None
    shm_bytes: int | None = None
    memory_bytes: int | None = None
    """The limit that the engine sets for a plain process."""
    cpus: tuple[int, ...] = ()
    """The numbers of the processors for a plain process."""
    script: str | None = None
    """The complete batch script or manifest for a cluster, which a person can submit without dsv."""
    notes: tuple[str, ...] = ()
    """Remarks for the user before the start."""

    def text(self) -> str:
        """Return the script, else the command line, quoted for a shell."""
        return shlex.join(self.argv) if self.script is None else self.script.rstrip("\n")


@dataclass(frozen=True, slots=True)
class ImageIdentity:
    """The identity of the image that a job used."""

    id: str
    """The engine's own id."""
    digest: str | None = None
    """`NAME@sha256:…`, if a registry has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a job."""

    exit_code: int = CANNOT_LAUNCH
    """The command's; 128 + n after signal n; 125 to 127 if it never began."""
    launched: bool = False
    seen: bool = True
    """False if the engine no longer knows how, or whether, the job ended."""
    taken: bool = True
    """False if the engine did not accept the job."""
    reason: str | None = None
    """For people, if the exit code alone doesn't explain the end."""
    hint: str | None = None
    """Advice for `reason`."""
    cause: EndCause | None = None
    """A cause other than the command itself, if the engine knows one."""
    stopped: str | None = None
    """The user who asked dsv, on any machine, to end it."""
    image: ImageIdentity | None = None
    usage: JobUsage | None = None
    parts: tuple[RunPart, ...] = ()
    """One for each node and attempt, if the engine manages them itself."""
    may_live: bool = False
    """The job could not be ended, so it may still begin or run."""
    metrics: bytes | None = None
    """The content of `metrics.json`, if the engine's folders can't be read here."""
    notes: bytes | None = None
    """Likewise the job's notes of commits."""
    series: bytes = b""
    """Likewise the end of `metrics.jsonl`."""
    signal: int | None = None
    """The first ending signal that dsv passed on."""


class ImageNotPulled(LaunchError):
    """The image of a job could not be fetched."""


class NotInstalled(Unreachable):
    """This machine does not have the engine's program."""


class NoPlaceYet(LaunchError):
    """The engine takes no job now, but may take this one later: a quota is used up, for instance."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job according to its engine."""

    state: RunState
    """`SUBMITTED` (not begun), `QUEUED`, `RUNNING`, `ENDED`, `NOT_LAUNCHED`, or `CUT_OFF` if the engine no longer has
    the job."""
    exit_code: int | None = None
    """Of a job that has ended, if the engine knows it."""
    ended: Ended | None = field(default=None, compare=False)
    """The end of the job, if the engine keeps it."""
    idle_seconds: float | None = field(default=None, compare=False)
    """Seconds since a job that is over last wrote something; None if this machine can't see its files."""
    reason: str | None = field(default=None, compare=False)
    """The reason why it waits."""

    @property
    def lives(self) -> bool:
        return not self.state.is_terminal


def until_over(ask: Callable[[], JobStatus | None], seconds: float) -> JobStatus | None:
    """Ask for the state of a job until it is over, and return that. None if it is not over in time."""
    deadline = monotonic() + seconds
    while (now := ask()) is None or now.lives:
        if monotonic() >= deadline:
            return None
        sleep(_PAUSE)
    return now


_T = TypeVar("_T")


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of an engine that has none."""


def read_options(decoder: msgspec.json.Decoder[_T], options: Mapping[str, Json], where: str) -> _T:
    """Decode the options of an engine. Raises `UsageError` for invalid ones. where: the key of their table"""
    try:
        return decoder.decode(msgspec.json.encode(dict(options)))
    except msgspec.ValidationError as error:
        # A message of msgspec ends with the path; one of the options' own checks begins with the key.
        said, _, place = str(error).partition(" - at `")
        named = re.search(r"\$\.(\w+)", place) or re.match(r"(\w+): ", said)
        key = where if named is None else f"{where}.{named[1]}"
        said = said if named is None else said.removeprefix(f"{named[1]}: ")
        message, hint = f"{key}: {said}", f"dsv config {key} VALUE"
        if (unknown := re.fullmatch(r"Object contains unknown field `(.*)`", said)) is not None:
            key = f"{where}.{unknown[1]}"
            message, hint = f"{key} means nothing to the engine of the pool", f"dsv config --unset {key}"
        raise UsageError(message, subject=key.rpartition(".")[2], hint=hint) from error


class Handle(Protocol):
    """A job that this process follows. Methods may be called from any thread, in any state, and don't raise."""

    @property
    def ended(self) -> Ended | None:
        """None until the job is over and the engine has cleaned up behind it."""
        ...

    def signal(self, number: int) -> None:
        """Pass on a signal. A job that is just starting gets it as soon as it can take one."""
        ...

    def kill(self) -> None:
        """End the job by force. A further call tries harder."""
        ...


class SubmittedJob(Handle, Protocol):
    """A job that its engine has accepted and that waits for `begin`."""

    @property
    def ref(self) -> JobRef: ...

    def begin(self, output: JobOutput, on_end: Callable[[], None]) -> None:
        """Let the job begin, and follow it until its end. Its output goes to `output`.

        Raises `LaunchError` if the engine does not let it begin; a command that can't be started is an ended
        job. In a cluster, `signal` and `kill` are requests, and the job continues if this process is gone.

        on_end: called once, by another thread, at the end
        """

    def abandon(self) -> None:
        """Release the resources of a job that was cancelled before `begin`."""


class Engine(ABC):
    """A way of running jobs.

    On one machine, a job ends with the process that is attached to it (see reaper.py). In a cluster the cluster holds
    the job, and an attached process only follows it.
    """

    name: ClassVar[str]
    needs_image: ClassVar[bool] = False
    queues: ClassVar[bool] = False
    """True if it queues a job until there is room. If not, dsv waits before it submits."""
    gpu_hint: ClassVar[str]
    """A hint if a job with GPUs can't be started."""
    shares_folders: ClassVar[bool] = True
    """True if its jobs see this machine's folders under the same paths, so that their files are seen here."""
    decoder: ClassVar[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(NoOptions)
    """Reads the options of a pool for it, made at import."""
    gives: ClassVar[frozenset[str]]
    """The supported fields of `Task` besides `DONE_BY_DSV`. A job with others is refused before any fetch."""

    def __init__(self, environ: Mapping[str, str], options: Mapping[str, Json] = NO_OPTIONS) -> None:
        """Send no request yet. environ: of the caller; options: the pool's table in the configuration"""
        self.environ = environ
        self.has_record: Callable[[], bool] = lambda: False
        """Asked while a cluster does not answer: the job that is followed has ended, as its record shows."""

    @classmethod
    def check_options(cls, options: Mapping[str, Json], where: str) -> None:
        """Raises `UsageError` for unusable options. where: the key of the table, `pools.NAME.ENGINE`"""
        read_options(cls.decoder, options, where)

    @abstractmethod
    def capacity(self, wanted: Resources) -> Capacity:
        """Return the machines for a job that requests this, in at most a few seconds. Raises as `probe`.

        A cluster leaves out nodes that can't run such a job (drained, tainted, of another partition, without
        the TPU), and reports the effect of its quotas and limits in `not_now` and `never`.
        """

    def withdraw(self, ref: JobRef) -> JobStatus | None:
        """End the job only if it still waits for room, in one step that can't end a job that has just begun.

        Return its state: `CUT_OFF` or `NOT_LAUNCHED` if it will never begin (a job that waits for a further
        attempt has begun). None without an answer: the outcome is then unknown.
        """
        return self.status(ref)

    @abstractmethod
    def probe(self) -> Facts:
        """Check that the engine answers, of a cluster its API or its controller, in at most a few seconds.
        Raises `Unreachable`, or a more exact `DsvError`, if it can't be used here."""

    def place(self, mount: Mount) -> str:
        """Return the path where a job finds this mount."""
        return mount.target

    @abstractmethod
    def plan(self, job: Job, facts: Facts) -> JobPlan:
        """Plan a job. Pure. Raises `UsageError` or `LaunchError` for a job that can't be run. For a cluster,
        `script` is the manifest or the batch script, and `argv` the command that submits it."""

    @abstractmethod
    def submit(self, plan: JobPlan, output: JobOutput, cancelled: Event) -> SubmittedJob:
        """Give the job to the engine, which holds it. Raises `LaunchError`, with nothing of the job left.

        Raises `NoPlaceYet` if a later call may succeed. Once `cancelled` is set, this soon ends with an error.
        output: shows messages of the engine, for instance about an image that it pulls

        A cluster gets it held (`sbatch --hold`, a Job with `suspend: true`): if dsv is killed before it
        records the reference, the job never begins, and `list` shows it.
        """

    @abstractmethod
    def status(self, ref: JobRef) -> JobStatus | None:
        """Return the state of the job. None without an answer: the engine is down, or this one doesn't hold the job.

        A cluster: `QUEUED` while it waits for room. One that forgets its jobs after a while (Slurm without
        accounting) reads the end from a file that the job leaves.
        """

    def logs(self, ref: JobRef, follow: bool) -> AbstractContextManager[Iterator[bytes]] | None:
        """Read the kept output of the job, stdout and stderr together; with `follow` until the job's end.
        None if the engine keeps nothing."""
        return None

    @abstractmethod
    def cancel(self, ref: JobRef, grace: float) -> JobStatus | None:
        """End the job within `grace` seconds if it lives, and return how it ended; None without an answer. What the
        engine keeps of it, such as a container with its log, may stay until `forget`."""

    def leave(self, ref: JobRef) -> bool:
        """Let the job's nodes complete its record without this machine. Return False if somebody has to look on."""
        return False

    def forget(self, ref: JobRef) -> None:
        """Remove what the engine keeps of a job that is over, once its record is whole. Doesn't raise."""
        return

    def ended_jobs(self) -> tuple[JobRef, ...]:
        """Return jobs that ended a while ago and are still kept, in one request; none without an answer."""
        return ()

    @abstractmethod
    def list(self, run: str | None = None) -> tuple[JobRef, ...]:
        """Return the jobs of dsv that this user can see in the engine, of one run or of all. Raise
        `Unreachable` without an answer. They are found by a label, a comment or a variable."""

    def left_on_node(self, folder: Path, node: int, attempt: int) -> Ended | None:
        """Return how the job ended, from its files in a folder of the node; None if they don't show it.

        If nodes share no folders, this is the end of one node, in one part, and `seen` is False if only the
        cluster knows why it stopped the command. On one machine, only the attached process knows the end.
        """
        return None

    def log_on_node(self, folder: Path) -> LogKeeper | None:
        """Return the command's output, from a folder of the node; None if no copy was made."""
        return None

    def is_over(self, parts: Iterable[RunPart], nodes: int, retries: int) -> bool | None:
        """Check that no attempt follows those of these parts. None if only the cluster can tell."""
        return None

    def find_image(
        self, reference: str, *, pulling: Callable[[str], None] | None = None
    ) -> ImageIdentity | None:
        """Return the image of this name or id, if this machine has it. pulling: pull one that is missing, and say so
        before; raises `ImageNotPulled`"""
        return None


_NO_ERRORS: Final = ("hint:", "{", "srun:", "slurmstepd", "attempt ")
"""Beginnings of lines that are not errors of a command."""


def error_in(text: str) -> tuple[str | None, str | None]:
    """Return the last error of dsv, or else of another program, from JSON or text; and dsv's hint."""
    try:
        error = json.loads(text)["error"]
        return str(error["message"]), error["hint"] or None
    except (ValueError, KeyError, TypeError):
        lines = [line.strip() for line in text.splitlines()]
    said = [line for line in lines if line and not line.startswith(_NO_ERRORS)]
    errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")] or said
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    return (errors[-1] if errors else None), (hints[-1] if hints else None)


COMMON: Final = frozenset({"gpus", "gpu_type", "cpus", "memory_bytes"})
"""The resources that every engine supports."""
DONE_BY_DSV: Final = frozenset({"time_seconds", "retries"})
"""Options that no engine has to support: on one machine, dsv ends late jobs and repeats failed ones."""


def check_given(engine: Engine | type[Engine], wanted: Resources) -> None:
    """Raises `UsageError` if the engine can't give what the job asks for on any machine."""
    nothing = Task()
    for each in fields(Task):
        option: Option | None = each.metadata.get("option")
        asked = getattr(wanted, each.name, getattr(nothing, each.name)) != getattr(nothing, each.name)
        if asked and option is not None and each.name not in engine.gives | DONE_BY_DSV:
            raise UsageError(
                f"the {engine.name} engine doesn't support {option.flag}",
                subject=option.flag,
                hint=f"leave out {option.flag}, or name a pool that has it by --on (dsv pools lists them)",
            )


def check_command(command: Sequence[str]) -> None:
    """Raises `UsageError` for a missing command, or one that can't be passed to a program."""
    if not command or not command[0]:
        raise UsageError("no command given", hint="dsv run TARGET -- CMD …")
    if any("\0" in argument for argument in command):
        raise UsageError("an argument holds a NUL byte")


def check_image(image: str | None) -> str:
    """Return the image. Raises `UsageError` if it can be mistaken for another argument."""
    if image is None:
        raise UsageError("this engine needs an image", hint="dsv run --image IMAGE …")
    if not image or image.startswith("-") or not image.isprintable() or any(c.isspace() for c in image):
        raise UsageError(
            f"{image!r} is not the name of an image",
            subject=image,
            hint="dsv run --image NAME …; options for the engine itself go into engine_args of its pool",
        )
    return image


class LocalEngine(Engine):
    """An `Engine` of this machine, without a queue."""

    gives: ClassVar[frozenset[str]] = COMMON

    def capacity(self, wanted: Resources) -> Capacity:
        """Return the one machine, with the GPUs that the caller may use."""
        facts = self.probe()
        node = NodeRoom(
            name=host_name(),
            gpus=gpu_counts(visible(self.environ)),
            total_cpus=len(facts.machine.cpus) or None,
            free_memory=memory("MemAvailable"),  # what a new job could have without others being swapped out
            total_memory=facts.machine.memory_bytes,
        )
        return Capacity(nodes=(node,), waiting=0)
