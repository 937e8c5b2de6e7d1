"""Which packs the store has. An index says where an object was put, and not that its pack is still there.

Before a new commit refers to something that an index names, its pack is looked for: one pack at a time until that has
cost as many requests as a listing of all packs, and then by that listing. So it never costs more than twice the least.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from dsv.errors import UsageError
from dsv.model import keys
from dsv.model.ids import PackId
from dsv.repo.indexes import Indexes
from dsv.repo.metadata import MetadataCache
from dsv.store.base import Store
from dsv.store.together import together

_PAGE = 1000
"""Rows of a listing that most stores give in one answer."""
_NOTE = "lost-pack"


class Packs:
    """Every pack is asked for once. `known_lost`: those that were found to be missing so far."""

    def __init__(self, store: Store, indexes: Indexes, metadata: MetadataCache) -> None:
        self._store = store
        self._indexes = indexes
        self._metadata = metadata
        self._present: set[PackId] = set()
        self.known_lost: set[PackId] = set()
        self._asked = 0
        self._listed = False

    def __contains__(self, pack_id: object) -> bool:
        """As a container these are the packs that the store lacks."""
        return isinstance(pack_id, PackId) and self.is_lost(pack_id)

    def is_lost(self, pack_id: PackId) -> bool:
        """Whether the store lacks the pack."""
        if pack_id in self._present:
            return False
        if pack_id in self.known_lost:
            return True
        if not self._listed and self._asked >= self._indexes.packs() // _PAGE:
            self.look_at_all()
            if pack_id in self._present:
                return False
        return self._ask(pack_id)  # also after a listing, as the pack may have been stored since

    def lost_of(self, packs: Iterable[PackId]) -> set[PackId]:
        """Those of these packs that the store lacks: all are asked for at once."""
        wanted = set(packs)
        unknown = [one for one in wanted if one not in self._present and one not in self.known_lost]
        together([partial(self._ask, one) for one in unknown])
        return wanted & self.known_lost

    def _ask(self, pack_id: PackId) -> bool:
        self._asked += 1
        key = keys.pack_key(pack_id)
        there = any(item.key == key for item in self._store.list(key))
        (self._present if there else self.known_lost).add(pack_id)
        return not there

    def look_at_all(self) -> None:
        """Lists all packs of the store."""
        self._listed = True
        for item in self._store.list(keys.PACK_PREFIX):
            pack_id = keys.parse_pack_key(item.key)
            if pack_id is not None:
                self._present.add(pack_id)

    def note(self, pack_id: PackId) -> None:
        """Remembers for other processes here that a pack was not there when it was read."""
        self._metadata.put(_NOTE, str(pack_id), b"")

    def noted(self) -> bool:
        """Whether a pack that some process here found missing still is. Asks nothing if there is no note."""
        for name in self._metadata.names(_NOTE):
            try:
                pack_id = PackId.parse(name)
            except UsageError:
                continue
            if not self._ask(pack_id):
                self.forget([pack_id])
        return bool(self.known_lost)

    def forget(self, packs: Iterable[PackId]) -> None:
        """What was noted of these packs no longer matters: they are back, or what they held is stored again."""
        for pack_id in packs:
            self._metadata.drop(_NOTE, str(pack_id))
