"""The interface of engines: an engine takes a job, runs it, and answers questions about it later.

    facts = engine.probe()                     what is there, once
    plan = engine.plan(job, facts)             pure: what will be run, as a value that `--dry-run` prints
    ref = engine.submit(plan, ...)             the engine has the job, which has not begun
    ...                                        the caller writes the reference down
    handle = engine.attach(ref, ...)           the job begins; its output arrives
    supervise(handle, ...)                     in attach.py
    status, logs, cancel, list                 by the reference, from any process, later

`Foreground` of attach.py submits, writes the reference down and attaches. A new engine is a subclass of `Engine`, has a
`Handle`, is registered in run/engine_list.py, and joins the conformance suite.
"""

from __future__ import annotations

import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import Any, ClassVar, Final, Protocol

from dsv.errors import DsvError, LaunchError, UsageError
from dsv.run.engines.log import LogKeeper
from dsv.run.engines.machine import Machine
from dsv.run.engines.output import Output
from dsv.run.node_order import NO_ACCESS, StoreAccess
from dsv.run.record import EndCause, JobRef, RunPart, RunState, Usage
from dsv.run.resources import Capacity, Resources
from dsv.values.json import Json

CANNOT_LAUNCH: Final = 125
CANNOT_INVOKE: Final = 126
NOT_FOUND: Final = 127
OUT: Final = "/dsv/out"
"""The output folder of a job whose engine shares no folders with this machine, and whose pool names none."""
NO_OPTIONS: Final[Mapping[str, Json]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine as the job sees it. target: absolute, inside a container."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Resources):
    """The options of a run that an engine carries out as they are.

    shm_bytes: None for half of the memory that the job may use; engine_args: further options of the engine's own;
    forward: whether dsv in a cluster gets the caller's credentials for the store.
    """

    command: tuple[str, ...] = ()
    image: str | None = None
    shm_bytes: int | None = None
    engine_args: tuple[str, ...] = ()
    forward: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Task):
    """One job, in terms that fit every engine.

    run: the id of the run, a label; name: of the container; env: added to what the engine gives every job; workdir: as
    the job sees it, None for the engine's own; scratch: an empty folder of this run, for the engine's files. Of an
    engine that queues, which stages no data before it has room: hold: the arguments of the dsv with which a machine
    makes sure of the data, and holds it while the command runs that is added to them; close: those with which it
    completes the record of the run once the command has ended; order: what they read from stdin; access: how
    that dsv reaches the store, if it has no configuration of its own there.
    """

    run: str
    name: str
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    workdir: str | None = None
    scratch: Path
    hold: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    order: str = ""
    access: StoreAccess = NO_ACCESS

    @classmethod
    def of(cls, task: Task, **more: Any) -> Job:
        """Make the job of a task. more: the fields that a task has not."""
        return cls(**{each.name: getattr(task, each.name) for each in fields(Task)}, **more)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a machine and the engine on it that planning needs.

    where: which daemon, kernel or cluster would hold the job, as in a `JobRef`; rootless: the engine runs as the
    caller; remapped: root in its containers is nobody outside; init: the options that put an init process into a
    container, none if there is no such program; keep_groups: whether the caller's supplementary groups can be passed
    on by that name; gpu_labels: the labels, with their values, that tell which GPUs the nodes of a cluster have;
    hosts: commits, each with a node that had it lately in a cache of its own.
    """

    machine: Machine
    where: str = ""
    version: str | None = None
    rootless: bool = False
    remapped: bool = False
    init: tuple[str, ...] = ()
    keep_groups: bool = False
    gpu_labels: tuple[tuple[str, str], ...] = ()
    hosts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class NoEngine:
    """Why an engine can't be used here: half a sentence. error: the same, if more is known than that it doesn't
    answer: what to do about it."""

    reason: str
    error: DsvError | None = None

    @classmethod
    def of(cls, error: DsvError) -> NoEngine:
        return cls(error.message, error)

    @property
    def hint(self) -> str | None:
        return None if self.error is None else self.error.hint


@dataclass(frozen=True, slots=True)
class PrivateFile:
    """A file that only the caller can read, written just before the job is submitted and removed right after."""

    path: Path
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a job. `env` is added to the caller's environment: values are there, never in argv.

    argv: one command line that does the same when a person types it; script: the batch script or the manifest that a
    cluster gets, complete, so that a person can submit it without dsv; where: as in `Facts`; memory_bytes, cpus: what
    the engine keeps a plain process to, the latter by their numbers; notes: what a person should know before it starts.
    """

    engine: str
    run: str
    where: str = ""
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path | None = None
    files: tuple[PrivateFile, ...] = ()
    image: str | None = None
    shm_bytes: int | None = None
    memory_bytes: int | None = None
    cpus: tuple[int, ...] = ()
    script: str | None = None
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the script, else the command line, quoted for a shell."""
        return shlex.join(self.argv) if self.script is None else self.script.rstrip("\n")


@dataclass(frozen=True, slots=True)
class ImageIdentity:
    """Which image it was. id: the engine's own; digest: `NAME@sha256:…`, if a registry knows it by one."""

    id: str
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a job. exit_code: the command's own, 128 + n after signal n; 125 to 127 if it never began.

    reason: for people, if the exit code alone doesn't say it; hint: what they can do about it. cause: why it ended,
    if the engine knows of another cause than the command itself. seen: False if nobody knows how it ended, nor even
    whether it did, because the engine doesn't tell any more. stopped: who asked dsv on any machine to end it.
    taken: False if the engine did not take the job at all. parts: of each node and attempt, if the engine saw to
    them itself. may_live: it could not be ended, so it may still begin or run. metrics: what it left in
    `metrics.json`, of an engine whose folders can't be seen here. signal: the first ending one that dsv passed on.
    """

    exit_code: int
    launched: bool
    seen: bool = True
    taken: bool = True
    reason: str | None = None
    hint: str | None = None
    cause: EndCause | None = None
    stopped: str | None = None
    image: ImageIdentity | None = None
    usage: Usage | None = None
    parts: tuple[RunPart, ...] = ()
    may_live: bool = False
    metrics: bytes | None = None
    signal: int | None = None


class ImageNotPulled(LaunchError):
    """The image of a job could not be fetched."""


class NoPlaceYet(LaunchError):
    """The engine takes no further job now, and may take this one later: a quota is used up, for instance."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job, as its engine tells it.

    state: `SUBMITTED` (it has not begun), `QUEUED`, `RUNNING`, `ENDED`, `NOT_LAUNCHED`, or `CUT_OFF` if the engine has
    no such job any more. exit_code: of a job that has ended, if the engine knows it.
    ended: how it did, of an engine that holds its jobs itself and so can tell that later. quiet_for: for how many
    seconds a job that is over has written nothing; None if this machine doesn't see what is left. reason: why it waits.
    """

    state: RunState
    exit_code: int | None = None
    ended: Ended | None = field(default=None, compare=False)
    quiet_for: float | None = field(default=None, compare=False)
    reason: str | None = field(default=None, compare=False)

    @property
    def lives(self) -> bool:
        return not self.state.is_terminal


class NodeLeft(Protocol):
    """The end of the command on one node, from what it left there; of an engine whose nodes each keep that."""

    @property
    def part(self) -> RunPart: ...

    @property
    def usage(self) -> Usage | None: ...

    @property
    def is_clear(self) -> bool:
        """True if the node can tell why it ended. Only the cluster knows why it stopped or killed a command."""
        ...

    @property
    def was_stopped(self) -> bool:
        """True if the cluster ended the node, and not dsv the command."""
        ...

    def put_back(self) -> RunPart:
        """Return the part of a job in a queue, which may begin again after the cluster has stopped it."""
        ...

    def read_log(self) -> LogKeeper | None:
        """Return what the command wrote; None if no copy was made."""
        ...

    def is_over(self, parts: Iterable[RunPart], nodes: int, retries: int) -> bool | None:
        """Check that no other attempt follows those that left these parts. None if only the cluster can tell."""
        ...


class Handle(Protocol):
    """Attached to a job. Methods may be called from any thread, in any state, and don't raise."""

    @property
    def ended(self) -> Ended | None:
        """None until the job is over and the engine has cleaned up behind it."""
        ...

    def signal(self, number: int) -> None:
        """Pass a signal on, to a job that is just starting as soon as it can take one."""
        ...

    def kill(self) -> None:
        """End the job without asking it. A further call tries harder."""
        ...


