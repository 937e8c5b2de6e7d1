"""A job's log: what the record keeps of it, and the files in which a detached run shows it meanwhile."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from time import sleep
from typing import BinaryIO, Final

from dsv.values.secrets import Masker

LOG_LIMIT: Final = 16 << 20
_ROOM_FOR_NOTE: Final = 128
_LONGEST_LINE: Final = 1 << 16
_AT_THE_CUT: Final = 1 << 12
_LAST_WORD, _FIRST_WORD = re.compile(rb"\S+\Z"), re.compile(rb"\A\S+")
_BEGIN_OF_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_END_OF_KEY = re.compile(rb"-----END [A-Z ]*PRIVATE KEY-----")


@dataclass(frozen=True, slots=True)
class KeptLog:
    """The kept part of a job's output."""

    data: bytes
    total: int
    """Bytes that the job wrote."""


class LogKeeper:
    """Collects a job's output from several threads, and keeps at most `limit` bytes, in memory too.

    `live` gets the whole output as well, in whole lines.
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
        """Count bytes that came here and that nobody has any more."""
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
        """Return the log without secrets. Where the middle is left out, a line says how much it was."""
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
    """Remove the last word, which may be cut, unless it is very long."""
    end = data[-_AT_THE_CUT:]
    return data if end.split() == [end] else data[: len(data) - len(end)] + _LAST_WORD.sub(b"", end)


def _without_first_word(data: bytes) -> bytes:
    begin = data[:_AT_THE_CUT]
    return data if begin.split() == [begin] else _FIRST_WORD.sub(b"", begin) + data[_AT_THE_CUT:]


def _without_end_of_key(data: bytes) -> bytes:
    """Remove the rest of a private key whose beginning is cut off."""
    end = _END_OF_KEY.search(data)
    return data if end is None or 0 <= data.find(b"-----BEGIN ") < end.start() else data[end.end() :]


_PIECE: Final = 1 << 16


@contextmanager
def through_a_pipe(collect: Callable[[int, Event], None]) -> Iterator[Iterator[bytes]]:
    """Yield the bytes that `collect` writes to the descriptor that it is given, which it closes at its end.

    It runs in a thread of its own. The event is set when nobody reads any more.
    """
    reader, writer = os.pipe()
    stop = Event()
    try:
        Thread(target=collect, args=(writer, stop), name="dsv-log", daemon=True).start()
        yield iter(partial(os.read, reader, _PIECE), b"")
    finally:
        stop.set()
        os.close(reader)


_CLIENTS_WORDS: Final = re.compile(
    rb"(?:^|(?<=\n))(?:Error\b|error\b|docker: |time=\"|unexpected EOF|EOF|context canceled)"
    rb"|(?:Error response from daemon|error during connect|error waiting for container)"
)
"""The messages of the docker and podman programs themselves, on the stderr that they share with the job."""


class Rejoin:
    """Compares the end of the output seen so far with the log, so that no byte is lost or shown twice.

    `count` is the number of bytes seen, and `tail` the last of them. They may end with a message of the program that
    delivered them, which the log lacks.
    """

    def __init__(self, count: int, tail: bytes) -> None:
        self.fits = True
        """False if the log's beginning was discarded or its bytes were replaced; then nothing of it is used."""
        self._skip = count - len(tail)
        self._tail = tail
        self._compared = b""
        self._found = False

    def take(self, data: bytes) -> bytes:
        """Return the new part of the next bytes of the log."""
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
    """Return the length of the common prefix of two strings."""
    return next(index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])


PART_SIZE: Final = 16 << 20
READ_SIZE: Final = 1 << 20
_LONGEST_KEY: Final = 1 << 16
_TICK: Final = 0.2


class LiveLog:
    """Writes it. Without room for it the job goes on, and its record has the log."""

    def __init__(self, path: Path, masker: Masker, part_size: int = PART_SIZE) -> None:
        """Raise `OSError`."""
        self._path = path
        self._masker = masker
        self._part_size = part_size
        self._full = 0
        self._size = 0
        self._key = b""  # the beginning of a private key, until its end has come
        self._file: int | None = _create(path)

    def add(self, data: bytes) -> None:
        """Whole lines."""
        data, self._key = self._key + data, b""
        for begin in list(_BEGIN_OF_KEY.finditer(data))[-1:]:
            if _END_OF_KEY.search(data, begin.end()) is None and len(data) - begin.start() < _LONGEST_KEY:
                data, self._key = data[: begin.start()], data[begin.start() :]
        try:
            self._write(self._masker.data(data))
        except OSError:
            self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def remove(self) -> None:
        """Once the record is kept, which has the log."""
        self.close()
        for part in (self._path, *_older(self._path).values()):
            with suppress(OSError):
                part.unlink()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._file is not None:
            if self._size >= self._part_size:
                self._next_part()
            written = os.write(self._file, view[: self._part_size - self._size])
            self._size += written
            view = view[written:]

    def _next_part(self) -> None:
        """Begin a new part. There is a file of the log's name all the time."""
        self._full += 1
        self._path.with_name(f"{self._path.name}.{self._full - 1}").unlink(missing_ok=True)
        self._path.with_name(f"{self._path.name}.{self._full}").hardlink_to(self._path)
        new = self._path.with_name(f"{self._path.name}.new")
        self.close()
        self._file = _create(new)
        new.replace(self._path)
        self._size = 0


@contextmanager
def read_live(path: Path, follow: Callable[[], bool] | None) -> Iterator[Iterator[bytes]]:
    """Read what has been written so far; with `follow`, also what is written while that is true.

    Raises `FileNotFoundError` if the record has been kept meanwhile, which has the log.
    """
    with ExitStack() as opened:
        yield _LiveParts(path, opened).read(follow)


class _LiveParts:
    """The part of a log that is being read. `opened` closes it."""

    def __init__(self, path: Path, opened: ExitStack) -> None:
        self._path = path
        self._file: BinaryIO = path.open("rb", buffering=0)
        opened.callback(lambda: self._file.close())

    def read(self, follow: Callable[[], bool] | None) -> Iterator[bytes]:
        older = _older(self._path)
        if older and os.path.samestat(os.fstat(self._file.fileno()), max(older.items())[1].stat()):
            older.popitem()  # became that just now
        if older:
            number = max(older)
            if number > 1:
                yield b"[dsv: of a long log only the end is here until the run has ended]\n"
            with suppress(FileNotFoundError):
                yield older[number].read_bytes()
        while True:
            goes_on = follow is not None and follow()  # asked first: what is written after that is read below
            following = _successor(self._path, self._file)
            while data := self._file.read(READ_SIZE):
                yield data
            if following is not None:
                full = self._file
                parts = _older(self._path).values()
                if not any(os.path.samestat(os.fstat(full.fileno()), each.stat()) for each in parts):
                    yield b"\n[dsv: a part of the log is left out here]\n"
                self._file = following
                full.close()
            elif not goes_on:
                return
            else:
                sleep(_TICK)


def _successor(path: Path, file: BinaryIO) -> BinaryIO | None:
    """Open the part after this one, if this one is full."""
    try:
        other = path.open("rb", buffering=0)
    except FileNotFoundError:
        return None
    if os.path.samestat(os.fstat(other.fileno()), os.fstat(file.fileno())):
        other.close()
        return None
    return other


def _older(path: Path) -> dict[int, Path]:
    """Return the full parts by their numbers, in order."""
    found = {each.suffix[1:]: each for each in path.parent.glob(f"{path.name}.*")}
    return dict(sorted((int(number), each) for number, each in found.items() if number.isdecimal()))


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
