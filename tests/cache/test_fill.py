"""A fill by one process: what becomes visible, what is fetched, and what is linked."""

from __future__ import annotations

import errno
import os
import tracemalloc
from typing import Any

import pytest
from tests.cache.fake_source import STORE, FakeSource, FakeTree, File, TornTree, World

from dsv.cache.fill import directory, files, place_files
from dsv.cache.fill.directory import finalize
from dsv.cache.fill.fill import fill
from dsv.cache.fill.plan import FillRequest, make_plan
from dsv.cache.policy import Need
from dsv.cache.record import Cached, read_record, record_path
from dsv.cache.root import FILE_TIME, CachePlace, CacheRoot
from dsv.errors import Conflict, IntegrityError, NoRoom, NotFound, Unreachable, Unsupported
from dsv.files import system
from dsv.files.attributes import PROBE
from dsv.files.system import FileSystem
from dsv.format import tree as cutting
from dsv.format.tree import Kind
from dsv.values.ids import CommitId
from dsv.values.paths import PathSet


def plenty(need: Need) -> None:
    """There is always room."""


def cache_it(root: CacheRoot, world: World, commit: CommitId, *paths: bytes, **behaviour: object) -> Cached:
    source = FakeSource(world.folder, str(commit), **behaviour)  # type: ignore[arg-type]
    request = FillRequest("xrays", commit, STORE, PathSet.of(paths))
    return fill(root, request, source, ensure_room=plenty)


ALL_KINDS = [
    File("README", 20, "a"),
    File("bin/run", 100, "b", int(Kind.EXECUTABLE)),
    File("deep/er/and/deeper/x", 3000, "c"),
    File("empty", 0),
    File("large", 3 * (1 << 20) + 5, "d"),
    File("link", kind=int(Kind.SYMLINK), target="deep/er"),
    File("nothing/here", kind=int(Kind.EMPTY_DIRECTORY)),
]


def test_every_kind_of_entry_appears_as_committed(root: CacheRoot, world: World) -> None:
    commit = world.commit(ALL_KINDS)
    result = cache_it(root, world, commit)
    assert result.path == root.path / "xrays" / str(commit)
    world.check(commit, result.path)
    assert not result.hit
    assert result.fetched_bytes == result.record.bytes == sum(one.size for one in ALL_KINDS)
    assert result.record.files == 5
    for one in ALL_KINDS:
        if one.kind <= Kind.EXECUTABLE:
            assert (result.path / one.path).stat().st_mtime == FILE_TIME


def test_nothing_of_the_fill_stays_behind(root: CacheRoot, world: World) -> None:
    cache_it(root, world, world.commit(ALL_KINDS))
    for folder in ("fill", "room", "tmp", "trash"):
        assert not {one.name for one in (root.dot.path / folder).iterdir()} - {"spare"}, folder


def test_a_hit_asks_the_store_for_nothing(root: CacheRoot, world: World) -> None:
    commit = world.commit(ALL_KINDS)
    first = cache_it(root, world, commit)

    class NoStore:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was asked for")

    request = FillRequest("xrays", commit, STORE)
    again = fill(root, request, NoStore(), ensure_room=plenty)  # type: ignore[arg-type]
    assert again.hit
    assert (again.path, again.record) == (first.path, first.record)
    assert again.fetched_bytes == again.linked_files == 0


