"""The format log of a store: its features, where its refs and its data are, and how a store is created."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count, islice
from typing import NoReturn

import msgspec
from msgspec.structs import replace

from dsv.errors import UPGRADE, Conflict, Denied, DsvError, IntegrityError, NoStore, Unreachable, Unsupported
from dsv.format import keys
from dsv.format.records import HASH, ChunkingParams, Feature, FeatureRule, FormatEntry
from dsv.repo.errors import broken, record_or_none
from dsv.stores.base import PutResult, StoreBackend, both, if_there, parsed, together
from dsv.stores.open import BELOW, OpenStore, Unavailable, split_of
from dsv.values.ids import Nonce, StoreId
from dsv.values.units import format_time

_DATA: tuple[tuple[str, Callable[[str], object | None]], ...] = (
    (keys.FORMAT_PREFIX, keys.parse_format_key),
    (keys.REFS_PREFIX, keys.parse_branch_key),
    (keys.COMMIT_PREFIX, keys.parse_commit_key),
    (keys.INDEX_PREFIX, keys.parse_index_key),
    (keys.PACK_PREFIX, keys.parse_pack_key),
)
# The number of rows of a prefix that are searched for a key that only a dsv store has.
_LOOKED_AT = 1000


def has_data(store: StoreBackend) -> bool:
    """Return whether keys exist that only a dsv store has, even if its format log is missing."""
    return any(together([partial(_any_of, store, prefix, parse) for prefix, parse in _DATA]))


def _any_of(store: StoreBackend, prefix: str, parse: Callable[[str], object | None]) -> bool:
    return any(parse(item.key) is not None for item in islice(store.list(prefix), _LOOKED_AT))


def lost_format(store: StoreBackend) -> NoReturn:
    key = keys.format_key(0)
    raise broken(key, f"{store.url} holds the data of a dsv store, and {key}, which makes it one, is gone")


README = """\
This is a dsv store: versioned datasets, shared and deduplicated.
Please change or delete nothing here by hand: every object is referred to by others.

To use it:  install dsv from its source or from a wheel that your team keeps: pip install dsv_data-*.whl
            (the package called "dsv" on PyPI is another project), then
            dsv datasets --store <where this is>
            dsv clone --store <where this is> DATASET

To read it without dsv:
            dsv ships one file, reader.py, that imports nothing of dsv and restores a dataset
            from a copy of this store in a directory. It needs Python 3.11 with the packages
            blake3, msgpack and zstandard:

            python reader.py STORE_DIR DATASET[@BRANCH, @TAG or @COMMIT] OUT_DIR

            Its source is short, and it is a second description of the format beside docs/format.md
            in dsv's own repository.

What lies here:
  format/    a log of what a program must know to read or write this store
  packs/     the contents of files, and the lists of files, many to an object of about 32 MiB
  index/     which pack holds what
  commits/   one object for each commit; locators/ says where its lists of files lie
  refs/      refs/<dataset>/branches/<name>/..., refs/<dataset>/tags/<name>/... name commits
  runs/      records of jobs that were run on the data
  sessions/, gc/  what writers and the garbage collection owe each other

