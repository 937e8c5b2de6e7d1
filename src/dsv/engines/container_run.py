"""A container of docker or podman, from its launch to its removal.

The program runs attached, without its own passing on of signals and away from the terminal's: those go to the
container by id, which the program writes to a file as soon as there is one. So nobody else's container of the
same name is ever touched.

What counts is the container, and the engine's word on it. The program may end before it, when a daemon starts
anew for instance, and the engine may have no answer for a while: neither says that the job is over.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from threading import Thread
from time import monotonic, sleep
from typing import Any, Final

from dsv.engines.base import CANNOT_INVOKE, CANNOT_LAUNCH, NOT_FOUND, Ended, ImageIdentity, Plan, State
from dsv.engines.cgroup import CgroupSampler
from dsv.engines.container_program import ContainerProgram
from dsv.engines.guard import Guard
from dsv.engines.output import Output
from dsv.engines.signals import ENDING
from dsv.errors import LaunchError
from dsv.model.run import Usage

_PREFIX = re.compile(r"^(?:docker: )?(?:Error(?: response from daemon)?: )?")
_NEVER = "0001-01-01"  # how Go writes a time that was not set

SILENCE: Final = 300.0
"""Seconds without an answer after which an engine is asked no more: it has time to be upgraded."""
_WAIT: Final = 30.0
_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0


class ContainerRun:
    """A `Handle`."""

    def __init__(
        self, engine: ContainerProgram, plan: Plan, output: Output, on_end: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._output = output
        self._on_end = on_end
        self._ended: Ended | None = None
        self._kills = 0
        self._untold: int | None = None  # a signal that should end the job, and has not reached it
        self._guard = Guard(
            plan.run, engine.environ, container=engine.name, files=[file.path for file in plan.files]
        )
        try:
            self._client = self._start()
        except LaunchError:
            self._guard.dismiss()
            raise
        self._guard.watch(self._client.pid)
        self._sampler = CgroupSampler(self._pid)
        Thread(target=self._watch, name="dsv-container", daemon=True).start()

    @property
    def ended(self) -> Ended | None:
        return self._ended

    @property
    def state(self) -> State:
        ended = self._ended
        if ended is not None:
            return State.ENDED if ended.launched else State.NOT_LAUNCHED
        container = self._container()
        status = {} if container is None else (self._engine.inspect(container) or {}).get("State") or {}
        return State.RUNNING if status.get("Running") else State.PENDING

    def signal(self, number: int) -> None:
        container = self._container()
        if container is not None and self._kill(container, number):
            return
        if number in ENDING:  # no container yet, or not started: ends the fetching of its image
            self._untold = number
            self._end_client(force=False)

    def kill(self) -> None:
        self._kills += 1
        container = self._container()
        killed = container is not None and self._kill(container, SIGKILL)
        if not killed or self._kills > 1:
            self._end_client(force=self._kills > 1)

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            for file in self._plan.files:
                _write_private(file.path, file.content)
            client = subprocess.Popen(
                self._plan.argv,
                env={**self._engine.environ, **self._plan.env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(
                f"{self._engine.name} can't be started: {error.strerror or error}", subject=self._engine.name
            ) from error
        assert client.stdout is not None and client.stderr is not None  # asked for above
        self._output.attach(client.stdout, client.stderr)
        return client

    def _watch(self) -> None:
        try:
            self._sampler.start()
            ended = self._conclude(self._client.wait())
        except Exception as error:  # noqa: BLE001 (told as the reason: else whoever waits would wait for ever)
            reason = f"{self._engine.name} said what dsv does not understand: {error!r}"
            ended = Ended(exit_code=CANNOT_LAUNCH, launched=True, seen=False, reason=reason)
        for file in self._plan.files:
            with suppress(OSError):
                file.path.unlink()
        self._guard.dismiss()
        self._ended = ended
        self._on_end()

    def _conclude(self, code: int) -> Ended:
        """code: of the program; that of the command, if all went well."""
        container = self._container()
        if container is None:
            self._sampler.stop()
            return self._not_launched(code, None)
        details, outlived = self._await_end(container)
        self._sampler.stop()
        if not details:
            return self._out_of_sight(code, container, gone=details is not None)
        state: dict[str, Any] = details.get("State") or {}
        image = self._image(details)
        self._engine.call("rm", "--force", "--volumes", container)
        if str(state.get("StartedAt", _NEVER)).startswith(_NEVER):
            return replace(self._not_launched(code, state.get("Error") or None), image=image)
        reason = None
        if outlived:
            reason = f"the {self._engine.name} program ended before the container: what it wrote then is lost"
        if state.get("OOMKilled"):
            reason = "the engine ended it: out of memory"
        usage = Usage(self._sampler.peak_memory_bytes, self._sampler.cpu_seconds)
        return Ended(
            exit_code=int(state.get("ExitCode", code)), launched=True, reason=reason, image=image, usage=usage
        )

    def _await_end(self, container: str) -> tuple[dict[str, Any] | None, bool]:
        """What the engine says of the container once that lives no more, as `inspect`; and whether it lived on
        after the program. None if the engine had no answer for too long, or when the job was to be killed."""
        outlived, answered, pause = False, monotonic(), _PAUSE
        while True:
            details = self._engine.inspect(container)
            if details is None:
                if self._kills > 1 or monotonic() - answered > SILENCE:
                    return None, outlived
            elif not _lives(details):
                return details, outlived
            else:
                outlived, answered = True, monotonic()
                self._tell(container)
                done = self._engine.call("wait", container, seconds=_WAIT)
                if done is not None and done.returncode == 0:
                    pause = _PAUSE
            sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _tell(self, container: str) -> None:
        """Passes on what didn't reach the container when it was sent."""
        if self._kills:
            self._kill(container, SIGKILL)
        elif self._untold is not None and self._kill(container, self._untold):
            self._untold = None

    def _out_of_sight(self, code: int, container: str, *, gone: bool) -> Ended:
        """gone: the engine has no such container any more, so that the program's word is all that there is."""
        if gone and code >= 0 and code != CANNOT_LAUNCH:
            return Ended(exit_code=code, launched=True)
        name = self._engine.name
        what = f"{name} has no container" if gone else f"{name} did not answer when asked about container"
        return Ended(exit_code=CANNOT_LAUNCH, launched=True, seen=False, reason=f"{what} {container[:12]}")

    def _not_launched(self, code: int, error: str | None) -> Ended:
        self._output.was_read(1.0)
        reason = (
            _PREFIX.sub("", error or self._output.last_line()) or f"{self._engine.name} ended with {code}"
        )
        # An init process says 126 and 127 itself, of the command alone; without one the engine does, and of more.
        told = not self._plan.init and code in (CANNOT_INVOKE, NOT_FOUND)
        return Ended(exit_code=code if told else CANNOT_LAUNCH, launched=False, reason=reason)

    def _image(self, details: dict[str, Any]) -> ImageIdentity | None:
        number = str(details.get("Image") or "")
        return self._engine.find_image(number) if number else None

    def _container(self) -> str | None:
        assert self._plan.id_file is not None  # planned for every container
        try:
            return self._plan.id_file.read_text().strip() or None
        except OSError:
            return None

    def _pid(self) -> int | None:
        container = self._container()
        state = {} if container is None else (self._engine.inspect(container) or {}).get("State") or {}
        return int(state.get("Pid") or 0) or None

    def _kill(self, container: str, number: int) -> bool:
        done = self._engine.call("kill", "--signal", str(int(number)), container)
        return done is not None and done.returncode == 0

    def _end_client(self, *, force: bool) -> None:
        if force:
            self._client.kill()
        else:
            self._client.terminate()


def _lives(details: dict[str, Any]) -> bool:
    """Whether its command runs, or may go on; its exit code means nothing before it doesn't."""
    state: dict[str, Any] = details.get("State") or {}
    return bool(state.get("Running")) or state.get("Status") in ("paused", "restarting", "stopping")


def _write_private(path: Path, content: bytes) -> None:
    with suppress(FileNotFoundError):
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
