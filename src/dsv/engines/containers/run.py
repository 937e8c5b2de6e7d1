"""A container of docker or podman, from its start to its removal.

What counts is the container, and the engine's word on it. The program that starts it and delivers its output may end
before it, for instance when a daemon is restarted, and the engine may have no answer for a while. Neither says that
the job is over. Its output is then taken up again from the engine's own log of it.

The program runs away from the terminal's signals: those go to the container by its id.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from signal import SIGKILL
from threading import Thread
from time import monotonic, sleep
from typing import Any, Final

from dsv.engines.base import CANNOT_INVOKE, CANNOT_LAUNCH, NOT_FOUND, Ended, ImageIdentity
from dsv.engines.cgroup import CgroupSampler
from dsv.engines.containers.create import why
from dsv.engines.containers.program import ContainerProgram, has_begun, lives, wait_for
from dsv.engines.guard import Guard
from dsv.engines.output import Output
from dsv.engines.signals import ENDING
from dsv.errors import LaunchError
from dsv.model.run import JobRef, Usage
from dsv.model.run_end import EndCause
from dsv.model.units import format_bytes

SILENCE: Final = 300.0
"""Seconds without an answer after which an engine is asked no more: it has time to be upgraded."""
_WAIT: Final = 30.0
_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
_TICK: Final = 0.5

_CODES = (
    (
        NOT_FOUND,
        re.compile("executable file.* not found|command that was not found|no such file", re.IGNORECASE),
    ),
    (CANNOT_INVOKE, re.compile("permission denied|exec format error|is a directory", re.IGNORECASE)),
)
"""Why a command could not be started, as the engines' runtimes say it."""


