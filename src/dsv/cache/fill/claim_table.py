"""Who does which part: claims, their generations, and what is done.

All of it is names in one folder, made by symlink(2), which is atomic, exclusive and carries its content:

    <part>.<generation>              -> owner id: the claim
    <part>.<generation>.done         every file of the part is whole, and on stable storage
    <part>.<generation>.done.<boot>  whole, but a power cut may tear it: counts until this machine starts again

Only the newest generation of a part counts. A claimer of a further generation looks for `done` after its own claim,
and a publisher makes a change in the folder before it lists it: so either the publisher sees the new claim, or the
claimer sees that there was nothing left to take over. Even then it removes the drafts of those before it: one of them
may be about to rename a file into the tree. These are rules F5, W4 and W5 of docs/internals/cache-protocol.md.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dsv.cache.removal import is_held
from dsv.fs.attributes import server_time
from dsv.fs.system import FileSystem, boot


class Claim(msgspec.Struct, frozen=True):
    """A part that this process may work on.

    generation: 1 for the first claimer; higher ones find others' traces. done: one of these had finished it; what is
    left to do is to make sure that none of the others can still change it.
    """

    part: int
    generation: int
    done: bool = False


class ClaimTable:
    """The claims of one fill, as one process sees them. Not for use from several threads."""

    def __init__(
        self,
        folder: Path,
        parts: int,
        owner: str,
        kind: FileSystem,
        clock: Callable[[Path], float] = server_time,
    ) -> None:
        """clock: tells the server's time by a change in the folder, as `CacheRoot.time_in` does on a full disk too."""
        self._folder = folder
        self._clock = clock
        self._owner = owner
        self.count = parts
        self._newest: dict[int, int] = {}
        self._done: set[int] = set()
        self._remote = kind.remote
        self._mark = "done" if kind.remote else f"done.{_boot_tag()}"
        self._finished: dict[int, int] = {}
        self._lost: set[int] = set()
        self._cursor = 0

    @property
    def started(self) -> bool:
        """Whether anybody had claimed anything when this was last looked at."""
        return bool(self._newest)

    @property
    def free(self) -> int:
        """Parts that nobody had claimed when this was last looked at."""
        return self.count - len(self._newest)

    @property
    def done(self) -> int:
        return len(self._done)

    @property
    def all_done(self) -> bool:
        return len(self._done) == self.count

    def confirm_done(self) -> bool:
        """Check that all parts are done and none was claimed once more, by a lookup of each name: rule W5.

        To be called after a `refresh`, whose listing may lack names over NFS. Raises `OSError`.
        """
        if self.all_done and self._remote:
            for part, generation in list(self._newest.items()):
                if os.path.lexists(self._folder / f"{part}.{generation + 1}"):
                    self._saw_claim(part, generation + 1)
            self._count_done()
        return self.all_done

    def _look_for_done(self, part: int, newest: int) -> None:
        for generation in range(1, newest + 1):
            if os.path.lexists(self._folder / f"{part}.{generation}.{self._mark}"):
                self._finished[part] = max(generation, self._finished.get(part, 0))

    def begin_at(self, part: int) -> None:
        """Where to look for free parts first, so that several start far apart."""
        self._cursor = part % max(self.count, 1)

    def refresh(self) -> float:
        """Looks at the folder anew, past the memory of an NFS client; returns the server's time.

        What was seen once is kept: no name here is ever removed, and a listing over NFS may miss some.

        Raises `OSError`; `FileNotFoundError` or ESTALE if the fill has ended.
        """
        now = self._clock(self._folder)
        lost: set[int] = set()
        for name in os.listdir(self._folder):  # noqa: PTH208 (names, not paths)
            number, _, rest = name.partition(".")
            if not number.isdigit():
                continue
            generation, _, mark = rest.partition(".")
            part = int(number)
            if not mark:
                self._saw_claim(part, int(generation))
            elif mark in ("done", self._mark):
                self._finished[part] = max(int(generation), self._finished.get(part, 0))
            else:
                lost.add(part)
        self._count_done()
        self._lost = lost - self._done
        return now

    def _count_done(self) -> None:
        self._done = {
            part for part, generation in self._finished.items() if generation >= self._newest.get(part, 0)
        }

    def claim_free(self) -> Claim | None:
        """The next part that nobody has claimed; None if there is none left. Raises `OSError`."""
        while True:
            part = self._next_free()
            if part is None:
                return None
            claim = self._claim(part, 1)
            if claim is not None:
                self._cursor = part + 1
                return claim
            self.refresh()

    def claim_abandoned(self, is_gone: Callable[[str], bool]) -> Claim | None:
        """A part whose newest claimer is gone, as `is_gone(owner id)` says; taken over. Raises `OSError`.

        Also one that was done before this machine last started, and may have been lost with it: it is checked.
        """
        for part, generation in sorted(self._newest.items()):
            if part in self._done or not self._may_take(part, generation, is_gone):
                continue
            claim = self._claim(part, generation + 1)
            self.refresh()
            self._look_for_done(part, generation)
            if claim is not None and not self.overtaken(claim):
                return replace(claim, done=part in self._finished)
        return None

    def finish(self, claim: Claim) -> None:
        """Tells that every file of the part is whole. What that needs to be synced has been. Raises `OSError`."""
        with contextlib.suppress(FileExistsError):
            (self._folder / f"{claim.part}.{claim.generation}.{self._mark}").symlink_to(self._owner)
        self._done.add(claim.part)
        self._finished[claim.part] = max(claim.generation, self._finished.get(claim.part, 0))

    def overtaken(self, claim: Claim) -> bool:
        """Whether a newer generation was seen at the last `refresh`."""
        return self._newest.get(claim.part, 0) > claim.generation

    def owners(self) -> dict[int, str]:
        """The newest claimer of each part that is not done. Raises `OSError`."""
        return {
            part: self._owner_of(part, generation)
            for part, generation in self._newest.items()
            if part not in self._done
        }

    def _claim(self, part: int, generation: int) -> Claim | None:
        path = self._folder / f"{part}.{generation}"
        try:
            path.symlink_to(self._owner)
        except FileExistsError:
            # a request that was sent again after its answer was lost finds its own work
            known = self._newest.get(part, 0) >= generation
            self._saw_claim(part, generation)
            return Claim(part, generation) if not known and self._is_mine(part, generation) else None
        self._saw_claim(part, generation)
        return Claim(part, generation)

    def _is_mine(self, part: int, generation: int) -> bool:
        return self._owner_of(part, generation) == self._owner

    def _saw_claim(self, part: int, generation: int) -> None:
        self._newest[part] = max(generation, self._newest.get(part, 0))

    def _next_free(self) -> int | None:
        candidates = itertools.chain(range(self._cursor, self.count), range(self._cursor))
        return next((part for part in candidates if part not in self._newest), None)

    def _may_take(self, part: int, generation: int, is_gone: Callable[[str], bool]) -> bool:
        owner = self._owner_of(part, generation)
        return bool(owner) and owner != self._owner and (part in self._lost or is_gone(owner))

    def _owner_of(self, part: int, generation: int) -> str:
        """ "" if the fill has ended meanwhile."""
        try:
            return str((self._folder / f"{part}.{generation}").readlink())
        except FileNotFoundError:
            return ""


