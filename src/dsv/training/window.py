"""The window: memory of a host in which blocks of samples are kept, each read from the store once for all processes.

A process of its own has it (`window_process`), which whoever needs it first starts. An abstract socket of Linux, whose
name only one process can have, is bound before and handed to it, so of many that start at once all but one only
connect. It passes each block as a file in memory (memfd). So nothing is left behind when processes are killed, and if
it is killed itself, the next one who reads starts another.
"""

from __future__ import annotations

import errno
import os
import pickle
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
from blake3 import blake3

from dsv import errors
from dsv.errors import DsvError, Unreachable

if TYPE_CHECKING:
    from dsv.training.order import Shape

PROGRAM = "dsv.training.window_process"
PACKET = 1 << 16
_AT_ONCE = 64
"""Answers that a process waits for at the same time: as many as a socket takes without being read."""
_MOST = 4096
"""Numbers in one packet."""
_TRIES = 5
_WAITING = 4096
"""Processes that may connect before the window's own has begun."""
_PEER = struct.Struct("3i")


class Stored(Protocol):
    """What a window is of: `samples.Samples`."""

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
    """A packet to the window."""

    blocks: dict[int, int]
    """To be sent, each in a file of its own; and how many samples of it are needed now."""
    ahead: list[int]
    """To be read after what is asked for, and kept."""
    samples: list[int]
    """Those that are needed of the blocks, if they may be sent by themselves."""


class Answer(msgspec.Struct, array_like=True):
    """A packet from the window. A file comes with it, unless there is an error."""

    block: int
    error: tuple[str, str, str | None, str | None] | None = None
    """The class, message, subject and hint."""
    alone: list[int] = []
    """What the file has instead of a block: these samples, in ascending order."""

    @classmethod
    def of(cls, block: int, error: DsvError) -> Answer:
        return cls(block, (type(error).__name__, error.message[:8000], error.subject, error.hint))

    def check(self) -> None:
        if self.error is not None:
            name, message, subject, hint = self.error
            kind = getattr(errors, name, DsvError)
            raise kind(message, subject=subject, hint=hint)


_ANSWER = msgspec.msgpack.Decoder(Answer)


def can_share() -> bool:
    """Return whether this system has what a window needs."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def address(samples: Stored) -> bytes:
    """Return the name of the socket, which the same samples have in all processes of a user."""
    key = f"{os.geteuid()} {samples.name} {samples.window}"
    return b"\0dsv-window-" + blake3(key.encode()).hexdigest(length=16).encode()


def is_own(connection: socket.socket) -> bool:
    """Return whether a process of the same user is at the other end."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(found)[1]) == os.geteuid()


class Window:
    """One process's end of a window. Not for several threads."""

    def __init__(self, samples: Stored) -> None:
        self._samples = samples
        self._connection: socket.socket | None = None
        self._pid = 0
        self._has_read = False

    def read(self, numbers: Sequence[int], ahead: Sequence[int] = ()) -> list[bytes]:
        """Return the bytes of these samples. ahead: blocks that are needed soon.

        The first samples of a process need not wait for their blocks if these are much larger. Raises what reading
        raises.
        """
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
        """Put what is answered for some blocks into its places."""
        sizes, starts = self._samples.sizes, self._samples.shape.starts
        while left:
            answer, file = self._answer()
            try:
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
            finally:
                os.close(file)

    def _ask(self, asked: Asked, ahead: Sequence[int]) -> None:
        connection = self._connected()
        for piece in (asked, *(Asked({}, part, []) for part in _pieces(ahead))):
            connection.send(msgspec.msgpack.encode(piece))

    def _answer(self) -> tuple[Answer, int]:
        data, files, _, _ = socket.recv_fds(self._connected(), PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise EOFError("it has ended")
        found = _ANSWER.decode(data)
        try:
            found.check()
        except DsvError:
            self.close()  # other answers are under way
            raise
        return found, files[0]

    def open(self) -> None:
        """Connect, as reading does. Nobody answers before the window's process has begun."""
        self._connected()

    def _connected(self) -> socket.socket:
        if (
            self._pid != os.getpid()
        ):  # a connection of the process that this one was forked from is left to that
            self.close()
        if self._connection is None:
            self._connection, self._pid = _connect(self._samples), os.getpid()
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


_started: list[subprocess.Popen[bytes]] = []
"""Processes that this one has started; Python warns of those that nobody keeps."""


def start(samples: Stored, listening: socket.socket | None) -> None:
    """Start a process that has the window and answers on this socket; without one, that fills the cache."""
    files = [] if listening is None else [listening.fileno()]
    process = subprocess.Popen(
        [sys.executable, "-m", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=files,
    )
    _started.append(process)
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as order:
        pickle.dump((files, samples), order)


def _connect(samples: Stored) -> socket.socket:
    """Return a connection to the window, which is started unless it is there."""
    name = address(samples)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
        if not is_own(connection):
            raise ConnectionRefusedError("another user has its address")
    except BaseException:
        connection.close()
        raise
    return connection


def _pieces(numbers: Sequence[int], most: int = _MOST) -> Iterable[list[int]]:
    return ([int(one) for one in numbers[at : at + most]] for at in range(0, len(numbers), most))


def _read(file: int, start: int, end: int) -> bytes:
    data = os.pread(file, int(end) - int(start), int(start))
    while len(data) < end - start:  # Linux reads no more than 2 GiB at once
        more = os.pread(file, int(end) - int(start) - len(data), int(start) + len(data))
        if not more:
            raise EOFError("a block is too short")
        data += more
    return data
