"""How a fill is shared: the parts, and what each of them has to do. Pure.

The plan is made once, from what the tree's nodes say (entries, files and bytes of each segment), and recorded where
all who share the fill find it. So it names parts by segment numbers and never by paths: a claimer reads the segments
of its own parts alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from dsv.repo.objects.ranges import ITEM

Encoded = bytes

# A part is worth about a second of work, so that the death of its claimer costs little and many can share a fill.
PART_BYTES = 64 << 20
PART_ENTRIES = 4096
PART_ENTRIES_REMOTE = 512  # if each file is several round trips
# There, a small commit too is cut into some parts, so that several hosts can share it.
SHARES_REMOTE = 16
LEAST_BYTES = 4 << 20
LEAST_ENTRIES = 64
# With more, the folder of claims would be slow to list.
MAX_PARTS = 8192
# File systems give out whole blocks.
BLOCK = 4096

# The source map has one byte for each entry of the tree: what a claimer does with it, other than fetch it.
FETCH = 0
LINK = 1  # LINK + d: donor d has this file at the same path
MOVED = 32  # MOVED + d: donor d has it at another path, which the table of moves names
CHUNKS = 64  # CHUNKS + d: a large file whose older version donor d has at the same path
NOTHING = 255  # no file, or an empty one
MAX_DONORS = 8
VERSION = 1  # of the plan, and of how those who share it work together


class Load(msgspec.Struct, frozen=True):
    """One segment, less what is not selected.

    number: of the segment in the tree.
    entries, bytes: wanted of it. heavy: bytes to fetch or copy; the rest is linked.
    """

    number: int
    entries: int
    bytes: int
    heavy: int


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Whole files, in path order: slice `slice` of `slices` of each segment from `first` to `last`, inclusive.

    There is more than one slice only if first == last. entries, bytes: for progress; a slice's are estimates.
    """

    first: int
    last: int
    slice: int
    slices: int
    entries: int
    bytes: int


class DonorPlan(msgspec.Struct, frozen=True, array_like=True):
    """A cached commit that files are taken from. way: `link`, `reflink` or `copy`, as tried when planning."""

    dataset: str
    name: str
    way: str


class Plan(msgspec.Struct, frozen=True):
    """What all who share a fill agree on.

    files, bytes, entries: of the whole commit or selection.
    need_bytes, need_files: room that it needs on disk, in blocks and inodes.
    has_source_map: whether files are taken from `donors`.
    """

    version: int
    fill: str
    store: str
    commit: str
    selection: list[str]
    files: int
    bytes: int
    entries: int
    need_bytes: int
    need_files: int
    parts: list[Part]
    donors: list[DonorPlan]
    has_source_map: bool = msgspec.field(name="sheet")

    def encode(self) -> Encoded:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: Encoded) -> Plan:
        """Raises `msgspec.DecodeError`."""
        return _PLAN.decode(data)


_PLAN = msgspec.json.Decoder(Plan)


def read_ahead(plan: Plan) -> int:
    """What a worker may hold that is not on disk yet: as much as the heaviest part weighs, which is what its death
    may cost. A little more, so that the gaps between its files don't make it wait for its last piece."""
    return max((part.bytes + ITEM * part.entries for part in plan.parts), default=0) * 17 // 16


def part_size(loads: Sequence[Load], *, remote: bool) -> tuple[int, int]:
    """Bytes and entries that a part of these is to be worth, as `cut_parts` takes them."""
    if not remote:
        return PART_BYTES, PART_ENTRIES
    size = sum(load.heavy for load in loads) // SHARES_REMOTE
    entries = sum(load.entries for load in loads) // SHARES_REMOTE
    return min(PART_BYTES, max(LEAST_BYTES, size)), min(PART_ENTRIES_REMOTE, max(LEAST_ENTRIES, entries))


def cut_parts(
    loads: Sequence[Load], part_bytes: int | None = None, part_entries: int | None = None
) -> list[Part]:
    """Joins light segments and slices heavy ones until each part is worth about `part_bytes` or `part_entries`."""
    part_bytes = max(part_bytes or PART_BYTES, sum(load.heavy for load in loads) // (MAX_PARTS // 2))
    part_entries = max(part_entries or PART_ENTRIES, sum(load.entries for load in loads) // (MAX_PARTS // 2))
    parts: list[Part] = []
    run: list[Load] = []
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


def _joined(run: Sequence[Load]) -> Part:
    return Part(
        run[0].number, run[-1].number, 0, 1, sum(one.entries for one in run), sum(one.bytes for one in run)
    )


def _sliced(load: Load, slices: int) -> Iterator[Part]:
    for number in range(slices):
        entries = load.entries * (number + 1) // slices - load.entries * number // slices
        size = load.bytes * (number + 1) // slices - load.bytes * number // slices
        yield Part(load.number, load.number, number, slices, entries, size)


def slice_bounds(sizes: Sequence[int], slices: int) -> list[tuple[int, int]]:
    """Where each slice of a segment begins and ends, by its entries' sizes: runs that cover all, some maybe empty.

    An entry belongs to the slice in which its first byte lies, so all readers of the segment cut it alike.
    """
    if slices == 1:
        return [(0, len(sizes))]
    weights = [size + BLOCK for size in sizes]
    total = sum(weights)
    starts = list(accumulate(weights, initial=0))[: len(sizes)]
    belongs = [start * slices // total for start in starts]
    bounds: list[tuple[int, int]] = []
    at = 0
    for number in range(slices):
        end = at
        while end < len(belongs) and belongs[end] == number:
            end += 1
        bounds.append((at, end))
        at = end
    return bounds


def blocks(size: int) -> int:
    """Bytes of disk for a file of this size."""
    return -(-size // BLOCK) * BLOCK


def estimated_room(files: int, size: int) -> int:
    """Bytes of disk for files if only their number and sum are known: half a block more for each."""
    return size + files * BLOCK // 2 + BLOCK
