"""Who computes a result: claims on its key, the beats of the run that has claimed it, and waiting for that run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import msgspec

from dsv.errors import DsvError, IntegrityError
from dsv.format.keys import beat_key, beats_prefix, once_key, once_prefix, parse_beat_key, parse_once_key
from dsv.periodic import NEVER, Periodic, now_ms
from dsv.run.record import RunId, RunRecord, parse_name
from dsv.stores.base import PutResult, StoreBackend, if_there, parsed, together
from dsv.stores.open import names_of
from dsv.values.names import DatasetName
from dsv.values.units import format_duration

BEAT = 60.0
"""Seconds between two beats of a run. Tests replace this, and the next two."""
SILENCE = 600.0
"""Seconds without a new beat after which another run takes over."""
POLL = (1.0, 15.0)
"""The fewest and the most seconds between two looks of a waiting run."""
_MAX: Final = 1 << 16
"""Bytes of a claim or a beat."""


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """A run that claims a key, and who started it where."""

    dataset: DatasetName
    run: RunId
    host: str
    user: str


class KeyClaim(NamedTuple):
    number: int
    by: Claimant | None
    """None if the claim can't be read: nobody's result."""


_BEAT: Final = msgspec.json.Decoder(dict[str, bool])
_CLAIMANT: Final = msgspec.json.Decoder(Claimant, dec_hook=parse_name)


class KeyClaims:
    """The claims on one key. The newest counts; all stay, so that no number is used twice."""

    def __init__(self, store: StoreBackend, key: str) -> None:
        self.store, self.key = store, key
        self.one_wins = names_of(store).conditional
        """False if two runs may win one number: the store can't put only what is absent."""

    def newest(self) -> KeyClaim | None:
        listed = parsed(parse_once_key, self.store.list(once_prefix(self.key)))
        number = max((number for _, number in listed), default=None)
        if number is None:
            return None
        with suppress(msgspec.DecodeError, IntegrityError):  # too long
            return KeyClaim(number, _CLAIMANT.decode(self.store.get(once_key(self.key, number), _MAX)))
        return KeyClaim(number, None)

    def take(self, after: KeyClaim | None, mine: Claimant) -> KeyClaim | None:
        """KeyClaim the number that follows `after`. Return None if another run has it."""
        number = 0 if after is None else after.number + 1
        put = self.store.put_if_absent(once_key(self.key, number), msgspec.json.encode(mine, enc_hook=str))
        return KeyClaim(number, mine) if put is PutResult.WON else None


class Beats:
    """The beats of one run. Several machines may write them: one that supervises it, and one where its job runs."""

    def __init__(self, store: StoreBackend, dataset: DatasetName, run: RunId) -> None:
        self._store, self._run = store, (dataset, run)
        self._periodic: Periodic | None = None

    def start(self, *, joins: bool = False) -> None:
        """Write a beat, and then one each minute, in a thread. joins: go on where another machine began, if this user
        may. Else raises an error of the store if the first one fails."""
        if self._periodic is None:
            if not joins:
                self._write(beats_of(self._store, *self._run))
            self._periodic = Periodic("dsv-once-beats", self._next, first=0.0 if joins else BEAT)
            self._periodic.start()

    def last(self) -> None:
        """Write a beat after which none will come, so that nobody takes over: a cluster keeps the job alive."""
        if self._periodic is not None:
            self.stop()
            self._write(beats_of(self._store, *self._run), more=False)

    def stop(self) -> None:
        """Write no more beats. The last one remains."""
        if self._periodic is not None:
            self._periodic.stop()
            self._periodic = None

    def remove(self) -> None:
        """Stop, and delete the beats, if this user may."""
        self.stop()
        with suppress(DsvError):
            remove_beats(self._store, *self._run)

    def _next(self) -> float:
        with suppress(DsvError):
            if not (numbers := beats_of(self._store, *self._run)):
                return NEVER  # the run has its record, or was deleted
            self._write(numbers)
        return BEAT

    def _write(self, numbers: list[int], *, more: bool = True) -> None:
        number, data = max(numbers, default=-1) + 1, msgspec.json.encode({"more": more})
        while self._store.put_if_absent(beat_key(*self._run, number), data) is PutResult.LOST:
            number += 1  # another machine has just written it
        with suppress(DsvError):  # who may not delete leaves them
            remove_beats(self._store, *self._run, [old for old in numbers if old < number - 1])


