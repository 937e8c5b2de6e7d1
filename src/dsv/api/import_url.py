"""Committing what lies at a URL, without a workspace and without a copy of it on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as with_fields
from functools import partial

from dsv.api.context import Context
from dsv.api.edits import Edited, EditRequest, PutSources, branch_to_edit, edit_in
from dsv.errors import IntegrityError, NotFound
from dsv.exchange.import_ import FolderSource, RemoteFile
from dsv.exchange.journal import Journal
from dsv.exchange.reference import ReferredSource, open_referred
from dsv.exchange.tar import TarSource, open_source
from dsv.format.locator import ObjectKind
from dsv.format.tree import Kind
from dsv.repo.objects.objects import Objects
from dsv.repo.session import Session, check_whole
from dsv.repo.tree.read import TreeReader, reach_content
from dsv.store.options import StoreOptions
from dsv.transfer.download import Fetcher, Wanted
from dsv.transfer.file_reader import Problem
from dsv.transfer.save import ReadInto, Source
from dsv.transfer.upload import Stored, Uploader
from dsv.values.ids import FileId
from dsv.values.names import DatasetName, Target, clean_path
from dsv.values.progress import Progress

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
    reference: bool = False,
    options: StoreOptions | None = None,
) -> Imported:
    """Add and replace the files at the URL at and below the target's path, as one commit.

    mirror: what is at the target's path and not at the URL goes. reference: the files stay where they are, and the
    store notes where that is. options: how to reach an s3:// URL; None: as the
    store.
    Raises what `edits.edit` does, `NotFound` if nothing is at the URL, and `Unsupported` if a package is missing.
    """
    reach = options or context.store_options(context.settings.store())
    opened = open_referred(url, reach) if reference else open_source(url, reach)
    with context.store() as store, opened as source:
        files, skipped = source.files()
        repository = context.open_repository(store, Target(target.dataset, target.rev))
        folder = context.metadata / "stores" / str(repository.id) / "imports"
        noted = url.rstrip("/") + (
            "\0reference" if reference else ""
        )  # what was referred to is not stored yet
        importing = _Importing(Journal(folder, noted), source, files)
        problems = [Problem(path, reason) for path, reason in skipped]
        edits = [PutSources(target.path or b"", importing.sources, mirror, problems)]
        edited = edit_in(context, repository, store, target, edits, request, importing.stored)
        if not request.dry_run:
            importing.journal.save()
        return Imported(edited, len(files), importing.known, importing.read, importing.read_bytes)


def materialize(context: Context, url: str, target: Target, *, dry_run: bool = False) -> Imported:
    """Store the files at and below the target's path that are referred to at the URL or below it. The commit, and the
    ids of all that it has, stay.

    Raises as `edits.edit`, and `IntegrityError` once the rest is stored if a file is not what it was.
    """
    prefix = _prefix(context, url)
    with context.store() as store:
        repository = context.open_repository(store, Target(target.dataset, target.rev))
        dataset, branch, head = branch_to_edit(context, repository, target, create=False)
        if head is None or head.commit is None:
            raise NotFound(f"{dataset}@{branch} has no commit yet", subject=f"{dataset}@{branch}")
        tree = TreeReader(repository.objects, head.commit)
        found = list(_referred(tree, clean_path(target.path), prefix))
        done = Imported(
            Edited(
                dataset, branch, head.commit, head.commit, (), tree.commit.files, tree.commit.bytes, any_change=False
            ), len(found), 0, 0, 0,
        )  # fmt: skip
        if dry_run or not found:
            return done
        with Session.open(repository, context.writer) as session, Uploader(session) as uploader:
            check_whole(session, dataset, head.commit)
            read, lost = _store(repository.objects, dataset, uploader, found, context.progress)
            session.close()
        if lost:
            more = "" if len(lost) == 1 else f" (and so for {len(lost) - 1:,} more); the rest is stored"
            raise IntegrityError(f"{lost[0].message}{more}", subject=lost[0].subject, hint=lost[0].hint)
        edited = with_fields(done.edited, uploaded_bytes=uploader.uploaded_bytes)
        return with_fields(done, edited=edited, read=len(found), read_bytes=read)


def _prefix(context: Context, url: str) -> str:
    """Return what the URLs of references begin with, without a slash at the end."""
    whole = url if "://" in url else f"file://{(context.cwd / url).absolute()}"
    return whole.rstrip("/")


def _referred(tree: TreeReader, path: bytes, prefix: str) -> Iterator[Wanted]:
    objects, seen = tree.objects, set[FileId | None]()
    for entry, where in tree.below(path):
        if not entry.is_file or not entry.size or entry.file_id in seen:
            continue
        seen.add(entry.file_id)
        for kind, one, _ in reach_content(objects, entry, where):
            place = objects.find(kind, one) if kind is ObjectKind.CHUNK else None
            if place is not None and place.pack.is_external:
                at = objects.externals.row(place).source.url
                if at == prefix or at.startswith(f"{prefix}/"):
                    yield Wanted(entry, where)
                    break


def _store(
    objects: Objects, dataset: DatasetName, uploader: Uploader, found: list[Wanted], progress: Progress
) -> tuple[int, list[IntegrityError]]:
    """Return the bytes that were stored, and why files could not be read."""
    read = unsaved = 0
    lost: list[IntegrityError] = []
    progress.start(len(found), sum(one.entry.size for one in found))
    for one, content in Fetcher(objects, dataset).files(found):
        try:
            uploader.add_unsized(_readinto(content))
        except IntegrityError as error:
            lost.append(error)
            continue
        read, unsaved = read + one.entry.size, unsaved + one.entry.size
        progress.advance(files=1, bytes=one.entry.size)
        if unsaved >= SAVE_BYTES:
            uploader.finish()
            unsaved = 0
    uploader.finish()
    progress.finish()
    return read, lost


def _readinto(content: Iterator[bytes]) -> ReadInto:
    rest = memoryview(b"")

    def read(buffer: memoryview) -> int:
        nonlocal rest
        rest = rest or memoryview(next(content, b""))
        count = min(len(rest), len(buffer))
        buffer[:count] = rest[:count]
        rest = rest[count:]
        return count

    return read


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
                Kind.FILE,
                size,
                open=partial(remote.reader, file),
                stored=stored,
                order=file.order,
                reference=partial(remote.source, file) if isinstance(remote, ReferredSource) else None,
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