def test_a_selection_holds_its_paths_alone(root: CacheRoot, world: World) -> None:
    commit = world.commit(ALL_KINDS)
    result = cache_it(root, world, commit, b"deep", b"README")
    assert result.path.name.startswith(f"{commit}+")
    world.check(commit, result.path, ["README", "deep/er/and/deeper/x"])
    assert result.record.files == 2
    assert result.record.bytes == result.fetched_bytes == 3020
    with pytest.raises(NotFound, match="dee'"):
        cache_it(root, world, commit, b"dee")


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADF])
@pytest.mark.parametrize("remote", [True, False])
def test_a_file_that_the_server_has_forgotten_is_written_anew(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch, number: int, remote: bool
) -> None:
    """Linux says EBADF of a write, and EIO of a sync, to what was open when the server dropped this host's state."""
    failures = [number]

    fill_file = files.fill_file

    def fill(descriptor: int, pieces: Any, holes: list[int]) -> int:
        fill_file(descriptor, pieces, holes)
        if not os.readlink(f"/proc/self/fd/{descriptor}").endswith("/x") or not failures:
            return descriptor
        failed = failures.pop()
        os.truncate(descriptor, 100)
        os.close(descriptor)
        raise OSError(failed, os.strerror(failed))

    monkeypatch.setattr(place_files, "fill_file", fill)
    monkeypatch.setattr(files, "fill_file", fill)
    kind = FileSystem(remote=remote, sync_each=remote)
    monkeypatch.setattr(system, "kind_of", lambda path: kind)
    commit = world.commit(ALL_KINDS)
    if remote:
        result = cache_it(root, world, commit)
        world.check(commit, result.path)
        assert not failures
        assert not result.hit
        assert result.fetched_bytes >= sum(one.size for one in ALL_KINDS)  # what it did before counts, too
    else:
        with pytest.raises(Unreachable, match=f"xrays/{commit}"):
            cache_it(root, world, commit)


