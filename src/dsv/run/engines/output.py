"""The output of a job: to the terminal, to the log and its record, and to the live log of a detached run.

Each of the two streams has a thread that reads and one that writes, with a bounded queue between them. A slow
terminal slows the job, as a pipe does. A stuck one can be given up, so that the job can end. If the
terminal's reader is gone (`| head`), the job continues and its log stays whole.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import sys
import termios
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Condition, Event, Lock, Thread
from time import monotonic, sleep
from typing import IO, BinaryIO, Final

from dsv.files.small_files import write_all
from dsv.values.secrets import Masker

_PIPE_READ: Final = 1 << 16
QUEUE_SIZE: Final = 4 << 20
"""Bytes of one stream that may wait for the terminal."""
TAIL_SIZE: Final = 4 << 10
LAST_READ: Final = 5.0
"""Seconds for which a stream is read after the job's own output: an escaped process may hold it open."""


class _Stream:
    """One stream, read from one source after another. `sink` is the caller's descriptor; None discards the data."""

    def __init__(self, name: str, sink: int | None, log: LogKeeper | None) -> None:
        self.problem: OSError | None = None
        self.tail = b""
        self.rejoin = Rejoin(0, b"")
        self.count = 0
        """Bytes of the job's, since it was attached."""
        self._name = name
        self._sink = sink
        self._log = log
        self._change = Condition()
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._dropping = sink is None
        self._writing = False
        self._source: IO[bytes] | None = None
        self._given_up = False
        self._taken = 0  # bytes out of all pipes
        self._passed = 0  # of these, queued or dropped
        self._owed: int | None = None  # once the job is over: where its own output ends, as _taken
        self._since = 0.0

    def start(self, source: IO[bytes], *, again: bool) -> None:
        """again: the source repeats what was read before. The former source must have ended."""
        self.rejoin = Rejoin(self.count, self.tail) if again else Rejoin(0, b"")
        if not again:
            self.count, self.tail = 0, b""
        with self._change:
            self._source, writing, self._writing = source, self._writing, True
        Thread(target=self._read, args=(source,), name=f"dsv-{self._name}-reader", daemon=True).start()
        if not writing:
            Thread(target=self._write, name=f"dsv-{self._name}-writer", daemon=True).start()

    def let_go(self) -> None:
        with self._change:
            self._dropping = True
            self._queue.clear()
            self._queued = 0
            self._change.notify_all()

    def job_ended(self) -> None:
        with self._change:
            self._since = monotonic()
            self._owed = self._taken + (0 if self._source is None else _waiting(self._source))

    def drained(self) -> bool:
        """Check that all of it was read, and written or dropped."""
        with self._change:
            over = self._owed is not None and self._passed >= self._owed
            if self._source is not None and over and monotonic() - self._since > LAST_READ:
                self._given_up = True
                self._change.notify_all()
            return self.was_read() and (not self._writing or self._dropping)

    def was_read(self) -> bool:
        return self._source is None or self._given_up

    def _read(self, source: IO[bytes]) -> None:
        with source:
            ready = select.poll()
            ready.register(source, select.POLLIN)
            while ready.poll() and (data := self._take(source)):
                fresh = self.rejoin.take(data)
                self.count += len(fresh)
                self.tail = (self.tail + fresh)[-TAIL_SIZE:]
                if self._log is not None and fresh:
                    self._log.add(fresh, self._name)
                self._enqueue(fresh, len(data))
        with self._change:
            self._source = None
            self._change.notify_all()

    def _take(self, source: IO[bytes]) -> bytes:
        """Read and count the next bytes in one step, because `job_ended` counts those still in the pipe."""
        with self._change:
            data = b"" if self._given_up else os.read(source.fileno(), _PIPE_READ)
            self._taken += len(data)
        return data

    def _enqueue(self, data: bytes, taken: int) -> None:
        with self._change:
            self._change.wait_for(lambda: self._dropping or self._queued < QUEUE_SIZE)
            if self._owed is not None and self._passed < self._owed:
                self._since = monotonic()  # the job's own output: later output doesn't prolong the wait
            self._passed += taken
            if not self._dropping and not self._given_up:
                self._queue.append(data)
                self._queued += len(data)
                self._change.notify_all()

    def _write(self) -> None:
        while (data := self._next()) is not None:
            try:
                self._send(data)
            except OSError as error:  # the job continues without it; a reader that is gone misses nothing
                if error.errno not in (errno.EPIPE, errno.EIO):
                    self.problem = error
                self.let_go()

    def _next(self) -> bytes | None:
        with self._change:
            self._change.wait_for(lambda: self._queue or self.was_read())
            if not self._queue:
                self._writing = False
                self._change.notify_all()
                return None
            data = self._queue.popleft()
            self._queued -= len(data)
            self._change.notify_all()
            return data

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._dropping:
            assert self._sink is not None  # without one nothing is queued
            try:
                view = view[os.write(self._sink, view) :]
            except BlockingIOError:  # a terminal that was made non-blocking
                select.select([], [self._sink], [], 1.0)


