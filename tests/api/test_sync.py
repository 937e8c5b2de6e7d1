from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from dsv.api.checkout import restore
from dsv.api.status import status
from dsv.api.sync import SyncRequest, sync
from dsv.errors import Changing, Conflict, NoRoom, NotFound, Unsupported
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.values.names import BranchName, Target
from dsv.values.progress import NoProgress
from tests.kit.people import SCANS, Person

NOBODY = 65534
FILES = {
    "a/one.txt": b"1\n",
    "a/two.sh": b"#!/bin/sh\n",
    "a/link@": b"one.txt",
    "b": None,
    "empty": b"",
    "big.bin": random.Random(1).randbytes(3 << 20),
}


def other(person: Person) -> Person:
    """A second workspace of the same dataset, where the first one stands."""
    import shutil

    home = person.home.parent / "bob"
    shutil.copytree(person.home, home, symlinks=True)
    return Person(home, person.store, "bob")


def test_what_is_synced_is_what_is_there(ann: Person) -> None:
    ann.write(dict(FILES))
    first = ann.sync("first")
    assert first.any_change and first.commit is not None and first.parent is None
    assert (first.added, first.changed, first.removed) == (6, 0, 0)
    assert ann.read(first.commit) == FILES
    assert ann.files() == FILES


def test_a_second_sync_uploads_what_changed(ann: Person) -> None:
    ann.write({**FILES, **{f"d/{n:04}": str(n).encode() * 100 for n in range(3000)}})
    first = ann.sync()
    again = ann.sync()
    assert not again.any_change and again.commit == first.commit and again.uploaded_bytes == 0
    ann.write({"d/0100": b"changed", "new": b"new"})
    (ann.workspace / "a/one.txt").unlink()
    (ann.workspace / "d/0200").chmod(0o755)
    (ann.workspace / "d/0200").rename(ann.workspace / "d/0200.sh")
    second = ann.sync()
    assert (second.added, second.changed, second.removed) == (2, 1, 2)
    assert second.parent == first.commit
    assert 0 < second.uploaded_bytes < 300_000
    assert second.commit is not None
    assert ann.read(second.commit) == ann.files()


def test_with_reading_processes_the_commits_are_the_same(tmp_path: Path) -> None:
    """Over a first sync, a change of every tenth file, and one that removes and retypes."""
    ann, eve = (Person(tmp_path / name, str(tmp_path / "store" / name), name) for name in ("ann", "eve"))
    source = random.Random(5)
    first = {f"d{n % 5}/{n:04}": source.randbytes(n % 300) * (1 + n % 9) for n in range(1500)}
    second = {path: source.randbytes(100) for path in list(first)[::10]}
    roots = []
    for person, jobs in ((ann, 1), (eve, 3)):
        person.init()
        person.write({**FILES, **first})
        commits = [person.sync(jobs=jobs)]
        person.write(second)
        commits.append(person.sync(jobs=jobs))
        (person.workspace / "d1/0001").unlink()
        (person.workspace / "d2/0002").unlink()
        person.write({"d2/0002@": b"0007"})
        commits.append(person.sync(jobs=jobs))
        assert [(done.added, done.changed, done.removed) for done in commits] == [
            (1506, 0, 0), (0, 150, 0), (0, 1, 1)
        ]  # fmt: skip
        assert not person.sync(jobs=jobs).any_change
        with person.context().store() as store:
            repository = Repository.open(store, None)
            roots.append([TreeReader(repository.objects, done.commit).commit.root for done in commits])
        assert person.read(commits[-1].commit) == person.files()
    assert roots[0] == roots[1]


def test_touching_is_no_change(ann: Person) -> None:
    ann.write(dict(FILES))
    first = ann.sync()
    for path in ("a/one.txt", "big.bin"):
        os.utime(ann.workspace / path, (1, 1))
    again = ann.sync()
    assert again.commit == first.commit and not again.any_change


