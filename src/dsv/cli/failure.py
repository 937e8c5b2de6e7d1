"""How a failure is told: one sentence, a hint, an exit code; or one JSON document."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from dsv.cli.output import printable, to_json
from dsv.errors import DsvError

READER_GONE = 141
"""What a shell shows of a program that a closed pipe ended: 128 + SIGPIPE."""

EXIT_CODES: tuple[tuple[str, str], ...] = (
    ("0", "done"),
    ("1", "differences, where `--exit-code` asked for them"),
    ("2", "usage error"),
    ("3", "not found"),
    ("4", "conflict, or a dangerous act that was refused"),
    ("5", "integrity: bytes that are not what their id says"),
    ("6", "store or cache unreachable; trying again may work"),
    ("7", "no room, or a limit that still is exceeded"),
    ("8", "denied, or credentials expired"),
    ("9", "not supported here"),
    ("70", "unexpected"),
    ("130, 143", "interrupted by Ctrl-C, by SIGTERM"),
    ("`run`", "the job's own; 125 where dsv could not launch it, 126 and 127 as docker"),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """`subject` is the object it's about; `kind` and `exit_code` are what scripts act on."""

    kind: str
    exit_code: int
    message: str
    subject: str | None = None
    hint: str | None = None
    retryable: bool = False

    def text(self) -> str:
        lines = [f"error: {_line(without_passwords(self.message))}"]
        if self.hint:
            lines.append(f"hint: {_line(without_passwords(self.hint))}")
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


_BY_ERRNO: dict[int, tuple[str, int, str]] = {
    errno.EACCES: ("denied", 8, "permission denied"),
    errno.EPERM: ("denied", 8, "operation not permitted"),
    errno.EROFS: ("denied", 8, "read-only file system"),
    errno.ENOSPC: ("no-room", 7, "no space left on the device"),
    errno.EDQUOT: ("no-room", 7, "disk quota exceeded"),
    errno.ENOENT: ("not-found", 3, "no such file or directory"),
    errno.ENOTDIR: ("not-found", 3, "not a directory"),
    errno.ESTALE: ("unreachable", 6, "the file server no longer knows this file"),
    errno.EHOSTDOWN: ("unreachable", 6, "the file server is down"),
}


def of_error(error: BaseException) -> Failure:
    """What to tell of anything that a command let through."""
    if isinstance(error, DsvError):
        return Failure(error.kind, error.exit_code, error.message, error.subject, error.hint, error.retryable)
    if isinstance(error, KeyboardInterrupt):
        return Failure("interrupted", 130, "interrupted")
    if isinstance(error, OSError) and error.errno in _BY_ERRNO:
        kind, code, reason = _BY_ERRNO[error.errno]
        subject = None if error.filename is None else _name(error.filename)
        message = f"{subject}: {reason}" if subject else reason
        return Failure(kind, code, message, subject, retryable=kind == "unreachable")
    said = f": {error}" if str(error) else ""
    return Failure(
        "unexpected",
        70,
        f"dsv met an unexpected {type(error).__name__}{said}",
        hint="run it again with --debug, and report what it prints",
    )


def without_passwords(text: str) -> str:
    """What is said ends in the logs of others: URLs are quoted without the passwords in them."""
    if "://" not in text:
        return text
    from dsv.model.secret_shapes import hide_in_urls

    return hide_in_urls(text)


def _name(filename: object) -> str:
    return filename.decode("utf-8", "backslashreplace") if isinstance(filename, bytes) else str(filename)


def _line(text: str) -> str:
    """One line, whatever a name in it contains; a list of paths in a message keeps its own lines."""
    return "\n".join(printable(part) for part in text.splitlines()) or text