class JobOutput:
    """The destinations of a job's stdout and stderr. The caller's descriptors stay open."""

    def __init__(self, stdout: int | None, stderr: int | None, log: LogKeeper | None = None) -> None:
        self._stdout = _Stream("stdout", stdout, log)
        self._stderr = _Stream("stderr", stderr, log)

    def tell(self, stderr: IO[bytes]) -> None:
        """Show an engine's messages before the job begins. A further call must wait until they were read."""
        self._stderr.start(stderr, again=False)

    def attach(self, stdout: IO[bytes], stderr: IO[bytes], *, again: bool = False) -> None:
        """Start to read these two, which are closed at their end. Former ones must have ended. again: both
        repeat the output from its first byte, and the part that was read is skipped; see `fits`"""
        self._stdout.start(stdout, again=again)
        self._stderr.start(stderr, again=again)

    def open_pipes(self) -> tuple[int, int]:
        """Start to read two new pipes. Return their writing ends, which the caller closes."""
        streams = (os.pipe(), os.pipe())
        self.attach(*(os.fdopen(reader, "rb", buffering=0) for reader, _ in streams))
        return streams[0][1], streams[1][1]

    @property
    def fits(self) -> bool:
        """True if sources attached with `again` continued where reading ended; if not, they were not used."""
        return self._stdout.rejoin.fits and self._stderr.rejoin.fits

    @property
    def problem(self) -> OSError | None:
        """The reason why some of it could not be written, a full disk for instance."""
        return self._stdout.problem or self._stderr.problem

    def let_go(self) -> None:
        """Stop waiting for the terminal. The log still gets everything."""
        self._stdout.let_go()
        self._stderr.let_go()

    def job_ended(self) -> None:
        """Note the job's end: a stream that is silent for a while then counts as ended."""
        self._stdout.job_ended()
        self._stderr.job_ended()

    def drained(self, seconds: float) -> bool:
        """Wait for at most so long until all was read, and written or dropped."""
        return _wait(lambda: self._stdout.drained() and self._stderr.drained(), seconds)

    def was_read(self, seconds: float) -> bool:
        """Wait for at most so long until both streams have ended."""
        return _wait(lambda: self._stdout.was_read() and self._stderr.was_read(), seconds)

    def last_line(self) -> str:
        """Return the last meaningful line on stderr: the reason, if a launch has failed."""
        lines = [line.strip() for line in self._stderr.tail.decode("utf-8", "replace").splitlines()]
        said = [line for line in lines if line and not line.startswith(("See '", "Run '"))]
        return said[-1] if said else ""

    def on_stderr_alone(self) -> str:
        """Return the job's whole output if it is short and on stderr alone, else an empty string."""
        said = self._stderr.tail
        alone = self._stdout.count == 0 and self._stderr.count == len(said)
        return said.decode("utf-8", "replace").rstrip("\n") if alone else ""


class NodeLines:
    """Writes the output of the nodes of a job into one descriptor. Several threads may write."""

    def __init__(self, sink: int) -> None:
        self.sink = sink
        self._begun: dict[int, bytes] = {}
        self._lock = Lock()

    def write(self, data: bytes, label: int | None) -> None:
        """label: the number of the node, which each line, or state of a progress bar, then starts with; None if
        the job has one node."""
        with self._lock:
            if label is not None:
                lines = (self._begun.get(label, b"") + data).splitlines(keepends=True)
                self._begun[label] = lines.pop() if lines and lines[-1][-1:] != b"\n" else b""
                data = b"".join(b"[%d] %s" % (label, line) for line in lines)
            write_all(self.sink, data)

    def end_lines(self) -> None:
        """Write the last line of each node, even if it is incomplete."""
        for label in [label for label, begun in self._begun.items() if begun]:
            self.write(b"\n", label)


def _waiting(source: IO[bytes]) -> int:
    """Return the number of bytes in a pipe."""
    try:
        answer = fcntl.ioctl(source, termios.FIONREAD, bytes(4))
    except (OSError, ValueError):  # closed by now
        return 0
    return int.from_bytes(answer, sys.byteorder)


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = monotonic() + seconds
    pause = 0.001
    while not condition():
        if monotonic() >= deadline:
            return False
        sleep(pause)
        pause = min(2 * pause, 0.05)
    return True


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
    """Collects a job's output from several threads, and keeps at most `limit` bytes, in memory too. `live`
    gets the whole output, in whole lines."""

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
        """stream: the name of the job's stream"""
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
        """Count bytes of the output that are lost."""
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
        """Return the log without secrets. If the middle is left out, a line states its size."""
        with self._lock:
            for begun in self._begun.values():
                self._append(begun)
            self._begun.clear()
            head, tail, total = bytes(self._head), b"".join(self._tail), self._total
        if len(head) + len(tail) == total:
            return KeptLog(masker.data(head + tail)[: self._head_room + self._tail_room], total)
        tail = tail[-self._tail_room :]
        # A secret across the cut is whole in neither half, so bytes that may belong to it are removed too.
        edge = max(masker.longest - 1, 0)
        first, last = masker.data(head), masker.data(_without_end_of_key(tail))
        first, last = _without_last_word(first[: len(first) - edge]), _without_first_word(last[edge:])
        first, last = first[: self._head_room], last[-self._tail_room :]
        left_out = max(total - len(first) - len(last), 1)
        return KeptLog(first + (b"\n[dsv: %d bytes are left out here]\n" % left_out) + last, total)


