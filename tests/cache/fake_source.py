"""A store that is a JSON file: contents are computed, and every byte that is asked for is written down.

It can be opened by any process from its arguments alone, so that several real processes fill one cache, and the tests
count what left the store.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from blake3 import blake3
from tests.waiting import until

from dsv.cache.fill.source import Stream
from dsv.errors import IntegrityError
from dsv.files.shared_path import open_at
from dsv.format.locator import Location
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.segment import Segment
from dsv.format.tree import Child, Cutter, Entry, Kind
from dsv.repo.objects.erasures import NONE
from dsv.repo.tree.reader import LocatedSegment, TreePart
from dsv.transfer.download import WantedFile
from dsv.values.ids import ChunkId, CommitId, FileId, RecipeId, SegmentId, StoreId
from dsv.values.paths import sort_key

STORE = StoreId(b"s" * 16)
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class File:
    """A file that a test puts into a commit. seed: files of one seed and size have one content.

    tail: seed of the last chunk of a large file, where it is another.
    """

    path: str
    size: int = 0
    seed: str = ""
    kind: int = int(Kind.FILE)
    target: str = ""
    tail: str = ""

    def content(self) -> bytes:
        if not self.tail:
            return _stream(self.seed, self.size)
        edge = (self.size - 1) // CHUNK * CHUNK
        return _stream(self.seed, edge) + _stream(self.tail, self.size - edge)

    def entry(self) -> Entry:
        path = self.path.encode()
        if self.kind == Kind.SYMLINK:
            return Entry(path, Kind.SYMLINK, target=self.target.encode())
        if self.kind == Kind.EMPTY_DIRECTORY:
            return Entry(path, Kind.EMPTY_DIRECTORY)
        content = self.content()
        recipe = RecipeId.hash(content) if self.size > SINGLE_CHUNK_MAX else None
        return Entry(path, Kind(self.kind), self.size, FileId.hash(content), recipe)


def _stream(seed: str, size: int) -> bytes:
    return blake3(seed.encode()).digest(length=size) if size else b""


class World:
    """Commits, kept in one folder. What the sources of all processes fetched is in `fetched()`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def commit(self, files: Iterable[File]) -> CommitId:
        chosen = sorted(files, key=lambda one: sort_key(one.path.encode()))
        data = json.dumps([[one.path, one.size, one.seed, one.kind, one.target, one.tail] for one in chosen])
        commit = CommitId.hash(data.encode())
        (self.folder / str(commit)).write_text(data)
        return commit

    def files(self, commit: CommitId) -> list[File]:
        return [File(*fields) for fields in json.loads((self.folder / str(commit)).read_text())]

    def fetched(self) -> list[tuple[str, int]]:
        """Path and bytes of everything that was fetched by anybody."""
        lines = [line for log in self.folder.glob("log-*") for line in log.read_text().splitlines()]
        return [(line.split(" ", 1)[1], int(line.split(" ", 1)[0])) for line in lines]

    def forget(self) -> None:
        for log in self.folder.glob("log-*"):
            log.unlink()

    def check(self, commit: CommitId, visible: Path, paths: Iterable[str] | None = None) -> None:
        """Fails unless the folder holds exactly these files."""
        wanted = {one.path: one for one in self.files(commit)}
        if paths is not None:
            wanted = {path: wanted[path] for path in paths}
        there = set()
        for folder, folders, names in os.walk(visible):
            here = Path(folder)
            links = [name for name in folders if (here / name).is_symlink()]
            there |= {str((here / name).relative_to(visible)) for name in (*names, *links)}
            if not names and not folders:
                there.add(str(here.relative_to(visible)))
        assert there == set(wanted)
        for path, file in wanted.items():
            real = visible / path
            if file.kind == Kind.SYMLINK:
                assert os.readlink(real) == file.target
            elif file.kind != Kind.EMPTY_DIRECTORY:
                assert real.read_bytes() == file.content(), path
                assert bool(real.stat().st_mode & 0o100) == (file.kind == Kind.EXECUTABLE)
                assert not real.stat().st_mode & 0o222


class FakeTree:
    def __init__(self, files: list[File]) -> None:
        self._entries = [file.entry() for file in files]
        self._leaves: list[TreePart] = []
        self._runs: dict[bytes, list[Entry]] = {}
        run: list[Entry] = []
        cutter = Cutter(0)
        for entry in self._entries:
            run.append(entry)
            if cutter.add(entry.path):
                self._end(run)
                run = []
        if run:
            self._end(run)

    def _end(self, run: list[Entry]) -> None:
        encoded = Segment.of(run).encode()
        files = [entry for entry in run if entry.is_file]
        child = Child(
            run[-1].path, SegmentId.hash(encoded), len(run), len(files), sum(entry.size for entry in files)
        )
        self._leaves.append(TreePart(child, None))
        self._runs[run[-1].path] = run

    def leaves(self) -> list[TreePart]:
        return self._leaves

    def segments(self, leaves: list[TreePart] | None = None) -> Iterator[LocatedSegment]:
        for leaf in self._leaves if leaves is None else leaves:
            yield LocatedSegment(Segment.of(self._runs[leaf.child.last]), None)

    def entry(self, path: bytes) -> tuple[Entry, Location | None] | None:
        return next(((entry, None) for entry in self._entries if entry.path == path), None)


