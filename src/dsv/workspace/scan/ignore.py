"""The rules of `.dsvignore` files: gitignore's syntax and rules, in any folder of the workspace."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import xxhash

from dsv.errors import UsageError
from dsv.transfer.stable_read import OPEN_FLAGS
from dsv.values.paths import show
from dsv.values.patterns import parse
from dsv.values.units import format_bytes

if TYPE_CHECKING:
    from dsv.values.patterns import Pattern

NAME = ".dsvignore"
_LIMIT = 16 << 20  # bytes of one
_SHOWN = 80  # bytes of a line in a message


class IgnoreRules:
    """The rules in force in one folder: its own `.dsvignore` and those of the folders above. digest:
    identifies a set of rules, so that results can be remembered; 0 for none."""

    __slots__ = ("_above", "_patterns", "_start", "digest")

    def __init__(
        self, above: IgnoreRules | None = None, folder: bytes = b"", text: bytes = b"", name: str = NAME
    ) -> None:
        self._above = above
        self._start = len(folder) + 1 if folder else 0
        self._patterns: tuple[Pattern, ...] = ()
        self.digest: int = above.digest if above is not None else 0
        if above is not None:
            self._patterns = _parse(folder, text, name)
            self.digest = xxhash.xxh3_64_intdigest(b"\0".join((folder, text)), seed=above.digest) or 1

    def enter(self, folder: bytes, text: bytes, name: str = NAME) -> IgnoreRules:
        """Return the rules in `folder`, whose file of this name holds `text`. Raises `UsageError` for a line
        that is no pattern."""
        return IgnoreRules(self, folder, text, name) if text.strip() else self

    def ignores(self, path: bytes, *, directory: bool) -> bool:
        """Return whether a path is left out. Must not be asked below a folder that is left out. The last
        pattern that matches decides; those of deeper folders follow those of higher ones."""
        rules: IgnoreRules | None = self
        name = path[path.rfind(b"/") + 1 :]
        while rules is not None:
            below = path[rules._start :]
            for pattern in rules._patterns:
                if pattern.matches(below, name, directory=directory):
                    return not pattern.includes
            rules = rules._above
        return False


def read(folder: int, where: bytes, name: str = NAME) -> bytes:
    """Return the content of the file of this name in a folder, given by its descriptor. where: the file's
    path. Raises `OSError`, and `UsageError` if it is not a regular file or too large."""
    if stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        with os.fdopen(os.open(name, OPEN_FLAGS, dir_fd=folder), "rb") as file:
            text = file.read(_LIMIT + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    else:
        text = None
    if text is None:
        raise _unfit(where, "is not a regular file, so dsv can't tell what to leave out")
    if len(text) > _LIMIT:
        raise _unfit(where, f"is larger than {format_bytes(_LIMIT)}")
    return text


def _unfit(where: bytes, reason: str) -> UsageError:
    return UsageError(f"{show(where)} {reason}", subject=where.decode("utf-8", "backslashreplace"))


def _parse(folder: bytes, text: bytes, name: str) -> tuple[Pattern, ...]:
    """Return the patterns of a file, the last one first: the order in which they are tried."""
    found = []
    for line in (text.removeprefix(b"\xef\xbb\xbf") + b"\n").replace(b"\r\n", b"\n").split(b"\n"):
        try:
            pattern = parse(line)
        except ValueError as error:
            where = show(folder + b"/" + name.encode() if folder else name.encode())
            raise UsageError(
                f"{where} has a line that is not a pattern, {show(line[:_SHOWN])}: {error}",
                subject=where,
                hint="remove the line, or begin it with # to make it a comment",
            ) from error
        if pattern is not None:
            found.append(pattern)
    return tuple(reversed(found))
