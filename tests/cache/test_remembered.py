"""What an inventory need not read again, as the cache keeps what an earlier one has read (E8)."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cache.places import make_root, place, publish

from dsv.cache import inventory
from dsv.cache.claims import read_claims
from dsv.cache.evict import evict, preview
from dsv.cache.inventory import STABLE_SECONDS, WORTH_KEEPING, Inventory, Remembered, take_inventory
from dsv.cache.leases import Lease, end_hold, find_holds, hold
from dsv.cache.policy import EvictionRequest
from dsv.cache.record import Extent, add_share, used_until
from dsv.cache.root import CachePlace, CacheRoot
from dsv.cache.settings import CacheLimits, CacheSettings

MANY = WORTH_KEEPING + 6
DAY = 86400.0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[CachePlace]:
    """The places whose claims were read."""
    found: list[CachePlace] = []

    def noted(root: CacheRoot, one: CachePlace, *, asked: bool = False) -> object:
        found.append(one)
        return read_claims(root, one, asked=asked)

    monkeypatch.setattr(inventory, "read_claims", noted)
    return found


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    root = make_root(tmp_path / "cache")
    for number in range(MANY):
        publish(root, place(number), {"a": b"1"})
        settle(root, number)
    return root


_COUNT = itertools.count()


def settle(root: CacheRoot, number: int, seconds: float = 2 * STABLE_SECONDS) -> None:
    """As if the claims of a place had last changed so long ago, at a moment when nothing else did."""
    folder = root.claims(place(number)).path
    moment = folder.stat().st_mtime_ns - round(seconds * 1e9) - next(_COUNT)
    os.utime(folder, ns=(moment, moment))


def evict_nothing(root: CacheRoot) -> None:
    assert evict(root, CacheSettings(), EvictionRequest()).evicted == []


def test_what_has_not_changed_is_not_read_again(root: CacheRoot, reads: list[CachePlace]) -> None:
    evict_nothing(root)
    assert len(reads) == MANY
    reads.clear()
    evict_nothing(root)
    assert reads == []
    assert len(take_inventory(root).visible) == MANY
    assert reads == []


def test_every_change_of_a_place_is_seen(root: CacheRoot, reads: list[CachePlace]) -> None:
    evict_nothing(root)
    moment = root.now()
    record = take_inventory(root).visible[0].record
    assert record is not None
    hold(root, place(1))
    used_until(root, place(2), moment + 5)
    lease = Lease.take(root, place(3), "hold", ttl=100.0)
    add_share(root, place(4), next_fill(root, 4), Extent(4096, 1))
    reads.clear()
    items = {item.place: item for item in take_inventory(root).visible}
    assert sorted(reads) == sorted(place(number) for number in (1, 2, 3, 4))
    assert items[place(1)].claims.pins and items[place(3)].claims.leases
    assert items[place(2)].last_use == moment + 5
    assert items[place(4)].room == items[place(5)].room + Extent(4096, 1)
    lease.release()
    assert take_inventory(root).visible[0].place in items


def test_what_was_used_since_stays(root: CacheRoot) -> None:
    old = [place(number) for number in range(1000, 1000 + MANY)]
    for number, one in enumerate(old, 1000):
        publish(root, one, {"a": b"1"}, age=DAY / 2)
        settle(root, number)
    evict_nothing(root)
    used_until(root, old[0], root.now())
    result = evict(root, CacheSettings(limits=CacheLimits(unused_for=DAY / 4)), EvictionRequest())
    assert {one.place for one in result.evicted} == set(old[1:])


def test_a_folder_that_changed_just_now_is_read_again_though_its_time_is_the_same(
    root: CacheRoot, reads: list[CachePlace]
) -> None:
    """A file system may count whole seconds: two changes within one then leave the same time."""
    settle(root, 0, -2 * STABLE_SECONDS)
    changed = root.claims(place(0)).path.stat().st_mtime_ns
    evict_nothing(root)
    hold(root, place(0))
    os.utime(root.claims(place(0)).path, ns=(changed, changed))
    reads.clear()
    item = next(one for one in take_inventory(root).visible if one.place == place(0))
    assert item.claims.pins and reads == [place(0)]


def test_a_preview_writes_nothing_and_few_places_are_not_worth_a_file(tmp_path: Path) -> None:
    root = make_root(tmp_path / "cache")
    for number in range(WORTH_KEEPING - 1):
        publish(root, place(number), {"a": b"1"})
        settle(root, number)
    evict_nothing(root)
    assert not root.inventory.path.exists()
    publish(root, place(WORTH_KEEPING), {"a": b"1"})
    settle(root, WORTH_KEEPING)
    preview(root, CacheSettings(), EvictionRequest())
    assert not root.inventory.path.exists()
    evict_nothing(root)
    assert root.inventory.path.exists()


@pytest.mark.parametrize("content", [b"", b"[", b"\xff" * 100, b'{"version":2,"places":{}}', b"[" * 100_000])
def test_a_file_that_means_nothing_counts_as_missing(
    root: CacheRoot, reads: list[CachePlace], content: bytes
) -> None:
    evict_nothing(root)
    root.inventory.path.chmod(0o600)
    root.inventory.path.write_bytes(content)
    reads.clear()
    evict_nothing(root)
    assert len(reads) == MANY
    root.inventory.path.unlink()
    root.inventory.path.mkdir()  # it can't be replaced either
    evict_nothing(root)


def test_what_has_gone_is_forgotten(root: CacheRoot) -> None:
    evict_nothing(root)
    evict(root, CacheSettings(), EvictionRequest(everything=True))
    for number in range(2000, 2000 + MANY):
        publish(root, place(number), {"a": b"1"})
        settle(root, number)
    evict_nothing(root)
    assert place(0).name not in root.inventory.path.read_text()
    assert place(2000).name in root.inventory.path.read_text()


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["use", "hold", "keep", "release", "share", "evict", "fill", "look"]), st.integers(0, 3)),
    max_size=20,
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(actions=ACTIONS)
def test_an_inventory_equals_one_that_remembers_nothing(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    root = make_root(tmp_path_factory.mktemp("cache") / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inventory, "WORTH_KEEPING", 1)
        for what, number in actions:
            act(root, what, number)
            if root.claims(place(number)).path.is_dir():
                settle(root, number)
            anew = take_inventory(root, Remembered(root, root.now(), {}))
            assert said(take_inventory(root)) == said(anew), what


def act(root: CacheRoot, what: str, number: int) -> None:
    one = place(number)
    there = root.visible(one).path.exists()
    if what == "fill" and not there:
        publish(root, one, {"a": b"1"})
    elif what == "evict":
        evict(root, CacheSettings(), EvictionRequest(only=frozenset({one})))
    elif what == "look":
        evict(root, CacheSettings(), EvictionRequest())
    elif there:
        if what == "use":
            used_until(root, one, root.now())
        elif what == "hold":
            Lease.take(root, one, "hold", ttl=100.0)
        elif what == "keep":
            hold(root, one)
        elif what == "release":
            for held in find_holds(root, [one]):
                end_hold(root, held)
        else:
            add_share(root, one, next_fill(root, number), Extent(4096, 1))


def next_fill(root: CacheRoot, number: int) -> str:
    (name,) = (one.name for one in root.claims(place(number)).path.iterdir() if one.name.startswith("entry-"))
    return name.removeprefix("entry-")


def said(found: Inventory) -> object:
    return found.items, found.foreign