class TornTree(FakeTree):
    """Only so many segments can be read, then the store has lost one."""

    def __init__(self, files: list[File], readable: int) -> None:
        super().__init__(files)
        self._readable = readable

    def segments(self, leaves: list[TreePart] | None = None) -> Iterator[LocatedSegment]:
        yield from islice(super().segments(leaves), self._readable)
        raise IntegrityError("a segment is lost")


_TREES: dict[CommitId, FakeTree] = {}


class FakeSource:
    """The contents of one commit, as `StoreSource` gives them.

    pause: seconds per file. hold: a path before whose second half this process waits until `<world>/go` exists,
    after it made `<world>/held`. wait_after: so many files, after which this process waits until `<world>/go` exists.
    die_after: so many files, after which this process is killed. crowd: so many processes, of which each waits
    until all have come to their first file. damaged: paths whose contents can't be had.
    """

    erasures = NONE

    def __init__(
        self,
        world: Path | str,
        commit: str,
        *,
        pause: float = 0.0,
        hold: str = "",
        wait_after: int | None = None,
        die_after: int | None = None,
        crowd: int = 0,
        damaged: Sequence[str] = (),
        ahead: int = 8,
    ) -> None:
        self._world = World(Path(world))
        self._commit = CommitId.parse(commit)
        self._pause = pause
        self._hold = hold
        self._wait_after = wait_after
        self._die_after = die_after
        self._crowd = crowd
        self._begun = 0
        self._damaged = damaged
        self._ahead = ahead
        self._log = self._world.folder / f"log-{os.urandom(8).hex()}"  # one each: hosts can't append to one
        self._contents: dict[bytes, File] | None = None
        self.fetched_bytes = 0

    def tree(self, commit: CommitId) -> FakeTree:
        if commit not in _TREES:
            _TREES[commit] = FakeTree(self._world.files(commit))
        return _TREES[commit]

    def files(self, wanted: Iterable[WantedFile], *, ahead: int = 0) -> Stream:
        waiting: deque[WantedFile] = deque()
        for one in wanted:
            waiting.append(one)
            if len(waiting) > self._ahead:
                first = waiting.popleft()
                yield first, self._pieces(first)
        for one in waiting:
            yield one, self._pieces(one)

    def chunks(self, recipe: RecipeId, where: Location | None) -> Mapping[ChunkId, tuple[int, int]]:
        for commit in self._world.folder.iterdir():
            if len(commit.name) != 64:
                continue
            for file in self._world.files(CommitId.parse(commit.name)):
                if file.size > SINGLE_CHUNK_MAX and RecipeId.hash(file.content()) == recipe:
                    return {ChunkId.hash(chunk): (at, len(chunk)) for at, chunk in _chunks(file.content())}
        raise IntegrityError("no such recipe")

    def _pieces(self, wanted: WantedFile) -> Iterator[bytes]:
        entry = wanted.entry
        path = entry.path.decode()
        if path in self._damaged:
            raise IntegrityError(f"chunk of {path} is damaged")
        if self._contents is None:
            self._contents = {file.path.encode(): file for file in self._world.files(self._commit)}
        content = self._contents[entry.path].content()
        self._begin()
        for at, chunk in _chunks(content):
            if path == self._hold and at:
                (self._world.folder / "held").touch()
                self._wait_to_go()
            yield self._from_donor(wanted, chunk) or self._fetch(path, chunk)

    def _begin(self) -> None:
        """Do what the test wants before the next file."""
        if self._begun == 0 and self._crowd:
            (self._world.folder / f"came-{os.getpid()}").touch()
            until(lambda: len(list(self._world.folder.glob("came-*"))) >= self._crowd)
        if self._begun == self._wait_after:
            self._wait_to_go()
        if self._begun == self._die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        self._begun += 1
        time.sleep(self._pause)

    def _wait_to_go(self) -> None:
        until((self._world.folder / "go").exists)

    def _from_donor(self, wanted: WantedFile, chunk: bytes) -> bytes | None:
        known = None if wanted.reference is None else wanted.reference.chunks.get(ChunkId.hash(chunk))
        if wanted.reference is None or known is None:
            return None
        with os.fdopen(open_at(wanted.reference.path, os.O_RDONLY), "rb") as file:
            file.seek(known[0])
            data = file.read(known[1])
        return data if ChunkId.hash(data) == ChunkId.hash(chunk) else None

    def _fetch(self, path: str, chunk: bytes) -> bytes:
        self.fetched_bytes += len(chunk)
        with self._log.open("a") as log:
            log.write(f"{len(chunk)} {path}\n")
        return chunk


def _chunks(content: bytes) -> Iterator[tuple[int, bytes]]:
    if len(content) <= SINGLE_CHUNK_MAX:
        yield 0, content
        return
    for at in range(0, len(content), CHUNK):
        yield at, content[at : at + CHUNK]
