"""Binding a folder, killed at every step or on a full disk: the same command then does it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from dsv.api.clone import clone
from dsv.api.init import init
from dsv.errors import Conflict, NoRoom
from dsv.values.names import DatasetName, Target
from dsv.workspace.workspace import Workspace
from tests.inputs.small_disk import small_disk
from tests.killing import run_killed
from tests.kit.people import SCANS, Person


@pytest.fixture
def ann(tmp_path: Path) -> Person:
    person = Person(tmp_path / "ann", str(tmp_path / "store"))
    person.init()
    person.write({"a": b"a", "large": bytes(1 << 20)})
    person.sync()
    return person


def test_an_init_that_is_killed_at_any_step_is_done_by_the_same_command(ann: Person, tmp_path: Path) -> None:
    step, steps = 0, 1
    while step <= steps:
        person = Person(tmp_path / f"bob-{step}", ann.store, "bob")
        person.workspace.mkdir(parents=True)
        dataset = DatasetName.parse(f"new-{step}")

        def work(person: Person = person, dataset: DatasetName = dataset) -> None:
            init(person.context(), person.workspace, dataset)

        steps = max(steps, run_killed(work, step or None, inside=tmp_path))
        found = Workspace.find(person.workspace)
        if found is None or found.base() is None:
            work()
        person.write({"a": b"1"})
        assert person.sync().any_change
        step += 1
    assert steps > 10


def test_a_clone_on_a_full_disk_is_done_once_there_is_room(ann: Person, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as disk:
        bob = Person(tmp_path / "bob", ann.store, "bob")

        def work() -> None:
            with suppress(NoRoom):
                clone(bob.context(tmp_path), Target.parse("scans"), disk.path / "work")

        files, base = 0, None
        while base is None:
            disk.limit(files=1 + files // 3)  # so many more files and folders find room
            run_killed(work, None, inside=disk.path)  # in a process of its own, whose end frees the lock
            found = Workspace.find(disk.path / "work")
            base = None if found is None else found.base()
            files += 1
            assert files < 40
        assert files > 3  # it was refused a few times
        assert {path.name for path in (disk.path / "work").iterdir()} == {".dsv", "a", "large"}


def test_what_an_earlier_binding_left_says_nothing_about_a_new_one(ann: Person, tmp_path: Path) -> None:
    (ann.workspace / ".dsv/config.toml").unlink()
    other = DatasetName.parse("other")
    init(ann.context(), ann.workspace, other)
    done = ann.sync()
    assert done.dataset == other and done.parent is None
    with pytest.raises(Conflict, match="workspace"):
        clone(ann.context(tmp_path), Target.parse(SCANS), ann.workspace)
