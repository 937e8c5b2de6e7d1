"""The docker or podman program, called to ask something of its engine or to have something done there."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar

from dsv.run.engines.base import NO_OPTIONS, ImageIdentity, JobStatus
from dsv.run.record import RunState
from dsv.values.json import Json

CALL_SECONDS = 20.0

_NEVER = "0001-01-01"  # how Go writes a time that was not set
_NO_SUCH = re.compile(rb"no such (?:container|object)", re.IGNORECASE)


class ContainerProgram(ABC):
    """One program. environ: the caller's; PATH in it finds the program."""

    name: ClassVar[str]
    start_options: ClassVar[tuple[str, ...]] = ("--attach",)

    def __init__(self, environ: Mapping[str, str], options: Mapping[str, Json] = NO_OPTIONS) -> None:
        self.environ = environ

    @abstractmethod
    def read_image(self, image: dict[str, Any]) -> ImageIdentity:
        """From what `image inspect` answers."""

    def find_image(self, reference: str) -> ImageIdentity | None:
        if reference.startswith("-"):
            return None
        image = _one(self.call("image", "inspect", reference))
        return None if image is None else self.read_image(image)

    def call(
        self, *arguments: str, seconds: float | None = CALL_SECONDS
    ) -> subprocess.CompletedProcess[bytes] | None:
        """Runs the program, away from the terminal's signals; None if it can't be started or is too slow."""
        try:
            return subprocess.run(
                [self.name, *arguments],
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                check=False,
                start_new_session=True,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None

    def open(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Starts the program with its output in two pipes, away from the terminal's signals. Raises `OSError`."""
        return subprocess.Popen(
            [self.name, *arguments],
            env={**self.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    @contextmanager
    def read_logs(self, container: str, follow: bool) -> Iterator[Iterator[bytes]]:
        """Read what the engine keeps of a container's output, both streams together."""
        program = subprocess.Popen(
            [self.name, "logs", *(("--follow",) if follow else ()), container],
            env=dict(self.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert program.stdout is not None  # asked for above
        with program.stdout as pipe:
            try:
                yield iter(partial(os.read, pipe.fileno(), 1 << 16), b"")
            finally:
                program.kill()
                program.wait()

    def inspect(self, container: str) -> dict[str, Any] | None:
        """Return what the engine knows about a container: empty if there is none of that id.

        None if it gave no answer, for instance because its daemon is down.
        """
        done = self.call("container", "inspect", container)
        if done is not None and done.returncode != 0 and _NO_SUCH.search(done.stderr) is not None:
            return {}
        return _one(done)


def wait_for(program: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code of a child, as soon as there is one; None after so long."""
    try:
        descriptor = os.pidfd_open(program.pid)
    except OSError:  # it was reaped already, or the kernel is old
        with suppress(subprocess.TimeoutExpired):
            return program.wait(seconds)
        return None
    try:
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        return program.wait() if ready.poll(seconds * 1000) else None
    finally:
        os.close(descriptor)


def status_of(details: Mapping[str, Any]) -> JobStatus:
    """From what `inspect` answers. Its exit code means nothing before the container has ended."""
    state = details.get("State") or {}
    if lives(details):
        return JobStatus(RunState.RUNNING)
    if has_begun(details):
        return JobStatus(RunState.ENDED, int(state.get("ExitCode", 0)))
    failed = bool(state.get("Error")) or bool(state.get("ExitCode"))
    return JobStatus(RunState.NOT_LAUNCHED if failed else RunState.SUBMITTED)


def lives(details: Mapping[str, Any]) -> bool:
    """Check that its command runs, or may continue."""
    state = details.get("State") or {}
    return bool(state.get("Running")) or state.get("Status") in ("paused", "restarting", "stopping")


def has_begun(details: Mapping[str, Any]) -> bool:
    return not str((details.get("State") or {}).get("StartedAt", _NEVER)).startswith(_NEVER)


def load_json(data: bytes) -> object:
    """Decode the program's answer; None if it is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _one(done: subprocess.CompletedProcess[bytes] | None) -> dict[str, Any] | None:
    """The only element of what `inspect` answers: without a format both programs answer with a list."""
    found = load_json(done.stdout) if done is not None and done.returncode == 0 else None
    one = found[0] if isinstance(found, list) and found else None
    return one if isinstance(one, dict) else None


def first_line(done: subprocess.CompletedProcess[bytes]) -> str:
    """The first line that the program wrote to stderr, or an empty string."""
    lines: Sequence[str] = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[0] if lines else ""
