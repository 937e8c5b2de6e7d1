"""A container of docker or podman, from its creation to its removal, by the engine's own program."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from signal import SIGKILL
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any, ClassVar, Final

from dsv.errors import LaunchError
from dsv.files.descriptors import Opened
from dsv.files.small_files import write_new
from dsv.run.engines.attach import ENDING, FollowedJob
from dsv.run.engines.base import (
    CANNOT_INVOKE,
    CANNOT_LAUNCH,
    NOT_FOUND,
    Ended,
    ImageIdentity,
    ImageNotPulled,
    JobPlan,
    JobStatus,
    LocalEngine,
    PrivateFile,
)
from dsv.run.engines.machine import UsageSampler, control_group
from dsv.run.engines.output import JobOutput
from dsv.run.engines.reaper import Guard
from dsv.run.part import EndCause
from dsv.run.record import JobRef, JobUsage, RunState
from dsv.values.units import format_bytes

CALL_SECONDS = 20.0
_WORKING_FOLDER = "/proc" if sys.platform == "linux" else "/"
"""The working folder of an engine's program, where no file can be created. conmon before 2.1.13 creates a
file `oom` there when a container exceeds its memory; in a workspace, the next sync would publish it."""

_NEVER = "0001-01-01"  # how Go writes a time that was not set
_NO_SUCH = re.compile(rb"no such (?:container|object)", re.IGNORECASE)


class ContainerProgram(LocalEngine):
    """Calls the program of an engine, which PATH in `environ` finds."""

    start: ClassVar[tuple[str, ...]]
    """The arguments that start a container and deliver its output, without words of the program's own among it."""
    removal: Thread | None = None

    @abstractmethod
    def read_image(self, image: dict[str, Any]) -> ImageIdentity:
        """Read what `image inspect` answers."""

    def find_image(
        self, reference: str, *, pulling: Callable[[str], None] | None = None
    ) -> ImageIdentity | None:
        if reference.startswith("-"):
            return None
        image = _one(self.call("image", "inspect", reference))
        if image is not None or pulling is None:
            return None if image is None else self.read_image(image)
        pulling(f"{self.name} pulls {reference}")
        done = self.call("pull", "--quiet", reference, seconds=None)
        if done is None or done.returncode != 0:
            said = "" if done is None else done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise _not_pulled(self.name, reference, why(said) or f"{self.name} did not pull {reference}")
        return self.find_image(reference)

    def call(
        self, *arguments: str, seconds: float | None = CALL_SECONDS
    ) -> subprocess.CompletedProcess[bytes] | None:
        """Run the program, away from the terminal's signals; None if it can't be started or is too slow."""
        with suppress(OSError, subprocess.TimeoutExpired):
            return subprocess.run(
                [self.name, *arguments], env=dict(self.environ), cwd=_WORKING_FOLDER, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=seconds, check=False, start_new_session=True,
            )  # fmt: skip
        return None

    def remove(self, container: str) -> None:
        """Begin to remove a container. The next one, and this process's end, wait for that: it takes long."""
        arguments = ("rm", "--force", "--volumes", container)
        self.removal = Thread(target=self.call, args=arguments, name="dsv-rm", daemon=False)
        self.removal.start()

    def open(
        self, *arguments: str, env: Mapping[str, str] | None = None, stderr: int = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        """Start the program with its output in pipes, away from the terminal's signals. Raises `LaunchError`."""
        try:
            return subprocess.Popen(
                [self.name, *arguments], env={**self.environ, **(env or {})}, cwd=_WORKING_FOLDER,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            reason = f"{self.name} can't be started: {error.strerror or error}"
            raise LaunchError(reason, subject=self.name) from error

    @contextmanager
    def read_logs(self, container: str, follow: bool) -> Iterator[Iterator[bytes]]:
        """Read what the engine keeps of a container's output, both streams together."""
        follows = ("--follow",) if follow else ()
        program = self.open("logs", *follows, container, stderr=subprocess.STDOUT)
        assert program.stdout is not None  # asked for above
        with program.stdout as pipe:
            try:
                yield iter(partial(os.read, pipe.fileno(), 1 << 16), b"")
            finally:
                program.kill()
                program.wait()

    def inspect(self, container: str) -> dict[str, Any] | None:
        """Return the engine's facts on a container; empty if there is none, None without an answer."""
        done = self.call("container", "inspect", container)
        if done is not None and done.returncode != 0 and _NO_SUCH.search(done.stderr) is not None:
            return {}
        return _one(done)


def wait_for(program: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit code of a child; None after so many seconds."""
    with suppress(OSError, AttributeError), Opened(os.pidfd_open(program.pid)) as process:
        poll = select.poll()  # where there is no pidfd, `Popen.wait` returns up to 50 ms too late
        poll.register(process, select.POLLIN)
        poll.poll(seconds * 1000)
        return program.poll()
    with suppress(subprocess.TimeoutExpired):
        return program.wait(seconds)
    return None


def _state(details: Mapping[str, Any]) -> dict[str, Any]:
    return details.get("State") or {}


def status_of(details: Mapping[str, Any]) -> JobStatus:
    """Read the result of `inspect`. Its exit code is valid only once the container has ended."""
    state = _state(details)
    if lives(details):
        return JobStatus(RunState.RUNNING)
    if has_begun(details):
        # Podman has the exit code of a "stopped" container only once it has cleaned up after it.
        return JobStatus(
            RunState.ENDED, None if state.get("Status") == "stopped" else int(state.get("ExitCode", 0))
        )
    failed = bool(state.get("Error")) or bool(state.get("ExitCode"))
    return JobStatus(RunState.NOT_LAUNCHED if failed else RunState.SUBMITTED)


def lives(details: Mapping[str, Any]) -> bool:
    """Check that its command runs, or may continue."""
    state = _state(details)
    return bool(state.get("Running")) or state.get("Status") in ("paused", "restarting", "stopping")


def has_begun(details: Mapping[str, Any]) -> bool:
    return not str(_state(details).get("StartedAt", _NEVER)).startswith(_NEVER)


def load_json(data: bytes) -> object:
    """Decode the program's answer; None if it is not JSON."""
    with suppress(ValueError, RecursionError):
        return json.loads(data)
    return None


def _one(done: subprocess.CompletedProcess[bytes] | None) -> dict[str, Any] | None:
    """Return the only element of what `inspect` answers: without a format both programs answer with a list."""
    match load_json(done.stdout) if done is not None and done.returncode == 0 else None:
        case [dict() as one, *_]:
            return one
    return None


def first_line(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return the first line that the program wrote to stderr, or an empty string."""
    return done.stderr.decode("utf-8", "replace").strip().partition("\n")[0].strip()


_ID = re.compile(r"[0-9a-f]{12,64}", re.ASCII)
_PREFIX = re.compile(r"^(?:docker: )?(?:Error(?: response from daemon)?: )?")
_CREATE_TICK: Final = 0.2
_PATIENCE: Final = 5.0
"""Seconds that the program gets to end after it was asked to."""


def create(
    engine: ContainerProgram,
    plan: JobPlan,
    output: JobOutput,
    cancelled: Event,
    watch: Callable[[int | None], None],
) -> str:
    """Create the container, and return its id. Raises `LaunchError`. watch: called with the process group of
    the program that creates it"""
    if engine.removal is not None:  # of the attempt before, whose name is the same
        engine.removal.join()
    with _written(plan.files):
        program = engine.open("create", *plan.argv[2:], env=plan.env)
        watch(program.pid)
        assert program.stdout is not None and program.stderr is not None  # asked for above
        output.tell(program.stderr)
        with program.stdout as answer:
            code = _end_of(program, cancelled)
            watch(None)
            said = answer.read().decode("utf-8", "replace").split()
    while not output.was_read(1.0) and not cancelled.is_set():
        pass  # a slow terminal gets all of it before the job's own output
    if cancelled.is_set():
        for container in said[-1:]:
            engine.call("rm", "--force", "--volumes", container)
        raise LaunchError("interrupted before the command began")
    if code != 0 or not said or not is_id(said[-1]):
        reason = why(output.last_line()) or f"{engine.name} ended with {code}"
        if plan.image is not None and engine.find_image(plan.image) is None:
            raise _not_pulled(engine.name, plan.image, reason)
        hint = "choose another --name, or remove that container" if "is already in use" in reason else None
        raise LaunchError(reason, hint=hint)
    return said[-1]


def _not_pulled(engine: str, image: str, reason: str) -> ImageNotPulled:
    fuller = f"--image REGISTRY/{image}, such as docker.io/{image}"
    pull = f"see why this fails: {engine} pull {image}"
    return ImageNotPulled(reason, hint=fuller if "short-name" in reason else pull)


def is_id(text: str) -> bool:
    """Check that it is an id of a container, and not an option for instance."""
    return _ID.fullmatch(text) is not None


def why(line: str) -> str:
    """Return the error that an engine's program printed, without its prefix."""
    return _PREFIX.sub("", line)


def _end_of(program: subprocess.Popen[bytes], cancelled: Event) -> int:
    deadline: float | None = None
    while (code := wait_for(program, _CREATE_TICK)) is None:
        if deadline is None and cancelled.is_set():
            program.terminate()
            deadline = monotonic() + _PATIENCE
        elif deadline is not None and monotonic() > deadline:
            program.kill()
    return code


@contextmanager
def _written(files: tuple[PrivateFile, ...]) -> Iterator[None]:
    """Write these files, and remove them at the end."""
    try:
        for file in files:
            file.path.unlink(missing_ok=True)
            write_new(file.path, file.content, mode=0o600, sync=False)
        yield
    except OSError as error:
        raise LaunchError(f"{error.filename} can't be written: {error.strerror or error}") from error
    finally:
        for file in files:
            with suppress(OSError):
                file.path.unlink()


SILENCE: Final = 300.0
"""Seconds without an answer after which an engine is asked no more: it has time to be upgraded."""
_WAIT: Final = 30.0
_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
_TICK: Final = 0.5
_START_SECONDS: Final = 0.25
"""Seconds before the engine is first asked for the container's process: at once it has none, and is slowed down."""

_CODES = (
    (
        NOT_FOUND,
        re.compile(
            "executable file.* not found|that was not found|no such file|not a directory", re.IGNORECASE
        ),
    ),
    (CANNOT_INVOKE, re.compile("permission denied|exec format error|is a directory", re.IGNORECASE)),
)
"""The messages of engines, and of init processes, about a command that could not be started."""
_NOT_EXECUTED = re.compile(
    r"(?:\[FATAL tini \(\d+\)\] exec .* failed|ERROR \(catatonit:\d+\): failed to exec pid1): (.+)", re.DOTALL
)
"""All that a container wrote whose init process began, but not the command. Its exit code may be 1."""


def _code_for(reason: str) -> int:
    return next((code for code, words in _CODES if words.search(reason)), CANNOT_LAUNCH)


class ContainerRun(FollowedJob):
    """A container that this process starts."""

    def __init__(self, engine: ContainerProgram, ref: JobRef, guard: Guard) -> None:
        super().__init__(ref, "dsv-container")
        self._engine = engine
        self._id = ref.id
        self._guard = guard
        self._end_requested = False
        self._program: subprocess.Popen[bytes] | None = None
        self._sampler = UsageSampler(control_group(self._pid), first=_START_SECONDS)

    def _begin(self, output: JobOutput) -> None:
        self._output = output
        try:
            self._open(*self._engine.start)
        except LaunchError:
            self._guard.abandon()
            raise

    def abandon(self) -> None:
        self._guard.dismiss()

    def _send(self, number: int) -> bool:
        """Fails for a container that is just starting, and for an engine that doesn't answer."""
        self._end_requested = self._end_requested or number in (*ENDING, SIGKILL)
        done = self._engine.call("kill", "--signal", str(int(number)), self._id)
        return done is not None and done.returncode == 0

    def _kill(self) -> bool:
        reached = self._send(SIGKILL)
        if (not reached or self._kills > 1) and self._program is not None:
            self._program.kill()
        return reached

    def _open(self, *arguments: str, again: bool = False) -> None:
        program = self._engine.open(*arguments, self._id)
        self._guard.watch(program.pid)
        assert program.stdout is not None and program.stderr is not None  # asked for
        self._output.attach(program.stdout, program.stderr, again=again)
        self._program = program

    def _close(self) -> None:
        self._guard.abandon() if self.lost else self._guard.dismiss()

    def _until_end(self) -> Ended:
        self._sampler.start()
        code = self._end_of_program()
        details, whole = self._await_end(code)
        self._sampler.stop()
        if not details:
            return self._out_of_sight(code, gone=details is not None)
        self._engine.remove(self._id)
        image = self._image(details)
        if not has_begun(details):
            if code < 0 and not self._end_requested:  # the command may have run before the engine noted it
                what = f"{self._engine.name} was killed by signal {-code} while it started container {self._id[:12]}"
                return Ended(launched=True, seen=False, reason=what, image=image)
            return replace(self._not_launched(code, details), image=image)
        exit_code = int(_state(details).get("ExitCode", code))
        if (not_executed := self._not_executed(exit_code, details)) is not None:
            return replace(not_executed, image=image)
        reason, cause = self._out_of_memory(details, exit_code)
        if not whole and cause is None:
            reason = f"the {self._engine.name} program ended before the container: what it wrote then is lost"
        usage = JobUsage(self._sampler.peak_memory_bytes, self._sampler.cpu_seconds)
        return Ended(exit_code=exit_code, launched=True, reason=reason, cause=cause, image=image, usage=usage)

    def _out_of_memory(self, details: dict[str, Any], code: int) -> tuple[str | None, EndCause | None]:
        """Return the reason and the cause if it ran out of memory. Podman may show that by the signal alone."""
        killed = code == 128 + SIGKILL and not self._end_requested
        if code != 0 and _state(details).get("OOMKilled"):  # of any of its processes
            if killed:
                return "the engine ended it: out of memory", EndCause.OUT_OF_MEMORY
            return "one of its processes was killed: out of memory", None
        limit = (details.get("HostConfig") or {}).get("Memory")
        if not limit or not killed:
            return None, None
        reason = f"it was killed, most likely out of memory: it could use {format_bytes(int(limit))}"
        return reason, EndCause.OUT_OF_MEMORY

    def _end_of_program(self) -> int:
        assert self._program is not None  # one was started
        while (code := wait_for(self._program, _TICK)) is None:
            self.send_again()
        self._guard.watch(None)
        return code

    def _await_end(self, code: int) -> tuple[dict[str, Any] | None, bool]:
        """Wait for the container's end. Return the result of `inspect`, and whether all output was read.

        None if the engine did not answer for too long, or while the job was to be killed. code: the
        program's, which is the container's if the program stayed to the end
        """
        fits, answered, pause = True, monotonic(), _PAUSE
        while True:
            details = self._engine.inspect(self._id)
            if details is None:
                if self._kills > 1 or monotonic() - answered > SILENCE:
                    return None, fits
            elif not lives(details):
                own = _state(details).get("ExitCode") == code or not has_begun(details)
                return details, own or (fits and self._take_up(follow=False))
            else:
                answered = monotonic()
                self.send_again()
                if not fits:
                    self._engine.call("wait", self._id, seconds=_WAIT)
                elif self._take_up(follow=True):
                    pause = _PAUSE
                fits = fits and self._output.fits
            sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _take_up(self, *, follow: bool) -> bool:
        """Continue the output from the engine's log. Return False if the log does not continue it."""
        while not self._output.was_read(_TICK):
            if self._kills > 1:
                return True
        try:
            self._open("logs", *(("--follow",) if follow else ()), again=True)
        except LaunchError:
            return False
        taken = self._end_of_program() == 0
        while taken and not self._output.was_read(_TICK) and not self._kills:
            pass
        return taken and self._output.fits

    def _out_of_sight(self, code: int, *, gone: bool) -> Ended:
        """gone: the engine no longer has the container, so only the program's exit code is known"""
        if gone and code >= 0 and code != CANNOT_LAUNCH:
            return Ended(exit_code=code, launched=True)
        name = self._engine.name
        what = f"{name} has no container" if gone else f"{name} did not answer when asked about container"
        return Ended(launched=True, seen=False, reason=f"{what} {self._id[:12]}")

    def _not_launched(self, code: int, details: dict[str, Any]) -> Ended:
        self._output.was_read(1.0)
        reason = why(str(_state(details).get("Error") or self._output.last_line()))
        # With an init process the engine's words are about that, or about the container.
        own = not (details.get("HostConfig") or {}).get("Init")
        exit_code = _code_for(reason) if own else CANNOT_LAUNCH
        return Ended(exit_code=exit_code, reason=reason or f"{self._engine.name} ended with {code}")

    def _not_executed(self, exit_code: int, details: dict[str, Any]) -> Ended | None:
        """Return the end of a command that the container's init process could not execute."""
        if exit_code not in (1, CANNOT_INVOKE, NOT_FOUND):
            return None
        self._output.was_read(1.0)
        if (said := _NOT_EXECUTED.fullmatch(self._output.on_stderr_alone())) is None:
            return None
        config, code = details.get("Config") or {}, _code_for(said[1])
        words = config.get("Entrypoint") or config.get("Cmd") or ""
        command = words if isinstance(words, str) else words[0]
        reason = (
            f"command not found: {command}" if code == NOT_FOUND else f"{command} can't be run: {said[1]}"
        )
        return Ended(exit_code=code, reason=reason)

    def _image(self, details: dict[str, Any]) -> ImageIdentity | None:
        number = str(details.get("Image") or "")
        return self._engine.find_image(number) if number else None

    def _pid(self) -> int | None:
        return int(_state(self._engine.inspect(self._id) or {}).get("Pid") or 0) or None
