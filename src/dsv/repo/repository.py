"""One store, opened: its format is known, its features are understood."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import NoReturn

from dsv.errors import UPGRADE, IntegrityError, NotFound, Unsupported
from dsv.model import keys
from dsv.model.commit import Commit
from dsv.model.ids import CommitId, Nonce, StoreId
from dsv.model.names import BranchName, DatasetName
from dsv.model.readme import readme_text
from dsv.model.records import HASH, ChunkingParams, Feature, FeatureRule, FormatEntry
from dsv.model.wire import RECORD_MAX
from dsv.repo.damage import put_back, read_record
from dsv.repo.metadata import MetadataCache
from dsv.repo.objects import Objects, get_commit
from dsv.repo.protection import refused_move
from dsv.repo.refs import Refs
from dsv.store.base import Put, Store
from dsv.store.together import both, together

# What this version knows to read and to write. A feature that a store names beyond these is judged by its rule.
UNORDERED_LISTING = "unordered-listing"
NAMED_RECORDS = "named-records"
PROTECTED_BRANCHES = "protected-branches"
KNOWN_FEATURES = frozenset((NAMED_RECORDS, PROTECTED_BRANCHES, UNORDERED_LISTING))

Clock = Callable[[], int]
MetadataFolder = Callable[[StoreId], Path]


def now_ms() -> int:
    """Milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Format:
    """The store's log of feature sets, read at every start."""

    entries: tuple[FormatEntry, ...]

    @property
    def store_id(self) -> StoreId:
        return self.entries[0].store_id

    @property
    def single_writer(self) -> bool:
        """The store could not prove put-if-absent, and somebody promised that only one writes at a time."""
        return self.entries[-1].single_writer

    @property
    def named_records(self) -> bool:
        """Whether every ref, tag and commit carries the names that it was made for: decided when a store is made."""
        return any(one.name == NAMED_RECORDS for one in self.entries[0].features)

    def has(self, feature: str) -> bool:
        return any(one.name == feature for one in self.entries[-1].features)

    def check(self, url: str, *, writing: bool) -> None:
        """Raises `Unsupported` where a feature that this version does not know forbids what is meant."""
        current = self.entries[-1]
        if current.hash != HASH or current.chunking != ChunkingParams():
            raise Unsupported(
                f"{url} hashes or cuts files in a way that this dsv does not know", subject=url, hint=UPGRADE
            )
        for feature in current.features:
            if feature.name in KNOWN_FEATURES or feature.rule == FeatureRule.IGNORE:
                continue
            if writing or feature.rule == FeatureRule.REFUSE:
                verb = "write" if feature.rule == FeatureRule.READ_ONLY else "read"
                raise Unsupported(
                    f"{url} uses {feature.name!r}, which this dsv cannot {verb}", subject=url, hint=UPGRADE
                )


