"""A job's log within a bound: its head and its tail.

The beginning of a line waits for the rest of it, so lines of stdout and stderr are never mixed, and a secret that a job
writes in pieces is found in the log.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

from dsv.model.secrets import Masker

LOG_LIMIT: Final = 16 << 20
_ROOM_FOR_NOTE: Final = 128
_LONGEST_LINE: Final = 1 << 16
_AT_THE_CUT: Final = 1 << 12
_LAST_WORD, _FIRST_WORD = re.compile(rb"\S+\Z"), re.compile(rb"\A\S+")
_END_OF_KEY = re.compile(rb"-----END [A-Z ]*PRIVATE KEY-----")


@dataclass(frozen=True, slots=True)
class KeptLog:
    """data: at most the limit; total: bytes that the job wrote."""

    data: bytes
    total: int


class LogKeeper:
    """Takes what a job writes, from several threads; keeps at most `limit` bytes of it (and of memory).

    live: is given all of it as well, in whole lines.
    """

    def __init__(self, limit: int = LOG_LIMIT, live: Callable[[bytes], None] | None = None) -> None:
        self._live = live
        self._head_room = (limit - _ROOM_FOR_NOTE) // 2
        self._tail_room = limit - _ROOM_FOR_NOTE - self._head_room
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._total = 0
        self._begun: dict[str, bytes] = {}
        self._lock = Lock()

    def add(self, data: bytes, stream: str = "") -> None:
        """stream: which of the job's streams it came from."""
        with self._lock:
            data = self._begun.pop(stream, b"") + data
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if len(data) - end < _LONGEST_LINE:
                self._begun[stream] = data[end:]
                data = data[:end]
            if self._live is not None and data:
                self._live(data)
            self._append(data)

    def leave_out(self, count: int) -> None:
        """So many bytes came here that nobody has any more."""
        with self._lock:
            for begun in self._begun.values():
                self._append(begun)
            self._begun.clear()
            self._total += count
            self._tail.clear()
            self._tail_size = 0

    def _append(self, data: bytes) -> None:
        self._total += len(data)
        room = self._head_room - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail.append(data)
            self._tail_size += len(data)
        while self._tail and self._tail_size - len(self._tail[0]) >= self._tail_room:
            self._tail_size -= len(self._tail.popleft())

    def kept(self, masker: Masker) -> KeptLog:
        """The log without secrets. Where the middle is left out, a line says how much it was."""
        with self._lock:
            for begun in self._begun.values():
                self._append(begun)
            self._begun.clear()
            head, tail, total = bytes(self._head), b"".join(self._tail), self._total
        if len(head) + len(tail) == total:
            return KeptLog(masker.data(head + tail)[: self._head_room + self._tail_room], total)
        tail = tail[-self._tail_room :]
        # A secret that lies across the cut is whole in neither half, so the bytes that may belong to it go too.
        edge = max(masker.longest - 1, 0)
        first, last = masker.data(head), masker.data(_without_end_of_key(tail))
        first, last = _without_last_word(first[: len(first) - edge]), _without_first_word(last[edge:])
        first, last = first[: self._head_room], last[-self._tail_room :]
        left_out = max(total - len(first) - len(last), 1)
        note = b"\n[dsv: %d bytes are left out here]\n" % left_out
        return KeptLog(first + note + last, total)


def _without_last_word(data: bytes) -> bytes:
    """Without the last word, which may be cut, unless it is very long."""
    end = data[-_AT_THE_CUT:]
    return data if end.split() == [end] else data[: len(data) - len(end)] + _LAST_WORD.sub(b"", end)


def _without_first_word(data: bytes) -> bytes:
    begin = data[:_AT_THE_CUT]
    return data if begin.split() == [begin] else _FIRST_WORD.sub(b"", begin) + data[_AT_THE_CUT:]


def _without_end_of_key(data: bytes) -> bytes:
    """Without the rest of a private key whose beginning is cut off."""
    end = _END_OF_KEY.search(data)
    return data if end is None or 0 <= data.find(b"-----BEGIN ") < end.start() else data[end.end() :]