def test_paths_alone(ann: Person) -> None:
    ann.write(dict(FILES))
    ann.sync()
    ann.write({"a/one.txt": b"changed", "c/new": b"new", "empty": b"no more"})
    commit = ann.sync(paths=(b"c", b"a/one.txt")).commit
    assert commit is not None
    assert ann.read(commit) == {**FILES, "a/one.txt": b"changed", "c/new": b"new"}
    commit = ann.sync().commit
    assert commit is not None
    assert ann.read(commit) == ann.files()


def test_a_lost_race_loses_no_data(ann: Person) -> None:
    ann.write(dict(FILES))
    ann.sync()
    bob = other(ann)
    ann.write({"from-ann": b"a"})
    bob.write({"from-bob": b"b"})
    ann.sync()
    with pytest.raises(Conflict, match=r"main of scans has 1 newer commit .last: ann@lab") as caught:
        bob.sync()
    assert caught.value.hint is not None and "dsv pull" in caught.value.hint
    beside = bob.sync(branch=BranchName.parse("bobs"), new_branch=True)
    assert beside.commit is not None and beside.branch == "bobs"
    assert bob.read(beside.commit) == {**FILES, "from-bob": b"b"}
    bob.write({"more": b"m"})
    assert bob.sync().branch == "bobs"


def test_nothing_changed_is_no_success_if_the_branch_is_elsewhere(ann: Person) -> None:
    ann.write(dict(FILES))
    first = ann.sync()
    bob = other(ann)
    ann.write({"x": b"x"})
    ann.sync()
    with pytest.raises(Conflict, match=r"1 newer commit .*ann"):  # files of a copy would have to be read
        bob.sync()
    assert status(bob.context()).is_clean  # which reads them
    with pytest.raises(
        Conflict, match=rf"nothing differs here from {first.commit!s:.12}.*1 newer commit .*ann"
    ):
        bob.sync()


def test_a_sync_after_an_older_commit_was_restored_says_that_the_branch_has_not_moved(ann: Person) -> None:
    ann.write({"x": b"1"})
    first = ann.sync()
    ann.write({"x": b"2"})
    second = ann.sync()
    restore(ann.context(), source=Target.parse(f"@{first.commit}"))
    said = rf"main of scans is at {second.commit!s:.12}, 1 commit after .* and has not moved"
    with pytest.raises(Conflict, match=said) as caught:
        ann.sync()
    assert f"dsv rollback @{first.commit!s:.12}" in (caught.value.hint or "")
    ann.write({"x": b"3"})
    with pytest.raises(Conflict, match=said):
        ann.sync()


def test_a_branch_is_made_by_its_own_option_alone(ann: Person) -> None:
    ann.write(dict(FILES))
    ann.sync()
    branch = BranchName.parse("experiment")
    with pytest.raises(NotFound, match="has no branch experiment") as caught:
        ann.sync(branch=branch)
    assert caught.value.hint == "dsv sync --new-branch experiment makes it"
    with ann.context().store() as store:
        assert [head.branch for head in Repository.open(store, None).refs.heads(SCANS)] == ["main"]
    assert ann.sync(branch=branch, new_branch=True).branch == branch
    assert not ann.sync(branch=branch).any_change
    with pytest.raises(Conflict, match="already has a branch experiment"):
        ann.sync(branch=branch, new_branch=True)


@pytest.mark.parametrize("path", [b"nosuch", b"a/nosuch", b"@v1.0", b"empty/below"])
def test_a_path_that_is_nowhere_is_an_error(ann: Person, path: bytes) -> None:
    ann.write(dict(FILES))
    ann.sync()
    for ask in (lambda: ann.sync(paths=(path,)), lambda: status(ann.context(), (path,))):
        with pytest.raises(NotFound, match="neither in"):
            ask()


def test_a_path_may_be_in_the_base_alone_or_on_disk_alone(ann: Person) -> None:
    ann.write(dict(FILES))
    ann.sync()
    (ann.workspace / "a/one.txt").unlink()
    (ann.workspace / "new").write_bytes(b"")
    assert status(ann.context(), (b"a/one.txt",)).differences.removed == [b"a/one.txt"]
    done = ann.sync(paths=(b"a/one.txt", b"new"))
    assert (done.added, done.removed) == (1, 1)


