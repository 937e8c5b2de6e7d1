"""Accounts of cached commits, against what the file system counts."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cache import filler
from tests.cache.fake_source import STORE, FakeSource, File, World
from tests.cache.places import make_root, place, publish
from tests.waiting import until

from dsv.api.cached import cached
from dsv.cache import account
from dsv.cache.account import recount
from dsv.cache.evict import evict, evict_from, preview
from dsv.cache.fill import directory as fills
from dsv.cache.fill.fill import fill
from dsv.cache.fill.plan import FillRequest
from dsv.cache.inventory import take_inventory
from dsv.cache.policy import EvictionRequest
from dsv.cache.record import Extent, add_share, read_record
from dsv.cache.root import CachePlace, CacheRoot
from dsv.cache.settings import CacheSettings
from dsv.errors import Conflict
from dsv.format.tree import Kind
from dsv.values.ids import CommitId

ALL = EvictionRequest(everything=True)


def only(*places: CachePlace) -> EvictionRequest:
    return EvictionRequest(only=frozenset(places))


def used(*trees: Path) -> int:
    """What `du` says of these folders."""
    said = subprocess.run(["du", "-scB1", *trees], capture_output=True, text=True, check=True)
    return int(said.stdout.split()[-2])


def cache(root: CacheRoot, world: World, commit: CommitId, dataset: str = "xrays") -> CachePlace:
    request = FillRequest(dataset, commit, STORE)
    fill(root, request, FakeSource(world.folder, str(commit)), ensure_room=lambda need: None)
    return request.place


def accounts_are_right(root: CacheRoot) -> None:
    """The sum is what the disk holds, and each commit pays for what nobody paid for before it."""
    trees = [item.path for item in take_inventory(root).visible]
    counted = recount(root, mend=False)
    assert [item.room for item, _ in counted] == [room for _, room in counted]
    assert sum(room.bytes for _, room in counted) == (used(*trees) if trees else 0)


def some_files(chance: random.Random) -> list[File]:
    kinds = [Kind.FILE] * 6 + [Kind.EXECUTABLE, Kind.SYMLINK, Kind.EMPTY_DIRECTORY]
    files = []
    for number in range(chance.randrange(30)):
        kind = chance.choice(kinds)
        size = chance.choice([0, 1, 100, 4096, 5000, 70_000]) if kind <= Kind.EXECUTABLE else 0
        target = "x" * chance.choice([3, 90]) if kind == Kind.SYMLINK else ""
        path = f"{chance.choice('abc')}/{number:02d}"
        files.append(File(path, size, chance.choice("pq"), int(kind), target=target))
    return files


@pytest.mark.parametrize("seed", range(3))
def test_accounts_are_what_the_disk_holds_after_any_history(root: CacheRoot, world: World, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(12):
        visible = [item.place for item in take_inventory(root).visible]
        if visible and chance.random() < 0.4:
            due = only(*chance.sample(visible, chance.randint(1, min(2, len(visible)))))
            dry = preview(root, CacheSettings(), due)
            done = evict(root, CacheSettings(), due)
            assert [one.passed_on for one in done.evicted] == [one.passed_on for one in dry.evicted]
        else:
            cache(root, world, world.commit(some_files(chance)), chance.choice(["xrays", "scans"]))
        accounts_are_right(root)


def test_what_commits_do_not_share_goes_to_no_account(root: CacheRoot, world: World) -> None:
    held = cache(root, world, world.commit([File(f"{n}", 3000, f"{n}") for n in range(60)]), "held")
    before = {item.place: item.room for item in take_inventory(root).visible}[held]
    for size in (100, 4000):
        commit = world.commit([File(f"{n}", size, f"{size}{n}") for n in range(60)])
        for _ in range(5):
            evict(root, CacheSettings(), only(cache(root, world, commit)))
            (left,) = take_inventory(root).visible
            assert left.room == before
    assert before.bytes == used(root.visible(held).path)


def test_files_with_holes_count_what_they_take(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(File, "content", lambda file: bytes(file.size))
    cache(root, world, world.commit([File("small", 200_000), File("large", 3 << 20)]))
    (item,) = take_inventory(root).visible
    assert item.room.bytes < 100_000
    accounts_are_right(root)


def test_files_that_cannot_be_linked_count_in_full(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are copied, or share blocks, which `du` counts in each file."""
    files = [File("large", (2 << 20) + 1, "l"), *(File(f"{n}", 5000, f"{n}") for n in range(20))]
    cache(root, world, world.commit(files))
    link = os.link

    def refuse(*args: object, **kwargs: object) -> None:
        if "/cache/xrays/" in os.readlink(f"/proc/self/fd/{kwargs['src_dir_fd']}"):
            raise PermissionError(errno.EPERM, "another user's file")
        link(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", refuse)
    cache(root, world, world.commit([*files, File("new", 10, "n")]))
    monkeypatch.setattr(os, "link", link)
    assert all(item.room.bytes > 2 << 20 for item in take_inventory(root).visible)
    accounts_are_right(root)


@pytest.mark.parametrize("kills", [0, 2])
def test_a_fill_pays_for_what_it_linked_from_a_commit_that_was_evicted_meanwhile(
    root: CacheRoot, world: World, kills: int
) -> None:
    old = [File(f"a/{n:03d}", 2000 + n, f"{n}") for n in range(60)]
    source = cache(root, world, world.commit(old))
    commit = world.commit([*old, *(File(f"b/{n:03d}", 2000, f"b{n}") for n in range(40))])
    for number in range(kills):
        filler.start(root, world.folder, commit, part_bytes=40_000, die_after=number + 1).communicate()
    world.forget()
    process = filler.start(root, world.folder, commit, part_bytes=40_000, wait_after=10)
    until(lambda: len(world.fetched()) >= 10)
    assert [one.place for one in evict(root, CacheSettings(), only(source)).evicted] == [source]
    evict(
        root, CacheSettings(), EvictionRequest()
    )  # a sweep must not take the share of the fill for a lost one
    (world.folder / "go").touch()
    filler.finish(process)
    accounts_are_right(root)


def test_after_a_killed_eviction_the_next_one_counts_again(root: CacheRoot, world: World) -> None:
    files = [File(f"{n:03d}", 5000, f"{n}") for n in range(20)]
    first = cache(root, world, world.commit(files))
    second = cache(root, world, world.commit([*files, File("z", 1, "z")]))
    script = f"""
import os
from pathlib import Path
from dsv.cache import evict
from dsv.cache.policy import EvictionRequest
from dsv.cache.root import CachePlace, CacheRoot
from dsv.cache.settings import CacheSettings
evict.add_share = lambda *arguments: os._exit(9)
due = EvictionRequest(only=frozenset({{CachePlace({first.dataset!r}, {first.name!r})}}))
evict.evict(CacheRoot(Path({str(root.path)!r})), CacheSettings(), due)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == 9
    with pytest.raises(Conflict, match="being evicted"):
        recount(root, mend=True)
    evict(root, CacheSettings(), EvictionRequest())
    assert [item.place for item in take_inventory(root).visible] == [second]
    accounts_are_right(root)


def test_a_wrong_account_is_reported_and_corrected(root: CacheRoot, world: World) -> None:
    where = cache(root, world, world.commit([File(f"{n}", 5000, f"{n}") for n in range(20)]))
    record = read_record(root, where)
    assert record is not None and record.counted
    add_share(root, where, record.fill, Extent(5_000_000, 7))
    ((item, room),) = recount(root, mend=False)
    assert item.room - room == Extent(5_000_000, 7)
    assert cached(root.path).items[0].own_bytes == used(item.path) + 5_000_000
    assert cached(root.path, anew=True).items[0].own_bytes == used(item.path)
    accounts_are_right(root)


def test_a_part_that_an_older_dsv_did_leaves_an_estimate(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = fills.written_by

    def older(folder: object, parts: int) -> Extent | None:
        for name in folder.iterdir():  # type: ignore[attr-defined]
            if ".done" in name.name:
                owner = name.readlink().split()[0]
                name.unlink()
                name.symlink_to(owner)
        return finish(folder, parts)  # type: ignore[arg-type]

    monkeypatch.setattr(fills, "written_by", older)
    where = cache(root, world, world.commit([File("a", 100, "a")]))
    record = read_record(root, where)
    assert record is not None and not record.counted and record.own_bytes >= 4096
    recount(root, mend=True)
    accounts_are_right(root)


def test_what_others_link_goes_to_the_one_that_was_filled_next(tmp_path: Path) -> None:
    root = make_root(tmp_path / "cache")
    files = {str(number): os.urandom(5000) for number in range(20)}
    first = publish(root, place(1), files, age=400)
    publish(root, place(2), {"0": files["0"], "own": b"1"}, age=300, links=first)
    publish(root, place(3), files, age=200, links=first)
    publish(root, place(4), {"other": b"1"}, age=1)
    (gone,) = evict(root, CacheSettings(), only(place(1))).evicted
    first_file = root.visible(place(3)).path / "0"
    one, small = (path.stat().st_blocks * 512 for path in (first_file, root.visible(place(4)).path / "other"))
    assert gone.passed_on == ((place(2), Extent(one, 1)), (place(3), Extent(19 * one, 19)))
    rooms = {item.place: item.room for item in take_inventory(root).visible}
    assert rooms == {
        place(2): Extent(one + small, 2), place(3): Extent(19 * one, 19), place(4): Extent(small, 1)
    }  # fmt: skip


def test_what_was_passed_on_after_an_inventory_is_passed_on_again(tmp_path: Path) -> None:
    root = make_root(tmp_path / "cache")
    files = {str(number): os.urandom(5000) for number in range(20)}
    first = publish(root, place(1), files, age=400)
    publish(root, place(2), files, age=300, links=first)
    publish(root, place(3), files, age=200, links=first)
    old = take_inventory(root)
    evict(root, CacheSettings(), only(place(1)))
    evict_from(root, CacheSettings(), only(place(2)), old)
    (left,) = take_inventory(root).visible
    assert left.room == Extent(sum(path.stat().st_blocks for path in left.path.iterdir()) * 512, 20)


def test_two_recounts_at_once_correct_an_account_once(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = cache(root, world, world.commit([File(f"{n}", 5000, f"{n}") for n in range(20)]))
    record = read_record(root, where)
    assert record is not None

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(account, "add_share", add_share)
        recount(root, mend=True)
        add_share(*arguments)

    for _ in range(2):
        add_share(root, where, record.fill, Extent(5_000_000, 7))
        monkeypatch.setattr(account, "add_share", overtaken)
        recount(root, mend=True)
        accounts_are_right(root)
