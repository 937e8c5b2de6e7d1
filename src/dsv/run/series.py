"""The curves of a run's metrics, from `metrics.jsonl`: in few points in the store, at the end and while it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import msgspec

from dsv.errors import Denied, DsvError, IntegrityError, Unsupported
from dsv.files.small_files import open_plain
from dsv.format.keys import METRICS_PREFIX, beat_key, beats_prefix, parse_beat_key, run_key
from dsv.periodic import NEVER, Periodic
from dsv.run.record import MAX_RECORD, SERIES
from dsv.stores.base import StoreBackend, if_there, together
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
_MOST: Final = 1000
_Number: TypeAlias = int | float
_Point: TypeAlias = tuple[_Number, int, _Number]
"""Value, number and step."""
_Run: TypeAlias = tuple[DatasetName, str]
Stamp: TypeAlias = tuple[int, int, int]


class Series(msgspec.Struct, frozen=True):
    """The curve of one metric."""

    points: list[tuple[_Number, _Number]]
    """Step and value of at most 1,000, as they came: the first, the last, and the least and greatest in between."""
    of: int
    """How many points the job wrote."""
    last: _Number | str
    """The last value: `NaN`, `Infinity` or `-Infinity` if it is no number."""


class _Document(msgspec.Struct, frozen=True, tag_field="kind", tag="dsv run series"):
    series: dict[str, Series]
    version: int = 1


_DECODER: Final = msgspec.json.Decoder(_Document)
_LINES: Final = msgspec.json.Decoder(dict[str, Any])


class _Curve:
    """A curve that grows, in bounded memory: of each stretch of equally many points the least and the greatest."""

    def __init__(self) -> None:
        self.of, self._length = 0, 1
        self.last: _Number | str = 0
        self._ends: list[_Point] = []
        self._kept: list[_Point] = []

    def add(self, step: _Number, value: _Number) -> None:
        point = (value, self.of, step)
        if self.of % self._length == 0:
            self._kept += (point, point)
        elif point < self._kept[-2]:
            self._kept[-2] = point
        elif point > self._kept[-1]:
            self._kept[-1] = point
        if len(self._kept) == _MOST:
            self._kept, self._length = _halved(self._kept), 2 * self._length
        self._ends[1:], self.of, self.last = [point], self.of + 1, value

    def series(self, most: int) -> Series:
        kept = self._kept
        while len(kept) + 2 > most:
            kept = _halved(kept)
        points = sorted({*self._ends, *kept}, key=itemgetter(1))
        return Series([(step, value) for value, _, step in points], self.of, self.last)


def _halved(points: list[_Point]) -> list[_Point]:
    """Return of each four points the least and the greatest."""
    parts = [points[at : at + 4] for at in range(0, len(points), 4)]
    return [point for part in parts for point in (min(part), max(part))]


class Curves:
    """The curves in the lines that a job wrote. What is no JSON object, too long or no number is left out."""

    def __init__(self) -> None:
        self._curves: dict[str, _Curve] = {}
        self._lines = self._at = 0
        self._rest = self._before = b""

    def last(self, mask: Masker) -> dict[str, Json]:
        return {mask.text(name): curve.last for name, curve in self._curves.items()}

    def encode(self, mask: Masker, limit: int = MAX_RECORD) -> bytes:
        """mask: hides secrets in names. limit: of bytes, for which there are fewer points; four of each always fit"""
        most = _MOST
        while True:
            series = {mask.text(name): curve.series(most) for name, curve in self._curves.items()}
            if len(data := msgspec.json.encode(_Document(series))) <= limit or most < 8:
                return data
            most //= 2

    def read(self, path: Path, *, ended: bool = False) -> None:
        """Take what a file has more than before; all of it if it has shrunk or is another. ended: its last line may be
        whole without an end"""
        with suppress(OSError), open_plain(path, follow=False) as file:
            file.seek(self._at - len(self._before))
            if file.read(len(self._before)) != self._before:
                vars(self).update(vars(Curves()))
                file.seek(0)
            while data := file.read(min(1 << 20, LARGEST - self._at)):
                self._at, self._before = self._at + len(data), (self._before + data)[-64:]
                self.take(data)
        if ended:
            self.take(b"\n")

    def take(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[: _LINE + 1]  # enough to know that it is too long
        for line in lines:
            if len(line) <= _LINE and line.lstrip()[:1] == b"{":  # a job may write millions of other lines
                with suppress(ValueError, RecursionError):
                    self._add(_parsed(line))

    def _add(self, values: dict[str, Json]) -> None:
        step = number(values.pop("step", None))
        step, self._lines = self._lines if step is None else step, self._lines + 1
        for name, value in flattened(values).items():
            known = number(value)
            if known is None and value not in ("NaN", "Infinity", "-Infinity"):
                continue
            if name not in self._curves:
                if len(self._curves) == _NAMES or len(msgspec.json.encode(name)) > _NAME + 2:
                    continue
                self._curves[name] = _Curve()
            if known is None:
                self._curves[name].last = value
            else:
                self._curves[name].add(step, known)


def _parsed(line: bytes) -> dict[str, Json]:
    try:
        return _LINES.decode(line)
    except msgspec.DecodeError:  # as of a NaN
        if not line.rstrip().endswith(b"}"):
            raise
        return cast("dict[str, Json]", parse_json(line.decode()))


def number(value: Json) -> _Number | None:
    """Return a number that a double can be; None for any other value."""
    try:
        return None if type(value) not in (int, float) else value if abs(value) <= 1 << 53 else float(value)
    except OverflowError:
        return None


class LiveSeries:
    """Puts the curves of a run into the store while `metrics.jsonl` grows: each piece takes the place of the last."""

    def __init__(self, store: Callable[[], StoreBackend], run: _Run, path: Path, mask: Masker) -> None:
        self._store, self._run, self._path, self._mask = store, run, path, mask
        self._old, self._curves, self._begun = stamp(path), Curves(), False
        self._last = self._curves.encode(mask)
        self._periodic = Periodic("dsv-series", self._next, first=PAUSE)
        self._periodic.start()
        self.stop = self._periodic.stop  # the last piece remains until the run has its record

    def _next(self) -> float:
        try:
            if stamp(self._path) not in (None, self._old):
                self._curves.read(self._path)
            if (data := self._curves.encode(self._mask, PIECE)) == self._last:
                return PAUSE
            old = pieces_of(store := self._store(), *self._run)
            if self._begun and not old:
                return NEVER  # the run has its record, or was deleted
            number = 1 + int(old[-1][-16:], 16) if old else 0
            store.put_if_absent(beat_key(*self._run, number, METRICS_PREFIX), data)
            self._begun, self._last = True, data
            with suppress(DsvError):  # who may not delete leaves them, and writes less and less often
                remove(store, old[:-1])
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


def pieces_of(store: StoreBackend, dataset: DatasetName, run: str) -> list[str]:
    """Return the keys of the pieces of a run, in order: none once it has its record."""
    keys = (item.key for item in store.list(beats_prefix(dataset, run, METRICS_PREFIX)))
    return sorted(key for key in keys if parse_beat_key(key, METRICS_PREFIX))


def remove(store: StoreBackend, pieces: list[str]) -> None:
    together([partial(store.delete, key) for key in pieces])


def join_pieces(store: StoreBackend, dataset: DatasetName, run: str) -> list[str]:
    """Make the newest piece the series of a run that has ended, unless it has some. Return the pieces to remove."""
    pieces = pieces_of(store, dataset, run)
    if pieces and (data := if_there(partial(store.get, pieces[-1], PIECE))) is not None:
        store.put_if_absent(run_key(dataset, run, SERIES), data)
    return pieces


def series_of(store: StoreBackend, dataset: DatasetName, run: str) -> dict[str, Series]:
    """Return the curves of a run, while it is under way as of the last minute. Raises errors of the store,
    `IntegrityError` and `Unsupported`."""
    key = run_key(dataset, run, SERIES)
    data = if_there(partial(store.get, key, MAX_RECORD))
    if data is None and (pieces := pieces_of(store, dataset, run)):
        data = if_there(partial(store.get, key := pieces[-1], PIECE))
    try:
        document = _Document({}) if data is None else _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise IntegrityError(f"{key} has no series of a run: {error}", subject=key) from error
    if document.version > 1:
        raise Unsupported(f"{key} was written by a newer dsv", subject=key, hint="update dsv")
    return document.series
