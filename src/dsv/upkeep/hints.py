"""Index filters and commit locators: they only save requests, and are derived from indexes and packs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial

import msgspec

from dsv.errors import IntegrityError, NotFound, Unsupported
from dsv.format import index, keys
from dsv.format.codec import carrying
from dsv.format.index import FILTER_MAX, Index, encode_filter
from dsv.format.locator import MAX_ROWS, Location, Locator, ObjectKind, largest
from dsv.repo.objects import indexes
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.stores.base import TooLargeError, ask_each, if_there
from dsv.upkeep.index_rows import IndexRows
from dsv.values.ids import CommitId, Id, IndexId

_LOCATOR_MAX = largest(MAX_ROWS)
_UNREADABLE = (IntegrityError, NotFound, Unsupported)


class Hint(msgspec.Struct, frozen=True):
    """A filter or a locator that is missing or wrong."""

    what: str
    """`filter` or `locator`."""
    of: str
    """The id of its index file or commit."""
    key: str
    is_there: bool
    is_damaged: bool
    """It exists, but was never right. Else it is missing, or a location was lost or copied by gc since."""
    right: bytes


def wrong_hints(repository: Repository, rows: IndexRows, commits: Iterable[CommitId]) -> Iterator[Hint]:
    """Yield the filters of these index files and the locators of these commits that are missing or wrong.
    Skips those that can't be known, because an index is damaged or a root is lost."""
    for index_id, found in rows.files.items():
        if len(found) * index.ROW_SIZE >= indexes.FILTERED_BYTES:
            hint = _filter(repository, index_id)
            if hint is not None:
                yield hint
    for _, hint in ask_each(partial(_locator, repository, rows), commits):
        if hint is not None:
            yield hint


def _read(repository: Repository, key: str, limit: int) -> bytes | None:
    """Return the value of a key; b"" if it is too long to be right, None if it does not exist."""
    with suppress(TooLargeError):
        return if_there(lambda: bytes(repository.store.get(key, limit)))
    return b""


def _filter(repository: Repository, index_id: IndexId) -> Hint | None:
    data = _read(repository, keys.index_key(index_id), index.FILE_MAX)
    try:
        right = encode_filter(index_id, Index.parse(data or b"", str(index_id)))
    except (*_UNREADABLE, ValueError):
        return None  # it was deleted since, or is damaged, which is reported elsewhere
    key = keys.index_filter_key(index_id)
    there = _read(repository, key, FILTER_MAX)
    is_there = there is not None
    return None if there == right else Hint("filter", str(index_id), key, is_there, is_there, right)


def _locator(repository: Repository, rows: IndexRows, commit_id: CommitId) -> Hint | None:
    key, packs = keys.locator_key(commit_id), repository.objects.packs
    known, good = list[list[Location]](), list[list[Location]]()
    with suppress(*_UNREADABLE):
        for kind, object_id in _listed(repository, commit_id):
            known.append(_places(repository, kind, object_id))
            good.append([where for where in known[-1] if packs.may_rely(kind, object_id, where.pack)])
    if not good or not all(good) or len(good) > MAX_ROWS:
        return None
    there = _read(repository, key, _LOCATOR_MAX)
    read: list[Location] | None = None
    with suppress(*_UNREADABLE):
        read = list(Locator.decode(there or b"", MAX_ROWS).locations())
    if read is not None and _fits(read, good):
        return None
    is_damaged = there is not None and (read is None or not _did_fit(rows, read, known))
    commit = repository.objects.commit(commit_id)
    right = carrying(Locator.of(places[0] for places in good).encode(), commit.encode())
    return Hint("locator", str(commit_id), key, there is not None, is_damaged, right)


def _fits(read: list[Location], places: list[list[Location]]) -> bool:
    return len(read) == len(places) and all(one in known for one, known in zip(read, places, strict=True))


def _did_fit(rows: IndexRows, read: list[Location], places: list[list[Location]]) -> bool:
    """Return whether each row gives a known location, or a pack that no index names since gc deleted it."""
    gone = rows.packs.places(location.pack for location in read) < 0
    return len(read) == len(places) and all(
        was or location in known for was, location, known in zip(gone, read, places, strict=True)
    )


def _listed(repository: Repository, commit_id: CommitId) -> list[tuple[ObjectKind, Id]]:
    """Return the objects whose locations the commit's locator gives."""
    objects = repository.objects
    if repository.format.node_locators:
        return [(ObjectKind.NODE, objects.commit(commit_id).root)]
    tree = TreeReader(objects, commit_id)
    nodes = [(kind, one) for kind, one, _ in tree.nodes()]
    return [*nodes, *((ObjectKind.SEGMENT, leaf.id) for leaf in tree.leaves())]


def _places(repository: Repository, kind: ObjectKind, object_id: Id) -> list[Location]:
    indexes = repository.objects.indexes
    if indexes.find(kind, object_id) is None:  # it may be in a new index file
        indexes.refresh()
    return list(dict.fromkeys(indexes.places(kind, object_id)))
