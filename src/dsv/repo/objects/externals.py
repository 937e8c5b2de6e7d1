"""Reading contents outside the store: chunks of files that are kept elsewhere. See `format.external`.

Only bytes that match their id are returned. A file is refused by its URL if it is no longer the one referred
to, by its version id, or else by its size and tag, even if its bytes might still be right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from dsv.errors import Denied, DsvError, IntegrityError, NotFound, Unsupported
from dsv.format import keys
from dsv.stores.base import StoreBackend, StoreMissing, together
from dsv.values.ids import ChunkId, PackId

if TYPE_CHECKING:
    from dsv.format.external import ExternalPack, ExternalRow, ExternalSource
    from dsv.format.locator import Location
    from dsv.repo.objects.metadata import MetadataCache

Found: TypeAlias = "tuple[bytes, ExternalSource]"
"""Bytes of a file, and the file as it was when they were read."""
ReadSource: TypeAlias = "Callable[[ExternalSource, int, int], Found]"
"""Reads this many bytes of a file from a start, or fewer at its end. Raises `NotFound`, `Denied`,
`Unreachable`."""
_KEPT = 64
AT_ONCE = 8 << 20
"""Bytes of one file that are read together."""


def shown(source: ExternalSource) -> str:
    """Return the URL for messages, without a password that another user may have written into it."""
    from dsv.values.secrets import hide_in_urls  # takes a while to import

    return hide_in_urls(source.url)


class SourceChanged(IntegrityError):
    """A file that a commit refers to is missing or has changed. what: the predicate."""

    def __init__(self, source: ExternalSource, what: str) -> None:
        url = shown(source)
        hint = f"put the file that it was back at {url}, or dsv verify --repair --from DIR, with a folder that has it"
        super().__init__(f"{url}, which it refers to, {what}", subject=url, hint=hint)
        self.source = f"{url} {what}"


def check_source(source: ExternalSource, found: ExternalSource) -> None:
    """Raises `SourceChanged` if the file found is not the one referred to."""
    if source.is_at(found):
        return
    if source.size != found.size:
        what = f"has {found.size:,} bytes now, and had {source.size:,}"
    elif source.version:
        what = f"is given as version {found.version or 'none'} in place of {source.version}"
    else:
        what = f"was changed: its tag is {found.tag or 'none'}, and was {source.tag or 'none'}"
    raise SourceChanged(source, what)


class Externals:
    """The external packs of one store. Safe in threads."""

    def __init__(self, store: StoreBackend, metadata: MetadataCache, read_source: ReadSource | None) -> None:
        self._store = store
        self._metadata = metadata
        self._packs: dict[PackId, ExternalPack] = {}
        self._read_source = read_source

    def pack(self, pack_id: PackId) -> ExternalPack:
        """Return an external pack. Raises `NotFound`, `IntegrityError`, `Unsupported`."""
        found = self._packs.get(pack_id)
        if found is None:
            found = self._load(pack_id)
            self.keep(pack_id, found)
        return found

    def keep(self, pack_id: PackId, found: ExternalPack) -> None:
        """Keep an external pack for a while."""
        while len(self._packs) >= _KEPT:
            self._packs.pop(next(iter(self._packs)), None)
        self._packs[pack_id] = found

    def _load(self, pack_id: PackId) -> ExternalPack:
        from dsv.format.external import EXTERNAL_MAX, ExternalPack  # few stores have external packs

        key, decode = keys.pack_key(pack_id), ExternalPack.decode
        return self._metadata.record("external-pack", str(pack_id), self._store, key, decode, EXTERNAL_MAX)

    def row(self, where: Location) -> ExternalRow:
        """Return which file has a chunk. Raises the same as `pack`."""
        found = self.pack(where.pack).find(where.offset, where.length)
        if found is None or where.stored != where.length or where.tail:
            raise IntegrityError(
                f"external pack {where.pack} has no chunk of {where.length} bytes at {where.offset}",
                subject=str(where.pack),
            )
        return found

    def check(self, rows: Iterable[ExternalRow]) -> memoryview:
        """Read chunks of one file, and return the last ones read together. Raises `SourceChanged`."""
        data = memoryview(b"")
        for run in runs(rows):
            data = self._read(run[0].source, run[0].start, run[-1].start + run[-1].length - run[0].start)
            check_rows(run, data)
        return data

    def span(self, pack_id: PackId, start: int, size: int, wanted: Sequence[Location]) -> memoryview:
        """Return these bytes of a pack, of which only the wanted ones are right. What can't be read is left
        out: reading it alone raises the reason."""
        data = memoryview(bytearray(size))
        with suppress(NotFound, IntegrityError):
            self.pack(pack_id)
            rows = [self.row(where) for where in dict.fromkeys(wanted)]
            together([partial(self._fill, data, start, run) for run in runs(rows)])
        return data

    def _fill(self, data: memoryview, start: int, run: list[ExternalRow]) -> None:
        with suppress(DsvError):
            read = self.check(run)
            for row in run:
                at, offset = row.offset - start, row.start - run[0].start
                data[at : at + row.length] = read[offset : offset + row.length]

    def _read(self, source: ExternalSource, start: int, length: int) -> memoryview:
        read, found = self.look(source, start, length)
        check_source(source, found)
        if len(read) != length:
            raise SourceChanged(source, "ends too soon")
        return memoryview(read)

    def look(self, source: ExternalSource, start: int = 0, length: int = 1) -> Found:
        """Read a file that is referred to, and return it as found. Raises `SourceChanged` if missing."""
        if self._read_source is None:
            raise Unsupported(f"{shown(source)} can't be read from here", subject=source.url)
        try:
            return self._read_source(source, start, length)
        except StoreMissing:
            raise
        except NotFound:
            raise SourceChanged(source, "is gone") from None
        except Denied as error:
            message = f"{shown(source)}, which a commit refers to, can't be read: {error.message}"
            raise Denied(message, subject=error.subject, hint=error.hint) from None


def runs(rows: Iterable[ExternalRow]) -> Iterator[list[ExternalRow]]:
    """Join chunks that follow each other in one file, up to `AT_ONCE` bytes."""
    run: list[ExternalRow] = []
    for row in sorted(rows, key=lambda one: (one.source.url, one.source.version, one.start)):
        last = run[-1] if run else None
        if last is not None and (
            row.source != last.source
            or not last.start <= row.start <= last.start + last.length
            or row.start + row.length - run[0].start > AT_ONCE
        ):
            yield run
            run = []
        run.append(row)
    if run:
        yield run


def check_rows(run: Sequence[ExternalRow], data: memoryview) -> None:
    """Raises `SourceChanged` if these bytes of a file are not the chunks that were imported."""
    for row in run:
        at = row.start - run[0].start
        if ChunkId.hash(data[at : at + row.length]) != row.id:
            raise SourceChanged(row.source, "has other bytes than when it was imported")