class Engine(ABC):
    """A way of running jobs.

    On one machine, a job ends with the process that is attached to it (see reaper.py). In a cluster the cluster holds
    the job, and whoever attaches only follows it.
    """

    name: ClassVar[str]
    takes_image: ClassVar[bool | None]
    """True if it needs an image, False if it takes none; None if its pool decides that."""
    queues: ClassVar[bool] = False
    """True if it holds a job back itself until there is room. If it doesn't, dsv waits before it submits."""
    gpu_hint: ClassVar[str]
    """A hint if a job with GPUs can't be started."""
    shares_folders: ClassVar[bool] = True
    """True if its jobs see the folders of this machine under their names, so that what they leave is seen here."""
    gives: ClassVar[frozenset[str]]
    """The fields of `Task` that it can give a job, besides those of `SEEN_TO`. A job that
    asks for more is refused before anything of it is fetched."""

    def __init__(self, environ: Mapping[str, str], options: Mapping[str, Json] = NO_OPTIONS) -> None:
        """Ask nothing yet.

        environ: of the caller
        options: of the pool, as its table in the configuration has them
        """
        self.environ = environ

    @classmethod
    def check_options(cls, options: Mapping[str, Json], where: str) -> None:
        """Raise `UsageError` for what the engine can't use. where: the key of the table, `pools.NAME.ENGINE`."""
        for name in options:
            raise UsageError(
                f"{where}.{name} means nothing to the {cls.name} engine",
                subject=name,
                hint=f"dsv config --unset {where}.{name}",
            )

    @abstractmethod
    def capacity(self, wanted: Resources) -> Capacity | NoEngine:
        """Return what it has for a job that asks for this, and what of that is free. At most a few seconds.

        A cluster leaves out the nodes that such a job can't run on (drained, tainted, of another partition, without
        the TPU), and says with `not_now` and `never` what its quotas and limits mean for the job.
        """

    def withdraw(self, ref: JobRef) -> JobStatus | None:
        """End the job only if it still waits for room, in one step that can't end one that has just begun.

        Return its state: `CUT_OFF` or `NOT_LAUNCHED` if it was taken back and will never begin (a job that waits for a
        further attempt has begun). None without an answer, and then nobody knows.
        """
        return self.status(ref)

    @abstractmethod
    def probe(self) -> Facts | NoEngine:
        """Check that the engine answers, for at most a few seconds. A cluster: its API or its controller."""

    def place(self, mount: Mount) -> str:
        """Return where a job finds this mount."""
        return mount.target

    @abstractmethod
    def plan(self, job: Job, facts: Facts) -> Plan:
        """Plan a job. Pure. Raise `UsageError` and `LaunchError` for what can't be run.

        A cluster: the manifest or the batch script is one of `files`, and `argv` is the command that submits it.
        """

    @abstractmethod
    def submit(self, plan: Plan, output: Output, cancelled: Event) -> JobRef:
        """Give the job to the engine, which holds it: it begins only when somebody attaches.

        output: shows what the engine says meanwhile, for instance of an image that it fetches. Once `cancelled` is
        set this ends soon, as an error. Raise `LaunchError`, and then nothing of the job is left; `NoPlaceYet` if a
        later call may succeed.

        A cluster submits it held (`sbatch --hold`, a Job with `suspend: true`), so that a process killed before the
        reference is written down leaves a job that never begins, and that `list` shows.
        """

    @abstractmethod
    def attach(self, ref: JobRef, output: Output, on_end: Callable[[], None]) -> Handle:
        """Let the job begin if it hasn't, and stay with it. Its output from the beginning goes to `output`.

        on_end: called once, by another thread, at the end. A command that can't be started is an ended job. Raise
        `LaunchError` if the job can't be attached to from here: a plain process can't from any process but the one
        that submitted it.

        A cluster releases the job, then follows its log and asks for its state until that is terminal, all by the
        reference: any machine that reaches the cluster may attach, several may at once, and one that goes away
        changes nothing. `signal` and `kill` are requests to the cluster.
        """

    @abstractmethod
    def status(self, ref: JobRef) -> JobStatus | None:
        """Return the state of the job. None without an answer: the engine is down, or this one doesn't hold the job.

        A cluster: `QUEUED` while it waits for room. One that forgets its jobs after a while (Slurm without
        accounting) reads the end from a file that the job leaves.
        """

    def logs(self, ref: JobRef, follow: bool) -> AbstractContextManager[Iterator[bytes]] | None:
        """Read what the engine keeps of the job's output, stdout and stderr together; with `follow` until the job's
        end. None if it keeps nothing.
        """
        return None

    @abstractmethod
    def cancel(self, ref: JobRef, grace: float) -> JobStatus | None:
        """End the job if it lives, and remove what the engine keeps of it. The job gets so many seconds to end.

        Return how it ended; None without an answer. Of a job that is over already nothing but the rest is removed.
        """

    def forget(self, ref: JobRef) -> None:
        """Remove what the engine keeps of a job that is over, once its record is whole. Doesn't raise."""
        return

    def ended_jobs(self) -> tuple[JobRef, ...]:
        """Return the jobs that ended a while ago and that the engine still keeps, in one request; none without an
        answer."""
        return ()

    @abstractmethod
    def list(self, run: str | None = None) -> tuple[JobRef, ...]:
        """Return the jobs of dsv that the engine has, of one run or of all, whoever submitted them.

        Raise `Unreachable` without an answer. A cluster finds them by a label or by the job's name.
        """

    def left_on_node(self, folder: Path, node: int, attempt: int) -> Ended | NodeLeft | None:
        """Return how the job ended, or this node of it, from what it left in a folder of the node.

        None if that can't be told there. On one machine, the process that is attached to the job knows it.
        """
        return None

    def find_image(self, reference: str) -> ImageIdentity | None:
        """Return the image of this name or id, if this machine has it."""
        return None


