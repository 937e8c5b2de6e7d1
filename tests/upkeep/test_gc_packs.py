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
from dsv.upkeep.gc_packs import FEWEST, SMALL, ListedPacks, Needed, to_join
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


NIGHTS = st.lists(st.lists(st.integers(47, 2 * SMALL), max_size=60), max_size=60)


@settings(deadline=None, max_examples=100)
@given(NIGHTS)
def test_each_byte_is_copied_at_most_once_for_each_step_of_sizes(nights: list[list[int]]) -> None:
    """A pack is its bytes, and how often the byte that was copied most often was copied."""
    packs: list[tuple[int, int]] = []
    for new in nights:
        packs += [(size, 0) for size in new]
        small = [pack for pack in packs if pack[0] < SMALL]
        chosen = to_join(np.array([size for size, _ in small], np.int64))
        joined = [pack for pack, is_chosen in zip(small, chosen.tolist(), strict=True) if is_chosen]
        assert not joined or len(joined) >= FEWEST
        if joined:
            packs = [pack for pack in packs if pack not in joined]
            packs.append((sum(size for size, _ in joined), 1 + max(times for _, times in joined)))
        steps = 6  # SMALL is 8^7 * 2 bytes, and no pack has fewer than 47
        assert all(times <= steps for _, times in packs)
        again = [size for size, _ in packs if size < SMALL]
        assert not joined or not to_join(np.array(again, np.int64)).any()


def test_small_packs_wait_until_together_they_reach_the_next_step() -> None:
    assert not to_join(np.array([SMALL // 2] * 7)).any(), "seven are too few"
    assert not to_join(np.array([20_000] * 2 + [3_000] * 3 + [100] * 4)).any(), "below 65,536 bytes together"
    assert to_join(np.array([20_000] * 3 + [3_000] * 3 + [100] * 4)).all()
    few_large = np.array([SMALL // 2, *[SMALL // 100] * 9])
    assert to_join(few_large).tolist() == [False] + [True] * 9
