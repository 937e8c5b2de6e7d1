"""Making a container, which may take as long as fetching its image does. It doesn't begin yet."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Final

from dsv.errors import LaunchError
from dsv.run.engines.base import ImageNotPulled, Plan, PrivateFile
from dsv.run.engines.containers.program import ContainerProgram, wait_for
from dsv.run.engines.output import Output

_ID = re.compile(r"[0-9a-f]{12,64}", re.ASCII)
_PREFIX = re.compile(r"^(?:docker: )?(?:Error(?: response from daemon)?: )?")
_TAKEN = re.compile(r'name "?/?([^\s"]+)"? is already in use')
_TICK: Final = 0.2
_PATIENCE: Final = 5.0
"""Seconds that the program gets to end by itself, once that is asked for."""


def create(
    engine: ContainerProgram,
    plan: Plan,
    output: Output,
    cancelled: Event,
    watch: Callable[[int | None], None],
) -> str:
    """The id of the new container. watch: told of the group of the program that makes it. Raises `LaunchError`."""
    with _written(plan.files):
        try:
            program = engine.open("create", *plan.argv[2:], env=plan.env)
        except OSError as error:
            raise LaunchError(
                f"{engine.name} can't be started: {error.strerror or error}", subject=engine.name
            ) from error
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
        missing = plan.image is not None and engine.find_image(plan.image) is None
        raise ImageNotPulled(reason) if missing else LaunchError(reason, hint=_hint(engine.name, reason))
    return said[-1]


def _hint(engine: str, reason: str) -> str | None:
    """What to do if the name that was asked for is that of another container, which is all that a name tells apart."""
    taken = _TAKEN.search(reason)
    if taken is None:
        return None
    return (
        f"choose another --name; {engine} ps --all --filter name={taken[1]} shows the container that has it"
    )


def is_id(text: str) -> bool:
    """Whether it is an id of a container, and not an option for instance."""
    return _ID.fullmatch(text) is not None


def why(line: str) -> str:
    """What an engine's program says is wrong, without what it puts in front."""
    return _PREFIX.sub("", line)


def _end_of(program: subprocess.Popen[bytes], cancelled: Event) -> int:
    deadline: float | None = None
    while (code := wait_for(program, _TICK)) is None:
        if deadline is None and cancelled.is_set():
            program.terminate()
            deadline = monotonic() + _PATIENCE
        elif deadline is not None and monotonic() > deadline:
            program.kill()
    return code


@contextmanager
def _written(files: tuple[PrivateFile, ...]) -> Iterator[None]:
    """The files are there for as long as this lasts."""
    try:
        for file in files:
            _write_private(file.path, file.content)
        yield
    except OSError as error:
        raise LaunchError(f"{error.filename} can't be written: {error.strerror or error}") from error
    finally:
        for file in files:
            with suppress(OSError):
                file.path.unlink()


def _write_private(path: Path, content: bytes) -> None:
    with suppress(FileNotFoundError):
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
