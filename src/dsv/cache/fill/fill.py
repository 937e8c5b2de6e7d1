"""Making a commit visible in a cache, together with everyone else who wants it."""

from __future__ import annotations

import contextlib
import shlex
import time

from msgspec.structs import replace

from dsv.cache.fill import reservations
from dsv.cache.fill.directory import FillDirectory, clear, discard, finalize, give_up, join, start
from dsv.cache.fill.helper_process import HelperSpec
from dsv.cache.fill.participant import FillContext, FillParticipant
from dsv.cache.fill.plan import FillRequest, Planned, make_plan, room_needed
from dsv.cache.fill.reservations import EnsureRoom, Need, NoRoomBeside, need_of, refusal
from dsv.cache.fill.source import StoreSource
from dsv.cache.fill.workers import Heartbeat, read_workers
from dsv.cache.record import Cached, lookup
from dsv.cache.root import CacheRoot, Place, explaining
from dsv.errors import Conflict, NoRoom, Unreachable
from dsv.fs import system
from dsv.fs.files import FORGOTTEN, FULL, GONE
from dsv.values.progress import NoProgress, Progress

_ATTEMPTS = 50
_MOST_FORGOTTEN = 3
_MOST_VANISHED = 20
_LONGEST_PAUSE = 1.0  # seconds
_MOST_FULL = 3
_LEAST = (64 << 20, 64)  # bytes and files to make room for


def fill(
    root: CacheRoot,
    request: FillRequest,
    source: StoreSource,
    *,
    ensure_room: EnsureRoom,
    jobs: int | None = None,
    progress: Progress | None = None,
    helper: HelperSpec | None = None,
) -> Cached:
    """Return when the commit is visible and whole, no matter which process filled it.

    source: is asked for nothing if the commit is there already.
    jobs: processes on this host, None for what suits the machine; more than one needs `helper`, by which they get
    their own source.
    Raises `NoRoom`, `NotFound` (a selected path), `Conflict` (something else is in the way), `Denied`, `Unreachable`,
    and what the source raises. Finished files stay for the next attempt, unless the disk is full.
    """
    with explaining(root.visible(request.place), "fill"):
        found = lookup(root, request.place)
        if found is not None:
            return found
        root.prepare()
        context = FillContext(
            root=root,
            request=request,
            place=request.place,
            source=source,
            ensure_room=ensure_room,
            jobs=jobs,
            progress=progress or NoProgress(),
            helper=helper,
            kind=system.kind_of(root.path),
        )
        return _Fill(context).run()