class ContainerRun:
    """A `Handle`. begin: whether the container has to be started, or has been."""

    def __init__(
        self,
        engine: ContainerProgram,
        ref: JobRef,
        guard: Guard,
        output: Output,
        on_end: Callable[[], None],
        *,
        begin: bool,
    ) -> None:
        self._engine = engine
        self._id = ref.id
        self._guard = guard
        self._output = output
        self._on_end = on_end
        self._ended: Ended | None = None
        self._kills = 0
        self._told_to_end = False
        self._untold: int | None = None  # a signal that should end the job, and has not reached it
        self._program: subprocess.Popen[bytes] | None = None
        try:
            self._open("start", *engine.start_options) if begin else self._open("logs", "--follow")
        except OSError as error:
            guard.abandon()
            raise LaunchError(
                f"{engine.name} can't be started: {error.strerror or error}", subject=engine.name
            ) from error
        self._sampler = CgroupSampler(self._pid)
        Thread(target=self._watch, name="dsv-container", daemon=True).start()

    @property
    def ended(self) -> Ended | None:
        return self._ended

    def signal(self, number: int) -> None:
        self._told_to_end = self._told_to_end or number in ENDING
        if not self._kill(number) and number in ENDING:
            self._untold = number  # it is just starting, or the engine doesn't answer

    def kill(self) -> None:
        self._kills += 1
        self._told_to_end = True
        if (not self._kill(SIGKILL) or self._kills > 1) and self._program is not None:
            self._program.kill()

    def _open(self, *arguments: str, again: bool = False) -> None:
        program = self._engine.open(*arguments, self._id)
        self._guard.watch(program.pid)
        assert program.stdout is not None and program.stderr is not None  # asked for
        self._output.attach(program.stdout, program.stderr, again=again)
        self._program = program

    def _watch(self) -> None:
        try:
            self._sampler.start()
            ended = self._conclude()
        except Exception as error:  # noqa: BLE001 (told as the reason: else whoever waits would wait for ever)
            reason = f"{self._engine.name} said what dsv does not understand: {error!r}"
            ended = Ended(exit_code=CANNOT_LAUNCH, launched=True, seen=False, reason=reason)
        self._guard.dismiss()
        self._ended = ended
        self._on_end()

    def _conclude(self) -> Ended:
        code = self._end_of_program()
        details, whole = self._await_end(code)
        self._sampler.stop()
        if not details:
            return self._out_of_sight(code, gone=details is not None)
        state: dict[str, Any] = details.get("State") or {}
        image = self._image(details)
        self._engine.call("rm", "--force", "--volumes", self._id)
        if not has_begun(details):
            return replace(self._not_launched(code, details), image=image)
        exit_code = int(state.get("ExitCode", code))
        reason, cause = None, None
        if not whole:
            reason = f"the {self._engine.name} program ended before the container: what it wrote then is lost"
        if (out_of_memory := self._out_of_memory(details, exit_code)) is not None:
            reason, cause = out_of_memory, EndCause.OUT_OF_MEMORY
        usage = Usage(self._sampler.peak_memory_bytes, self._sampler.cpu_seconds)
        return Ended(
            exit_code=exit_code,
            launched=True,
            reason=reason,
            cause=cause,
            image=image,
            usage=usage,
        )

    def _out_of_memory(self, details: dict[str, Any], exit_code: int) -> str | None:
        """What to say if it ended for want of memory. Podman doesn't always notice, and then only the signal tells."""
        if (details.get("State") or {}).get("OOMKilled"):
            return "the engine ended it: out of memory"
        limit = (details.get("HostConfig") or {}).get("Memory")
        if not limit or exit_code != 128 + SIGKILL or self._told_to_end:
            return None
        return f"it was killed, most likely out of memory: it could use {format_bytes(int(limit))}"

    def _end_of_program(self) -> int:
        assert self._program is not None  # one was started
        while (code := wait_for(self._program, _TICK)) is None:
            self._tell()
        self._guard.watch(None)
        return code

    def _await_end(self, code: int) -> tuple[dict[str, Any] | None, bool]:
        """What the engine says of the container once that lives no more, as `inspect`; and whether all of its output
        was taken. None if the engine had no answer for too long, or while the job was to be killed.

        code: of the program, which is the container's own if it stayed to the end.
        """
        fits, answered, pause = True, monotonic(), _PAUSE
        while True:
            details = self._engine.inspect(self._id)
            if details is None:
                if self._kills > 1 or monotonic() - answered > SILENCE:
                    return None, fits
            elif not lives(details):
                own = (details.get("State") or {}).get("ExitCode") == code or not has_begun(details)
                return details, own or (fits and self._take_up(follow=False))
            else:
                answered = monotonic()
                self._tell()
                if not fits:
                    self._engine.call("wait", self._id, seconds=_WAIT)
                elif self._take_up(follow=True):
                    pause = _PAUSE
                fits = fits and self._output.fits
            sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _take_up(self, *, follow: bool) -> bool:
        """Goes on with the container's output where it was left. False if the engine has no log that goes on there."""
        while not self._output.was_read(_TICK):
            if self._kills > 1:
                return True
        try:
            self._open("logs", *(("--follow",) if follow else ()), again=True)
        except OSError:
            return False
        taken = self._end_of_program() == 0
        while taken and not self._output.was_read(_TICK) and not self._kills:
            pass
        return taken and self._output.fits

    def _tell(self) -> None:
        """Passes on what didn't reach the container when it was sent."""
        if self._kills:
            self._kill(SIGKILL)
        elif self._untold is not None and self._kill(self._untold):
            self._untold = None

    def _out_of_sight(self, code: int, *, gone: bool) -> Ended:
        """gone: the engine has no such container any more, so that the program's word is all that there is."""
        if gone and code >= 0 and code != CANNOT_LAUNCH:
            return Ended(exit_code=code, launched=True)
        name = self._engine.name
        what = f"{name} has no container" if gone else f"{name} did not answer when asked about container"
        return Ended(exit_code=CANNOT_LAUNCH, launched=True, seen=False, reason=f"{what} {self._id[:12]}")

    def _not_launched(self, code: int, details: dict[str, Any]) -> Ended:
        self._output.was_read(1.0)
        state: dict[str, Any] = details.get("State") or {}
        reason = why(str(state.get("Error") or self._output.last_line()))
        told = CANNOT_LAUNCH
        # An init process says 126 and 127 itself, of the command alone; without one the engine does, and of more.
        if not (details.get("HostConfig") or {}).get("Init"):
            told = next((number for number, words in _CODES if words.search(reason)), CANNOT_LAUNCH)
        return Ended(
            exit_code=told, launched=False, reason=reason or f"{self._engine.name} ended with {code}"
        )

    def _image(self, details: dict[str, Any]) -> ImageIdentity | None:
        number = str(details.get("Image") or "")
        return self._engine.find_image(number) if number else None

    def _pid(self) -> int | None:
        state = (self._engine.inspect(self._id) or {}).get("State") or {}
        return int(state.get("Pid") or 0) or None

    def _kill(self, number: int) -> bool:
        done = self._engine.call("kill", "--signal", str(int(number)), self._id)
        return done is not None and done.returncode == 0