def test_a_branch_without_a_change(ann: Person) -> None:
    ann.write(dict(FILES))
    first = ann.sync()
    on_branch = ann.sync(branch=BranchName.parse("frozen"), new_branch=True)
    assert on_branch.commit == first.commit and on_branch.branch == "frozen"
    ann.write({"x": b"x"})
    assert ann.sync().branch == "frozen"


def test_a_missing_mount_empties_nothing(ann: Person) -> None:
    ann.write({f"d/{n}": b"x" for n in range(10)} | {f"e/{n}": b"y" for n in range(30)} | {"top": b"t"})
    ann.sync()
    for path in (ann.workspace / "d").iterdir():
        path.unlink()
    with pytest.raises(Conflict, match="everything in d/"):
        ann.sync()
    removed = ann.sync(allow_removals=True)
    assert removed.removed == 10 and removed.added == 1  # the empty folder d
    for number in range(20):
        (ann.workspace / f"e/{number}").unlink()
    with pytest.raises(Conflict, match="20 of 32 paths"):
        ann.sync()
    assert ann.sync(allow_removals=True).removed == 20


def test_what_cannot_be_stored_is_listed_at_once(ann: Person, tmp_path: Path) -> None:
    ann.write(dict(FILES))
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(ann.workspace)
        server.bind("socket")
        os.chdir(here)
    os.mkfifo(ann.workspace / "a/pipe")
    (ann.workspace / "out").symlink_to("/etc/passwd")
    Path(os.fsdecode(os.fsencode(ann.workspace) + b"/bad-\xff")).write_bytes(b"x")
    with pytest.raises(Unsupported) as caught:
        ann.sync()
    for part in ("4 paths", "'socket': it is a socket", "'a/pipe': it is a named pipe", "'out'", "not UTF-8"):
        assert part in caught.value.message
    done = ann.sync(skip_unsupported=True)
    assert len(done.skipped) == 4 and done.commit is not None
    assert ann.read(done.commit) == FILES


@contextmanager
def as_somebody_else(folder: Path) -> Iterator[None]:
    """As a user who may write in this folder, and may not read what root may."""
    os.chown(folder, NOBODY, NOBODY)
    for above in (folder, *folder.parents):
        if above != Path("/tmp") and above.is_relative_to("/tmp"):
            above.chmod(0o755)
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_is_not_empty_because_what_is_in_it_can_not_be_read(tmp_path: Path) -> None:
    with as_somebody_else(tmp_path):
        ann = Person(tmp_path / "ann", str(tmp_path / "store"))
        ann.init()
        ann.write({"d/x": b"x", "d/deep/y": b"y", "e": None, "top": b"t"})
        base = ann.files()
        ann.sync()
        for path in ("d/x", "d/deep/y"):
            ann.write({path: b"changed"})
            (ann.workspace / path).chmod(0)
        ann.write({"e/new": b"e", "top": b"top"})
        (ann.workspace / "e/new").chmod(0)
        for number in range(2):
            ann.write({"top": b"top %d" % number})
            done = ann.sync(skip_unsupported=True)
            assert {problem.path for problem in done.skipped} == {b"d/x", b"d/deep/y", b"e/new"}
            assert (done.added, done.changed, done.removed) == (0, 1, 0)
            assert done.commit is not None and ann.read(done.commit) == {**base, "top": b"top %d" % number}
        for path in ("d/x", "d/deep/y", "e/new"):
            (ann.workspace / path).chmod(0o644)
        done = ann.sync()
        assert done.commit is not None and ann.read(done.commit) == ann.files()
        assert (done.added, done.changed, done.removed) == (1, 2, 1)


class Away(NoProgress):
    """Somebody moves files of these names away just when a sync has listed them, and back when it has read all."""

    def __init__(self, workspace: Path, *names: str) -> None:
        self._moved = {workspace / name: workspace.parent / f"{name}.away" for name in names}

    def start(self, total_files: int | None, total_bytes: int | None) -> None:
        for path, away in self._moved.items():
            path.rename(away)

    def finish(self) -> None:
        for path, away in self._moved.items():
            away.rename(path)


