"""Writing files of a commit to a URL, many at a time; a later export skips those that are there and right."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from blake3 import blake3

from dsv.errors import Conflict, NotFound, Unsupported, UsageError
from dsv.exchange.export import Exported, Found, Selection, contents_of, write_tar
from dsv.exchange.journal import Journal
from dsv.exchange.remote import HTTP, OBJECT_STORES, S3, Place, etag_and_time, version_of
from dsv.format.tree import Entry
from dsv.fs.errors import about
from dsv.fs.lock import Lock
from dsv.transfer.upload import Stored
from dsv.values.ids import CommitId
from dsv.values.paths import sort_key
from dsv.values.progress import Progress
from dsv.values.units import format_count

SMALL = 8 << 20
"""Bytes of the largest file that is held in memory."""
UNDER_WAY = 128 << 20
"""Bytes of files that may be under way, so that memory is bounded."""
JOBS = 32
SAVE_FILES, SAVE_SECONDS = 1000, 10.0
"""How often written files are noted."""
_PIECE = 8 << 20
_PARTS = 9000
"""Into how many pieces a large object goes: S3 takes 10,000."""
_PART = re.compile(r"\.dsv-([0-9a-f]{8})[0-9a-f]{8}\.part")
_LEFT = 24 * 3600.0
"""Seconds after which a part that another machine was writing counts as abandoned."""
_MD5 = "md5 "
_AROUND = 4096
"""Bytes that a tar may need for a path, beside its content."""
_SHOWN = 10

Infos = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ExportedToUrl:
    """What was written.

    files, bytes: of the target.
    known: files that were there already.
    written: the others.
    left_out: symlinks and empty folders, which URLs do not have.
    stays: files there that the target does not have.
    """

    commit: CommitId
    files: int
    bytes: int
    known: int
    written: int
    written_bytes: int
    left_out: int
    stays: int


class UrlExport:
    """Writes below one URL. Raises `Unsupported` if its protocol is only for reading.

    notes: the folder of the journals of exports.
    """

    def __init__(self, place: Place, url: str, notes: Path, progress: Progress, *, force: bool) -> None:
        if place.protocol in HTTP:
            raise Unsupported(
                f"HTTP export is not supported: {place.shown}",
                subject=place.shown,
                hint="export to s3:// or sftp://, or to a folder",
            )
        self.place, self._fs, self._url = place, place.fs, url
        self._progress, self._force = progress, force
        self._is_store = place.protocol in OBJECT_STORES
        self._journal = Journal(notes, url.rstrip("/"))
        self._mark = blake3(f"{socket.gethostname()} {self._journal.path}".encode()).hexdigest(length=4)

    def tar(self, selection: Selection) -> Exported:
        """Writes one tar. Raises `Conflict` if something is there, unless it is a file and `force` is given."""
        if "/" not in self.place.root:
            raise UsageError(
                f"{self.place.shown} is a bucket, not a file in one",
                subject=self.place.shown,
                hint="s3://bucket/NAME.tar",
            )
        info = self._at_root()
        is_folder = info is not None and info.get("type") == "directory"
        if info is not None and (is_folder or not self._force):
            raise Conflict(
                f"{self.place.shown} already exists{' and is a folder' if is_folder else ''}",
                subject=self.place.shown,
                hint="choose another name" if is_folder else "choose another name; --force replaces it",
            )
        self._make_folder(self.place.root)
        most = sum(entry.size + _AROUND for _, entry, _ in selection.found)
        with self._writing(self.place.root, most) as out:
            write_tar(selection, out, self.place.root)
        return selection.exported()

    def files(self, selection: Selection) -> ExportedToUrl:
        """Writes the files that are missing or differ, each to appear when it is whole."""
        files = [each for each in selection.found if each[1].is_file]
        with self._alone(), ThreadPoolExecutor(JOBS, "dsv-export") as pool:
            folder, _, name = self.place.root.rpartition("/")
            info: dict[str, Any] | None = {"type": "directory"}
            if selection.is_one_file and folder and not self._url.endswith("/"):
                info = self._at_root()
            if info is None or info.get("type") != "directory":  # the file gets the URL's own name
                self.place = replace(self.place, root=folder)
                files = [(name.encode("utf-8", "surrogateescape"), *each[1:]) for each in files]
                there, folders = ({} if info is None else {self._key(files[0][0]): info}), set[str]()
            else:
                there, folders = self._list()
            write, stays = self._plan(files, there, folders, pool)
            self._progress.start(len(write), sum(entry.size for _, entry, _ in write))
            self._write_all(contents_of(selection.tree, write), pool)
            self._progress.finish()
        return ExportedToUrl(
            selection.commit,
            len(files),
            sum(entry.size for _, entry, _ in files),
            len(files) - len(write),
            len(write),
            sum(entry.size for _, entry, _ in write),
            len(selection.found) - len(files),
            stays,
        )

    def _plan(
        self, files: Found, there: Infos, folders: set[str], pool: ThreadPoolExecutor
    ) -> tuple[Found, int]:
        """The files to write, in the order of the store, and how many others stay. Raises `Conflict`.

        A file of the right size without a note is read and compared: a killed export may have written it.
        """
        keys = [self._key(name) for name, _, _ in files]
        noted = {key: self._journal.find_if(key, partial(_is_version, info)) for key, info in there.items()}
        same: dict[str, Future[bool]] = {}
        for key, (_, entry, _) in zip(keys, files, strict=True):
            info = there.get(key)
            if info is not None and noted[key] is None and info.get("size") == entry.size and _is_plain(info):
                same[key] = pool.submit(self._holds, key, entry)
        write: Found = []
        for key, each in zip(keys, files, strict=True):
            note = noted.get(key)
            if key in same and same[key].result():
                noted[key] = _stored(each[1])
                self._journal.add(key, version_of(there[key]), _stored(each[1]))
            elif note is None or note.file_id != each[1].file_id:
                write.append(each)
        self._journal.save()
        clashing = self._clashes([self._key(name) for name, _, _ in write], there, folders)
        if clashing:
            raise Conflict(
                f"nothing was written: {self.place.shown} has a folder in place of a file, or a file or a link in "
                f"place of a folder:{_listed(clashing)}",
                subject=self.place.shown,
                hint="remove what is listed, or choose an empty place; --force does not replace folders",
            )
        foreign = [key for key, note in noted.items() if note is None]
        if foreign and not self._force:
            raise Conflict(
                f"nothing was written: {self.place.shown} has {format_count(len(foreign), 'file')} that no dsv export "
                f"from here has written:{_listed(foreign)}",
                subject=self.place.shown,
                hint="choose an empty place; --force replaces the files in the way, and leaves the others",
            )
        write.sort(key=lambda each: sort_key(each[1].path))
        return write, len(there.keys() - set(keys))

    def _write_all(
        self, contents: Iterator[tuple[bytes, Entry, Iterator[bytes]]], pool: ThreadPoolExecutor
    ) -> None:
        """Writes small files by several threads, and large ones by this one."""
        waiting: deque[tuple[str, Entry, Future[str | None]]] = deque()
        folders: set[str] = set()
        bytes_waiting, unsaved, saved = 0, 0, time.monotonic()

        def end_one() -> None:
            nonlocal bytes_waiting, unsaved, saved
            key, entry, future = waiting.popleft()
            bytes_waiting -= entry.size
            self._journal.add(key, future.result(), _stored(entry))
            self._progress.advance(files=1, bytes=entry.size, transferred=entry.size)
            unsaved += 1
            if unsaved >= SAVE_FILES or time.monotonic() - saved > SAVE_SECONDS:
                self._journal.save()
                unsaved, saved = 0, time.monotonic()

        try:
            for name, entry, pieces in contents:
                key = self._key(name)
                if (folder := key.rpartition("/")[0]) not in folders:
                    self._make_folder(key)
                    folders.add(folder)
                future: Future[str | None] = Future()
                if entry.size > SMALL:
                    future.set_result(self._write(key, pieces, entry.size))
                else:
                    future = pool.submit(self._write, key, list(pieces), entry.size)
                waiting.append((key, entry, future))
                bytes_waiting += entry.size
                while bytes_waiting > UNDER_WAY or len(waiting) > 4 * JOBS:
                    end_one()
            while waiting:
                end_one()
        finally:
            for _, _, future in waiting:
                future.cancel()
            self._journal.save()

    def _write(self, key: str, pieces: Iterable[bytes], size: int) -> str | None:
        """Writes a file; returns its version for the journal, None if the server has no such thing."""
        md5 = hashlib.md5(usedforsecurity=False)
        with self._writing(key, size) as file:
            for piece in pieces:
                md5.update(piece)
                file.write(piece)
        if self.place.protocol in S3 and size < _PIECE:  # it was one part, whose entity tag this is
            return _MD5 + md5.hexdigest()
        return version_of(self.place.info(key))

    @contextmanager
    def _writing(self, key: str, size: int) -> Iterator[Any]:
        """Yields a file that gets its name at the end, and never after an error. size: the most to be written."""
        with self.place.at_work("written"):
            if not self._is_store:
                with self._beside(key) as file:
                    yield file
                return
            file = self._fs.open(key, "wb", block_size=max(_PIECE, size // _PARTS + 1), autocommit=False)
            try:
                yield file
                file.close()
                file.commit()
            except BaseException:
                with suppress(Exception):
                    file.discard()
                file.closed = (
                    True  # else fsspec closes it at the end, and some servers show the incomplete file
                )
                raise

    @contextmanager
    def _beside(self, key: str) -> Iterator[Any]:
        """Yields a file with a temporary name in the same folder, and renames it at the end."""
        draft = f"{key.rpartition('/')[0]}/.dsv-{self._mark}{os.urandom(4).hex()}.part"
        try:
            with self._fs.open(draft, "wb") as file:
                yield file
            if "file" in self.place.protocols:
                os.replace(draft, key)  # noqa: PTH105 (names, no paths)
            else:
                self._fs.mv(draft, key)
        except BaseException:
            with suppress(Exception):
                self._fs.rm_file(draft)
            raise

    def _make_folder(self, key: str) -> None:
        if not self._is_store:
            with self.place.at_work("written"):
                self._fs.makedirs(key.rpartition("/")[0], exist_ok=True)

    def _key(self, path: bytes) -> str:
        return f"{self.place.root}/{path.decode('utf-8', 'surrogateescape')}"

    def _at_root(self) -> dict[str, Any] | None:
        try:
            return self.place.info(self.place.root)
        except NotFound:
            return None

    def _list(self) -> tuple[Infos, set[str]]:
        """Every file there, by its key, and the folders. Removes the parts that killed exports have left."""
        with self.place.at_work("listed"):
            self._fs.invalidate_cache()
            try:
                listed: Infos = self._fs.find(self.place.root, detail=True, withdirs=not self._is_store)
            except FileNotFoundError:
                listed = {}
        files: Infos = {}
        folders: set[str] = set()
        for key, info in listed.items():
            whole_key = "/" + key.lstrip("/") if self.place.root.startswith("/") else key
            part = _PART.fullmatch(key.rpartition("/")[2])
            if key.endswith("/") or info.get("type") == "directory":
                folders.add(whole_key.rstrip("/"))
            elif part is None or self._is_store:
                files[whole_key] = info
            elif part[1] == self._mark or _age(info) > _LEFT:
                with suppress(OSError):
                    self._fs.rm_file(key)
        return files, folders

    def _clashes(self, keys: list[str], there: Infos, folders: set[str]) -> list[str]:
        """Folders that have the name of a file to write, and files and links where one needs a folder."""
        if self._is_store:
            return []
        root = self.place.root
        folders = folders | _folders_above(there, root)
        clashing = {f"{key}/" for key in keys if key in folders}
        return sorted(clashing | (_folders_above(keys, root) & there.keys()))

    def _holds(self, key: str, entry: Entry) -> bool:
        """Whether the file there has this content; reads it."""
        proof = blake3()
        with self.place.at_work("read"), self._fs.open(key, "rb", block_size=_PIECE) as file:
            while data := file.read(_PIECE):
                proof.update(data)
        return proof.digest() == entry.file_id

    def _alone(self) -> Lock:
        """One export from this machine to one URL at a time, as parts found there are removed. Raises `Conflict`."""
        path, shown = self._journal.path, self.place.shown
        with about(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        taken = Lock.take(path.with_suffix(".lock"), "dsv export")
        if isinstance(taken, Lock):
            return taken
        who = "another dsv export" if taken.owner is None else f"dsv export (process {taken.owner.pid})"
        raise Conflict(f"{who} writes to {shown} now", subject=shown, hint="wait for it to end")


def _is_version(info: dict[str, Any], written: str) -> bool:
    """Whether a file is still the one that a write gave this version of."""
    if written.startswith(_MD5):
        return str(info.get("ETag", "")).strip('"') == written.removeprefix(_MD5)
    return version_of(info) == written


def _is_plain(info: dict[str, Any]) -> bool:
    """Whether it is a file that can be read: opening a named pipe would wait for its writer."""
    return info.get("type") not in ("other", "link")


def _stored(entry: Entry) -> Stored:
    assert entry.file_id is not None
    return Stored(entry.size, entry.file_id, entry.recipe_id, None)


def _age(info: dict[str, Any]) -> float:
    """Seconds since the file was written, by the server's time; 0 if it is unknown."""
    written = etag_and_time(info)[1]
    return time.time() - written if isinstance(written, int | float) else 0.0


def _folders_above(keys: Iterable[str], root: str) -> set[str]:
    """The folders of these keys, the root among them."""
    folders: set[str] = set()
    for key in keys:
        folder = key.rpartition("/")[0]
        while folder and len(folder) >= len(root) and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def _listed(keys: list[str]) -> str:
    some = sorted(keys)
    more = [f"and {len(some) - _SHOWN:,} more"] if len(some) > _SHOWN else []
    return "".join(f"\n  {key}" for key in [*some[:_SHOWN], *more])
