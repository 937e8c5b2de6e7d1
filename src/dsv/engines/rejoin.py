"""Where in a log, read again from its beginning, the part begins that was not seen yet."""

from __future__ import annotations

import re
from typing import Final

_CLIENTS_WORDS: Final = re.compile(
    rb"(?:^|(?<=\n))(?:Error\b|error\b|docker: |time=\"|unexpected EOF|EOF|context canceled)"
    rb"|(?:Error response from daemon|error during connect|error waiting for container)"
)
"""What the docker and podman programs say themselves, on the stderr that they share with the job."""


class Rejoin:
    """Compares the end of what was seen with the same place of the log, so that no byte is lost or shown twice.

    count: bytes seen so far; tail: the last of them. They may end with a message of the program that delivered them,
    which is not in the log. fits: False if the log is another one there, because its beginning was thrown away or
    some of its bytes were replaced; then nothing of it is taken.
    """

    def __init__(self, count: int, tail: bytes) -> None:
        self.fits = True
        self._skip = count - len(tail)
        self._tail = tail
        self._compared = b""
        self._found = False

    def take(self, data: bytes) -> bytes:
        """What is new of the next bytes of the log."""
        if self._found:
            return data
        if not self.fits:
            return b""
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        self._compared += data[skipped:]
        return self._compare()

    def _compare(self) -> bytes:
        seen, log = self._tail, self._compared
        length = min(len(seen), len(log))
        same = length if seen[:length] == log[:length] else _common(seen, log)
        if same == len(log) and same < len(seen):
            return b""  # more of the log has to come
        if same < len(seen):
            starts = [each.start() for each in _CLIENTS_WORDS.finditer(seen) if each.start() <= same]
            if not starts:
                self.fits = False
                return b""
            same = starts[-1]
        self._found = True
        return log[same:]


def _common(one: bytes, other: bytes) -> int:
    """How many bytes two strings have in common at their beginnings."""
    return next(index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
