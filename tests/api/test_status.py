from __future__ import annotations

import os
import shutil
import socket
import time
from pathlib import Path

from dsv.api.status import WorkspaceStatus, status
from tests.kit.people import Files, Person

FILES: Files = {"train/a": b"a", "train/b": b"b", "test/c": b"c", "tool.sh": b"#!", "link@": b"tool.sh"}


def look(person: Person, *paths: bytes) -> WorkspaceStatus:
    return status(person.context(), paths)


def test_status_before_and_after_the_first_sync(ann: Person) -> None:
    ann.write(FILES)
    found = look(ann)
    assert found.base is None
    assert found.differences.added == [b"link", b"test/c", b"tool.sh", b"train/a", b"train/b"]
    done = ann.sync()
    found = look(ann)
    assert found.is_clean and found.base == done.commit


def test_status_shows_kinds_of_changes_and_reads_content_where_stats_are_not_enough(ann: Person) -> None:
    ann.write(FILES)
    ann.sync()
    os.utime(ann.workspace / "train/a", ns=(1, 1))  # touched, not changed
    ann.write({"train/b": b"B", "new": b"n"})
    (ann.workspace / "tool.sh").chmod(0o644)
    (ann.workspace / "link").unlink()
    ann.write({"link": b"tool.sh"})
    (ann.workspace / "test/c").unlink()
    found = look(ann)
    assert found.differences.added == [b"new", b"test"]
    assert found.differences.changed == [b"tool.sh", b"train/b"]
    assert found.differences.removed == [b"test/c"]
    assert found.differences.retyped == [b"link"]
    assert found.suspicious is not None and "test" in found.suspicious
    only = look(ann, b"train")
    assert only.differences.changed == [b"train/b"] and len(only.differences) == 1


def test_status_needs_no_store_for_a_workspace_that_it_knows(ann: Person, tmp_path: Path) -> None:
    ann.write(FILES)
    ann.sync()
    (tmp_path / "store").rename(tmp_path / "away")
    ann.write({"train/b": b"longer"})
    assert look(ann).differences.changed == [b"train/b"]


def test_status_without_a_state_reads_the_base_once_and_remembers(ann: Person, tmp_path: Path) -> None:
    ann.write(FILES)
    ann.sync()
    shutil.rmtree(ann.workspace / ".dsv/state")
    ann.write({"train/b": b"B"})
    time.sleep(0.05)  # a file as young as the clock's resolution is read again
    assert look(ann).differences.changed == [b"train/b"]
    (tmp_path / "store").rename(tmp_path / "away")
    assert look(ann).differences.changed == [b"train/b"]


def test_status_lists_what_can_not_be_stored(ann: Person) -> None:
    ann.write(FILES)
    ann.sync()
    here = socket.socket(socket.AF_UNIX)
    here.bind(str(ann.workspace / "s"))
    (ann.workspace / "out").symlink_to("../elsewhere")
    found = look(ann)
    assert {problem.path for problem in found.problems} == {b"out", b"s"}
    assert not found.is_clean and not found.differences
    here.close()
