"""Full disks: under the store, the cache, a workspace, and what stdout is written to."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inputs.scene import CACHE, CLONE, FILES, RUN, Scene, nothing_partial, refused, write
from tests.inputs.small_disk import PAGE, SmallDisk, small_disk
from tests.kit.dsv import Dsv
from tests.kit.people import Files, read_folder

NOISE = random.Random(3)
NEW: Files = {f"new/{number}": NOISE.randbytes(64 * PAGE) for number in range(8)}
NEW_BYTES = 8 * 64 * PAGE


@pytest.fixture
def store_disk(scene: Scene) -> Iterator[SmallDisk]:
    with small_disk(scene.store) as disk:
        yield disk


@pytest.fixture
def ann(scene: Scene, store_disk: SmallDisk) -> Dsv:
    """In a workspace of `set` with `FILES` synced, and `NEW` not yet."""
    person = scene.newcomer()
    write(person.cwd, FILES)
    person.ok("init", "set")
    person.ok("sync")
    write(person.cwd, NEW)
    return person


def published(scene: Scene) -> dict[str, bytes]:
    """Return the objects that anybody can reach or find: all but sessions and packs that nothing names."""
    return {
        key: data
        for key, data in scene.contents().items()
        if not key.startswith(("sessions/", "packs/", "index/", "locators/", "commits/"))
    }


def test_a_store_that_is_too_full_is_left_alone(scene: Scene, ann: Dsv, store_disk: SmallDisk) -> None:
    """It is known before a file is read."""
    store_disk.limit(free=NEW_BYTES - PAGE)
    before = scene.contents()
    refused(ann("sync"), 7, str(scene.store), "2.09 MB free", "2.10 MB may have to be written")
    added = scene.contents().keys() - before.keys()
    assert all(key.startswith("sessions/") for key in added)
    assert scene.contents() == before | {key: scene.contents()[key] for key in added}
    store_disk.limit()
    ann.ok("sync")
    assert read_back(scene) == {**FILES, **NEW}


def read_back(scene: Scene) -> Files:
    person = scene.newcomer()
    assert CACHE(person, "set").code == 0
    return CACHE.result(person, "set")


def test_a_store_that_fills_up_while_it_is_written_to(scene: Scene, ann: Dsv, store_disk: SmallDisk) -> None:
    """The files would fit, and the pack around them just does not."""
    store_disk.limit(free=NEW_BYTES + 2 * PAGE)
    before = published(scene)
    ballast = scene.store / ".ballast"
    ballast.write_bytes(bytes(PAGE))
    result = ann("sync", "--json")
    assert (result.code, result.json["error"]["kind"]) == (7, "no-room")
    assert result.json["error"]["object"].startswith("packs/")
    refused(ann("sync"), 7, "packs/", "No space left on device")
    assert published(scene) == before
    assert store_disk.free() >= NEW_BYTES - 8 * PAGE  # what did not fit takes no room
    ballast.unlink()
    assert CACHE(scene.newcomer(), "set").code == 0
    store_disk.limit()
    ann.ok("sync")
    assert read_back(scene) == {**FILES, **NEW}


def test_a_store_where_no_further_file_can_be_made(scene: Scene, ann: Dsv, store_disk: SmallDisk) -> None:
    """Wherever in the sync that happens, the branch is where it was, or where it should be."""
    before = published(scene)
    codes = []
    for files in range(1, 60, 2):
        store_disk.limit(files=files)
        result = ann("sync")
        codes.append(result.code)
        if result.code == 0:
            break
        refused(result, 7, "No space left on device")
        assert published(scene) == before
    assert codes[-1] == 0
    assert len(codes) > 3
    store_disk.limit()
    assert read_back(scene) == {**FILES, **NEW}


def test_a_new_store_on_a_full_disk(scene: Scene, store_disk: SmallDisk) -> None:
    person = scene.newcomer()
    for files in (0, 6):
        store_disk.limit(files=files)
        refused(person("init", "set"), 7, str(scene.store))
        assert not (person.cwd / ".dsv").exists()
    store_disk.limit()
    person.ok("init", "set")
    write(person.cwd, NEW)
    person.ok("sync")
    assert read_back(scene) == NEW


def test_a_cache_without_room(scene: Scene, synced: dict[str, bytes]) -> None:
    scene.reset(synced)
    person = scene.newcomer()
    with small_disk(person.home / "cache") as disk:
        disk.limit(free=1 << 20)
        refused(CACHE(person, "set"), 7, "set@", "3.2", "MB")
        refused(RUN(person, "set"), 125, "no room")
        nothing_partial(person)
        assert disk.free() > 900_000
        disk.limit()
        assert CACHE(person, "set").code == 0
        assert CACHE.result(person, "set") == FILES


def test_a_cache_where_no_further_file_can_be_made(scene: Scene, synced: dict[str, bytes]) -> None:
    scene.reset(synced)
    person = scene.newcomer()
    with small_disk(person.home / "cache") as disk:
        codes = []
        for files in (*range(0, 40, 4), None):
            disk.limit(files=files)
            result = CACHE(person, "set")
            codes.append(result.code)
            if result.code == 0:
                break
            refused(result, 7)
            nothing_partial(person)
        assert codes[-1] == 0
        assert len(codes) > 3
        assert CACHE.result(person, "set") == FILES


def test_a_workspace_without_room_for_a_clone(scene: Scene, synced: dict[str, bytes]) -> None:
    """The files that arrived are whole, and the rest comes later."""
    scene.reset(synced)
    person = scene.newcomer()
    with small_disk(person.cwd) as disk:
        disk.limit(free=2 << 20)
        refused(CLONE(person, "set"), 7, "b/large.bin", "No space left on device")
        nothing_partial(person, FILES)
        refused(person.at(person.cwd / "clone")("sync"), 4, "has commits that this workspace does not have")
        disk.limit()
        assert CLONE(person, "set").code == 0
        assert read_folder(person.cwd / "clone") == FILES


def test_a_workspace_without_room_for_its_state(scene: Scene, synced: dict[str, bytes]) -> None:
    scene.reset(synced)
    person = scene.newcomer()
    with small_disk(person.cwd) as disk:
        assert CLONE(person, "set").code == 0
        there = person.at(person.cwd / "clone")
        write(there.cwd, {"new": b"new"})
        disk.limit(files=0)
        before = published(scene)
        refused(there("sync"), 7, "No space left on device")
        assert published(scene) == before
        disk.limit()
        there.ok("sync")
    assert read_back(scene) == {**FILES, "new": b"new"}


def test_stdout_on_a_full_disk(scene: Scene, synced: dict[str, bytes]) -> None:
    scene.reset(synced)
    with Path("/dev/full").open("wb") as full:
        for arguments in (["cat", "set:b/large.bin"], ["ls", "set"], ["ls", "set", "--json"]):
            result = scene.newcomer().process(*arguments, stdout=full)
            assert result.code == 7, result
            assert result.err.startswith("error: ")
            assert "Traceback" not in result.err
