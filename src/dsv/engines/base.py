"""What an engine is: something that starts a job, passes signals on, and says how it ended.

    facts = engine.probe()                  what is there, once
    plan = engine.plan(job, facts)          pure: what will be run, as a value that `--dry-run` prints
    handle = engine.submit(plan, ...)       the one step with an effect
    supervise(handle, ...)                  see supervise.py
    engine.still_runs(run), cancel(run)     from any other process of this machine, later

A new engine implements `Engine` and `Handle`, is registered in registry.py, and joins the conformance suite.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from dsv.engines.machine import Machine
from dsv.engines.output import Output
from dsv.model.run import Usage

CANNOT_LAUNCH: Final = 125
CANNOT_INVOKE: Final = 126
NOT_FOUND: Final = 127
ALL_GPUS: Final = -1


class State(Enum):
    """Where a submitted job is."""

    PENDING = "pending"
    """Accepted; its command hasn't begun, for instance because its image is still being fetched."""
    RUNNING = "running"
    ENDED = "ended"
    NOT_LAUNCHED = "not-launched"
    """The command never began."""

    @property
    def is_terminal(self) -> bool:
        return self in (State.ENDED, State.NOT_LAUNCHED)


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine as the job sees it. target: absolute, inside a container."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The options of a run that an engine carries out as they are.

    gpus: how many, `ALL_GPUS`, or None; shm_bytes: None for half of the machine's memory; engine_args: further
    options of the engine's own.
    """

    command: tuple[str, ...] = ()
    image: str | None = None
    gpus: int | None = None
    shm_bytes: int | None = None
    engine_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Task):
    """What is to be run, in terms that fit every engine.

    run: the id of the run, a label; name: of the container; env: added to what the engine gives every job;
    workdir: as the job sees it, None for the engine's own; scratch: an empty folder of this run, for the
    engine's files.
    """

    run: str
    name: str
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    workdir: str | None = None
    scratch: Path

    @classmethod
    def of(cls, task: Task, **more: Any) -> Job:
        """The job of a task. more: the fields that a task has not."""
        return cls(**{each.name: getattr(task, each.name) for each in fields(Task)}, **more)


@dataclass(frozen=True, slots=True)
class Facts:
    """What planning has to know about the machine and the engine on it.

    rootless: the engine runs as the caller; remapped: root in its containers is nobody outside; init: the
    options that put an init process into a container, none if there is no such program; keep_groups:
    whether the caller's supplementary groups can be passed on by that name.
    """

    machine: Machine
    version: str | None = None
    rootless: bool = False
    remapped: bool = False
    init: tuple[str, ...] = ()
    keep_groups: bool = False


@dataclass(frozen=True, slots=True)
class NoEngine:
    """Why an engine can't be used here: half a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class PrivateFile:
    """A file that is written for the caller's eyes alone just before the launch, and removed at the end."""

    path: Path
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will be run. `env` is added to the caller's environment: values are there, never in argv.

    run: the id of the run; id_file: where the engine writes the container's id; init: whether the container has an
    init process; notes: what a person should know before it starts.
    """

    engine: str
    run: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path | None = None
    files: tuple[PrivateFile, ...] = ()
    id_file: Path | None = None
    init: bool = False
    shm_bytes: int | None = None
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The command line, quoted for a shell."""
        return shlex.join(self.argv)


@dataclass(frozen=True, slots=True)
class ImageIdentity:
    """Which image it was. id: the engine's own; digest: `NAME@sha256:…`, if a registry knows it by one."""

    id: str
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended. exit_code: the command's own, 128 + n after signal n; 125 to 127 if it never began.

    reason: for people, if the exit code alone doesn't say it. seen: False if nobody knows how it ended, nor
    even whether it did, because the engine doesn't tell any more.
    """

    exit_code: int
    launched: bool
    seen: bool = True
    reason: str | None = None
    image: ImageIdentity | None = None
    usage: Usage | None = None


class Handle(Protocol):
    """A submitted job. Methods may be called from any thread, in any state, and don't raise."""

    @property
    def state(self) -> State: ...

    @property
    def ended(self) -> Ended | None:
        """None until the job is over and the engine has cleaned up behind it."""
        ...

    def signal(self, number: int) -> None:
        """Passes a signal on. One that ends programs also ends a launch that is still under way."""
        ...

    def kill(self) -> None:
        """Ends the job without asking it. A further call tries harder."""
        ...


class Engine(Protocol):
    """A way of starting jobs."""

    name: ClassVar[str]
    takes_image: ClassVar[bool]
    """Whether it needs an image; one that doesn't takes none."""
    gpu_hint: ClassVar[str]
    """What may help if a job with GPUs can't be started."""

    def probe(self) -> Facts | NoEngine:
        """Asks whether the engine answers, for at most a few seconds."""
        ...

    def place(self, mount: Mount) -> str:
        """Where a job finds this mount."""
        ...

    def plan(self, job: Job, facts: Facts) -> Plan:
        """What will be run. Pure. Raises `UsageError` and `LaunchError` for what can't be."""
        ...

    def submit(self, plan: Plan, output: Output, on_end: Callable[[], None]) -> Handle:
        """Starts it. What it writes goes to `output`; `on_end` is called once, by another thread, at the end.

        A command that can't be started is an ended job; raises `LaunchError` if there is not even that.
        """
        ...

    def still_runs(self, run: str) -> bool:
        """Whether a job of this run lives on this machine, whoever started it."""
        ...

    def cancel(self, run: str, grace: float) -> None:
        """Ends what lives of a run on this machine, whoever started it; it gets so many seconds to end by itself."""
        ...

    def find_image(self, reference: str) -> ImageIdentity | None:
        """The image of this name or id, if this machine has it."""
        ...
