"""A verification or a repair that is killed at any of its writes leaves a store that the next one finds as it is."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from dsv.api.verify import VerifyRequest, verify
from dsv.format.locator import ObjectKind
from dsv.upkeep.verify import Verification
from dsv.values.ids import CommitId
from tests.api.test_damage_marks import flip, on_another_machine
from tests.exhaustive import some
from tests.killing import run_killed
from tests.kit.people import Files, Person

FILES: Files = {f"d/{number}": b"%d" % number * 40 for number in range(8)}


class World:
    """A store that has lost chunks, a commit, an index file and a locator, and a folder that has the files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ann = Person.who_synced(folder / "made", dict(FILES))
        ann.write({"new": b"new" * 50})
        base = ann.sync().commit
        assert base is not None
        self.base: CommitId = base
        shutil.copytree(ann.workspace, folder / "made/files", ignore=shutil.ignore_patterns(".dsv"))
        store = Path(ann.store)
        flip(ann, ObjectKind.CHUNK)
        sorted((store / "index").iterdir())[0].unlink()
        (store / "locators" / str(base)).unlink()
        commit = store / "commits" / str(base)
        commit.chmod(0o644)
        commit.write_bytes(commit.read_bytes()[:-3] + b"???")

    def copy(self, name: str) -> Person:
        shutil.copytree(self.folder / "made", self.folder / name)
        return Person(self.folder / name / "ann", str(self.folder / name / "store"))


def run(person: Person, *, repair: bool) -> Verification:
    sources = (str(Path(person.store).parent / "files"),) if repair else ()
    return verify(person.context(person.home), VerifyRequest(full=True, repair=repair, sources=sources))


@pytest.mark.parametrize("repair", [False, True])
def test_what_is_killed_is_begun_again_by_the_same_command(tmp_path: Path, repair: bool) -> None:
    world = World(tmp_path)
    person = world.copy("whole")
    lost = {(path, one.commits) for one in run(person, repair=False).lost for path in one.part.paths}
    assert lost
    shutil.rmtree(tmp_path / "whole")
    person = world.copy("all")
    count = run_killed(partial(run, person, repair=repair), None, inside=Path(person.store))
    for step in some(range(1, count + 1), every=28 if repair else 7):
        person = world.copy(f"{step}")
        objects = {path.name for path in Path(person.store).glob("*/*/*") if path.parts[-3] == "packs"}
        run_killed(partial(run, person, repair=repair), step, inside=Path(person.store))
        assert objects <= {path.name for path in (Path(person.store) / "packs").glob("*/*")}
        bob = on_another_machine(person, "bob")
        if repair:
            found = run(person, repair=True)
            assert found.is_whole, step
            assert person.read(world.base) == FILES | {"new": b"new" * 50}
            assert run(bob, repair=False).is_whole
        else:
            again = run(person, repair=False)
            assert {(path, one.commits) for one in again.lost for path in one.part.paths} == lost, step
            assert again.oldest
        shutil.rmtree(tmp_path / f"{step}")
