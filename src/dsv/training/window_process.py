"""`python -m dsv.training.window_process`: the process that has the window of a host. See `window`.

It gets its socket, and what to read, from who starts it. It ends when nobody has been connected for a while. Another
one may fill the cache beside it.
"""

from __future__ import annotations

import os
import pickle
import resource
import selectors
import socket
import sys
import threading
from collections import OrderedDict, deque
from contextlib import suppress
from typing import Any

import msgspec

from dsv.errors import DsvError
from dsv.training.samples import Samples
from dsv.training.window import PACKET, Answer, Asked, is_own, start

_IDLE = 5.0
"""Seconds after which it ends when nobody is connected."""
_READERS = 8
_HURRIED = 192
"""Samples that may be read by themselves, before so many blocks were read. As each of them is a request of its own,
the others wait for their blocks."""
_ASKED = msgspec.msgpack.Decoder(Asked)


class _Block:
    """A block in memory."""

    def __init__(self, file: int, size: int, left: int) -> None:
        self.file, self.size = file, size
        self.left = left
        """How many of its samples nobody has asked for yet."""


class _Blocks:
    """The blocks in memory, and what is to be read. Threads read; whoever holds `lock` may change it."""

    def __init__(self, samples: Samples) -> None:
        self._samples, self._budget = samples, samples.window
        self.lock = threading.Condition()
        self._held: OrderedDict[int, _Block] = OrderedDict()
        """Those that were asked for last are at the end."""
        self._done: OrderedDict[int, None] = OrderedDict()
        """Blocks of which every sample was asked for. They go first."""
        self._bytes = 0
        self._waiting: dict[int, list[tuple[socket.socket, int]]] = {}
        """Blocks that are not here yet, who waits for them, and for how many of their samples."""
        self._under_way: set[int] = set()
        self._hurried = self._alone = 0
        """Samples that were read by themselves of late, and requests for such that are not answered yet."""
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
        """Return those that are read by themselves, in ascending order, with their blocks."""
        if not samples or self._hurried >= _HURRIED:
            return {}
        blocks = self._samples.shape.block_of(samples).tolist()
        coming = self._held.keys() | self._under_way
        found = {
            one: block for one, block in sorted(zip(samples, blocks, strict=True)) if block not in coming
        }
        self._hurried += len(found)
        return found

    def _give(self, block: int, client: socket.socket, count: int) -> None:
        held = self._held[block]
        self._held.move_to_end(block)
        _send(client, Answer(block), held.file)
        held.left -= count
        if held.left <= 0:
            self._done[block] = None

    def serve(self) -> None:
        """Read what is asked for, without an end."""
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
        except Exception as error:  # noqa: BLE001 (each who waits is told)
            with self.lock:
                self._under_way.discard(block)
                for client, _ in self._waiting.pop(block):
                    _send(client, Answer.of(block, _explained(error)))
            return
        with self.lock:
            self._under_way.discard(block)
            self._hurried = max(0, self._hurried - 1)
            self._held[block] = _Block(file, size, end - first)
            self._bytes += size
            for client, count in self._waiting.pop(block):
                self._give(block, client, count)
            while self._bytes > self._budget and len(self._held) > 1:
                oldest = next(iter(self._done or self._held))
                self._done.pop(oldest, None)
                gone = self._held.pop(oldest)
                self._bytes -= gone.size
                os.close(gone.file)

    def _read_singly(self, samples: list[int], client: socket.socket) -> None:
        try:
            file, _ = _in_memory(self._samples.read_stored(samples))
        except Exception as error:  # noqa: BLE001 (who waits is told)
            _send(client, Answer.of(-1, _explained(error)))
            return
        _send(client, Answer(-1, None, samples), file)
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
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
            size += len(data)
    except BaseException:
        os.close(file)
        raise
    return file, size


def _send(client: socket.socket, answer: Answer, file: int | None = None) -> None:
    """Send an answer. Who can't be sent one, for instance as it reads none, is cut off, and may connect again."""
    try:
        files = [] if file is None else [file]
        socket.send_fds(client, [msgspec.msgpack.encode(answer)], files, socket.MSG_DONTWAIT)
    except OSError:
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def _accept_and_ask(listening: socket.socket, blocks: _Blocks) -> None:
    """Take connections and what they ask for, until there have been none for a while."""
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
    files, samples = pickle.load(sys.stdin.buffer)
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
