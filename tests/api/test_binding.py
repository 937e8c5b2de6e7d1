"""Binding a folder, killed at every step or on a full disk: the same command then does it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, Lock

import pytest

from dsv.api.clone import clone, init
from dsv.errors import Conflict, IntegrityError, NoRoom, NotFound
from dsv.format import keys
from dsv.stores.base import Bytes, PutResult
from dsv.stores.memory import MemoryStore
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


def inits_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ignores: Callable[[str], bool]
) -> tuple[list[str], MemoryStore]:
    """Ann and Bob make one new dataset while the server overwrites the keys for which it ignores the condition.

    Returns how each of the two inits ended, and the store.
    """
    url = f"memory://{tmp_path.name}"
    Person(tmp_path / "eve", url, "eve").init()
    honest, both_put, one_by_one = MemoryStore.put_if_absent, Barrier(2), Lock()
    scans = keys.branches_prefix(DatasetName.parse("slides"))

    def put(store: MemoryStore, key: str, data: Bytes) -> PutResult:
        if key.startswith(scans):
            both_put.wait()  # both have seen that there is no such dataset
        with one_by_one:
            if ignores(key):
                with suppress(NotFound):
                    store.delete(key)
            done = honest(store, key, data)
        if key.startswith(scans):
            both_put.wait()  # neither has read back yet
        return done

    def make(name: str) -> str:
        person = Person(tmp_path / name, url, name)
        try:
            person.init(DatasetName.parse("slides"))
        except IntegrityError as error:
            return error.message
        return "made"

    monkeypatch.setattr(MemoryStore, "put_if_absent", put)
    with ThreadPoolExecutor(2) as pool:
        return sorted(pool.map(make, ["ann", "bob"])), MemoryStore.named(tmp_path.name)


def test_no_dataset_is_made_once_the_server_lets_everybody_win(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ends, store = inits_at_once(monkeypatch, tmp_path, lambda _: True)
    assert all("no longer lets one writer win" in end and "nothing was written" in end for end in ends), ends
    assert not list(store.list(keys.branches_prefix(DatasetName.parse("slides"))))


def test_of_two_inits_at_once_one_is_refused_by_a_server_that_overwrites_refs_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ends, _ = inits_at_once(monkeypatch, tmp_path, lambda key: key.startswith(keys.REFS_PREFIX))
    assert "made" in ends
    assert [end for end in ends if end != "made" and "was overwritten by one of" in end], ends
