from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.format import index
from dsv.format.locator import ObjectKind
from dsv.format.records import Damage
from dsv.upkeep.gc_packs import ListedPacks, Needed
from dsv.upkeep.ids import IdSet, heads_of
from dsv.upkeep.index_rows import ROW, PackList
from dsv.values.ids import EXTERNAL_END, Id, Nonce, PackId

INSIDE = [PackId(bytes([at]) * 16) for at in range(1, 5)]
OUTSIDE = [PackId(bytes([at]) * 10 + EXTERNAL_END) for at in range(5, 7)]
PACKS = [*INSIDE, *OUTSIDE]
OBJECTS = [bytes([first]) + bytes([at]) * 31 for first in (0, 7) for at in range(1, 3)]


class World(NamedTuple):
    rows: set[tuple[bytes, PackId]]
    listed: set[PackId]
    needed: set[bytes]
    condemned: set[PackId]
    bad_packs: set[PackId]
    bad_rows: set[tuple[bytes, PackId]]


def some_of(values: list[Any]) -> st.SearchStrategy[set[Any]]:
    return st.sets(st.sampled_from(values))


places = [(one, pack) for one in OBJECTS for pack in PACKS]
worlds = st.builds(
    World, some_of(places), some_of(PACKS), some_of(OBJECTS), some_of(PACKS), some_of(PACKS), some_of(places)
)


def deletable(world: World) -> set[PackId]:
    """Of the condemned packs those whose loss takes nothing away that is needed."""

    def is_good(one: bytes, pack: PackId) -> bool:
        is_marked = pack in world.bad_packs or (one, pack) in world.bad_rows
        return pack in world.listed and pack not in world.condemned and pack in INSIDE and not is_marked

    kept = {one for one, pack in world.rows if is_good(one, pack)}
    alone = {pack for one, pack in world.rows if one in world.needed - kept and pack in world.listed}
    return world.condemned - alone


class Rows:
    """As `IndexRows`."""

    def __init__(self, world: World) -> None:
        self.packs = PackList.of([np.frombuffer(bytes(one), "S16") for _, one in world.rows])
        self._places = sorted(world.rows)

    def bucket(self, first: int) -> Any:
        chosen = [place for place in self._places if place[0][0] == first]
        found = np.zeros(len(chosen), ROW)
        numbers = list(self.packs)
        for at, (one, pack) in enumerate(chosen):
            where = index.EXTERNAL if pack in OUTSIDE else index.IN_PACK
            found[at] = (heads_of(one)[0], one, ObjectKind.CHUNK, where, 0, numbers.index(pack), 8, 9, 9, 0)
        return found


@settings(deadline=None, max_examples=150)
@given(worlds)
def test_of_condemned_packs_those_go_without_which_all_that_is_needed_is_there(world: World) -> None:
    marks = tuple((pack, ObjectKind.CHUNK, Id(one)) for one, pack in sorted(world.bad_rows))
    damage = Damage(tuple(sorted(world.bad_packs)), cast("Any", marks), (), True, Nonce.random(), 0, "a", "t")
    with tempfile.TemporaryDirectory() as folder, IdSet(Path(folder) / "ids") as reached:
        reached.add(b"".join(world.needed))
        listed = ListedPacks((one, 1000) for one in world.listed)
        rows = cast("Any", Rows(world))
        found = Needed(rows, reached, listed, damage, condemned=world.condemned).deletable()
    assert list(found) == sorted(deletable(world))
