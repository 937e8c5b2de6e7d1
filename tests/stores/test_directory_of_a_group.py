"""A directory store that belongs to a group: who dies while making it, and who makes it at the same time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dsv.errors import Denied, IntegrityError
from dsv.stores.base import PutResult
from dsv.stores.directory import DirectoryStore
from tests.stores.opened import Opened
from tests.stores.test_directory import in_a_process, needs_root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    folder.chmod(0o2770)
    return folder


@needs_root
def test_a_writer_who_dies_anywhere_locks_nobody_out(root: Path) -> None:
    """A colleague writes beside what is left, whichever step the first one did not come to."""
    program = """
        import os, sys
        from pathlib import Path
        from dsv.stores.directory import DirectoryStore
        STEPS = {"os.mkdir", "os.chmod", "os.rename", "os.rmdir", "open", "os.link", "os.remove"}

        # As this user of the group, with a narrow umask, who dies before that step. Gives the exit code.
        def put(root, user, key, steps):
            child = os.fork()
            if child:
                return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            left = steps

            def take(event, arguments):
                nonlocal left
                if event in STEPS:
                    if not left:
                        os._exit(9)
                    left -= 1

            store = DirectoryStore(root)
            os.setgroups([])
            os.setresgid(2000, 2000, 2000)
            os.setresuid(user, user, user)
            os.umask(0o077)
            sys.addaudithook(take)
            store.put_if_absent(key, b"x")
            os._exit(0)

        steps = done = 0
        while not done:
            root = Path(sys.argv[1], str(steps))
            root.mkdir()
            os.chown(root, -1, 2000)
            root.chmod(0o2770)
            done = put(root, 1001, "a/b/c", steps) == 0
            assert put(root, 1002, "a/b/d", -1) == 0, f"locked out by who died before step {steps}"
            assert put(root, 1002, "a/b/c", -1) == 0, steps
            assert {item.key for item in DirectoryStore(root).list("")} == {"a/b/c", "a/b/d"}, steps
            steps += 1
        print(steps)
    """
    assert int(in_a_process(program, str(root))) > 10


@pytest.mark.parametrize("planted", ["empty", "full", "sticky", "file"])
def test_a_groups_folder_that_another_makes_meanwhile(
    root: Path, monkeypatch: pytest.MonkeyPatch, opened: Opened, planted: str
) -> None:
    """Between the look that found none and the rename."""
    real = os.rename

    def rename(source: str, name: str, **more: int) -> None:
        monkeypatch.undo()
        if planted == "file":
            (root / name).write_text("x")
        else:
            (root / name).mkdir()
            (root / name).chmod(0o2770)
        if planted == "full":
            (root / name / "other").write_text("x")
        if planted == "sticky":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        real(source, name, **more)

    store = opened(DirectoryStore(root))
    store.put_if_absent("k", b"x")
    monkeypatch.setattr(os, "rename", rename)
    if planted == "file":
        with pytest.raises(IntegrityError):
            store.put_if_absent("a/k", b"x")
    else:
        assert store.put_if_absent("a/k", b"x") is PutResult.WON
        assert (root / "a").stat().st_mode & 0o2770 == 0o2770
    assert {path.name for path in root.iterdir()} == {".tmp", "a", "k"}


def test_a_groups_folder_that_cannot_be_made(
    root: Path, monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    store = opened(DirectoryStore(root))

    def fchmod(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchmod", fchmod)
    with pytest.raises(Denied):
        store.put_if_absent("a/k", b"x")
    assert list(root.iterdir()) == []
