"""The window: memory of a host in which blocks of samples are kept, each read from the store once for all processes.

A process of its own has it (`window_process`), which whoever needs it first starts. It listens on an abstract socket
of Linux, whose name only one process can have, and passes each block as a file in memory (memfd). So nothing is left
behind when processes are killed, and if it is killed itself, the next one who reads starts another.
"""

from __future__ import annotations

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
READY = b"ready"
PACKET = 1 << 16
_AT_ONCE = 64
"""Answers that a process waits for at the same time: as many as a socket takes without being read."""
_MOST = 4096
"""Numbers in one packet."""
_TRIES = 5
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
    """To be sent by themselves, in one file."""


class Answer(msgspec.Struct, array_like=True):
    """A packet from the window. A file comes with it, unless there is an error."""

    block: int
    """-1 for samples that were asked for by themselves."""
    error: tuple[str, str, str | None, str | None] | None = None
    """The class, message, subject and hint."""

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

        The first samples of a process do not wait for their blocks if these are much larger. Raises what reading
        raises.
        """
        wanted = np.asarray(numbers, np.int64)
        shape = self._samples.shape
        blocks = shape.block_of(wanted)
        needed = list(dict.fromkeys(map(int, blocks)))
        hurried = (
            not self._has_read
            and len(wanted) <= _MOST
            and shape.volumes[needed].sum() > 4 * self._samples.sizes[wanted].sum()
        )
        for attempt in range(_TRIES):
            try:
                if hurried:
                    found = self._singly(wanted, [*needed, *ahead])
                else:
                    found = self._from_blocks(wanted, blocks, needed, ahead)
                self._has_read = True
                return found
            except (OSError, EOFError) as error:  # the window's process was killed, or ended just now
                self._close()
                if attempt == _TRIES - 1:
                    raise Unreachable(
                        f"the process that reads samples for this host can't be reached: {error}",
                        subject=PROGRAM,
                        hint="it may have been killed as memory was short: name a smaller window",
                    ) from error
                time.sleep(0.01 * attempt)
        raise AssertionError

    def _singly(self, wanted: Any, ahead: Sequence[int]) -> list[bytes]:
        self._ask(Asked({}, [], [int(number) for number in wanted]), ahead)
        _, file = self._answer()
        try:
            ends = np.cumsum(self._samples.sizes[wanted].astype(np.int64))
            return [_read(file, start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        finally:
            os.close(file)

    def _from_blocks(self, wanted: Any, blocks: Any, needed: list[int], ahead: Sequence[int]) -> list[bytes]:
        sizes, starts = self._samples.sizes, self._samples.shape.starts
        found: list[bytes] = [b""] * len(wanted)
        for first in range(0, len(needed), _AT_ONCE):
            part = needed[first : first + _AT_ONCE]
            asked = {block: int((blocks == block).sum()) for block in part}
            self._ask(Asked(asked, [], []), () if first else ahead)
            for _ in part:
                block, file = self._answer()
                try:
                    start = int(starts[block])
                    ends = np.cumsum(sizes[start : int(starts[block + 1])].astype(np.int64))
                    for at in np.flatnonzero(blocks == block):
                        end, size = int(ends[int(wanted[at]) - start]), int(sizes[wanted[at]])
                        found[at] = _read(file, end - size, end)
                finally:
                    os.close(file)
        return found

    def _ask(self, asked: Asked, ahead: Sequence[int]) -> None:
        connection = self._connected()
        for piece in (asked, *(Asked({}, part, []) for part in _pieces(ahead))):
            connection.send(msgspec.msgpack.encode(piece))

    def _answer(self) -> tuple[int, int]:
        data, files, _, _ = socket.recv_fds(self._connected(), PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise EOFError("it has ended")
        found = _ANSWER.decode(data)
        try:
            found.check()
        except DsvError:
            self._close()  # other answers are under way
            raise
        return found.block, files[0]

    def _connected(self) -> socket.socket:
        if (
            self._pid != os.getpid()
        ):  # a connection of the process that this one was forked from is left to that
            self._close()
        if self._connection is None:
            name = address(self._samples)
            connection = _connect(name)
            if connection is None:
                start(self._samples, name)
                connection = _connect(name)
            if connection is None:
                raise ConnectionRefusedError("it does not listen")
            self._connection, self._pid = connection, os.getpid()
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


_started: list[subprocess.Popen[bytes]] = []
"""Processes that this one has started; Python warns of those that nobody keeps."""


def start(samples: Stored, name: bytes | None) -> None:
    """Start the process of the window of this name, and wait until it listens, or finds that another one does.

    name: None for one that fills the cache, which is not waited for.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _started.append(process)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout as answers:
        with suppress(BrokenPipeError), process.stdin as order:
            pickle.dump((name, samples), order)
        if name is not None:
            answers.read(len(READY))


def _connect(name: bytes) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(name)
        if is_own(connection):
            return connection
    except ConnectionRefusedError:
        pass
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None


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
