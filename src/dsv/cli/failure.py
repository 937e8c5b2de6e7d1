"""Output of a failure: one sentence, a hint and an exit code, or one JSON document."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import msgspec

from dsv.cli.output import printable, to_json
from dsv.cli.terminal import PLAIN, Ink, Style
from dsv.errors import DsvError, LaunchError, NoRoom, memory_ran_out

READER_GONE = 141
"""A shell's exit code for a program that a closed pipe ended: 128 + SIGPIPE."""


class Failure(msgspec.Struct, frozen=True):
    """A failure for people and programs. `subject` is the object it is about."""

    kind: str
    exit_code: int
    message: str
    subject: str | None = None
    hint: str | None = None
    retryable: bool = False

    def text(self, ink: Ink = PLAIN) -> str:
        message = _line(without_passwords(self.message))
        if self.subject:
            name = _line(without_passwords(self.subject))
            message = message.replace(name, ink.paint(Style.NAME, name), 1)
        lines = [f"{ink.paint(Style.ERROR, 'error:')} {message}"]
        if self.hint:
            lines.append(f"{ink.paint(Style.HINT, 'hint:')} {_line(without_passwords(self.hint))}")
        return "\n".join(lines) + "\n"

    def json(self) -> str:
        error = {
            "kind": self.kind,
            "exit": self.exit_code,
            "message": without_passwords(self.message),
            "object": self.subject if self.subject is None else without_passwords(self.subject),
            "hint": self.hint if self.hint is None else without_passwords(self.hint),
            "retryable": self.retryable,
        }
        return to_json({"schema": 1, "error": error}) + "\n"


_LIMITS: dict[int, tuple[str, str]] = {
    errno.EMFILE: ("too many open files", "ulimit -n shows how many files a process may have open"),
    errno.ENFILE: ("too many open files on this machine", "sysctl fs.file-nr shows how many are open"),
    errno.EFBIG: ("larger than a file may be here", "ulimit -f shows how large a file may be"),
    errno.ENOMEM: ("no memory", "ulimit -v shows how much memory a process may have"),
}
"""Resources that the process or the machine can run out of, and how to see their limits."""

_BY_ERRNO: dict[int, tuple[str, int, str]] = {
    errno.EACCES: ("denied", 8, "permission denied"),
    errno.EPERM: ("denied", 8, "operation not permitted"),
    errno.EROFS: ("denied", 8, "read-only file system"),
    errno.ENOSPC: ("no-room", 7, "no space left on the device"),
    errno.EDQUOT: ("no-room", 7, "disk quota exceeded"),
    errno.ENOENT: ("not-found", 3, "no such file or directory"),
    errno.ENOTDIR: ("not-found", 3, "not a directory"),
    errno.EISDIR: ("conflict", 4, "a directory is in the way"),
    errno.EEXIST: ("conflict", 4, "something else is there already"),
    errno.ENOTEMPTY: ("conflict", 4, "the directory is not empty"),
    errno.EBUSY: ("conflict", 4, "in use by something else"),
    errno.ELOOP: ("not-found", 3, "too many symlinks lead on from there"),
    errno.ENAMETOOLONG: ("unsupported", 9, "the name is too long for this file system"),
    errno.EIO: ("unreachable", 6, "the disk or the file server reported an input/output error"),
    errno.ETIMEDOUT: ("unreachable", 6, "the file server did not answer"),
    errno.ESTALE: ("unreachable", 6, "the file server no longer knows this file"),
    errno.EHOSTDOWN: ("unreachable", 6, "the file server is down"),
}


def of_error(error: BaseException) -> Failure:
    """Return the failure for any exception that a command let through."""
    limit = _limit(error)
    if limit is not None:
        return limit
    if isinstance(error, DsvError):
        return Failure(error.kind, error.exit_code, error.message, error.subject, error.hint, error.retryable)
    if isinstance(error, KeyboardInterrupt):
        return Failure("interrupted", 130, "interrupted")
    if isinstance(error, OSError) and error.errno in _BY_ERRNO:
        kind, code, reason = _BY_ERRNO[error.errno]
        subject = None if error.filename is None else _name(error.filename)
        message = f"{subject}: {reason}" if subject else reason
        return Failure(kind, code, message, subject, retryable=kind == "unreachable")
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    if memory_ran_out():
        reason, hint = _LIMITS[errno.ENOMEM]
        return Failure(NoRoom.kind, NoRoom.exit_code, f"dsv can't go on: {reason} ({what})", hint=hint)
    return Failure(
        "unexpected",
        70,
        f"dsv met an unexpected {what}",
        hint="run it again with --debug, and report what it prints",
    )


def without_passwords(text: str) -> str:
    """Hide the passwords in URLs: output ends in the logs of others."""
    if "://" not in text:
        return text
    from dsv.values.secrets import hide_in_urls

    return hide_in_urls(text)


def _limit(error: BaseException) -> Failure | None:
    """Return the failure for an error that a limit of the process has caused; None for any other.

    Trying again would meet the limit, even if a part of dsv reported it as "the store can't be reached".
    """
    reason = next(filter(None, map(_exhausted, _causes(error))), None)
    if reason is None:
        return None
    said, hint = reason
    if isinstance(error, DsvError):
        code = error.exit_code if isinstance(error, LaunchError) else NoRoom.exit_code
        return Failure(NoRoom.kind, code, error.message, error.subject, hint)
    subject = _name(error.filename) if isinstance(error, OSError) and error.filename is not None else None
    message = f"{subject}: {said}" if subject else f"dsv can't go on: {said}"
    return Failure(NoRoom.kind, NoRoom.exit_code, message, subject, hint)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what it was raised from, each once: an error that is raised again may close a circle."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        yield cause
        seen.append(cause)
        cause = cause.__cause__


def _exhausted(error: BaseException) -> tuple[str, str] | None:
    """Return the resource that ran out, and how to see its limit."""
    if isinstance(error, OSError):
        return _LIMITS.get(error.errno) if error.errno is not None else None
    text = str(error)
    if isinstance(error, MemoryError):
        return _LIMITS[errno.ENOMEM]
    if isinstance(error, ImportError) and (
        "failed to map" in text or "cannot allocate memory" in text.lower()
    ):
        return "no memory to load a library", _LIMITS[errno.ENOMEM][1]
    if isinstance(error, RuntimeError) and "can't start new thread" in text:
        return (
            "no thread could be started",
            "ulimit -v and ulimit -u show the limits of memory and of processes",
        )
    return None


def _name(filename: object) -> str:
    return filename.decode("utf-8", "backslashreplace") if isinstance(filename, bytes) else str(filename)


def _line(text: str) -> str:
    """Escape control characters, so that no name breaks a line. Lists of paths keep their lines."""
    return "\n".join(printable(part) for part in text.splitlines()) or text
