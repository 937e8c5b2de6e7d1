"""The upload pipeline: cut contents into chunks, leave out known ones, pack the others and send them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, Self

from blake3 import blake3

from dsv.errors import Conflict, IntegrityError
from dsv.format import external
from dsv.format.codec import Codec, Compressor
from dsv.format.index import IndexBuilder
from dsv.format.locator import Location, Locator, ObjectKind
from dsv.format.pack import CODECS, Packed
from dsv.format.recipe import SINGLE_CHUNK_MAX, FileCutter, Recipe, build_recipe
from dsv.format.segment import Segment
from dsv.format.tree import Entry, Node
from dsv.repo.format_log import EXTERNAL_FEATURE
from dsv.repo.objects.erasures import NONE, NOWHERE, Erasures, RefusedContent
from dsv.repo.session import Session
from dsv.repo.tree.reader import TreePart
from dsv.stores.base import Bytes
from dsv.transfer.packing import Memory, PackStream, Row, SealedPack, Sender
from dsv.values.ids import EMPTY_FILE, ChunkId, FileId, Id, NodeId, PackId, RecipeId, SegmentId
from dsv.values.paths import show

# An index file is written at about this many rows, so that memory does not grow with the dataset.
INDEX_ROWS = 1 << 18


class UploadJournal(Protocol):
    """An upload's notes of what the next one need not do again if this one is killed."""

    def pack_uploaded(self, pack_id: PackId, size: int, rows: list[Row]) -> None: ...

    def recipe(self, recipe_id: RecipeId, encoded: bytes) -> None: ...

    def clear(self) -> None:
        """Everything that was noted is now in an index of the store."""
        ...


class StoredContent(NamedTuple):
    """A file's content in the store. `location` is that of its chunk or recipe; None if it is empty."""

    size: int
    file_id: FileId
    recipe_id: RecipeId | None
    location: Location | None


class ContentHasher:
    """Takes contents like an `Uploader`, and stores nothing: its locations are nowhere."""

    erasures: Erasures = NONE

    def __init__(self) -> None:
        self._cutter = FileCutter()

    def add_bytes(self, data: bytes) -> StoredContent:
        """Store the content of a file of at most `SINGLE_CHUNK_MAX` bytes."""
        if not data:
            return StoredContent(0, EMPTY_FILE, None, None)
        chunk_id = ChunkId.hash(data)
        self.erasures.check_new_file(chunk_id)
        return StoredContent(len(data), FileId(chunk_id), None, self._chunk(chunk_id, data))

    def add_stream(self, readinto: Callable[[memoryview], int]) -> StoredContent:
        """Store a larger content. `readinto` fills a buffer and returns the number of bytes, 0 at the end."""
        whole = blake3()
        ids, lengths, places = bytearray(), list[int](), list[Location]()
        size = 0
        for chunk in self._cutter.chunks(readinto):
            size += len(chunk)
            whole.update(chunk)
            chunk_id = ChunkId.hash(chunk)
            ids.extend(chunk_id)
            lengths.append(len(chunk))
            places.append(self._chunk(chunk_id, chunk, size - len(chunk)))
        file_id = FileId(whole.digest())
        self.erasures.check_new_file(file_id)
        if size <= SINGLE_CHUNK_MAX:  # it shrank since its size was read; the caller notices that too
            return StoredContent(size, file_id, None, places[0] if places else None)
        recipe_id, location = self._recipe(bytes(ids), lengths, places)
        return StoredContent(size, file_id, recipe_id, location)

    def _chunk(self, chunk_id: ChunkId, data: Bytes, start: int = 0) -> Location:
        return NOWHERE

    def _recipe(self, ids: bytes, lengths: list[int], places: list[Location]) -> tuple[RecipeId, Location]:
        return build_recipe(ids, lengths)[-1][0], NOWHERE


