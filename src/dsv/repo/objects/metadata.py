"""Local copies of immutable objects: commits, tree nodes, segments, recipes, locators, index files.

Readers check each against its id, so a damaged, missing or foreign copy only costs a request. That is why no
write here is synced to disk and no failure here is an error.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from dsv.errors import IntegrityError, Unreachable, Unsupported
from dsv.files.descriptors import Opened
from dsv.files.folders import make_shared_folder
from dsv.files.shared_path import AnyPath, open_at
from dsv.files.small_files import replace_file
from dsv.format import keys
from dsv.format.envelope import RECORD_MAX
from dsv.repo.errors import read_record
from dsv.repo.objects.trim import CopyLimits, copies_in, note_use, trim
from dsv.stores.base import LARGEST, ListedObject, StoreBackend, absent
from dsv.stores.open import Unavailable
from dsv.values.ids import CommitId

T = TypeVar("T")


class MetadataCache:
    """A folder (None: no copies) of immutable copies, safe to share between processes, users and hosts."""

    def __init__(
        self, folder: AnyPath | None, behind: MetadataCache | None = None, limits: CopyLimits | None = None
    ) -> None:
        """behind: searched for copies that are not in this folder. limits: of copies in `stores/STORE/objects`."""
        self._folder = folder
        self._limits = limits
        self._behind = behind

    def also_read(self, behind: MetadataCache) -> None:
        """From now on, search these copies too, after the folders that are already searched."""
        last = self
        while last._behind is not None:
            last = last._behind
        last._behind = behind

    def get(self, kind: str, name: str, limit: int) -> bytes | None:
        """Return the copy's bytes, unchecked; None if there is none of at most `limit` bytes."""
        found = self._read(kind, name, limit)
        return self._behind.get(kind, name, limit) if found is None and self._behind is not None else found

    def _read(self, kind: str, name: str, limit: int) -> bytes | None:
        if self._folder is None:
            return None
        try:
            with Opened(self._open(kind, name)) as file:
                status = note_use(file)
                if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                    return None
                data = os.read(file, status.st_size)
                return data if len(data) == status.st_size else None
        except OSError:
            return None

    def record(
        self, kind: str, name: str, store: StoreBackend, key: str, decode: Callable[[bytes], T], limit: int
    ) -> T:
        """Return the decoded copy, or else the store's record under the key, of which a copy is then kept.

        Raises the same as `read_record`.
        """

        def kept(data: bytes) -> T:
            found = decode(data)
            self.put(kind, name, data)
            return found

        copy = self.get(kind, name, limit)
        if copy is not None:
            try:
                return decode(copy)
            except (IntegrityError, Unsupported):
                self.drop(kind, name)
        return read_record(kept, store, key, limit)

    def map(self, kind: str, name: str) -> memoryview | None:
        """Return the copy mapped into memory, unchecked, for large ones; None if there is none."""
        if self._folder is None:
            return None
        try:
            with Opened(self._open(kind, name)) as file:
                return memoryview(mmap.mmap(file, note_use(file).st_size, access=mmap.ACCESS_READ))
        except (OSError, ValueError):  # ValueError: an empty file cannot be mapped
            return None

    def put(self, kind: str, name: str, data: bytes | bytearray | memoryview) -> None:
        """Keep a copy. An existing copy of the same size stays."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError), Opened(self._open(kind, name)) as file:
            if note_use(file).st_size == len(data):
                return
        path = self._path(kind, name)
        with contextlib.suppress(OSError):
            mode = make_shared_folder(path.parent)
            replace_file(path, data, mode=mode & 0o444, sync=False)
            if self._limits is not None and self._limits.is_due(len(data)):
                trim(self._folder.parent.parent, self._limits)

    def names(self, kind: str) -> list[str]:
        found = set() if self._behind is None else set(self._behind.names(kind))
        if self._folder is not None:
            names = (path.name for _, _, path in copies_in(self._folder / kind))
            found.update(name for name in names if not name.startswith("."))
        return list(found)

    def drop(self, kind: str, name: str) -> None:
        """Delete a copy that was found to be wrong."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._path(kind, name).unlink(missing_ok=True)

    def _path(self, kind: str, name: str) -> AnyPath:
        assert self._folder is not None
        return self._folder / f"{kind}/{name[:2]}/{name}"

    def _open(self, kind: str, name: str) -> int:
        """Open a copy without waiting: in a shared folder another user may have put a pipe there."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        if isinstance(self._folder, Path):  # millions are opened, and to make a `Path` takes longer than that
            return os.open(f"{self._folder}/{kind}/{name[:2]}/{name}", flags)
        return open_at(self._path(kind, name), flags)


def release(view: memoryview) -> None:
    """Release the pages of a mapped file, which count as this process's memory. They can be read again."""
    if isinstance(view.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        view.obj.madvise(mmap.MADV_DONTNEED)


class LocalStore(Unavailable):
    """A store that is never asked. It has local copies of commits only; `Objects` reads those of segments and
    nodes. A missing copy raises `Unreachable`, not `NotFound`, because the store may have the object."""

    def __init__(self, url: str, metadata: MetadataCache) -> None:
        super().__init__(url, _no_copy(url, "it"))
        self._metadata = metadata

    def failure(self, key: str) -> Unreachable:
        return _no_copy(self.url, key)

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        commit = keys.parse_commit_key(key)
        data = None if commit is None else self._metadata.get("commit", str(commit), RECORD_MAX)
        if data is not None and CommitId.hash(data) == commit:
            return data  # a damaged copy counts as none: the store's may be intact
        if keys.parse_locator_key(key) is not None:
            raise absent(self.url, key)  # it would only say where in packs to read
        raise self.failure(key)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        copies = self._metadata.names("commit") if prefix.startswith(keys.COMMIT_PREFIX) else []
        found = sorted(keys.COMMIT_PREFIX + name for name in copies)
        fitting = [key for key in found if key.startswith(prefix) and key > (start_after or "")]
        if not fitting:
            raise self.failure(f"{prefix}…")
        return iter([ListedObject(key, 0) for key in fitting])


def _no_copy(url: str, key: str) -> Unreachable:
    hint = "leave out --offline to ask the store"
    return Unreachable(f"{url} is not asked, and there is no copy here of {key}", subject=url, hint=hint)