def stage_facts(text: str) -> dict[str, Any]:
    """Return fields of a `RunPart`, from the result that `dsv cache` and `dsv with` write as JSON.

    None of them if it is no such result: it may be half written.
    """
    try:
        items = json.loads(text)["items"]
        return {
            "cache_hit": all(bool(each["hit"]) for each in items),
            "stage_bytes": sum(int(each["fetched_bytes"]) for each in items),
        }
    except (ValueError, KeyError, TypeError):
        return {}


SEEN_TO: Final = frozenset({"time_seconds", "retries"})
"""Of one machine's jobs dsv ends those that take too long, and starts those again that failed."""
_GIVEN: Final = {
    "gpus": "--gpus",
    "gpu_type": "gpu_type",
    "tpu": "tpu",
    "tpu_topology": "tpu_topology",
    "cpus": "--cpus",
    "memory_bytes": "--memory",
    "time_seconds": "--time",
    "nodes": "--nodes",
    "retries": "--retries",
    "shm_bytes": "shm_size",
    "engine_args": "engine_args",
    "forward": "forward_credentials",
}
"""What not every engine can give a job: the field, and the option or the setting of a pool that asks for it."""


def check_given(engine: Engine | type[Engine], wanted: Resources) -> None:
    """Raise `UsageError` if the engine can't give what the job asks for on any machine."""
    nothing = Task()
    for name, option in _GIVEN.items():
        asked = getattr(wanted, name, getattr(nothing, name)) != getattr(nothing, name)
        if asked and name not in engine.gives | SEEN_TO:
            raise UsageError(
                f"the {engine.name} engine can't give a job {option}",
                subject=option,
                hint=f"leave out {option}, or name a pool that has it by --on (dsv pools lists them)",
            )


def check_command(command: Sequence[str]) -> None:
    """Raise `UsageError` for no command, and for one that no program can be given."""
    if not command or not command[0]:
        raise UsageError("no command given", hint="dsv run TARGET -- CMD …")
    if any("\0" in argument for argument in command):
        raise UsageError("an argument holds a NUL byte")


def check_image(image: str | None) -> str:
    """Return the image. Raise `UsageError` if it can be taken for anything else."""
    if image is None:
        raise UsageError("this engine needs an image", hint="dsv run --image IMAGE …")
    if not image or image.startswith("-") or not image.isprintable() or any(c.isspace() for c in image):
        raise UsageError(
            f"{image!r} is not the name of an image",
            subject=image,
            hint="dsv run --image NAME …; options for the engine itself go into engine_args of its pool",
        )
    return image
