"""Where a fill's bytes come from: trees to plan by, and verified contents, of one store."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from dsv.model.entry import Entry
from dsv.model.ids import ChunkId, CommitId, RecipeId
from dsv.model.location import Location
from dsv.repo.repository import Repository
from dsv.repo.trees import Leaf, LocatedSegment, TreeReader
from dsv.transfer.download import READ_AHEAD, Fetcher, Wanted, donor_chunks

LEAST_AHEAD = 1 << 20  # bytes; less would make a request of every few files
Stream = Generator[tuple[Wanted, Iterator[bytes]], None, None]


class Tree(Protocol):
    """The segments of one commit; `TreeReader` is one."""

    def leaves(self) -> list[Leaf]: ...

    def segments(self, leaves: list[Leaf] | None = None) -> Iterator[LocatedSegment]: ...

    def entry(self, path: bytes) -> tuple[Entry, Location | None] | None: ...


class Source(Protocol):
    """One store, for one thread. Errors are dsv's own."""

    @property
    def fetched_bytes(self) -> int:
        """Bytes of file contents that this object has read from the store."""
        ...

    def tree(self, commit: CommitId) -> Tree: ...

    def files(self, wanted: Iterable[Wanted], *, ahead: int = READ_AHEAD) -> Stream:
        """Each wanted file with its verified content in pieces, in the order asked for.

        Asks ahead of what it yields, in the same thread, and may be called while another call is going on.
        ahead: bytes of memory that this may take.
        """
        ...

    def chunks(self, recipe: RecipeId, where: Location | None) -> Mapping[ChunkId, tuple[int, int]]:
        """Where each chunk lies in a file with this recipe: id -> (offset, length)."""
        ...


class StoreSource:
    """A `Source` on a store. `open_repository` is called when something is first asked for: a hit needs no store."""

    def __init__(self, open_repository: Callable[[], Repository], *, connections: int = 8) -> None:
        self._open = open_repository
        self._connections = connections
        self._repository: Repository | None = None
        self._fetchers: list[Fetcher] = []

    @property
    def repository(self) -> Repository:
        if self._repository is None:
            self._repository = self._open()
        return self._repository

    @property
    def fetched_bytes(self) -> int:
        return sum(fetcher.fetched_bytes for fetcher in self._fetchers)

    def tree(self, commit: CommitId) -> TreeReader:
        return TreeReader(self.repository.objects, commit)

    def files(self, wanted: Iterable[Wanted], *, ahead: int = READ_AHEAD) -> Stream:
        budget = max(LEAST_AHEAD, min(READ_AHEAD, ahead))
        fetcher = Fetcher(self.repository.objects, connections=self._connections, budget=budget)
        self._fetchers.append(fetcher)
        yield from fetcher.files(wanted)

    def chunks(self, recipe: RecipeId, where: Location | None) -> Mapping[ChunkId, tuple[int, int]]:
        return donor_chunks(self.repository.objects, recipe, where)


class SegmentWindow:
    """Segments of one tree by number; reads and keeps a few at a time, as they are mostly asked for in order."""

    def __init__(self, tree: Tree, ahead: int = 16) -> None:
        self._tree = tree
        self._ahead = ahead
        self._held: dict[int, LocatedSegment] = {}

    @property
    def leaves(self) -> Sequence[Leaf]:
        return self._tree.leaves()

    def get(self, number: int) -> LocatedSegment:
        if number not in self._held:
            # One before, so that the order is checked across the edge of the window.
            first = max(number - 1, 0)
            chosen = self._tree.leaves()[first : number + self._ahead]
            self._held = dict(enumerate(self._tree.segments(chosen), first))
        return self._held[number]
