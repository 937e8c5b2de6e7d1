"""The packs of a garbage collection: the choice of packs to delete and to rewrite, from a listing, the index
rows and the needed ids; and rewriting their needed objects, and the index files that name them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dsv.errors import Denied, IntegrityError, Unsupported
from dsv.format import index, keys
from dsv.format.codec import Codec, carrying
from dsv.format.columns import cut
from dsv.format.index import Index, IndexBuilder
from dsv.format.locator import Location, Locator, ObjectKind
from dsv.format.pack import FOOTER_SIZE, MAGIC, PACK_TARGET, ROW_SIZE
from dsv.format.records import Damage, MergedFile
from dsv.repo.errors import explain_denied_write
from dsv.repo.merge_indexes import delete_index, put_merge
from dsv.repo.objects.checks import checked
from dsv.repo.objects.metadata import release
from dsv.repo.objects.objects import Objects
from dsv.repo.repository import Repository
from dsv.repo.session import put_index
from dsv.stores.base import StoreBackend, ask_each, if_there, together
from dsv.transfer.packing import PackStream, SealedPack
from dsv.upkeep.ids import IdSet, Seen, heads_of, is_in
from dsv.upkeep.index_rows import IndexRows, PackList, Rows, are_external, id_of
from dsv.upkeep.reach import reach
from dsv.values.ids import CommitId, Id, IndexId, PackId
from dsv.values.units import format_bytes, format_count

MAX_REPACK = 100 * 10**9
"""Most bytes that one garbage collection copies by default."""
_OVERHEAD = len(MAGIC) + FOOTER_SIZE
MOST_ROWS = 1 << 21
"""Most objects that one garbage collection copies: their rows are held in memory."""
AT_ONCE = 256
"""Requests that are made together."""
_INDEX_ROWS = 1 << 18
INDEX_BYTES = 1 << 30
"""Copied bytes after which an index file is written. A killed collection keeps all that was copied before."""
_HELD = 4 * PACK_TARGET
"""Bytes of packs that are read and copied together."""
SMALL = PACK_TARGET // 8
"""A pack of which fewer bytes are needed is small."""
FEWEST = 8
"""The fewest small packs of one kind that are joined, and the factor between two steps of sizes."""


class ListedPacks:
    """The packs of a store, in a listing: 24 bytes of memory for each."""

    def __init__(self, found: Iterable[tuple[PackId, int]]) -> None:
        ids, sizes = bytearray(), array("L")
        for pack_id, size in found:
            ids += pack_id
            sizes.append(size)
        column = np.frombuffer(bytes(ids), "S16")
        _, order = np.unique(column, return_index=True)
        self.ids = PackList(column[order].tobytes())
        self.sizes: NDArray[np.int64] = np.array(sizes, np.int64)[order]

    def marked(self, packs: Iterable[PackId]) -> NDArray[np.bool_]:
        """Return for each listed pack whether it is one of these."""
        found = np.zeros(len(self.ids), np.bool_)
        places = self.ids.places(packs)
        found[places[places >= 0]] = True
        return found

    def chosen(self, mask: NDArray[np.bool_]) -> list[PackId]:
        return [self.ids[int(at)] for at in np.flatnonzero(mask)]


def list_packs(store: StoreBackend) -> ListedPacks:
    """Return all packs: those of a listing, and those that further listings show if it ended early."""
    last, folders = "", set[str]()

    def listed(prefix: str, after: str | None = None) -> Iterator[tuple[PackId, int]]:
        nonlocal last
        for item in store.list(prefix, after):
            last = max(last, item.key)
            folders.add(item.key.removeprefix(keys.PACK_PREFIX).partition("/")[0])
            pack_id = keys.parse_pack_key(item.key)
            if pack_id is not None:
                yield pack_id, item.size

    def found() -> Iterator[tuple[PackId, int]]:
        yield from listed(keys.PACK_PREFIX)
        yield from listed(keys.PACK_PREFIX, last or None)
        for folder in sorted(set(store.folders(keys.PACK_PREFIX)) - folders):
            yield from listed(f"{keys.PACK_PREFIX}{folder}/")

    return ListedPacks(found())


class Missing(msgspec.Struct, frozen=True):
    """Needed objects that no listed pack has."""

    objects: int
    packs: tuple[PackId, ...]
    """Packs that index files name for such objects."""


class Joined(msgspec.Struct, frozen=True):
    """So many small packs become so many."""

    packs: int = 0
    into: int = 0

    @property
    def text(self) -> str:
        return f"{format_count(self.packs, 'small pack')} become {self.into:,}" if self.packs else ""


class GcPlan(msgspec.Struct, frozen=True):
    whole: tuple[PackId, ...]
    """Packs without needed objects."""
    rewrite: tuple[PackId, ...]
    """Packs of which less than half is needed, with erased objects, or to join: needed objects are copied."""
    packs: int
    """Packs of the store."""
    bytes: int
    freed: int
    """Bytes of the packs to delete."""
    copied: int
    """Bytes of the new packs with the copied objects."""
    left: int
    """Packs that are worth rewriting, but too much for one collection."""
    partly: int
    """Packs that stay although a part is not needed."""
    partly_unused: int
    """Bytes of these parts."""
    joined: Joined
    """Small packs among those to rewrite: they are joined to save requests."""

    @property
    def text(self) -> str:
        packs = format_count(len(self.whole) + len(self.rewrite), "pack")
        copied = "nothing to copy first"
        if self.rewrite:
            copied = f"{format_bytes(self.copied)} of {format_count(len(self.rewrite), 'pack')} to copy first"
        return f"{packs} ({format_bytes(self.freed)}) to delete, {copied}{self.joined.text and ', '}{self.joined.text}"


class Marked:
    """The rows with damage marks: a last resort, and no reason to delete another copy."""

    def __init__(self, damage: Damage | None, packs: PackList) -> None:
        self._packs = np.zeros(len(packs), np.bool_)
        self._objects: dict[int, list[tuple[int, int, bytes]]] = {}
        if damage is not None:
            numbers = {pack_id: at for at, pack_id in enumerate(packs)}
            self._packs[[numbers[one] for one in damage.packs if one in numbers]] = True
            for pack_id, kind, object_id in damage.objects:
                if pack_id in numbers:
                    place = numbers[pack_id], int(kind), bytes(object_id)
                    self._objects.setdefault(object_id[0], []).append(place)

    def among(self, rows: Rows, first: int) -> NDArray[np.bool_]:
        """Return for each row whether it is marked. first: the first byte of all their ids."""
        if not len(self._packs):
            return np.zeros(len(rows), np.bool_)
        found: NDArray[np.bool_] = self._packs[rows["pack"]]
        for pack, kind, object_id in self._objects.get(first, ()):
            found |= (rows["pack"] == pack) & (rows["kind"] == kind) & (rows["id"] == object_id)
        return found


class ErasedRows:
    """The rows of erased objects. A pack with such a row is rewritten, whatever else is in it."""

    def __init__(self, objects: Iterable[tuple[ObjectKind, Id]] = ()) -> None:
        self._objects = frozenset(objects)
        self._heads = np.unique(heads_of(b"".join(one for _, one in self._objects)))

    def among(self, rows: Rows) -> NDArray[np.bool_]:
        """Return for each row whether its object was erased."""
        found = is_in(rows["head"], self._heads)
        for at in np.flatnonzero(found):
            found[at] = (ObjectKind(int(rows["kind"][at])), Id(id_of(rows, int(at)))) in self._objects
        return found


class Needed:
    """The needed part of each listed pack. An object in several packs counts where most is needed, or in all
    if each is condemned, has it marked as damaged, or has it outside the store."""

    def __init__(
        self, rows: IndexRows, reached: IdSet, listed: ListedPacks, damage: Damage | None = None,
        erased: ErasedRows | None = None, condemned: Collection[PackId] = (), wanted: IdSet | None = None,
    ) -> None:  # fmt: skip
        """wanted: further ids, which are kept where they are there"""
        self._wanted = wanted
        self._condemned = condemned
        self._doomed = listed.marked(condemned)
        self._erased = ErasedRows() if erased is None else erased
        self._with_erased = np.zeros(len(listed.ids), np.bool_)
        self._marked = Marked(damage, rows.packs)
        self._rows = rows
        self._reached = reached
        self._listed = listed
        self._places = listed.ids.places(rows.packs)
        self._external = are_external(listed.ids)
        """Packs whose objects are outside the store: they are deleted, but not rewritten."""
        self.missing: Missing | None = None
        self._suspect = np.zeros(len(listed.ids), np.bool_)
        """Packs with a needed object that is marked as damaged: they are not rewritten."""
        self._with_chunks = np.zeros(len(listed.ids), np.bool_)
        """Packs of data; the others have metadata."""
        self._bytes, _ = self._sum(None)
        self._bytes, self._count = self._sum(self._bytes)

    def choose(self, most_bytes: int) -> GcPlan:
        """Return the plan that copies at most so many bytes: out of packs with erased objects first, then out of
        packs of which less than half is needed, then out of small ones."""
        sizes, used = self._listed.sizes, self._bytes
        whole = self._count == 0
        may = ~whole & ~self._suspect & ~self._external
        worth = np.flatnonzero(may & ~self._with_erased & (2 * (used + _OVERHEAD) < sizes))
        worth = worth[np.argsort(used[worth] / sizes[worth], kind="stable")]
        worth = np.concatenate((np.flatnonzero(may & self._with_erased), worth))
        fits = (np.cumsum(used[worth]) <= most_bytes) & (np.cumsum(self._count[worth]) <= MOST_ROWS)
        rewrite = np.zeros(len(sizes), np.bool_)
        rewrite[worth[fits]] = True
        kinds = self._with_chunks, ~self._with_chunks
        joined = Joined()
        for of_kind in kinds:
            small = np.flatnonzero(may & of_kind & (used < SMALL) & ~rewrite)
            small = small[np.argsort(used[small], kind="stable")]
            room = np.cumsum(used[small]) <= most_bytes - used[rewrite].sum()
            room &= np.cumsum(self._count[small]) <= MOST_ROWS - self._count[rewrite].sum()
            small = small[room][to_join(used[small[room]])]
            rewrite[small] = True
            joined = Joined(joined.packs + len(small), joined.into + packs_for(used[small].sum()))
        unused = sizes - used - _OVERHEAD
        partly = ~whole & ~rewrite & ~self._external & (unused > 0)
        return GcPlan(
            whole=tuple(self._listed.chosen(whole)), rewrite=tuple(self._listed.chosen(rewrite)), joined=joined,
            packs=len(sizes), bytes=int(sizes.sum()), freed=int(sizes[whole | rewrite].sum()),
            copied=sum(_packed(int(used[rewrite & of_kind].sum())) for of_kind in kinds),
            left=int((~fits).sum()), partly=int(partly.sum()), partly_unused=int(unused[partly].sum()),
        )  # fmt: skip

    def deletable(self) -> tuple[PackId, ...]:
        """Return the condemned packs to delete: no needed object is in them alone. Includes missing packs."""
        spared = set(self._listed.chosen(self._doomed & (self._count > 0)))
        return tuple(one for one in sorted(set(self._condemned)) if one not in spared)

    @property
    def absent(self) -> int:
        """The number of packs that an index names and the listing lacks."""
        return int((self._places < 0).sum())

    @property
    def unindexed(self) -> NDArray[np.int64]:
        """The sizes of packs that no index names."""
        return self._listed.sizes[~self._listed.marked(self._rows.packs)]

    def rows_of(self, packs: Iterable[PackId]) -> Rows:
        """Return the rows of needed objects in these packs, by pack and offset."""
        mask = self._listed.marked(packs)
        parts = [live[mask[places]] for live, places in self._live(self._bytes)]
        found = np.concatenate(parts) if parts else self._rows.bucket(0)[:0]
        return found[np.lexsort((found["offset"], found["pack"]))]

    def _sum(self, priority: NDArray[np.int64] | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        used, count = (np.zeros(len(self._listed.ids), np.int64) for _ in range(2))
        for live, places in self._live(priority):
            np.add.at(used, places, row_sizes(live))
            np.add.at(count, places, 1)
            self._with_chunks[places[live["kind"] == ObjectKind.CHUNK]] = True
        return used, count

    def _live(self, priority: NDArray[np.int64] | None) -> Iterator[tuple[Rows, NDArray[np.int64]]]:
        """Yield the rows of needed objects with the positions of their packs in the listing: all rows, or,
        with a priority of the packs, one of each object."""
        lacking, named = 0, set[int]()
        for first in range(256):
            rows, heads = self._rows.bucket(first), self._reached.bucket(first)
            places = _places(rows, self._places)
            self._with_erased[places[self._erased.among(rows) & (places >= 0)]] = True
            there = (places >= 0) | (rows["where"] == index.ERASED)
            absent = heads[~is_in(heads, rows["head"][there])]
            if len(absent):
                lacking += len(absent)
                named.update(np.unique(rows["pack"][~there & is_in(rows["head"], absent)]).tolist())
            if self._wanted is not None:
                heads = np.union1d(heads, self._wanted.bucket(first))
            live = (places >= 0) & is_in(rows["head"], heads)
            rows, places = rows[live], places[live]
            marked = self._marked.among(rows, first)
            self._suspect[places[marked]] = True
            if priority is not None and len(rows):
                group = np.cumsum(~are_repeated(rows)) - 1
                good = ~marked & ~self._external[places] & ~self._doomed[places]
                has_good = np.zeros(int(group[-1]) + 1, np.bool_)
                has_good[group[good]] = True
                order = np.lexsort((places, -priority[places], ~good, group))
                firsts = np.ones(len(order), np.bool_)
                firsts[1:] = group[order][1:] != group[order][:-1]
                order = np.sort(order[firsts | ~has_good[group[order]]])
                rows, places = rows[order], places[order]
            yield rows, places
        if lacking:
            self.missing = Missing(lacking, tuple(self._rows.packs[at] for at in sorted(named)))


def to_join(held: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of these small packs of one kind to join. held: the bytes that are needed of each.

    A step of sizes ends at `SMALL` or an eighth of the next larger step's end. The packs of a step are joined with all
    smaller ones if together they reach its end. So a byte that is copied goes up a step, and is copied at most
    once for each step; and few packs are left in each.
    """
    steps = np.floor(np.log2(SMALL / np.maximum(held, 1)) / np.log2(FEWEST))
    for step in np.unique(steps):
        chosen: NDArray[np.bool_] = steps >= step
        if chosen.sum() >= FEWEST and held[chosen].sum() >= SMALL / FEWEST**step:
            return chosen
    return np.zeros(len(held), np.bool_)