def _boot_tag() -> str:
    return boot()[:8]


_FIRST = 2  # parts
_TURN = 5.0  # seconds
_SHARE = 3  # on a file server a turn takes one part in so many of those that are left


def do_free_parts(
    table: ClaimTable,
    do: Callable[[Iterator[Claim]], None],
    *,
    remote: bool,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Gives `do` all parts that are free, until there are none or `stop` says so.

    What is fetched ahead is claimed ahead, though others could help with it. On a file server, where writing takes the
    time, each batch is some seconds' worth of parts, and at most a third of what is left, so that all who share
    the fill end at about the same time; and nothing is claimed for the next one before this one is done.
    """
    most = _FIRST if remote else table.count
    while True:
        batch = _Batch(table, most, stop)
        began = time.monotonic()
        do(batch)
        if not batch.claimed:
            return
        took = max(time.monotonic() - began, 0.01)
        most = round(_TURN * batch.claimed / took)
        if remote:
            most = min(most, table.free // _SHARE)
        most = max(_FIRST, min(most, table.count))


class _Batch(Iterator[Claim]):
    """Claims as they are asked for. One that could not be made, as the disk was full, may be asked for again."""

    def __init__(self, table: ClaimTable, most: int, stop: Callable[[], bool]) -> None:
        self._table = table
        self._most = most
        self._stop = stop
        self.claimed = 0

    def __next__(self) -> Claim:
        if self.claimed >= self._most or self._stop():
            raise StopIteration
        claim = self._table.claim_free()
        if claim is None:
            raise StopIteration
        self.claimed += 1
        return claim


# How long a folder is emptied again and again while its owner still adds to it. Each file that it adds was written and
# synced first, so that a few rounds do.
_BAR_SECONDS = 10.0


def bar_drafts(folder: Path, part: int, below: int) -> None:
    """Removes the private folders of this part's generations under `below`, and sees to it that they can't come back.

    Rule W3 of docs/internals/cache-protocol.md: nothing that these do later can replace a file of the tree. Raises
    `OSError`; ENOTEMPTY if one of them keeps adding to its folder.
    """
    for generation in range(1, below):
        _bar(folder / draft_name(part, generation))


def draft_name(part: int, generation: int) -> str:
    return f"{part}.{generation}"


def _bar(folder: Path) -> None:
    """Puts a symlink to nowhere in place of the folder, whether that is there or would be made later."""
    deadline = time.monotonic() + _BAR_SECONDS
    while True:
        try:
            folder.symlink_to("taken-over")
            return
        except FileExistsError:
            if folder.is_symlink():
                return
        try:
            names = os.listdir(folder)  # noqa: PTH208 (names, not paths)
            for name in names:
                try:
                    (folder / name).unlink()
                except FileNotFoundError:
                    pass
                except OSError as error:
                    if not is_held(name, error):
                        raise
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if names and all(name.startswith(".nfs") for name in names):
                # Held open on this very host. Under that name it is not what its owner would rename; what else that one
                # may still rename has the right bytes, as any draft's.
                return
            if time.monotonic() > deadline:
                raise
