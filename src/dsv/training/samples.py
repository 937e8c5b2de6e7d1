"""The samples of a commit, read from a cache, from one window of memory on this host, or from the store.

Their index has columns for the paths, ids and locations of the samples. It is made once and mapped into
memory by each process that reads samples, so that only the first process asks the store for the tree.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from blake3 import blake3

from dsv.format.codec import Codec
from dsv.format.locator import Location
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.tree import Entry, Kind
from dsv.repo.objects.metadata import MetadataCache
from dsv.training.order import Shape
from dsv.training.window import Window, can_share
from dsv.values.cached import cached
from dsv.values.ids import FileId, PackId, RecipeId

if TYPE_CHECKING:
    from dsv.repo.objects.erasures import Erasures
    from dsv.repo.tree.reader import LocatedSegment


_KIND, _MAGIC = "samples", b"dsv samples 1\n"
"""Days that an index is kept after its last use."""
_COLUMNS = {
    "sizes": "<u8",
    "path_ends": "<u8",
    "file_ids": "V32",
    "packs": "<u4",
    "offsets": "<u4",
    "stored": "<u4",
    "lengths": "<u4",
    "tails": "<u4",
    "codecs": "u1",
    "large": "<u8",
    "recipe_ids": "V32",
    "pack_ids": "V16",
    "paths": "u1",
}
"""Rows of samples; `large` are the samples with a recipe. The pack of a sample of unknown location is
`_NOWHERE`."""
_NOWHERE = 0xFFFFFFFF
_LOOK_EVERY = 10.0
"""Seconds after which the cache is looked at again: a process may be filling it."""


class _Header(msgspec.Struct, frozen=True):
    lengths: list[int]
    erased: int


_HEADER = msgspec.msgpack.Decoder(_Header)


class SampleIndex:
    """The samples of a commit, numbered in the order of their paths. Can be pickled, without mapped bytes."""

    def __init__(self, folder: Path, name: str, data: bytes | memoryview) -> None:
        """Raises `ValueError` for bytes that are no index."""
        self._folder, self.name = folder, name
        self._data = data if isinstance(data, bytes) else None
        view = memoryview(data)
        begin = len(_MAGIC) + 4
        end = begin + int.from_bytes(view[len(_MAGIC) : begin], "little")
        try:
            if view[: len(_MAGIC)] != _MAGIC:
                raise ValueError(f"{name} has another version")
            header = _HEADER.decode(view[begin:end])
        except msgspec.DecodeError as error:
            raise ValueError(f"{name} is damaged") from error
        self.erased = header.erased
        """How many files of the commit are left out because they were erased."""
        columns = {}
        for (column, kind), count in zip(_COLUMNS.items(), header.lengths, strict=True):
            at = -(-end // 8) * 8
            columns[column] = np.frombuffer(view, kind, count, at)
            end = at + columns[column].nbytes
        self._columns: dict[str, Any] = columns
        self.sizes: Any = columns["sizes"]
        """Bytes of each sample."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._folder, self.name, self._data)

    def __len__(self) -> int:
        return len(self.sizes)

    def path(self, number: int) -> bytes:
        ends = self._columns["path_ends"]
        first = int(ends[number - 1]) if number else 0
        return self._columns["paths"][first : int(ends[number])].tobytes()  # type: ignore[no-any-return]

    def entry(self, number: int) -> tuple[Entry, Location | None]:
        """Return the sample as an entry of the tree, and the location of its content, if known."""
        columns, size = self._columns, int(self.sizes[number])
        recipe = None
        if size > SINGLE_CHUNK_MAX:
            row = int(np.searchsorted(columns["large"], number))
            recipe = RecipeId(columns["recipe_ids"][row].tobytes())
        entry = Entry(
            self.path(number), Kind.FILE, size, FileId(columns["file_ids"][number].tobytes()), recipe
        )
        pack = int(columns["packs"][number])
        if pack == _NOWHERE:
            return entry, None
        offset, stored, length, tail = (
            int(columns[one][number]) for one in ("offsets", "stored", "lengths", "tails")
        )
        codec = Codec(int(columns["codecs"][number]))
        return entry, Location(
            PackId(columns["pack_ids"][pack].tobytes()), offset, stored, length, codec, tail
        )


def _reopened(folder: Path, name: str, data: bytes | None) -> SampleIndex:
    found = MetadataCache(folder).map(_KIND, name) if data is None else data
    if found is None:
        raise FileNotFoundError(
            f"the index of samples {name} in {folder} was removed: make the samples again"
        )
    return SampleIndex(folder, name, found)