@pytest.mark.parametrize("settled", [False, True])
def test_what_could_not_be_read_is_synced_the_next_time_though_its_hash_was_known(
    ann: Person, settled: bool
) -> None:
    ann.write({"a": b"a", "sub/same size": b"before", "large": bytes((1 << 20) + 1)})
    ann.sync()
    ann.write({"a": b"other", "sub/same size": b"behind", "large": bytes(1 << 20) + b"x", "new": b"new"})
    if settled:  # so that their times vouch for what is read
        time.sleep(0.05)
    assert status(ann.context()).differences.changed == [b"a", b"large", b"sub/same size"]
    away = Away(ann.workspace, "sub/same size", "large", "new")
    (ann.home / "sub").mkdir()
    done = sync(structs.replace(ann.context(), progress=away), SyncRequest(skip_unsupported=True))
    assert {problem.path for problem in done.skipped} == {b"sub/same size", b"large", b"new"}
    assert done.commit is not None and ann.read(done.commit)["sub/same size"] == b"before"
    second = ann.sync()
    assert second.commit is not None and ann.read(second.commit) == ann.files()
    assert (second.added, second.changed) == (1, 2)


def test_what_a_stopped_sync_had_stored_of_a_file_is_no_proof_that_it_is_committed(ann: Person) -> None:
    """The first sync reads both files and publishes nothing; what it stored is gone when the next one comes."""
    ann.write({"base": b"base"})
    ann.sync()
    ann.write({"read": b"read", "gone": b"gone"})
    time.sleep(0.05)
    with pytest.raises(Changing):
        sync(structs.replace(ann.context(), progress=Away(ann.workspace, "gone")), SyncRequest())
    (ann.workspace / ".dsv/journal").unlink()
    ann.write({"more": b"more"})
    done = sync(
        structs.replace(ann.context(), progress=Away(ann.workspace, "read")),
        SyncRequest(skip_unsupported=True),
    )
    assert [problem.path for problem in done.skipped] == [b"read"]
    second = ann.sync()
    assert second.commit is not None and ann.read(second.commit) == ann.files()


def test_two_syncs_at_once(ann: Person) -> None:
    ann.write(dict(FILES))
    with ann.context().workspace().lock("dsv sync"), pytest.raises(Conflict, match=r"dsv sync \(process"):
        ann.sync()
    assert ann.sync().any_change