class Uploader(ContentHasher):
    """Stores contents and trees, for one thread. Only after `finish` may a commit refer to its results."""

    def __init__(self, session: Session, journal: UploadJournal | None = None) -> None:
        super().__init__()
        self._session = session
        self._journal = journal
        self._new: dict[tuple[ObjectKind, bytes], Location] = {}
        """Objects that were packed, but are in no index file yet."""
        self._compressor = Compressor()
        memory = Memory()
        self._sender = Sender(session, None if journal is None else journal.pack_uploaded, memory)
        self._data = PackStream(self._send_data, memory)
        self._metadata = PackStream(self._send_metadata)
        self._recipes: dict[RecipeId, bytes] = {}
        self._whole: set[RecipeId] = set()  # all of whose content is known to be in the store
        self._readable: set[RecipeId] = set()  # the same, but contents may be outside the store
        self._external = external.Builder()
        self.source: Callable[[], external.ExternalSource] | None = None
        """If set, the next content is not stored, but referred to in the file that this returns. Called after
        its first bytes were read."""
        self._own: set[PackId] = set()  # packs that this upload has filled
        self._index_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.close()
        del self._data, self._metadata  # 12 MB, which call methods of this

    @property
    def uploaded_bytes(self) -> int:
        return self._sender.sent_bytes + self._index_bytes

    def resume(
        self, packs: Mapping[PackId, tuple[int, list[Row]]], recipes: Mapping[RecipeId, bytes]
    ) -> None:
        """Reuse what a killed upload left: packs that are still in the store, and computed recipes."""
        for pack_id, (size, rows) in packs.items():
            if self._session.has_pack(pack_id, size):
                self._add_rows(rows)
        self._recipes = dict(recipes)

    def _find(self, kind: ObjectKind, object_id: Id, *, outside: bool = False) -> Location | None:
        """Find an object. A content that is only referred to counts as absent, unless `outside` is set."""
        found = self._new.get((kind, object_id)) or self._session.find(kind, object_id)
        return None if found is not None and found.pack.is_external and not outside else found

    def _add_rows(self, rows: list[Row]) -> None:
        self._new.update(((kind, object_id), location) for kind, object_id, location in rows)

    def add_all(self, packed: Packed) -> list[Location]:
        """Store contents of small files, at least one, already hashed and compressed. They are copied."""
        for chunk_id in packed.ids if self.erasures else ():
            self.erasures.check_new(ObjectKind.CHUNK, chunk_id)
        known = [self._find(ObjectKind.CHUNK, chunk_id) for chunk_id in packed.ids]
        # The usual case: all are new and different.
        if not any(known) and len(set(packed.ids)) == len(packed.ids):
            rows = self._data.add_all(packed)
            if rows is not None:
                self._add_rows(rows)
                self._write_full_index()
                return [location for _, _, location in rows]
        places: list[Location] = []
        end = 0
        columns = (packed.codecs, packed.lengths, packed.stored)
        for chunk_id, codec, length, size in zip(packed.ids, *columns, strict=True):
            location = self._find(ObjectKind.CHUNK, chunk_id)
            if location is None:
                location = self._add_chunk(chunk_id, CODECS[codec], packed.data[end : end + size], length)
            places.append(location)
            end += size
        return places

    def add_stored(self, chunk_id: ChunkId, codec: Codec, stored: Bytes, length: int) -> None:
        """Store a chunk as another store has it: already checked and compressed."""
        self._check_part(chunk_id)
        if self._find(ObjectKind.CHUNK, chunk_id) is None:
            self._add_chunk(chunk_id, codec, stored, length)

    def find_chunk(self, chunk_id: ChunkId) -> Location | None:
        """Return where the store or this upload has a chunk."""
        return self._find(ObjectKind.CHUNK, chunk_id)

    def add_unsized(self, readinto: Callable[[memoryview], int]) -> StoredContent:
        """Store a content of unknown size; `readinto` is as in `add_stream`."""
        start = bytearray(SINGLE_CHUNK_MAX + 1)
        view, size = memoryview(start), 0
        while size < len(start) and (count := readinto(view[size:])):
            size += count
        if size <= SINGLE_CHUNK_MAX:
            return self.add_bytes(bytes(view[:size]))
        position = 0

        def again(buffer: memoryview) -> int:
            nonlocal position
            if position == size:
                return readinto(buffer)
            count = min(len(buffer), size - position)
            buffer[:count] = view[position : position + count]
            position += count
            return count

        return self.add_stream(again)

    def find(
        self, size: int, file_id: FileId, recipe_id: RecipeId | None, *, outside: bool = False
    ) -> StoredContent | None:
        """Return a content with these ids if all of it is stored and not erased. outside: or referred to."""
        if not size:
            return StoredContent(0, file_id, None, None)
        if self.erasures.file(file_id) is not None:
            return None
        found = (
            self._find(ObjectKind.CHUNK, file_id, outside=outside)
            if recipe_id is None
            else self._whole_recipe(recipe_id, outside)
        )
        return None if found is None else StoredContent(size, file_id, recipe_id, found)

    def put_segment(self, segment: Segment, locator: Locator) -> tuple[SegmentId, Location]:
        encoded = self._session.repository.objects.encode_segment(segment)
        segment_id = SegmentId.hash(encoded)
        return segment_id, self.put_metadata(ObjectKind.SEGMENT, segment_id, encoded, locator)

    @property
    def node_locators(self) -> bool:
        return self._session.repository.format.node_locators

    @property
    def keeps_nodes(self) -> bool:
        return self.node_locators and not self._session.avoids_any

    def put_node(self, node: Node, locations: list[Location]) -> tuple[NodeId, Location]:
        encoded = node.encode()
        node_id = NodeId.hash(encoded)
        return node_id, self.put_metadata(ObjectKind.NODE, node_id, encoded, Locator.of(locations))

    def avoids(self, pack_id: PackId) -> bool:
        return self._session.avoids(pack_id)

    def kept_location(self, kind: ObjectKind, part: TreePart) -> Location:
        if part.where is not None and not self._session.avoids(part.where.pack):
            return part.where
        return self._present(kind, part.child.id)

    def content_location(self, entry: Entry, known: Location | None) -> Location:
        if known is not None and not self._session.avoids(known.pack):
            return known
        assert entry.file_id is not None
        if self.erasures.of(entry) is not None:
            return NOWHERE
        if entry.recipe_id is not None:
            return self._present(ObjectKind.RECIPE, entry.recipe_id)
        return self._present(ObjectKind.CHUNK, entry.file_id)

    def new_location(self, entry: Entry, known: Location | None) -> Location:
        if known is not None and known.pack in (self._data.pack, self._metadata.pack):
            return known
        assert entry.file_id is not None
        if self.erasures.of(entry) is not None:
            return NOWHERE
        kind: ObjectKind = ObjectKind.CHUNK if entry.recipe_id is None else ObjectKind.RECIPE
        object_id: Id = entry.file_id if entry.recipe_id is None else entry.recipe_id
        if known is not None and (
            known.pack in self._own or self._session.may_rely(kind, object_id, known.pack)
        ):
            return known
        found = self.find(entry.size, entry.file_id, entry.recipe_id, outside=True)
        if found is not None and found.location is not None:
            return found.location
        objects = self._session.repository.objects
        if any(place.pack in self._session.condemned for place in objects.indexes.places(kind, object_id)):
            return self._store_again(kind, object_id)
        raise IntegrityError(
            f"the content of {show(entry.path)} is not in {objects.store.url} any more, so nothing was published",
            subject=entry.path.decode("utf-8", "backslashreplace"),
            hint="dsv put, or dsv sync in a workspace that has the file, stores it again",
        )

    def put_object(self, kind: ObjectKind, object_id: Id, encoded: bytes) -> Location:
        """Store an object that was found elsewhere, if the store lacks it; metadata with a locator, if
        everything that it lists has a location."""
        if kind is ObjectKind.CHUNK:
            return self._chunk(ChunkId(object_id), encoded)
        places = [self._any_place(below, one) for below, one in _listed(kind, encoded)]
        known = [one for one in places if one is not None]
        whole = len(known) == len(places)
        return self.put_metadata(kind, object_id, encoded, Locator.of(known) if whole else None)

    def _any_place(self, kind: ObjectKind, object_id: Id) -> Location | None:
        """Return a usable location of an object, or else an unusable one, which readers of locators skip."""
        found = self._find(kind, object_id, outside=True)
        indexes = self._session.repository.objects.indexes
        return found if found is not None else next(indexes.places(kind, object_id), None)

    def finish(self) -> None:
        """Return when everything added is durable and in an index."""
        self._data.flush()
        self._put_external()
        self._metadata.flush()
        self._sender.wait()
        if self._new:
            builder = IndexBuilder()
            for (kind, object_id), location in self._new.items():
                builder.add(kind, Id(object_id), location)
            encoded = builder.finish()
            self._session.put_index(encoded)
            self._new.clear()
            self._index_bytes += len(encoded)
        if self._journal is not None:
            self._journal.clear()

    @property
    def erasures(self) -> Erasures:  # type: ignore[override]
        return self._session.repository.objects.erasures

    def _check_part(self, chunk_id: ChunkId) -> None:
        if (found := self.erasures.objects.get((ObjectKind.CHUNK, chunk_id))) is not None:
            raise RefusedContent(f"chunk {chunk_id}", found)

    def _chunk(self, chunk_id: ChunkId, data: Bytes, start: int = 0) -> Location:
        """start: the position of the chunk in its file."""
        self._check_part(chunk_id)
        if self.source is not None:
            return self._refer(chunk_id, self.source(), start, len(data))
        found = self._find(ObjectKind.CHUNK, chunk_id)
        if found is None:
            found = self._add_chunk(chunk_id, *self._compressor.pack_next(data), len(data))
        return found

    def _refer(self, chunk_id: ChunkId, source: external.ExternalSource, start: int, length: int) -> Location:
        """Record where a chunk is, unless the store has it or already refers to it there."""
        found = self._find(ObjectKind.CHUNK, chunk_id, outside=True)
        if found is not None and (
            not found.pack.is_external
            or found.pack == self._external.pack
            or self._session.repository.objects.externals.row(found).source == source
        ):
            return found
        found = self._external.add(chunk_id, source, start, length)
        self._new[ObjectKind.CHUNK, chunk_id] = found
        if self._external.is_full:
            self._put_external()
        self._write_full_index()
        return found

    def _put_external(self) -> None:
        if not self._external:
            return
        pack, filled = self._external.pack, self._external.finish()
        data = filled.encode()
        writer, repository = self._session.writer, self._session.repository
        repository.add_feature(EXTERNAL_FEATURE, writer)
        self._own.add(pack)
        self._session.put_pack(pack, data)
        repository.objects.externals.keep(pack, filled)
        self._index_bytes += len(data)
        self._external = external.Builder()

    def _add_chunk(self, chunk_id: ChunkId, codec: Codec, stored: Bytes, length: int) -> Location:
        location = self._data.add(ObjectKind.CHUNK, chunk_id, codec, stored, length)
        self._new[ObjectKind.CHUNK, chunk_id] = location
        self._write_full_index()
        return location

    def _write_full_index(self) -> None:
        if len(self._new) >= INDEX_ROWS:
            self.finish()

    def _recipe(self, ids: bytes, lengths: list[int], places: list[Location]) -> tuple[RecipeId, Location]:
        """Store the recipe, sub-recipes first, each with the locations of what it lists."""
        below = iter(places)
        sub: dict[bytes, Location] = {}
        top: tuple[RecipeId, Location] | None = None
        for recipe_id, recipe in build_recipe(ids, lengths):
            encoded = recipe.encode()
            if self._journal is not None:
                self._journal.recipe(recipe_id, encoded)
            if recipe.level == 0:
                rows = [next(below) for _ in range(len(recipe))]
            else:
                rows = [sub[child] for child in recipe.children()]
            sub[recipe_id] = self.put_metadata(ObjectKind.RECIPE, recipe_id, encoded, Locator.of(rows))
            top = recipe_id, sub[recipe_id]
        assert top is not None
        (self._whole if self.source is None else self._readable).update(map(RecipeId, sub))
        return top

    def _whole_recipe(self, recipe_id: RecipeId, outside: bool) -> Location | None:
        """Return the location of a recipe if all of its content is stored; both outside condemned packs."""
        found = self._find(ObjectKind.RECIPE, recipe_id)
        if found is None:
            return self._rebuild_recipe(recipe_id)
        known = self._readable if outside else self._whole
        if recipe_id not in known:
            recipe, _ = self._session.repository.objects.recipe(recipe_id, found)
            if not all(self._place(recipe, child, outside) for child in recipe.children()):
                return None
            known.add(recipe_id)
        return found

    def _place(self, recipe: Recipe, child: Id, outside: bool = False) -> Location | None:
        """Return the location of a recipe's child, if the store has all of it."""
        if recipe.level == 0:
            return self._find(ObjectKind.CHUNK, child, outside=outside)
        return self._whole_recipe(RecipeId(child), outside)

    def _rebuild_recipe(self, recipe_id: RecipeId) -> Location | None:
        """Store a recipe that a killed upload had computed, if everything that it lists is in the store."""
        encoded = self._recipes.get(recipe_id)
        if encoded is None:
            return None
        recipe = Recipe.decode(encoded)
        rows: list[Location] = []
        for child in recipe.children():
            found = self._place(recipe, child)
            if found is None:
                return None
            rows.append(found)
        self._whole.add(recipe_id)
        return self.put_metadata(ObjectKind.RECIPE, recipe_id, encoded, Locator.of(rows))

    def put_metadata(
        self, kind: ObjectKind, object_id: Id, encoded: bytes, locator: Locator | None
    ) -> Location:
        """Store a metadata object and, after it, its locator. Everything that it lists is already stored."""
        if kind is ObjectKind.NODE and not self.node_locators:
            locator = None
        described = None if locator is None else locator.encode()
        location = self._find(kind, object_id)
        if location is None:
            row = kind, object_id, *self._compressor.pack(encoded), len(encoded)
            location = self._metadata.add(*row, described, 0 if locator is None else locator.encoded_length)
            self._new[kind, object_id] = location
        self._session.repository.objects.remember(kind, object_id, encoded, described)
        return location

    def _present(self, kind: ObjectKind, object_id: Id) -> Location:
        found = self._find(kind, object_id, outside=True)
        if found is None:
            indexes = self._session.repository.objects.indexes
            places = list(indexes.places(kind, object_id))
            if not places and indexes.refresh():  # others have merged or written index files since
                places = list(indexes.places(kind, object_id))
                if (found := self._find(kind, object_id, outside=True)) is not None:
                    return found
            if places and not any(place.pack in self._session.condemned for place in places):
                return places[0]  # lost, and not here to be uploaded again: the base is no better
            if places:
                return self._store_again(kind, object_id)
            raise IntegrityError(
                f"{kind.name.lower()} {object_id} of the base commit is in no index of "
                f"{self._session.repository.store.url}",
                subject=str(object_id),
                hint="put the missing keys below index/ back from a copy of the store",
            )
        return found

    def _store_again(self, kind: ObjectKind, object_id: Id) -> Location:
        """Store an object that only packs which gc may be about to remove have, and what it lists likewise."""
        try:
            data, _ = self._session.repository.objects.read_by_index(kind, object_id)
        except IntegrityError as error:
            raise Conflict(
                f"gc has just removed {kind.name.lower()} {object_id} from {self._session.repository.store.url}",
                subject=str(object_id),
                hint="run the same command again",
            ) from error
        for below, one in () if kind is ObjectKind.CHUNK else _listed(kind, data):
            if self._find(below, one, outside=True) is None:
                self._store_again(below, one)
        return self.put_object(kind, object_id, data)

    def _send_data(self, pack: SealedPack) -> None:
        self._own.add(pack.id)
        self._sender.send(pack)

    def _send_metadata(self, pack: SealedPack) -> None:
        """Send metadata once everything that it refers to is durable."""
        self._own.add(pack.id)
        self._data.flush()
        self._put_external()
        self._sender.wait()
        self._sender.send(pack)


def _listed(kind: ObjectKind, encoded: bytes) -> list[tuple[ObjectKind, Id]]:
    """Return what a metadata object lists, in the order of its locator."""
    if kind is ObjectKind.RECIPE:
        recipe = Recipe.decode(encoded)
        below = ObjectKind.RECIPE if recipe.level else ObjectKind.CHUNK
        return [(below, Id(one)) for one in recipe.children()]
    if kind is ObjectKind.NODE:
        node = Node.decode(encoded)
        below = ObjectKind.SEGMENT if node.level == 1 else ObjectKind.NODE
        return [(below, child.id) for child in node.children]
    return [
        (ObjectKind.CHUNK, Id(entry.file_id or b""))
        if entry.recipe_id is None
        else (ObjectKind.RECIPE, Id(entry.recipe_id))
        for entry in Segment.decode(encoded).entries()
        if entry.is_file and entry.size
    ]
