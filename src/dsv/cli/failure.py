"""Output of a failure: one sentence, a hint and an exit code, or one JSON document."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from dsv.cli.output import printable, to_json
from dsv.cli.terminal import PLAIN, Ink, Style
from dsv.errors import (
    Conflict,
    Denied,
    DsvError,
    Interrupted,
    LaunchError,
    NoRoom,
    NotFound,
    Signalled,
    Unreachable,
    Unsupported,
    memory_ran_out,
)

READER_GONE = 141
"""A shell's exit code for a program that a closed pipe ended: 128 + SIGPIPE."""


class NoRoomToLaunch(NoRoom):
    """A limit of the process or the machine kept `dsv run` from starting the command."""

    exit_code = LaunchError.exit_code


def failure_text(error: DsvError, ink: Ink = PLAIN) -> str:
    message = _line(without_passwords(error.message))
    if error.subject:
        name = _line(without_passwords(error.subject))
        message = message.replace(name, ink.paint(Style.NAME, name), 1)
    lines = [f"{ink.paint(Style.ERROR, 'error:')} {message}"]
    if error.hint:
        lines.append(f"{ink.paint(Style.HINT, 'hint:')} {_line(without_passwords(error.hint))}")
    return "\n".join(lines) + "\n"


def failure_json(error: DsvError) -> str:
    fields = {
        "kind": error.kind,
        "exit": error.exit_code,
        "message": without_passwords(error.message),
        "object": error.subject if error.subject is None else without_passwords(error.subject),
        "hint": error.hint if error.hint is None else without_passwords(error.hint),
        "retryable": error.retryable,
    }
    return to_json({"schema": 1, "error": fields}) + "\n"


_LIMITS: dict[int, tuple[str, str]] = {
    errno.EMFILE: ("too many open files", "ulimit -n shows how many files a process may have open"),
    errno.ENFILE: ("too many open files on this machine", "sysctl fs.file-nr shows how many are open"),
    errno.EFBIG: ("larger than a file may be here", "ulimit -f shows how large a file may be"),
    errno.ENOMEM: ("no memory", "ulimit -v shows how much memory a process may have"),
}
"""Resources that the process or the machine can run out of, and how to see their limits."""

_BY_ERRNO: dict[int, tuple[type[DsvError], str]] = {
    errno.EACCES: (Denied, "permission denied"),
    errno.EPERM: (Denied, "operation not permitted"),
    errno.EROFS: (Denied, "read-only file system"),
    errno.ENOSPC: (NoRoom, "no space left on the device"),
    errno.EDQUOT: (NoRoom, "disk quota exceeded"),
    errno.ENOENT: (NotFound, "no such file or directory"),
    errno.ENOTDIR: (NotFound, "not a directory"),
    errno.EISDIR: (Conflict, "a directory is in the way"),
    errno.EEXIST: (Conflict, "something else already exists there"),
    errno.ENOTEMPTY: (Conflict, "the directory is not empty"),
    errno.EBUSY: (Conflict, "in use by something else"),
    errno.ELOOP: (NotFound, "too many levels of symlinks"),
    errno.ENAMETOOLONG: (Unsupported, "the name is too long for this file system"),
    errno.EIO: (Unreachable, "the disk or the file server reported an input/output error"),
    errno.ETIMEDOUT: (Unreachable, "the file server did not answer"),
    errno.ESTALE: (Unreachable, "the file server no longer knows this file"),
    errno.EHOSTDOWN: (Unreachable, "the file server is down"),
}


def of_error(error: BaseException) -> DsvError:
    """Return the `DsvError` that reports this exception, of whatever kind."""
    limit = _limit(error)
    if limit is not None:
        return limit
    if isinstance(error, DsvError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return error.error if isinstance(error, Signalled) else Interrupted("interrupted")
    if isinstance(error, OSError) and error.errno in _BY_ERRNO:
        kind, reason = _BY_ERRNO[error.errno]
        subject = None if error.filename is None else _name(error.filename)
        return kind(f"{subject}: {reason}" if subject else reason, subject=subject)
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    if memory_ran_out():
        reason, hint = _LIMITS[errno.ENOMEM]
        return NoRoom(f"dsv can't continue: {reason} ({what})", hint=hint)
    return DsvError(
        f"dsv failed with an unexpected {what}", hint="run it again with --debug, and report what it prints"
    )


def without_passwords(text: str) -> str:
    """Hide the passwords in URLs: output ends up in logs that others read."""
    if "://" not in text:
        return text
    from dsv.values.secrets import hide_in_urls

    return hide_in_urls(text)


def _limit(error: BaseException) -> NoRoom | None:
    """Return the error for one that a limit of the process or machine caused, else None. A retry would reach
    the limit again, even if dsv reported "the store can't be reached"."""
    reason = next(filter(None, map(_exhausted, _causes(error))), None)
    if reason is None:
        return None
    said, hint = reason
    if isinstance(error, DsvError):
        kind = NoRoomToLaunch if isinstance(error, LaunchError) else NoRoom
        return kind(error.message, subject=error.subject, hint=hint)
    subject = _name(error.filename) if isinstance(error, OSError) and error.filename is not None else None
    return NoRoom(
        f"{subject}: {said}" if subject else f"dsv can't continue: {said}", subject=subject, hint=hint
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, each once: an error that is raised again may close a cycle."""
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
