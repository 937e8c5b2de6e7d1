"""Reading by programs: repositories that stay open in a process, files of a commit, and samples for training.

A repository stays open so that many small reads need not open it again. Kept objects never change, and names
are asked of the store each time. A forked process opens its own repository: it inherits neither threads nor
connections, and drops inherited repositories without closing them.
"""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from blake3 import blake3

from dsv.api.connection import Connection
from dsv.api.context import Context, explaining, open_to_read, write_tracking
from dsv.cache.record import lookup, mark_used
from dsv.cache.root import CachePlace, CacheRoot, folder_name
from dsv.errors import DsvError, NotFound, UsageError, made
from dsv.format.locator import Location
from dsv.format.tree import Child, Entry
from dsv.repo.objects.objects import Objects
from dsv.repo.resolve import Resolved
from dsv.repo.tree.reader import LocatedSegment, TreePart, TreeReader
from dsv.transfer.download import Layout, read_ranges
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName, Rev, Target, clean_path
from dsv.values.patterns import PathPattern, is_pattern

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from dsv.training.samples import SampleIndex, Samples

_TREES, _SEGMENTS, _LAYOUTS = 16, 64, 32
"""How many recent ones are kept: a segment takes about 1 MB, the layout of a file of 64 GiB 5 MB."""


class KeptSegments:
    """The segments of a repository's trees that were read last, by their node entries. Thread-safe."""

    def __init__(self) -> None:
        self._values: OrderedDict[Child, LocatedSegment] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, child: Child) -> LocatedSegment | None:
        with self._lock:
            found = self._values.get(child)
            if found is not None:
                self._values.move_to_end(child)
            return found

    def put(self, child: Child, segment: LocatedSegment) -> None:
        with self._lock:
            self._values[child] = segment
            self._values.move_to_end(child)
            if len(self._values) > _SEGMENTS:
                self._values.popitem(last=False)


class KeptTree(TreeReader):
    """A tree that keeps the segments that were read last decoded."""

    def __init__(self, objects: Objects, kept: KeptSegments, commit_id: CommitId) -> None:
        super().__init__(objects, commit_id)
        self._kept = kept

    def segments(self, leaves: list[TreePart] | None = None) -> Iterator[LocatedSegment]:
        chosen = self.leaves() if leaves is None else leaves
        kept = [self._kept.get(leaf.child) for leaf in chosen]
        read = super().segments([leaf for leaf, known in zip(chosen, kept, strict=True) if known is None])
        for leaf, known in zip(chosen, kept, strict=True):
            found = known or next(read)
            if known is None:
                self._kept.put(leaf.child, found)
            yield found


class OpenRepository:
    """The repository of one store, open for this process. Thread-safe."""

    def __init__(self, context: Context, target: Target | None) -> None:
        """target: the target that the caller will resolve."""
        if context.offline:
            self.repository = context.offline_repository(target)
        else:
            self.repository = open_to_read(context, target, ExitStack())
        objects = self.repository.objects
        self.tree = lru_cache(_TREES)(partial(KeptTree, objects, KeptSegments()))
        self._large = lru_cache(_LAYOUTS)(partial(Layout, objects))
        self._lock = threading.Lock()

    def resolve(self, context: Context, target: Target) -> Resolved:
        """Like `Context.resolve`; the store is asked each time."""
        with self._lock, self.explaining():
            self.repository.objects.forget_erasures()
            try:
                found = context.resolve(self.repository, target)
                commit, _ = self.repository.objects.commit_and_locator(found.commit)  # its tree is read next
                context.note_read(found.dataset, found.commit, commit)
                return found
            finally:
                if not context.offline:
                    write_tracking(context, self.repository)

    def layout(self, entry: Entry, location: Location | None) -> Layout:
        if entry.recipe_id is None:
            return Layout(self.repository.objects, entry, location)
        return self._large(entry, location)

    def read(self, asked: Sequence[tuple[Layout, int, int]], dataset: DatasetName) -> list[bytes]:
        with self.explaining():
            return read_ranges(self.repository.objects, asked, dataset)

    def explaining(self) -> AbstractContextManager[None]:
        return explaining(self.repository)


class _Process:
    """The repositories that this process has opened, by all settings that decide where a name leads."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.opened: dict[Hashable, OpenRepository] = {}


_processes = [_Process()]
"""The last is this process's. Those before it are of the processes that it was forked from, and are never
closed: their locks may be held by threads that do not exist here.
"""


def _after_fork() -> None:
    _processes.append(_Process())


os.register_at_fork(after_in_child=_after_fork)


def opened(context: Context, target: Target | None = None) -> OpenRepository:
    """Return this process's repository of the current store, and open it once. Raises like `open_to_read`."""
    if _processes[-1].pid != os.getpid():  # forked without Python's hooks
        _after_fork()
    process = _processes[-1]
    settings = context.settings
    key: Hashable = (settings.store(), tuple(settings.mirrors()), context.options, context.metadata)
    if context.offline:
        key = (key, settings.cache(), context.cwd, None if target is None else target.dataset)
    with process.lock:
        found = process.opened.get(key)
        if found is None:
            found = process.opened[key] = OpenRepository(context, target)
        return found


_FIRST, _MOST = 1 << 20, 32 << 20
"""Bytes that are read ahead in a sequential read: at first, and at most."""


