"""Stores with copies of another store's objects, which are read where that one has lost something or does not answer.

Objects are found by their ids in the mirror's own index, as its packs are others; so it does not matter how complete a
mirror is, and what it has is checked like everything else. Names come from a mirror only if the store can't be opened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from dsv.errors import DsvError, Unreachable

if TYPE_CHECKING:
    from dsv.format.locator import ObjectKind
    from dsv.format.records import Commit
    from dsv.repo.repository import Repository
    from dsv.values.ids import CommitId, Id

Opener = Callable[[], "Repository"]


class Mirrors:
    """The mirrors of one store, in their order. Each is opened when it is first needed; thread-safe."""

    def __init__(self, url: str, openers: tuple[Opener, ...], tell: Callable[[str], None]) -> None:
        """url: of the store. tell: is given one line when something is first read from a mirror."""
        self._url = url
        self._openers = list(openers)
        """Of those that were not opened yet."""
        self._tell = tell
        self._opened: list[Repository] = []
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def read(self, kind: ObjectKind, object_id: Id, why: DsvError) -> bytes | None:
        """Return an object, checked, from the first mirror that has it."""
        for mirror in self._all():
            with suppress(DsvError):
                data = mirror.objects.read(kind, object_id)
                self._say(mirror, why)
                return data
        return None

    def commit(self, commit_id: CommitId, why: DsvError) -> Commit | None:
        """Return a commit, checked, from the first mirror that has it."""
        for mirror in self._all():
            with suppress(DsvError):
                found = mirror.objects.commit_or_none(commit_id)
                if found is not None:
                    self._say(mirror, why)
                    return found
        return None

    def stand_in(self, why: DsvError) -> Repository | None:
        """Return the first mirror that can be opened, to be read in place of the store."""
        for mirror in self._all():
            what = "does not answer" if isinstance(why, Unreachable) else "can't be opened"
            self._tell(
                f"{self._url} {what} ({why.message}); its mirror {mirror.store.url} is read instead, whose "
                "branches and tags may be older"
            )
            return mirror
        return None

    def close(self) -> None:
        """Close the stores that were opened."""
        with self._lock:
            opened, self._opened, self._openers = self._opened, [], []
        for one in opened:
            one.store.close()

    def _all(self) -> Iterator[Repository]:
        """Yield those that are open, then open the next one."""
        number = 0
        while (mirror := self._get(number)) is not None:
            yield mirror
            number += 1

    def _get(self, number: int) -> Repository | None:
        with self._lock:
            while number == len(self._opened) and self._openers:
                try:
                    self._opened.append(self._openers.pop(0)())
                except DsvError as error:
                    self._tell(f"a mirror of {self._url} can't be read: {error.message}")
            return self._opened[number] if number < len(self._opened) else None

    def _say(self, mirror: Repository, why: DsvError) -> None:
        url = mirror.store.url
        if url not in self._told:
            self._told.add(url)
            self._tell(f"{why.message}; it was read from the mirror {url}, as further objects may be")