def row_sizes(rows: Rows) -> Any:
    """Return the bytes that each object takes in a pack, with its locator and the rows in the pack's table."""
    return rows["stored"].astype(np.int64) + rows["tail"] + ROW_SIZE * (1 + (rows["tail"] > 0))


def packs_for(taken: int) -> int:
    """Return how many packs objects fill that take so many bytes."""
    return int(-(-taken // (PACK_TARGET - SMALL)))


def _packed(taken: int) -> int:
    """Return the size of packs with so many bytes of objects, with their heads and ends."""
    return taken + _OVERHEAD * packs_for(taken)


def are_repeated(rows: Rows) -> NDArray[np.bool_]:
    """Return for each row whether the row before it is another location of the same object."""
    again = np.zeros(len(rows), np.bool_)
    alike = np.flatnonzero(rows["head"][1:] == rows["head"][:-1]) + 1
    one, other = rows[alike], rows[alike - 1]
    again[alike] = (one["id"] == other["id"]) & (one["kind"] == other["kind"])
    return again


def _places(rows: Rows, of_packs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position in the listing of each row's pack; -1 if it is not listed, or none is named."""
    if not len(of_packs):
        return np.full(len(rows), -1, np.int64)
    return np.where(rows["where"] != index.ERASED, of_packs[rows["pack"]], -1)


def order_of_copying(objects: Objects, commits: Iterable[CommitId], rows: Rows) -> NDArray[np.int64]:
    """Return a number for each row, to sort by: chunks, recipes, segments, then nodes from the bottom up, so that
    locators can have the new places; each kind in the order of these commits' trees, one tree after the other."""
    known = rows["head"].copy()
    by_head = np.argsort(known)
    order, count = np.full(len(rows), 1 << 48, np.int64), 0

    def note(_: ObjectKind, ids: bytes) -> None:
        nonlocal count
        heads = heads_of(ids)
        at = by_head[np.minimum(np.searchsorted(known, heads, sorter=by_head), len(known) - 1)]
        among = np.flatnonzero(known[at] == heads)
        np.minimum.at(order, at[among], count + among)
        count += len(heads)

    reach(objects, commits, note, Seen())
    order[rows["kind"] == ObjectKind.NODE] *= -1
    order += rows["kind"].astype(np.int64) << 50
    return order


def in_batches(rows: Rows, order: NDArray[np.int64], sizes: NDArray[np.int64]) -> Iterator[Rows]:
    """Yield these rows for as many packs as may be held, all rows of a pack together, in order. Packs go by their
    first row. rows: sorted by pack. sizes: of the pack of each row."""
    _, begins = np.unique(rows["pack"], return_index=True)
    of_packs = np.split(np.arange(len(rows)), begins[1:])
    by_first = np.argsort(np.minimum.reduceat(order, begins), kind="stable")
    held = np.cumsum(sizes[begins][by_first]) // _HELD
    for number in np.unique(held):
        at = np.concatenate([of_packs[pack] for pack in by_first[held == number]])
        yield rows[at[np.argsort(order[at], kind="stable")]]


class RewrittenPacks:
    """New packs with copies of objects, and an index of them."""

    def __init__(self, repository: Repository, rows: Rows, packs: PackList) -> None:
        """rows: of all objects to copy; their `pack` is a position in `packs`"""
        self._repository = repository
        self._streams = PackStream(self._seal), PackStream(self._seal)
        of_data = rows["kind"] == ObjectKind.CHUNK
        expected = [int(row_sizes(rows[of_kind]).sum()) for of_kind in (of_data, ~of_data)]
        self._shares = [size / max(1, packs_for(size)) for size in expected]
        """The bytes of a pack of each stream: about equal parts, so that the last one is not small either."""
        self._added, self._ended = [0, 0], [1, 1]
        self._old = packs
        self._keys = np.sort(_keys(rows["pack"], rows["offset"]))
        self._moved = np.zeros((len(rows), 3), np.int64)
        """The new pack, offset and tail of each, in the order of `_keys`; zeros for what is not copied yet."""
        self._packs: dict[PackId, int] = {}
        self._builder, self._rows, self._bytes = IndexBuilder(), 0, 0
        self.stored = 0
        """Bytes of the new packs."""

    def add(self, row: Rows, pack: memoryview, pack_id: PackId) -> None:
        """Copy the object of a row out of a pack, with the locator after it, which gets the new places of what was
        copied before. Raises `IntegrityError` if the object does not match its id."""
        kind, object_id = ObjectKind(int(row["kind"][0])), Id(id_of(row, 0))
        start, size, tail = int(row["offset"][0]), int(row["stored"][0]), int(row["tail"][0])
        codec, length = Codec(int(row["codec"][0])), int(row["length"][0])
        where = Location(pack_id, start, size, length, codec, tail)
        stored, behind, unpacked = pack[start : start + size], None, 0
        checked(kind, object_id, where, stored)
        if tail:
            locator = self._renewed(Locator.decode(pack[start + size : start + size + tail]))
            behind, unpacked = locator.encode(), locator.encoded_length
        number = int(kind is not ObjectKind.CHUNK)
        if self._added[number] >= self._shares[number] * self._ended[number]:
            self._streams[number].flush()
            self._ended[number] += 1
        new = self._streams[number].add(kind, object_id, codec, stored, length, behind, unpacked)
        self._added[number] += int(row_sizes(row)[0])
        at = np.searchsorted(self._keys, _keys(row["pack"], row["offset"])[0])
        self._moved[at] = self._packs.setdefault(new.pack, len(self._packs)), new.offset, new.tail

    def _renewed(self, locator: Locator) -> Locator:
        """Return a locator with the new places of what was copied."""
        wanted = _keys(self._old.places(locator.packs)[locator.places], locator.offsets)
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        moved = np.where((self._keys[at] == wanted)[:, None], self._moved[at], 0).tolist()
        packs = list(self._packs)
        return Locator.of(
            where._replace(pack=packs[pack], offset=offset, tail=tail) if offset else where
            for where, (pack, offset, tail) in zip(locator.locations(), moved, strict=True)
        )

    def finish(self) -> None:
        for stream in self._streams:
            stream.flush()
        self._put_index()

    def _seal(self, pack: SealedPack) -> None:
        data = pack.builder.finish()
        with explain_denied_write(self._repository.store.url):
            self._repository.store.put_if_absent(keys.pack_key(pack.id), data)
        for kind, object_id, where in pack.rows:
            self._builder.add(kind, Id(object_id), where)
        self._rows += len(pack.rows)
        self._bytes += len(data)
        self.stored += len(data)
        if self._rows >= _INDEX_ROWS or self._bytes >= INDEX_BYTES:
            self._put_index()

    def _put_index(self) -> None:
        if self._rows:
            put_index(self._repository, self._builder.finish())
        self._builder, self._rows, self._bytes = IndexBuilder(), 0, 0


def renew_locators(repository: Repository, commits: Iterable[CommitId], gone: set[PackId]) -> None:
    """Give the locators of these commits a place of their root outside of the packs that will go, also if a gc was
    killed between the two writes that this takes. They stay as they are if nobody may delete them."""
    store, objects = repository.store, repository.objects
    ids = commits if gone and repository.format.node_locators else ()  # such a locator names the root alone
    # Local copies are not asked: an earlier collection may have replaced what they are of.
    for commit_id, data in ask_each(lambda one: if_there(partial(store.get, keys.locator_key(one))), ids):
        with suppress(Denied, IntegrityError, Unsupported):
            if data is None or not gone.isdisjoint(Locator.decode(data).packs):
                commit, usable = objects.commit(commit_id), lambda *at: at[2] not in gone
                if place := objects.indexes.find(ObjectKind.NODE, commit.root, usable=usable):
                    store.delete(keys.locator_key(commit_id))
                    frame = carrying(Locator.of([place]).encode(), commit.encode())
                    store.put_if_absent(keys.locator_key(commit_id), frame)


def _keys(packs: Any, offsets: Any) -> Any:
    """Return a number for each place in a pack; a negative one for the pack -1."""
    return np.asarray(packs, np.int64) * (1 << 32) + np.asarray(offsets)


def replace_indexes(
    repository: Repository,
    gone: Collection[PackId],
    known: Mapping[IndexId, Index],
    tool: str,
    check: Callable[[], None],
    ends: dict[IndexId, bytes],
) -> None:
    """Write index files without these packs and a record of the files in force; then delete the old ones.

    Files of which nothing is left are only deleted. known: files whose packs need not be asked for. check:
    called before each write, and before the deletion. ends: gets the hashes at the ends of new files.
    """
    if not gone:
        return
    store, indexes = repository.store, repository.objects.indexes
    indexes.list_again()
    listed = indexes.listed
    new: dict[IndexId, MergedFile | None] = {}
    for index_id, packs in ask_each(partial(_packs_of, repository, known), sorted(listed.sizes), AT_ONCE):
        if not packs.isdisjoint(gone):
            data = if_there(partial(store.get, keys.index_key(index_id), index.FILE_MAX))
            if data is not None:  # else another garbage collection or a merge has replaced it
                new[index_id] = _without(repository, Index.parse(data, str(index_id)), gone, check, ends)
    if not new:
        return
    runs = [
        tuple(kept for file in run if (kept := new.get(file.id, file)) is not None)
        for run in listed.standing.runs
    ]
    runs = [run for run in runs if run]
    replaced = sorted({*new, *listed.standing.replaced} - {file.id for run in runs for file in run})
    if runs:
        check()
        with explain_denied_write(store.url):
            put_merge(repository, listed, runs, replaced, tool)
    check()
    together([partial(delete_index, store, index_id) for index_id in sorted(new)])
    indexes.renew()


def _packs_of(repository: Repository, known: Mapping[IndexId, Index], index_id: IndexId) -> set[PackId]:
    """Return the packs that an index file names; none if it was deleted."""
    if index_id in known:
        found = set(known[index_id].packs)
        release(known[index_id].pack_ids)
        return found
    key, store = keys.index_key(index_id), repository.store
    size = repository.objects.indexes.listed.sizes[index_id]

    def read() -> bytes:
        head = store.get_range(key, 0, min(size, index.FIXED_SIZE))
        count = int.from_bytes(head[8:12], "little")
        length = min(16 * count, max(0, size - index.FIXED_SIZE))
        return bytes(store.get_range(key, index.FIXED_SIZE, length))

    table = if_there(read) or b""
    return {PackId(table[at : at + 16]) for at in range(0, len(table) - 15, 16)}


def _without(
    repository: Repository,
    parsed: Index,
    gone: Collection[PackId],
    check: Callable[[], None],
    ends: dict[IndexId, bytes],
) -> MergedFile | None:
    """Write an index file again without the rows of these packs; None if no row is left."""
    numbers = [at for at, pack in enumerate(parsed.packs) if pack in gone]
    buckets: list[list[bytes]] = []
    for first in range(256):
        rows = np.frombuffer(parsed.bucket(first), np.uint8).reshape(-1, index.ROW_SIZE)
        places = rows[:, 36:40].copy().view("<u4")[:, 0]
        left = (rows[:, 33] == index.ERASED) | ~np.isin(places, numbers)
        buckets.append(cut(rows[left].tobytes(), index.ROW_SIZE))
    encoded = index.join(parsed.packs, buckets)
    bounds = Index.parse(encoded, verify=False)
    if not len(bounds):
        return None
    check()
    made = put_index(repository, encoded)
    ends[made] = encoded[-index.HASH_SIZE :]
    return MergedFile(made, *bounds.bounds)
