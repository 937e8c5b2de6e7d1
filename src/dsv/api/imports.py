"""Import: commit the files at a URL without a workspace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from dataclasses import replace as with_fields
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dsv.api.context import Context
from dsv.api.edits import Edited, EditRequest, PutSources, branch_to_edit, edit_in
from dsv.errors import IntegrityError, NotFound
from dsv.exchange.export import Pieces
from dsv.exchange.hub import HubHistory, at_web
from dsv.exchange.journal import ExchangeJournal
from dsv.exchange.reference import ReferredSource, open_referred
from dsv.exchange.remote import absent
from dsv.exchange.revisions import DVC, HUB, DvcHistory, Revision, no_revisions
from dsv.exchange.sources import FolderSource, RemoteFile
from dsv.exchange.tars import open_source
from dsv.format.tree import Kind
from dsv.repo.repository import Repository
from dsv.repo.session import Session, check_whole
from dsv.repo.tree.reader import TreeReader, urls_of
from dsv.stores.options import StoreOptions
from dsv.transfer.download import Fetcher, WantedFile
from dsv.transfer.save import NewContent
from dsv.transfer.stable_read import Problem
from dsv.transfer.upload import StoredContent, Uploader
from dsv.values.ids import CommitId, FileId
from dsv.values.json import LONG_MAX, SHORT_MAX
from dsv.values.names import Target, clean_path
from dsv.values.secrets import hide_in_urls
from dsv.values.trailers import IMPORTED

SAVE_BYTES = 256 << 20
SAVE_SECONDS = 60.0
"""The most that a killed import has to read again, not counting one file."""


@dataclass(frozen=True, slots=True)
class ImportedRevision:
    """A revision of the source, and the commit that has its files."""

    revision: str
    commit: CommitId | None


@dataclass(frozen=True, slots=True)
class Imported:
    edited: Edited
    found: int
    known: int
    """Files stored by an earlier import, and therefore not read again."""
    read: int
    read_bytes: int
    revisions: tuple[ImportedRevision, ...] = ()
    """The chosen revisions that were not imported before."""


@dataclass(frozen=True, slots=True)
class Revisions:
    """The revisions of a source to import, each as one commit. Without any, only the URL's own."""

    names: Sequence[str] = ()
    every: bool = False
    """All revisions up to that of the URL."""
    dvc_remote: str | None = None
    """For DVC: the name or the URL of a remote other than the default."""

    def __bool__(self) -> bool:
        return bool(self.names) or self.every


class _Step(NamedTuple):
    request: EditRequest
    mirror: bool
    list_files: Callable[[], tuple[list[RemoteFile], list[Problem]]]
    revision: str = ""


def import_url(
    context: Context,
    url: str,
    target: Target,
    request: EditRequest,
    *,
    mirror: bool = False,
    reference: bool = False,
    options: StoreOptions | None = None,
    chosen: Revisions | None = None,
) -> Imported:
    """Add and replace the files at the URL at and below the target's path, as one commit.

    mirror: remove other files at the target's path. reference: leave the files where they are, and store only
    their location. options: how to reach an s3:// URL; None: like the store. chosen: make a commit of each of
    these revisions, with its author, time and message, which mirrors it, but not again; a dry run checks the
    last. Raises like `edits.edit`, `NotFound` if nothing is at the URL, `Unsupported` if a package is missing.
    """
    chosen = Revisions() if chosen is None else chosen
    reach = options or context.store_options(context.settings.store())
    noted = url.rstrip("/")
    with ExitStack() as stack:
        place = _history(url, reach, chosen, reference=reference)
        if place is not None:
            stack.enter_context(place)
            noted = place.url
            revisions = place.revisions(chosen.names, every=chosen.every)
            if not revisions:
                raise absent(place.url, "no revision with data")
            source: FolderSource | DvcHistory = place.source(revisions[-1], reference=reference)
            steps = [_Step(request, mirror, partial(place.files, item), item.id) for item in revisions]
        else:
            source = open_referred(url, reach) if reference else open_source(url, reach)
            steps = [_Step(request, mirror, source.files)]
        store = stack.enter_context(context.store())
        stack.enter_context(source)
        source.say = context.progress.note
        repository = context.open_repository(store, Target(target.dataset, target.rev))
        edited = None
        commits: list[ImportedRevision] = []
        if place is not None and chosen:
            edited, steps = _new_steps(context, repository, target, place.url, revisions, steps)
        noted += "\0reference" if reference else ""  # content referred to is not stored yet
        journal = ExchangeJournal(context.metadata / "stores" / str(repository.id) / "imports", noted)
        total = known = read = read_bytes = 0
        for step in steps[-1:] if request.dry_run else steps:
            files, skipped = step.list_files()
            if not files and not skipped and not chosen:
                raise absent(hide_in_urls(url), "no file")
            importing = _Importing(journal, source, files)
            put = PutSources(target.path or b"", importing.sources, step.mirror, skipped, importing.folder)
            edited = edit_in(context, repository, store, target, [put], step.request, importing.stored)
            if not request.dry_run:
                journal.save()
            commits.append(ImportedRevision(step.revision, edited.commit))
            total, known = total + len(files), known + importing.known
            read, read_bytes = read + importing.read, read_bytes + importing.read_bytes
        assert edited is not None
        return Imported(edited, total, known, read, read_bytes, tuple(commits) if chosen else ())


