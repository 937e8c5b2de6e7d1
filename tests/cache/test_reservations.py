"""Reservations of fills that have not begun: they count as long as the process that made them may still run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.cache.fake_source import STORE, FakeSource, File, World
from tests.cache.places import Clock, make_root, place

from dsv.cache.claims import LeaseName, LeaseOwner, LeaseRecord
from dsv.cache.fill import reservations
from dsv.cache.fill.fill import fill
from dsv.cache.fill.plan import FillRequest
from dsv.cache.leases import Lease
from dsv.cache.policy import Need
from dsv.cache.root import CacheRoot

FILL = "f" * 32
LONG = 2 * reservations._BEGINS_WITHIN


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    return make_root(tmp_path / "cache")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def elsewhere(pid: int = 7) -> LeaseOwner:
    """A process on another host, of which nothing is known here."""
    return LeaseOwner("ab" * 15 + f"{pid:02}", "gpu2", "ben", "another kernel", pid, 4711)


def reserve_from(root: CacheRoot, owner: LeaseOwner) -> None:
    reservations.reserve(root, place(), FILL, 100, 1)
    record = msgspec.json.decode((root.room.path / FILL).read_bytes())
    root.replace(root.room / FILL, msgspec.json.encode({**record, "owner": msgspec.to_builtins(owner)}))


def lease_from(root: CacheRoot, owner: LeaseOwner, purpose: str, ttl: float) -> None:
    now = root.now()
    record = LeaseRecord(owner=owner, purpose=purpose, since=now, renewed=now, ttl=ttl)  # type: ignore[arg-type]
    path = root.claims(place()) / str(LeaseName(owner.id, 0, now))
    root.write_once(path, msgspec.json.encode(record))


def test_making_room_may_take_any_time(root: CacheRoot, clock: Clock, tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    commit = world.commit([File("a", 100_000, "a")])
    request = FillRequest("xrays", commit, STORE)
    asked: list[Need] = []

    def evicts_for_long(need: Need) -> None:
        asked.append(need)
        clock.move(LONG)
        (one,) = reservations.reservations(root)
        assert (one.place, one.left.files, one.live) == (request.place, 1, True)

    with Lease.take(root, request.place, "stage", ttl=2 * LONG):
        fill(root, request, FakeSource(world.folder, str(commit)), ensure_room=evicts_for_long)
    assert len(asked) == 1
    assert reservations.reservations(root) == []


def test_it_counts_while_its_host_renews_its_lease(root: CacheRoot, clock: Clock) -> None:
    reserve_from(root, elsewhere())
    lease_from(root, elsewhere(), "stage", ttl=2 * LONG)
    clock.move(LONG)
    (one,) = reservations.reservations(root)
    assert (one.left.bytes, one.live) == (100, True)
    clock.move(2 * LONG)
    assert reservations.reservations(root) == []
    assert list(root.room.path.iterdir()) == []


@pytest.mark.parametrize("purpose", [None, "hold", "another's"])
def test_what_does_not_show_that_its_maker_is_at_work(
    root: CacheRoot, clock: Clock, purpose: str | None
) -> None:
    """A hold outlives its command by days, and who else wants the commit reserves for himself."""
    reserve_from(root, elsewhere())
    if purpose == "hold":
        lease_from(root, elsewhere(), "hold", ttl=2 * LONG)
    elif purpose is not None:
        lease_from(root, elsewhere(8), "stage", ttl=2 * LONG)
    clock.move(LONG)
    assert reservations.reservations(root) == []


def test_reserving_again_changes_nothing(root: CacheRoot) -> None:
    for _ in range(2):
        reservations.reserve(root, place(), FILL, 100, 1)
    assert len(reservations.reservations(root)) == 1
