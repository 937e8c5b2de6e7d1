"""The curves of a run's metrics, from `metrics.jsonl`: in few points in the store, at the end and while it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from dsv.errors import Denied, DsvError, IntegrityError, Unsupported
from dsv.files.small_files import open_plain
from dsv.format.keys import METRICS_PREFIX, beat_key, beats_prefix, parse_beat_key, run_key
from dsv.periodic import NEVER, Periodic
from dsv.run.record import MAX_RECORD, SERIES
from dsv.stores.base import StoreBackend, if_there, parsed, together
from dsv.values.json import Json, flattened, parse_json
from dsv.values.names import DatasetName
from dsv.values.secrets import Masker

PAUSE = 30.0
"""Seconds between two pieces. Tests replace this."""
PIECE: Final = 1 << 16
"""Bytes of a piece."""
LARGEST = 256 << 20
"""Bytes of `metrics.jsonl` that are read."""
_NAMES, _NAME, _LINE = 100, 200, 1 << 16
"""The most names, and the most bytes of a name and of a line."""
_STRETCHES: Final = 500
"""A curve has fewer, with two points each: at most 1,000 with the first and the last one."""
_Number: TypeAlias = int | float
_Point: TypeAlias = tuple[_Number, int, _Number]
"""Value, number and step."""
Stamp: TypeAlias = tuple[int, int, int]
_Run: TypeAlias = tuple[DatasetName, str]


class Series(msgspec.Struct, frozen=True):
    """The curve of one metric."""

    points: list[tuple[_Number, _Number]]
    """Step and value, as they came: the first, the last, and of each stretch the least and the greatest."""
    of: int
    """How many points the job wrote."""
    last: _Number | str
    """The last value: `NaN`, `Infinity` or `-Infinity` if it is no number."""


class _Document(msgspec.Struct, frozen=True, tag_field="kind", tag="dsv run series"):
    series: dict[str, Series]
    version: int = 1


parse_piece_key: Final = partial(parse_beat_key, prefix=METRICS_PREFIX)
_DECODER: Final = msgspec.json.Decoder(_Document)


class _Curve:
    """A curve that grows, in bounded memory."""

    def __init__(self) -> None:
        self.of, self._length = 0, 1
        self.last: _Number | str = 0
        self._ends: tuple[_Point, ...] = ()
        self._stretches: list[tuple[_Point, _Point]] = []

    def add(self, step: _Number, value: _Number) -> None:
        point = (value, self.of, step)
        if self.of % self._length:
            self._stretches[-1] = _extremes((*self._stretches[-1], point))
        else:
            self._stretches.append((point, point))
        if len(self._stretches) == _STRETCHES:
            self._stretches, self._length = _halved(self._stretches), 2 * self._length
        self._ends = (*self._ends[:1], point)
        self.of, self.last = self.of + 1, value

    def series(self, most: int) -> Series:
        """most: of stretches"""
        stretches = self._stretches
        while len(stretches) > most:
            stretches = _halved(stretches)
        points = sorted({*self._ends, *chain.from_iterable(stretches)}, key=itemgetter(1))
        return Series([(step, value) for value, _, step in points], self.of, self.last)


def _extremes(points: tuple[_Point, ...]) -> tuple[_Point, _Point]:
    return min(points), max(points)


def _halved(stretches: list[tuple[_Point, _Point]]) -> list[tuple[_Point, _Point]]:
    pairs = zip_longest(stretches[::2], stretches[1::2], fillvalue=())
    return [_extremes((*one, *other)) for one, other in pairs]


class Curves:
    """The curves in the lines that a job wrote. What is no JSON object, too long or no number is left out."""

    def __init__(self) -> None:
        self._curves: dict[str, _Curve] = {}
        self._lines = self._at = 0
        self._rest = self._before = b""

    def __bool__(self) -> bool:
        return bool(self._curves)

    def last(self) -> dict[str, Json]:
        return {name: curve.last for name, curve in self._curves.items()}

    def encode(self, mask: Masker, limit: int = MAX_RECORD) -> bytes:
        """mask: hides secrets in names. limit: of bytes, for which there are fewer points; four of each always fit"""
        most = _STRETCHES
        while True:
            series = {mask.text(name): curve.series(most) for name, curve in self._curves.items()}
            if len(data := msgspec.json.encode(_Document(series))) <= limit or most == 1:
                return data
            most //= 2

    def read(self, path: Path, *, ended: bool = False) -> bool:
        """Take what a file has more than before, and return whether there was anything; all of it if it has shrunk or
        is another. ended: its last line may be whole without an end"""
        at = self._at
        with suppress(OSError), open_plain(path, follow=False) as file:
            file.seek(at - len(self._before))
            if file.read(len(self._before)) != self._before:
                vars(self).update(vars(Curves()))
                file.seek(0)
            while data := file.read(min(1 << 20, LARGEST - self._at)):
                self._at, self._before = self._at + len(data), (self._before + data)[-64:]
                self.take(data)
        if ended:
            self.take(b"\n")
        return at != self._at

    def take(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[: _LINE + 1]  # enough to know that it is too long
        for line in lines:
            with suppress(ValueError, RecursionError):
                if line and len(line) <= _LINE and isinstance(values := _parsed(line), dict):
                    self._add(values)

    def _add(self, values: dict[str, Json]) -> None:
        step = _number(values.pop("step", None))
        step, self._lines = self._lines if step is None else step, self._lines + 1
        for name, value in flattened(values).items():
            number = _number(value)
            if number is None and value not in ("NaN", "Infinity", "-Infinity"):
                continue
            if name not in self._curves:
                if len(self._curves) == _NAMES or len(msgspec.json.encode(name)) > _NAME:
                    continue
                self._curves[name] = _Curve()
            if number is None:
                self._curves[name].last = value
            else:
                self._curves[name].add(step, number)


def _parsed(line: bytes) -> Json:
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:  # as of a NaN
        return parse_json(line.decode())


def _number(value: Json) -> _Number | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with suppress(OverflowError):
        return value if abs(value) <= 1 << 53 else float(value)
    return None


class LiveSeries:
    """Puts the curves of a run into the store while `metrics.jsonl` grows: each piece takes the place of the last."""

    def __init__(self, store: Callable[[], StoreBackend], run: _Run, path: Path, mask: Masker) -> None:
        self._store, self._run, self._path, self._mask = store, run, path, mask
        self._old, self._curves, self._begun, self._due = stamp(path), Curves(), False, False
        self._periodic = Periodic("dsv-series", self._next, first=PAUSE)
        self._periodic.start()

    def stop(self) -> None:
        """Write no more. The last piece remains until the run has its record."""
        self._periodic.stop()

    def _next(self) -> float:
        try:
            if stamp(self._path) not in (None, self._old):
                self._due = self._curves.read(self._path) or self._due
            if not self._due or not self._curves:
                return PAUSE
            store, old = self._store(), pieces_of(self._store(), *self._run)
            if self._begun and not old:
                return NEVER  # the run has its record, or was deleted
            key = beat_key(*self._run, max(old, default=-1) + 1, METRICS_PREFIX)
            store.put_if_absent(key, self._curves.encode(self._mask, PIECE))
            self._begun, self._due = True, False
            with suppress(DsvError):  # who may not delete leaves them, and writes less and less often
                remove_pieces(store, self._run, old[:-1])
            return PAUSE * min(max(len(old) - 1, 1), 20)
        except Denied:
            return NEVER
        except (DsvError, OSError):  # tried again
            return PAUSE


def stamp(path: Path) -> Stamp | None:
    """Return inode, size and mtime (ns), which change if a file is written, or None."""
    with suppress(OSError):
        status = os.lstat(path)
        return status.st_ino, status.st_size, status.st_mtime_ns
    return None


def pieces_of(store: StoreBackend, dataset: DatasetName, run: str) -> list[int]:
    """Return the numbers of the pieces of a run, in order: none once it has its record."""
    listed = store.list(beats_prefix(dataset, run, METRICS_PREFIX))
    return sorted(piece[2] for piece in parsed(parse_piece_key, listed))


def remove_pieces(store: StoreBackend, run: _Run, numbers: list[int]) -> None:
    together([partial(store.delete, beat_key(*run, number, METRICS_PREFIX)) for number in numbers])


def join_pieces(store: StoreBackend, dataset: DatasetName, run: str) -> list[int]:
    """Make the newest piece the series of a run that has ended, unless it has some. Return the pieces to remove."""
    numbers = pieces_of(store, dataset, run)
    newest = beat_key(dataset, run, numbers[-1] if numbers else 0, METRICS_PREFIX)
    if numbers and (data := if_there(partial(store.get, newest, PIECE))) is not None:
        store.put_if_absent(run_key(dataset, run, SERIES), data)
    return numbers


def series_of(store: StoreBackend, dataset: DatasetName, run: str) -> dict[str, Series]:
    """Return the curves of a run, while it is under way as of the last minute. Raises errors of the store,
    `IntegrityError` and `Unsupported`."""
    key = run_key(dataset, run, SERIES)
    data = if_there(partial(store.get, key, MAX_RECORD))
    if data is None and (numbers := pieces_of(store, dataset, run)):
        key = beat_key(dataset, run, numbers[-1], METRICS_PREFIX)
        data = if_there(partial(store.get, key, PIECE))
    try:
        document = _Document({}) if data is None else _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise IntegrityError(f"{key} has no series of a run: {error}", subject=key) from error
    if document.version > 1:
        raise Unsupported(f"{key} was written by a newer dsv", subject=key, hint="update dsv")
    return document.series