def _history(
    url: str, reach: StoreOptions, chosen: Revisions, *, reference: bool
) -> DvcHistory | HubHistory | None:
    """Return the revisions at the URL; None to import its present content."""
    if url.startswith(DVC):
        return DvcHistory(url, reach, chosen.dvc_remote)
    if url.startswith(HUB) and (chosen or reference) and not chosen.dvc_remote:
        return HubHistory(url, reach)
    if chosen or chosen.dvc_remote:
        raise no_revisions(url)
    return None


def _new_steps(
    context: Context,
    repository: Repository,
    target: Target,
    url: str,
    revisions: Sequence[Revision],
    steps: Sequence[_Step],
) -> tuple[Edited, list[_Step]]:
    """Return the unchanged branch, and the steps for revisions not imported before: the last line of a commit's
    message names its revision."""
    request = steps[0].request
    dataset, branch, head = branch_to_edit(context, repository, target, create=request.create)
    path = clean_path(target.path).decode("utf-8", "replace")
    url = url.encode("utf-8", "replace").decode()
    start, end = f"{IMPORTED}{url}@", f" to {path}" if path else ""
    lines = [f"{start}{revision.id}{end}" for revision in revisions]
    commit = last = None if head is None else head.commit
    first = 0
    while commit is not None and not first:
        record = repository.objects.commit(commit)
        line = record.message.rpartition("\n")[2]
        if line in lines:
            first = lines.index(line) + 1
        elif line.startswith(start) and line[len(start) :].partition(" ")[2] == end.strip():
            break
        commit = record.parents[0] if record.parents else None
    new = []
    for number in range(first, len(revisions)):
        revision, line = revisions[number], lines[number]
        request = with_fields(
            request,
            message=f"{revision.message[: LONG_MAX - len(line) - 2]}\n\n{line}",
            author=revision.author[:SHORT_MAX],
            time_ms=revision.time_ms,
            allow_removals=request.allow_removals or number > 0,
        )
        new.append(steps[number]._replace(request=request, mirror=True))
    whole = None if last is None else repository.objects.commit(last)
    files, size = (None, None) if whole is None else (whole.files, whole.bytes)
    return Edited(dataset, branch, last, last, (), files, size, any_change=False), new


