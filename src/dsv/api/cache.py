"""Stage commits into a cache under a claim, for `cache`, `with` and `run`.

The modules that fill are imported only for a fill: a hit takes less time than importing them.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dsv.api.cache_targets import CacheTarget, Targets
from dsv.cache.claims import read_claims
from dsv.cache.leases import Lease
from dsv.cache.record import Cached, erased_files, local_commit, lookup
from dsv.cache.root import CachePlace, CacheRoot, explaining
from dsv.cache.settings import load_settings, prepare_cache
from dsv.errors import (
    Conflict,
    Denied,
    DsvError,
    IntegrityError,
    NoRoom,
    NotFound,
    Unreachable,
    Unsupported,
    UsageError,
)
from dsv.run.staged import Staged
from dsv.values.names import Target

if TYPE_CHECKING:
    from dsv.api.context import Context
    from dsv.run.record import RunId

_TRIES = 5
_LEASE_ROOM = (1 << 20, 16)  # bytes and files to make room for if there is no room even for a claim


class NoLease(AbstractContextManager["NoLease"]):
    """Stands in for a lease if the commit is cached and the caller may not write to the cache."""

    def __init__(self) -> None:
        self.lost = threading.Event()
        self.reason = ""

    def confirm(self) -> bool:
        return True

    def release(self) -> None:
        """Do nothing."""

    def __exit__(self, *_: object) -> None:
        pass


class Stager(AbstractContextManager["Stager"]):
    """Stages targets into one cache with `jobs` processes (None: a suitable number). The caller closes it."""

    def __init__(
        self, context: Context, root: CacheRoot, *, offline: bool = False, jobs: int | None = None
    ) -> None:
        self.root = root
        self.targets = Targets(context, root, offline=offline)
        self._context = context
        self._offline = offline
        self._jobs = jobs

    def __exit__(self, *_: object) -> None:
        self.targets.__exit__()

    def cache(
        self, target: Target, *, hold: float | None = None, job: str | None = None, strict: bool = False
    ) -> Staged:
        """Fetch the target if needed. hold: keep it for so many seconds for this user (and batch job).

        strict: raise `Conflict` if files of it were erased.
        """
        started = time.monotonic()
        found = self.targets.find(target)
        lease = take_lease(self.root, found.place, optional=hold is None)
        with explaining(self.root.path), lease:
            result = self._fill(found, lease)
            self._note_read(found)
            erased = erased_files(self.root, found.place, found.store)
            if strict and erased:
                from dsv.repo.objects.erasures import lacks_erased

                raise lacks_erased(str(target), erased)
            if hold is None:
                kept: dict[str, Any] = {} if isinstance(lease, NoLease) else {"may_go": self._may_go(found)}
            else:
                held = Lease.take(self.root, found.place, "hold", ttl=hold, job=job).record
                kept = {"hold": held.owner.id, "held_until": held.until}
        return msgspec.structs.replace(_staged(found, result, started), erased=erased, **kept)

    def locate(self, target: Target) -> Staged:
        """Return where the target is or would be, without fetching files."""
        found = self.targets.find(target)
        with explaining(self.root.path):
            there = lookup(self.root, found.place)
        path = self.root.visible(found.place).path
        if there is not None:
            record = there.record
            return Staged(path, found.dataset, found.commit, record.files, record.bytes, hit=True)
        if self._offline:
            raise self._not_there(found)
        commit = self.targets.repository.objects.commit(found.commit)
        return Staged(path, found.dataset, found.commit, commit.files, commit.bytes, hit=False)

    def stage(self, target: Target, run: RunId | None) -> tuple[Staged, Lease | NoLease]:
        """Fetch the target if needed, under a lease of the run that renews itself until it is released.

        Without a run, it is this process's lease, and for others on this host it ends with the process.
        """
        started = time.monotonic()
        found = self.targets.find(target)
        lease = take_lease(self.root, found.place, run=run, optional=self._is_held(found.place))
        try:
            with explaining(self.root.path):
                staged = _staged(found, self._fill(found, lease), started)
                if run is None:  # else the record of that run has it
                    self._note_read(found)
                return staged, lease
        except BaseException:
            lease.release()
            raise

    def roots(self, target: Target, *, must: bool = False) -> tuple[str | None, str | None]:
        """Return the root of the tree of a target, and that of its whole commit; None for what is not known here
        while the store is not open. must: open it then, and raise its errors"""
        found, objects = self.targets.find(target), self.targets.objects
        commit = local_commit(self.root, found.place)
        with suppress(*(() if must else (DsvError,))):
            if must and (commit is None or not found.selection.whole):
                objects = self.targets.repository.objects
            if commit is None and objects is not None:
                commit = objects.commit(found.commit)
            if commit is not None and found.selection.whole:
                return commit.root.hex(), commit.root.hex()
            if commit is not None and objects is not None:
                from dsv.repo.tree.hashing import root_of
                from dsv.repo.tree.reader import TreeReader

                within = TreeReader(objects, found.commit).within(found.selection)
                return root_of(entry for entry, _ in within).hex(), commit.root.hex()
        return None, None if commit is None else commit.root.hex()

    def _fill(self, found: CacheTarget, lease: Lease | NoLease) -> Cached:
        """Fill if needed. With a lease, the commit is kept from the moment it is seen."""
        writable = isinstance(lease, Lease)
        if isinstance(lease, Lease):
            self.targets.bind(found, lease.record.id)
            self.targets.remember(found)
        for _ in range(_TRIES):
            there = lookup(self.root, found.place, fresh=self._offline and writable)
            if there is None and self._offline:
                raise self._not_there(found)
            result = self._make(found) if there is None else there
            if lease.confirm():
                if writable:
                    self.targets.show_tags(found, filled=there is None)
                return result
        raise Unreachable(
            f"{found.place} is repeatedly evicted from {self.root.path}", subject=str(found.place)
        )

    def _make(self, found: CacheTarget) -> Cached:
        from dsv.cache.evict import RoomMaker
        from dsv.cache.fill.fill import fill
        from dsv.cache.fill.plan import FillRequest

        try:
            made = fill(
                self.root,
                FillRequest(found.place.dataset, found.commit, found.store, found.selection),
                self.targets.source(),
                ensure_room=RoomMaker(self.root),
                jobs=self._jobs,
                progress=self._context.progress,
                helper=self.targets.helper(),
            )
        except IntegrityError as error:
            from dsv.repo.expiry import explained

            raise explained(self.targets.repository, error) from error
        objects = self.targets.repository.objects
        objects.forget_erasures()  # something may have been erased since they were read
        if objects.erasures:
            from dsv.cache.erasures import obey_at

            obey_at(self.root, found.place, self.targets.repository)
        return made

    def _note_read(self, found: CacheTarget) -> None:
        if self._context.job is not None:
            self._context.note_read(found.dataset, found.commit, local_commit(self.root, found.place))

    def _may_go(self, found: CacheTarget) -> float | None:
        settings = load_settings(self.root)
        if settings.is_protected(found.dataset) or self._is_held(found.place):
            return None
        unused_for = settings.unused_for(found.dataset)
        return None if unused_for is None else time.time() + unused_for

    def _is_held(self, place: CachePlace) -> bool:
        with suppress(OSError):
            return any(pin.until is None for pin in read_claims(self.root, place).pins)
        return False

    def _not_there(self, found: CacheTarget) -> NotFound:
        return NotFound(
            f"{found.place} is not in the cache {self.root.path}",
            subject=str(found.place),
            hint="leave out --offline to fetch it",
        )


def _staged(found: CacheTarget, result: Cached, started: float) -> Staged:
    return Staged(
        path=result.path,
        dataset=found.dataset,
        commit=found.commit,
        files=result.record.files,
        bytes=result.record.bytes,
        hit=result.hit,
        seconds=time.monotonic() - started,
        fetched_bytes=result.fetched_bytes,
        linked_files=result.linked_files,
    )


def cache(
    context: Context,
    folder: Path,
    targets: Sequence[Target],
    *,
    hold: float | None = None,
    job: str | None = None,
    offline: bool = False,
    jobs: int | None = None,
    strict: bool = False,
) -> list[Staged]:
    """Fetch every target that is not cached below `folder`, and return them in the order given.

    hold: seconds for which this user keeps them, even after this process ends. job: the batch job that needs
    them. offline: do not ask the store. jobs: processes on this host that fill. strict: raise `Conflict` if
    files of a target were erased. Raises like `Stager.cache`, and `UsageError` without a target.
    """
    if not targets:
        raise UsageError("no target given", hint="dsv cache DATASET@REV")
    if hold is not None and hold <= 0:
        raise UsageError("the hold must be longer than 0 seconds", hint="--hold 3d")
    with Stager(context, CacheRoot(folder), offline=offline, jobs=jobs) as stager:
        return [stager.cache(target, hold=hold, job=job, strict=strict) for target in targets]


def check_link(link: Path) -> None:
    """Check that a symlink can be made here, before data is fetched for it. Raises `Conflict`, `NotFound`."""
    if not link.parent.is_dir():
        raise NotFound(
            f"there is no folder {link.parent} for the link",
            subject=str(link),
            hint=f"mkdir -p {shlex.quote(str(link.parent))}",
        )
    if link.exists() and not link.is_symlink():
        raise _taken(link)


def make_link(link: Path, target: Path) -> None:
    """Make the symlink, or atomically replace one. Raises `Conflict` if anything else is there."""
    from dsv.files.errors import about
    from dsv.files.small_files import replace_link

    with about(link):
        try:
            replace_link(link, str(target))
        except FileExistsError:
            raise _taken(link) from None


def _taken(link: Path) -> Conflict:
    return Conflict(
        f"{link} exists and is not a symlink, so it was left alone",
        subject=str(link),
        hint=f"mv {shlex.quote(str(link))} {shlex.quote(f'{link}.old')}, or name another",
    )


def take_lease(
    root: CacheRoot, place: CachePlace, *, run: str | None = None, optional: bool
) -> Lease | NoLease:
    """Take a lease of the run or of this command that renews itself. The caller releases it.

    optional: a cached commit can be used without a lease if the cache is full or read-only.
    """
    with explaining(root.path):
        try:
            return _take(root, place, run)
        except (Denied, NoRoom, Unsupported) as error:
            if optional and lookup(root, place) is not None:
                return NoLease()
            if not isinstance(error, NoRoom):  # NoRoom: others have filled the disk completely
                raise
        from dsv.cache.evict import RoomMaker
        from dsv.cache.policy import Need

        RoomMaker(root)(Need(place, *_LEASE_ROOM))
        return _take(root, place, run)


def _take(root: CacheRoot, place: CachePlace, run: str | None) -> Lease:
    prepare_cache(root)
    with explaining(root.path, "hold data in"):
        return Lease.take(root, place, "stage" if run is None else "run", run=run).hold()
