"""Where the names of a store are, for writers that are at work while somebody moves them.

A move has two entries in the format log of the place that the names leave: first that they are moving, after which they
are copied; then that they have moved, or that they stay. The second one decides. So whoever has written a name asks for
the next entry of that log afterwards. If there is none, what was written is in every copy that is made later. If there
is one, it waits for the decision, looks in the new place for what it wrote, and writes it again there if it still may.
Whoever has opened the store while the names were moving need not ask: the copy may be over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Final

from dsv.errors import Denied, IntegrityError, NotFound, OutcomeUnknown, Unreachable
from dsv.format import keys
from dsv.format.envelope import RECORD_MAX
from dsv.repo.format_log import NAMES_ELSEWHERE, NAMES_MOVING, Format, read_layout
from dsv.store.base import Bytes, Put, Store, both
from dsv.store.split import SplitStore, places_of

PATIENCE: Final = 60.0
"""Seconds for which a writer waits for somebody who moves the names. Nothing is decided by it."""


class NamesPlace:
    """The names of one open store."""

    def __init__(self, store: Store, layout: Format, patience: float = PATIENCE) -> None:
        self._store = store
        self._places: SplitStore | None = places_of(store)
        self._patience = patience
        self._lock = threading.Lock()
        self.layout = layout
        self.moves = 0
        """How often the names were found to have moved since the store was opened."""

    def put(
        self, key: str, data: Bytes, won: Callable[[], None] = lambda: None, since: int | None = None
    ) -> Put | None:
        """Writes a name. None: the names have moved, and it counts only if it is where they are now.

        won: what else is asked after the name was written, at the same time. since: `moves` when that was read which
        the name follows; if they have moved since, nothing is written. Raises `OutcomeUnknown` if names that are being
        moved do not come to rest.
        """
        if self.layout.has(NAMES_ELSEWHERE):  # the place was out of reach when the store was opened
            self.look()
        moves = self.moves
        if since is not None and since != moves:
            return None
        put = self._store.put_if_absent(key, data)
        if put is Put.WON:
            _, changed = both(won, self._changed)
        else:
            changed = self._changed()
        if changed:
            self.look()
        return None if self.moves != moves else put

    def look(self) -> None:
        """Reads the format log again, and follows the names if they have moved. Waits while they are on the way."""
        with self._lock:
            before = self.names
            self.layout = self._decided()
            if self.names is not before:
                self.moves += 1

    @property
    def url(self) -> str:
        """Where the names were found last."""
        return self.names.url

    @property
    def names(self) -> Store:
        return self._store if self._places is None else self._places.names

    def _changed(self) -> bool:
        """Whether the names were moving when the log was read, or its place has another entry by now."""
        if self.layout.has(NAMES_MOVING):
            return True
        key = keys.format_key(len(self.layout.entries))
        try:
            self.names.get(key, RECORD_MAX)
        except NotFound:
            return False
        except (Unreachable, Denied, IntegrityError) as error:
            raise OutcomeUnknown(
                f"what was just written to {self._store.url} counts unless its names were moved away meanwhile, and "
                f"that could not be asked: {error.message}",
                subject=key,
                hint="run the same command again: it finds out by itself",
            ) from error
        return True

    def _decided(self) -> Format:
        until = time.monotonic() + self._patience
        for attempt in count():
            before = self.names
            layout = read_layout(self._store)
            if not layout.has(NAMES_MOVING) and not layout.has(NAMES_ELSEWHERE):
                return layout
            if time.monotonic() > until:
                break
            if self._places is not None and self.names is not before:
                self._places.names = before  # it was not complete: from the beginning
            time.sleep(min(2.0, 0.05 * 1.5**attempt))
        raise self._undecided(layout)

    def _undecided(self, layout: Format) -> OutcomeUnknown:
        said, url = layout.entries[-1], self._store.url
        if layout.has(NAMES_MOVING):
            return OutcomeUnknown(
                f"{said.author} is moving the names of {url} to {said.names}, so whether what was just written counts "
                "is not known",
                subject=said.names,
                hint=f"if that was interrupted: dsv store move-names {said.names} finishes it, and "
                f"dsv store move-names {self.names.url} takes it back; then run the same command again",
            )
        return OutcomeUnknown(
            f"the names of {url} have moved and can't be reached, so whether what was just written counts is not known",
            subject=url,
            hint="run the same command again: it says where they are; dsv store check",
        )
