"""Division of a fill among processes: its plan, its parts and the claims on them.

The plan is made once, from the tree's nodes. It names parts by segment numbers, so a process reads only the
segments of the parts that it claims. Claims are names in one folder, made by symlink(2): rules F5, W4 and W5
of docs/internals/cache-protocol.md. `<part>.<generation>.done.<boot>` says that a part is whole but that a
power cut may tear it: it counts until this machine starts again.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import msgspec
from msgspec.structs import replace

from dsv.cache.record import Extent
from dsv.cache.removal import is_held
from dsv.files.shared_path import SharedPath
from dsv.files.small_files import list_names
from dsv.files.system import FileSystem, boot
from dsv.repo.objects.ranges import ITEM

# A part is about a second of work: the death of its claimer costs little, and many can share a fill.
PART_BYTES = 64 << 20
PART_ENTRIES = 4096
PART_ENTRIES_REMOTE = 512  # if each file is several round trips
# On a file server even a small commit is cut into some parts, so that several hosts can share it.
SHARES_REMOTE = 16
LEAST_BYTES = 4 << 20
LEAST_ENTRIES = 64
MAX_PARTS = 8192
"""With more, the folder of claims would be slow to list."""
BLOCK = 4096
"""File systems allocate whole blocks."""

# The source map has one byte for each entry of the tree: what a claimer does with it.
FETCH = 0
LINK = 1  # LINK + d: reference d has this file at the same path
MOVED = 32  # MOVED + d: reference d has it at another path, which the table of moves names
CHUNKS = 64  # CHUNKS + d: a large file whose older version reference d has at the same path
NOTHING = 255  # no file, or an empty one
MAX_REFERENCES = 8
VERSION = 1  # of the plan, and of how the processes that share it work together


class SegmentLoad(msgspec.Struct, frozen=True):
    """The wanted entries of one segment, the tree's `number`-th."""

    number: int
    entries: int
    bytes: int
    heavy: int
    """Bytes to fetch or copy; the rest is linked."""


class FillPart(msgspec.Struct, frozen=True, array_like=True):
    """Whole files, in path order: slice `slice` of `slices` of each segment from `first` to `last`.

    `last` is included. `slices` is more than 1 only if first == last.
    """

    first: int
    last: int
    slice: int
    slices: int
    entries: int
    """For progress, like `bytes`; a slice's are estimates."""
    bytes: int


class ReferencePlan(msgspec.Struct, frozen=True, array_like=True):
    """A cached commit that files are taken from."""

    dataset: str
    name: str
    way: str
    """`link`, `reflink` or `copy`, as tried when planning."""


class FillPlan(msgspec.Struct, frozen=True):
    """The plan that all processes of a fill share. Its sums are of the whole commit or selection."""

    version: int
    fill: str
    store: str
    commit: str
    selection: list[str]
    files: int
    bytes: int
    entries: int
    need_bytes: int
    """Room on disk, in blocks."""
    need_files: int
    """Inodes."""
    parts: list[FillPart]
    references: list[ReferencePlan] = msgspec.field(name="donors")
    has_source_map: bool = msgspec.field(name="sheet")
    """True if files are taken from `references`."""


PLAN = msgspec.json.Decoder(FillPlan)


def read_ahead(plan: FillPlan) -> int:
    """Return how many bytes a worker may hold that are not on disk, and so lose: those of the heaviest part.

    A sixteenth is added, so that gaps between its files don't make it wait for its last piece.
    """
    return max((part.bytes + ITEM * part.entries for part in plan.parts), default=0) * 17 // 16


def part_size(loads: Sequence[SegmentLoad], *, remote: bool) -> tuple[int, int]:
    """Return the bytes and entries that a part of these should have, for `cut_parts`."""
    if not remote:
        return PART_BYTES, PART_ENTRIES
    size = sum(load.heavy for load in loads) // SHARES_REMOTE
    entries = sum(load.entries for load in loads) // SHARES_REMOTE
    return min(PART_BYTES, max(LEAST_BYTES, size)), min(PART_ENTRIES_REMOTE, max(LEAST_ENTRIES, entries))


