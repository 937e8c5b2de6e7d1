"""The folder of one fill: it appears whole, has a random name in its path, and ends by a rename.

docs/internals/cache-protocol.md lists its content. It is made elsewhere and renamed to `<name>`, which fails
if a fill is there: so all processes agree on one fill, and none ever sees half a plan. From then on every
path has the fill's random name in it, so a late request of a slow host can't touch a later fill of the same
commit. The first process that renames `tree`, to publish the fill or to give it up, decides.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
from collections.abc import Callable, Mapping

import msgspec

from dsv.cache.account import room_of
from dsv.cache.claims import LeaseOwner
from dsv.cache.fill.parts import PLAN, VERSION, FillPlan, written_by
from dsv.cache.record import Extent, Filled, lookup, record_path, write_record
from dsv.cache.removal import Remover
from dsv.cache.root import CachePlace, CacheRoot, remove_probes
from dsv.errors import UPGRADE, Conflict, Unsupported
from dsv.files.attributes import ignoring
from dsv.files.shared_path import SharedPath
from dsv.files.small_files import FULL, GONE, list_names, read_small

PREFIX = "at-"
_FOLDERS = ("parts", "workers", "drafts", "tree")
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)
_PLAN_LIMIT = 16 << 20
_TRIES = 10


class FillDirectory:
    """The folders of one fill. They disappear when another process ends the fill."""

    def __init__(
        self, root: CacheRoot, place: CachePlace, fill: str, folder: SharedPath, plan: FillPlan
    ) -> None:
        self.root = root
        self.place = place
        self.fill = fill
        self.folder = folder
        self.plan = plan
        self.tree = folder / "tree"
        self.dead = folder / "dead"  # the tree of a fill that was given up
        self.parts = folder / "parts"
        self.workers = folder / "workers"
        self.links = folder / "links"
        self.drafts = folder / "drafts"

    def make_folder(self, path: SharedPath) -> None:
        """Make a folder of the fill, with the cache's rights. Raises `OSError`; ENOENT if the fill ended."""
        self.tree.stat()
        self.root.make_directory(path)

    def is_open(self) -> bool:
        """Ask the file server whether it was neither published nor given up. Raises `OSError`."""
        self.folder.look_up_anew()
        return self.tree.is_dir()


def start(
    root: CacheRoot,
    place: CachePlace,
    plan: FillPlan,
    source_map: bytes,
    moves: Mapping[int, bytes],
    enlist: Callable[[SharedPath], None],
) -> FillDirectory | None:
    """Begin a fill; None if another was faster. Raises `OSError`. After both the caller calls `discard`.

    enlist: puts the first worker's record into the given folder, so that a fill that has just appeared is not
    taken for an abandoned one.
    """
    target = root.fill(place)
    draft = root.temporary / f".fill-{plan.fill}"
    folder = draft / f"{PREFIX}{plan.fill}"
    for name in _FOLDERS:
        root.make_directory(folder / name)
    root.write_once(folder / "plan", msgspec.json.encode(plan))
    if plan.has_source_map:
        root.write_once(folder / "sheet", source_map)
    for segment, paths in moves.items():
        root.write_once(folder / "moves" / str(segment), paths)
    enlist(folder / "workers")
    if _appear(root, draft, target):
        return FillDirectory(root, place, plan.fill, target / folder.name, plan)
    return None


def discard(root: CacheRoot, fill: str) -> None:
    """Remove what `start` has made of a fill that did not begin. The worker's file must be closed before."""
    with contextlib.suppress(OSError):
        Remover().remove(root.temporary / f".fill-{fill}")


def _appear(root: CacheRoot, draft: SharedPath, target: SharedPath) -> bool:
    for attempt in range(_TRIES):
        root.reach(target.parent)
        try:
            draft.rename(target)
            return True
        except OSError as error:
            if error.errno in _OCCUPIED:
                return False
            # Another fill's end may have removed the empty parent.
            if error.errno not in GONE or attempt == _TRIES - 1:
                raise
    return False


def join(root: CacheRoot, place: CachePlace) -> FillDirectory | None:
    """Return the current fill; None if there is none, or only the rest of one. Raises `OSError`."""
    home = root.fill(place)
    root.reach(home.parent)
    names = list_names(home)
    if not names and home.is_dir():  # on NFS this listing may be old
        with ignoring(GONE):
            root.time_in(home)
        names = list_names(home)
        if not names:
            remove_probes(home)  # a fill can't be renamed onto a folder that has any
    for name in names:
        folder = home / name
        data = read_small(folder / "plan", _PLAN_LIMIT)
        if data is None or not name.startswith(PREFIX):
            _remove_stray(root, folder)
            continue
        try:
            plan = PLAN.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _newer(place) from error
        if plan.version != VERSION:
            raise _newer(place)
        return FillDirectory(root, place, name.removeprefix(PREFIX), folder, plan)
    return None