def whole_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same in pieces that end with a line, except for very long ones, so that no word is cut."""
    begun = b""
    for data in pieces:
        begun += data
        end = max(begun.rfind(b"\n"), begun.rfind(b"\r")) + 1 or len(begun) * (len(begun) > _LONGEST_LINE)
        if end:
            yield begun[:end]
            begun = begun[end:]
    yield begun


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
    """Yield the bytes that `collect` writes to its descriptor, which it must close. It runs in its own
    thread; its event is set when reading has ended."""
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
    """Compares the last output seen with the log, so that no byte is lost or shown twice. `count` bytes were
    seen; `tail` is the end of them, maybe with a message of the delivering program, which the log lacks."""

    def __init__(self, count: int, tail: bytes) -> None:
        self.fits = True
        """False if the log's beginning was discarded or its bytes were replaced; then nothing of it is used."""
        self._skip = count - len(tail)
        self._seen = tail
        self._log = b""
        self._found = False

    def take(self, data: bytes) -> bytes:
        """Return the new part of the next bytes of the log."""
        if self._found:
            return data
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        self._log += data[skipped:]
        if not self.fits or (len(self._log) < len(self._seen) and self._seen.startswith(self._log)):
            return b""  # more of the log is needed
        ends = [each.start() for each in _CLIENTS_WORDS.finditer(self._seen)]
        for end in (len(self._seen), *reversed(ends)):
            if len(self._log) >= end and self._log.startswith(self._seen[:end]):
                self._found = True
                return self._log[end:]
        self.fits = False
        return b""


PART_SIZE: Final = 16 << 20
READ_SIZE: Final = 1 << 20
_LONGEST_KEY: Final = 1 << 16
_TICK: Final = 0.2


class LiveLog:
    """Writes the live log. If the disk is full, the job continues, and its record still has the log."""

    def __init__(self, path: Path, masker: Masker, part_size: int = PART_SIZE) -> None:
        """Raises `OSError`."""
        self._path = path
        self._masker = masker
        self._part_size = part_size
        self._size = 0
        self._key = b""  # the beginning of a private key, until its end arrives
        self._file: int | None = _create(path)

    def add(self, data: bytes) -> None:
        """data: whole lines"""
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
        """Delete the files, once the record with the log is kept."""
        self.close()
        for part in (self._path, _older(self._path)):
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
        """Begin a new part; the full one replaces the older one. A file with the log's name always exists."""
        _older(self._path).unlink(missing_ok=True)
        _older(self._path).hardlink_to(self._path)
        new = self._path.with_name(f"{self._path.name}.new")
        self.close()
        self._file = _create(new)
        new.replace(self._path)
        self._size = 0


@contextmanager
def read_live(path: Path, follow: Callable[[], bool] | None) -> Iterator[Iterator[bytes]]:
    """Read what was written so far; with `follow`, also what is written while it returns True. Raises
    `FileNotFoundError` if the record, which has the log, is already kept."""
    with ExitStack() as opened:
        yield _LiveParts(path, opened).read(follow)


class _LiveParts:
    """The part of a log that is being read. `opened` closes it."""

    def __init__(self, path: Path, opened: ExitStack) -> None:
        self._path = path
        self._file: BinaryIO = path.open("rb", buffering=0)
        opened.callback(lambda: self._file.close())

    def read(self, follow: Callable[[], bool] | None) -> Iterator[bytes]:
        if not self._is_older(self._file):  # else it became the older part just now
            with suppress(FileNotFoundError):
                yield _older(self._path).read_bytes()
        while True:
            goes_on = follow is not None and follow()  # asked first: what is written after that is read below
            following = _successor(self._path, self._file)
            while data := self._file.read(READ_SIZE):
                yield data
            if following is not None:
                full, self._file = self._file, following
                if not self._is_older(full):
                    yield b"\n[dsv: a part of the log is left out here]\n"
                full.close()
            elif not goes_on:
                return
            else:
                sleep(_TICK)

    def _is_older(self, file: BinaryIO) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(file.fileno()), _older(self._path).stat())
        return False


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


def _older(path: Path) -> Path:
    """Return the path of the full part before the one of this path."""
    return path.with_name(f"{path.name}.1")


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
