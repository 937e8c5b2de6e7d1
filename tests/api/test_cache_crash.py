"""A cache that dies at every call to the store, or fails there: nothing partial is visible, the next one continues."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dsv.api.cache import cache
from dsv.api.evict import evict
from dsv.errors import DsvError
from dsv.run.staged import Staged
from dsv.stores.base import StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.stores.retry import Retrying
from dsv.values.names import Target
from tests.exhaustive import some
from tests.kit.people import Files, Person, every_store_is, read_folder
from tests.stores.faulty import Crash, Fault, Faulty, Kind, Operation

RNG = random.Random(11)
FIRST: Files = {
    "a/one": b"1",
    "a/two.sh": b"2",
    "a/link@": b"one",
    "b": None,
    "large": RNG.randbytes(3 << 20),
    **{f"d/{number:03}": RNG.randbytes(200) for number in range(120)},
}
SECOND: Files = {
    **FIRST,
    "a/one": b"changed",
    "large": (FIRST["large"] or b"")[: 2 << 20] + RNG.randbytes(1 << 20),
}


class Scene:
    """A store with two commits, and a fresh machine for each attempt to cache the second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryStore()
        ann = Person(folder / "ann", "memory://shared")
        with every_store_is(self.store):
            ann.init()
            ann.write(FIRST)
            ann.sync()
            ann.write(SECOND)
            ann.sync()

    def attempt(self, name: str, store: StoreBackend, target: str = "scans") -> Staged:
        person = Person(self.folder / name, "memory://shared")
        with every_store_is(store):
            return cache(person.context(self.folder), self.cache(name), [Target.parse(target)], jobs=1)[0]

    def cache(self, name: str) -> Path:
        return self.folder / name / "cache"

    def visible(self, name: str) -> list[Path]:
        dataset = self.cache(name) / "scans"
        return sorted(dataset.iterdir()) if dataset.exists() else []

    def check(self, name: str) -> None:
        """Whatever is visible is whole."""
        for path in self.visible(name):
            assert read_folder(path) in (FIRST, SECOND)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def calls_of(scene: Scene, prepare: bool) -> int:
    if prepare:
        scene.attempt("count", scene.store, "scans@main~1")
    counting = Faulty(scene.store)
    scene.attempt("count", counting)
    return counting.calls


@pytest.mark.parametrize("kind", [Kind.CRASH_BEFORE, Kind.CRASH_AFTER])
@pytest.mark.parametrize("older_is_cached", [False, True])
def test_a_cache_that_dies_at_any_call_is_continued(scene: Scene, kind: Kind, older_is_cached: bool) -> None:
    calls = calls_of(scene, older_is_cached)
    assert calls > 5
    for number in some(range(1, calls + 1)):
        name = f"{number}"
        if older_is_cached:
            scene.attempt(name, scene.store, "scans@main~1")
        faulty = Faulty(scene.store, {number: Fault(kind)})
        try:
            scene.attempt(name, faulty)
        except Crash:
            assert faulty.crashed
        else:  # there is no "after" for a read of what is absent
            assert faulty.log[number - 1][0] is Operation.GET
        scene.check(name)
        done = scene.attempt(name, scene.store)
        assert read_folder(done.path) == SECOND
        scene.check(name)
        person = Person(scene.folder / name, "memory://shared")
        with every_store_is(scene.store):
            evict(person.context(scene.folder), scene.cache(name), everything=True)
        assert scene.visible(name) == []


@pytest.mark.parametrize(
    "kind", [Kind.LOST_ANSWER, Kind.ERROR_500, Kind.ERROR_503, Kind.TRUNCATED, Kind.FLIPPED]
)
def test_a_fault_that_passes_is_survived(scene: Scene, kind: Kind) -> None:
    survived = 0
    tried = some(range(1, calls_of(scene, prepare=False) + 1))
    for number in tried:
        try:
            faulty = Faulty(scene.store, {number: Fault(kind)})
            done = scene.attempt(f"{number}", Retrying(faulty, sleep=lambda _: None))
        except DsvError as error:  # a damaged record that has no other copy: refused, and nothing is shown
            assert kind is Kind.FLIPPED and error.exit_code == 5
        else:
            survived += 1
            assert read_folder(done.path) == SECOND
        scene.check(f"{number}")
    assert survived == len(tried) or (kind is Kind.FLIPPED and survived)


@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.ERROR_500])
def test_if_the_store_goes_away_nothing_partial_becomes_visible(scene: Scene, kind: Kind) -> None:
    calls = calls_of(scene, prepare=False)
    for number in some(range(1, calls + 1)):
        plan = {call: Fault(kind) for call in range(number, calls + 40)}
        try:
            scene.attempt(f"{number}", Faulty(scene.store, plan))
        except DsvError as error:
            assert error.exit_code == 6, error
        scene.check(f"{number}")
        assert read_folder(scene.attempt(f"{number}", scene.store).path) == SECOND
