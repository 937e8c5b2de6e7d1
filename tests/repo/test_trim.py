"""Local copies of metadata stay within their limits; nobody who reads meanwhile notices more than a request."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsv.api.edits import EditRequest, Put, edit
from dsv.api.log import log
from dsv.api.settings import SettingsSource
from dsv.files.shared_path import AnyPath, SharedPath
from dsv.files.system import FileSystem
from dsv.repo.objects import trim as module
from dsv.repo.objects.access import Access
from dsv.repo.objects.metadata import MetadataCache
from dsv.repo.objects.trim import KINDS, CopyLimits, find_copies, trim
from dsv.repo.repository import Repository
from dsv.stores.directory import DirectoryStore
from dsv.stores.memory import MemoryStore
from dsv.values.names import Target
from tests.exhaustive import some
from tests.killing import run_killed
from tests.kit.people import SCANS, Person, every_store_is
from tests.kit.repositories import read
from tests.privileges import modes_count

DAY = 86_400
TEN = CopyLimits(max_files=80)  # a trim leaves 70


def name_of(number: int) -> str:
    return f"{number * 37 % 256:02x}{number:062x}"


def filled(stores: AnyPath, count: int = 100, kind: str = "segment") -> MetadataCache:
    """Copies whose last uses are a minute apart, ten days ago; the one of number 0 is the oldest."""
    copies = MetadataCache(stores / "1" / "objects")
    for number in range(count):
        copies.put(kind, name_of(number), b"x" * 100)
        grow_old(stores, number, kind)
    return copies


def grow_old(stores: AnyPath, number: int, kind: str = "segment") -> None:
    moment = time.time() - 10 * DAY + 60 * number
    os.utime(f"{stores}/1/objects/{kind}/{name_of(number)[:2]}/{name_of(number)}", (moment, moment))


def numbers_in(stores: AnyPath) -> list[int]:
    return sorted(int(path.name[2:], 16) for _, _, path in find_copies(stores))


@pytest.mark.parametrize("shared", [False, True])
def test_the_least_recently_used_go_first(tmp_path: Path, shared: bool) -> None:
    stores: AnyPath = SharedPath(tmp_path, "stores") if shared else tmp_path / "stores"
    filled(stores)
    trim(stores, CopyLimits(max_files=115))  # 100 are within seven eighths
    assert numbers_in(stores) == list(range(100))
    trim(stores, CopyLimits(max_files=80))
    assert numbers_in(stores) == list(range(30, 100))
    trim(stores, CopyLimits(max_size=40 * 4096))
    assert numbers_in(stores) == list(range(65, 100))
    trim(stores, CopyLimits(max_size=0))
    assert numbers_in(stores) == []
    trim(tmp_path / "nowhere" / "stores", CopyLimits())


def test_a_use_counts_however_it_was_made(tmp_path: Path) -> None:
    copies = filled(tmp_path / "stores")
    uses: list[Callable[[str], object]] = [
        lambda name: copies.get("segment", name, 1000),
        lambda name: copies.map("segment", name),
        lambda name: copies.put("segment", name, b"x" * 100),
        lambda name: MetadataCache(None, copies).get("segment", name, 1000),
    ]
    for number, use in enumerate(uses):
        path = tmp_path / "stores/1/objects/segment" / name_of(number)[:2] / name_of(number)
        use(name_of(number))
        assert path.stat().st_mtime > time.time() - DAY
        after = path.stat().st_mtime_ns
        use(name_of(number))
        assert path.stat().st_mtime_ns == after  # at most once a day
    read = tmp_path / "stores/1/objects/segment" / name_of(9)[:2] / name_of(9)
    os.utime(read, (time.time(), read.stat().st_mtime))  # as the system notes the read of another user
    trim(tmp_path / "stores", TEN)
    assert numbers_in(tmp_path / "stores") == [0, 1, 2, 3, 9, *range(35, 100)]


def test_all_stores_and_kinds_share_the_limits(tmp_path: Path) -> None:
    for number, kind in enumerate(one for one in KINDS if one != "samples"):
        MetadataCache(tmp_path / f"stores/{number % 3}/objects").put(kind, name_of(number), b"x")
    assert len(find_copies(tmp_path / "stores")) == len(KINDS) - 1
    trim(tmp_path / "stores", CopyLimits(max_files=8))
    assert len(find_copies(tmp_path / "stores")) == 7


def test_only_copies_go(tmp_path: Path) -> None:
    """Erasures are obeyed offline, notes of damage are no copies, and nothing says what else lies there."""
    stores = tmp_path / "stores"
    for kind in ("erasure", "lost-pack", "a kind of a newer dsv"):
        filled(stores, 3, kind)
    others = [
        "1/imports/noted",
        "1/tracking/scans.json",
        "1/objects/segment/ab/notes",
        "1/objects/segment/file",
    ]
    for other in others:
        (stores / other).parent.mkdir(parents=True, exist_ok=True)
        (stores / other).write_bytes(b"x")
    before = {path for path in stores.rglob("*") if path.is_file()}
    filled(stores, 5)
    trim(stores, CopyLimits(max_files=0))
    assert {path for path in stores.rglob("*") if path.is_file()} == {*before, stores / ".trimmed"}


def test_no_other_folder_is_ever_trimmed(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    trim(tmp_path / "data", CopyLimits(max_files=0))
    MetadataCache(tmp_path / "data/1/objects", limits=CopyLimits(max_files=0)).put("node", name_of(1), b"x")
    assert len(find_copies(tmp_path / "data")) == 101


@pytest.mark.parametrize("ago, left", [(-3600, 7), (3500, 9), (3601, 7)])
def test_a_trim_may_leave_the_work_to_the_last_one(tmp_path: Path, ago: int, left: int) -> None:
    """A time in the future, of a wrong clock, stops nobody."""
    filled(tmp_path / "stores", 9)
    (tmp_path / "stores/.trimmed").write_bytes(b"")
    os.utime(tmp_path / "stores/.trimmed", (0, time.time() - ago))
    trim(tmp_path / "stores", CopyLimits(max_files=8), pause=3600)
    assert len(find_copies(tmp_path / "stores")) == left
    trim(tmp_path / "stores", CopyLimits(max_files=4), pause=3600)
    assert len(find_copies(tmp_path / "stores")) == left
    trim(tmp_path / "stores", CopyLimits(max_files=4))
    assert len(find_copies(tmp_path / "stores")) == 3


@pytest.mark.parametrize("remote", [False, True])
def test_what_another_process_may_have_mapped_stays_for_thirty_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    monkeypatch.setattr(module, "kind_of", lambda _: FileSystem(remote=remote, sync_each=remote))
    for kind in ("samples", "index", "node"):
        filled(tmp_path / "stores", 2, kind)
        path = tmp_path / f"stores/1/objects/{kind}" / name_of(0)[:2] / name_of(0)
        os.utime(path, (path.stat().st_atime - 21 * DAY, path.stat().st_mtime - 21 * DAY))
    trim(tmp_path / "stores", CopyLimits(max_files=0))
    left = sorted(path.parent.parent.name for _, _, path in find_copies(tmp_path / "stores"))
    assert left == (["index", "samples"] if remote else ["samples"])
    assert numbers_in(tmp_path / "stores") == [1] * len(left)


def test_trims_are_rare_and_come_with_bytes_as_with_files() -> None:
    random.seed(37)
    assert 1 <= sum(CopyLimits().is_due(500) for _ in range(10_000)) <= 40  # 9 are expected
    assert sum(CopyLimits().is_due(500_000) for _ in range(10_000)) > 100  # 314
    assert CopyLimits().is_due(20_000_000) and CopyLimits(max_files=0, max_size=0).is_due(0)


def test_two_trims_at_once_take_no_more_than_one(tmp_path: Path) -> None:
    for attempt in range(5):
        stores = tmp_path / str(attempt) / "stores"
        filled(stores, 200)
        together = threading.Barrier(4)

        def work(stores: Path = stores, together: threading.Barrier = together) -> None:
            together.wait()
            trim(stores, TEN)

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work) for _ in range(4)]:
                done.result()
        assert numbers_in(stores) == list(range(130, 200))


def test_a_killed_trim_has_only_trimmed_less(tmp_path: Path) -> None:
    filled(tmp_path / "rehearsal/stores", 100)
    steps = run_killed(lambda: trim(tmp_path / "rehearsal/stores", TEN), None, inside=tmp_path)
    assert steps == 33  # three for the mark
    for step in some(range(1, steps + 1)):
        stores = tmp_path / str(step) / "stores"
        filled(stores, 100)
        run_killed(lambda stores=stores: trim(stores, TEN), step, inside=tmp_path)  # type: ignore[misc]
        assert numbers_in(stores) == list(range(max(step - 4, 0), 100))
        trim(stores, TEN)
        assert numbers_in(stores) == list(range(30, 100))


def test_the_drafts_of_killed_writers_go_too(tmp_path: Path) -> None:
    copies = filled(tmp_path / "stores", 1)
    put = lambda: copies.put("segment", name_of(256), b"y")  # noqa: E731
    leaving = [step for step in range(1, 9) if _leaves_a_draft(tmp_path / "stores", put, step)]
    drafts = [path for _, _, path in find_copies(tmp_path / "stores") if path.name.startswith(".")]
    assert len(drafts) == len(leaving) > 0
    assert set(copies.names("segment")) == {name_of(0), name_of(256)}
    trim(tmp_path / "stores", CopyLimits(max_files=0))
    assert find_copies(tmp_path / "stores") == []


def _leaves_a_draft(stores: Path, put: Callable[[], None], step: int) -> bool:
    before = len(list(stores.rglob(".*")))
    run_killed(put, step, inside=stores)
    return len(list(stores.rglob(".*"))) > before


def test_what_a_user_can_not_read_or_delete_is_left_and_costs_nothing_else(tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    copies = filled(stores)
    unreadable, locked = (stores / "1/objects/segment" / name_of(number)[:2] for number in (0, 1))
    node = filled(stores, 3, "node")
    (stores / "1/objects/node").chmod(0)
    unreadable.chmod(0)
    locked.chmod(0o555)
    try:
        with modes_count():
            trim(stores, TEN)  # as if the locked one had gone: others pay for no more than their own
            assert copies.get("segment", name_of(1), 1000) == b"x" * 100
            assert node.names("node") == []
    finally:
        for folder in (unreadable, locked, stores / "1/objects/node"):
            folder.chmod(0o755)
    assert [number for number in numbers_in(stores) if number > 2] == list(range(30, 100))
    assert copies.get("segment", name_of(0), 1000) is not None and len(node.names("node")) == 3


def test_readers_ask_the_store_for_what_is_trimmed_under_them(tmp_path: Path) -> None:
    person = Person.who_synced(tmp_path, {f"d{at}/f": b"%d" % at for at in range(40)})
    head = person.context().workspace().base()
    assert head is not None
    expected, stores = person.files(), tmp_path / "shared/stores"
    over = threading.Event()

    def read_all() -> None:
        for _ in range(10):
            folder = lambda store_id: stores / str(store_id) / "objects"  # noqa: E731
            access = Access(copies=CopyLimits(max_files=3))  # what it writes begins trims too
            repository = Repository.open(DirectoryStore(tmp_path / "store"), folder, access)
            assert read(repository, head) == expected

    def keep_trimming() -> int:
        rounds = 0
        while not over.is_set():
            trim(stores, CopyLimits(max_files=0))
            rounds += 1
        return rounds

    with ThreadPoolExecutor(4) as pool:
        trimming = [pool.submit(keep_trimming) for _ in range(2)]
        try:
            for reading in [pool.submit(read_all) for _ in range(2)]:
                reading.result()
        finally:
            over.set()
        assert all(rounds.result() > 0 for rounds in trimming)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("edits", [300, pytest.param(1500, marks=pytest.mark.exhaustive)])
def test_edits_keep_the_limits(tmp_path: Path, edits: int) -> None:
    """Nobody trims but the edits themselves, and the whole history can be read after it."""
    random.seed(37)
    with every_store_is(MemoryStore()):
        person = Person(tmp_path / "ann", "/nowhere")
        person.init()
        context = person.context()
        given = SettingsSource("config.toml", {"metadata.max_files": "700", "metadata.max_size": "100M"})
        limited = replace(
            context, settings=replace(context.settings, sources=[*context.settings.sources, given])
        )
        first = None
        for number in range(edits):  # each makes seven copies
            done = edit(limited, Target(SCANS), [Put(f"d{number % 7}/f", b"%d" % number)], EditRequest())
            first = first or done.commit
            if number % 100 == 99:
                # That none of 300 copies begins a trim happens once in 10^6 times.
                assert len(find_copies(context.metadata / "stores")) <= 700 * 7 // 8 + 300, number
        assert first is not None and person.read(first) == {"d0/f": b"0"}
        with log(limited, Target(SCANS)) as items:
            assert len(list(items)) == edits
        kinds = {path.name for path in (context.metadata / "stores").glob("*/objects/*")}
        assert {"commit", "node", "segment", "index"} <= kinds <= set(KINDS)
