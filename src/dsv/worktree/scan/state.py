"""What is remembered of a workspace's files, so as not to read them again: (inode, size, mtime, ctime) -> content.

The state mirrors the disk as it was last seen, and its relation to the base commit: "nothing changed" is decided
without reading a tree. On disk it is a file `current`, which names the parts: runs of folders in tree order, each named
by the hash of its bytes. Saving writes the parts that changed, then replaces `current`. A part that a power cut
has torn is recognised by its hash and forgotten. That costs time, never data.
"""

from __future__ import annotations

import bisect
import struct
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import xxhash
from blake3 import blake3

from dsv.fs.errors import about
from dsv.fs.files import read_file, replace_file
from dsv.model.entry import sort_key
from dsv.model.ids import CommitId
from dsv.model.sparse_patterns import EVERYTHING, SparsePatterns
from dsv.worktree.scan.folder import ROW, Folder, decode_folder, encode_folder, split_folders

_CURRENT = "current"
_MAGIC = b"dsv state 1\n"
_CHECK = struct.Struct("<Q")
_PART_PREFIX = "part-"
_PART_SIZE = 1 << 20  # bytes; what one changed file makes a save write
_OPEN_FOLDERS = 256  # decoded at a time
# An mtime further ahead than this was set by hand: no write of now gives it.
_FAR_AHEAD = 7 * 24 * 3600 * 10**9  # ns


class _Current(msgspec.Struct, array_like=True, frozen=True):
    """exact: see `State.exact`; gone: joined by NUL; parts: first path and hash of each."""

    exact: bytes | None
    gone: bytes
    parts: list[tuple[bytes, str]]


_CURRENT_DECODER = msgspec.msgpack.Decoder(_Current)


class _Part(msgspec.Struct):
    """A run of folders from `first` (a sort key) to that of the next part. `name` is None if it must be written."""

    first: bytes
    name: str | None
    members: set[bytes] = msgspec.field(default_factory=set)