def _newer(place: CachePlace) -> Unsupported:
    return Unsupported(
        f"{place} is being cached by another version of dsv",
        subject=str(place),
        hint=f"wait for it, or {UPGRADE}",
    )


def _remove_stray(root: CacheRoot, folder: SharedPath) -> None:
    """Remove an incomplete fill, which a late process made: a fill appears and disappears as a whole."""
    with contextlib.suppress(OSError):
        trash = root.trash / f"stray-{os.urandom(8).hex()}"
        folder.rename(trash)
        Remover().remove(trash)


def publish(directory: FillDirectory, owner: LeaseOwner) -> bool:
    """Make the tree visible and record it; False if it was published or given up before.

    Also False, with the tree still there, if an earlier fill is visible: this one was planned before that was
    published, and began after it was cleared away. All parts are done, and what that needs is synced. Raises
    `OSError`, and `Conflict` if something that is not dsv's is in the way.
    """
    directory.root.reach(directory.root.claims(directory.place))
    record = _record(directory, directory.tree, owner)
    with directory.root.drafted(msgspec.json.encode(record)) as draft:
        for _ in range(_TRIES):
            if _becomes_visible(directory):
                _write_entry(directory, draft, record_path(directory.root, directory.place, record.fill))
                return True
            # An evictor may have removed the dataset's empty folder.
            if not directory.is_open() or lookup(directory.root, directory.place, fresh=True) is not None:
                return False
    return False


def _write_entry(directory: FillDirectory, draft: SharedPath, name: SharedPath) -> None:
    """Name the record; on a full disk by a rename, which needs no block and no inode. All write the same."""
    with ignoring(FULL):
        directory.root.link_once(draft, name)
        return
    draft.rename(name)


def _becomes_visible(directory: FillDirectory) -> bool:
    """Rename the tree to its visible path; False if one of the folders is gone, or a commit is there."""
    target = directory.root.visible(directory.place)
    directory.root.reach(target.parent)
    try:
        directory.tree.rename(target)
    except OSError as error:
        if error.errno in GONE:
            return False
        if error.errno in _OCCUPIED:
            if lookup(directory.root, directory.place, fresh=True) is not None:
                return False
            raise Conflict(
                f"{target} is in the way: it has files, but is not a cached commit",
                subject=str(target),
                hint=f"check what it is, then: rm -r {shlex.quote(str(target))}",
            ) from error
        raise
    return True


def give_up(directory: FillDirectory) -> bool:
    """End a fill without workers, and delete what it wrote; False if it ended before. Raises `OSError`."""
    ended = end_unpublished(directory)
    if ended:
        clear(directory)
    return ended


def end_unpublished(directory: FillDirectory) -> bool:
    """End a fill, so that no process can publish it; False if it ended before. Raises `OSError`."""
    with ignoring(GONE):
        directory.tree.rename(directory.dead)
        return True
    return False


def clear(directory: FillDirectory) -> None:
    """Remove the rest of a fill that has ended. Several processes may do so at once. Raises `OSError`."""
    (directory.root.room / directory.fill).unlink(missing_ok=True)
    trash = directory.root.trash / f"fill-{directory.fill}-{os.urandom(4).hex()}"
    try:
        directory.folder.rename(trash)
    except OSError as error:
        if error.errno not in GONE:
            raise
        return
    for folder in (directory.root.fill(directory.place), directory.root.fill(directory.place).parent):
        with contextlib.suppress(OSError):  # the next fill may be there already
            folder.rmdir()
    with contextlib.suppress(OSError):  # an evictor deletes the same trash, or will
        Remover().remove(trash)


def finalize(directory: FillDirectory) -> None:
    """Clear the rest of a fill whose tree is gone; first record it if it was published but not recorded."""
    # It was given up if `dead` exists, and recorded if its folder was cleared away. Checked in this order,
    # because the folder is removed with its content, and another commit may be visible since.
    if (
        not directory.dead.is_dir()
        and directory.folder.is_dir()
        and directory.root.visible(directory.place).is_dir()
        and not record_path(directory.root, directory.place, directory.fill).exists()
    ):
        record = _record(directory, directory.root.visible(directory.place), LeaseOwner.new())
        write_record(directory.root, directory.place, record)
    clear(directory)


def _record(directory: FillDirectory, tree: SharedPath, owner: LeaseOwner) -> Filled:
    """tree: where its files are now. Raises `OSError`."""
    plan = directory.plan
    written = written_by(directory.parts, len(plan.parts))
    own = Extent(plan.need_bytes, plan.need_files) if written is None else written + room_of(tree)
    return Filled(
        fill=directory.fill,
        store=plan.store,
        commit=plan.commit,
        files=plan.files,
        bytes=plan.bytes,
        entries=plan.entries,
        own_files=own.files,
        own_bytes=own.bytes,
        counted=written is not None,
        selection=tuple(plan.selection),
        linked=tuple(f"{reference.dataset}/{reference.name}" for reference in plan.references),
        host=owner.host,
        user=owner.user,
        time=directory.root.now(),
    )
