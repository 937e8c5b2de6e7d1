"""What dsv on several machines tell each other of a sweep, in its store.

    runs/<dataset>/<sweep id>/stop-<n>            no more runs of it are to be begun; empty
    runs/<dataset>/<sweep id>/turn-<n>            who has continued it for the n-th time: only the last begins runs
    runs/<dataset>/<sweep id>/begin-<run>-<n>     who begins the run of that number, for the n-th time
    runs/<dataset>/<sweep id>/drop-<run>-<n>      that could not be started, and may be begun again; empty

Each is written by put-if-absent, so of several that want the same one has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from dsv.fs.process import Fate, Process, host_name
from dsv.model.keys import runs_prefix
from dsv.model.names import DatasetName
from dsv.model.sweep import SweepId
from dsv.store.base import Put, Store, TooLargeError

_MAX = 4096
"""Bytes of a key's value."""
_NUMBER = "([1-9][0-9]{0,8})"
_NUMBERED = re.compile(f"(stop|turn)-{_NUMBER}", re.ASCII)
_OF_A_RUN = re.compile(f"(begin|drop)-{_NUMBER}-{_NUMBER}", re.ASCII)


class Beginner(msgspec.Struct, frozen=True):
    """A process that begins runs of a sweep, and the machine that it is on."""

    host: str
    process: Process

    @classmethod
    def here(cls) -> Beginner:
        return cls(host_name(), Process.here())

    @property
    def is_dead(self) -> bool:
        """Whether it is known to be gone: only its own machine can tell."""
        return self.process.fate() is Fate.DEAD


_DECODER = msgspec.json.Decoder(Beginner)
UNKNOWN = Beginner("another machine", Process("", 0, 0))
"""Whoever wrote what can't be read."""


@dataclass(frozen=True, slots=True)
class SweepNews:
    """How often the sweep was stopped, and continued; begins: how often each run was begun, by its number; dropped: the
    runs whose last begin was dropped."""

    stops: int
    turns: int
    begins: Mapping[int, int]
    dropped: frozenset[int]


NO_NEWS = SweepNews(0, 0, {}, frozenset())


class SweepNotes:
    """Of one sweep. Methods raise as the store's."""

    def __init__(self, store: Store, dataset: DatasetName, sweep: SweepId) -> None:
        self._store = store
        self._prefix = f"{runs_prefix(dataset)}{sweep}/"

    def news(self) -> SweepNews:
        """One listing."""
        last, begins, drops, stops = {"stop": 0, "turn": 0}, dict[int, int](), set[tuple[int, int]](), 0
        for item in self._store.list(self._prefix):
            name = item.key.rpartition("/")[2]
            if (plain := _NUMBERED.fullmatch(name)) is not None:
                stops += plain[1] == "stop"
                last[plain[1]] = max(last[plain[1]], int(plain[2]))
            elif (of_run := _OF_A_RUN.fullmatch(name)) is not None:
                number, time = int(of_run[2]), int(of_run[3])
                if of_run[1] == "begin":
                    begins[number] = max(begins.get(number, 0), time)
                else:
                    drops.add((number, time))
        dropped = frozenset(number for number, time in begins.items() if (number, time) in drops)
        return SweepNews(stops, last["turn"], begins, dropped)

    def stop(self) -> None:
        """Asks whoever begins the runs, on whichever machine, to begin no more of them."""
        number = self.news().stops + 1
        while self._store.put_if_absent(self._prefix + f"stop-{number}", b"") is Put.LOST:
            number += 1

    def take_turn(self, number: int) -> Beginner | None:
        """Makes this process the one that begins the runs. Returns who is that instead, None if it is this one."""
        return self._take(self._prefix + f"turn-{number}")

    def begin(self, run: int, time: int) -> Beginner | None:
        """Takes one run for this process. Returns who has it instead, None if it is this one."""
        return self._take(self._prefix + f"begin-{run}-{time}")

    def drop(self, run: int, time: int) -> None:
        """Gives a run back that could not be started."""
        self._store.put_if_absent(self._prefix + f"drop-{run}-{time}", b"")

    def who_begins(self, run: int, time: int) -> Beginner:
        return self._read(self._prefix + f"begin-{run}-{time}")

    def who_has_turn(self, number: int) -> Beginner:
        return self._read(self._prefix + f"turn-{number}")

    def _take(self, key: str) -> Beginner | None:
        here = Beginner.here()
        if self._store.put_if_absent(key, msgspec.json.encode(here)) is Put.WON:
            return None
        found = self._read(key)
        return None if found == here else found

    def _read(self, key: str) -> Beginner:
        try:
            return _DECODER.decode(self._store.get(key, _MAX))
        except (TooLargeError, msgspec.DecodeError):
            return UNKNOWN