class State:
    """The state of one workspace, in memory. Its owner holds the workspace's lock to save it.

    chosen: which paths of commits the workspace is to have. Others that a commit has are never gone.
    exact: the commit (empty: no commit) whose every chosen path is in a folder here or in `gone`; None if there is
    none. It stands for what is chosen too, so that with another choice the state mirrors no commit.
    gone: chosen paths of that commit that the disk lacks.
    provisional: the relations hold for this command only, so that the saved state mirrors no commit.
    trust_before: ns; a file changed at this time or later may change again without its times telling.
    """

    def __init__(self, folder: Path, chosen: SparsePatterns = EVERYTHING) -> None:
        self._folder = folder
        self.chosen = chosen
        self._encoded: dict[bytes, bytes] = {}
        self._open: OrderedDict[bytes, Folder] = OrderedDict()
        self._parts = [_Part(b"", None)]
        self._saved: _Current | None = None
        self._loaded: bytes | None = None
        self.exact: bytes | None = b""
        self.gone: set[bytes] = set()
        self.provisional = False
        self.trust_before = 0

    @classmethod
    def load(cls, folder: Path, chosen: SparsePatterns = EVERYTHING) -> State:
        """What can be read. What is torn, damaged or of another version is forgotten."""
        state = cls(folder, chosen)
        state._loaded = _read(folder / _CURRENT)
        if state._loaded is None:
            return state
        current = _decode_current(state._loaded)
        if current is None:
            state.exact = None
            return state
        state._parts.clear()
        state.exact = current.exact
        state.gone = set(current.gone.split(b"\0")) if current.gone else set()
        for first, name in current.parts:
            part = _Part(first, name)
            state._parts.append(part)
            folders = _read_part(folder / name, name)
            if folders is None:
                part.name = state.exact = None
                continue
            part.members.update(path for path, _ in folders)
            state._encoded.update(folders)
        if not state._parts:
            state._parts.append(_Part(b"", None))
        state._saved = current if state.exact == current.exact else None
        return state

    @property
    def is_newest(self) -> bool:
        """Whether nobody saved a state since this one was loaded."""
        return _read(self._folder / _CURRENT) == self._loaded

    def is_exact_for(self, base: CommitId | None) -> bool:
        """Whether relations and `gone` say how the disk stands to this commit (None: to an empty tree)."""
        return self.exact == self._mirrored(base)

    def set_exact(self, base: CommitId | None, gone: set[bytes]) -> None:
        self.exact = self._mirrored(base)
        self.gone = gone

    def _mirrored(self, base: CommitId | None) -> bytes:
        if base is None:
            return b""
        return bytes(base) if self.chosen.whole else blake3(bytes(base) + self.chosen.digest).digest()

    def paths(self) -> list[bytes]:
        """Of all folders, in no order."""
        return list(self._encoded)

    def folder(self, path: bytes) -> Folder | None:
        """A copy to look at, or what `edit` gave if that is still open."""
        if path in self._open:
            return self._open[path]
        encoded = self._encoded.get(path)
        return None if encoded is None else decode_folder(encoded)

    def put(self, folder: Folder) -> None:
        """Remembers the folder as it is now."""
        self._open.pop(folder.path, None)
        if folder.path not in self._encoded:
            self._part_of(folder.path).members.add(folder.path)
        self._store(folder)

    def edit(self, path: bytes) -> Folder:
        """The folder itself: what is changed in it is remembered. Raises `KeyError` for an unknown one."""
        found = self._open.get(path)
        if found is None:
            found = self._open[path] = decode_folder(self._encoded[path])
            if len(self._open) > _OPEN_FOLDERS:
                self._store(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(path)
        return found

    def drop(self, path: bytes) -> None:
        """Forgets a folder; not those below it."""
        self._open.pop(path, None)
        if self._encoded.pop(path, None) is not None:
            part = self._part_of(path)
            part.members.discard(path)
            part.name = None

    def vouches(self, row: bytes, *, foreign: bool = False) -> bool:
        """Whether any later change of a file with this row is bound to change the row.

        `foreign`: it lies on another file system than `.dsv`, whose clock may be a little off.
        """
        _, _, mtime, ctime, _ = ROW.unpack(row)
        before = self.trust_before - (3600 * 10**9 if foreign else 0)
        return bool(ctime < before and not before <= mtime < before + _FAR_AHEAD)

    @property
    def has_news(self) -> bool:
        """Whether `save` would write anything."""
        self._store_open()
        saved = self._saved
        if saved is None or any(part.name is None for part in self._parts):
            return True
        return saved.exact != self._exact_for_good or saved.gone != b"\0".join(sorted(self.gone))

    def save(self) -> None:
        """Writes what changed since the last time. Raises `NoRoom`, `Denied`, `Unreachable`: the old state stays."""
        self._store_open()
        kept: list[_Part] = []
        with about(self._folder):
            self._folder.mkdir(exist_ok=True)
            for part in self._parts:
                if part.name is not None:
                    kept.append(part)
                else:
                    kept += self._write(part)
            self._parts = kept or [_Part(b"", None)]
            current = _Current(
                self._exact_for_good,
                b"\0".join(sorted(self.gone)),
                [(part.first, part.name or "") for part in kept],
            )
            if current == self._saved:
                return
            body = msgspec.msgpack.encode(current)
            self._loaded = _MAGIC + _CHECK.pack(xxhash.xxh3_64_intdigest(body)) + body
            self._replace(_CURRENT, self._loaded)
            self._saved = current
            named = {part.name for part in kept}
            for path in self._folder.iterdir():
                if path.name not in named and path.name.lstrip(".").startswith(_PART_PREFIX):
                    path.unlink(missing_ok=True)

    @property
    def _exact_for_good(self) -> bytes | None:
        return None if self.provisional else self.exact

    def _store_open(self) -> None:
        for folder in self._open.values():
            self._store(folder)

    def _store(self, folder: Folder) -> None:
        encoded = encode_folder(folder)
        if self._encoded.get(folder.path) != encoded:
            self._encoded[folder.path] = encoded
            self._part_of(folder.path).name = None

    def _part_of(self, path: bytes) -> _Part:
        at = bisect.bisect_right(self._parts, sort_key(path), key=lambda part: part.first)
        return self._parts[max(at - 1, 0)]

    def _write(self, part: _Part) -> Iterator[_Part]:
        """Writes a part, or several if it has grown too big."""
        run: list[bytes] = []
        size = 0
        first = part.first
        for path in sorted(part.members, key=sort_key):
            if size + len(self._encoded[path]) > _PART_SIZE and run:
                yield self._write_run(first, run)
                run, size, first = [], 0, sort_key(path)
            run.append(path)
            size += len(self._encoded[path])
        if run:
            yield self._write_run(first, run)

    def _write_run(self, first: bytes, run: list[bytes]) -> _Part:
        pieces = [self._encoded[path] for path in run]
        check = xxhash.xxh3_128()
        for piece in pieces:
            check.update(piece)
        name = _PART_PREFIX + check.hexdigest()
        self._replace(name, *pieces)
        return _Part(first, name, set(run))

    def _replace(self, name: str, *pieces: bytes) -> None:
        with about(self._folder / name):
            replace_file(self._folder / name, *pieces)


def _decode_current(data: bytes) -> _Current | None:
    body = data[len(_MAGIC) + _CHECK.size :]
    if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : -len(body) or None] != _CHECK.pack(
        xxhash.xxh3_64_intdigest(body)
    ):
        return None
    try:
        return _CURRENT_DECODER.decode(body)
    except msgspec.DecodeError:
        return None


def _read(path: Path) -> bytes | None:
    try:
        return read_file(path)
    except OSError:
        return None


def _read_part(path: Path, name: str) -> list[tuple[bytes, bytes]] | None:
    data = _read(path)
    if data is None or name != _PART_PREFIX + xxhash.xxh3_128_hexdigest(data):
        return None
    try:
        return split_folders(data)
    except ValueError:
        return None