class Repository:
    """The objects and names of one store. The caller owns the store and closes it."""

    def __init__(
        self, store: Store, layout: Format, refs: Refs, metadata: MetadataCache, clock: Clock
    ) -> None:
        self.store = store
        self.format = layout
        self.id = layout.store_id
        self.clock = clock
        self.objects = Objects(store, metadata, refs.heard)
        self.refs = refs
        refs.refused = partial(refused_move, self.objects)

    @classmethod
    def open(
        cls,
        store: Store,
        metadata: MetadataFolder | None,
        clock: Clock = now_ms,
        *,
        ahead: Callable[[Refs], None] = lambda _: None,
        commit: CommitId | None = None,
    ) -> Repository:
        """Reads the format log. `metadata` says which folder keeps local copies of a store's objects.

        ahead: what may be asked of the names at the same time (`Refs.expect`). commit: one that `Objects.stored_commit`
        will be asked for.
        Raises `NotFound` where there is no store, `Unsupported` where it is of a newer kind.
        """
        refs = Refs(store)
        look = partial(get_commit, store, commit) if commit is not None else lambda: None
        entries, (_, found) = both(partial(_read_format, store), partial(both, partial(ahead, refs), look))
        if not entries and _has_data(store):
            entries = _read_format(store) or _lost_format(store)
        if not entries:
            raise NotFound(
                f"there is no dsv store at {store.url}", subject=store.url, hint="dsv init makes one"
            )
        layout = Format(tuple(entries))
        layout.check(store.url, writing=False)
        if layout.has(UNORDERED_LISTING):
            store.ordered_listing = False
        refs.named = layout.named_records
        folder = None if metadata is None else metadata(layout.store_id)
        repository = cls(store, layout, refs, MetadataCache(folder), clock)
        if commit is not None:
            repository.objects.stored(commit, found)
        return repository

    @classmethod
    def create(
        cls,
        store: Store,
        metadata: MetadataFolder | None,
        *,
        author: str,
        tool: str,
        single_writer: bool = False,
        ordered: bool = True,
        clock: Clock = now_ms,
    ) -> Repository:
        """Makes the store, or adopts what another made at the same moment. The caller has had the store proved.

        single_writer, ordered: what the proof found out about it.
        """
        first = FormatEntry(
            store_id=StoreId.random(),
            nonce=Nonce.random(),
            time_ms=clock(),
            author=author,
            tool=tool,
            features=tuple(
                Feature(name, FeatureRule.REFUSE)
                for name in (NAMED_RECORDS, *(() if ordered else (UNORDERED_LISTING,)))
            ),
            single_writer=single_writer,
        )
        store.put_if_absent(keys.format_key(0), first.encode())
        store.put_if_absent(keys.README_KEY, readme_text().encode())  # the winner may have died before it
        return cls.open(store, metadata, clock)

    def add_feature(self, feature: Feature, *, author: str, tool: str) -> bool:
        """Notes in the format log that the store uses a feature from now on; False if it did already."""
        while not self.format.has(feature.name):
            entries = self.format.entries
            later = replace(
                entries[-1],
                nonce=Nonce.random(),
                time_ms=self.clock(),
                author=author,
                tool=tool,
                features=tuple(sorted((*entries[-1].features, feature), key=lambda one: one.name)),
            )
            if self.store.put_if_absent(keys.format_key(len(entries)), later.encode()) is Put.WON:
                self.format = Format((*entries, later))
                return True
            self.format = Format(tuple(_read_format(self.store)))
            self.format.check(self.store.url, writing=True)
        return False

    def named(self, commit: Commit, dataset: DatasetName, branch: BranchName) -> Commit:
        """The commit as this store keeps it: with the names that it is made for, but in an older store."""
        return replace(commit, dataset=dataset, branch=branch) if self.format.named_records else commit

    @classmethod
    def exists(cls, store: Store) -> bool:
        """Whether a store was made here. Raises `IntegrityError` if one was, and its format is gone."""
        try:
            store.get(keys.format_key(0), RECORD_MAX)
        except NotFound:
            if not _has_data(store):
                return False
            return _read_entry(store, 0) is not None or _lost_format(store)
        return True


_DATA: tuple[tuple[str, Callable[[str], object | None]], ...] = (
    (keys.FORMAT_PREFIX, keys.parse_format_key),
    (keys.REFS_PREFIX, keys.parse_branch_key),
    (keys.COMMIT_PREFIX, keys.parse_commit_key),
    (keys.INDEX_PREFIX, keys.parse_index_key),
    (keys.PACK_PREFIX, keys.parse_pack_key),
)
# So many rows of a prefix are looked at for one that a store of dsv's would have.
_LOOKED_AT = 1000


def _has_data(store: Store) -> bool:
    """Whether there is what only a store can have: its keys are told from those of other programs."""

    def any_of(prefix: str, parse: Callable[[str], object | None]) -> bool:
        return any(parse(item.key) is not None for item in islice(store.list(prefix), _LOOKED_AT))

    return any(together([partial(any_of, prefix, parse) for prefix, parse in _DATA]))


def _lost_format(store: Store) -> NoReturn:
    key = keys.format_key(0)
    raise IntegrityError(
        f"{store.url} holds the data of a dsv store, and {key}, which makes it one, is gone",
        subject=key,
        hint=put_back(key),
    )


def _read_format(store: Store) -> list[FormatEntry]:
    """Entries are numbered from 0 without a gap; the listing is not needed, and not trusted."""
    entries: list[FormatEntry] = []
    for number in count(
        0, 2
    ):  # two at once: most stores have one entry, and to know that takes a second question
        pair = both(partial(_read_entry, store, number), partial(_read_entry, store, number + 1))
        entries += [entry for entry in pair[: 1 if pair[0] is None else 2] if entry is not None]
        if None in pair:
            break
    for entry in entries:
        first = entries[0]
        if (entry.store_id, entry.hash, entry.chunking) != (first.store_id, first.hash, first.chunking):
            raise IntegrityError(
                f"the format log of {store.url} contradicts itself",
                subject=store.url,
                hint=f"put the keys below {keys.FORMAT_PREFIX} back from a copy of the store",
            )
    return entries


def _read_entry(store: Store, number: int) -> FormatEntry | None:
    key = keys.format_key(number)
    try:
        return read_record(FormatEntry.decode, store, key)
    except NotFound:
        return None