Every object is named by a hash of its bytes or carries one: file ids are plain BLAKE3-256, so
`b3sum FILE` proves a restored file.
"""
"""The content of `README.txt` in a store."""


# The features that this version can read and write. Any other feature of a store is handled by its rule.
UNORDERED_LISTING = "unordered-listing"
NAMED_RECORDS = "named-records"
NODE_LOCATORS = "node-locators"
PROTECTED_BRANCHES = "protected-branches"
DAMAGE_MARKS = "damage-marks"
EXPIRED_COMMITS = "expired-commits"
ERASED_CONTENTS = "erased-contents"
EXTERNAL_CONTENTS = "external-contents"
NAMES_ELSEWHERE = "names-elsewhere"
DATA_ELSEWHERE = "data-elsewhere"
UNCONDITIONAL_WRITES = "unconditional-writes"
NAMES_MOVING = "names-moving"
NAMES_MOVED = "names-moved"
KNOWN_FEATURES = frozenset(
    (
        NAMED_RECORDS,
        NODE_LOCATORS,
        PROTECTED_BRANCHES,
        DAMAGE_MARKS,
        EXPIRED_COMMITS,
        ERASED_CONTENTS,
        EXTERNAL_CONTENTS,
        UNORDERED_LISTING,
        NAMES_ELSEWHERE,
        DATA_ELSEWHERE,
        UNCONDITIONAL_WRITES,
        NAMES_MOVING,
        NAMES_MOVED,
    )
)

EXTERNAL_FEATURE = Feature(EXTERNAL_CONTENTS, FeatureRule.READ_ONLY)
"""Older versions of dsv refuse contents outside the store and read all others. They must not write: their
garbage collection would not know what an external pack holds."""

OF_ONE_PLACE = frozenset((NAMES_ELSEWHERE, NAMES_MOVING, NAMES_MOVED))


class FormatLog(msgspec.Struct, frozen=True):
    """The store's log of feature sets, read at every start."""

    entries: tuple[FormatEntry, ...]
    left: str | None = None
    """The configured location of the names, if they have moved away from it."""

    @property
    def store_id(self) -> StoreId:
        return self.entries[0].store_id

    @property
    def single_writer(self) -> bool:
        """True if put-if-absent was not proved, and a user promised to have one writer at a time."""
        return self.entries[-1].single_writer

    @property
    def named_records(self) -> bool:
        """True if refs, tags and commits carry the names they were made for. Fixed at a store's creation."""
        return any(one.name == NAMED_RECORDS for one in self.entries[0].features)

    @property
    def node_locators(self) -> bool:
        """True if every node has a locator behind it. Fixed at a store's creation."""
        return any(one.name == NODE_LOCATORS for one in self.entries[0].features)

    def has(self, feature: str) -> bool:
        return any(one.name == feature for one in self.entries[-1].features)

    def check(self, url: str, *, writing: bool) -> None:
        """Raises `Unsupported` if this version may not read the store, or may not write to it if `writing`."""
        current = self.entries[-1]
        for feature in current.features:
            if feature.name in KNOWN_FEATURES or feature.rule == FeatureRule.IGNORE:
                continue
            if writing or feature.rule == FeatureRule.REFUSE:
                verb = "write" if feature.rule == FeatureRule.READ_ONLY else "read"
                raise Unsupported(
                    f"{url} uses {feature.name!r}, which this dsv cannot {verb}", subject=url, hint=UPGRADE
                )
        if current.hash != HASH or current.chunking != ChunkingParams():
            raise Unsupported(
                f"{url} hashes or cuts files in a way that this dsv does not know", subject=url, hint=UPGRADE
            )

    def check_at_rest(self, url: str) -> None:
        """Raises `Conflict` while a process moves the names from `url`: nothing may be written then."""
        last = self.entries[-1]
        if self.has(NAMES_MOVING):
            raise Conflict(
                f"{last.author} is moving the names of this store from {url} to {last.names}, so nothing was written",
                subject=last.names,
                hint=f"wait for it; if it was interrupted: dsv store move-names {last.names} finishes it, and "
                f"dsv store move-names {url} takes it back",
            )


def features(*names: str) -> tuple[Feature, ...]:
    """Return features for a format entry. A program that does not know one of them refuses the store."""
    return tuple(Feature(name, FeatureRule.REFUSE) for name in sorted(set(names)))


