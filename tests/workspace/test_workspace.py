from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsv.errors import Conflict, IntegrityError
from dsv.values.ids import CommitId, StoreId
from dsv.values.names import BranchName, DatasetName
from dsv.workspace.workspace import BRIEF, Workspace
from tests.privileges import modes_count

STORE = StoreId(bytes(range(16)))


def make(root: Path, store: str = "s3://lake/dsv") -> Workspace:
    return Workspace.create(
        root,
        store=store,
        store_id=STORE,
        dataset=DatasetName.parse("team/x"),
        branch=BranchName.parse("main"),
    )


def test_a_workspace_is_found_from_below_and_through_symlinks(tmp_path: Path) -> None:
    made = make(tmp_path / "w", store='a "quoted" \\ name\n')
    (tmp_path / "w/a/b").mkdir(parents=True)
    (tmp_path / "way").symlink_to("w/a")
    for start in (tmp_path / "w", tmp_path / "w/a/b", tmp_path / "way/b"):
        assert Workspace.find(start) == made
    assert Workspace.find(tmp_path) is None
    assert Workspace.find(tmp_path / "w/a/gone") == made
    assert (tmp_path / "w/.dsv/config.toml").read_text().count("=") == 4


def test_below_another_users_workspace_the_one_around_it_is_not_taken(tmp_path: Path) -> None:
    make(tmp_path / "w")
    theirs = make(tmp_path / "w/theirs")
    theirs.dot.chmod(0)
    with modes_count():
        assert Workspace.find(theirs.root) is None
    theirs.dot.chmod(0o700)
    assert Workspace.find(theirs.root) == theirs


def test_binding_again_is_refused_and_unbinding_leaves_the_files(tmp_path: Path) -> None:
    made = make(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(Conflict):
        make(tmp_path)
    made.unbind()
    assert Workspace.find(tmp_path) is None and (tmp_path / "file").exists()


@pytest.mark.parametrize(
    "text",
    [
        b"store = 1",
        b"not toml",
        b"\xff",
        b'store = "s"\nstore_id = "x"\ndataset = "d1"\nbranch = "main"',
        b'store = "s"\nstore_id = "' + bytes(str(STORE), "ascii") + b'"\ndataset = "../x"\nbranch = "main"',
    ],
)
def test_a_binding_that_is_none_is_said_to_be(tmp_path: Path, text: bytes) -> None:
    make(tmp_path)
    (tmp_path / ".dsv/config.toml").write_bytes(text)
    with pytest.raises(IntegrityError, match=r"config\.toml"):
        Workspace.find(tmp_path)


def test_base_and_branch(tmp_path: Path) -> None:
    made = make(tmp_path)
    assert made.base() is None
    commit = CommitId.hash(b"c")
    made.set_base(commit)
    followed = made.follow(BranchName.parse("other"))
    assert Workspace.find(tmp_path) == followed
    assert followed.base() == commit and followed.branch == "other"
    (tmp_path / ".dsv/base").write_text("what?")
    with pytest.raises(IntegrityError, match="base"):
        made.base()


def test_a_base_that_is_taken_back_is_gone_from_the_disk_when_that_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could be there again after a power cut, though the store does not stand by it."""
    made = make(tmp_path)
    made.set_base(CommitId.hash(b"c"))
    sync, synced = os.fsync, list[bool]()

    def note_sync(descriptor: int) -> None:
        is_folder = os.path.samestat(os.fstat(descriptor), (tmp_path / ".dsv").stat())
        synced.append(is_folder and not (tmp_path / ".dsv/base").exists())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note_sync)
    made.set_base(None)
    assert made.base() is None and any(synced)


def test_paths_of_a_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "w"
    made = make(root)
    (root / "a").mkdir()
    (root / "link").symlink_to("a")
    (root / "loop").symlink_to(".")
    (root / "ring").symlink_to("ring")
    (tmp_path / "ring").symlink_to("ring")
    (tmp_path / "way").symlink_to("w")
    monkeypatch.chdir(root / "a")
    assert made.inside(Path("x")) == b"a/x"
    assert made.inside(Path("..")) == b""
    assert made.inside(root) == b""
    assert made.inside(tmp_path / "way") == b""
    assert made.inside(tmp_path / "way/a/x") == b"a/x"
    assert made.inside(root / "link") == b"link"  # the symlink itself is meant
    assert made.inside(root / "loop") == b"loop"
    assert made.inside(root / "link/x") == b"a/x"
    assert made.inside(root / "ring") == b"ring"
    assert made.inside(root / "ring/x") == b"ring/x"
    assert made.inside(tmp_path / "ring") is None
    assert made.inside(tmp_path / "ring/x") is None
    assert made.inside(Path(os.fsdecode(b"\xff"))) == b"a/\xff"
    assert made.inside(tmp_path) is None
    assert made.inside(root / ".dsv/base") is None


def test_one_command_at_a_time_but_a_brief_one_is_waited_for(tmp_path: Path) -> None:
    made = make(tmp_path)
    with made.lock("dsv sync"), pytest.raises(Conflict, match="dsv sync"):
        made.lock("dsv pull")
    brief = made.lock(BRIEF)
    import threading

    threading.Timer(0.3, brief.release).start()
    with made.lock("dsv sync"):
        pass
