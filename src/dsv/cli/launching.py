"""What keeps a command from being started, told with the exit code for that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dsv.cli.failure import Failure, of_error
from dsv.errors import LaunchError, as_launch_error


@contextmanager
def launching() -> Iterator[None]:
    """As `as_launch_error`, for errors of the system too."""
    with as_launch_error():
        try:
            yield
        except OSError as error:
            failure: Failure = of_error(error)
            raise LaunchError(failure.message, subject=failure.subject, hint=failure.hint) from error
