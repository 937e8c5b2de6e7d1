"""Reading objects. Each is checked against its id before it is returned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakValueDictionary

from dsv.errors import IntegrityError, NotFound, Unreachable, Unsupported
from dsv.format import keys
from dsv.format.locator import Location, Locator, ObjectKind, largest
from dsv.format.recipe import Recipe
from dsv.format.segment import Segment
from dsv.format.tree import Node, PathColumns
from dsv.repo.errors import NOT_OURS, damaged, decoded, unlisted, unreadable
from dsv.repo.objects.access import STORE_ALONE, Access
from dsv.repo.objects.checks import FRAME_SLACK, LOCATOR_ROWS, OBJECT_LIMITS, checked, is_object, is_possible
from dsv.repo.objects.commits import CommitReader
from dsv.repo.objects.erasures import NOWHERE, Erasures, checked_erasures, erased_error, local_erasures
from dsv.repo.objects.externals import Externals, SourceChanged
from dsv.repo.objects.indexes import Indexes
from dsv.repo.objects.packs import PackLookup
from dsv.repo.objects.ranges import RangeReader, ReadThreads, spans
from dsv.stores.base import Bytes, StoreBackend, StoreMissing, absent
from dsv.values.ids import CommitId, ErasureId, Id, NodeId, PackId, RecipeId, SegmentId

if TYPE_CHECKING:
    from dsv.repo.objects.metadata import MetadataCache
    from dsv.repo.tracking import Answers


_ENOUGH, _REMEMBERED = 4, 30.0
"""After so many objects in a row that are wrong, others of their pack are not read alone, for so many seconds: a
repaired store is noticed, and one pack of a million damaged objects does not take a million requests."""
_CHECKED_MAX = 1 << 14
"""The most ids that are remembered: 2 MB, for trees of 16 million files."""


class SegmentDecoder:
    """Decodes the segments of one store."""

    def __init__(self) -> None:
        self.paths = PathColumns()
        """Splits the path columns, and remembers the last ones."""
        self._in_use: WeakValueDictionary[SegmentId, Segment] = WeakValueDictionary()
        self._checked: set[SegmentId] = set()

    def decode(self, segment_id: SegmentId, data: bytes) -> Segment:
        """Decode the bytes of this id. The segment may be shared with others: treat it as frozen.

        Raises `IntegrityError`, `Unsupported`.
        """
        segment = self._in_use.get(segment_id)
        if segment is None:
            if segment_id in self._checked:
                segment = Segment.decode(data, self.paths.split_again, checked=True)
            else:
                split = partial(Segment.decode, split=self.paths.split)
                segment = decoded(split, data, "segment", segment_id)
                if len(self._checked) < _CHECKED_MAX:
                    self._checked.add(segment_id)
            self._in_use[segment_id] = segment
        return segment


T = TypeVar("T")
FindLocator = Callable[[], Locator | None]


class Located(Generic[T]):
    """A checked object and its locator, if any, which is read only when needed: most never are.

    Another form of the same object takes its locator: `Located(decoded, located)`.
    """

    __slots__ = ("__weakref__", "_locator", "value")

    def __init__(self, value: T, locator: Locator | FindLocator | Located[Any] | None) -> None:
        self.value = value
        self._locator = locator

    @property
    def locator(self) -> Locator | None:
        if isinstance(self._locator, Located):
            self._locator = self._locator.locator
        elif callable(self._locator):
            self._locator = self._locator()
        return self._locator


# Metadata that is stored together is read in ranges of up to this many bytes.
_METADATA_SPAN = 4 << 20
_METADATA_WINDOW = 64
_METADATA_HELD = 32 << 20  # bytes, unpacked


Named = TypeVar("Named", bound=Id)


class Objects(CommitReader):
    """All objects with an id in one store."""

    def __init__(
        self, store: StoreBackend, metadata: MetadataCache, answers: Answers | None = None,
        access: Access = STORE_ALONE, read_erasures: Callable[[MetadataCache], Erasures] = local_erasures,
    ) -> None:  # fmt: skip
        super().__init__(store, metadata, answers, access)
        self.threads = ReadThreads()
        """Threads that read from the store. An `OpenStore` closes them."""
        self.opened: set[CommitId] = set()
        """The commits whose trees were opened."""
        self.indexes = Indexes(store, metadata)
        self.packs = PackLookup(store, self.indexes, metadata)
        self.externals = Externals(store, metadata, access.read_source)
        self._gone: dict[PackId, float] = {}
        """Packs that were missing when they were read, and when that was."""
        self._wrong: dict[PackId, tuple[int, float]] = {}
        """How many objects of a pack in a row were wrong when they were read alone, and when the last one was."""
        self._looked: dict[PackId | None, float] = {}
        """When the indexes were read again for an object of a pack; None stands for objects in no index."""
        self.clock = time.monotonic
        self._in_use: WeakValueDictionary[tuple[ObjectKind, Id], Located[bytes]] = WeakValueDictionary()
        self._segments = SegmentDecoder()
        self._read_erasures = read_erasures
        self.known_erasures: Erasures | None = None  # as read; an eraser sets others for a while

    def also_read(self, copies: MetadataCache) -> None:
        """Look for metadata in these copies too, before the store is asked."""
        self._metadata.also_read(copies)

    @property
    def erasures(self) -> Erasures:
        """The erasures of the store, as of when they were first read."""
        if self.known_erasures is None:
            self.known_erasures = self._read_erasures(self._metadata)
        return self.known_erasures

    def check_erasures(self) -> dict[ErasureId, IntegrityError]:
        """Read all erasures from the store itself, not from copies. Return the errors of damaged records."""
        self.known_erasures, errors = checked_erasures(self.store, self._metadata)
        return errors

    def forget_erasures(self) -> None:
        """Read again what was erased when it is next needed."""
        self.known_erasures = None

    def _check_erased(self, kind: ObjectKind, object_id: Id) -> None:
        if kind <= ObjectKind.RECIPE and (found := self.erasures.objects.get((kind, object_id))) is not None:
            raise erased_error(f"{kind.name.lower()} {object_id}", found)

    def nodes(self, wanted: Iterable[tuple[NodeId, Location | None]]) -> Iterator[Located[Node]]:
        """Like `segments`. A node of a store without `node-locators` has no locator."""
        for node_id, found in self._read_ahead(ObjectKind.NODE, wanted):
            yield Located(decoded(Node.decode, found.value, "node", node_id), found)

    def recipe(
        self, recipe_id: RecipeId, where: Location | None = None, said: tuple[int, int] | None = None
    ) -> tuple[Recipe, Locator | None]:
        """said: the level and the content bytes that the recipe above it gives. Raises `IntegrityError`."""
        found = self.metadata_object(ObjectKind.RECIPE, recipe_id, where)
        recipe = decoded(Recipe.decode, found.value, "recipe", recipe_id)
        if said is not None and said != (recipe.level, recipe.size):
            raise IntegrityError(
                f"recipe {recipe_id} is not what the recipe above it says",
                subject=str(recipe_id),
                hint=NOT_OURS,
            )
        return recipe, found.locator

    def segments(self, wanted: Iterable[tuple[SegmentId, Location | None]]) -> Iterator[Located[Segment]]:
        """Yield the segments in the given order. Those stored together are read together, ahead of use."""
        for segment_id, found in self._read_ahead(ObjectKind.SEGMENT, wanted):
            yield Located(self._segments.decode(segment_id, found.value), found)

    def recipes(self, wanted: Iterable[tuple[RecipeId, Location | None]]) -> Iterator[Located[Recipe]]:
        """Like `segments`."""
        for recipe_id, found in self._read_ahead(ObjectKind.RECIPE, wanted):
            yield Located(decoded(Recipe.decode, found.value, "recipe", recipe_id), found)

    def encode_segment(self, segment: Segment) -> bytes:
        """Like `Segment.encode`, but faster for paths that were seen a moment ago."""
        return segment.encode(self._segments.paths.split)

    def find(self, kind: ObjectKind, object_id: Id) -> Location:
        """Return the indexed location of an object that is referred to. Raises `IntegrityError`."""
        impossible: Location | None = None
        for found in self._places(kind, object_id):
            if is_possible(kind, found):
                return found
            impossible = impossible or found
        if impossible is None:
            raise unlisted(kind, object_id, self.store.url)
        raise damaged(kind, object_id, impossible)

    def read(self, kind: ObjectKind, object_id: Id, where: Location | None = None) -> bytes:
        """Return an object's bytes from the store, checked: from `where` if possible, else by the index."""
        self._check_erased(kind, object_id)
        if where is not None and not where.pack.is_external:
            try:
                return checked(kind, object_id, where, self._bytes_at(kind, object_id, where))
            except (NotFound, IntegrityError):
                pass
        return self.read_by_index(kind, object_id, where)[0]

    def remember(self, kind: ObjectKind, object_id: Id, data: bytes, locator: bytes | None = None) -> None:
        """Keep a local copy of metadata that this process has checked, or is writing."""
        self._metadata.put(kind.name.lower(), str(object_id), data)
        if locator is not None:
            self._metadata.put(f"{kind.name.lower()}-locator", str(object_id), locator)

    def remember_commit(self, commit_id: CommitId, data: bytes, locator: bytes) -> None:
        self._metadata.put("commit", str(commit_id), data)
        self._metadata.put("commit-locator", str(commit_id), locator)

    def read_by_index(
        self, kind: ObjectKind, object_id: Id, tried: Location | None = None
    ) -> tuple[bytes, Location]:
        """Return the object and the first location that has it. Raises `IntegrityError` if none has.

        tried: a location that does not have it. What is lost or damaged is noted for later commands.
        """
        self._check_erased(kind, object_id)
        try:
            return self._read_here(kind, object_id, tried)
        except (IntegrityError, Unreachable) as error:
            found = None if self.access.mirrors is None else self.access.mirrors.read(kind, object_id, error)
            if found is None:
                raise
            return found, NOWHERE

    def _read_here(self, kind: ObjectKind, object_id: Id, tried: Location | None) -> tuple[bytes, Location]:
        first: tuple[Location, NotFound | IntegrityError] | None = None
        gone: list[PackId] = []
        for where in self._places(kind, object_id):
            try:
                count, last = self._wrong.get(where.pack, (0, 0.0))
                if where == tried and count >= _ENOUGH and self.clock() - last < _REMEMBERED:
                    raise damaged(kind, object_id, where)
                found = checked(kind, object_id, where, self._bytes_at(kind, object_id, where))
                self._wrong.pop(where.pack, None)
                return found, where
            except StoreMissing:
                raise
            except (NotFound, IntegrityError) as error:
                if first is None or isinstance(first[1], SourceChanged):
                    first = where, error
                if isinstance(error, NotFound):
                    gone.append(where.pack)
                elif not where.pack.is_external:
                    self.packs.note_damaged(kind, object_id, where.pack)
                    self._wrong[where.pack] = self._wrong.get(where.pack, (0, 0.0))[0] + 1, self.clock()
        if tried is not None and tried.pack not in gone and self.packs.is_lost(tried.pack):
            gone.append(tried.pack)
        for pack_id in gone:
            self.packs.note(pack_id)
        if first is not None and isinstance(first[1], SourceChanged):  # the store has lost nothing
            raise first[1]
        self.packs.note_missing(kind, object_id)
        if first is None:
            raise unlisted(kind, object_id, self.store.url)
        raise unreadable(kind, object_id, first[0], self.store.url, first[1]) from first[1]

    def _places(self, kind: ObjectKind, object_id: Id) -> Iterator[Location]:
        """Yield every location in an index, those outside the store last; then those that appeared since,
        because gc may have moved the object; then those that only the store's own index files have.

        These two are looked for once in a while for each pack, however many of its objects are damaged."""
        tried = set[Location]()
        looks: tuple[Callable[[], bool], ...] = (self.indexes.refresh, self.indexes.reload)
        for look in (None, *looks):
            if look == self.indexes.refresh:
                now = self.clock()
                about: list[PackId | None] = [one.pack for one in tried] or [None]
                if all(now - self._looked.get(one, -_REMEMBERED) < _REMEMBERED for one in about):
                    return
                self._looked.update(dict.fromkeys(about, now))
            places = self.indexes.places(kind, object_id) if look is None or look() else ()
            outside: list[Location] = []
            for where in places:
                if where not in tried:
                    tried.add(where)
                    if where.pack.is_external:
                        outside.append(where)
                    else:
                        yield where
            yield from outside

    def elsewhere(self, kind: ObjectKind, tried: Location, object_id: Id) -> Location | None:
        """Return the indexed location of an object whose pack is missing; None if the index has no other.
        Index files are listed again for each missing pack, because gc has then written new ones."""
        while True:
            for where in self.indexes.places(kind, object_id):
                if where.pack not in self._gone and where.pack != tried.pack and is_possible(kind, where):
                    return where
            if tried.pack in self._gone:
                return None
            self._gone[tried.pack] = self.clock()
            self.indexes.refresh()

    def metadata_object(self, kind: ObjectKind, object_id: Id, where: Location | None) -> Located[bytes]:
        """Return a node, segment or recipe, checked: a local copy, else from `where`, else by the index."""
        self._check_erased(kind, object_id)
        found = self.local(kind, object_id)
        if found is not None:
            return found
        if where is not None:
            try:
                stored = self._bytes_at(kind, object_id, where, where.tail)
                return Located(*self._accept(kind, object_id, where, stored))
            except (NotFound, IntegrityError):
                pass
            except Unreachable:
                if self.access.mirrors is None:
                    raise
        data, where = self.read_by_index(kind, object_id, where)
        locator = self._tail(kind, where)
        self._metadata.put(kind.name.lower(), str(object_id), data)
        return Located(data, locator)

    def _bytes_at(self, kind: ObjectKind, object_id: Id, where: Location, tail: int = 0) -> memoryview:
        """Return the bytes at `where` and `tail` bytes after them. Raises `NotFound`, `IntegrityError`."""
        if not is_possible(kind, where):
            raise damaged(kind, object_id, where)
        if where.pack.is_external:
            return self.externals.check([self.externals.row(where)])
        if self.clock() - self._gone.get(where.pack, -_REMEMBERED) < _REMEMBERED:
            raise absent(self.store.url, keys.pack_key(where.pack))
        return self.store.get_range(keys.pack_key(where.pack), where.offset, where.stored + tail)

    def _tail(self, kind: ObjectKind, where: Location) -> Locator | None:
        """Return the locator behind an object that was read, whose lengths are therefore possible."""
        if not where.tail:
            return None
        try:
            stored = self.store.get_range(keys.pack_key(where.pack), where.offset + where.stored, where.tail)
            return _locator(stored, LOCATOR_ROWS.get(kind, 0))
        except (NotFound, IntegrityError):
            return None

    def _accept(
        self, kind: ObjectKind, object_id: Id, where: Location, stored: memoryview
    ) -> tuple[bytes, Locator | None]:
        """Check what was read at `where` (the object, then its locator) and keep local copies."""
        data = checked(kind, object_id, where, stored[: where.stored])
        encoded = bytes(stored[where.stored : where.stored + where.tail])
        locator = _locator(encoded, LOCATOR_ROWS.get(kind, 0)) if where.tail else None
        self.remember(kind, object_id, data, None if locator is None else encoded)
        return data, locator

    def local(self, kind: ObjectKind, object_id: Id) -> Located[bytes] | None:
        """Return the checked local copy of a node, segment or recipe. It is read once while in use."""
        found = self._in_use.get((kind, object_id))
        if found is not None:
            return found
        data = self._metadata.get(kind.name.lower(), str(object_id), OBJECT_LIMITS[kind])
        if data is None:
            return None
        if not is_object(kind, object_id, data):
            self._metadata.drop(kind.name.lower(), str(object_id))
            return None
        found = self._in_use[kind, object_id] = Located(data, partial(self._local_locator, kind, object_id))
        return found

    def _local_locator(self, kind: ObjectKind, object_id: Id) -> Locator | None:
        name, rows = f"{kind.name.lower()}-locator", LOCATOR_ROWS.get(kind, 0)
        encoded = self._metadata.get(name, str(object_id), largest(rows) + FRAME_SLACK)
        locator = None if encoded is None else _locator(encoded, rows)
        if encoded is not None and locator is None:
            self._metadata.drop(name, str(object_id))
        return locator

    def _read_ahead(
        self, kind: ObjectKind, wanted: Iterable[tuple[Named, Location | None]]
    ) -> Iterator[tuple[Named, Located[bytes]]]:
        window: list[tuple[Named, Location | None]] = []
        weight = 0
        for one in wanted:
            more = 0 if one[1] is None else one[1].length
            if len(window) == _METADATA_WINDOW or (window and weight + more > _METADATA_HELD):
                yield from self._window(kind, window)
                window, weight = [], 0
            window.append(one)
            weight += more
        yield from self._window(kind, window)

    def _window(
        self, kind: ObjectKind, window: list[tuple[Named, Location | None]]
    ) -> Iterator[tuple[Named, Located[bytes]]]:
        ready: dict[Named, Located[bytes]] = {}
        remote: list[tuple[Location, Named]] = []
        held = 0
        for object_id, where in window:
            located = self.local(kind, object_id) if held <= _METADATA_HELD else None
            if located is not None:
                ready[object_id] = located
                held += len(located.value)
            elif where is not None and is_possible(kind, where):
                remote.append((where, object_id))
        for place, object_id, stored in RangeReader(self.store, self.threads).read(
            spans(remote, _METADATA_SPAN), partial(self.elsewhere, kind)
        ):
            if stored is not None:  # otherwise the locator was wrong, and the index decides
                with suppress(IntegrityError):
                    located = Located(*self._accept(kind, object_id, place, stored))
                    ready[object_id] = self._in_use[kind, object_id] = located
        for object_id, _ in window:
            located = ready.pop(object_id, None)
            yield object_id, located or self.metadata_object(kind, object_id, None)


def _locator(data: Bytes, max_rows: int) -> Locator | None:
    """Return the decoded locator; None if it is damaged or newer: the index has all its rows."""
    with suppress(IntegrityError, Unsupported):
        return Locator.decode(data, max_rows)
    return None
