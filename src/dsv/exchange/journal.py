"""Journals of files that imports have stored and exports have written, so that the next ones skip them.

A journal is a file of lines beside the local copies of a store's metadata, one for each source URL. A line
has the content of a version of a file, and is written once the store has the content and an index with it.
Each use checks whether the store still has it: a lost journal or a restored store only costs reading.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import msgspec
from blake3 import blake3

from dsv.errors import UsageError
from dsv.files.errors import about
from dsv.files.small_files import sync_data
from dsv.format.tree import Entry
from dsv.transfer.upload import StoredContent
from dsv.values.ids import FileId, RecipeId
from dsv.values.json import is_text
from dsv.values.secrets import hide_in_urls


class _Line(msgspec.Struct, array_like=True, frozen=True):
    key: str
    version: str
    size: int
    file_id: FileId
    recipe_id: RecipeId | None


_ENCODER = msgspec.json.Encoder(enc_hook=str)
_DECODER = msgspec.json.Decoder(_Line, dec_hook=lambda kind, text: kind.parse(text))  # type: ignore[attr-defined]


def _digest(text: str) -> str:
    return blake3(text.encode("utf-8", "surrogateescape")).hexdigest(length=16)


def _without_secret(key: str) -> str:
    """Return a text that only this key has, without the secret of a URL."""
    shown = hide_in_urls(key)
    return key if shown == key else f"{shown} {_digest(key)}"


class ExchangeJournal:
    """The journal of one URL and one store. every: the seconds after which `add` saves; never by default."""

    def __init__(self, folder: Path, url: str, every: float = math.inf) -> None:
        self.path = folder / f"{_digest(hide_in_urls(url))}.jsonl"
        if hide_in_urls(url) != url:  # earlier versions have kept the secret
            (folder / f"{_digest(url)}.jsonl").unlink(missing_ok=True)
        self._known: dict[str, _Line] = {}
        self._new: list[_Line] = []
        self._every, self._saved = every, time.monotonic()
        try:
            lines = self.path.read_bytes().split(b"\n")
        except OSError:
            return
        for line in lines:
            try:
                read = _DECODER.decode(line)
            except (msgspec.DecodeError, UsageError):
                continue  # torn, or of another version
            self._known[read.key] = read

    def find(self, key: str, version: str | None) -> StoredContent | None:
        known = self._known.get(_without_secret(key))
        if known is None or version is None or known.version != version:
            return None
        return StoredContent(known.size, known.file_id, known.recipe_id, None)

    def add(self, key: str, version: str | None, stored: StoredContent | Entry) -> None:
        """Add a line, which the next `save` writes. A name that is not UTF-8 gets none."""
        if version is not None and stored.file_id is not None and is_text(key):
            self._new.append(
                _Line(_without_secret(key), version, stored.size, stored.file_id, stored.recipe_id)
            )
        if time.monotonic() - self._saved > self._every:
            self.save()

    def save(self) -> None:
        """Write the new lines. Everything added must be durable in the store, and in an index."""
        self._saved = time.monotonic()
        if not self._new:
            return
        with about(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
                file.write(b"\n" + b"\n".join(map(_ENCODER.encode, self._new)) + b"\n")
                file.flush()
                sync_data(file.fileno())
        self._known.update((line.key, line) for line in self._new)
        self._new.clear()
