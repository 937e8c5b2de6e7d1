"""Making a commit visible in a cache, together with whoever else wants it."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from dsv.cache.disk import GONE, explain
from dsv.cache.filling import room
from dsv.cache.filling.patience import Patience
from dsv.cache.filling.planning import Planned, make_plan
from dsv.cache.filling.publish import bury
from dsv.cache.filling.request import EnsureRoom, FillRequest, FillResult, HelperSpec, NoRoomBeside
from dsv.cache.filling.shift import Means, Shift, need_of
from dsv.cache.filling.site import Site, clear, discard, give_up, join, start
from dsv.cache.filling.source import Source
from dsv.cache.filling.work import FillEnded
from dsv.cache.filling.workers import Beat, read_workers
from dsv.cache.layout import CacheRoot, Place
from dsv.cache.record import Cached, lookup
from dsv.errors import Conflict, NoRoom, Unreachable
from dsv.fs import system
from dsv.model.progress import NoProgress, Progress

_ATTEMPTS = 50


def fill(
    root: CacheRoot,
    request: FillRequest,
    source: Source,
    *,
    ensure_room: EnsureRoom,
    jobs: int | None = None,
    progress: Progress | None = None,
    helper: HelperSpec | None = None,
) -> FillResult:
    """Returns when the commit is visible and whole, whoever filled it.

    source: is asked for nothing where the commit is there already. jobs: processes on this host, None for what suits
    the machine; more than one needs `helper`, by which they get their own source.
    Raises `NoRoom`, `NotFound` (a selected path), `Conflict` (something else is in the way), `Denied`, `Unreachable`,
    and what the source raises. Finished files stay for the next attempt, except where the disk is full.
    """
    try:
        found = lookup(root, request.place)
        if found is not None:
            return FillResult.of(found)
        root.prepare()
        means = Means(
            root=root,
            place=request.place,
            source=source,
            ensure_room=ensure_room,
            jobs=jobs,
            progress=progress or NoProgress(),
            helper=helper,
            kind=system.kind_of(root.path),
        )
        return _fill(request, means)
    except OSError as error:
        raise explain(error, root.visible(request.place), "fill") from error


def _fill(request: FillRequest, means: Means) -> FillResult:
    """Each round ends with the commit visible, with somebody else's fill that ended without it, or with trouble."""
    root, place = means.root, means.place
    patience = Patience(request, means)
    worked = False
    fetched = linked = 0
    for attempt in range(_ATTEMPTS):
        trouble: OSError | None = None
        try:
            found = lookup(root, place, fresh=True)
            if found is not None:
                return _result(found, fetched, linked, hit=not worked)
            site = join(root, place)
            if site is not None and not site.is_open():
                bury(site)
                continue
            done, trouble = _take_part(request, means, site)
            if done is not None:
                worked = True
                fetched += done.fetched
                linked += done.linked
        except OSError as error:
            done, trouble = None, error
        if trouble is not None:
            try:
                patience.bear(trouble)
            except NoRoom:
                _make_way(root, place)
                raise
        elif done is not None and not done.published:
            time.sleep(min(1.0, 0.01 * attempt))
    raise Unreachable(
        f"{place} is evicted from {root.path} again and again before it is whole", subject=str(place)
    )


def _take_part(request: FillRequest, means: Means, site: Site | None) -> tuple[Shift | None, OSError | None]:
    """Works on the fill, or begins one. Returns when it has ended, one way or another; None: it was not begun.

    Also returns the error that ended this host's part in it, if it was one.
    """
    beat = Beat(means.root, means.kind)
    shift: Shift | None = None
    trouble: OSError | None = None
    superfluous = False
    try:
        if site is None:
            site = _begin(request, means, beat)
            # While this one was planned, another may have begun, been published and cleared away.
            superfluous = site is not None and lookup(means.root, means.place, fresh=True) is not None
        else:
            beat.enlist(site.workers)
        if site is not None and not superfluous:
            beat.start(site.workers)
            shift = Shift(means, site, beat)
            shift.run()
    except FillEnded:
        pass
    except OSError as error:
        # It may have ended while this process was about to join it.
        if site is None or error.errno not in GONE or site.is_open():
            trouble = error
    finally:
        beat.stop()
        # Only now, as NFS can't remove a file that this host has open.
        if site is not None and superfluous:
            give_up(site)
        elif site is not None and shift is not None:
            _leave(site, shift)
    return shift, trouble


def _leave(site: Site, shift: Shift) -> None:
    if shift.published:
        clear(site)
    elif shift.hopeless and not give_up(site):
        bury(site)


def _make_way(root: CacheRoot, place: Place) -> None:
    """A half fill that nobody works on would keep a full disk full."""
    with contextlib.suppress(OSError):
        site = join(root, place)
        if site is not None and site.is_open():
            now, workers = root.now(), read_workers(site.workers).values()
            if all(worker.gone(now) for worker in workers):
                give_up(site)


def _begin(request: FillRequest, means: Means, beat: Beat) -> Site | None:
    """Plans, reserves room, and starts; None where another was faster."""
    root, place = means.root, means.place
    _check_free(root, place)
    planned = _plan_that_fits(request, means)
    plan = planned.plan
    site: Site | None = None
    try:
        site = start(root, place, plan, planned.sheet, planned.moves, beat.enlist)
    finally:
        if site is None:
            beat.stop()
            discard(root, plan.fill)
            room.release(root, plan.fill)
    return site


def _plan_that_fits(request: FillRequest, means: Means) -> Planned:
    """A plan for which there is room, and which has reserved it.

    What it takes files from can't be evicted for it. Where it does not fit beside that, it is planned without the one
    that was used least recently, and so on. Raises `NoRoom` where that does not help either.
    """
    root, place = means.root, means.place
    without: set[Place] = set()
    refused: NoRoomBeside | None = None
    while True:
        planned = make_plan(root, request, means.source, remote=means.kind.remote, without=without)
        plan = planned.plan
        room.reserve(root, place, plan.fill, plan.need_bytes, plan.need_files)
        try:
            need = need_of(place, plan, plan.need_bytes, plan.need_files)
            means.ensure_room(replace(need, folders=planned.folders))
            return planned
        except NoRoomBeside as error:
            room.release(root, plan.fill)
            refused = refused or error
            if not error.spare:
                raise refused from None
            without.add(error.spare[0])
        except BaseException:
            room.release(root, plan.fill)
            raise


def _check_free(root: CacheRoot, place: Place) -> None:
    visible = root.visible(place)
    # Looked at in this order, a commit that is just being published is not taken for a stranger.
    if visible.is_dir() and join(root, place) is None and lookup(root, place, fresh=True) is None:
        raise Conflict(
            f"{visible} is in the way: it is no commit that dsv has cached",
            subject=str(visible),
            hint=f"look what it is, then: rm -r {visible}",
        )


def _result(found: Cached, fetched: int, linked: int, *, hit: bool) -> FillResult:
    return FillResult(found.path, found.record.files, found.record.bytes, fetched, linked, hit)
