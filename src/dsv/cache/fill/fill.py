"""Making a commit visible in a cache, together with all other processes that want it."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shlex
import time
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from dsv.cache.fill import reservations
from dsv.cache.fill.directory import FillDirectory, clear, discard, finalize, give_up, join, publish, start
from dsv.cache.fill.files import FillFailed, WriteBack
from dsv.cache.fill.helper_process import Helpers, OpenSource, default_jobs
from dsv.cache.fill.part_worker import PartWorker
from dsv.cache.fill.parts import Claim, ClaimTable, FillPlan
from dsv.cache.fill.plan import FillRequest, Planned, make_plan
from dsv.cache.fill.reservations import EnsureRoom, NoRoomBeside, need_of, refusal
from dsv.cache.fill.source import FillContents, StoreSource
from dsv.cache.fill.workers import Heartbeat, Reporter, Worker, read_worker, read_workers
from dsv.cache.leases import end_leases_of
from dsv.cache.policy import Need
from dsv.cache.record import Cached, lookup
from dsv.cache.root import CachePlace, CacheRoot, explaining
from dsv.errors import Conflict, IntegrityError, NoRoom, Unreachable, Unsupported
from dsv.files import system
from dsv.files.descent import Descent
from dsv.files.small_files import FORGOTTEN, FULL, GONE, read_small
from dsv.files.system import FileSystem
from dsv.values.paths import found_otherwise, link_escapes, show
from dsv.values.progress import NoProgress, Progress
from dsv.values.units import format_count, format_lines

_ATTEMPTS = 50
_MOST_FORGOTTEN = 3
_MOST_VANISHED = 20
_LONGEST_PAUSE = 1.0  # seconds
_MOST_FULL = 3  # times without any progress between them
_LEAST_BYTES = 64 << 20  # to make room for, on a full disk
_LEAST_FILES = 64
_ROOM_EVERY = 15.0  # seconds between two looks at the limits while filling
_LINKS_LIMIT = 1 << 30  # bytes that name the symlinks of one part
# Seconds between two looks at what the others do: the first wait, and the longest.
_POLL_LOCAL = (0.005, 0.25)
_POLL_REMOTE = (0.1, 2.0)


def fill(
    root: CacheRoot,
    request: FillRequest,
    source: StoreSource,
    *,
    ensure_room: EnsureRoom,
    jobs: int | None = None,
    progress: Progress | None = None,
    helper: OpenSource | None = None,
) -> Cached:
    """Return when the commit is visible and whole, no matter which process filled it.

    source: not used if the commit is cached already.
    jobs: processes on this host; None: as suits the machine. More than one needs `helper`, which opens a source in
    each. Raises `NoRoom`, `NotFound` (a selected path), `Conflict` (something else is in the way), `Denied`,
    `Unreachable`, the source's errors. Finished files stay for the next attempt, unless the disk is full.
    """
    with explaining(root.visible(request.place), "fill"):
        found = lookup(root, request.place)
        if found is not None:
            return found
        root.prepare()
        kind = system.kind_of(root.path)
        return Fill(root, request, source, ensure_room, jobs, progress or NoProgress(), helper, kind).run()


class Fill(msgspec.Struct):
    """The arguments of `fill`, the file system of the cache, and the attempts.

    Evictors remove the folders of a dataset while they are empty, the end of a fill removes the fill's
    folders, other processes fill the disk, and a file server forgets a host. Another attempt cures each of
    these. Each kind has its own limit, so that a fill ends.
    """

    root: CacheRoot
    request: FillRequest
    source: StoreSource
    ensure_room: EnsureRoom
    jobs: int | None
    progress: Progress
    helper: OpenSource | None
    kind: FileSystem
    forgotten: int = 0
    vanished: int = 0
    full: int = 0
    has_worked: bool = False
    fetched: int = 0
    """Bytes read from the store by this process and its helpers."""
    linked: int = 0
    """Files linked by this process and its helpers."""
    made_room: bool = False
    """True if this process has just made room for the rest of the fill."""

    @property
    def place(self) -> CachePlace:
        return self.request.place

    def run(self) -> Cached:
        """Try until the commit is visible. A fill may end without that, or with an error."""
        try:
            return self._run()
        except NoRoom:
            self._give_up_if_alone()
            raise

    def _run(self) -> Cached:
        for attempt in range(_ATTEMPTS):
            try:
                found = lookup(self.root, self.place, fresh=True)
                if found is not None:
                    return Cached(
                        found.path, found.record, self.fetched, self.linked, hit=not self.has_worked
                    )
                directory = join(self.root, self.place)
                if directory is not None and not directory.is_open():
                    finalize(directory)
                elif not self._take_part(directory):
                    time.sleep(min(1.0, 0.01 * attempt))
            except OSError as error:
                self._recover(error)
        raise Unreachable(
            f"{self.place} is repeatedly evicted from {self.root.path} before it is complete",
            subject=str(self.place),
        )

    def _take_part(self, directory: FillDirectory | None) -> bool:
        """Work on the fill, or begin one, until it ends; False if this host worked but did not publish."""
        heartbeat = Heartbeat(self.root, self.kind)
        participant: FillParticipant | None = None
        superfluous = False
        try:
            if directory is None:
                directory = self._begin(heartbeat)
                # While this one was planned, another may have begun, and been published and cleared away.
                superfluous = directory is not None and lookup(self.root, self.place, fresh=True) is not None
            else:
                heartbeat.enlist(directory.workers)
            if directory is not None and not superfluous:
                heartbeat.start(directory.workers)
                participant = FillParticipant(self, directory, heartbeat)
                self.made_room = False
                participant.run()
        except OSError as error:
            # If folders are missing because the fill has ended, that is no failure.
            if directory is None or error.errno not in GONE or directory.is_open():
                raise
        finally:
            heartbeat.stop()
            # Only now, because NFS can't remove a file that this host has open.
            if directory is not None and superfluous:
                give_up(directory)
            elif directory is not None and participant is not None:
                self._count(heartbeat.tally, participant.helpers)
                _leave(directory, participant)
        return participant is None or participant.published

    def _count(self, tally: Worker, helpers: Helpers) -> None:
        self.has_worked = True
        self.fetched += tally.fetched + helpers.fetched
        self.linked += tally.linked + helpers.linked
        if tally.made:  # it has added something to the disk
            self.full = 0

    def _begin(self, heartbeat: Heartbeat) -> FillDirectory | None:
        """Plan, reserve room, and start; None if another process was faster."""
        root, place = self.root, self.place
        visible = root.visible(place)
        # In this order, a commit that is just being published is not taken for a foreign folder.
        if visible.is_dir() and join(root, place) is None and lookup(root, place, fresh=True) is None:
            raise Conflict(
                f"{visible} is in the way: dsv did not cache it",
                subject=str(visible),
                hint=f"check what it is, then: rm -r {shlex.quote(str(visible))}",
            )
        planned = self._plan_that_fits()
        plan = planned.plan
        directory: FillDirectory | None = None
        try:
            directory = start(root, place, plan, planned.source_map, planned.moves, heartbeat.enlist)
        finally:
            if directory is None:
                heartbeat.stop()
                discard(root, plan.fill)
                reservations.release(root, plan.fill)
        return directory

    def _plan_that_fits(self) -> Planned:
        """Return a plan for which there is room, and reserve the room.

        The commits that it takes files from can't be evicted for it. If it does not fit beside them, it is
        planned without the least recently used one, and so on. Raises `NoRoom` if that does not help either.
        """
        root = self.root
        without: set[CachePlace] = set()
        refused: NoRoomBeside | None = None
        while True:
            planned = make_plan(root, self.request, self.source, remote=self.kind.remote, without=without)
            plan = planned.plan
            reservations.reserve(root, self.place, plan.fill, plan.need_bytes, plan.need_files)
            try:
                need = need_of(self.place, plan, plan.need_bytes, plan.need_files)
                self.ensure_room(replace(need, folders=planned.folders))
                return planned
            except NoRoomBeside as error:
                reservations.release(root, plan.fill)
                refused = refused or error
                if not error.spare:
                    raise refused from None
                without.add(error.spare[0])
            except BaseException:
                reservations.release(root, plan.fill)
                raise

    def _recover(self, error: OSError) -> None:
        """Return if another attempt may succeed. Raises `Unreachable`, `NoRoom` with figures, or the error."""
        root, place = self.root, self.place
        if error.errno in GONE:
            self.vanished += 1
            if self.vanished > _MOST_VANISHED:
                raise Unreachable(
                    f"cannot write {root.visible(place)}: folders of {root.path} keep vanishing meanwhile",
                    subject=str(place),
                    hint="the cache is being changed by others: try again",
                ) from error
            time.sleep(min(_LONGEST_PAUSE, 0.01 * self.vanished**2))
            for folder in (root.fill(place), root.claims(place), root.visible(place)):
                folder.look_up_anew()
        elif error.errno in FULL:
            self._make_room(error)
        elif error.errno in FORGOTTEN and self.kind.sync_each:
            self.forgotten += 1
            if self.forgotten > _MOST_FORGOTTEN:
                raise error
            self.progress.note(f"{root.path} lost the state of this host; rejoining")
        else:
            raise error

    def _make_room(self, error: OSError) -> None:
        """Make room for the rest of the fill, and for at least some of what has run out. Raises `NoRoom`."""
        root, place = self.root, self.place
        directory: FillDirectory | None = None
        left: tuple[int, int] | None = None
        with contextlib.suppress(OSError):
            directory = join(root, place)
            if directory is not None:
                left = _left(directory.plan, read_workers(directory.workers).values())
        self.full += 1
        if self.full > _MOST_FULL:
            # Without a plan, the need of the whole commit counts as what is still to come.
            leaves = self.source.tree(self.request.commit).leaves()
            whole = sum(leaf.child.bytes for leaf in leaves), sum(leaf.child.files for leaf in leaves)
            raise refusal(root, place, error, *(left or whole)) from error
        size, files = left or (0, 0)
        disk = os.statvfs(root.path)
        if error.errno == errno.ENOSPC and disk.f_files > 0 and disk.f_favail < _LEAST_FILES:
            files = max(files, _LEAST_FILES)
        else:
            size = max(size, _LEAST_BYTES)
        need = Need(place, size, files)
        if directory is not None:
            need = need_of(place, directory.plan, size, files)
        self.ensure_room(need)
        self.made_room = True

    def _give_up_if_alone(self) -> None:
        """Give up a half-finished fill on which no process works, because it would keep a full disk full."""
        with contextlib.suppress(OSError):
            directory = join(self.root, self.place)
            if directory is not None and directory.is_open() and _is_deserted(directory):
                give_up(directory)


def _leave(directory: FillDirectory, participant: FillParticipant) -> None:
    if participant.published:
        clear(directory)
        return
    if participant.hopeless and not give_up(directory):
        finalize(directory)


def _is_deserted(directory: FillDirectory) -> bool:
    """Return whether no process works on a fill, for one that has left it: of several, the last sees that."""
    try:
        now, workers = directory.root.now(), read_workers(directory.workers).values()
    except OSError:
        return False
    return all(worker.gone(now) for worker in workers)


def _left(plan: FillPlan, workers: Iterable[Worker], unplanned: int = 0) -> tuple[int, int]:
    """Return the bytes and inodes that the whole fill still needs."""
    everybody = list(workers)
    size = plan.need_bytes + unplanned - sum(one.written for one in everybody)
    return max(0, size), max(0, plan.need_files - sum(one.made for one in everybody))


class FillParticipant:
    """This process's part in a fill. `run` it once; act on its attributes when all its files are closed."""

    def __init__(self, context: Fill, directory: FillDirectory, heartbeat: Heartbeat) -> None:
        self._made_room = context.made_room
        self._context = context
        self._directory = directory
        self._heartbeat = heartbeat
        self._table = ClaimTable(
            directory.parts, len(directory.plan.parts), heartbeat.owner.id, context.kind, context.root.time_in
        )
        self._reporter = Reporter(context.progress, directory, heartbeat)
        self._looked_at_room = time.monotonic()
        self.helpers = Helpers()
        self._worker: PartWorker | None = None
        self._write_back: WriteBack | None = None  # on a local file system
        self.published = False
        """True if this process made the commit visible."""
        self.hopeless = False
        """True if the fill should be given up, because no process can or will continue it."""

    def run(self) -> None:
        """Return when the fill has ended. Raises `OSError`, `NoRoom`, `FillFailed`, and what the source raises."""
        directory, context = self._directory, self._context
        self._reporter.start()
        try:
            if not context.kind.remote:
                self._write_back = WriteBack(directory)
            self._resume(self._table.refresh())
            if context.helper is not None:
                jobs = context.jobs or default_jobs(directory.plan, context.kind)
                self.helpers.start(directory, context.helper, jobs)
            self._worker = PartWorker(
                directory, context.source, self._table, self._heartbeat.tally, context.kind, self._tick
            )
            self._work(self._worker)
            if not self.published:
                self._check_disk()
        except OSError:
            self._check_disk()
            raise
        except (FillFailed, Unsupported):
            self.hopeless = True
            raise
        finally:
            self.helpers.stop(now=not self.published)
            if self._worker is not None:
                self._worker.close()
            if self._write_back is not None:
                self._write_back.close()
                self.hopeless = self.hopeless or self._write_back.lost
            self._reporter.finish()

    def _resume(self, now: float) -> None:
        """Make room again if the others are gone, because the reservation has lapsed; else begin far from
        them, so that each works on neighbouring parts.
        """
        others = self._others()
        if others and not self._made_room and all(one.gone(now) for one in others):
            self._make_room()
        elif self._table.free < self._table.count:
            self._table.begin_at(random.randrange(max(1, len(self._directory.plan.parts))))

    def _work(self, worker: PartWorker) -> None:
        first, longest = _POLL_REMOTE if self._context.kind.remote else _POLL_LOCAL
        wait = first
        while True:
            if self._table.free:
                worker.run_free()
            now = self._table.refresh()
            if self._table.confirm_done():
                self._publish()
                return
            if self._table.free or (worker.damaged and self.helpers.stop(now=False)):
                continue
            workers = read_workers(self._directory.workers)
            claim = self._claim_abandoned(workers, now)
            if claim is not None:
                self._end_leases(workers, now)
                worker.run((claim,))
                wait = first
                continue
            if worker.damaged:
                raise self._without(worker.damaged)
            self._reporter.wait(workers, self._table.done, now)
            time.sleep(wait)
            wait = min(wait * 1.5, longest)

    def _without(self, damaged: Mapping[bytes, IntegrityError]) -> IntegrityError:
        """Return one error for all files that the store can't give, as far as was seen."""
        errors = [damaged[path] for path in sorted(damaged)]
        if len(errors) == 1:
            return errors[0]
        place = f"{self._directory.place.dataset_name}@{str(self._directory.place.commit)[:12]}"
        return IntegrityError(
            f"{place} is not cached, as {format_count(len(errors), 'file')} can't be read:"
            f"{format_lines([error.message for error in errors], len(errors))}",
            subject=place,
            hint="dsv verify --repair, or dsv sync where the files are; dsv export --skip-damaged writes the others",
        )

    def _claim_abandoned(self, workers: Mapping[str, Worker], now: float) -> Claim | None:
        def is_gone(owner: str) -> bool:
            worker = workers.get(owner) or read_worker(self._directory.workers, owner)
            return worker is None or worker.gone(now)

        return self._table.claim_abandoned(is_gone)

    def _end_leases(self, workers: Mapping[str, Worker], now: float) -> None:
        """End the leases of processes that are gone without having recorded it."""
        for worker in workers.values():
            if worker.gone(now) and not worker.left:
                with contextlib.suppress(OSError):  # they expire by themselves
                    end_leases_of(self._context.root, self._directory.place, worker.owner, now)

    def _tick(self) -> None:
        self._reporter.update()
        if self._write_back is not None and self._worker is not None:
            self._write_back.advance(self._worker.small)
        if time.monotonic() - self._looked_at_room > _ROOM_EVERY:
            self._make_room()

    def _make_room(self) -> None:
        """Apply the limits, which also hold during a fill: other processes fill the disk. Raises `NoRoom`."""
        plan, place = self._directory.plan, self._directory.place
        unplanned = 0 if self._worker is None else self._worker.unplanned
        left = _left(plan, [self._heartbeat.tally, *self._others()], unplanned)
        self._context.ensure_room(need_of(place, plan, *left))
        self._looked_at_room = time.monotonic()

    def _others(self) -> list[Worker]:
        workers = read_workers(self._directory.workers)
        return [worker for owner, worker in workers.items() if owner != self._heartbeat.owner.id]

    def _check_disk(self) -> None:
        """Raises the error of the disk, if the fill ended because the disk lost data."""
        if self._write_back is not None:
            self._write_back.check()

    def _publish(self) -> None:
        """Make the commit visible, with everything on stable storage. Over NFS each file was synced before
        its close, on another remote file system with each part; on a local one `WriteBack` syncs here.
        """
        try:
            _check_links(self._directory)
            _check_names(self._directory, self._context.source)
            if self._write_back is not None:
                self._write_back.finish()
            self.published = publish(self._directory, self._heartbeat.owner)
        except IntegrityError:
            self.hopeless = True
            raise
        if not self.published:
            self.hopeless = self._directory.is_open()  # an earlier fill is visible, so this one is of no use


