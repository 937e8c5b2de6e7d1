"""A store in one place or two, whose names move."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsv.format.records import RefEntry, TagValue, WriterIdentity
from dsv.repo.move_refs import NamesMove
from dsv.repo.refs.branches import Head, LostRace
from dsv.repo.repository import Repository
from dsv.stores.base import StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.stores.retry import Retrying
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, BranchName, DatasetName, TagName
from tests.stores.faulty import Fault, Faulty

PETS = DatasetName.parse("pets")
SIDE = BranchName.parse("side")
WRITER = WriterIdentity("ann", "host", "dsv test")


@dataclass
class World:
    """A store, in one place or two, and places that its names may move to."""

    split: bool = False
    places: dict[str, MemoryStore] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("memory://data", "memory://old", "memory://new", "memory://other"):
            self.places[name] = MemoryStore(name.removeprefix("memory://"))
        store = self.opened()
        repository = Repository.create(store, None, author="ann", tool="dsv test")
        self.first = move(repository, MAIN, b"1")
        move(repository, MAIN, b"2")
        move(repository, SIDE, b"3")
        repository.refs.set_tag(PETS, TagName.parse("v1"), tag(b"1"))

    @property
    def data(self) -> MemoryStore:
        return self.places["memory://data"]

    @property
    def old(self) -> MemoryStore:
        return self.places["memory://old"] if self.split else self.data

    @property
    def new(self) -> MemoryStore:
        return self.places["memory://new"]

    def opened(self) -> OpenStore:
        """As somebody has it whose configuration is that from before the move."""
        names = Retrying(self.old) if self.split else None
        return OpenStore(Retrying(self.data), names, lambda place: Retrying(self.places[place]))

    def repository(self) -> Repository:
        return Repository.open(self.opened(), None)

    def mover(
        self, plan: dict[int, Fault] | None = None, target: str = "memory://new"
    ) -> tuple[NamesMove, Faulty]:
        leader = Faulty(self.data, plan)

        def part(place: StoreBackend) -> StoreBackend:
            class Part(Faulty):
                inner = property(lambda _: place)  # type: ignore[assignment]

                def __init__(self) -> None:
                    self.__dict__ = leader.__dict__

            return Retrying(Part())

        data = part(self.data)
        old = part(self.old) if self.split else data
        new = part(self.places[target])
        return NamesMove(data, old, new, target, WriterIdentity("bob", "host", "dsv test"), lambda: 1), leader

    def check(self, place: MemoryStore) -> None:
        """The names are there, and can be read and written by all."""
        store = self.opened()
        repository = Repository.open(store, None)
        assert store.names.url == place.url
        assert repository.refs.head(PETS, MAIN).number >= 1
        assert repository.refs.head(PETS, SIDE).number == 0
        assert repository.refs.tag(PETS, TagName.parse("v1")) is not None
        before = repository.refs.head(PETS, MAIN).number
        move(repository, MAIN, b"later")
        assert self.repository().refs.head(PETS, MAIN).number == before + 1


def commit(seed: bytes) -> CommitId:
    return CommitId.hash(seed)


def entry(seed: bytes) -> RefEntry:
    return RefEntry(commit(seed), False, Nonce.random(), 1, "ann", "sync")


def tag(seed: bytes) -> TagValue:
    return TagValue(commit(seed), Nonce.random(), 1, "ann", "")


def move(repository: Repository, branch: BranchName, seed: bytes) -> Head | LostRace:
    return repository.refs.move(PETS, branch, repository.refs.newest(PETS, branch), entry(seed))


def run(mover: NamesMove) -> None:
    mover.begin()
    mover.copy()
    mover.check_unchanged()
    mover.decide()
    mover.finish(ordered=True)
