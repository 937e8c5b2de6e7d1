"""Has images and tables decoded by a process of their own, which is started anew if one of them ends it."""

from __future__ import annotations

import os
import select
import struct
import subprocess
import time
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec

import msgspec

from dsv.files.process import start_program
from dsv.site.decode_process import READY, Answer, Order

_MEMORY = 2 << 30
"""Bytes of addresses: the libraries take most of them, and no memory for it."""
_SECONDS, _MOST_ANSWER = 20.0, 16 << 20


class Decoder(AbstractContextManager["Decoder"]):
    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._has = {
            "thumbnail": find_spec("PIL"),
            "head": find_spec("pyarrow"),
            "difference": find_spec("pyarrow"),
        }

    def ask(self, order: Order) -> Answer:
        if self._has[order.what] is None:
            return Answer(error=f"{'Pillow' if order.what == 'thumbnail' else 'pyarrow'} is not installed")
        try:
            process, sent = self._started(), msgspec.msgpack.encode(order)
            assert process.stdin is not None
            process.stdin.write(struct.pack(">Q", len(sent)) + sent)
            process.stdin.flush()
            deadline = time.monotonic() + _SECONDS
            (length,) = struct.unpack(">Q", self._read(8, deadline))
            if length > _MOST_ANSWER:
                raise EOFError
            return msgspec.msgpack.decode(self._read(length, deadline), type=Answer)
        except (TimeoutError, EOFError, OSError, msgspec.DecodeError):
            self._end()
            return Answer(error="it takes too much memory or time")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            quiet, limits = subprocess.DEVNULL, (_MEMORY, _SECONDS)
            self._process = start_program(
                "dsv.site.decode_process", limits, stdout=subprocess.PIPE, stderr=quiet
            )
            self._read(len(READY), time.monotonic() + _SECONDS)
        return self._process

    def _read(self, length: int, deadline: float) -> bytes:
        """Raises `TimeoutError`, and `EOFError` if the process has ended."""
        assert self._process is not None and self._process.stdout is not None
        descriptor, data = self._process.stdout.fileno(), bytearray()
        while len(data) < length:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError
            piece = os.read(descriptor, length - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(OSError):  # what it did not read is still to be sent
                process.communicate()

    def __exit__(self, *_: object) -> None:
        self._end()
