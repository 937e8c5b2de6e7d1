"""Contents that were erased from a store: never returned and never stored again. See `upkeep.erase`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from dsv.errors import Conflict, Erased, IntegrityError, Unsupported, UsageError
from dsv.format import keys
from dsv.format.codec import Codec
from dsv.format.locator import Location, ObjectKind
from dsv.format.pack import MAGIC
from dsv.format.records import ERASURE_MAX, Erasure, Named
from dsv.repo.errors import read_record
from dsv.stores.base import StoreBackend, ask_each, parsed
from dsv.values.ids import ErasureId, Id, PackId
from dsv.values.paths import show
from dsv.values.units import format_time

if TYPE_CHECKING:
    from dsv.format.tree import Entry
    from dsv.repo.objects.metadata import MetadataCache

_COPY = "erasure"


class Erasures:
    """All that was erased from one store. False if nothing was."""

    def __init__(self, known: dict[ErasureId, Erasure]) -> None:
        self.known = known
        self._files: dict[Id, Erasure] = {}
        self.objects: dict[Named, Erasure] = {}
        """Chunks and recipes."""
        for one in known.values():
            for file_id in one.files:
                self._files.setdefault(file_id, one)
            for named in one.objects:
                self.objects.setdefault(named, one)

    def __bool__(self) -> bool:
        return bool(self.known)

    def file(self, file_id: Id) -> Erasure | None:
        return self._files.get(file_id)

    def of(self, entry: Entry) -> Erasure | None:
        """Return the erasure of an entry's content; None if it was not erased."""
        if not self.known or entry.file_id is None:
            return None
        return self._files.get(entry.file_id)

    def without(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the entries that were not erased."""
        return (entry for entry in entries if self.of(entry) is None) if self.known else iter(entries)

    def check_new(self, kind: ObjectKind, object_id: Id) -> None:
        """Raises `RefusedContent` for a chunk, or a small file, that must not be stored."""
        found = self.objects.get((kind, object_id))
        if found is None and kind is ObjectKind.CHUNK:
            found = self._files.get(object_id)
        if found is not None:
            raise RefusedContent(f"{kind.name.lower()} {object_id}", found)

    def check_new_file(self, file_id: Id) -> None:
        """Raises `RefusedContent` for a file that must not be stored."""
        if (found := self._files.get(file_id)) is not None:
            raise RefusedContent(f"file {file_id}", found)

    def is_gone(self, kind: ObjectKind, object_id: Id) -> bool:
        """Return whether the object is not needed any more, whatever refers to it. A chunk that is also a
        small file may be part of another file, as the other's recipe says."""
        return (kind, object_id) in self.objects or (kind is ObjectKind.CHUNK and object_id in self._files)


NONE = Erasures({})
NOWHERE = Location(PackId(bytes(16)), len(MAGIC), 1, 1, Codec.RAW)
"""The location of an erased object in a locator (a hint), and of an object read from a mirror."""


class RefusedContent(Conflict):
    """A writer has content that was erased."""

    def __init__(self, what: str, erasure: Erasure) -> None:
        when = format_time(erasure.time_ms)[:10]
        super().__init__(
            f"{what} has content that was erased from the store on {when} by {erasure.author}, so nothing was "
            f"published: {erasure.reason}",
            subject=what,
            hint="delete the file or add it to .dsvignore, and run the same command again",
        )
        self.erasure = erasure


def erased_error(what: str, erasure: Erasure) -> Erased:
    """Return the error for reading something that was erased. what: its name."""
    when = format_time(erasure.time_ms)[:10]
    return Erased(
        f"{what} was erased on {when} by {erasure.author}: {erasure.reason}",
        subject=what,
        hint="it can't be restored; dsv erase --status lists the erasures of a store",
    )


def lacks_erased(target: str, count: int) -> Conflict:
    """Return the error for a target with erased files, if all of it is wanted."""
    files, were = ("1 file", "was") if count == 1 else (f"{count:,} files", "were")
    hint = "without --strict the rest is written; dsv ls TARGET --json shows which were erased"
    return Conflict(f"{files} of {target} {were} erased from the store", subject=target, hint=hint)


@contextmanager
def naming_file(path: bytes) -> Iterator[None]:
    """Make a refusal of content in this context name the file."""
    try:
        yield
    except RefusedContent as error:
        if not path:  # the content is stored without a file name
            raise
        raise RefusedContent(show(path), error.erasure) from None


def local_erasures(metadata: MetadataCache) -> Erasures:
    """Return the erasures known on this machine, without a request."""
    found: dict[ErasureId, Erasure] = {}
    for name in metadata.names(_COPY):
        copy = metadata.get(_COPY, name, ERASURE_MAX)
        with suppress(IntegrityError, Unsupported, UsageError):
            if copy is not None:
                found[ErasureId.parse(name)] = Erasure.decode(copy)
    return Erasures(found) if found else NONE


def stored_erasures(store: StoreBackend, metadata: MetadataCache) -> Erasures:
    """Return all erasures of a store. Records never change, so each is read once on a machine.

    Raises `IntegrityError` if one is damaged.
    """
    return Erasures(dict(ask_each(partial(_read, store, metadata), _listed(store))))


def checked_erasures(
    store: StoreBackend, metadata: MetadataCache
) -> tuple[Erasures, dict[ErasureId, IntegrityError]]:
    """Return all erasures, read from the store itself (damaged ones from local copies), and the errors."""
    copies, errors = local_erasures(metadata).known, dict[ErasureId, IntegrityError]()

    def read(erasure_id: ErasureId) -> Erasure | None:
        try:
            return read_record(Erasure.decode, store, keys.erasure_key(erasure_id), ERASURE_MAX)
        except IntegrityError as error:
            errors[erasure_id] = error
            return copies.get(erasure_id)

    erasures = ask_each(read, _listed(store))
    return Erasures({erasure_id: erasure for erasure_id, erasure in erasures if erasure is not None}), errors


def _listed(store: StoreBackend) -> list[ErasureId]:
    return list(parsed(keys.parse_erasure_key, store.list(keys.ERASURE_PREFIX)))


def _read(store: StoreBackend, metadata: MetadataCache, erasure_id: ErasureId) -> Erasure:
    key = keys.erasure_key(erasure_id)
    return metadata.record(_COPY, str(erasure_id), store, key, Erasure.decode, ERASURE_MAX)
