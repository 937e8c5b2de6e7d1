"""Errors, grouped by what a caller does about them.

Every error is one sentence that names the object, an optional hint (a command that helps), and an exit
code that scripts may rely on. Nothing below the command line catches these to print them.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

UPGRADE = "install a newer dsv: pip install --upgrade DSV_CHECKOUT_OR_WHEEL"
"""The hint for data that a newer version wrote. On PyPI, the name dsv is another project's."""


class DsvError(Exception):
    """Base of everything that dsv raises on purpose.

    `message` is one sentence without a trailing period; `subject` names the object of the error (a path, a
    target, a key) for programs that read `--json`; `hint` is what to do next, usually a command.
    """

    kind: ClassVar[str] = "unexpected"
    exit_code: ClassVar[int] = 70
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, subject: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.subject = subject
        self.hint = hint

    def parts(self) -> tuple[str, str, str | None, str | None]:
        """Return its class (the nearest in this module), message, subject and hint: what `made` takes."""
        kind = next(one for one in type(self).__mro__ if one.__module__ == __name__)
        return kind.__name__, self.message, self.subject, self.hint


class UsageError(DsvError):
    """The command or the call was malformed."""

    kind = "usage"
    exit_code = 2


class NotFound(DsvError):
    """A dataset, revision, path, key or run that is not there."""

    kind = "not-found"
    exit_code = 3


class NoStore(NotFound):
    """No store where one is looked for: nothing is known of what it might hold."""


class Erased(NotFound):
    """Content that was permanently erased from its store."""


class Conflict(DsvError):
    """Another writer was first, or a dangerous action was refused."""

    kind = "conflict"
    exit_code = 4


class Changing(Conflict):
    """Files that another program changed while they were read; trying again may work."""

    retryable = True


class IntegrityError(DsvError):
    """Bytes that do not match their id, their format or their reference."""

    kind = "integrity"
    exit_code = 5


class Unreachable(DsvError):
    """A store or cache that did not answer; trying again later may work."""

    kind = "unreachable"
    exit_code = 6
    retryable = True


class OutcomeUnknown(Unreachable):
    """A write whose answer was lost and whose effect could not be read back."""

    kind = "outcome-unknown"


class NoRoom(DsvError):
    """A full disk, an exhausted quota, or a limit that is still exceeded."""

    kind = "no-room"
    exit_code = 7


class Denied(DsvError):
    """Credentials that are missing, expired or insufficient, or file permissions."""

    kind = "denied"
    exit_code = 8


class Unsupported(DsvError):
    """Something that this version, this platform or this store cannot do."""

    kind = "unsupported"
    exit_code = 9


class Interrupted(DsvError):
    """Ctrl-C (130)."""

    kind = "interrupted"
    exit_code = 130


class Terminated(DsvError):
    """SIGTERM (143)."""

    kind = "interrupted"
    exit_code = 143


class HungUp(Terminated):
    """SIGHUP (129)."""

    exit_code = 129


class Signalled(KeyboardInterrupt):
    """A signal is to end the command; `error` says which. Raised by handlers, in the middle of anything, so nothing
    that catches errors may take it for one."""

    def __init__(self, error: DsvError) -> None:
        super().__init__(error.message)
        self.error = error


class LaunchError(DsvError):
    """`dsv run` could not start the command. Docker uses the same exit code."""

    kind = "launch"
    exit_code = 125


def made(kind: str, message: str, subject: str | None, hint: str | None) -> DsvError:
    """Make the error whose `DsvError.parts` these are."""
    found: type[DsvError] = globals().get(kind, DsvError)  # another version of dsv may have others
    return found(message, subject=subject, hint=hint)


@contextmanager
def as_read_errors() -> Iterator[None]:
    """Raises any `DsvError` as one of its kind that is an OSError too, EIO: a mount takes others for a wrong call."""
    try:
        yield
    except DsvError as error:
        name, message, subject, hint = error.parts()
        kind = type(made(name, message, subject, hint))
        extra = {"errno": errno.EIO, "__module__": "dsv", "__reduce__": lambda self: (made, self.parts())}
        raise type(name, (kind, OSError), extra)(message, subject=subject, hint=hint) from error


@contextmanager
def as_launch_error() -> Iterator[None]:
    """Raises any `DsvError` as `LaunchError`, except misuse and interrupts."""
    try:
        yield
    except (UsageError, LaunchError, Interrupted, Terminated):
        raise
    except DsvError as error:
        raise LaunchError(error.message, subject=error.subject, hint=error.hint) from error


def memory_ran_out() -> bool:
    """Return whether this process reached its memory limit (`ulimit -v`). Python then raises other errors
    than MemoryError too: a SystemError without a message, a SyntaxError."""
    try:
        with open("/proc/self/limits") as limits, open("/proc/self/status") as status:  # noqa: PTH123 (no import)
            limit = next(line.split()[3] for line in limits if line.startswith("Max address space"))
            peak = next(line.split()[1] for line in status if line.startswith("VmPeak"))
        return limit.isdigit() and int(limit) - int(peak) * 1024 < _LARGEST_PIECE
    except MemoryError:
        return True
    except (OSError, StopIteration):
        return False


_LARGEST_PIECE = 2 << 20
"""Bytes of the largest allocation whose failure Python may report by another error than MemoryError."""


def lacks(error: ImportError, extra: str) -> Unsupported:
    """Return the error for a library of one of dsv's extras that is not installed."""
    text = f"this needs the extra {extra}, which is not installed"
    return Unsupported(text, subject=error.name, hint=f"pip install 'dsv-data[{extra}]'")
