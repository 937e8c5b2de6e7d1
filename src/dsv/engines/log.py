"""A job's log within a bound: its head and its tail."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Lock
from typing import Final

from dsv.model.secrets import Masker

LOG_LIMIT: Final = 16 << 20
_ROOM_FOR_NOTE: Final = 128


@dataclass(frozen=True, slots=True)
class KeptLog:
    """data: at most the limit; total: bytes that the job wrote."""

    data: bytes
    total: int


class LogKeeper:
    """Takes what a job writes, from several threads; keeps at most `limit` bytes of it (and of memory)."""

    def __init__(self, limit: int = LOG_LIMIT) -> None:
        self._head_room = (limit - _ROOM_FOR_NOTE) // 2
        self._tail_room = limit - _ROOM_FOR_NOTE - self._head_room
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._total = 0
        self._lock = Lock()

    def add(self, data: bytes) -> None:
        with self._lock:
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
            head, tail, total = bytes(self._head), b"".join(self._tail), self._total
        if len(head) + len(tail) == total:
            return KeptLog(masker.data(head + tail)[: self._head_room + self._tail_room], total)
        tail = tail[-self._tail_room :]
        left_out = total - len(head) - len(tail)
        # A secret that the cut goes through is in neither half as a whole: what of it could be left goes too.
        edge = max(masker.longest - 1, 0)
        first, last = masker.data(head), masker.data(tail)
        first, last = first[: len(first) - edge], last[edge:]
        note = b"\n[dsv: %d bytes are left out here]\n" % left_out
        return KeptLog(first[: self._head_room] + note + last[-self._tail_room :], total)
