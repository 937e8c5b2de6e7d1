"""Writing the files of a commit to any URL, many at a time; what is there already is not written again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dsv.api.context import Context
from dsv.api.export import Found, contents_of, found_entries
from dsv.api.remote_writes import RemoteWrites, is_plain, is_version
from dsv.errors import Conflict
from dsv.exchange.journal import Journal
from dsv.exchange.remote import open_place, version_of
from dsv.fs.errors import about
from dsv.fs.lock import Lock
from dsv.model.entry import Entry, sort_key
from dsv.model.ids import CommitId
from dsv.model.names import Target
from dsv.model.progress import Progress
from dsv.model.units import format_count
from dsv.repo.trees import TreeReader
from dsv.store.options import StoreOptions
from dsv.transfer.upload import Stored

SMALL = 8 << 20
"""Bytes of the largest file that is written at once."""
UNDER_WAY = 128 << 20
"""Bytes of files that may be under way, so that memory is bounded."""
JOBS = 32
SAVE_FILES = 1000
SAVE_SECONDS = 10.0
"""How often what was written is noted, so that an export that goes on need not read it to know it."""
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class ExportedToUrl:
    """files, bytes: of the target. known: files that were there already. written: the others.

    left_out: symlinks and empty folders, of which URLs know nothing. stays: files there that the target does not have.
    """

    commit: CommitId
    files: int
    bytes: int
    known: int
    written: int
    written_bytes: int
    left_out: int
    stays: int


@dataclass(slots=True)
class _Plan:
    """known: how many files are there, and right. write: what is to be written. read: what must be read to tell.

    foreign: keys of others' files. stays: how many files there the target does not have.
    """

    known: int = 0
    write: Found = field(default_factory=list)
    read: Found = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    stays: int = 0


def export_url(
    context: Context, target: Target, url: str, *, force: bool = False, options: StoreOptions | None = None
) -> ExportedToUrl:
    """Writes the target's files below the URL, each checked before it is there under its name.

    options: how to reach an s3:// URL; None: as the store. force: replaces what others have put there in the way, and
    leaves alone what is not. Raises `Conflict` with nothing written if there is something of others, if a folder is
    where a file is to be or the reverse, or if another export writes there, and `Unsupported` if a package is missing
    or the server can't be written to.
    """
    reach = options or context.store_options(context.settings.store())
    place = open_place(url, reach)
    with context.repository(target) as repository:
        commit = context.resolve(repository, target).commit
        tree = TreeReader(repository.objects, commit)
        found = found_entries(tree, target)
        files = [each for each in found if each[1].is_file]
        folder = context.metadata / "stores" / str(repository.id) / "exports"
        journal = Journal(folder, url.rstrip("/"))
        writes = RemoteWrites(place, str(journal.path))
        with _alone(journal.path, place.shown), ThreadPoolExecutor(JOBS, "dsv-export") as pool:
            there = writes.found()
            plan = _planned(files, there, journal, writes)
            clashing = writes.clashes((writes.key(name) for name, _, _ in plan.write), there)
            if clashing:
                raise _clash(writes.place.shown, clashing)
            _look_into(plan, pool, writes, journal, there)
            plan.write.sort(key=lambda each: sort_key(each[1].path))  # as they lie in the store
            if plan.foreign and not force:
                journal.save()
                raise _occupied(writes.place.shown, plan.foreign)
            context.progress.start(len(plan.write), sum(entry.size for _, entry, _ in plan.write))
            exporting = _Exporting(writes, journal, pool, context.progress)
            exporting.run((name, entry, pieces) for name, entry, pieces in contents_of(tree, plan.write))
            context.progress.finish()
    return ExportedToUrl(
        commit,
        len(files),
        sum(entry.size for _, entry, _ in files),
        plan.known,
        len(plan.write),
        sum(entry.size for _, entry, _ in plan.write),
        len(found) - len(files),
        plan.stays,
    )


def _alone(journal: Path, shown: str) -> Lock:
    """One export from this machine to one URL at a time: it takes parts of files that it finds there for leftovers.

    Raises `Conflict`.
    """
    with about(journal):
        journal.parent.mkdir(parents=True, exist_ok=True)
    taken = Lock.take(journal.with_suffix(".lock"), "dsv export")
    if isinstance(taken, Lock):
        return taken
    who = "another dsv export" if taken.owner is None else f"dsv export (process {taken.owner.pid})"
    raise Conflict(f"{who} writes to {shown} now", subject=shown, hint="wait for it to end")


def _planned(
    files: Found, there: dict[str, dict[str, object]], journal: Journal, writes: RemoteWrites
) -> _Plan:
    """By what the server lists and what earlier exports have noted; reads nothing."""
    plan = _Plan()
    keys = set()
    for each in files:
        name, entry, _ = each
        key = writes.key(name)
        keys.add(key)
        info = there.get(key)
        noted = None if info is None else journal.find_if(key, partial(_is, info))
        if info is None or (noted is not None and noted.file_id != entry.file_id):
            plan.write.append(each)
        elif noted is not None:
            plan.known += 1
        elif info.get("size") == entry.size and is_plain(info):
            plan.read.append(each)
        else:
            plan.foreign.append(key)
            plan.write.append(each)
    for key, info in there.items():
        if key not in keys:
            plan.stays += 1
            if journal.find_if(key, partial(_is, info)) is None:
                plan.foreign.append(key)
    return plan


def _is(info: dict[str, object], version: str) -> bool:
    return is_version(version, info)


def _look_into(
    plan: _Plan,
    pool: ThreadPoolExecutor,
    writes: RemoteWrites,
    journal: Journal,
    there: dict[str, dict[str, object]],
) -> None:
    """Reads what has the right size and nobody has noted: an export that was killed may have written it."""

    def same(entry: Entry, key: str) -> bool:
        return entry.file_id is not None and writes.holds(key, entry.file_id)

    answers = [pool.submit(same, entry, writes.key(name)) for name, entry, _ in plan.read]
    for each, answer in zip(plan.read, answers, strict=True):
        name, entry, _ = each
        key = writes.key(name)
        if answer.result():
            plan.known += 1
            journal.add(key, version_of(there[key]), _stored(entry))
        else:
            plan.foreign.append(key)
            plan.write.append(each)
    journal.save()


class _Exporting:
    """Writes small files by several threads, and large ones by this one."""

    def __init__(
        self, writes: RemoteWrites, journal: Journal, pool: ThreadPoolExecutor, progress: Progress
    ) -> None:
        self._writes = writes
        self._journal = journal
        self._pool = pool
        self._progress = progress
        self._under_way: deque[tuple[bytes, Entry, Future[str | None]]] = deque()
        self._bytes = 0
        self._unsaved, self._saved = 0, time.monotonic()

    def run(self, contents: Iterator[tuple[bytes, Entry, Iterator[bytes]]]) -> None:
        try:
            for name, entry, pieces in contents:
                self._writes.prepare(name)
                if entry.size > SMALL:
                    self._note(name, entry, self._writes.write_large(name, pieces, entry.size))
                    continue
                data = b"".join(pieces)
                self._under_way.append((name, entry, self._pool.submit(self._writes.write, name, data)))
                self._bytes += entry.size
                while self._bytes > UNDER_WAY or len(self._under_way) > 4 * JOBS:
                    self._end_one()
            while self._under_way:
                self._end_one()
        finally:
            for _, _, future in self._under_way:
                future.cancel()
            self._journal.save()

    def _end_one(self) -> None:
        name, entry, future = self._under_way.popleft()
        self._bytes -= entry.size
        self._note(name, entry, future.result())

    def _note(self, name: bytes, entry: Entry, version: str | None) -> None:
        self._journal.add(self._writes.key(name), version, _stored(entry))
        self._progress.advance(files=1, bytes=entry.size, transferred=entry.size)
        self._unsaved += 1
        if self._unsaved >= SAVE_FILES or time.monotonic() - self._saved > SAVE_SECONDS:
            self._journal.save()
            self._unsaved, self._saved = 0, time.monotonic()


def _stored(entry: Entry) -> Stored:
    assert entry.file_id is not None
    return Stored(entry.size, entry.file_id, entry.recipe_id, None)


def _occupied(shown: str, keys: list[str]) -> Conflict:
    return Conflict(
        f"nothing was written, as {shown} has {format_count(len(keys), 'file')} that no dsv export from here has "
        f"written:{_listed(keys)}",
        subject=shown,
        hint="name an empty place; --force replaces those that are in the way, and leaves the others",
    )


def _clash(shown: str, keys: list[str]) -> Conflict:
    return Conflict(
        f"nothing was written, as {shown} has a folder where a file is to be written, or a file or a link where a "
        f"folder is to be:{_listed(keys)}",
        subject=shown,
        hint="remove what is listed, or name an empty place; --force replaces no folder and follows no link",
    )


def _listed(keys: list[str]) -> str:
    some = sorted(keys)
    more = [f"and {len(some) - _SHOWN:,} more"] if len(some) > _SHOWN else []
    return "".join(f"\n  {key}" for key in [*some[:_SHOWN], *more])