def open_index(
    folder: Path,
    name: str,
    segments: Callable[[], Iterator[LocatedSegment]],
    accepts: Callable[[bytes], bool] | None,
    erasures: Erasures,
) -> SampleIndex:
    """Return the index that a folder keeps under this name, or make it (in memory if the folder can't keep
    it).
    segments: of the tree, to make it. accepts: whether a path is a sample; None accepts all."""
    copies = MetadataCache(folder)
    known = copies.map(_KIND, name)
    if known is not None and blake3(known[:-32], max_threads=blake3.AUTO).digest() == known[-32:]:
        return SampleIndex(folder, name, known)
    copies.drop(_KIND, name)
    data = _made(segments(), accepts, erasures)
    data += blake3(data, max_threads=blake3.AUTO).digest()
    copies.put(_KIND, name, data)
    kept = copies.map(_KIND, name)
    return SampleIndex(folder, name, data if kept is None or kept != data else kept)


def _made(
    segments: Iterator[LocatedSegment], accepts: Callable[[bytes], bool] | None, erasures: Erasures
) -> bytes:
    parts: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    packs: dict[PackId, int] = {}
    count = erased = length = 0
    for located in segments:
        arrays, paths, gone = _rows(located, packs, accepts, erasures)
        arrays["path_ends"] = np.cumsum([len(path) for path in paths], dtype="<u8") + np.uint64(length)
        arrays["paths"] = np.frombuffer(b"".join(paths), "u1")
        arrays["large"] = arrays["large"] + count
        length += len(arrays["paths"])
        count, erased = count + len(paths), erased + gone
        for name, column in arrays.items():
            parts[name].append(column)
    parts["pack_ids"] = [np.frombuffer(b"".join(packs), "V16")]
    columns = [
        np.concatenate([np.empty(0, kind), *(array.astype(kind, copy=False) for array in parts[name])])
        for name, kind in _COLUMNS.items()
    ]
    header = msgspec.msgpack.encode(_Header([len(column) for column in columns], erased))
    out = bytearray(_MAGIC + len(header).to_bytes(4, "little") + header)
    for column in columns:
        out += bytes(-len(out) % 8) + column.tobytes()
    return bytes(out)


def _rows(
    located: LocatedSegment,
    packs: dict[PackId, int],
    accepts: Callable[[bytes], bool] | None,
    erasures: Erasures,
) -> tuple[dict[str, Any], Sequence[bytes], int]:
    """Return the columns of one segment, the paths, and how many files of it were erased."""
    segment = located.segment
    is_file = np.frombuffer(segment.kinds, "u1") <= Kind.EXECUTABLE
    sizes = np.asarray(segment.sizes)
    keep = is_file
    if accepts is not None:
        keep = keep & np.fromiter(map(accepts, segment.paths), bool, len(segment))
    ids = (
        np.frombuffer(segment.file_ids, "V32")[np.cumsum(is_file) - 1]
        if segment.files
        else np.empty(0, "V32")
    )
    gone = np.zeros(len(segment), bool)
    if erasures:
        for at in np.flatnonzero(keep):
            gone[at] = erasures.file(FileId(ids[at].tobytes())) is not None
        keep = keep & ~gone
    rows = np.flatnonzero(keep)
    large = sizes > SINGLE_CHUNK_MAX
    recipes = np.frombuffer(segment.recipe_ids, "V32")
    chosen = np.flatnonzero(large[rows])
    found = {
        "sizes": sizes[rows],
        "file_ids": ids[rows] if segment.files else np.empty(0, "V32"),
        "large": chosen,
        "recipe_ids": recipes[(np.cumsum(large) - 1)[rows[chosen]]] if len(chosen) else np.empty(0, "V32"),
    }
    found |= _places(located, np.cumsum(sizes > 0)[rows] - 1, sizes[rows] > 0, packs)
    return found, [segment.paths[at] for at in rows], int(gone.sum())


def _places(located: LocatedSegment, rows: Any, has_content: Any, packs: dict[PackId, int]) -> dict[str, Any]:
    """Return the columns of the locations. rows: the locator's row of each sample that has content."""
    locator = located.locator
    known = has_content & (rows < (0 if locator is None else len(locator)))
    names = ("packs", "offsets", "stored", "lengths", "tails", "codecs")
    arrays: dict[str, Any] = {name: np.zeros(len(rows), _COLUMNS[name]) for name in names}
    arrays["packs"][:] = _NOWHERE
    if locator is not None and known.any():
        numbers = np.array([packs.setdefault(pack, len(packs)) for pack in locator.packs], "<u4")
        columns = (locator.offsets, locator.stored, locator.lengths, locator.tails)
        for name, column in zip(names[1:5], columns, strict=True):
            arrays[name][known] = np.asarray(column)[rows[known]]
        arrays["packs"][known] = numbers[np.asarray(locator.places)[rows[known]]]
        arrays["codecs"][known] = np.frombuffer(locator.codecs, "u1")[rows[known]]
    return arrays


class Sample(NamedTuple):
    """A file of a commit."""

    path: str
    data: bytes


class SampleSource(Protocol):
    """A commit, as far as samples need it. Can be pickled."""

    @property
    def id(self) -> str: ...
    def read(self, rows: Sequence[tuple[Entry, Location | None]]) -> list[bytes]:
        """Return the contents of these files, checked, with few requests."""

    def cached(self) -> Path | None:
        """Return the cache's folder with the whole commit, if it is cached."""

    def fill(self) -> None:
        """Make the commit appear in the cache."""


