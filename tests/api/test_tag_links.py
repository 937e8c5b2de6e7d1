"""The symlinks by which cached commits are found under their tags."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from dsv.api.branches import tag as make_tag
from dsv.api.cache import cache
from dsv.api.cached import cached
from dsv.api.evict import evict
from dsv.cache.claims import Intent
from dsv.cache.evict import EvictionResult
from dsv.cache.names import show_tag
from dsv.cache.root import CachePlace, CacheRoot
from dsv.files.shared_path import SharedPath
from dsv.values.ids import CommitId
from dsv.values.names import TagName, Target
from tests.kit.people import Files, Person, read_folder

FILES: Files = {"a.png": b"a", "train/b.png": b"bb"}


@pytest.fixture
def ann(tmp_path: Path) -> Person:
    person = Person.who_synced(tmp_path, FILES)
    tag(person, "v1")
    return person


def tag(person: Person, name: str) -> None:
    make_tag(person.context(), TagName.parse(name), Target.parse("@main"))


def fill(person: Person, target: str = "scans@v1") -> Path:
    return cache(person.context(), person.home / "cache", [Target.parse(target)])[0].path


def links(person: Person) -> dict[str, str]:
    folder = person.home / "cache/scans"
    found = folder.iterdir() if folder.is_dir() else ()
    return {path.name: os.readlink(path) for path in found if path.is_symlink()}


def evict_all(person: Person) -> EvictionResult:
    return evict(person.context(), person.home / "cache", everything=True)


def test_a_commit_that_is_cached_by_its_tag_is_found_under_it(ann: Person) -> None:
    path = fill(ann)
    assert links(ann) == {"@v1": path.name}
    assert read_folder(ann.home / "cache/scans/@v1") == FILES
    moved = ann.home / "seen-elsewhere"
    (ann.home / "cache").rename(moved)  # as at another mount point
    assert read_folder(moved / "scans/@v1") == FILES


def test_a_hit_makes_the_link_again(ann: Person) -> None:
    path = fill(ann)
    (path.parent / "@v1").unlink()
    fill(ann)
    assert links(ann) == {"@v1": path.name}


def test_a_commit_that_is_cached_by_its_branch_is_found_under_the_tags_that_the_cache_knows(
    ann: Person,
) -> None:
    fill(ann)
    evict_all(ann)
    assert links(ann) == {}
    path = fill(ann, "scans")
    assert links(ann) == {"@v1": path.name}


def test_a_part_of_a_commit_has_no_link(ann: Person) -> None:
    fill(ann, "scans@v1:train")
    assert links(ann) == {}


@pytest.mark.parametrize(
    ("name", "link"), [("team/a.b", "@team%2Fa.b"), ("v" * 200, "@" + "v" * 200), ("1_x-2", "@1_x-2")]
)
def test_the_link_of_a_tag_is_one_name(ann: Person, name: str, link: str) -> None:
    tag(ann, name)
    path = fill(ann, f"scans@{name}")
    assert links(ann) == {link: path.name}
    evict_all(ann)
    assert not path.parent.exists()


def test_links_go_with_their_commit_and_no_other_does(ann: Person) -> None:
    fill(ann)
    tag(ann, "same")
    fill(ann, "scans@same")
    ann.write({"a.png": b"A"})
    ann.sync("second")
    tag(ann, "v2")
    second = fill(ann, "scans@v2")
    assert len(links(ann)) == 3
    evict(ann.context(), ann.home / "cache", [Target.parse("scans@v1")])
    assert links(ann) == {"@v2": second.name}


def test_no_link_dangles_while_its_commit_goes(ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(ann)
    rename = Intent.rename_to_trash
    seen: list[dict[str, str]] = []

    def look(self: Intent, visible: Path) -> bool:
        seen.append(links(ann))
        return rename(self, visible)

    monkeypatch.setattr(Intent, "rename_to_trash", look)
    evict_all(ann)
    assert seen == [{}]


def test_the_link_is_there_again_if_the_commit_stays(ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fill(ann)
    monkeypatch.setattr(Intent, "rename_to_trash", lambda self, visible: False)
    evict_all(ann)
    assert path.is_dir()
    assert links(ann) == {"@v1": path.name}


def test_the_link_is_there_again_after_an_error(ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fill(ann)

    def away(self: Intent, visible: Path) -> bool:
        raise OSError(errno.EIO, "the server is away")

    monkeypatch.setattr(Intent, "rename_to_trash", away)
    assert len(evict_all(ann).failed) == 1
    assert path.is_dir()
    assert links(ann) == {"@v1": path.name}


def test_the_links_are_there_again_if_an_intent_cannot_be_withdrawn(
    ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fill(ann)

    def fail(self: Intent) -> None:
        raise OSError(errno.EIO, "the server is away")

    monkeypatch.setattr(Intent, "rename_to_trash", lambda *_: False)
    monkeypatch.setattr(Intent, "withdraw", fail)
    assert len(evict_all(ann).failed) == 1
    assert path.is_dir()
    assert links(ann) == {"@v1": path.name}


@pytest.mark.parametrize(
    "error", [PermissionError(errno.EPERM, "it may not be removed"), KeyboardInterrupt()]
)
def test_a_link_that_cannot_be_removed_keeps_the_others(
    ann: Person, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = fill(ann)
    tag(ann, "v2")
    fill(ann, "scans@v2")
    unlink = SharedPath.unlink
    removed: list[SharedPath] = []

    def once(self: SharedPath, missing_ok: bool = False) -> None:
        if self.name.startswith("@"):
            if removed:
                raise error
            removed.append(self)
        unlink(self, missing_ok)

    monkeypatch.setattr(SharedPath, "unlink", once)
    if isinstance(error, OSError):
        assert len(evict_all(ann).failed) == 1
    else:
        with pytest.raises(KeyboardInterrupt):
            evict_all(ann)
    assert removed
    assert path.is_dir()
    assert links(ann) == {"@v1": path.name, "@v2": path.name}


def test_what_a_crash_left_dangling_goes_with_the_next_evict(ann: Person) -> None:
    path = fill(ann)
    evict_all(ann)
    path.parent.mkdir()
    (path.parent / "@v1").symlink_to(path.name)
    evict(ann.context(), ann.home / "cache")
    assert not path.parent.exists()


def test_a_link_to_another_commit_is_led_to_the_right_one(ann: Person) -> None:
    path = fill(ann)
    other = "0" * 64
    (path.parent / "@v1").unlink()
    (path.parent / "@v1").symlink_to(other)
    fill(ann)
    assert links(ann) == {"@v1": path.name}


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_somebody_else_called_so_stays(ann: Person, kind: str) -> None:
    folder = fill(ann, "scans").parent
    own = folder / "@v1"
    if kind == "file":
        own.write_bytes(b"mine")
    elif kind == "folder":
        own.mkdir()
    else:
        own.symlink_to("/etc")
    before = own.lstat().st_ino
    fill(ann)
    report = cached(ann.home / "cache")
    assert "scans/@v1" in report.foreign
    evict_all(ann)
    assert own.lstat().st_ino == before


def test_links_are_no_foreign_files_and_no_places(ann: Person) -> None:
    fill(ann)
    report = cached(ann.home / "cache")
    assert report.foreign == ()
    assert len(report.items) == 1
    assert CachePlace.parse("scans", "@v1") is None


def test_many_processes_lead_a_link_to_one_commit(ann: Person) -> None:
    path = fill(ann)
    root = CacheRoot(ann.home / "cache")
    place, other = CachePlace("scans", path.name), CachePlace.of("scans", CommitId.parse("1" * 64))
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        try:
            start.wait()
            for step in range(100):
                show_tag(root, (place, other)[(number + step) % 2], TagName.parse("v1"))
                assert os.readlink(path.parent / "@v1") in (place.name, other.name)
        except BaseException as error:  # noqa: BLE001 (shown below)
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert list(root.temporary.path.iterdir()) == []