class CommitFile(io.RawIOBase):
    """A file of a commit, read in ranges of whole chunks; keeps the last range. Not thread-safe."""

    mode = "rb"

    def __init__(self, name: str, size: int, read: Callable[[int, int], tuple[int, bytes]]) -> None:
        """read: returns the chunks that have these bytes, and the offset of the first chunk."""
        self.name = name
        self._size = size
        self._read = read
        self._at = 0
        self._start, self._held = 0, b""
        self._ahead = _FIRST // 2

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check_open()
        return self._at

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name} is closed")

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check_open()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}.get(whence)
        if base is None:
            raise ValueError(f"{self.name} can't seek with whence {whence}")
        if base + offset < 0:
            raise ValueError(f"{self.name} has no place {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        self._check_open()
        into = memoryview(buffer).cast("B")
        count = min(len(into), self._size - self._at)
        if count <= 0:
            return 0
        end = self._start + len(self._held)
        if not self._start <= self._at < end:
            self._ahead = min(2 * self._ahead, _MOST) if self._at == end else _FIRST // 2
            wanted = min(max(count, self._ahead if self._at == end else 0), _MOST)
            self._start, self._held = self._read(self._at, min(self._at + wanted, self._size))
        piece = memoryview(self._held)[self._at - self._start :][:count]
        into[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def readall(self) -> bytes:
        self._check_open()
        at, self._at = self._at, max(self._at, self._size)
        if at >= self._size:
            return b""
        start, data = self._read(at, self._size)
        return data[at - start :]


_LEAST = 1 << 20  # bytes
_HOLD = 86_400.0  # seconds


class CommitSource:
    """A commit as a source of samples. Can be pickled."""

    def __init__(self, connection: Connection, found: Resolved) -> None:
        self._connection, self._found = connection, found

    def __str__(self) -> str:
        return f"{self._found.dataset}@{self.id[:12]}"

    @property
    def id(self) -> str:
        return str(self._found.commit)

    def opened(self) -> OpenRepository:
        """Return the repository that this process has opened."""
        context = self._connection.reading  # resolved already; only an offline cache needs the target
        return opened(context, Target(self._found.dataset, Rev(self.id)) if context.offline else None)

    def index(self, patterns: Sequence[str]) -> SampleIndex:
        """Return the index of the files that are samples."""
        from dsv.training.samples import open_index

        opened = self.opened()
        objects = opened.repository.objects
        with opened.explaining():
            erasures, tree = objects.erasures, opened.tree(self._found.commit)
            chosen = [self.id, *sorted(patterns), "", *sorted(map(str, erasures.known))]
            name = blake3("\n".join(chosen).encode("utf-8", "surrogateescape")).hexdigest()
            folder = self._connection.reading.metadata_folder(opened.repository.id)
            return open_index(folder, name, tree.segments, _accepting(patterns, tree), erasures)

    def read(self, rows: Sequence[tuple[Entry, Location | None]]) -> list[bytes]:
        """Read like `SampleSource`. Errors also name the commit."""
        opened = self.opened()
        try:
            asked = [(opened.layout(entry, where), 0, entry.size) for entry, where in rows]
            return opened.read(asked, self._found.dataset)
        except DsvError as error:
            kind, message, subject, hint = error.parts()
            raise made(kind, f"{message} (in {self})", subject, hint) from error

    def cached(self) -> Path | None:
        """Return like `SampleSource`; record that the commit is used."""
        with suppress(OSError, DsvError):
            root = CacheRoot(self._connection.reading.settings.cache().path)
            place = CachePlace.of(folder_name(self._found.dataset), self._found.commit)
            there = lookup(root, place)
            if there is not None:
                with suppress(OSError, DsvError):
                    mark_used(root, place)
                return there.path
        return None

    def fill(self) -> None:
        """Fill like `SampleSource`, with a hold of a day. Raises like `dsv cache`."""
        from dsv.api.cache import cache

        context = self._connection.reading
        target = Target(self._found.dataset, Rev(self.id))
        cache(context, context.settings.cache().path, [target], hold=_HOLD)


def open_samples(
    source: CommitSource, patterns: Sequence[str], window: int, cache: bool | Literal["fill"]
) -> Samples:
    """Like `Commit.samples`."""
    from dsv.training.samples import Samples

    if window < _LEAST:
        raise UsageError(f"a window of {window} bytes is too small", hint=f"at least {_LEAST}")
    index = source.index(patterns)
    if not len(index):
        what = ", ".join(patterns) or "a file"
        raise NotFound(f"{what} is not in {source}", subject=what, hint=f"dsv ls {source}")
    return Samples(source, index, window, cache)


def _accepting(patterns: Sequence[str], tree: TreeReader) -> Callable[[bytes], bool] | None:
    """Return a test for the paths that are samples; None if all are. A path that exists is no pattern."""
    if not patterns:
        return None
    raw = [clean_path(pattern.encode("utf-8", "surrogateescape")) for pattern in patterns]
    exactly = {
        path for path in raw if not is_pattern(path) or tree.entry(path) or next(tree.below(path), None)
    }
    below = tuple(path + b"/" for path in exactly)
    matching = [PathPattern(path) for path in raw if path not in exactly]
    if b"" in exactly:
        return None

    def accepts(path: bytes) -> bool:
        return (
            path in exactly
            or path.startswith(below)
            or any(pattern.matches(path, folder=False) for pattern in matching)
        )

    return accepts