def _check_names(directory: FillDirectory, source: StoreSource) -> None:
    """Count the paths where a name is found by others: of a symlink or an equal file nothing else shows it."""
    if not any(found_otherwise("drafts", lambda name: (directory.folder / name).exists())):
        return
    parts = map(FillContents(directory, source).of, directory.plan.parts)
    wanted, named = sum(1 for part in parts for _ in part), 0
    with Descent(directory.tree) as tree:
        for _, _, entries in tree.walk():
            named += sum(not entry.is_dir(follow_symlinks=False) for entry in entries) or not entries
    if named < wanted:
        message = f"{directory.root.path} has {named} of {wanted} paths of {directory.place}, as it takes some for one"
        hint = "use a cache on a file system that tells all names apart"
        raise Unsupported(message, subject=str(directory.place), hint=hint)


def _check_links(directory: FillDirectory) -> None:
    links: dict[bytes, bytes] = {}
    directory.folder.look_up_anew()
    if directory.links.is_dir():
        directory.root.time_in(directory.links)
        for part in range(len(directory.plan.parts)):  # by name, because over NFS a listing may lack some
            found = read_small(directory.links / str(part), _LINKS_LIMIT)
            if found is not None:
                fields = found.split(b"\0")
                links.update(zip(fields[::2], fields[1::2], strict=True))
    escaping = link_escapes(links)
    if escaping:
        raise IntegrityError(
            f"{directory.place} has a symlink that leaves the dataset: {show(escaping[0])}",
            subject=str(directory.place),
            hint="dsv never writes this: ask who else writes to the store; dsv log DATASET shows other commits",
        )
