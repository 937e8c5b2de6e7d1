"""Writing files of a commit to a URL: whole or not at all, and without those that are right already."""

from __future__ import annotations

import os
import re
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from blake3 import blake3
from msgspec.structs import replace

from dsv.errors import Conflict, IntegrityError, NotFound, Unsupported, UsageError
from dsv.exchange.bodies import PIECE
from dsv.exchange.export import Exported, Found, Selection, taken, write_tar
from dsv.exchange.journal import ExchangeJournal
from dsv.exchange.remote import HTTP, OBJECT_STORES, RemoteRoot, etag_and_time, version_of
from dsv.exchange.sources import AHEAD_BYTES, JOBS, SMALL
from dsv.files.errors import about
from dsv.files.folders import refuse_clashes
from dsv.files.lock import Lock
from dsv.format.tree import Entry
from dsv.values.ids import FileId
from dsv.values.paths import fold_clashes, folders_above, found_otherwise, sort_key
from dsv.values.progress import Progress
from dsv.values.units import format_count, format_lines

SAVE_SECONDS = 10.0
"""Seconds between two writes of the journal."""
_PARTS = 9000
"""Maximum parts of a large object; S3 takes 10,000."""
_PART = re.compile(r"\.dsv-([0-9a-f]{8})[0-9a-f]{8}(?:-a\xe9)?\.part")
_LEFT = 24 * 3600.0
"""Seconds after which a part that another machine was writing counts as abandoned."""
_AROUND = 4096
"""Bytes that a tar may need for a path, beside its content."""
_NOT_OPENED = ("other", "link")
"""Types of paths that are not read: opening a named pipe would wait for its writer."""
Info = dict[str, Any]