class Samples:
    """Files of a commit, numbered in the order of their paths. `dsv.Commit.samples` makes it.

    It opens nothing before the first read. It can be pickled; forked processes open their own connections.
    PyTorch and Grain take it as a data source.
    """

    def __init__(
        self, source: SampleSource, index: SampleIndex, window: int, use_cache: bool | Literal["fill"]
    ) -> None:
        self._source, self._index = source, index
        self.window = window
        """Bytes of memory for reading ahead, shared by all processes on a host."""
        self._use_cache = use_cache
        """`fill`: fill the cache while samples are read from the store."""

    def __repr__(self) -> str:
        return f"<dsv.Samples: {len(self)} files of {self.commit[:12]}>"

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, number: int) -> Sample:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Sample]:
        """Read several samples; contents that are stored side by side are read with one request."""
        chosen = [self._checked(number) for number in numbers]
        return [Sample(self.path(at), data) for at, data in zip(chosen, self.read(chosen), strict=True)]

    @property
    def commit(self) -> str:
        """The id of the commit."""
        return self._source.id

    @property
    def name(self) -> str:
        """A hash of the commit, the patterns and the erasures."""
        return self._index.name

    @property
    def erased(self) -> int:
        """How many files are left out because they were erased."""
        return self._index.erased

    @property
    def sizes(self) -> Any:
        """A numpy array of the bytes of each sample."""
        return self._index.sizes

    @cached
    def size(self) -> int:
        """Bytes of all samples."""
        return int(self.sizes.sum())

    @cached
    def shape(self) -> Shape:
        """How the samples are cut into blocks."""
        return Shape.of(self.sizes)

    def path(self, number: int) -> str:
        return self._index.path(self._checked(number)).decode("utf-8", "surrogateescape")

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        """Return the bytes of these samples: from the cache if the commit is there, else from the store."""
        found = self._plain(numbers)
        return self.read_stored(numbers) if found is None else found

    def read_ahead(self, numbers: Sequence[int], ahead: Sequence[int] = ()) -> list[bytes]:
        """As `read`, but through the window of this host. ahead: numbers of blocks that are needed soon."""
        found = self._plain(numbers)
        if found is None:
            window = self._window
            found = self.read_stored(numbers) if window is None else window.read(numbers, ahead)
        return found

    def ready(self) -> Window | None:
        """Start and return the window of this host if the store will be read. The caller closes it."""
        window = self._window if self._folder() is None else None
        if window is not None:
            with suppress(OSError):  # if it persists, reading fails with a message
                window.open()
        return window

    def read_stored(self, numbers: Sequence[int]) -> list[bytes]:
        """Read from the store, and not from the cache or the window."""
        return self._source.read([self._index.entry(int(number)) for number in numbers])

    @property
    def fills(self) -> bool:
        """True if the cache is to be filled."""
        return self._use_cache == "fill"

    def fill(self) -> None:
        """Make the whole commit appear in the cache, with a hold of a day."""
        self._source.fill()

    def with_window(self, window: int) -> Samples:
        """Return the same samples with a window of so many bytes."""
        return Samples(self._source, self._index, window, self._use_cache)

    def _plain(self, numbers: Sequence[int]) -> list[bytes] | None:
        """Return the contents from the cache; None if any of them is missing there."""
        folder = self._folder()
        if folder is None:
            return None
        found: list[bytes] = []
        for number in numbers:
            path = folder + b"/" + self._index.path(int(number))
            data: bytes | None = None
            with suppress(OSError), open(path, "rb") as file:  # noqa: PTH123 (bytes)
                data = file.read()
            if data is None or len(data) != self.sizes[number]:  # it was evicted
                self.__dict__["_cached"] = (time.monotonic(), None)
                return None
            found.append(data)
        return found

    def _folder(self) -> bytes | None:
        """Return the commit's folder in the cache, or None. It is looked for every `_LOOK_EVERY` seconds."""
        if not self._use_cache:
            return None
        at: float | None
        folder: bytes | None
        at, folder = self.__dict__.get("_cached", (None, None))
        if folder is None and (at is None or time.monotonic() - at > _LOOK_EVERY):
            path = self._source.cached()
            folder = None if path is None else os.fsencode(path)
            self.__dict__["_cached"] = time.monotonic(), folder
        return folder

    @property
    def _window(self) -> Window | None:
        """Return this process's end of the window; None on systems that have none."""
        known: Window | None = self.__dict__.get("_own_window")
        if known is None and can_share():
            known = self.__dict__["_own_window"] = Window(copy(self))  # of this itself it would be a cycle
        return known

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_cached", "_own_window")
        }

    def _checked(self, number: int) -> int:
        number = number.__index__()
        if not -len(self) <= number < len(self):
            raise IndexError(f"there are {len(self)} samples, and {number} is not one of them")
        return number % len(self)
