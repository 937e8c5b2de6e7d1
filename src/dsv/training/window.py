"""The window: memory that keeps blocks of samples, each read from the store once for all processes of a host.

A separate process (`main`) owns it. The first process that needs it binds an abstract Linux socket, whose name only one
process can have, and starts the owner with it; processes that start at the same time only connect. Each block is passed
as a file in memory (memfd), so killed processes leave nothing behind. If the owner is killed, the next reader starts
another. No other user can guess the name, and where one has taken it all the same, the processes agree on another, or
read alone. It ends when no process has been connected for a while. Another process may fill the cache at the same time.
"""

from __future__ import annotations

import errno
import os
import resource
import selectors
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
from blake3 import blake3

from dsv.errors import DsvError, Unreachable, made
from dsv.files.descriptors import Opened
from dsv.files.process import read_order, start_program
from dsv.files.small_files import replace_file, write_all, write_once

if TYPE_CHECKING:
    from dsv.training.order import Shape

PROGRAM = "dsv.training.window"
PACKET = 1 << 16
_AT_ONCE = 64
"""Answers that a process waits for at the same time: as many as a socket holds unread."""
_MOST = 4096
"""Numbers in one packet."""
_TRIES = 5
_CONNECT_WITHIN = 10.0  # seconds
_WAITING = 4096
"""Processes that may connect before the window's process accepts connections."""
_PEER = struct.Struct("3i")


class WindowSamples(Protocol):
    """The samples of a window: `samples.Samples`."""

    window: int

    @property
    def name(self) -> str: ...
    @property
    def sizes(self) -> Any: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def fills(self) -> bool: ...
    def read_stored(self, numbers: Sequence[int]) -> list[bytes]: ...
    def fill(self) -> None: ...


class Asked(msgspec.Struct, array_like=True):
    blocks: dict[int, int]
    """Blocks to send, each in its own file, and how many of their samples are needed now."""
    ahead: list[int]
    """Blocks to read after all others, and to keep."""
    samples: list[int]
    """The samples needed of the blocks, if they may be sent without the rest of their blocks."""


class WindowReply(msgspec.Struct, array_like=True):
    """A packet from the window, with a file unless there is an error."""

    block: int
    error: tuple[str, str, str | None, str | None] | None = None
    """See `DsvError.parts`."""
    alone: list[int] = []
    """If any, the file has these samples, in ascending order, and not a block."""

    @classmethod
    def of(cls, block: int, error: DsvError) -> WindowReply:
        kind, message, subject, hint = error.parts()
        return cls(block, (kind, message[:8000], subject, hint))


_ANSWER = msgspec.msgpack.Decoder(WindowReply)
_ASKED = msgspec.msgpack.Decoder(Asked)


def can_share() -> bool:
    """Return whether this system has what a window needs."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


class _Unshared(Exception):
    """No address is this user's alone."""


def address(samples: WindowSamples, *, anew: bool = False) -> bytes:
    """Return the name of the socket, the same for the same samples in all processes of a user.

    Nobody else can guess it, as it follows from a secret in a folder of this user. anew: make another secret.
    """
    try:
        folder = Path(tempfile.gettempdir()) / f"dsv-window-{os.geteuid()}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise _Unshared(f"{folder} is not this user's alone")
        secret = folder / "secret"
        if anew or not secret.exists():
            (replace_file if anew else write_once)(secret, os.urandom(16))
        key = secret.read_bytes() + f"{os.geteuid()} {samples.name} {samples.window}".encode()
    except OSError as error:
        raise _Unshared(str(error)) from error
    return b"\0dsv-window-" + blake3(key).hexdigest(length=16).encode()