def beats_of(store: StoreBackend, dataset: DatasetName, run: RunId) -> list[int]:
    """Return the numbers of the beats of a run: none once it is over, or deleted."""
    return [beat[2] for beat in parsed(parse_beat_key, store.list(beats_prefix(dataset, run)))]


def remove_beats(
    store: StoreBackend, dataset: DatasetName, run: RunId, numbers: list[int] | None = None
) -> None:
    """Delete these beats of a run, or all."""
    numbers = beats_of(store, dataset, run) if numbers is None else numbers
    together([partial(store.delete, beat_key(dataset, run, number)) for number in numbers])


class Hit(NamedTuple):
    """The result is there: nothing has to run."""

    record: RunRecord


class Miss(NamedTuple):
    """The newest claim has no result. why: for people"""

    why: str


class NotEnded(NamedTuple):
    """The run of the newest claim has not ended. record: None if the store has none yet, or not any more"""

    record: RunRecord | None


Verdict: TypeAlias = Hit | Miss | NotEnded
Judge: TypeAlias = Callable[[Claimant], Verdict]


def look(claims: KeyClaims, judge: Judge) -> tuple[KeyClaim | None, Verdict]:
    """Return the newest claim and what has become of its run."""
    claim = claims.newest()
    if claim is None:
        return None, Miss("no run has claimed it")
    return claim, Miss("its claim can't be read") if claim.by is None else judge(claim.by)


@dataclass(frozen=True, slots=True)
class Wait:
    """How to wait for another run."""

    note: Callable[[str], None]
    settle: Callable[[Claimant], None] = lambda by: None
    """Completes what this machine can of the record of the other run. Called once a minute."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


def settle(claims: KeyClaims, mine: Claimant, judge: Judge, beats: Beats, wait: Wait) -> Hit | KeyClaim:
    """Return the result, or the claim of this run, after waiting for a run that is computing it. Beats begin before
    the claim, and go on until the caller ends them. Raises errors of the store; Ctrl-C ends the waiting."""
    watch: _Watch | None = None
    while True:
        claim, verdict = look(claims, judge)
        if isinstance(verdict, NotEnded):
            assert claim is not None and claim.by is not None  # judged by it
            if watch is None or watch.by != claim.by:
                watch = _Watch(claims.store, claim.by, wait)
            if watch.is_alive(verdict.record):
                continue
            verdict = judge(claim.by)  # its beats go after its record has come
        if isinstance(verdict, Hit):
            return verdict
        taken = None
        try:
            beats.start()
            taken = claims.take(claim, mine)
        finally:
            if taken is None:
                beats.remove()
        if taken is not None:
            return taken


class _Watch:
    """What a waiting run sees of another one, by its own clock."""

    def __init__(self, store: StoreBackend, by: Claimant, wait: Wait) -> None:
        self._store, self.by, self._wait = store, by, wait
        self._beat, self._more, self._silent = -1, True, 0.0
        self._seen = wait.clock()
        self._settled = self._seen - BEAT
        self._pause = POLL[0]
        self._noted: bool | None = None

    def is_alive(self, record: RunRecord | None) -> bool:
        """Return whether to wait for the run, after a pause: False if it has no beats, or no new one for too long."""
        numbers = beats_of(self._store, self.by.dataset, self.by.run)
        if not numbers:
            return False
        now = self._wait.clock()
        self._silent += min(now - self._seen, 2 * POLL[1])  # a pause of this machine is no silence
        self._seen = now
        if (newest := max(numbers)) != self._beat:
            self._beat, self._silent = newest, 0.0
            data = if_there(partial(self._store.get, beat_key(self.by.dataset, self.by.run, newest), _MAX))
            with suppress(msgspec.DecodeError, KeyError):
                self._more = data is None or _BEAT.decode(data)["more"]
        if self._more and self._silent >= SILENCE:
            return False
        if self._noted is not self._more:
            self._noted = self._more
            self._wait.note(self._text(record))
        if now - self._settled >= BEAT:
            self._settled = now
            with suppress(DsvError, OSError):
                self._wait.settle(self.by)
        self._wait.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(self._pause * 1.5, POLL[1])
        return True

    def _text(self, record: RunRecord | None) -> str:
        where = f"{self.by.user}@{self.by.host}"
        if record is not None:
            where += f", {format_duration(max(0, now_ms() - record.started_ms) / 1000)} so far"
        how = "" if self._more else ", which may have died unseen; to run anyway: --fresh"
        return f"waits for run {self.by.run} ({where}){how}"
