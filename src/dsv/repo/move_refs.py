"""Moving the names of a store to another location, while no process writes to it.

The steps: (1) the log of the old location says that the names are moving, so no command writes any more; (2)
all keys are copied; (3) if nothing was written since, the log says that the names have moved, which decides
the move; (4) the keys written until then are copied too; (5) the new location gets a log, and can be used
from then on; (6) the log of the data names the new location, for users who can't reach the old one. Any user
may finish an interrupted move, or take it back before it is decided. Keys never change.

A command that opened the store before the first step may still write. After each write it looks for the next
entry of the log (`Tags.check_not_moved`), finds it, and reports that its write may not count.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec.structs import replace

from dsv.errors import Conflict, Denied
from dsv.format import keys
from dsv.format.records import FormatEntry, WriterIdentity, signed
from dsv.periodic import Clock
from dsv.repo.errors import broken
from dsv.repo.format_log import (
    NAMES_ELSEWHERE,
    NAMES_MOVED,
    NAMES_MOVING,
    OF_ONE_PLACE,
    FormatLog,
    make_names,
    read_format,
    with_features,
)
from dsv.repo.refs.listing import changed
from dsv.stores.base import PutResult, StoreBackend, batches, if_there, together

_AT_ONCE: Final = 256
"""Keys, or branches, that are copied at the same time."""
_STIR_SECONDS: Final = 0.05
_COPIED: Final = (keys.REFS_PREFIX, keys.SESSIONS_PREFIX, keys.GC_PREFIX, keys.ONCE_PREFIX)


class NamesMove:
    """A move of the names from `old`, which may be the data's own location, to `new`, named `target`."""

    def __init__(
        self,
        data: StoreBackend,
        old: StoreBackend,
        new: StoreBackend,
        target: str,
        writer: WriterIdentity,
        clock: Clock,
    ) -> None:
        self._data = data
        self._old = old
        self._new = new
        self._target = target
        self._writer = writer
        self._clock = clock
        self._decides: int | None = None
        """The number of the entry after the one by which this move began. A move that was begun again later
        is another move, for which this object has copied nothing."""
        self._begun: FormatEntry | None = None
        """The entry by which it began; None if another process has decided the move before."""
        self._seen: set[str] = set()
        """The keys of the old location that were copied."""

    def check_free(self) -> None:
        """Raises `Conflict` if the new location has names of its own. An earlier copy is allowed."""
        if any(keys.parse_format_key(item.key) is not None for item in self._new.list(keys.FORMAT_PREFIX)):
            raise self._taken("the names of a store already")
        found = [item.key for prefix in _COPIED for item in self._new.list(prefix)]
        for some in batches(found, _AT_ONCE):
            together([partial(self._check_copied, key) for key in some])

    def begin(self) -> bool:
        """Write that the names are moving, and return whether this call was the first to write it.

        Raises `Conflict` if they are moving to another location.
        """
        first = False
        while not (log := self._log()).has(NAMES_MOVING):
            if self._is_decided(log):
                self._decides = _decided_at(log)
                return False
            self._check_here(log)
            entry = replace(with_features(log.entries[-1], NAMES_MOVING), names=self._target)
            first = self._append(log, entry) is PutResult.WON
        if log.entries[-1].names != self._target:
            raise moves_elsewhere(self._old.url, log.entries[-1])
        self._decides = len(log.entries)
        self._begun = log.entries[-1]
        self._stir()
        return first

    def copy(self) -> int:
        """Copy the keys not copied yet; return how many. Raises `Conflict` if the new location has others.

        Call this after `begin`: what was written before must be in the copy.
        """
        chains: dict[str, list[str]] = {}
        fresh = self._not_copied()
        for key in fresh:
            chains.setdefault(_chain_of(key), []).append(key)
        self._seen.update(fresh)
        work = [_in_order(chain) for chain in chains.values()]
        for some in batches(work, _AT_ONCE):
            together([partial(self._copy_chain, chain) for chain in some])
        return sum(map(len, work))

    def _not_copied(self) -> list[str]:
        listed = (item.key for prefix in _COPIED for item in self._old.list(prefix))
        return [key for key in listed if key not in self._seen]

    def check_unchanged(self) -> None:
        """Raises `Conflict` if anything was written to the old location since it was copied."""
        late = self._not_copied()
        if late:
            raise Conflict(
                f"somebody wrote {late[0]} to {self._old.url} while its names were copied, so they stay there",
                subject=late[0],
                hint=f"dsv store move-names {self._target} again when nobody writes to the store",
            )

    def decide(self) -> None:
        """Write that the names have moved. Raises `Conflict` if another process has taken the move back."""
        assert self._decides is not None
        log = self._log()
        self._check_begun(log)
        if len(log.entries) == self._decides:
            last = log.entries[-1]
            what = NAMES_ELSEWHERE if self._old is self._data else NAMES_MOVED
            self._append(log, replace(with_features(last, what, without=OF_ONE_PLACE), single_writer=False))
            log = self._log()
        if _decided_at(log) != self._decides:
            raise Conflict(
                f"{log.entries[self._decides].author} cancelled the move of the names to {self._target}",
                subject=self._target,
                hint="the same command starts over",
            )

    def _check_begun(self, log: FormatLog) -> None:
        """Raises `IntegrityError` if the entry that began this move was replaced: the new entry may belong to
        a move to another location, for which nothing was copied."""
        assert self._decides is not None
        number = self._decides - 1
        now = log.entries[number] if number < len(log.entries) else None
        if self._begun is not None and (now is None or now.nonce != self._begun.nonce):
            raise changed(self._old.url, keys.format_key(number), "what said that the names are moving", now)

    def take_back(self) -> None:
        """Take the move back; if this object began one, only that. Raises `Conflict` if it is decided."""
        log = self._log()
        if log.has(NAMES_MOVING) and self._decides in (None, len(log.entries)):
            last = log.entries[-1]
            self._append(log, replace(with_features(last, without=frozenset((NAMES_MOVING,))), names=None))
        self._check_here(self._log())

    def finish(self, *, ordered: bool) -> None:
        """Copy the keys written before the decision, make the new location usable, note it in the data."""
        log = self._log()
        if not read_format(self._new):
            self.copy()
        make_names(self._new, signed(log.entries[-1], self._writer, self._clock()), ordered=ordered)
        if self._old is not self._data:
            note_place(self._data, self._new, self._target, self._writer, self._clock())

    def _log(self) -> FormatLog:
        return FormatLog(tuple(read_format(self._old)))

    def _is_decided(self, log: FormatLog) -> bool:
        decided = _decided_at(log)
        return decided is not None and log.entries[decided].names == self._target

    def _check_here(self, log: FormatLog) -> None:
        if log.has(NAMES_MOVED) or log.has(NAMES_ELSEWHERE):
            raise moves_elsewhere(self._old.url, log.entries[-1])

    def _append(self, log: FormatLog, entry: FormatEntry) -> PutResult:
        entry = signed(entry, self._writer, self._clock())
        return self._old.put_if_absent(keys.format_key(len(log.entries)), entry.encode())

    def _stir(self) -> None:
        """Change the log's folder again, a little later. An NFS client that asked for the entry in the same
        clock tick in which it was created may keep treating it as absent until the folder's time changes."""
        time.sleep(_STIR_SECONDS)
        key = f"{keys.FORMAT_PREFIX}moving-{secrets.token_hex(8)}"
        self._old.put_if_absent(key, b"")
        with suppress(Denied):
            self._old.delete(key)

    def _copy_chain(self, chain: list[str]) -> None:
        """Copy a key only after those before it in its log. So even a late copy, when the new location is in
        use, adds only what follows the newest move there."""
        for key in chain:
            data = if_there(partial(self._old.get, key))
            if data is None:
                if key.startswith(keys.SESSIONS_PREFIX):
                    continue  # a session may be deleted when it is over
                raise broken(key, f"{key} is gone from {self._old.url}")
            if self._new.put_if_absent(key, data) is PutResult.LOST:
                if self._is_decided(self._log()):
                    return  # another process has finished this move, and the new location is in use
                raise self._taken(f"another {key} than {self._old.url}")

    def _check_copied(self, key: str) -> None:
        there, here = self._new.get(key), if_there(partial(self._old.get, key))
        deleted = here is None and key.startswith(keys.SESSIONS_PREFIX)  # since an earlier copy
        if here != there and not deleted:
            raise self._taken(f"another {key} than {self._old.url}")

    def _taken(self, what: str) -> Conflict:
        return Conflict(
            f"{self._new.url} has {what}, so the names can't move there",
            subject=self._new.url,
            hint="dsv store move-names LOCATION, with a location where no names have been; if a move there was begun: "
            f"dsv store move-names {self._old.url} takes it back",
        )


