from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from dsv.api import cache as api_cache
from dsv.api.branches import delete_tag, tag
from dsv.api.cache import Stager, cache
from dsv.api.cached import cached
from dsv.api.evict import evict
from dsv.api.holds import hold, release
from dsv.cache import names
from dsv.cache.leases import Lease
from dsv.cache.names import bound_store
from dsv.cache.root import FILE_TIME, CachePlace, CacheRoot
from dsv.errors import Conflict, Denied, NoRoom, NotFound, Unreachable, UsageError
from dsv.run.record import RunId
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName, TagName, Target
from dsv.values.progress import NoProgress
from tests.kit.people import SCANS, Person, read_folder

FILES = {
    "a/1.txt": b"one",
    "a/2.txt": b"two",
    "b/run.sh": b"#!/bin/sh\n",
    "b/link@": b"../a/1.txt",
    "empty": None,
}


@pytest.fixture
def ann(tmp_path: Path) -> Person:
    return Person.who_synced(tmp_path, FILES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def head(person: Person) -> CommitId:
    found = person.sync().commit
    assert found is not None
    return found


def one(person: Person, folder: Path, target: str = "scans", **options: object):  # type: ignore[no-untyped-def]
    return cache(person.context(), folder, [Target.parse(target)], **options)[0]  # type: ignore[arg-type]


def test_a_commit_appears_whole_read_only_and_as_committed(ann: Person, folder: Path) -> None:
    item = one(ann, folder)
    assert item.path == folder / "scans" / str(head(ann))
    assert read_folder(item.path) == FILES
    assert (item.dataset, item.files, item.bytes, item.hit) == (
        SCANS,
        3,
        16,
        False,
    ) and item.fetched_bytes > 0
    found = (item.path / "a/1.txt").stat()
    assert stat.S_IMODE(found.st_mode) == 0o444 and found.st_mtime == FILE_TIME
    asked = time.time()
    again = one(ann, folder)
    assert again.hit and again.fetched_bytes == 0 and again.path == item.path
    assert again.may_go is not None and asked - 2 < again.may_go - 86400 < time.time() + 2


def test_a_part_of_a_commit_has_a_place_of_its_own(ann: Person, folder: Path) -> None:
    item = one(ann, folder, "scans:a")
    assert read_folder(item.path) == {"a/1.txt": b"one", "a/2.txt": b"two"} and item.files == 2
    assert item.path.name.startswith(f"{head(ann)}+")
    assert one(ann, folder, "scans:a/").hit
    with pytest.raises(NotFound, match="nothing/here"):
        one(ann, folder, "scans:nothing/here")
    claims = folder / ".dsv/claims/scans"
    assert [path.name for path in claims.iterdir()] == [item.path.name], "nothing is left of what failed"


def test_unchanged_files_are_shared_and_counted_once(ann: Person, folder: Path) -> None:
    first = one(ann, folder)
    ann.write({"a/1.txt": b"changed"})
    ann.sync("second")
    second = one(ann, folder)
    assert second.linked_files >= 2 and second.fetched_bytes > 0
    assert (first.path / "a/2.txt").samefile(second.path / "a/2.txt")
    assert (first.path / "a/1.txt").read_bytes() == b"one"
    shown = {item.commit: item for item in cached(folder).items}
    assert shown[second.commit].own_bytes > 0 and shown[first.commit].names == ()
    assert shown[second.commit].names == ("main",)
    report = evict(ann.context(), folder, [Target.parse(f"scans@{first.commit}")])
    assert report.freed_bytes == (second.path / "a/1.txt").stat().st_blocks * 512, "the changed file's alone"
    assert read_folder(second.path)["a/2.txt"] == b"two"


def test_an_empty_target_and_no_target_are_misuse(ann: Person, folder: Path) -> None:
    for targets in ([], [Target.parse("")]):
        with pytest.raises(UsageError):
            cache(ann.context(), folder, targets)
    assert not folder.exists()


def test_holding_and_releasing(ann: Person, folder: Path) -> None:
    item = one(ann, folder, hold=3600)
    assert item.held_until is not None and item.may_go is None
    with pytest.raises(Conflict, match="held by"):
        evict(ann.context(), folder, [Target.parse("scans")])
    assert [
        kept.reason.split(" until")[0] for kept in evict(ann.context(), folder, everything=True).kept
    ] == [f"held by {cached(folder).items[0].leases[0].user}"]
    with pytest.raises(NotFound, match="no hold of"):
        release(ann.context(), folder, [Target.parse("scans")], job="slurm 5")
    assert [len(one.ids) for one in release(ann.context(), folder, [Target.parse("scans")])] == [1]
    assert len(evict(ann.context(), folder, everything=True).evicted) == 1
    with pytest.raises(NotFound):
        release(ann.context(), folder, [Target.parse("scans")])


def test_a_hold_without_an_end(ann: Person, folder: Path) -> None:
    target = Target.parse("scans")
    with pytest.raises(NotFound, match="not in the cache"):
        hold(ann.context(), folder, [target])
    one(ann, folder)
    assert hold(ann.context(), folder, [target], why="paper")[0].why == "paper"
    assert [pinned.why for pinned in cached(folder).items[0].pins] == ["paper"]
    with pytest.raises(Conflict, match="held by"):
        evict(ann.context(), folder, [target])
    assert len(release(ann.context(), folder, [target])[0].ids) == 1
    with pytest.raises(NotFound):
        release(ann.context(), folder, [target])
    assert len(evict(ann.context(), folder, [target]).evicted) == 1


def test_everything_evicted_leaves_nothing_behind(ann: Person, folder: Path) -> None:
    one(ann, folder)
    one(ann, folder, "scans:a")
    dry = evict(ann.context(), folder, everything=True, dry_run=True)
    assert len(dry.evicted) == 2 and len(cached(folder).items) == 2, "a dry run touches nothing"
    report = evict(ann.context(), folder, everything=True)
    assert report.evicted == dry.evicted and report.freed_bytes == dry.freed_bytes > 0
    assert cached(folder).items == () and sorted(one.name for one in folder.iterdir()) == [
        ".dsv",
        "dsv-cache.toml",
    ]
    root = CacheRoot(folder)
    for name in ("claims", "fill", "room"):
        assert list((root.dot.path / name).iterdir()) == []
    assert evict(ann.context(), folder, everything=True).evicted == []


def test_the_store_may_be_away(ann: Person, folder: Path, tmp_path: Path) -> None:
    ann_context = ann.context()
    tag(ann_context, TagName.parse("v1"), Target.parse("scans"))
    commit = one(ann, folder, "scans@v1").commit
    one(ann, folder, "scans")
    (tmp_path / "store").rename(tmp_path / "away")
    assert one(ann, folder, f"scans@{commit}").hit
    assert one(ann, folder, "scans@v1").hit
    with pytest.raises(Unreachable) as failure:
        one(ann, folder, "scans")
    assert failure.value.hint is not None
    assert one(ann, folder, "scans", offline=True).commit == commit
    assert one(ann, folder, f"scans@{str(commit)[:10]}", offline=True).commit == commit
    for unknown in ("scans@v2", "scans@main~1", "others", f"scans@{'0' * 64}"):
        with pytest.raises((NotFound, Unreachable)):  # of a name only the store knows whether it is there
            one(ann, folder, unknown, offline=True)
    assert one(ann, folder, "@v1").hit, "a workspace knows its store's id"


def test_a_deleted_tag_is_refused_unless_the_store_is_away(
    ann: Person, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag(ann.context(), TagName.parse("v1"), Target.parse("scans"))
    commit = one(ann, folder, "scans@v1").commit
    with pytest.raises(Conflict, match="a deleted tag can't be restored"):
        delete_tag(ann.context(), SCANS, TagName.parse("v1"))
    assert delete_tag(ann.context(), SCANS, TagName.parse("v1"), force=True).commit == commit
    store, away = tmp_path / "store", tmp_path / "away"
    store.rename(away)
    noted: list[str] = []
    monkeypatch.setattr(NoProgress, "note", lambda self, text: noted.append(text))
    assert one(ann, folder, "scans@v1").commit == commit
    assert [text for text in noted if "the store can't say if it was deleted since" in text]
    away.rename(store)
    with pytest.raises(NotFound, match="tag v1 of scans was deleted"):
        one(ann, folder, "scans@v1")
    store.rename(away)
    with pytest.raises(Unreachable):  # the cache has forgotten it
        one(ann, folder, "scans@v1")


def test_another_stores_dataset_of_the_same_name_is_refused(
    ann: Person, folder: Path, tmp_path: Path
) -> None:
    tag(ann.context(), TagName.parse("v1"), Target.parse("scans"))
    one(ann, folder, "scans@v1")
    bob = Person(tmp_path / "bob", str(tmp_path / "other-store"), "bob")
    bob.init()
    bob.write({"x": b"other"})
    bob.sync()
    tag(bob.context(), TagName.parse("v1"), Target.parse("scans"))
    for target in ("scans", "scans@v1", "scans@v1", f"scans@{head(bob)}"):
        with pytest.raises(Conflict, match="another store's dataset scans") as failure:
            one(bob, folder, target)
        assert "--cache" in (failure.value.hint or "")
        assert f"dsv evict scans@{str(head(ann))[:12]}" in (failure.value.hint or "")


@pytest.mark.parametrize("freed", ["evicted", "deleted by hand"])
def test_a_name_passes_to_another_store_when_nothing_of_it_is_cached(
    ann: Person, folder: Path, tmp_path: Path, freed: str
) -> None:
    cached = one(ann, folder, "scans")
    bob = Person(tmp_path / "bob", str(tmp_path / "other-store"), "bob")
    bob.init()
    bob.write({"x": b"other"})
    bob.sync()
    with pytest.raises(Conflict, match="another store's dataset scans") as failure:
        one(bob, folder, "scans")
    command = (failure.value.hint or "").partition(" frees")[0].split()
    assert command[:2] == ["dsv", "evict"]
    if freed == "evicted":
        evict(bob.context(), folder, [Target.parse(text) for text in command[2:]])
    else:
        shutil.rmtree(cached.path.parent)
    assert (one(bob, folder, "scans").path / "x").read_bytes() == b"other"
    with pytest.raises(Conflict, match="another store's dataset scans"):
        one(ann, folder, "scans")


def test_a_name_stays_with_a_store_whose_command_is_about_to_fill(
    ann: Person, folder: Path, tmp_path: Path
) -> None:
    """It has its claim, and has read whose the name is; the commit is not there yet."""
    cached = one(ann, folder, "scans")
    evict(ann.context(), folder, [Target.parse("scans")])
    root = CacheRoot(folder)
    bob = Person(tmp_path / "bob", str(tmp_path / "other-store"), "bob")
    bob.init()
    bob.write({"x": b"other"})
    bob.sync()
    with Lease.take(root, CachePlace("scans", cached.path.name), "stage"):
        with pytest.raises(Conflict, match="another store's dataset scans"):
            one(bob, folder, "scans")
        assert bound_store(root, DatasetName.parse("scans")) is not None
    assert one(bob, folder, "scans").path.exists()


def test_a_killed_release_of_a_name_frees_it_for_nobody(
    ann: Person, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has renamed the note away, and a command of the first store has come before it looked again."""
    cached = one(ann, folder, "scans")
    evict(ann.context(), folder, [Target.parse("scans")])
    root, scans = CacheRoot(folder), DatasetName.parse("scans")
    owner = bound_store(root, scans)
    bob = Person(tmp_path / "bob", str(tmp_path / "other-store"), "bob")
    bob.init()
    bob.write({"x": b"other"})
    bob.sync()
    looks = iter((False,))

    class Killed(BaseException):
        pass

    def is_used(*_: object) -> bool:
        for used in looks:
            return used
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(names, "_is_used", is_used)
        with pytest.raises(Killed):
            one(bob, folder, "scans")
    with Lease.take(root, CachePlace("scans", cached.path.name), "stage"):
        with pytest.raises(Conflict, match="another store's dataset scans"):
            one(bob, folder, "scans")
        assert bound_store(root, scans) == owner is not None
    assert (one(bob, folder, "scans").path / "x").read_bytes() == b"other"
    assert sorted(os.listdir(folder / ".dsv/datasets")) == ["scans"]


def test_room_is_made_within_the_owners_limits_or_refused_with_figures(ann: Person, folder: Path) -> None:
    folder.mkdir()
    (folder / "dsv-cache.toml").write_text('protocol = 1\nmax_size = "200K"\n')

    def all_new(size: int) -> None:
        ann.write({name: os.urandom(size) for name in ("a/1.txt", "a/2.txt", "b/run.sh")})
        ann.sync()

    old = one(ann, folder)
    all_new(50_000)
    newer = one(ann, folder)
    all_new(50_001)
    newest = one(ann, folder)
    assert newest.path.exists() and not newer.path.exists() and not old.path.exists()
    all_new(100_000)
    with pytest.raises(NoRoom, match="max_size is 200 kB"):
        one(ann, folder)
    assert cached(folder).fills == ()


def test_what_is_used_by_a_run_stays_and_lets_others_wait_for_room(ann: Person, folder: Path) -> None:
    folder.mkdir()
    (folder / "dsv-cache.toml").write_text('max_size = "110K"\n')
    with Stager(ann.context(), CacheRoot(folder)) as stager:
        located = stager.locate(Target.parse("scans"))
        assert not located.hit and located.files == 3
        staged, lease = stager.stage(Target.parse("scans"), RunId.make(1, b"abcd"))
        assert staged.path == located.path and not staged.hit and stager.locate(Target.parse("scans")).hit
        assert [item.purpose for item in cached(folder).items[0].leases] == ["run"]
        ann.write({"a/1.txt": os.urandom(90_000), "a/2.txt": b"new", "b/run.sh": b"new"})
        ann.sync()
        with pytest.raises(NoRoom, match="in use or held"):
            one(ann, folder)
        assert read_folder(staged.path) == FILES
        lease.release()
    assert one(ann, folder).files == 3


def test_limits_and_flags(ann: Person, folder: Path) -> None:
    one(ann, folder)
    assert evict(ann.context(), folder).evicted == []
    report = evict(ann.context(), folder, unused_for=0.0, dry_run=True)
    assert len(report.evicted) == 1 and "unused for" in report.evicted[0].reason
    hold(ann.context(), folder, [Target.parse("scans")])
    report = evict(ann.context(), folder, max_size=10)
    assert report.exit_code == 7 and "max_size is 10 B" in report.exceeded[0]
    assert evict(ann.context(), folder, min_free="99.999999%").exit_code == 7
    with pytest.raises(UsageError, match="not both"):
        evict(ann.context(), folder, [Target.parse("scans")], max_size=1)


def test_files_that_do_not_belong_are_reported_and_go_too(ann: Person, folder: Path) -> None:
    item = one(ann, folder)
    (item.path / "a").chmod(0o755)
    (item.path / "a" / "notes.txt").write_text("mine")
    (folder / "scratch").mkdir()
    (folder / "scans" / "readme").write_text("hi")
    assert cached(folder).foreign == ("scans/readme", "scratch")
    report = evict(ann.context(), folder, everything=True)
    assert (report.evicted[0].foreign, report.evicted[0].foreign_paths) == (1, ("a/notes.txt",))
    assert (folder / "scratch").is_dir() and (folder / "scans" / "readme").exists() and not item.path.exists()


def test_an_empty_cache_and_one_that_is_not_there(ann: Person, folder: Path) -> None:
    assert cached(folder).items == () and evict(ann.context(), folder, everything=True).evicted == []
    assert not folder.exists()
    with pytest.raises(NotFound):
        evict(ann.context(), folder, [Target.parse("scans")])


def test_a_read_only_cache_that_does_not_answer_is_unreachable(
    ann: Person, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise Denied("read-only")

    def away(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    cache(ann.context(), folder, [Target.parse("scans")])
    monkeypatch.setattr(api_cache, "prepare_cache", refuse)
    monkeypatch.setattr(api_cache, "lookup", away)
    with pytest.raises(Unreachable, match="cannot use"):
        cache(ann.context(), folder, [Target.parse("scans")])


def test_a_dataset_of_a_team(ann: Person, folder: Path) -> None:
    team = DatasetName.parse("team-a/lungs")
    bob = Person(ann.home.parent / "bob", ann.store, "bob")
    bob.init(team)
    bob.write({"x": b"1"})
    bob.sync()
    item = one(bob, folder, "team-a/lungs")
    assert item.path.parent.name == "team-a%2Flungs" and cached(folder).items[0].dataset == team
