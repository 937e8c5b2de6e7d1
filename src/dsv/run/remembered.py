"""Records of ended runs that this machine has read: they never change, so that no later listing asks the store again.

A file for each store, in the user's folder for dsv's state. Each line has a checksum, the run's key and its record:
what a killed process or another host left incomplete is left out, and costs a request.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields
from functools import cache
from io import BytesIO
from pathlib import Path
from time import monotonic, sleep
from typing import Any, BinaryIO, Final, TypeVar, get_type_hints
from weakref import finalize

import msgspec
from xxhash import xxh3_64_hexdigest

from dsv.files.descriptors import Opened
from dsv.files.small_files import replace_file
from dsv.run.record import RunId, RunRecord, parse_name
from dsv.values.ids import StoreId
from dsv.values.names import DatasetName

FOLDER: Final = "remembered-runs"
_SUM: Final = 16
_LOCK_SECONDS = 1.0
_T = TypeVar("_T")
_RECORD: Final = msgspec.json.Decoder(RunRecord, dec_hook=parse_name)


class Stale(Exception):
    """This machine remembers a record that the store does not have any more, or that this dsv can't decode."""


class RememberedRecord(RunRecord):
    """Each member is decoded when it is asked for: sorting many runs takes one of them. Raises `Stale`."""

    __slots__ = ("_text",)
    _text: bytes

    def __init__(self, dataset: DatasetName, run: RunId, text: bytes) -> None:
        for name, value in (("dataset", dataset), ("run", run), ("_text", text)):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Called for members that are not set yet."""
        is_there = (
            name != "once" or b'"once":' in self._text
        )  # each list asks for it, and few records have it
        value = getattr(_decoded(self._text, _member(name)), name) if is_there else None
        object.__setattr__(self, name, value)
        return value


class RememberedRuns:
    """The remembered records of one store. Failures are ignored: then the store is asked."""

    def __init__(self, state: Path, store: StoreId) -> None:
        self._path = state / FOLDER / str(store)
        self._file = -1
        self._lines: dict[bytes, tuple[int, int]] = {}
        """The place of each run's record in the file, by the key of the run."""
        with suppress(OSError), self._path.open("rb") as file:
            self._lines = dict(_lines(file))
            self._file = os.dup(
                file.fileno()
            )  # not mapped: that would end the process where another cuts the file
            finalize(self, os.close, self._file)

    def __contains__(self, key: tuple[DatasetName, RunId]) -> bool:
        return _key(*key) in self._lines

    def get(self, dataset: DatasetName, run: RunId, *, whole: bool = True) -> RunRecord | None:
        """Return a record, which is decoded later unless `whole`; None if it is not known here."""
        start, end = self._lines.get(_key(dataset, run), (0, 0))
        line = b""
        with suppress(OSError):
            line = os.pread(self._file, end - start, start) if end else line
        body = line[_SUM + 1 :]
        if xxh3_64_hexdigest(body).encode() != line[:_SUM]:
            return None
        text = body.partition(b" ")[2]
        if not whole:
            return RememberedRecord(dataset, run, text)
        with suppress(Stale):
            return _decoded(text, _RECORD)
        return None

    def add(self, records: Iterable[RunRecord]) -> None:
        """Remember these records if they are terminal."""
        lines = [_line(record) for record in records if record.state.is_terminal]
        if lines:
            with suppress(OSError), self._alone() as file:
                file.write(b"".join(lines))

    def forget_others(self, dataset: DatasetName | None, there: Iterable[tuple[DatasetName, RunId]]) -> None:
        """Forget the runs of a dataset (None: of all) that the store does not have any more."""
        prefix = b"" if dataset is None else f"{dataset.component}/".encode()
        kept = {_key(*run) for run in there}
        self._forget({key for key in self._lines if key.startswith(prefix) and key not in kept})

    def forget(self, runs: Iterable[tuple[DatasetName, RunId]]) -> None:
        self._forget(self._lines.keys() & {_key(*run) for run in runs})

    def _forget(self, keys: Collection[bytes]) -> None:
        if not keys:
            return
        with suppress(OSError), self._alone():
            data = self._path.read_bytes()
            lines = {key: data[start:end] for key, (start, end) in _lines(BytesIO(data)) if key not in keys}
            replace_file(self._path, b"".join(line + b"\n" for line in lines.values()), mode=0o600)

    @contextmanager
    def _alone(self) -> Iterator[BinaryIO]:
        """Open the file to append to it, while no other process of this machine writes. Raises `OSError`, also if that
        takes long: what is not remembered is read from the store."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self._path.with_name(f"{self._path.name}.lock")
        with Opened(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as locked:
            patience = monotonic() + _LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if monotonic() >= patience:
                        raise
                    sleep(0.01)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            with os.fdopen(os.open(self._path, flags, 0o600), "ab") as file:
                yield file


@cache
def _member(name: str) -> msgspec.json.Decoder[Any]:
    default = next(each.default for each in fields(RunRecord) if each.name == name)
    hint = get_type_hints(RunRecord)[name]
    field = (name, hint) if default is MISSING else (name, hint, default)
    return msgspec.json.Decoder(msgspec.defstruct("Member", [field]), dec_hook=parse_name)


def _decoded(text: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    with suppress(msgspec.MsgspecError):
        return decoder.decode(text)
    try:  # with half of a surrogate pair
        value: _T = msgspec.convert(json.loads(text), decoder.type, dec_hook=parse_name)
        return value
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Stale from error


def _key(dataset: DatasetName, run: RunId) -> bytes:
    return f"{dataset.component}/{run}".encode()


def _line(record: RunRecord) -> bytes:
    shown = {name: value for name, value in record.members().items() if value is not None}
    body = _key(record.dataset, record.run) + b" " + json.dumps(shown, separators=(",", ":")).encode()
    return xxh3_64_hexdigest(body).encode() + b" " + body + b"\n"


def _lines(file: Iterable[bytes]) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield the key of each line, and where the line starts and ends. The last line of a run counts."""
    start = 0
    for line in file:
        space, end = line.find(b" ", _SUM + 1), start + len(line)
        if space > 0 and line.endswith(b"\n"):
            yield line[_SUM + 1 : space], (start, end - 1)
        start = end