def note_place(
    data: StoreBackend, place: StoreBackend, target: str, writer: WriterIdentity, time_ms: int
) -> None:
    """Write into the data's log where the names are, unless it says so or they have left since."""
    while (last := (log := read_format(data))[-1]).names != target:
        if FormatLog(tuple(read_format(place))).has(NAMES_MOVED):  # read after the data's log
            return
        noted = signed(replace(last, names=target), writer, time_ms)
        data.put_if_absent(keys.format_key(len(log)), noted.encode())


def _decided_at(log: FormatLog) -> int | None:
    """Return the number of the entry by which the names have left a location, which they do once. The data's
    log may have later entries."""
    for number, entry in enumerate(log.entries):
        if any(one.name in (NAMES_MOVED, NAMES_ELSEWHERE) for one in entry.features):
            return number
    return None


def moves_elsewhere(old: str, said: FormatEntry) -> Conflict:
    return Conflict(
        f"{said.author} moves the names from {old} to {said.names} already",
        subject=said.names,
        hint=f"dsv store move-names {said.names} finishes that",
    )


def _of_a_log(key: str) -> tuple[int, Callable[[int], str]] | None:
    """Return the number of a key of a log (a branch's moves or rules, expired commits) and a function that
    makes its other keys; None for every other key."""
    expiry = keys.parse_expiry_key(key)
    if expiry is not None:
        return expiry[1], partial(keys.expiry_key, expiry[0])
    move, rule = keys.parse_branch_key(key), keys.parse_branch_rule_key(key)
    if move is not None:
        return move[2], partial(keys.branch_key, *move[:2])
    return None if rule is None else (rule[2], partial(keys.branch_rule_key, *rule[:2]))


def _chain_of(key: str) -> str:
    """Return the first key of the log that the key is in; the key itself if it is in none."""
    found = _of_a_log(key)
    return key if found is None else found[1](0)


def _in_order(chain: Iterable[str]) -> list[str]:
    """Return the keys from the first to the newest, with new ones that the listing has missed."""
    newest = min(chain)
    found = _of_a_log(newest)
    return [newest] if found is None else [found[1](number) for number in range(found[0] + 1)]
