"""Packs and objects that can be relied on. An index entry proves neither that its pack still exists nor that
the pack's bytes are intact.

Objects that a read finds lost or damaged are recorded beside the local copies of metadata, and count as
absent. So do, for every user, objects that `dsv verify` has marked in the store as damaged.

Before a new commit refers to an object of an index, its pack is looked up: pack by pack until that has cost
as many requests as a listing of all packs, then by that listing. This costs at most twice the minimum.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from dsv.errors import UsageError
from dsv.format import keys
from dsv.format.locator import ObjectKind
from dsv.stores.base import StoreBackend, listed_size, parsed, together
from dsv.values.ids import ChunkId, CommitId, Id, PackId

if TYPE_CHECKING:
    from dsv.format.records import Damage
    from dsv.repo.objects.indexes import Indexes
    from dsv.repo.objects.metadata import MetadataCache

_PAGE = 1000
"""Rows of a listing that most stores give in one answer."""
_LOST = "lost-pack"  # PACK: it was missing when it was read
_DAMAGED = "damaged-object"  # PACK-KIND-ID: the object's bytes in this pack were wrong
# NUMBER-COMMIT: what this mark says is missing was looked for in the files of the commit.
_LOOKED_FOR = "looked-for"
_MISSING = "missing-object"  # KIND-ID: the object could be read from nowhere, and was not stored again since


class PackLookup:
    """Asks for each pack once. `known_lost`: missing packs. `missing`: lost objects, found by `noted`."""

    def __init__(self, store: StoreBackend, indexes: Indexes, metadata: MetadataCache) -> None:
        self._store = store
        self._indexes = indexes
        self._metadata = metadata
        self._present: set[PackId] = set()
        self.known_lost: set[PackId] = set()
        self.missing: set[tuple[ObjectKind, Id]] = set()
        self._suspect: set[PackId] = set()
        self._damaged: set[tuple[PackId, ObjectKind, Id]] | None = None
        self._marks: tuple[int, Damage] | None = None
        self._marked: frozenset[PackId] = frozenset()
        self._asked = 0
        self._listed = False

    def may_rely(self, kind: ObjectKind, object_id: Id, pack_id: PackId) -> bool:
        """Return whether a new commit may refer to an object in this pack: the pack exists, and no read on
        this machine has found the object damaged in it."""
        return (pack_id, kind, object_id) not in self._known_damage() and not self.is_lost(pack_id)

    def is_suspect(self, pack_id: PackId) -> bool:
        """Return whether the pack is known to be lost, or may have damaged objects. Sends no request."""
        return pack_id in self.known_lost or pack_id in self._suspect or pack_id in self._marked

    @property
    def any_suspect(self) -> bool:
        """True if `is_suspect` is true for any pack, or any object is missing."""
        return bool(self.known_lost or self._suspect or self._marked or self.missing)

    def is_lost(self, pack_id: PackId) -> bool:
        """Return whether the store lacks the pack, or the pack is marked as unusable."""
        if pack_id in self._marked:
            return True
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
        """Return the packs that the store lacks. All are asked for at the same time."""
        wanted = set(packs)
        unknown = [one for one in wanted if one not in self._present and one not in self.known_lost]
        together([partial(self._ask, one) for one in unknown])
        return wanted & (self.known_lost | self._marked)

    def _ask(self, pack_id: PackId) -> bool:
        self._asked += 1
        there = listed_size(self._store, keys.pack_key(pack_id)) is not None
        (self._present if there else self.known_lost).add(pack_id)
        return not there

    def look_at_all(self) -> None:
        """List all packs of the store."""
        self._listed = True
        self._present.update(parsed(keys.parse_pack_key, self._store.list(keys.PACK_PREFIX)))

    def renew(self) -> None:
        """Ask the store again for every pack, because gc may have deleted some."""
        self._present.clear()
        self._asked, self._listed = 0, False

    def stored(self, pack_id: PackId) -> None:
        """Note that this process has stored the pack."""
        self._present.add(pack_id)

    def note(self, pack_id: PackId) -> None:
        """Note for other processes on this machine that a pack was missing when it was read."""
        self._metadata.put(_LOST, str(pack_id), b"")

    def note_damaged(self, kind: ObjectKind, object_id: Id, pack_id: PackId) -> None:
        """Note that an object's bytes in a pack were wrong when they were read."""
        self._known_damage().add((pack_id, kind, object_id))
        self._suspect.add(pack_id)
        self._metadata.put(_DAMAGED, f"{pack_id}-{kind.value}-{object_id}", b"")

    def note_missing(self, kind: ObjectKind, object_id: Id) -> None:
        """Note that an object could be read from nowhere, so the next sync stores it again."""
        self._metadata.put(_MISSING, f"{kind.value}-{object_id}", b"")

    def learn(self, number: int, marks: Damage) -> None:
        """Take the store's damage mark of this number: nothing that it names is relied on."""
        self._marks = number, marks
        self._marked = frozenset(marks.packs)
        self._known_damage().update(marks.objects)
        self._suspect.update(pack_id for pack_id, _, _ in marks.objects)

    def looked_for(self, commit: CommitId) -> None:
        """Note that objects marked as missing were stored again, if the files of this commit have them."""
        if self._marks is not None:
            self._metadata.put(_LOOKED_FOR, f"{self._marks[0]:x}-{commit}", b"")

    def _marked_missing(self, commit: CommitId) -> bool:
        """Add to `missing` what is marked so and was not stored again; return whether there may be any."""
        if self._marks is None or f"{self._marks[0]:x}-{commit}" in self._metadata.names(_LOOKED_FOR):
            return False
        for kind, object_id in self._marks[1].missing:
            if self._indexes.find(kind, object_id, usable=self.may_rely) is None:
                self.missing.add((kind, object_id))
        return bool(self.missing) or not self._marks[1].all_missing

    def noted(self, commit: CommitId) -> bool:
        """Return whether anything that a process on this machine found lost or damaged still is, and was not
        stored again since; or is marked as missing in the store, and was not looked for in this commit's
        files yet. Sends no request if nothing is noted."""
        marked = self._marked_missing(commit)
        for name in self._metadata.names(_LOST):
            with suppress(UsageError):
                pack_id = PackId.parse(name)
                if not self._ask(pack_id):
                    self.forget([pack_id])
        for name in self._metadata.names(_MISSING):
            with suppress(UsageError, ValueError):
                number, _, text = name.partition("-")
                kind, object_id = ObjectKind(int(number)), ChunkId.parse(text)
                if self._indexes.find(kind, object_id, usable=self.may_rely) is None:
                    self.missing.add((kind, object_id))
                else:
                    self._metadata.drop(_MISSING, name)
        if self.missing:
            self._suspect.update(pack_id for pack_id, _, _ in self._known_damage())
        return marked or bool(self.known_lost or self.missing)

    def forget(self, packs: Iterable[PackId]) -> None:
        """Drop the notes about these packs: they exist again, or their objects were stored again."""
        for pack_id in packs:
            self._metadata.drop(_LOST, str(pack_id))

    def _known_damage(self) -> set[tuple[PackId, ObjectKind, Id]]:
        if self._damaged is None:
            self._damaged = set()
            for name in self._metadata.names(_DAMAGED):
                with suppress(UsageError, ValueError):
                    pack, number, text = name.split("-")
                    self._damaged.add((PackId.parse(pack), ObjectKind(int(number)), ChunkId.parse(text)))
        return self._damaged
