"""The saved state of a workspace's files, (inode, size, mtime, ctime) to file id, and its updates."""

from __future__ import annotations

import bisect
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import xxhash
from blake3 import blake3

from dsv.files.descent import split
from dsv.files.errors import about
from dsv.files.small_files import read_file, replace_file
from dsv.format.tree import Entry, Kind
from dsv.repo.tree.diff import difference
from dsv.transfer.stable_read import ROW
from dsv.values.paths import sort_key
from dsv.values.patterns import EVERYTHING
from dsv.workspace.scan.folder import (
    KEPT,
    NO_ID,
    OWN_SAME,
    READ,
    TRUSTED,
    Folder,
    Relation,
    decode_folder,
    encode_folder,
    with_relation,
)

if TYPE_CHECKING:
    from dsv.values.ids import CommitId
    from dsv.values.patterns import SparsePatterns

_CURRENT = "current"
_MAGIC = b"dsv state 2\n"
_CHECK = struct.Struct("<Q")
_PART_PREFIX = "part-"
_PART_SIZE = 1 << 20  # bytes; what one changed file makes a save write
_OPEN_FOLDERS = 256  # decoded at a time
# An mtime further ahead than this was set by hand, not by a write.
_FAR_AHEAD = 7 * 24 * 3600 * 10**9  # ns


class _Current(msgspec.Struct, array_like=True, frozen=True):
    """The file that names the parts of the state."""

    exact: bytes | None
    """See `WorkspaceState.exact`."""
    gone: bytes
    """Joined by NUL."""
    parts: list[tuple[bytes, str]]
    """First path and hash of each."""


_CURRENT_DECODER = msgspec.msgpack.Decoder(_Current)
_FOLDERS = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])
"""A part: the path of each folder, and the folder as `encode_folder` gives it."""


class _Part(msgspec.Struct):
    """A run of folders from `first` (a sort key) to that of the next part. `name` is None if it must be written."""

    first: bytes
    name: str | None
    members: set[bytes] = msgspec.field(default_factory=set)