class UrlExport:
    """Writes below one URL, with a journal in `notes`. Raises `Unsupported` for a read-only protocol."""

    def __init__(self, place: RemoteRoot, url: str, notes: Path, progress: Progress, *, force: bool) -> None:
        if place.protocol in HTTP:
            hint = "export to s3:// or sftp://, or to a folder"
            raise Unsupported(f"HTTP export is not supported: {place.shown}", subject=place.shown, hint=hint)
        self.place, self._fs, self._url = place, place.fs, url
        self._progress, self._force = progress, force
        self._is_store = place.protocol in OBJECT_STORES
        self._made: set[str] = set()
        self._journal = ExchangeJournal(notes, url.rstrip("/"), SAVE_SECONDS)
        self._mark = blake3(f"{socket.gethostname()} {self._journal.path}".encode()).hexdigest(length=4)

    def tar(self, selection: Selection) -> Exported:
        """Write one tar. Raises `Conflict` if the URL exists, unless it is a file and `force` is given."""
        if "/" not in self.place.root:
            text = f"{self.place.shown} is a bucket, not a file in one"
            raise UsageError(text, subject=self.place.shown, hint="s3://bucket/NAME.tar")
        info = self.place.root_info()
        if info is not None and (not self._force or info.get("type") == "directory"):
            raise taken(self.place.shown, "choose another name; --force replaces a file, but no folder")
        most = sum(entry.size + _AROUND for _, entry, _ in selection.found)
        with self._writing(self.place.root, most) as out:
            write_tar(selection, out, self.place.root)
        return selection.exported()

    def files(self, selection: Selection) -> Exported:
        """Write the files that are missing or differ. Each appears when it is whole. Raises `Conflict` if
        another export from this machine writes to the URL: its parts would be removed."""
        files = [each for each in selection.found if each[1].is_file]
        path = self._journal.path.with_suffix(".lock")
        with about(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        lock = Lock.take(path, "dsv export")
        if not isinstance(lock, Lock):
            raise lock.refusal(self.place.shown)
        with lock, ThreadPoolExecutor(JOBS, "dsv-export") as pool:
            info: Info | None = {"type": "directory"}
            if selection.is_one_file and "/" in self.place.root and not self._url.endswith("/"):
                info = self.place.root_info()
            if info is None or info.get("type") != "directory":  # the file gets the URL's own name
                files = [(b"", *each[1:]) for each in files]
                there, folders = ({} if info is None else {b"": info}), set[bytes]()
            else:
                there, folders = self._list()
            write = self._plan(files, there, folders, pool)
            known = len(files) - len(write)
            self._check_names({*there, *(name for name, _, _ in files)})
            self._progress.start(len(write), sum(entry.size for _, entry, _ in write))
            self._write_all(selection, write, pool)
            self._progress.finish()
        write = [each for each in write if each[1].path not in selection.damaged]
        self._check_written(name for name, _, _ in write)
        done = selection.exported()
        return replace(
            done,
            paths=done.files,
            known=known,
            written=len(write),
            written_bytes=sum(entry.size for _, entry, _ in write),
            left_out=len(selection.found) - len(files),
            stays=len(there.keys() - {name for name, _, _ in files}),
        )

    def _plan(
        self, files: Found, there: dict[bytes, Info], folders: set[bytes], pool: ThreadPoolExecutor
    ) -> Found:
        """Return the files to write, in tree order. Raises `Conflict`. A file of the right size without a journal
        entry is compared: a killed export may have written it."""
        wanted = {name: entry for name, entry, _ in files}
        noted: dict[bytes, FileId | None] = {}
        compared: list[tuple[bytes, Entry]] = []
        for name, info in there.items():
            entry = wanted.get(name)
            if (stored := self._journal.find(self._key(name), version_of(info))) is not None:
                noted[name] = stored.file_id
            elif entry is not None and info.get("size") == entry.size and info["type"] not in _NOT_OPENED:
                compared.append((name, entry))
        for (name, entry), is_same in zip(compared, pool.map(self._holds, compared), strict=True):
            if is_same:
                noted[name] = entry.file_id
                self._journal.add(self._key(name), version_of(there[name]), entry)
        self._journal.save()
        write = [each for each in files if noted.get(each[0]) != each[1].file_id]
        clashing = () if self._is_store else _clashes({name for name, _, _ in write}, set(there), folders)
        if clashing:
            raise self._refused(
                "a folder in place of a file, or a file or a link in place of a folder",
                clashing,
                "remove what is listed, or choose an empty place; --force does not replace folders",
            )
        foreign = there.keys() - noted.keys()
        if foreign and not self._force:
            raise self._refused(
                f"{format_count(len(foreign), 'file')} that no dsv export from here has written",
                foreign,
                "choose an empty place; --force replaces the files in the way, and leaves the others",
            )
        return sorted(write, key=lambda each: sort_key(each[1].path))

    def _refused(self, what: str, names: Iterable[bytes], hint: str) -> Conflict:
        listed = format_lines([self._key(name) for name in sorted(names)])
        text = f"nothing was written: {self.place.shown} has {what}:{listed}"
        return Conflict(text, subject=self.place.shown, hint=hint)

    def _write_all(self, selection: Selection, write: Found, pool: ThreadPoolExecutor) -> None:
        waiting: deque[tuple[str, Entry, Future[str | None]]] = deque()

        def end_one() -> None:
            key, entry, future = waiting.popleft()
            self._journal.add(key, future.result(), entry)
            self._progress.advance(files=1, bytes=entry.size, transferred=entry.size)

        try:
            for name, entry, pieces in selection.contents(write):
                key = self._key(name)
                future: Future[str | None] = Future()
                try:
                    if entry.size > SMALL:
                        future.set_result(self._write(key, pieces, entry.size))
                    else:
                        future = pool.submit(self._write, key, list(pieces), entry.size)
                    waiting.append((key, entry, future))
                except IntegrityError as error:
                    selection.skip(error, entry.path)
                while len(waiting) > 4 * JOBS or sum(one.size for _, one, _ in waiting) > AHEAD_BYTES:
                    end_one()
            while waiting:
                end_one()
        finally:
            for _, _, future in waiting:
                future.cancel()
            self._journal.save()

    def _write(self, key: str, pieces: Iterable[bytes], size: int) -> str | None:
        """Write a file. Return its version for the journal, or None if the server has no versions."""
        if self._is_store and size <= SMALL:  # one request, whose answer may have the entity tag
            with self.place.at_work("written"):
                answer = self._fs.pipe_file(key, b"".join(pieces))
            return version_of(answer if isinstance(answer, dict) else self.place.info(key))
        with self._writing(key, size) as file:
            file.writelines(pieces)
        return version_of(self.place.info(key))

    @contextmanager
    def _writing(self, key: str, size: int) -> Iterator[Any]:
        """Yield a file that gets its name at the end, and never after an error: in a bucket an object appears
        when it is whole; elsewhere the file has a temporary name beside it. size: the maximum bytes."""
        folder = key.rpartition("/")[0]
        draft = f"{folder}/.dsv-{self._mark}{os.urandom(4).hex()}.part"
        with self.place.at_work("written"):
            if self._is_store:
                file = self._fs.open(key, "wb", block_size=max(PIECE, size // _PARTS + 1), autocommit=False)
            else:
                self._make(folder)
                file = self._fs.open(draft, "wb")
            try:
                yield file
                file.close()
                if self._is_store:
                    file.commit()
                else:
                    self.place.rename(draft, key)
            except BaseException:
                with suppress(Exception):
                    file.discard() if self._is_store else file.close()
                if self._is_store:
                    file.closed = True  # else fsspec closes it later, and some servers show what is not whole
                else:
                    with suppress(Exception):
                        self._fs.rm_file(draft)
                raise

    def _make(self, folder: str) -> None:
        """Make a folder. Those below the root are made one by one, because `makedirs` recurses."""
        missing = [folder]
        while len(missing[-1]) > len(self.place.root) and missing[-1] not in self._made:
            missing.append(missing[-1].rpartition("/")[0])
        for one in reversed(missing):
            if one not in self._made:
                self._fs.makedirs(one, exist_ok=True)
                self._made.add(one)

    def _key(self, name: bytes) -> str:
        """Return the key of a file by its name relative to the URL; b"" is the file at the URL itself."""
        return f"{self.place.root}/{name.decode('utf-8', 'surrogateescape')}" if name else self.place.root

    def _name(self, key: str) -> bytes:
        return self.place.name(key).encode("utf-8", "surrogateescape")

    def _list(self) -> tuple[dict[bytes, Info], set[bytes]]:
        """Return all files and folders there. Remove the parts that killed exports have left."""
        files: dict[bytes, Info] = {}
        folders: set[bytes] = set()
        listed: dict[str, Info] = {}
        with suppress(NotFound):
            listed = self.place.find()
        for key, info in listed.items():
            name = self._name(key)
            part = _PART.fullmatch(key.rpartition("/")[2])
            if key.endswith("/") or info.get("type") == "directory":
                folders.add(name)
            elif part is None or self._is_store:
                files[name] = info
            else:
                written = etag_and_time(info)[1]  # by the server's clock
                is_old = isinstance(written, int | float) and time.time() - written > _LEFT
                if part[1] == self._mark or is_old:
                    with suppress(OSError):
                        self._fs.rm_file(key)
        return files, folders

    def _check_names(self, names: set[bytes]) -> None:
        """Raises `Unsupported` if files would have one name there. Only where names are similar, it is tried."""
        ordered = sorted(names, key=sort_key)
        if self._is_store or not fold_clashes(ordered, ends=True):
            return
        probe = f"{self.place.root}/.dsv-{self._mark}{os.urandom(4).hex()}-a\xe9.part"
        try:
            with self._writing(probe, 0):
                pass
            with self.place.at_work("read"):
                self._fs.invalidate_cache()
                found = found_otherwise(probe, self._fs.exists)
        finally:
            with suppress(Exception):
                self._fs.rm_file(probe)
        refuse_clashes(self.place.shown, found, ordered)

    def _check_written(self, written: Iterable[bytes]) -> None:
        """Raises `IntegrityError` if files do not have their names there: some servers change names."""
        if self._is_store:
            return
        keys = {self._key(name) for name in written}
        for folder in {key.rpartition("/")[0] for key in keys}:
            keys -= {self._key(self._name(one["name"])) for one in self.place.list_folder(folder)}
        if keys:
            text = f"{self.place.shown} has changed the names of {format_count(len(keys), 'file')}:"
            hint = "export to a tar, or to a place that takes all names"
            raise IntegrityError(text + format_lines(sorted(keys)), subject=self.place.shown, hint=hint)

    def _holds(self, named: tuple[bytes, Entry]) -> bool:
        (name, entry), proof = named, blake3()
        with self.place.at_work("read"), self._fs.open(self._key(name), "rb", block_size=PIECE) as file:
            while data := file.read(PIECE):
                proof.update(data)
        return proof.digest() == entry.file_id


def _clashes(names: set[bytes], there: set[bytes], folders: set[bytes]) -> set[bytes]:
    """Return folders with the name of a file to write, and files and links where one needs a folder."""
    folders = folders.union(*map(folders_above, there))
    needed = {b""}.union(*map(folders_above, names)) if any(names) else set()
    return {name + b"/" for name in names & folders} | (needed & there)