def read_layout(store: StoreBackend) -> FormatLog:
    """Return the format of a store; of a split one its names' format, or its data's if they can't be reached.

    Raises `NotFound` if no store or no other half is configured, and `Conflict` if the halves don't match.
    """
    split = split_of(store)
    if split is not None:
        entries, stored = both(partial(_names_log, split), partial(read_format, split.data))
        return _read_split(split, entries, _whole_log(split.data, stored))
    layout = _whole_log(store, read_format(store))
    places = store if isinstance(store, OpenStore) else None
    if layout.has(NAMES_ELSEWHERE):
        if places is None or layout.entries[-1].names is None:
            raise NoStore(
                f"{store.url} holds the data of a store whose names are elsewhere, and no place is configured for them",
                subject=store.url,
                hint="ask whoever made it where they are, then: dsv config stores.NAME.names LOCATION",
            )
        return _read_split(places, None, layout)
    if layout.has(DATA_ELSEWHERE):
        raise NoStore(
            f"{store.url} holds the names of a store whose data is elsewhere",
            subject=store.url,
            hint=f"dsv config stores.NAME.url URL, then dsv config stores.NAME.names {store.url}",
        )
    return layout


def _whole_log(data: StoreBackend, entries: list[FormatEntry]) -> FormatLog:
    """Raises `NotFound` if no store exists, and `IntegrityError` if its log was lost."""
    if not entries and has_data(data):
        entries = read_format(data) or lost_format(data)
    if not entries:
        raise _no_store(data)
    return FormatLog(tuple(entries))


def _no_store(data: StoreBackend) -> NoStore:
    hint = "dsv config store shows where it is sought, if there is a typo; dsv init makes one there"
    return NoStore(f"there is no dsv store at {data.url}", subject=data.url, hint=hint)


def has_layout(store: StoreBackend) -> bool:
    """Return whether a store or half of one was created here. Raises `IntegrityError` if the log is lost."""
    split = split_of(store)
    data = store if split is None else split.data
    return read_entry(data, 0) is not None or (
        has_data(data) and (read_entry(data, 0) is not None or lost_format(data))
    )


def read_data_layout(data: StoreBackend) -> FormatLog:
    """Return the format of a split store's data. Raises `NotFound` without one, `Conflict` if it is whole."""
    entries = read_format(data)
    if not entries:
        raise _no_store(data)
    layout = FormatLog(tuple(entries))
    layout.check(data.url, writing=False)
    if not layout.has(NAMES_ELSEWHERE):
        hint = "dsv config --unset stores.NAME.names"
        raise Conflict(f"{data.url} keeps its names itself", subject=data.url, hint=hint)
    return layout


def make_names(names: StoreBackend, entry: FormatEntry, *more: str | Feature, ordered: bool) -> None:
    """Make a location with refs the names half of a store. After this last write the store can be used.

    entry: from the log of the former location or of the data, signed by this writer. more: further features.
    Raises `Conflict` if the location has become that of another store.
    """
    without = OF_ONE_PLACE | {UNCONDITIONAL_WRITES, UNORDERED_LISTING}
    of_place = (DATA_ELSEWHERE,) if ordered else (DATA_ELSEWHERE, UNORDERED_LISTING)
    made = with_features(replace(entry, single_writer=False, names=None), *of_place, *more, without=without)
    names.put_if_absent(keys.README_KEY, README.encode())
    won = names.put_if_absent(keys.format_key(0), made.encode()) is PutResult.WON
    first = made if won else read_entry(names, 0)
    if first is None or first.store_id != entry.store_id:
        raise Conflict(
            f"somebody has made {names.url} the names of another store meanwhile",
            subject=names.url,
            hint="name another place",
        )


def with_features(
    entry: FormatEntry, *more: str | Feature, without: frozenset[str] = frozenset()
) -> FormatEntry:
    """Return the entry with further features and without some. A feature that it already has keeps its rule.
    A feature that is given by name gets the rule to refuse the store."""
    added = (one if isinstance(one, Feature) else Feature(one, FeatureRule.REFUSE) for one in more)
    kept = {feature.name: feature for feature in entry.features if feature.name not in without}
    kept = {feature.name: feature for feature in added} | kept
    return replace(entry, features=tuple(kept[name] for name in sorted(kept)))