def test_a_full_store_is_found_out_before_reading(ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    from dsv.stores.directory import DirectoryStore

    ann.write(dict(FILES))
    monkeypatch.setattr(DirectoryStore, "free_bytes", lambda _: 1 << 20)
    with pytest.raises(NoRoom, match="free"):
        ann.sync()


def test_init_is_refused_where_the_dataset_is(ann: Person, tmp_path: Path) -> None:
    bob = Person(tmp_path / "bob", ann.store, "bob")
    with pytest.raises(Conflict, match="already exists") as caught:
        bob.init()
    assert caught.value.hint == "dsv clone scans"
    assert not (bob.workspace / ".dsv").exists()


def test_a_file_that_grows_while_it_is_read_is_refused_until_it_rests(
    ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann.write({"small": b"small", "train.log": bytes(3 << 20)})
    really_read = os.readv

    def read_and_write(descriptor: int, buffers: list[memoryview]) -> int:
        if os.lseek(descriptor, 0, os.SEEK_CUR) == 0:
            with (ann.workspace / "train.log").open("ab") as log:
                log.write(b"step")
        return really_read(descriptor, buffers)

    monkeypatch.setattr(os, "readv", read_and_write)
    with pytest.raises(Changing, match=r"'train\.log': it was changed while it was read") as refused:
        ann.sync()
    assert refused.value.retryable and refused.value.exit_code == 4
    assert "run the same command again" in (refused.value.hint or "")
    monkeypatch.undo()
    done = ann.sync()
    assert done.commit is not None and ann.read(done.commit) == ann.files()


class Meanwhile(NoProgress):
    """Something happens once all is read, and before it is published. `notes` has what the user was told."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act: Callable[[], object] | None = act
        self.notes: list[str] = []

    def advance(self, files: int = 0, bytes: int = 0, transferred: int = 0) -> None:  # noqa: A002
        if self._act is not None:
            self._act()
        self._act = None

    def note(self, text: str) -> None:
        self.notes.append(text)


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name("new")
    new.write_bytes(content)
    new.rename(path)


TOGETHER: dict[str, tuple[Callable[[Path], object], str]] = {
    "the journal grows": (lambda folder: (folder / "x.db-wal").write_bytes(b"longer"), "x.db-wal"),
    "the database changes, and was not read": (lambda folder: (folder / "x.db").write_bytes(b"two"), "x.db"),
    "a transaction begins": (lambda folder: (folder / "x.db-journal").write_bytes(b"j"), "x.db-journal"),
    "the journal goes": (lambda folder: (folder / "x.db-wal").unlink(), "x.db-wal"),
    "a rename replaces one of a pair": (lambda folder: _replace(folder / "pair.idx", b"new"), "pair.idx"),
}


@pytest.mark.parametrize("what", TOGETHER)
def test_files_that_belong_together_are_never_of_two_moments(ann: Person, what: str) -> None:
    ann.write({"d/x.db": b"one", "d/pair.idx": b"old", "d/pair.bin": b"old"})
    first = ann.sync()
    ann.write({"d/x.db-wal": b"wal", "d/pair.bin": b"new"})
    act, name = TOGETHER[what]
    meanwhile = Meanwhile(lambda: act(ann.workspace / "d"))
    with pytest.raises(Changing, match=f"'d/{name}': it changed while what") as refused:
        sync(structs.replace(ann.context(), progress=meanwhile), SyncRequest(skip_unsupported=True))
    assert refused.value.retryable
    with ann.context().store() as store:
        head = Repository.open(store, None).refs.newest(SCANS, BranchName("main"))
    assert head is not None and head.commit == first.commit
    done = ann.sync()
    assert done.commit is not None and ann.read(done.commit) == ann.files()


def test_what_else_happens_during_a_sync_does_not_stop_it(ann: Person) -> None:
    ann.write({"d/train.log": b"1", "d/old": b"1", "d/x.db": b"1"})

    def act() -> None:
        with (ann.workspace / "d/train.log").open("ab") as log:
            log.write(b"2")
        (ann.workspace / "d/old").unlink()
        ann.write({"d/another": b"1", "e/new": b"1"})

    done = sync(structs.replace(ann.context(), progress=Meanwhile(act)), SyncRequest())
    assert done.commit is not None
    assert ann.read(done.commit) == {"d/train.log": b"1", "d/old": b"1", "d/x.db": b"1"}


@pytest.mark.parametrize("newest", [False, True])
def test_an_hdf5_file_in_use_is_noted(ann: Person, newest: bool) -> None:
    h5py = pytest.importorskip("h5py")
    ann.write({"short.h5": b"\x89HDF\r\n\x1a\n", "other.h5": b"1" * 24})
    (ann.workspace / "d").mkdir()
    told = Meanwhile(lambda: None)
    context = structs.replace(ann.context(), progress=told)
    with h5py.File(ann.workspace / "d/x.h5", "w", libver="latest" if newest else "earliest") as file:
        file["x"] = [1]
        file.flush()
        sync(context, SyncRequest())
        if newest:
            file.swmr_mode = True
            sync(context, SyncRequest(rehash=True))
    assert ["'d/x.h5' is open for writing" in note for note in told.notes] == [True] * (1 + newest)
    sync(context, SyncRequest())
    assert len(told.notes) == 1 + newest


def test_a_database_in_use_is_noted_with_the_way_to_a_whole_copy(ann: Person) -> None:
    ann.write({"d/x.db": b"1", "d/x.db-wal": b"", "d/y.db": b"1", "d/z-wal": b"1"})
    ann.write({"d/folder/x": b"1", "d/folder-journal": b"1"})
    told = Meanwhile(lambda: None)
    sync(structs.replace(ann.context(), progress=told), SyncRequest())
    assert told.notes == []
    ann.write({"d/x.db-wal": b"1"})
    sync(structs.replace(ann.context(), progress=told), SyncRequest())
    assert [("'d/x.db-wal' is not empty" in note, "VACUUM INTO" in note) for note in told.notes] == [
        (True, True)
    ]
