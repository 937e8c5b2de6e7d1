"""Damage marks in a store: written by `dsv verify`, and respected by every writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from dsv.errors import IntegrityError, NotFound
from dsv.format import keys
from dsv.format.records import DAMAGE_MAX, Damage, Feature, FeatureRule, WriterIdentity, signed
from dsv.repo.errors import explain_denied_write, read_record
from dsv.repo.format_log import DAMAGE_MARKS
from dsv.stores.base import PutResult, StoreBackend, StoreMissing
from dsv.values.ids import Nonce

if TYPE_CHECKING:
    from dsv.repo.repository import Repository

_KEPT = 8
"""Records that are kept: a reader that has listed an older one may still read it."""
_LISTINGS = 10


def learn_damage(repository: Repository, listed: Iterable[str]) -> Damage | None:
    """Return the last mark of these keys. The packs learn it. Sends no request if empty."""
    found = _last(repository.store, listed)
    if found is None:
        return None
    repository.objects.packs.learn(*found)
    return found[1]


def read_damage(repository: Repository) -> Damage | None:
    """Like `learn_damage`, for all marks of a store. Sends no request if the store never had one."""
    if not repository.format.has(DAMAGE_MARKS):
        return None
    return learn_damage(repository, [item.key for item in repository.store.list(keys.DAMAGE_PREFIX)])


def _last(store: StoreBackend, listed: Iterable[str]) -> tuple[int, Damage] | None:
    """Return the last mark. If it was deleted after the keys were listed, a later one exists: list again."""
    for _ in range(_LISTINGS):
        numbers = [number for key in listed if (number := keys.parse_gc_damage_key(key)) is not None]
        if not numbers:
            return None
        key = keys.gc_damage_key(max(numbers))
        try:
            return max(numbers), read_record(Damage.decode, store, key, DAMAGE_MAX)
        except StoreMissing:
            raise
        except NotFound:
            listed = [item.key for item in store.list(keys.DAMAGE_PREFIX)]
        except IntegrityError as error:
            error.hint = "dsv verify --full records the store's damage again"
            raise
    raise NotFound(f"{key} is listed and can't be read in {store.url}", subject=key)


def mark_damage(
    repository: Repository, writer: WriterIdentity, change: Callable[[Damage | None], Damage | None]
) -> Damage | None:
    """Write the next mark: what `change` returns for the last one, which is None if absent or damaged.

    Of two concurrent writers one loses, and calls `change` again with the mark of the other. Nothing is
    written if `change` returns its argument, unless the last mark is damaged. Returns the last mark.
    """
    store, packs = repository.store, repository.objects.packs
    while True:
        listed = [item.key for item in store.list(keys.DAMAGE_PREFIX)]
        numbers = [number for key in listed if (number := keys.parse_gc_damage_key(key)) is not None]
        last: Damage | None = None
        is_damaged = False
        try:
            found = _last(store, listed)
            last = None if found is None else found[1]
        except IntegrityError:
            is_damaged = True
        wanted = change(last)
        if wanted is None and is_damaged:
            wanted = Damage((), (), (), True, Nonce(bytes(16)), 0, "", "")
        if wanted is None or wanted == last:
            return last
        repository.add_feature(Feature(DAMAGE_MARKS, FeatureRule.IGNORE), writer)
        number = max(numbers, default=-1) + 1
        wanted = signed(wanted, writer, repository.clock())
        with explain_denied_write(store.url):
            won = store.put_if_absent(keys.gc_damage_key(number), wanted.encode()) is PutResult.WON
        if won:
            packs.learn(number, wanted)
            for old in sorted(numbers)[:-_KEPT]:
                with suppress(Exception):
                    store.delete(keys.gc_damage_key(old))
            return wanted