def _names_log(split: OpenStore) -> list[FormatEntry] | None:
    """Return None if the names can't be reached. From then on each request for a name fails at once."""
    try:
        return read_format(split.names)
    except Unreachable as error:
        url = split.names.url
        said = "a commit that is named by its full id needs no names: DATASET@ID"
        hint = f"{error.hint}; {said}" if error.hint else said
        message = f"the names of {split.data.url} can't be reached: {error.message}"
        split.follow(Unavailable(url, Unreachable(message, subject=url, hint=hint)))
        return None


def _read_split(split: OpenStore, entries: list[FormatEntry] | None, data: FormatLog) -> FormatLog:
    named, data_url = split.names.url, split.data.url
    if not data.has(NAMES_ELSEWHERE):
        hint = "dsv config --unset stores.NAME.names"
        raise Conflict(f"{data_url} keeps its names itself, and not at {named}", subject=named, hint=hint)
    if data.has(UNCONDITIONAL_WRITES):
        split.data.conditional = False
    if data.has(UNORDERED_LISTING):
        split.data.ordered_listing = False
    had_names = split.is_split
    entries = _follow(split, entries, data)
    if entries is None:
        return data  # asking for a name reports it
    names_url = split.names.url
    if not entries:
        raise NoStore(
            f"there are no names of {data_url} at {names_url}",
            subject=names_url,
            hint="dsv config stores.NAME.names LOCATION, with the place where they are; if they are lost: "
            "dsv store rebuild-names",
        )
    names = FormatLog(tuple(entries))
    if names.store_id != data.store_id or not names.has(DATA_ELSEWHERE):
        raise Conflict(
            f"{names_url} has the names of another store than {data_url}",
            subject=names_url,
            hint="dsv config stores.NAME.names LOCATION, with the place where this store's names are",
        )
    below = (data.entries[-1].names or "").startswith(BELOW)
    return replace(names, left=None if names_url == named or (below and not had_names) else named)


def _follow(split: OpenStore, entries: list[FormatEntry] | None, data: FormatLog) -> list[FormatEntry] | None:
    """Follow moved names, and return their log; None if their present location can't be reached.

    The log that they have left says where they are. If it is missing or out of reach, the data's may.
    """
    tried = {split.names.url}
    while True:
        known = data.entries[-1] if not entries else entries[-1]
        if entries and (known.store_id != data.store_id or not FormatLog(tuple(entries)).has(NAMES_MOVED)):
            return entries
        if known.names is None or known.names in tried:
            return entries
        tried.add(known.names)
        split.follow(_open_names(split, known.names, known))
        entries = _names_log(split)
        if entries == []:
            split.follow(Unavailable(known.names, unfinished(split, known)))
            return None


def _open_names(split: OpenStore, place: str, said: FormatEntry) -> StoreBackend:
    try:
        found = split.open_names(place)
    except DsvError as error:
        found = Unavailable(place, error)
    if not isinstance(found, Unavailable):
        return found
    return Unavailable(
        place,
        Unreachable(
            f"{said.author} has moved them to {place}: {found.reason.message}",
            subject=place,
            hint="dsv config stores.NAME.names LOCATION, if this machine has another name for it",
        ),
    )


def unfinished(split: OpenStore, said: FormatEntry) -> Unreachable:
    """Return the error for names whose new location is not complete."""
    return Unreachable(
        f"{said.author} began to move the names of {split.url} to {said.names} ({format_time(said.time_ms)}), and they "
        "are not all there yet",
        subject=said.names,
        hint=f"wait for it; if it was interrupted: dsv store move-names {said.names} finishes it",
    )


def read_format(store: StoreBackend) -> list[FormatEntry]:
    """Return the entries, numbered from 0 without a gap. Needs no listing, which could not be trusted."""
    entries: list[FormatEntry] = []
    # Two at a time: most stores have one entry, and it takes a second request to know that.
    for number in count(0, 2):
        pair = both(partial(read_entry, store, number), partial(read_entry, store, number + 1))
        if pair[0] is None and pair[1] is not None:  # both were just written, or the first is lost
            pair = read_entry(store, number), pair[1]
            if pair[0] is None:
                raise _has_a_gap(store, number)
        entries += [entry for entry in pair if entry is not None]
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