def test_on_other_file_servers_a_part_that_was_lost_ends_the_fill(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync reports a loss only once: a later process would take the part for whole."""
    kind = FileSystem(remote=True, sync_each=False)
    monkeypatch.setattr(system, "kind_of", lambda path: kind)
    commit = world.commit(ALL_KINDS)

    def fail(self: files.Syncer) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failing:
        failing.setattr(files.Syncer, "sync", fail)
        with pytest.raises(Unreachable, match="lost what was written"):
            cache_it(root, world, commit)
    assert not any((root.dot.path / "fill").rglob("*"))
    world.forget()
    result = cache_it(root, world, commit)
    world.check(commit, result.path)
    assert sum(size for _, size in world.fetched()) == sum(one.size for one in ALL_KINDS)


@pytest.mark.parametrize(("one", "other"), [("d/A", "d/a"), ("b", "b.")])
def test_a_file_system_that_takes_two_names_for_one_gets_no_wrong_file(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch, one: str, other: str
) -> None:
    """Although the trial before the fill has not noticed it."""

    def there(folder: int, name: Any) -> Any:
        """Return the name that the file system takes this one for."""
        same = [each for each in map(os.fsencode, os.listdir(folder)) if _folded(each) == _folded(name)]
        return same[0] if same else name

    def folding(real: Any) -> Any:
        def call(folder: int, name: bytes, *rest: Any, **options: Any) -> Any:
            return real(folder, there(folder, name), *rest, **options)

        return call

    for module, names in ((place_files, ("new_file", "examine")), (files, ("new_file",))):
        for name in names:
            monkeypatch.setattr(module, name, folding(getattr(module, name)))
    real = os.stat

    def stat(path: Any, **options: Any) -> os.stat_result:
        return real(there(options["dir_fd"], path) if isinstance(path, bytes) else path, **options)

    monkeypatch.setattr("dsv.files.folders.os.stat", stat)
    commit = world.commit([File(one, 20, "a"), File(other, 30, "b"), File("z", 5, "c")])
    with pytest.raises(Unsupported, match="has the name of another file"):
        cache_it(root, world, commit)
    assert not root.visible(CachePlace("xrays", str(commit))).exists()


@pytest.mark.parametrize("kind", [Kind.FILE, Kind.SYMLINK])
def test_paths_are_counted_before_a_commit_is_visible_where_names_are_folded(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """Two names that the trial before the fill tells apart, with one content, or of symlinks: no error meets them."""
    real, symlink, looks = place_files.new_file, os.symlink, files.examine

    def folded(name: str | bytes) -> bytes:
        return os.fsencode(name).replace("\u1e9e".encode(), b"ss")

    monkeypatch.setattr(
        place_files, "new_file", lambda at, name, *rest, **more: real(at, folded(name), *rest, **more)
    )
    monkeypatch.setattr(place_files, "examine", lambda at, name, *rest: looks(at, folded(name), *rest))
    monkeypatch.setattr(os, "symlink", lambda to, name, *, dir_fd: symlink(to, folded(name), dir_fd=dir_fd))
    monkeypatch.setattr("dsv.cache.fill.fill.found_otherwise", lambda *_: (True, False))
    size, target = (20, "") if kind is Kind.FILE else (0, "z")
    two = [File(f"d/{name}", size, "a", int(kind), target=target) for name in ("ss", "\u1e9e")]
    commit = world.commit([*two, File("d/e", kind=int(Kind.EMPTY_DIRECTORY)), File("z", 5, "c")])
    with pytest.raises(Unsupported, match="has 3 of 4 paths"):
        cache_it(root, world, commit)
    place = CachePlace("xrays", str(commit))
    assert not root.visible(place).exists() and not root.fill(place).exists()
    monkeypatch.undo()
    cache_it(root, world, commit)


def test_a_huge_source_map_is_read_no_further_than_its_tree(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member of the cache's group puts it, and the moves, in place of the fill's."""
    first = world.commit([File(f"d/{number}", 20, str(number)) for number in range(40)])
    cache_it(root, world, first)
    second = world.commit([File(f"e/{number}", 20, str(number)) for number in range(40)])
    begin = directory.start

    def start(*arguments: Any) -> Any:
        made = begin(*arguments)
        for path in (made.folder / "sheet", *(made.folder / "moves").iterdir()):
            path.path.chmod(0o600)
            os.truncate(path.path, 4 << 30)
        return made

    monkeypatch.setattr("dsv.cache.fill.fill.start", start)
    tracemalloc.start()
    try:
        world.check(second, cache_it(root, world, second).path)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def _folded(name: bytes) -> bytes:
    return name.lower().rstrip(b".")


def test_an_empty_commit_is_a_folder(root: CacheRoot, world: World) -> None:
    result = cache_it(root, world, world.commit([]))
    assert result.path.is_dir()
    assert result.record.files == 0


def many(count: int, changed: range | tuple[int, ...] = (), folder: str = "f") -> list[File]:
    return [
        File(
            f"{folder}/{number % 7}/{number:05d}",
            50 + number % 100,
            f"{number}{'x' if number in changed else ''}",
        )
        for number in range(count)
    ]


def test_the_next_commit_links_what_stayed(root: CacheRoot, world: World) -> None:
    first = cache_it(root, world, world.commit(many(3000)))
    world.forget()
    commit = world.commit(many(3000, changed=range(100, 120)))
    second = cache_it(root, world, commit)
    world.check(commit, second.path)
    assert second.linked_files == 2980
    assert len(world.fetched()) == 20
    name = "f/0/00000"
    assert (first.path / name).stat().st_ino == (second.path / name).stat().st_ino
    record = read_record(root, FillRequest("xrays", commit, STORE).place)
    assert record is not None
    assert record.own_files == 20


def test_renamed_files_and_other_datasets_are_linked(root: CacheRoot, world: World) -> None:
    commit = world.commit(many(600))
    fill(root, FillRequest("other", commit, STORE), FakeSource(world.folder, str(commit)), ensure_room=plenty)
    world.forget()
    moved = world.commit(many(600, folder="g"))
    result = cache_it(root, world, moved)
    world.check(moved, result.path)
    assert result.linked_files == 600
    assert world.fetched() == []


def test_the_executable_bit_is_not_shared_by_a_link(root: CacheRoot, world: World) -> None:
    first = cache_it(root, world, world.commit([File("a", 100, "a")]))
    commit = world.commit([File("a", 100, "a", int(Kind.EXECUTABLE))])
    second = cache_it(root, world, commit)
    world.check(commit, second.path)
    assert not (first.path / "a").stat().st_mode & 0o111


@pytest.mark.parametrize("harm", ["content", "time", "gone"])
def test_a_donor_that_is_not_as_it_was_filled_gives_nothing(root: CacheRoot, world: World, harm: str) -> None:
    first = cache_it(root, world, world.commit([File("a", 100, "a"), File("b", 100, "b")]))
    victim = first.path / "a"
    if harm == "gone":
        victim.unlink()
    else:
        victim.chmod(0o644)
        victim.write_bytes(b"!" * (99 if harm == "content" else 100))
        victim.chmod(0o444)
        if harm == "content":
            os.utime(victim, (FILE_TIME, FILE_TIME))
    commit = world.commit([File("a", 100, "a"), File("b", 100, "b"), File("c", 5, "c")])
    second = cache_it(root, world, commit)
    world.check(commit, second.path)
    assert second.linked_files == 1


@pytest.mark.parametrize("lost", [1, 2])
def test_a_donor_whose_tree_is_lost_midway_gives_nothing_and_the_next_one_only_its_own(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """The next one has files of the same paths and sizes, but with other contents."""
    monkeypatch.setattr(cutting, "MIN_ENTRIES", 4)  # several segments
    cache_it(root, world, world.commit(many(200, changed=range(190))))
    torn = [world.commit(many(200, changed=range(start, 200, 5))) for start in range(lost)]
    for commit in torn:
        cache_it(root, world, commit)

    class Source(FakeSource):
        def tree(self, commit: CommitId) -> FakeTree:
            return TornTree(world.files(commit), 3) if commit in torn else super().tree(commit)

    commit = world.commit(many(200))
    source = Source(world.folder, str(commit))
    assert len(source.tree(commit).leaves()) > 6
    result = fill(root, FillRequest("xrays", commit, STORE), source, ensure_room=plenty)
    world.check(commit, result.path)
    assert result.linked_files == 10


def test_a_large_changed_file_takes_its_other_chunks_from_the_cached_version(
    root: CacheRoot, world: World
) -> None:
    cache_it(root, world, world.commit([File("big", 5 << 20, "a")]))
    world.forget()
    commit = world.commit([File("big", 5 << 20, "a", tail="b")])
    result = cache_it(root, world, commit)
    world.check(commit, result.path)
    assert result.fetched_bytes == 1 << 20


@pytest.mark.parametrize("error", ["EMLINK", "EXDEV", "EPERM"])
def test_if_no_link_can_be_made_the_bytes_are_copied_and_not_fetched(
    root: CacheRoot, world: World, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    files = [File("large", (2 << 20) + 1, "l"), *many(20)]
    cache_it(root, world, world.commit(files))
    world.forget()
    real = os.link

    def link(*args: object, **kwargs: object) -> None:
        if os.readlink(f"/proc/self/fd/{kwargs['src_dir_fd']}").find("xrays") >= 0:
            raise OSError(getattr(errno, error), "no link")
        real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", link)
    needs: list[Need] = []
    commit = world.commit([*files, File("new", 10, "n")])
    source = FakeSource(world.folder, str(commit))
    result = fill(root, FillRequest("xrays", commit, STORE), source, ensure_room=needs.append)
    world.check(commit, result.path)
    assert result.fetched_bytes == 10
    assert needs[0].bytes >= (2 << 20) + 22 * 4096  # planned as what it is: copies


def test_a_file_that_has_as_many_names_as_it_can(root: CacheRoot, world: World) -> None:
    """ext4 allows 65,000, so a file that stays in every version reaches it; then one more copy is made."""
    files = [File("everywhere", 100, "e"), *many(20)]
    first = cache_it(root, world, world.commit(files)).path
    world.forget()
    names = root.path / ".names"
    names.mkdir()
    try:
        for number in range(66_000):
            os.link(first / "everywhere", names / str(number))
    except OSError as error:
        assert error.errno == errno.EMLINK
    else:
        pytest.skip("this file system's link limit, if it has one, is above 66,000")
    commit = world.commit([*files, File("new", 10, "n")])
    result = cache_it(root, world, commit)
    world.check(commit, result.path)
    assert result.fetched_bytes == 10
    assert (result.path / "everywhere").stat().st_nlink == 1
    assert (result.path / "f/0/00000").stat().st_nlink > 1


def test_no_room_is_found_before_the_first_byte(root: CacheRoot, world: World) -> None:
    commit = world.commit(ALL_KINDS)

    def refuse(need: Need) -> None:
        assert need.bytes > 3 << 20
        raise NoRoom("there is no room")

    with pytest.raises(NoRoom):
        fill(
            root,
            FillRequest("xrays", commit, STORE),
            FakeSource(world.folder, str(commit)),
            ensure_room=refuse,
        )
    assert world.fetched() == []
    assert not list(root.room.path.iterdir())
    assert not (root.path / "xrays" / str(commit)).exists()


def test_a_foreign_folder_is_not_replaced(root: CacheRoot, world: World) -> None:
    commit = world.commit(ALL_KINDS)
    visible = root.path / "xrays" / str(commit)
    visible.mkdir(parents=True)
    (visible / "mine").touch()
    with pytest.raises(Conflict, match="in the way"):
        cache_it(root, world, commit)
    assert (visible / "mine").exists()
    assert world.fetched() == []


def test_damage_in_the_store_leaves_nothing_visible_and_loses_nothing(root: CacheRoot, world: World) -> None:
    files = many(50)
    commit = world.commit(files)
    damaged = ["f/0/00000", "f/6/00048", files[20].path]
    with pytest.raises(IntegrityError) as raised:
        cache_it(root, world, commit, damaged=damaged)
    assert {
        path for path in (one.path for one in files) if f"chunk of {path} is" in raised.value.message
    } == {*damaged}
    assert not (root.path / "xrays" / str(commit)).exists()
    assert len(world.fetched()) == 50 - len(damaged)
    result = cache_it(root, world, commit)
    world.check(commit, result.path)
    assert len(world.fetched()) == 50


def test_symlinks_that_leave_the_tree_together_are_refused(root: CacheRoot, world: World) -> None:
    commit = world.commit(
        [
            File("a/b/up", kind=int(Kind.SYMLINK), target="../.."),
            File("out", kind=int(Kind.SYMLINK), target="a/b/up/../etc"),
        ]
    )
    with pytest.raises(IntegrityError, match="leaves the dataset"):
        cache_it(root, world, commit)
    assert not (root.path / "xrays" / str(commit)).exists()
    assert not list(root.room.path.iterdir())


def test_the_leftovers_of_a_process_that_died_joining_a_fill_do_not_stop_the_next_fill(
    root: CacheRoot, world: World
) -> None:
    commit = world.commit(ALL_KINDS)
    root.prepare()
    home = root.fill(FillRequest("xrays", commit, STORE).place)
    root.make_directory(home)
    (home / f"{PROBE}0123").path.touch()
    world.check(commit, cache_it(root, world, commit).path)


def test_a_fill_that_was_given_up_and_cleared_away_is_not_recorded_for_another(
    root: CacheRoot, world: World
) -> None:
    """By one who was about to join it, while the commit is visible by another fill."""
    commit = world.commit(ALL_KINDS)
    request = FillRequest("xrays", commit, STORE)
    cache_it(root, world, commit)
    source = FakeSource(world.folder, str(commit))
    planned = make_plan(root, request, source, remote=False)
    directory.start(root, request.place, planned.plan, planned.source_map, planned.moves, lambda _: None)
    joined = directory.join(root, request.place)
    assert joined is not None
    directory.give_up(joined)
    finalize(joined)
    assert not record_path(root, request.place, joined.fill).exists()
