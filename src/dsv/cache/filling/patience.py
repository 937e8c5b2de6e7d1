"""What a fill bears before it gives up: folders that others remove, a file server that forgets, a full disk.

An evictor removes the folders of a dataset while they are empty, the end of a fill removes the fill's, and others fill
the disk. Trying again cures all of this; each kind has its own limit, so that nobody tries for ever.
"""

from __future__ import annotations

import time

from dsv.cache.disk import FORGOTTEN, GONE
from dsv.cache.filling.planning import room_needed
from dsv.cache.filling.request import FillRequest, Need
from dsv.cache.filling.room import refusal
from dsv.cache.filling.shift import Means
from dsv.cache.layout import FULL
from dsv.errors import NoRoom, Unreachable

_COMEBACKS = 3
_VANISHINGS = 20
_LONGEST_PAUSE = 1.0  # seconds
_FULL_DISKS = 3
_LEAST = (64 << 20, 64)  # bytes and files to make room for


class Patience:
    """Of one `fill`. `bear` each error of the operating system that ended an attempt."""

    def __init__(self, request: FillRequest, means: Means) -> None:
        self._request = request
        self._means = means
        self._comebacks = 0
        self._vanishings = 0
        self._full = 0

    def bear(self, error: OSError) -> None:
        """Returns if another attempt is worth it. Raises `Unreachable`, `NoRoom` with the figures, or the error."""
        if error.errno in GONE:
            self._bear_vanished(error)
        elif error.errno in FULL:
            self._bear_full(error)
        elif error.errno in FORGOTTEN and self._means.kind.sync_each:
            self._bear_forgotten(error)
        else:
            raise error

    def _bear_vanished(self, error: OSError) -> None:
        root, place = self._means.root, self._means.place
        self._vanishings += 1
        if self._vanishings > _VANISHINGS:
            raise Unreachable(
                f"cannot fill {root.visible(place)}: folders of {root.path} keep vanishing meanwhile",
                subject=str(place),
                hint="others change this cache now: try again",
            ) from error
        time.sleep(min(_LONGEST_PAUSE, 0.01 * self._vanishings**2))
        for folder in (root.fill(place), root.claims(place), root.visible(place)):
            root.look_up_anew(folder)

    def _bear_full(self, error: OSError) -> None:
        means, place = self._means, self._means.place
        self._full += 1
        if self._full > _FULL_DISKS:
            raise self._refusal(error) from error
        means.ensure_room(Need(place, *_LEAST, keep=frozenset((place,))))

    def _refusal(self, error: OSError) -> NoRoom:
        """Before there is a plan, what the whole commit needs stands for what is still to come."""
        tree = self._means.source.tree(self._request.commit)
        return refusal(
            self._means.root, self._means.place, error, *room_needed(tree, self._request.selection)
        )

    def _bear_forgotten(self, error: OSError) -> None:
        self._comebacks += 1
        if self._comebacks > _COMEBACKS:
            raise error
        self._means.progress.note(f"{self._means.root.path} had forgotten this host; it joins again")