def _has_a_gap(store: StoreBackend, number: int) -> IntegrityError:
    key = keys.format_key(number)
    return broken(key, f"{key} of {store.url} is gone, and a later entry of the format log is there")


def check_log(store: StoreBackend) -> None:
    """Raises `IntegrityError` if an entry is missing before a later one: the log that was read then lacks
    features of the store. `read_format` stops at the first missing entry, and may not notice."""
    split = split_of(store)
    for place in (store,) if split is None else (split.names, split.data):
        numbers = set(parsed(keys.parse_format_key, place.list(keys.FORMAT_PREFIX)))
        for number in range(max(numbers, default=0)):
            if number not in numbers and read_entry(place, number) is None:
                raise _has_a_gap(place, number)


def read_entry(store: StoreBackend, number: int) -> FormatEntry | None:
    return record_or_none(FormatEntry.decode, store, keys.format_key(number))


def make_layout(store: StoreBackend, first: FormatEntry) -> None:
    """Create the store, or adopt the one that another process created at the same moment.

    In a split store the names are written first: their winner decides the store's id. If interrupted after
    that, the same call creates the data half. Each process first writes the id that it has drawn to the data
    half. The winner's id is there unless the winner creates a store of other data. Raises `Conflict` if the
    location of the names has, or gets, the names of another store.
    """
    split = split_of(store)
    if split is None:
        conditional = () if store.conditional else (UNCONDITIONAL_WRITES,)
        store.put_if_absent(keys.format_key(0), with_features(first, *conditional).encode())
        store.put_if_absent(keys.README_KEY, README.encode())  # the winner may have been killed before this
        return
    _check_unused(split)
    maker = keys.maker_key(first.store_id)
    split.data.put_if_absent(maker, b"")
    split.names.put_if_absent(keys.format_key(0), with_features(first, DATA_ELSEWHERE).encode())
    made = read_format(split.names)
    if not FormatLog(tuple(made)).has(DATA_ELSEWHERE) or not _is_maker(split.data, made[0].store_id):
        _delete_if_allowed(split.data, maker)
        raise _of_another(split)
    split.names.put_if_absent(keys.README_KEY, README.encode())
    further = (NAMES_ELSEWHERE,) if split.data.conditional else (NAMES_ELSEWHERE, UNCONDITIONAL_WRITES)
    data = replace(with_features(first, *further), store_id=made[0].store_id, nonce=Nonce.random())
    split.data.put_if_absent(keys.format_key(0), data.encode())
    split.data.put_if_absent(keys.README_KEY, README.encode())
    for made_by in {first.store_id, made[0].store_id}:
        _delete_if_allowed(split.data, keys.maker_key(made_by))


def _is_maker(data: StoreBackend, store_id: StoreId) -> bool:
    """Return whether the id that won the location of the names was drawn for this data half.

    A process deletes its maker key only after it has written entry 0, so one of the two exists.
    """
    if if_there(partial(data.get, keys.maker_key(store_id), 1)) is not None:
        return True
    entry = read_entry(data, 0)
    return entry is not None and entry.store_id == store_id


def _delete_if_allowed(store: StoreBackend, key: str) -> None:
    with suppress(Denied):
        store.delete(key)


def _check_unused(split: OpenStore) -> None:
    """Raises `Conflict` if the location already has names, which belong to other data.

    Another process that creates this store writes the data's entry before the first name: read names first.
    """
    has_branch = _any_of(split.names, keys.REFS_PREFIX, keys.parse_branch_key)
    if has_branch and read_entry(split.data, 0) is None:
        raise _of_another(split)


def _of_another(split: OpenStore) -> Conflict:
    return Conflict(
        f"{split.names.url} has the names of another store, so it can't have those of {split.url}",
        subject=split.names.url,
        hint="dsv init --names LOCATION, with an empty place: each store needs one of its own",
    )
