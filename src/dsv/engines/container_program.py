"""The docker or podman program, called to ask something of its engine or to have something done there."""

from __future__ import annotations

import json
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dsv.engines.base import ImageIdentity

CALL_SECONDS = 20.0

_NO_SUCH = re.compile(rb"no such (?:container|object)", re.IGNORECASE)


class ContainerProgram(ABC):
    """One program. environ: the caller's; PATH in it finds the program."""

    name: ClassVar[str]

    def __init__(self, environ: Mapping[str, str]) -> None:
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

    def inspect(self, container: str) -> dict[str, Any] | None:
        """What the engine knows about a container: empty if it says that there is none of that id.

        None if it gave no answer, for instance because its daemon is down.
        """
        done = self.call("container", "inspect", container)
        if done is not None and done.returncode != 0 and _NO_SUCH.search(done.stderr) is not None:
            return {}
        return _one(done)


def load_json(data: bytes) -> object:
    """What the program answered; None if that is not JSON."""
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