class WorkspaceState:
    """The state of one workspace, in memory. The caller holds the workspace's lock to save it."""

    def __init__(self, folder: Path, chosen: SparsePatterns = EVERYTHING) -> None:
        self._folder = folder
        self.chosen = chosen
        """The paths of commits that the workspace should have. Other paths are never in `gone`."""
        self._encoded: dict[bytes, bytes] = {}
        self._open: OrderedDict[bytes, Folder] = OrderedDict()
        self._parts = [_Part(b"", None)]
        self._saved: _Current | None = None
        self._loaded: bytes | None = None
        self.exact: bytes | None = b""
        """The commit (empty: no commit) of which every chosen path is in a folder here or in `gone`; None if
        no commit is so. It is hashed with `chosen`, unless that is everything."""
        self.gone: set[bytes] = set()
        """Chosen paths of that commit that are not on disk."""
        self.provisional = False
        """The relations are for this command only: the saved state mirrors no commit."""
        self.trust_before = 0
        """In ns. A file changed at this time or later may change again without a change of its times."""

    @classmethod
    def load(cls, folder: Path, chosen: SparsePatterns = EVERYTHING) -> WorkspaceState:
        """Return the state that can be read. Anything torn, damaged or of another version is forgotten."""
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
        """Return whether no state was saved since this one was loaded."""
        return _read(self._folder / _CURRENT) == self._loaded

    def is_exact_for(self, base: CommitId | None) -> bool:
        """Return whether relations and `gone` compare the disk to this commit (None: to an empty tree)."""
        return self.exact == self._mirrored(base)

    def set_exact(self, base: CommitId | None, gone: set[bytes]) -> None:
        self.exact = self._mirrored(base)
        self.gone = gone

    def _mirrored(self, base: CommitId | None) -> bytes:
        if base is None:
            return b""
        return bytes(base) if self.chosen.whole else blake3(bytes(base) + self.chosen.digest).digest()

    def paths(self) -> list[bytes]:
        """Return the paths of all folders, in no order."""
        return list(self._encoded)

    def folders(self) -> Iterator[Folder]:
        """Yield all folders as `folder` does, in no order."""
        for path in self.paths():
            folder = self.folder(path)
            assert folder is not None
            yield folder

    def links(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the path and the target of each symlink."""
        for folder in self.folders():
            if folder.targets:
                names = folder.name_list()
                for at in folder.positions(Kind.SYMLINK):
                    yield folder.path_of(names[at]), folder.targets[at]

    def folder(self, path: bytes) -> Folder | None:
        """Return a copy to read, or what `edit` returned if that is still open."""
        if path in self._open:
            return self._open[path]
        encoded = self._encoded.get(path)
        return None if encoded is None else decode_folder(encoded)

    def put(self, folder: Folder) -> None:
        self._open.pop(folder.path, None)
        if folder.path not in self._encoded:
            self._part_of(folder.path).members.add(folder.path)
        self._store(folder)

    def edit(self, path: bytes) -> Folder:
        """Return the folder itself: changes in it are remembered. Raises `KeyError` for an unknown one."""
        found = self._open.get(path)
        if found is None:
            found = self._open[path] = decode_folder(self._encoded[path])
            if len(self._open) > _OPEN_FOLDERS:
                self._store(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(path)
        return found

    def drop(self, path: bytes) -> None:
        """Forget a folder; not those below it."""
        self._open.pop(path, None)
        if self._encoded.pop(path, None) is not None:
            part = self._part_of(path)
            part.members.discard(path)
            part.name = None

    def vouches(self, row: bytes, *, foreign: bool = False) -> bool:
        """Return whether any later change of a file with this row must change the row. foreign: it lies on
        another file system than `.dsv`, whose clock may be a little off."""
        _, _, mtime, ctime, _ = ROW.unpack(row)
        before = self.trust_before - (3600 * 10**9 if foreign else 0)
        return bool(ctime < before and not before <= mtime < before + _FAR_AHEAD)

    @property
    def has_news(self) -> bool:
        """Return whether `save` would write anything."""
        self.close_folders()
        saved = self._saved
        if saved is None or any(part.name is None for part in self._parts):
            return True
        return saved.exact != self._exact_for_good or saved.gone != b"\0".join(sorted(self.gone))

    def save(self) -> None:
        """Write what changed since the last time. Raises `NoRoom`, `Denied`, `Unreachable`: the old state stays."""
        self.close_folders()
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

    def close_folders(self) -> None:
        """Remember changes in folders that `edit` returned."""
        for folder in self._open.values():
            self._store(folder)
        self._open.clear()

    def _store(self, folder: Folder) -> None:
        encoded = encode_folder(folder)
        if self._encoded.get(folder.path) != encoded:
            self._encoded[folder.path] = encoded
            self._part_of(folder.path).name = None

    def _part_of(self, path: bytes) -> _Part:
        at = bisect.bisect_right(self._parts, sort_key(path), key=lambda part: part.first)
        return self._parts[max(at - 1, 0)]

    def _write(self, part: _Part) -> Iterator[_Part]:
        """Write a part, or several if it has grown too big."""
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
        data = msgspec.msgpack.encode([(path, self._encoded[path]) for path in run])
        name = _PART_PREFIX + xxhash.xxh3_128_hexdigest(data)
        self._replace(name, data)
        return _Part(first, name, set(run))

    def _replace(self, name: str, data: bytes) -> None:
        with about(self._folder / name):
            replace_file(self._folder / name, data)


def _decode_current(data: bytes) -> _Current | None:
    body = data[len(_MAGIC) + _CHECK.size :]
    if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : -len(body) or None] != _CHECK.pack(
        xxhash.xxh3_64_intdigest(body)
    ):
        return None
    with suppress(msgspec.DecodeError):
        return _CURRENT_DECODER.decode(body)
    return None


def _read(path: Path) -> bytes | None:
    with suppress(OSError):
        return read_file(path)
    return None


def _read_part(path: Path, name: str) -> list[tuple[bytes, bytes]] | None:
    data = _read(path)
    if data is None or name != _PART_PREFIX + xxhash.xxh3_128_hexdigest(data):
        return None
    with suppress(msgspec.DecodeError):
        return _FOLDERS.decode(data)
    return None


_INDEXES = 64  # folders whose names are held in a dict at a time
_TO_ABSENT = bytes(with_relation(value, Relation.ABSENT) for value in range(256))


def sync_with_tree(state: WorkspaceState, entries: Iterable[Entry]) -> set[bytes]:
    """Set every relation by these entries, and return the paths that are not on disk. A file of unknown
    content is taken to be the base's until it is read: SAME, and not trusted."""
    for path in state.paths():
        known = state.edit(path)
        known.marks = bytearray(known.marks.translate(_TO_ABSENT))
        known.unmark_others()
        known.own = 0
    names = NameIndex(state)
    gone: set[bytes] = set()
    for entry in entries:
        if entry.kind is Kind.EMPTY_DIRECTORY:
            folder = state.folder(entry.path)
            if folder is not None and folder.is_empty:
                state.edit(entry.path).own = OWN_SAME
            else:
                gone.add(entry.path)
            continue
        above, name = split(entry.path)
        at = names.find(above, name)
        if at is None or state.edit(above).kinds[at] not in KEPT:
            gone.add(entry.path)
        else:
            relate(state.edit(above), at, entry)
    return gone


def relate(folder: Folder, at: int, entry: Entry | None) -> None:
    """Set one name's relation to the base, which has `entry` there (None: nothing)."""
    kind, known = folder.kinds[at], folder.marks[at] & (TRUSTED | READ)
    if entry is None:
        folder.marks[at] = with_relation(known, Relation.ABSENT)
        return
    relation = Relation.DIFFERS
    if entry.kind is Kind.EMPTY_DIRECTORY:
        pass
    elif kind == Kind.SYMLINK or entry.kind is Kind.SYMLINK:
        if kind == entry.kind and folder.targets.get(at) == entry.target:
            relation = Relation.SAME
    elif not known & TRUSTED or (kind == entry.kind and folder.id_at(at) == entry.file_id):
        assert entry.file_id is not None
        relation, known = Relation.SAME, known if known & TRUSTED else 0
        folder.set_id(at, entry.file_id, entry.recipe_id)
        folder.sizes[at] = entry.size
    folder.marks[at] = with_relation(known, relation, entry.kind)


class NameIndex:
    """Positions by name, for the folders that were asked for last."""

    def __init__(self, state: WorkspaceState) -> None:
        def positions(path: bytes) -> dict[bytes, int]:
            folder = state.folder(path)
            return {} if folder is None else {name: at for at, name in enumerate(folder.name_list())}

        self._positions = lru_cache(_INDEXES)(positions)
        self.clear = self._positions.cache_clear
        """Forget all positions, because names were added or removed."""

    def find(self, folder: bytes, name: bytes) -> int | None:
        return self._positions(folder).get(name)


# Names that are held before they are merged into their folders.
_LIMIT = 1 << 16


class _Written(msgspec.Struct, frozen=True):
    """A file or symlink that dsv wrote: its stat afterwards, its entry, and what the base has there."""

    row: bytes
    entry: Entry
    base: Entry | None


class Patches:
    """Paths that dsv wrote, to be merged into the state's folders. Flush before any other use of the state."""

    def __init__(self, state: WorkspaceState, *, trusted: bool = True) -> None:
        """`trusted` means that stats are reliable on this file system."""
        self._known = TRUSTED if trusted else READ
        self._state = state
        self._folders: dict[bytes, dict[bytes, _Written | None]] = {}
        self._held = 0

    def written(self, entry: Entry, row: bytes, base: Entry | None) -> None:
        """Note that the path is now `entry`. No other process could open the file before it had its name, so
        its stat is trusted."""
        self._note(entry.path, _Written(row, entry, base))

    def removed(self, path: bytes) -> None:
        self._note(path, None)

    def folder(self, path: bytes, *, in_base: bool) -> bool:
        """Note an empty folder; False if it is not empty, or not there."""
        known = self._state.folder(path)
        if known is None or not known.is_empty:
            return False
        known.own = OWN_SAME if in_base else 0
        self._state.put(known)
        return True

    @property
    def is_full(self) -> bool:
        """Return whether it is time to flush, to limit the use of memory."""
        return self._held >= _LIMIT

    def flush(self) -> None:
        """Merge the paths into their folders, which changes positions in these."""
        for path, changes in self._folders.items():
            merged = _merge(self._state.folder(path) or Folder(path), changes, self._known)
            if len(merged):
                self._state.put(merged)
            else:
                self._state.drop(path)
        self._folders.clear()
        self._held = 0

    def _note(self, path: bytes, change: _Written | None) -> None:
        above, name = split(path)
        self._folders.setdefault(above, {})[name] = change
        self._held += 1


def _merge(old: Folder, changes: dict[bytes, _Written | None], known: int) -> Folder:
    positions = {name: at for at, name in enumerate(old.name_list())}
    names = sorted({*positions, *changes} - {name for name, change in changes.items() if change is None})
    rows, kinds = bytearray(len(names) * ROW.size), bytearray(len(names))
    new = Folder.blank(old.path, b"\0".join(names), rows, kinds, Relation.UNKNOWN)
    new.rules = old.rules
    for at, name in enumerate(names):
        change = changes.get(name)
        if change is None:
            before = positions[name]
            new.rows[at * ROW.size : (at + 1) * ROW.size] = old.row(before)
            new.kinds[at], new.marks[at] = old.kinds[before], old.marks[before]
            new.copy_content(at, old, before)
        else:
            _fill(new, at, change, known)
    return new


def _fill(new: Folder, at: int, change: _Written, known: int) -> None:
    entry = change.entry
    new.rows[at * ROW.size : (at + 1) * ROW.size] = change.row
    new.kinds[at], new.sizes[at] = entry.kind, entry.size
    new.set_id(at, entry.file_id or NO_ID, entry.recipe_id)
    if entry.kind is Kind.SYMLINK:
        assert entry.target is not None
        new.targets[at] = entry.target
    if change.base is None:
        new.marks[at] = with_relation(known, Relation.ABSENT)
    elif difference(change.base, entry) is not None:
        new.marks[at] = with_relation(known, Relation.DIFFERS, change.base.kind)
    else:
        new.marks[at] = with_relation(known & TRUSTED, Relation.SAME, entry.kind)
