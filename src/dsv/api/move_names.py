"""Moving the names of a store to another place."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from dsv.api.context import Context
from dsv.api.init import prove_names
from dsv.errors import Conflict
from dsv.model.records import FormatEntry
from dsv.repo.layout import DATA_ELSEWHERE, NAMES_ELSEWHERE, NAMES_MOVING, Format, read_format, read_layout
from dsv.repo.names_move import NamesMove, Stamp, moves_elsewhere, note_place
from dsv.store.base import Store
from dsv.store.open import open_names
from dsv.store.split import BELOW, SplitStore, places_of

_BELOW_DATA = f"{BELOW}names/"


@dataclass(frozen=True, slots=True)
class MovedNames:
    """names: where they are now. before: where they were; the same if nothing was moved.

    keys: how many were copied. taken_back: a move that was interrupted has been undone. configure: the setting that
    everybody has to change, and its value, None to take it away; None if there is nothing to change.
    """

    names: str
    before: str
    keys: int = 0
    taken_back: bool = False
    configure: tuple[str, str | None] | None = None


def move_names(context: Context, place: str) -> MovedNames:
    """Moves the names of the store in effect to another place: a folder, a bucket, or the place of the data itself.

    Whoever reads or writes meanwhile goes on, and follows. If it was interrupted, the same call finishes it; naming the
    place where the names are takes it back. Raises `Conflict` if somebody else moves them elsewhere or the place has
    other names, and `Unsupported` if it can't hold any.
    """
    choice = context.settings.store()
    wanted = context.settings.location(place)
    with context.store() as store:
        places = places_of(store)
        assert places is not None
        found = _find(store, places)
        old, log = places.names, found.log
        log.check(old.url, writing=True)  # what a newer version keeps elsewhere would not be copied
        there = wanted == old.url or (wanted == places.data.url and old.url.startswith(_below(places)))
        if there:
            return _stay(context, places, found)
        target = _target(places, wanted, found)
        with _opened(context, places, target) as new:
            move = NamesMove(places.data, old, new, target, _stamp(context))
            proof = prove_names(new)
            copied = 0
            if found.going is None:
                if not log.has(NAMES_MOVING):
                    move.check_free()
                copied = _copied(move)
                move.decide()
            move.finish(ordered=proof.ordered)
            setting = f"stores.{choice.name or 'NAME'}.names"
            value = None if target.startswith(BELOW) else target
            return MovedNames(new.url, old.url, copied, configure=(setting, value))


def _copied(move: NamesMove) -> int:
    """How many keys. A place that can't take them holds nobody up: what was begun here is taken back."""
    first = move.begin()
    try:
        return move.copy()
    except Conflict:
        if first:
            with suppress(Conflict):  # somebody else has decided it
                move.take_back()
        raise


@dataclass(frozen=True, slots=True)
class _Found:
    """log: of the place where the names are, or were until `going` was decided and not finished."""

    log: Format
    going: FormatEntry | None = None


def _find(store: Store, places: SplitStore) -> _Found:
    """Follows the names as far as their places are complete."""
    named = places.names
    layout = read_layout(store)
    if layout.has(DATA_ELSEWHERE) or not layout.has(NAMES_ELSEWHERE):
        return _Found(layout)
    # The log of the data was read alone: the names can't be reached, or were on the way when somebody was killed.
    places.follow(named)
    log = Format(tuple(read_format(named)))
    while (said := log.entries[-1]).names is not None and not log.has(NAMES_MOVING):
        new = places.open_names(said.names)
        entries = read_format(new)
        if not entries:
            return _Found(log, said)
        places.follow(new)
        log = Format(tuple(entries))
    return _Found(log)


def _below(places: SplitStore) -> str:
    return f"{places.data.url.rstrip('/')}/{_BELOW_DATA.removeprefix(BELOW)}"


def _target(places: SplitStore, wanted: str, found: _Found) -> str:
    """What the log calls the place. Below the data it is a new one each time, as old names there stay."""
    under_way = found.going or (found.log.entries[-1] if found.log.has(NAMES_MOVING) else None)
    going = None if under_way is None else under_way.names
    target = wanted
    if wanted == places.data.url:
        begun = going is not None and going.startswith(_BELOW_DATA)
        target = going if going is not None and begun else f"{_BELOW_DATA}{secrets.token_hex(8)}"
    if under_way is not None and target != going:
        raise moves_elsewhere(places.names.url, under_way)
    return target


@contextmanager
def _opened(context: Context, places: SplitStore, target: str) -> Iterator[Store]:
    url = (
        f"{places.data.url.rstrip('/')}/{target.removeprefix(BELOW)}" if target.startswith(BELOW) else target
    )
    new = open_names(url, context.store_options(context.settings.store()), create=True)
    try:
        yield new
    finally:
        new.close()


def _stay(context: Context, places: SplitStore, found: _Found) -> MovedNames:
    old = places.names
    if found.going is not None:
        raise moves_elsewhere(old.url, found.going)
    began = found.log.has(NAMES_MOVING)
    if began:
        NamesMove(places.data, old, old, old.url, _stamp(context)).take_back()
    elif places.is_split and not old.url.startswith(_below(places)):
        noted = read_format(places.data)[-1].names
        if (
            noted is not None
        ):  # they have moved before, and whoever moved them may have been killed before it was noted
            note_place(places.data, old, old.url, _stamp(context))
    return MovedNames(old.url, old.url, taken_back=began)


def _stamp(context: Context) -> Stamp:
    return Stamp(context.writer.author, context.writer.tool, context.clock)
