"""No engine at all: the command as a plain child process, with the caller's own Python and libraries."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from time import monotonic, sleep
from typing import ClassVar, Final

from dsv.engines.base import (
    ALL_GPUS,
    CANNOT_INVOKE,
    CANNOT_LAUNCH,
    NOT_FOUND,
    Ended,
    Facts,
    Handle,
    ImageIdentity,
    Job,
    Mount,
    NoEngine,
    Plan,
    State,
)
from dsv.engines.gpu import pick
from dsv.engines.guard import Guard
from dsv.engines.guardian import end_groups, processes_of
from dsv.engines.machine import Machine
from dsv.engines.output import Output
from dsv.engines.session_memory import SessionMemory
from dsv.errors import LaunchError, UsageError
from dsv.model.run import Usage

_DYING: Final = 10.0
"""Seconds that killed processes get to be gone: one that waits for a file server dies when that answers."""
_PAUSE: Final = 0.05


class Process:
    """An `Engine`. Nothing keeps a job from writing where the caller may: read-only is by file mode alone."""

    name: ClassVar[str] = "process"
    takes_image: ClassVar[bool] = False
    gpu_hint: ClassVar[str] = "nvidia-smi -L lists the GPUs"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ

    def probe(self) -> Facts | NoEngine:
        return Facts(Machine.read(self.environ))

    def place(self, mount: Mount) -> str:
        return str(mount.source)

    def plan(self, job: Job, facts: Facts) -> Plan:
        if job.image is not None:
            raise UsageError("the process engine runs no images", subject=job.image, hint="leave out --image")
        if job.engine_args:
            raise UsageError("the process engine has no options of its own", subject=job.engine_args[0])
        if job.shm_bytes is not None:
            raise UsageError(
                "the process engine has all of the machine's shared memory", hint="leave out --shm-size"
            )
        if not job.command or not job.command[0]:
            raise UsageError("there is no command to run", hint="dsv run TARGET -- CMD …")
        if any("\0" in argument for argument in job.command):
            raise UsageError("an argument holds a NUL byte")
        env = dict(job.env)
        if job.gpus is not None:
            env.setdefault("CUDA_VISIBLE_DEVICES", self._visible(job.gpus, facts.machine))
        return Plan(
            engine=self.name,
            run=job.run,
            argv=job.command,
            env=env,
            cwd=Path(job.workdir) if job.workdir else None,
        )

    def submit(self, plan: Plan, output: Output, on_end: Callable[[], None]) -> Handle:
        return _ProcessRun(plan, self.environ, output, on_end)

    def still_runs(self, run: str) -> bool:
        return bool(processes_of(run))

    def cancel(self, run: str, grace: float) -> None:
        end_groups(set(processes_of(run)), grace)
        deadline = monotonic() + _DYING
        while processes_of(run) and monotonic() < deadline:
            sleep(_PAUSE)

    def find_image(self, reference: str) -> ImageIdentity | None:
        return None

    def _visible(self, wanted: int, machine: Machine) -> str:
        """GPUs for the job: of those that the caller was given, or of all. Raises `LaunchError`."""
        names = pick(wanted, machine)
        if names is None:
            here = machine.gpus or 0
            count = here if wanted == ALL_GPUS else wanted
            if count > here or count == 0:
                raise LaunchError(
                    f"{'GPUs' if wanted == ALL_GPUS else wanted} were asked for, and this machine has {here}",
                    hint=self.gpu_hint,
                )
            names = tuple(str(index) for index in range(count))
        return ",".join(names)


class _ProcessRun:
    """A process in a session of its own, so that signals reach all of it, and the terminal's none of it."""

    def __init__(
        self, plan: Plan, environ: Mapping[str, str], output: Output, on_end: Callable[[], None]
    ) -> None:
        self._ended: Ended | None = None
        self._lock = Lock()  # held while the group is signalled, and while its number is given back
        self._gone = False
        self._output = output
        self._on_end = on_end
        self._guard = Guard(plan.run, environ)
        try:
            self._process = subprocess.Popen(
                plan.argv,
                env={**environ, **plan.env},
                cwd=plan.cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._guard.dismiss()
            self._ended = _not_started(error, plan, {**environ, **plan.env})
            self._gone = True
            on_end()
            return
        self._guard.watch(self._process.pid)
        assert self._process.stdout is not None and self._process.stderr is not None  # asked for above
        output.attach(self._process.stdout, self._process.stderr)
        self._memory = SessionMemory(self._process.pid)
        self._memory.start()
        Thread(target=self._watch, name="dsv-process", daemon=True).start()

    @property
    def ended(self) -> Ended | None:
        return self._ended

    @property
    def state(self) -> State:
        ended = self._ended
        if ended is None:
            return State.RUNNING
        return State.ENDED if ended.launched else State.NOT_LAUNCHED

    def signal(self, number: int) -> None:
        with self._lock:
            if not self._gone:
                self._signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def _watch(self) -> None:
        try:
            self._ended = self._reap()
        except ChildProcessError:  # another thread has waited for any child, or the system for all
            reason = "its exit code went to somebody else in this process"
            self._ended = Ended(exit_code=CANNOT_LAUNCH, launched=True, seen=False, reason=reason)
        self._guard.dismiss()
        self._on_end()

    def _reap(self) -> Ended:
        try:
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            with self._lock:
                # Like a container's, the rest of it ends with its first process; reaped only then, so that its
                # number is still its own.
                self._signal(signal.SIGKILL)
                _, status, rusage = os.wait4(self._process.pid, 0)
                self._gone = True
        finally:
            self._gone = True  # where it was reaped by another, its number may be anybody's
            memory = self._memory.stop()
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code  # else Popen would look for the child once more
        usage = Usage(memory, round(rusage.ru_utime + rusage.ru_stime, 3))
        return Ended(exit_code=code if code >= 0 else 128 - code, launched=True, usage=usage)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def _not_started(error: OSError, plan: Plan, environ: Mapping[str, str]) -> Ended:
    """127 if there is no such command, 126 if it is there and can't be run, as in a shell."""
    command = plan.argv[0]
    if plan.cwd is not None and not plan.cwd.is_dir():
        return Ended(exit_code=CANNOT_LAUNCH, launched=False, reason=f"{plan.cwd} is no folder to work in")
    if error.errno in (errno.ENOENT, errno.ENOTDIR) and not _is_there(command, plan.cwd, environ):
        return Ended(exit_code=NOT_FOUND, launched=False, reason=f"command not found: {command}")
    if error.errno in (errno.E2BIG, errno.ENOMEM, errno.EAGAIN):
        return Ended(exit_code=CANNOT_LAUNCH, launched=False, reason=f"{command}: {error.strerror}")
    return Ended(exit_code=CANNOT_INVOKE, launched=False, reason=f"{command} can't be run: {error.strerror}")


def _is_there(command: str, cwd: Path | None, environ: Mapping[str, str]) -> bool:
    """Whether there is a file that the command means: one in the folders of PATH, unless it names a folder."""
    folders = [""] if "/" in command else os.get_exec_path(environ)
    return any(Path(cwd or ".", folder, command).exists() for folder in folders)
