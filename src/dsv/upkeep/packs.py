"""Reading whole packs, checking every byte against the ids of their objects, and the schedule of checks.

Packs are taken in slices, by the first hex digits of their ids. The store records for all machines when each slice was
last verified. A machine takes one of those verified longest ago, at random, so two machines seldom take the same. Each
note also reads what others have noted. Times are those of the records, by the store's clock.
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

import msgspec
from blake3 import blake3

from dsv.errors import DsvError, IntegrityError, NotFound, Unsupported
from dsv.files.process import processors
from dsv.format import keys
from dsv.format.codec import Codec, unpack
from dsv.format.columns import from_little, little
from dsv.format.external import ExternalPack, ExternalRow, ExternalSource
from dsv.format.locator import PACK_MAX, Location, Locator, ObjectKind
from dsv.format.pack import PackTable, parse_footer, read_table
from dsv.format.records import MAX_DIGITS, Verified, WriterIdentity
from dsv.repo.errors import explain_denied_write, read_record
from dsv.repo.objects.checks import LOCATOR_ROWS, is_object
from dsv.repo.objects.externals import Externals, SourceChanged, check_source
from dsv.repo.objects.objects import Objects
from dsv.repo.repository import Repository
from dsv.stores.base import CutShortError, PutResult, StoreMissing, parsed, together
from dsv.values.ids import Id, Nonce, PackId
from dsv.values.units import format_count

Row = tuple[ObjectKind, Id, Location]
Named = tuple[ObjectKind, Id]
Lacks = Callable[[PackId, PackTable | ExternalPack], Sequence[Named]]
"""Returns the objects that an index lists in a pack and its own table lacks."""
_SLICE = 64
"""Packs in a slice, about."""
_KEPT_RECORDS = 8
"""Records that are kept, because another machine may have listed an older one."""


class CheckedPack(msgspec.Struct, frozen=True):
    pack: PackId
    size: int = 0
    fault: str | None = None
    """None if nothing is wrong, or if the store could not be asked."""
    gone: bool = False
    bad: tuple[tuple[ObjectKind, Id], ...] = ()
    """Objects that are damaged or missing, except locators: nothing is lost with those."""
    unread: bool = False
    """Nothing of it can be used: it is gone, or neither its table nor an index lists its objects."""
    rows: tuple[Row, ...] = ()
    """The objects of a damaged pack, including damaged ones."""
    failure: DsvError | None = None
    """Why the store could not be asked."""

    @property
    def is_whole(self) -> bool:
        return self.fault is None and self.failure is None


def check_packs(
    objects: Objects,
    packs: Iterable[PackId],
    rows_of: Callable[[PackId], list[Row]],
    lacks: Lacks,
    *,
    quick: bool = False,
) -> Iterator[CheckedPack]:
    """Check packs, several at a time, and yield the results in their order. rows_of: returns the index rows
    of a pack whose own table is damaged. quick: of files outside the store, only ask for the version."""
    threads = min(8, 2 * processors())
    waiting: deque[Future[CheckedPack]] = deque()
    pool = objects.threads.pool(threads)
    try:
        for pack in packs:
            waiting.append(pool.submit(check_pack, objects, pack, rows_of, lacks, quick=quick))
            if len(waiting) > threads:
                yield objects.threads.wait_for(waiting.popleft())
        while waiting:
            yield objects.threads.wait_for(waiting.popleft())
    finally:
        for abandoned in waiting:
            abandoned.cancel()


def check_pack(
    objects: Objects,
    pack: PackId,
    rows_of: Callable[[PackId], list[Row]],
    lacks: Lacks = lambda *_: (),
    *,
    every_row: bool = False,
    quick: bool = False,
) -> CheckedPack:
    """Read a pack and check it. A pack that seems damaged or lost is read again before it counts as that.
    every_row: also give the `rows` of a whole pack. quick: as in `check_packs`."""
    for attempt in range(2):
        try:
            data = memoryview(objects.store.get(keys.pack_key(pack), PACK_MAX))
        except StoreMissing as error:
            return CheckedPack(pack, failure=error)
        except NotFound:
            checked = CheckedPack(pack, fault="it is gone", gone=True, unread=True)
        except CutShortError as error:
            checked = CheckedPack(pack, failure=error)
        except IntegrityError as error:
            checked = CheckedPack(pack, fault=error.message, unread=True)
        except DsvError as error:
            return CheckedPack(pack, failure=error)
        else:
            if pack.is_external:
                return _check_external(objects.externals, pack, data, lacks, every_row=every_row, quick=quick)
            checked = check_bytes(pack, data, rows_of if attempt else lambda _: [], lacks)
            if checked.is_whole and every_row:
                return msgspec.structs.replace(checked, rows=tuple(read_table(data).indexed(pack)))
        if checked.is_whole:
            return checked
    return checked


def check_bytes(
    pack: PackId, data: memoryview, rows_of: Callable[[PackId], list[Row]], lacks: Lacks
) -> CheckedPack:
    """Check the bytes of a whole pack, and each object in it. A pack does not contain its own id, so the
    bytes of another pack are recognized by the objects that they lack."""
    fault: str | None = None
    try:
        table = read_table(data)
        bad = _bad_rows(data, table)
    except Unsupported as error:
        return CheckedPack(pack, len(data), failure=error)
    except IntegrityError as error:
        return _without_table(pack, data, error, rows_of)
    if blake3(data[:-40]).digest() != parse_footer(data).hash:
        fault = "its bytes are not those its footer was written for"
    if bad:
        fault = f"damaged: {len(bad)} of its {format_count(len(table), 'object')}"
    lacking = lacks(pack, table)
    if lacking:
        fault = _lacking(lacking)
    if fault is None:
        return CheckedPack(pack, len(data))
    named = (*((row.kind, row.id) for row in bad if row.kind is not ObjectKind.LOCATOR), *lacking)
    return CheckedPack(pack, len(data), fault, bad=named, rows=tuple(table.indexed(pack)))


def _check_external(
    externals: Externals, pack: PackId, data: memoryview, lacks: Lacks, *, every_row: bool, quick: bool
) -> CheckedPack:
    try:
        table = ExternalPack.decode(data)
    except Unsupported as error:
        return CheckedPack(pack, len(data), failure=error)
    except IntegrityError as error:
        return CheckedPack(pack, len(data), error.message, unread=True)
    rows = tuple(table.indexed(pack))
    if lacking := tuple(lacks(pack, table)):
        return CheckedPack(pack, len(data), _lacking(lacking), bad=lacking, rows=rows)
    if every_row:
        return CheckedPack(pack, len(data), rows=rows)
    of: dict[ExternalSource, list[ExternalRow]] = {}
    for at in range(len(table)):
        row = table.row(at)
        of.setdefault(row.source, []).append(row)
    faults: dict[ExternalSource, SourceChanged] = {}

    def check(source: ExternalSource, found: list[ExternalRow]) -> None:
        try:
            if quick:
                check_source(source, externals.look(source)[1])
            else:
                externals.check(found)
        except SourceChanged as error:
            faults[source] = error

    try:
        together([partial(check, source, found) for source, found in of.items()])
    except DsvError as error:
        return CheckedPack(pack, len(data), failure=error)
    size = len(data) if quick else len(data) + table.ends[-1]
    if not faults:
        return CheckedPack(pack, size)
    bad = tuple((ObjectKind.CHUNK, Id(row.id)) for source in faults for row in of[source])
    more = f", and {len(faults) - 1:,} more files are not what they were" if len(faults) > 1 else ""
    return CheckedPack(pack, size, f"{next(iter(faults.values())).source}{more}", bad=bad, rows=rows)


def _lacking(lacking: Sequence[Named]) -> str:
    return f"it lacks {format_count(len(lacking), 'object')} that index files say it has"


def _bad_rows(data: memoryview, table: PackTable) -> list:  # type: ignore[type-arg]
    bad = []
    ids, kinds, codecs = table.ids, table.kinds, table.codecs
    columns = zip(table.offsets, table.stored, table.lengths, strict=True)
    for at, (offset, stored, length) in enumerate(columns):
        content: memoryview | bytes = data[offset : offset + stored]
        kind = kinds[at]
        if kind == ObjectKind.LOCATOR:
            try:
                Locator.decode(content, LOCATOR_ROWS.get(ObjectKind(kinds[at - 1]), 0))
            except (IntegrityError, Unsupported):
                bad.append(table.row(at))
            continue
        if codecs[at] != Codec.RAW:
            try:
                content = unpack(Codec.ZSTD, content, length)
            except IntegrityError:
                bad.append(table.row(at))
                continue
        if not is_object(kind, ids[32 * at : 32 * at + 32], content):
            bad.append(table.row(at))
    return bad


def object_at(data: memoryview, kind: ObjectKind, object_id: Id, where: Location) -> bytes | None:
    """Return an object from the bytes of a pack; None if it is damaged there."""
    with suppress(IntegrityError):
        content = unpack(where.codec, data[where.offset : where.offset + where.stored], where.length)
        if is_object(kind, object_id, content):
            return content
    return None


def _without_table(
    pack: PackId, data: memoryview, error: IntegrityError, rows_of: Callable[[PackId], list[Row]]
) -> CheckedPack:
    rows = rows_of(pack)
    bad = tuple((kind, one) for kind, one, where in rows if object_at(data, kind, one, where) is None)
    return CheckedPack(pack, len(data), error.message, bad=bad, unread=not rows, rows=tuple(rows))


class Schedule:
    def __init__(self, repository: Repository, writer: WriterIdentity) -> None:
        self._repository = repository
        self._writer = writer
        self._store = repository.store
        self._last = -1
        self._listed: list[int] = []
        self.digits = 1
        self.times = array("I", bytes(4 * 16))
        """When each slice was verified, in seconds since 1970; 0: never."""
        self.read()

    def read(self) -> None:
        """Read the last record. If it is damaged, everything counts as not verified."""
        while True:
            self._listed = sorted(parsed(keys.parse_gc_verified_key, self._store.list(keys.VERIFIED_PREFIX)))
            self._last = self._listed[-1] if self._listed else -1
            if self._last < 0:
                return
            key = keys.gc_verified_key(self._last)
            try:
                record = read_record(Verified.decode, self._store, key)
                written = int(self._store.modified(key))
            except IntegrityError:
                return
            except DsvError:
                if keys.gc_verified_key(self._last) in [item.key for item in self._store.list(key)]:
                    raise
                continue  # a later one was written, and this one deleted
            times = from_little("I", memoryview(record.times))
            for place in record.fresh:
                times[place] = written
            self._take(record.digits, times)
            return

    def _take(self, digits: int, times: array[int]) -> None:
        while digits < self.digits:
            digits, times = digits + 1, array("I", [time for time in times for _ in range(16)])
        self.digits, self.times = digits, times

    def fit(self, packs: int) -> list[str]:
        """Make slices small enough for so many packs; return the digits that packs of each begin with."""
        before = self.digits
        while self.digits < MAX_DIGITS and packs > _SLICE * 16**self.digits:
            self.digits += 1
        self._take(before, self.times)
        return [f"{one:0{self.digits}x}" for one in range(len(self.times))]

    def _places(self, slice_: str) -> range:
        """Return the positions of a slice in `times`: several if another machine made slices smaller."""
        parts = 16 ** (self.digits - len(slice_))
        return range(int(slice_, 16) * parts, (int(slice_, 16) + 1) * parts)

    def time(self, slice_: str) -> int:
        return min(self.times[at] for at in self._places(slice_))

    def order(self, left: Iterable[str]) -> list[str]:
        """Return these slices, those verified longest ago first, equal ones in random order."""
        return [one for _, _, one in sorted([(self.time(one), random.random(), one) for one in left])]

    def note(self, done: Iterable[str]) -> None:
        """Record that these slices were verified just now, and read the records of other machines."""
        while True:
            self.read()
            fresh = tuple(sorted({at for one in done for at in self._places(one)}))
            record = Verified(
                self.digits, bytes(little(self.times)), fresh, Nonce.random(), self._repository.clock(),
                self._writer.author, self._writer.tool,
            )  # fmt: skip
            key = keys.gc_verified_key(self._last + 1)
            with explain_denied_write(self._store.url):
                won = self._store.put_if_absent(key, record.encode()) is PutResult.WON
            if won:
                break
        for old in self._listed[: -_KEPT_RECORDS + 1]:
            with suppress(DsvError):
                self._store.delete(keys.gc_verified_key(old))
        self.read()

    def oldest(self) -> int:
        """Return the time since which every pack was verified; 0 if some never were."""
        return min(self.times)
