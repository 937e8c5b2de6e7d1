"""How often a fill and an eviction look at the whole cache, which takes seconds on a file server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.cache.fake_source import STORE, FakeSource, File, World
from tests.cache.places import ensure_room, make_root, place, publish

from dsv.cache import evict as eviction
from dsv.cache import inventory
from dsv.cache.claims import read_claims
from dsv.cache.evict import RoomMaker, evict, evict_from
from dsv.cache.fill.fill import fill
from dsv.cache.fill.plan import FillRequest
from dsv.cache.inventory import take_inventory
from dsv.cache.leases import Lease
from dsv.cache.policy import EvictionRequest, Need
from dsv.cache.root import CachePlace, CacheRoot
from dsv.cache.settings import CacheLimits, CacheSettings
from dsv.errors import NoRoom

SMALL = Need(place(99), 100_000, 1)


@dataclass
class Looks:
    """Counts calls, and has a clock on which only an inventory takes time: 2 s."""

    inventories: int = 0
    sweeps: int = 0
    at_claims: list[CachePlace] = field(default_factory=list)
    time: float = 0.0

    def clock(self) -> float:
        return self.time


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    found, sweep = Looks(), eviction.sweep

    def counted_inventory(*arguments: Any) -> object:
        found.inventories += 1
        found.time += 2.0
        return take_inventory(*arguments)

    def counted_sweep(*arguments: Any) -> object:
        found.sweeps += 1
        return sweep(*arguments)

    def counted_claims(root: CacheRoot, one: CachePlace, *, asked: bool = False) -> object:
        found.at_claims.append(one)
        return read_claims(root, one, asked=asked)

    monkeypatch.setattr(eviction, "take_inventory", counted_inventory)
    monkeypatch.setattr(eviction, "sweep", counted_sweep)
    monkeypatch.setattr(inventory, "read_claims", counted_claims)
    return found


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    return make_root(tmp_path / "cache")


def fill_looking_all_the_time(
    root: CacheRoot, world: World, room_maker: Callable[[Need], None], monkeypatch: pytest.MonkeyPatch
) -> int:
    """Fills a commit; how often that asked for room."""
    monkeypatch.setattr("dsv.cache.fill.fill._ROOM_EVERY", -1.0)
    monkeypatch.setattr("dsv.cache.fill.part_worker._TICK_EVERY", 1)
    commit = world.commit([File(f"{number:03d}", 1000, str(number)) for number in range(50)])
    asked: list[Need] = []

    def ensure(need: Need) -> None:
        asked.append(need)
        room_maker(need)

    source = FakeSource(world.folder, str(commit))
    world.check(commit, fill(root, FillRequest("xrays", commit, STORE), source, ensure_room=ensure).path)
    return len(asked)


def test_a_fill_takes_no_inventory_if_the_owner_limits_no_content(
    root: CacheRoot, tmp_path: Path, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.settings_file.path.chmod(0o644)
    root.settings_file.path.write_text('unused_for = "1d"\nmin_free = "1k"\n')
    publish(root, place(1), {"a": b"1"}, age=1e6)
    asked = fill_looking_all_the_time(root, World(tmp_path / "world"), RoomMaker(root), monkeypatch)
    assert asked > 3
    assert looks.inventories == 0


def test_a_fill_takes_one_inventory_if_the_owner_limits_the_content(
    root: CacheRoot, tmp_path: Path, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.settings_file.path.chmod(0o644)
    root.settings_file.path.write_text('max_size = "1T"\n')
    maker = RoomMaker(root, looks.clock)
    assert fill_looking_all_the_time(root, World(tmp_path / "world"), maker, monkeypatch) > 3
    assert looks.inventories == 1


@pytest.mark.parametrize(
    "limit", ['max_size = "1T"', "max_files = 1000", '[datasets.xrays]\nmax_size = "1T"']
)
def test_an_inventory_takes_at_most_a_hundredth_of_the_time(
    root: CacheRoot, looks: Looks, limit: str
) -> None:
    root.settings_file.path.chmod(0o644)
    root.settings_file.path.write_text(limit + "\n")
    maker = RoomMaker(root, looks.clock)
    maker(SMALL)
    looks.time += 199.0
    maker(SMALL)
    assert looks.inventories == 1
    looks.time += 1.0
    maker(SMALL)
    assert looks.inventories == 2


def test_limits_that_change_during_a_fill_are_kept(root: CacheRoot, looks: Looks) -> None:
    old = publish(root, place(1), {"a": bytes(100_000)}, age=5)
    root.settings_file.path.chmod(0o644)
    root.settings_file.path.write_text('max_size = "1T"\n')
    maker = RoomMaker(root, looks.clock)
    maker(SMALL)
    root.settings_file.path.write_text('max_size = "150k"\n')
    maker(SMALL)
    assert not old.exists()
    root.settings_file.path.write_text('max_size = "50k"\n')
    with pytest.raises(NoRoom, match="max_size is 50"):
        maker(SMALL)


def test_a_limit_that_is_exceeded_is_acted_upon_at_once(root: CacheRoot, looks: Looks) -> None:
    """Though what is known of the cache is not too old yet, and the limits are the same."""
    old = publish(root, place(1), {"a": bytes(100_000)}, age=5)
    root.settings_file.path.chmod(0o644)
    root.settings_file.path.write_text('max_size = "300k"\n')
    maker = RoomMaker(root, looks.clock)
    maker(SMALL)
    maker(SMALL)
    assert looks.inventories == 1
    maker(Need(place(99), 250_000, 1))
    assert not old.exists()


def test_making_room_takes_two_inventories_and_one_sweep(root: CacheRoot, looks: Looks) -> None:
    """The first shows that there is no room. The one after the sweep serves both the preview and the eviction."""
    old = publish(root, place(1), {"a": bytes(100_000)}, age=5)
    result = ensure_room(root, CacheSettings(limits=CacheLimits(max_size=150_000)), SMALL)
    assert [one.place for one in result.evicted] == [place(1)]
    assert not old.exists()
    assert (looks.inventories, looks.sweeps) == (2, 1)


def test_evict_with_nothing_due_reads_the_claims_of_each_commit_once(root: CacheRoot, looks: Looks) -> None:
    places = [place(number) for number in range(40)]
    for one in places:
        publish(root, one, {"a": b"1"})
    assert evict(root, CacheSettings(), EvictionRequest()).evicted == []
    assert sorted(looks.at_claims) == sorted(places)


def test_a_commit_that_was_filled_anew_since_it_was_read_is_not_evicted_for_its_earlier_fill(
    root: CacheRoot,
) -> None:
    publish(root, place(1), {"a": b"1"}, age=50)
    before = take_inventory(root)
    evict(root, CacheSettings(), EvictionRequest(everything=True))
    anew = publish(root, place(1), {"a": b"1"}, age=50)
    (kept,) = evict_from(root, CacheSettings(), EvictionRequest(everything=True), before).kept
    assert kept.reason == "being cached again" and anew.exists()


def test_places_are_cleared_by_several_threads_without_losing_count(root: CacheRoot) -> None:
    """The trash of killed evictors is deleted at the same time, and all of it is counted."""
    for number in range(60):
        folder = root.trash / f"{number:032x}"
        root.make_directory(folder)
        (folder / "file").path.write_bytes(bytes(8192))
        for other in range(20):
            shared = root.trash.path / f"{0:032x}/{other}"
            shared.touch()
            (folder / f"shared-{other}").path.hardlink_to(shared)
    swept = evict(root, CacheSettings(), EvictionRequest(everything=True))
    assert swept.leftovers.files == 60 + 20
    assert [one for one in root.trash.path.iterdir() if one != root.spare_folder.path] == []


def test_an_expired_lease_is_removed_and_the_place_is_read_again(root: CacheRoot) -> None:
    publish(root, place(1), {"a": b"1"})
    Lease.take(root, place(1), "hold", ttl=-1.0)
    evict(root, CacheSettings(), EvictionRequest())
    assert read_claims(root, place(1)).leases == ()
    (item,) = take_inventory(root).visible
    assert item.claims.leases == ()
