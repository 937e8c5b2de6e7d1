"""Local copies of immutable objects: commits, tree nodes, segments, recipes, locators, index files.

Readers check each against its id, so a damaged, missing or foreign copy costs a request and nothing else. That is why
no write here is synced to disk and no failure here is an error.
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
from dsv.format import keys
from dsv.format.envelope import RECORD_MAX
from dsv.fs.files import replace_file
from dsv.fs.folders import make_shared_folder
from dsv.repo.errors import read_record
from dsv.store.base import LARGEST, Item, Store, absent
from dsv.store.open import Unavailable
from dsv.values.ids import CommitId

T = TypeVar("T")


class MetadataCache:
    """A folder of immutable copies, safe to share between processes, users and hosts; `None` keeps nothing."""

    def __init__(self, folder: Path | None, behind: MetadataCache | None = None) -> None:
        """behind: where to look for a copy that is not in this folder."""
        self._folder = folder
        self._behind = behind

    def also_read(self, behind: MetadataCache) -> None:
        """From now on, what has no copy here is looked for there, after where it was looked for before."""
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
            file = _at_once(self._text(kind, name), os.O_RDONLY)
            try:
                found = os.fstat(file)
                if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
                    return None
                data = os.read(file, found.st_size)
                return data if len(data) == found.st_size else None
            finally:
                os.close(file)
        except OSError:
            return None

    def record(
        self, kind: str, name: str, store: Store, key: str, decode: Callable[[bytes], T], limit: int
    ) -> T:
        """Return what the copy says, or else what the store has under the key, of which a copy is kept.

        Raises as `read_record`.
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
        """Return the copy mapped into memory, for large ones; unchecked. None where there is none."""
        if self._folder is None:
            return None
        try:
            with open(self._path(kind, name), "rb", opener=_at_once) as file:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError):  # ValueError: an empty file cannot be mapped
            return None

    def put(self, kind: str, name: str, data: bytes | bytearray | memoryview) -> None:
        """Keep a copy; a name that is there already stays, unless its size is another."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            if os.stat(self._text(kind, name)).st_size == len(data):  # noqa: PTH116 (see `_text`)
                return
        path = self._path(kind, name)
        with contextlib.suppress(OSError):
            mode = make_shared_folder(path.parent)
            replace_file(path, data, mode=mode & 0o444, sync=False)

    def names(self, kind: str) -> list[str]:
        """Return what there are copies of."""
        found = set() if self._behind is None else set(self._behind.names(kind))
        if self._folder is not None:
            with contextlib.suppress(OSError):
                found.update(path.name for path in (self._folder / kind).glob("*/[!.]*"))
        return list(found)

    def drop(self, kind: str, name: str) -> None:
        """Forget a copy that was found to be wrong."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._path(kind, name).unlink(missing_ok=True)

    def used(self, kind: str, name: str, days: int) -> None:
        """Note that a copy is in use, and remove those of its kind that were last used so many days before."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            os.utime(self._text(kind, name))
            now = self._path(kind, name).stat().st_mtime
            for path in (self._folder / kind).glob("*/[!.]*"):
                if path.stat().st_mtime < now - 86_400 * days:
                    path.unlink()

    def _path(self, kind: str, name: str) -> Path:
        return Path(self._text(kind, name))

    def _text(self, kind: str, name: str) -> str:
        """Return the path as text: millions are asked for, and a `Path` takes longer to make than the file to open."""
        return f"{self._folder}/{kind}/{name[:2]}/{name}"


def release(view: memoryview) -> None:
    """Let go of what was read of a mapped file, which counts as this process's memory. It can be read again."""
    if isinstance(view.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        view.obj.madvise(mmap.MADV_DONTNEED)


def _at_once(path: str, flags: int) -> int:
    """Open a file without waiting: in a shared folder another user may have put a pipe there."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


class LocalStore(Unavailable):
    """A store that is not asked: commits are read from their local copies, and nothing else; `Objects` reads segments
    and nodes from theirs. What has no copy is never said to be absent, as the store may have it: that is `Unreachable`.
    """

    def __init__(self, url: str, metadata: MetadataCache) -> None:
        super().__init__(url, _no_copy(url, "it"))
        self._metadata = metadata

    def failure(self, key: str) -> Unreachable:
        return _no_copy(self.url, key)

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        commit = keys.parse_commit_key(key)
        data = None if commit is None else self._metadata.get("commit", str(commit), RECORD_MAX)
        if data is not None and CommitId.hash(data) == commit:
            return data  # a damaged one is as good as none: the store's may be whole
        if keys.parse_locator_key(key) is not None:
            raise absent(self.url, key)  # it would only tell where in packs to read
        raise self.failure(key)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[Item]:
        copies = self._metadata.names("commit") if prefix.startswith(keys.COMMIT_PREFIX) else []
        found = sorted(keys.COMMIT_PREFIX + name for name in copies)
        fitting = [key for key in found if key.startswith(prefix) and key > (start_after or "")]
        if not fitting:
            raise self.failure(f"{prefix}…")
        return iter([Item(key, 0) for key in fitting])


def _no_copy(url: str, key: str) -> Unreachable:
    return Unreachable(
        f"{url} is not asked, and there is no copy here of {key}",
        subject=url,
        hint="leave out --offline to ask the store",
    )