def is_own(connection: socket.socket) -> bool:
    """Return whether a process of the same user is at the other end."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(found)[1]) == os.geteuid()


class Window:
    """One process's end of a window. Not thread-safe."""

    def __init__(self, samples: WindowSamples) -> None:
        self._samples = samples
        self._connection: socket.socket | None = None
        self._pid = 0
        self._has_read = False

    def read(self, numbers: Sequence[int], ahead: Sequence[int] = ()) -> list[bytes]:
        """Return the bytes of these samples. ahead: blocks that are needed soon.

        The first samples of a process are read without the rest of their blocks if these are much larger.
        Raises the errors of the store, and `Unreachable` if the window's process can't be reached."""
        wanted = np.asarray(numbers, np.int64)
        shape = self._samples.shape
        blocks = shape.block_of(wanted)
        needed = list(dict.fromkeys(blocks.tolist()))
        hurried = (
            not self._has_read
            and len(wanted) <= _MOST
            and shape.volumes[needed].sum() > 4 * self._samples.sizes[wanted].sum()
        )
        for attempt in range(_TRIES):
            try:
                found: list[bytes] = [b""] * len(wanted)
                for first in range(0, len(needed), _AT_ONCE):
                    part = needed[first : first + _AT_ONCE]
                    asked = {block: int((blocks == block).sum()) for block in part}
                    alone = wanted[np.isin(blocks, part)].tolist() if hurried else []
                    self._ask(Asked(asked, [], alone), () if first else ahead)
                    self._take(wanted, blocks, set(part), found)
                self._has_read = True
                return found
            except _Unshared:
                return self._samples.read_stored(numbers)
            except (OSError, EOFError) as error:  # the window's process was killed, or ended just now
                self.close()
                if attempt == _TRIES - 1:
                    raise Unreachable(
                        f"the process that reads samples for this host can't be reached: {error}",
                        subject=PROGRAM,
                        hint="it may have been killed as memory was short: name a smaller window",
                    ) from error
                time.sleep(0.01 * attempt)
        raise AssertionError

    def _take(self, wanted: Any, blocks: Any, left: set[int], found: list[bytes]) -> None:
        """Receive the answers for the blocks `left`, and put their samples into `found`."""
        sizes, starts = self._samples.sizes, self._samples.shape.starts
        while left:
            answer, file = self._answer()
            with Opened(file):
                if answer.alone:
                    here = np.asarray(answer.alone)
                    places = np.flatnonzero(np.isin(wanted, here))
                else:
                    here = np.arange(starts[answer.block], starts[answer.block + 1])
                    places = np.flatnonzero(blocks == answer.block)
                ends = np.cumsum(sizes[here].astype(np.int64)).tolist()
                rows = np.searchsorted(here, wanted[places]).tolist()
                for at, row in zip(places.tolist(), rows, strict=True):
                    found[at] = _read(file, ends[row - 1] if row else 0, ends[row])
                left.difference_update(blocks[places].tolist())

    def _ask(self, asked: Asked, ahead: Sequence[int]) -> None:
        connection = self._connected()
        parts = (ahead[at : at + _MOST] for at in range(0, len(ahead), _MOST))
        for piece in (asked, *(Asked({}, list(map(int, part)), []) for part in parts)):
            connection.send(msgspec.msgpack.encode(piece))

    def _answer(self) -> tuple[WindowReply, int]:
        data, files, _, _ = socket.recv_fds(self._connected(), PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise EOFError("it has ended")
        found = _ANSWER.decode(data)
        if found.error is not None:
            self.close()  # other answers are under way
            raise made(*found.error)
        return found, files[0]

    def open(self) -> None:
        """Connect, as reading does, without waiting for the window's process to begin."""
        with suppress(_Unshared):
            self._connected()

    def _connected(self) -> socket.socket:
        if self._pid != os.getpid():  # forked: the connection is the parent's
            self.close()
        if self._connection is None:
            self._connection, self._pid = _connect(self._samples), os.getpid()
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


_started: list[subprocess.Popen[bytes]] = []
"""Processes that this one has started: Python warns if the object of a running process is dropped."""


def start(samples: WindowSamples, listening: socket.socket | None) -> None:
    """Start a process that owns the window and answers on this socket, or, without one, fills the cache."""
    files = [] if listening is None else [listening.fileno()]
    nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = start_program(PROGRAM, (files, samples), start_new_session=True, pass_fds=files, **nowhere)
    _started.append(process)
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()


def _connect(samples: WindowSamples) -> socket.socket:
    """Return a connection to the window. Start the window if it is not running. Raises `_Unshared`."""
    anew = False
    for _ in range(_TRIES):
        until = time.monotonic() + _CONNECT_WITHIN
        while True:
            try:
                connection = _connect_to(samples, address(samples, anew=anew))
            except (ConnectionRefusedError, TimeoutError):  # it is bound, and nobody listens yet
                anew = False
                if time.monotonic() > until:
                    break
                time.sleep(0.01)
                continue
            if is_own(connection):
                return connection
            connection.close()
            break
        anew = True  # another user may have seen the name while it was in use, and taken it
    raise _Unshared("another user takes each address")


def _connect_to(samples: WindowSamples, name: bytes) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(_CONNECT_WITHIN)
    try:
        try:
            connection.connect(name)
        except ConnectionRefusedError:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
                try:
                    listening.bind(name)
                except OSError as error:  # another process was faster
                    if error.errno != errno.EADDRINUSE:
                        raise
                else:
                    listening.listen(_WAITING)
                    start(samples, listening)
                connection.connect(name)
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def _read(file: int, start: int, end: int) -> bytes:
    data = os.pread(file, int(end) - int(start), int(start))
    while len(data) < end - start:  # Linux reads no more than 2 GiB at once
        more = os.pread(file, int(end) - int(start) - len(data), int(start) + len(data))
        if not more:
            raise EOFError("a block is too short")
        data += more
    return data


_IDLE = 5.0
"""Seconds without a connection after which the window's process ends."""
_READERS = 8
_HURRIED = 192
"""Samples that may be read without their blocks; each block that is read allows one more. Each of them is a
request of its own, so all others wait for their blocks."""


class _Block:
    def __init__(self, file: int, size: int, left: int) -> None:
        self.file, self.size = file, size
        self.left = left
        """How many of its samples were not asked for yet."""


class _Blocks:
    """The blocks in memory, and the blocks and samples to read. Threads read; any change needs `lock`."""

    def __init__(self, samples: WindowSamples) -> None:
        self._samples, self._budget = samples, samples.window
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        """Blocks that are held at most, as each is an open file."""
        self.lock = threading.Condition()
        self._held: OrderedDict[int, _Block] = OrderedDict()
        """In the order of their last use, the latest at the end."""
        self._done: OrderedDict[int, None] = OrderedDict()
        """Blocks of which every sample was asked for. They are dropped first."""
        self._bytes = 0
        self._waiting: dict[int, list[tuple[socket.socket, int]]] = {}
        """Blocks that are not here yet: the clients that wait for each, and for how many of its samples."""
        self._under_way: set[int] = set()
        self._hurried = self._alone = 0
        """Samples that were recently read without their blocks, and unanswered requests for such samples."""
        self._urgent: deque[int | tuple[list[int], socket.socket]] = deque()
        self._ahead: deque[int] = deque()

    def ask(self, asked: Asked, client: socket.socket) -> None:
        with self.lock:
            alone = self._hurry(asked.samples)
            if alone:
                self._alone += 1
                self._urgent.append(([*alone], client))
            for block, count in asked.blocks.items():
                if block in alone.values():
                    continue
                if block in self._held:
                    self._give(block, client, count)
                else:
                    self._waiting.setdefault(block, []).append((client, count))
                    self._urgent.append(block)  # even if it is to be read ahead
            for block in asked.ahead:
                if block not in self._held and block not in self._waiting:
                    self._waiting[block] = []
                    self._ahead.append(block)
            self.lock.notify_all()

    def _hurry(self, samples: list[int]) -> dict[int, int]:
        """Return the samples to read without their blocks, in ascending order, and the block of each."""
        if not samples or self._hurried >= _HURRIED:
            return {}
        blocks = self._samples.shape.block_of(samples).tolist()
        coming = self._held.keys() | self._under_way
        urgent = {
            sample: block
            for sample, block in sorted(zip(samples, blocks, strict=True))
            if block not in coming
        }
        self._hurried += len(urgent)
        return urgent

    def _give(self, block: int, client: socket.socket, count: int) -> None:
        held = self._held[block]
        self._held.move_to_end(block)
        _send(client, WindowReply(block), held.file)
        held.left -= count
        if held.left <= 0:
            self._done[block] = None

    def serve(self) -> None:
        """Read what is asked for, forever. Each reading thread runs this."""
        while True:
            with self.lock:
                while not self._urgent and (self._alone or not self._ahead):
                    self.lock.wait()
                task = self._urgent.popleft() if self._urgent else self._ahead.popleft()
                if isinstance(task, int):
                    if task in self._under_way or task not in self._waiting:
                        continue
                    self._under_way.add(task)
            if isinstance(task, int):
                self._read_block(task)
            else:
                self._read_singly(*task)
                with self.lock:
                    self._alone -= 1
                    self.lock.notify_all()

    def _read_block(self, block: int) -> None:
        starts = self._samples.shape.starts
        first, end = int(starts[block]), int(starts[block + 1])
        try:
            file, size = _in_memory(self._samples.read_stored(range(first, end)))
        except Exception as error:  # noqa: BLE001 (every waiting thread gets it)
            with self.lock:
                self._under_way.discard(block)
                for client, _ in self._waiting.pop(block):
                    _send(client, WindowReply.of(block, _explained(error)))
            return
        with self.lock:
            self._under_way.discard(block)
            self._hurried = max(0, self._hurried - 1)
            self._held[block] = _Block(file, size, end - first)
            self._bytes += size
            for client, count in self._waiting.pop(block):
                self._give(block, client, count)
            while len(self._held) > 1 and (self._bytes > self._budget or len(self._held) > self._most):
                oldest = next(iter(self._done or self._held))
                self._done.pop(oldest, None)
                gone = self._held.pop(oldest)
                self._bytes -= gone.size
                os.close(gone.file)

    def _read_singly(self, samples: list[int], client: socket.socket) -> None:
        try:
            file, _ = _in_memory(self._samples.read_stored(samples))
        except Exception as error:  # noqa: BLE001 (every waiting thread gets it)
            _send(client, WindowReply.of(-1, _explained(error)))
            return
        _send(client, WindowReply(-1, None, samples), file)
        os.close(file)

    def forget(self, client: socket.socket) -> None:
        with self.lock:
            for block, waiting in self._waiting.items():
                self._waiting[block] = [one for one in waiting if one[0] is not client]


def _explained(error: Exception) -> DsvError:
    return error if isinstance(error, DsvError) else DsvError(f"{type(error).__name__}: {error}")


def _in_memory(contents: list[bytes]) -> tuple[int, int]:
    """Return a file in memory with these contents, and its size."""
    file = os.memfd_create("dsv-window", os.MFD_CLOEXEC)
    try:
        size = 0
        for data in contents:
            write_all(file, data)
            size += len(data)
    except BaseException:
        os.close(file)
        raise
    return file, size


def _send(client: socket.socket, answer: WindowReply, file: int | None = None) -> None:
    """Send an answer. A client that can't take it, or does not read, is cut off, and may connect again."""
    try:
        files = [] if file is None else [file]
        socket.send_fds(client, [msgspec.msgpack.encode(answer)], files, socket.MSG_DONTWAIT)
    except OSError:
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def _accept_and_ask(listening: socket.socket, blocks: _Blocks) -> None:
    """Accept connections and their requests, until no process was connected for `_IDLE` seconds."""
    with selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)
        while True:
            alone = len(selector.get_map()) == 1
            ready = selector.select(_IDLE if alone else None)
            if not ready and alone:
                return
            for key, _ in ready:
                connection: Any = key.fileobj
                if connection is listening:
                    client, _ = listening.accept()
                    if is_own(client):
                        selector.register(client, selectors.EVENT_READ)
                    else:
                        client.close()
                    continue
                try:
                    data = connection.recv(PACKET)
                except OSError:
                    data = b""
                if data:
                    blocks.ask(_ASKED.decode(data), connection)
                else:
                    selector.unregister(connection)
                    blocks.forget(connection)
                    connection.close()


def main() -> None:
    files, samples = read_order()
    if not files:
        samples.fill()
        return
    listening = socket.socket(fileno=files[0])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    blocks = _Blocks(samples)
    for _ in range(_READERS):
        threading.Thread(target=blocks.serve, daemon=True).start()
    if samples.fills:
        start(samples, None)
    _accept_and_ask(listening, blocks)
    os._exit(0)


if __name__ == "__main__":
    main()
