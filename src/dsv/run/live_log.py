"""What a detached run has written so far, in files that other commands read while it goes on.

    live.log        the newest part
    live.log.3      the part before it, the third of all

A part is full at 16 MiB, and two are kept. Secrets are hidden as in the record's log, line by line; so a line is seen
here once it is whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import BinaryIO, Final

from dsv.values.secrets import Masker

PART_SIZE: Final = 16 << 20
READ_SIZE: Final = 1 << 20
_LONGEST_KEY: Final = 1 << 16
_TICK: Final = 0.2
_BEGIN = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_END = re.compile(rb"-----END [A-Z ]*PRIVATE KEY-----")


class LiveLog:
    """Writes it. Without room for it the job goes on, and its record has the log."""

    def __init__(self, path: Path, masker: Masker, part_size: int = PART_SIZE) -> None:
        """Raises `OSError`."""
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
        for begin in list(_BEGIN.finditer(data))[-1:]:
            if _END.search(data, begin.end()) is None and len(data) - begin.start() < _LONGEST_KEY:
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
        """There is a file of the log's name all the time."""
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
    """What has been written so far; with `follow`, also what is written while that is true.

    Raises `FileNotFoundError` if the record has been kept meanwhile, which has the log.
    """
    with ExitStack() as opened:
        yield _LiveParts(path, opened).read(follow)


class _LiveParts:
    """The part of a log that is read now. opened: closes it in the end."""

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
    """The part after this one, if this one is full."""
    try:
        other = path.open("rb", buffering=0)
    except FileNotFoundError:
        return None
    if os.path.samestat(os.fstat(other.fileno()), os.fstat(file.fileno())):
        other.close()
        return None
    return other


def _older(path: Path) -> dict[int, Path]:
    """The full parts by their numbers, in order."""
    found = {each.suffix[1:]: each for each in path.parent.glob(f"{path.name}.*")}
    return dict(sorted((int(number), each) for number, each in found.items() if number.isdecimal()))


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
