"""Writing objects at a URL so that none is seen half written, and telling later whether one is still as written."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

from blake3 import blake3

from dsv.errors import Unsupported
from dsv.exchange.remote import S3, Place, version_of
from dsv.model.ids import FileId

_WHOLE = (*S3, "gs", "gcs", "az", "abfs", "abfss")
"""Protocols of object stores, where an object is there when all of it is."""
_READ_ONLY = ("http", "https")
_PIECE = 8 << 20
_PARTS = 9000
"""Into how many pieces a large object goes: S3 takes 10,000."""
_PART = re.compile(r"\.dsv-([0-9a-f]{8})[0-9a-f]{8}\.part")
_LEFT = 24 * 3600.0
"""How old, in seconds, what another machine was writing must be to count as left behind."""
_MD5 = "md5 "


class RemoteWrites:
    """What lies below a URL, and new files there. Several threads may write.

    writer: who writes there from this machine, one at a time: what it has left half written can be removed. Raises
    `Unsupported`.
    """

    def __init__(self, place: Place, writer: str) -> None:
        if place.protocol in _READ_ONLY:
            raise Unsupported(
                f"{place.shown} can't be written: its kind of server has no such thing", subject=place.shown
            )
        self.place = place
        self._mark = blake3(f"{socket.gethostname()} {writer}".encode()).hexdigest(length=4)
        self._fs = place.fs
        self._whole = place.protocol in _WHOLE
        self._folders: set[str] = set()
        self._folders_there: set[str] = set()

    def key(self, path: bytes) -> str:
        return f"{self.place.root}/{path.decode('utf-8', 'surrogateescape')}"

    def found(self) -> dict[str, dict[str, Any]]:
        """Every file there, by its key. What a killed export has left half written is removed."""
        with self.place.at_work("listed"):
            self._fs.invalidate_cache()
            try:
                listed: dict[str, dict[str, Any]] = self._fs.find(
                    self.place.root, detail=True, withdirs=not self._whole
                )
            except FileNotFoundError:
                return {}
        files: dict[str, dict[str, Any]] = {}
        for key, info in listed.items():
            whole_key = "/" + key.lstrip("/") if self.place.root.startswith("/") else key
            if key.endswith("/") or info.get("type") == "directory":
                if not self._whole:  # in an object store it is what consoles put there to show a folder
                    self._folders_there.add(whole_key.rstrip("/"))
                continue
            part = None if self._whole else _PART.fullmatch(key.rpartition("/")[2])
            if part is None:
                files[whole_key] = info
            elif part[1] == self._mark or _age(info) > _LEFT:
                with suppress(OSError):
                    self._fs.rm_file(key)
        return files

    def clashes(self, keys: Iterable[str], there: Collection[str]) -> list[str]:
        """What `found` has found and keeps files with these keys from being written: a folder that has the name of one
        (told with a slash at its end), and a file or a link where one needs a folder. An object store has no such
        thing.
        """
        if self._whole:
            return []
        keys, root = list(keys), self.place.root
        folders = self._folders_there | _folders_above(there, root)
        clashing = {f"{key}/" for key in keys if key in folders}
        return sorted(clashing.union(_folders_above(keys, root).intersection(there)))

    def prepare(self, path: bytes) -> None:
        """Makes the folders above a file, if there are such things. For one thread."""
        folder = self.key(path).rpartition("/")[0]
        if not self._whole and folder not in self._folders:
            with self.place.at_work("written"):
                self._fs.makedirs(folder, exist_ok=True)
            self._folders.add(folder)

    def write(self, path: bytes, data: bytes) -> str | None:
        """A small file; gives what its version is to be known by, if the server has such a thing."""
        key = self.key(path)
        with self.place.at_work("written"):
            if not self._whole:
                with self._beside(key) as file:
                    file.write(data)
                return self._version(key)
            self._fs.pipe_file(key, data)
            if self.place.protocol in S3:
                return _MD5 + hashlib.md5(data, usedforsecurity=False).hexdigest()
            return self._version(key)

    def write_large(self, path: bytes, pieces: Iterable[bytes], size: int) -> str | None:
        """A file that comes in pieces; if they end in an error, nothing is there."""
        with self.writing(path, size) as file:
            for piece in pieces:
                file.write(piece)
        with self.place.at_work("read"):
            return self._version(self.key(path))

    @contextmanager
    def writing(self, path: bytes, size: int) -> Iterator[Any]:
        """Gives a file to write to, which is there after that; if it ends in an error, nothing is there. size: how much
        will be written at most."""
        key = self.key(path)
        with self.place.at_work("written"):
            if not self._whole:
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
                file.closed = True  # else fsspec closes it at the end, and some servers show what came so far
                raise

    def holds(self, key: str, file_id: FileId) -> bool:
        """Whether the file there has this content; reads it."""
        proof = blake3()
        with self.place.at_work("read"), self._fs.open(key, "rb", block_size=_PIECE) as file:
            while data := file.read(_PIECE):
                proof.update(data)
        return proof.digest() == file_id

    @contextmanager
    def _beside(self, key: str) -> Iterator[Any]:
        """A file with a name beside its own, which it gets when it is whole."""
        draft = f"{key.rpartition('/')[0]}/.dsv-{self._mark}{os.urandom(4).hex()}.part"
        try:
            with self._fs.open(draft, "wb") as file:
                yield file
            if self.place.protocol in ("file", "local") or "file" in _protocols(self._fs):
                os.replace(draft, key)  # noqa: PTH105 (names, no paths)
            else:
                self._fs.mv(draft, key)
        except BaseException:
            with suppress(Exception):
                self._fs.rm_file(draft)
            raise

    def _version(self, key: str) -> str | None:
        self._fs.invalidate_cache(key.rpartition("/")[0])
        return version_of(self._fs.info(key))


def is_version(written: str, info: dict[str, Any]) -> bool:
    """Whether the file that the server tells of is the one that a write gave this version of."""
    if written.startswith(_MD5):
        return str(info.get("ETag", "")).strip('"') == written.removeprefix(_MD5)
    return version_of(info) == written


def is_plain(info: dict[str, Any]) -> bool:
    """Whether it is a file that can be read to compare it: to open a named pipe would wait for its writer."""
    return info.get("type") not in ("other", "link")


def _age(info: dict[str, Any]) -> float:
    """Seconds since the file was written, by the server's time; 0 if the server doesn't tell."""
    written = info.get("mtime")
    if isinstance(written, datetime):
        written = written.timestamp()
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


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