def materialize(context: Context, url: str, target: Target, *, dry_run: bool = False) -> Imported:
    """Store the files at and below the target's path that refer to the URL or below it; all ids stay the same.
    Raises like `edits.edit`, and, after storing the others, `IntegrityError` if a file has changed."""
    whole = url if "://" in url else f"file://{(context.cwd / url).absolute()}"
    prefix = at_web(url) if url.startswith(HUB) else whole.rstrip("/")
    with context.store() as store:
        repository = context.open_repository(store, Target(target.dataset, target.rev))
        dataset, branch, head = branch_to_edit(context, repository, target, create=False)
        if head is None or head.commit is None:
            raise NotFound(f"{dataset}@{branch} has no commit yet", subject=f"{dataset}@{branch}")
        tree = TreeReader(repository.objects, head.commit)
        referred = list(_referred(tree, clean_path(target.path), prefix))
        now, size = head.commit, tree.commit.bytes
        unchanged = Edited(dataset, branch, now, now, (), tree.commit.files, size, any_change=False)
        done = Imported(unchanged, len(referred), 0, 0, 0)
        if dry_run or not referred:
            return done
        with Session.open(repository, context.writer) as session, Uploader(session) as uploader:
            check_whole(session, dataset, head.commit)
            read = unsaved = 0
            lost: list[IntegrityError] = []
            context.progress.start(len(referred), sum(file.entry.size for file in referred))
            for file, content in Fetcher(repository.objects, dataset).files(referred):
                try:
                    uploader.add_unsized(Pieces(content).readinto)
                except IntegrityError as error:
                    lost.append(error)
                    continue
                read, unsaved = read + file.entry.size, unsaved + file.entry.size
                context.progress.advance(files=1, bytes=file.entry.size)
                if unsaved >= SAVE_BYTES:
                    uploader.finish()
                    unsaved = 0
            uploader.finish()
            context.progress.finish()
        if lost:
            more = "" if len(lost) == 1 else f" (and so for {len(lost) - 1:,} more); the rest is stored"
            raise IntegrityError(f"{lost[0].message}{more}", subject=lost[0].subject, hint=lost[0].hint)
        edited = with_fields(done.edited, uploaded_bytes=uploader.uploaded_bytes)
        return with_fields(done, edited=edited, read=len(referred), read_bytes=read)


def _referred(tree: TreeReader, path: bytes, prefix: str) -> Iterator[WantedFile]:
    objects, seen = tree.objects, set[FileId | None]()
    for entry, where in tree.below(path):
        if not entry.is_file or not entry.size or entry.file_id in seen:
            continue
        seen.add(entry.file_id)
        if any(url == prefix or url.startswith(f"{prefix}/") for url in urls_of(objects, entry, where)):
            yield WantedFile(entry, where)


class _Importing:
    def __init__(
        self, journal: ExchangeJournal, remote: FolderSource | DvcHistory, files: list[RemoteFile]
    ) -> None:
        self.journal = journal
        self.known = self.read = self.read_bytes = 0
        self._remote = remote
        at = remote.place if isinstance(remote, FolderSource) else None
        self.folder = Path(at.root) if at is not None and "file" in at.protocols else None
        self._unsaved, self._saved = 0, time.monotonic()
        self._of: dict[NewContent, RemoteFile] = {}
        self.sources: list[tuple[bytes, NewContent]] = []
        self._same: dict[str, list[NewContent]] = {}
        unknown: list[RemoteFile] = []
        for file in files:
            stored = journal.find(file.content_key, file.version)
            if stored is None and file.content_key not in self._same:
                unknown.append(file)
            self.known += stored is not None
            size = file.size or 0 if stored is None else stored.size
            place = remote.of(file) if isinstance(remote, DvcHistory) else remote
            source = NewContent(
                Kind.EXECUTABLE if file.executable else Kind.FILE,
                size,
                path=os.fsencode(file.key) if self.folder else file.path,
                open=partial(place.reader, file),
                stored=stored,
                order=file.order,
                reference=partial(place.source, file) if isinstance(place, ReferredSource) else None,
            )
            self._of[source] = file
            self._same.setdefault(file.content_key, []).append(source)
            self.sources.append((file.path, source))
        self._unread = len(unknown)
        remote.read_ahead(unknown)

    def stored(self, uploader: Uploader, source: NewContent, stored: StoredContent) -> None:
        """Record that a file was read and stored; from time to time make that durable, with the journal."""
        file = self._of[source]
        for other in self._same[file.content_key]:
            other.stored = stored
        self.read += 1
        self.read_bytes += stored.size
        self._unsaved += stored.size
        self.journal.add(file.content_key, file.version, stored)
        saves = self._unsaved >= SAVE_BYTES or time.monotonic() - self._saved > SAVE_SECONDS
        if saves or self.read >= self._unread:
            self._remote.check()
        if saves:
            uploader.finish()
            self.journal.save()
            self._unsaved, self._saved = 0, time.monotonic()