def cut_parts(
    loads: Sequence[SegmentLoad], part_bytes: int | None = None, part_entries: int | None = None
) -> list[FillPart]:
    """Join light segments and slice heavy ones, until each part has about `part_bytes` or `part_entries`."""
    part_bytes = max(part_bytes or PART_BYTES, sum(load.heavy for load in loads) // (MAX_PARTS // 2))
    part_entries = max(part_entries or PART_ENTRIES, sum(load.entries for load in loads) // (MAX_PARTS // 2))
    parts: list[FillPart] = []
    run: list[SegmentLoad] = []
    for load in loads:
        if run and (
            load.number != run[-1].number + 1
            or sum(one.heavy for one in run) + load.heavy > part_bytes
            or sum(one.entries for one in run) + load.entries > part_entries
        ):
            parts.append(_joined(run))
            run = []
        slices = max(-(-load.heavy // part_bytes), -(-load.entries // part_entries))
        slices = min(slices, load.entries)
        if slices > 1:
            parts.extend(_sliced(load, slices))
        else:
            run.append(load)
    if run:
        parts.append(_joined(run))
    return parts


def _joined(run: Sequence[SegmentLoad]) -> FillPart:
    return FillPart(
        run[0].number, run[-1].number, 0, 1, sum(one.entries for one in run), sum(one.bytes for one in run)
    )


def _sliced(load: SegmentLoad, slices: int) -> Iterator[FillPart]:
    for number in range(slices):
        entries = load.entries * (number + 1) // slices - load.entries * number // slices
        size = load.bytes * (number + 1) // slices - load.bytes * number // slices
        yield FillPart(load.number, load.number, number, slices, entries, size)


def slice_bounds(sizes: Sequence[int], slices: int) -> list[tuple[int, int]]:
    """Return where each slice of a segment begins and ends, by its entries' sizes. Some may be empty.

    An entry belongs to the slice that has its first byte, so all readers of the segment cut it alike.
    """
    if slices == 1:
        return [(0, len(sizes))]
    weights = [size + BLOCK for size in sizes]
    total = sum(weights)
    belongs = [start * slices // total for start in list(accumulate(weights, initial=0))[: len(sizes)]]
    bounds: list[tuple[int, int]] = []
    at = 0
    for number in range(slices):
        end = at
        while end < len(belongs) and belongs[end] == number:
            end += 1
        bounds.append((at, end))
        at = end
    return bounds


def blocks(size: int, block: int = BLOCK) -> int:
    """Return the bytes of disk for a file of this size."""
    return -(-size // block) * block


def estimated_room(files: int, size: int) -> int:
    """Estimate the bytes of disk for files by their number and total size: at least a block for each, and half a
    block more than they have."""
    return max(files * BLOCK, size + files * BLOCK // 2 + BLOCK)


class Claim(msgspec.Struct, frozen=True):
    """A part that this process may work on."""

    part: int
    generation: int
    """1 for the first claimer; higher ones find others' traces."""
    done: bool = False
    """An earlier one had finished it; this one only keeps all of them from changing it."""


class ClaimTable:
    """The claims of one fill, as one process sees them. Not thread-safe."""

    def __init__(
        self,
        folder: SharedPath,
        parts: int,
        owner: str,
        kind: FileSystem,
        clock: Callable[[SharedPath], float],
    ) -> None:
        """clock: `CacheRoot.time_in`."""
        self._folder = folder
        self._clock = clock
        self._owner = owner
        self.count = parts
        self._newest: dict[int, int] = {}
        self._remote = kind.remote
        self._mark = "done" if kind.remote else f"done.{boot()[:8]}"
        self._finished: dict[int, int] = {}
        self._lost: set[int] = set()
        self._cursor = 0

    @property
    def free(self) -> int:
        """Parts that had no claim when the folder was last read."""
        return self.count - len(self._newest)

    @property
    def done(self) -> int:
        """Parts that are whole: their newest claim is done."""
        return sum(map(self._is_done, self._finished))

    @property
    def all_done(self) -> bool:
        return self.done == self.count

    def confirm_done(self) -> bool:
        """Return whether all parts are done and none was claimed again, by a lookup of each name: rule W5.

        Call it after a `refresh`, whose listing may lack names over NFS. Raises `OSError`.
        """
        if self.all_done and self._remote:
            for part, generation in list(self._newest.items()):
                if (self._folder / f"{part}.{generation + 1}").exists():
                    self._saw_claim(part, generation + 1)
        return self.all_done

    def begin_at(self, part: int) -> None:
        """Have `claim_free` look for parts from this one on, so that several processes start far apart."""
        self._cursor = part % max(self.count, 1)

    def refresh(self) -> float:
        """List the folder, past the memory of an NFS client; return the server's time.

        All that was seen is kept: no name here is ever removed, and a listing over NFS may miss some. Raises
        `OSError`; `FileNotFoundError` or ESTALE if the fill has ended.
        """
        now = self._clock(self._folder)
        lost: set[int] = set()
        for one in self._folder.entries():
            number, _, rest = one.name.partition(".")
            if not number.isdigit():
                continue
            generation, _, mark = rest.partition(".")
            part = int(number)
            if not mark:
                self._saw_claim(part, int(generation))
            elif mark in ("done", self._mark):
                self._saw_done(part, int(generation))
            else:
                lost.add(part)
        self._lost = {part for part in lost if not self._is_done(part)}
        return now

    def _is_done(self, part: int) -> bool:
        return part in self._finished and self._finished[part] >= self._newest.get(part, 0)

    def claim_free(self) -> Claim | None:
        """Claim the next part without a claim; None if there is none left. Raises `OSError`."""
        while True:
            candidates = itertools.chain(range(self._cursor, self.count), range(self._cursor))
            part = next((part for part in candidates if part not in self._newest), None)
            if part is None:
                return None
            claim = self._claim(part, 1)
            if claim is not None:
                self._cursor = part + 1
                return claim
            self.refresh()

    def claim_abandoned(self, is_gone: Callable[[str], bool]) -> Claim | None:
        """Take over a part whose newest claimer is gone, as `is_gone(owner id)` says. Raises `OSError`.

        A part that was done before this machine last started may have been lost: it is checked.
        """
        for part, generation in sorted(self._newest.items()):
            owner = "" if self._is_done(part) else self._owner_of(part, generation)
            if owner in ("", self._owner) or not (part in self._lost or is_gone(owner)):
                continue
            claim = self._claim(part, generation + 1)
            self.refresh()
            for earlier in range(1, generation + 1):  # each by its name: a listing may lack some
                if (self._folder / f"{part}.{earlier}.{self._mark}").exists():
                    self._saw_done(part, earlier)
            if claim is not None and not self.overtaken(claim):
                return replace(claim, done=part in self._finished)
        return None

    def finish(self, claim: Claim, own: Extent | None = None) -> None:
        """Record that every file of the part is whole and synced, and what they take without linked ones, unless that
        was recorded before. Raises `OSError`."""
        text = self._owner if own is None else f"{self._owner} {own.bytes} {own.files}"
        with contextlib.suppress(FileExistsError):
            (self._folder / f"{claim.part}.{claim.generation}.{self._mark}").symlink_to(text)
        self._saw_done(claim.part, claim.generation)

    def overtaken(self, claim: Claim) -> bool:
        """Return whether a newer generation was seen at the last `refresh`."""
        return self._newest.get(claim.part, 0) > claim.generation

    def _claim(self, part: int, generation: int) -> Claim | None:
        path = self._folder / f"{part}.{generation}"
        try:
            path.symlink_to(self._owner)
        except FileExistsError:
            # A request that was repeated because its answer was lost finds its own name.
            known = self._newest.get(part, 0) >= generation
            self._saw_claim(part, generation)
            if known or self._owner_of(part, generation) != self._owner:
                return None
        self._saw_claim(part, generation)
        return Claim(part, generation)

    def _saw_claim(self, part: int, generation: int) -> None:
        self._newest[part] = max(generation, self._newest.get(part, 0))

    def _saw_done(self, part: int, generation: int) -> None:
        self._finished[part] = max(generation, self._finished.get(part, 0))

    def _owner_of(self, part: int, generation: int) -> str:
        """Return the id of a claimer, or "" if the fill has ended."""
        try:
            return (self._folder / f"{part}.{generation}").readlink()
        except FileNotFoundError:
            return ""


def written_by(folder: SharedPath, parts: int) -> Extent | None:
    """Return what all parts' files take, as `finish` recorded it; None if an older dsv did one. Raises `OSError`."""
    own: dict[str, Extent] = {}
    for name in list_names(folder):
        words = (folder / name).readlink().split() if ".done" in name else []
        if len(words) == 3 and words[1].isdigit() and words[2].isdigit():
            own[name.partition(".")[0]] = Extent(int(words[1]), int(words[2]))
    return sum(own.values(), Extent()) if len(own) == parts else None


_BAR_SECONDS = 10.0
"""Seconds for which a folder is emptied repeatedly while its owner still adds files. Each of these was written
and synced first, so a few rounds are enough."""


def block_drafts(folder: SharedPath, part: int, below: int) -> None:
    """Replace the private folders of this part's generations under `below` by symlinks, permanently.

    Rule W3 of docs/internals/cache-protocol.md: nothing that these generations do later can replace a file of
    the tree. Raises `OSError`; ENOTEMPTY if one of them keeps adding to its folder.
    """
    for generation in range(1, below):
        _bar(folder / draft_name(part, generation))


def draft_name(part: int, generation: int) -> str:
    return f"{part}.{generation}"


def _bar(folder: SharedPath) -> None:
    """Put a symlink to nowhere in place of the folder, which may exist or be made later."""
    deadline = time.monotonic() + _BAR_SECONDS
    while True:
        try:
            folder.symlink_to("taken-over")
            return
        except FileExistsError:
            if folder.is_symlink():
                return
        try:
            names = [one.name for one in folder.entries()]
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
                # Held open on this host. Its owner would not rename it under that name. Anything else that
                # the owner may still rename has the right bytes, as any draft has.
                return
            if time.monotonic() > deadline:
                raise