class _Fill:
    """The attempts of one `fill`.

    An evictor removes the folders of a dataset while they are empty, the end of a fill removes the fill's, others fill
    the disk, and a file server forgets a host. Trying again cures all of this. Each kind has a limit of its own, so
    that no fill tries for ever.
    """

    def __init__(self, context: FillContext) -> None:
        self._context = context
        self._root = context.root
        self._place = context.place
        self._forgotten = 0
        self._vanished = 0
        self._full = 0

    def run(self) -> Cached:
        """Try until the commit is visible. A fill may end without that, or with an error."""
        worked = False
        fetched = linked = 0
        for attempt in range(_ATTEMPTS):
            done: FillParticipant | None = None
            failure: OSError | None = None
            try:
                found = lookup(self._root, self._place, fresh=True)
                if found is not None:
                    return Cached(found.path, found.record, fetched, linked, hit=not worked)
                directory = join(self._root, self._place)
                if directory is not None and not directory.is_open():
                    finalize(directory)
                    continue
                done, failure = self._take_part(directory)
                if done is not None:
                    worked = True
                    fetched += done.fetched
                    linked += done.linked
            except OSError as error:
                failure = error
            if failure is not None:
                try:
                    self._recover(failure)
                except NoRoom:
                    self._give_up_if_alone()
                    raise
            elif done is not None and not done.published:
                time.sleep(min(1.0, 0.01 * attempt))
        raise Unreachable(
            f"{self._place} is repeatedly evicted from {self._root.path} before it is complete",
            subject=str(self._place),
        )

    def _take_part(self, directory: FillDirectory | None) -> tuple[FillParticipant | None, OSError | None]:
        """Work on the fill, or begin one. Return when it has ended, one way or another; None: it was not begun.

        Also return the error that ended this host's part in it, if it was one.
        """
        heartbeat = Heartbeat(self._root, self._context.kind)
        participant: FillParticipant | None = None
        failure: OSError | None = None
        superfluous = False
        try:
            if directory is None:
                directory = self._begin(heartbeat)
                # While this one was planned, another may have begun, been published and cleared away.
                superfluous = (
                    directory is not None and lookup(self._root, self._place, fresh=True) is not None
                )
            else:
                heartbeat.enlist(directory.workers)
            if directory is not None and not superfluous:
                heartbeat.start(directory.workers)
                participant = FillParticipant(self._context, directory, heartbeat)
                participant.run()
        except OSError as error:
            # If folders are gone because the fill has ended, that is no failure.
            if directory is None or error.errno not in GONE or directory.is_open():
                failure = error
        finally:
            heartbeat.stop()
            # Only now, as NFS can't remove a file that this host has open.
            if directory is not None and superfluous:
                give_up(directory)
            elif directory is not None and participant is not None:
                _leave(directory, participant)
        return participant, failure

    def _begin(self, heartbeat: Heartbeat) -> FillDirectory | None:
        """Plan, reserve room, and start; None if another was faster."""
        root, place = self._root, self._place
        visible = root.visible(place)
        # In this order, a commit that is being published at this moment is not taken for a foreign folder.
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
        """Return a plan for which there is room, and which has reserved it.

        What it takes files from can't be evicted for it. If it does not fit beside that, it is planned without the
        commit that was used least recently, and so on. Raises `NoRoom` if that does not help either.
        """
        context, root = self._context, self._root
        without: set[Place] = set()
        refused: NoRoomBeside | None = None
        while True:
            planned = make_plan(
                root, context.request, context.source, remote=context.kind.remote, without=without
            )
            plan = planned.plan
            reservations.reserve(root, self._place, plan.fill, plan.need_bytes, plan.need_files)
            try:
                need = need_of(self._place, plan, plan.need_bytes, plan.need_files)
                context.ensure_room(replace(need, folders=planned.folders))
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
        """Return if another attempt is worth it. Raises `Unreachable`, `NoRoom` with the figures, or the error."""
        root, place = self._root, self._place
        if error.errno in GONE:
            self._vanished += 1
            if self._vanished > _MOST_VANISHED:
                raise Unreachable(
                    f"cannot fill {root.visible(place)}: folders of {root.path} keep vanishing meanwhile",
                    subject=str(place),
                    hint="the cache is being changed by others: try again",
                ) from error
            time.sleep(min(_LONGEST_PAUSE, 0.01 * self._vanished**2))
            for folder in (root.fill(place), root.claims(place), root.visible(place)):
                root.look_up_anew(folder)
        elif error.errno in FULL:
            self._full += 1
            if self._full > _MOST_FULL:
                # Before there is a plan, what the whole commit needs stands for what is still to come.
                request = self._context.request
                tree = self._context.source.tree(request.commit)
                raise refusal(root, place, error, *room_needed(tree, request.selection)) from error
            self._context.ensure_room(Need(place, *_LEAST, keep=frozenset((place,))))
        elif error.errno in FORGOTTEN and self._context.kind.sync_each:
            self._forgotten += 1
            if self._forgotten > _MOST_FORGOTTEN:
                raise error
            self._context.progress.note(f"{root.path} lost the state of this host; rejoining")
        else:
            raise error

    def _give_up_if_alone(self) -> None:
        """Give up half a fill that nobody works on, which would keep a full disk full."""
        with contextlib.suppress(OSError):
            directory = join(self._root, self._place)
            if directory is not None and directory.is_open() and _is_deserted(directory):
                give_up(directory)


def _leave(directory: FillDirectory, participant: FillParticipant) -> None:
    if participant.published:
        clear(directory)
        return
    hopeless = participant.hopeless or (participant.out_of_room and _is_deserted(directory))
    if hopeless and not give_up(directory):
        finalize(directory)


def _is_deserted(directory: FillDirectory) -> bool:
    """Return whether nobody works on a fill any more. Asked by a process that has left it: of several that leave at
    the same moment, the last one sees that all others have.
    """
    try:
        now, workers = directory.root.now(), read_workers(directory.workers).values()
    except OSError:
        return False
    return all(worker.gone(now) for worker in workers)
