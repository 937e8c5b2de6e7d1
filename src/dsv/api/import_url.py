"""Committing what lies at a URL, without a workspace and without a copy of it on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from dsv.api.context import Context
from dsv.api.edits import Edited, EditRequest, PutSources, edit_in
from dsv.exchange.import_ import FolderSource, RemoteFile
from dsv.exchange.journal import Journal
from dsv.exchange.tar import TarSource, open_source
from dsv.format.tree import Kind
from dsv.store.options import StoreOptions
from dsv.transfer.file_reader import Problem
from dsv.transfer.save import Source
from dsv.transfer.upload import Stored, Uploader
from dsv.values.names import Target

SAVE_BYTES = 256 << 20
SAVE_SECONDS = 60.0
"""The most that a killed import has to read again, but for one file."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import."""

    edited: Edited
    found: int
    known: int
    """Files that an earlier import has stored, so that they were not read again."""
    read: int
    read_bytes: int


def import_url(
    context: Context,
    url: str,
    target: Target,
    request: EditRequest,
    *,
    mirror: bool = False,
    options: StoreOptions | None = None,
) -> Imported:
    """Add and replace the files at the URL at and below the target's path, as one commit.

    mirror: what is at the target's path and not at the URL goes. options: how to reach an s3:// URL; None: as the
    store.
    Raises what `edits.edit` does, `NotFound` if nothing is at the URL, and `Unsupported` if a package is missing.
    """
    reach = options or context.store_options(context.settings.store())
    with context.store() as store, open_source(url, reach) as source:
        files, skipped = source.files()
        repository = context.open_repository(store, Target(target.dataset, target.rev))
        folder = context.metadata / "stores" / str(repository.id) / "imports"
        importing = _Importing(Journal(folder, url.rstrip("/")), source, files)
        problems = [Problem(path, reason) for path, reason in skipped]
        edits = [PutSources(target.path or b"", importing.sources, mirror, problems)]
        edited = edit_in(context, repository, store, target, edits, request, importing.stored)
        if not request.dry_run:
            importing.journal.save()
        return Imported(edited, len(files), importing.known, importing.read, importing.read_bytes)


class _Importing:
    def __init__(self, journal: Journal, remote: FolderSource | TarSource, files: list[RemoteFile]) -> None:
        self.journal = journal
        self.known = self.read = self.read_bytes = 0
        self._remote = remote
        self._unsaved, self._saved = 0, time.monotonic()
        self._of: dict[Source, RemoteFile] = {}
        self.sources: list[tuple[bytes, Source]] = []
        unknown: list[RemoteFile] = []
        for file in files:
            stored = journal.find(file.key, file.version)
            if stored is None:
                unknown.append(file)
            self.known += stored is not None
            size = file.size or 0 if stored is None else stored.size
            source = Source(
                Kind.FILE, size, open=partial(remote.reader, file), stored=stored, order=file.order
            )
            self._of[source] = file
            self.sources.append((file.path, source))
        self._unread = len(unknown)
        remote.read_ahead(unknown)

    def stored(self, uploader: Uploader, source: Source, stored: Stored) -> None:
        """A file was read and stored; now and then, what was stored is made durable and noted."""
        file = self._of[source]
        self.read += 1
        self.read_bytes += stored.size
        self._unsaved += stored.size
        self.journal.add(file.key, file.version, stored)
        saves = self._unsaved >= SAVE_BYTES or time.monotonic() - self._saved > SAVE_SECONDS
        if saves or self.read >= self._unread:
            self._remote.check()
        if saves:
            uploader.finish()
            self.journal.save()
            self._unsaved, self._saved = 0, time.monotonic()
